//! What an operator does: stops, pauses, restarts, gives up what is stuck, resets positions.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tidegate::cli::demo::process::Signal;
use tidegate::loopback::Control;
use tidegate::loopback::faults::{Fault, Scope, Times};
use tidegate::pg_wire::Lsn;
use twox_hash::XxHash3_64;

use super::stage::{Stage, limit};
use super::support::{Daemon, eventually, throughout, when};
use super::switches::{named, once, order_json, row_ids, sends_met};

const ORDERS: &str = "create table orders (id bigint primary key, kind text)";
const BOUND: &str = "tables = [\"public.orders\"]\nstream = \"$stream\"\ntopic = \"orders\"\n";

fn insert(stage: &Stage, id: i64) {
    stage.pg.sql(&format!("insert into orders values ({id}, 'a')"));
}

/// SIGTERM, and when it was heard.
fn ask_to_stop(daemon: &mut Daemon) {
    daemon.signal(Signal::Term);
    eventually(limit(), "the signal to be heard", || {
        when(daemon.lines().iter().any(|line| line.contains("asked to stop")))
    });
}

/// A stage whose sends are taken and not answered, with one row on its way.
fn unanswered(test: &str, grace: &str) -> Option<(Stage, Control, Daemon)> {
    let mut stage = Stage::new(ORDERS, &format!("{BOUND}commit_stop_grace = \"{grace}\""));
    let control = stage.switches(test)?;
    stage.cluster = "request_timeout = \"30s\"".to_owned();
    let mut daemon = stage.streaming();
    insert(&stage, 1);
    stage.wait_for(&mut daemon, "orders", 1);
    stage.wait_confirmed_of(&mut daemon, "shop");
    control.fault_once(Fault::HoldReply, Scope::sends());
    insert(&stage, 2);
    stage.wait_for(&mut daemon, "orders", 2);
    Some((stage, control, daemon))
}

#[test]
fn a_stop_waits_for_the_send_that_is_out_saves_it_and_repeats_nothing() {
    let test = "a_stop_waits_for_the_send_that_is_out_saves_it_and_repeats_nothing";
    let Some((stage, control, mut daemon)) = unanswered(test, "20s") else { return };
    let end = stage.insert_lsn();
    ask_to_stop(&mut daemon);
    throughout(Duration::from_millis(400), "it waits", || daemon.try_wait().is_none());
    control.release_held();
    let ended = daemon.wait(Duration::from_secs(10)).expect("an end");
    assert!(ended.status.success(), "{}", ended.status);
    assert!(stage.confirmed() >= end - 0x100, "{:X} {end:X}", stage.confirmed());
    let mut daemon = stage.streaming();
    insert(&stage, 3);
    stage.wait_for(&mut daemon, "orders", 3);
    stage.wait_confirmed_of(&mut daemon, "shop");
    assert_eq!(row_ids(&stage.got("orders")), [1, 2, 3], "an orderly restart repeats nothing");
    daemon.stop();
}

#[test]
fn a_stop_ends_after_its_grace_and_what_was_not_acked_comes_again_under_its_id() {
    let test = "a_stop_ends_after_its_grace_and_what_was_not_acked_comes_again_under_its_id";
    let Some((stage, _, mut daemon)) = unanswered(test, "1s") else { return };
    let before = stage.confirmed();
    ask_to_stop(&mut daemon);
    let begun = Instant::now();
    let ended = daemon.wait(Duration::from_secs(20)).expect("an end");
    assert!(ended.status.success(), "{}", ended.status);
    assert!(begun.elapsed() < Duration::from_secs(6), "{:?}", begun.elapsed());
    assert_eq!(stage.confirmed(), before, "no further commit");
    let mut daemon = stage.streaming();
    let got = stage.wait_for(&mut daemon, "orders", 3);
    assert_eq!(row_ids(&got), [1, 2, 2]);
    assert_eq!(got[1], got[2], "the same message, id and all");
    stage.wait_confirmed_of(&mut daemon, "shop");
    daemon.stop();
}

