//! The program as a script meets it: exit codes, what goes to which output, and the state
//! commands on real files.

#![allow(clippy::disallowed_methods, reason = "tests own their files, sockets and clock")]

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tidegate::batch::{DeltaPiece, Fingerprint, Gap, Repeat, TopicName};
use tidegate::cli::statedir::StateDir;
use tidegate::shard::driver::child::send_signal;
use tidegate::statefile::inspect::file_name;
use tidegate::statefile::{
    CaptureCounters, CaptureState, Counters, FeedState, LastMessage, LsnGap, RoutedTable,
    SourceState, UnfinishedState, format,
};

/// A configuration and its state directory.
struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        let place = Place { dir: tempfile::tempdir().unwrap() };
        std::fs::create_dir(place.state()).unwrap();
        let text = format!(
            "[daemon]\nstate_dir = {:?}\n[clusters.east]\naddress = \"127.0.0.1:1\"\n\
             username = \"iggy\"\npassword = \"${{env:TIDEGATE_TEST_UNSET}}\"\n\
             [clusters.west]\naddress = \"127.0.0.1:2\"\ntoken = \"hunter2\"\n\
             [sources.orders]\nkind = \"iggy\"\nfrom = \"east\"\nto = \"west\"\n\
             include = [{{ stream = \"orders\", topic = \"events\" }}]\n",
            place.state()
        );
        std::fs::write(place.config(), text).unwrap();
        place
    }

    fn state(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    fn config(&self) -> PathBuf {
        self.dir.path().join("tidegate.toml")
    }

    /// Changes the configuration.
    fn edit(&self, from: &str, to: &str) {
        let text = std::fs::read_to_string(self.config()).unwrap();
        assert!(text.contains(from), "{from:?} is not in the configuration");
        std::fs::write(self.config(), text.replace(from, to)).unwrap();
    }

    fn save(&self, state: &SourceState) -> PathBuf {
        let path = self.state().join(file_name(&state.source, state.shard));
        std::fs::write(&path, format::encode(state)).unwrap();
        path
    }

    /// Names in the state directory, sorted.
    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.state()).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn run(&self, words: &[&str]) -> Ran {
        let config = self.config();
        let config = ["--config", config.to_str().unwrap()];
        tidegate(words.iter().copied().chain(config))
    }
}

struct Ran {
    code: i32,
    out: String,
    err: String,
}

impl Ran {
    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {}", self.out))
    }
}

fn tidegate<'a>(words: impl IntoIterator<Item = &'a str>) -> Ran {
    ran(Command::new(env!("CARGO_BIN_EXE_tidegate")).args(words))
}

fn ran(command: &mut Command) -> Ran {
    let command = command.env_remove("TIDEGATE_TEST_UNSET").stdin(Stdio::null());
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let ran = Ran { code: status.code().expect("no signal"), out: text(stdout), err: text(stderr) };
    assert!(!ran.out.contains("hunter2") && !ran.err.contains("hunter2"), "a secret is shown");
    assert!(!ran.err.contains("panicked"), "{}", ran.err);
    ran
}

fn feed(partition: u32, epoch: u64, sequence: u64, position: u64) -> FeedState {
    let fingerprint = Fingerprint {
        id: 0xabc,
        origin_timestamp: 1_700_000_000_000_000,
        payload_len: 10,
        headers_len: 0,
        hash: 0xfeed,
    };
    FeedState {
        upstream: TopicName::new("orders", "events"),
        downstream: TopicName::new("orders", "events"),
        partition,
        epoch,
        sequence,
        position,
        deltas: vec![
            DeltaPiece { from_upstream: 0, delta: 0 },
            DeltaPiece { from_upstream: 20, delta: -10 },
        ],
        last: Some(LastMessage { offset: position - 1, fingerprint }),
        upstream_created_at: 1,
        downstream_created_at: 2,
        clean_stop: true,
        counters: Counters {
            messages: position - 10,
            bytes: 1000,
            errors: 3,
            resets: 1,
            gaps: 1,
            gap_messages: 10,
        },
        gaps: vec![Gap { first: 10, last: 19, found_at: 1_700_000_000_000_000 }],
        repeats: vec![Repeat { first: 70, last: 74, found_at: 1_700_000_000_000_000 }],
        first_count: Some(4),
    }
}

