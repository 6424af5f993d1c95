//! A whole way out against a small model of a cluster.

use std::collections::BTreeMap;

use super::*;
use crate::fanout::fixture::{plan, routed, row};
use crate::iggy_wire::record::{Verify, scan};
use crate::iggy_wire::{OptionInfo, Relay, TopicInfo, TopicOption};
use std::time::Duration;

const COLUMNS: [(&str, bool); 3] = [("topic", false), ("stream", false), ("user", true)];

/// A cluster that keeps ids, and the outlet towards it.
struct World {
    outlet: Outlet,
    bound: BoundRoute,
    rng: fastrand::Rng,
    now: Millis,
    streams: BTreeSet<String>,
    /// Partitions and logs of each topic.
    topics: BTreeMap<String, Vec<Vec<u128>>>,
    options: Vec<TopicOption>,
    partitions: usize,
    created_at: u64,
    /// Topics whose requests end like this.
    broken: BTreeMap<String, Failure>,
    refuse_making: Option<u32>,
    headers: Vec<Vec<u8>>,
    asked: Vec<String>,
}

impl World {
    fn new(plan: &Arc<CapturePlan>) -> World {
        let mut outlet = Outlet::new(plan.clone());
        let bound = outlet.bind("public", "events", &COLUMNS).unwrap();
        let durable = TopicOption { key: "durability".into(), value: "persisted".into() };
        World {
            outlet,
            bound,
            rng: fastrand::Rng::with_seed(3),
            now: Millis(0),
            streams: BTreeSet::new(),
            topics: BTreeMap::new(),
            options: vec![durable],
            partitions: 0,
            created_at: 5,
            broken: BTreeMap::new(),
            refuse_making: None,
            headers: Vec::new(),
            asked: Vec::new(),
        }
    }

    /// Routes and writes a row; what became of it.
    fn write(&mut self, id: u128, texts: &[Option<&str>]) -> Routed {
        let routed = self.outlet.route(&self.bound, &row(texts));
        let (dest, choice, letter) = match routed {
            Routed::Destination(dest, choice) | Routed::Held(dest, choice, _) => {
                (dest, choice, None)
            }
            Routed::Unmatched(dest) => (dest, self.outlet.any_partition(dest), None),
            Routed::DeadLetter(dest, reason) => {
                (dest, self.outlet.any_partition(dest), Some(reason))
            }
            Routed::Dropped(_) => return routed,
        };
        self.outlet.begin(dest, choice, id, 1_000);
        self.outlet.body().extend_from_slice(b"payload");
        self.outlet.end_payload();
        if let Some(reason) = letter {
            dead_letter_headers(self.outlet.body(), reason, b"s", b"t");
        }
        assert_eq!(self.outlet.end(), Written::Added);
        routed
    }

    fn batch(&mut self, rows: &[(u128, &str)]) -> u64 {
        for (id, topic) in rows {
            self.write(*id, &[Some(topic), Some("s"), None]);
        }
        self.outlet.close(self.now)
    }

    /// Answers everything that is asked until nothing is, without letting time pass.
    fn run(&mut self) {
        while let Some(ask) = self.outlet.next(self.now) {
            let answer = self.answer_to(&ask.request);
            self.outlet.answer(self.now, ask.token, answer, &mut self.rng);
        }
    }

    /// Lets time pass to the next event, `times` times.
    fn later(&mut self, times: usize) {
        for _ in 0..times {
            if let Some(at) = self.outlet.wake_at() {
                self.now = self.now.max(at);
            }
            self.run();
        }
    }

    fn answer_to(&mut self, request: &Request) -> Result<Reply, Failure> {
        match request {
            Request::Topic { stream, topic } => {
                let name = format!("{stream}/{topic}");
                self.asked.push(format!("look {name}"));
                if let Some(failure) = self.broken.get(&format!("look {name}")) {
                    return Err(failure.clone());
                }
                Ok(Reply::Topic(self.topics.get(&name).map(|logs| self.info(logs.len()))))
            }
            Request::DescribeTopicOptions => {
                Ok(Reply::Options(vec![OptionInfo { key: "durability".into() }]))
            }
            Request::CreateStream { stream } => {
                let is_new = self.streams.insert(stream.to_string());
                if is_new { Ok(Reply::Done) } else { Err(Failure::Refused(1012)) }
            }
            Request::CreateTopic { stream, topic, partitions, .. } => {
                if let Some(code) = self.refuse_making {
                    return Err(Failure::Refused(code));
                }
                let count =
                    if self.partitions > 0 { self.partitions } else { *partitions as usize };
                self.topics.insert(format!("{stream}/{topic}"), vec![Vec::new(); count]);
                Ok(Reply::Done)
            }
            Request::Send { stream, topic, to: SendTo::Partition(partition), record } => {
                self.append(&format!("{stream}/{topic}"), *partition, record)
            }
            other => panic!("{other:?}"),
        }
    }

