//! Saving positions on file systems of every kind, on failing disks and on full ones.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::support::{Daemon, Home, Pair, eventually, skipped, soak, throughout, when};
use super::{Rig, limit, number, ready};

/// One copy, saved; a kill; one more copy; an orderly stop; and the files are read once more.
fn copies_with_state_in(dir: &Path) {
    let pair = Pair::start();
    let mut rig = Rig::new(&pair, 2);
    rig.home = Home::with_state_dir(dir);
    rig.write_all(0..100);
    let mut daemon = rig.start();
    rig.copied(&mut daemon);
    durable(&mut daemon, &rig, 100);
    let lines = daemon.lines();
    let told = lines.iter().filter(|line| line.contains("O_DIRECT")).count();
    assert!(told <= 1, "{told} lines about O_DIRECT");
    daemon.kill();
    rig.write_all(100..120);
    let mut daemon = rig.start();
    rig.copied(&mut daemon);
    ready(&mut daemon);
    daemon.stop();
    rig.assert_exact();
    let shown = show(&rig);
    for feed in shown["sources"][0]["feeds"].as_array().expect("feeds") {
        assert_eq!((number(&feed["position"]), &feed["clean_stop"]), (120, &true.into()));
    }
}

fn durable(daemon: &mut Daemon, rig: &Rig, position: u64) {
    eventually(limit(), &format!("position {position} on disk"), || {
        daemon.assert_running();
        when((0..rig.partitions).all(|partition| {
            let feed = daemon.feed(&rig.topic, partition);
            feed.is_some_and(|feed| feed["durable_position"] == position)
        }))
    });
}

fn show(rig: &Rig) -> Value {
    let file = rig.home.config_file().display().to_string();
    let (code, out, err) = rig.home.run(&["state", "show", "--json", "--config", &file]);
    assert_eq!(code, 0, "{out}{err}");
    serde_json::from_str(&out).expect("JSON")
}

#[test]
fn a_state_dir_on_tmpfs_works_h37() {
    in_own_mounts("a state directory on tmpfs", |place| {
        mount("tmpfs", place, "tmpfs", "size=1m,mode=700")?;
        Ok(place.to_owned())
    });
}

#[test]
fn a_state_dir_on_overlayfs_works_h37() {
    in_own_mounts("a state directory on overlayfs", |place| {
        // On a tmpfs of its own: an overlay cannot lie on an overlay.
        mount("tmpfs", place, "tmpfs", "size=8m,mode=700")?;
        let at = |name: &str| -> Result<PathBuf, String> {
            let path = place.join(name);
            fs::create_dir(&path).map_err(|error| error.to_string())?;
            Ok(path)
        };
        let (lower, upper, work, merged) = (at("lower")?, at("upper")?, at("work")?, at("merged")?);
        let options = format!(
            "lowerdir={},upperdir={},workdir={}",
            lower.display(),
            upper.display(),
            work.display()
        );
        mount("overlay", &merged, "overlay", &options)?;
        Ok(merged)
    });
}

#[test]
fn a_state_dir_on_ext4_with_blocks_of_1_kib_works_h37() {
    in_own_mounts("a state directory on ext4 with blocks of 1 KiB", |place| {
        let (image, mounted) = (place.join("image"), place.join("mounted"));
        let file = fs::File::create(&image).map_err(|error| error.to_string())?;
        file.set_len(4 << 20).map_err(|error| error.to_string())?;
        fs::create_dir(&mounted).map_err(|error| error.to_string())?;
        let (image, at) = (image.display().to_string(), mounted.display().to_string());
        run("mkfs.ext4", &["-q", "-F", "-b", "1024", &image])?;
        run("mount", &["-t", "ext4", "-o", "loop", &image, &at])?;
        Ok(mounted)
    });
}

