//! The renderings of a [`View`] as plain serialisable values: `/status`, `/readyz`, `/livez`.
//!
//! Pure functions of a view and a moment, so that the command line prints the same report the
//! admin interface serves. Field names are a published interface: `docs/status.schema.json`
//! describes them, and a test holds the two together. Timestamps are RFC 3339 in UTC, positions
//! are the next offset, sizes are bytes.

use std::collections::BTreeMap;

use serde::Serialize;

use super::board::{FeedView, ShardView, SourceKind, SourceView, View};
use super::capture::CaptureReport;
use super::ledger::{Change, Rates};
use crate::batch::{Gap, Repeat, TopicName};
use crate::shard::snapshot::{Condition, SourceFinding, Status};
use crate::time::{Now, UnixMicros};

/// Gap records shown per feed or capture; the state file keeps more, the counters count all.
pub(super) const GAPS_SHOWN: usize = 16;

/// Body of `/status`.
#[derive(Clone, Debug, Serialize)]
pub struct StatusReport {
    daemon: DaemonReport,
    shards: Vec<ShardReport>,
    sources: Vec<SourceReport>,
}

/// Body of `/readyz`.
#[derive(Clone, Debug, Serialize)]
pub struct Readiness {
    /// True when every source is running on shards that turn.
    pub ready: bool,
    /// Everything that speaks against it.
    reasons: Vec<UnreadyReport>,
}

/// Body of `/livez`.
#[derive(Clone, Debug, Serialize)]
pub struct Liveness {
    /// True when every shard's loop turns.
    pub live: bool,
    /// The shards whose loop does not.
    stuck_shards: Vec<StuckReport>,
}

#[derive(Clone, Debug, Serialize)]
struct DaemonReport {
    version: &'static str,
    pid: u32,
    started_at: String,
    now: String,
    uptime_seconds: f64,
    live: bool,
    ready: bool,
}

