//! What the binary refuses at start, with which words and exit codes. The finer points of the
//! file are tested where it is read.

use std::process::Command;
use std::time::Duration;

use tidegate::batch::TopicName;
use tidegate::cli::demo::process::Process;

use super::support::{Daemon, Home, Loopbacks, Pair};
use super::{Rig, loopbacks, ready};

/// Starts `tidegate run` with this text as its configuration.
pub fn start_with_text(home: &Home, config: &str) -> Daemon {
    std::fs::write(home.config_file(), config).expect("a configuration file");
    Daemon::start_written(home, &[])
}

/// Starts a daemon that must end by itself: exit code and all it wrote.
#[track_caller]
fn refused(home: &Home, config: &str) -> (i32, String) {
    std::fs::write(home.config_file(), config).expect("a configuration file");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.arg("run").arg("--config").arg(home.config_file());
    let mut process = Process::spawn(command).expect("the binary");
    let ended = process.wait(Duration::from_secs(20)).expect("it ends by itself");
    process.kill();
    let said = process.lines().join("\n");
    assert!(!said.contains("panicked"), "{said}");
    (ended.status.code().expect("no signal"), said)
}

fn rig() -> Rig {
    Rig::without_topic(&Pair::start(), 1)
}

#[test]
fn a_wrong_configuration_ends_with_2_and_names_line_and_remedy() {
    let rig = rig();
    let good = rig.config.text(&rig.home);
    let back = format!(
        "\n[sources.back]\nkind = \"iggy\"\nfrom = \"down\"\nto = \"up\"\n\
         include = [ {{ stream = {:?}, topic = {:?} }} ]\n",
        rig.topic.stream, rig.topic.topic
    );
    let cases = [
        (
            good.replace("[sources.mirror]\n", "[sources.mirror]\ninital_offset = 3\n"),
            &["sources.mirror.inital_offset: unknown key", "initial_offset"][..],
        ),
        (
            good.replace("to = \"down\"", "to = \"dwn\""),
            &["sources.mirror.to: there is no cluster \"dwn\"", "\"down\""],
        ),
        (format!("{good}{back}"), &["comes back by", "one direction for one topic"]),
        (
            good.replacen("password = \"iggy\"", "password = \"${file:/nowhere/secret}\"", 1),
            &["clusters.up.password", "/nowhere/secret"],
        ),
        (
            good.replacen("password = \"iggy\"", "password = \"${env:TIDEGATE_E2E_UNSET}\"", 1),
            &["clusters.up.password: environment variable TIDEGATE_E2E_UNSET"],
        ),
        (good.replace("kind = \"iggy\"", "kind = 7"), &["sources.mirror.kind"]),
        ("not toml at all".to_owned(), &["tidegate.toml:1:"]),
    ];
    for (config, words) in cases {
        assert_ne!(config, good);
        let (code, said) = refused(&rig.home, &config);
        assert_eq!(code, 2, "{said}");
        for word in words.iter().chain(&["tidegate.toml:"]) {
            assert!(said.contains(word), "{word:?} is not in {said}");
        }
    }
    let names = std::fs::read_dir(rig.home.state_dir()).expect("a directory").count();
    assert_eq!(names, 0, "a refused start leaves nothing behind");
}

#[test]
fn a_topic_onto_itself_is_refused_with_2() {
    let Some(brokers) = Loopbacks::start("a_topic_onto_itself_is_refused_with_2") else { return };
    let address = brokers.pair.up.address();
    let same = address.replace("127.0.0.1", "localhost");
    let topic = TopicName::new("s", "t");
    let config = super::support::Config::between(&address, same).topic(&topic);
    let home = Home::new();
    let (code, said) = refused(&home, &config.text(&home));
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("s/t would be copied onto itself"), "{said}");
}

#[test]
fn a_state_dir_that_cannot_be_used_ends_with_3() {
    let rig = rig();
    let config = rig.config.text(&rig.home);
    std::fs::remove_dir(rig.home.state_dir()).expect("an empty directory");
    let (code, said) = refused(&rig.home, &config);
    assert_eq!(code, 3, "{said}");
    assert!(said.contains("does not exist") && said.contains("mkdir -p -m 0700"), "{said}");
    assert!(!rig.home.state_dir().exists(), "a missing mount must not be papered over");

    std::fs::write(rig.home.state_dir(), "").expect("a file");
    let (code, said) = refused(&rig.home, &config);
    assert_eq!(code, 3, "{said}");
    assert!(said.contains("is not a directory"), "{said}");
}

#[test]
fn a_second_daemon_on_a_state_dir_ends_with_3_and_names_the_first() {
    let test = "a_second_daemon_on_a_state_dir_ends_with_3_and_names_the_first";
    let Some(brokers) = loopbacks(test) else { return };
    let rig = Rig::new(&brokers.pair, 1);
    rig.write_all(0..20);
    let mut daemon = rig.start();
    ready(&mut daemon);
    let (code, said) = refused(&rig.home, &rig.config.text(&rig.home));
    assert_eq!(code, 3, "{said}");
    assert!(said.contains(&format!("in use by process {}", daemon.id())), "{said}");
    rig.copied(&mut daemon);
    // The kernel lets go of it, however a daemon ends.
    daemon.kill();
    let mut daemon = rig.start();
    ready(&mut daemon);
    daemon.stop();
    rig.assert_exact();
}

#[test]
fn an_admin_address_that_is_taken_ends_with_2_and_names_it() {
    let rig = rig();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken_at = taken.local_addr().expect("bound").to_string();
    let config = rig.config.text(&rig.home);
    let listen = config.lines().find(|line| line.starts_with("listen")).expect("a line");
    let (code, said) =
        refused(&rig.home, &config.replace(listen, &format!("listen = {taken_at:?}")));
    assert_eq!(code, 2, "{said}");
    assert!(said.contains(&taken_at), "{said}");
}

#[test]
fn more_shards_than_cpus_and_too_small_buffers_end_with_2() {
    let rig = rig();
    for (shards, bytes, words) in
        [(1_024, "64GiB", "affinity mask allows only"), (1, "4MiB", "max_buffered_bytes")]
    {
        let config = rig.config.clone().daemon("shards", shards);
        let config = config.daemon("max_buffered_bytes", bytes).text(&rig.home);
        let (code, said) = refused(&rig.home, &config);
        assert_eq!(code, 2, "{said}");
        assert!(said.contains(words), "{said}");
    }
}
