//! One capture: a replication slot read in order, its rows sent to their destinations, its
//! position moved when all of them are acked (P1, P2, A8, C2).
//!
//! ```text
//! Dialling ─▶ SettingUp ─▶ Saving ─▶ Starting ─▶ Streaming ◀─ chunks, acks, saves, keepalives
//!     ▲                                              │
//!     └────────────────── Held ◀─────────────────────┘ the session ended
//! ```
//! [`session`] talks to Postgres, [`intake`] reads chunks, [`sink`] turns rows into batches,
//! [`outflow`] sends them, [`guide`] finds the node that takes them, [`progress`] moves the
//! position. What was read outlives a lost session: the next one goes on behind it.

mod branch;
mod give_up;
mod guide;
mod halt;
mod intake;
mod outflow;
mod press;
mod progress;
mod session;
mod show;
mod sink;
#[cfg(test)]
mod tests;

use self::guide::Guides;
use self::intake::Intake;
pub use self::press::Press;
use self::progress::Progress;
use self::session::Sessions;
use self::sink::Sink;
use super::budget::Holding;
use super::conns::{Side, Wish};
use super::feed::{Ctx, condition};
use crate::batch::FeedId;
use crate::commit::policy::Backoff;
use crate::ingest::postgres_cdc::setup::Setup;
use crate::shard::event::{CaptureSpec, Command, ConnError, ConnId, PgConnId, PgEvent, ToControl};
use crate::shard::reason::{self, Reason};
use crate::shard::snapshot::Condition;
use crate::statefile::CaptureState;
use crate::time::{Millis, Now};

/// Where a capture stands.
enum Stage {
    /// Both sessions are being made.
    Dialling,
    /// Slot and publication are made or looked at.
    SettingUp(Box<Setup>),
    /// What was found is being saved; then the stream is started.
    Saving { generation: u64 },
    /// START_REPLICATION is out.
    Starting,
    /// Reading.
    Streaming,
    /// Tries again at this time.
    Held { until: Millis },
    /// Rests by the operator's word.
    Paused,
    /// Draining: sends that are out are awaited until then.
    Finishing { until: Millis },
    /// The last save of an orderly stop.
    Closing { generation: u64 },
    /// Drained, or stopped by an error.
    Ended,
}

/// A capture.
pub(super) struct Capture {
    pub spec: CaptureSpec,
    pub entry: CaptureState,
    /// The entry says something: it was saved, or its start is resolved.
    pub started: bool,
    pub draining: bool,
    pub paused: bool,
    pub wake_at: Option<Millis>,
    pub timer: Option<Millis>,
    stage: Stage,
    backoff: Backoff,
    sessions: Sessions,
    intake: Intake,
    sink: Sink,
    conns: Vec<ConnId>,
    guides: Guides,
    progress: Progress,
    holding: Holding,
    condition: Condition,
    last_error: String,
    /// Why no connection to the destination cluster is up, as far as is known.
    unreachable: Option<ConnError>,
    /// Orders to be answered when their outcome is on disk.
    given_up: Vec<give_up::GivenUp>,
    passing: Option<give_up::Passing>,
}

impl Capture {
    /// A capture that begins, with its connections to the destination cluster.
    pub fn new(spec: CaptureSpec, ctx: &mut Ctx<'_>) -> Capture {
        let plan = &spec.plan;
        let started = spec.saved.is_some();
        let entry = spec.saved.clone().unwrap_or_else(|| fresh_entry(&spec));
        let backoff = || Backoff::new(plan.retry_interval, plan.max_retry_interval);
        let conns: Vec<ConnId> = (0..outflow::CONNECTIONS)
            .map(|_| {
                let (source, cluster) = (&plan.key, &plan.to);
                let (feed, side) = (spec.id, Side::Downstream);
                let wish = Wish { feed, source, side, cluster, node: None };
                ctx.conns.assign(wish, ctx.now.mono, backoff())
            })
            .collect();
        let mut sink = Sink::new(plan, &entry.routed);
        sink.outlet.start(ctx.now.mono);
        Capture {
            started,
            draining: false,
            paused: false,
            wake_at: None,
            timer: None,
            stage: Stage::Dialling,
            backoff: backoff(),
            sessions: Sessions::new(spec.id),
            intake: Intake::default(),
            progress: Progress::new(&entry, ctx.now),
            sink,
            conns,
            guides: Guides::default(),
            holding: Holding::default(),
            condition: condition(reason::CONNECTING, String::new(), ctx.now),
            last_error: String::new(),
            unreachable: None,
            given_up: Vec::new(),
            passing: None,
            entry,
            spec,
        }
    }

    /// Nothing more will happen.
    pub fn is_ended(&self) -> bool {
        matches!(self.stage, Stage::Ended)
    }

