//! Slots that are in use, or are not made at once.

use super::*;

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
