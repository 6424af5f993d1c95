//! Says in the log what changed in the status of feeds and sources: one line a change, with what
//! was seen and what to do. Repeats are held back by the log itself (T4).

use std::collections::HashMap;

use crate::batch::FeedId;
use crate::shard::snapshot::{Condition, FeedSnapshot, ShardSnapshot, SourceFinding, Status};

/// Remembers what was said last.
#[derive(Debug)]
pub struct Announcer {
    started_at: u64,
    feeds: HashMap<FeedId, (Status, &'static str)>,
    findings: Vec<(String, Status, &'static str)>,
    gaps: HashMap<FeedId, u64>,
    epochs: HashMap<FeedId, u64>,
}

impl Announcer {
    /// `started_at`: when the daemon started, microseconds since the Unix epoch. What the state
    /// files know from before has been said.
    pub fn new(started_at: u64) -> Announcer {
        let (feeds, findings, gaps, epochs) = Default::default();
        Announcer { started_at, feeds, findings, gaps, epochs }
    }

    /// Logs what differs from the last call.
    pub fn announce(&mut self, snapshots: &[ShardSnapshot], findings: &[SourceFinding]) {
        for feed in snapshots.iter().flat_map(|snapshot| &snapshot.feeds) {
            let now = (feed.condition.status, feed.condition.reason);
            if self.feeds.insert(feed.id, now) != Some(now) {
                let topic = feed.upstream.to_string();
                say(&feed.source, &topic, Some(feed.partition), &feed.condition);
            }
            self.announce_gaps(feed);
            self.announce_epoch(feed);
        }
        let mut seen = Vec::new();
        for finding in findings {
            let topic = finding.topic.as_ref().map_or_else(String::new, ToString::to_string);
            let key = format!("{} {topic}", finding.source);
            let now = (key, finding.condition.status, finding.condition.reason);
            if !self.findings.contains(&now) {
                say(&finding.source, &topic, None, &finding.condition);
            }
            seen.push(now);
        }
        self.findings = seen;
    }

    /// A lost tail, a refill, a new history: messages are sent again, or others follow.
    fn announce_epoch(&mut self, feed: &FeedSnapshot) {
        let known = self.epochs.insert(feed.id, feed.epoch);
        if known.is_some_and(|known| known < feed.epoch) {
            tracing::warn!(
                source = %feed.source, topic = %feed.upstream, partition = feed.partition,
                epoch = feed.epoch, position = feed.position, why = %feed.last_error,
                "new epoch: the copy goes on from another position"
            );
        }
    }

    fn announce_gaps(&mut self, feed: &FeedSnapshot) {
        let all = feed.counters.gaps;
        let news = match self.gaps.insert(feed.id, all) {
            Some(known) => usize::try_from(all.saturating_sub(known)).unwrap_or(usize::MAX),
            None => feed.gaps.iter().filter(|gap| gap.found_at >= self.started_at).count(),
        };
        for gap in feed.gaps.iter().skip(feed.gaps.len().saturating_sub(news)) {
            tracing::warn!(
                source = %feed.source, topic = %feed.upstream, partition = feed.partition,
                first = gap.first, last = gap.last, missing = gap.len(),
                "gap: retention removed messages before they were copied"
            );
        }
    }
}

fn say(source: &str, topic: &str, partition: Option<u32>, condition: &Condition) {
    let Condition { status, reason, detail, advice, .. } = condition;
    let status = status.as_str();
    match condition.status {
        Status::Error => {
            tracing::error!(source, topic, partition, status, reason, detail, advice, "stopped");
        }
        Status::Degraded => {
            tracing::warn!(source, topic, partition, status, reason, detail, advice, "degraded");
        }
        Status::Running => tracing::info!(source, topic, partition, "running"),
        Status::Starting | Status::Stopping | Status::Stopped => {
            tracing::debug!(source, topic, partition, status, reason, detail, "status");
        }
    }
}
