//! Making a destination exist (A5), as a machine: it says what to ask and learns from the answer.
//!
//! ```text
//! look up ─▶ there: its partitions and durability are known, done
//!    └▶ absent: options the server knows ─▶ stream ─▶ topic ─▶ look up again
//! ```
//!
//! "Exists already" is success: somebody else was faster. Whatever came of a creation, the look-up
//! decides. Options that the server's catalogue does not have are left out and named; where it
//! has no `durability`, saving and syncing every message stands in for it.

use std::collections::BTreeSet;
use std::time::Duration;

use super::failure::Failure;
use crate::batch::TopicName;
use crate::config::{Durability, TopicDefaults};
use crate::iggy_wire::{Reply, Request, ServerError, TopicInfo, TopicOption};
use crate::time::Millis;

/// What the server says of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicFacts {
    /// Partitions, at least 1.
    pub partitions: u32,
    /// Creation time, microseconds since the Unix epoch.
    pub created_at: u64,
    /// Why an ack is no promise here (A9); `None` if it is one.
    pub not_durable: Option<String>,
}

/// What a topic is made with.
#[derive(Clone, Copy, Debug)]
pub struct Recipe<'a> {
    /// Its name.
    pub topic: &'a TopicName,
    /// How it is to be.
    pub defaults: &'a TopicDefaults,
    /// Make what is missing.
    pub auto_create: bool,
    /// Topic options the server knows, once asked.
    pub catalogue: Option<&'a BTreeSet<String>>,
}

/// The machine of one destination.
#[derive(Clone, Debug, Default)]
pub struct Ensure {
    step: Step,
    /// Since when it is being made.
    making_since: Option<Millis>,
    /// The server refused to make the stream: the topic may still be possible.
    stream_refused: Option<u32>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Step {
    #[default]
    Look,
    Options,
    Stream,
    Topic,
    LookAgain,
}

/// What an answer came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Ask again.
    Next,
    /// The topic is there; how long making it took, if it was made.
    Ready(TopicFacts, Option<Duration>),
    /// The server's option catalogue; ask again.
    Catalogue(BTreeSet<String>),
    /// It did not work; the next try begins with a look-up.
    Failed {
        /// In words.
        why: String,
        /// It says something about the destination, not about the way to it.
        counts: bool,
    },
}

impl Ensure {
    /// What to ask next.
    pub fn request(&mut self, now: Millis, recipe: &Recipe<'_>) -> Request {
        let (stream, topic) = (recipe.topic.stream.clone(), recipe.topic.topic.clone());
        if self.step == Step::Options && recipe.catalogue.is_some() {
            self.step = Step::Stream;
        }
        match self.step {
            Step::Look | Step::LookAgain => Request::Topic { stream, topic },
            Step::Options => Request::DescribeTopicOptions,
            Step::Stream => {
                self.making_since.get_or_insert(now);
                Request::CreateStream { stream }
            }
            Step::Topic => {
                let none = BTreeSet::new();
                let known = recipe.catalogue.unwrap_or(&none);
                let partitions = recipe.defaults.partitions_count;
                let options = topic_options(recipe.defaults, known).0;
                Request::CreateTopic { stream, topic, partitions, options }
            }
        }
    }

    /// What the answer means.
    pub fn answer(
        &mut self,
        now: Millis,
        recipe: &Recipe<'_>,
        answer: Result<Reply, Failure>,
    ) -> Outcome {
        let step = self.step;
        match (step, answer) {
            (Step::Look | Step::LookAgain, Ok(Reply::Topic(found))) => {
                self.looked(now, recipe, found)
            }
            (Step::Options, Ok(Reply::Options(options))) => {
                self.step = Step::Stream;
                Outcome::Catalogue(options.into_iter().map(|option| option.key).collect())
            }
            // A server without the question has no option worth asking for.
            (Step::Options, Err(Failure::Refused(code)))
                if (ServerError { code }).is_unsupported() =>
            {
                self.step = Step::Stream;
                Outcome::Catalogue(BTreeSet::new())
            }
            (Step::Stream, Ok(_)) => self.go(Step::Topic),
            (Step::Topic, Ok(_)) => self.go(Step::LookAgain),
            (Step::Stream | Step::Topic, Err(Failure::Refused(code))) => {
                self.refused(recipe, step, ServerError { code })
            }
            (_, Ok(_)) => {
                self.failed(recipe, &Failure::Malformed("another kind of reply".to_owned()))
            }
            (_, Err(failure)) => self.failed(recipe, &failure),
        }
    }

