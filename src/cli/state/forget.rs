//! `tidegate state reset --topic`: takes the entries of one topic, or of one partition of it, out
//! of a source's state files. Every other entry is written back as it was read.
//!
//! All files are read before one is written, and an unreadable one refuses: it may hold the
//! entries that are to go. The files are written one after the other, each by the daemon's safe
//! write, so a failure in the middle leaves whole files; the same command then finishes.

use std::path::Path;

use crate::batch::TopicName;
use crate::shard::driver::files::{self, FileFaults};
use crate::shard::driver::runtime::{IoDriver, Runtimes};
use crate::statefile::format::encode;
use crate::statefile::inspect::FoundFile;
use crate::statefile::{FeedState, SourceState};

/// Which entries are to go.
#[derive(Clone, Copy, Debug)]
pub struct Selection<'a> {
    /// Upstream topic as `stream/topic`.
    pub topic: &'a str,
    /// Only this partition.
    pub partition: Option<u32>,
}

/// An entry that goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removed {
    /// File that holds it.
    pub file: String,
    /// Upstream topic.
    pub upstream: TopicName,
    /// Destination topic.
    pub downstream: TopicName,
    /// Partition on both sides.
    pub partition: u32,
    /// Next upstream offset to copy.
    pub position: u64,
}

/// The files as they are to be, and what they lose.
#[derive(Debug, Default, PartialEq)]
pub struct Rewrite {
    /// Files that change.
    pub states: Vec<SourceState>,
    /// Entries that go, in order of file.
    pub removed: Vec<Removed>,
}

impl Selection<'_> {
    /// What the selection is called in messages.
    pub fn text(&self) -> String {
        match self.partition {
            Some(partition) => format!("{} partition {partition}", self.topic),
            None => self.topic.to_owned(),
        }
    }

    /// Whether this upstream topic is meant.
    pub fn names(&self, upstream: &TopicName) -> bool {
        upstream.to_string() == self.topic
    }

    fn covers(&self, feed: &FeedState) -> bool {
        self.names(&feed.upstream)
            && self.partition.is_none_or(|partition| partition == feed.partition)
    }
}

/// The rewrite of the files of one source, saved at `now`, or why there is none: a file that
/// cannot be read.
pub fn plan(files: &[FoundFile], selection: Selection<'_>, now: u64) -> Result<Rewrite, String> {
    let mut rewrite = Rewrite::default();
    for file in files {
        let state = file.state.as_ref().map_err(|error| {
            format!("{error}; nothing was changed: this file may hold the positions to forget")
        })?;
        let (gone, kept): (Vec<_>, Vec<_>) =
            state.feeds.iter().cloned().partition(|feed| selection.covers(feed));
        if gone.is_empty() {
            continue;
        }
        rewrite.removed.extend(gone.into_iter().map(|feed| Removed {
            file: file.file.clone(),
            upstream: feed.upstream,
            downstream: feed.downstream,
            partition: feed.partition,
            position: feed.position,
        }));
        rewrite.states.push(SourceState {
            generation: state.generation + 1,
            saved_at: now,
            feeds: kept,
            ..state.clone()
        });
    }
    Ok(rewrite)
}

/// Writes the files. The caller holds the directory's lock.
pub fn write(dir: &Path, states: &[SourceState]) -> Result<(), String> {
    let dir = files::StateDir::new(dir);
    let faults = FileFaults::default();
    // A handful of small files: the driver that every kernel has is fast enough.
    let (mut runtime, _) =
        Runtimes::new(IoDriver::Epoll).build().map_err(|error| error.to_string())?;
    runtime.block_on(async {
        for state in states {
            let save = dir.begin(&state.source, state.shard, encode(state));
            files::save(&dir, save, &faults).await.map_err(|error| {
                format!("{error}; run the same command again before the daemon is started")
            })?;
        }
        Ok(())
    })
}
