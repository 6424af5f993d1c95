//! What the provisioner knows of one topic and of the way to one cluster.

use std::collections::BTreeSet;

use super::Side;
use crate::batch::{FeedId, TopicName};
use crate::commit::policy::Backoff;
use crate::config::TopicPlan;
use crate::iggy_wire::{ServerError, TopicInfo};
use crate::shard::event::Failure;
use crate::shard::reason::{self, Reason};
use crate::shard::snapshot::Condition;
use crate::statefile::FeedState;
use crate::time::{Millis, Now, UnixMicros};

/// How far the upstream's clock may be behind ours, microseconds. Within it a topic counts as new:
/// that copies too much rather than too little.
const CLOCK_SLACK: u64 = 60_000_000;

/// The way to one cluster.
pub(super) struct Link {
    pub(super) backoff: Backoff,
    pub(super) retry_at: Millis,
    /// Whether the cluster says that it has several nodes, once asked.
    pub(super) several: Option<bool>,
    pub(super) condition: Option<Condition>,
}

pub(super) struct Topic {
    pub(super) step: Step,
    pub(super) due: Millis,
    /// No request before this, whoever wants one: a change may still take effect.
    pub(super) quiet_until: Millis,
    /// No growth before this: a look-up may still show the count from before the last one.
    pub(super) grow_at: Millis,
    pub(super) upstream: Option<TopicInfo>,
    /// Identity the feeds were made for, or saved with; 0 if there are none.
    pub(super) downstream_created_at: u64,
    /// Identity at the last look-up, whatever came of it; the newest saved one before the first.
    pub(super) seen_created_at: u64,
    pub(super) added: BTreeSet<u32>,
    /// Partitions that something was copied to, as far as it was told.
    pub(super) copied: BTreeSet<u32>,
    /// Partitions from this number on are late (M4): how many there were when the topic was first
    /// started; `None` until it is.
    known_count: Option<u32>,
    /// The same as far as entries tell that do not say it: all that have a position.
    saved_count: Option<u32>,
    /// When upstream was first seen missing.
    pub(super) missing_at: Option<UnixMicros>,
    /// Created or grown in this round: the look-up that follows must show it.
    pub(super) changed: bool,
    pub(super) ensuring: Vec<FeedId>,
    /// Feeds that let go of a destination that is gone.
    pub(super) released: BTreeSet<FeedId>,
    /// When it may be made again, or when they are asked again.
    pub(super) create_at: Millis,
    pub(super) backoff: Backoff,
    pub(super) condition: Condition,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    FindUpstream,
    CreateUpstreamStream,
    CreateUpstreamTopic,
    FindDownstream,
    AskOptions,
    CreateStream,
    CreateTopic,
    Grow { add: u32 },
    Ended,
}

impl Step {
    pub(super) fn side(self) -> Side {
        match self {
            Step::FindUpstream | Step::CreateUpstreamStream | Step::CreateUpstreamTopic => {
                Side::Upstream
            }
            _ => Side::Downstream,
        }
    }

    /// The look-up that tells what came of it.
    pub(super) fn look_up(self) -> Step {
        match self.side() {
            Side::Upstream => Step::FindUpstream,
            Side::Downstream => Step::FindDownstream,
        }
    }

    /// In words, for errors.
    pub(super) fn words(self, plan: &TopicPlan) -> String {
        let TopicPlan { upstream, downstream } = plan;
        match self {
            Step::FindUpstream | Step::Ended => format!("looking up upstream topic {upstream}"),
            Step::CreateUpstreamStream | Step::CreateUpstreamTopic => {
                format!("creating upstream topic {upstream}")
            }
            Step::FindDownstream => format!("looking up destination topic {downstream}"),
            Step::AskOptions => format!("asking which options {downstream} may have"),
            Step::CreateStream | Step::CreateTopic => {
                format!("creating destination topic {downstream}")
            }
            Step::Grow { add } => {
                format!("adding {add} partitions to destination topic {downstream}")
            }
        }
    }

    pub(super) fn changes_something(self) -> bool {
        !matches!(self, Step::FindUpstream | Step::FindDownstream | Step::AskOptions)
    }
}

impl Link {
    pub(super) fn new(backoff: Backoff) -> Link {
        Link { backoff, retry_at: Millis(0), several: None, condition: None }
    }

    pub(super) fn say(&mut self, reason: Reason, detail: String, now: Now) {
        let since = self.condition.take().filter(|old| old.reason == reason.code);
        let since = since.map_or(now.wall.0, |old| old.since);
        self.condition = Some(Condition { since, ..condition(reason, detail, now) });
    }
}

