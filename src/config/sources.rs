//! `[sources.<key>]`: what is mirrored, from where to where, and what to do when it cannot be.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::capture_plan::CapturePlan;
use super::clusters::Clusters;
use super::plan::{
    ClusterPlan, InitialOffset, MirrorPlan, OnBadRecord, OnCorruptState, OnDestinationLost,
    OnHistoryChanged, OnMissingUpstream, OnNonemptyDestination, OnOffsetExpired, Partitions,
    TopicPlan,
};
use super::reader::{Section, Text, list, short, words};
use super::value::{show_duration, show_size};
use crate::batch::TopicName;

pub(super) const KEYS: &[&str] = &[
    "kind",
    "from",
    "to",
    "include",
    "initial_offset",
    "partitions",
    "auto_create",
    "retry_interval",
    "max_retry_interval",
    "reset_grace",
    "state_interval",
    "discovery_interval",
    "degraded_after",
    "commit_failure_threshold",
    "verify_checksums",
    "max_batch_bytes",
    "on_offset_expired",
    "on_history_changed",
    "on_destination_lost",
    "on_nonempty_destination",
    "on_missing_upstream",
    "on_bad_record",
    "on_corrupt_state",
];
pub(super) const INCLUDE_KEYS: &[&str] = &["stream", "topic", "to_stream", "to_topic"];

const LATER: &[&str] = &["exclude", "rename", "sync_consumer_offsets", "routing", "transforms"];
const KINDS: &[(&str, Kind)] = &[("iggy", Kind::Mirror), ("postgres_cdc", Kind::Capture)];
const LATER_KINDS: &[&str] =
    &["postgres_poll", "http", "file", "random", "elasticsearch", "influxdb"];
const INCLUDE_EXAMPLE: &str = "write include = [{ stream = \"orders\", topic = \"events\" }]";

/// The sources of a file.
pub(super) struct Sources {
    /// Those without findings of their own.
    pub plans: Vec<Arc<MirrorPlan>>,
    /// Every readable entry of every `include`, for the checks across sources.
    pub edges: Vec<Edge>,
    /// Captures without findings of their own.
    pub captures: Vec<Capture>,
}

/// A capture and where the file says so.
pub(super) struct Capture {
    pub plan: Arc<CapturePlan>,
    /// Dotted path of its table.
    pub path: String,
    /// Byte offset of its table.
    pub at: usize,
}

#[derive(Clone, Copy)]
enum Kind {
    Mirror,
    Capture,
}

/// One copied topic: where from, where to, and where the file says so.
pub(super) struct Edge {
    /// Dotted path of the entry.
    pub path: String,
    /// Byte offset of the entry.
    pub at: usize,
    /// Cluster keys.
    pub from: Arc<str>,
    pub to: Arc<str>,
    pub topic: TopicPlan,
}

pub(super) fn read(
    root: &Section<'_>,
    clusters: &Clusters,
    drain_timeout: Option<Duration>,
) -> Sources {
    let mut sources = Sources { plans: Vec::new(), edges: Vec::new(), captures: Vec::new() };
    let tables = match root.table("sources") {
        Some(section) => section.tables(),
        None if root.has("sources") => return sources,
        None => Vec::new(),
    };
    if tables.is_empty() && !root.has("sources") {
        let said = super::absent("a source to mirror", "[sources.orders] with kind = \"iggy\"");
        root.fail("sources", said);
    } else if tables.is_empty() {
        let advice = "add [sources.<name>] with kind, from, to and include";
        root.fail("sources", words("no source in it", "at least one source", advice));
    }
    for (key, section) in tables {
        let named = is_source_key(key);
        if !named {
            section.fail_here(words(
                "not a usable source name",
                "1 to 64 of a-z, 0-9, '_' and '-': it becomes part of a file name",
                "rename the table",
            ));
        }
        // Keys of another kind would only add noise to the one thing that is wrong.
        if !section.has("kind") {
            let expected = "kind = \"iggy\" or \"postgres_cdc\"";
            let advice = "add kind = \"iggy\" for a mirror, or \"postgres_cdc\" for a capture";
            section.fail("kind", words("the key is missing", expected, advice));
        }
        let kind = section.choice("kind", KINDS, LATER_KINDS);
        match kind {
            Some(Kind::Capture) => {
                let plan = super::capture::read(key, &section, clusters, drain_timeout);
                if let Some(plan) = plan.filter(|_| named) {
                    let (path, at) = (section.path().to_owned(), section.at());
                    sources.captures.push(Capture { plan: Arc::new(plan), path, at });
                }
            }
            None if section.has("kind") => {}
            Some(Kind::Mirror) | None => {
                let plan = read_source(key, &section, clusters, &mut sources.edges);
                sources.plans.extend(plan.filter(|_| named).map(Arc::new));
            }
        }
    }
    sources
}