/// Runs the copy with a state directory that `prepare` mounts, on a thread that has mounts of its
/// own: they go with it and with the daemons it started.
fn in_own_mounts(what: &str, prepare: impl FnOnce(&Path) -> Result<PathBuf, String> + Send) {
    let place = tempfile::tempdir().expect("a directory");
    let prepared = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: no pointers; concerns the calling thread only.
            if unsafe { libc::unshare(libc::CLONE_FS | libc::CLONE_NEWNS) } != 0 {
                return Err(format!("unshare: {}", io::Error::last_os_error()));
            }
            run("mount", &["--make-rprivate", "/"])?;
            copies_with_state_in(&prepare(place.path())?);
            Ok(())
        });
        match thread.join() {
            Ok(prepared) => prepared,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    });
    if let Err(why) = prepared {
        skipped(what, &why);
    }
}

fn mount(device: &str, at: &Path, kind: &str, options: &str) -> Result<(), String> {
    let text = |bytes: &[u8]| CString::new(bytes).map_err(|error| error.to_string());
    let (device, kind) = (text(device.as_bytes())?, text(kind.as_bytes())?);
    let (at, options) = (text(at.as_os_str().as_bytes())?, text(options.as_bytes())?);
    // SAFETY: every string ends in NUL and outlives the call.
    let result = unsafe {
        libc::mount(device.as_ptr(), at.as_ptr(), kind.as_ptr(), 0, options.as_ptr().cast())
    };
    match result {
        0 => Ok(()),
        _ => Err(format!("mount: {}", io::Error::last_os_error())),
    }
}

fn run(program: &str, arguments: &[&str]) -> Result<(), String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if output.status.success() { Ok(()) } else { Err(format!("{program}: {said}")) }
}

/// Steps of the saves of one file so far, with how each ended.
fn steps(log: &Path, file: &str) -> Vec<(String, String)> {
    let text = fs::read_to_string(log).unwrap_or_default();
    let split = |line: &str| {
        let mut parts = line.splitn(3, '\t').map(str::to_owned);
        Some((parts.next()?, parts.next()?, parts.next()?))
    };
    let lines = text.lines().filter_map(split);
    lines.filter(|(name, ..)| name == file).map(|(_, step, how)| (step, how)).collect()
}

fn start_with_faults(rig: &Rig, rules: &str) -> Daemon {
    Daemon::start_with(&rig.home, &rig.config, &[("TIDEGATE_FAULT_FILES", rules)])
}

#[test]
fn a_save_writes_syncs_renames_and_syncs_the_directory_in_this_order_h38() {
    let pair = Pair::start();
    let rig = Rig::new(&pair, 1).with(|config| config.daemon("shards", 1));
    let log = rig.home.path().join("steps");
    rig.write_all(0..100);
    let mut daemon = start_with_faults(&rig, &format!("log={}", log.display()));
    rig.copied(&mut daemon);
    daemon.stop();
    let steps = steps(&log, "mirror.0.state");
    assert!(steps.len() >= 12, "{steps:?}");
    for save in steps.split_inclusive(|(step, _)| step == "sync_dir") {
        let order: Vec<&str> = save.iter().map(|(step, _)| step.as_str()).collect();
        assert_eq!(order, ["open", "write", "sync", "close", "rename", "sync_dir"]);
        assert!(save.iter().all(|(_, how)| how.starts_with("ok")), "{save:?}");
    }
}

#[test]
fn a_failed_fsync_fails_its_save_and_a_new_file_is_written_h38() {
    let pair = Pair::start();
    let rig = Rig::new(&pair, 1).with(|config| config.daemon("shards", 1));
    let log = rig.home.path().join("steps");
    rig.write_all(0..100);
    // The first save goes well, so that there is something to lose.
    let rules = format!("log={};sync:eio:skip=1:times=1", log.display());
    let mut daemon = start_with_faults(&rig, &rules);
    rig.copied(&mut daemon);
    durable(&mut daemon, &rig, 100);
    let failed = daemon.status().expect("status")["shards"][0]["state_save_failures"].clone();
    assert_eq!(number(&failed), 1);
    daemon.kill();
    let steps = steps(&log, "mirror.0.state");
    let at = steps.iter().position(|(step, how)| step == "sync" && !how.starts_with("ok"));
    let after = &steps[at.expect("the injected error") + 1..];
    // Neither renamed nor synced again: the next thing that counts is a new file.
    let next =
        after.iter().map(|(step, _)| step.as_str()).find(|s| *s != "close" && *s != "unlink");
    assert_eq!(next, Some("open"), "{after:?}");
    rig.write_all(100..120);
    let mut daemon = rig.start();
    rig.copied(&mut daemon);
    daemon.stop();
    rig.assert_exact();
}