#[test]
fn a_stop_interrupts_the_pause_between_two_tries() {
    let test = "a_stop_interrupts_the_pause_between_two_tries";
    // The stage's own source captures another table.
    let other = BOUND.replace("public.orders", "public.other");
    let mut stage =
        Stage::new(&format!("{ORDERS}; create table other (id int primary key)"), &other);
    let Some(control) = stage.switches(test) else { return };
    let slow = "retry_interval = \"25s\"\nmax_retry_interval = \"30s\"\n";
    stage.add_source("slow", &format!("{BOUND}{slow}"));
    let mut daemon = stage.all_streaming(2);
    let refuse = Fault::Reject { code: 3, applied: false };
    control.fault(refuse, Scope::sends(), Times::UntilCleared);
    insert(&stage, 1);
    eventually(limit(), "a refused send", || when(!sends_met(&control).is_empty()));
    ask_to_stop(&mut daemon);
    let ended = daemon.wait(Duration::from_secs(5)).expect("an end well before the next try");
    assert!(ended.status.success(), "{}", ended.status);
    control.clear_all();
    let mut daemon = stage.all_streaming(2);
    eventually(limit(), "the row", || when(!stage.got_of("slow", "orders").is_empty()));
    stage.wait_confirmed_of(&mut daemon, "slow");
    daemon.stop();
}

/// An order that must be carried out.
#[track_caller]
fn order(daemon: &Daemon, action: &str) {
    let (code, body) = daemon.order(&format!("/sources/shop/{action}")).expect("an answer");
    assert_eq!(code, 200, "{body}");
}

#[test]
fn a_pause_survives_a_crash_and_a_resume_goes_on_where_it_stood() {
    let stage = Stage::new(ORDERS, BOUND);
    let mut daemon = stage.streaming();
    insert(&stage, 1);
    stage.wait_for(&mut daemon, "orders", 1);
    stage.wait_confirmed_of(&mut daemon, "shop");
    let paused = |source: &Value| source["status"] == "Stopped" && source["reason"] == "paused";
    order(&daemon, "pause");
    stage.shows(&mut daemon, "shop", "paused", paused);
    insert(&stage, 2);
    let unread = stage.insert_lsn();
    let rests = |stage: &Stage| stage.got("orders").len() == 1 && stage.confirmed() < unread;
    throughout(Duration::from_millis(700), "it rests", || rests(&stage));
    daemon.kill();
    let mut daemon = stage.start();
    stage.shows(&mut daemon, "shop", "paused", paused);
    insert(&stage, 3);
    // A restart of a source that rests is no reason to go on.
    order(&daemon, "restart");
    throughout(Duration::from_millis(700), "it still rests", || rests(&stage));
    stage.shows(&mut daemon, "shop", "paused", paused);
    order(&daemon, "resume");
    assert_eq!(row_ids(&stage.wait_for(&mut daemon, "orders", 3)), [1, 2, 3]);
    stage.wait_confirmed_of(&mut daemon, "shop");
    stage.running(&mut daemon, "shop");
    daemon.stop();
    let mut daemon = stage.streaming();
    insert(&stage, 4);
    stage.wait_for(&mut daemon, "orders", 4);
    daemon.stop();
}

#[test]
fn a_pause_lets_what_is_out_end_and_a_resume_repeats_nothing() {
    let test = "a_pause_lets_what_is_out_end_and_a_resume_repeats_nothing";
    let Some((stage, control, mut daemon)) = unanswered(test, "5s") else { return };
    order(&daemon, "pause");
    let paused = |source: &Value| source["reason"] == "paused";
    stage.shows(&mut daemon, "shop", "paused", paused);
    insert(&stage, 3);
    control.release_held();
    let end = |source: &Value| source["capture"]["pending"]["batches"] == 0;
    stage.shows(&mut daemon, "shop", "without pending batches", end);
    order(&daemon, "resume");
    stage.wait_for(&mut daemon, "orders", 3);
    stage.wait_confirmed_of(&mut daemon, "shop");
    assert_eq!(row_ids(&stage.got("orders")), [1, 2, 3]);
    // A restart while a send is out and acked later begins again without a loss.
    control.fault_once(Fault::HoldReply, Scope::sends());
    insert(&stage, 4);
    stage.wait_for(&mut daemon, "orders", 4);
    order(&daemon, "restart");
    control.release_held();
    insert(&stage, 5);
    eventually(limit(), "row 5", || when(row_ids(&stage.got("orders")).contains(&5)));
    stage.wait_confirmed_of(&mut daemon, "shop");
    assert_eq!(row_ids(&once(stage.got("orders"))), [1, 2, 3, 4, 5]);
    let shown = named(&daemon, "shop").expect("the source");
    assert_eq!(shown["capture"]["resets"], 0, "{shown:#}");
    daemon.stop();
}

