//! `tidegate check` against clusters: every finding names what it is about, what was seen, what
//! would be right and what to do, and the exit code says whose affair it is.
#![allow(clippy::disallowed_methods)] // files and processes

mod support;

use std::time::Duration;

use serde_json::Value;
use support::{
    Cluster, Config, Daemon, Home, Loopbacks, Proxy, Workload, eventually, unique_topic, when,
};
use tidegate::batch::TopicName;
use tidegate::loopback::{Flavour, Server, ServerOptions};

const SECONDS: Duration = Duration::from_secs(20);

/// What a check said.
struct Checked {
    code: i32,
    report: Value,
}

impl Checked {
    fn of(home: &Home, config: &Config) -> Checked {
        Checked::of_text(home, &config.text(home))
    }

    fn of_text(home: &Home, config: &str) -> Checked {
        std::fs::write(home.config_file(), config).expect("a configuration file");
        let file = home.config_file().display().to_string();
        let (code, out, err) = home.run(&["check", "--json", "--config", &file]);
        let report = serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out}{err}"));
        Checked { code, report }
    }

    fn list(&self, list: &str) -> &Vec<Value> {
        self.report[list].as_array().expect("a list")
    }

    /// The only thing that is wrong; what it is about, was seen, is expected and to be done.
    #[track_caller]
    fn only(&self, code: i32) -> [String; 4] {
        let list = self.list("findings");
        assert_eq!((self.code, list.len()), (code, 1), "{:#}", self.report);
        assert_eq!(self.report["ok"], false);
        let text = |key: &str| list[0][key].as_str().expect("text").to_owned();
        let all = ["subject", "seen", "expected", "advice"].map(text);
        assert!(all.iter().all(|part| !part.is_empty()), "{all:?}");
        all
    }

    /// Nothing is wrong, and this note is there.
    #[track_caller]
    fn notes(&self, words: &str) {
        assert_eq!((self.code, self.list("findings").len()), (0, 0), "{:#}", self.report);
        let mut notes = self.list("notes").iter().filter_map(|note| note["seen"].as_str());
        assert!(notes.any(|seen| seen.contains(words)), "{words:?}: {:#}", self.report);
    }

    /// Nothing to say at all.
    #[track_caller]
    fn silent(&self) {
        let all = self.list("findings").len() + self.list("notes").len();
        assert_eq!((self.code, all), (0, 0), "{:#}", self.report);
    }
}

/// A topic upstream with messages in partition 0.
fn topic(cluster: &dyn Cluster, partitions: u32, messages: u64) -> TopicName {
    let name = unique_topic("check");
    cluster.create_topic(&name, partitions);
    fill(cluster, &name, messages);
    name
}

fn fill(cluster: &dyn Cluster, topic: &TopicName, messages: u64) {
    let workload = Workload::new(3);
    let batch: Vec<_> = (0..messages).map(|number| workload.message(0, number, 1_000)).collect();
    if !batch.is_empty() {
        cluster.append(topic, 0, &batch);
    }
}

/// Runs a daemon until everything is copied, then stops it in order.
fn copied(home: &Home, config: &Config, up: &dyn Cluster, down: &dyn Cluster, topic: &TopicName) {
    let daemon = Daemon::start(home, config);
    eventually(SECONDS, "the copy", || when(down.end(topic, 0) == up.end(topic, 0)));
    daemon.stop();
}

#[test]
fn a_good_place_is_ok_and_says_what_a_start_will_create() {
    let Some(brokers) = Loopbacks::start("a good place") else { return };
    let (home, up, down) = (Home::new(), &*brokers.pair.up, &*brokers.pair.down);
    let topic = topic(up, 3, 10);
    let config = Config::new(&brokers.pair).topic(&topic);
    Checked::of(&home, &config).notes("it will be created, partitions: 3 (auto_create)");
    assert!(down.topic(&topic).is_none(), "a check creates nothing");
    copied(&home, &config, up, down, &topic);
    Checked::of(&home, &config).silent();
    let file = home.config_file().display().to_string();
    let (code, out, _) = home.run(&["check", "--config", &file]);
    assert_eq!((code, out), (0, format!("{file}: ok\n")));
}

