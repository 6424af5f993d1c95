//! `[sources.<key>]` of `kind = "postgres_cdc"`: database, what is captured, how it is written,
//! retries. Where messages go is read by the neighbour, `capture_routing`.

use std::sync::Arc;
use std::time::Duration;

use super::capture_plan::{
    CapturePlan, Decoder, EnvelopePlan, Operations, PayloadFormat, RequireDurable, TableName,
    Tables,
};
use super::capture_routing::read_routing;
use super::capture_tests::read_tests;
use super::clusters::Clusters;
use super::plan::OnCorruptState;
use super::postgres::{ConnInfoError, PostgresPlan};
use super::reader::{Section, Text, short, words};
use super::routing_plan::{PartitionBy, RoutingPlan};
use super::sources::{check_retry_order, policy, read_batch_bytes, read_cluster_key};
use super::value::show_duration;
use crate::secret::Secret;

pub(super) const KEYS: &[&str] = &[
    "kind",
    "to",
    "connection",
    "password",
    "slot",
    "publication",
    "tables",
    "decoder",
    "streaming",
    "binary",
    "envelope",
    "payload_column",
    "payload_format",
    "include_metadata",
    "snake_case_columns",
    "numeric_as",
    "capture_operations",
    "stream",
    "topic",
    "routing",
    "tests",
    "auto_create",
    "commit_failure_threshold",
    "commit_stop_grace",
    "degraded_after",
    "retry_interval",
    "max_retry_interval",
    "max_in_flight_batches",
    "max_batch_bytes",
    "require_durable",
    "on_corrupt_state",
];

const LATER: &[&str] = &["transforms", "snapshot", "wal_spill", "failover"];
/// More batches than any budget holds is a typing error.
const MOST_BATCHES: u64 = 4096;
const TABLES_EXAMPLE: &str = "write tables = [\"public.orders\"], or \"*\" for a publication made \
                              by hand";

/// A capture of `key`, unless it has findings.
pub(super) fn read(
    key: &str,
    section: &Section<'_>,
    clusters: &Clusters,
    drain_timeout: Option<Duration>,
) -> Option<CapturePlan> {
    refuse_two_routes(section);
    section.refuse_unknown(KEYS, LATER);
    let to = read_cluster_key(section, "to", clusters);
    let postgres = read_connection(section);
    let names = read_names(key, section);
    let tables = read_tables(section);
    let envelope = read_envelope(section);
    let operations = read_operations(section);
    let routing = read_routing(section, tables.as_ref());
    let tests = read_tests(section);
    let retries = read_retries(section, drain_timeout);
    let decoder = [("pgoutput", Decoder::PgOutput), ("test_decoding", Decoder::TestDecoding)];
    let decoder = policy(section, "decoder", &decoder);
    let streaming = policy(section, "streaming", &[("off", false), ("on", true)]);
    let binary = section.boolean("binary").unwrap_or(false);
    for (key, on) in [("streaming", streaming), ("binary", binary)] {
        if on && decoder == Decoder::TestDecoding {
            let advice = "remove it, or set decoder = \"pgoutput\"";
            section.fail(key, words("set for test_decoding", "pgoutput, which has it", advice));
        }
    }
    let binary = binary && !reads_text(section, routing.as_ref(), envelope.as_ref());
    let (slot, publication) = names?;
    Some(CapturePlan {
        key: key.into(),
        to: to?.1?,
        postgres: Arc::new(postgres?),
        slot,
        publication,
        tables: tables?,
        decoder,
        streaming,
        binary,
        envelope: envelope?,
        include_metadata: section.boolean("include_metadata").unwrap_or(true),
        snake_case_columns: section.boolean("snake_case_columns").unwrap_or(false),
        numeric_as_string: policy(section, "numeric_as", &[("number", false), ("string", true)]),
        operations: operations?,
        auto_create: section.boolean("auto_create").unwrap_or(true),
        commit_failure_threshold: retries.threshold,
        commit_stop_grace: retries.stop_grace,
        degraded_after: retries.degraded_after,
        retry_interval: retries.first,
        max_retry_interval: retries.longest,
        max_in_flight_batches: retries.batches,
        max_batch_bytes: read_batch_bytes(section).unwrap_or(1 << 20),
        routing: routing?,
        require_durable: read_require_durable(section),
        on_corrupt_state: policy(
            section,
            "on_corrupt_state",
            &[("fail", OnCorruptState::Fail), ("reset", OnCorruptState::Reset)],
        ),
        tests,
    })
}

