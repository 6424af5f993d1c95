//! What operators ask of running sources, carried out (T2).
//!
//! A pause is on disk before the shards hear of it, so that a crash in between cannot forget it.

use std::collections::BTreeMap;

use super::Control;
use super::captures::Desk;
use crate::batch::SourceKey;
use crate::shard::driver::pauses::Pauses;
use crate::shard::event::FromControl;
use crate::shard::mailbox::ToShard;
use crate::shard::order::{Action, Answer, Refused};
use crate::shard::provision::condition;
use crate::shard::reason;
use crate::shard::snapshot::{Condition, SourceFinding};

/// Sources that rest, each with what is odd about its pause.
pub(super) type Resting = BTreeMap<SourceKey, Option<Condition>>;

impl Control {
    /// A source that was paused before this start rests from the beginning. So does one of which
    /// that cannot be seen: going on would overrule the operator, resting only waits for him.
    pub(super) fn recall_pause(&self, source: &SourceKey) {
        let pauses = self.pauses();
        match pauses.is_paused(source) {
            Ok(false) => {}
            Ok(true) => {
                tracing::info!(%source, "paused since before this start");
                self.tell_pause(source, true, None);
            }
            Err(error) => {
                let marker = pauses.marker(source);
                let detail = format!("{}: {error}", marker.display());
                tracing::warn!(%source, detail, "cannot see whether it is paused, so it rests");
                let condition = condition(reason::PAUSE_UNKNOWN, detail, self.clock.now());
                self.tell_pause(source, true, Some(condition));
            }
        }
    }

    /// What is odd about pauses.
    pub(super) fn pause_findings(&self) -> Vec<SourceFinding> {
        let resting = self.resting.borrow();
        let odd = resting.iter().filter_map(|(source, odd)| Some((source, odd.as_ref()?)));
        let finding = |(source, condition): (&SourceKey, &Condition)| SourceFinding {
            source: source.clone(),
            topic: None,
            condition: condition.clone(),
        };
        odd.map(finding).collect()
    }

    fn pauses(&self) -> Pauses<'_> {
        Pauses::new(self.state_dir.path(), &self.faults)
    }

    fn tell_pause(&self, source: &SourceKey, paused: bool, odd: Option<Condition>) {
        match paused {
            true => drop(self.resting.borrow_mut().insert(source.clone(), odd)),
            false => drop(self.resting.borrow_mut().remove(source)),
        }
        let letter = || FromControl::Pause { source: source.clone(), paused };
        self.to_all(|| ToShard::Control(letter()));
        for mirror in self.sources.borrow().iter().filter(|mirror| mirror.plan.key == *source) {
            mirror.rest(self.clock.now(), paused);
        }
        self.changed();
    }

    /// Why the source does not run and no order can change that: its state cannot be read.
    fn unreadable(&self, key: &SourceKey) -> Option<String> {
        let sources = self.sources.borrow();
        let mirrors = sources.iter().filter(|source| source.plan.key == *key);
        let captures = self.captures.borrow();
        let captures = captures.iter().filter(|desk| desk.key == *key);
        let mut findings = mirrors.flat_map(|source| source.findings());
        let finding = findings
            .find(|finding| finding.condition.reason == reason::STATE_UNREADABLE.code)
            .or_else(|| captures.filter_map(Desk::finding).next())?;
        let Condition { detail, advice, .. } = finding.condition;
        Some(format!("its state cannot be read: {detail}; {advice}"))
    }

    /// Carries out what an operator asks (T2).
    pub(super) fn order(
        &self,
        key: &SourceKey,
        action: Action,
        reply: Box<dyn FnOnce(Answer) + Send>,
    ) {
        let is_mirror = self.sources.borrow().iter().any(|source| source.plan.key == *key);
        if !is_mirror && !self.captures.borrow().iter().any(|desk| desk.key == *key) {
            return reply(Err(Refused::Unknown(key.to_string())));
        }
        if self.draining.get() {
            return reply(Err(Refused::Conflict("the daemon is stopping".into())));
        }
        tracing::info!(source = %key, ?action, "ordered");
        match action {
            Action::Pause => reply(self.set_paused(key, true)),
            Action::Resume => reply(self.set_paused(key, false)),
            Action::Restart => reply(self.restart(key)),
            Action::Abandon(range) => self.abandon(key, range, reply),
        }
    }

    fn restart(&self, key: &SourceKey) -> Answer {
        if let Some(why) = self.unreadable(key) {
            let why = format!("{why}; it is read when the daemon starts, so restart that then");
            return Err(Refused::Conflict(why));
        }
        self.to_all(|| ToShard::Control(FromControl::Restart { source: key.clone() }));
        for source in self.sources.borrow().iter().filter(|source| source.plan.key == *key) {
            source.begin_again(self.clock.now());
        }
        self.changed.notify();
        Ok("restarting from the saved positions".into())
    }

    fn set_paused(&self, key: &SourceKey, paused: bool) -> Answer {
        let set = self.pauses().set_paused(key, paused);
        set.map_err(|error| Refused::Failed(format!("state_dir cannot remember it: {error}")))?;
        self.tell_pause(key, paused, None);
        Ok(match (paused, self.unreadable(key)) {
            (true, _) => "paused, also after a restart".into(),
            (false, None) => "resumed".into(),
            (false, Some(why)) => format!("resumed, but it does not run: {why}"),
        })
    }
}
