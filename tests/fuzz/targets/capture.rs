//! A capture, likewise. `stream`: any run of replication messages, with connections that are lost
//! between them. `events`: the decisions of a shard between a database made of answers and a
//! destination, under whatever both may do; the database keeps its word about transactions, so
//! what is told to it must be the end of one.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use tidegate::batch::FeedId;
use tidegate::config::{CapturePlan, Decoder, EnvelopePlan, Operations, Tables, parse};
use tidegate::ingest::postgres_cdc::{
    Envelope, EnvelopeOptions, Item, Position, Spill, Stream, StreamOptions,
};
use tidegate::pg_wire::query::Rows;
use tidegate::pg_wire::startup::ServerInfo;
use tidegate::pg_wire::{Notice, ServerError};
use tidegate::shard::event::{
    CaptureSpec, Event, FromControl, PgCommand, PgConnError, PgConnId, PgEvent,
};
use tidegate::shard::order::Abandon;

use super::Choices;
use super::pipeline::{Driver, Nothing};

const SYSTEM: &str = "7523190467211098765";
/// Where the slot stands at first.
const BEGIN: u64 = 0x3000;

/// `data` as messages, each behind two bytes with its length; the first byte chooses the decoder,
/// how much may stay in memory, and when the connection is lost.
pub fn stream(data: &[u8]) {
    let mut choices = Choices::new(data);
    let (lines, memory, lost) = (choices.flag(), choices.flag(), choices.number());
    let options = StreamOptions {
        decoder: if lines { Decoder::TestDecoding } else { Decoder::PgOutput },
        tables: Tables::All,
        operations: Operations { insert: true, update: true, delete: true, truncate: true },
        snake_case_columns: lost % 2 == 1,
        binary: false,
        config_hash: 1,
        facts: Vec::new(),
        spool_memory: if memory { usize::MAX } else { 0 },
    };
    let mut stream = Stream::new(options.clone(), Position::default());
    let mut envelope = Envelope::new(EnvelopeOptions {
        form: EnvelopePlan::Record,
        include_metadata: true,
        numeric_as_string: false,
    });
    let mut files = HashMap::new();
    let mut nth = 0;
    while !choices.is_empty() {
        nth += 1;
        let length = usize::from(choices.byte()) << 8 | usize::from(choices.byte());
        let body = choices.bytes(length);
        if nth == lost || swallow(&mut stream, body, &mut envelope, &mut files).is_none() {
            // What ends a connection ends what was read of it.
            files.clear();
            stream = Stream::new(options.clone(), Position::default());
        }
    }
}

/// `None` if the connection has to end.
fn swallow(
    stream: &mut Stream,
    body: &[u8],
    envelope: &mut Envelope,
    files: &mut HashMap<u32, Vec<u8>>,
) -> Option<()> {
    let mut read = take(stream.message(body).ok()?, envelope, files)?;
    loop {
        if let Some(bytes) = read.take() {
            stream.spilled(&bytes).ok()?;
        }
        match stream.more().ok()? {
            Some(item) => read = take(item, envelope, files)?,
            None => return Some(()),
        }
    }
}

/// Bytes that were asked for, if any were.
fn take(
    item: Item<'_, '_>,
    envelope: &mut Envelope,
    files: &mut HashMap<u32, Vec<u8>>,
) -> Option<Option<Vec<u8>>> {
    match item {
        Item::Row(row) => {
            let mut payload = b"before".to_vec();
            match envelope.render(&mut payload, &row, &[]) {
                Ok(_) => assert!(payload.starts_with(b"before")),
                Err(error) => assert!(!error.to_string().is_empty()),
            }
        }
        Item::Spill(Spill::Append { xid, offset, bytes }) => {
            let file = files.entry(xid).or_default();
            assert_eq!(file.len() as u64, offset, "a spill file with a hole");
            file.extend(bytes);
        }
        Item::Spill(Spill::Read { xid, offset, length }) => {
            let start = usize::try_from(offset).expect("small files");
            let file = files.get(&xid).expect("a file that was written");
            return Some(Some(file.get(start..start + length).expect("what was written").to_vec()));
        }
        Item::Spill(Spill::Drop { xid }) => assert!(files.remove(&xid).is_some(), "no file {xid}"),
        _ => {}
    }
    Some(None)
}

/// A database with one table, and the session that may stream from it.
struct Database {
    driver: Driver,
    up: BTreeSet<PgConnId>,
    dialling: Vec<(PgConnId, bool)>,
    streaming: Option<PgConnId>,
    granted: bool,
    questions: Vec<(PgConnId, String)>,
    /// Ends of transactions, and where the next begins.
    ends: BTreeSet<u64>,
    next: u64,
    /// What comes with the next reads.
    log: Vec<Vec<u8>>,
    described: bool,
    told: u64,
}

