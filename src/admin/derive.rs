//! Snapshots in, [`View`] out: the pure half of the board.
//!
//! Owns the rules by which feeds and findings become one condition per source, and the memory
//! that totals, rates and histories need. Nothing is dropped: a source that is not in the plan is
//! shown behind those that are.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::board::{
    CaptureView, DaemonInfo, FeedView, ShardView, SourceInfo, SourceKind, SourceView, View,
};
use super::ledger::{FeedKey, History, Peak, RateWindow, StreamMemory, Totals, Waiting};
use crate::batch::{SourceKey, TopicName};
use crate::shard::snapshot::{
    CaptureSnapshot, Condition, FeedSnapshot, ShardSnapshot, SourceFinding, Status,
};
use crate::time::{Millis, Now};

/// Changes of status kept per feed and per source.
const FEED_HISTORY: usize = 8;
/// See [`FEED_HISTORY`].
const SOURCE_HISTORY: usize = 32;

/// Turns snapshots into views; remembers what a single snapshot cannot say.
#[derive(Debug)]
pub(super) struct Deriver {
    info: Arc<DaemonInfo>,
    shards: BTreeMap<u16, ShardMemory>,
    sources: HashMap<SourceKey, SourceMemory>,
    /// One entry per partition ever seen, small, so that a feed which comes back under another
    /// id goes on where its counters stood.
    feeds: HashMap<FeedKey, FeedMemory>,
    /// One entry per capture of the plan.
    captures: HashMap<SourceKey, CaptureMemory>,
}

#[derive(Debug, Default)]
struct ShardMemory {
    turns: u64,
    turned_at: Millis,
    saves: u64,
    save_failures: u64,
    peak: Peak,
}

#[derive(Debug)]
struct SourceMemory {
    totals: Totals,
    history: History,
}

#[derive(Debug, Default)]
struct CaptureMemory {
    high: Totals,
    rates: RateWindow,
    stream: StreamMemory,
    waiting: Waiting,
}

#[derive(Debug)]
struct FeedMemory {
    high: Totals,
    rates: RateWindow,
    history: History,
}

impl Deriver {
    pub(super) fn new(info: DaemonInfo) -> Deriver {
        Deriver {
            info: Arc::new(info),
            shards: BTreeMap::new(),
            sources: HashMap::new(),
            feeds: HashMap::new(),
            captures: HashMap::new(),
        }
    }

    pub(super) fn derive(
        &mut self,
        now: Now,
        snapshots: Vec<ShardSnapshot>,
        findings: Vec<SourceFinding>,
    ) -> View {
        let mut sources = SourceList::new(&self.info.sources);
        let mut shards: BTreeMap<u16, ShardView> =
            (0..self.info.shards).map(|number| (number, self.silent_shard(number))).collect();
        for mut snapshot in snapshots {
            let number = snapshot.shard;
            let feeds = std::mem::take(&mut snapshot.feeds);
            let captures = std::mem::take(&mut snapshot.captures);
            shards.insert(number, self.derive_shard(now, snapshot, feeds.len(), captures.len()));
            for feed in feeds {
                let view = self.derive_feed(now, number, feed);
                sources.entry(&view.snapshot.source.clone()).feeds.push(view);
            }
            for capture in captures {
                let view = self.derive_capture(now, number, capture);
                let source = sources.entry(&view.snapshot.source);
                source.capture = Some(view);
            }
        }
        for finding in findings {
            sources.entry(&finding.source.clone()).findings.push(finding);
        }
        let mut sources = sources.list;
        for source in &mut sources {
            self.derive_source(now, source);
        }
        View { info: self.info.clone(), shards: shards.into_values().collect(), sources }
    }

    fn silent_shard(&self, number: u16) -> ShardView {
        let turned_at = self.shards.get(&number).map_or(Millis(0), |memory| memory.turned_at);
        ShardView { number, latest: None, feeds: 0, captures: 0, turned_at, loop_peak_us: 0 }
    }

    fn derive_shard(
        &mut self,
        now: Now,
        mut latest: ShardSnapshot,
        feeds: usize,
        captures: usize,
    ) -> ShardView {
        let memory = self.shards.entry(latest.shard).or_default();
        if latest.loop_turns > memory.turns {
            memory.turns = latest.loop_turns;
            memory.turned_at = now.mono;
        }
        memory.saves = memory.saves.max(latest.saves);
        memory.save_failures = memory.save_failures.max(latest.save_failures);
        latest.loop_turns = memory.turns;
        latest.saves = memory.saves;
        latest.save_failures = memory.save_failures;
        ShardView {
            number: latest.shard,
            feeds,
            captures,
            turned_at: memory.turned_at,
            loop_peak_us: memory.peak.note(now.mono, latest.loop_max_us),
            latest: Some(latest),
        }
    }

