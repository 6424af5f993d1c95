//! What the state files mean for a start: where every feed stood, and which files have to be
//! written anew because feeds run on another shard than before (S4).
//!
//! A shard's save replaces its file with the feeds it runs. A feed that moved would be in no file
//! at all between that save and the first one of its new shard; so moved feeds are written to
//! their new shard's file before any shard starts. Pure: the caller reads and writes.

use crate::batch::SourceKey;
use crate::config::{MirrorPlan, OnCorruptState};
use crate::statefile::inspect::{FoundFile, newest_feeds};
use crate::statefile::{FeedState, SourceState};
use crate::time::UnixMicros;

use super::placement::place;

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
        let topic = plan.topics.iter().position(is_it)?;
        Some(place(first_topic + topic, feed.partition, shards))
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
    let moved = homeless.into_iter().map(|shard| SourceState {
        source: SourceKey::clone(&plan.key),
        shard,
        generation: saved.generation,
        saved_at: now.0,
        feeds: saved.feeds.iter().filter(|feed| home(feed) == Some(shard)).cloned().collect(),
    });
    saved.moved = moved.collect();
    SourceStart::Ready(saved)
}
