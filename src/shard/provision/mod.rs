//! Who owns creation: one provisioner per source finds the topics, makes and grows what is
//! missing, and says which feeds to run (M3, M8, A5). Pure: answers in, requests out.
//!
//! ```text
//! look up upstream ─▶ look up destination ─▶ enough partitions ─▶ feeds, look again later
//!   │ missing: wait, create or fail   │ missing: options ─▶ stream ─▶ topic ─▶ look up again
//!   └─────────────────────────────────┴ too few: add the difference ─▶ look up again
//! ```
//! One request is outstanding at a time. Whatever came of a creation, the next request is a
//! look-up, after `settle` where the outcome is unknown, even if a feed asks meanwhile. Adding
//! partitions is not idempotent: never twice within `settle`, the look-up in between may be older.
//! Partitions with a saved position get their feeds before any look-up, so that no save of their
//! shard can lose them; what is absent *then* is the feeds' business and is made again only when
//! one of them asks ([`Provisioner::ensure`]).

mod absent;
mod nodes;
pub mod options;
mod output;
#[cfg(test)]
mod tests;
mod topic;

use std::collections::BTreeSet;
use std::sync::Arc;

use self::nodes::silent;
pub use self::output::{NewFeed, Next, Notice, Output, Side, Trouble};
#[cfg(test)]
pub(crate) use self::tests::plan as sample_plan;
pub use self::topic::condition;
use self::topic::{Link, Step, Topic, failure_words};
use super::event::{ConnError, Failure};
use super::reason::{self, Reason};
use super::snapshot::{Condition, SourceFinding, Status};
use crate::batch::FeedId;
use crate::commit::policy::Backoff;
use crate::config::{
    ClusterPlan, MirrorPlan, OnDestinationLost, OnMissingUpstream, Partitions, TopicPlan,
};
use crate::iggy_wire::{Reply, Request, ServerError, TopicInfo};
use crate::statefile::FeedState;
use crate::time::{Millis, Now};

/// Look-ups, creations and feeds of one source.
pub struct Provisioner {
    plan: Arc<MirrorPlan>,
    rng: fastrand::Rng,
    topics: Vec<Topic>,
    links: [Link; 2],
    /// Topic options the destination knows, once asked.
    catalogue: Option<BTreeSet<String>>,
    told: BTreeSet<String>,
    asked: Option<usize>,
    /// What is out is the question how many nodes there are, not the topic's step.
    asks_nodes: bool,
    /// An operator has the source rest.
    rests: Option<Condition>,
    outputs: Vec<Output>,
}

impl Provisioner {
    /// `saved`: newest entry of every feed of this source, from all its files.
    pub fn new(now: Now, plan: Arc<MirrorPlan>, saved: &[FeedState], seed: u64) -> Provisioner {
        let backoff = Backoff::new(plan.retry_interval, plan.max_retry_interval);
        let topics = plan.topics.iter().map(|_| Topic::new(backoff.clone(), now)).collect();
        let links = [Link::new(backoff.clone()), Link::new(backoff)];
        let mut provisioner = Provisioner {
            rng: fastrand::Rng::with_seed(seed),
            topics,
            links,
            catalogue: None,
            told: BTreeSet::new(),
            asked: None,
            asks_nodes: false,
            rests: None,
            outputs: Vec::new(),
            plan,
        };
        provisioner.resume(saved);
        provisioner
    }

    /// What happened since the last call.
    pub fn take_outputs(&mut self) -> Vec<Output> {
        std::mem::take(&mut self.outputs)
    }

    /// What keeps a link or a topic from running.
    pub fn findings(&self) -> Vec<SourceFinding> {
        let source = &self.plan.key;
        let finding = |topic, condition: &Condition| SourceFinding {
            source: source.clone(),
            topic,
            condition: condition.clone(),
        };
        let topics = self.plan.topics.iter().zip(&self.topics);
        if let Some(rests) = &self.rests {
            // Where there are feeds, they say it themselves.
            let silent = topics.filter(|(_, topic)| topic.added.is_empty());
            return silent.map(|(plan, _)| finding(Some(plan.upstream.clone()), rests)).collect();
        }
        let links = self.links.iter().filter_map(|link| link.condition.as_ref());
        links
            .map(|condition| finding(None, condition))
            .chain(
                topics
                    .filter(|(_, topic)| topic.condition.status != Status::Running)
                    .map(|(plan, topic)| finding(Some(plan.upstream.clone()), &topic.condition)),
            )
            .collect()
    }

