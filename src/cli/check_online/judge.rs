//! Compares what the clusters said with the plan and the saved positions: no I/O.

use super::survey::{Answers, Look, Survey};
use crate::batch::TopicName;
use crate::cli::report::{Class, Finding};
use crate::config::budget;
use crate::config::{
    MirrorPlan, OnDestinationLost, OnHistoryChanged, OnMissingUpstream, OnNonemptyDestination,
    Partitions, Plan, TopicPlan,
};
use crate::iggy_wire::{ServerError, TopicInfo};
use crate::shard::driver::control::plan_shards;
use crate::shard::event::ConnError;
use crate::shard::placement::fullest;
use crate::shard::provision::options::options_for;
use crate::statefile::FeedState;
use crate::statefile::inspect::FoundFile;

/// Which clusters can be reached and logged in to.
pub(super) fn clusters(survey: &Survey) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (key, answers) in survey.clusters() {
        let subject = format!("clusters.{key}");
        // A daemon tries the addresses in order and stops at one that refuses it.
        let mut usable = false;
        for (_, error) in &answers.addresses {
            match error {
                None => usable = true,
                Some(error) if usable || (is_passed_over(error) && answers.is_reached()) => {
                    let seen = format!("{error}; another address of the cluster answers");
                    findings.push(Finding::note(subject.clone(), seen));
                }
                Some(error) => findings.push(unusable(&subject, error)),
            }
        }
        if let Some(why) = &answers.broken_off {
            findings.push(Finding {
                class: Class::Peer,
                subject,
                seen: format!("answered the login, then: {why}"),
                expected: "an answer to every question".to_owned(),
                advice: "check again; if it stays, see the server's log and load".to_owned(),
            });
        }
    }
    findings
}

fn is_passed_over(error: &ConnError) -> bool {
    !matches!(error, ConnError::Login { .. } | ConnError::UntestedServer { .. })
}

fn unusable(subject: &str, error: &ConnError) -> Finding {
    let (expected, advice) = match error {
        ConnError::Resolve { .. } => (
            "a name that this machine can resolve",
            "correct the address, or the machine's name service",
        ),
        ConnError::Login { .. } => (
            "a login that is accepted",
            "correct username and password, or token, or the user on the server",
        ),
        ConnError::UntestedServer { .. } => (
            "version 0.9.x",
            "run such a server, or set allow_untested_server = true after reading its release \
             notes",
        ),
        ConnError::Protocol(_) | ConnError::Evicted(_) => (
            "an Iggy server that speaks this protocol on its TCP port",
            "see whether the address is that of Iggy's TCP listener, not HTTP or QUIC",
        ),
        _ => (
            "a server that accepts a connection and a login within connect_timeout",
            "start the cluster or correct its address; check firewalls in between",
        ),
    };
    Finding {
        class: Class::Peer,
        subject: subject.to_owned(),
        seen: error.to_string(),
        expected: expected.to_owned(),
        advice: advice.to_owned(),
    }
}

/// Everything about one source. `saved`: its positions, `None` when it would not start.
pub(super) fn source(
    source: &MirrorPlan,
    survey: &Survey,
    saved: Option<&[FeedState]>,
    running: bool,
    findings: &mut Vec<Finding>,
) {
    for topic in &source.topics {
        let is_ours = |feed: &&FeedState| {
            feed.upstream == topic.upstream && feed.downstream == topic.downstream
        };
        let entries = saved.map(|saved| saved.iter().filter(is_ours).collect());
        let up = survey.reached(&source.from.key);
        let down = survey.reached(&source.to.key);
        Judge { source, topic, up, down, entries, running, findings }.all();
    }
    for feed in saved.into_iter().flatten() {
        let is_planned = |topic: &TopicPlan| {
            feed.upstream == topic.upstream && feed.downstream == topic.downstream
        };
        if feed.partition == 0 && !source.topics.iter().any(is_planned) {
            let subject = format!("sources.{}", source.key);
            let seen = format!(
                "a position is saved for {} to {}, which include does not list any more; it is \
                 kept, and counts again if the topic is listed again; `tidegate state reset` \
                 forgets it",
                feed.upstream, feed.downstream
            );
            findings.push(Finding::note(subject, seen));
        }
    }
}

struct Judge<'a> {
    source: &'a MirrorPlan,
    topic: &'a TopicPlan,
    up: Option<&'a Answers>,
    down: Option<&'a Answers>,
    /// Saved entries of this topic; `None` when the source would not start.
    entries: Option<Vec<&'a FeedState>>,
    running: bool,
    findings: &'a mut Vec<Finding>,
}

