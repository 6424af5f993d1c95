//! Several state files as one picture: names, the newest entry of every feed, and the report of
//! `tidegate state show`.
//!
//! After a change of shard count a feed has entries in several files; the greatest
//! (epoch, sequence) wins (S1). A file that cannot be used is part of the picture, never left
//! out: whoever starts on less than all files would start some feed afresh (S2).

mod capture;

use std::collections::BTreeMap;

use serde::Serialize;

pub use capture::{
    CaptureCountersReport, CaptureReport, LsnGapReport, UnfinishedReport, lsn_text, newest_captures,
};

use super::format::FormatError;
use super::{Counters, FeedState, SourceState};
use crate::batch::{Repeat, SourceKey, TopicName};

/// Why a file gives no state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// Read, and not what was once written.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// Not read at all: permissions, an I/O error, something that is not a file.
    #[error(
        "state file {file} cannot be read: {why}; expected a readable regular file: check owner, \
         permissions and disk"
    )]
    Unreadable {
        /// File or directory.
        file: String,
        /// The kernel's words.
        why: String,
    },
}

/// A state file as found in the directory.
#[derive(Clone, Debug, PartialEq)]
pub struct FoundFile {
    /// Source by its name, also when the content is of no use.
    pub source: SourceKey,
    /// Shard by its name.
    pub shard: u16,
    /// Path, for messages.
    pub file: String,
    /// What it holds.
    pub state: Result<SourceState, StateError>,
}

/// `<source>.<shard>.state`.
pub fn file_name(source: &str, shard: u16) -> String {
    format!("{source}.{shard}.state")
}

/// Source and shard of a state file's name; `None` for any other name, temp files included.
pub fn parse_file_name(name: &str) -> Option<(&str, u16)> {
    let (source, shard) = name.strip_suffix(".state")?.rsplit_once('.')?;
    let number: u16 = shard.parse().ok()?;
    // One spelling per file: "07" or "+7" is not a name of ours.
    (is_source_key(source) && number.to_string() == shard).then_some((source, number))
}

/// One or more of `a-z`, `0-9`, `_`, `-`: what a file name and a TOML key can both be.
pub fn is_source_key(key: &str) -> bool {
    let allowed = |b: u8| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-');
    !key.is_empty() && key.bytes().all(allowed)
}

/// The newest entry of every feed in the files of one source, in order of name and partition.
///
/// Of two entries with the same version the one that does not claim a clean stop wins: settling
/// once too often costs seconds. After that the later file wins.
pub fn newest_feeds<'a>(files: impl IntoIterator<Item = &'a SourceState>) -> Vec<FeedState> {
    winners(files).into_values().map(|(_, feed)| feed.clone()).collect()
}

type FeedKey<'a> = (&'a TopicName, &'a TopicName, u32);

fn winners<'a>(
    files: impl IntoIterator<Item = &'a SourceState>,
) -> BTreeMap<FeedKey<'a>, (&'a SourceState, &'a FeedState)> {
    let mut newest: BTreeMap<_, (&SourceState, &FeedState)> = BTreeMap::new();
    for file in files {
        for feed in &file.feeds {
            let key = (&feed.upstream, &feed.downstream, feed.partition);
            match newest.get(&key) {
                Some((held_in, held)) if rank(held_in, held) >= rank(file, feed) => {}
                _ => {
                    newest.insert(key, (file, feed));
                }
            }
        }
    }
    newest
}

fn rank(file: &SourceState, feed: &FeedState) -> impl Ord + use<> {
    (feed.version(), !feed.clean_stop, file.saved_at, file.shard)
}

/// What `tidegate state show` prints; `--json` is this type.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// In order of key.
    pub sources: Vec<SourceReport>,
}

/// One source over all its files.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SourceReport {
    /// Key in `[sources.<key>]`.
    pub source: String,
    /// Its files, in order of shard.
    pub files: Vec<FileReport>,
    /// Newest entry of every feed in the files that can be used.
    pub feeds: Vec<FeedReport>,
    /// Newest entry of every replication slot in those.
    pub captures: Vec<CaptureReport>,
}

/// One file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FileReport {
    /// Path.
    pub file: String,
    /// Shard by its name.
    pub shard: u16,
    /// Null if the file is of no use.
    pub generation: Option<u64>,
    /// Microseconds since the Unix epoch; null if the file is of no use.
    pub saved_at_us: Option<u64>,
    /// Entries of feeds in this file, newest or not.
    pub feeds: usize,
    /// Entries of captures in this file, newest or not.
    pub captures: usize,
    /// Why the file is of no use, null if it is fine.
    pub error: Option<String>,
}