#[test]
fn a_cluster_that_cannot_be_used_exits_with_4_and_says_why() {
    let Some(brokers) = Loopbacks::start("a cluster that cannot be used") else { return };
    let (home, up) = (Home::new(), &*brokers.pair.up);
    let topic = topic(up, 1, 0);
    let to = |address: &str| Config::between(up.address(), address).topic(&topic);

    // Bound and not listening: nobody else can take the port.
    let closed =
        socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
    let any: std::net::SocketAddr = "127.0.0.1:0".parse().expect("an address");
    closed.bind(&any.into()).expect("a port");
    let closed_at = closed.local_addr().expect("bound").as_socket().expect("IPv4").to_string();
    let [subject, seen, _, advice] = Checked::of(&home, &to(&closed_at)).only(4);
    assert_eq!(subject, "clusters.down");
    assert!(seen.contains(&format!("{closed_at} cannot be reached")), "{seen}");
    assert!(advice.contains("start the cluster or correct its address"), "{advice}");

    let [_, seen, _, advice] = Checked::of(&home, &to("no-such-host.invalid:8090")).only(4);
    assert!(seen.contains("no-such-host.invalid:8090 does not resolve"), "{seen}");
    assert!(advice.contains("name service"), "{advice}");

    let config = Config::new(&brokers.pair).topic(&topic).text(&home);
    let (head, tail) = config.rsplit_once("password = \"iggy\"").expect("the last password");
    let config = format!("{head}password = \"hunter2\"{tail}");
    let checked = Checked::of_text(&home, &config);
    let [subject, seen, _, advice] = checked.only(4);
    assert_eq!(subject, "clusters.down");
    assert!(seen.contains("refused the login: invalid credentials"), "{seen}");
    assert!(advice.contains("correct username and password"), "{advice}");
    assert!(!checked.report.to_string().contains("hunter2"), "a secret is shown");

    let options = ServerOptions { version: "0.10.1".to_owned(), ..ServerOptions::default() };
    let newer = Server::start(options).expect("a broker");
    let config = to(&newer.address().to_string());
    Checked::of(&home, &config).notes("it will be created");
    let [_, seen, expected, _] =
        Checked::of(&home, &config.down("allow_untested_server", false)).only(4);
    assert!(seen.contains("runs version 0.10.1"), "{seen}");
    assert_eq!(expected, "version 0.9.x");
}

#[test]
fn of_several_addresses_one_has_to_answer() {
    let Some(brokers) = Loopbacks::start("several addresses") else { return };
    let (home, up, down) = (Home::new(), &*brokers.pair.up, &*brokers.pair.down);
    let topic = topic(up, 1, 0);
    let config = Config::new(&brokers.pair).topic(&topic).text(&home);
    let several = |first: &str, second: &str| {
        let one = format!("address = {:?}", down.address());
        assert!(config.contains(&one));
        config.replace(&one, &format!("addresses = [{first:?}, {second:?}]"))
    };
    let dead = "no-such-host.invalid:1";
    for config in [several(dead, &down.address()), several(&down.address(), dead)] {
        Checked::of_text(&home, &config).notes("another address of the cluster answers");
    }
    let checked = Checked::of_text(&home, &several(dead, "no-such-host.invalid:2"));
    assert_eq!((checked.code, checked.list("findings").len()), (4, 2), "{:#}", checked.report);
}

#[test]
fn a_missing_upstream_topic_is_judged_by_its_policy() {
    let Some(brokers) = Loopbacks::start("a missing upstream topic") else { return };
    let home = Home::new();
    let topic = unique_topic("check");
    let config = Config::new(&brokers.pair).topic(&topic);
    for (policy, said) in [("wait", "waits for it"), ("fail", "stop with missing_upstream")] {
        let config = config.clone().source("on_missing_upstream", policy);
        let [subject, seen, _, advice] = Checked::of(&home, &config).only(1);
        assert_eq!(subject, format!("sources.mirror: {topic}"));
        assert_eq!(seen, "does not exist on cluster up");
        assert!(advice.contains(said), "{advice}");
    }
    let config = config.source("on_missing_upstream", "create");
    Checked::of(&home, &config).notes("it will be created with one partition");
}

#[test]
fn a_destination_that_auto_create_would_mend_is_a_note_and_else_a_finding() {
    let Some(brokers) = Loopbacks::start("a destination to be mended") else { return };
    let (home, up, down) = (Home::new(), &*brokers.pair.up, &*brokers.pair.down);
    let topic = topic(up, 3, 0);
    let config = Config::new(&brokers.pair).topic(&topic);
    let by_hand = config.clone().source("auto_create", false);
    let [subject, seen, _, advice] = Checked::of(&home, &by_hand).only(1);
    assert_eq!(subject, format!("sources.mirror: {topic}"));
    assert_eq!(seen, "does not exist on cluster down");
    assert!(advice.contains("auto_create = true"), "{advice}");

    down.create_topic(&topic, 1);
    Checked::of(&home, &config).notes("has 1 partitions, upstream has 3; 2 will be added");
    let [_, seen, expected, _] = Checked::of(&home, &by_hand).only(1);
    assert_eq!(seen, "has 1 partitions, upstream has 3");
    assert_eq!(expected, "as many partitions as upstream");
    down.add_partitions(&topic, 2);
    Checked::of(&home, &by_hand).silent();
}

