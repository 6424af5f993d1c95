//! `[sources.<key>.routing]`, and `stream` and `topic` of a source that has no routing: where
//! the messages go. Admission and creation are read by the neighbour, `capture_admission`; what
//! cannot be reached is told by `capture_reach`.

use super::capture::{column, parse_table};
use super::capture_admission::{read_admission, read_breaker, read_prewarm, read_topic_defaults};
use super::capture_plan::{TableName, Tables};
use super::capture_reach;
use super::reader::{Section, Text, words};
use super::routing_plan::{
    AdmissionPlan, KeyEncoding, OnMissingDestination, PartitionBy, RoutingPlan, TopicDefaults,
};
use super::sources::checked_name;
use crate::batch::TopicName;

pub(super) const ROUTING_KEYS: &[&str] = &[
    "topic_column",
    "stream_column",
    "default_topic",
    "default_stream",
    "strip_routing_columns",
    "partition_key_column",
    "partition_key_encoding",
    "partition_by",
    "by_table",
    "topic_defaults",
    "admission",
    "circuit_breaker",
];
pub(super) const DESTINATION_KEYS: &[&str] = &["stream", "topic"];

/// Keys that derive a destination from the row (R5).
pub(super) const DERIVING_KEYS: &[&str] = &[
    "topic_column",
    "stream_column",
    "default_topic",
    "default_stream",
    "strip_routing_columns",
    "partition_key_column",
    "partition_key_encoding",
    "partition_by",
    "by_table",
];
/// Those that name a stream or topic: a bound source has both already.
const NAMING_KEYS: &[&str] = &[
    "topic_column",
    "stream_column",
    "default_topic",
    "default_stream",
    "strip_routing_columns",
    "by_table",
];
const BOUND_EXAMPLE: &str = "write stream = \"…\" and topic = \"…\" in the source, or a table \
                             [sources.<name>.routing] with topic_column or by_table";

/// Everything about destinations; `None` leaves findings.
pub(super) fn read_routing(section: &Section<'_>, tables: Option<&Tables>) -> Option<RoutingPlan> {
    let routing = match section.table("routing") {
        Some(routing) => routing,
        None if section.has("routing") => return None,
        None => section.empty_table("routing"),
    };
    routing.refuse_unknown(ROUTING_KEYS, &[]);
    let bound = read_bound(section, &routing);
    let defaults = read_defaults(&routing);
    let topic_defaults = read_topic_defaults(&routing);
    let keys = read_partitioning(&routing, &topic_defaults);
    let by_table = read_by_table(&routing);
    let breaker = read_breaker(&routing);
    let prewarm = read_prewarm(&routing);
    let admission = read_admission(&routing);
    let missing = read_missing(&routing);
    let strip = routing.boolean("strip_routing_columns").unwrap_or(false);
    let [topic_column, stream_column] =
        ["topic_column", "stream_column"].map(|key| optional(&routing, key));
    let (bound, defaults, admission) = (bound?, defaults?, admission?);
    let by_table = by_table?;
    let plan = RoutingPlan {
        bound,
        topic_column: topic_column?,
        stream_column: stream_column?,
        default: defaults,
        strip,
        partition_key_column: optional(&routing, "partition_key_column")?,
        partition_key_encoding: keys.0,
        partition_by: keys.1,
        by_table: by_table.iter().map(|entry| (entry.table.clone(), entry.to.clone())).collect(),
        topic_defaults,
        admission,
        breaker,
        on_missing_destination: missing?,
        startup_prewarm_deadline: prewarm,
    };
    check_strip(&routing, &plan);
    check_missing(&routing, &plan);
    check_admitted(section, &routing, &plan);
    check_cap(&routing, &plan);
    capture_reach::warn(&routing, &plan, &by_table, tables);
    Some(plan)
}

/// One entry of `by_table` and its place.
pub(super) struct TableEntry<'t> {
    pub table: TableName,
    pub to: TopicName,
    pub entry: Section<'t>,
}

/// `Some(None)`: absent; `None`: a finding.
fn optional(section: &Section<'_>, key: &str) -> Option<Option<String>> {
    if section.has(key) { column(section, key).map(Some) } else { Some(None) }
}

