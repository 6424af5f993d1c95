//! Kills, restarts and cuts at moments nobody chose, while rows are committed.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fastrand::Rng;
use tidegate::loopback::{Fault, Scope, Times};

use super::stage::{Got, Stage, limit};
use super::support::{Postgres, Stop, eventually, seed, skipped, soak, when};

const EVENTS: &str =
    "create table events (id bigserial primary key, grp int not null, filler text not null)";
const PARTITIONS: usize = 3;

/// Small batches, so that many are in flight; rows of a group stay in one partition.
const SPREAD: &str = "tables = [\"public.events\"]\nstream = \"$stream\"\ntopic = \"events\"\n\
    max_batch_bytes = \"64KiB\"\nmax_in_flight_batches = 8\n\
    [sources.shop.routing]\npartition_key_column = \"grp\"\n\
    [sources.shop.routing.topic_defaults]\npartitions_count = 3\n";

/// One transaction of so many rows.
fn transaction(rows: u64) -> String {
    format!(
        "insert into events select id, id % 7, repeat('x', (20 + id % 40)::int) from \
         (select nextval('events_id_seq') as id from generate_series(1, {rows})) as new;\n"
    )
}

/// Commits whatever comes, until it is told to end; once, a large transaction.
fn write(pg: &Postgres, large: u64, rng: &mut Rng, done: &AtomicBool) {
    let mut turn = 0;
    while !done.load(Ordering::Relaxed) {
        turn += 1;
        let sql = match rng.u8(..10) {
            _ if turn == 10 => transaction(large),
            0 => transaction(1_000),
            _ => transaction(1).repeat(rng.usize(1..60)),
        };
        // A server that restarts loses the transaction, or only the word that it is committed.
        if pg.try_sql_in("postgres", &sql).is_err() {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Ends the writer, also when the test fails.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[derive(Clone, Copy)]
enum Blow {
    /// SIGKILL for the daemon.
    Kill,
    /// Every connection to the destination is cut.
    Cut,
    /// The walsender is ended.
    Terminate,
    /// The database restarts.
    Restart(Stop),
}

fn blows(kills: usize, rng: &mut Rng) -> Vec<Blow> {
    let mut blows = vec![Blow::Kill; kills];
    for _ in 0..kills.div_ceil(6) {
        blows.extend([Blow::Cut, Blow::Terminate]);
    }
    for _ in 0..kills.div_ceil(12) {
        blows.extend([Blow::Restart(Stop::Fast), Blow::Restart(Stop::Immediate)]);
    }
    rng.shuffle(&mut blows);
    blows
}

#[test]
fn committed_rows_survive_kills_restarts_and_cuts() {
    let test = "committed_rows_survive_kills_restarts_and_cuts";
    let mut rng = Rng::with_seed(seed(test));
    let (kills, large) = if soak() { (200, 200_000) } else { (12, 20_000) };
    let stage = Stage::new(EVENTS, SPREAD);
    let Some(down) = stage.pair.down.control() else {
        return skipped(test, "real servers have no fault switches");
    };
    // Acks take a while, so that there is something in flight at every moment.
    down.fault(Fault::Slow(Duration::from_millis(5)), Scope::sends(), Times::UntilCleared);
    let daemon = stage.streaming();
    let (stop, mut count) = (AtomicBool::new(false), 0);
    let mut daemon = std::thread::scope(|scope| {
        let (done, mut daemon) = (Done(&stop), daemon);
        let mut choices = rng.fork();
        let (pg, stop) = (&stage.pg, &stop);
        scope.spawn(move || write(pg, large, &mut choices, stop));
        for blow in blows(kills, &mut rng) {
            std::thread::sleep(Duration::from_millis(rng.u64(20..600)));
            count += 1;
            match blow {
                Blow::Kill => {
                    daemon.kill();
                    daemon = stage.start();
                }
                Blow::Cut => down.disconnect_all(),
                Blow::Terminate => {
                    let sql = "select pg_terminate_backend(pid) from pg_stat_replication";
                    stage.pg.sql(sql);
                }
                Blow::Restart(how) => {
                    stage.pg.stop(how);
                    stage.pg.launch();
                }
            }
        }
        drop(done);
        daemon
    });
    stage.wait_confirmed(&mut daemon);
    daemon.stop();
    let logs = stage.got_in(&stage.topic("events"));
    let report = compare(&committed(&stage.pg), &logs);
    println!("{count} blows: {report:?}");
    assert!(report.most_steps_back <= count, "{report:?} after {count} blows");
}

#[test]
fn a_kill_inside_a_large_transaction_repeats_at_most_what_was_in_flight() {
    let rows = if soak() { 1_000_000 } else { 40_000 };
    let stage = Stage::new(EVENTS, SPREAD);
    let Some(down) = stage.pair.down.control() else {
        return skipped("kill inside a transaction", "real servers have no fault switches");
    };
    let mut daemon = stage.streaming();
    down.fault(Fault::Slow(Duration::from_millis(20)), Scope::sends(), Times::UntilCleared);
    stage.pg.sql(&transaction(rows));
    let topic = stage.topic("events");
    for part in 1..3 {
        eventually(limit(), "a part of the transaction", || {
            daemon.assert_running();
            when(stage.pair.down.total(&topic, PARTITIONS as u32) > rows * part / 3)
        });
        daemon.kill();
        daemon = stage.start();
    }
    down.clear_all();
    stage.wait_confirmed(&mut daemon);
    daemon.stop();
    let report = compare(&committed(&stage.pg), &stage.got_in(&topic));
    println!("{report:?}");
    assert_eq!(report.rows, rows);
    // A batch has up to 64 KiB for each partition, in messages of 300 bytes at least. Eight are in
    // flight, the rest of what was read in one piece waits behind them.
    let batch = 64 * 1024 / 300 * PARTITIONS as u64;
    assert!(report.repeats <= 2 * 16 * batch, "{report:?}");
}

/// What is in the table: group and filler by id.
fn committed(pg: &Postgres) -> BTreeMap<u64, (u64, String)> {
    let rows = pg.sql("select id, grp, filler from events");
    let number = |text: &Option<String>| text.as_deref().and_then(|t| t.parse().ok());
    rows.iter()
        .map(|row| {
            let (id, group) = (number(&row[0]), number(&row[1]));
            (id.expect("id"), (group.expect("group"), row[2].clone().expect("filler")))
        })
        .collect()
}

#[derive(Debug, Default)]
struct Report {
    rows: u64,
    repeats: u64,
    /// Times that the log of a partition goes on at an earlier row, the worst partition's.
    most_steps_back: usize,
}

/// Panics unless every committed row arrived under one id, and every partition has its rows in
/// their order, apart from going back to an earlier row and on from there.
fn compare(rows: &BTreeMap<u64, (u64, String)>, logs: &[Vec<Got>]) -> Report {
    assert_eq!(logs.len(), PARTITIONS);
    let mut report = Report { rows: rows.len() as u64, ..Report::default() };
    let mut place_of_group = HashMap::new();
    let mut row_of_message = HashMap::new();
    let mut seen = HashMap::new();
    for (partition, log) in logs.iter().enumerate() {
        for got in log {
            let data = &got.payload["data"];
            let id = data["id"].as_u64().expect("an id");
            let Some((group, filler)) = rows.get(&id) else {
                panic!("row {id} was never committed");
            };
            assert_eq!(data["grp"], *group, "row {id}");
            assert_eq!(data["filler"], filler.as_str(), "row {id}");
            let other = place_of_group.insert(*group, partition).filter(|p| *p != partition);
            assert_eq!(other, None, "group {group} is in two partitions");
            let other = row_of_message.insert(got.id, id).filter(|other| *other != id);
            assert_eq!(other, None, "rows with one id: {id}");
            if let Some(before) = seen.insert(id, got.id) {
                assert_eq!(before, got.id, "row {id} changed its id");
                report.repeats += 1;
            }
        }
    }
    let missing: Vec<&u64> = rows.keys().filter(|id| !seen.contains_key(id)).take(10).collect();
    assert!(missing.is_empty(), "rows {missing:?} … never arrived, of {}", rows.len());
    for (partition, log) in logs.iter().enumerate() {
        let wanted = rows.iter().filter(|(_, (group, _))| place_of_group[group] == partition);
        let order: HashMap<u64, usize> = wanted.enumerate().map(|(n, (id, _))| (*id, n)).collect();
        let (mut next, mut steps) = (0, 0);
        for got in log {
            let at = order[&got.payload["data"]["id"].as_u64().expect("an id")];
            assert!(at <= next, "partition {partition}: row {at} follows row {next} too early");
            steps += usize::from(at < next);
            next = at + 1;
        }
        assert_eq!(next, order.len(), "partition {partition} ends with an earlier row");
        report.most_steps_back = report.most_steps_back.max(steps);
    }
    report
}
