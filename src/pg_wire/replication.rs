//! CopyBoth on a replication connection, and the commands that lead there.
//!
//! ```text
//! inside CopyData, from the server
//! 'w'  start:8 | wal_end:8 | sent_at:8 | data           WAL data; start may be 0/0
//! 'k'  wal_end:8 | sent_at:8 | reply_requested:1        keepalive
//! inside CopyData, from us
//! 'r'  written:8 | flushed:8 | applied:8 | now:8 | reply:1
//! ```
//!
//! Times are microseconds since 2000-01-01. Replication commands have a grammar of their own:
//! quoted identifiers as in SQL, strings with doubled quotes and no escapes.

use super::error::PgWireError;
use super::frame::Frame;
use super::lsn::Lsn;
use super::query::{Rows, quote_identifier};
use super::reader::Reader;

/// One CopyData of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replication<'a> {
    /// A piece of the log, as the output plugin wrote it.
    Data {
        /// Position of the change. Neither unique nor ordered, and 0/0 for some messages.
        start: Lsn,
        /// The server's end of log at that time.
        wal_end: Lsn,
        /// When it was sent, µs since 2000.
        sent_at: i64,
        /// The plugin's message.
        data: &'a [u8],
    },
    /// Nothing to send, or a question whether we live.
    Keepalive {
        /// How far the server has read.
        wal_end: Lsn,
        /// When it was sent, µs since 2000.
        sent_at: i64,
        /// Answer at once, or be cut off.
        reply_requested: bool,
    },
}

/// Length of what stands before the plugin's message.
const DATA_HEAD: usize = 25;

/// Reads the body of a CopyData message.
#[inline(always)] // what the caller does not look at is then not read
pub fn parse(copy_data_body: &[u8]) -> Result<Replication<'_>, PgWireError> {
    match copy_data_body.split_first_chunk::<DATA_HEAD>() {
        Some((head @ [b'w', ..], data)) => {
            let [_, fields @ ..] = head;
            let field = |index: usize| {
                let field = fields.as_chunks::<8>().0.get(index);
                u64::from_be_bytes(field.copied().unwrap_or_default())
            };
            let sent_at = field(2).cast_signed();
            Ok(Replication::Data { start: Lsn(field(0)), wal_end: Lsn(field(1)), sent_at, data })
        }
        _ => parse_slowly(copy_data_body),
    }
}

/// What is rare or cut.
#[cold]
fn parse_slowly(copy_data_body: &[u8]) -> Result<Replication<'_>, PgWireError> {
    let mut reader = Reader::new(copy_data_body);
    match reader.u8("kind of a replication message")? {
        b'w' => Ok(Replication::Data {
            start: Lsn(reader.u64("start of WAL data")?),
            wal_end: Lsn(reader.u64("end of log of WAL data")?),
            sent_at: reader.i64("time of WAL data")?,
            data: reader.rest(),
        }),
        b'k' => {
            let wal_end = Lsn(reader.u64("end of log of a keepalive")?);
            let sent_at = reader.i64("time of a keepalive")?;
            let reply_requested = reader.u8("reply flag of a keepalive")? != 0;
            reader.end("keepalive")?;
            Ok(Replication::Keepalive { wal_end, sent_at, reply_requested })
        }
        other => Err(PgWireError::Invalid {
            what: "kind of a replication message",
            seen: format!("{other:#04x}"),
            expected: "'w' (WAL data) or 'k' (keepalive)",
        }),
    }
}

/// A status update as a whole CopyData message. `flushed` is what the server may forget.
pub fn status_update(
    written: Lsn,
    flushed: Lsn,
    applied: Lsn,
    now_us_since_2000: i64,
    reply: bool,
) -> Vec<u8> {
    Frame::new(b'd')
        .u8(b'r')
        .bytes(&written.0.to_be_bytes())
        .bytes(&flushed.0.to_be_bytes())
        .bytes(&applied.0.to_be_bytes())
        .bytes(&now_us_since_2000.to_be_bytes())
        .u8(u8::from(reply))
        .end()
}

/// Our end of CopyBoth: the server answers with its own, two CommandComplete and ReadyForQuery.
pub fn copy_done() -> [u8; 5] {
    *b"c\0\0\0\x04"
}

/// The last message of a connection.
pub fn terminate() -> [u8; 5] {
    *b"X\0\0\0\x04"
}