/// `data` as choices of what happens next.
pub fn events(data: &[u8]) {
    run(data);
}

/// Where the database's log ends, and what it was told may be forgotten.
pub fn run(data: &[u8]) -> (u64, u64) {
    let mut choices = Choices::new(data);
    let plan = plan(choices.byte());
    let mut driver = Driver::new(plan.key.clone(), true);
    let (saved, carried) = (None, Vec::new());
    let spec = CaptureSpec {
        id: FeedId(0),
        plan,
        saved,
        carried,
        generation: 0,
        accept_gap: choices.flag(),
    };
    driver.events.push(Event::Control(FromControl::AddCapture(Box::new(spec))));
    let mut db = Database {
        driver,
        up: BTreeSet::new(),
        dialling: Vec::new(),
        streaming: None,
        granted: false,
        questions: Vec::new(),
        ends: [BEGIN].into(),
        next: BEGIN,
        log: Vec::new(),
        described: false,
        told: 0,
    };
    db.turn();
    while !choices.is_empty() {
        db.happen(&mut choices);
        db.turn();
    }
    db.driver.events.push(Event::Control(FromControl::Drain));
    db.turn();
    (db.next, db.told)
}

fn plan(choice: u8) -> Arc<CapturePlan> {
    let more = ["", "streaming = \"on\"\n", "max_in_flight_batches = 1\n"][usize::from(choice) % 3];
    let text = format!(
        "[daemon]\nstate_dir = \"s\"\n[clusters.b]\naddress = \"c:1\"\ntoken = \"t\"\n\
         [sources.test]\nkind = \"postgres_cdc\"\nto = \"b\"\ntables = [\"public.orders\"]\n\
         connection = \"postgresql://tidegate@localhost/shop\"\nslot = \"slot\"\n\
         publication = \"pub\"\nstream = \"s\"\ntopic = \"t\"\n{more}"
    );
    parse(&text, "x", &Nothing).unwrap_or_else(|errors| panic!("{errors}")).captures.remove(0)
}

impl Database {
    fn turn(&mut self) {
        self.driver.turn();
        for capture in self.driver.pipeline.captures(self.driver.time()) {
            assert!(capture.durable_position <= capture.position, "{capture:?}");
        }
        for (feed, op) in std::mem::take(&mut self.driver.spills) {
            let result = match op {
                Spill::Read { .. } => Err("lost".to_owned()),
                _ => Ok(Vec::new()),
            };
            self.driver.events.push(Event::Spilled { feed, result });
        }
        for (conn, command) in std::mem::take(&mut self.driver.postgres) {
            self.obey(conn, command);
        }
    }

    fn obey(&mut self, conn: PgConnId, command: PgCommand) {
        match command {
            PgCommand::Connect { replication, .. } => {
                assert!(!self.up.contains(&conn), "{conn:?} is dialled twice");
                self.dialling.push((conn, replication));
            }
            PgCommand::Query(sql) => self.questions.push((conn, sql)),
            PgCommand::Read { most, .. } => {
                assert!(most > 0);
                self.granted = self.streaming == Some(conn);
            }
            PgCommand::Write(bytes) if self.streaming == Some(conn) => self.hear(&bytes),
            PgCommand::Write(_) | PgCommand::Watch(_) => {}
            PgCommand::Close => self.lose(conn, PgConnError::Closed),
        }
    }

    /// Status updates: what is told to be flushed is the end of a transaction or an idle place
    /// before one, and never goes back.
    fn hear(&mut self, mut bytes: &[u8]) {
        while let Some((b'd', rest)) = bytes.split_first() {
            let length = u32::from_be_bytes(rest[..4].try_into().expect("a length")) as usize;
            let (body, more) = rest[4..].split_at(length - 4);
            bytes = more;
            if body.first() == Some(&b'r') {
                let flushed = u64::from_be_bytes(body[9..17].try_into().expect("a position"));
                assert!(flushed == 0 || self.ends.contains(&flushed), "{flushed:#x} is no end");
                assert!(
                    flushed >= self.told || flushed == 0,
                    "{flushed:#x} after {:#x}",
                    self.told
                );
                let entry = self.driver.disk.as_ref().and_then(|state| state.captures.first());
                let durable = entry.map_or(0, |entry| entry.end_lsn);
                assert!(flushed <= durable, "told {flushed:#x}, on disk is {durable:#x}");
                self.told = self.told.max(flushed);
            }
        }
    }

    fn lose(&mut self, conn: PgConnId, cause: PgConnError) {
        let dialled = self.dialling.iter().any(|(dialled, _)| *dialled == conn);
        self.dialling.retain(|(dialled, _)| *dialled != conn);
        if self.up.remove(&conn) || dialled {
            self.questions.retain(|(asked, _)| *asked != conn);
            if self.streaming.take_if(|streaming| *streaming == conn).is_some() {
                self.granted = false;
                self.log.clear();
            }
            self.driver.events.push(Event::Pg { conn, event: PgEvent::Down(cause) });
        }
    }