    /// An operator has the source rest, or go on: nothing is asked or made while it rests. What
    /// was seen before may be old by then, so every round starts again from the look-ups.
    pub fn rest(&mut self, now: Now, rests: bool) {
        match (rests, &self.rests) {
            (true, None) => self.rests = Some(condition(reason::PAUSED, String::new(), now)),
            (false, Some(_)) => {
                self.rests = None;
                self.look_again(now, |step| step != Step::Ended);
            }
            _ => {}
        }
    }

    /// An operator wants the source to begin again, topics that were given up included.
    pub fn begin_again(&mut self, now: Now) {
        self.links.iter_mut().for_each(|link| link.retry_at = now.mono);
        self.look_again(now, |_| true);
    }

    /// Begins a new round of these topics. A request that is out ends its own round.
    fn look_again(&mut self, now: Now, of: impl Fn(Step) -> bool) {
        for (index, topic) in self.topics.iter_mut().enumerate() {
            if self.asked != Some(index) && of(topic.step) {
                topic.changed = false;
                topic.backoff.reset();
                topic.go(Step::FindUpstream, now);
            }
        }
    }

    /// A feed found its destination absent and its policy is to fill it again.
    pub fn ensure(&mut self, now: Now, topic: usize, feed: FeedId) {
        let plan = &self.plan;
        let refusal = if plan.on_destination_lost != OnDestinationLost::Refill {
            Some("on_destination_lost is not \"refill\"")
        } else if !plan.auto_create {
            Some("auto_create = false: the topic has to be created by hand")
        } else {
            None
        };
        if let Some(why) = refusal {
            self.outputs.push(Output::Ready { feed, result: Err(why.into()) });
            return;
        }
        let is_asked = self.asked == Some(topic);
        if let Some(topic) = self.topics.get_mut(topic) {
            topic.ensuring.push(feed);
            // A round under way ends in a look-up of the destination anyway.
            if !is_asked && !topic.step.changes_something() {
                topic.step = Step::FindUpstream;
                topic.due = now.mono;
            }
        }
    }

    /// This answer shows fewer partitions than there are feeds: tell [`Provisioner::copied`] first.
    pub fn lacks_partitions(&self, answer: &Result<Reply, Trouble>) -> bool {
        let Some(topic) = self.asked.and_then(|index| self.topics.get(index)) else { return false };
        let Ok(Reply::Topic(Some(info))) = answer else { return false };
        topic.step == Step::FindDownstream && topic.added.range(info.partitions_count..).count() > 0
    }

    /// Index of the topic and partition of feeds that have copied something.
    pub fn copied(&mut self, feeds: impl IntoIterator<Item = (usize, u32)>) {
        for (topic, partition) in feeds {
            if let Some(topic) = self.topics.get_mut(topic) {
                topic.copied.insert(partition);
            }
        }
    }

    /// A feed has let go of a destination that will be made again.
    pub fn released(&mut self, now: Now, topic: usize, feed: FeedId) {
        let settle = self.settle(Side::Downstream);
        let is_asked = self.asked == Some(topic);
        let Some(topic) = self.topics.get_mut(topic) else { return };
        topic.released.insert(feed);
        if !topic.is_released() {
            return;
        }
        // What they had sent may arrive until then, and must not find the new topic.
        topic.create_at = now.mono + settle;
        if !is_asked && !topic.step.changes_something() {
            topic.step = Step::FindUpstream;
            topic.due = topic.create_at;
        }
    }

    /// The next request, or how long there is none. Not to be called with one outstanding.
    pub fn next(&mut self, now: Now) -> Next {
        if self.rests.is_some() {
            return Next::Sleep(Millis(u64::MAX));
        }
        let at = |topic: &Topic| match topic.step {
            Step::Ended => Millis(u64::MAX),
            step => topic.ready_at().max(self.links[step.side() as usize].retry_at),
        };
        let first = self.topics.iter().enumerate().min_by_key(|(_, topic)| at(topic));
        match first {
            Some((index, topic)) if at(topic) <= now.mono => {
                let side = topic.step.side();
                self.asks_nodes = self.needs_nodes(topic.step);
                let asks = self.asks_nodes.then_some(Request::ClusterMetadata);
                let request = asks.unwrap_or_else(|| self.request(index));
                self.asked = Some(index);
                Next::Ask { side, request }
            }
            Some((_, topic)) => Next::Sleep(at(topic)),
            None => Next::Sleep(Millis(u64::MAX)),
        }
    }