    fn append(&mut self, name: &str, to: u32, record: &Relay) -> Result<Reply, Failure> {
        self.asked.push(format!("send {name}"));
        if let Some(failure) = self.broken.get(name) {
            return Err(failure.clone());
        }
        let logs = self.topics.get_mut(name).ok_or(Failure::Refused(20))?;
        let log = logs.get_mut(to as usize).ok_or(Failure::Refused(20))?;
        let offset = log.len() as u64;
        let record = scan(&record.stored(0, 0, 0), Verify::Full).unwrap().remove(0);
        log.extend(record.messages().map(|message| message.id));
        self.headers.extend(record.messages().map(|message| message.user_headers.to_vec()));
        Ok(Reply::Sent { base_offset: Some(offset) })
    }

    fn info(&self, partitions: usize) -> TopicInfo {
        TopicInfo {
            name: "t".into(),
            created_at: self.created_at,
            partitions_count: partitions as u32,
            message_expiry: 0,
            compression: 1,
            max_size: 0,
            size: 0,
            messages_count: 0,
            options: self.options.clone(),
            partitions: Vec::new(),
        }
    }

    fn ids(&self, name: &str) -> Vec<u128> {
        self.topics.get(name).into_iter().flatten().flatten().copied().collect()
    }

    fn reasons(&self) -> Vec<(&'static str, String)> {
        let troubles = self.outlet.troubles(self.now);
        troubles.into_iter().map(|trouble| (trouble.reason, trouble.topic.to_string())).collect()
    }

    fn told(&mut self) -> String {
        let words = |notice| match notice {
            Notice::Done(text) | Notice::Remark(text) | Notice::Unusual(text) => text,
        };
        self.outlet.take_notices().into_iter().map(words).collect::<Vec<_>>().join("\n")
    }
}

#[test]
fn rows_arrive_in_topics_that_were_not_there() {
    let mut world = World::new(&routed(""));
    assert_eq!(world.batch(&[(1, "a"), (2, "b"), (3, "a")]), 0);
    assert_eq!(world.outlet.complete(), 0);
    world.run();
    assert_eq!((world.ids("s/a"), world.ids("s/b")), (vec![1, 3], vec![2]));
    assert_eq!((world.outlet.complete(), world.outlet.is_empty()), (1, true));
    let counters = world.outlet.counters();
    assert_eq!((counters.routed, counters.destinations, counters.circuits_open), (3, 3, 0));
    assert_eq!(counters.created.counts.iter().sum::<u64>(), 2);
    assert!(world.told().contains("made topic s/a with 1 partitions"));
    world.batch(&[(4, "a")]);
    world.asked.clear();
    world.run();
    assert_eq!(world.asked, ["send s/a"], "a known topic is not looked at again");
}

#[test]
fn known_destinations_are_made_before_the_first_row() {
    let list = "[sources.shop.routing.admission]\nmode = \"allowlist\"\n\
                allowlist = [{ stream = \"s\", topic = \"a\" }, { stream = \"s\", topic = \"*\" }, \
                { stream = \"default\", topic = \"unknown\" }]\nstartup_prewarm_deadline = \"10s\"";
    let mut world = World::new(&routed(list));
    assert!(world.outlet.is_warm(world.now), "nothing to wait for before the start");
    world.outlet.start(world.now);
    assert!(!world.outlet.is_warm(world.now));
    world.broken.insert("look s/a".into(), Failure::TimedOut);
    world.run();
    assert!(world.topics.contains_key("default/unknown"));
    world.later(3);
    assert!(!world.outlet.is_warm(Millis(9_999)));
    assert!(world.outlet.is_warm(Millis(10_000)));
    assert!(world.told().contains("s/a was not ready in time: looking up s/a: no answer in time"));
    world.broken.clear();
    world.now = Millis(20_000);
    world.run();
    assert!(!world.topics.contains_key("s/a"), "tried again when something is sent there");
    world.batch(&[(1, "a")]);
    world.run();
    assert_eq!(world.ids("s/a"), [1]);
}

