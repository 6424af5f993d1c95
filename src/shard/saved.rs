//! What the state files mean for a start: where every feed stood, and which files have to be
//! written anew because feeds run on another shard than before (S4).
//!
//! A shard's save replaces its file with the feeds it runs and the entries it carries for others.
//! A feed that moved would be in no file at all between the save of its old shard and the first
//! one of its new shard; so moved feeds are written to their new shard's file before any shard
//! starts. Entries of topics that are not in the plan stay in the file they were found in.
//! Pure: the caller reads and writes.

use std::collections::{BTreeMap, BTreeSet};

use crate::batch::SourceKey;
use crate::config::{CapturePlan, MirrorPlan, OnCorruptState, Plan};
use crate::statefile::inspect::{FoundFile, newest_captures, newest_feeds};
use crate::statefile::{CaptureState, FeedState, SourceState};
use crate::time::UnixMicros;

use super::placement::{first_capture, first_topics, place};

/// How a source starts.
#[derive(Debug, PartialEq)]
pub enum SourceStart {
    /// With what is known of it, possibly nothing.
    Ready(SavedSource),
    /// Not at all: a file cannot be read and policy says to stop (S2).
    Broken(String),
}

/// Everything saved of one source.
#[derive(Debug, Default, PartialEq)]
pub struct SavedSource {
    /// Newest entry of every feed.
    pub feeds: Vec<FeedState>,
    /// Highest generation of its files, those to be written included (I4).
    pub generation: u64,
    /// What each shard carries until the feeds run, by number: its file must keep these entries.
    pub carried: Vec<(u16, Vec<FeedState>)>,
    /// Files to write before the feeds start.
    pub moved: Vec<SourceState>,
    /// Unreadable files to set aside before the feeds start.
    pub set_aside: Vec<String>,
}

/// Looks at the files of the source `plan`, whose first topic has number `first_topic`.
pub fn source_start(
    plan: &MirrorPlan,
    first_topic: usize,
    found: &[FoundFile],
    shards: u16,
    now: UnixMicros,
) -> SourceStart {
    let mut saved = SavedSource::default();
    let mut files = Vec::new();
    for file in found.iter().filter(|file| file.source == plan.key) {
        match (&file.state, plan.on_corrupt_state) {
            (Ok(state), _) if !state.captures.is_empty() => {
                return SourceStart::Broken(format!(
                    "state file {} holds positions of a Postgres capture and source {:?} is a \
                     mirror: give the mirror another name, or run `tidegate state reset`",
                    file.file, plan.key
                ));
            }
            (Ok(state), _) => files.push(state),
            (Err(error), OnCorruptState::Fail) => return SourceStart::Broken(error.to_string()),
            (Err(_), OnCorruptState::Reset) => saved.set_aside.push(file.file.clone()),
        }
    }
    saved.feeds = newest_feeds(files.iter().copied());
    saved.generation = files.iter().map(|file| file.generation).max().unwrap_or(0);
    let home = |feed: &FeedState| {
        let is_it = |topic: &crate::config::TopicPlan| {
            topic.upstream == feed.upstream && topic.downstream == feed.downstream
        };
        match plan.topics.iter().position(is_it) {
            Some(topic) => Some(place(first_topic + topic, feed.partition, shards)),
            // A file beyond the shards is written by nobody and keeps what it holds.
            None => {
                let mut running = files.iter().filter(|file| file.shard < shards);
                running.find(|file| file.feeds.contains(feed)).map(|file| file.shard)
            }
        }
    };
    let is_home = |feed: &FeedState| {
        home(feed).is_none_or(|shard| {
            files.iter().any(|file| file.shard == shard && file.feeds.contains(feed))
        })
    };
    let mut homeless: Vec<u16> =
        saved.feeds.iter().filter(|feed| !is_home(feed)).filter_map(home).collect();
    homeless.sort_unstable();
    homeless.dedup();
    if !homeless.is_empty() {
        saved.generation += 1;
    }
    let mut carried: BTreeMap<u16, Vec<FeedState>> = BTreeMap::new();
    for feed in &saved.feeds {
        if let Some(shard) = home(feed) {
            carried.entry(shard).or_default().push(feed.clone());
        }
    }
    let moved = homeless.into_iter().map(|shard| SourceState {
        source: SourceKey::clone(&plan.key),
        shard,
        generation: saved.generation,
        saved_at: now.0,
        feeds: carried.get(&shard).cloned().unwrap_or_default(),
        captures: Vec::new(),
    });
    saved.moved = moved.collect();
    saved.carried = carried.into_iter().collect();
    SourceStart::Ready(saved)
}

/// How a capture starts.
#[derive(Debug, PartialEq)]
pub enum CaptureStart {
    /// With what is known of it, possibly nothing.
    Ready(Box<SavedCapture>),
    /// Not at all: a file cannot be read and policy says to stop (S2).
    Broken(String),
}