#[test]
fn a_disk_that_keeps_failing_stops_the_flow_and_says_so_h38() {
    let pair = Pair::start();
    let rig = Rig::new(&pair, 1).with(|config| config.daemon("shards", 1));
    let flag = rig.home.path().join("flag");
    rig.write_all(0..100);
    let rules = format!("sync:eio:while={}", flag.display());
    let mut daemon = start_with_faults(&rig, &rules);
    rig.copied(&mut daemon);
    durable(&mut daemon, &rig, 100);
    fs::write(&flag, "").expect("a flag");
    rig.write_all(100..110);
    rig.reason(&mut daemon, 0, "save_failed");
    // Sends may have gone out before the first failure was known, none after it.
    rig.write_all(110..120);
    let stood_at = rig.down_end(0);
    throughout(Duration::from_millis(500), "nothing flows", || rig.down_end(0) == stood_at);
    assert_eq!(daemon.feed(&rig.topic, 0).expect("a feed")["durable_position"], 100);
    fs::remove_file(&flag).expect("a flag");
    rig.copied(&mut daemon);
    durable(&mut daemon, &rig, 120);
    ready(&mut daemon);
    daemon.stop();
    rig.assert_exact();
}

#[test]
fn a_full_disk_pauses_the_flow_and_ends_by_itself_h39() {
    let pair = Pair::start();
    let rig = Rig::new(&pair, 2).with(|config| config.daemon("shards", 1));
    let flag = rig.home.path().join("flag");
    rig.write_all(0..100);
    let rules = format!("any:enospc:while={}", flag.display());
    let mut daemon = start_with_faults(&rig, &rules);
    rig.copied(&mut daemon);
    durable(&mut daemon, &rig, 100);
    let before = fs::read(rig.home.state_dir().join("mirror.0.state")).expect("a state file");
    fs::write(&flag, "").expect("a flag");
    rig.write_all(100..110);
    for partition in 0..2 {
        let feed = rig.reason(&mut daemon, partition, "disk_full");
        assert_eq!(feed["status"], "Degraded");
    }
    rig.write_all(110..200);
    std::thread::sleep(Duration::from_secs(if soak() { 60 } else { 1 }));
    assert!(rig.down_end(0) < 200 && rig.down_end(1) < 200, "the flow pauses");
    let after = fs::read(rig.home.state_dir().join("mirror.0.state")).expect("a state file");
    assert_eq!(before, after, "the old file stands");
    let shown = show(&rig);
    assert_eq!(number(&shown["sources"][0]["feeds"][0]["position"]), 100, "{shown:#}");
    fs::remove_file(&flag).expect("a flag");
    rig.copied(&mut daemon);
    ready(&mut daemon);
    durable(&mut daemon, &rig, 200);
    daemon.stop();
    rig.assert_exact();
}

#[test]
fn a_kill_on_a_full_disk_loses_and_repeats_nothing_h39() {
    let pair = Pair::start();
    let rig = Rig::new(&pair, 1).with(|config| config.daemon("shards", 1));
    let flag = rig.home.path().join("flag");
    rig.write_all(0..100);
    let mut daemon = start_with_faults(&rig, &format!("any:enospc:while={}", flag.display()));
    rig.copied(&mut daemon);
    durable(&mut daemon, &rig, 100);
    fs::write(&flag, "").expect("a flag");
    rig.write_all(100..150);
    rig.reason(&mut daemon, 0, "disk_full");
    daemon.kill();
    let mut daemon = rig.start();
    rig.copied(&mut daemon);
    daemon.stop();
    rig.assert_exact();
}
