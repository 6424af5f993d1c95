//! The body of a state file as rkyv archives it.
//!
//! These mirror the public structs so that a change there cannot move bytes on disk; any change
//! here is a new [`super::format::VERSION`]. The generation is not here, the header has it.

use rkyv::{Archive, Serialize};

use super::{
    CaptureCounters, CaptureState, Counters, FeedState, LastMessage, LsnGap, RoutedTable,
    SourceState, UnfinishedState,
};
use crate::batch::{DeltaPiece, Fingerprint, Gap, Repeat, TopicName};

#[derive(Archive, Serialize)]
pub(super) struct Body {
    source: String,
    shard: u16,
    saved_at: u64,
    feeds: Vec<Started>,
    captures: Vec<Capture>,
}

/// The body of version 2, which did not know how many partitions there were at first. Only read.
#[derive(Archive)]
#[cfg_attr(test, derive(Serialize))]
#[cfg_attr(not(test), expect(dead_code, reason = "its archived twin is what is read"))]
pub(super) struct BodyV2 {
    source: String,
    shard: u16,
    saved_at: u64,
    feeds: Vec<Copied>,
    captures: Vec<Capture>,
}

/// The body of version 1, which knew neither captures nor repeats. Only read.
#[derive(Archive)]
#[cfg_attr(test, derive(Serialize))]
#[cfg_attr(not(test), expect(dead_code, reason = "its archived twin is what is read"))]
pub(super) struct BodyV1 {
    source: String,
    shard: u16,
    saved_at: u64,
    feeds: Vec<Feed>,
}

/// A feed as version 2 knew it, and what version 3 adds.
#[derive(Archive, Serialize)]
struct Started {
    copied: Copied,
    first_count: Option<u32>,
}

/// A feed as version 1 knew it, and what version 2 adds.
#[derive(Archive, Serialize)]
struct Copied {
    feed: Feed,
    repeats: Vec<Hole>,
}

#[derive(Archive, Serialize)]
struct Feed {
    upstream: Topic,
    downstream: Topic,
    partition: u32,
    epoch: u64,
    sequence: u64,
    position: u64,
    deltas: Vec<Delta>,
    last: Option<Last>,
    upstream_created_at: u64,
    downstream_created_at: u64,
    clean_stop: bool,
    counters: Counts,
    gaps: Vec<Hole>,
}

#[derive(Archive, Serialize)]
struct Topic {
    stream: String,
    topic: String,
}

#[derive(Archive, Serialize)]
struct Delta {
    from_upstream: u64,
    delta: i64,
}

#[derive(Archive, Serialize)]
struct Last {
    offset: u64,
    id: u128,
    origin_timestamp: u64,
    payload_len: u32,
    headers_len: u32,
    hash: u64,
}

#[derive(Archive, Serialize)]
struct Counts {
    messages: u64,
    bytes: u64,
    errors: u64,
    resets: u64,
    gaps: u64,
    gap_messages: u64,
}

#[derive(Archive, Serialize)]
struct Hole {
    first: u64,
    last: u64,
    found_at: u64,
}

#[derive(Archive, Serialize)]
struct Capture {
    slot: String,
    database: String,
    decoder: String,
    publication: String,
    epoch: u64,
    sequence: u64,
    system_id: u64,
    timeline: u32,
    end_lsn: u64,
    unfinished: Option<Unfinished>,
    clean_stop: bool,
    counters: CaptureCounts,
    gaps: Vec<LsnHole>,
    last_abandon_at: u64,
    routed: Vec<Routed>,
}

#[derive(Archive, Serialize)]
struct Routed {
    schema: String,
    name: String,
    columns: Vec<String>,
}

#[derive(Archive, Serialize)]
struct Unfinished {
    final_lsn: u64,
    xid: u32,
    ordinal: u64,
    config_hash: u64,
}

#[derive(Archive, Serialize)]
struct CaptureCounts {
    messages: u64,
    bytes: u64,
    errors: u64,
    resets: u64,
    transactions: u64,
    gaps: u64,
}

#[derive(Archive, Serialize)]
struct LsnHole {
    first: u64,
    last: u64,
    found_at: u64,
    why: String,
}

impl From<&SourceState> for Body {
    fn from(state: &SourceState) -> Body {
        Body {
            source: state.source.to_string(),
            shard: state.shard,
            saved_at: state.saved_at,
            feeds: state.feeds.iter().map(Started::from).collect(),
            captures: state.captures.iter().map(Capture::from).collect(),
        }
    }
}

#[cfg(test)]
impl From<&SourceState> for BodyV2 {
    fn from(state: &SourceState) -> BodyV2 {
        let Body { source, shard, saved_at, feeds, captures } = Body::from(state);
        let feeds = feeds.into_iter().map(|started| started.copied).collect();
        BodyV2 { source, shard, saved_at, feeds, captures }
    }
}

