//! Where the control thread pins the latest snapshots and everybody else reads them.
//!
//! [`Board::publish`] derives a [`View`] and swaps it in; readers clone one `Arc` and render
//! without holding anything. Derivation is the pure [`Deriver`], the board adds lock and clock.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::STUCK_AFTER;
use super::derive::Deriver;
use super::ledger::{Change, Rates, Totals};
use crate::batch::SourceKey;
use crate::config::{CapturePlan, MirrorPlan, Partitions, Plan};
use crate::shard::snapshot::{
    CaptureSnapshot, Condition, FeedSnapshot, ShardSnapshot, SourceFinding,
};
use crate::time::{Millis, Now, UnixMicros};

/// What does not change while the daemon runs.
#[derive(Clone, Debug)]
pub struct DaemonInfo {
    /// Version of this program.
    pub version: &'static str,
    /// Process id.
    pub pid: u32,
    /// Start of the process, microseconds since the Unix epoch.
    pub started_at: u64,
    /// Shards 0 to `shards − 1` are expected to report.
    pub shards: u16,
    /// Sources of the plan: mirrors, then captures, each in its order.
    pub sources: Vec<SourceInfo>,
}

impl DaemonInfo {
    /// Of this process, started now.
    pub fn new(plan: &Plan, shards: u16) -> DaemonInfo {
        let mirrors = plan.sources.iter().map(|mirror| SourceInfo::from(&**mirror));
        let captures = plan.captures.iter().map(|capture| SourceInfo::from(&**capture));
        DaemonInfo {
            version: env!("CARGO_PKG_VERSION"),
            pid: std::process::id(),
            started_at: wall_clock().0,
            shards,
            sources: mirrors.chain(captures).collect(),
        }
    }
}

/// What the plan says of a source. Clusters are named by key, a database by role, host and name:
/// passwords stay out of every report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceInfo {
    /// Key in `[sources.<key>]`.
    pub key: SourceKey,
    /// What reads it.
    pub kind: SourceKind,
    /// Key of the upstream cluster; of a capture, the server and database.
    pub from: Arc<str>,
    /// Destination cluster.
    pub to: Arc<str>,
    /// `exactly_once` or `at_least_once`.
    pub guarantee: &'static str,
}

/// `kind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceKind {
    /// A mirror, made of feeds.
    Iggy,
    /// A capture.
    PostgresCdc,
}

impl SourceKind {
    /// The word of the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            SourceKind::Iggy => "iggy",
            SourceKind::PostgresCdc => "postgres_cdc",
        }
    }
}

impl From<&MirrorPlan> for SourceInfo {
    fn from(plan: &MirrorPlan) -> SourceInfo {
        let guarantee = match plan.partitions {
            Partitions::Preserve => "exactly_once",
            Partitions::Balanced => "at_least_once",
        };
        SourceInfo {
            key: plan.key.clone(),
            kind: SourceKind::Iggy,
            from: plan.from.key.clone(),
            to: plan.to.key.clone(),
            guarantee,
        }
    }
}

/// A transaction that was sent and not yet confirmed is read again after a crash.
impl From<&CapturePlan> for SourceInfo {
    fn from(plan: &CapturePlan) -> SourceInfo {
        SourceInfo {
            key: plan.key.clone(),
            kind: SourceKind::PostgresCdc,
            from: plan.postgres.redacted().into(),
            to: plan.to.key.clone(),
            guarantee: "at_least_once",
        }
    }
}

/// Everything a request may read, at one moment.
#[derive(Clone, Debug)]
pub struct View {
    /// The daemon.
    pub info: Arc<DaemonInfo>,
    /// Expected shards by number.
    pub shards: Vec<ShardView>,
    /// Sources of the plan in its order, then any other that reported.
    pub sources: Vec<SourceView>,
}

/// A shard as seen from outside.
#[derive(Clone, Debug)]
pub struct ShardView {
    /// Shard number.
    pub number: u16,
    /// Its latest snapshot, feeds and captures moved to their sources; `None` before the first.
    pub latest: Option<ShardSnapshot>,
    /// How many feeds it runs.
    pub feeds: usize,
    /// How many captures it runs.
    pub captures: usize,
    /// When its loop was last seen to have turned.
    pub turned_at: Millis,
    /// Longest turn lately, microseconds.
    pub loop_peak_us: u64,
}