impl Topic {
    pub(super) fn new(backoff: Backoff, now: Now) -> Topic {
        Topic {
            step: Step::FindUpstream,
            due: now.mono,
            quiet_until: Millis(0),
            grow_at: Millis(0),
            upstream: None,
            downstream_created_at: 0,
            seen_created_at: 0,
            added: BTreeSet::new(),
            copied: BTreeSet::new(),
            known_count: None,
            saved_count: None,
            missing_at: None,
            changed: false,
            ensuring: Vec::new(),
            released: BTreeSet::new(),
            create_at: Millis(0),
            backoff,
            condition: condition(reason::CONNECTING, String::new(), now),
        }
    }

    /// When the next request may leave.
    pub(super) fn ready_at(&self) -> Millis {
        self.due.max(self.quiet_until)
    }

    /// An entry of this topic was saved: it was started before.
    pub(super) fn resume(&mut self, entry: &FeedState) {
        let saved = entry.partition.saturating_add(1);
        self.saved_count = self.saved_count.max(Some(saved));
        self.known_count = self.known_count.max(entry.first_count);
        self.downstream_created_at = self.downstream_created_at.max(entry.downstream_created_at);
        self.seen_created_at = self.downstream_created_at;
        self.added.insert(entry.partition);
        if entry.last.is_some() || entry.counters.messages > 0 {
            self.copied.insert(entry.partition);
        }
    }

    /// How many partitions were there at the first start; all of them before it.
    pub(super) fn first_count(&self) -> u32 {
        self.known_count.or(self.saved_count).unwrap_or(u32::MAX)
    }

    /// Upstream was found. At the first start of a topic its partitions of this moment are the
    /// ones that `initial_offset` is meant for; a topic that was missing and is younger than that
    /// has none. One that is older was there all the time, whatever the server answered.
    pub(super) fn started(&mut self, info: &TopicInfo) {
        let is_new = |at: UnixMicros| info.created_at.saturating_add(CLOCK_SLACK) > at.0;
        let count = if self.missing_at.is_some_and(is_new) { 0 } else { info.partitions_count };
        if self.saved_count.is_none() {
            self.known_count.get_or_insert(count);
        }
    }

    pub(super) fn go(&mut self, step: Step, now: Now) {
        self.step = step;
        self.due = now.mono;
    }

    pub(super) fn say(&mut self, reason: Reason, detail: String, now: Now) {
        let since =
            if self.condition.reason == reason.code && self.condition.status == reason.status {
                self.condition.since
            } else {
                now.wall.0
            };
        self.condition = Condition { since, ..condition(reason, detail, now) };
    }

    /// The topic that is read.
    pub(super) fn is_upstream(&self, info: &TopicInfo) -> bool {
        let at = self.upstream.as_ref().map_or(0, |upstream| upstream.created_at);
        at != 0 && at == info.created_at
    }

    /// No feed can write to it before it looks at it anew.
    pub(super) fn is_released(&self) -> bool {
        self.released.len() >= self.added.len()
    }

    /// At once if nobody ever wrote to it.
    pub(super) fn may_create(&self, now: Millis) -> bool {
        self.added.is_empty() || (self.is_released() && now >= self.create_at)
    }

    /// Feeds run, and the destination is not the one of the look-up before: true once per change.
    pub(super) fn is_another(&mut self, created_at: u64) -> bool {
        let before = std::mem::replace(&mut self.seen_created_at, created_at);
        before != 0 && before != created_at && !self.added.is_empty()
    }

    /// What of the copy is gone, in words. `counts`: the number of partitions can be believed and
    /// matters.
    pub(super) fn lost(&self, name: &TopicName, info: &TopicInfo, counts: bool) -> Option<String> {
        let (now_at, known) = (info.created_at, self.downstream_created_at);
        if known != 0 && known != now_at {
            return Some(format!(
                "destination topic {name} was created at {now_at} us, messages were copied to \
                 the one created at {known} us"
            ));
        }
        let have = info.partitions_count;
        let gone: Vec<String> = self.copied.range(have..).map(u32::to_string).collect();
        (counts && !gone.is_empty()).then(|| {
            let gone = gone.join(", ");
            format!(
                "destination topic {name} has {have} partitions, messages were copied to \
                 partitions {gone} that are not there any more"
            )
        })
    }
}

/// A condition that begins now.
pub fn condition(reason: Reason, detail: String, now: Now) -> Condition {
    let Reason { code, status, advice } = reason;
    Condition { status, reason: code, detail, advice, since: now.wall.0 }
}

pub(super) fn failure_words(failure: &Failure) -> String {
    match failure {
        Failure::Refused(code) => ServerError { code: *code }.to_string(),
        Failure::TimedOut => "no answer in time".into(),
        Failure::Lost => "the connection was lost".into(),
        Failure::TooLarge { size } => format!("a reply of {size} bytes is too large"),
        Failure::Malformed(why) => why.clone(),
    }
}