fn state(shard: u16, generation: u64, feeds: Vec<FeedState>) -> SourceState {
    let saved_at = 1_700_000_000_000_000;
    let (source, captures) = ("orders".into(), Vec::new());
    SourceState { source, shard, generation, saved_at, feeds, captures }
}

#[test]
fn a_wrong_command_line_exits_with_2() {
    let ran = tidegate(["rnu"]);
    assert_eq!(ran.code, 2);
    assert!(ran.out.is_empty() && ran.err.contains("subcommand 'rnu'"), "{}", ran.err);
    let ran = tidegate(["demo", "--json", "--messages", "none"]);
    assert_eq!(ran.code, 2);
    assert!(ran.err.is_empty());
    let error = &ran.json()["error"];
    assert_eq!((&error["kind"], &error["exit"]), (&"usage".into(), &2.into()));
    assert!(error["message"].as_str().unwrap().contains("--messages"));
}

#[test]
fn help_and_version_exit_with_0() {
    for word in ["--help", "--version", "help"] {
        let ran = tidegate([word]);
        assert_eq!((ran.code, ran.err.as_str()), (0, ""));
        assert!(ran.out.contains("tidegate"), "{}", ran.out);
    }
}

#[test]
fn a_refused_configuration_exits_with_2_and_names_every_place() {
    let place = Place::new();
    place.edit("to = \"west\"", "to = \"wset\"\ncolour = 1");
    for command in [&["check", "--offline"][..], &["run"]] {
        let ran = place.run(command);
        assert_eq!(ran.code, 2, "{command:?}");
        for said in [
            "tidegate.toml:6:12: clusters.east.password: environment variable TIDEGATE_TEST_UNSET",
            "tidegate.toml:13:6: sources.orders.to: there is no cluster \"wset\"",
            "tidegate.toml:14:1: sources.orders.colour: unknown key",
        ] {
            assert!(ran.err.contains(said), "{said} not in {}", ran.err);
        }
        assert!(ran.out.is_empty(), "{}", ran.out);
    }
    let ran = place.run(&["check", "--offline", "--json"]);
    assert_eq!((ran.code, ran.err.as_str()), (2, ""));
    let report = ran.json();
    assert_eq!(report["ok"], false);
    let finding = &report["findings"][1];
    assert_eq!((&finding["line"], &finding["column"]), (&13.into(), &6.into()));
    assert_eq!(finding["key"], "sources.orders.to");
    assert!(finding["advice"].as_str().unwrap().contains("\"west\""));
}

#[test]
fn a_missing_configuration_exits_with_2() {
    let place = Place::new();
    std::fs::remove_file(place.config()).unwrap();
    for command in [&["run"][..], &["check"], &["state", "show"]] {
        let ran = place.run(command);
        assert_eq!(ran.code, 2, "{command:?}");
        assert!(ran.err.contains("cannot be read"), "{}", ran.err);
    }
    let ran = place.run(&["state", "show", "--json"]);
    assert_eq!((ran.code, ran.err.as_str()), (2, ""));
    assert!(ran.json()["error"]["findings"][0]["seen"].is_string());
}

#[test]
fn check_finds_nothing_wrong_with_a_good_place() {
    let place = Place::new();
    place.edit("${env:TIDEGATE_TEST_UNSET}", "p");
    place.save(&state(0, 1, vec![feed(0, 0, 1, 100)]));
    let ran = place.run(&["check", "--offline"]);
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    assert!(ran.out.trim_end().ends_with("tidegate.toml: ok"), "{}", ran.out);
    assert_eq!(place.names(), ["orders.0.state"], "check leaves nothing behind");
    let report = place.run(&["check", "--offline", "--json"]).json();
    assert_eq!((&report["ok"], report["findings"].as_array().unwrap().len()), (&true.into(), 0));
}