#[test]
fn a_black_hole_opens_its_breaker_and_hinders_no_other() {
    let mut world = World::new(&routed(""));
    world.batch(&[(1, "a"), (2, "b")]);
    world.run();
    world.broken.insert("s/a".into(), Failure::TimedOut);
    for batch in 0..3u128 {
        world.batch(&[(10 + batch, "a"), (20 + batch, "b")]);
        world.run();
    }
    assert_eq!(world.ids("s/b"), [2, 20, 21, 22]);
    world.later(4);
    assert_eq!(world.reasons(), [("circuit_open", "s/a".to_owned())]);
    assert_eq!(world.outlet.counters().circuits_open, 1);
    assert_eq!(world.outlet.pinned_by().map(TopicName::to_string).as_deref(), Some("s/a"));
    let held = world.write(30, &[Some("a"), Some("s"), None]);
    assert!(matches!(held, Routed::Held(_, _, Reason::CircuitOpen)));
    world.outlet.close(world.now);
    world.broken.clear();
    world.run();
    assert_eq!(world.ids("s/a"), [1], "not before it has cooled down");
    world.later(1);
    assert_eq!(world.ids("s/a"), [1, 10, 11, 12, 30]);
    assert_eq!((world.reasons(), world.outlet.complete()), (vec![], 5));
    assert!(world.told().contains("s/a takes messages again"));
}

#[test]
fn refused_rows_wait_in_order_and_the_others_go() {
    let list = "[sources.shop.routing.admission]\nmode = \"denylist\"\n\
                denylist = [{ stream = \"s\", topic = \"bad\" }]";
    let mut world = World::new(&routed(list));
    world.batch(&[(1, "a"), (2, "bad"), (3, "a")]);
    world.batch(&[(4, "a"), (5, "bad")]);
    world.batch(&[(6, "a")]);
    world.run();
    assert_eq!(world.ids("s/a"), [1, 3, 4, 6]);
    assert_eq!(world.outlet.complete(), 0);
    assert_eq!(world.reasons(), [("denylist", "s/bad".to_owned())]);
    let shown = world.outlet.destinations();
    let bad = shown.iter().find(|shown| &*shown.topic.topic == "bad").unwrap();
    assert_eq!((bad.state, bad.held_groups), ("denylist", 2));
    assert!(bad.held_bytes > 0 && world.outlet.bytes() >= bad.held_bytes as usize);
    world.outlet.abandon(world.now, 0);
    assert_eq!(world.outlet.complete(), 1);
    world.outlet.abandon(world.now, 1);
    assert_eq!((world.outlet.complete(), world.reasons()), (3, vec![]));
}

#[test]
fn a_topic_that_cannot_be_made_waits_with_its_cause() {
    let mut world = World::new(&routed(""));
    world.refuse_making = Some(41);
    world.batch(&[(1, "a")]);
    world.run();
    assert_eq!(world.reasons(), [("waiting_destination", "s/a".to_owned())]);
    let trouble = world.outlet.troubles(world.now).remove(0);
    assert!(trouble.detail.contains("making s/a: server error 41"), "{}", trouble.detail);
    world.later(4);
    assert_eq!(world.reasons(), [("circuit_open", "s/a".to_owned())]);
    world.refuse_making = None;
    world.later(1);
    assert_eq!((world.ids("s/a"), world.outlet.complete()), (vec![1], 1));
    assert_eq!(world.outlet.counters().circuits_open, 0);
}

#[test]
fn a_topic_that_vanishes_is_made_again_and_that_is_told() {
    let mut world = World::new(&routed(""));
    world.batch(&[(1, "a")]);
    world.run();
    world.topics.clear();
    world.created_at = 6;
    world.batch(&[(2, "a")]);
    world.run();
    world.later(1);
    assert_eq!(world.ids("s/a"), [2]);
    assert_eq!(world.reasons(), [("destination_lost_tail", "s/a".to_owned())]);
    assert_eq!(world.outlet.counters().lost_tails, 1);
    assert!(world.told().contains("was made anew"));
    world.now = world.now + Duration::from_secs(60);
    assert_eq!(world.reasons(), []);
}

#[test]
fn a_lost_tail_is_counted_and_shown() {
    let mut world = World::new(&routed(""));
    world.batch(&[(1, "a"), (2, "a")]);
    world.run();
    world.topics.get_mut("s/a").unwrap()[0].pop();
    world.batch(&[(3, "a")]);
    world.run();
    assert_eq!(world.outlet.counters().lost_tails, 1);
    let trouble = world.outlet.troubles(world.now).remove(0);
    assert_eq!(trouble.reason, "destination_lost_tail");
    assert!(trouble.detail.contains("gave out offset 1, at least 2 was expected"));
}