    fn derive_feed(&mut self, now: Now, shard: u16, snapshot: FeedSnapshot) -> FeedView {
        let source = self.sources.entry(snapshot.source.clone()).or_insert_with(SourceMemory::new);
        let feed = self.feeds.entry(FeedKey::of(&snapshot)).or_insert_with(FeedMemory::new);
        source.totals.grow(&mut feed.high, Totals::of(&snapshot));
        feed.history.note(&snapshot.condition);
        let counters = snapshot.counters;
        FeedView {
            shard,
            rates: feed.rates.sample(now.mono, counters.messages, counters.bytes),
            history: feed.history.to_vec(),
            snapshot,
        }
    }

    fn derive_capture(
        &mut self,
        now: Now,
        shard: u16,
        mut snapshot: CaptureSnapshot,
    ) -> CaptureView {
        let source = self.sources.entry(snapshot.source.clone()).or_insert_with(SourceMemory::new);
        let capture = self.captures.entry(snapshot.source.clone()).or_default();
        source.totals.grow(&mut capture.high, Totals::of_capture(&snapshot));
        snapshot.stream = capture.stream.note(snapshot.stream);
        let counters = snapshot.counters;
        CaptureView {
            shard,
            rates: capture.rates.sample(now.mono, counters.messages, counters.bytes),
            waiting_since: capture.waiting.note(now, &snapshot),
            snapshot,
        }
    }

    fn derive_source(&mut self, now: Now, view: &mut SourceView) {
        view.feeds.sort_by(|a, b| {
            let (a, b) = (&a.snapshot, &b.snapshot);
            a.upstream.cmp(&b.upstream).then(a.partition.cmp(&b.partition))
        });
        let memory = self.sources.entry(view.info.key.clone()).or_insert_with(SourceMemory::new);
        if let Some((condition, subject)) = worst(view) {
            view.condition = condition;
            view.subject = subject;
        } else {
            view.condition.since = self.info.started_at;
        }
        view.condition.since = memory.since(now, &view.condition);
        memory.history.note(&view.condition);
        view.history = memory.history.to_vec();
        view.totals = memory.totals;
    }
}

impl SourceMemory {
    fn new() -> SourceMemory {
        SourceMemory { totals: Totals::default(), history: History::new(SOURCE_HISTORY) }
    }

    /// A source stays in a condition while feeds take turns in it, and time never runs back.
    fn since(&self, now: Now, condition: &Condition) -> u64 {
        match self.history.last() {
            None => condition.since,
            Some(last) if last.status == condition.status && last.reason == condition.reason => {
                last.since
            }
            Some(last) if condition.since > last.since => condition.since,
            Some(_) => now.wall.0,
        }
    }
}

impl FeedMemory {
    fn new() -> FeedMemory {
        FeedMemory {
            high: Totals::default(),
            rates: RateWindow::default(),
            history: History::new(FEED_HISTORY),
        }
    }
}

/// Sources in the order of the plan; one that is not in it is added behind.
struct SourceList {
    list: Vec<SourceView>,
    index: HashMap<SourceKey, usize>,
}

impl SourceList {
    fn new(planned: &[SourceInfo]) -> SourceList {
        let mut sources = SourceList { list: Vec::new(), index: HashMap::new() };
        for info in planned {
            sources.add(info.clone());
        }
        sources
    }

    fn add(&mut self, info: SourceInfo) -> usize {
        let place = self.list.len();
        self.index.insert(info.key.clone(), place);
        self.list.push(SourceView {
            condition: unheard(info.kind),
            info,
            subject: String::new(),
            findings: Vec::new(),
            feeds: Vec::new(),
            capture: None,
            totals: Totals::default(),
            history: Vec::new(),
        });
        place
    }

    fn entry(&mut self, key: &SourceKey) -> &mut SourceView {
        let place = self.index.get(key).copied().unwrap_or_else(|| {
            self.add(SourceInfo {
                key: key.clone(),
                kind: SourceKind::Iggy,
                from: "".into(),
                to: "".into(),
                guarantee: "at_least_once",
            })
        });
        &mut self.list[place]
    }
}

/// Of a source that nothing is known of yet.
fn unheard(kind: SourceKind) -> Condition {
    let detail = match kind {
        SourceKind::Iggy => "no partition has been found yet",
        SourceKind::PostgresCdc => "the capture has not reported yet",
    };
    Condition {
        status: Status::Starting,
        reason: "discovering",
        detail: detail.into(),
        advice: "",
        since: 0,
    }
}

