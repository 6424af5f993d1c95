//! What database and destination cluster said about a capture, in the words of a report: no I/O.

use std::collections::BTreeSet;

use super::database::Database;
use super::judge::refused;
use super::survey::{Answers, Look, Survey};
use crate::batch::TopicName;
use crate::cli::report::{Class, Finding};
use crate::config::{CapturePlan, RequireDurable};
use crate::fanout::ensure::{durability_problem, topic_options};
use crate::iggy_wire::TopicInfo;
use crate::ingest::postgres_cdc::setup::{Finding as Found, Level};
use crate::shard::event::{PgConnError, TlsFault};

/// Everything about one capture. `running`: a daemon moves its position while we look.
pub(super) fn findings(
    plan: &CapturePlan,
    database: Option<&Database>,
    survey: &Survey,
    running: bool,
) -> Vec<Finding> {
    let mut findings = match database {
        None => Vec::new(),
        Some(Database::Judged(found)) => {
            found.iter().filter_map(|found| judged(plan, found, running)).collect()
        }
        Some(Database::Unusable(cause)) => vec![unusable(plan, cause)],
        Some(Database::BrokenOff(why)) => vec![Finding {
            class: Class::Peer,
            subject: format!("sources.{}.connection", plan.key),
            seen: format!("{} logged us in, then: {why}", plan.postgres.redacted()),
            expected: "an answer to every question".to_owned(),
            advice: "check again; if it stays, see the server's log and load".to_owned(),
        }],
    };
    if let Some(answers) = survey.reached(&plan.to.key) {
        findings.extend(Destinations { plan, answers }.findings());
    }
    findings
}

fn judged(plan: &CapturePlan, found: &Found, running: bool) -> Option<Finding> {
    // The position of a running capture is read from its file, not from here.
    if running && found.code == "slot_without_position" {
        return None;
    }
    let class = match found.level {
        Level::Info => Class::Note,
        Level::Warning => Class::Warning,
        Level::Wait | Level::Refusal => Class::Other,
    };
    Some(Finding {
        class,
        subject: format!("sources.{}: {}", plan.key, found.code),
        seen: found.found.clone(),
        expected: found.wanted.clone(),
        advice: found.fix.clone(),
    })
}

fn unusable(plan: &CapturePlan, cause: &PgConnError) -> Finding {
    let (expected, advice) = match cause {
        PgConnError::Resolve { .. } => (
            "a name that this machine can resolve",
            "correct the host in connection, or the machine's name service",
        ),
        PgConnError::Login { error, .. } => ("a login that is accepted", error.advice()),
        PgConnError::Tls { fault, .. } => ("a TLS session as sslmode asks for it", tls(*fault)),
        PgConnError::Unsuitable { .. } => (
            "a server of the kind that target_session_attrs asks for",
            "name the primary in connection, or change target_session_attrs",
        ),
        PgConnError::Protocol(_) => (
            "a server that speaks the Postgres protocol",
            "check host and port, and whether a proxy in between speaks this protocol",
        ),
        _ => (
            "a server that accepts a connection and a login within connect_timeout",
            "start the database or correct host and port in connection; check firewalls in \
             between and the server's listen_addresses",
        ),
    };
    Finding {
        class: Class::Peer,
        subject: format!("sources.{}.connection", plan.key),
        seen: cause.to_string(),
        expected: expected.to_owned(),
        advice: advice.to_owned(),
    }
}

fn tls(fault: TlsFault) -> &'static str {
    match fault {
        TlsFault::NotOffered => "turn on TLS at the server (ssl = on), or choose another sslmode",
        TlsFault::Setup => {
            "correct sslcert, sslkey and sslrootcert: files in PEM, the key not \
                            encrypted"
        }
        TlsFault::WrongAuthority => "name the authority of the server's certificate in sslrootcert",
        TlsFault::WrongName => {
            "connect by the name that the certificate has, or give the server \
                                a certificate for this one"
        }
        TlsFault::WrongTime => "renew the server's certificate; compare the clocks",
        TlsFault::BadCertificate => "give the server another certificate",
        TlsFault::RefusedByServer => {
            "see the server's log; it may want a certificate of ours \
                                      (sslcert, sslkey)"
        }
        TlsFault::Handshake => "see the server's log; it may have TLS below version 1.2 only",
    }
}

/// The destinations that the configuration names in full.
struct Destinations<'a> {
    plan: &'a CapturePlan,
    answers: &'a Answers,
}

impl Destinations<'_> {
    fn findings(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        let mut missing = false;
        for topic in self.plan.routing.literals() {
            match self.answers.topics.get(&topic) {
                Some(Look::Found(info)) => findings.extend(self.durability(&topic, info)),
                Some(Look::Missing) => {
                    missing = true;
                    findings.push(self.missing(&topic));
                }
                Some(Look::Refused(error)) => {
                    let cluster = &self.plan.to.key;
                    findings.push(refused(self.subject(&topic), cluster, *error, "write to"));
                }
                None => {}
            }
        }
        if missing && self.plan.auto_create {
            findings.extend(self.options());
        }
        findings
    }

    /// A9: whether an ack of this topic is a promise.
    fn durability(&self, topic: &TopicName, info: &TopicInfo) -> Option<Finding> {
        let (class, advice) = match self.plan.require_durable {
            RequireDurable::Off => return None,
            RequireDurable::Warn => (
                Class::Warning,
                "make it anew with durability = \"persisted\", or set require_durable = \"off\" if \
                 that loss is acceptable",
            ),
            RequireDurable::Refuse => (
                Class::Other,
                "make it anew with durability = \"persisted\"; until then nothing is sent there \
                 (require_durable = \"refuse\")",
            ),
        };
        Some(Finding {
            class,
            subject: self.subject(topic),
            seen: durability_problem(info)?,
            expected: "a topic whose acks mean that the message is on disk".to_owned(),
            advice: advice.to_owned(),
        })
    }

    fn missing(&self, topic: &TopicName) -> Finding {
        let seen = format!("does not exist on cluster {}", self.plan.to.key);
        if self.plan.auto_create {
            let count = self.plan.routing.topic_defaults.partitions_count;
            let seen = format!("{seen}; it will be created, partitions: {count} (auto_create)");
            return Finding::note(self.subject(topic), seen);
        }
        Finding {
            class: Class::Other,
            subject: self.subject(topic),
            seen,
            expected: "a topic to write to, since auto_create = false".to_owned(),
            advice: "create it, or set auto_create = true; until then its messages wait".to_owned(),
        }
    }

    /// What of `topic_defaults` the cluster cannot do.
    fn options(&self) -> Option<Finding> {
        let none = BTreeSet::new();
        let known = self.answers.options.as_ref().unwrap_or(&none);
        let (_, left_out) = topic_options(&self.plan.routing.topic_defaults, known);
        let seen = format!("cluster {} cannot do all of it: {}", self.plan.to.key, {
            left_out.join("; ")
        });
        (!left_out.is_empty()).then(|| Finding {
            class: Class::Warning,
            subject: format!("sources.{}.routing.topic_defaults", self.plan.key),
            seen,
            expected: "a cluster that knows these options".to_owned(),
            advice: "nothing if that will do, topics are created without them; else create the \
                     topics by hand"
                .to_owned(),
        })
    }

    fn subject(&self, topic: &TopicName) -> String {
        format!("sources.{}: {topic}", self.plan.key)
    }
}