fn read_source(
    key: &str,
    section: &Section<'_>,
    clusters: &Clusters,
    edges: &mut Vec<Edge>,
) -> Option<MirrorPlan> {
    section.refuse_unknown(KEYS, LATER);
    let from = read_cluster_key(section, "from", clusters);
    let to = read_cluster_key(section, "to", clusters);
    let topics = read_include(section);
    if let (Some((from, _)), Some((to, _))) = (&from, &to) {
        edges.extend(topics.iter().flatten().map(|(at, path, topic)| Edge {
            path: path.clone(),
            at: *at,
            from: from.clone(),
            to: to.clone(),
            topic: topic.clone(),
        }));
    }
    let settings = read_settings(section);
    let policies = read_policies(section);
    Some(MirrorPlan {
        key: key.into(),
        from: from?.1?,
        to: to?.1?,
        topics: topics?.into_iter().map(|(_, _, topic)| topic).collect(),
        initial_offset: settings.initial_offset,
        partitions: settings.partitions,
        auto_create: settings.auto_create,
        retry_interval: settings.retry_interval,
        max_retry_interval: settings.max_retry_interval,
        reset_grace: settings.reset_grace,
        state_interval: settings.state_interval,
        discovery_interval: settings.discovery_interval,
        degraded_after: settings.degraded_after,
        commit_failure_threshold: settings.commit_failure_threshold,
        verify_checksums: settings.verify_checksums,
        max_batch_bytes: settings.max_batch_bytes,
        on_offset_expired: policies.offset_expired,
        on_history_changed: policies.history_changed,
        on_destination_lost: policies.destination_lost,
        on_nonempty_destination: policies.nonempty_destination,
        on_missing_upstream: policies.missing_upstream,
        on_bad_record: OnBadRecord::Fail,
        on_corrupt_state: policies.corrupt_state,
    })
}

fn is_source_key(key: &str) -> bool {
    (1..=64).contains(&key.len())
        && key.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-'))
}

/// The key as written, and the plan unless the cluster has findings of its own.
type NamedCluster = (Arc<str>, Option<Arc<ClusterPlan>>);

/// The cluster that `key` names.
pub(super) fn read_cluster_key(
    section: &Section<'_>,
    key: &str,
    clusters: &Clusters,
) -> Option<NamedCluster> {
    let known = clusters.keys();
    let expected = if known.is_empty() {
        "a table [clusters.<name>]; there is none".to_owned()
    } else {
        format!("one of {}", list(&known))
    };
    if !section.has(key) {
        section.fail(key, words("the key is missing", expected, "name the cluster"));
        return None;
    }
    let text = section.text(key)?;
    if let Some(plan) = clusters.find(&text.value) {
        return Some((text.value.as_str().into(), plan.cloned()));
    }
    let advice = match super::reader::nearest(&text.value, &known) {
        Some(near) => format!("did you mean {near:?}? Otherwise add the cluster"),
        None => "add the cluster or name another".to_owned(),
    };
    let seen = format!("there is no cluster {:?}", short(&text.shown));
    section.fail(key, words(seen, expected, advice));
    None
}

/// `None`: absent, empty or not an array. Entries with findings are left out.
fn read_include(section: &Section<'_>) -> Option<Vec<(usize, String, TopicPlan)>> {
    let expected = "at least one { stream = …, topic = … }";
    if !section.has("include") {
        section.fail("include", words("the key is missing", expected, INCLUDE_EXAMPLE));
        return None;
    }
    let entries = section.table_array("include", INCLUDE_EXAMPLE)?;
    if entries.is_empty() {
        section.fail("include", words("an empty list", expected, INCLUDE_EXAMPLE));
        return None;
    }
    let mut topics = Vec::new();
    let mut first_lines = BTreeMap::new();
    for entry in &entries {
        let Some(topic) = read_entry(entry) else { continue };
        if let Some(line) = first_lines.get(&topic.upstream) {
            entry.fail_here(words(
                format!("{} is already included on line {line}", topic.upstream),
                "each upstream topic once per source",
                "remove the entry; to copy a topic to a second place, add a second source",
            ));
            continue;
        }
        first_lines.insert(topic.upstream.clone(), entry.line());
        topics.push((entry.at(), entry.path().to_owned(), topic));
    }
    Some(topics)
}

