//! `/connectors`: the sources under the names that users of Iggy's connector runtime know.

use std::collections::BTreeMap;

use serde::Serialize;

use super::board::{SourceView, View};
use super::report::{ConditionReport, SourceReport, TopicReport, source_report};
use crate::batch::TopicName;
use crate::shard::snapshot::DestinationSnapshot;

/// One row of `/connectors`.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ConnectorReport {
    key: String,
    r#type: &'static str,
    kind: &'static str,
    to: String,
    guarantee: &'static str,
    #[serde(flatten)]
    condition: ConditionReport,
    feeds: usize,
    destinations: usize,
    messages: u64,
    errors: u64,
}

/// One row of `/connectors/{key}/destinations`.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub(super) enum DestinationReport {
    Mirror(MirrorDestination),
    Capture(CaptureDestination),
}

/// The feeds that write to one topic, added up.
#[derive(Clone, Debug, Serialize)]
pub(super) struct MirrorDestination {
    #[serde(flatten)]
    topic: TopicReport,
    partitions: usize,
    messages: u64,
    bytes: u64,
    errors: u64,
    last_error: String,
}

/// A destination that rows of a capture were routed to, refused ones included.
#[derive(Clone, Debug, Serialize)]
pub(super) struct CaptureDestination {
    #[serde(flatten)]
    topic: TopicReport,
    state: &'static str,
    breaker: &'static str,
    partitions: Option<u32>,
    messages: u64,
    bytes: u64,
    sends: u64,
    errors: u64,
    failures: u32,
    trips: u64,
    lost_tails: u64,
    waiting_groups: u64,
    waiting_bytes: u64,
    last_error: String,
    not_durable: Option<String>,
}

/// Every source of the plan.
pub(super) fn connectors(view: &View) -> Vec<ConnectorReport> {
    view.sources.iter().map(connector_row).collect()
}

/// One source in full; `None` if there is none of that key.
pub(super) fn connector(view: &View, key: &str) -> Option<SourceReport> {
    find(view, key).map(source_report)
}

/// Where one source writes to; `None` if there is no such source.
pub(super) fn destinations(view: &View, key: &str) -> Option<Vec<DestinationReport>> {
    find(view, key).map(destination_rows)
}

fn find<'v>(view: &'v View, key: &str) -> Option<&'v SourceView> {
    view.sources.iter().find(|source| &*source.info.key == key)
}

fn connector_row(source: &SourceView) -> ConnectorReport {
    ConnectorReport {
        key: source.info.key.to_string(),
        r#type: "source",
        kind: source.info.kind.as_str(),
        to: source.info.to.to_string(),
        guarantee: source.info.guarantee,
        condition: (&source.condition).into(),
        feeds: source.feeds.len(),
        destinations: destination_rows(source).len(),
        messages: source.totals.messages,
        errors: source.totals.errors,
    }
}

fn destination_rows(source: &SourceView) -> Vec<DestinationReport> {
    let captured = source.capture.iter().flat_map(|capture| &capture.snapshot.destinations);
    let captured = captured.map(|shown| DestinationReport::Capture(shown.into()));
    let mirrored = mirror_rows(source).into_iter().map(DestinationReport::Mirror);
    mirrored.chain(captured).collect()
}

impl From<&DestinationSnapshot> for CaptureDestination {
    fn from(shown: &DestinationSnapshot) -> CaptureDestination {
        let counters = shown.counters;
        CaptureDestination {
            topic: (&shown.topic).into(),
            state: shown.state,
            breaker: shown.breaker,
            partitions: shown.partitions,
            messages: counters.messages,
            bytes: counters.bytes,
            sends: counters.sends,
            errors: counters.errors,
            failures: shown.failures,
            trips: shown.trips,
            lost_tails: counters.lost_tails,
            waiting_groups: shown.held_groups,
            waiting_bytes: shown.held_bytes,
            last_error: shown.last_error.as_deref().unwrap_or_default().to_owned(),
            not_durable: shown.not_durable.clone(),
        }
    }
}