/// One feed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FeedReport {
    /// Upstream topic.
    pub upstream: TopicReport,
    /// Destination topic.
    pub downstream: TopicReport,
    /// Partition on both sides.
    pub partition: u32,
    /// Shard whose file this entry is from.
    pub shard: u16,
    /// See [`FeedState::epoch`].
    pub epoch: u64,
    /// See [`FeedState::sequence`].
    pub sequence: u64,
    /// Next upstream offset to copy.
    pub position: u64,
    /// Next destination offset: `position` plus the delta there.
    pub downstream_position: u64,
    /// Pieces, ascending.
    pub deltas: Vec<DeltaReport>,
    /// Last copied message, null if there is none.
    pub last: Option<LastReport>,
    /// Creation time of the upstream topic.
    pub upstream_created_at_us: u64,
    /// Creation time of the destination topic.
    pub downstream_created_at_us: u64,
    /// True if the feed was stopped with nothing in flight.
    pub clean_stop: bool,
    /// Since the feed's first start.
    pub counters: CountersReport,
    /// Latest gap records, oldest first.
    pub gaps: Vec<GapReport>,
    /// Latest repeat records, oldest first.
    pub repeats: Vec<RepeatReport>,
    /// See [`FeedState::first_count`].
    pub first_count: Option<u32>,
}

/// A topic by name.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TopicReport {
    /// Stream.
    pub stream: String,
    /// Topic.
    pub topic: String,
}

/// From `from_upstream` on, destination offset = upstream offset + `delta`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeltaReport {
    /// First upstream offset.
    pub from_upstream: u64,
    /// Destination minus upstream.
    pub delta: i64,
}

/// The last copied message. Id and hash are 32 and 16 hexadecimal digits: JSON numbers of that
/// size lose digits in most readers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LastReport {
    /// Upstream offset.
    pub offset: u64,
    /// Message id.
    pub id: String,
    /// Microseconds since the Unix epoch.
    pub origin_timestamp_us: u64,
    /// Payload bytes.
    pub payload_len: u32,
    /// User header bytes.
    pub headers_len: u32,
    /// XXH3-64 of payload and user headers.
    pub hash: String,
}

/// [`Counters`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CountersReport {
    /// Messages acked.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Failed operations.
    pub errors: u64,
    /// Histories that ended.
    pub resets: u64,
    /// Gap records ever made.
    pub gaps: u64,
    /// Offsets in them.
    pub gap_messages: u64,
}

/// Upstream offsets that will never be copied.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GapReport {
    /// First.
    pub first: u64,
    /// Last, inclusive.
    pub last: u64,
    /// How many.
    pub messages: u64,
    /// Microseconds since the Unix epoch.
    pub found_at_us: u64,
}

/// Upstream offsets that were copied before and are copied once more.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RepeatReport {
    /// First.
    pub first: u64,
    /// Last, inclusive.
    pub last: u64,
    /// How many.
    pub messages: u64,
    /// When the operator said so, microseconds since the Unix epoch.
    pub found_at_us: u64,
}

/// Everything the files say, in a fixed order.
pub fn report(files: &[FoundFile]) -> Report {
    let mut by_source: BTreeMap<&str, Vec<&FoundFile>> = BTreeMap::new();
    for file in files {
        by_source.entry(&file.source).or_default().push(file);
    }
    let sources = by_source.into_iter().map(|(source, mut files)| {
        files.sort_by_key(|file| file.shard);
        let usable = files.iter().filter_map(|file| file.state.as_ref().ok());
        SourceReport {
            source: source.to_owned(),
            captures: capture::winners(usable.clone())
                .into_values()
                .map(|(file, entry)| capture::report(file, entry))
                .collect(),
            feeds: winners(usable).into_values().map(|(f, feed)| feed_report(f, feed)).collect(),
            files: files.iter().map(|file| file_report(file)).collect(),
        }
    });
    Report { sources: sources.collect() }
}

fn file_report(found: &FoundFile) -> FileReport {
    let state = found.state.as_ref();
    FileReport {
        file: found.file.clone(),
        shard: found.shard,
        generation: state.ok().map(|state| state.generation),
        saved_at_us: state.ok().map(|state| state.saved_at),
        feeds: state.map_or(0, |state| state.feeds.len()),
        captures: state.map_or(0, |state| state.captures.len()),
        error: state.err().map(StateError::to_string),
    }
}

fn feed_report(file: &SourceState, feed: &FeedState) -> FeedReport {
    let deltas = feed.deltas.iter();
    let piece = deltas.clone().rev().find(|piece| piece.from_upstream <= feed.position);
    FeedReport {
        upstream: topic_report(&feed.upstream),
        downstream: topic_report(&feed.downstream),
        partition: feed.partition,
        shard: file.shard,
        epoch: feed.epoch,
        sequence: feed.sequence,
        position: feed.position,
        downstream_position: feed.position.wrapping_add_signed(piece.map_or(0, |p| p.delta)),
        deltas: deltas
            .map(|p| DeltaReport { from_upstream: p.from_upstream, delta: p.delta })
            .collect(),
        last: feed.last.map(|last| LastReport {
            offset: last.offset,
            id: format!("{:032x}", last.fingerprint.id),
            origin_timestamp_us: last.fingerprint.origin_timestamp,
            payload_len: last.fingerprint.payload_len,
            headers_len: last.fingerprint.headers_len,
            hash: format!("{:016x}", last.fingerprint.hash),
        }),
        upstream_created_at_us: feed.upstream_created_at,
        downstream_created_at_us: feed.downstream_created_at,
        clean_stop: feed.clean_stop,
        counters: counters_report(&feed.counters),
        gaps: feed
            .gaps
            .iter()
            .map(|gap| GapReport {
                first: gap.first,
                last: gap.last,
                messages: gap.len(),
                found_at_us: gap.found_at,
            })
            .collect(),
        repeats: feed.repeats.iter().map(repeat_report).collect(),
        first_count: feed.first_count,
    }
}