#[derive(Clone, Debug, Serialize)]
struct ShardReport {
    shard: u16,
    live: bool,
    cpu: Option<u16>,
    io_driver: Option<&'static str>,
    feeds: usize,
    captures: usize,
    loop_turns: u64,
    loop_max_seconds: f64,
    seconds_since_turn: f64,
    buffered_bytes: u64,
    buffer_limit_bytes: u64,
    state_saves: u64,
    state_save_failures: u64,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct ConditionReport {
    status: &'static str,
    reason: &'static str,
    since: String,
    detail: String,
    advice: &'static str,
}

#[derive(Clone, Debug, Serialize)]
struct ChangeReport {
    status: &'static str,
    reason: &'static str,
    since: String,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct TopicReport {
    stream: String,
    topic: String,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct SourceReport {
    key: String,
    kind: &'static str,
    from: String,
    to: String,
    guarantee: &'static str,
    #[serde(flatten)]
    condition: ConditionReport,
    subject: String,
    totals: TotalsReport,
    feeds_by_status: BTreeMap<&'static str, usize>,
    findings: Vec<FindingReport>,
    history: Vec<ChangeReport>,
    feeds: Vec<FeedReport>,
    capture: Option<CaptureReport>,
}

#[derive(Clone, Debug, Serialize)]
struct TotalsReport {
    lag_messages: Option<u64>,
    lag_bytes: Option<u64>,
    messages: u64,
    bytes: u64,
    messages_per_second: f64,
    bytes_per_second: f64,
    errors: u64,
    gaps: u64,
    gap_messages: Option<u64>,
    resets: u64,
}

#[derive(Clone, Debug, Serialize)]
struct FindingReport {
    topic: Option<TopicReport>,
    #[serde(flatten)]
    condition: ConditionReport,
}

#[derive(Clone, Debug, Serialize)]
struct FeedReport {
    upstream: TopicReport,
    downstream: TopicReport,
    partition: u32,
    shard: u16,
    #[serde(flatten)]
    condition: ConditionReport,
    upstream_end: u64,
    position: u64,
    durable_position: u64,
    delta: i64,
    lag_messages: u64,
    messages: u64,
    bytes: u64,
    messages_per_second: f64,
    bytes_per_second: f64,
    errors: u64,
    last_error: String,
    gaps: u64,
    gap_messages: u64,
    recent_gaps: Vec<GapReport>,
    recent_repeats: Vec<GapReport>,
    resets: u64,
    epoch: u64,
    upstream_node: Option<String>,
    downstream_node: Option<String>,
    history: Vec<ChangeReport>,
}

#[derive(Clone, Debug, Serialize)]
struct GapReport {
    first: u64,
    last: u64,
    messages: u64,
    found_at: String,
}

#[derive(Clone, Debug, Serialize)]
struct UnreadyReport {
    source: Option<String>,
    subject: String,
    #[serde(flatten)]
    condition: ConditionReport,
}

#[derive(Clone, Debug, Serialize)]
struct StuckReport {
    shard: u16,
    seconds_since_turn: f64,
}

/// The whole state of the daemon.
pub fn status_report(view: &View, now: Now) -> StatusReport {
    StatusReport {
        daemon: DaemonReport {
            version: view.info.version,
            pid: view.info.pid,
            started_at: rfc3339(view.info.started_at),
            now: now.wall.to_string(),
            uptime_seconds: now.mono.0 as f64 / 1e3,
            live: liveness(view, now).live,
            ready: readiness(view, now).ready,
        },
        shards: view.shards.iter().map(|shard| shard_report(shard, now)).collect(),
        sources: view.sources.iter().map(source_report).collect(),
    }
}

/// Whether every source does its work. What a stuck shard said last proves nothing.
pub fn readiness(view: &View, now: Now) -> Readiness {
    let stuck = view.shards.iter().filter(|shard| !shard.is_live(now.mono)).map(|shard| {
        let silence = now.mono.since(shard.turned_at);
        let condition = Condition {
            status: Status::Error,
            reason: "shard_stuck",
            detail: format!("shard {} has not turned for {silence:?}", shard.number),
            advice: "restart the daemon and report the stuck shard with the log",
            since: now.wall.0.saturating_sub(u64::try_from(silence.as_micros()).unwrap_or(0)),
        };
        UnreadyReport { source: None, subject: String::new(), condition: (&condition).into() }
    });
    let waiting = view.sources.iter().filter(|s| s.condition.status != Status::Running);
    let waiting = waiting.map(|source| UnreadyReport {
        source: Some(source.info.key.to_string()),
        subject: source.subject.clone(),
        condition: (&source.condition).into(),
    });
    let reasons: Vec<UnreadyReport> = stuck.chain(waiting).collect();
    Readiness { ready: reasons.is_empty(), reasons }
}

/// Whether every shard's loop turns.
pub fn liveness(view: &View, now: Now) -> Liveness {
    let stuck = view.shards.iter().filter(|shard| !shard.is_live(now.mono));
    let stuck_shards: Vec<StuckReport> = stuck
        .map(|shard| StuckReport {
            shard: shard.number,
            seconds_since_turn: now.mono.since(shard.turned_at).as_secs_f64(),
        })
        .collect();
    Liveness { live: stuck_shards.is_empty(), stuck_shards }
}

fn shard_report(shard: &ShardView, now: Now) -> ShardReport {
    let latest = shard.latest.as_ref();
    ShardReport {
        shard: shard.number,
        live: shard.is_live(now.mono),
        cpu: latest.and_then(|s| s.cpu),
        io_driver: latest.map(|s| s.io_driver),
        feeds: shard.feeds,
        captures: shard.captures,
        loop_turns: latest.map_or(0, |s| s.loop_turns),
        loop_max_seconds: shard.loop_peak_us as f64 / 1e6,
        seconds_since_turn: now.mono.since(shard.turned_at).as_secs_f64(),
        buffered_bytes: latest.map_or(0, |s| s.buffered),
        buffer_limit_bytes: latest.map_or(0, |s| s.buffer_limit),
        state_saves: latest.map_or(0, |s| s.saves),
        state_save_failures: latest.map_or(0, |s| s.save_failures),
    }
}

pub(super) fn source_report(source: &SourceView) -> SourceReport {
    let mut feeds_by_status: BTreeMap<&'static str, usize> = BTreeMap::new();
    for feed in &source.feeds {
        *feeds_by_status.entry(feed.snapshot.condition.status.as_str()).or_default() += 1;
    }
    SourceReport {
        key: source.info.key.to_string(),
        kind: source.info.kind.as_str(),
        from: source.info.from.to_string(),
        to: source.info.to.to_string(),
        guarantee: source.info.guarantee,
        condition: (&source.condition).into(),
        subject: source.subject.clone(),
        totals: totals_report(source),
        feeds_by_status,
        findings: source.findings.iter().map(FindingReport::from).collect(),
        history: source.history.iter().map(ChangeReport::from).collect(),
        feeds: source.feeds.iter().map(feed_report).collect(),
        capture: source.capture.as_ref().map(CaptureReport::from),
    }
}

fn totals_report(source: &SourceView) -> TotalsReport {
    let feeds = source.feeds.iter().map(|feed| feed.rates);
    let rates: Vec<Rates> = feeds.chain(source.capture.iter().map(|c| c.rates)).collect();
    let per_second = |rate: fn(&Rates) -> f64| rates.iter().map(rate).sum::<f64>();
    let is_mirror = source.info.kind == SourceKind::Iggy;
    TotalsReport {
        lag_messages: is_mirror.then(|| source.lag_messages()),
        lag_bytes: source.capture.as_ref().map(|capture| capture.snapshot.lag_bytes),
        messages: source.totals.messages,
        bytes: source.totals.bytes,
        messages_per_second: tenths(per_second(|rates| rates.messages_per_second)),
        bytes_per_second: tenths(per_second(|rates| rates.bytes_per_second)),
        errors: source.totals.errors,
        gaps: source.totals.gaps,
        gap_messages: is_mirror.then_some(source.totals.gap_messages),
        resets: source.totals.resets,
    }
}

fn feed_report(feed: &FeedView) -> FeedReport {
    let shown = &feed.snapshot;
    let older = shown.gaps.len().saturating_sub(GAPS_SHOWN);
    let older_repeats = shown.repeats.len().saturating_sub(GAPS_SHOWN);
    FeedReport {
        upstream: (&shown.upstream).into(),
        downstream: (&shown.downstream).into(),
        partition: shown.partition,
        shard: feed.shard,
        condition: (&shown.condition).into(),
        upstream_end: shown.upstream_end,
        position: shown.position,
        durable_position: shown.durable_position,
        delta: shown.delta,
        lag_messages: shown.lag_messages,
        messages: shown.counters.messages,
        bytes: shown.counters.bytes,
        messages_per_second: tenths(feed.rates.messages_per_second),
        bytes_per_second: tenths(feed.rates.bytes_per_second),
        errors: shown.counters.errors,
        last_error: shown.last_error.to_string(),
        gaps: shown.counters.gaps,
        gap_messages: shown.counters.gap_messages,
        recent_gaps: shown.gaps.iter().skip(older).map(GapReport::from).collect(),
        recent_repeats: shown.repeats.iter().skip(older_repeats).map(GapReport::from).collect(),
        resets: shown.counters.resets,
        epoch: shown.epoch,
        upstream_node: shown.upstream_node.as_deref().map(str::to_owned),
        downstream_node: shown.downstream_node.as_deref().map(str::to_owned),
        history: feed.history.iter().map(ChangeReport::from).collect(),
    }
}

impl From<&Condition> for ConditionReport {
    fn from(condition: &Condition) -> ConditionReport {
        ConditionReport {
            status: condition.status.as_str(),
            reason: condition.reason,
            since: rfc3339(condition.since),
            detail: condition.detail.clone(),
            advice: condition.advice,
        }
    }
}

impl From<&Change> for ChangeReport {
    fn from(change: &Change) -> ChangeReport {
        let Change { status, reason, since } = *change;
        ChangeReport { status: status.as_str(), reason, since: rfc3339(since) }
    }
}

impl From<&SourceFinding> for FindingReport {
    fn from(finding: &SourceFinding) -> FindingReport {
        let topic = finding.topic.as_ref().map(TopicReport::from);
        FindingReport { topic, condition: (&finding.condition).into() }
    }
}

impl From<&TopicName> for TopicReport {
    fn from(name: &TopicName) -> TopicReport {
        TopicReport { stream: name.stream.to_string(), topic: name.topic.to_string() }
    }
}

impl From<&Gap> for GapReport {
    fn from(gap: &Gap) -> GapReport {
        let Gap { first, last, found_at } = *gap;
        GapReport { first, last, messages: gap.len(), found_at: rfc3339(found_at) }
    }
}

impl From<&Repeat> for GapReport {
    fn from(repeat: &Repeat) -> GapReport {
        let Repeat { first, last, found_at } = *repeat;
        GapReport { first, last, messages: repeat.len(), found_at: rfc3339(found_at) }
    }
}

pub(super) fn rfc3339(micros: u64) -> String {
    UnixMicros(micros).to_string()
}

/// Rates are averages over seconds; more digits would pretend.
pub(super) fn tenths(rate: f64) -> f64 {
    (rate * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::STATUS_SCHEMA;
    use super::super::derive::Deriver;
    use super::super::fixture::{
        at, capture, condition, feed, finding, info, info_of, running, shard,
    };
    use super::*;

    fn busy_view() -> View {
        let mut deriver = Deriver::new(info_of(2, &["orders", "idle"], &["shop", "late"]));
        let bad = feed("orders", 1, condition(Status::Error, "diverged", 4));
        let mut first = shard(0, 3, vec![running("orders", 0, 100), bad]);
        first.captures = vec![capture("shop", condition(Status::Degraded, "circuit_open", 3))];
        let findings = vec![
            finding("orders", Some("audit"), "missing_upstream"),
            finding("idle", None, "unreachable"),
        ];
        deriver.derive(at(6), vec![first], findings)
    }

    fn status_json(view: &View, now: Now) -> Value {
        serde_json::to_value(status_report(view, now)).expect("a report is always JSON")
    }

    /// The part of JSON Schema that the published schema uses; any other keyword is an error, so
    /// that nothing in it goes unchecked.
    fn violations(root: &Value, schema: &Value, value: &Value, path: &str) -> Vec<String> {
        let mut found = Vec::new();
        for (keyword, rule) in schema.as_object().expect("a schema is an object") {
            let ok = match keyword.as_str() {
                "$schema" | "title" | "description" | "$defs" => true,
                "$ref" => {
                    let name = rule.as_str().and_then(|r| r.strip_prefix("#/$defs/"));
                    let target = &root["$defs"][name.expect("a local reference")];
                    found.extend(violations(root, target, value, path));
                    target.is_object()
                }
                "type" => types(rule).iter().any(|kind| is(kind, value)),
                "enum" => rule.as_array().is_some_and(|all| all.contains(value)),
                "minimum" => value.as_f64().is_none_or(|number| Some(number) >= rule.as_f64()),
                "format" => value.as_str().is_none_or(|text| text.ends_with('Z')),
                "required" => types(rule).iter().all(|key| value.get(key).is_some()),
                "anyOf" => rule.as_array().is_some_and(|all| {
                    all.iter().any(|one| violations(root, one, value, path).is_empty())
                }),
                "items" => {
                    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                        found.extend(violations(root, rule, item, &format!("{path}[{index}]")));
                    }
                    true
                }
                "properties" => {
                    for (key, inner) in value.as_object().into_iter().flatten() {
                        if let Some(rule) = rule.get(key) {
                            found.extend(violations(root, rule, inner, &format!("{path}.{key}")));
                        }
                    }
                    true
                }
                "additionalProperties" => {
                    value.as_object().into_iter().flatten().all(|(key, v)| {
                        let known = schema["properties"].get(key).is_some();
                        known || rule.is_object() && violations(root, rule, v, path).is_empty()
                    })
                }
                _ => false,
            };
            if !ok {
                found.push(format!("{path}: {keyword} {rule} does not hold for {value}"));
            }
        }
        found
    }

    fn types(rule: &Value) -> Vec<&str> {
        match rule {
            Value::String(one) => vec![one],
            other => other.as_array().into_iter().flatten().filter_map(Value::as_str).collect(),
        }
    }

    fn is(kind: &str, value: &Value) -> bool {
        match kind {
            "object" => value.is_object(),
            "array" => value.is_array(),
            "string" => value.is_string(),
            "boolean" => value.is_boolean(),
            "null" => value.is_null(),
            "number" => value.is_number(),
            "integer" => value.is_u64() || value.is_i64(),
            _ => false,
        }
    }

    #[test]
    fn status_follows_its_published_schema() {
        let schema: Value = serde_json::from_str(STATUS_SCHEMA).expect("the schema is JSON");
        for (view, second) in
            [(busy_view(), 6), (Deriver::new(info(1, &["a"])).derive(at(0), vec![], vec![]), 0)]
        {
            let status = status_json(&view, at(second));
            assert_eq!(violations(&schema, &schema, &status, "$"), Vec::<String>::new());
        }
        let mut wrong = status_json(&busy_view(), at(6));
        wrong["sources"][0]["feeds"][0]["position"] = Value::from("900");
        wrong["daemon"]["surprise"] = Value::from(1);
        wrong["shards"][0].as_object_mut().map(|shard| shard.remove("cpu"));
        wrong["sources"][2]["capture"]["wal"]["retained_bytes"] = Value::from(-1);
        assert_eq!(violations(&schema, &schema, &wrong, "$").len(), 4, "the check can fail");
    }

    #[test]
    fn status_says_where_each_feed_stands() {
        let status = status_json(&busy_view(), at(6));
        let source = &status["sources"][0];
        assert_eq!(source["status"], "Error");
        assert_eq!(source["reason"], "diverged");
        assert_eq!(source["subject"], "orders/events partition 1");
        assert_eq!(source["since"], "2025-06-15T15:06:44.000000Z");
        assert_eq!(source["feeds_by_status"], serde_json::json!({"Error": 1, "Running": 1}));
        assert_eq!(source["findings"][0]["topic"]["topic"], "audit");
        assert_eq!(source["totals"]["lag_messages"], 200);
        let feed = &source["feeds"][1];
        assert_eq!(feed["upstream_end"], 1_000);
        assert_eq!((&feed["position"], &feed["durable_position"]), (&900.into(), &850.into()));
        assert_eq!(feed["delta"], -3);
        assert_eq!(feed["advice"], "look at it");
        assert_eq!(feed["recent_gaps"][0]["messages"], 10);
        assert_eq!(feed["recent_repeats"][0]["messages"], 5);
        assert_eq!(status["sources"][1]["reason"], "unreachable");
        assert_eq!(status["daemon"]["ready"], false);
    }

    #[test]
    fn status_says_where_a_capture_stands_and_what_holds_it() {
        let status = status_json(&busy_view(), at(6));
        let source = &status["sources"][2];
        let capture = &source["capture"];
        assert_eq!((&source["key"], &source["kind"]), (&"shop".into(), &"postgres_cdc".into()));
        assert_eq!(
            (&source["from"], &source["guarantee"]),
            (&"postgresql://tidegate@db1:5432/shop_db".into(), &"at_least_once".into())
        );
        for shown in [source, capture] {
            assert_eq!(
                (&shown["status"], &shown["reason"]),
                (&"Degraded".into(), &"circuit_open".into())
            );
        }
        for (field, value) in [
            ("slot", "tidegate_shop"),
            ("database", "shop_db"),
            ("position", "0/1000"),
            ("durable_position", "0/F00"),
            ("received", "1/2000"),
            ("confirmed", "0/E00"),
            ("upstream_end", "1/3000"),
            ("last_error", "no answer"),
        ] {
            assert_eq!(capture[field], value, "{field}");
        }
        assert_eq!(capture["lag_bytes"], 0x1_0000_2000_u64);
        let expected = serde_json::json!({
            "oldest": "0/1800",
            "since": "2025-06-15T15:06:46.000000Z",
            "held_by": {"stream": "commerce", "topic": "orders"},
            "batches": 4,
            "bytes": 4_000,
        });
        assert_eq!(capture["pending"], expected);
        let expected = serde_json::json!({
            "retained_bytes": 9_000,
            "unconfirmed_bytes": 8_000,
            "wal_status": "extended",
            "safe_wal_size": -70,
            "invalid": null,
        });
        assert_eq!(capture["wal"], expected);
        assert_eq!(capture["recent_gaps"][0]["first"], "0/10");
        assert_eq!(capture["recent_gaps"][0]["bytes"], 16);
        assert_eq!(capture["last_abandon_at"], "2025-06-15T15:06:40.000000Z");
        assert_eq!(capture["routing"]["rejected"]["denylist"], 2);
        assert_eq!(capture["routing"]["unmatched"]["drop"], 6);
        assert_eq!(capture["stream"]["filtered_rows"], 12);
        assert_eq!(source["totals"]["lag_bytes"], capture["lag_bytes"]);
        assert_eq!(source["totals"]["lag_messages"], Value::Null);
        assert_eq!(status["sources"][3]["capture"], Value::Null);
        assert_eq!(
            (&status["shards"][0]["captures"], &status["shards"][0]["feeds"]),
            (&1.into(), &2.into())
        );
    }

    #[test]
    fn what_a_capture_does_not_know_is_null() {
        let mut fresh = capture("shop", condition(Status::Starting, "connecting", 1));
        fresh.confirmed = 0;
        fresh.oldest_pending = None;
        fresh.held_by = None;
        fresh.wal = None;
        fresh.last_abandon_at = 0;
        let mut snapshot = shard(0, 1, Vec::new());
        snapshot.captures = vec![fresh];
        let view = Deriver::new(info_of(1, &[], &["shop"])).derive(at(1), vec![snapshot], vec![]);
        let status = status_json(&view, at(1));
        let schema: Value = serde_json::from_str(STATUS_SCHEMA).expect("the schema is JSON");
        assert_eq!(violations(&schema, &schema, &status, "$"), Vec::<String>::new());
        let shown = &status["sources"][0]["capture"];
        for field in ["confirmed", "wal", "last_abandon_at"] {
            assert_eq!(shown[field], Value::Null, "{field}");
        }
        for field in ["oldest", "since", "held_by"] {
            assert_eq!(shown["pending"][field], Value::Null, "{field}");
        }
    }

    #[test]
    fn only_the_latest_gaps_are_listed() {
        let mut many = running("orders", 0, 1);
        many.gaps = (0..200).map(|n| Gap { first: n, last: n, found_at: 0 }).collect();
        let mut deriver = Deriver::new(info(1, &["orders"]));
        let view = deriver.derive(at(1), vec![shard(0, 1, vec![many])], Vec::new());
        let gaps = status_json(&view, at(1))["sources"][0]["feeds"][0]["recent_gaps"].clone();
        let gaps = gaps.as_array().expect("a list");
        assert_eq!(gaps.len(), GAPS_SHOWN);
        assert_eq!(gaps.last().map(|gap| &gap["first"]), Some(&199.into()));
    }

    #[test]
    fn ready_means_every_source_runs_on_a_shard_that_turns() {
        let mut deriver = Deriver::new(info(1, &["orders"]));
        let good = |turns| vec![shard(0, turns, vec![running("orders", 0, 1)])];
        assert!(readiness(&deriver.derive(at(1), good(1), vec![]), at(1)).ready);

        let outage = vec![finding("orders", None, "unreachable")];
        let view = deriver.derive(at(2), good(2), outage);
        let report = readiness(&view, at(2));
        assert!(!report.ready);
        assert_eq!(report.reasons.first().map(|r| r.condition.reason), Some("unreachable"));

        let view = deriver.derive(at(3), good(3), vec![]);
        assert!(readiness(&view, at(8)).ready);
        let report = readiness(&view, at(9));
        assert_eq!(report.reasons.first().map(|r| r.condition.reason), Some("shard_stuck"));
    }

    #[test]
    fn liveness_names_the_stuck_shard() {
        let view = busy_view();
        let report = liveness(&view, at(6));
        assert!(!report.live);
        let stuck: Vec<u16> = report.stuck_shards.iter().map(|shard| shard.shard).collect();
        assert_eq!(stuck, [1], "shard 1 never reported");
    }
}