    fn happen(&mut self, choices: &mut Choices<'_>) {
        match choices.below(16) {
            0..=4 => self.driver.happen(choices),
            5 | 6 => self.log_in(choices),
            7 | 8 => self.answer(choices),
            9 => self.commit(choices),
            10 => self.chunk(choices),
            11 => {
                let at = choices.below(self.up.len().max(1));
                let Some(conn) = self.up.iter().nth(at).copied() else { return };
                self.lose(conn, PgConnError::Lost("reset".into()));
            }
            12 => {
                let through = choices.flag().then(|| BEGIN.saturating_add(choices.number()));
                let range = Abandon { oldest: self.next - choices.number().min(BEGIN), through };
                let order = choices.number();
                let order = FromControl::Abandon { feed: FeedId(0), order, range };
                self.driver.events.push(Event::Control(order));
            }
            _ => {
                for _ in 0..=choices.below(20) {
                    let mut good = Choices::new(&[]);
                    self.driver.go_well();
                    self.log_in(&mut good);
                    for _ in 0..self.questions.len() {
                        self.answer(&mut good);
                    }
                    self.chunk(&mut good);
                    self.turn();
                }
            }
        }
    }

    fn log_in(&mut self, choices: &mut Choices<'_>) {
        let Some((conn, _)) = self.dialling.pop() else { return };
        let event = if choices.byte() > 220 {
            let address = "localhost:5432".to_owned();
            PgEvent::Down(PgConnError::Dial { address, why: "no".into() })
        } else {
            self.up.insert(conn);
            let (parameters, version_num) = (Default::default(), 150_018);
            PgEvent::Up(Box::new(ServerInfo {
                parameters,
                version_num,
                backend_pid: 1,
                tls: false,
            }))
        };
        self.driver.events.push(Event::Pg { conn, event });
    }

    fn answer(&mut self, choices: &mut Choices<'_>) {
        if self.questions.is_empty() {
            return;
        }
        let (conn, sql) = self.questions.remove(0);
        let mood = choices.byte();
        if mood < 220 && sql.starts_with("START_REPLICATION") {
            (self.streaming, self.granted, self.described) = (Some(conn), false, false);
            self.log.clear();
            let event = PgEvent::CopyStarted;
            return self.driver.events.push(Event::Pg { conn, event });
        }
        let answer = match mood {
            0..=219 => Ok(self.rows(&sql)),
            220..=235 => Ok(Vec::new()),
            236..=245 => Ok(damaged(self.rows(&sql), choices)),
            _ => {
                let code = ["55006", "57P03", "42501", "42704", "XX000"][choices.below(5)];
                let (code, message) = (code.to_owned(), "no".to_owned());
                let severity = "ERROR".to_owned();
                Err(ServerError(Box::new(Notice { severity, code, message, ..Notice::default() })))
            }
        };
        self.driver.events.push(Event::Pg { conn, event: PgEvent::Answer(answer) });
    }

    /// What a database says after a first start. The order of the tests is that of the setup.
    fn rows(&self, sql: &str) -> Vec<Rows> {
        let end = format!("0/{:X}", self.next + 0x1000);
        let slot = format!("0/{:X}", self.told.max(BEGIN));
        let table: [(&str, &str); 11] = [
            ("root_schema", "public"),
            ("root_name", "orders"),
            ("schema", "public"),
            ("name", "orders"),
            ("is_root", "t"),
            ("kind", "r"),
            ("persistence", "p"),
            ("identity", "d"),
            ("owned", "t"),
            ("has_key", "t"),
            ("has_index", "f"),
        ];
        let record: &[(&str, &str)] = if sql == "IDENTIFY_SYSTEM" {
            &[("systemid", SYSTEM), ("timeline", "1"), ("xlogpos", &end), ("dbname", "shop")]
        } else if sql.contains("pg_replication_slots s") {
            &[
                ("plugin", "pgoutput"),
                ("slot_type", "logical"),
                ("database", "shop"),
                ("temporary", "f"),
                ("active", "f"),
                ("active_pid", NULL),
                ("restart_lsn", "0/2000"),
                ("confirmed_flush_lsn", &slot),
                ("wal_status", "reserved"),
                ("safe_wal_size", NULL),
                ("two_phase", "f"),
                ("invalid", NULL),
                ("age", "100"),
                ("client_addr", NULL),
                ("application_name", NULL),
            ]
        } else if sql.contains("FROM pg_catalog.pg_publication WHERE") {
            &[
                ("name", "pub"),
                ("all_tables", "f"),
                ("insert", "t"),
                ("update", "t"),
                ("delete", "t"),
                ("truncate", "t"),
                ("via_root", "f"),
                ("age", "500"),
            ]
        } else if sql.starts_with("SELECT pubname AS publication") {
            &[
                ("publication", "pub"),
                ("schema", "public"),
                ("name", "orders"),
                ("columns", "{id,note}"),
            ]
        } else if sql.starts_with("WITH asked") {
            &table
        } else if sql.contains("a.attname AS column") {
            &[
                ("schema", "public"),
                ("name", "orders"),
                ("is_full", "f"),
                ("column", "id"),
                ("type_name", "integer"),
                ("type_oid", "23"),
                ("is_long", "f"),
                ("generated", "f"),
                ("key", "t"),
            ]
        } else if sql.contains("wal_level") {
            &[
                ("version", "150018"),
                ("database", "shop"),
                ("role", "tidegate"),
                ("wal_level", "logical"),
                ("sender_timeout", "60000"),
                ("max_slots", "10"),
                ("slots", "1"),
                ("max_senders", "10"),
                ("senders", "1"),
                ("keep_size", "1024"),
                ("standby", "f"),
                ("encoding", "UTF8"),
                ("may_create", "t"),
            ]
        } else {
            return Vec::new();
        };
        let columns = record.iter().map(|(name, _)| (*name).to_owned()).collect();
        let value = |value: &str| (value != NULL).then(|| value.to_owned());
        vec![Rows { columns, rows: vec![record.iter().map(|(_, v)| value(v)).collect()] }]
    }

