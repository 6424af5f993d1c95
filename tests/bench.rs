//! `tidegate bench`: small runs of the real thing. What the figures are is nobody's
//! business here, only that they are there, whole, and leave nothing behind.
#![allow(clippy::disallowed_methods)] // files, processes and the clock

mod support;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use support::{eventually, when};
use tempfile::TempDir;
use tidegate::cli::demo::process::{Process, Signal};
use tidegate::iggy_wire::{Reply, Request};
use tidegate::loopback::{Server, ServerOptions};

/// A directory for temporary files that the server's user may enter.
fn scratch() -> TempDir {
    let dir = tempfile::Builder::new().prefix("tidegate-test-").tempdir().expect("a directory");
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(dir.path(), open).expect("permissions");
    dir
}

fn bench(dir: &TempDir, arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(["bench", "capture"]).args(arguments.split(' ')).env("TMPDIR", dir.path());
    command
}

fn leftovers(dir: &TempDir) -> usize {
    std::fs::read_dir(dir.path()).expect("a directory").count()
}

/// Runs it to its end: exit code, standard output, standard error.
fn run(arguments: &str) -> (i32, String, String) {
    let dir = scratch();
    let output = bench(&dir, arguments).output().expect("the binary");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert_eq!(leftovers(&dir), 0, "files are left behind");
    (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

#[test]
fn both_sides_are_measured_and_the_report_is_the_documented_one() {
    let (code, out, err) = run("--rows 3000 --runs 2 --latency 1 --sink null --json");
    assert_eq!(code, 0, "{out}{err}");
    let report: Value = serde_json::from_str(&out).expect("one JSON object");
    let parts = ["machine", "options", "ours", "pg_recvlogical", "ratio", "runs"];
    assert_eq!(keys(&report), parts);
    assert_eq!(report["runs"], 2);
    assert_eq!(report["options"]["rows"], 3_000);
    assert_eq!(report["options"]["sink"], "null");
    let figures = [
        "cpu_seconds_per_million",
        "p50_us",
        "p99_us",
        "rows_per_second",
        "walsender_cpu_seconds_per_million",
    ];
    for side in ["ours", "pg_recvlogical"] {
        assert_eq!(keys(&report[side]), figures);
        for figure in figures.iter().filter(|figure| !figure.starts_with("walsender")) {
            let value = report[side][figure].as_f64().expect("a number");
            assert!(value > 0.0, "{side} {figure}: {report:#}");
        }
        let way = |figure: &str| report[side][figure].as_u64().expect("microseconds");
        assert!(way("p50_us") <= way("p99_us"), "{report:#}");
        // An order of magnitude above what a busy machine shows.
        assert!(way("p50_us") < 5_000_000, "clocks or times differ: {report:#}");
    }
    assert_eq!(keys(&report["ratio"]), ["cpu", "rows_per_second"]);
    assert!(report["machine"]["postgres"].as_str().is_some_and(|version| !version.is_empty()));
}

#[test]
fn every_workload_arrives_whole() {
    for workload in ["single", "giant", "full", "toast"] {
        let (code, out, err) =
            run(&format!("--workload {workload} --rows 2500 --runs 1 --latency 0"));
        assert_eq!(code, 0, "{workload}: {out}{err}");
        assert!(out.starts_with(&format!("{workload}: 2500 ")), "{out}");
        assert!(out.contains("run 1: ") && out.contains("ratio: rows a second "), "{out}");
        let line = out.lines().find(|line| line.starts_with("commit to ack, p50"));
        assert!(line.is_some_and(|line| line.ends_with('-')), "no latency was measured: {out}");
    }
}

#[test]
fn the_broker_behind_a_socket_is_measured_too() {
    let (code, out, err) = run("--rows 3000 --runs 1 --latency 1 --sink loopback --json");
    assert_eq!(code, 0, "{out}{err}");
    let report: Value = serde_json::from_str(&out).expect("one JSON object");
    assert_eq!(report["options"]["sink"], "loopback");
    assert!(report["ours"]["p50_us"].as_u64().is_some_and(|way| way > 0), "{report:#}");
}

const CAPTURE: &str = "[sources.rows]\nkind = \"postgres_cdc\"\nto = \"sink\"\n\
    connection = \"postgresql://u@127.0.0.1:1/d?sslmode=disable\"\nslot = \"SLOT\"\n\
    publication = \"p\"\ntables = [\"public.t\"]\nstream = \"s\"\ntopic = \"t\"\n";
const MIRROR: &str = "[sources.copy]\nkind = \"iggy\"\nfrom = \"up\"\nto = \"sink\"\n\
    include = [{ stream = \"m\", topic = \"t\" }]\n";

/// What the daemon says with the hidden argument: exit code and all its words.
fn null_sink(dir: &Path, sources: &str) -> (i32, String) {
    let state = dir.join("state");
    let cluster = |key: &str, port: u16| {
        format!(
            "[clusters.{key}]\naddress = \"127.0.0.1:{port}\"\nusername = \"iggy\"\n\
             password = \"iggy\"\n"
        )
    };
    let text = format!(
        "[daemon]\nstate_dir = {}\nshards = 1\n{}{}{sources}",
        toml::Value::from(state.display().to_string()),
        cluster("up", 1),
        cluster("sink", 2),
    );
    let config = dir.join("tidegate.toml");
    std::fs::write(&config, text).expect("a configuration");
    std::fs::set_permissions(&config, std::fs::Permissions::from_mode(0o600)).expect("a mode");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(["run", "--config"]).arg(config);
    command.arg("--bench-null-sink").arg(dir.join("report"));
    let mut process = Process::spawn(command).expect("the binary");
    let announced = |process: &Process| {
        process.lines().iter().any(|line| line.contains("NOTHING IS DELIVERED"))
    };
    let mut ended = None;
    eventually(Duration::from_secs(60), "an end, or the announcement", || {
        ended = process.try_wait();
        when(ended.is_some() || announced(&process))
    });
    let code = ended.map_or(0, |ended| ended.status.code().unwrap_or(-1));
    if ended.is_none() {
        process.signal(Signal::Term);
        process.wait(Duration::from_secs(60)).expect("an orderly stop");
    }
    process.kill();
    (code, process.last_lines(40))
}

#[test]
fn rows_are_routed_in_memory_and_the_report_is_the_documented_one() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args("bench route --rows 5000 --destinations 1,3,40 --runs 2 --json".split(' '));
    let output = command.output().expect("the binary");
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{out}");
    let report: Value = serde_json::from_str(&out).expect("one JSON object");
    assert_eq!(keys(&report), ["build", "cases", "machine", "ratio", "rows", "runs"]);
    let cases = report["cases"].as_array().expect("a list");
    let counts: Vec<u64> = cases.iter().filter_map(|case| case["destinations"].as_u64()).collect();
    assert_eq!(counts, [1, 3, 40]);
    for case in cases {
        let figures = ["cpu_seconds_per_million", "destinations", "rows_per_second", "sends"];
        assert_eq!(keys(case), figures);
        assert!(case["rows_per_second"].as_f64().is_some_and(|speed| speed > 0.0), "{case}");
        assert!(case["sends"].as_u64() >= case["destinations"].as_u64(), "{case}");
    }
    let speed = |at: usize| cases[at]["rows_per_second"].as_f64().unwrap_or(0.0);
    let ratio = report["ratio"]["rows_per_second"].as_f64().expect("a ratio");
    assert!((ratio - speed(2) / speed(0)).abs() < 0.002, "{report}");
}

#[test]
fn messages_are_thrown_away_for_a_benchmark_and_nobody_else() {
    let ours = CAPTURE.replace("SLOT", "bench_a0");
    let refused = |dir: &Path, sources: &str, why: &str| {
        let (code, words) = null_sink(dir, sources);
        assert_eq!(code, 2, "{words}");
        assert!(words.contains("--bench-null-sink throws every message away"), "{words}");
        assert!(words.contains(why), "{words}");
        assert!(!dir.join("report").exists(), "it began all the same");
    };
    let dir = scratch();
    std::fs::create_dir(dir.path().join("state")).expect("a state directory");
    refused(dir.path(), MIRROR, "source \"copy\" is a mirror");
    refused(dir.path(), &format!("{MIRROR}{ours}"), "source \"copy\" is a mirror");
    refused(dir.path(), &CAPTURE.replace("SLOT", "orders"), "slot \"orders\" of source \"rows\"");
    for used in ["rows.0.state", "rows.0.state.aside-1", "elsewhere.paused"] {
        let file = dir.path().join("state").join(used);
        std::fs::write(&file, "").expect("a file");
        refused(dir.path(), &ours, used);
        std::fs::remove_file(file).expect("removed");
    }
    // The lock of the attempts before is no use.
    let (code, words) = null_sink(dir.path(), &ours);
    assert_eq!(code, 0, "{words}");
    assert!(words.contains("NOTHING IS DELIVERED"), "{words}");
    let report = std::fs::read_to_string(dir.path().join("report")).expect("a report");
    let report: Value = serde_json::from_str(&report).expect("JSON");
    assert_eq!(report["messages"], 0);
    // A report is never written over: the next run needs a place of its own.
    let (code, words) = null_sink(dir.path(), &ours);
    assert_eq!(code, 2, "{words}");
}

#[test]
fn no_help_shows_the_argument_that_throws_messages_away() {
    for words in [&["run", "--help"][..], &["--help"], &["help", "run"]] {
        let output = Command::new(env!("CARGO_BIN_EXE_tidegate")).args(words).output();
        let text = String::from_utf8(output.expect("the binary").stdout).expect("text");
        assert!(text.contains("tidegate") && !text.contains("bench-"), "{text}");
    }
}

#[test]
fn an_interrupt_leaves_neither_processes_nor_files() {
    let dir = scratch();
    let command = bench(&dir, "--rows 3000 --runs 50 --latency 0");
    let mut process = Process::spawn(command).expect("the binary");
    let limit = Duration::from_secs(120);
    eventually(limit, "the first run", || {
        assert!(process.try_wait().is_none(), "{}", process.last_lines(20));
        when(process.lines().iter().any(|line| line.starts_with("run 1: ")))
    });
    process.signal(Signal::Term);
    let ended = process.wait(limit).expect("an end");
    process.kill();
    let words = process.last_lines(20);
    assert_eq!(ended.status.code(), Some(1), "{words}");
    assert!(words.contains("interrupted"), "{words}");
    assert_eq!(leftovers(&dir), 0);
}

#[test]
fn without_a_server_it_says_where_it_looked() {
    let (code, out, _) = run("--pg-bin /nowhere --json");
    assert_eq!(code, 1);
    let report: Value = serde_json::from_str(&out).expect("one JSON object");
    let message = report["error"]["message"].as_str().expect("text");
    assert!(message.contains("no Postgres server in /nowhere"), "{message}");
    assert!(message.contains("--pg-bin"), "{message}");
}

/// The JSON object of a benchmark of mirrors.
fn report(dir: &TempDir, arguments: &str) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.arg("bench").args(arguments.split(' ')).arg("--json").env("TMPDIR", dir.path());
    let output = command.output().expect("the binary");
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{arguments}: {out}");
    assert_eq!(leftovers(dir), 0, "{arguments}: files are left behind");
    serde_json::from_str(&out).expect("one JSON object")
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

const RELAY_SIDE: [&str; 9] = [
    "cpu_seconds_per_gb",
    "cpu_seconds_per_million",
    "megabytes_per_second",
    "messages_per_second",
    "messages_per_send",
    "p50_us",
    "p99_us",
    "peak_memory_mib",
    "spread",
];

/// Figures of one side that say the same thing in several ways do so.
fn check_relay_side(side: &Value, size: f64) {
    assert_eq!(keys(side), RELAY_SIDE);
    let of = |name: &str| number(&side[name]);
    let near = |a: f64, b: f64| (a - b).abs() <= 0.002 + b.abs() * 0.01;
    assert!(of("messages_per_second") > 0.0 && of("cpu_seconds_per_million") > 0.0, "{side:#}");
    let megabytes = of("messages_per_second") * size / 1e6;
    assert!(near(of("megabytes_per_second"), megabytes), "{side:#}");
    let per_gb = of("cpu_seconds_per_million") * 1e3 / size;
    assert!((of("cpu_seconds_per_gb") - per_gb).abs() <= 0.01 + per_gb * 0.05, "{side:#}");
    for (name, ends) in side["spread"].as_object().expect("an object") {
        let (least, most) = (number(&ends[0]), number(&ends[1]));
        assert!(least <= of(name) && of(name) <= most, "{name}: {side:#}");
    }
}

#[test]
fn a_mirror_and_the_copying_peer_are_measured_and_the_report_is_the_documented_one() {
    let dir = scratch();
    for verify in ["on", "off"] {
        let report = report(
            &dir,
            &format!(
                "relay --size 500 --record 200 --partitions 3 --messages 60000 --runs 2 \
                 --latency 1 --verify {verify}"
            ),
        );
        assert_eq!(keys(&report), ["machine", "note", "ours", "peer", "ratio", "runs"]);
        assert_eq!(report["runs"], 2);
        assert!(report["note"].as_str().is_some_and(|note| note.contains("7 or more")));
        let machine = &report["machine"];
        for (name, value) in [("size", 500), ("record", 200), ("partitions", 3), ("shards", 1)] {
            assert_eq!(machine[name], value, "{machine:#}");
        }
        assert_eq!((&machine["verify"], &machine["peer"]), (&verify.into(), &"copy".into()));
        assert!(machine["kernel"].as_str().is_some_and(|kernel| !kernel.is_empty()));
        check_relay_side(&report["ours"], 500.0);
        check_relay_side(&report["peer"], 500.0);
        let (ours, peer) = (&report["ours"], &report["peer"]);
        // A record is a send as it lies: more where acks are slow, less where a poll ends within
        // one. The peer has no ways of messages.
        assert_eq!(number(&peer["messages_per_send"]), 200.0, "{report:#}");
        assert!(number(&ours["messages_per_send"]) >= 100.0, "{report:#}");
        assert!(number(&ours["p50_us"]) <= number(&ours["p99_us"]) && peer["p50_us"].is_null());
        let ratio = number(&report["ratio"]["messages_per_second"]);
        let expected = number(&ours["messages_per_second"]) / number(&peer["messages_per_second"]);
        assert!((ratio - expected).abs() <= 0.002 + expected * 0.01, "{report:#}");
        assert!(number(&report["ratio"]["cpu_per_gb"]) > 0.0);
    }
}

#[test]
fn a_run_may_be_as_long_as_one_says_and_stand_alone() {
    let dir = scratch();
    let alone = "relay --size 100 --record 50 --duration 1 --runs 1 --latency 0 --peer none";
    let report = report(&dir, alone);
    assert_eq!((&report["peer"], &report["ratio"]), (&Value::Null, &Value::Null));
    assert_eq!(report["machine"]["duration_seconds"], 1);
    check_relay_side(&report["ours"], 100.0);
}

#[test]
fn small_records_are_merged_on_the_way_by_both_sides() {
    let dir = scratch();
    let small = "relay --size 100 --record 1 --messages 30000 --runs 1 --latency 0";
    let report = report(&dir, small);
    for side in ["ours", "peer"] {
        assert!(number(&report[side]["messages_per_send"]) > 100.0, "{report:#}");
    }
}

#[test]
fn servers_that_are_named_are_used_and_nothing_is_left_on_them() {
    let servers = [(); 2].map(|()| Server::start(ServerOptions::default()).expect("a port"));
    let [up, down] = [&servers[0], &servers[1]].map(|server| server.address().to_string());
    let dir = scratch();
    let report = report(
        &dir,
        &format!(
            "relay --size 50 --record 20 --partitions 2 --messages 4000 --runs 1 --up {up} \
             --down iggy:iggy@{down}"
        ),
    );
    assert_eq!(report["machine"]["servers"], "real");
    assert!(report["ours"]["p50_us"].is_null(), "nobody sees acks there");
    for server in &servers {
        let mut client = support::Client::connect(&server.address().to_string()).expect("a login");
        let reply = client.ask(&Request::Streams).expect("an answer").expect("streams");
        assert!(matches!(&reply, Reply::Streams(streams) if streams.is_empty()), "{reply:?}");
    }
}

#[test]
fn the_official_client_is_a_peer_where_its_program_is() {
    let own = Path::new(env!("CARGO_BIN_EXE_tidegate"));
    let program = own.with_file_name("examples").join("sdk_relay");
    if !program.is_file() {
        // `cargo test` builds it, `cargo test --test bench` alone does not.
        let why = format!("no {}: cargo build --example sdk_relay", program.display());
        return support::skipped("the_official_client_is_a_peer_where_its_program_is", &why);
    }
    let dir = scratch();
    let small = "relay --size 100 --record 100 --partitions 2 --messages 30000 --runs 1 \
                 --peer sdk --latency 1";
    let report = report(&dir, small);
    check_relay_side(&report["peer"], 100.0);
    assert!(number(&report["peer"]["p50_us"]) > 0.0, "{report:#}");
    // Elsewhere the program is missing, and how to build it is said.
    let alone = dir.path().join("tidegate");
    std::fs::copy(own, &alone).expect("a copy");
    let output = Command::new(&alone)
        .args(["bench", "relay", "--peer", "sdk", "--messages", "1000", "--runs", "1"])
        .env("TMPDIR", dir.path())
        .output()
        .expect("the binary");
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{words}");
    assert!(words.contains("--example sdk_relay"), "{words}");
}

#[test]
fn what_a_mirror_adds_to_the_way_of_a_message_is_the_difference_of_both_ways() {
    let dir = scratch();
    let report = report(&dir, "latency --rate 500 --partitions 2 --seconds 1 --runs 2");
    let parts = ["added", "direct", "machine", "mirrored", "note", "rate", "runs"];
    assert_eq!(keys(&report), parts);
    for side in ["direct", "mirrored"] {
        let side = &report[side];
        let names = ["max_us", "messages", "p50_us", "p999_us", "p99_us", "spread"];
        assert_eq!(keys(side), names);
        // A second that counts of two runs; the one before it does not.
        assert!((950.0..=1_050.0).contains(&number(&side["messages"])), "{side:#}");
        let way = |name: &str| number(&side[name]);
        assert!(way("p50_us") <= way("p99_us") && way("p99_us") <= way("p999_us"), "{side:#}");
    }
    for name in ["p50_us", "p99_us", "p999_us"] {
        let added = number(&report["mirrored"][name]) - number(&report["direct"][name]);
        assert!((number(&report["added"][name]) - added).abs() < 0.01, "{report:#}");
    }
    assert!(number(&report["added"]["p50_us"]) > 0.0, "two hops are longer than one: {report:#}");
}

#[test]
fn saves_are_counted_alone_and_beside_a_mirror() {
    let dir = scratch();
    let report = report(&dir, "commit --feeds 3 --seconds 1 --runs 1");
    assert_eq!(keys(&report), ["alone", "machine", "note", "runs", "under_load"]);
    assert_eq!(number(&report["machine"]["bytes"]) % 4096.0, 0.0);
    for side in ["alone", "under_load"] {
        let side = &report[side];
        let (saves, rate) = (number(&side["saves"]), number(&side["saves_per_second"]));
        assert!(saves > 0.0 && rate <= saves && rate > saves * 0.5, "{side:#}");
        assert!(number(&side["p50_us"]) <= number(&side["p99_us"]), "{side:#}");
        // One after the other: together they take no longer than the run.
        assert!(saves * number(&side["p50_us"]) < 2.5e6, "{side:#}");
    }
}

#[test]
fn a_mirror_with_nothing_to_copy_is_measured() {
    let dir = scratch();
    let report = report(&dir, "idle --topics 3 --partitions 4 --seconds 1 --runs 1");
    let parts = [
        "cpu_percent",
        "machine",
        "note",
        "partitions",
        "peak_memory_mib",
        "runs",
        "seconds",
        "spread",
        "topics",
    ];
    assert_eq!(keys(&report), parts);
    assert!((0.0..60.0).contains(&number(&report["cpu_percent"])), "{report:#}");
    assert!(number(&report["peak_memory_mib"]) > 1.0);
}
