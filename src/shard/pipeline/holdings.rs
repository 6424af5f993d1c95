//! What a feed holds of the shard's memory, and how it lets go (G6): buffers of its polls, loans
//! from the reserve, the daemon-wide slot.
//!
//! A feed that goes back to resume has requests on their way whose replies still arrive. What
//! they may fill stays in the books until the last of them has ended, and only then the feed
//! begins anew; so the books never say less than what is in memory.

use super::budget::LARGE_SLOT;
use super::compare::COMPARE_BYTES;
use super::conns::Purpose;
use super::feed::{Ctx, Feed, Stage};
use super::reserve::Use;
use super::resume::TOPIC_REPLY;
use crate::shard::event::{Command, ToControl};

/// Slack on top of the compared bytes for headers of records.
const COMPARE_SLACK: u64 = 64 * 1024;
/// Largest reply of a comparison, and what a resume borrows: it asks one thing at a time,
/// both sides for a topic's identity and their nodes, or [`ASK_AT_ONCE`] nodes.
pub(super) const QUESTION_BYTES: u64 = COMPARE_BYTES + COMPARE_SLACK;

/// Nodes that a resume asks at once where a partition ends, each with a reply of a topic's size.
pub(super) const ASK_AT_ONCE: usize = 4;

const _: () = assert!(4 * TOPIC_REPLY <= QUESTION_BYTES);
const _: () = assert!(ASK_AT_ONCE as u64 * TOPIC_REPLY <= QUESTION_BYTES);

/// Whether the feed holds the daemon-wide slot for one large message (G6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LargeSlot {
    None,
    Wanted,
    /// Wanted no longer. It will be granted all the same, and goes back then: a letter that
    /// takes the wish back could cross the one that grants it.
    Withdrawn,
    Held,
}

impl Feed {
    /// Room for the replies of a resume. The holder of the daemon-wide slot has it there.
    pub(super) fn borrow_for_resume(&mut self, ctx: &mut Ctx<'_>) -> bool {
        self.large == LargeSlot::Held || self.borrow_for_question(ctx, QUESTION_BYTES)
    }

    /// Room for the reply to a question beside polls.
    pub(super) fn borrow_for_question(&mut self, ctx: &mut Ctx<'_>, bytes: u64) -> bool {
        ctx.budget.reserve.borrow(self.spec.id, Use::Question, bytes)
    }

    /// The questions are answered, or will not be asked.
    pub(super) fn return_question(&mut self, ctx: &mut Ctx<'_>) {
        ctx.budget.reserve.give_back(self.spec.id, Use::Question);
    }

    /// Largest reply of a comparison: a part of the reserve, or the daemon-wide slot.
    pub(super) fn compare_limit(&self) -> u64 {
        if self.large == LargeSlot::Held { LARGE_SLOT } else { QUESTION_BYTES }
    }

    /// A request of this feed has ended, in this round or an earlier one.
    pub(super) fn request_ended(&mut self, ctx: &mut Ctx<'_>, purpose: Purpose) {
        assert!(self.outstanding > 0, "more replies than requests: {purpose:?}");
        self.outstanding -= 1;
        match purpose {
            Purpose::Identity | Purpose::Earliest => self.return_question(ctx),
            // Asked beside polls; a resume keeps its loan.
            Purpose::UpstreamRoster if matches!(self.stage, Stage::Streaming) => {
                self.identity_asked = false;
                self.return_question(ctx);
            }
            _ => {}
        }
    }

    /// Forgets what is queued and asked. A send that is still outstanding becomes an unknown
    /// outcome: its connection ends, and the destination is looked at after `settle` (G5, M6).
    pub fn drop_buffers(&mut self, ctx: &mut Ctx<'_>) {
        if self.writer.is_waiting() {
            self.unknown(ctx, false);
        }
        self.writer.clear_queue();
        self.reader.reconnected();
        self.identity_asked = false;
        self.jump = None;
        self.gap_to = None;
        self.leaving = true;
        self.let_go(ctx);
    }

    /// Gives back what was dropped, once nothing is on its way any more: no reply, and no send
    /// that a closing connection still writes.
    pub(super) fn let_go(&mut self, ctx: &mut Ctx<'_>) {
        if !self.leaving || self.outstanding > 0 || ctx.conns.is_closing(self.down) {
            return;
        }
        self.leaving = false;
        ctx.budget.release(&mut self.holding);
        self.return_question(ctx);
        self.release_slot(ctx);
    }

    /// Asks for the daemon-wide slot (G6).
    pub(super) fn want_slot(&mut self, ctx: &mut Ctx<'_>) {
        match self.large {
            LargeSlot::None => {
                let feed = self.spec.id;
                ctx.out.push(Command::Control(ToControl::LargeSlotWanted { feed }));
                self.large = LargeSlot::Wanted;
            }
            LargeSlot::Withdrawn => self.large = LargeSlot::Wanted,
            LargeSlot::Wanted | LargeSlot::Held => {}
        }
    }

    /// The daemon-wide slot is this feed's, if it still has a use for it.
    pub fn granted(&mut self, ctx: &mut Ctx<'_>) {
        let waits = matches!(self.stage, Stage::WaitingSlot)
            || (matches!(self.stage, Stage::Streaming) && ctx.conns.is_up(self.up));
        let is_wanted = self.large == LargeSlot::Wanted && waits && !self.draining;
        let is_empty = self.holding.total() == 0 && !self.leaving;
        self.large = LargeSlot::Held;
        if !is_wanted || !is_empty {
            return self.release_slot(ctx);
        }
        ctx.budget.hold_slot(&mut self.holding, Some(u64::MAX));
        if matches!(self.stage, Stage::WaitingSlot) {
            self.stage = Stage::Waiting;
        }
    }

    /// Gives the daemon-wide slot back, or does not want it any more.
    pub fn release_slot(&mut self, ctx: &mut Ctx<'_>) {
        match self.large {
            LargeSlot::Held => {
                let feed = self.spec.id;
                ctx.budget.hold_slot(&mut self.holding, None);
                ctx.out.push(Command::Control(ToControl::LargeSlotReleased { feed }));
                self.large = LargeSlot::None;
            }
            LargeSlot::Wanted => self.large = LargeSlot::Withdrawn,
            LargeSlot::None | LargeSlot::Withdrawn => {}
        }
    }

    /// The slot goes back once nothing comes through it any more and what came has left the
    /// buffers.
    pub(super) fn release_empty_slot(&mut self, ctx: &mut Ctx<'_>) {
        let is_empty = self.holding.total() == 0 && !self.reader.is_waiting();
        if self.large == LargeSlot::Held && is_empty {
            self.release_slot(ctx);
        }
    }
}
