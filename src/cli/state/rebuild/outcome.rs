//! What follows for one partition from what was found and what is saved, for people and for
//! programs. No I/O.

use serde_json::{Value, json};

use super::look::{Answer, Looked};
use crate::batch::{Gap, OffsetMap, Repeat, TopicName};
use crate::cli::report::table;
use crate::config::TopicPlan;
use crate::shard::rebuild::entry::{Accepted, Identity, accepted, found, missing};
use crate::shard::rebuild::matching::Place;
use crate::shard::rebuild::{Refusal, Verdict};
use crate::statefile::FeedState;

/// One line of the report.
#[derive(Debug)]
pub(super) struct Outcome {
    pub upstream: TopicName,
    pub downstream: TopicName,
    pub partition: Option<u32>,
    pub kind: Kind,
    /// Where the destination ends, if that was seen.
    pub end: Option<u64>,
    /// Saved position, if there is one.
    pub saved: Option<u64>,
    /// What to save; `None` changes nothing.
    pub entry: Option<FeedState>,
    /// Messages compared, and those that were to be.
    compared: Option<(u64, u64)>,
    gap: Option<Gap>,
    repeats: Option<Repeat>,
    /// What else there is to say.
    said: String,
    /// What to do about it.
    advice: String,
    /// Upstream offsets that could be meant, each the next one to copy.
    candidates: Vec<u64>,
}

/// How a partition came off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Its place was found and differs from what is saved.
    Found,
    /// Its place was found and is saved already.
    Unchanged,
    /// The operator named its place.
    Accepted,
    /// Nothing was ever copied there.
    Empty,
    /// It keeps what is saved.
    Refused,
}

impl Kind {
    fn as_str(self) -> &'static str {
        match self {
            Kind::Found => "found",
            Kind::Unchanged => "unchanged",
            Kind::Accepted => "accepted",
            Kind::Empty => "empty",
            Kind::Refused => "refused",
        }
    }
}

impl Outcome {
    /// `saved`: the newest entry of that partition. `now`: microseconds since the Unix epoch.
    pub(super) fn of(
        looked: Looked,
        topic: &TopicPlan,
        saved: Option<&FeedState>,
        now: u64,
    ) -> Outcome {
        let mut outcome = Outcome {
            upstream: topic.upstream.clone(),
            downstream: topic.downstream.clone(),
            partition: looked.partition,
            kind: Kind::Refused,
            end: None,
            saved: saved.map(|saved| saved.position),
            entry: None,
            compared: None,
            gap: None,
            repeats: None,
            said: String::new(),
            advice: String::new(),
            candidates: Vec::new(),
        };
        match looked.answer {
            Answer::Missing(why, to_do) => {
                outcome.said = why;
                outcome.advice = to_do.to_owned();
            }
            Answer::Verdict(identity, verdict) => outcome.judge(&identity, verdict, saved, now),
        }
        outcome
    }

    fn judge(
        &mut self,
        identity: &Identity,
        verdict: Verdict,
        saved: Option<&FeedState>,
        now: u64,
    ) {
        match verdict {
            Verdict::Empty => self.empty(saved),
            Verdict::Found { end, place, tail, last } => {
                self.end = Some(end);
                self.compared = Some((place.compared, tail));
                if let Some(missing) = missing(identity, saved, end, place.offset + 1) {
                    self.said = format!(
                        "the last messages are those up to upstream offset {}, and {missing} that \
                         were copied before them are not there any more",
                        place.offset
                    );
                    self.advice = format!(
                        "fill in what is missing by hand, or accept that it is gone with \
                         --accept-tail {}",
                        place.offset + 1
                    );
                    return;
                }
                self.entry = found(identity, saved, end, place, last);
                self.kind = match self.entry {
                    Some(_) => Kind::Found,
                    None => Kind::Unchanged,
                };
                self.said = thin(place, tail);
            }
            Verdict::Accepted { end, position } => {
                let Accepted { entry, gap, repeats } =
                    accepted(identity, saved, end, position, now);
                self.end = Some(end);
                (self.gap, self.repeats, self.entry) = (gap, repeats, Some(entry));
                self.kind = Kind::Accepted;
                self.said = match saved {
                    None => "no saved position to compare with".to_owned(),
                    Some(saved) if saved.upstream_created_at != identity.upstream_created_at => {
                        "the saved position belongs to an upstream topic that is no more".to_owned()
                    }
                    Some(_) => skipped(gap, repeats),
                };
            }
            Verdict::Refused(refusal) => {
                self.said = refusal.to_string();
                self.advice = refusal.advice();
                self.end = end_in(&refusal);
                self.candidates = candidates(&refusal);
            }
        }
    }

    fn empty(&mut self, saved: Option<&FeedState>) {
        self.end = Some(0);
        let known = saved.map_or(0, |saved| {
            let map = OffsetMap::from_pieces(saved.deltas.clone());
            map.downstream(saved.position).unwrap_or(0)
        });
        if known > 0 {
            self.said = format!("the destination is empty; saved is that it ends at {known}");
            self.advice = "restore it, or set on_destination_lost; or name the next upstream \
                           offset to copy with --accept-tail"
                .to_owned();
            return;
        }
        self.kind = Kind::Empty;
        self.said =
            "nothing was copied yet: a start begins where the configuration says".to_owned();
    }

