//! Requests to the destination cluster: which connection takes them, what their answers mean.

use super::guide::Walker;
use super::{Capture, Stage};
use crate::fanout::Failure as Trouble;
use crate::fanout::outlet::{Ask, Notice, Token};
use crate::iggy_wire::{Reply, Request, ServerError};
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
        self.vet(ctx);
        let is_up = self.any_up(ctx).is_some();
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
            let led = self.led(ctx, &ask);
            let own = |conns: &[ConnId]| own(ctx, conns, number, ask.suspect);
            let conn = led.and_then(own).or_else(|| own(&self.conns)).or_else(|| self.any_up(ctx));
            let Some(conn) = conn else { return };
            let purpose = Purpose::Capture(ask.token);
            let waiter = Waiter { feed: self.spec.id, round: 0, purpose };
            ctx.conns.request(conn, ask.request, limit, waiter, ctx.out);
        }
    }

    /// The connections to the node that a request was led to. Looking is for the configured ones:
    /// what they show is what counts.
    fn led(&self, ctx: &Ctx<'_>, ask: &Ask) -> Option<&[ConnId]> {
        let conns = self.guides.conns(Walker::of(ask.token))?;
        let is_trusted = conns.iter().all(|conn| self.guides.trusts(ctx, *conn));
        let goes = match (ask.token, &ask.request) {
            (Token::Send(_), _) => is_trusted,
            (_, Request::Topic { .. }) => false,
            // Where nothing of ours is known, nothing tells clusters apart.
            _ => is_trusted || self.sink.outlet.identity(None).is_none(),
        };
        goes.then_some(conns)
    }

    /// A connection to the destination cluster that is up.
    pub(super) fn any_up(&self, ctx: &Ctx<'_>) -> Option<ConnId> {
        let guests = self.guides.all().filter(|conn| self.guides.trusts(ctx, *conn));
        self.conns.iter().copied().chain(guests).find(|conn| ctx.conns.is_up(*conn))
    }

    /// The answer to a request of [`Capture::send_on`].
    pub fn replied(
        &mut self,
        ctx: &mut Ctx<'_>,
        conn: ConnId,
        token: Token,
        answer: Result<Reply, Failure>,
    ) {
        self.heed(ctx, conn, token, &answer);
        match (token, &answer) {
            (Token::Send(_), Ok(_)) => self.progress.acked_at = ctx.now.mono,
            // A lost connection is counted where it was lost.
            (_, Ok(_) | Err(Failure::Lost)) => {}
            // What is asked only to find out.
            (Token::Ensure(_), Err(Failure::Refused(code))) if is_an_answer(*code) => {}
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
                Notice::Remark(text) => self.note(ctx, true, text),
                Notice::Unusual(text) => {
                    self.last_error.clone_from(&text);
                    self.note(ctx, true, text);
                }
            }
        }
    }
}

/// The topic is not there, or is there by now, or the server has no option catalogue.
fn is_an_answer(code: u32) -> bool {
    let error = ServerError { code };
    error.is_not_found() || error.is_exists() || error.is_unsupported()
}

/// Of these connections to one place the one for a lane or destination, or any that is up.
fn own(ctx: &Ctx<'_>, conns: &[ConnId], number: u32, suspect: bool) -> Option<ConnId> {
    let (last, plain) = conns.split_last()?;
    let own = match suspect {
        true => *last,
        false => *plain.get(number as usize % plain.len().max(1))?,
    };
    let is_up = |conn: &ConnId| ctx.conns.is_up(*conn);
    Some(own).filter(is_up).or_else(|| conns.iter().copied().find(is_up))
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
