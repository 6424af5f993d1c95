//! Where a partition ends in a cluster of several nodes, as its nodes say (M6): what each is
//! asked, and what the answers of several mean.
//!
//! ```text
//! node ─▶ is the topic the one we mean? ─▶ poll behind the end ─┬─ end
//!                     │ no                                     └─ 0 ─▶ its last message ─▶ end
//!                     ▼                                     (one message there looks like none)
//!               not this cluster
//! ```
//!
//! An address that the cluster advertises may lead to another cluster: the roster is old, the
//! network translates, an address was given to somebody else. So nothing counts that a node says
//! of a topic that was created at another time. What a node shows is committed: the highest end
//! is the end, once a majority has answered.

use super::event::{Failure, Place};
use super::nodes::{Heard, Nodes};
use crate::batch::TopicName;
use crate::iggy_wire::{PollFrom, Polled, Reply, Request, ServerError, TopicInfo, Verify, record};
use crate::ingest::history::end_of_empty_reply;

/// Behind every log's end: a poll there answers where the log ends and no message. Below the
/// range's end, so that a server may add to it.
const BEYOND: u64 = u64::MAX / 2;

/// One node, and what it is being asked.
#[derive(Clone, Debug)]
pub struct Inquiry {
    topic: TopicName,
    partition: u32,
    created_at: u64,
    question: Question,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Question {
    Identity,
    End,
    Last,
}

/// Why a node has no vote.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Silence {
    /// It has another topic of that name, or none: most likely it is of another cluster.
    #[error("{0}")]
    Stranger(String),
    /// It gave no answer.
    #[error("{0}")]
    Mute(String),
}

/// What a node shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// Where it is.
    pub place: Place,
    /// Where the partition ends there.
    pub end: u64,
}

impl Inquiry {
    /// `created_at`: of the topic, as a configured address shows it.
    pub fn new(topic: &TopicName, partition: u32, created_at: u64) -> Inquiry {
        Inquiry { topic: topic.clone(), partition, created_at, question: Question::Identity }
    }

    /// The next question.
    pub fn request(&self) -> Request {
        let TopicName { stream, topic } = self.topic.clone();
        let partition = self.partition;
        let poll = |from| {
            let (stream, topic) = (stream.clone(), topic.clone());
            Request::Poll { stream, topic, partition, from, count: 1 }
        };
        match self.question {
            Question::Identity => Request::Topic { stream, topic },
            Question::End => poll(PollFrom::Offset(BEYOND)),
            Question::Last => poll(PollFrom::Last),
        }
    }

    /// Takes an answer. `None`: there is one more question.
    pub fn answered(&mut self, result: &Result<Reply, Failure>) -> Option<Result<u64, Silence>> {
        match (self.question, result) {
            (Question::Identity, Ok(Reply::Topic(info))) => {
                if let Some(why) = stranger(info.as_ref(), &self.topic, self.created_at) {
                    return Some(Err(Silence::Stranger(why)));
                }
                self.question = Question::End;
                None
            }
            (Question::End, Ok(Reply::Polled(polled))) => match self.end(polled) {
                Ok(0) => {
                    self.question = Question::Last;
                    None
                }
                end => Some(end),
            },
            (Question::Last, Ok(Reply::Polled(polled))) => Some(self.end(polled)),
            // There is a message, and a moment ago there was none behind it.
            (Question::Last, Err(Failure::TooLarge { .. })) => Some(Ok(1)),
            (_, Err(failure)) => Some(Err(Silence::Mute(words(failure)))),
            (_, Ok(_)) => Some(Err(Silence::Mute("another kind of reply".into()))),
        }
    }

    fn end(&self, polled: &Polled) -> Result<u64, Silence> {
        if polled.partition != self.partition {
            let (asked, seen) = (self.partition, polled.partition);
            let why = format!("asked for partition {asked}, partition {seen} answered");
            return Err(Silence::Mute(why));
        }
        let records = record::scan(&polled.records, Verify::FramingOnly);
        let records = records.map_err(|error| Silence::Mute(error.to_string()))?;
        Ok(records.last().map_or_else(|| end_of_empty_reply(polled), |last| last.next_offset()))
    }
}

/// Why a topic is not the one that was created at `created_at`.
pub fn stranger(info: Option<&TopicInfo>, name: &TopicName, created_at: u64) -> Option<String> {
    let seen = match info {
        Some(info) if info.created_at == created_at => return None,
        Some(info) => format!("shows topic {name} as created at {} us", info.created_at),
        None => format!("shows no topic {name}"),
    };
    Some(format!("{seen}, the one at the configured address was created at {created_at} us"))
}