    fn looked(&mut self, now: Millis, recipe: &Recipe<'_>, found: Option<TopicInfo>) -> Outcome {
        let Some(info) = found.filter(|info| info.partitions_count > 0) else {
            let missing = format!("topic {} does not exist", recipe.topic);
            return match self.step {
                Step::LookAgain => self.fail(format!("{missing} right after it was made"), true),
                _ if !recipe.auto_create => {
                    self.fail(format!("{missing}, and auto_create = false"), true)
                }
                _ => self.go(Step::Options),
            };
        };
        let took = self.making_since.take().map(|since| now.since(since));
        *self = Ensure::default();
        let not_durable = durability_problem(&info);
        let (partitions, created_at) = (info.partitions_count, info.created_at);
        Outcome::Ready(TopicFacts { partitions, created_at, not_durable }, took)
    }

    fn refused(&mut self, recipe: &Recipe<'_>, step: Step, error: ServerError) -> Outcome {
        if error.is_exists() || error.is_already_applied() {
            return self.go(if step == Step::Stream { Step::Topic } else { Step::LookAgain });
        }
        // The stream may be there, and making topics in it be permitted.
        if step == Step::Stream && error.is_unauthorized() {
            self.stream_refused = Some(error.code);
            return self.go(Step::Topic);
        }
        let error = match self.stream_refused.filter(|_| error.is_not_found()) {
            Some(code) => ServerError { code },
            None => error,
        };
        self.failed(recipe, &Failure::Refused(error.code))
    }

    fn failed(&mut self, recipe: &Recipe<'_>, failure: &Failure) -> Outcome {
        let what = match self.step {
            Step::Look | Step::LookAgain => "looking up",
            Step::Options => "asking for the options of",
            Step::Stream => "making the stream of",
            Step::Topic => "making",
        };
        self.fail(format!("{what} {}: {failure}", recipe.topic), failure.counts())
    }

    fn fail(&mut self, why: String, counts: bool) -> Outcome {
        self.step = Step::Look;
        self.stream_refused = None;
        Outcome::Failed { why, counts }
    }

    fn go(&mut self, step: Step) -> Outcome {
        self.step = step;
        Outcome::Next
    }
}

/// The options to make a topic with, and in words what cannot be had.
pub fn topic_options(
    defaults: &TopicDefaults,
    catalogue: &BTreeSet<String>,
) -> (Vec<TopicOption>, Vec<String>) {
    let (mut kept, mut left_out) = (Vec::new(), Vec::new());
    let mut set = |key: &str, value: String| {
        let known = catalogue.contains(key);
        if known {
            kept.push(TopicOption { key: key.to_owned(), value });
        }
        known
    };
    let wanted = [
        ("compression_algorithm", defaults.compression_algorithm.clone()),
        ("message_expiry", defaults.message_expiry.map(|micros| micros.to_string())),
        ("max_topic_size", defaults.max_topic_size.map(|bytes| bytes.to_string())),
        ("replication_factor", defaults.replication_factor.map(|copies| copies.to_string())),
    ];
    for (key, value) in wanted {
        if let Some(value) = value
            && !set(key, value.clone())
        {
            left_out.push(format!("{key} = {value}: the server does not know the option"));
        }
    }
    let persisted = defaults.durability == Durability::Persisted;
    let durability = if persisted { "persisted" } else { "replicated" };
    if !set("durability", durability.to_owned()) && persisted {
        let every = set("messages_required_to_save", "1".to_owned());
        let synced = set("enforce_fsync", "true".to_owned());
        left_out.push(if every && synced {
            "durability = persisted: the server does not know the option; every message is \
             saved and synced instead"
                .to_owned()
        } else {
            "durability = persisted: the server does not know the option, nor what could stand \
             in for it"
                .to_owned()
        });
    }
    (kept, left_out)
}

