//! What a routing names but nothing can reach: not wrong, yet hardly meant (R5). Warnings, with
//! place and advice.

use super::capture_plan::Tables;
use super::capture_routing::TableEntry;
use super::reader::{Section, words};
use super::routing_plan::{AdmissionMode, DestinationPattern, OnMissingDestination, RoutingPlan};

/// Every warning about destinations.
pub(super) fn warn(
    routing: &Section<'_>,
    plan: &RoutingPlan,
    by_table: &[TableEntry<'_>],
    tables: Option<&Tables>,
) {
    warn_tables(plan, by_table, tables);
    warn_default(routing, plan, tables);
    warn_entries(routing, plan);
    let has_column = plan.topic_column.is_some() || plan.stream_column.is_some();
    if let Some(admission) = routing.peek_table("admission")
        && admission.has("on_missing_destination")
        && plan.on_missing_destination != OnMissingDestination::Default
        && (has_column || plan.bound.is_some())
    {
        let seen = "never applies: every message has a destination, its own or the default";
        let advice = "remove the key; a NULL or missing value goes to the default";
        admission.warn("on_missing_destination", words(seen, "no such key", advice));
    }
}

fn warn_tables(plan: &RoutingPlan, by_table: &[TableEntry<'_>], tables: Option<&Tables>) {
    for entry in by_table {
        let table = &entry.table;
        if tables.is_some_and(|tables| !tables.includes(&table.schema, &table.name)) {
            let seen = format!("{table} is not in tables: nothing goes to {}", entry.to);
            let advice = "add the table to tables, or remove its destination";
            entry.entry.warn_here(words(seen, "a table that is captured", advice));
        }
        if !plan.admission.admits(&entry.to.stream, &entry.to.topic) {
            let seen = format!("admission refuses {}: nothing of {table} gets there", entry.to);
            let advice = "list it in the allowlist, take it off the denylist, or name another";
            entry.entry.warn_here(words(seen, "a destination that is admitted", advice));
        }
    }
}

fn warn_default(routing: &Section<'_>, plan: &RoutingPlan, tables: Option<&Tables>) {
    let Some(default) = &plan.default else { return };
    if plan.topic_column.is_some() || plan.stream_column.is_some() {
        return;
    }
    let covered = match tables {
        Some(Tables::List(tables)) => {
            tables.iter().all(|table| plan.by_table.iter().any(|(other, _)| other == table))
        }
        _ => false,
    };
    let unused = plan.on_missing_destination != OnMissingDestination::Default;
    if covered || unused {
        let why = if covered {
            "every table has a destination of its own"
        } else {
            "on_missing_destination is not \"default\""
        };
        let seen = format!("nothing can reach {default}: {why}");
        let advice = "remove default_stream and default_topic";
        routing.warn("default_topic", words(seen, "a destination that is used", advice));
    }
}

/// Allowlist entries that no row can match. A denylist may well name what does not come.
fn warn_entries(routing: &Section<'_>, plan: &RoutingPlan) {
    if plan.admission.mode != AdmissionMode::Allowlist {
        return;
    }
    let Some(admission) = routing.peek_table("admission") else { return };
    let sections = admission.table_array("allowlist", "").unwrap_or_default();
    let mut seen_before: Vec<&DestinationPattern> = Vec::new();
    for section in &sections {
        let text = |key| section.text(key).map(|text| text.value);
        let is_it = |entry: &&DestinationPattern| {
            let same = |segment: &Option<String>, key| {
                text(key).as_deref() == Some(segment.as_deref().unwrap_or("*"))
            };
            same(&entry.stream, "stream") && same(&entry.topic, "topic")
        };
        let Some(entry) = plan.admission.entries.iter().find(is_it) else { continue };
        if seen_before.contains(&entry) {
            continue;
        }
        seen_before.push(entry);
        if !is_reachable(plan, entry) {
            let advice = "remove the entry, or route something there";
            let seen = "nothing can reach it: no table, column or default names it";
            section.warn_here(words(seen, "an entry that a message can match", advice));
        }
    }
}

fn is_reachable(plan: &RoutingPlan, entry: &DestinationPattern) -> bool {
    let fixed = plan.bound.iter().chain(plan.by_table.iter().map(|(_, to)| to));
    if fixed.chain(&plan.default).any(|to| entry.covers(&to.stream, &to.topic)) {
        return true;
    }
    let Some(default) = &plan.default else { return false };
    let open = |column: &Option<String>, segment: &Option<String>, usual: &str| {
        column.is_some() || segment.as_deref().is_none_or(|literal| literal == usual)
    };
    (plan.topic_column.is_some() || plan.stream_column.is_some())
        && open(&plan.stream_column, &entry.stream, &default.stream)
        && open(&plan.topic_column, &entry.topic, &default.topic)
}