#[test]
fn a_filled_destination_without_saved_positions_is_judged_by_its_policy() {
    let Some(brokers) = Loopbacks::start("a filled destination") else { return };
    let (home, up, down) = (Home::new(), &*brokers.pair.up, &*brokers.pair.down);
    let topic = topic(up, 2, 5);
    down.create_topic(&topic, 2);
    fill(down, &topic, 1);
    let config = Config::new(&brokers.pair).topic(&topic);
    let [subject, seen, _, advice] = Checked::of(&home, &config).only(1);
    assert_eq!(subject, format!("sources.mirror: {topic}"));
    assert_eq!(seen, "partition 0 ends at offset 1 and there is no saved position");
    assert!(advice.contains("on_nonempty_destination = \"append\""), "{advice}");
    Checked::of(&home, &config.clone().source("on_nonempty_destination", "append"))
        .notes("the copy is written behind that");
    Checked::of(&home, &config.source("partitions", "balanced")).notes("at least once");
}

#[test]
fn saved_positions_of_another_topic_are_found_on_either_side() {
    let Some(brokers) = Loopbacks::start("saved positions of another topic") else { return };
    let (home, up, down) = (Home::new(), &*brokers.pair.up, &*brokers.pair.down);
    let topic = topic(up, 1, 20);
    let config = Config::new(&brokers.pair).topic(&topic);
    copied(&home, &config, up, down, &topic);

    brokers.up.purge(&topic.stream, &topic.topic).expect("a topic");
    let [_, seen, _, advice] = Checked::of(&home, &config).only(1);
    assert!(seen.contains("partition 0 ends at offset 0, below the saved position 20"), "{seen}");
    assert!(advice.contains("on_history_changed = \"restart\""), "{advice}");

    brokers.up.recreate(&topic.stream, &topic.topic).expect("a topic");
    let [_, seen, _, advice] = Checked::of(&home, &config).only(1);
    assert!(seen.contains("the saved positions belong to a topic created at"), "{seen}");
    assert!(advice.contains("history_changed"), "{advice}");
    let config = config.source("on_history_changed", "restart");
    let [.., advice] = Checked::of(&home, &config).only(1);
    assert!(advice.contains("nothing if that is meant"), "{advice}");

    up.delete_topic(&topic);
    let [_, seen, _, advice] = Checked::of(&home, &config).only(1);
    assert_eq!(seen, "does not exist on cluster up");
    assert!(advice.contains("counts as another history"), "{advice}");

    let home = Home::new();
    let topic = self::topic(up, 1, 20);
    let config = Config::new(&brokers.pair).topic(&topic);
    copied(&home, &config, up, down, &topic);
    brokers.down.recreate(&topic.stream, &topic.topic).expect("a topic");
    let [_, seen, _, advice] = Checked::of(&home, &config).only(1);
    assert!(seen.contains("messages were copied to a topic created at"), "{seen}");
    assert!(advice.contains("on_destination_lost = \"refill\""), "{advice}");
    down.delete_topic(&topic);
    let [_, seen, ..] = Checked::of(&home, &config).only(1);
    assert_eq!(seen, "does not exist on cluster down");
}

#[test]
fn a_saved_position_that_include_does_not_list_is_kept_and_check_says_so() {
    let Some(brokers) = Loopbacks::start("a position that is not listed") else { return };
    let (home, up, down) = (Home::new(), &*brokers.pair.up, &*brokers.pair.down);
    let (first, second) = (topic(up, 1, 20), topic(up, 1, 5));
    copied(&home, &Config::new(&brokers.pair).topic(&first), up, down, &first);
    let other = Config::new(&brokers.pair).topic(&second);
    let words = format!("a position is saved for {first} to {first}, which include does not list");
    Checked::of(&home, &other).notes(&words);
    Checked::of(&home, &other).notes("it is kept, and counts again if the topic is listed again");
    // A daemon saves meanwhile: the position is still there.
    copied(&home, &other, up, down, &second);
    Checked::of(&home, &other).notes(&words);
}

