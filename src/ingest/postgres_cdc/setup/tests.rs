//! The machine against a database made of answers.

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

/// Every refusal says what was found and what to do, and comes before anything is changed.
#[test]
fn refusals_name_what_was_found_and_change_nothing() {
    type Change = fn(Fake) -> Fake;
    let cases: [(&str, &str, Change); 16] = [
        ("server_version", "130010", |f| f.with_server("version", "130010")),
        ("wal_level", "\"replica\"", |f| f.with_server("wal_level", "replica")),
        ("other_database", "\"other\"", |f| f.with_server("database", "other")),
        ("standby", "standby", |f| f.with_server("standby", "t")),
        ("unexpected_answer", "version \"x\"", |f| f.with_server("version", "x")),
        ("slot_plugin", "\"wal2json\"", |f| f.with_slot("plugin", Some("wal2json"))),
        ("slot_database", "\"other\"", |f| f.with_slot("database", Some("other"))),
        ("slot_physical", "physical", |f| f.with_slot("slot_type", Some("physical"))),
        ("slot_temporary", "temporary", |f| f.with_slot("temporary", Some("t"))),
        ("slot_two_phase", "two_phase", |f| f.with_slot("two_phase", Some("t"))),
        ("slot_lost", "wal_status lost", |f| f.with_slot("wal_status", Some("lost"))),
        ("slot_lost", "wal_removed", |f| f.with_slot("invalid", Some("wal_removed"))),
        ("confirmed_ahead", "0/4500", |f| f.with_slot("confirmed_flush_lsn", Some("0/4500"))),
        ("table_missing", "orders", |mut f| {
            f.tables.clear();
            f
        }),
        ("table_kind", "unlogged", |f| f.with_table("persistence", "u")),
        ("table_not_published", "orders", |mut f| {
            f.published.clear();
            f
        }),
    ];
    for (code, found, change) in cases {
        let mut fake = change(Fake::set_up());
        let refusal = refused(fake.run(saved("0/4000")));
        assert_eq!(refusal.code(), code, "{refusal}");
        assert!(refusal.0.found.contains(found), "{code}: {refusal}");
        assert!(!refusal.0.fix.is_empty() && !refusal.is_transient(), "{code}: {refusal}");
        assert_eq!(fake.changes(), [""; 0], "{code}");
    }
}