impl ShardView {
    /// True while the loop turns.
    pub fn is_live(&self, now: Millis) -> bool {
        now.since(self.turned_at) <= STUCK_AFTER
    }
}

/// A source with its feeds, or with its capture.
#[derive(Clone, Debug)]
pub struct SourceView {
    /// From the plan.
    pub info: SourceInfo,
    /// The worst of its parts and findings.
    pub condition: Condition,
    /// What `condition` is about: a partition, a topic, or empty for the source.
    pub subject: String,
    /// Findings of the control thread.
    pub findings: Vec<SourceFinding>,
    /// Feeds by topic and partition.
    pub feeds: Vec<FeedView>,
    /// Its capture, once that reported; mirrors have none.
    pub capture: Option<CaptureView>,
    /// Counters that never fall while the process lives.
    pub totals: Totals,
    /// Latest changes, oldest first.
    pub history: Vec<Change>,
}

impl SourceView {
    /// Messages that upstream has and the copy has not, over all feeds.
    pub fn lag_messages(&self) -> u64 {
        self.feeds.iter().map(|feed| feed.snapshot.lag_messages).fold(0, u64::saturating_add)
    }
}

/// A feed with what was derived from its snapshots.
#[derive(Clone, Debug)]
pub struct FeedView {
    /// Where it runs.
    pub shard: u16,
    /// Its latest snapshot.
    pub snapshot: FeedSnapshot,
    /// Over the last ten seconds.
    pub rates: Rates,
    /// Latest changes, oldest first.
    pub history: Vec<Change>,
}

/// A capture with what was derived from its snapshots.
#[derive(Clone, Debug)]
pub struct CaptureView {
    /// Where it runs.
    pub shard: u16,
    /// Its latest snapshot, with counters that never fall while the process lives.
    pub snapshot: CaptureSnapshot,
    /// Over the last ten seconds.
    pub rates: Rates,
    /// Since when the oldest position that waits has been the oldest, as far as was seen.
    pub waiting_since: Option<Now>,
}

/// The shared handle. Clones refer to the same board.
#[derive(Clone, Debug)]
pub struct Board {
    started: Instant,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    deriver: Deriver,
    view: Arc<View>,
}

impl Board {
    /// An empty board: every source is `Starting`, every shard has [`STUCK_AFTER`] to report.
    pub fn new(info: DaemonInfo) -> Board {
        let mut deriver = Deriver::new(info);
        let now = Now { mono: Millis(0), wall: wall_clock() };
        let view = Arc::new(deriver.derive(now, Vec::new(), Vec::new()));
        Board { started: Instant::now(), state: Arc::new(Mutex::new(State { deriver, view })) }
    }

    /// Replaces what readers see. `shards` holds the latest snapshot of every shard that has
    /// reported so far, also when it is the same as last time; `findings` all that stand.
    pub fn publish(&self, shards: Vec<ShardSnapshot>, findings: Vec<SourceFinding>) {
        let now = self.now();
        let mut state = self.lock();
        state.view = Arc::new(state.deriver.derive(now, shards, findings));
    }

    /// The latest view.
    pub fn view(&self) -> Arc<View> {
        self.lock().view.clone()
    }

    /// The clocks that views are read with.
    pub fn now(&self) -> Now {
        let mono = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        Now { mono: Millis(mono), wall: wall_clock() }
    }

    /// A view is replaced whole, so a panic while holding the lock leaves nothing half done.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn wall_clock() -> UnixMicros {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    UnixMicros(u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{at, info, running, shard};
    use super::*;

    #[test]
    fn a_shard_that_never_reports_has_a_grace_and_no_more() {
        let board = Board::new(info(2, &[]));
        let view = board.view();
        assert!(view.shards.iter().all(|shard| shard.is_live(at(5).mono)));
        assert!(view.shards.iter().all(|shard| !shard.is_live(at(6).mono)));
    }

    #[test]
    fn clones_of_a_board_show_what_any_of_them_published() {
        let board = Board::new(info(1, &["orders"]));
        let before = board.view();
        board.clone().publish(vec![shard(0, 1, vec![running("orders", 0, 7)])], Vec::new());
        let messages = |view: &View| view.sources.first().map(|source| source.totals.messages);
        assert_eq!(messages(&board.view()), Some(7));
        assert_eq!(messages(&before), Some(0), "a view once taken does not change");
    }
}