/// What a new slot does with the snapshot at its consistent point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SlotSnapshot {
    /// No snapshot.
    #[default]
    Nothing,
    /// Exported under a name, until this connection's next command.
    Export,
    /// Used by the current transaction of this connection.
    Use,
}

/// How a logical slot is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotOptions {
    /// Gone with the connection.
    pub temporary: bool,
    /// Copied to standbys; servers before 17 do not know it, there it is left out.
    pub failover: bool,
    /// What happens to the snapshot.
    pub snapshot: SlotSnapshot,
}

/// Asks for system identifier, timeline and the end of the log.
pub fn identify_system() -> &'static str {
    "IDENTIFY_SYSTEM"
}

/// Makes a logical slot, in the words of the server's version (`150004` is 15.4).
pub fn create_slot_sql(slot: &str, plugin: &str, options: SlotOptions, version: u32) -> String {
    let slot = quote_identifier(slot);
    let plugin = quote_identifier(plugin);
    let temporary = if options.temporary { " TEMPORARY" } else { "" };
    let named = version >= 150_000;
    let snapshot = match (options.snapshot, named) {
        (SlotSnapshot::Nothing, true) => "SNAPSHOT 'nothing'",
        (SlotSnapshot::Export, true) => "SNAPSHOT 'export'",
        (SlotSnapshot::Use, true) => "SNAPSHOT 'use'",
        (SlotSnapshot::Nothing, false) => "NOEXPORT_SNAPSHOT",
        (SlotSnapshot::Export, false) => "EXPORT_SNAPSHOT",
        (SlotSnapshot::Use, false) => "USE_SNAPSHOT",
    };
    let failover = if options.failover && version >= 170_000 { ", FAILOVER true" } else { "" };
    let (open, close) = if named { ("(", ")") } else { ("", "") };
    format!(
        "CREATE_REPLICATION_SLOT {slot}{temporary} LOGICAL {plugin} \
         {open}{snapshot}{failover}{close}"
    )
}

/// Removes a slot; with `wait`, as soon as nobody uses it.
pub fn drop_slot_sql(slot: &str, wait: bool) -> String {
    let wait = if wait { " WAIT" } else { "" };
    format!("DROP_REPLICATION_SLOT {}{wait}", quote_identifier(slot))
}

/// Starts CopyBoth. Values are quoted here; a list of publications is made by
/// [`publication_list`].
pub fn start_replication_sql(slot: &str, at: Lsn, options: &[(&str, &str)]) -> String {
    let mut sql = format!("START_REPLICATION SLOT {} LOGICAL {at}", quote_identifier(slot));
    for (index, (name, value)) in options.iter().enumerate() {
        sql.push_str(if index == 0 { " (" } else { ", " });
        sql.push_str(&quote_identifier(name));
        sql.push_str(" '");
        sql.push_str(&value.replace('\'', "''"));
        sql.push('\'');
    }
    if !options.is_empty() {
        sql.push(')');
    }
    sql
}

/// The value of `publication_names`: the server reads it as a list of SQL identifiers, and folds
/// to lower case what is not quoted.
pub fn publication_list(names: &[&str]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| quote_identifier(name)).collect();
    quoted.join(",")
}

/// Asks for the history of a timeline: where it, and those before it, forked off.
pub fn timeline_history_sql(timeline: u32) -> String {
    format!("TIMELINE_HISTORY {timeline}")
}

/// What IDENTIFY_SYSTEM says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Unique to the cluster since initdb.
    pub system_id: u64,
    /// Current timeline.
    pub timeline: u32,
    /// End of the log, flushed.
    pub wal_end: Lsn,
    /// Database of this connection; none on a physical one.
    pub database: Option<String>,
}

impl Identity {
    /// From the answer.
    pub fn read(answer: &[Rows]) -> Result<Identity, PgWireError> {
        const WHAT: &str = "answer to IDENTIFY_SYSTEM";
        let row = OneRow::of(answer, WHAT)?;
        Ok(Identity {
            system_id: row.parsed("systemid", "a system identifier")?,
            timeline: row.parsed("timeline", "a timeline")?,
            wal_end: row.parsed("xlogpos", "a log position")?,
            database: row.value("dbname").map(str::to_owned),
        })
    }
}

/// What CREATE_REPLICATION_SLOT says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotCreated {
    /// From here on every commit is in the slot.
    pub consistent_point: Lsn,
    /// Name of the exported snapshot.
    pub snapshot: Option<String>,
}