impl<'a> Judge<'a> {
    fn all(mut self) {
        let up = self.up.and_then(|answers| answers.topics.get(&self.topic.upstream));
        let down = self.down.and_then(|answers| answers.topics.get(&self.topic.downstream));
        let upstream = match up {
            Some(Look::Found(info)) => {
                self.upstream_identity(info);
                Some(info)
            }
            Some(Look::Missing) => {
                self.upstream_missing();
                None
            }
            Some(Look::Refused(error)) => {
                self.refused(&self.source.from.key, &self.topic.upstream, *error, "read");
                None
            }
            None => None,
        };
        match down {
            Some(Look::Found(info)) => {
                self.destination_identity(info);
                self.destination_content(info);
                if let Some(upstream) = upstream {
                    self.partitions(upstream, info);
                }
            }
            Some(Look::Missing) => self.destination_missing(upstream),
            Some(Look::Refused(error)) => {
                self.refused(&self.source.to.key, &self.topic.downstream, *error, "write to");
            }
            None => {}
        }
    }

    fn upstream_missing(&mut self) {
        let source = self.source;
        let seen = format!("does not exist on cluster {}", source.from.key);
        if !self.saved().is_empty() {
            return self.wrong(
                &self.topic.upstream,
                seen,
                "the topic whose messages were copied",
                "restore it; until then its feeds wait, and a new topic of that name counts as \
                 another history (on_history_changed)",
            );
        }
        let (expected, advice) = match source.on_missing_upstream {
            OnMissingUpstream::Create => {
                return self.note(
                    &self.topic.upstream,
                    format!(
                        "{seen}; it will be created with one partition (on_missing_upstream = \
                         \"create\")"
                    ),
                );
            }
            OnMissingUpstream::Wait => (
                "a topic to read from",
                "create it, or correct stream and topic in include; until then the source waits \
                 for it (on_missing_upstream = \"wait\")",
            ),
            OnMissingUpstream::Fail => (
                "a topic to read from",
                "create it, or correct stream and topic in include; a start would stop with \
                 missing_upstream (on_missing_upstream = \"fail\")",
            ),
        };
        self.wrong(&self.topic.upstream, seen, expected, advice);
    }

    fn upstream_identity(&mut self, info: &TopicInfo) {
        let policy = match self.source.on_history_changed {
            OnHistoryChanged::Fail => {
                "make sure which topic is meant; a start would stop with history_changed, \
                 on_history_changed = \"restart\" copies the new history behind the old one"
            }
            OnHistoryChanged::Restart => {
                "nothing if that is meant: the new history is copied from its first message, \
                 behind the old one (on_history_changed = \"restart\")"
            }
        };
        let mut known = self.saved().into_iter().map(|feed| feed.upstream_created_at);
        if let Some(known) = known.find(|known| *known != info.created_at) {
            let seen = format!(
                "was created at {} us, the saved positions belong to a topic created at {known} us",
                info.created_at
            );
            return self.wrong(&self.topic.upstream, seen, "the topic that was copied", policy);
        }
        if self.running {
            // Its positions move while we look.
            return;
        }
        let ends = self.up.map(|answers| &answers.ends);
        let short = self.saved().iter().find_map(|feed| {
            let end = ends?.get(&(feed.upstream.clone(), feed.partition))?;
            (*end < feed.position).then_some((feed.partition, *end, feed.position))
        });
        if let Some((partition, end, position)) = short {
            let seen = format!(
                "partition {partition} ends at offset {end}, below the saved position {position}: \
                 it was purged, or lost messages, or its server is starting"
            );
            self.wrong(&self.topic.upstream, seen, "the log that was copied", policy);
        }
    }

    fn destination_identity(&mut self, info: &TopicInfo) {
        let mut known = self.saved().into_iter().map(|feed| feed.downstream_created_at);
        let Some(known) = known.find(|known| *known != info.created_at) else { return };
        let seen = format!(
            "was created at {} us, messages were copied to a topic created at {known} us",
            info.created_at
        );
        let advice = self.lost_destination();
        self.wrong(&self.topic.downstream, seen, "the topic that holds the copy", advice);
    }

