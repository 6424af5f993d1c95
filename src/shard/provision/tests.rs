//! The provisioner against a model of two clusters.

mod first_start;
mod growth;
mod lost;

use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use crate::batch::{DeltaPiece, TopicName};
use crate::config::{
    Credentials, InitialOffset, OnBadRecord, OnCorruptState, OnHistoryChanged,
    OnNonemptyDestination, OnOffsetExpired, Settle,
};
use crate::iggy_wire::{Node, OptionInfo, TopicOption};
use crate::statefile::Counters;
use crate::time::UnixMicros;

#[derive(Clone, Debug, PartialEq)]
struct ModelTopic {
    partitions: u32,
    created_at: u64,
    options: Vec<TopicOption>,
}

#[derive(Default)]
struct ModelCluster {
    streams: BTreeSet<String>,
    topics: BTreeMap<(String, String), ModelTopic>,
    /// Names of its nodes; of none it does not know the question.
    nodes: Vec<&'static str>,
}

type Fault = Box<dyn FnMut(Side, &Request) -> Option<(bool, Trouble)>>;

/// Two clusters, a clock, and the provisioner under test.
struct World {
    machine: Provisioner,
    up: ModelCluster,
    down: ModelCluster,
    mono: u64,
    next_creation: u64,
    /// Every request that is not a look-up, in words.
    changes: Vec<String>,
    look_ups: usize,
    /// How often a cluster was asked for its nodes.
    questions: usize,
    added: Vec<NewFeed>,
    ready: Vec<(FeedId, Result<u64, String>)>,
    releases: Vec<usize>,
    looks: Vec<(usize, u64)>,
    done: Vec<String>,
    unusual: Vec<String>,
    /// Whether the request is applied all the same, and what the asker learns.
    fault: Fault,
    /// Until then, look-ups of a destination topic show this many partitions.
    stale: Option<(u64, u32)>,
}

impl ModelCluster {
    fn put(&mut self, stream: &str, topic: &str, partitions: u32, created_at: u64) {
        self.streams.insert(stream.into());
        let made = ModelTopic { partitions, created_at, options: Vec::new() };
        self.topics.insert((stream.into(), topic.into()), made);
    }

    fn apply(&mut self, request: &Request, now: u64) -> Result<Reply, Trouble> {
        let refuse = |code| Err(Trouble::Failed(Failure::Refused(code)));
        let key = |s: &Arc<str>, t: &Arc<str>| (s.to_string(), t.to_string());
        match request {
            Request::Topic { stream, topic } => {
                Ok(Reply::Topic(self.topics.get(&key(stream, topic)).map(|t| info(topic, t))))
            }
            Request::DescribeTopicOptions => Ok(Reply::Options(
                ["message_expiry", "compression_algorithm"]
                    .map(|key| OptionInfo { key: key.into() })
                    .to_vec(),
            )),
            Request::CreateStream { stream } => match self.streams.insert(stream.to_string()) {
                true => Ok(Reply::Done),
                false => refuse(1012),
            },
            Request::CreateTopic { stream, topic, partitions, options } => {
                if !self.streams.contains(&**stream) {
                    return refuse(1009);
                }
                if self.topics.contains_key(&key(stream, topic)) {
                    return refuse(2013);
                }
                let (partitions, options) = (*partitions, options.clone());
                let made = ModelTopic { partitions, created_at: now, options };
                let reply = Reply::Topic(Some(info(topic, &made)));
                self.topics.insert(key(stream, topic), made);
                Ok(reply)
            }
            Request::CreatePartitions { stream, topic, add } => {
                match self.topics.get_mut(&key(stream, topic)) {
                    Some(topic) => {
                        topic.partitions += add;
                        Ok(Reply::Done)
                    }
                    None => refuse(2010),
                }
            }
            Request::ClusterMetadata if self.nodes.is_empty() => refuse(3),
            Request::ClusterMetadata => Ok(Reply::Cluster(self.nodes.iter().map(node).collect())),
            other => panic!("a provisioner does not ask {other:?}"),
        }
    }
}

fn node(name: &&'static str) -> Node {
    let (ip, tcp_port) = ("127.0.0.1".into(), 8090);
    Node { name: (*name).into(), ip, tcp_port, leader: true, healthy: true }
}

