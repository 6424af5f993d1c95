//! What the daemon leaves behind where others could look: files, and its memory when it dies.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use tidegate::cli::demo::process::Process;

use super::support::{Pair, eventually, when};
use super::{Rig, limit, ready};

#[test]
fn what_the_daemon_writes_is_its_users_alone() {
    let rig = Rig::new(&Pair::start(), 2);
    rig.write_all(0..50);
    let mut daemon = rig.start();
    rig.copied(&mut daemon);
    ready(&mut daemon);
    assert_eq!(daemon.order("/sources/mirror/pause").expect("an answer").0, 200);
    rig.reason(&mut daemon, 0, "paused");
    let mut kinds = Vec::new();
    for entry in fs::read_dir(rig.home.state_dir()).expect("a directory") {
        let entry = entry.expect("an entry");
        let mode = entry.metadata().expect("a file").permissions().mode() & 0o7777;
        let name = entry.file_name().into_string().expect("text");
        assert_eq!(mode, 0o600, "{name}");
        kinds.push(name.rsplit('.').next().expect("a word").to_owned());
    }
    for kind in ["lock", "state", "paused"] {
        assert!(kinds.iter().any(|found| found == kind), "no {kind} among {kinds:?}");
    }
    daemon.stop();
}

/// Whether a daemon that may dump as much as it likes dumps its memory when it is aborted.
fn dumps(rig: &Rig) -> bool {
    fs::write(rig.home.config_file(), rig.config.text(&rig.home)).expect("a configuration file");
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -c unlimited; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_tidegate")]);
    command.arg("run").arg("--config").arg(rig.home.config_file());
    command.current_dir(rig.home.path());
    let mut process = Process::spawn(command).expect("the binary");
    eventually(limit(), "a start", || {
        when(process.lines().iter().any(|line| line.contains("\"message\":\"started\"")))
    });
    let aborted = Command::new("kill").args(["-ABRT", &process.id().to_string()]).status();
    assert!(aborted.expect("kill").success());
    let ended = process.wait(limit()).expect("an end");
    assert_eq!(ended.status.signal(), Some(6), "{}", ended.status);
    ended.status.core_dumped()
}

#[test]
fn a_daemon_that_crashes_leaves_no_core_unless_told_so() {
    let rig = Rig::new(&Pair::start(), 1);
    assert!(!dumps(&rig));
    let rig = rig.with(|config| config.daemon("core_dumps", true));
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    if !dumps(&rig) {
        eprintln!("half skipped: this system makes no core dumps ({})", pattern.trim());
    }
}