    /// The end of the request that [`Provisioner::next`] returned.
    pub fn answer(&mut self, now: Now, answer: Result<Reply, Trouble>) {
        let Some(index) = self.asked.take() else { return };
        let step = self.topics[index].step;
        let is_lost =
            matches!(answer, Err(Trouble::Unreachable(_) | Trouble::Failed(Failure::Lost)));
        if !matches!(answer, Err(Trouble::Unreachable(_))) {
            let link = &mut self.links[step.side() as usize];
            link.backoff.reset();
            link.condition = None;
        }
        if std::mem::take(&mut self.asks_nodes) {
            self.nodes(now, index, step.side(), answer);
        } else {
            self.ended(now, index, step, answer);
        }
        if is_lost {
            // The next connection may lead to another server.
            self.links[step.side() as usize].several = None;
        }
    }

    fn ended(&mut self, now: Now, index: usize, step: Step, answer: Result<Reply, Trouble>) {
        match answer {
            Ok(reply) => self.replied(now, index, step, reply),
            Err(Trouble::Unreachable(error)) => self.unreachable(now, index, step.side(), &error),
            Err(Trouble::Failed(Failure::Refused(code))) => self.refused(now, index, step, code),
            Err(Trouble::Failed(failure)) => {
                let detail = format!(
                    "{}: {}",
                    step.words(&self.plan.topics[index]),
                    failure_words(&failure)
                );
                self.unknown(now, index, step, silent(step.side()), detail);
            }
        }
    }

    /// Feeds of everything that was saved.
    fn resume(&mut self, saved: &[FeedState]) {
        let places = saved.iter().filter_map(|entry| {
            let is_it = |topic: &TopicPlan| {
                topic.upstream == entry.upstream && topic.downstream == entry.downstream
            };
            Some((self.plan.topics.iter().position(is_it)?, entry))
        });
        let places: Vec<_> = places.collect();
        for &(index, entry) in &places {
            self.topics[index].resume(entry);
        }
        for (index, entry) in places {
            self.outputs.push(Output::Add(Box::new(NewFeed {
                topic: index,
                partition: entry.partition,
                saved: Some(entry.clone()),
                first_count: self.topics[index].first_count(),
                upstream_created_at: entry.upstream_created_at,
                downstream_created_at: entry.downstream_created_at,
            })));
        }
    }

    fn request(&self, index: usize) -> Request {
        let TopicPlan { upstream, downstream } = &self.plan.topics[index];
        let here = &self.topics[index];
        let name = |name: &crate::batch::TopicName| (name.stream.clone(), name.topic.clone());
        let ((up_stream, up_topic), (stream, topic)) = (name(upstream), name(downstream));
        match here.step {
            Step::FindUpstream | Step::Ended => {
                Request::Topic { stream: up_stream, topic: up_topic }
            }
            Step::CreateUpstreamStream => Request::CreateStream { stream: up_stream },
            Step::CreateUpstreamTopic => Request::CreateTopic {
                stream: up_stream,
                topic: up_topic,
                partitions: 1,
                options: Vec::new(),
            },
            Step::FindDownstream => Request::Topic { stream, topic },
            Step::AskOptions => Request::DescribeTopicOptions,
            Step::CreateStream => Request::CreateStream { stream },
            Step::CreateTopic => {
                let none = BTreeSet::new();
                let known = self.catalogue.as_ref().unwrap_or(&none);
                let partitions = here.upstream.as_ref().map_or(1, |info| info.partitions_count);
                let options = here.upstream.as_ref();
                let options = options.map(|info| options::options_for(info, known).0);
                let options = options.unwrap_or_default();
                Request::CreateTopic { stream, topic, partitions: partitions.max(1), options }
            }
            Step::Grow { add } => Request::CreatePartitions { stream, topic, add },
        }
    }

    fn replied(&mut self, now: Now, index: usize, step: Step, reply: Reply) {
        match (step, reply) {
            (Step::FindUpstream, Reply::Topic(Some(info))) => {
                let topic = &mut self.topics[index];
                topic.started(&info);
                topic.upstream = Some(info);
                topic.changed = false;
                topic.go(Step::FindDownstream, now);
            }
            (Step::FindUpstream, Reply::Topic(None)) => self.upstream_missing(now, index),
            (Step::FindDownstream, Reply::Topic(found)) => self.downstream(now, index, found),
            (Step::AskOptions, Reply::Options(options)) => {
                self.catalogue = Some(options.into_iter().map(|option| option.key).collect());
                self.topics[index].go(Step::CreateStream, now);
            }
            (step, reply) if step.changes_something() => {
                drop(reply);
                self.changed(now, index, step);
            }
            (step, _) => {
                let detail =
                    format!("{}: a reply of another kind", step.words(&self.plan.topics[index]));
                self.retry(now, index, reason::NOT_ACCEPTED, detail);
            }
        }
    }

