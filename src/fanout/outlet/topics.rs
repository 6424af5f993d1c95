//! Topics: looked up when a batch for them is closed, or at the start; made when missing (A5, A9).

use super::{Ask, Notice, Outlet, Token, Wanted, recipe};
use crate::config::RequireDurable;
use crate::fanout::Failure;
use crate::fanout::breaker::Permit;
use crate::fanout::destinations::DestId;
use crate::fanout::ensure::{Outcome, TopicFacts, topic_options};
use crate::iggy_wire::Reply;
use crate::time::Millis;
use std::time::Duration;

impl Outlet {
    pub(super) fn next_ensure(&mut self, now: Millis) -> Option<Ask> {
        if self.lanes.is_draining() {
            return None;
        }
        let concurrent = self.plan.routing.admission.max_concurrent_destinations;
        let asked = self.wanted.values().filter(|wanted| wanted.asked).count();
        if asked >= usize::try_from(concurrent).unwrap_or(usize::MAX) {
            return None;
        }
        let may = |dest: &DestId| {
            matches!(self.table.at(*dest).breaker.permit(now), Permit::Yes | Permit::Probe)
        };
        let due = |(dest, wanted): &(&DestId, &mut Wanted)| {
            !wanted.asked && wanted.not_before <= now && may(dest)
        };
        let (dest, wanted) = self.wanted.iter_mut().find(due)?;
        wanted.asked = true;
        let dest = *dest;
        let record = self.table.at_mut(dest);
        if record.breaker.permit(now) == Permit::Probe {
            record.breaker.probe();
        }
        let (topic, suspect) = (record.topic.clone(), record.is_suspect());
        let recipe = recipe(&self.plan, &topic, self.catalogue.as_ref());
        let request = record.ensure.request(now, &recipe);
        Some(Ask { token: Token::Ensure(dest), request, suspect })
    }

    pub(super) fn ensured(
        &mut self,
        now: Millis,
        dest: DestId,
        answer: Result<Reply, Failure>,
        rng: &mut fastrand::Rng,
    ) {
        let Some(wanted) = self.wanted.get_mut(&dest).filter(|wanted| wanted.asked) else {
            return;
        };
        wanted.asked = false;
        let record = self.table.at_mut(dest);
        let topic = record.topic.clone();
        let recipe = recipe(&self.plan, &topic, self.catalogue.as_ref());
        match record.ensure.answer(now, &recipe, answer) {
            Outcome::Next => record.breaker.undecided(now),
            Outcome::Catalogue(known) => {
                record.breaker.undecided(now);
                let left_out = topic_options(&self.plan.routing.topic_defaults, &known).1;
                for text in left_out {
                    self.tell(format!("topics are made without {text}"));
                }
                self.catalogue = Some(known);
            }
            Outcome::Ready(facts, took) => {
                if let Some(took) = took {
                    self.created.add(took);
                    let partitions = facts.partitions;
                    let text = format!("made topic {topic} with {partitions} partitions");
                    self.notices.push(Notice::Done(text));
                }
                self.ready(now, dest, facts);
            }
            Outcome::Failed { why, counts } => self.ensure_failed(now, dest, why, counts, rng),
        }
    }

    fn ensure_failed(
        &mut self,
        now: Millis,
        dest: DestId,
        why: String,
        counts: bool,
        rng: &mut fastrand::Rng,
    ) {
        let record = self.table.at_mut(dest);
        record.counters.errors += 1;
        record.last_error = Some(why.clone().into());
        let opened = counts && record.breaker.failed(now);
        if !counts {
            record.breaker.undecided(now);
        }
        let wanted = self.wanted.entry(dest).or_default();
        wanted.failures = wanted.failures.saturating_add(1);
        let doubled = self.plan.retry_interval * (1 << (wanted.failures - 1).min(16));
        let wait = doubled.min(self.plan.max_retry_interval);
        let wait = if counts { wait } else { wait.min(Duration::from_secs(1)) };
        wanted.not_before = now + (wait - wait.mul_f64(rng.f64() / 4.0));
        self.breaker_moved(now, dest, opened, &why);
        if self.warm_until.is_none() && !self.lanes.waits_for(dest) {
            self.wanted.remove(&dest);
            self.start_over(dest);
        }
    }

    fn ready(&mut self, now: Millis, dest: DestId, facts: TopicFacts) {
        let record = self.table.at_mut(dest);
        let topic = record.topic.clone();
        let known = record.created_at.replace(facts.created_at);
        if known.is_some_and(|created_at| created_at != facts.created_at) {
            record.counters.lost_tails += 1;
            let text = format!("topic {topic} was made anew: what it had acked is gone");
            record.last_error = Some(text.clone().into());
            self.lost_tails.insert(dest, now);
            self.lanes.forget_offsets(dest);
            self.notices.push(Notice::Unusual(text));
        }
        let require = self.plan.require_durable;
        if let Some(why) = facts.not_durable.as_ref().filter(|_| require != RequireDurable::Off) {
            let text = format!("topic {topic} is not durable: {why}");
            self.tell(text.clone());
            if require == RequireDurable::Refuse {
                let record = self.table.at_mut(dest);
                record.last_error = Some(text.into());
                record.is_volatile = true;
                record.breaker.undecided(now);
                let wanted = self.wanted.entry(dest).or_default();
                wanted.not_before = now + self.plan.max_retry_interval;
                return;
            }
        }
        self.groups.split(dest);
        let record = self.table.at_mut(dest);
        record.facts = Some(facts);
        record.is_volatile = false;
        record.breaker.undecided(now);
        self.wanted.remove(&dest);
        self.lanes.resolved(now, &self.table, dest);
        let record = self.table.at_mut(dest);
        record.turn = record.turn.wrapping_add(1);
        self.settle_outside(now);
        self.start_over(dest);
    }
}