#[test]
fn beside_a_running_daemon_a_check_is_a_note_and_disturbs_nothing() {
    let Some(brokers) = Loopbacks::start("beside a running daemon") else { return };
    let (home, up, down) = (Home::new(), &*brokers.pair.up, &*brokers.pair.down);
    let topic = topic(up, 1, 20);
    let config = Config::new(&brokers.pair).topic(&topic);
    let daemon = Daemon::start(&home, &config);
    eventually(SECONDS, "the copy", || when(down.end(&topic, 0) == 20));
    let checked = Checked::of(&home, &config);
    checked.notes(&format!("in use by process {}", daemon.id()));
    assert_eq!(checked.list("notes").len(), 1, "{:#}", checked.report);
    fill(up, &topic, 20);
    eventually(SECONDS, "the rest", || when(down.end(&topic, 0) == 40));
    daemon.stop();
}

#[test]
fn an_unreadable_state_file_exits_with_3_unless_it_may_be_set_aside() {
    let Some(brokers) = Loopbacks::start("an unreadable state file") else { return };
    let home = Home::new();
    let topic = topic(&*brokers.pair.up, 1, 0);
    std::fs::write(home.state_dir().join("mirror.0.state"), "").expect("a file");
    let config = Config::new(&brokers.pair).topic(&topic);
    let checked = Checked::of(&home, &config);
    assert_eq!(checked.code, 3, "{:#}", checked.report);
    let seen = checked.list("findings")[0]["seen"].as_str().expect("text");
    assert!(seen.contains("mirror.0.state: the file is empty"), "{seen}");
    Checked::of(&home, &config.source("on_corrupt_state", "reset")).notes("sets it aside");
}

#[test]
fn buffers_too_small_for_the_partitions_there_are_are_found() {
    let Some(brokers) = Loopbacks::start("small buffers") else { return };
    let home = Home::new();
    let topic = topic(&*brokers.pair.up, 5, 0);
    let config = Config::new(&brokers.pair).topic(&topic).daemon("shards", 1);
    let [subject, seen, expected, advice] =
        Checked::of(&home, &config.clone().daemon("max_buffered_bytes", "9MiB")).only(1);
    assert_eq!(subject, "daemon.max_buffered_bytes");
    assert!(seen.contains("9MiB split over 1 shard"), "{seen}");
    assert!(expected.contains("256KiB for each of 5 feeds"), "{expected}");
    let enough = advice.split('"').nth(1).expect("a value").to_owned();
    Checked::of(&home, &config.daemon("max_buffered_bytes", enough)).notes("will be created");
}

#[test]
fn options_that_the_destination_does_not_know_are_named() {
    let Some(brokers) = Loopbacks::start("unknown options") else { return };
    let home = Home::new();
    let topic = unique_topic("check");
    let options = [("durability", "persisted"), ("message_expiry", "1h")];
    let created = brokers.up.create_topic_with(&topic.stream, &topic.topic, 1, &options);
    assert_eq!(created, Ok(true));
    let options = ServerOptions { flavour: Flavour::Edge5, ..ServerOptions::default() };
    let edge = Server::start(options).expect("a broker");
    let config = Config::between(brokers.pair.up.address(), edge.address()).topic(&topic);
    Checked::of(&home, &config).notes(&format!(
        "cluster down does not know these options of {topic}: durability, \
         consumer_offset_durability;"
    ));
}

#[test]
fn one_server_under_two_names_is_found_by_what_it_says_of_itself() {
    let Some(brokers) = Loopbacks::start("one server under two names") else { return };
    let home = Home::new();
    let up = &*brokers.pair.up;
    let topic = topic(up, 1, 0);
    let alias = Proxy::start(&up.address());
    let config = Config::between(up.address(), alias.address());
    let [subject, seen, expected, advice] =
        Checked::of(&home, &config.clone().topic(&topic)).only(1);
    assert_eq!(subject, "sources.mirror");
    assert!(seen.contains(&format!("{topic} would be copied onto itself")), "{seen}");
    assert!(expected.contains("no way back") && advice.contains("to_topic"));

    let copy = TopicName::new(&topic.stream, "copy");
    let there = config.clone().topic_to(&topic, &copy);
    Checked::of(&home, &there).notes("is the same server as clusters.down");
    let circle = there.clone().topic_to(&copy, &topic);
    let checked = Checked::of(&home, &circle);
    let circles = |f: &&Value| f["seen"].as_str().is_some_and(|seen| seen.contains("in a circle"));
    assert_eq!(checked.list("findings").iter().filter(circles).count(), 2, "{:#}", checked.report);
}
