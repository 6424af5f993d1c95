//! A capture that is killed, and cut off from either side, at moments nobody chose, while rows
//! are committed and rolled back: what was committed arrives, in order, under ids that stay.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;
use tidegate::batch::TopicName;
use tidegate::loopback::{Control, Fault, Restart, Scope, Times};

use super::stage::{Stage, limit};
use super::support::{Daemon, Postgres, Stop, eventually, seed, skipped, soak, when};
use super::witness::{self, Change, Truth, UNDONE};

const EVENTS: &str = "create table events (id bigserial primary key, grp int not null, \
    v int not null, filler text not null);";
const PARTITIONS: u32 = 3;
/// Rows that are updated again and again.
const HOT: u64 = 40;

/// Small batches, so that many are in flight; rows of a group stay in one partition.
const BY_GROUP: &str = "tables = [\"public.events\"]\nstream = \"$stream\"\ntopic = \"events\"\n\
    max_batch_bytes = \"64KiB\"\nmax_in_flight_batches = 8\n\
    [sources.shop.routing]\npartition_key_column = \"grp\"\n\
    [sources.shop.routing.topic_defaults]\npartitions_count = 3\n";

/// The same rows once more: by their keys, and in pieces before they are committed.
const BY_KEY: &str = "[sources.keys]\nkind = \"postgres_cdc\"\nto = \"west\"\n\
    connection = \"$connection\"\nretry_interval = \"50ms\"\nmax_retry_interval = \"500ms\"\n\
    streaming = \"on\"\n\
    tables = [\"public.events\"]\nstream = \"$stream\"\ntopic = \"keys\"\n\
    max_batch_bytes = \"64KiB\"\nmax_in_flight_batches = 8\n\
    [sources.keys.routing]\npartition_by = \"identity\"\n\
    [sources.keys.routing.topic_defaults]\npartitions_count = 3\n";

fn group(change: &Change) -> u64 {
    change.group
}

fn key(change: &Change) -> u64 {
    change.id
}

/// New rows, in one statement.
fn rows(count: u64) -> String {
    format!(
        "insert into events select id, id % 7, 0, repeat('x', (20 + id % 40)::int) from \
         (select nextval('events_id_seq') as id from generate_series(1, {count})) as new;\n"
    )
}

/// New rows that never were.
fn undone(count: u64) -> String {
    format!(
        "insert into events select nextval('events_id_seq'), 1, 0, '{UNDONE}' \
         from generate_series(1, {count});\n"
    )
}

/// Commits and rolls back whatever comes, until it is told to end; once, a large transaction.
fn insert(pg: &Postgres, large: u64, rng: &mut Rng, done: &AtomicBool) {
    let mut turn = 0;
    while !done.load(Ordering::Relaxed) {
        turn += 1;
        let sql = match rng.u8(..12) {
            _ if turn == 10 => rows(large),
            0 | 1 => rows(1_000),
            2 => format!("begin;\n{}{}rollback;\n", rows(1), undone(1_500)),
            3 => format!(
                "begin;\n{}savepoint s;\n{}rollback to s;\n{}commit;\n",
                rows(700),
                undone(700),
                rows(700)
            ),
            _ => rows(1).repeat(rng.usize(1..60)),
        };
        commit(pg, &sql);
    }
}

/// Counts rows up, one or several in a transaction, sometimes in vain.
fn update(pg: &Postgres, rng: &mut Rng, done: &AtomicBool) {
    while !done.load(Ordering::Relaxed) {
        let one = |rng: &mut Rng, filler: &str| {
            let id = rng.u64(1..=HOT);
            format!("update events set v = v + 1, filler = '{filler}' where id = {id};\n")
        };
        let mut sql = String::new();
        for _ in 0..rng.usize(1..20) {
            match rng.u8(..5) {
                0 => sql += &format!("begin;\n{}rollback;\n", one(rng, UNDONE)),
                1 => {
                    let (first, lost, last) = (one(rng, "a"), one(rng, UNDONE), one(rng, "b"));
                    sql += &format!(
                        "begin;\n{first}savepoint s;\n{lost}rollback to s;\n{last}commit;\n"
                    );
                }
                _ => sql += &one(rng, "c"),
            }
        }
        commit(pg, &sql);
    }
}