/// By `kind`; `bad` is refused and kept.
const STUCK: &str = "tables = [\"public.orders\"]\n[sources.shop.routing]\n\
                     topic_column = \"kind\"\ndefault_topic = \"unknown\"\n\
                     default_stream = \"$stream\"\n[sources.shop.routing.admission]\n\
                     mode = \"denylist\"\ndenylist = [{ stream = \"*\", topic = \"bad\" }]\n";

const ABANDON: &str = "/sources/shop/cdc/abandon-batch";

/// The position that is stuck, as status says it.
fn stuck(stage: &Stage, daemon: &mut Daemon) -> String {
    let is_stuck = |source: &Value| source["capture"]["pending"]["oldest"].is_string();
    let shown = stage.shows(daemon, "shop", "stuck", is_stuck);
    shown["capture"]["pending"]["oldest"].as_str().expect("text").to_owned()
}

fn lsn(text: &Value) -> u64 {
    text.as_str().and_then(|text| text.parse::<Lsn>().ok()).expect("an LSN").0
}

#[test]
fn giving_up_a_batch_takes_the_stuck_position_and_moves_to_the_end_of_a_transaction() {
    let stage = Stage::new(ORDERS, STUCK);
    let mut daemon = stage.streaming();
    stage.pg.sql("insert into orders values (1, 'good')");
    stage.wait_for(&mut daemon, "good", 1);
    stage.wait_confirmed_of(&mut daemon, "shop");
    let good = stage.insert_lsn();
    let body = |oldest: &str, through: &str| {
        json!({"oldest": oldest, "through": through, "confirm": "shop"}).to_string()
    };
    let (code, text) = order_json(&stage, ABANDON, &body("0/1", "current"));
    assert!(code == 409 && text.contains("nothing waits"), "{code} {text}");
    let mut session = stage.pg.session("postgres");
    session.sql("begin; insert into orders values (2, 'bad')");
    let inside = stage.insert_lsn();
    session.sql("insert into orders values (3, 'good'); commit");
    let first_end = stage.insert_lsn();
    session.sql("insert into orders values (4, 'good')");
    session.sql("insert into orders values (5, 'bad'), (6, 'good')");
    stage.wait_for(&mut daemon, "good", 4);
    stage.degraded(&mut daemon, "shop", &["destination_refused", "denylist", "/bad"]);
    let oldest = stuck(&stage, &mut daemon);
    // Another position, and no changes at all.
    let wrong = Lsn(oldest.parse::<Lsn>().expect("an LSN").0 + 8).to_string();
    let (code, text) = order_json(&stage, ABANDON, &body(&wrong, "current"));
    assert!(code == 409 && text.contains(&oldest), "{code} {text}");
    throughout(Duration::from_millis(400), "nothing moved", || stage.confirmed() < inside);
    let shown = named(&daemon, "shop").expect("the source");
    assert_eq!(
        (&shown["capture"]["gaps"], &shown["capture"]["last_abandon_at"]),
        (&json!(0), &Value::Null)
    );
    // In the middle of the first stuck transaction: given up whole.
    let (code, text) = order_json(&stage, ABANDON, &body(&oldest, &oldest));
    assert_eq!(code, 200, "{text}");
    let gap = stage.shows(&mut daemon, "shop", "a gap", |s| s["capture"]["gaps"] == 1);
    let gap = gap["capture"]["recent_gaps"][0].clone();
    assert!(lsn(&gap["first"]) <= good && lsn(&gap["last"]) > inside, "{gap:#}");
    assert!(lsn(&gap["last"]) <= first_end, "not into the next one: {gap:#}");
    // Row 5 still holds it.
    stage.degraded(&mut daemon, "shop", &["destination_refused", "/bad"]);
    let second = stuck(&stage, &mut daemon);
    assert_ne!(second, oldest);
    let last = lsn(&gap["last"]);
    eventually(limit(), "the slot to move", || when(stage.confirmed() >= last));
    let (code, text) = order_json(&stage, ABANDON, &body(&second, "current"));
    assert_eq!(code, 200, "{text}");
    // It is on disk before it is called done.
    daemon.kill();
    let config = stage.home.config_file().display().to_string();
    let (code, out, err) = stage.home.run(&["state", "show", "--json", "--config", &config]);
    assert_eq!(code, 0, "{out}{err}");
    let saved: Value = serde_json::from_str(&out).expect("JSON");
    let saved = saved.to_string();
    assert_eq!(saved.matches("given up by the operator").count(), 2, "{saved}");
    let mut daemon = stage.streaming();
    stage.running(&mut daemon, "shop");
    let shown = named(&daemon, "shop").expect("the source");
    assert!(shown["capture"]["last_abandon_at"].is_string(), "{shown:#}");
    assert_eq!(shown["capture"]["gaps"], 2);
    stage.pg.sql("insert into orders values (7, 'good')");
    stage.wait_for(&mut daemon, "good", 5);
    stage.wait_confirmed_of(&mut daemon, "shop");
    assert_eq!(row_ids(&stage.got("good")), [1, 3, 4, 6, 7], "what was acked is not repeated");
    assert!(stage.got("bad").is_empty());
    daemon.stop();
}