    /// A transaction of some rows is committed.
    fn commit(&mut self, choices: &mut Choices<'_>) {
        let Some(_) = self.streaming else { return };
        let mut put = |body: Vec<u8>| self.log.push(body);
        if !std::mem::replace(&mut self.described, true) {
            put(data(
                0,
                b"R\0\0\x40\x10public\0orders\0d\0\x02\
                \x01id\0\0\0\0\x17\xff\xff\xff\xff\0note\0\0\0\0\x19\xff\xff\xff\xff",
            ));
        }
        let (at, end) = (self.next + 0x40, self.next + 0x60);
        let number = |number: u64| number.to_be_bytes();
        put(data(at, &[b"B", &number(at)[..], &[0; 8], &[0, 0, 0, 9]].concat()));
        for row in 0..choices.below(5) {
            let note = vec![b'x'; choices.byte().into()];
            let head = [b'I', 0, 0, 0x40, 0x10, b'N', 0, 2, b't', 0, 0, 0, 1, b'0' + row as u8];
            let length = (note.len() as u32).to_be_bytes();
            put(data(0, &[&head[..], b"t", &length, &note].concat()));
        }
        put(data(at, &[b"C\0", &number(at)[..], &number(end), &[0; 8]].concat()));
        (self.next, _) = (end, self.ends.insert(end));
    }

    /// Some of what was committed arrives, or a keepalive, or something damaged.
    fn chunk(&mut self, choices: &mut Choices<'_>) {
        let Some(conn) = self.streaming.filter(|_| self.granted) else { return };
        let mut bodies = Vec::new();
        let mood = choices.byte();
        if self.log.is_empty() || mood > 200 {
            // Between transactions as far as was sent, at the end of the last one.
            let asks = [u8::from(choices.flag())];
            let sent = if self.log.is_empty() { self.next } else { BEGIN };
            bodies.push([b"k", &sent.to_be_bytes()[..], &[0; 8], &asks].concat());
        } else {
            let count = (1 + choices.below(8)).min(self.log.len());
            bodies.extend(self.log.drain(..count));
        }
        let mut chunk = Vec::new();
        for body in bodies {
            chunk.push(b'd');
            chunk.extend((body.len() as u32 + 4).to_be_bytes());
            chunk.extend(body);
        }
        self.granted = false;
        self.driver.events.push(Event::Pg { conn, event: PgEvent::Chunk(chunk.into()) });
    }
}

const NULL: &str = "\0";

fn data(start: u64, message: &[u8]) -> Vec<u8> {
    [b"w", &start.to_be_bytes()[..], &[0; 16], message].concat()
}

/// One value, or one column's name, is another one.
fn damaged(mut rows: Vec<Rows>, choices: &mut Choices<'_>) -> Vec<Rows> {
    const VALUES: [&str; 9] = ["", "t", "f", "-1", "0/0", "lost", "physical", "{", "ä"];
    for answer in &mut rows {
        if choices.byte() == 255 {
            answer.columns.reverse();
        }
        for row in &mut answer.rows {
            let at = choices.below(row.len().max(1));
            if let Some(value) = row.get_mut(at) {
                *value = choices.flag().then(|| VALUES[choices.below(9)].to_owned());
            }
        }
    }
    rows
}
