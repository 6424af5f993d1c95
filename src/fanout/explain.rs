//! What would become of a row (R9): the same router, asked once, with every step in words.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::admission::Reason;
use super::destinations::Destinations;
use super::partition::Wish;
use super::route::{Columns, KeyChoice, Routed, Router, choose};
use crate::batch::TopicName;
use crate::config::{CapturePlan, Expectation, OnMissingDestination, PartitionBy, TableName};

/// What becomes of a row, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// Where it is meant to go; `None`: nothing says.
    pub destination: Option<TopicName>,
    /// Which partition of `partitions`; `None`: any.
    pub partition: Option<u32>,
    /// Partitions assumed: those a topic is created with.
    pub partitions: u32,
    /// `send`, `hold`, `drop` or `dead_letter`.
    pub verdict: &'static str,
    /// Why it is not sent to its destination.
    pub reason: Option<&'static str>,
    /// Where it goes instead.
    pub dead_letter: Option<TopicName>,
    /// Columns that stay out of the payload.
    pub stripped: Vec<String>,
    /// How it came to that, step by step.
    pub why: Vec<String>,
}

/// A row as text, column by column.
struct Row {
    texts: Vec<Option<String>>,
}

impl Columns for Row {
    fn text(&self, index: usize) -> Option<&[u8]> {
        self.texts.get(index)?.as_deref().map(str::as_bytes)
    }
}

/// Explains a row of `table`, given as a JSON object; `key` names its key columns. The error says
/// what is wrong with the row.
pub fn explain(
    plan: &Arc<CapturePlan>,
    table: &TableName,
    row: &str,
    key: &[String],
) -> Result<Explanation, String> {
    let members: Map<String, Value> = serde_json::from_str(row)
        .map_err(|error| format!("the row is no JSON object: {error}; expected '{{\"id\": 1}}'"))?;
    if let Some(missing) = key.iter().find(|column| !members.contains_key(*column)) {
        return Err(format!(
            "key column {missing:?} is not in the row; add it, null if it is NULL"
        ));
    }
    let columns: Vec<(&str, bool)> =
        members.keys().map(|name| (name.as_str(), key.contains(name))).collect();
    let texts = members.values().map(text_of).collect();
    let row = Row { texts };
    let routing = &plan.routing;
    let mut known = Destinations::new(routing.admission.max_destinations, routing.breaker);
    let mut router = Router::new(plan.clone(), &mut known);
    let bound = router
        .bind(&mut known, &table.schema, &table.name, &columns)
        .map_err(|error| error.to_string())?;
    let mut why = Vec::new();
    if !plan.tables.includes(&table.schema, &table.name) {
        why.push(format!("{table} is not in tables: its changes are not captured at all"));
    }
    let value = |name: &str| {
        let index = columns.iter().position(|(column, _)| *column == name)?;
        row.texts.get(index)?.clone()
    };
    let destination = destination(plan, table, &value, &mut why);
    let routed = router.route(&mut known, &bound, &row);
    let partitions = routing.topic_defaults.partitions_count;
    let partition = partition(plan, bound.wish(&row), partitions, key, &mut why);
    let outside = partition.is_some_and(|id| id >= partitions);
    let (verdict, reason) = verdict(plan, routed, outside);
    let stripped = bound.stripped().iter().filter_map(|index| columns.get(*index));
    let dead_letter = routing.admission.dead_letter.clone();
    why.push(verdict_words(verdict, reason));
    Ok(Explanation {
        destination,
        partition,
        partitions,
        verdict,
        reason,
        dead_letter: dead_letter.filter(|_| verdict == "dead_letter"),
        stripped: stripped.map(|(name, _)| (*name).to_owned()).collect(),
        why,
    })
}