/// A server that restarts loses the transaction, or only the word that it is committed.
fn commit(pg: &Postgres, sql: &str) {
    if pg.try_sql_in("postgres", sql).is_err() {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Ends the writers, also when the test fails.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[derive(Clone, Copy, Debug)]
enum Blow {
    /// SIGKILL for the daemon.
    Kill,
    /// Every connection to the destination is cut.
    Cut,
    /// The destination ends and comes back.
    Broker,
    /// The walsenders are ended.
    Terminate,
    /// The database restarts.
    Restart(Stop),
}

fn blows(kills: usize, rng: &mut Rng) -> Vec<Blow> {
    let mut blows = vec![Blow::Kill; kills];
    for _ in 0..kills.div_ceil(6) {
        blows.extend([Blow::Cut, Blow::Broker, Blow::Terminate]);
    }
    for _ in 0..kills.div_ceil(12) {
        blows.extend([Blow::Restart(Stop::Fast), Blow::Restart(Stop::Immediate)]);
    }
    rng.shuffle(&mut blows);
    blows
}

/// Saves that take their time now and then, so that a kill meets what is acked and not on disk: a
/// position that was told too early is then refused by the next start.
fn slow_saves(rng: &mut Rng) -> String {
    let step = ["open", "write", "sync", "close", "rename", "sync_dir"][rng.usize(..6)];
    let (pause, skip) = (rng.u64(300..1_200), rng.u64(2..10));
    format!("{step}:pause={pause}:skip={skip}:times=6")
}

fn start(stage: &Stage, rng: &mut Rng) -> Daemon {
    stage.start_with(&[("TIDEGATE_FAULT_FILES", &slow_saves(rng))])
}

fn strike(blow: Blow, stage: &Stage, down: &Control, daemon: Daemon, rng: &mut Rng) -> Daemon {
    match blow {
        Blow::Kill => {
            daemon.kill();
            return start(stage, rng);
        }
        Blow::Cut => down.disconnect_all(),
        Blow::Broker => {
            let downtime = Duration::from_millis(rng.u64(..300));
            down.restart(Restart { downtime, ..Restart::default() }).expect("the broker's port");
        }
        Blow::Terminate => {
            stage.pg.sql("select pg_terminate_backend(pid) from pg_stat_replication");
        }
        Blow::Restart(how) => {
            stage.pg.stop(how);
            stage.pg.launch();
        }
    }
    daemon
}

/// A stage with both sources, a witness and the rows that are updated.
fn both_sources() -> Stage {
    let pg = Postgres::start_with(&[("logical_decoding_work_mem", "64kB")]);
    let mut stage = Stage::on(pg, EVENTS, BY_GROUP);
    let second = BY_KEY.replace("$stream", &stage.stream).replace("$connection", &stage.connection);
    stage.source.push_str(&second);
    witness::begin(&stage.pg);
    stage
}

/// Waits until both slots are confirmed beyond everything committed so far.
#[track_caller]
fn wait_confirmed(stage: &Stage, daemon: &mut Daemon) {
    stage.wait_confirmed(daemon);
    let behind = "select pg_current_wal_insert_lsn()";
    let end = stage.pg.value(behind);
    stage.pg.sql("select pg_switch_wal()");
    let all = format!(
        "select bool_and(confirmed_flush_lsn >= '{end}') from pg_replication_slots \
         where slot_name like 'tidegate%'"
    );
    eventually(limit(), "both confirmations", || {
        daemon.assert_running();
        when(stage.pg.value(&all) == "t")
    });
}

#[test]
fn committed_rows_survive_kills_restarts_and_cuts() {
    let test = "committed_rows_survive_kills_restarts_and_cuts";
    let mut rng = Rng::with_seed(seed(test));
    let (kills, large) = if soak() { (200, 200_000) } else { (12, 20_000) };
    let stage = both_sources();
    let Some(down) = stage.pair.down.control() else {
        return skipped(test, "real servers have no fault switches");
    };
    // Acks take a while, so that there is something in flight at every moment.
    down.fault(Fault::Slow(Duration::from_millis(5)), Scope::sends(), Times::UntilCleared);
    let mut daemon = start(&stage, &mut rng);
    eventually(limit(), "both streams", || {
        daemon.assert_running();
        let lines = daemon.lines();
        when(lines.iter().filter(|line| line.contains("streaming from slot")).count() >= 2)
    });
    stage.pg.sql(&rows(HOT));
    let (stop, mut count, begun) = (AtomicBool::new(false), 0, Instant::now());
    let mut daemon = std::thread::scope(|scope| {
        let (done, mut daemon) = (Done(&stop), daemon);
        let (mut first, mut second) = (rng.fork(), rng.fork());
        let (pg, stop) = (&stage.pg, &stop);
        scope.spawn(move || insert(pg, large, &mut first, stop));
        scope.spawn(move || update(pg, &mut second, stop));
        for blow in blows(kills, &mut rng) {
            std::thread::sleep(Duration::from_millis(rng.u64(20..600)));
            count += 1;
            daemon = strike(blow, &stage, down, daemon, &mut rng);
        }
        drop(done);
        daemon
    });
    println!("{count} blows in {:.0?}", begun.elapsed());
    wait_confirmed(&stage, &mut daemon);
    for source in daemon.status().expect("status")["sources"].as_array().expect("sources") {
        assert_eq!(source["status"], "Running", "{source:#}");
    }
    daemon.stop();
    let truth = Truth::of(&stage.pg);
    let by_group = truth.compare(&stage.got_in(&stage.topic("events")), group);
    let by_key = truth.compare(&stage.got_in(&stage.topic("keys")), key);
    println!("by group {by_group:?}, by key {by_key:?}, all in {:.0?}", begun.elapsed());
    assert!(truth.len() as u64 > large, "the large transaction was committed");
    for report in [by_group, by_key] {
        assert!(report.most_steps_back <= count, "{report:?} after {count} blows");
        assert!(report.repeats > 0, "no kill met rows on their way: this proves nothing");
    }
}

#[test]
fn a_kill_inside_a_large_transaction_repeats_at_most_what_was_in_flight() {
    let count = if soak() { 1_000_000 } else { 40_000 };
    let stage = Stage::new(EVENTS, BY_GROUP);
    let Some(down) = stage.pair.down.control() else {
        return skipped("kill inside a transaction", "real servers have no fault switches");
    };
    witness::begin(&stage.pg);
    let mut daemon = stage.streaming();
    down.fault(Fault::Slow(Duration::from_millis(20)), Scope::sends(), Times::UntilCleared);
    stage.pg.sql(&rows(count));
    let topic: TopicName = stage.topic("events");
    for part in 1..3 {
        eventually(limit(), "a part of the transaction", || {
            daemon.assert_running();
            when(stage.pair.down.total(&topic, PARTITIONS) > count * part / 3)
        });
        daemon.kill();
        daemon = stage.start();
    }
    down.clear_all();
    stage.wait_confirmed(&mut daemon);
    daemon.stop();
    let truth = Truth::of(&stage.pg);
    let report = truth.compare(&stage.got_in(&topic), group);
    println!("{report:?}");
    assert_eq!(report.changes as u64, count);
    // A batch has up to 64 KiB for each partition, in messages of 300 bytes at least. Eight are in
    // flight, the rest of what was read in one piece waits behind them.
    let batch = 64 * 1024 / 300 * PARTITIONS as usize;
    assert!(report.repeats <= 2 * 16 * batch, "{report:?}");
}