fn read_entry(entry: &Section<'_>) -> Option<TopicPlan> {
    entry.refuse_unknown(INCLUDE_KEYS, &[]);
    for key in ["stream", "topic"] {
        if !entry.has(key) {
            let advice = format!("add {key} = \"…\"");
            entry.fail(key, words("the key is missing", format!("the {key}'s name"), advice));
        }
    }
    let [stream, topic, to_stream, to_topic] = ["stream", "topic", "to_stream", "to_topic"]
        .map(|key| entry.text(key).and_then(|text| checked_name(entry, key, text)));
    let (stream, topic) = (stream?, topic?);
    // A rename with a finding has no value here; the finding keeps the plan from being used.
    let to_stream = to_stream.unwrap_or_else(|| stream.clone());
    let to_topic = to_topic.unwrap_or_else(|| topic.clone());
    Some(TopicPlan {
        upstream: TopicName::new(&stream, &topic),
        downstream: TopicName::new(&to_stream, &to_topic),
    })
}

/// A literal stream or topic name.
pub(super) fn checked_name(entry: &Section<'_>, key: &str, text: Text) -> Option<String> {
    let name = &text.value;
    let (problem, advice) = if name.is_empty() {
        ("an empty name", "name it")
    } else if name.trim().is_empty() {
        ("a name of blanks only", "name it")
    } else if name.len() > 255 {
        ("a name of more than 255 bytes", "Iggy has no such name; shorten it")
    } else if name.contains(char::is_control) {
        ("a name with control characters", "Iggy has no such name; remove them")
    } else if name.contains('*') {
        ("a pattern", "list the topics one by one: this version takes names, not patterns")
    } else {
        return Some(text.value);
    };
    let seen = format!("{:?} is {problem}", short(&text.shown));
    entry.fail(key, words(seen, "a literal name of 1 to 255 bytes", advice));
    None
}

struct Settings {
    initial_offset: InitialOffset,
    partitions: Partitions,
    auto_create: bool,
    retry_interval: Duration,
    max_retry_interval: Duration,
    reset_grace: Duration,
    state_interval: Duration,
    discovery_interval: Duration,
    degraded_after: Duration,
    commit_failure_threshold: u32,
    verify_checksums: bool,
    max_batch_bytes: u32,
}

fn read_settings(section: &Section<'_>) -> Settings {
    let partitions = [("preserve", Partitions::Preserve), ("balanced", Partitions::Balanced)];
    let interval = |key, default| section.interval(key).unwrap_or(default);
    let threshold = section.number("commit_failure_threshold", 1..=u64::from(u32::MAX));
    let settings = Settings {
        initial_offset: read_initial_offset(section).unwrap_or(InitialOffset::Earliest),
        partitions: section.choice("partitions", &partitions, &[]).unwrap_or(Partitions::Preserve),
        auto_create: section.boolean("auto_create").unwrap_or(true),
        retry_interval: interval("retry_interval", Duration::from_secs(1)),
        max_retry_interval: interval("max_retry_interval", Duration::from_secs(60)),
        reset_grace: interval("reset_grace", Duration::from_secs(60)),
        state_interval: section.duration("state_interval").unwrap_or(Duration::from_secs(1)),
        discovery_interval: interval("discovery_interval", Duration::from_secs(5)),
        degraded_after: interval("degraded_after", Duration::from_secs(60)),
        commit_failure_threshold: threshold.and_then(|n| u32::try_from(n).ok()).unwrap_or(16),
        verify_checksums: section.boolean("verify_checksums").unwrap_or(true),
        max_batch_bytes: read_batch_bytes(section).unwrap_or(8 << 20),
    };
    check_retry_order(section, settings.retry_interval, settings.max_retry_interval);
    settings
}

/// The first wait must not be longer than the longest.
pub(super) fn check_retry_order(section: &Section<'_>, first: Duration, longest: Duration) {
    if first > longest {
        let key =
            if section.has("retry_interval") { "retry_interval" } else { "max_retry_interval" };
        let (first, longest) = (show_duration(first), show_duration(longest));
        let seen = format!("retry_interval is {first}, max_retry_interval is {longest}");
        let expected = "retry_interval no longer than max_retry_interval";
        section.fail(key, words(seen, expected, "lower the first or raise the second"));
    }
}

