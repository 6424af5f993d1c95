//! State files that are not what a daemon wrote, and the operator's ways out.

use std::fs;
use std::path::{Path, PathBuf};

use twox_hash::XxHash3_64;

use super::support::{Pair, eventually, unique_topic, when};
use super::{Rig, each, limit, number, ready, source, text, write};
use tidegate::batch::TopicName;

/// What happened to a state file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Damage {
    Empty,
    Cut,
    Longer,
    FlippedBit,
    NewerVersion,
    /// The file of another source under this one's name.
    OtherIdentity,
    /// Cannot be read at all. A directory in its place: permissions do not stop root.
    Unreadable,
}

const DAMAGES: [(Damage, &str); 7] = [
    (Damage::Empty, "the file is empty"),
    (Damage::Cut, "cut: "),
    (Damage::Longer, "longer than it says"),
    (Damage::FlippedBit, "body checksum"),
    (Damage::NewerVersion, "format version 4, this program reads versions 1 to 3"),
    (Damage::OtherIdentity, "\"other\""),
    (Damage::Unreadable, "not a regular file"),
];

/// Two sources, copied and stopped in order; the second one's topic comes along.
fn saved(pair: &Pair) -> (Rig, TopicName) {
    let other = unique_topic("e2e");
    let rig = Rig::new(pair, 2);
    let rig = rig.with(|config| config.daemon("shards", 1).second_source("other", &other));
    pair.up.create_topic(&other, 1);
    rig.write_all(0..50);
    write(&*pair.up, &other, &rig.workload, 0, 0..20);
    let mut daemon = rig.start();
    rig.copied(&mut daemon);
    eventually(limit(), "the other source", || when(pair.down.end(&other, 0) == 20));
    daemon.stop();
    (rig, other)
}

fn file(rig: &Rig, source: &str) -> PathBuf {
    rig.home.state_dir().join(format!("{source}.0.state"))
}

fn damage(rig: &Rig, damage: Damage) -> PathBuf {
    let path = file(rig, "mirror");
    let mut bytes = fs::read(&path).expect("a state file");
    match damage {
        Damage::Empty => bytes.clear(),
        Damage::Cut => bytes.truncate(bytes.len() - 1),
        Damage::Longer => bytes.push(0),
        Damage::FlippedBit => bytes[100] ^= 0x10,
        Damage::NewerVersion => {
            bytes[8] = 4;
            let sum = XxHash3_64::oneshot(&bytes[..56]);
            bytes[56..64].copy_from_slice(&sum.to_le_bytes());
        }
        Damage::OtherIdentity => bytes = fs::read(file(rig, "other")).expect("a state file"),
        Damage::Unreadable => {
            fs::remove_file(&path).expect("a file");
            fs::create_dir(&path).expect("a directory");
            return path;
        }
    }
    fs::write(&path, bytes).expect("written");
    path
}

fn content(path: &Path) -> Option<Vec<u8>> {
    fs::read(path).ok()
}

#[test]
fn a_damaged_file_stops_its_source_alone_and_is_left_as_it_is() {
    let pair = Pair::start();
    each(&DAMAGES, |(kind, words)| {
        let (rig, other) = saved(&pair);
        let path = damage(&rig, *kind);
        let before = content(&path);
        rig.write_all(50..60);
        write(&*pair.up, &other, &rig.workload, 0, 20..30);
        let mut daemon = rig.start();
        let shown = rig.source_reason(&mut daemon, "state_unreadable");
        assert_eq!(shown["status"], "Error");
        let detail = text(&shown["detail"]);
        assert!(detail.contains(&path.display().to_string()), "{detail}");
        assert!(detail.contains(words), "{words:?}: {detail}");
        eventually(limit(), "the other source", || when(pair.down.end(&other, 0) == 30));
        eventually(limit(), "the other source to run", || {
            source(&daemon, "other").filter(|other| other["status"] == "Running")
        });
        assert_eq!((rig.down_end(0), rig.down_end(1)), (50, 50), "nothing starts afresh");
        daemon.stop();
        assert_eq!(content(&path), before, "{kind:?}: the file is evidence");
        let names = names(&rig);
        assert!(!names.iter().any(|name| name.contains("aside")), "{names:?}");
    });
}

/// Names in the state directory.
fn names(rig: &Rig) -> Vec<String> {
    let entries = fs::read_dir(rig.home.state_dir()).expect("a directory");
    let mut names: Vec<String> =
        entries.map(|e| e.expect("an entry").file_name().into_string().expect("text")).collect();
    names.sort();
    names
}