fn info(name: &str, topic: &ModelTopic) -> TopicInfo {
    TopicInfo {
        name: name.into(),
        created_at: topic.created_at,
        partitions_count: topic.partitions,
        message_expiry: 0,
        compression: 1,
        max_size: 0,
        size: 0,
        messages_count: 0,
        options: vec![
            TopicOption { key: "message_expiry".into(), value: "7".into() },
            TopicOption { key: "durability".into(), value: "persisted".into() },
        ],
        partitions: Vec::new(),
    }
}

fn cluster(key: &str) -> Arc<ClusterPlan> {
    Arc::new(ClusterPlan {
        key: key.into(),
        addresses: vec!["127.0.0.1:8090".into()],
        credentials: Credentials::Token("t".into()),
        connect_timeout: Duration::from_secs(5),
        request_timeout: Duration::from_secs(10),
        settle: Settle::always(Duration::from_secs(2)),
        allow_untested_server: false,
    })
}

pub(crate) fn plan(topics: &[&str]) -> MirrorPlan {
    let topic = |name: &&str| TopicPlan {
        upstream: TopicName::new("s", name),
        downstream: TopicName::new("copy", name),
    };
    MirrorPlan {
        key: "orders".into(),
        from: cluster("east"),
        to: cluster("west"),
        topics: topics.iter().map(topic).collect(),
        initial_offset: InitialOffset::Latest,
        partitions: Partitions::Preserve,
        auto_create: true,
        retry_interval: Duration::from_secs(1),
        max_retry_interval: Duration::from_secs(60),
        reset_grace: Duration::from_secs(60),
        state_interval: Duration::from_secs(1),
        discovery_interval: Duration::from_secs(5),
        degraded_after: Duration::from_secs(60),
        commit_failure_threshold: 16,
        verify_checksums: true,
        max_batch_bytes: 8 << 20,
        on_offset_expired: OnOffsetExpired::EarliestAvailable,
        on_history_changed: OnHistoryChanged::Fail,
        on_destination_lost: OnDestinationLost::Fail,
        on_nonempty_destination: OnNonemptyDestination::Fail,
        on_missing_upstream: OnMissingUpstream::Wait,
        on_bad_record: OnBadRecord::Fail,
        on_corrupt_state: OnCorruptState::Fail,
    }
}

fn saved(topic: &str, partition: u32, downstream_created_at: u64) -> FeedState {
    FeedState {
        upstream: TopicName::new("s", topic),
        downstream: TopicName::new("copy", topic),
        partition,
        epoch: 1,
        sequence: 5,
        position: 10,
        deltas: vec![DeltaPiece { from_upstream: 0, delta: 0 }],
        last: None,
        upstream_created_at: 100,
        downstream_created_at,
        clean_stop: true,
        counters: Counters::default(),
        gaps: Vec::new(),
        repeats: Vec::new(),
        first_count: None,
    }
}

impl World {
    fn new(plan: MirrorPlan, saved: &[FeedState]) -> World {
        let mut world = World {
            machine: Provisioner::new(Now::default(), Arc::new(plan), saved, 7),
            up: ModelCluster::default(),
            down: ModelCluster::default(),
            mono: 0,
            next_creation: 1000,
            changes: Vec::new(),
            look_ups: 0,
            questions: 0,
            added: Vec::new(),
            ready: Vec::new(),
            releases: Vec::new(),
            looks: Vec::new(),
            done: Vec::new(),
            unusual: Vec::new(),
            fault: Box::new(|_, _| None),
            stale: None,
        };
        world.collect();
        world
    }

    fn now(&self) -> Now {
        Now { mono: Millis(self.mono), wall: UnixMicros(self.mono * 1000) }
    }

    fn collect(&mut self) {
        for output in self.machine.take_outputs() {
            match output {
                Output::Add(feed) => self.added.push(*feed),
                Output::Ready { feed, result } => self.ready.push((feed, result)),
                Output::Release { topic } => self.releases.push(topic),
                Output::LookAgain { topic, created_at } => self.looks.push((topic, created_at)),
                Output::Notice(Notice::Done(text)) => self.done.push(text),
                Output::Notice(Notice::Unusual(text)) => self.unusual.push(text),
            }
        }
    }

