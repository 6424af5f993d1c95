//! Transactions of any size in bounded memory: whole, in pieces before their commit, many at once,
//! and those that never were (H16).

use std::path::Path;
use std::time::{Duration, Instant};

use super::stage::{Stage, limit};
use super::support::{Daemon, Postgres, eventually, soak, when};

const TABLES: &str = "create table big (id bigint primary key, note text);\
                      alter table big alter note set storage external;\
                      create table busy (id bigint primary key, note text);";
const BOUND: &str = "tables = [\"public.big\"]\nstream = \"$stream\"\ntopic = \"big\"\n";
const MIB: u64 = 1 << 20;

/// So many rows of 1 KB. Their messages alone are half as much again as a daemon may use.
fn rows() -> u64 {
    if soak() { 1_000_000 } else { 150_000 }
}

/// Peak resident memory that a daemon may have.
fn most() -> u64 {
    if soak() { 256 * MIB } else { 96 * MIB }
}

fn stage(more: &str) -> Stage {
    let settings = [("logical_decoding_work_mem", "4MB"), ("max_wal_size", "8GB")];
    let pg = Postgres::start_with(&settings);
    let mut stage = Stage::on(pg, TABLES, &format!("{BOUND}{more}"));
    stage.daemon = "log_level = \"info\"\nshards = 1".to_owned();
    if !soak() {
        stage.daemon.push_str("\nmax_buffered_bytes = \"24MiB\"");
    }
    stage
}

fn insert(table: &str, first: u64, count: u64) -> String {
    format!(
        "insert into {table} select n, repeat(md5(n::text), 32) \
         from generate_series({first}, {}) n;",
        first + count - 1
    )
}

/// Waits for a topic to have exactly the rows from 1 on, in order, and looks at the memory.
#[track_caller]
fn arrived(stage: &Stage, daemon: &mut Daemon, count: u64) {
    let topic = stage.topic("big");
    let begun = Instant::now();
    eventually(10 * limit(), "every row", || {
        daemon.assert_running();
        when(stage.pair.down.total(&topic, 1) >= count)
    });
    stage.wait_confirmed(daemon);
    let peak = daemon.most_memory();
    println!("{count} rows in {:.0?}, at most {} MiB resident", begun.elapsed(), peak / MIB);
    assert!(peak > 0 && peak < most(), "{} MiB resident at most", peak / MIB);
    let mut next = 1;
    let mut bytes = 0;
    for message in stage.pair.down.dump(&topic, 0, 0) {
        bytes += message.payload.len() as u64;
        let found = id_of(&message.payload);
        assert_eq!(found, next, "in order, once");
        next += 1;
    }
    assert_eq!(next - 1, count);
    assert!(2 * bytes > 3 * most() || count < rows(), "{} MiB would fit in memory", bytes / MIB);
}

/// `data.id`, without reading the rest.
fn id_of(payload: &[u8]) -> u64 {
    let text = std::str::from_utf8(payload).expect("text");
    let (_, rest) = text.split_once("\"id\":").expect("an id");
    rest.split(|c: char| !c.is_ascii_digit()).next().and_then(|n| n.parse().ok()).expect("a number")
}

/// Spill files of the daemon, and their bytes.
fn spilled(stage: &Stage) -> (usize, u64) {
    let state = stage.home.state_dir();
    let files = std::fs::read_dir(state).expect("a directory").filter_map(Result::ok);
    let is_spill = |path: &Path| path.extension().is_some_and(|extension| extension == "spill");
    let sizes: Vec<u64> = files
        .filter(|file| is_spill(&file.path()))
        .filter_map(|file| file.metadata().ok().map(|data| data.len()))
        .collect();
    (sizes.len(), sizes.iter().sum())
}

#[test]
fn a_transaction_larger_than_memory_passes_in_order_h16() {
    let stage = stage("");
    let mut daemon = stage.streaming();
    stage.pg.sql(&insert("big", 1, rows()));
    arrived(&stage, &mut daemon, rows());
    // One that never was, and one on a table that nobody captures.
    stage.pg.sql(&format!("begin; {} rollback", insert("big", 10 * rows(), rows())));
    stage.pg.sql(&insert("busy", 1, rows() / 2));
    stage.pg.sql("update busy set id = -id; truncate busy");
    stage.pg.sql(&insert("big", rows() + 1, 1));
    arrived(&stage, &mut daemon, rows() + 1);
    daemon.stop();
}

#[test]
fn a_transaction_in_pieces_waits_in_a_file_and_leaves_none_h16() {
    let stage = stage("streaming = \"on\"\n");
    let mut daemon = stage.streaming();
    let mut session = stage.pg.session("postgres");
    session.sql(&format!("begin; {}", insert("big", 1, rows())));
    eventually(10 * limit(), "most of it in a file", || {
        daemon.assert_running();
        when(spilled(&stage).1 > rows() * 900)
    });
    assert_eq!(stage.pair.down.total(&stage.topic("big"), 1), 0, "nothing before the commit");
    session.sql("savepoint s");
    session.sql(&insert("big", 10 * rows(), rows() / 10));
    session.sql(&format!("rollback to s; {} commit", insert("big", rows() + 1, 10)));
    arrived(&stage, &mut daemon, rows() + 10);
    eventually(limit(), "the file to go", || when(spilled(&stage).0 == 0));
    // Aborted after most of it was here.
    session.sql(&format!("begin; {}", insert("big", 10 * rows(), rows())));
    eventually(10 * limit(), "most of it in a file", || {
        daemon.assert_running();
        when(spilled(&stage).1 > rows() * 900)
    });
    session.sql("rollback");
    stage.pg.sql(&insert("big", rows() + 11, 1));
    arrived(&stage, &mut daemon, rows() + 11);
    eventually(limit(), "the file to go", || when(spilled(&stage).0 == 0));
    daemon.stop();
}