#[test]
fn a_position_of_another_log_or_branch_is_refused_with_both_sides() {
    let mut other = saved("0/4000");
    other.saved.as_mut().unwrap().system_id = 1;
    let refusal = refused(Fake::set_up().run(other));
    assert_eq!(refusal.code(), "other_system");
    assert!(refusal.to_string().contains(&SYSTEM.to_string()), "{refusal}");
    assert!(refusal.0.wanted.contains('1'), "{refusal}");

    let refusal = refused(Fake::set_up().run(saved("0/5001")));
    assert_eq!(refusal.code(), "ahead_of_server");
    assert!(refusal.to_string().contains("0/5000") && refusal.to_string().contains("0/5001"));
    ready(Fake::set_up().run(saved("0/5000")));
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

#[test]
fn a_slot_that_is_gone_is_never_made_again_in_silence() {
    let mut gone = Fake::set_up();
    gone.slot = None;
    let refusal = refused(gone.clone().run(saved("0/4000")));
    assert_eq!(refusal.code(), "slot_missing");
    assert!(refusal.0.fix.contains("--accept-gap"));
    assert_eq!(gone.changes(), [""; 0]);
    let accepted = SetupOptions { accept_gap: true, ..saved("0/4000") };
    let done = ready(gone.run(accepted));
    let gap = done.gap.expect("a gap");
    assert_eq!((gap.first, gap.last, done.start_at), (lsn("0/4000"), lsn("0/6000"), lsn("0/6000")));
    assert!(done.slot_created);
}

#[test]
fn accepted_gaps_are_recorded_and_streaming_goes_on_where_the_slot_is() {
    let accept = |end| SetupOptions { accept_gap: true, ..saved(end) };
    let mut fake = Fake::set_up().with_slot("confirmed_flush_lsn", Some("0/4800"));
    let done = ready(fake.run(accept("0/4000")));
    let gap = done.gap.unwrap();
    assert_eq!((gap.first, gap.last, done.start_at), (lsn("0/4000"), lsn("0/4800"), lsn("0/4800")));

    let done = ready(Fake::set_up().run(accept("0/9000")));
    let gap = done.gap.unwrap();
    assert_eq!((gap.first, gap.last, done.start_at), (lsn("0/5000"), lsn("0/9000"), lsn("0/3000")));

    let mut forked = Fake::set_up();
    (forked.timeline, forked.history) = (2, Ok("1\t0/3800\treason".to_owned()));
    let done = ready(forked.run(accept("0/4000")));
    let gap = done.gap.unwrap();
    assert_eq!((gap.first, gap.last, done.start_at), (lsn("0/3800"), lsn("0/4000"), lsn("0/3800")));
    assert!(done.notes.iter().any(|note| note.code == "timeline_forked"));
    assert_eq!(ready(Fake::set_up().run(accept("0/4000"))).gap, None, "nothing is missing");
}

#[test]
fn an_active_slot_is_waited_for_and_then_named_with_its_reader() {
    let active = |pid: Option<&str>| {
        let fake = Fake::set_up().with_slot("active_pid", pid);
        fake.with_slot("client_addr", Some("10.0.0.9")).with_slot("application_name", Some("cron"))
    };
    let mut fake = active(Some("4711"));
    let refusal = refused(fake.run(saved("0/4000")));
    assert!(refusal.is_transient());
    assert_eq!(refusal.code(), "slot_active");
    assert!(refusal.0.found.contains("4711 (10.0.0.9 cron)"), "{refusal}");
    let waited: Duration = fake.waits.iter().sum();
    assert!((70..90).contains(&waited.as_secs()), "wal_sender_timeout and slack: {waited:?}");
    assert!(fake.waits.windows(2).all(|pair| pair[0] <= pair[1]));
    assert_eq!(*fake.waits.last().unwrap(), Duration::from_secs(10));
    let mut check = SetupOptions { check: true, ..saved("0/4000") };
    check.check = true;
    let Step::Checked(findings) = active(Some("4711")).run(check) else { panic!("a check") };
    let level = findings.iter().find(|f| f.code == "slot_active").unwrap().level;
    assert_eq!(level, Level::Info, "the daemon itself may be running");
}

#[test]
fn a_table_without_identity_is_refused_before_the_application_is_hurt() {
    let mut keyless = Fake::new().with_table("has_key", "f");
    let refusal = refused(keyless.run(options()));
    assert_eq!(refusal.code(), "replica_identity");
    assert!(refusal.0.found.contains("public.orders"), "{refusal}");
    assert!(refusal.0.fix.contains("REPLICA IDENTITY FULL"));
    assert_eq!(keyless.changes(), [""; 0]);
    let mut inserts = options();
    (inserts.operations.update, inserts.operations.delete) = (false, false);
    let mut fake = Fake::new().with_table("has_key", "f");
    ready(fake.run(inserts));
    assert!(fake.changes()[0].ends_with("(publish = 'insert, truncate')"), "{:?}", fake.changes());
    for identity in ["f", "i", "n"] {
        let mut fake = Fake::new().with_table("identity", identity).with_table("has_index", "t");
        let step = fake.run(options());
        assert_eq!(matches!(step, Step::Ready(_)), identity != "n", "{identity}");
    }
    // Somebody else published it: it is said, and the rest runs.
    let done = ready(Fake::set_up().with_table("has_key", "f").run(saved("0/4000")));
    assert_eq!((done.notes[0].code, done.notes[0].level), ("replica_identity", Level::Warning));
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
fn what_a_publication_lacks_is_said() {
    let mut fake = Fake::set_up();
    set(&mut fake.publications[0], "delete", "f");
    set(&mut fake.publications[0], "age", "99");
    fake.published.push(published("pub", "audit", "{id}"));
    let codes: Vec<_> = ready(fake.run(saved("0/4000"))).notes.iter().map(|n| n.code).collect();
    assert_eq!(codes, ["tables_left_out", "publication_operations", "publication_younger"]);

    let mut fake = Fake::set_up();
    fake.published.push(published("pub2", "orders", "{id}"));
    let refusal = refused(fake.run(saved("0/4000")));
    assert_eq!(refusal.code(), "column_lists");
    assert!(refusal.0.found.contains("\"pub\"") && refusal.0.found.contains("\"pub2\""));

    let by_hand = SetupOptions { tables: Tables::All, ..options() };
    let refusal = refused(Fake::new().run(by_hand));
    assert_eq!(refusal.code(), "publication_missing");
    assert!(refusal.0.fix.contains("CREATE PUBLICATION \"pub\" FOR ALL TABLES"));
}

#[test]
fn missing_privileges_come_with_the_statement_for_somebody_else() {
    for (mut fake, word) in [
        (Fake::new().with_server("may_create", "f"), "CREATE on database"),
        (Fake::new().with_table("owned", "f"), "does not own public.orders"),
    ] {
        let refusal = refused(fake.run(options()));
        assert_eq!(refusal.code(), "publication_privileges");
        assert!(refusal.0.found.contains(word), "{refusal}");
        assert!(refusal.0.fix.contains("CREATE PUBLICATION \"pub\""), "{refusal}");
        assert_eq!(fake.changes(), [""; 0]);
    }
    ready(Fake::set_up().with_server("may_create", "f").run(saved("0/4000")));
}

#[test]
fn exhausted_slots_are_named_and_tried_again() {
    let refusal = refused(Fake::new().with_server("slots", "10").run(options()));
    assert_eq!((refusal.code(), refusal.is_transient()), ("slots_exhausted", true));
    assert!(refusal.0.found.contains("10 of 10"), "{refusal}");
    ready(Fake::set_up().with_server("slots", "10").run(saved("0/4000")));
}

#[test]
fn errors_of_the_server_are_told_apart() {
    for (code, expected, transient) in [
        ("42501", "privilege_missing", false),
        ("53300", "senders_exhausted", true),
        ("53400", "slots_exhausted", true),
        ("55006", "slot_active", true),
        ("57P03", "server_unavailable", true),
        ("42601", "query_refused", false),
        ("XX000", "query_failed", true),
    ] {
        let mut setup = Setup::new(options());
        setup.begin();
        let refusal = refused(setup.answer(Session::Query, Err(error(code, "said so"))));
        assert_eq!((refusal.code(), refusal.is_transient()), (expected, transient), "{code}");
        let text = refusal.to_string();
        assert!(text.contains("asking about the server") && text.contains("said so"), "{text}");
    }
}

/// A machine that waits for its slot.
fn creating(looks: u32) -> Setup {
    let mut setup = Setup::new(SetupOptions { create_looks: looks, ..options() });
    let mut fake = Fake::new();
    let mut step = setup.begin();
    while let Step::Ask(ask) = &step {
        if ask.within.is_some() {
            return setup;
        }
        let answer = fake.answer(ask);
        step = setup.answer(ask.on, answer);
    }
    panic!("{step:?}")
}

fn blockers() -> Answer {
    let row = ["815", "app psql idle", "00:05:00"].map(|text| Some(text.to_owned()));
    Ok(rows(&["who", "what", "since"], vec![row.to_vec()]))
}

#[test]
fn a_slot_that_is_held_up_names_the_sessions_and_is_made_when_they_end() {
    let mut setup = creating(30);
    let Step::Ask(ask) = setup.overdue() else { panic!("a look") };
    assert_eq!((ask.on, ask.sql.as_str()), (Session::Query, sql::BLOCKERS));
    let Step::Pending { why } = setup.answer(Session::Query, blockers()) else { panic!("pending") };
    assert!(why.contains("815 (app psql idle, for 00:05:00)"), "{why}");
    let point = rows(&["consistent_point"], vec![vec![Some("0/7000".to_owned())]]);
    assert_eq!(ready(setup.answer(Session::Replication, Ok(point))).start_at, lsn("0/7000"));
}

#[test]
fn a_slot_that_is_made_while_somebody_looks_counts() {
    let mut setup = creating(30);
    setup.overdue();
    let point = rows(&["consistent_point"], vec![vec![Some("0/7000".to_owned())]]);
    assert_eq!(ready(setup.answer(Session::Replication, Ok(point))).start_at, lsn("0/7000"));
}

#[test]
fn a_slot_that_is_never_ready_is_given_up_with_its_session() {
    let mut setup = creating(2);
    for _ in 0..1 {
        assert!(matches!(setup.overdue(), Step::Ask(_)));
        assert!(matches!(setup.answer(Session::Query, blockers()), Step::Pending { .. }));
    }
    assert!(matches!(setup.overdue(), Step::Ask(_)));
    let Step::Ask(ask) = setup.answer(Session::Query, blockers()) else { panic!("an abort") };
    assert!(ask.sql.contains("pg_terminate_backend") && ask.sql.contains("'slot'"));
    let died = setup.answer(Session::Replication, Err(error("57P01", "terminated")));
    assert!(matches!(died, Step::Pending { .. }));
    let refusal = refused(setup.answer(Session::Query, Ok(Vec::new())));
    assert_eq!((refusal.code(), refusal.is_transient()), ("slot_creation_blocked", true));
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

/// Strings of the shipped sources that stand where a code stands.
fn codes() -> Vec<&'static str> {
    let sources = [
        include_str!("judge.rs"),
        include_str!("resume.rs"),
        include_str!("finding.rs"),
        include_str!("facts.rs"),
        include_str!("trouble.rs"),
        include_str!("watch.rs"),
        include_str!("../setup.rs"),
    ];
    let before =
        ["refusal(", "refuse(", "stop(", "Info,", "Warning,", "Wait,", "Refusal,", "level,"];
    let mut codes = Vec::new();
    for source in sources {
        for (at, _) in source.match_indices('"') {
            let stands = before.iter().any(|word| source[..at].trim_end().ends_with(word));
            let code = source[at + 1..].split('"').next().unwrap_or_default();
            if stands && !code.is_empty() {
                codes.push(code);
            }
        }
    }
    codes.sort_unstable();
    codes.dedup();
    codes
}

#[test]
fn the_documents_name_every_code() {
    let document = include_str!("../../../../docs/postgres-setup.md");
    let missing: Vec<_> =
        codes().into_iter().filter(|code| !document.contains(&format!("| `{code}` |"))).collect();
    assert!(codes().len() > 30, "only {} codes found: the scan is broken", codes().len());
    assert_eq!(missing, [""; 0]);
}

#[test]
fn columns_that_rows_are_routed_by_have_to_be_somewhere_and_in_deletes() {
    let routed = |columns: &[&str], fixed: Vec<TableName>| SetupOptions {
        routed: RoutedBy { columns: columns.iter().map(|c| (*c).to_owned()).collect(), fixed },
        ..saved("0/4000")
    };
    let notes = |options: SetupOptions, change: fn(&mut Fake)| {
        let mut fake = Fake::set_up();
        change(&mut fake);
        let notes = ready(fake.run(options)).notes;
        let ours = notes.into_iter().filter(|note| note.code.starts_with("routing_"));
        ours.map(|note| (note.code, note.found)).collect::<Vec<_>>()
    };
    let unchanged: fn(&mut Fake) = |_| ();
    let found = notes(routed(&["id", "note", "kind"], Vec::new()), unchanged);
    assert_eq!(
        found.iter().map(|(code, _)| *code).collect::<Vec<_>>(),
        ["routing_identity", "routing_column"]
    );
    assert!(found[0].1.contains("\"note\"") && found[0].1.contains("public.orders"), "{found:?}");
    assert!(found[1].1.contains("\"kind\""), "{found:?}");
    assert_eq!(notes(routed(&["id"], Vec::new()), unchanged), [], "it is in the identity");
    assert_eq!(notes(routed(&["note"], vec![table("orders")]), unchanged), [], "by_table");
    let mut inserts = routed(&["note"], Vec::new());
    inserts.operations.delete = false;
    assert_eq!(notes(inserts, unchanged), []);
    let full: fn(&mut Fake) = |fake| fake.columns.iter_mut().for_each(|c| set(c, "key", "t"));
    assert_eq!(notes(routed(&["note"], Vec::new()), full), []);
}