/// Why acks of this topic do not mean that the message is on disk (A9).
pub fn durability_problem(info: &TopicInfo) -> Option<String> {
    let option = |key: &str| {
        info.options.iter().find(|option| option.key == key).map(|option| option.value.as_str())
    };
    let seen = match option("durability") {
        Some("persisted") => return None,
        Some(other) => format!("durability = {other}"),
        None => {
            let every = option("messages_required_to_save");
            let synced = option("enforce_fsync");
            if (every, synced) == (Some("1"), Some("true")) {
                return None;
            }
            let shown = |value: Option<&str>| value.unwrap_or("unknown").to_owned();
            format!(
                "no durability option, messages_required_to_save = {}, enforce_fsync = {}",
                shown(every),
                shown(synced)
            )
        }
    };
    Some(format!("{seen}: a crash of the server can lose what it has acked"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iggy_wire::OptionInfo;

    const RELEASE: &[&str] = &["compression_algorithm", "message_expiry", "durability"];
    const EDGE: &[&str] = &["message_expiry", "messages_required_to_save", "enforce_fsync"];

    fn defaults() -> TopicDefaults {
        TopicDefaults {
            partitions_count: 4,
            compression_algorithm: None,
            replication_factor: None,
            message_expiry: None,
            max_topic_size: None,
            durability: Durability::Persisted,
        }
    }

    fn info(partitions_count: u32, options: &[(&str, &str)]) -> TopicInfo {
        let option = |(key, value): &(&str, &str)| TopicOption {
            key: (*key).into(),
            value: (*value).into(),
        };
        TopicInfo {
            name: "orders".into(),
            created_at: 77,
            partitions_count,
            message_expiry: 0,
            compression: 1,
            max_size: 0,
            size: 0,
            messages_count: 0,
            options: options.iter().map(option).collect(),
            partitions: Vec::new(),
        }
    }

    /// Drives a machine with given answers; returns the requests and the last outcome.
    struct Driven {
        ensure: Ensure,
        catalogue: Option<BTreeSet<String>>,
        auto_create: bool,
        asked: Vec<String>,
        now: Millis,
    }

    impl Driven {
        fn new() -> Driven {
            let ensure = Ensure::default();
            Driven { ensure, catalogue: None, auto_create: true, asked: Vec::new(), now: Millis(0) }
        }

        fn step(&mut self, answer: Result<Reply, Failure>) -> Outcome {
            let (topic, defaults) = (TopicName::new("commerce", "orders"), defaults());
            let catalogue = self.catalogue.clone();
            let recipe = Recipe {
                topic: &topic,
                defaults: &defaults,
                auto_create: self.auto_create,
                catalogue: catalogue.as_ref(),
            };
            self.now = self.now + Duration::from_millis(10);
            let request = self.ensure.request(self.now, &recipe);
            let words = format!("{request:?}");
            self.asked.push(words.split([' ', '{']).next().unwrap_or_default().to_owned());
            let outcome = self.ensure.answer(self.now, &recipe, answer);
            if let Outcome::Catalogue(known) = &outcome {
                self.catalogue = Some(known.clone());
            }
            outcome
        }
    }

    fn keys(keys: &[&str]) -> Reply {
        Reply::Options(keys.iter().map(|key| OptionInfo { key: (*key).into() }).collect())
    }

    fn missing() -> Result<Reply, Failure> {
        Ok(Reply::Topic(None))
    }

    #[test]
    fn a_topic_that_is_there_needs_one_look() {
        let mut driven = Driven::new();
        let found = driven.step(Ok(Reply::Topic(Some(info(3, &[("durability", "persisted")])))));
        let facts = TopicFacts { partitions: 3, created_at: 77, not_durable: None };
        assert_eq!(found, Outcome::Ready(facts, None));
    }

    #[test]
    fn what_is_missing_is_made_and_looked_at() {
        let mut driven = Driven::new();
        assert_eq!(driven.step(missing()), Outcome::Next);
        assert!(matches!(driven.step(Ok(keys(RELEASE))), Outcome::Catalogue(_)));
        assert_eq!(driven.step(Ok(Reply::Done)), Outcome::Next);
        assert_eq!(driven.step(Ok(Reply::Topic(Some(info(4, &[]))))), Outcome::Next);
        let Outcome::Ready(facts, Some(took)) = driven.step(Ok(Reply::Topic(Some(info(4, &[])))))
        else {
            panic!("ready");
        };
        assert_eq!((facts.partitions, took), (4, Duration::from_millis(20)));
        assert!(facts.not_durable.is_some());
        let steps = ["Topic", "DescribeTopicOptions", "CreateStream", "CreateTopic", "Topic"];
        assert_eq!(driven.asked, steps);
    }

    #[test]
    fn somebody_else_being_faster_is_success() {
        let mut driven = Driven::new();
        driven.catalogue = Some(BTreeSet::new());
        driven.step(missing());
        assert_eq!(driven.step(Err(Failure::Refused(1012))), Outcome::Next);
        assert_eq!(driven.step(Err(Failure::Refused(2013))), Outcome::Next);
        let found = driven.step(Ok(Reply::Topic(Some(info(1, &[])))));
        assert!(matches!(found, Outcome::Ready(TopicFacts { partitions: 1, .. }, Some(_))));
        assert_eq!(driven.asked, ["Topic", "CreateStream", "CreateTopic", "Topic"]);
    }

    #[test]
    fn any_failure_begins_again_with_a_look() {
        for (failure, counts) in [
            (Failure::TimedOut, true),
            (Failure::Lost, false),
            (Failure::Refused(57), false),
            (Failure::Refused(4042), true),
        ] {
            let mut driven = Driven::new();
            driven.catalogue = Some(BTreeSet::new());
            driven.step(missing());
            driven.step(Ok(Reply::Done));
            let Outcome::Failed { why, counts: counted } = driven.step(Err(failure.clone())) else {
                panic!("{failure}: failed");
            };
            assert_eq!(counted, counts, "{failure}");
            assert!(why.starts_with("making commerce/orders: "), "{why}");
            driven.step(missing());
            assert_eq!(driven.asked.last().map(String::as_str), Some("Topic"), "{failure}");
        }
    }

    #[test]
    fn a_server_without_a_catalogue_gets_no_options() {
        let mut driven = Driven::new();
        driven.step(missing());
        let answer = driven.step(Err(Failure::Refused(3)));
        assert_eq!(answer, Outcome::Catalogue(BTreeSet::new()));
        driven.step(Ok(Reply::Done));
        assert_eq!(driven.asked[2], "CreateStream");
    }

    #[test]
    fn without_permission_for_streams_the_topic_is_tried_and_the_cause_is_told() {
        let mut driven = Driven::new();
        driven.catalogue = Some(BTreeSet::new());
        driven.step(missing());
        assert_eq!(driven.step(Err(Failure::Refused(41))), Outcome::Next);
        let Outcome::Failed { why, .. } = driven.step(Err(Failure::Refused(1009))) else {
            panic!("failed");
        };
        assert!(why.contains("unauthorized"), "{why}");
    }

    #[test]
    fn nothing_is_made_where_that_is_forbidden_or_without_effect() {
        let mut driven = Driven::new();
        driven.auto_create = false;
        let Outcome::Failed { why, counts } = driven.step(missing()) else { panic!("failed") };
        assert!(counts && why.contains("auto_create = false"), "{why}");
        let mut driven = Driven::new();
        driven.catalogue = Some(BTreeSet::new());
        driven.step(missing());
        driven.step(Ok(Reply::Done));
        driven.step(Ok(Reply::Done));
        let Outcome::Failed { why, .. } = driven.step(missing()) else { panic!("failed") };
        assert!(why.contains("right after it was made"), "{why}");
    }

    #[test]
    fn options_follow_the_catalogue_and_durability_has_a_stand_in() {
        let known = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect();
        let mut wanted = defaults();
        wanted.message_expiry = Some(u64::MAX);
        wanted.compression_algorithm = Some("gzip".into());
        wanted.replication_factor = Some(3);
        let shown = |(kept, left_out): (Vec<TopicOption>, Vec<String>)| {
            let kept: Vec<String> =
                kept.into_iter().map(|option| format!("{}={}", option.key, option.value)).collect();
            (kept.join(" "), left_out.join("; "))
        };
        let (kept, left_out) = shown(topic_options(&wanted, &known(RELEASE)));
        let expiry = format!("message_expiry={}", u64::MAX);
        assert_eq!(kept, format!("compression_algorithm=gzip {expiry} durability=persisted"));
        assert!(left_out.starts_with("replication_factor = 3"), "{left_out}");
        let (kept, left_out) = shown(topic_options(&wanted, &known(EDGE)));
        assert_eq!(kept, format!("{expiry} messages_required_to_save=1 enforce_fsync=true"));
        assert!(left_out.contains("saved and synced instead"), "{left_out}");
        let (kept, left_out) = shown(topic_options(&defaults(), &known(&[])));
        assert_eq!(kept, "");
        assert!(left_out.contains("nor what could stand in"), "{left_out}");
        let replicated = TopicDefaults { durability: Durability::Replicated, ..defaults() };
        assert_eq!(shown(topic_options(&replicated, &known(EDGE))), Default::default());
    }

    #[test]
    fn only_what_is_on_disk_before_the_ack_is_durable() {
        let problem = |options: &[(&str, &str)]| durability_problem(&info(1, options));
        assert_eq!(problem(&[("durability", "persisted")]), None);
        let every = ("messages_required_to_save", "1");
        assert_eq!(problem(&[every, ("enforce_fsync", "true")]), None);
        for options in [
            &[("durability", "replicated")][..],
            &[every],
            &[every, ("enforce_fsync", "false")],
            &[("messages_required_to_save", "1024"), ("enforce_fsync", "true")],
            &[],
        ] {
            let why = problem(options).unwrap();
            assert!(why.contains("can lose what it has acked"), "{options:?}: {why}");
        }
    }
}
