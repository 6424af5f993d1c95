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