/// A failure in words.
fn words(failure: &Failure) -> String {
    match failure {
        Failure::Refused(code) => ServerError { code: *code }.to_string(),
        other => format!("{other:?}"),
    }
}

/// How many nodes said where the partition ends. A node that was reached under two names counts
/// once. `home`: where the node in use is, if it is one of those that count.
pub fn heard(nodes: &Nodes, home: Option<&Place>, shown: &[Shown]) -> Heard {
    let others = shown.iter().map(|shown| &shown.place);
    let places: Vec<Place> = home.into_iter().chain(others).cloned().collect();
    Heard { nodes: nodes.told_apart(&places), answers: places.len() }
}

/// The node that shows the most, the first of several.
pub fn highest(shown: &[Shown]) -> Option<&Shown> {
    shown.iter().reduce(|a, b| if b.end > a.end { b } else { a })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::iggy_wire::build::{Message, build_record};

    fn topic(created_at: u64) -> Reply {
        Reply::Topic(Some(TopicInfo {
            name: "t".into(),
            created_at,
            partitions_count: 1,
            message_expiry: 0,
            compression: 1,
            max_size: 0,
            size: 0,
            messages_count: 0,
            options: Vec::new(),
            partitions: Vec::new(),
        }))
    }

    fn polled(partition: u32, current_offset: u64, records: Bytes) -> Reply {
        let count = u32::from(!records.is_empty());
        Reply::Polled(Polled { partition, current_offset, count, records })
    }

    fn asked(replies: &[Result<Reply, Failure>]) -> Result<u64, Silence> {
        let mut inquiry = Inquiry::new(&TopicName::new("s", "t"), 3, 7);
        for (index, reply) in replies.iter().enumerate() {
            if let Some(said) = inquiry.answered(reply) {
                assert_eq!(index + 1, replies.len(), "{said:?} came early");
                return said;
            }
        }
        panic!("asks on: {inquiry:?}")
    }

    fn shown(address: &str, peer: &str, end: u64) -> Shown {
        Shown { place: Place { address: address.into(), peer: peer.into() }, end }
    }

    /// How many nodes are heard where three are configured and nothing is advertised.
    fn nodes_heard(home: Option<&str>, shown: &[Shown]) -> usize {
        let configured = ["a:1", "b:1", "c:1"].map(str::to_owned);
        let home = home.map(|peer| Place { address: "c:1".into(), peer: peer.into() });
        let any = Place { address: "a:1".into(), peer: "a:1".into() };
        heard(&Nodes::new(&configured, &[], &any), home.as_ref(), shown).nodes
    }

    #[test]
    fn one_message_is_told_from_none() {
        let nothing = || Ok(polled(3, 0, Bytes::new()));
        let message = build_record(&[Message { payload: b"x", ..Default::default() }]).unwrap();
        let one = Ok(polled(3, 0, message.stored(3, 0, 9)));
        assert_eq!(asked(&[Ok(topic(7)), Ok(polled(3, 41, Bytes::new()))]), Ok(42));
        assert_eq!(asked(&[Ok(topic(7)), nothing(), nothing()]), Ok(0));
        assert_eq!(asked(&[Ok(topic(7)), nothing(), one]), Ok(1));
        let large = Err(Failure::TooLarge { size: 1 << 25 });
        assert_eq!(asked(&[Ok(topic(7)), nothing(), large]), Ok(1), "too large to be nothing");
    }

    #[test]
    fn another_topic_has_no_vote() {
        for other in [Ok(topic(8)), Ok(Reply::Topic(None))] {
            let said = asked(&[other]);
            assert!(matches!(&said, Err(Silence::Stranger(_))), "{said:?}");
        }
        let other = asked(&[Ok(topic(7)), Ok(polled(2, 41, Bytes::new()))]);
        assert!(matches!(&other, Err(Silence::Mute(why)) if why.contains("partition 2 answered")));
        let refused = asked(&[Ok(topic(7)), Err(Failure::Refused(3007))]);
        assert!(matches!(&refused, Err(Silence::Mute(why)) if why.contains("3007")), "{refused:?}");
    }

    #[test]
    fn a_node_counts_once() {
        let two = [shown("a:1", "10.0.0.1:1", 5), shown("b:1", "10.0.0.1:1", 6)];
        assert_eq!((nodes_heard(None, &two), nodes_heard(Some("10.0.0.1:1"), &two)), (1, 1));
        assert_eq!(nodes_heard(Some("10.0.0.2:1"), &two), 2);
        assert_eq!((nodes_heard(Some("10.0.0.2:1"), &[]), nodes_heard(None, &[])), (1, 0));
        assert_eq!(highest(&two).map(|shown| shown.end), Some(6));
        assert_eq!(highest(&[]), None);
    }
}
