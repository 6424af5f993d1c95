//! `[….routing.admission]`, `[….routing.circuit_breaker]` and `[….routing.topic_defaults]`.

use std::time::Duration;

use super::capture_plan::SourceMode;
use super::capture_routing::read_destination;
use super::reader::{Section, short, words};
use super::routing_plan::{
    AdmissionMode, AdmissionPlan, BreakerPlan, DestinationPattern, Durability, OnAdmissionFailure,
    TopicDefaults,
};
use super::sources::policy;
use super::value;

pub(super) const ADMISSION_KEYS: &[&str] = &[
    "mode",
    "allowlist",
    "denylist",
    "max_destinations",
    "max_concurrent_destinations",
    "on_missing_destination",
    "on_admission_failure",
    "dead_letter",
    "startup_prewarm_deadline",
];
pub(super) const BREAKER_KEYS: &[&str] = &["failure_threshold", "cool_down"];
pub(super) const TOPIC_KEYS: &[&str] = &[
    "partitions_count",
    "compression_algorithm",
    "replication_factor",
    "message_expiry",
    "max_topic_size",
    "durability",
];

/// More than a daemon can serve is a typing error.
const MOST_DESTINATIONS: u64 = 1 << 20;
const MOST_CONCURRENT: u64 = 1024;
/// Iggy's own bound.
const MOST_PARTITIONS: u64 = 1000;
const ENTRY_EXAMPLE: &str = "write { stream = \"orders\", topic = \"*\" }";

/// Admission, `open` where there is no such table.
pub(super) fn read_admission(routing: &Section<'_>) -> Option<AdmissionPlan> {
    let section = match routing.table("admission") {
        Some(section) => section,
        None if routing.has("admission") => return None,
        None => routing.empty_table("admission"),
    };
    section.refuse_unknown(ADMISSION_KEYS, &[]);
    let modes = [
        ("open", AdmissionMode::Open),
        ("allowlist", AdmissionMode::Allowlist),
        ("denylist", AdmissionMode::Denylist),
    ];
    let mode = section.choice("mode", &modes, &[]);
    let mode_is_bad = section.has("mode") && mode.is_none();
    let mode = mode.unwrap_or(AdmissionMode::Open);
    let entries = read_lists(&section, mode);
    let number = |key, most, usual| {
        section.number(key, 1..=most).and_then(|n| u32::try_from(n).ok()).unwrap_or(usual)
    };
    let failures = [
        ("error", OnAdmissionFailure::Error),
        ("drop", OnAdmissionFailure::Drop),
        ("dead_letter", OnAdmissionFailure::DeadLetter),
    ];
    let on_failure = section.choice("on_admission_failure", &failures, &[]);
    let on_failure = on_failure.unwrap_or(SourceMode::Cdc.usual_admission_failure());
    let dead_letter = section.table("dead_letter").map(|entry| read_destination(&entry));
    if on_failure == OnAdmissionFailure::DeadLetter && !section.has("dead_letter") {
        let expected = "the topic that takes what is not admitted";
        let advice = "add dead_letter = { stream = \"…\", topic = \"…\" }";
        let seen = "on_admission_failure = \"dead_letter\" without one";
        section.fail("dead_letter", words(seen, expected, advice));
    } else if on_failure != OnAdmissionFailure::DeadLetter && section.has("dead_letter") {
        let expected = "on_admission_failure = \"dead_letter\"";
        let advice = "set it, or remove dead_letter: nothing goes there";
        section.fail("dead_letter", words("a topic that nothing goes to", expected, advice));
    }
    if mode_is_bad {
        return None;
    }
    Some(AdmissionPlan {
        mode,
        entries: entries?,
        max_destinations: number("max_destinations", MOST_DESTINATIONS, 256),
        max_concurrent_destinations: number("max_concurrent_destinations", MOST_CONCURRENT, 16),
        on_failure,
        written_by_operator: section.has("on_admission_failure"),
        dead_letter: dead_letter.flatten(),
        mirrored: Vec::new(),
    })
}

/// The entries of the mode's list; a list of another mode is a finding.
fn read_lists(section: &Section<'_>, mode: AdmissionMode) -> Option<Vec<DestinationPattern>> {
    let lists = [("allowlist", AdmissionMode::Allowlist), ("denylist", AdmissionMode::Denylist)];
    let mut found = Some(Vec::new());
    for (key, of) in lists {
        if mode != of {
            if section.has(key) {
                let seen = format!("{key} in another mode");
                let expected = format!("mode = \"{key}\", which reads it");
                section.fail(key, words(seen, expected, "set the mode, or remove the list"));
            }
            continue;
        }
        if !section.has(key) {
            let seen = format!("mode = \"{key}\" without it");
            let advice = format!("add {key} = [{}]", ENTRY_EXAMPLE.trim_start_matches("write "));
            section.fail(key, words(seen, "at least one entry", advice));
            found = None;
            continue;
        }
        found = read_entries(section, key);
    }
    found
}

