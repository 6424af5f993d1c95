//! What only shows when all sources are seen together: loops (M12) and two feeds onto one
//! destination partition (M3).
//!
//! Topics are nodes, `include` entries are edges. Clusters that share an address are one
//! cluster. Entries are added in the order of the file; one that closes a circle of any length
//! is refused, because a message would go round it for ever.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use super::clusters::{Clusters, canonical_address};
use super::reader::{Document, Words, words};
use super::sources::{Capture, Edge, Sources};
use crate::batch::TopicName;

/// A topic of a cluster; clusters are numbered by identity, not by key.
type Node<'e> = (usize, &'e TopicName);

pub(super) fn check(doc: &Document<'_>, clusters: &Clusters, sources: &mut Sources) {
    let edges = &sources.edges;
    let identities = identify(clusters, edges);
    let identity = |key: &str| identities.get(key).copied().unwrap_or(usize::MAX);
    let mut written: HashMap<Node<'_>, usize> = HashMap::new();
    let mut graph = Graph::default();
    for (index, edge) in edges.iter().enumerate() {
        let from = (identity(&edge.from), &edge.topic.upstream);
        let to = (identity(&edge.to), &edge.topic.downstream);
        let said = if from == to {
            Some(onto_itself(edge))
        } else if let Some(first) = written.get(&to) {
            Some(second_feed(doc, edge, &edges[*first]))
        } else {
            graph.path(to, from).map(|path| circle(doc, edge, edges, &path))
        };
        if let Some(said) = said {
            doc.fail(edge.at, edge.path.clone(), said);
            continue;
        }
        written.insert(to, index);
        graph.add(from, to, index);
    }
    for capture in &mut sources.captures {
        for to in capture.plan.routing.literals() {
            let plan = &capture.plan;
            if let Some(first) = written.get(&(identity(&plan.to.key), &to)) {
                let said = into_a_mirror(doc, &to, &edges[*first]);
                doc.fail(capture.at, capture.path.clone(), said);
            }
        }
        let cluster = identity(&capture.plan.to.key);
        let mirrored = written.keys().filter(|(at, _)| *at == cluster);
        let mirrored: Vec<TopicName> = mirrored.map(|(_, topic)| (*topic).clone()).collect();
        Arc::make_mut(&mut capture.plan).routing.admission.mirrored = mirrored;
    }
    shared_slots(doc, &sources.captures);
}

/// Two readers of one slot take each other's changes.
fn shared_slots(doc: &Document<'_>, captures: &[Capture]) {
    for (index, capture) in captures.iter().enumerate() {
        let is_same = |other: &&Capture| {
            other.plan.slot == capture.plan.slot
                && other.plan.postgres.same_server(&capture.plan.postgres)
        };
        let Some(first) = captures.iter().take(index).find(is_same) else { continue };
        let line = doc.line_of(first.at);
        let said = words(
            format!("slot {:?} is read by {} on line {line}", capture.plan.slot, first.path),
            "a slot for each source: two readers take each other's changes",
            "give one of them another slot",
        );
        doc.fail(capture.at, capture.path.clone(), said);
    }
}

/// Numbers the clusters so that two keys with a common address get one number.
fn identify<'c>(clusters: &'c Clusters, edges: &'c [Edge]) -> BTreeMap<&'c str, usize> {
    let mut by_address: HashMap<String, usize> = HashMap::new();
    let mut by_key: BTreeMap<&str, usize> = BTreeMap::new();
    for (number, plan) in clusters.usable().enumerate() {
        by_key.insert(&plan.key, number);
        for address in plan.addresses.iter().map(|address| canonical_address(address)) {
            let Some(other) = by_address.insert(address, number) else { continue };
            for value in by_key.values_mut().chain(by_address.values_mut()) {
                if *value == other {
                    *value = number;
                }
            }
        }
    }
    // A cluster with findings has no addresses; it is still itself.
    for key in edges.iter().flat_map(|edge| [&edge.from, &edge.to]) {
        let number = usize::MAX - by_key.len();
        by_key.entry(key).or_insert(number);
    }
    by_key
}

/// Accepted edges by the topic they read.
#[derive(Default)]
struct Graph<'e> {
    next: HashMap<Node<'e>, Vec<(Node<'e>, usize)>>,
}

impl<'e> Graph<'e> {
    fn add(&mut self, from: Node<'e>, to: Node<'e>, edge: usize) {
        self.next.entry(from).or_default().push((to, edge));
    }

    /// Edges of a shortest way from `start` to `end`, in order.
    fn path(&self, start: Node<'e>, end: Node<'e>) -> Option<Vec<usize>> {
        let mut came_by: HashMap<Node<'e>, (Node<'e>, usize)> = HashMap::new();
        let mut queue = VecDeque::from([start]);
        while let Some(node) = queue.pop_front() {
            if node == end {
                let mut path = Vec::new();
                let mut at = end;
                while let Some((before, edge)) = came_by.get(&at).filter(|_| at != start) {
                    path.push(*edge);
                    at = *before;
                }
                path.reverse();
                return Some(path);
            }
            for (to, edge) in self.next.get(&node).into_iter().flatten() {
                if *to != start && !came_by.contains_key(to) {
                    came_by.insert(*to, (node, *edge));
                    queue.push_back(*to);
                }
            }
        }
        None
    }
}

fn onto_itself(edge: &Edge) -> Words {
    let topic = &edge.topic.upstream;
    let place = if edge.from == edge.to {
        format!("cluster {:?}", edge.from)
    } else {
        format!("clusters {:?} and {:?} (the same address)", edge.from, edge.to)
    };
    words(
        format!("{topic} would be copied onto itself on {place}"),
        "a destination other than the source",
        "choose another cluster in to, or rename with to_stream or to_topic",
    )
}

fn second_feed(doc: &Document<'_>, edge: &Edge, first: &Edge) -> Words {
    let topic = &edge.topic.downstream;
    let line = doc.line_of(first.at);
    let place = if edge.to == first.to {
        format!("cluster {:?}", edge.to)
    } else {
        format!("cluster {:?} (the same as {:?} by address)", edge.to, first.to)
    };
    words(
        format!("{} on line {line} already writes to {topic} on {place}", first.path),
        "one writer for every destination partition",
        "rename one of the two with to_stream or to_topic, or remove it",
    )
}

fn into_a_mirror(doc: &Document<'_>, topic: &TopicName, first: &Edge) -> Words {
    let line = doc.line_of(first.at);
    words(
        format!("{} on line {line} already writes to {topic} on {:?}", first.path, first.to),
        "one writer for every partition that a mirror writes",
        "capture into a topic of its own, or rename the mirror's with to_stream or to_topic",
    )
}

fn circle(doc: &Document<'_>, edge: &Edge, edges: &[Edge], path: &[usize]) -> Words {
    let advice = "remove one direction, or rename with to_stream or to_topic so that each \
                  direction has topics of its own";
    let back: Vec<String> = path
        .iter()
        .filter_map(|index| edges.get(*index))
        .map(|edge| format!("{} on line {}", edge.path, doc.line_of(edge.at)))
        .collect();
    let seen = format!(
        "{} of {:?} goes to {} of {:?} and comes back by {}",
        edge.topic.upstream,
        edge.from,
        edge.topic.downstream,
        edge.to,
        back.join(", then ")
    );
    let expected = if path.len() == 1 {
        "one direction for one topic: copies would be copied back for ever"
    } else {
        "topics that do not go in a circle: copies would go round for ever"
    };
    words(seen, expected, advice)
}