impl SlotCreated {
    /// From the answer.
    pub fn read(answer: &[Rows]) -> Result<SlotCreated, PgWireError> {
        let row = OneRow::of(answer, "answer to CREATE_REPLICATION_SLOT")?;
        Ok(SlotCreated {
            consistent_point: row.parsed("consistent_point", "a log position")?,
            snapshot: row.value("snapshot_name").map(str::to_owned),
        })
    }
}

/// Where a timeline ended: its successor forked off there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fork {
    /// The timeline that ended.
    pub timeline: u32,
    /// The first position that is not on it.
    pub at: Lsn,
}

/// The forks that TIMELINE_HISTORY lists, oldest first.
pub fn read_timeline_history(answer: &[Rows]) -> Result<Vec<Fork>, PgWireError> {
    const WHAT: &str = "answer to TIMELINE_HISTORY";
    let content = OneRow::of(answer, WHAT)?.value("content").unwrap_or_default();
    let mut forks = Vec::new();
    for line in content.lines().map(str::trim) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let mut words = line.split_ascii_whitespace();
        let timeline = words.next().and_then(|word| word.parse().ok());
        let at = words.next().and_then(|word| word.parse().ok());
        let (Some(timeline), Some(at)) = (timeline, at) else {
            let seen = format!("{:?}", line.chars().take(60).collect::<String>());
            let expected = "lines of a timeline, a position and a reason";
            return Err(PgWireError::Invalid { what: WHAT, seen, expected });
        };
        forks.push(Fork { timeline, at });
    }
    Ok(forks)
}

/// The only row of an answer, by column name.
struct OneRow<'r> {
    rows: &'r Rows,
    row: &'r [Option<String>],
    what: &'static str,
}