#[test]
fn a_transaction_that_does_not_fit_the_buffers_is_given_up_whole() {
    let mut stage =
        Stage::new("create table orders (id bigint primary key, kind text, note text)", STUCK);
    stage.daemon.push_str("\nshards = 1\nmax_buffered_bytes = \"14MiB\"");
    let mut daemon = stage.streaming();
    stage.pg.sql("insert into orders values (1, 'good', '')");
    stage.wait_for(&mut daemon, "good", 1);
    let before = stage.insert_lsn();
    stage.pg.sql(
        "insert into orders select n, 'bad', repeat('x', 500) from generate_series(2, 20000) n; \
         insert into orders values (30000, 'good', '')",
    );
    // Two transactions; the first alone fills the buffers.
    let after = stage.insert_lsn();
    let full = |source: &Value| {
        source["capture"]["pending"]["bytes"].as_u64().is_some_and(|bytes| bytes > 4 << 20)
    };
    stage.shows(&mut daemon, "shop", "full", full);
    throughout(Duration::from_secs(1), "it does not pass", || stage.got("good").len() == 1);
    let oldest = stuck(&stage, &mut daemon);
    let body = json!({"oldest": oldest, "through": "current", "confirm": "shop"}).to_string();
    let (code, text) = order_json(&stage, ABANDON, &body);
    assert_eq!(code, 200, "{text}");
    assert_eq!(row_ids(&stage.wait_for(&mut daemon, "good", 2)), [1, 30_000]);
    let shown = stage.shows(&mut daemon, "shop", "running", |s| s["status"] == "Running");
    let gap = &shown["capture"]["recent_gaps"][0];
    assert!(lsn(&gap["first"]) < lsn(&gap["last"]), "{gap:#}");
    assert!((before..after).contains(&lsn(&gap["last"])), "{gap:#}");
    assert!(shown["capture"]["last_abandon_at"].is_string());
    stage.wait_confirmed_of(&mut daemon, "shop");
    daemon.kill();
    let mut daemon = stage.streaming();
    stage.running(&mut daemon, "shop");
    assert!(stage.got("bad").is_empty());
    daemon.stop();
}