#[cfg(test)]
impl From<&SourceState> for BodyV1 {
    fn from(state: &SourceState) -> BodyV1 {
        let BodyV2 { source, shard, saved_at, feeds, .. } = BodyV2::from(state);
        let feeds = feeds.into_iter().map(|copied| copied.feed).collect();
        BodyV1 { source, shard, saved_at, feeds }
    }
}

impl From<&FeedState> for Started {
    fn from(feed: &FeedState) -> Started {
        Started { copied: Copied::from(feed), first_count: feed.first_count }
    }
}

impl From<&FeedState> for Copied {
    fn from(feed: &FeedState) -> Copied {
        let hole = |r: &Repeat| Hole { first: r.first, last: r.last, found_at: r.found_at };
        Copied { feed: Feed::from(feed), repeats: feed.repeats.iter().map(hole).collect() }
    }
}

impl From<&FeedState> for Feed {
    fn from(feed: &FeedState) -> Feed {
        let c = feed.counters;
        Feed {
            upstream: Topic::from(&feed.upstream),
            downstream: Topic::from(&feed.downstream),
            partition: feed.partition,
            epoch: feed.epoch,
            sequence: feed.sequence,
            position: feed.position,
            deltas: feed
                .deltas
                .iter()
                .map(|d| Delta { from_upstream: d.from_upstream, delta: d.delta })
                .collect(),
            last: feed.last.as_ref().map(Last::from),
            upstream_created_at: feed.upstream_created_at,
            downstream_created_at: feed.downstream_created_at,
            clean_stop: feed.clean_stop,
            counters: Counts {
                messages: c.messages,
                bytes: c.bytes,
                errors: c.errors,
                resets: c.resets,
                gaps: c.gaps,
                gap_messages: c.gap_messages,
            },
            gaps: feed
                .gaps
                .iter()
                .map(|g| Hole { first: g.first, last: g.last, found_at: g.found_at })
                .collect(),
        }
    }
}

impl From<&TopicName> for Topic {
    fn from(name: &TopicName) -> Topic {
        Topic { stream: name.stream.to_string(), topic: name.topic.to_string() }
    }
}

impl From<&LastMessage> for Last {
    fn from(last: &LastMessage) -> Last {
        let f = last.fingerprint;
        Last {
            offset: last.offset,
            id: f.id,
            origin_timestamp: f.origin_timestamp,
            payload_len: f.payload_len,
            headers_len: f.headers_len,
            hash: f.hash,
        }
    }
}

impl From<&CaptureState> for Capture {
    fn from(capture: &CaptureState) -> Capture {
        let c = capture.counters;
        let routed = |table: &RoutedTable| Routed {
            schema: table.schema.clone(),
            name: table.name.clone(),
            columns: table.columns.clone(),
        };
        let gap = |g: &LsnGap| LsnHole {
            first: g.first,
            last: g.last,
            found_at: g.found_at,
            why: g.why.clone(),
        };
        Capture {
            slot: capture.slot.clone(),
            database: capture.database.clone(),
            decoder: capture.decoder.clone(),
            publication: capture.publication.clone(),
            epoch: capture.epoch,
            sequence: capture.sequence,
            system_id: capture.system_id,
            timeline: capture.timeline,
            end_lsn: capture.end_lsn,
            unfinished: capture.unfinished.map(|u| Unfinished {
                final_lsn: u.final_lsn,
                xid: u.xid,
                ordinal: u.ordinal,
                config_hash: u.config_hash,
            }),
            clean_stop: capture.clean_stop,
            counters: CaptureCounts {
                messages: c.messages,
                bytes: c.bytes,
                errors: c.errors,
                resets: c.resets,
                transactions: c.transactions,
                gaps: c.gaps,
            },
            gaps: capture.gaps.iter().map(gap).collect(),
            last_abandon_at: capture.last_abandon_at,
            routed: capture.routed.iter().map(routed).collect(),
        }
    }
}

impl ArchivedBody {
    pub(super) fn to_state(&self, generation: u64) -> SourceState {
        SourceState {
            source: self.source.as_str().into(),
            shard: self.shard.to_native(),
            generation,
            saved_at: self.saved_at.to_native(),
            feeds: self.feeds.iter().map(ArchivedStarted::to_state).collect(),
            captures: self.captures.iter().map(ArchivedCapture::to_state).collect(),
        }
    }
}

impl ArchivedBodyV2 {
    pub(super) fn to_state(&self, generation: u64) -> SourceState {
        SourceState {
            source: self.source.as_str().into(),
            shard: self.shard.to_native(),
            generation,
            saved_at: self.saved_at.to_native(),
            feeds: self.feeds.iter().map(ArchivedCopied::to_state).collect(),
            captures: self.captures.iter().map(ArchivedCapture::to_state).collect(),
        }
    }
}