/// Whether the text of some column is needed, which binary values do not have: a row is routed by
/// it, finds its partition by it, or it is the payload. Then values come as text, and that is told.
fn reads_text(
    section: &Section<'_>,
    routing: Option<&RoutingPlan>,
    envelope: Option<&EnvelopePlan>,
) -> bool {
    let by = routing.and_then(|routing| {
        let by = |key, is_read: bool| is_read.then_some(key);
        by("routing.topic_column", routing.topic_column.is_some())
            .or(by("routing.stream_column", routing.stream_column.is_some()))
            .or(by("routing.partition_key_column", routing.partition_key_column.is_some()))
            .or(by("routing.partition_by", routing.partition_by == PartitionBy::Identity))
    });
    let column = matches!(envelope, Some(EnvelopePlan::Column { .. })).then_some("payload_column");
    let Some(by) = by.or(column) else { return false };
    if section.boolean("binary") == Some(true) {
        let seen = format!("binary = true next to {by}, which reads values as text");
        let advice = "values come as text, the messages are the same; remove binary";
        section.warn("binary", words(seen, "no column that is read by its text", advice));
    }
    true
}

/// R5: a route transform replaces every destination, so that deriving one from the row as well
/// can only be a mistake. Said even though transforms are of a later version.
fn refuse_two_routes(section: &Section<'_>) {
    let routes = section.peek_table("transforms").is_some_and(|table| table.has("route"));
    let Some(routing) = section.peek_table("routing").filter(|_| routes) else { return };
    let deriving = super::capture_routing::DERIVING_KEYS.iter().find(|key| routing.has(key));
    if let Some(key) = deriving {
        let seen = format!("transforms.route next to routing.{key}");
        let expected = "one place that says where messages go";
        let advice = "keep the routing keys, or the transform; admission, circuit_breaker and \
                      topic_defaults serve both";
        routing.fail(key, words(seen, expected, advice));
    }
}

fn read_require_durable(section: &Section<'_>) -> RequireDurable {
    policy(
        section,
        "require_durable",
        &[
            ("warn", RequireDurable::Warn),
            ("refuse", RequireDurable::Refuse),
            ("off", RequireDurable::Off),
        ],
    )
}

// The text may hold a password: it is never shown, and the parser's errors do not show it either.
fn read_connection(section: &Section<'_>) -> Option<PostgresPlan> {
    if !section.has("connection") {
        let expected = "a connection URI or key=value string, such as \
                        \"postgresql://tidegate@db:5432/shop?sslmode=verify-full\"";
        let advice = "add connection, and password = \"${file:/path}\" if it needs one";
        section.fail("connection", words("the key is missing", expected, advice));
        return None;
    }
    let password = section.credential("password");
    let Text { value, shown } = section.text("connection")?;
    let (text, _shown) = (Secret::from(value), Secret::from(shown));
    let plan = match PostgresPlan::parse(text.expose(), password.as_ref().map(Secret::expose)) {
        Ok(plan) => plan,
        Err(ConnInfoError { seen, expected, advice }) => {
            section.fail("connection", words(seen, expected, advice));
            return None;
        }
    };
    let plan = match section.credentials() {
        Some(secrets) => plan.with_passfile(secrets),
        None => plan,
    };
    for warning in &plan.warnings {
        let advice = "correct the connection, or what it names";
        section.warn("connection", words(warning.clone(), "nothing odd about it", advice));
    }
    Some(plan)
}