    /// A creation or growth is done, by us or by somebody before us.
    fn changed(&mut self, now: Now, index: usize, step: Step) {
        let next = match step {
            Step::CreateUpstreamStream => Step::CreateUpstreamTopic,
            Step::CreateStream => Step::CreateTopic,
            other => other.look_up(),
        };
        if matches!(step, Step::CreateUpstreamTopic | Step::CreateTopic | Step::Grow { .. }) {
            self.topics[index].changed = true;
            self.tell_change(index, step);
        }
        if matches!(step, Step::Grow { .. }) {
            self.topics[index].grow_at = now.mono + self.settle(Side::Downstream);
        }
        self.topics[index].go(next, now);
    }

    fn upstream_missing(&mut self, now: Now, index: usize) {
        let name = &self.plan.topics[index].upstream;
        let detail = format!("upstream topic {name} does not exist");
        let topic = &mut self.topics[index];
        topic.missing_at.get_or_insert(now.wall);
        let created = std::mem::take(&mut topic.changed);
        // A topic that was copied from is never created again: its history is gone.
        let policy = match self.plan.on_missing_upstream {
            _ if !topic.added.is_empty() => OnMissingUpstream::Wait,
            OnMissingUpstream::Create if created => OnMissingUpstream::Wait,
            policy => policy,
        };
        match policy {
            OnMissingUpstream::Wait => self.retry(now, index, reason::WAITING_UPSTREAM, detail),
            OnMissingUpstream::Create => topic.go(Step::CreateUpstreamStream, now),
            OnMissingUpstream::Fail => {
                topic.step = Step::Ended;
                topic.say(reason::MISSING_UPSTREAM, detail, now);
            }
        }
    }

    fn downstream(&mut self, now: Now, index: usize, found: Option<TopicInfo>) {
        let name = &self.plan.topics[index].downstream;
        let topic = &mut self.topics[index];
        let changed = std::mem::take(&mut topic.changed);
        let Some(info) = found else {
            return self.absent(now, index, changed);
        };
        topic.released.clear();
        if self.plan.topics[index].is_one() && topic.is_upstream(&info) {
            let detail = format!(
                "{name} would be copied onto itself: the topics of both clusters were created at \
                 the same microsecond"
            );
            topic.step = Step::Ended;
            return topic.say(reason::ONTO_ITSELF, detail, now);
        }
        if topic.is_another(info.created_at) {
            let created_at = info.created_at;
            self.outputs.push(Output::LookAgain { topic: index, created_at });
        }
        let is_old = changed || now.mono < topic.grow_at;
        let counts = !is_old && self.plan.partitions == Partitions::Preserve;
        if self.plan.on_destination_lost == OnDestinationLost::Fail
            && let Some(detail) = topic.lost(name, &info, counts)
        {
            return self.retry(now, index, reason::DESTINATION_LOST, detail);
        }
        let wanted = topic.upstream.as_ref().map_or(0, |info| info.partitions_count);
        let short = wanted.saturating_sub(info.partitions_count);
        if short == 0 || self.plan.partitions == Partitions::Balanced {
            return self.found(now, index, &info, wanted);
        }
        let have = info.partitions_count;
        let detail =
            format!("destination topic {name} has {have} partitions, upstream has {wanted}");
        if !self.plan.auto_create {
            self.found(now, index, &info, have);
            self.topics[index].say(reason::WAITING_DESTINATION, detail, now);
        } else if is_old {
            self.retry(now, index, reason::WAITING_DESTINATION, detail);
        } else {
            topic.go(Step::Grow { add: short }, now);
        }
    }

    /// Both sides are there: feeds for the first `partitions` partitions, then rest.
    fn found(&mut self, now: Now, index: usize, info: &TopicInfo, partitions: u32) {
        let topic = &mut self.topics[index];
        let upstream_created_at = topic.upstream.as_ref().map_or(0, |info| info.created_at);
        let first_count = topic.first_count();
        for partition in 0..partitions {
            if topic.added.insert(partition) {
                self.outputs.push(Output::Add(Box::new(NewFeed {
                    topic: index,
                    partition,
                    saved: None,
                    first_count,
                    upstream_created_at,
                    downstream_created_at: info.created_at,
                })));
            }
        }
        for feed in topic.ensuring.drain(..) {
            self.outputs.push(Output::Ready { feed, result: Ok(info.created_at) });
        }
        topic.downstream_created_at = info.created_at;
        topic.backoff.reset();
        topic.step = Step::FindUpstream;
        topic.due = now.mono + self.plan.discovery_interval;
        topic.say(reason::RUNNING, String::new(), now);
    }