impl ArchivedBodyV1 {
    pub(super) fn to_state(&self, generation: u64) -> SourceState {
        SourceState {
            source: self.source.as_str().into(),
            shard: self.shard.to_native(),
            generation,
            saved_at: self.saved_at.to_native(),
            feeds: self.feeds.iter().map(ArchivedFeed::to_state).collect(),
            captures: Vec::new(),
        }
    }
}

impl ArchivedCapture {
    fn to_state(&self) -> CaptureState {
        let c = &self.counters;
        let unfinished = self.unfinished.as_ref().map(|u| UnfinishedState {
            final_lsn: u.final_lsn.to_native(),
            xid: u.xid.to_native(),
            ordinal: u.ordinal.to_native(),
            config_hash: u.config_hash.to_native(),
        });
        let gaps = self.gaps.iter().map(|g| LsnGap {
            first: g.first.to_native(),
            last: g.last.to_native(),
            found_at: g.found_at.to_native(),
            why: g.why.as_str().to_owned(),
        });
        CaptureState {
            slot: self.slot.as_str().to_owned(),
            database: self.database.as_str().to_owned(),
            decoder: self.decoder.as_str().to_owned(),
            publication: self.publication.as_str().to_owned(),
            epoch: self.epoch.to_native(),
            sequence: self.sequence.to_native(),
            system_id: self.system_id.to_native(),
            timeline: self.timeline.to_native(),
            end_lsn: self.end_lsn.to_native(),
            unfinished,
            clean_stop: self.clean_stop,
            counters: CaptureCounters {
                messages: c.messages.to_native(),
                bytes: c.bytes.to_native(),
                errors: c.errors.to_native(),
                resets: c.resets.to_native(),
                transactions: c.transactions.to_native(),
                gaps: c.gaps.to_native(),
            },
            gaps: gaps.collect(),
            last_abandon_at: self.last_abandon_at.to_native(),
            routed: self.routed.iter().map(ArchivedRouted::to_table).collect(),
        }
    }
}

impl ArchivedRouted {
    fn to_table(&self) -> RoutedTable {
        RoutedTable {
            schema: self.schema.as_str().to_owned(),
            name: self.name.as_str().to_owned(),
            columns: self.columns.iter().map(|column| column.as_str().to_owned()).collect(),
        }
    }
}

impl ArchivedStarted {
    fn to_state(&self) -> FeedState {
        let first_count = self.first_count.as_ref().map(|count| count.to_native());
        FeedState { first_count, ..self.copied.to_state() }
    }
}

impl ArchivedCopied {
    fn to_state(&self) -> FeedState {
        let repeats = self.repeats.iter().map(|r| Repeat {
            first: r.first.to_native(),
            last: r.last.to_native(),
            found_at: r.found_at.to_native(),
        });
        FeedState { repeats: repeats.collect(), ..self.feed.to_state() }
    }
}

impl ArchivedFeed {
    fn to_state(&self) -> FeedState {
        let c = &self.counters;
        let deltas = self.deltas.iter().map(|d| DeltaPiece {
            from_upstream: d.from_upstream.to_native(),
            delta: d.delta.to_native(),
        });
        let gaps = self.gaps.iter().map(|g| Gap {
            first: g.first.to_native(),
            last: g.last.to_native(),
            found_at: g.found_at.to_native(),
        });
        FeedState {
            upstream: TopicName::new(&self.upstream.stream, &self.upstream.topic),
            downstream: TopicName::new(&self.downstream.stream, &self.downstream.topic),
            partition: self.partition.to_native(),
            epoch: self.epoch.to_native(),
            sequence: self.sequence.to_native(),
            position: self.position.to_native(),
            deltas: deltas.collect(),
            last: self.last.as_ref().map(ArchivedLast::to_last),
            upstream_created_at: self.upstream_created_at.to_native(),
            downstream_created_at: self.downstream_created_at.to_native(),
            clean_stop: self.clean_stop,
            counters: Counters {
                messages: c.messages.to_native(),
                bytes: c.bytes.to_native(),
                errors: c.errors.to_native(),
                resets: c.resets.to_native(),
                gaps: c.gaps.to_native(),
                gap_messages: c.gap_messages.to_native(),
            },
            gaps: gaps.collect(),
            repeats: Vec::new(),
            first_count: None,
        }
    }
}

impl ArchivedLast {
    fn to_last(&self) -> LastMessage {
        LastMessage {
            offset: self.offset.to_native(),
            fingerprint: Fingerprint {
                id: self.id.to_native(),
                origin_timestamp: self.origin_timestamp.to_native(),
                payload_len: self.payload_len.to_native(),
                headers_len: self.headers_len.to_native(),
                hash: self.hash.to_native(),
            },
        }
    }
}
