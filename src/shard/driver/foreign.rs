//! What is said of addresses that a cluster advertises and that lead to another one (M12, M14).
//!
//! A feed that meets one goes on with the configured addresses; here it becomes one finding per
//! source, and a warning when it is new.

use std::collections::BTreeMap;

use crate::batch::SourceKey;
use crate::shard::provision::condition;
use crate::shard::reason;
use crate::shard::snapshot::{ShardSnapshot, SourceFinding};
use crate::time::Now;

/// Addresses named in a finding.
const NAMED: usize = 3;

/// The findings that stand.
#[derive(Default)]
pub(super) struct Foreign {
    by_source: BTreeMap<SourceKey, SourceFinding>,
}

impl Foreign {
    /// Takes what every shard said last.
    pub(super) fn see(&mut self, shards: &[ShardSnapshot], now: Now) {
        let mut seen: BTreeMap<&SourceKey, BTreeMap<&str, &str>> = BTreeMap::new();
        for feed in shards.iter().flat_map(|shard| &shard.feeds) {
            for node in &feed.foreign_nodes {
                seen.entry(&feed.source).or_default().insert(&node.address, &node.why);
            }
        }
        self.by_source.retain(|source, _| seen.contains_key(source));
        for (source, nodes) in seen {
            let words = nodes.iter().take(NAMED).map(|(address, why)| format!("{address} {why}"));
            let detail = words.collect::<Vec<_>>().join("; ");
            let known = self.by_source.get_mut(source).map(|known| &mut known.condition);
            if known.as_ref().is_none_or(|known| known.detail != detail) {
                let advice = reason::FOREIGN_NODE.advice;
                tracing::warn!(%source, detail, advice, "an advertised address is not believed");
            }
            match known {
                Some(known) => known.detail = detail,
                None => {
                    let condition = condition(reason::FOREIGN_NODE, detail, now);
                    let source = source.clone();
                    let finding = SourceFinding { source, topic: None, condition };
                    self.by_source.insert(finding.source.clone(), finding);
                }
            }
        }
    }

    /// One per source concerned.
    pub(super) fn findings(&self) -> Vec<SourceFinding> {
        self.by_source.values().cloned().collect()
    }
}