impl Explanation {
    /// What of an expectation is not met.
    pub fn differs(&self, expected: &Expectation) -> Option<String> {
        let stream = self.destination.as_ref().map(|to| &*to.stream);
        let topic = self.destination.as_ref().map(|to| &*to.topic);
        let shown = |value: Option<&str>| value.unwrap_or("none").to_owned();
        let differs = |what: &str, seen: Option<&str>, wanted: Option<&str>| {
            (wanted.is_some() && seen != wanted)
                .then(|| format!("{what} {}, expected {}", shown(seen), shown(wanted)))
        };
        let partition = self.partition.map(|id| id.to_string());
        let wanted = expected.partition.map(|id| id.to_string());
        let usual = expected.reason.is_none().then_some("send");
        differs("stream", stream, expected.stream.as_deref())
            .or_else(|| differs("topic", topic, expected.topic.as_deref()))
            .or_else(|| differs("partition", partition.as_deref(), wanted.as_deref()))
            .or_else(|| {
                differs("verdict", Some(self.verdict), expected.verdict.as_deref().or(usual))
            })
            .or_else(|| differs("reason", self.reason, expected.reason.as_deref()))
    }
}

/// A value in the form the server gives it.
fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::Bool(yes) => Some(if *yes { "t" } else { "f" }.to_owned()),
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

fn destination(
    plan: &CapturePlan,
    table: &TableName,
    value: &impl Fn(&str) -> Option<String>,
    why: &mut Vec<String>,
) -> Option<TopicName> {
    let routing = &plan.routing;
    if let Some((_, to)) = routing.by_table.iter().find(|(other, _)| other == table) {
        why.push(format!("by_table sends {table} to {to}"));
        return Some(to.clone());
    }
    if let Some(to) = &routing.bound {
        why.push(format!("everything of the source goes to {to}"));
        return Some(to.clone());
    }
    let default = routing.default.as_ref();
    if routing.topic_column.is_none() && routing.stream_column.is_none() {
        let words = match routing.on_missing_destination {
            OnMissingDestination::Default => "goes to the default",
            OnMissingDestination::Drop => "is dropped",
            OnMissingDestination::Error => "waits",
        };
        why.push(format!("by_table does not name {table}: by on_missing_destination it {words}"));
        let is_default = routing.on_missing_destination == OnMissingDestination::Default;
        return default.filter(|_| is_default).cloned();
    }
    let mut part = |key: &str, column: &Option<String>, default: &str| match column {
        None => {
            why.push(format!("default_{key} is {default:?}, and no column says otherwise"));
            default.to_owned()
        }
        Some(column) => match value(column) {
            Some(text) => {
                why.push(format!("{key}_column {column:?} is {text:?}"));
                text
            }
            None => {
                why.push(format!(
                    "{key}_column {column:?} is NULL or missing: default_{key} {default:?}"
                ));
                default.to_owned()
            }
        },
    };
    let default = default?;
    let stream = part("stream", &routing.stream_column, &default.stream);
    let topic = part("topic", &routing.topic_column, &default.topic);
    Some(TopicName::new(&stream, &topic))
}

fn partition(
    plan: &CapturePlan,
    wish: Wish,
    partitions: u32,
    key: &[String],
    why: &mut Vec<String>,
) -> Option<u32> {
    let routing = &plan.routing;
    let by_identity = routing.partition_by == PartitionBy::Identity;
    let KeyChoice::Partition(id) = choose(wish, Some(partitions), 0) else { return None };
    match (wish, &routing.partition_key_column) {
        (Wish::Balanced, Some(column)) => {
            why.push(format!("partition key {column:?} is NULL or missing: any partition"));
            None
        }
        (Wish::Balanced, None) if by_identity => {
            let words = if key.is_empty() {
                "name the key columns with --key to see the partition of this row"
            } else {
                "the key is NULL: any partition"
            };
            why.push(format!("partition_by = \"identity\": {words}"));
            None
        }
        (Wish::Balanced, None) => None,
        (Wish::Hash(_), column) => {
            let what = column.as_ref().map_or_else(|| key.join(", "), Clone::clone);
            why.push(format!("the key {what} falls on partition {id} of {partitions}"));
            Some(id)
        }
        (Wish::Id(id), _) if id < partitions => {
            why.push(format!("the row asks for partition {id} of {partitions}"));
            Some(id)
        }
        (Wish::Id(id), _) => {
            why.push(format!("the row asks for a partition that {partitions} partitions lack"));
            Some(id)
        }
    }
}

