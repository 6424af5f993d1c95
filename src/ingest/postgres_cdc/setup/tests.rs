//! The machine against a database made of answers.

mod refusals;
mod waiting;

use super::*;
use crate::config::TableName;
use crate::pg_wire::Notice;

pub(crate) const SYSTEM: u64 = 7_523_190_467_211_098_765;

/// Answers to the questions, and what was asked.
#[derive(Clone, Debug)]
pub(crate) struct Fake {
    pub server: Vec<(&'static str, String)>,
    pub timeline: u32,
    pub wal_end: Lsn,
    pub history: Result<String, ServerError>,
    pub slot: Option<Vec<(&'static str, Option<String>)>>,
    pub publications: Vec<Vec<(&'static str, String)>>,
    pub published: Vec<[Option<String>; 4]>,
    pub tables: Vec<Vec<(&'static str, String)>>,
    pub columns: Vec<Vec<(&'static str, String)>>,
    pub asked: Vec<Ask>,
    pub waits: Vec<Duration>,
}

fn error(code: &str, message: &str) -> ServerError {
    let (code, message) = (code.to_owned(), message.to_owned());
    ServerError(Box::new(Notice { severity: "ERROR".into(), code, message, ..Notice::default() }))
}

fn lsn(text: &str) -> Lsn {
    text.parse().unwrap()
}

fn rows(columns: &[&str], rows: Vec<Vec<Option<String>>>) -> Vec<Rows> {
    vec![Rows { columns: columns.iter().map(|c| (*c).to_owned()).collect(), rows }]
}

fn records(records: &[Vec<(&'static str, String)>]) -> Vec<Rows> {
    let columns: Vec<&str> =
        records.first().map(|row| row.iter().map(|(name, _)| *name).collect()).unwrap_or_default();
    let values = records.iter().map(|row| row.iter().map(|(_, v)| Some(v.clone())).collect());
    rows(&columns, values.collect())
}

fn set(record: &mut [(&'static str, String)], name: &str, value: &str) {
    let field = record.iter_mut().find(|(column, _)| *column == name);
    field.unwrap_or_else(|| panic!("{name}")).1 = value.to_owned();
}

fn table(name: &str) -> TableName {
    TableName { schema: "public".into(), name: name.into() }
}

fn table_record(name: &str) -> Vec<(&'static str, String)> {
    let text = |text: &str| text.to_owned();
    vec![
        ("root_schema", text("public")),
        ("root_name", text(name)),
        ("schema", text("public")),
        ("name", text(name)),
        ("is_root", text("t")),
        ("kind", text("r")),
        ("persistence", text("p")),
        ("identity", text("d")),
        ("owned", text("t")),
        ("has_key", text("t")),
        ("has_index", text("f")),
    ]
}

fn publication_record(name: &str) -> Vec<(&'static str, String)> {
    let text = |text: &str| text.to_owned();
    vec![
        ("name", text(name)),
        ("all_tables", text("f")),
        ("insert", text("t")),
        ("update", text("t")),
        ("delete", text("t")),
        ("truncate", text("t")),
        ("via_root", text("f")),
        ("age", text("500")),
    ]
}

fn column_record(name: &str, type_oid: u32) -> Vec<(&'static str, String)> {
    let text = |text: &str| text.to_owned();
    vec![
        ("schema", text("public")),
        ("name", text("orders")),
        ("is_full", text("f")),
        ("column", text(name)),
        ("type_name", text("some type")),
        ("type_oid", type_oid.to_string()),
        ("is_long", text(if type_oid == 25 { "t" } else { "f" })),
        ("generated", text("f")),
        ("key", text(if name == "id" { "t" } else { "f" })),
    ]
}

fn published(publication: &str, name: &str, columns: &str) -> [Option<String>; 4] {
    [publication, "public", name, columns].map(|text| Some(text.to_owned()))
}

impl Fake {
    /// A healthy database with table orders and neither slot nor publication.
    pub fn new() -> Fake {
        let text = |text: &str| text.to_owned();
        Fake {
            server: vec![
                ("version", text("150018")),
                ("database", text("shop")),
                ("role", text("tidegate")),
                ("wal_level", text("logical")),
                ("sender_timeout", text("60000")),
                ("max_slots", text("10")),
                ("slots", text("1")),
                ("max_senders", text("10")),
                ("senders", text("1")),
                ("keep_size", text("1024")),
                ("standby", text("f")),
                ("encoding", text("UTF8")),
                ("may_create", text("t")),
            ],
            timeline: 1,
            wal_end: lsn("0/5000"),
            history: Ok(String::new()),
            slot: None,
            publications: Vec::new(),
            published: Vec::new(),
            tables: vec![table_record("orders")],
            columns: vec![column_record("id", 23), column_record("note", 25)],
            asked: Vec::new(),
            waits: Vec::new(),
        }
    }

    /// The same after a first start.
    pub fn set_up() -> Fake {
        let text = |text: &str| Some(text.to_owned());
        let slot = vec![
            ("plugin", text("pgoutput")),
            ("slot_type", text("logical")),
            ("database", text("shop")),
            ("temporary", text("f")),
            ("active", text("f")),
            ("active_pid", None),
            ("restart_lsn", text("0/2000")),
            ("confirmed_flush_lsn", text("0/3000")),
            ("wal_status", text("reserved")),
            ("safe_wal_size", None),
            ("two_phase", text("f")),
            ("invalid", None),
            ("age", text("100")),
            ("client_addr", None),
            ("application_name", None),
        ];
        let mut fake = Fake::new();
        fake.slot = Some(slot);
        fake.publications = vec![publication_record("pub")];
        fake.published = vec![published("pub", "orders", "{id,note}")];
        fake
    }

    fn with_slot(mut self, name: &str, value: Option<&str>) -> Fake {
        let slot = self.slot.as_mut().expect("a slot");
        let field = slot.iter_mut().find(|(column, _)| *column == name).expect("a column");
        field.1 = value.map(str::to_owned);
        self
    }

    fn with_server(mut self, name: &str, value: &str) -> Fake {
        set(&mut self.server, name, value);
        self
    }

    fn with_table(mut self, name: &str, value: &str) -> Fake {
        set(&mut self.tables[0], name, value);
        self
    }

    pub fn answer(&mut self, ask: &Ask) -> Answer {
        self.asked.push(ask.clone());
        let one = |columns: &[&str], values: &[&str]| {
            Ok(rows(columns, vec![values.iter().map(|v| Some((*v).to_owned())).collect()]))
        };
        match (ask.on, ask.sql.as_str()) {
            (Session::Query, sql) if sql == sql::SERVER => {
                Ok(records(std::slice::from_ref(&self.server)))
            }
            (Session::Replication, "IDENTIFY_SYSTEM") => {
                let (timeline, end) = (self.timeline.to_string(), self.wal_end.to_string());
                let columns = ["systemid", "timeline", "xlogpos", "dbname"];
                one(&columns, &[&SYSTEM.to_string(), &timeline, &end, "shop"])
            }
            (Session::Replication, "SET client_encoding TO 'SQL_ASCII'") => Ok(Vec::new()),
            (Session::Replication, sql) if sql.starts_with("TIMELINE_HISTORY") => {
                let content = self.history.clone()?;
                one(&["filename", "content"], &["00000002.history", &content])
            }
            (Session::Replication, sql) if sql.starts_with("CREATE_REPLICATION_SLOT") => {
                let columns = ["slot_name", "consistent_point", "snapshot_name", "output_plugin"];
                one(&columns, &["slot", "0/6000", "", "pgoutput"])
            }
            (Session::Query, sql) if sql.contains("FROM pg_catalog.pg_replication_slots s") => {
                let slot = self.slot.clone().unwrap_or_default();
                let columns: Vec<&str> = slot.iter().map(|(name, _)| *name).collect();
                let values = slot.iter().map(|(_, value)| value.clone()).collect();
                let values = if slot.is_empty() { Vec::new() } else { vec![values] };
                Ok(rows(&columns, values))
            }
            (Session::Query, sql) if sql.contains("FROM pg_catalog.pg_publication WHERE") => {
                Ok(records(&self.publications))
            }
            (Session::Query, sql) if sql.starts_with("SELECT pubname AS publication") => {
                let columns = ["publication", "schema", "name", "columns"];
                Ok(rows(&columns, self.published.iter().map(|row| row.to_vec()).collect()))
            }
            (Session::Query, sql) if sql.starts_with("WITH asked") => Ok(records(&self.tables)),
            (Session::Query, sql) if sql.contains("a.attname AS column") => {
                Ok(records(&self.columns))
            }
            (Session::Query, sql) if sql.starts_with("CREATE PUBLICATION") => Ok(Vec::new()),
            other => panic!("nobody answers {other:?}"),
        }
    }

    fn run(&mut self, options: SetupOptions) -> Step {
        let mut setup = Setup::new(options);
        let mut step = setup.begin();
        loop {
            step = match step {
                Step::Ask(ask) => {
                    let answer = self.answer(&ask);
                    setup.answer(ask.on, answer)
                }
                Step::Wait { after, .. } => {
                    self.waits.push(after);
                    setup.waited()
                }
                end => return end,
            };
        }
    }

    fn changes(&self) -> Vec<&str> {
        let asked = self.asked.iter().map(|ask| ask.sql.as_str());
        asked.filter(|sql| sql.starts_with("CREATE") || sql.contains("terminate")).collect()
    }
}

fn options() -> SetupOptions {
    let mut options = SetupOptions::new("slot", "pub");
    options.tables = Tables::List(vec![table("orders")]);
    options
}

fn saved(end: &str) -> SetupOptions {
    let saved = Saved { system_id: SYSTEM, timeline: 1, end_lsn: lsn(end) };
    SetupOptions { saved: Some(saved), database: Some("shop".into()), ..options() }
}

fn ready(step: Step) -> SetupDone {
    match step {
        Step::Ready(done) => *done,
        other => panic!("{other:?}"),
    }
}

fn refused(step: Step) -> Refusal {
    match step {
        Step::Refused(refusal) => refusal,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_first_start_makes_the_publication_then_the_slot_and_saves_its_point() {
    let mut fake = Fake::new();
    let done = ready(fake.run(options()));
    assert_eq!(
        fake.changes(),
        [
            "CREATE PUBLICATION \"pub\" FOR TABLE \"public\".\"orders\" WITH (publish = 'insert, \
             update, delete, truncate')",
            "CREATE_REPLICATION_SLOT \"slot\" LOGICAL \"pgoutput\" (SNAPSHOT 'nothing')",
        ]
    );
    assert_eq!((done.start_at, done.consistent_point), (lsn("0/6000"), Some(lsn("0/6000"))));
    assert_eq!((done.system_id, done.timeline, done.slot_created), (SYSTEM, 1, true));
    assert_eq!(
        done.start_sql,
        "START_REPLICATION SLOT \"slot\" LOGICAL 0/6000 (\"proto_version\" '1', \
         \"publication_names\" '\"pub\"')"
    );
    assert_eq!(done.wal_sender_timeout, Some(Duration::from_secs(60)));
    let last = fake.asked.last().unwrap();
    assert_eq!((last.on, last.within), (Session::Replication, Some(Duration::from_secs(10))));
}

#[test]
fn a_later_start_changes_nothing_and_goes_on_at_the_saved_position() {
    let mut fake = Fake::set_up();
    let done = ready(fake.run(saved("0/4000")));
    assert_eq!(fake.changes(), [""; 0]);
    assert_eq!((done.start_at, done.slot_created, done.gap), (lsn("0/4000"), false, None));
    assert!(done.start_sql.contains("LOGICAL 0/4000"));
    assert_eq!(done.notes, []);
}

#[test]
fn a_slot_without_a_saved_position_starts_where_it_was_confirmed() {
    let done = ready(Fake::set_up().run(options()));
    assert_eq!(done.start_at, lsn("0/3000"));
    assert_eq!(done.notes[0].code, "slot_without_position");
}

#[test]
fn options_of_the_start_follow_the_configuration_and_the_columns() {
    let streaming = SetupOptions { streaming: true, binary: true, ..saved("0/4000") };
    let done = ready(Fake::set_up().run(streaming.clone()));
    assert!(done.binary);
    assert!(done.start_sql.ends_with(
        "(\"proto_version\" '2', \"publication_names\" '\"pub\"', \"streaming\" 'on', \"binary\" \
         'true')"
    ));
    let mut fake = Fake::set_up();
    fake.columns.push(column_record("ip", 869));
    let text = ready(fake.run(streaming));
    assert!(!text.binary && !text.start_sql.contains("binary"));
    assert_ne!(text.config_hash, done.config_hash);
    assert!(text.notes.iter().any(|note| note.code == "binary" && note.found.contains("ip")));
}

#[test]
fn test_decoding_needs_no_publication_and_learns_the_tables() {
    let lines = SetupOptions { decoder: Decoder::TestDecoding, ..saved("0/4000") };
    let mut fake = Fake::set_up().with_slot("plugin", Some("test_decoding"));
    fake.publications.clear();
    let done = ready(fake.run(lines));
    assert!(done.start_sql.contains("\"include-xids\" 'on'"), "{}", done.start_sql);
    assert_eq!(done.facts.len(), 1);
    let columns: Vec<_> = done.facts[0].columns.iter().map(|c| (&*c.name, c.key)).collect();
    assert_eq!(columns, [("id", true), ("note", false)]);
    assert!(!fake.asked.iter().any(|ask| ask.sql.contains("pg_publication")));
    let mut fake = Fake::set_up().with_slot("plugin", Some("test_decoding"));
    fake = fake.with_table("kind", "p");
    let lines = SetupOptions { decoder: Decoder::TestDecoding, ..saved("0/4000") };
    assert_eq!(refused(fake.run(lines)).code(), "partition_root");
}

#[test]
fn a_new_timeline_is_followed_from_a_position_at_or_before_its_fork() {
    let promoted = |history: &str| {
        let mut fake = Fake::set_up();
        (fake.timeline, fake.history) = (2, Ok(history.to_owned()));
        fake
    };
    let done = ready(promoted("1\t0/4000\treason").run(saved("0/4000")));
    assert_eq!((done.timeline, done.start_at), (2, lsn("0/4000")));
    assert_eq!(done.notes[0].code, "timeline_followed");
    assert_eq!(done.timelines.of(lsn("0/3FFF")), 1);
    assert_eq!(done.timelines.of(lsn("0/4000")), 2);

    let refusal = refused(promoted("1\t0/3FFF\treason").run(saved("0/4000")));
    assert_eq!(refusal.code(), "timeline_forked");
    assert!(refusal.to_string().contains("0/3FFF") && refusal.to_string().contains("0/4000"));

    let mut behind = saved("0/4000");
    behind.saved.as_mut().unwrap().timeline = 3;
    assert_eq!(refused(promoted("").run(behind.clone())).code(), "timeline_unknown");
    behind.saved.as_mut().unwrap().timeline = 1;
    let mut fake = promoted("");
    fake.history = Err(error("58P01", "could not open file"));
    assert_eq!(refused(fake.clone().run(behind.clone())).code(), "timeline_history");
    behind.saved.as_mut().unwrap().timeline = 2;
    assert_eq!(ready(fake.run(behind)).notes[0].code, "timeline_history");
    assert_eq!(refused(promoted("nonsense").run(saved("0/4000"))).code(), "unexpected_answer");
}

fn partitioned() -> Fake {
    let mut fake = Fake::new().with_table("kind", "p").with_table("identity", "f");
    let mut leaf = table_record("orders");
    for (name, value) in [("name", "orders_2024"), ("is_root", "f")] {
        set(&mut leaf, name, value);
    }
    fake.tables.push(leaf);
    fake
}

#[test]
fn partitions_come_under_the_name_of_their_root() {
    let mut fake = partitioned();
    let done = ready(fake.run(options()));
    assert!(fake.changes()[0].contains("publish_via_partition_root = true"));
    let note = done.notes.iter().find(|note| note.code == "partition_identity").unwrap();
    assert!(note.found.contains("orders_2024"), "{note}");

    let mut fake = partitioned();
    fake.publications = vec![publication_record("pub")];
    fake.published = vec![published("pub", "orders_2024", "{id}")];
    let refusal = refused(fake.run(options()));
    assert_eq!(refusal.code(), "partition_root");
    assert!(refusal.0.fix.contains("publish_via_partition_root = true"));
    fake.published = vec![published("pub", "orders", "{id}")];
    ready(fake.run(options()));
    let mut keyless = partitioned();
    set(&mut keyless.tables[1], "has_key", "f");
    assert_eq!(refused(keyless.run(options())).code(), "replica_identity");
}

#[test]
fn a_check_changes_nothing_and_finds_everything() {
    let check = SetupOptions { check: true, ..options() };
    let mut fake = Fake::new()
        .with_server("wal_level", "replica")
        .with_server("keep_size", "-1")
        .with_server("encoding", "SQL_ASCII")
        .with_server("sender_timeout", "1000")
        .with_server("slots", "10")
        .with_table("has_key", "f");
    let mut generated = column_record("sum", 23);
    set(&mut generated, "generated", "t");
    fake.columns.push(generated);
    let Step::Checked(findings) = fake.run(check.clone()) else { panic!("a check") };
    let codes: Vec<_> = findings.iter().map(|finding| finding.code).collect();
    assert_eq!(
        codes,
        [
            "wal_level",
            "encoding",
            "wal_sender_timeout",
            "max_slot_wal_keep_size",
            "slots_exhausted",
            "replica_identity",
            "long_values",
            "generated_columns",
        ]
    );
    assert_eq!(fake.changes(), [""; 0]);
    assert!(findings.iter().all(|f| f.level < Level::Wait || !f.fix.is_empty()));
    let mut fine = Fake::set_up().with_server("keep_size", "1");
    let Step::Checked(findings) = fine.run(SetupOptions { check: true, ..saved("0/4000") }) else {
        panic!("a check")
    };
    assert_eq!(findings.iter().map(|f| f.code).collect::<Vec<_>>(), ["long_values"]);
}

#[test]
fn a_database_without_an_encoding_is_asked_for_its_bytes_as_they_are() {
    let sets = |fake: &Fake| fake.asked.iter().any(|ask| ask.sql.starts_with("SET "));
    let mut fake = Fake::set_up().with_server("encoding", "SQL_ASCII");
    let done = ready(fake.run(saved("0/4000")));
    assert!(sets(&fake) && done.notes.iter().any(|note| note.code == "encoding"));
    let mut fake = Fake::set_up();
    ready(fake.run(saved("0/4000")));
    assert!(!sets(&fake));
}

#[test]
fn a_row_that_only_its_whole_self_identifies_is_told_where_it_is_the_partition_key() {
    let warned = |identity: &str, has_key: &str, row_keys: bool| {
        let mut fake =
            Fake::set_up().with_table("identity", identity).with_table("has_key", has_key);
        let done = ready(fake.run(SetupOptions { row_keys, ..saved("0/4000") }));
        let asked = fake.asked.iter().any(|ask| ask.sql.contains("a.attname AS column"));
        assert_eq!((asked, done.facts.len()), (row_keys, usize::from(row_keys)));
        done.notes.iter().any(|note| note.code == "row_key")
    };
    assert!(warned("f", "f", true));
    assert!(!warned("f", "t", true), "the primary key is looked up");
    assert!(!warned("f", "f", false), "nobody asks for it");
}

#[test]
fn names_cannot_leave_their_quotes() {
    let mut odd = options();
    odd.publication = "My,Pub\"x'".into();
    odd.slot = "slot".into();
    odd.tables = Tables::List(vec![TableName { schema: "a.b".into(), name: "we\"ird'".into() }]);
    let mut fake = Fake::new();
    for (name, value) in [("root_schema", "a.b"), ("root_name", "we\"ird'")] {
        set(&mut fake.tables[0], name, value);
    }
    for (name, value) in [("schema", "a.b"), ("name", "we\"ird'")] {
        set(&mut fake.tables[0], name, value);
    }
    let done = ready(fake.run(odd));
    assert!(
        fake.changes()[0].starts_with(
            "CREATE PUBLICATION \"My,Pub\"\"x'\" FOR TABLE \"a.b\".\"we\"\"ird'\" WITH"
        )
    );
    assert!(done.start_sql.contains("\"publication_names\" '\"My,Pub\"\"x''\"'"));
    let asked = fake.asked.iter().map(|ask| ask.sql.as_str());
    assert!(asked.clone().any(|sql| sql.contains("pubname IN ('My,Pub\"x''')")));
    assert!(asked.clone().any(|sql| sql.contains("IN (('a.b', 'we\"ird'''))")));
}

#[test]
fn the_end_of_a_stream_is_explained() {
    let stop = |code, message| match of_stream_error("slot", &error(code, message)) {
        Trouble::Stop(finding) => finding.code,
        Trouble::Retry(finding) => panic!("{finding}"),
    };
    assert_eq!(stop("42704", "publication \"pub\" does not exist"), "publication_younger");
    assert_eq!(stop("42704", "replication slot \"slot\" does not exist"), "slot_missing");
    assert_eq!(
        stop("55000", "can no longer get changes from replication slot \"slot\""),
        "slot_lost"
    );
    assert_eq!(stop("0A000", "cannot use different column lists"), "column_lists");
    assert_eq!(stop("22021", "invalid byte sequence"), "encoding");
    for (code, message) in [
        ("57P01", "terminating connection due to administrator command"),
        ("55006", "replication slot is active for PID 7"),
        ("57P03", "the database system is shutting down"),
        ("53300", "too many"),
    ] {
        assert!(matches!(of_stream_error("slot", &error(code, message)), Trouble::Retry(_)));
    }
    let notice = |message: &str| Notice { message: message.into(), ..Notice::default() };
    let skipped = notice("skipped loading publication \"pub\"");
    assert_eq!(of_notice("slot", &skipped).unwrap().code, "publication_younger");
    assert_eq!(of_notice("slot", &notice("checkpoint")), None);
}

#[test]
fn a_row_the_server_cannot_send_stops_the_loop_after_some_tries() {
    let mut poison = Poison::default();
    let huge = error("54000", "out of memory");
    for at in [Lsn(1), Lsn(2), Lsn(2), Lsn(2), Lsn(2)] {
        assert_eq!(poison.failed(&huge, at), None);
    }
    let finding = poison.failed(&huge, Lsn(2)).expect("a finding");
    assert!(finding.found.contains("5 times") && finding.found.contains("0/2"), "{finding}");
    let mut poison = Poison::default();
    for _ in 0..20 {
        assert_eq!(poison.failed(&error("57P01", "terminated"), Lsn(2)), None);
    }
}

#[test]
fn the_watch_counts_what_the_slot_keeps() {
    let columns = ["wal_end", "restart_lsn", "confirmed_flush_lsn", "wal_status", "safe_wal_size"];
    let answer = |status: &str, safe: Option<&str>| {
        let values = [Some("0/5000"), Some("0/1000"), Some("0/4000"), Some(status), safe];
        rows(&columns, vec![values.map(|value| value.map(str::to_owned)).to_vec()])
    };
    let watch = Watch::read(&answer("reserved", None)).unwrap().unwrap();
    assert_eq!((watch.retained, watch.unconfirmed), (0x4000, 0x1000));
    assert_eq!(watch.finding("slot"), None);
    let watch = Watch::read(&answer("unreserved", Some("-77"))).unwrap().unwrap();
    let finding = watch.finding("slot").unwrap();
    assert_eq!((finding.code, finding.level), ("slot_wal_status", Level::Warning));
    assert!(finding.found.contains("-77 bytes"), "{finding}");
    let lost = Watch::read(&answer("lost", None)).unwrap().unwrap().finding("slot").unwrap();
    assert_eq!((lost.code, lost.level), ("slot_lost", Level::Refusal));
    assert_eq!(Watch::read(&rows(&columns, Vec::new())), Ok(None));
}