/// Slot and publication.
fn read_names(key: &str, section: &Section<'_>) -> Option<(String, String)> {
    let usual = format!("tidegate_{}", key.replace('-', "_"));
    let slot = match section.text("slot") {
        Some(text) => Some(text),
        None if section.has("slot") => None,
        None => Some(Text { value: usual.clone(), shown: usual }),
    };
    let slot = slot.and_then(|text| {
        let fits = |b: u8| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_');
        if (1..=63).contains(&text.value.len()) && text.value.bytes().all(fits) {
            return Some(text.value);
        }
        let seen = format!("{:?} is no slot name", short(&text.shown));
        let advice = "write slot = \"…\"; Postgres takes no other names for slots";
        section.fail("slot", words(seen, "1 to 63 of a-z, 0-9 and '_'", advice));
        None
    });
    let publication = match section.text("publication") {
        Some(text) => Some(text),
        None if section.has("publication") => None,
        None => slot.clone().map(|slot| Text { value: slot.clone(), shown: slot }),
    };
    let publication = publication.and_then(|text| {
        let name = &text.value;
        if (1..=63).contains(&name.len()) && !name.contains('\0') {
            return Some(text.value);
        }
        let seen = format!("{:?} is no publication name", short(&text.shown));
        section.fail("publication", words(seen, "1 to 63 bytes", "correct the name"));
        None
    });
    slot.zip(publication)
}

fn read_tables(section: &Section<'_>) -> Option<Tables> {
    let expected = "the tables to capture, as \"schema.table\", or \"*\"";
    if !section.has("tables") {
        section.fail("tables", words("the key is missing", expected, TABLES_EXAMPLE));
        return None;
    }
    if section.is_text("tables") {
        let text = section.text("tables")?;
        if text.value == "*" {
            return Some(Tables::All);
        }
        let seen = format!("{:?} alone", short(&text.shown));
        section.fail("tables", words(seen, expected, TABLES_EXAMPLE));
        return None;
    }
    let texts = section.texts("tables", TABLES_EXAMPLE)?;
    if texts.is_empty() {
        section.fail("tables", words("an empty list", expected, TABLES_EXAMPLE));
        return None;
    }
    let mut tables: Vec<TableName> = Vec::new();
    let mut good = true;
    for (at, text) in &texts {
        let said = match parse_table(text) {
            Ok(table) if !tables.contains(&table) => {
                tables.push(table);
                continue;
            }
            Ok(table) => words(
                format!("{table} is listed twice"),
                "each table once",
                "remove one of the two",
            ),
            Err(said) => said,
        };
        section.fail_at(*at, "tables", said);
        good = false;
    }
    good.then_some(Tables::List(tables))
}

/// A table's name, or what is wrong with it.
pub(super) fn parse_table(text: &Text) -> Result<TableName, super::reader::Words> {
    let advice = if text.value.contains('*') {
        "list the tables one by one, or write tables = \"*\" and make the publication by hand"
    } else {
        "write schema.table; double quotes around a part that has a dot in it"
    };
    TableName::parse(&text.value)
        .and_then(|table| {
            let pattern = table.schema.contains('*') || table.name.contains('*');
            if pattern { Err("a pattern") } else { Ok(table) }
        })
        .map_err(|problem| {
            let seen = format!("{:?} has {problem}", short(&text.shown));
            words(seen, "a table as \"schema.table\"", advice)
        })
}

fn read_envelope(section: &Section<'_>) -> Option<EnvelopePlan> {
    let envelopes = [("record", EnvelopeWord::Record), ("flat", EnvelopeWord::Flat)];
    let envelope = section.choice("envelope", &envelopes, &["debezium"]);
    let format = [
        ("text", PayloadFormat::Text),
        ("bytea", PayloadFormat::Bytea),
        ("raw", PayloadFormat::Raw),
        ("json_direct", PayloadFormat::JsonDirect),
        ("jsonb", PayloadFormat::Jsonb),
    ];
    let format = section.choice("payload_format", &format, &[]);
    if section.has("payload_column") {
        let column = column(section, "payload_column");
        if section.has("envelope") {
            let advice = "keep payload_column for one column as the payload, or envelope";
            section.fail("envelope", words("envelope next to payload_column", "one", advice));
            return None;
        }
        if !section.has("payload_format") {
            let expected = "\"text\", \"bytea\", \"raw\", \"json_direct\" or \"jsonb\"";
            let advice = "add payload_format: what the column holds";
            section.fail("payload_format", words("the key is missing", expected, advice));
            return None;
        }
        return Some(EnvelopePlan::Column { column: column?, format: format? });
    }
    if section.has("payload_format") {
        let advice = "add payload_column, or remove payload_format";
        let seen = "payload_format without payload_column";
        section.fail("payload_format", words(seen, "both or neither", advice));
        return None;
    }
    match (section.has("envelope"), envelope) {
        (false, _) | (_, Some(EnvelopeWord::Record)) => Some(EnvelopePlan::Record),
        (_, Some(EnvelopeWord::Flat)) => Some(EnvelopePlan::Flat),
        (true, None) => None,
    }
}

