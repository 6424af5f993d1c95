//! What keeps a capture from starting, and what it says.

use super::*;

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

/// Strings of the shipped sources that stand where a code stands.
fn codes() -> Vec<&'static str> {
    let sources = [
        include_str!("../judge.rs"),
        include_str!("../resume.rs"),
        include_str!("../finding.rs"),
        include_str!("../facts.rs"),
        include_str!("../trouble.rs"),
        include_str!("../watch.rs"),
        include_str!("../../setup.rs"),
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
    let document = include_str!("../../../../../docs/postgres-setup.md");
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
