//! Says in the log what changed in the status of feeds and sources: one line a change, with what
//! was seen and what to do. Repeats are held back by the log itself (T4).

use std::collections::HashMap;

use crate::batch::FeedId;
use crate::shard::snapshot::{Condition, ShardSnapshot, SourceFinding, Status};

/// Remembers what was said last.
#[derive(Debug, Default)]
pub struct Announcer {
    feeds: HashMap<FeedId, (Status, &'static str)>,
    findings: Vec<(String, Status, &'static str)>,
    gaps: HashMap<FeedId, u64>,
}

impl Announcer {
    /// Logs what differs from the last call.
    pub fn announce(&mut self, snapshots: &[ShardSnapshot], findings: &[SourceFinding]) {
        for feed in snapshots.iter().flat_map(|snapshot| &snapshot.feeds) {
            let now = (feed.condition.status, feed.condition.reason);
            if self.feeds.insert(feed.id, now) != Some(now) {
                let topic = feed.upstream.to_string();
                say(&feed.source, &topic, Some(feed.partition), &feed.condition);
            }
            let gaps = feed.counters.gaps;
            let known = self.gaps.insert(feed.id, gaps);
            if known.is_some_and(|known| known < gaps)
                && let Some(gap) = feed.gaps.last()
            {
                tracing::warn!(
                    source = %feed.source, topic = %feed.upstream, partition = feed.partition,
                    first = gap.first, last = gap.last, missing = gap.len(),
                    "gap: retention removed messages before they were copied"
                );
            }
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