#[test]
fn after_a_batch_was_given_up_the_source_runs_without_a_restart() {
    let test = "after_a_batch_was_given_up_the_source_runs_without_a_restart";
    let source = format!(
        "{BOUND}[sources.shop.routing.circuit_breaker]\nfailure_threshold = 2\n\
         cool_down = \"60s\"\n"
    );
    let stage = Stage::new(ORDERS, &source);
    let Some(control) = stage.switches(test) else { return };
    let mut daemon = stage.streaming();
    insert(&stage, 1);
    stage.wait_for(&mut daemon, "orders", 1);
    let refuse = Fault::Reject { code: 3, applied: false };
    control.fault(refuse, Scope::sends(), Times::UntilCleared);
    (2..=6).for_each(|id| insert(&stage, id));
    stage.degraded(&mut daemon, "shop", &["circuit_open", "/orders"]);
    let oldest = stuck(&stage, &mut daemon);
    control.clear_all();
    let body = json!({"oldest": oldest, "through": "current", "confirm": "shop"}).to_string();
    let (code, text) = order_json(&stage, ABANDON, &body);
    assert_eq!(code, 200, "{text}");
    let shown = stage.shows(&mut daemon, "shop", "running", |s| s["status"] == "Running");
    assert!(shown["capture"]["last_abandon_at"].is_string(), "{shown:#}");
    insert(&stage, 7);
    stage.wait_for(&mut daemon, "orders", 2);
    stage.wait_confirmed_of(&mut daemon, "shop");
    assert_eq!(row_ids(&stage.got("orders")), [1, 7]);
    daemon.stop();
}

/// What happened to the state file, and words of the refusal.
type Damage = (&'static str, fn(&mut Vec<u8>), &'static str);

const DAMAGES: [Damage; 3] = [
    ("empty", Vec::clear, "the file is empty"),
    ("flipped", |bytes| bytes[100] ^= 0x10, "body checksum"),
    (
        "newer",
        |bytes| {
            bytes[8] = 99;
            let sum = XxHash3_64::oneshot(&bytes[..56]);
            bytes[56..64].copy_from_slice(&sum.to_le_bytes());
        },
        "format version 99",
    ),
];

#[test]
fn a_state_file_that_cannot_be_read_stops_the_capture_until_the_operator_says_so() {
    let mut stage = Stage::new(ORDERS, BOUND);
    stage.daemon.push_str("\nshards = 1");
    let mut daemon = stage.streaming();
    insert(&stage, 1);
    stage.wait_for(&mut daemon, "orders", 1);
    stage.wait_confirmed_of(&mut daemon, "shop");
    daemon.stop();
    let path = stage.home.state_dir().join("shop.0.state");
    let good = fs::read(&path).expect("a state file");
    let confirmed = stage.confirmed();
    insert(&stage, 2);
    for (name, spoil, words) in DAMAGES {
        let mut bytes = good.clone();
        spoil(&mut bytes);
        fs::write(&path, &bytes).expect("written");
        let mut daemon = stage.start();
        let shown = stage.shows(&mut daemon, "shop", name, |source| source["status"] == "Error");
        assert_eq!(shown["reason"], "state_unreadable", "{shown:#}");
        let detail = shown["detail"].as_str().expect("text");
        assert!(detail.contains("shop.0.state") && detail.contains(words), "{name}: {detail}");
        throughout(Duration::from_millis(300), "it does nothing", || {
            stage.got("orders").len() == 1 && stage.confirmed() == confirmed
        });
        daemon.stop();
        assert_eq!(fs::read(&path).expect("the file"), bytes, "{name}: left as it is");
    }
    // Set aside by hand: the slot remembers what it was told.
    let config = stage.home.config_file().display().to_string();
    let words = ["state", "reset", "--source", "shop", "--yes", "--config", &config];
    let (code, out, err) = stage.home.run(&words);
    assert_eq!(code, 0, "{out}{err}");
    assert!(!path.exists());
    let mut daemon = stage.streaming();
    assert_eq!(row_ids(&stage.wait_for(&mut daemon, "orders", 2)), [1, 2]);
    stage.wait_confirmed_of(&mut daemon, "shop");
    daemon.stop();
    // Or by the configuration.
    insert(&stage, 3);
    stage.source.push_str("\non_corrupt_state = \"reset\"");
    fs::write(&path, &good[..good.len() - 1]).expect("written");
    let mut daemon = stage.streaming();
    assert_eq!(row_ids(&stage.wait_for(&mut daemon, "orders", 3)), [1, 2, 3]);
    stage.wait_confirmed_of(&mut daemon, "shop");
    daemon.stop();
}
