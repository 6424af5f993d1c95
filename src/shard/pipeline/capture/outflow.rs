//! Requests to the destination cluster: which connection takes them, what their answers mean.

use super::{Capture, Stage};
use crate::fanout::Failure as Trouble;
use crate::fanout::outlet::{Notice, Token};
use crate::iggy_wire::Reply;
use crate::ingest::iggy::RESERVE_LEAST;
use crate::shard::event::{ConnId, Failure};
use crate::shard::pipeline::conns::{Purpose, Waiter};
use crate::shard::pipeline::feed::Ctx;
use crate::shard::pipeline::resume::TOPIC_REPLY;

/// Connections to the destination cluster. The last is for destinations that failed lately: a
/// send that times out there costs no other destination its connection.
pub(super) const CONNECTIONS: usize = 5;

impl Capture {
    /// Makes every request that may go out now.
    pub(super) fn send_on(&mut self, ctx: &mut Ctx<'_>) {
        self.sink.outlet.is_warm(ctx.now.mono);
        self.tell_notices(ctx);
        let is_up = self.conn(ctx, 0, false).is_some();
        self.unreachable.take_if(|_| is_up);
        let resting = matches!(self.stage, Stage::Paused | Stage::Closing { .. });
        if resting || ctx.lane.failing() || !is_up {
            return;
        }
        while let Some(ask) = self.sink.outlet.next(ctx.now.mono) {
            let (number, limit) = match ask.token {
                Token::Send(lane) => (lane.number(), RESERVE_LEAST),
                Token::Ensure(dest) => (dest.0, TOPIC_REPLY),
            };
            let Some(conn) = self.conn(ctx, number, ask.suspect) else { return };
            let purpose = Purpose::Capture(ask.token);
            let waiter = Waiter { feed: self.spec.id, round: 0, purpose };
            ctx.conns.request(conn, ask.request, limit, waiter, ctx.out);
        }
    }

    /// The connection for a lane or destination: its own, or any that is up.
    fn conn(&self, ctx: &Ctx<'_>, number: u32, suspect: bool) -> Option<ConnId> {
        let (last, plain) = self.conns.split_last()?;
        let own = match suspect {
            true => *last,
            false => *plain.get(number as usize % plain.len().max(1))?,
        };
        let any = || self.conns.iter().copied().find(|conn| ctx.conns.is_up(*conn));
        Some(own).filter(|conn| ctx.conns.is_up(*conn)).or_else(any)
    }

    /// The answer to a request of [`Capture::send_on`].
    pub fn replied(&mut self, ctx: &mut Ctx<'_>, token: Token, answer: Result<Reply, Failure>) {
        match (token, &answer) {
            (Token::Send(_), Ok(_)) => self.progress.acked_at = ctx.now.mono,
            // A lost connection is counted where it was lost.
            (_, Ok(_) | Err(Failure::Lost)) => {}
            (_, Err(_)) => {
                self.progress.failed();
                self.entry.counters.errors += 1;
            }
        }
        let answer = answer.map_err(trouble);
        let before = self.sink.outlet.acked_bytes();
        self.sink.outlet.answer(ctx.now.mono, token, answer, ctx.rng);
        self.entry.counters.bytes += self.sink.outlet.acked_bytes() - before;
        self.tell_notices(ctx);
    }

    fn tell_notices(&mut self, ctx: &mut Ctx<'_>) {
        for notice in self.sink.outlet.take_notices() {
            match notice {
                Notice::Done(text) => self.note(ctx, false, text),
                Notice::Unusual(text) => {
                    self.last_error.clone_from(&text);
                    self.note(ctx, true, text);
                }
            }
        }
    }
}

fn trouble(failure: Failure) -> Trouble {
    match failure {
        Failure::Refused(code) => Trouble::Refused(code),
        Failure::TimedOut => Trouble::TimedOut,
        Failure::Lost => Trouble::Lost,
        Failure::TooLarge { size } => Trouble::Malformed(format!("a reply of {size} bytes")),
        Failure::Malformed(why) => Trouble::Malformed(why),
    }
}