fn repeat_report(it: &Repeat) -> RepeatReport {
    let (first, last, messages) = (it.first, it.last, it.len());
    RepeatReport { first, last, messages, found_at_us: it.found_at }
}

fn topic_report(name: &TopicName) -> TopicReport {
    TopicReport { stream: name.stream.to_string(), topic: name.topic.to_string() }
}

fn counters_report(counters: &Counters) -> CountersReport {
    let Counters { messages, bytes, errors, resets, gaps, gap_messages } = *counters;
    CountersReport { messages, bytes, errors, resets, gaps, gap_messages }
}

#[cfg(test)]
mod tests {
    use super::super::format::{Fault, decode};
    use super::super::samples::{any_state, fresh_feed, full_feed, full_state};
    use super::*;
    use proptest::prelude::*;

    fn on_shard(shard: u16, feeds: Vec<FeedState>) -> SourceState {
        SourceState { shard, feeds, ..full_state() }
    }

    #[test]
    fn names_of_state_files_and_no_others_are_read_back() {
        assert_eq!(parse_file_name(&file_name("a_b-9", 65535)), Some(("a_b-9", 65535)));
        for other in [
            "orders.0.state.tmp",
            "orders.0.state.corrupt-1",
            "orders.state",
            ".0.state",
            "orders.00.state",
            "orders.+1.state",
            "orders.65536.state",
            "a.b.0.state",
            "Orders.0.state",
            "../orders.0.state",
            "orders.0.stat",
            "",
        ] {
            assert_eq!(parse_file_name(other), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn every_file_name_leads_back(state in any_state()) {
            let name = file_name(&state.source, state.shard);
            prop_assert_eq!(parse_file_name(&name), Some((&*state.source, state.shard)));
        }
    }

    #[test]
    fn the_greatest_epoch_then_sequence_wins_whatever_the_order_of_files() {
        let entry =
            |epoch, sequence, position| FeedState { epoch, sequence, position, ..full_feed() };
        let old = on_shard(0, vec![entry(1, 900, 5_000), fresh_feed()]);
        let new = on_shard(1, vec![entry(2, 3, 1_000)]);
        let newest = on_shard(2, vec![entry(2, 4, 1_001)]);
        let expected = [entry(2, 4, 1_001), fresh_feed()];
        let files = [&old, &new, &newest];
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            assert_eq!(newest_feeds(order.map(|n: usize| files[n])), expected);
        }
    }

    #[test]
    fn of_equal_versions_the_one_without_a_clean_stop_wins() {
        let clean = on_shard(0, vec![full_feed()]);
        let dirty = on_shard(1, vec![FeedState { clean_stop: false, ..full_feed() }]);
        assert!(!newest_feeds([&clean, &dirty])[0].clean_stop);
        assert!(!newest_feeds([&dirty, &clean])[0].clean_stop);
    }

    #[test]
    fn the_report_shows_every_file_and_ids_as_hex() {
        let fault = decode(b"", "d/orders.6.state").unwrap_err();
        assert_eq!(fault.fault, Fault::Empty);
        let files = [
            FoundFile {
                source: "orders".into(),
                shard: 6,
                file: "d/orders.6.state".into(),
                state: Err(fault.into()),
            },
            FoundFile {
                source: "orders".into(),
                shard: 5,
                file: "d/orders.5.state".into(),
                state: Ok(full_state()),
            },
        ];
        let json = serde_json::to_value(report(&files)).unwrap();
        let source = &json["sources"][0];
        assert_eq!(source["source"], "orders");
        assert_eq!(source["files"][0]["generation"], 0x0102_0304_0506_0708_u64);
        assert_eq!(source["files"][1]["generation"], serde_json::Value::Null);
        let error = source["files"][1]["error"].as_str().unwrap();
        assert!(error.contains("d/orders.6.state: the file is empty"), "{error}");
        let feed = &source["feeds"][0];
        assert_eq!(feed["shard"], 5);
        assert_eq!(feed["position"], 1_000);
        assert_eq!(feed["downstream_position"], 850);
        assert_eq!(feed["last"]["id"], "0123456789abcdef0011223344556677");
        assert_eq!(feed["last"]["hash"], "feedfacecafebeef");
        assert_eq!(feed["gaps"][0]["messages"], 50);
        assert_eq!(feed["repeats"][0]["first"], 900);
        assert_eq!(feed["downstream"]["topic"], "events-é");
        assert_eq!(source["feeds"][1]["last"], serde_json::Value::Null);
    }
}