    /// Whether the command as a whole has something to complain of.
    pub(super) fn is_refused(&self) -> bool {
        self.kind == Kind::Refused
    }

    /// Neither found nor saved in a file that can be read.
    pub(super) fn begins_anew(&self) -> bool {
        self.is_refused() && self.saved.is_none()
    }

    /// Topic and partition, for people.
    pub(super) fn name(&self) -> String {
        let topic = if self.upstream == self.downstream {
            self.upstream.to_string()
        } else {
            format!("{} → {}", self.upstream, self.downstream)
        };
        match self.partition {
            Some(partition) => format!("{topic} partition {partition}"),
            None => topic,
        }
    }

    /// The next upstream offset to copy, where that is known now.
    fn position(&self) -> Option<u64> {
        let confirmed = self.saved.filter(|_| self.kind == Kind::Unchanged);
        self.entry.as_ref().map(|entry| entry.position).or(confirmed)
    }

    fn delta(&self) -> Option<i64> {
        self.entry.as_ref()?.deltas.last().map(|piece| piece.delta)
    }

    fn row(&self) -> Vec<String> {
        fn cell(value: Option<impl ToString>) -> String {
            value.map_or_else(|| "-".to_owned(), |value| value.to_string())
        }
        vec![
            cell(self.partition),
            cell(self.end),
            cell(self.saved),
            cell(self.position()),
            cell(self.delta()),
            cell(self.compared.map(|(compared, _)| compared)),
            self.kind.as_str().to_owned(),
            format!("{}", self.upstream),
        ]
    }

    /// For programs.
    pub(super) fn json(&self) -> Value {
        let topic = |name: &TopicName| json!({"stream": *name.stream, "topic": *name.topic});
        let gap = self.gap.map(|gap| span(gap.first, gap.last));
        json!({
            "upstream": topic(&self.upstream),
            "downstream": topic(&self.downstream),
            "partition": self.partition,
            "result": self.kind.as_str(),
            "destination_end": self.end,
            "saved_position": self.saved,
            "position": self.position(),
            "delta": self.delta(),
            "epoch": self.entry.as_ref().map(|entry| entry.epoch),
            "compared": self.compared.map(|(compared, _)| compared),
            "gap": gap,
            "repeats": self.repeats.map(|it| span(it.first, it.last)),
            "detail": self.said,
            "advice": self.advice,
            "candidates": self.candidates,
        })
    }
}

/// For people: a table, and what it has no room for.
pub(super) fn text(outcomes: &[Outcome]) -> String {
    let head = ["partition", "end", "saved", "position", "delta", "compared", "result", "topic"];
    let rows: Vec<_> = outcomes.iter().map(Outcome::row).collect();
    let mut text = table(&head, &rows);
    for outcome in outcomes.iter().filter(|outcome| !outcome.said.is_empty()) {
        text.push_str(&format!("{}: {}\n", outcome.name(), outcome.said));
        if !outcome.advice.is_empty() {
            text.push_str(&format!("  to do: {}\n", outcome.advice));
        }
    }
    text
}

fn span(first: u64, last: u64) -> Value {
    json!({"first": first, "last": last, "messages": last - first + 1})
}

/// Fewer messages than usual decided.
fn thin(place: Place, tail: u64) -> String {
    use crate::shard::rebuild::TAIL_MESSAGES;
    let compared = place.compared;
    if compared < tail {
        let from = place.offset + 1 - compared;
        format!(
            "decided by {compared} messages instead of {tail}: upstream has none below offset \
             {from}"
        )
    } else if compared < TAIL_MESSAGES {
        format!("decided by {compared} messages: the destination has no more")
    } else {
        String::new()
    }
}

fn skipped(gap: Option<Gap>, repeats: Option<Repeat>) -> String {
    match (gap, repeats) {
        (Some(gap), _) => format!(
            "upstream offsets {} to {} ({} messages) will not be copied: a gap record",
            gap.first,
            gap.last,
            gap.len()
        ),
        (None, Some(it)) => format!(
            "upstream offsets {} to {} ({} messages) will be copied once more: a repeat record",
            it.first,
            it.last,
            it.len()
        ),
        (None, None) => "nothing is skipped or copied twice".to_owned(),
    }
}

fn end_in(refusal: &Refusal) -> Option<u64> {
    match refusal {
        Refusal::Nowhere { end, .. }
        | Refusal::TwoPlaces { end, .. }
        | Refusal::TooFew { end, .. } => Some(*end),
        Refusal::BehindEnd { .. } | Refusal::NoAnswer { .. } => None,
    }
}

fn candidates(refusal: &Refusal) -> Vec<u64> {
    match refusal {
        Refusal::Nowhere { nearest, .. } => {
            nearest.iter().map(|nearest| nearest.offset + 1).collect()
        }
        Refusal::TwoPlaces { first, second, .. } => vec![first.offset + 1, second.offset + 1],
        Refusal::TooFew { place, .. } => vec![place.offset + 1],
        Refusal::BehindEnd { .. } | Refusal::NoAnswer { .. } => Vec::new(),
    }
}