#[test]
fn what_is_not_durable_is_told_or_refused() {
    let mut world = World::new(&plan("stream = \"s\"\ntopic = \"t\""));
    world.options.clear();
    world.batch(&[(1, "x")]);
    world.run();
    assert_eq!(world.ids("s/t"), [1]);
    assert!(world.told().contains("topic s/t is not durable"));
    let strict = plan("stream = \"s\"\ntopic = \"t\"\nrequire_durable = \"refuse\"");
    let mut world = World::new(&strict);
    let durable = std::mem::take(&mut world.options);
    world.batch(&[(1, "x")]);
    world.run();
    assert!(world.ids("s/t").is_empty());
    assert_eq!(world.reasons(), [("not_durable", "s/t".to_owned())]);
    world.options = durable;
    world.later(1);
    assert_eq!((world.ids("s/t"), world.reasons()), (vec![1], vec![]));
}

#[test]
fn dead_letters_carry_their_reason_wherever_it_is_found() {
    let text = "partition_key_column = \"user\"\npartition_key_encoding = \"partition_id\"\n\
                [sources.shop.routing.topic_defaults]\npartitions_count = 2\n\
                [sources.shop.routing.admission]\nmode = \"denylist\"\n\
                denylist = [{ stream = \"s\", topic = \"bad\" }]\n\
                on_admission_failure = \"dead_letter\"\n\
                dead_letter = { stream = \"dead\", topic = \"letters\" }";
    let mut world = World::new(&routed(text));
    world.write(1, &[Some("bad"), Some("s"), None]);
    // Not yet known to be outside.
    world.write(2, &[Some("a"), Some("s"), Some("7")]);
    world.write(3, &[Some("a"), Some("s"), Some("1")]);
    world.outlet.close(world.now);
    world.run();
    assert_eq!((world.ids("s/a"), world.outlet.complete()), (vec![3], 1));
    world.write(4, &[Some("a"), Some("s"), Some("x")]);
    world.outlet.close(world.now);
    world.run();
    let mut letters = world.ids("dead/letters");
    letters.sort_unstable();
    assert_eq!((letters, world.outlet.complete()), (vec![1, 2, 4], 2));
    let headers = String::from_utf8_lossy(&world.headers.concat()).into_owned();
    assert_eq!(headers.matches("partition_id_out_of_range").count(), 2, "{headers}");
    assert_eq!(headers.matches("denylist").count(), 1);
    let rejected = world.outlet.counters().rejected.rejected;
    assert_eq!(rejected[Reason::PartitionIdOutOfRange.index()], 2);
    assert_eq!(rejected[Reason::Denylist.index()], 1);
}

#[test]
fn what_waits_is_named_by_its_first_row_until_it_is_given_up() {
    let mut world = World::new(&routed(""));
    let refused = |world: &mut World, id| match world.write(id, &[Some(""), Some("s"), None]) {
        Routed::Held(dest, ..) => dest,
        other => panic!("{other:?}"),
    };
    let dest = refused(&mut world, 1);
    world.outlet.name_kept(dest, || "row 1 of transaction 7".to_owned());
    let dest = refused(&mut world, 2);
    world.outlet.name_kept(dest, || "row 2 of transaction 7".to_owned());
    let batch = world.batch(&[(3, "a")]);
    world.run();
    let detail = world.outlet.troubles(world.now).remove(0).detail;
    assert_eq!(detail, "the first that waits is row 1 of transaction 7");
    let held = world.outlet.pending_bytes();
    assert!(held > 0 && held < 1_000, "two messages, not the room around them: {held}");
    assert!(world.outlet.bytes() > held, "an empty buffer is memory all the same");
    world.outlet.abandon(world.now, batch);
    assert_eq!(world.outlet.pending_bytes(), 0);
    let dest = refused(&mut world, 4);
    world.outlet.name_kept(dest, || "row 5 of transaction 8".to_owned());
    world.batch(&[]);
    let detail = world.outlet.troubles(world.now).remove(0).detail;
    assert_eq!(detail, "the first that waits is row 5 of transaction 8");
}