fn verdict(
    plan: &CapturePlan,
    routed: Routed,
    outside: bool,
) -> (&'static str, Option<&'static str>) {
    use super::admission::{Disposition, disposition};
    match routed {
        Routed::Destination(..) if outside => {
            let reason = Reason::PartitionIdOutOfRange;
            let verdict = match disposition(&plan.routing.admission, reason) {
                Disposition::Keep => "hold",
                Disposition::Drop => "drop",
                Disposition::DeadLetter => "dead_letter",
            };
            (verdict, Some(reason.as_str()))
        }
        Routed::Destination(..) => ("send", None),
        Routed::Held(_, _, reason) => ("hold", Some(reason.as_str())),
        Routed::Unmatched(_) => ("hold", Some("no_destination")),
        Routed::DeadLetter(_, reason) => ("dead_letter", Some(reason.as_str())),
        Routed::Dropped(reason) => ("drop", Some(reason.map_or("no_destination", Reason::as_str))),
    }
}

fn verdict_words(verdict: &str, reason: Option<&str>) -> String {
    let Some(reason) = reason else { return "admission lets it through".to_owned() };
    let words = match reason {
        "unknown" => "the allowlist does not name the destination",
        "denylist" => "the denylist names the destination",
        "invalid_name" => "Iggy has no stream or topic of that name",
        "partition_id_out_of_range" => "the topic has no such partition",
        "cap" => "max_destinations is reached",
        _ => "nothing names a destination",
    };
    let then = match verdict {
        "hold" => "it waits, and nothing of its destination passes it",
        "drop" => "it is counted and dropped",
        _ => "it goes to the dead-letter topic",
    };
    format!("{words}: {then}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fanout::fixture::{plan, routed};

    fn explained(plan: &Arc<CapturePlan>, table: &str, row: &str, key: &[&str]) -> Explanation {
        let key: Vec<String> = key.iter().map(|column| (*column).to_owned()).collect();
        explain(plan, &TableName::parse(table).unwrap(), row, &key).unwrap()
    }

    fn shown(explanation: &Explanation) -> (String, Option<u32>, &'static str, &'static str) {
        let to = explanation.destination.as_ref().map_or("-".to_owned(), TopicName::to_string);
        (to, explanation.partition, explanation.verdict, explanation.reason.unwrap_or_default())
    }

    fn keyed(encoding: &str) -> Arc<CapturePlan> {
        routed(&format!(
            "strip_routing_columns = true\npartition_key_column = \"user\"\n\
             partition_key_encoding = \"{encoding}\"\n[sources.shop.routing.by_table]\n\
             orders = {{ stream = \"commerce\", topic = \"orders\" }}\n\
             [sources.shop.routing.topic_defaults]\npartitions_count = 4\n\
             [sources.shop.routing.admission]\nmode = \"allowlist\"\n\
             allowlist = [{{ stream = \"commerce\", topic = \"*\" }}, \
             {{ stream = \"default\", topic = \"unknown\" }}]"
        ))
    }

    #[test]
    fn a_row_is_explained_step_by_step() {
        let plan = keyed("bytes");
        let row = r#"{"id": 1, "topic": "x", "stream": null, "user": "abc"}"#;
        let seen = explained(&plan, "events", row, &[]);
        assert_eq!(shown(&seen), ("default/x".into(), Some(3), "hold", "unknown"));
        assert_eq!(seen.stripped, ["stream", "topic"]);
        let why = seen.why.join("\n");
        for piece in [
            "stream_column \"stream\" is NULL",
            "topic_column \"topic\" is \"x\"",
            "the key user falls on partition 3 of 4",
            "the allowlist does not name",
        ] {
            assert!(why.contains(piece), "{piece}:\n{why}");
        }
        let seen = explained(&plan, "orders", row, &[]);
        assert_eq!(shown(&seen), ("commerce/orders".into(), Some(3), "send", ""));
        assert!(seen.why[0].contains("by_table sends public.orders"), "{:?}", seen.why);
    }

    #[test]
    fn values_count_in_the_form_the_server_gives_them() {
        let plan = keyed("bytes");
        for (value, text) in [("7", "7"), ("true", "t"), ("1.50", "1.5"), ("\"7\"", "7")] {
            let row = format!("{{\"topic\": {value}, \"stream\": \"commerce\"}}");
            let seen = explained(&plan, "events", &row, &[]);
            assert_eq!(shown(&seen).0, format!("commerce/{text}"));
        }
    }

    #[test]
    fn partitions_are_explained_for_every_kind_of_key() {
        let ids = keyed("partition_id");
        let of = |user: &str| format!("{{\"stream\": \"commerce\", \"user\": {user}}}");
        let seen = explained(&ids, "events", &of("3"), &[]);
        assert_eq!(shown(&seen), ("commerce/unknown".into(), Some(3), "send", ""));
        let seen = explained(&ids, "events", &of("4"), &[]);
        assert_eq!((seen.verdict, seen.reason), ("hold", Some("partition_id_out_of_range")));
        let seen = explained(&ids, "events", &of("null"), &[]);
        assert_eq!((seen.partition, seen.verdict), (None, "send"));
        let identity = routed(
            "partition_by = \"identity\"\n[sources.shop.routing.topic_defaults]\n\
             partitions_count = 4",
        );
        let row = r#"{"id": "abc"}"#;
        assert_eq!(explained(&identity, "events", row, &["id"]).partition, Some(3));
        let seen = explained(&identity, "events", row, &[]);
        assert!(seen.partition.is_none() && seen.why.join(" ").contains("--key"));
    }

    #[test]
    fn missing_destinations_and_bound_sources_are_explained() {
        let bound = plan("stream = \"s\"\ntopic = \"t\"");
        let seen = explained(&bound, "anything", "{}", &[]);
        assert_eq!(shown(&seen), ("s/t".into(), None, "send", ""));
        let by_table = plan(
            "[sources.shop.routing.by_table]\norders = { stream = \"c\", topic = \"o\" }\n\
             [sources.shop.routing.admission]\non_missing_destination = \"drop\"",
        );
        let seen = explained(&by_table, "events", "{}", &[]);
        assert_eq!(shown(&seen), ("-".into(), None, "drop", "no_destination"));
    }

    #[test]
    fn rows_that_are_none_are_refused_in_words() {
        let plan = keyed("bytes");
        let table = TableName::parse("events").unwrap();
        for row in ["", "[1]", "{\"a\": }", "7"] {
            let error = explain(&plan, &table, row, &[]).unwrap_err();
            assert!(error.contains("no JSON object"), "{row}: {error}");
        }
        let error = explain(&plan, &table, "{}", &["id".to_owned()]).unwrap_err();
        assert!(error.contains("key column \"id\" is not in the row"), "{error}");
    }

    #[test]
    fn expectations_name_the_first_difference() {
        let seen = explained(&keyed("bytes"), "orders", r#"{"user": "abc"}"#, &[]);
        let expect = |stream: &str, topic: &str| Expectation {
            stream: Some(stream.to_owned()),
            topic: Some(topic.to_owned()),
            ..Expectation::default()
        };
        assert_eq!(seen.differs(&expect("commerce", "orders")), None);
        let differs = seen.differs(&expect("commerce", "events")).unwrap();
        assert_eq!(differs, "topic orders, expected events");
        let partition = Expectation { partition: Some(0), ..expect("commerce", "orders") };
        assert_eq!(seen.differs(&partition).unwrap(), "partition 3, expected 0");
        let verdict = Expectation { verdict: Some("drop".into()), ..Expectation::default() };
        assert_eq!(seen.differs(&verdict).unwrap(), "verdict send, expected drop");
        let reason = Expectation { reason: Some("cap".into()), ..Expectation::default() };
        assert_eq!(seen.differs(&reason).unwrap(), "reason none, expected cap");
    }
}
