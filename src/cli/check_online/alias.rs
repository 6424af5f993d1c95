//! Two clusters of the configuration that are one server: reached by two names or addresses, so
//! that the configuration alone cannot tell. Copies that go in a circle would go round for ever
//! (M12).
//!
//! Servers that were never told who they are all introduce themselves alike, and a restored
//! backup keeps its creation times; so both must agree, and a stream must be shared.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::survey::{Answers, Survey};
use crate::batch::TopicName;
use crate::cli::report::{Class, Finding};
use crate::config::Plan;

/// A topic of a server, whatever the configuration calls the server.
type Node<'a> = (&'a str, &'a TopicName);

/// One `include` entry.
struct Edge<'a> {
    source: &'a str,
    from: Node<'a>,
    to: Node<'a>,
    /// It reads or writes through a name that is not the server's only one.
    aliased: bool,
}

/// What follows from clusters that are one server.
pub(super) fn findings(plan: &Plan, survey: &Survey) -> Vec<Finding> {
    let names = first_names(survey);
    let mut findings: Vec<Finding> = names
        .iter()
        .filter(|(key, first)| key != first)
        .map(|(key, first)| {
            let seen = format!(
                "is the same server as clusters.{first}: the same nodes, and streams created at \
                 the same microsecond"
            );
            Finding::note(format!("clusters.{key}"), seen)
        })
        .collect();
    if findings.is_empty() {
        return findings;
    }
    let edges = edges(plan, &names);
    for (index, edge) in edges.iter().enumerate() {
        let topic = edge.from.1;
        let earlier = || edges.iter().take(index);
        let twin = earlier().find(|other| other.to == edge.to);
        let seen = if !edge.aliased {
            continue;
        } else if edge.from == edge.to {
            format!("{topic} would be copied onto itself: both clusters are the same server")
        } else if let Some(twin) = twin {
            let (source, target) = (twin.source, edge.to.1);
            format!("sources.{source} writes to {target} too: both clusters are the same server")
        } else if leads_to(&edges, edge.to, edge.from) {
            format!("what goes from {topic} to {} comes back to it in a circle", edge.to.1)
        } else {
            continue;
        };
        findings.push(Finding {
            class: Class::Other,
            subject: format!("sources.{}", edge.source),
            seen,
            expected: "one writer for every destination topic, and no way back".to_owned(),
            advice: "correct the clusters' addresses, or rename with to_stream or to_topic"
                .to_owned(),
        });
    }
    findings
}

/// For every cluster the first key, in their order, of the same server.
fn first_names(survey: &Survey) -> BTreeMap<Arc<str>, Arc<str>> {
    let reached: Vec<_> = survey.clusters().filter(|(_, answers)| answers.is_reached()).collect();
    let first = |answers: &Answers| {
        let same = reached.iter().find(|(_, other)| is_same(answers, other));
        same.map(|(key, _)| Arc::clone(key))
    };
    reached
        .iter()
        .map(|(key, answers)| (Arc::clone(key), first(answers).unwrap_or_else(|| Arc::clone(key))))
        .collect()
}

fn is_same(one: &Answers, other: &Answers) -> bool {
    std::ptr::eq(one, other)
        || (one.nodes == other.nodes
            && one.streams.iter().any(|(name, at)| other.streams.get(name) == Some(at)))
}

fn edges<'a>(plan: &'a Plan, names: &'a BTreeMap<Arc<str>, Arc<str>>) -> Vec<Edge<'a>> {
    let name = |key: &'a Arc<str>| names.get(key).map_or(&**key, |first| &**first);
    let shared: BTreeSet<&str> =
        names.iter().filter(|(key, first)| key != first).map(|(_, first)| &**first).collect();
    let mut edges = Vec::new();
    for source in &plan.sources {
        let (from, to) = (name(&source.from.key), name(&source.to.key));
        for topic in &source.topics {
            edges.push(Edge {
                source: &source.key,
                from: (from, &topic.upstream),
                to: (to, &topic.downstream),
                aliased: shared.contains(from) || shared.contains(to),
            });
        }
    }
    edges
}

fn leads_to(edges: &[Edge<'_>], start: Node<'_>, end: Node<'_>) -> bool {
    let mut seen = BTreeSet::from([start]);
    loop {
        let next: Vec<Node<'_>> = edges
            .iter()
            .filter(|edge| seen.contains(&edge.from) && !seen.contains(&edge.to))
            .map(|edge| edge.to)
            .collect();
        if next.is_empty() {
            return seen.contains(&end);
        }
        seen.extend(next);
    }
}