    /// Answers requests until the machine sleeps; returns until when.
    fn settle(&mut self) -> Millis {
        for _ in 0..200 {
            let (side, request) = match self.machine.next(self.now()) {
                Next::Sleep(until) => return until,
                Next::Ask { side, request } => (side, request),
            };
            match &request {
                Request::Topic { .. } | Request::DescribeTopicOptions => self.look_ups += 1,
                Request::CreateStream { stream } => self.changes.push(format!("stream {stream}")),
                Request::CreateTopic { stream, topic, partitions, .. } => {
                    self.changes.push(format!("topic {stream}/{topic} x{partitions}"));
                }
                Request::CreatePartitions { stream, topic, add } => {
                    self.changes.push(format!("grow {stream}/{topic} +{add}"));
                }
                Request::ClusterMetadata => self.questions += 1,
                other => panic!("{other:?}"),
            }
            self.next_creation += 1;
            let target = match side {
                Side::Upstream => &mut self.up,
                Side::Downstream => &mut self.down,
            };
            let answer = match (self.fault)(side, &request) {
                None => target.apply(&request, self.next_creation),
                Some((applied, trouble)) => {
                    if applied {
                        let _ = target.apply(&request, self.next_creation);
                    }
                    Err(trouble)
                }
            };
            let stale = self.stale.filter(|(until, _)| self.mono < *until);
            let answer = match (answer, stale) {
                (Ok(Reply::Topic(Some(mut info))), Some((_, seen)))
                    if side == Side::Downstream && matches!(request, Request::Topic { .. }) =>
                {
                    info.partitions_count = seen;
                    Ok(Reply::Topic(Some(info)))
                }
                (answer, _) => answer,
            };
            self.machine.answer(self.now(), answer);
            self.collect();
        }
        panic!("the provisioner never sleeps: {:?}", self.changes);
    }

    /// Lets time pass, answering on the way.
    fn run(&mut self, span: Duration) {
        let end = self.mono + u64::try_from(span.as_millis()).expect("short");
        loop {
            let until = self.settle().0.max(self.mono + 1);
            if until > end {
                self.mono = end;
                self.settle();
                return;
            }
            self.mono = until;
        }
    }

    fn finding(&self, topic: &str) -> Option<Condition> {
        let name = TopicName::new("s", topic);
        let found = self.machine.findings().into_iter().find(|f| f.topic.as_ref() == Some(&name));
        found.map(|finding| finding.condition)
    }

    fn added(&self) -> Vec<(usize, u32, bool)> {
        let is_late = |feed: &NewFeed| feed.partition >= feed.first_count;
        self.added.iter().map(|feed| (feed.topic, feed.partition, is_late(feed))).collect()
    }
}

#[test]
fn a_missing_destination_is_created_like_upstream_before_any_feed() {
    let mut world = World::new(plan(&["a"]), &[]);
    world.up.put("s", "a", 3, 100);
    let until = world.settle();
    assert_eq!(world.changes, ["stream copy", "topic copy/a x3"]);
    assert_eq!(world.added(), [(0, 0, false), (0, 1, false), (0, 2, false)]);
    let made = &world.down.topics[&("copy".to_owned(), "a".to_owned())];
    assert!(world.added.iter().all(|feed| {
        feed.upstream_created_at == 100 && feed.downstream_created_at == made.created_at
    }));
    assert_eq!(
        made.options.iter().map(|o| o.key.as_str()).collect::<Vec<_>>(),
        ["compression_algorithm", "message_expiry"]
    );
    let left_out =
        world.unusual.iter().filter(|text| text.contains("durability of s/a is left out"));
    assert_eq!(left_out.count(), 1, "{:?}", world.unusual);
    assert_eq!(world.unusual.len(), 1, "a creation is nothing to worry about");
    assert_eq!(world.done, ["destination topic copy/a is created with 3 partitions"]);
    assert_eq!(until, Millis(5000), "looked at again after discovery_interval");
    assert_eq!(world.machine.findings(), []);
}

#[test]
fn what_exists_is_used_as_it_is() {
    let mut world = World::new(plan(&["a"]), &[]);
    world.up.put("s", "a", 2, 100);
    world.down.put("copy", "a", 5, 200);
    world.settle();
    assert_eq!(world.changes, [""; 0]);
    assert_eq!(world.added(), [(0, 0, false), (0, 1, false)]);
}