    /// Takes a turn: does whatever the stage allows now.
    pub fn turn(&mut self, ctx: &mut Ctx<'_>) {
        self.answer_orders(ctx);
        if self.draining && !matches!(self.stage, Stage::Finishing { .. } | Stage::Closing { .. }) {
            self.finish(ctx);
        } else if self.paused && !self.draining && !self.is_ended() {
            self.rest(ctx);
        }
        match self.stage {
            Stage::Held { until } if ctx.now.mono >= until => self.begin(ctx),
            Stage::Held { until } => self.wake(Some(until)),
            Stage::Paused if !self.paused => self.begin(ctx),
            Stage::Dialling => self.dial(ctx),
            Stage::SettingUp(_) => self.set_up_tick(ctx),
            Stage::Saving { generation } if ctx.lane.reached(generation) => self.start_stream(ctx),
            Stage::Finishing { until } => self.finishing(ctx, until),
            Stage::Closing { generation } if ctx.lane.reached(generation) => self.closed(ctx),
            _ => {}
        }
        self.flow(ctx);
    }

    /// Everything that goes on in every stage: sends, look-ups, positions, then more to read.
    fn flow(&mut self, ctx: &mut Ctx<'_>) {
        if self.is_ended() {
            return self.account(ctx);
        }
        self.read_on(ctx);
        self.close_on_time(ctx);
        self.send_on(ctx);
        self.advance(ctx);
        self.account(ctx);
        self.grant(ctx);
        self.tell(ctx);
        let at = self.sink.outlet.wake_at();
        self.wake(at);
        self.watch_wal(ctx);
    }

    /// News of one of the sessions with Postgres.
    pub fn postgres(&mut self, ctx: &mut Ctx<'_>, conn: PgConnId, event: PgEvent) {
        self.session_event(ctx, conn, event);
    }

    /// A connection to the destination cluster came up or went down.
    pub fn connection_lost(&mut self, ctx: &mut Ctx<'_>, cause: &ConnError) {
        let ours = matches!(cause, ConnError::Closed | ConnError::TooLarge { .. });
        if ours || self.is_ended() {
            return;
        }
        self.error(cause.to_string());
        self.progress.failed();
        self.unreachable = self.any_up(ctx).is_none().then(|| cause.clone());
    }

    /// Tries again from the start after a pause.
    fn hold(&mut self, ctx: &mut Ctx<'_>, reason: Reason, detail: String) {
        self.error(detail.clone());
        self.progress.failed();
        self.say(reason, detail, ctx.now);
        self.end_sessions(ctx);
        self.stage = Stage::Held { until: ctx.now.mono + self.backoff.failed(ctx.rng) };
    }

    /// Stops for good; others go on.
    fn fail(&mut self, ctx: &mut Ctx<'_>, condition: Condition) {
        self.error(condition.detail.clone());
        self.condition = condition;
        self.stop_passing(ctx, "the source stopped");
        self.end_sessions(ctx);
        // Others need the room; what waits is read again when it is begun again.
        self.forget(ctx);
        self.empty(ctx);
        self.release_slot(ctx);
        self.account(ctx);
        self.stage = Stage::Ended;
        if self.started {
            self.touch(ctx);
        }
    }

    /// The entry changed and nothing may go on before that is on disk.
    fn save_first(&mut self, ctx: &mut Ctx<'_>) -> u64 {
        self.entry.sequence += 1;
        self.started = true;
        ctx.lane.barrier()
    }

    /// The entry changed: the next save carries it.
    fn touch(&mut self, ctx: &mut Ctx<'_>) {
        self.entry.sequence += 1;
        ctx.lane.mark();
    }

    /// Something for the log.
    fn note(&self, ctx: &mut Ctx<'_>, unusual: bool, text: String) {
        let source = self.spec.plan.key.clone();
        ctx.out.push(Command::Control(ToControl::Note { source, unusual, text }));
    }

    fn error(&mut self, detail: impl Into<String>) {
        self.entry.counters.errors += 1;
        self.last_error = detail.into();
    }

    fn wake(&mut self, at: Option<Millis>) {
        self.wake_at = [self.wake_at, at].into_iter().flatten().min();
    }

    fn say(&mut self, reason: Reason, detail: impl Into<String>, now: Now) {
        let fresh = condition(reason, detail.into(), now);
        if (fresh.status, fresh.reason) == (self.condition.status, self.condition.reason) {
            self.condition.detail = fresh.detail;
        } else {
            self.condition = fresh;
        }
    }
}

/// The feed whose session this is.
pub(super) fn feed_of(conn: PgConnId) -> FeedId {
    Sessions::feed_of(conn)
}

fn fresh_entry(spec: &CaptureSpec) -> CaptureState {
    let plan = &spec.plan;
    CaptureState {
        slot: plan.slot.clone(),
        database: plan.postgres.database.clone(),
        decoder: plan.decoder.as_str().to_owned(),
        publication: plan.publication.clone(),
        epoch: 0,
        sequence: 0,
        system_id: 0,
        timeline: 0,
        end_lsn: 0,
        unfinished: None,
        clean_stop: false,
        counters: Default::default(),
        gaps: Vec::new(),
        last_abandon_at: 0,
        routed: Vec::new(),
    }
}