fn read_bound(section: &Section<'_>, routing: &Section<'_>) -> Option<Option<TopicName>> {
    let [stream, topic] = DESTINATION_KEYS else { return None };
    let naming = NAMING_KEYS.iter().find(|key| routing.has(key));
    match (section.has(stream), section.has(topic), naming) {
        (false, false, Some(_)) => Some(None),
        (false, false, None) => {
            let seen = "nothing says where messages go";
            let expected = "stream and topic for one destination, or a routing";
            section.fail(stream, words(seen, expected, BOUND_EXAMPLE));
            None
        }
        (true, true, None) => {
            let name = |key| section.text(key).and_then(|text| checked_name(section, key, text));
            let (stream, topic) = (name(stream), name(topic));
            Some(Some(TopicName::new(&stream?, &topic?)))
        }
        (has_stream, _, Some(naming)) => {
            let key = if has_stream { stream } else { topic };
            let seen = format!("{key} of the source next to routing.{naming}");
            let expected = "one place that says where messages go";
            let advice = "remove stream and topic, or the routing; what has no destination of its \
                          own goes to routing.default_stream and default_topic";
            section.fail(key, words(seen, expected, advice));
            None
        }
        (has_stream, _, None) => {
            let (there, missing) = if has_stream { (stream, topic) } else { (topic, stream) };
            let seen = format!("{there} without {missing}");
            let advice = format!("add {missing} = \"…\"");
            section.fail(missing, words(seen, "both of them", advice));
            None
        }
    }
}

/// R2: a column needs a default for rows that have no value in it.
fn read_defaults(routing: &Section<'_>) -> Option<Option<TopicName>> {
    let has = |key| routing.has(key);
    let column = ["topic_column", "stream_column"].into_iter().find(|key| has(key));
    let mut complete = true;
    for (key, own) in [("default_topic", "topic_column"), ("default_stream", "stream_column")] {
        let needed_by = match column {
            _ if has(key) => continue,
            Some(_) if has(own) => format!("{own} without {key}"),
            Some(column) => format!("{column} without {key}, and no {own} either"),
            None if has("default_topic") || has("default_stream") => {
                let other = if key == "default_topic" { "default_stream" } else { "default_topic" };
                format!("{other} without {key}")
            }
            None => continue,
        };
        let expected = format!("{key}, for rows whose column is NULL or missing");
        routing.fail(key, words(needed_by, expected, format!("add {key} = \"…\"")));
        complete = false;
    }
    let name = |key| routing.text(key).and_then(|text| checked_name(routing, key, text));
    let (stream, topic) = (name("default_stream"), name("default_topic"));
    if !complete {
        return None;
    }
    if !has("default_stream") {
        return Some(None);
    }
    Some(Some(TopicName::new(&stream?, &topic?)))
}

fn read_partitioning(
    routing: &Section<'_>,
    topic_defaults: &TopicDefaults,
) -> (KeyEncoding, PartitionBy) {
    let encodings = [
        ("bytes", KeyEncoding::Bytes),
        ("key_u32", KeyEncoding::KeyU32),
        ("partition_id", KeyEncoding::PartitionId),
    ];
    let by = [("balanced", PartitionBy::Balanced), ("identity", PartitionBy::Identity)];
    let encoding = routing.choice("partition_key_encoding", &encodings, &[]);
    let by = routing.choice("partition_by", &by, &[]);
    let has_column = routing.has("partition_key_column");
    if routing.has("partition_key_encoding") && !has_column {
        let seen = "partition_key_encoding without partition_key_column";
        let advice = "add partition_key_column, or remove the encoding";
        routing.fail("partition_key_encoding", words(seen, "both or neither", advice));
    }
    if has_column && by == Some(PartitionBy::Identity) {
        let seen = "partition_by = \"identity\" next to partition_key_column";
        let advice = "keep the column, or let the primary key decide";
        routing.fail("partition_by", words(seen, "one key", advice));
    }
    if encoding == Some(KeyEncoding::PartitionId) && topic_defaults.partitions_count < 2 {
        let seen = format!(
            "\"partition_id\" with topic_defaults.partitions_count = {}",
            topic_defaults.partitions_count
        );
        let advice = "set partitions_count in [….routing.topic_defaults] to the number of \
                      partitions that the column counts through";
        routing.fail("partition_key_encoding", words(seen, "a count above 1", advice));
    }
    (encoding.unwrap_or(KeyEncoding::Bytes), by.unwrap_or(PartitionBy::Balanced))
}