/// Everything saved of one capture. It runs on one shard alone: a file of another shard that
/// holds its slot is never written again and loses against every later save.
#[derive(Debug, Default, PartialEq)]
pub struct SavedCapture {
    /// Newest entry of its slot.
    pub entry: Option<CaptureState>,
    /// Newest entries of other slots.
    pub carried: Vec<CaptureState>,
    /// Highest generation of its files (I4).
    pub generation: u64,
    /// Unreadable files to set aside before it starts.
    pub set_aside: Vec<String>,
}

/// Looks at the files of a capture.
pub fn capture_start(plan: &CapturePlan, found: &[FoundFile]) -> CaptureStart {
    let mut saved = SavedCapture::default();
    let mut files = Vec::new();
    for file in found.iter().filter(|file| file.source == plan.key) {
        match (&file.state, plan.on_corrupt_state) {
            (Ok(state), _) => files.push(state),
            (Err(error), OnCorruptState::Fail) => return CaptureStart::Broken(error.to_string()),
            (Err(_), OnCorruptState::Reset) => saved.set_aside.push(file.file.clone()),
        }
    }
    saved.generation = files.iter().map(|file| file.generation).max().unwrap_or(0);
    for entry in newest_captures(files.iter().copied()) {
        if entry.slot == plan.slot {
            saved.entry = Some(entry);
        } else {
            saved.carried.push(entry);
        }
    }
    CaptureStart::Ready(Box::new(saved))
}