/// The condition that stands for a source, and what it is about. Among equals the one that has
/// stood longest; a source is running only since its last part is.
fn worst(source: &SourceView) -> Option<(Condition, String)> {
    let findings = source.findings.iter().map(|finding| {
        (&finding.condition, finding.topic.as_ref().map_or(String::new(), TopicName::to_string))
    });
    let feeds = source.feeds.iter().map(|feed| {
        let FeedSnapshot { upstream, partition, condition, .. } = &feed.snapshot;
        (condition, format!("{upstream} partition {partition}"))
    });
    let capture = source.capture.iter().map(|c| (&c.snapshot.condition, String::new()));
    let rank = |condition: &Condition| {
        let running = condition.status == Status::Running;
        let age = if running { condition.since } else { u64::MAX - condition.since };
        (severity(condition.status), age)
    };
    let (condition, subject) = findings.chain(feeds).chain(capture).max_by_key(|(c, _)| rank(c))?;
    let subject = if condition.status == Status::Running { String::new() } else { subject };
    Some((condition.clone(), subject))
}

fn severity(status: Status) -> u8 {
    match status {
        Status::Running => 0,
        Status::Stopped => 1,
        Status::Stopping => 2,
        Status::Starting => 3,
        Status::Degraded => 4,
        Status::Error => 5,
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{
        at, capture, condition, feed, finding, info, info_of, running, shard,
    };
    use super::super::ledger::Rates;
    use super::*;

    fn source_of(view: &View) -> &SourceView {
        view.sources.first().expect("one source is planned")
    }

    #[test]
    fn a_source_without_feeds_is_starting_not_running() {
        let mut deriver = Deriver::new(info(1, &["orders"]));
        let view = deriver.derive(at(0), Vec::new(), Vec::new());
        let source = source_of(&view);
        assert_eq!(source.condition.status, Status::Starting);
        assert_eq!(source.condition.reason, "discovering");
        assert_eq!(source.condition.since, view.info.started_at);
    }

    #[test]
    fn the_worst_part_names_the_source_and_the_longest_standing_wins() {
        let mut deriver = Deriver::new(info(2, &["orders"]));
        let bad = |partition, since| {
            feed("orders", partition, condition(Status::Error, "diverged", since))
        };
        let first = shard(0, 1, vec![running("orders", 0, 1), bad(2, 9), bad(1, 8)]);
        let waiting = feed("orders", 3, condition(Status::Degraded, "waiting_upstream", 2));
        let second = shard(1, 1, vec![waiting]);
        let findings = vec![finding("orders", Some("audit"), "missing_upstream")];
        let view = deriver.derive(at(10), vec![first, second], findings);
        let source = source_of(&view);
        assert_eq!((source.condition.status, source.condition.reason), (Status::Error, "diverged"));
        assert_eq!(source.subject, "orders/events partition 1");
        let partitions: Vec<u32> = source.feeds.iter().map(|f| f.snapshot.partition).collect();
        assert_eq!(partitions, [0, 1, 2, 3], "feeds of all shards, in order");
        assert_eq!(source.feeds.last().map(|feed| feed.shard), Some(1));
        assert_eq!(source.lag_messages(), 400);
    }

    #[test]
    fn a_finding_alone_keeps_a_source_from_running() {
        let mut deriver = Deriver::new(info(1, &["orders"]));
        let feeds = vec![running("orders", 0, 1)];
        let findings = vec![finding("orders", Some("audit"), "missing_upstream")];
        let view = deriver.derive(at(3), vec![shard(0, 1, feeds)], findings);
        assert_eq!(source_of(&view).condition.status, Status::Degraded);
        assert_eq!(source_of(&view).subject, "orders/audit");
    }

    #[test]
    fn feeds_taking_turns_in_an_outage_do_not_restart_its_clock() {
        let mut deriver = Deriver::new(info(1, &["orders"]));
        let down = |p, since| feed("orders", p, condition(Status::Degraded, "unreachable", since));
        let mut since = Vec::new();
        for (second, feeds) in [
            (5, vec![down(0, 5), running("orders", 1, 1)]),
            (8, vec![down(0, 5), down(1, 8)]),
            (9, vec![running("orders", 0, 1), down(1, 8)]),
            (
                20,
                vec![
                    running("orders", 0, 1),
                    feed("orders", 1, condition(Status::Running, "", 19)),
                ],
            ),
        ] {
            let view = deriver.derive(at(second), vec![shard(0, second, feeds)], Vec::new());
            let condition = &source_of(&view).condition;
            since.push((condition.status, (condition.since - view.info.started_at) / 1_000_000));
            assert!(source_of(&view).history.len() <= SOURCE_HISTORY);
        }
        let degraded = (Status::Degraded, 5);
        assert_eq!(since, [degraded, degraded, degraded, (Status::Running, 19)]);
    }

    #[test]
    fn totals_survive_a_feed_that_leaves_and_returns_under_another_id() {
        let mut deriver = Deriver::new(info(1, &["orders"]));
        let mut totals = Vec::new();
        let mut returned = running("orders", 0, 120);
        returned.id = crate::batch::FeedId(99);
        for (second, feeds) in
            [(1, vec![running("orders", 0, 100)]), (2, Vec::new()), (3, vec![returned])]
        {
            let view = deriver.derive(at(second), vec![shard(0, second, feeds)], Vec::new());
            totals.push(source_of(&view).totals.messages);
        }
        assert_eq!(totals, [100, 100, 120]);
    }

    #[test]
    fn feed_rates_come_from_successive_snapshots() {
        let mut deriver = Deriver::new(info(1, &["orders"]));
        let mut rate = 0.0;
        for second in 0..=20 {
            let feeds = vec![running("orders", 0, 1_000_000 + second * 50)];
            let view = deriver.derive(at(second), vec![shard(0, second, feeds)], Vec::new());
            rate = source_of(&view).feeds.first().map_or(0.0, |f| f.rates.messages_per_second);
        }
        assert!((rate - 50.0).abs() < 1e-9, "{rate}");
    }

    #[test]
    fn a_shard_whose_turns_stand_still_is_not_live() {
        let mut deriver = Deriver::new(info(2, &["orders"]));
        let mut live = |second, turns: [u64; 2]| -> Vec<bool> {
            let shards = vec![shard(0, turns[0], Vec::new()), shard(1, turns[1], Vec::new())];
            let view = deriver.derive(at(second), shards, Vec::new());
            view.shards.iter().map(|shard| shard.is_live(at(second).mono)).collect()
        };
        assert_eq!(live(1, [10, 10]), [true, true]);
        assert_eq!(live(6, [11, 10]), [true, true]);
        assert_eq!(
            live(7, [12, 10]),
            [true, false],
            "fresh snapshots of a dead loop prove nothing"
        );
        assert_eq!(live(8, [13, 11]), [true, true]);
    }

    #[test]
    fn a_capture_is_its_source() {
        let mut deriver = Deriver::new(info_of(1, &["orders"], &["shop", "late"]));
        let down = condition(Status::Degraded, "upstream_unreachable", 2);
        let mut snapshot = shard(0, 1, vec![running("orders", 0, 1)]);
        snapshot.captures = vec![capture("shop", down.clone())];
        let view = deriver.derive(at(3), vec![snapshot], Vec::new());
        let [orders, shop, late] = &view.sources[..] else { panic!("{:?}", view.sources) };
        assert_eq!(orders.condition.status, Status::Running);
        assert_eq!((&shop.condition, shop.subject.as_str()), (&down, ""));
        assert_eq!((shop.totals.messages, shop.totals.errors), (500, 3));
        assert_eq!(shop.history.len(), 1);
        assert_eq!((late.condition.status, late.capture.is_some()), (Status::Starting, false));
        assert!(late.condition.detail.contains("has not reported"), "{}", late.condition.detail);
        let shard = view.shards.first().and_then(|s| s.latest.as_ref().map(|l| (s, l)));
        assert!(shard.is_some_and(|(s, l)| s.captures == 1 && l.captures.is_empty()));
    }

    #[test]
    fn a_finding_about_a_capture_outweighs_what_it_says_itself() {
        let mut deriver = Deriver::new(info_of(1, &[], &["shop"]));
        let mut snapshot = shard(0, 1, Vec::new());
        snapshot.captures = vec![capture("shop", condition(Status::Running, "", 1))];
        let findings = vec![finding("shop", None, "buffers_short")];
        let view = deriver.derive(at(3), vec![snapshot], findings);
        assert_eq!(source_of(&view).condition.reason, "buffers_short");
    }

    #[test]
    fn rates_of_a_capture_come_from_successive_snapshots() {
        let mut deriver = Deriver::new(info_of(1, &[], &["shop"]));
        let mut rates = Default::default();
        for second in 0..=20 {
            let mut shop = capture("shop", condition(Status::Running, "", 1));
            shop.counters.messages = 1_000 + second * 30;
            shop.counters.bytes = second * 600;
            let mut snapshot = shard(0, second, Vec::new());
            snapshot.captures = vec![shop];
            let view = deriver.derive(at(second), vec![snapshot], Vec::new());
            rates = source_of(&view).capture.as_ref().map(|c| c.rates).unwrap_or_default();
        }
        let expected = Rates { messages_per_second: 30.0, bytes_per_second: 600.0 };
        assert_eq!(rates, expected);
    }

    #[test]
    fn a_source_outside_the_plan_is_shown_not_dropped() {
        let mut deriver = Deriver::new(info(1, &["orders"]));
        let feeds = vec![running("extra", 0, 5)];
        let view = deriver.derive(at(1), vec![shard(0, 1, feeds)], Vec::new());
        let keys: Vec<&str> = view.sources.iter().map(|source| &*source.info.key).collect();
        assert_eq!(keys, ["orders", "extra"]);
        assert_eq!(view.sources.last().map(|source| source.totals.messages), Some(5));
    }
}
