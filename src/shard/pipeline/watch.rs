//! Idle partitions of a topic are watched together: one look at the topic tells which of them
//! has news, so that they need not be polled one by one. A hint only: every feed still polls by
//! itself every [`ASLEEP`].

use std::collections::BTreeMap;
use std::time::Duration;

use super::Pipeline;
use super::conns::{Purpose, Waiter};
use super::resume::TOPIC_REPLY;
use crate::batch::{FeedId, SourceKey};
use crate::iggy_wire::{Reply, Request};
use crate::ingest::Source as _;
use crate::shard::event::{Command, Failure, Wake};
use crate::time::{Millis, Now};

/// How often an idle topic is looked at.
pub const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How often a watched feed polls by itself.
pub const ASLEEP: Duration = Duration::from_secs(5);
/// A topic with fewer idle feeds on this shard is not worth a look of its own.
const FEEDS_LEAST: usize = 2;

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
    /// A feed found nothing for a while: true when enough feeds of its topic did, so that it may
    /// sleep.
    pub(super) fn watch(&mut self, source: &SourceKey, topic: usize, feed: FeedId) -> bool {
        let watch = self.0.entry((source.clone(), topic)).or_default();
        if !watch.idle.contains(&feed) {
            watch.idle.push(feed);
        }
        watch.idle.len() >= FEEDS_LEAST
    }
}

impl Pipeline {
    /// Looks at idle topics that are due.
    pub(super) fn watch(&mut self, now: Now, out: &mut Vec<Command>) -> Wake {
        let mut next: Wake = None;
        for watch in self.watches.0.values_mut() {
            let feeds = &self.feeds;
            watch.idle.retain(|id| feeds.get(id).is_some_and(|feed| feed.reader.is_idle()));
            if watch.idle.len() < FEEDS_LEAST || watch.asked.is_some() {
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
            watch.asked = Some(feed.spec.id);
            let name = feed.topic().upstream.clone();
            let topic = Request::Topic { stream: name.stream, topic: name.topic };
            let waiter = Waiter { feed: feed.spec.id, round: feed.round, purpose: Purpose::Watch };
            self.conns.request(feed.up, topic, TOPIC_REPLY, waiter, out);
        }
        next
    }

    /// What a look found: feeds with news poll at once.
    pub(super) fn watched(&mut self, now: Now, asked: FeedId, result: Result<Reply, Failure>) {
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
            let end = if row.messages_count == 0 { 0 } else { row.current_offset + 1 };
            let replaced = info.created_at != feed.entry.upstream_created_at;
            if end > feed.reader.position() || replaced {
                feed.identified &= !replaced;
                feed.reader.nudge();
                self.ready.push_back(*id);
            }
        }
    }
}