/// The feeds a plan is known to need before any cluster is asked, as topic number and partition:
/// those with a saved position, and one of every other topic.
pub fn known_feeds(plan: &Plan, found: &[FoundFile]) -> BTreeSet<(usize, u32)> {
    let mut feeds = BTreeSet::new();
    for (source, first_topic) in plan.sources.iter().zip(first_topics(plan)) {
        let files = found.iter().filter(|file| file.source == source.key);
        let saved = newest_feeds(files.filter_map(|file| file.state.as_ref().ok()));
        for (index, topic) in source.topics.iter().enumerate() {
            let number = first_topic + index;
            let is_ours = |entry: &&FeedState| {
                entry.upstream == topic.upstream && entry.downstream == topic.downstream
            };
            feeds.extend(saved.iter().filter(is_ours).map(|entry| (number, entry.partition)));
            if feeds.range((number, 0)..).next().is_none() {
                feeds.insert((number, 0));
            }
        }
    }
    let captures = first_capture(plan)..;
    feeds.extend(captures.zip(&plan.captures).map(|(number, _)| (number, 0)));
    feeds
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{DeltaPiece, TopicName};
    use crate::config::TopicPlan;
    use crate::statefile::Counters;
    use crate::statefile::inspect::StateError;

    fn plan(policy: OnCorruptState) -> MirrorPlan {
        let mut plan = crate::shard::provision::sample_plan(&["a"]);
        plan.on_corrupt_state = policy;
        plan
    }

    fn entry(partition: u32, sequence: u64) -> FeedState {
        FeedState {
            upstream: TopicName::new("s", "a"),
            downstream: TopicName::new("copy", "a"),
            partition,
            epoch: 1,
            sequence,
            position: sequence,
            deltas: vec![DeltaPiece { from_upstream: 0, delta: 0 }],
            last: None,
            upstream_created_at: 1,
            downstream_created_at: 1,
            clean_stop: true,
            counters: Counters::default(),
            gaps: Vec::new(),
            repeats: Vec::new(),
            first_count: None,
        }
    }

    fn file(shard: u16, generation: u64, feeds: Vec<FeedState>) -> FoundFile {
        let source: SourceKey = "orders".into();
        let state = SourceState {
            source: source.clone(),
            shard,
            generation,
            saved_at: 1,
            feeds,
            captures: Vec::new(),
        };
        FoundFile { source, shard, file: format!("orders.{shard}.state"), state: Ok(state) }
    }

    fn start(plan: &MirrorPlan, found: &[FoundFile], shards: u16) -> SourceStart {
        source_start(plan, 0, found, shards, UnixMicros(9))
    }

    fn ready(start: SourceStart) -> SavedSource {
        match start {
            SourceStart::Ready(saved) => saved,
            SourceStart::Broken(why) => panic!("broken: {why}"),
        }
    }

    #[test]
    fn the_feeds_known_before_a_start_are_the_saved_ones_and_one_per_new_topic() {
        let mut gone = entry(7, 1);
        gone.downstream = TopicName::new("elsewhere", "a");
        let found = [
            file(0, 4, vec![entry(0, 1), entry(3, 1), gone]),
            file(1, 4, vec![entry(3, 2), entry(1, 1)]),
        ];
        let source =
            |topics: &[&str]| std::sync::Arc::new(crate::shard::provision::sample_plan(topics));
        let daemon = crate::config::DaemonPlan {
            state_dir: "/nowhere".into(),
            shards: crate::config::Shards::Auto,
            max_buffered_bytes: 0,
            drain_timeout: std::time::Duration::ZERO,
            core_dumps: false,
            log_format: None,
            log_level: String::new(),
        };
        let mut other = crate::shard::provision::sample_plan(&["x", "y"]);
        other.key = "before".into();
        let sources = vec![std::sync::Arc::new(other), source(&["b", "a"])];
        let plan = Plan {
            daemon,
            admin: None,
            clusters: Default::default(),
            sources,
            captures: Vec::new(),
            warnings: Vec::new(),
        };
        let known: Vec<_> = known_feeds(&plan, &found).into_iter().collect();
        assert_eq!(known, [(0, 0), (1, 0), (2, 0), (3, 0), (3, 1), (3, 3)]);
    }

    #[test]
    fn feeds_at_home_are_not_written_again() {
        let found = [file(0, 4, vec![entry(0, 1)]), file(1, 7, vec![entry(1, 1)])];
        let saved = ready(start(&plan(OnCorruptState::Fail), &found, 2));
        assert_eq!((saved.feeds.len(), saved.generation, saved.moved.len()), (2, 7, 0));
    }

    #[test]
    fn feeds_that_moved_are_written_to_their_new_file_with_all_that_belong_there() {
        let found = [file(0, 4, vec![entry(0, 1), entry(1, 5), entry(2, 3), entry(3, 2)])];
        let saved = ready(start(&plan(OnCorruptState::Fail), &found, 2));
        assert_eq!(saved.generation, 5);
        let [moved] = &saved.moved[..] else { panic!("{:?}", saved.moved) };
        assert_eq!((moved.shard, moved.generation), (1, 5));
        assert_eq!(moved.feeds, [entry(1, 5), entry(3, 2)]);
    }

    #[test]
    fn a_stale_entry_at_home_does_not_count() {
        let found = [file(0, 9, vec![entry(0, 8), entry(1, 8)]), file(1, 2, vec![entry(1, 3)])];
        let saved = ready(start(&plan(OnCorruptState::Fail), &found, 2));
        assert_eq!(saved.moved.len(), 1);
        assert_eq!(saved.moved[0].feeds, [entry(1, 8)]);
    }

    #[test]
    fn an_unreadable_file_breaks_the_source_or_is_set_aside() {
        let mut torn = file(1, 0, Vec::new());
        torn.state = Err(StateError::Unreadable { file: torn.file.clone(), why: "torn".into() });
        let found = [file(0, 4, vec![entry(0, 1)]), torn];
        assert!(matches!(
            start(&plan(OnCorruptState::Fail), &found, 2),
            SourceStart::Broken(why) if why.contains("orders.1.state")
        ));
        let saved = ready(start(&plan(OnCorruptState::Reset), &found, 2));
        assert_eq!(saved.set_aside, ["orders.1.state"]);
        assert_eq!(saved.feeds, [entry(0, 1)]);
    }

    #[test]
    fn positions_of_a_capture_under_a_mirrors_name_are_not_overwritten() {
        let mut capture = file(0, 4, Vec::new());
        if let Ok(state) = &mut capture.state {
            state.captures.push(CaptureState {
                slot: "slot".into(),
                database: "shop".into(),
                decoder: "pgoutput".into(),
                publication: String::new(),
                epoch: 0,
                sequence: 0,
                system_id: 1,
                timeline: 1,
                end_lsn: 1,
                unfinished: None,
                clean_stop: true,
                counters: Default::default(),
                gaps: Vec::new(),
                last_abandon_at: 0,
                routed: Vec::new(),
            });
        }
        assert!(matches!(
            start(&plan(OnCorruptState::Fail), &[capture], 2),
            SourceStart::Broken(why) if why.contains("orders.0.state") && why.contains("reset")
        ));
    }

    #[test]
    fn topics_that_left_the_plan_stay_in_the_file_they_were_found_in() {
        let mut plan = plan(OnCorruptState::Fail);
        plan.topics = vec![TopicPlan {
            upstream: TopicName::new("s", "other"),
            downstream: TopicName::new("copy", "other"),
        }];
        let saved = ready(start(&plan, &[file(0, 4, vec![entry(1, 1)])], 2));
        assert_eq!((saved.feeds.len(), saved.moved.len()), (1, 0));
        assert_eq!(saved.carried, [(0, vec![entry(1, 1)])]);
        let saved = ready(start(&plan, &[file(2, 4, vec![entry(1, 1)])], 2));
        assert_eq!(saved.carried, [], "shard 2 does not run and writes no file");
    }

    #[test]
    fn a_file_written_for_moved_feeds_keeps_the_topics_that_left_the_plan() {
        let mut gone = entry(0, 3);
        gone.upstream = TopicName::new("s", "gone");
        let found = [file(0, 4, vec![entry(1, 5)]), file(1, 4, vec![gone.clone()])];
        let saved = ready(start(&plan(OnCorruptState::Fail), &found, 2));
        let [moved] = &saved.moved[..] else { panic!("{:?}", saved.moved) };
        assert_eq!((moved.shard, &moved.feeds[..]), (1, &[entry(1, 5), gone][..]));
        assert_eq!(saved.carried, [(1, moved.feeds.clone())]);
    }
}