fn read_initial_offset(section: &Section<'_>) -> Option<InitialOffset> {
    if section.is_integer("initial_offset") {
        return section.number("initial_offset", 0..=u64::MAX).map(InitialOffset::At);
    }
    let text = section.text("initial_offset")?;
    match text.value.as_str() {
        "earliest" => Some(InitialOffset::Earliest),
        "latest" => Some(InitialOffset::Latest),
        _ => {
            let allowed = ["earliest", "latest"];
            if text.value.trim().parse::<u64>().is_ok() {
                let seen = format!("{:?}", short(&text.shown));
                let expected = "\"earliest\", \"latest\" or a number";
                let advice = "write the number without quotes";
                section.fail("initial_offset", words(seen, expected, advice));
            } else {
                section.refuse_word("initial_offset", &text, &allowed, &[]);
            }
            None
        }
    }
}

/// Room for a batch header and one small message.
const LEAST_BATCH: u64 = 4 << 10;
/// The frame of 64 MiB less what surrounds a batch (M16).
const MOST_BATCH: u64 = 60 << 20;

/// `max_batch_bytes`, in its range.
pub(super) fn read_batch_bytes(section: &Section<'_>) -> Option<u32> {
    let bytes = section.size("max_batch_bytes")?;
    if !(LEAST_BATCH..=MOST_BATCH).contains(&bytes) {
        let expected = format!("{} to {}", show_size(LEAST_BATCH), show_size(MOST_BATCH));
        let advice = "choose a size in that range; 8MiB suits most links";
        section.fail("max_batch_bytes", words(show_size(bytes), expected, advice));
        return None;
    }
    u32::try_from(bytes).ok()
}

struct Policies {
    offset_expired: OnOffsetExpired,
    history_changed: OnHistoryChanged,
    destination_lost: OnDestinationLost,
    nonempty_destination: OnNonemptyDestination,
    missing_upstream: OnMissingUpstream,
    corrupt_state: OnCorruptState,
}

fn read_policies(section: &Section<'_>) -> Policies {
    let bad_record = [("fail", OnBadRecord::Fail)];
    section.choice("on_bad_record", &bad_record, &["skip", "dead_letter"]);
    Policies {
        offset_expired: policy(
            section,
            "on_offset_expired",
            &[
                ("earliest_available", OnOffsetExpired::EarliestAvailable),
                ("initial_offset", OnOffsetExpired::InitialOffset),
                ("fail", OnOffsetExpired::Fail),
            ],
        ),
        history_changed: policy(
            section,
            "on_history_changed",
            &[("fail", OnHistoryChanged::Fail), ("restart", OnHistoryChanged::Restart)],
        ),
        destination_lost: policy(
            section,
            "on_destination_lost",
            &[("fail", OnDestinationLost::Fail), ("refill", OnDestinationLost::Refill)],
        ),
        nonempty_destination: policy(
            section,
            "on_nonempty_destination",
            &[("fail", OnNonemptyDestination::Fail), ("append", OnNonemptyDestination::Append)],
        ),
        missing_upstream: policy(
            section,
            "on_missing_upstream",
            &[
                ("wait", OnMissingUpstream::Wait),
                ("create", OnMissingUpstream::Create),
                ("fail", OnMissingUpstream::Fail),
            ],
        ),
        corrupt_state: policy(
            section,
            "on_corrupt_state",
            &[("fail", OnCorruptState::Fail), ("reset", OnCorruptState::Reset)],
        ),
    }
}

/// The chosen word, or the first one: the default leads each list.
pub(super) fn policy<T: Copy, const N: usize>(
    section: &Section<'_>,
    key: &str,
    choices: &[(&str, T); N],
) -> T {
    section.choice(key, choices, &[]).unwrap_or(choices[0].1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_keys_are_safe_in_file_names() {
        for good in ["a", "orders-2_x", &"z".repeat(64)] {
            assert!(is_source_key(good), "{good}");
        }
        for bad in ["", "..", "a/b", "a.b", "A", "ö", "a b", "a\0", &"z".repeat(65)] {
            assert!(!is_source_key(bad), "{bad:?}");
        }
    }
}
