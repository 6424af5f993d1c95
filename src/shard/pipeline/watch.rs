//! Idle partitions of a topic are watched together: one look at the topic tells which of them
//! has news, so that they need not be polled one by one. A hint only: every feed still polls by
//! itself every [`ASLEEP`].
//!
//! Partitions that do not poll at all, because they stopped or wait for the destination or the
//! disk, are looked at in the same way every [`BLIND_AFTER`]: what piles up upstream meanwhile is
//! their lag (M9).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::Pipeline;
use super::conns::{Purpose, Waiter};
use super::reserve::Use;
use super::resume::{TOPIC_REPLY, look_up};
use crate::batch::{FeedId, SourceKey};
use crate::iggy_wire::Reply;
use crate::ingest::Source as _;
use crate::shard::event::{Command, Failure, Wake};
use crate::time::{Millis, Now};

/// How often an idle topic is looked at.
pub const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How often a watched feed polls by itself.
pub const ASLEEP: Duration = Duration::from_secs(5);
/// How often the end of partitions that do not poll is looked at.
pub const BLIND_AFTER: Duration = Duration::from_secs(1);

/// One watch per source and topic.
#[derive(Debug, Default)]
pub(super) struct Watches(BTreeMap<(SourceKey, usize), Watch>);

#[derive(Debug, Default)]
struct Watch {
    idle: Vec<FeedId>,
    next_at: Millis,
    asked: Option<FeedId>,
}

impl Watches {
    /// A feed found nothing for a while and will sleep.
    pub(super) fn watch(&mut self, source: &SourceKey, topic: usize, feed: FeedId) {
        let watch = self.0.entry((source.clone(), topic)).or_default();
        if !watch.idle.contains(&feed) {
            watch.idle.push(feed);
        }
    }
}

impl Pipeline {
    /// Looks at idle topics that are due.
    pub(super) fn watch(&mut self, now: Now, out: &mut Vec<Command>) -> Wake {
        let mut next: Wake = None;
        for watch in self.watches.0.values_mut() {
            let feeds = &self.feeds;
            watch.idle.retain(|id| feeds.get(id).is_some_and(|feed| feed.reader.is_idle()));
            if watch.idle.is_empty() || watch.asked.is_some() {
                continue;
            }
            if watch.next_at > now.mono {
                next = [next, Some(watch.next_at)].into_iter().flatten().min();
                continue;
            }
            let up = |id: &&FeedId| feeds.get(id).is_some_and(|f| self.conns.is_up(f.up));
            let Some(feed) = watch.idle.iter().find(up).and_then(|id| feeds.get(id)) else {
                continue;
            };
            watch.next_at = now.mono + LOOK_EVERY;
            if !self.budget.reserve.borrow_now(feed.spec.id, Use::Watch, TOPIC_REPLY) {
                next = [next, Some(watch.next_at)].into_iter().flatten().min();
                continue;
            }
            watch.asked = Some(feed.spec.id);
            let topic = look_up(&feed.topic().upstream);
            let waiter = Waiter { feed: feed.spec.id, round: feed.round, purpose: Purpose::Watch };
            self.conns.request(feed.up, topic, TOPIC_REPLY, waiter, out);
        }
        next
    }

    /// What a look found: feeds with news poll at once.
    pub(super) fn watched(&mut self, now: Now, asked: FeedId, result: Result<Reply, Failure>) {
        self.budget.reserve.give_back(asked, Use::Watch);
        self.wake_waiting();
        let asked_by = |watch: &&mut Watch| watch.asked == Some(asked);
        let Some(watch) = self.watches.0.values_mut().find(asked_by) else { return };
        watch.asked = None;
        watch.next_at = now.mono + LOOK_EVERY;
        let info = match result {
            Ok(Reply::Topic(Some(info))) => info,
            // Anything else is for the feeds themselves to find out.
            _ => {
                for id in watch.idle.drain(..) {
                    if let Some(feed) = self.feeds.get_mut(&id) {
                        feed.reader.nudge();
                    }
                    self.ready.push_back(id);
                }
                return;
            }
        };
        for id in &watch.idle {
            let Some(feed) = self.feeds.get_mut(id) else { continue };
            let partition = feed.spec.partition;
            let Some(row) = info.partitions.iter().find(|row| row.id == partition) else {
                continue;
            };
            // An empty partition and one with a single message both say offset 0.
            let end =
                if row.messages_count == 0 { 0 } else { row.current_offset.saturating_add(1) };
            let replaced = info.created_at != feed.entry.upstream_created_at;
            if end > feed.reader.position() || replaced {
                feed.identified &= !replaced;
                feed.reader.nudge();
                self.ready.push_back(*id);
            }
        }
    }

    /// Looks at topics of feeds that do not poll.
    pub(super) fn look(&mut self, now: Now, out: &mut Vec<Command>) -> Wake {
        if self.feeds.is_empty() || self.draining {
            return None;
        }
        if now.mono >= self.look_at {
            self.look_at = now.mono + BLIND_AFTER;
            let mut asked = BTreeSet::new();
            for feed in self.feeds.values() {
                let ready = self.conns.is_up(feed.up) && feed.is_blind(now.mono);
                if !ready || !asked.insert((&feed.spec.plan.key, feed.spec.topic)) {
                    continue;
                }
                if !self.budget.reserve.borrow_now(feed.spec.id, Use::Look, TOPIC_REPLY) {
                    continue;
                }
                let topic = look_up(&feed.topic().upstream);
                let (feed, conn) = (feed.spec.id, feed.up);
                let waiter = Waiter { feed, round: 0, purpose: Purpose::Look };
                self.conns.request(conn, topic, TOPIC_REPLY, waiter, out);
            }
        }
        Some(self.look_at)
    }

    /// Where the partitions of a topic end.
    pub(super) fn looked(&mut self, now: Now, asked: FeedId, result: Result<Reply, Failure>) {
        self.budget.reserve.give_back(asked, Use::Look);
        self.wake_waiting();
        // Anything else is for the feeds themselves to find out.
        let Ok(Reply::Topic(Some(info))) = result else { return };
        let Some(feed) = self.feeds.get(&asked) else { return };
        let (source, topic) = (feed.spec.plan.key.clone(), feed.spec.topic);
        for feed in self.feeds.values_mut() {
            let ours = feed.spec.plan.key == source && feed.spec.topic == topic;
            let entry = &feed.entry;
            let known =
                if feed.started { entry.upstream_created_at } else { feed.upstream_created_at };
            let same = info.created_at == known;
            let row = info.partitions.iter().find(|row| row.id == feed.spec.partition);
            if let Some(row) = row.filter(|_| ours && same && feed.is_blind(now.mono)) {
                let empty = row.messages_count == 0 && row.current_offset == 0;
                feed.reader.saw_end(if empty { 0 } else { row.current_offset.saturating_add(1) });
            }
        }
    }
}