#[test]
fn show_reports_a_damaged_file_and_reset_sets_it_aside() {
    let pair = Pair::start();
    let (rig, _) = saved(&pair);
    let path = damage(&rig, Damage::FlippedBit);
    let evidence = content(&path);
    let config = rig.home.config_file().display().to_string();
    let (code, out, _) = rig.home.run(&["state", "show", "--config", &config]);
    assert_eq!(code, 3, "{out}");
    assert!(out.contains(&path.display().to_string()) && out.contains("body checksum"), "{out}");
    assert!(out.contains("other.0.state: generation"), "the good one is shown too: {out}");

    let words = ["state", "reset", "--source", "mirror", "--config", &config];
    let (code, _, err) = rig.home.run(&words);
    assert_eq!(code, 2, "nobody can be asked: {err}");
    assert_eq!(content(&path), evidence);
    let (code, out, err) = rig.home.run(&[&words[..], &["--yes", "--json"]].concat());
    assert_eq!(code, 0, "{err}");
    let moved: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    let aside = PathBuf::from(text(&moved["set_aside"][0]["to"]));
    assert_eq!((content(&aside), path.exists()), (evidence, false));

    // Without a position a filled destination is not appended to by itself.
    let mut daemon = rig.start();
    rig.reason(&mut daemon, 0, "nonempty_destination");
    daemon.stop();
    assert_eq!(rig.down_end(0), 50);
    // Emptied, it is copied anew.
    pair.down.delete_stream(&rig.topic.stream);
    let mut daemon = rig.start();
    rig.copied(&mut daemon);
    ready(&mut daemon);
    daemon.stop();
    rig.assert_exact();
}

#[test]
fn reset_is_refused_while_a_daemon_runs() {
    let pair = Pair::start();
    let rig = Rig::new(&pair, 1);
    rig.write_all(0..10);
    let mut daemon = rig.start();
    rig.copied(&mut daemon);
    let config = rig.home.config_file().display().to_string();
    let words = ["state", "reset", "--source", "mirror", "--yes", "--config", &config];
    let (code, _, err) = rig.home.run(&words);
    assert_eq!(code, 3, "{err}");
    assert!(err.contains(&format!("process {}", daemon.id())), "{err}");
    let (code, out, _) = rig.home.run(&["state", "show", "--config", &config]);
    assert_eq!(code, 0, "{out}");
    daemon.stop();
    let mut daemon = rig.start();
    ready(&mut daemon);
    daemon.stop();
    rig.assert_exact();
}

#[test]
fn a_damaged_file_is_set_aside_and_the_source_starts_as_new_when_told_so() {
    let pair = Pair::start();
    each(&DAMAGES, |(kind, _)| {
        let (rig, _) = saved(&pair);
        let rig = rig.with(|config| config.source("on_corrupt_state", "reset"));
        let path = damage(&rig, *kind);
        let evidence = content(&path);
        pair.down.delete_stream(&rig.topic.stream);
        let mut daemon = rig.start();
        rig.copied(&mut daemon);
        ready(&mut daemon);
        let lines = daemon.lines();
        assert!(lines.iter().any(|line| line.contains("set aside")), "{}", lines.join("\n"));
        daemon.stop();
        rig.assert_exact();
        let names = names(&rig);
        let aside: Vec<_> =
            names.iter().filter(|name| name.starts_with("mirror.0.state.aside-")).collect();
        assert_eq!(aside.len(), 1, "{names:?}");
        assert_eq!(content(&rig.home.state_dir().join(aside[0])), evidence, "{kind:?}");
        // The new file is a good one.
        let mut daemon = rig.start();
        rig.reason(&mut daemon, 0, "");
        daemon.stop();
        rig.assert_exact();
    });
}

#[test]
fn a_stale_temp_file_is_never_read_and_never_in_the_way() {
    let pair = Pair::start();
    let (rig, _) = saved(&pair);
    let good = fs::read(file(&rig, "mirror")).expect("a state file");
    for stale in [&b""[..], &good[..100], &good] {
        let temp = rig.home.state_dir().join("mirror.0.state.tmp");
        fs::write(&temp, stale).expect("written");
        let before = rig.up_end(0);
        rig.write_all(before..before + 10);
        let mut daemon = rig.start();
        rig.copied(&mut daemon);
        ready(&mut daemon);
        daemon.stop();
        assert!(!temp.exists(), "replaced by the next save");
        rig.assert_exact();
    }
    let config = rig.home.config_file().display().to_string();
    let (code, out, _) = rig.home.run(&["state", "show", "--json", "--config", &config]);
    assert_eq!(code, 0, "{out}");
    let shown: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(number(&shown["sources"][0]["feeds"][0]["position"]), 80, "{shown:#}");
}

#[test]
fn a_restart_of_a_source_whose_state_cannot_be_read_is_refused_with_what_to_do() {
    let pair = Pair::start();
    let (rig, _) = saved(&pair);
    damage(&rig, Damage::Cut);
    let mut daemon = rig.start();
    rig.source_reason(&mut daemon, "state_unreadable");
    let (code, body) = daemon.order("/sources/mirror/restart").expect("an answer");
    assert_eq!(code, 409, "{body}");
    for words in ["cut: ", "tidegate state rebuild", "when the daemon starts"] {
        assert!(body.contains(words), "{words:?}: {body}");
    }
    assert_eq!(daemon.order("/sources/other/restart").expect("an answer").0, 200);
    let (code, body) = daemon.order("/sources/mirror/resume").expect("an answer");
    assert!(code == 200 && body.contains("it does not run"), "{body}");
    daemon.stop();
}