#[derive(Clone, Copy)]
enum EnvelopeWord {
    Record,
    Flat,
}

/// A column's name.
pub(super) fn column(section: &Section<'_>, key: &str) -> Option<String> {
    let text = section.text(key)?;
    if (1..=63).contains(&text.value.len()) && !text.value.contains('\0') {
        return Some(text.value);
    }
    let seen = format!("{:?} is no column name", short(&text.shown));
    section.fail(key, words(seen, "1 to 63 bytes", "write the column as the table has it"));
    None
}

fn read_operations(section: &Section<'_>) -> Option<Operations> {
    let example = "write capture_operations = [\"INSERT\", \"UPDATE\", \"DELETE\", \"TRUNCATE\"]";
    if !section.has("capture_operations") {
        return Some(Operations { insert: true, update: true, delete: true, truncate: true });
    }
    let texts = section.texts("capture_operations", example)?;
    let mut found = Operations { insert: false, update: false, delete: false, truncate: false };
    let mut good = !texts.is_empty();
    if texts.is_empty() {
        let said = words("no operation", "at least one", example);
        section.fail("capture_operations", said);
    }
    for (at, text) in &texts {
        match text.value.to_ascii_uppercase().as_str() {
            "INSERT" => found.insert = true,
            "UPDATE" => found.update = true,
            "DELETE" => found.delete = true,
            "TRUNCATE" => found.truncate = true,
            _ => {
                let expected = "\"INSERT\", \"UPDATE\", \"DELETE\" or \"TRUNCATE\"";
                let seen = format!("{:?} is unknown here", short(&text.shown));
                section.fail_at(*at, "capture_operations", words(seen, expected, "correct it"));
                good = false;
            }
        }
    }
    good.then_some(found)
}

struct Retries {
    threshold: u32,
    stop_grace: Duration,
    degraded_after: Duration,
    first: Duration,
    longest: Duration,
    batches: u32,
}

fn read_retries(section: &Section<'_>, drain_timeout: Option<Duration>) -> Retries {
    let interval = |key, default| section.interval(key).unwrap_or(default);
    let whole = |key, most, default| {
        section.number(key, 1..=most).and_then(|n| u32::try_from(n).ok()).unwrap_or(default)
    };
    let usual = Duration::from_secs(30);
    let drain = drain_timeout.unwrap_or(usual);
    let retries = Retries {
        threshold: whole("commit_failure_threshold", u64::from(u32::MAX), 16),
        // Unless written, the grace bends to a shorter drain_timeout.
        stop_grace: interval("commit_stop_grace", usual.min(drain)),
        degraded_after: interval("degraded_after", Duration::from_secs(60)),
        first: interval("retry_interval", Duration::from_secs(1)),
        longest: interval("max_retry_interval", Duration::from_secs(30)),
        batches: whole("max_in_flight_batches", MOST_BATCHES, 8),
    };
    check_retry_order(section, retries.first, retries.longest);
    if retries.stop_grace > drain {
        let (grace, drain) = (show_duration(retries.stop_grace), show_duration(drain));
        section.fail(
            "commit_stop_grace",
            words(
                format!("commit_stop_grace is {grace}, daemon.drain_timeout is {drain}"),
                "a grace no longer than drain_timeout, which bounds every stop",
                "lower commit_stop_grace or raise drain_timeout",
            ),
        );
    }
    retries
}