#[test]
fn a_message_that_fits_no_frame_is_rejected_before_sending() {
    let huge = |outlet: &mut Outlet| {
        let dest = outlet.table.find(b"s", b"t").unwrap();
        let choice = outlet.any_partition(dest);
        outlet.begin(dest, choice, 9, 1_000);
        outlet.body().resize(64 << 20, 0);
        outlet.end()
    };
    let bound = "stream = \"s\"\ntopic = \"t\"";
    let mut world = World::new(&plan(bound));
    world.write(1, &[]);
    assert!(matches!(huge(&mut world.outlet), Written::Held(_)));
    world.write(2, &[]);
    world.outlet.close(world.now);
    world.run();
    assert_eq!((world.ids("s/t"), world.reasons()), (vec![1], vec![("too_large", "s/t".into())]));
    let drop = "[sources.shop.routing.admission]\non_admission_failure = \"drop\"";
    let mut world = World::new(&plan(&format!("{bound}\n{drop}")));
    assert_eq!(huge(&mut world.outlet), Written::Dropped);
    world.write(2, &[]);
    world.outlet.close(world.now);
    world.run();
    assert_eq!((world.ids("s/t"), world.outlet.complete()), (vec![2], 1));
    assert_eq!(world.outlet.counters().rejected.rejected[Reason::TooLarge.index()], 1);
}

#[test]
fn a_breaker_with_nothing_behind_it_does_not_stay_open() {
    let drop = "[sources.shop.routing.admission]\non_admission_failure = \"drop\"\n\
                startup_prewarm_deadline = \"1h\"";
    let mut world = World::new(&routed(drop));
    world.broken.insert("look default/unknown".into(), Failure::TimedOut);
    world.outlet.start(world.now);
    world.later(8);
    assert_eq!(world.outlet.counters().circuits_open, 1);
    let dropped = world.write(1, &[None, None, None]);
    assert_eq!(dropped, Routed::Dropped(Some(Reason::CircuitOpen)));
    world.broken.clear();
    world.later(1);
    assert_eq!(world.outlet.counters().circuits_open, 0);
    assert!(matches!(world.write(2, &[None, None, None]), Routed::Destination(..)));
}

#[test]
fn balanced_rows_take_turns_batch_by_batch() {
    let text = "stream = \"s\"\ntopic = \"t\"\n[sources.shop.routing.topic_defaults]\n\
                partitions_count = 3";
    let mut world = World::new(&plan(text));
    for batch in 0..6u128 {
        world.write(batch * 2, &[]);
        world.write(batch * 2 + 1, &[]);
        world.outlet.close(world.now);
        world.run();
    }
    let lengths: Vec<usize> = world.topics["s/t"].iter().map(Vec::len).collect();
    assert_eq!(lengths, [4, 4, 4]);
}

/// Rows are added to an open batch while its topic is not known, known, not found, found again.
#[test]
fn rows_of_one_key_keep_their_order_while_a_topic_is_looked_up_under_an_open_batch() {
    let mut world = World::new(&routed("partition_key_column = \"user\""));
    let key = [Some("a"), Some("s"), Some("7")];
    world.write(1, &key);
    world.outlet.close(world.now);
    world.write(2, &key);
    world.run();
    world.write(3, &key);
    world.outlet.close(world.now);
    let ask = world.outlet.next(world.now).expect("a send");
    assert!(matches!(world.write(4, &key), Routed::Destination(_, KeyChoice::Partition(_))));
    world.outlet.answer(world.now, ask.token, Err(Failure::Refused(2010)), &mut world.rng);
    assert!(matches!(world.write(5, &key), Routed::Destination(_, KeyChoice::Later(_))));
    world.run();
    assert!(matches!(world.write(6, &key), Routed::Destination(_, KeyChoice::Partition(_))));
    world.outlet.close(world.now);
    world.later(2);
    assert_eq!(world.ids("s/a"), [1, 2, 3, 4, 5, 6]);
}

#[test]
fn a_drain_waits_for_what_is_on_its_way() {
    let mut world = World::new(&routed(""));
    world.batch(&[(1, "a")]);
    world.run();
    world.batch(&[(2, "a")]);
    let ask = world.outlet.next(world.now).unwrap();
    world.batch(&[(3, "a"), (4, "new")]);
    world.outlet.drain();
    assert!(world.outlet.next(world.now).is_none());
    assert_eq!(world.outlet.outstanding(), 1);
    let answer = world.answer_to(&ask.request);
    world.outlet.answer(world.now, ask.token, answer, &mut world.rng);
    assert_eq!((world.outlet.outstanding(), world.outlet.complete()), (0, 2));
    assert!(world.outlet.next(world.now).is_none() && world.outlet.wake_at().is_none());
}
