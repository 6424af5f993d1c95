//! What the admin interface gets to show.

use std::time::Instant;

use super::{Control, NEWS_GAP, PUBLISH_INTERVAL, captures};

impl Control {
    /// Snapshots are copied to be published; with many feeds that is not for every letter.
    pub(super) fn show_if_due(&self, now: Instant) {
        let gap = if self.has_news.get() { NEWS_GAP } else { PUBLISH_INTERVAL };
        if self.published_at.get().is_none_or(|at| now >= at + gap) {
            self.published_at.set(Some(now));
            self.has_news.set(false);
            self.show();
        }
    }

    pub(super) fn show(&self) {
        let shards = self.shards.borrow();
        let snapshots: Vec<_> = shards.iter().filter_map(|shard| shard.snapshot.clone()).collect();
        let mut foreign = self.foreign.borrow_mut();
        foreign.see(&snapshots, self.clock.now());
        let sources = self.sources.borrow();
        let findings = sources.iter().flat_map(|source| source.findings());
        let captures = self.captures.borrow();
        let findings = findings.chain(captures.iter().filter_map(captures::Desk::finding));
        let findings = findings.chain(self.pause_findings());
        let findings = findings.chain(self.room.borrow().findings());
        let findings = findings.chain(foreign.findings()).collect();
        (self.publish.borrow_mut())(snapshots, findings);
    }
}