#[test]
fn a_creation_that_somebody_else_won_is_success() {
    let mut world = World::new(plan(&["a"]), &[]);
    world.up.put("s", "a", 2, 100);
    world.down.streams.insert("copy".into());
    world.fault = Box::new(|_, request| match request {
        Request::CreateTopic { .. } => Some((true, Trouble::Failed(Failure::Refused(2013)))),
        _ => None,
    });
    world.settle();
    assert_eq!(world.changes, ["stream copy", "topic copy/a x2"]);
    assert_eq!(world.added().len(), 2);
}

#[test]
fn without_auto_create_one_topic_waits_by_name_and_the_others_flow() {
    let mut plan = plan(&["a", "b", "c"]);
    plan.auto_create = false;
    let mut world = World::new(plan, &[]);
    for topic in ["a", "b", "c"] {
        world.up.put("s", topic, 1, 100);
    }
    world.down.put("copy", "a", 1, 200);
    world.down.put("copy", "c", 1, 200);
    world.run(Duration::from_secs(60));
    assert_eq!(world.changes, [""; 0]);
    assert_eq!(world.added(), [(0, 0, false), (2, 0, false)]);
    let waiting = world.finding("b").expect("a finding");
    assert_eq!((waiting.status, waiting.reason), (Status::Degraded, "waiting_destination"));
    assert!(waiting.detail.contains("copy/b"), "{}", waiting.detail);
    assert_eq!(world.finding("a"), None);
    world.down.put("copy", "b", 1, 300);
    world.run(Duration::from_secs(61));
    assert_eq!(world.added().len(), 3);
    assert_eq!(world.finding("b"), None);
}

#[test]
fn looking_again_backs_off_and_a_success_resets_it() {
    let mut world = World::new(plan(&["a"]), &[]);
    world.run(Duration::from_secs(600));
    assert!((10..=25).contains(&world.look_ups), "{} look-ups in ten minutes", world.look_ups);
    let waiting = world.finding("a").expect("a finding");
    assert_eq!((waiting.reason, waiting.since), ("waiting_upstream", 0));
    assert!(waiting.detail.contains("s/a"), "{}", waiting.detail);
    world.up.put("s", "a", 1, 600_000_000);
    world.run(Duration::from_secs(61));
    assert_eq!(world.added(), [(0, 0, true)], "it appeared after the start");
}

#[test]
fn a_missing_upstream_is_created_once_when_told_so() {
    let mut plan = plan(&["a"]);
    plan.on_missing_upstream = OnMissingUpstream::Create;
    let mut world = World::new(plan, &[]);
    world.settle();
    assert_eq!(world.changes, ["stream s", "topic s/a x1", "stream copy", "topic copy/a x1"]);
    assert!(world.unusual[0].contains("one partition"), "{:?}", world.unusual);
    world.up.topics.clear();
    world.run(Duration::from_secs(100));
    assert_eq!(world.changes.len(), 4, "a deletion upstream is not answered by a creation");
    assert_eq!(world.finding("a").expect("a finding").reason, "waiting_upstream");
}

#[test]
fn a_missing_upstream_ends_the_topic_when_told_so() {
    let mut plan = plan(&["a", "b"]);
    plan.on_missing_upstream = OnMissingUpstream::Fail;
    let mut world = World::new(plan, &[]);
    world.up.put("s", "b", 1, 100);
    world.run(Duration::from_secs(100));
    let ended = world.finding("a").expect("a finding");
    assert_eq!((ended.status, ended.reason), (Status::Error, "missing_upstream"));
    assert_eq!(world.added(), [(1, 0, false)]);
}