impl<'r> OneRow<'r> {
    fn of(answer: &'r [Rows], what: &'static str) -> Result<OneRow<'r>, PgWireError> {
        let mut found = answer.iter().flat_map(|rows| rows.rows.iter().map(move |row| (rows, row)));
        match (found.next(), found.next()) {
            (Some((rows, row)), None) => Ok(OneRow { rows, row, what }),
            (none, _) => {
                let seen = if none.is_none() { "no row" } else { "several rows" }.to_owned();
                Err(PgWireError::Invalid { what, seen, expected: "one row" })
            }
        }
    }

    fn value(&self, column: &str) -> Option<&'r str> {
        let index = self.rows.columns.iter().position(|name| name == column)?;
        self.row.get(index)?.as_deref()
    }

    fn parsed<T: std::str::FromStr>(
        &self,
        column: &str,
        expected: &'static str,
    ) -> Result<T, PgWireError> {
        let value = self.value(column);
        value.and_then(|value| value.parse().ok()).ok_or_else(|| {
            let seen = match value {
                Some(value) => {
                    format!("{column} {:?}", value.chars().take(40).collect::<String>())
                }
                None => format!("no {column}"),
            };
            PgWireError::Invalid { what: self.what, seen, expected }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(columns: &[&str], row: &[Option<&str>]) -> Vec<Rows> {
        let columns = columns.iter().map(|name| (*name).to_owned()).collect();
        let row = row.iter().map(|value| value.map(str::to_owned)).collect();
        vec![Rows { columns, rows: vec![row] }]
    }

    #[test]
    fn both_kinds_are_read_in_place() {
        let mut body = vec![b'w'];
        body.extend([0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 7]);
        body.extend(b"B...");
        let parsed = parse(&body).unwrap();
        let Replication::Data { start, wal_end, sent_at, data } = parsed else { panic!() };
        assert_eq!((start, wal_end, sent_at), (Lsn(1 << 32 | 2), Lsn(1 << 32 | 9), 7));
        assert_eq!(data.as_ptr(), body[25..].as_ptr());
        assert_eq!(data, b"B...");
        let keepalive = b"k\0\0\0\0\x01\x4f\x8e\x10\xff\xff\xff\xff\xff\xff\xff\xff\x01";
        assert_eq!(
            parse(keepalive),
            Ok(Replication::Keepalive {
                wal_end: Lsn(0x14f_8e10),
                sent_at: -1,
                reply_requested: true
            })
        );
        for length in 0..keepalive.len() {
            assert!(parse(&keepalive[..length]).is_err(), "{length}");
        }
        assert!(parse(b"x").is_err());
        assert!(parse(&[keepalive, &b"\0"[..]].concat()).is_err());
    }

    #[test]
    fn a_status_update_is_one_copy_data_of_39_bytes() {
        let frame = status_update(Lsn(3), Lsn(2), Lsn(1), -2, true);
        assert_eq!(frame.len(), 39);
        assert_eq!(&frame[..6], b"d\0\0\0\x26r");
        let field = |at: usize| u64::from_be_bytes(frame[at..at + 8].try_into().unwrap());
        assert_eq!([field(6), field(14), field(22), field(30)], [3, 2, 1, u64::MAX - 1]);
        assert_eq!(frame[38], 1);
    }

    #[test]
    fn slots_are_made_in_the_words_of_the_version() {
        let options = SlotOptions { failover: true, ..SlotOptions::default() };
        let sql = |version| create_slot_sql("a", "pgoutput", options, version);
        let head = "CREATE_REPLICATION_SLOT \"a\" LOGICAL \"pgoutput\"";
        assert_eq!(sql(140_009), format!("{head} NOEXPORT_SNAPSHOT"));
        assert_eq!(sql(150_018), format!("{head} (SNAPSHOT 'nothing')"));
        assert_eq!(sql(170_002), format!("{head} (SNAPSHOT 'nothing', FAILOVER true)"));
        let options = SlotOptions {
            temporary: true,
            snapshot: SlotSnapshot::Export,
            ..SlotOptions::default()
        };
        assert_eq!(
            create_slot_sql("a", "p", options, 180_004),
            "CREATE_REPLICATION_SLOT \"a\" TEMPORARY LOGICAL \"p\" (SNAPSHOT 'export')"
        );
        assert_eq!(drop_slot_sql("a", true), "DROP_REPLICATION_SLOT \"a\" WAIT");
    }

    #[test]
    fn publication_names_are_identifiers_inside_a_string() {
        let names = publication_list(&["My,Pub\"x", "it's"]);
        assert_eq!(names, "\"My,Pub\"\"x\",\"it's\"");
        let options = [("proto_version", "1"), ("publication_names", &names)];
        assert_eq!(
            start_replication_sql("s", Lsn(0x16_B374_D848), &options),
            "START_REPLICATION SLOT \"s\" LOGICAL 16/B374D848 (\"proto_version\" '1', \
             \"publication_names\" '\"My,Pub\"\"x\",\"it''s\"')"
        );
        assert_eq!(
            start_replication_sql("s", Lsn::INVALID, &[]),
            "START_REPLICATION SLOT \"s\" LOGICAL 0/0"
        );
    }

    #[test]
    fn answers_are_read_by_column_name() {
        let columns = ["systemid", "timeline", "xlogpos", "dbname"];
        let row = [Some("7418529630741852963"), Some("2"), Some("0/15D68C8"), None];
        let identity = Identity::read(&answer(&columns, &row)).unwrap();
        assert_eq!((identity.system_id, identity.timeline), (7_418_529_630_741_852_963, 2));
        assert_eq!((identity.wal_end, identity.database), (Lsn(0x15D_68C8), None));
        let columns = ["slot_name", "consistent_point", "snapshot_name", "output_plugin"];
        let row = [Some("a"), Some("0/19A2B40"), Some("00000003-00000002-1"), Some("pgoutput")];
        let created = SlotCreated::read(&answer(&columns, &row)).unwrap();
        assert_eq!(created.consistent_point, Lsn(0x19A_2B40));
        assert_eq!(created.snapshot.as_deref(), Some("00000003-00000002-1"));
        let missing = Identity::read(&answer(&["systemid"], &[Some("x")])).unwrap_err();
        assert!(missing.to_string().contains("systemid \"x\""), "{missing}");
        assert!(Identity::read(&[]).unwrap_err().to_string().contains("no row"));
    }

    #[test]
    fn a_timeline_history_lists_its_forks() {
        let content = "1\t0/3000060\tno recovery target specified\n\n2\t16/B374D848\tbefore x\n";
        let columns = ["filename", "content"];
        let row = [Some("00000003.history"), Some(content)];
        let forks = read_timeline_history(&answer(&columns, &row)).unwrap();
        let expected = [(1, 0x300_0060), (2, 0x16_B374_D848)];
        let expected = expected.map(|(timeline, at)| Fork { timeline, at: Lsn(at) });
        assert_eq!(forks, expected);
        let row = [Some("00000003.history"), Some("one 0/1 x")];
        assert!(read_timeline_history(&answer(&columns, &row)).is_err());
    }
}
