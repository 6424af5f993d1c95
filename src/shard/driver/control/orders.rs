//! What operators ask of running sources, carried out (T2).
//!
//! A pause is on disk before the shards hear of it, so that a crash in between cannot forget it.

use super::Control;
use crate::batch::SourceKey;
use crate::shard::driver::clock::wall;
use crate::shard::driver::pauses;
use crate::shard::event::FromControl;
use crate::shard::mailbox::ToShard;
use crate::shard::order::{Action, Answer, Refused};

impl Control {
    /// A source that was paused before this start rests from the beginning.
    pub(super) fn recall_pause(&self, source: &SourceKey) {
        match pauses::is_paused(self.state_dir.path(), source) {
            Ok(false) => {}
            Ok(true) => {
                tracing::info!(%source, "paused since before this start");
                self.tell_pause(source, true);
            }
            Err(error) => tracing::warn!(%source, %error, "cannot see whether it is paused"),
        }
    }

    fn tell_pause(&self, source: &SourceKey, paused: bool) {
        let letter = || FromControl::Pause { source: source.clone(), paused };
        self.to_all(|| ToShard::Control(letter()));
        self.changed.notify();
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
            Action::Restart => {
                self.to_all(|| ToShard::Control(FromControl::Restart { source: key.clone() }));
                self.changed.notify();
                reply(Ok("restarting from the saved positions".into()));
            }
            Action::Abandon(range) => self.abandon(key, range, reply),
        }
    }

    fn set_paused(&self, key: &SourceKey, paused: bool) -> Answer {
        let set = pauses::set_paused(self.state_dir.path(), key, paused, wall());
        set.map_err(|error| Refused::Failed(format!("state_dir cannot remember it: {error}")))?;
        self.tell_pause(key, paused);
        Ok(if paused { "paused, also after a restart" } else { "resumed" }.into())
    }
}
