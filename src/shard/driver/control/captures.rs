//! Captures on the control thread: where each runs, and orders about them that a shard answers.

use std::collections::BTreeMap;

use super::{Control, FeedHome};
use crate::batch::{FeedId, SourceKey};
use crate::config::Plan;
use crate::shard::driver::spills;
use crate::shard::event::{CaptureSpec, FromControl};
use crate::shard::order::{Abandon, Answer, Refused};
use crate::shard::placement::{first_capture, place};
use crate::shard::provision::condition;
use crate::shard::reason;
use crate::shard::saved::{CaptureStart, SavedCapture, capture_start};
use crate::shard::snapshot::{Condition, SourceFinding};
use crate::statefile::inspect::FoundFile;

/// Orders of one kind that wait for a shard, at most.
const WAITING: usize = 64;

/// A capture as the control thread sees it.
pub(super) struct Desk {
    pub key: SourceKey,
    /// Runs under this id, or stands with a condition.
    runs: Result<FeedId, Condition>,
}

impl Desk {
    pub fn finding(&self) -> Option<SourceFinding> {
        let condition = self.runs.as_ref().err()?.clone();
        Some(SourceFinding { source: self.key.clone(), topic: None, condition })
    }
}

/// Callers that wait for a shard's answer.
#[derive(Default)]
pub(super) struct Abandoning {
    last: u64,
    waiting: BTreeMap<u64, Box<dyn FnOnce(Answer) + Send>>,
}

impl Control {
    pub(super) fn start_captures(&self, plan: &Plan, found: &[FoundFile]) {
        if let Err(error) = spills::remove_all(self.state_dir.path()) {
            tracing::warn!(%error, "spill files of an earlier run cannot be removed");
        }
        for (number, capture) in (first_capture(plan)..).zip(&plan.captures) {
            self.recall_pause(&capture.key);
            let saved = match capture_start(capture, found) {
                CaptureStart::Ready(saved) => {
                    self.set_aside(&capture.key, &saved.set_aside).map(|()| saved)
                }
                CaptureStart::Broken(why) => Err(why),
            };
            let runs = match saved {
                Ok(saved) => {
                    let SavedCapture { entry: saved, carried, generation, .. } = *saved;
                    let mut feeds = self.feeds.borrow_mut();
                    let Ok(id) = u32::try_from(feeds.len()) else { return };
                    let shard = place(number, 0, self.shard_count());
                    feeds.push(FeedHome { mirror: None, shard });
                    self.room.borrow_mut().add(shard, &capture.key, self.clock.now());
                    let id = FeedId(id);
                    let plan = capture.clone();
                    let accept_gap = self.accept_gap;
                    let spec = CaptureSpec { id, plan, saved, carried, generation, accept_gap };
                    self.send(shard, FromControl::AddCapture(Box::new(spec)));
                    Ok(id)
                }
                Err(why) => Err(condition(reason::STATE_UNREADABLE, why, self.clock.now())),
            };
            self.captures.borrow_mut().push(Desk { key: capture.key.clone(), runs });
        }
    }

    /// Hands the order to the capture's shard; the caller hears its answer.
    pub(super) fn abandon(
        &self,
        key: &SourceKey,
        range: Abandon,
        reply: Box<dyn FnOnce(Answer) + Send>,
    ) {
        let captures = self.captures.borrow();
        let Some(desk) = captures.iter().find(|desk| desk.key == *key) else {
            let why = format!("source {key:?} is a mirror; only a capture can abandon a batch");
            return reply(Err(Refused::Unsuited(why)));
        };
        let Ok(feed) = &desk.runs else {
            return reply(Err(Refused::Conflict("its state cannot be read".into())));
        };
        let mut abandoning = self.abandoning.borrow_mut();
        let Some(FeedHome { shard, .. }) = self.home(*feed) else { return };
        if abandoning.waiting.len() >= WAITING {
            return reply(Err(Refused::Conflict("too many orders wait".into())));
        }
        abandoning.last += 1;
        let order = abandoning.last;
        abandoning.waiting.insert(order, reply);
        self.send(shard, FromControl::Abandon { feed: *feed, order, range });
    }

    pub(super) fn abandoned(&self, order: u64, answer: Answer) {
        let reply = self.abandoning.borrow_mut().waiting.remove(&order);
        if let Some(reply) = reply {
            reply(answer);
        }
    }
}