fn read_entries(section: &Section<'_>, key: &str) -> Option<Vec<DestinationPattern>> {
    let sections = section.table_array(key, ENTRY_EXAMPLE)?;
    if sections.is_empty() {
        section.fail(key, words("an empty list", "at least one entry", ENTRY_EXAMPLE));
        return None;
    }
    let mut entries: Vec<DestinationPattern> = Vec::new();
    let mut good = true;
    for entry in &sections {
        entry.refuse_unknown(super::capture_routing::DESTINATION_KEYS, &[]);
        let (stream, topic) = (segment(entry, "stream"), segment(entry, "topic"));
        let (Some(stream), Some(topic)) = (stream, topic) else {
            good = false;
            continue;
        };
        if stream.is_none() && topic.is_none() {
            let advice = match key {
                "allowlist" => "write mode = \"open\" to admit every destination",
                _ => {
                    "it would refuse every message; write mode = \"allowlist\" and list what \
                     is wanted"
                }
            };
            let seen = "{ stream = \"*\", topic = \"*\" } covers everything";
            entry.fail_here(words(seen, "an entry that tells some from others", advice));
            good = false;
            continue;
        }
        let pattern = DestinationPattern { stream, topic };
        if entries.contains(&pattern) {
            let advice = "remove one of the two";
            entry.warn_here(words("listed twice", "each entry once", advice));
            continue;
        }
        entries.push(pattern);
    }
    good.then_some(entries)
}

/// `Some(None)` is `*`.
fn segment(entry: &Section<'_>, key: &str) -> Option<Option<String>> {
    let expected = "a name of letters, digits, '.', '_' and '-', or exactly \"*\"";
    if !entry.has(key) {
        let advice = format!("add {key} = \"…\", or \"*\" for any");
        entry.fail(key, words("the key is missing", expected, advice));
        return None;
    }
    let text = entry.text(key)?;
    if text.value == "*" {
        return Some(None);
    }
    let is_literal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    if (1..=255).contains(&text.value.len()) && text.value.bytes().all(is_literal) {
        return Some(Some(text.value));
    }
    let advice = if text.value.contains('*') {
        "there are no other patterns: list the names one by one, or write \"*\" alone"
    } else {
        "correct the name"
    };
    entry.fail(key, words(format!("{:?}", short(&text.shown)), expected, advice));
    None
}

/// A5: bound on making the known destinations at start.
pub(super) fn read_prewarm(routing: &Section<'_>) -> Duration {
    let usual = Duration::from_secs(60);
    let admission = routing.peek_table("admission");
    admission.and_then(|table| table.interval("startup_prewarm_deadline")).unwrap_or(usual)
}

/// A6.
pub(super) fn read_breaker(routing: &Section<'_>) -> BreakerPlan {
    let section = routing.table("circuit_breaker");
    let section = section.unwrap_or_else(|| routing.empty_table("circuit_breaker"));
    section.refuse_unknown(BREAKER_KEYS, &[]);
    let threshold = section.number("failure_threshold", 1..=u64::from(u32::MAX));
    BreakerPlan {
        failure_threshold: threshold.and_then(|n| u32::try_from(n).ok()).unwrap_or(5),
        cool_down: section.interval("cool_down").unwrap_or(Duration::from_secs(30)),
    }
}

/// A5.
pub(super) fn read_topic_defaults(routing: &Section<'_>) -> TopicDefaults {
    let section = routing.table("topic_defaults");
    let section = section.unwrap_or_else(|| routing.empty_table("topic_defaults"));
    section.refuse_unknown(TOPIC_KEYS, &[]);
    let count = section.number("partitions_count", 1..=MOST_PARTITIONS);
    let compression = [("none", "none"), ("gzip", "gzip")];
    let factor = section.number("replication_factor", 1..=255);
    if factor.is_some() {
        let seen = "no server of the 0.9 line has it per topic: it is left out";
        let advice = "remove the key; every partition has a copy on each node of the cluster";
        section.warn("replication_factor", words(seen, "no such key", advice));
    }
    let durability = [("persisted", Durability::Persisted), ("replicated", Durability::Replicated)];
    TopicDefaults {
        partitions_count: count.and_then(|n| u32::try_from(n).ok()).unwrap_or(1),
        compression_algorithm: section
            .choice("compression_algorithm", &compression, &[])
            .map(str::to_owned),
        replication_factor: factor.and_then(|n| u8::try_from(n).ok()),
        message_expiry: quantity(&section, "message_expiry", "never", |text| {
            let micros = value::duration(text)?.as_micros();
            u64::try_from(micros).map_err(|_| "at most 365d")
        }),
        max_topic_size: quantity(&section, "max_topic_size", "unlimited", value::size),
        durability: policy(&section, "durability", &durability),
    }
}

/// A quantity, `most` for the largest value, or "server_default".
fn quantity(
    section: &Section<'_>,
    key: &str,
    most: &str,
    parse: fn(&str) -> Result<u64, &'static str>,
) -> Option<u64> {
    let text = section.text(key)?;
    if text.value == "server_default" {
        return None;
    }
    if text.value == most {
        return Some(u64::MAX);
    }
    match parse(&text.value) {
        // 0 would mean the server's default on the wire.
        Ok(0) => {
            let seen = format!("{:?}", short(&text.shown));
            let advice = format!("write {most:?} or \"server_default\"");
            section.fail(key, words(seen, "more than zero", advice));
            None
        }
        Ok(value) => Some(value),
        Err(needed) => {
            let seen = format!("{:?}", short(&text.shown));
            let expected = format!("a quantity with its unit, {most:?} or \"server_default\"");
            section.fail(key, words(seen, expected, format!("write {needed}")));
            None
        }
    }
}
