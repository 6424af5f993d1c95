//! The Postgres fixture itself: what other tests rely on.

#![allow(clippy::disallowed_methods, reason = "a test owns its clocks, files and threads")]

mod support;

use std::time::Duration;

use support::{Postgres, Stop, eventually, when};

#[test]
fn a_server_starts_stops_crashes_and_keeps_its_rows() {
    let pg = Postgres::start_with(&[("wal_sender_timeout", "2s")]);
    assert_eq!(pg.value("SHOW wal_level"), "logical");
    assert_eq!(pg.value("SHOW wal_sender_timeout"), "2s");
    pg.sql("CREATE TABLE t (a int, b text); INSERT INTO t VALUES (1, NULL), (2, ''), (3, E'x\ny')");
    let rows = pg.sql("SELECT a, b FROM t ORDER BY a; SELECT 7");
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(
        rows,
        [
            vec![some("1"), None],
            vec![some("2"), some("")],
            vec![some("3"), some("x\ny")],
            vec![some("7")]
        ]
    );
    pg.restart();
    pg.kill9();
    pg.launch();
    pg.stop(Stop::Immediate);
    pg.launch();
    assert_eq!(pg.value("SELECT count(*) FROM t"), "3");
    assert!(pg.try_sql_in("postgres", "SELECT nothing").unwrap_err().contains("nothing"));
    assert!(pg.log().contains("not properly shut down"), "{}", pg.log());
}

#[test]
fn sessions_overlap_and_settings_take_effect() {
    let pg = Postgres::start();
    pg.sql("CREATE TABLE t (a int)");
    let mut one = pg.session("postgres");
    one.sql("BEGIN; INSERT INTO t VALUES (1)");
    assert_eq!(one.sql("SELECT count(*) FROM t"), [[Some("1".to_owned())]]);
    assert_eq!(pg.value("SELECT count(*) FROM t"), "0");
    let mut two = pg.session("postgres");
    two.begin("BEGIN; LOCK TABLE t");
    eventually(Duration::from_secs(10), "the lock to be waited for", || {
        when(pg.value("SELECT count(*) FROM pg_locks WHERE NOT granted") == "1")
    });
    one.sql("COMMIT");
    two.finish();
    pg.set("work_mem", "5MB");
    assert_eq!(pg.value("SHOW work_mem"), "5MB");
    pg.enable_tls(&["localhost"]);
    assert_eq!(pg.value("SHOW ssl"), "on");
    pg.sql("CREATE ROLE reader LOGIN");
    pg.set_hba(&["host all all 127.0.0.1/32 scram-sha-256"]);
    assert_eq!(
        pg.value("SELECT auth_method FROM pg_hba_file_rules WHERE type = 'host'"),
        "scram-sha-256"
    );
}

#[test]
fn two_servers_run_side_by_side() {
    let first = Postgres::start();
    let Some(second) = Postgres::start_second(&[]) else { return };
    assert_eq!(second.major(), 18);
    assert!(first.major() >= 14);
    assert_ne!(first.port(), second.port());
}
