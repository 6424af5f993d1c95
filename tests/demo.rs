//! `tidegate demo` as its users meet it.
#![allow(clippy::disallowed_methods)] // processes and the clock

mod support;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use support::{eventually, when};
use tidegate::cli::demo::process::{Ended, Process, Signal};

const LIMIT: Duration = Duration::from_secs(120);

/// The demonstration with a directory of its own for its temporary files.
fn demo(directory: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Process {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.arg("demo").args(arguments).env("TMPDIR", directory);
    command.envs(environment.iter().copied());
    Process::spawn(command).expect("the binary")
}

/// Waits for its end; what it printed comes along.
fn end(mut process: Process) -> (Ended, String) {
    let ended = process.wait(LIMIT).expect("an end within two minutes");
    // Ended already: this only waits for the rest of its output.
    process.kill();
    (ended, process.lines().join("\n"))
}

fn is_empty(directory: &Path) -> bool {
    std::fs::read_dir(directory).expect("a directory").next().is_none()
}

#[test]
fn the_demonstration_loses_duplicates_and_reorders_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let arguments = ["--json", "--messages", "60000", "--partitions", "5"];
    let (ended, output) = end(demo(directory.path(), &arguments, &[]));
    assert!(ended.status.success(), "{}: {output}", ended.status);
    let result: Value = serde_json::from_str(&output).expect("one JSON object");
    let keys: BTreeSet<_> = result.as_object().expect("an object").keys().cloned().collect();
    let documented = [
        "cpu_seconds_per_million",
        "duplicates",
        "kills",
        "kills_with_unacked_sends",
        "lost",
        "megabytes_per_second",
        "messages",
        "messages_per_second",
        "reordered",
    ];
    assert_eq!(keys, documented.map(str::to_owned).into());
    assert_eq!(result["messages"], 60_000);
    for key in ["lost", "duplicates", "reordered"] {
        assert_eq!(result[key], 0, "{result}");
    }
    assert_eq!((&result["kills"], &result["kills_with_unacked_sends"]), (&2.into(), &2.into()));
    for key in ["messages_per_second", "megabytes_per_second", "cpu_seconds_per_million"] {
        assert!(result[key].as_f64().is_some_and(|figure| figure > 0.0), "{result}");
    }
    assert!(is_empty(directory.path()), "temporary files stay behind");
}

#[test]
fn a_kept_demonstration_answers_until_it_is_told_to_stop() {
    let directory = tempfile::tempdir().expect("a directory");
    let process = demo(directory.path(), &["--keep", "--messages", "2000"], &[]);
    let shown = eventually(LIMIT, "the admin address", || {
        process.lines().into_iter().find(|line| line.starts_with("running"))
    });
    let url = shown.split_whitespace().find(|word| word.ends_with("/status"));
    let address = url.and_then(|url| url.strip_prefix("http://")?.strip_suffix("/status"));
    let address = address.expect("an address");
    std::net::TcpStream::connect(address).expect("the mirror still runs");
    process.signal(Signal::Term);
    let address = address.to_owned();
    let (ended, output) = end(process);
    assert!(ended.status.success(), "{}: {output}", ended.status);
    assert!(std::net::TcpStream::connect(address).is_err(), "the mirror is gone");
    assert!(is_empty(directory.path()), "temporary files stay behind");
}

#[test]
fn a_mirror_that_cannot_run_is_shown_with_its_last_words() {
    let directory = tempfile::tempdir().expect("a directory");
    let nonsense = [("TIDEGATE_FAULT_FILES", "nonsense")];
    let (ended, output) = end(demo(directory.path(), &["--messages", "1000"], &nonsense));
    assert_eq!(ended.status.code(), Some(1), "{output}");
    assert!(output.contains("the mirror ended with"), "{output}");
    assert!(output.contains("TIDEGATE_FAULT_FILES"), "{output}");
    assert!(is_empty(directory.path()), "temporary files stay behind");
}

#[test]
fn an_interrupted_demonstration_leaves_nothing_behind() {
    let directory = tempfile::tempdir().expect("a directory");
    let process = demo(directory.path(), &["--messages", "3000000"], &[]);
    eventually(LIMIT, "the brokers", || when(!is_empty(directory.path())));
    process.signal(Signal::Term);
    let (ended, output) = end(process);
    assert_eq!(ended.status.code(), Some(1), "{output}");
    assert!(output.contains("interrupted while waiting for the backlog"), "{output}");
    assert!(is_empty(directory.path()), "temporary files stay behind");
}