    fn refused(&mut self, now: Now, index: usize, step: Step, code: u32) {
        let error = ServerError { code };
        if step.changes_something() && (error.is_exists() || error.is_already_applied()) {
            return self.changed(now, index, step);
        }
        if step == Step::AskOptions && error.is_unsupported() {
            self.catalogue = Some(BTreeSet::new());
            return self.topics[index].go(Step::CreateStream, now);
        }
        let detail = format!("{}: {error}", step.words(&self.plan.topics[index]));
        if error.is_unknown_outcome() {
            return self.unknown(now, index, step, reason::NOT_ACCEPTED, detail);
        }
        let reason = if error.is_unauthorized() {
            reason::UNAUTHORIZED
        } else if error.is_not_accepted() || error.is_unauthenticated() {
            reason::NOT_ACCEPTED
        } else if step.changes_something() {
            reason::CREATE_REFUSED
        } else {
            reason::NOT_ACCEPTED
        };
        self.retry(now, index, reason, detail);
    }

    /// Done or not, nobody knows: `settle` passes before the look-up.
    fn unknown(&mut self, now: Now, index: usize, step: Step, reason: Reason, detail: String) {
        self.retry(now, index, reason, detail);
        if step.changes_something() {
            let settle = self.settle(step.side());
            let topic = &mut self.topics[index];
            topic.quiet_until = now.mono + settle;
            topic.grow_at = topic.quiet_until;
        }
    }

    /// The round failed: it starts again later, from the look-ups.
    fn retry(&mut self, now: Now, index: usize, reason: Reason, detail: String) {
        let topic = &mut self.topics[index];
        for feed in topic.ensuring.drain(..) {
            self.outputs.push(Output::Ready { feed, result: Err(detail.clone()) });
        }
        topic.changed = false;
        topic.step = Step::FindUpstream;
        topic.due = now.mono + topic.backoff.failed(&mut self.rng);
        topic.say(reason, detail, now);
    }

    fn unreachable(&mut self, now: Now, index: usize, side: Side, error: &ConnError) {
        let reason = match error {
            ConnError::Login { .. } => reason::LOGIN_REFUSED,
            ConnError::UntestedServer { .. } => reason::UNTESTED_SERVER,
            _ => silent(side),
        };
        let detail = error.to_string();
        let link = &mut self.links[side as usize];
        link.retry_at = now.mono + link.backoff.failed(&mut self.rng);
        link.say(reason, detail.clone(), now);
        if side == Side::Downstream {
            // It may come back as another server.
            self.catalogue = None;
        }
        let topic = &mut self.topics[index];
        for feed in topic.ensuring.drain(..) {
            self.outputs.push(Output::Ready { feed, result: Err(detail.clone()) });
        }
        if topic.step != Step::FindUpstream {
            topic.step = topic.step.look_up();
        }
    }

    fn tell_change(&mut self, index: usize, step: Step) {
        let TopicPlan { upstream, downstream } = &self.plan.topics[index];
        let here = &self.topics[index];
        let notice = match step {
            Step::CreateUpstreamTopic => Notice::Unusual(format!(
                "upstream topic {upstream} was missing and is created with one partition \
                 (on_missing_upstream = \"create\")"
            )),
            Step::Grow { add } => {
                Notice::Done(format!("destination topic {downstream} is grown by {add} partitions"))
            }
            _ => {
                let count = here.upstream.as_ref().map_or(1, |info| info.partitions_count);
                Notice::Done(format!(
                    "destination topic {downstream} is created with {count} partitions"
                ))
            }
        };
        self.outputs.push(Output::Notice(notice));
        let (Step::CreateTopic, Some(info), Some(known)) = (step, &here.upstream, &self.catalogue)
        else {
            return;
        };
        for key in options::options_for(info, known).1 {
            if self.told.insert(key.to_owned()) {
                let text = format!(
                    "topic option {key} of {upstream} is left out: cluster {} does not know it",
                    self.plan.to.key
                );
                self.outputs.push(Output::Notice(Notice::Unusual(text)));
            }
        }
    }

    fn cluster(&self, side: Side) -> &ClusterPlan {
        match side {
            Side::Upstream => &self.plan.from,
            Side::Downstream => &self.plan.to,
        }
    }
}