/// The feeds of a mirror, added up by their destination topic.
fn mirror_rows(source: &SourceView) -> Vec<MirrorDestination> {
    let mut rows: BTreeMap<&TopicName, MirrorDestination> = BTreeMap::new();
    for feed in &source.feeds {
        let shown = &feed.snapshot;
        let row = rows.entry(&shown.downstream).or_insert_with(|| MirrorDestination {
            topic: (&shown.downstream).into(),
            partitions: 0,
            messages: 0,
            bytes: 0,
            errors: 0,
            last_error: String::new(),
        });
        row.partitions += 1;
        row.messages += shown.counters.messages;
        row.bytes += shown.counters.bytes;
        row.errors += shown.counters.errors;
        if !shown.last_error.is_empty() {
            row.last_error = shown.last_error.to_string();
        }
    }
    rows.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::super::derive::Deriver;
    use super::super::fixture::{at, capture, condition, info, info_of, running, shard};
    use super::*;
    use crate::shard::snapshot::Status;

    #[test]
    fn a_source_is_listed_with_the_topics_it_writes_to() {
        let mut deriver = Deriver::new(info(1, &["orders", "audit"]));
        let feeds = vec![running("orders", 0, 7), running("orders", 1, 5)];
        let view = deriver.derive(at(1), vec![shard(0, 1, feeds)], Vec::new());
        let rows = serde_json::to_value(connectors(&view)).unwrap();
        assert_eq!((&rows[0]["key"], &rows[0]["messages"]), (&"orders".into(), &12.into()));
        assert_eq!((&rows[0]["destinations"], &rows[1]["destinations"]), (&1.into(), &0.into()));
        let topics = serde_json::to_value(destinations(&view, "orders")).unwrap();
        assert_eq!(topics[0]["stream"], "orders");
        assert_eq!((&topics[0]["partitions"], &topics[0]["messages"]), (&2.into(), &12.into()));
        assert!(connector(&view, "nobody").is_none() && destinations(&view, "nobody").is_none());
        let one = serde_json::to_value(connector(&view, "orders")).unwrap();
        assert_eq!(one["feeds"].as_array().map(Vec::len), Some(2));
    }
    #[test]
    fn a_capture_lists_its_destinations_with_what_keeps_them() {
        let mut deriver = Deriver::new(info_of(1, &[], &["shop"]));
        let mut snapshot = shard(0, 1, Vec::new());
        snapshot.captures = vec![capture("shop", condition(Status::Running, "", 1))];
        let view = deriver.derive(at(1), vec![snapshot], Vec::new());
        let rows = serde_json::to_value(connectors(&view)).unwrap();
        assert_eq!(
            (&rows[0]["kind"], &rows[0]["type"]),
            (&"postgres_cdc".into(), &"source".into())
        );
        assert_eq!((&rows[0]["destinations"], &rows[0]["messages"]), (&2.into(), &500.into()));
        let rows = serde_json::to_value(destinations(&view, "shop")).unwrap();
        let expected = serde_json::json!([
            {
                "stream": "commerce", "topic": "orders", "state": "circuit_open",
                "breaker": "open", "partitions": 4, "messages": 300, "bytes": 3_000, "sends": 30,
                "errors": 5, "failures": 5, "trips": 1, "lost_tails": 0, "waiting_groups": 2,
                "waiting_bytes": 2_048, "last_error": "timed out", "not_durable": null,
            },
            {
                "stream": "commerce", "topic": "audit", "state": "ready", "breaker": "closed",
                "partitions": null, "messages": 200, "bytes": 2_000, "sends": 20, "errors": 0,
                "failures": 0, "trips": 0, "lost_tails": 1, "waiting_groups": 0,
                "waiting_bytes": 0, "last_error": "", "not_durable": "messages stay in memory",
            },
        ]);
        assert_eq!(rows, expected);
    }
}