#[test]
fn check_reports_the_state_directory_and_its_files_with_3() {
    let place = Place::new();
    place.edit("${env:TIDEGATE_TEST_UNSET}", "p");
    place.edit(
        "[sources.orders]",
        "[clusters.spare]\naddress = \"c:1\"\ntoken = \"t\"\n[sources.orders]",
    );
    std::fs::write(place.state().join("orders.0.state"), "").unwrap();
    std::fs::write(place.state().join("other.0.state"), "").unwrap();
    let ran = place.run(&["check", "--offline"]);
    assert_eq!(ran.code, 3);
    assert!(ran.out.contains("orders.0.state: the file is empty"), "{}", ran.out);
    assert!(ran.out.contains("1 finding\n"), "{}", ran.out);
    let report = place.run(&["check", "--offline", "--json"]).json();
    let notes: Vec<_> = report["notes"].as_array().unwrap().iter().collect();
    assert_eq!(notes.len(), 2, "{notes:?}");
    assert_eq!(report["findings"][0]["class"], "state");

    std::fs::remove_dir_all(place.state()).unwrap();
    let ran = place.run(&["check", "--offline"]);
    assert_eq!(ran.code, 3);
    assert!(ran.out.contains("mkdir -p -m 0700"), "{}", ran.out);
}

