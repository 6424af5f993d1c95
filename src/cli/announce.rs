//! Says in the log what changed in the status of feeds, captures and sources: one line a change,
//! with what was seen and what to do. Repeats are held back by the log itself (T4).

use std::collections::HashMap;

use crate::batch::FeedId;
use crate::pg_wire::Lsn;
use crate::shard::snapshot::{
    CaptureSnapshot, Condition, FeedSnapshot, ShardSnapshot, SourceFinding, Status,
};

/// Remembers what was said last.
#[derive(Debug)]
pub struct Announcer {
    started_at: u64,
    /// Captures are among them: the ids of a process are all different.
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
        for capture in snapshots.iter().flat_map(|snapshot| &snapshot.captures) {
            self.announce_capture(capture);
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
                epoch = feed.epoch, position_now = feed.position, why = %feed.last_error,
                "new epoch: the copy went on from another position"
            );
        }
    }

    fn announce_capture(&mut self, capture: &CaptureSnapshot) {
        let now = (capture.condition.status, capture.condition.reason);
        if self.feeds.insert(capture.id, now) != Some(now) {
            say(&capture.source, "", None, &capture.condition);
        }
        let gaps = &capture.gaps;
        let fresh = gaps.iter().filter(|gap| gap.found_at >= self.started_at).count();
        let news = self.news(capture.id, capture.counters.gaps, fresh);
        for gap in gaps.iter().skip(gaps.len().saturating_sub(news)) {
            tracing::warn!(
                source = %capture.source, slot = %capture.slot, first = %Lsn(gap.first),
                last = %Lsn(gap.last), bytes = gap.last.saturating_sub(gap.first), why = gap.why,
                "gap: changes of this part of the log are not captured"
            );
        }
        let known = self.epochs.insert(capture.id, capture.epoch);
        if known.is_some_and(|known| known < capture.epoch) {
            tracing::warn!(
                source = %capture.source, slot = %capture.slot, epoch = capture.epoch,
                position_now = %Lsn(capture.position), why = %capture.last_error,
                "new epoch: the capture went on from another position"
            );
        }
    }

    fn announce_gaps(&mut self, feed: &FeedSnapshot) {
        let fresh = feed.gaps.iter().filter(|gap| gap.found_at >= self.started_at).count();
        let news = self.news(feed.id, feed.counters.gaps, fresh);
        for gap in feed.gaps.iter().skip(feed.gaps.len().saturating_sub(news)) {
            tracing::warn!(
                source = %feed.source, topic = %feed.upstream, partition = feed.partition,
                first = gap.first, last = gap.last, missing = gap.len(),
                "gap: retention removed messages before they were copied"
            );
        }
    }

    /// How many of the latest gaps are to be told, given all that were ever found and those found
    /// since the start.
    fn news(&mut self, id: FeedId, all: u64, fresh: usize) -> usize {
        match self.gaps.insert(id, all) {
            Some(known) => usize::try_from(all.saturating_sub(known)).unwrap_or(usize::MAX),
            None => fresh,
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

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::admin::fixture::{START, capture, condition, shard};
    use crate::statefile::LsnGap;

    #[derive(Clone, Default)]
    struct Page(Arc<Mutex<Vec<u8>>>);

    impl Write for Page {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("no writer panics").write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The lines that this capture adds to the log.
    fn said(announcer: &mut Announcer, capture: &CaptureSnapshot) -> Vec<String> {
        let page = Page::default();
        let paper = page.clone();
        let log = tracing_subscriber::fmt().with_ansi(false).with_writer(move || paper.clone());
        let mut snapshot = shard(0, 1, Vec::new());
        snapshot.captures = vec![capture.clone()];
        tracing::subscriber::with_default(log.finish(), || announcer.announce(&[snapshot], &[]));
        let bytes = page.0.lock().expect("no writer panics").clone();
        String::from_utf8(bytes).expect("text").lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_capture_is_announced_when_its_condition_changes_and_not_again() {
        let mut announcer = Announcer::new(START + 1);
        let mut shop = capture("shop", condition(Status::Running, "", 1));
        let first = said(&mut announcer, &shop);
        assert_eq!(first.len(), 1, "a gap from before the start has been said: {first:?}");
        assert!(first[0].contains("INFO") && first[0].contains("shop"), "{first:?}");
        assert_eq!(said(&mut announcer, &shop), Vec::<String>::new());
        shop.condition = condition(Status::Degraded, "circuit_open", 2);
        let second = said(&mut announcer, &shop);
        assert_eq!(second.len(), 1, "{second:?}");
        for words in ["WARN", "shop", "circuit_open", "seen: circuit_open", "look at it"] {
            assert!(second[0].contains(words), "{words}: {second:?}");
        }
        shop.condition.detail = "seen again".to_owned();
        assert_eq!(said(&mut announcer, &shop), Vec::<String>::new());
        shop.condition = condition(Status::Error, "slot_lost", 3);
        assert!(said(&mut announcer, &shop)[0].contains("ERROR"));
    }

    #[test]
    fn a_gap_and_a_new_epoch_of_a_capture_are_said_once() {
        let mut announcer = Announcer::new(START + 1);
        let mut shop = capture("shop", condition(Status::Running, "", 1));
        said(&mut announcer, &shop);
        let why = "given up by the operator".to_owned();
        let gap = LsnGap { first: 0x1_0000_0010, last: 0x1_0000_0030, found_at: START + 5, why };
        shop.gaps.push(gap);
        shop.counters.gaps += 1;
        shop.epoch += 1;
        let lines = said(&mut announcer, &shop);
        let [gap, epoch] = &lines[..] else { panic!("{lines:?}") };
        for words in ["WARN", "1/10", "1/30", "32", "given up by the operator", "tidegate_shop"] {
            assert!(gap.contains(words), "{words}: {gap}");
        }
        assert!(epoch.contains("new epoch") && epoch.contains("0/1000"), "{epoch}");
        assert_eq!(said(&mut announcer, &shop), Vec::<String>::new());
    }

    #[test]
    fn a_gap_that_was_found_in_the_first_moments_is_said() {
        let mut announcer = Announcer::new(START);
        let lines = said(&mut announcer, &capture("shop", condition(Status::Running, "", 1)));
        assert!(lines.iter().any(|line| line.contains("0/10") && line.contains("gone")));
    }
}