#[test]
fn an_unreachable_cluster_is_one_finding_and_one_try_at_a_time() {
    let mut world = World::new(plan(&["a", "b", "c", "d"]), &[]);
    let tries = std::rc::Rc::new(std::cell::Cell::new(0));
    let counted = tries.clone();
    world.fault = Box::new(move |side, _| {
        (side == Side::Upstream).then(|| {
            counted.set(counted.get() + 1);
            let why = "connection refused".into();
            let error = ConnError::Dial { address: "127.0.0.1:8090".into(), why };
            (false, Trouble::Unreachable(error))
        })
    });
    world.run(Duration::from_secs(60));
    assert!((5..=9).contains(&tries.get()), "{} dials in a minute", tries.get());
    let of_source: Vec<SourceFinding> =
        world.machine.findings().into_iter().filter(|f| f.topic.is_none()).collect();
    assert_eq!(of_source.len(), 1);
    assert_eq!(of_source[0].condition.reason, "upstream_unreachable");
    assert!(of_source[0].condition.detail.contains("connection refused"));
    for topic in ["a", "b", "c", "d"] {
        world.up.put("s", topic, 1, 100);
    }
    world.fault = Box::new(|_, _| None);
    world.run(Duration::from_secs(61));
    assert_eq!(world.added().len(), 4);
    assert_eq!(world.machine.findings(), []);
}

#[test]
fn a_refused_creation_names_the_servers_words_and_blocks_no_other_topic() {
    let mut world = World::new(plan(&["a", "b"]), &[]);
    world.up.put("s", "a", 1, 100);
    world.up.put("s", "b", 1, 100);
    world.fault = Box::new(|_, request| match request {
        Request::CreateTopic { topic, .. } if &**topic == "a" => {
            Some((false, Trouble::Failed(Failure::Refused(4042))))
        }
        _ => None,
    });
    world.run(Duration::from_secs(10));
    let refused = world.finding("a").expect("a finding");
    assert_eq!(refused.reason, "create_refused");
    assert!(refused.detail.contains("4042") && refused.detail.contains("copy/a"));
    assert_eq!(world.added(), [(1, 0, false)]);
}

#[test]
fn a_source_that_rests_asks_and_makes_nothing_and_then_looks_again() {
    let mut world = World::new(plan(&["a", "b"]), &[saved("b", 0, 200)]);
    world.machine.rest(world.now(), true);
    world.up.put("s", "a", 2, 100);
    world.up.put("s", "b", 3, 100);
    world.down.put("copy", "b", 1, 200);
    world.run(Duration::from_secs(600));
    assert_eq!((world.look_ups, world.changes.len()), (0, 0), "{:?}", world.changes);
    assert_eq!(world.added(), [(1, 0, false)], "what is saved is known, so that no save loses it");
    assert_eq!(world.finding("a").map(|finding| finding.reason), Some("paused"));
    assert_eq!(world.finding("b"), None, "its feeds say so themselves");
    world.machine.rest(world.now(), false);
    world.settle();
    assert_eq!(world.changes, ["stream copy", "topic copy/a x2", "grow copy/b +2"]);
    assert_eq!(world.added.len(), 5);
    assert_eq!(world.machine.findings(), []);
}

#[test]
fn what_was_decided_before_a_rest_is_decided_anew_behind_it() {
    let mut world = World::new(plan(&["a"]), &[]);
    world.up.put("s", "a", 4, 100);
    world.down.put("copy", "a", 1, 200);
    // Upstream, then the destination's nodes and topic: the next would add three partitions.
    for _ in 0..3 {
        let Next::Ask { side, request } = world.machine.next(world.now()) else { panic!("asleep") };
        let target = if side == Side::Upstream { &mut world.up } else { &mut world.down };
        let answer = target.apply(&request, 0);
        world.machine.answer(world.now(), answer);
    }
    world.machine.rest(world.now(), true);
    world.run(Duration::from_secs(60));
    world.down.put("copy", "a", 4, 200);
    world.machine.rest(world.now(), false);
    world.settle();
    assert_eq!(world.changes, [""; 0], "somebody has grown it meanwhile");
    assert_eq!(world.added.len(), 4);
}

#[test]
fn a_restart_looks_for_topics_that_were_given_up() {
    let mut plan = plan(&["a"]);
    plan.on_missing_upstream = OnMissingUpstream::Fail;
    let mut world = World::new(plan, &[]);
    world.settle();
    assert_eq!(world.finding("a").map(|finding| finding.reason), Some("missing_upstream"));
    world.up.put("s", "a", 1, 100);
    world.run(Duration::from_secs(600));
    assert_eq!(world.added.len(), 0);
    world.machine.begin_again(world.now());
    world.settle();
    assert_eq!(world.added(), [(0, 0, true)], "from its first message: it came late");
    assert_eq!(world.machine.findings(), []);
}