#[test]
fn show_merges_the_files_of_all_shards() {
    let place = Place::new();
    place.save(&state(0, 7, vec![feed(0, 0, 5, 100), feed(1, 0, 9, 200)]));
    place.save(&state(1, 3, vec![feed(0, 1, 1, 90)]));
    let ran = place.run(&["state", "show"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let row = |partition: &str| {
        let lines = ran.out.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let mut rows = lines.filter(|cells| cells.len() == 10 && cells[0] == partition);
        let row = rows.next().unwrap_or_else(|| panic!("no row {partition}: {}", ran.out));
        assert!(rows.next().is_none(), "one row for a partition: {}", ran.out);
        row.join(" ")
    };
    assert_eq!(row("0"), "0 90 -10 80 3 1 1 10 clean orders/events", "the later epoch wins");
    assert_eq!(row("1"), "1 200 -10 190 3 1 1 10 clean orders/events");
    for said in [
        "generation 7, saved 2023-11-14T22:13:20Z, 2 partitions",
        "orders/events partition 1: gap of 10 messages, offsets 10 to 19, found 2023-11-14",
        "partition 1: copied again: 5 messages, offsets 70 to 74, accepted 2023-11-14",
        "orders/events partition 0: delta -10 from offset 20 on",
    ] {
        assert!(ran.out.contains(said), "{said:?} not in {}", ran.out);
    }
    let report = place.run(&["state", "show", "--json", "orders"]).json();
    let feeds = report["sources"][0]["feeds"].as_array().unwrap();
    assert_eq!(feeds.len(), 2);
    assert_eq!((&feeds[0]["position"], &feeds[0]["epoch"]), (&90.into(), &1.into()));
    assert_eq!(feeds[0]["last"]["id"], "00000000000000000000000000000abc");
    assert_eq!(feeds[1]["gaps"][0]["messages"], 10);
    assert_eq!(feeds[1]["repeats"][0]["messages"], 5);
}

fn capture() -> CaptureState {
    CaptureState {
        slot: "tidegate_shop".into(),
        database: "shop".into(),
        decoder: "pgoutput".into(),
        publication: "tidegate_shop".into(),
        epoch: 1,
        sequence: 5,
        system_id: 7_523_190_467_211_098_765,
        timeline: 2,
        end_lsn: 0x16_b374_d848,
        unfinished: Some(UnfinishedState {
            final_lsn: 0x16_b375_0000,
            xid: 815,
            ordinal: 200,
            config_hash: 1,
        }),
        clean_stop: true,
        counters: CaptureCounters { messages: 4_711, gaps: 1, ..CaptureCounters::default() },
        gaps: vec![LsnGap {
            first: 0x10,
            last: 0x20,
            found_at: 1_700_000_000_000_000,
            why: "slot \"tidegate_shop\" was gone".into(),
        }],
        last_abandon_at: 0,
        routed: vec![RoutedTable {
            schema: "public".into(),
            name: "orders".into(),
            columns: vec!["tenant".into()],
        }],
    }
}

#[test]
fn show_prints_captures_with_positions_as_postgres_writes_them() {
    let place = Place::new();
    place.save(&SourceState { captures: vec![capture()], ..state(0, 7, Vec::new()) });
    let ran = place.run(&["state", "show"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    for said in [
        "generation 7, saved 2023-11-14T22:13:20Z, 1 replication slot\n",
        "tidegate_shop  16/B374D848",
        "shop, system 7523190467211098765",
        "tidegate_shop: 200 rows of transaction 815, committed at 16/B3750000, are done",
        "tidegate_shop: public.orders is routed by tenant",
        "gap of 16 bytes of log, 0/10 to 0/20, found 2023-11-14T22:13:20Z: slot",
    ] {
        assert!(ran.out.contains(said), "{said:?} not in {}", ran.out);
    }
    let report = place.run(&["state", "show", "--json"]).json();
    let capture = &report["sources"][0]["captures"][0];
    assert_eq!(capture["position"], "16/B374D848");
    assert_eq!(capture["counters"]["messages"], 4_711);
}

#[test]
fn reset_of_a_capture_says_where_the_next_start_begins() {
    let place = Place::new();
    place.save(&SourceState { captures: vec![capture()], ..state(0, 7, Vec::new()) });
    let ran = place.run(&["state", "reset", "--source", "orders", "--yes"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.out.contains("where the replication slot was confirmed"), "{}", ran.out);
    assert!(!ran.out.contains("initial_offset"), "{}", ran.out);
    assert!(!place.names().contains(&"orders.0.state".to_owned()), "{:?}", place.names());
}

#[test]
fn show_says_when_there_is_nothing() {
    let place = Place::new();
    let ran = place.run(&["state", "show"]);
    assert_eq!(ran.code, 0);
    assert!(ran.out.contains("no saved positions"), "{}", ran.out);
    let ran = place.run(&["state", "show", "oders"]);
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains("expected one of orders"), "{}", ran.err);
}

#[test]
fn show_reports_broken_files_beside_good_ones_with_3() {
    let place = Place::new();
    place.save(&state(0, 7, vec![feed(0, 0, 5, 100)]));
    let broken = place.save(&state(1, 8, vec![feed(1, 0, 5, 100)]));
    let mut bytes = std::fs::read(&broken).unwrap();
    bytes[100] ^= 1;
    std::fs::write(&broken, &bytes).unwrap();
    let ran = place.run(&["state", "show"]);
    assert_eq!(ran.code, 3);
    assert!(ran.out.contains("orders.1.state: body checksum"), "{}", ran.out);
    assert!(ran.out.contains("generation 7"), "{}", ran.out);
}

#[test]
fn show_works_beside_a_daemon() {
    let place = Place::new();
    place.save(&state(0, 7, vec![feed(0, 0, 5, 100)]));
    let _daemon = StateDir::open(&place.state()).unwrap();
    assert_eq!(place.run(&["state", "show"]).code, 0);
}

#[test]
fn reset_refuses_without_a_terminal_or_yes() {
    let place = Place::new();
    place.save(&state(0, 7, vec![feed(0, 0, 5, 100)]));
    let ran = place.run(&["state", "reset", "--source", "orders"]);
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains("--yes"), "{}", ran.err);
    assert_eq!(place.names(), ["lock", "orders.0.state"]);
}

#[test]
fn reset_refuses_while_a_daemon_holds_the_directory() {
    let place = Place::new();
    place.save(&state(0, 7, vec![feed(0, 0, 5, 100)]));
    let _daemon = StateDir::open(&place.state()).unwrap();
    let ran = place.run(&["state", "reset", "--source", "orders", "--yes", "--json"]);
    assert_eq!(ran.code, 3);
    let message = ran.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains(&format!("process {}", std::process::id())), "{message}");
    assert_eq!(place.names(), ["lock", "orders.0.state"]);
}

#[test]
fn reset_sets_the_files_of_one_source_aside_and_deletes_nothing() {
    let place = Place::new();
    let kept = std::fs::read(place.save(&state(0, 7, vec![feed(0, 0, 5, 100)]))).unwrap();
    std::fs::write(place.state().join("orders.1.state"), "broken").unwrap();
    std::fs::write(place.state().join("orders-2.0.state"), "another source").unwrap();
    let ran = place.run(&["state", "reset", "--source", "orders", "--yes", "--json"]);
    assert_eq!(ran.code, 0, "{}", ran.out);
    let report = ran.json();
    let moved = report["set_aside"].as_array().unwrap();
    assert_eq!(moved.len(), 2);
    let to = Path::new(moved[0]["to"].as_str().unwrap());
    assert_eq!(std::fs::read(to).unwrap(), kept);
    let names = place.names();
    assert_eq!(names.len(), 4, "{names:?}");
    assert!(names.contains(&"orders-2.0.state".to_owned()));
    assert!(names.iter().filter(|name| name.contains(".state.aside-")).count() == 2);

    let ran = place.run(&["state", "reset", "--source", "orders", "--yes"]);
    assert_eq!(ran.code, 0);
    assert!(ran.out.contains("no saved positions"), "{}", ran.out);
}

#[test]
fn reset_refuses_an_unknown_source_with_2() {
    let place = Place::new();
    let ran = place.run(&["state", "reset", "--source", "../orders", "--yes"]);
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains("expected one of orders"), "{}", ran.err);
}

#[test]
fn reset_of_a_partition_leaves_every_other_entry_as_it_was() {
    let place = Place::new();
    let audit = FeedState { upstream: TopicName::new("orders", "audit"), ..feed(1, 0, 2, 50) };
    let untouched = std::fs::read(place.save(&state(2, 4, vec![feed(2, 0, 5, 70)]))).unwrap();
    place.save(&state(0, 7, vec![feed(0, 0, 5, 100), feed(1, 0, 9, 200)]));
    // An older entry of the same partition must not come back in its place.
    place.save(&state(1, 3, vec![feed(1, 0, 1, 90), audit.clone()]));
    let which = ["--topic", "orders/events", "--partition", "1"];
    let reset = ["state", "reset", "--source", "orders", "--yes"];
    let ran = place.run(&[&reset[..], &which, &["--json"]].concat());
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    let report = ran.json();
    let removed = report["removed"].as_array().unwrap();
    assert_eq!(removed.len(), 2);
    assert_eq!((&removed[0]["partition"], &removed[0]["position"]), (&1.into(), &200.into()));
    assert_eq!(removed[1]["upstream"]["topic"], "events");
    assert!(removed[1]["file"].as_str().unwrap().ends_with("orders.1.state"));

    assert_eq!(place.names(), ["lock", "orders.0.state", "orders.1.state", "orders.2.state"]);
    let read = |shard: u16| std::fs::read(place.state().join(file_name("orders", shard))).unwrap();
    let decoded = |shard| format::decode(&read(shard), "a file").unwrap();
    assert_eq!((decoded(0).generation, decoded(0).feeds), (8, vec![feed(0, 0, 5, 100)]));
    assert_eq!((decoded(1).generation, decoded(1).feeds), (4, vec![audit]));
    assert_eq!(read(2), untouched);

    let ran = place.run(&[&reset[..], &["--topic", "orders/events"]].concat());
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    assert!(ran.out.contains("removed orders/events partition 2, position 70"), "{}", ran.out);
    assert_eq!((decoded(0).feeds, decoded(1).feeds.len(), decoded(2).feeds), (vec![], 1, vec![]));
    assert_eq!(place.run(&["state", "show"]).code, 0);
}

#[test]
fn reset_of_a_partition_that_is_not_saved_changes_nothing() {
    let place = Place::new();
    let kept = std::fs::read(place.save(&state(0, 7, vec![feed(0, 0, 5, 100)]))).unwrap();
    for which in
        [&["--topic", "orders/event"][..], &["--topic", "orders/events", "--partition", "1"]]
    {
        let ran = place.run(&[&["state", "reset", "--source", "orders", "--yes"], which].concat());
        assert_eq!(ran.code, 2, "{}", ran.err);
        assert!(ran.err.contains("saved are: orders/events partition 0"), "{}", ran.err);
    }
    let which = ["state", "reset", "--source", "orders", "--topic", "orders/events"];
    assert_eq!(place.run(&which).code, 2, "nobody was asked");
    std::fs::write(place.state().join("orders.1.state"), "broken").unwrap();
    let ran = place.run(&[&which[..], &["--yes"]].concat());
    assert_eq!(ran.code, 3, "a file that may hold the entry is unreadable");
    assert!(ran.err.contains("orders.1.state"), "{}", ran.err);
    assert_eq!(std::fs::read(place.state().join("orders.0.state")).unwrap(), kept);
}

#[test]
fn run_refuses_a_driver_that_does_not_exist_with_2() {
    let place = Place::new();
    place.edit("${env:TIDEGATE_TEST_UNSET}", "p");
    for value in ["epol", ""] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(["run", "--config"]).arg(place.config()).env("TIDEGATE_IO_DRIVER", value);
        let ran = ran(&mut command);
        assert_eq!(ran.code, 2, "{}", ran.err);
        assert!(ran.err.contains(&format!("TIDEGATE_IO_DRIVER is {value:?}")), "{}", ran.err);
        assert!(place.names().is_empty(), "nothing was touched");
    }
}