fn read_by_table<'t>(routing: &Section<'t>) -> Option<Vec<TableEntry<'t>>> {
    let Some(section) = routing.table("by_table") else {
        return (!routing.has("by_table")).then(Vec::new);
    };
    let mut entries: Vec<TableEntry<'t>> = Vec::new();
    let mut good = true;
    let mut sections = section.tables();
    let wrong_type = section.keys() != sections.len();
    // In the order of the file.
    sections.sort_by_key(|(_, entry)| entry.at());
    for (key, entry) in sections {
        let text = Text { value: key.to_owned(), shown: key.to_owned() };
        let table = match parse_table(&text) {
            Ok(table) => table,
            Err(said) => {
                entry.fail_here(said);
                good = false;
                continue;
            }
        };
        if entries.iter().any(|other| other.table == table) {
            let seen = format!("{table} has a destination already");
            entry.fail_here(words(seen, "each table once", "remove one of the two"));
            good = false;
        }
        match read_destination(&entry) {
            Some(to) => entries.push(TableEntry { table, to, entry }),
            None => good = false,
        }
    }
    (good && !wrong_type).then_some(entries)
}

/// `{ stream = …, topic = … }`, both literal.
pub(super) fn read_destination(entry: &Section<'_>) -> Option<TopicName> {
    entry.refuse_unknown(DESTINATION_KEYS, &[]);
    let [stream, topic] = ["stream", "topic"].map(|key| {
        if !entry.has(key) {
            let advice = format!("add {key} = \"…\"");
            entry.fail(key, words("the key is missing", format!("the {key}'s name"), advice));
        }
        entry.text(key).and_then(|text| checked_name(entry, key, text))
    });
    Some(TopicName::new(&stream?, &topic?))
}

/// Where nothing is written: the default if there is one.
fn read_missing(routing: &Section<'_>) -> Option<OnMissingDestination> {
    let admission = routing.peek_table("admission");
    let has_default = routing.has("default_topic") && routing.has("default_stream");
    let usual =
        if has_default { OnMissingDestination::Default } else { OnMissingDestination::Error };
    let Some(admission) = admission.filter(|table| table.has("on_missing_destination")) else {
        return Some(usual);
    };
    let choices = [
        ("default", OnMissingDestination::Default),
        ("drop", OnMissingDestination::Drop),
        ("error", OnMissingDestination::Error),
    ];
    admission.choice("on_missing_destination", &choices, &[])
}

fn check_strip(routing: &Section<'_>, plan: &RoutingPlan) {
    if plan.strip && plan.topic_column.is_none() && plan.stream_column.is_none() {
        let expected = "topic_column or stream_column, which it leaves out of the payload";
        let advice = "name a column, or remove the key";
        let seen = "strip_routing_columns without a routing column";
        routing.fail("strip_routing_columns", words(seen, expected, advice));
    }
}

fn check_missing(routing: &Section<'_>, plan: &RoutingPlan) {
    if plan.on_missing_destination == OnMissingDestination::Default && plan.default.is_none() {
        let Some(admission) = routing.peek_table("admission") else { return };
        let expected = "default_stream and default_topic in the routing";
        let advice = "add both, or set on_missing_destination = \"drop\" or \"error\"";
        let seen = "\"default\" without a default destination";
        admission.fail("on_missing_destination", words(seen, expected, advice));
    }
}

/// R5: what is configured to receive must be admitted.
fn check_admitted(section: &Section<'_>, routing: &Section<'_>, plan: &RoutingPlan) {
    let refused = |to: &&TopicName| !plan.admission.admits(&to.stream, &to.topic);
    let say = |to: &TopicName, what: &str| {
        words(
            format!("admission refuses {to}, which is the {what}"),
            format!("a {what} that is admitted"),
            "list it in the allowlist, take it off the denylist, or name another",
        )
    };
    if let Some(to) = plan.default.as_ref().filter(refused) {
        routing.fail("default_topic", say(to, "default destination"));
    }
    if let Some(to) = plan.bound.as_ref().filter(refused) {
        section.fail("topic", say(to, "destination of the source"));
    }
}

/// A3: known destinations alone must not fill the table.
fn check_cap(routing: &Section<'_>, plan: &RoutingPlan) {
    let AdmissionPlan { max_destinations, .. } = plan.admission;
    let known = plan.literals().len();
    if known > usize::try_from(max_destinations).unwrap_or(usize::MAX)
        && let Some(admission) = routing.peek_table("admission")
    {
        let seen = format!("{max_destinations}, but the file names {known} destinations");
        let advice = "raise max_destinations; every live destination takes one place for good";
        let expected = format!("{known} or more");
        admission.fail("max_destinations", words(seen, expected, advice));
    }
}