    fn lost_destination(&self) -> &'static str {
        match self.source.on_destination_lost {
            OnDestinationLost::Fail => {
                "restore it; a start would stop with destination_lost, on_destination_lost = \
                 \"refill\" copies everything again"
            }
            OnDestinationLost::Refill => {
                "nothing if that is meant: everything that upstream still has is copied again \
                 (on_destination_lost = \"refill\")"
            }
        }
    }

    fn destination_content(&mut self, info: &TopicInfo) {
        let Some(entries) = &self.entries else { return };
        if self.source.partitions == Partitions::Balanced {
            return;
        }
        let has_entry = |partition| entries.iter().any(|feed| feed.partition == partition);
        let filled: Vec<(u32, u64)> = info
            .partitions
            .iter()
            .filter(|row| row.messages_count > 0 || row.current_offset > 0)
            .filter(|row| !has_entry(row.id))
            .map(|row| (row.id, row.current_offset + 1))
            .collect();
        let Some((partition, end)) = filled.first().copied() else { return };
        let more = match filled.len() - 1 {
            0 => String::new(),
            1 => ", and one more partition is not empty".to_owned(),
            more => format!(", and {more} more partitions are not empty"),
        };
        let seen = format!(
            "partition {partition} ends at offset {end} and there is no saved position{more}"
        );
        match self.source.on_nonempty_destination {
            OnNonemptyDestination::Append => self.note(
                &self.topic.downstream,
                format!(
                    "{seen}; the copy is written behind that (on_nonempty_destination = \
                     \"append\")"
                ),
            ),
            OnNonemptyDestination::Fail => self.wrong(
                &self.topic.downstream,
                seen,
                "an empty destination, or the state file of the copy that filled it",
                "empty it, or bring back the state file; a start would stop with \
                 nonempty_destination, on_nonempty_destination = \"append\" writes behind what \
                 is there",
            ),
        }
    }

    fn partitions(&mut self, upstream: &TopicInfo, downstream: &TopicInfo) {
        let (wanted, have) = (upstream.partitions_count, downstream.partitions_count);
        if have >= wanted || self.source.partitions == Partitions::Balanced {
            return;
        }
        let seen = format!("has {have} partitions, upstream has {wanted}");
        if self.source.auto_create {
            let seen = format!("{seen}; {} will be added (auto_create)", wanted - have);
            return self.note(&self.topic.downstream, seen);
        }
        self.wrong(
            &self.topic.downstream,
            seen,
            "as many partitions as upstream",
            "add the missing ones, or set auto_create = true; until then only the first ones are \
             copied",
        );
    }

    fn destination_missing(&mut self, upstream: Option<&TopicInfo>) {
        let seen = format!("does not exist on cluster {}", self.source.to.key);
        if !self.saved().is_empty() {
            let advice = self.lost_destination();
            let expected = "the topic that holds the copy";
            return self.wrong(&self.topic.downstream, seen, expected, advice);
        }
        if !self.source.auto_create {
            return self.wrong(
                &self.topic.downstream,
                seen,
                "a topic with as many partitions as upstream, since auto_create = false",
                "create it, or set auto_create = true; until then the source waits for it",
            );
        }
        let Some(upstream) = upstream else {
            let seen = format!("{seen}; it will be created once the upstream topic is there");
            return self.note(&self.topic.downstream, seen);
        };
        let count = upstream.partitions_count;
        let seen = format!("{seen}; it will be created, partitions: {count} (auto_create)");
        self.note(&self.topic.downstream, seen);
        let Some(known) = self.down.and_then(|answers| answers.options.as_ref()) else { return };
        let left_out = options_for(upstream, known).1;
        if !left_out.is_empty() {
            let seen = format!(
                "cluster {} does not know these options of {}: {}; the topic is created without \
                 them",
                self.source.to.key,
                self.topic.upstream,
                left_out.join(", ")
            );
            self.note(&self.topic.downstream, seen);
        }
    }

    fn refused(&mut self, cluster: &str, topic: &TopicName, error: ServerError, verb: &str) {
        let finding = refused(self.subject(topic), cluster, error, verb);
        self.findings.push(finding);
    }

    fn saved(&self) -> Vec<&'a FeedState> {
        self.entries.clone().unwrap_or_default()
    }

    fn subject(&self, topic: &TopicName) -> String {
        format!("sources.{}: {topic}", self.source.key)
    }

    fn note(&mut self, topic: &TopicName, seen: String) {
        let subject = self.subject(topic);
        self.findings.push(Finding::note(subject, seen));
    }

    fn wrong(&mut self, topic: &TopicName, seen: String, expected: &str, advice: &str) {
        self.findings.push(Finding {
            class: Class::Other,
            subject: self.subject(topic),
            seen,
            expected: expected.to_owned(),
            advice: advice.to_owned(),
        });
    }
}

/// The cluster would not say what the topic is.
pub(super) fn refused(subject: String, cluster: &str, error: ServerError, verb: &str) -> Finding {
    let advice = if error.is_unauthorized() {
        format!("grant the user of cluster {cluster} the right to {verb} this topic")
    } else {
        format!("see the log of cluster {cluster}; check again")
    };
    Finding {
        class: Class::Peer,
        subject,
        seen: format!("cluster {cluster} refuses to describe it: {error}"),
        expected: format!("a user that may {verb} it"),
        advice,
    }
}

/// Whether the buffers suffice for the partitions there are (G6).
pub(super) fn buffers(plan: &Plan, survey: &Survey, files: &[FoundFile]) -> Option<Finding> {
    let topics =
        plan.sources.iter().flat_map(|source| source.topics.iter().map(move |t| (source, t)));
    let feeds = topics.enumerate().flat_map(|(number, (source, topic))| {
        let info = survey.topic(&source.from.key, &topic.upstream);
        (0..info.map_or(0, |info| info.partitions_count)).map(move |p| (number, p))
    });
    // What is refused at start is found without the clusters.
    let shards = u16::try_from(plan_shards(plan, files).ok()?.len()).ok()?;
    let short =
        budget::check(plan.daemon.max_buffered_bytes, shards, fullest(feeds, shards)).err()?;
    Some(Finding {
        class: Class::Other,
        subject: "daemon.max_buffered_bytes".to_owned(),
        seen: short.seen(),
        expected: short.expected(),
        advice: short.advice(),
    })
}