#[test]
fn a_transaction_in_pieces_whose_connection_is_lost_comes_whole_and_once() {
    let stage = stage("streaming = \"on\"\n");
    stage.pg.set("logical_decoding_work_mem", "64kB");
    let mut daemon = stage.streaming();
    let mut session = stage.pg.session("postgres");
    let in_pieces = |daemon: &mut Daemon, least: u64| {
        eventually(limit(), "pieces", || {
            daemon.assert_running();
            when(spilled(&stage).1 > least)
        });
    };
    session.sql(&format!("begin; {}", insert("big", 2, 5_000)));
    in_pieces(&mut daemon, 2 * MIB);
    // A small one passes it and is confirmed, the rest comes to another connection.
    stage.pg.sql(&insert("big", 1, 1));
    stage.wait_confirmed(&mut daemon);
    stage.pg.sql("select pg_terminate_backend(pid) from pg_stat_replication");
    session.sql(&insert("big", 5_002, 2_000));
    in_pieces(&mut daemon, 2 * MIB);
    daemon.kill();
    let left = spilled(&stage);
    assert!(left.0 > 0, "a killed daemon leaves its file");
    let mut daemon = stage.streaming();
    session.sql(&format!("{} commit", insert("big", 7_002, 2_000)));
    arrived(&stage, &mut daemon, 9_001);
    eventually(limit(), "the files to go", || when(spilled(&stage).0 == 0));
    daemon.stop();
}

#[test]
fn many_open_transactions_share_the_memory() {
    let stage = stage("streaming = \"on\"\n");
    stage.pg.set("logical_decoding_work_mem", "64kB");
    let mut daemon = stage.streaming();
    let (open, each) = (24, rows() / 100);
    let mut sessions: Vec<_> = (0..open).map(|_| stage.pg.session("postgres")).collect();
    for (nth, session) in (0_u64..).zip(&mut sessions) {
        // Every third one never was.
        let first = if nth % 3 == 2 { 100 * rows() } else { 1 } + nth * each;
        let half = insert("big", first, each / 2);
        session.sql(&format!("begin; {half}"));
    }
    eventually(limit(), "files of all of them", || {
        daemon.assert_running();
        when(spilled(&stage).0 == open)
    });
    // In the order of the commits, which is not that of the begins.
    for nth in (0..open as u64).rev() {
        let session = &mut sessions[nth as usize];
        if nth % 3 == 2 {
            session.sql("rollback");
            continue;
        }
        session.sql(&format!("{} commit", insert("big", 1 + nth * each + each / 2, each / 2)));
    }
    let count = (0..open as u64).filter(|nth| nth % 3 != 2).count() as u64 * each;
    let topic = stage.topic("big");
    eventually(limit(), "every row", || {
        daemon.assert_running();
        when(stage.pair.down.total(&topic, 1) >= count)
    });
    stage.wait_confirmed(&mut daemon);
    let peak = daemon.most_memory();
    println!("{open} open transactions of {each} rows: at most {} MiB resident", peak / MIB);
    assert!(peak < most(), "{} MiB resident at most", peak / MIB);
    let ids: Vec<u64> =
        stage.pair.down.dump(&topic, 0, 0).iter().map(|m| id_of(&m.payload)).collect();
    let wanted: Vec<u64> = (0..open as u64)
        .rev()
        .filter(|nth| nth % 3 != 2)
        .flat_map(|nth| 1 + nth * each..=(nth + 1) * each)
        .collect();
    assert_eq!(ids.len(), wanted.len());
    assert!(ids == wanted, "each whole, in the order of the commits");
    std::thread::sleep(Duration::from_millis(50));
    eventually(limit(), "the files to go", || when(spilled(&stage).0 == 0));
    daemon.stop();
}

#[test]
fn a_row_larger_than_the_buffers_comes_back_from_its_file_within_the_books() {
    let mut stage = stage("streaming = \"on\"\n");
    stage.daemon = "log_level = \"info\"\nshards = 1\nmax_buffered_bytes = \"14MiB\"".to_owned();
    let mut daemon = stage.streaming();
    stage.pg.sql(&format!(
        "begin; {} insert into big values (101, repeat('x', 40 << 20)); {} commit",
        insert("big", 1, 100),
        insert("big", 102, 99),
    ));
    let topic = stage.topic("big");
    let (mut over, mut most) = (0, 0);
    eventually(limit(), "every row", || {
        daemon.assert_running();
        let status = daemon.status()?;
        let shard = &status["shards"][0];
        let held = shard["buffered_bytes"].as_u64()?;
        let bound = shard["buffer_limit_bytes"].as_u64()? + 65 * MIB;
        (most, over) = (held.max(most), over + u64::from(held > bound));
        when(stage.pair.down.total(&topic, 1) >= 200)
    });
    stage.wait_confirmed(&mut daemon);
    let peak = daemon.most_memory();
    println!("{} MiB in the books, {} MiB resident at most", most / MIB, peak / MIB);
    assert_eq!(over, 0, "the books passed their bound");
    // The row as it is read, as it is written; as it comes back, as its message.
    assert!(peak < 240 * MIB, "{} MiB resident at most", peak / MIB);
    let ids: Vec<u64> =
        stage.pair.down.dump(&topic, 0, 0).iter().map(|message| id_of(&message.payload)).collect();
    assert_eq!(ids, (1..=200).collect::<Vec<_>>());
    daemon.stop();
}