#[test]
fn run_refuses_a_limit_of_open_files_that_is_too_low_with_2() {
    let place = Place::new();
    place.edit("${env:TIDEGATE_TEST_UNSET}", "p");
    let mut command = Command::new("sh");
    let script = "ulimit -n 12 && exec \"$0\" run --config \"$1\"";
    command.args(["-c", script, env!("CARGO_BIN_EXE_tidegate")]).arg(place.config());
    let ran = ran(&mut command);
    assert_eq!(ran.code, 2, "{}", ran.err);
    assert!(ran.err.contains("at most 12 open files") && ran.err.contains("128"), "{}", ran.err);
    assert!(place.names().is_empty(), "nothing was touched");
}

/// A daemon whose clusters do not answer, and its log up to "started".
fn daemon(script: &str, place: &Place) -> (std::process::Child, String, impl BufRead + use<>) {
    place.edit("${env:TIDEGATE_TEST_UNSET}", "p");
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_tidegate")]).arg(place.config());
    let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap());
    let mut text = String::new();
    while !text.contains("\"started\"") {
        assert!(log.read_line(&mut text).unwrap() > 0, "ended before it started: {text}");
    }
    (child, text, log)
}

#[test]
fn run_raises_the_soft_limit_of_open_files_to_the_hard_one() {
    let place = Place::new();
    let script = "ulimit -Sn 20 && ulimit -Hn 300 && exec \"$0\" run --config \"$1\"";
    let (mut child, text, mut log) = daemon(script, &place);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", child.id())).unwrap();
    send_signal(child.id(), libc::SIGTERM).unwrap();
    log.read_to_string(&mut String::new()).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert_eq!(line.split_whitespace().nth(3), Some("300"), "{line}");
    assert!(text.contains("\"open_files\":300"), "{text}");
}

#[test]
fn a_hangup_does_not_end_the_daemon() {
    let place = Place::new();
    let (mut child, _, mut log) = daemon("exec \"$0\" run --config \"$1\"", &place);
    // Of two pending signals the kernel delivers the lower number first: SIGHUP.
    send_signal(child.id(), libc::SIGHUP).unwrap();
    send_signal(child.id(), libc::SIGTERM).unwrap();
    let mut rest = String::new();
    log.read_to_string(&mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{rest}");
}
