//! The two sessions with Postgres: one for questions, one that streams.

use std::collections::VecDeque;

use super::{Capture, Stage};
use crate::batch::FeedId;
use crate::config::PartitionBy;
use crate::ingest::postgres_cdc::confirm::ConfirmOptions;
use crate::ingest::postgres_cdc::setup::{
    Finding, Poison, Refusal, RoutedBy, Saved, Session as Which, Setup, SetupDone, SetupOptions,
    Step, Trouble, Watch, of_notice, of_passing_login, of_stream_error, watch_sql,
};
use crate::ingest::postgres_cdc::{Spill, Stream, StreamOptions};
use crate::pg_wire::query::Rows;
use crate::pg_wire::startup::ServerInfo;
use crate::pg_wire::{Lsn, Notice, ServerError};
use crate::shard::event::{Command, PgCommand, PgConnError, PgConnId, PgEvent};
use crate::shard::pipeline::feed::{Ctx, condition};
use crate::shard::reason;
use crate::shard::snapshot::Condition;
use crate::statefile::LsnGap;
use crate::time::Millis;

/// Time between two looks at what the slot retains.
const WAL_INTERVAL_MS: u64 = 10_000;
/// The same after the end of the session that asks.
const AGAIN_MS: u64 = 2_000;
/// Bytes of open transactions that stay in memory when they arrive before their commit.
const SPOOL_MEMORY: usize = 1 << 20;

/// Both sessions.
pub(super) struct Sessions {
    pub query: Session,
    pub replication: Session,
    pub wal: Option<Watch>,
    watch_at: Millis,
    done: Option<SetupDone>,
    /// The saved position that set-up was begun with.
    set_up_from: Lsn,
    /// Set-up waits, or its question has a time limit, until then.
    set_up_at: Option<(Millis, Due)>,
    poison: Poison,
}

/// What is due when set-up's time is over.
#[derive(Clone, Copy)]
enum Due {
    Waited,
    Overdue,
}

/// One session.
pub(super) struct Session {
    pub conn: PgConnId,
    state: State,
    asked: VecDeque<Asked>,
}

enum State {
    Down,
    Dialling,
    Up(Box<ServerInfo>),
    Closing,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    Setup,
    Start,
    Wal,
}

impl Sessions {
    pub fn new(feed: FeedId) -> Sessions {
        let session = |number| Session {
            conn: PgConnId(feed.0 * 2 + number),
            state: State::Down,
            asked: VecDeque::new(),
        };
        Sessions {
            query: session(0),
            replication: session(1),
            wal: None,
            watch_at: Millis(0),
            done: None,
            set_up_from: Lsn(0),
            set_up_at: None,
            poison: Poison::default(),
        }
    }

    /// The feed whose session this is.
    pub fn feed_of(conn: PgConnId) -> FeedId {
        FeedId(conn.0 / 2)
    }
}

impl Session {
    fn close(&mut self, ctx: &mut Ctx<'_>) {
        if matches!(self.state, State::Up(_) | State::Dialling) {
            self.state = State::Closing;
            ctx.out.push(Command::Pg { conn: self.conn, command: PgCommand::Close });
        }
    }

    fn ask(&mut self, ctx: &mut Ctx<'_>, what: Asked, sql: String) {
        self.asked.push_back(what);
        ctx.out.push(Command::Pg { conn: self.conn, command: PgCommand::Query(sql) });
    }

    fn server(&self) -> Option<&ServerInfo> {
        match &self.state {
            State::Up(info) => Some(info),
            _ => None,
        }
    }
}

impl Capture {
    /// From the beginning: both sessions, then set-up.
    pub(super) fn begin(&mut self, ctx: &mut Ctx<'_>) {
        self.stage = Stage::Dialling;
        self.dial(ctx);
    }

    pub(super) fn dial(&mut self, ctx: &mut Ctx<'_>) {
        let plan = self.spec.plan.postgres.clone();
        for (session, replication) in
            [(&mut self.sessions.query, false), (&mut self.sessions.replication, true)]
        {
            if matches!(session.state, State::Down) {
                session.state = State::Dialling;
                let command = PgCommand::Connect { plan: plan.clone(), replication };
                ctx.out.push(Command::Pg { conn: session.conn, command });
            }
        }
        if self.sessions.query.server().is_some() && self.sessions.replication.server().is_some() {
            self.sessions.set_up_from = Lsn(self.entry.end_lsn);
            let mut setup = Box::new(Setup::new(self.set_up_options()));
            let step = setup.begin();
            self.stage = Stage::SettingUp(setup);
            self.say(reason::SETTING_UP, "", ctx.now);
            self.set_up(ctx, step);
        }
    }

    fn set_up_options(&self) -> SetupOptions {
        let (plan, entry) = (&self.spec.plan, &self.entry);
        let saved = Saved {
            system_id: entry.system_id,
            timeline: entry.timeline,
            end_lsn: Lsn(entry.end_lsn),
        };
        SetupOptions {
            tables: plan.tables.clone(),
            decoder: plan.decoder,
            operations: plan.operations,
            routed: RoutedBy::of(&plan.routing),
            streaming: plan.streaming,
            row_keys: plan.routing.partition_by == PartitionBy::Identity,
            binary: plan.binary && !self.intake.no_binary,
            database: self.started.then(|| entry.database.clone()),
            saved: self.started.then_some(saved),
            accept_gap: self.spec.accept_gap,
            ..SetupOptions::new(&plan.slot, &plan.publication)
        }
    }

    /// Does what set-up asks for next.
    fn set_up(&mut self, ctx: &mut Ctx<'_>, step: Step) {
        self.sessions.set_up_at = None;
        match step {
            Step::Ask(ask) => {
                let session = match ask.on {
                    Which::Query => &mut self.sessions.query,
                    Which::Replication => &mut self.sessions.replication,
                };
                session.ask(ctx, Asked::Setup, ask.sql);
                let limit = ask.within.map(|within| (ctx.now.mono + within, Due::Overdue));
                self.sessions.set_up_at = limit;
            }
            Step::Wait { after, why } => {
                self.say(reason::CAPTURE_WAITING, why, ctx.now);
                self.sessions.set_up_at = Some((ctx.now.mono + after, Due::Waited));
            }
            Step::Pending { why } => self.say(reason::CAPTURE_WAITING, why, ctx.now),
            Step::Ready(done) => self.set_up_done(ctx, *done),
            Step::Refused(refusal) => self.refused(ctx, &refusal.0),
            // Only a check ends so.
            Step::Checked(_) => {}
        }
        let at = self.sessions.set_up_at.map(|(at, _)| at);
        self.wake(at);
    }

    /// Time passed while set-up runs.
    pub(super) fn set_up_tick(&mut self, ctx: &mut Ctx<'_>) {
        let Stage::SettingUp(setup) = &mut self.stage else { return };
        let Some((at, due)) = self.sessions.set_up_at else { return };
        if ctx.now.mono < at {
            return self.wake(Some(at));
        }
        let step = match due {
            Due::Waited => setup.waited(),
            Due::Overdue => setup.overdue(),
        };
        self.set_up(ctx, step);
    }

    fn refused(&mut self, ctx: &mut Ctx<'_>, finding: &Finding) {
        let refusal = Refusal(Box::new(finding.clone()));
        let detail = format!("{}: {finding}", refusal.code());
        if refusal.is_transient() {
            return self.hold(ctx, reason::CAPTURE_WAITING, detail);
        }
        let stopped = condition(reason::CAPTURE_REFUSED, detail, ctx.now);
        self.fail(ctx, Condition { reason: refusal.code(), ..stopped });
    }

    /// What was found is saved before anything is read.
    fn set_up_done(&mut self, ctx: &mut Ctx<'_>, done: SetupDone) {
        for note in &done.notes {
            self.note(ctx, true, format!("{}: {note}", note.code));
        }
        let entry = &mut self.entry;
        // Acks of what was read before may have moved the position since set-up began.
        let is_other = self.started
            && (entry.system_id != done.system_id
                || done.start_at != self.sessions.set_up_from
                || done.gap.is_some());
        if !is_other && !self.follow(ctx, &done) {
            return;
        }
        let entry = &mut self.entry;
        if let Some(gap) = &done.gap {
            let (first, last, why) = (gap.first.0, gap.last.0, gap.why.clone());
            entry.record_gap(LsnGap { first, last, found_at: ctx.now.wall.0, why });
        }
        if is_other || !self.started {
            // What waits belongs to a position that counts no longer.
            entry.epoch += u64::from(self.started);
            entry.counters.resets += u64::from(self.started);
            entry.end_lsn = done.start_at.0;
            entry.unfinished = None;
            self.forget(ctx);
        }
        let entry = &mut self.entry;
        // Rows that were counted in another way count no longer.
        entry.unfinished.take_if(|unfinished| unfinished.config_hash != done.config_hash);
        let changed = is_other
            || !self.started
            || entry.timeline != done.timeline
            || entry.clean_stop
            || entry.publication != self.spec.plan.publication
            || entry.decoder != self.spec.plan.decoder.as_str();
        entry.system_id = done.system_id;
        entry.timeline = done.timeline;
        entry.clean_stop = false;
        entry.publication.clone_from(&self.spec.plan.publication);
        entry.decoder = self.spec.plan.decoder.as_str().to_owned();
        self.sink.system_id = done.system_id;
        self.sink.timelines = done.timelines.clone();
        self.progress.config_hash = done.config_hash;
        self.sessions.done = Some(done);
        // It was said of what was missing at this start, not of what will be.
        self.spec.accept_gap = false;
        if changed {
            let generation = self.save_first(ctx);
            self.stage = Stage::Saving { generation };
        } else {
            self.start_stream(ctx);
        }
    }

    /// Everything is saved: START_REPLICATION.
    pub(super) fn start_stream(&mut self, ctx: &mut Ctx<'_>) {
        let Some(done) = &self.sessions.done else { return self.begin(ctx) };
        let sql = done.start_sql.clone();
        self.stage = Stage::Starting;
        self.sessions.replication.ask(ctx, Asked::Start, sql);
    }

    fn streaming(&mut self, ctx: &mut Ctx<'_>) {
        let Some(done) = &self.sessions.done else { return };
        let timeout = done.wal_sender_timeout;
        let position = self.progress.read_until();
        self.intake.reset();
        let files = match &mut self.intake.stream {
            Some(stream) => {
                let (hash, facts) = (done.config_hash, done.facts.clone());
                stream.restart(position, hash, done.binary, facts)
            }
            none => {
                let plan = &self.spec.plan;
                let options = StreamOptions {
                    decoder: plan.decoder,
                    tables: plan.tables.clone(),
                    operations: plan.operations,
                    snake_case_columns: plan.snake_case_columns,
                    config_hash: done.config_hash,
                    binary: done.binary,
                    facts: done.facts.clone(),
                    spool_memory: SPOOL_MEMORY,
                };
                *none = Some(Stream::new(options, position));
                Vec::new()
            }
        };
        for xid in files {
            self.spill(ctx, Spill::Drop { xid });
        }
        self.progress.streaming(ConfirmOptions::new(timeout), ctx.now.mono);
        let watch = PgCommand::Watch(timeout.map(|timeout| timeout * 2));
        let conn = self.sessions.replication.conn;
        ctx.out.push(Command::Pg { conn, command: watch });
        self.stage = Stage::Streaming;
        self.say(reason::RUNNING, "", ctx.now);
        let (slot, from) = (&self.entry.slot, position.end_lsn);
        self.note(ctx, false, format!("streaming from slot {slot:?} at {from}"));
    }

    pub(super) fn session_event(&mut self, ctx: &mut Ctx<'_>, conn: PgConnId, event: PgEvent) {
        let is_query = conn == self.sessions.query.conn;
        let session =
            if is_query { &mut self.sessions.query } else { &mut self.sessions.replication };
        // Once it is being closed, or the capture has ended, its end alone is news.
        let is_over = matches!(session.state, State::Closing) || matches!(self.stage, Stage::Ended);
        match event {
            PgEvent::Down(cause) => self.session_down(ctx, is_query, cause),
            _ if is_over => {}
            PgEvent::Up(info) => {
                session.state = State::Up(info);
                if let Some(confirm) = self.progress.confirm.as_mut().filter(|_| is_query) {
                    confirm.server_runs();
                }
                if matches!(self.stage, Stage::Dialling) {
                    self.dial(ctx);
                }
            }
            PgEvent::Answer(answer) => {
                let asked = session.asked.pop_front();
                self.answered(ctx, asked, is_query, answer);
            }
            PgEvent::CopyStarted => {
                session.asked.pop_front();
                if matches!(self.stage, Stage::Starting) {
                    self.streaming(ctx);
                }
            }
            PgEvent::Notice(notice) => self.noticed(ctx, &notice),
            PgEvent::Chunk(chunk) => self.intake.arrived(chunk),
            PgEvent::TooLarge { size } => self.intake.too_large(size),
            PgEvent::CopyEnded(error) => self.copy_ended(ctx, error),
        }
    }

    fn answered(
        &mut self,
        ctx: &mut Ctx<'_>,
        asked: Option<Asked>,
        is_query: bool,
        answer: Result<Vec<Rows>, ServerError>,
    ) {
        match asked {
            Some(Asked::Setup) => {
                if let Stage::SettingUp(setup) = &mut self.stage {
                    let from = if is_query { Which::Query } else { Which::Replication };
                    let step = setup.answer(from, answer);
                    self.set_up(ctx, step);
                }
            }
            Some(Asked::Start) => {
                if let Err(error) = answer {
                    self.stream_refused(ctx, &error);
                }
            }
            Some(Asked::Wal) => {
                self.sessions.wal = answer.ok().and_then(|rows| Watch::read(&rows).ok().flatten());
            }
            None => {}
        }
    }

    /// START_REPLICATION was refused, or the stream ended with an error of the server.
    fn stream_refused(&mut self, ctx: &mut Ctx<'_>, error: &ServerError) {
        if let Some(finding) = self.sessions.poison.failed(error, self.progress.ended) {
            return self.refused(ctx, &finding);
        }
        match of_stream_error(&self.spec.plan.slot, error) {
            Trouble::Stop(finding) => self.refused(ctx, &finding),
            Trouble::Retry(finding) => {
                self.hold(ctx, reason::UPSTREAM_ENDED_STREAM, finding.to_string());
            }
        }
    }

    /// The stream says something that cannot be read: worth another try, not for ever.
    pub(super) fn stream_broken(&mut self, ctx: &mut Ctx<'_>, error: &str) {
        match self.sessions.poison.unreadable(error, self.progress.ended) {
            Some(finding) => self.refused(ctx, &finding),
            None => self.hold(ctx, reason::UPSTREAM_PROTOCOL, error.to_owned()),
        }
    }

    fn copy_ended(&mut self, ctx: &mut Ctx<'_>, error: Option<ServerError>) {
        match error {
            _ if matches!(self.stage, Stage::Closing { .. } | Stage::Ended) => {}
            Some(error) => self.stream_refused(ctx, &error),
            None => {
                let detail = "the server ended the stream; it may be shutting down".to_owned();
                self.hold(ctx, reason::UPSTREAM_ENDED_STREAM, detail);
            }
        }
    }

    fn session_down(&mut self, ctx: &mut Ctx<'_>, is_query: bool, cause: PgConnError) {
        let session =
            if is_query { &mut self.sessions.query } else { &mut self.sessions.replication };
        session.state = State::Down;
        session.asked.clear();
        if cause == PgConnError::Closed {
            if matches!(self.stage, Stage::Dialling) {
                self.dial(ctx);
            }
            return;
        }
        if is_query && matches!(self.stage, Stage::Streaming | Stage::Finishing { .. }) {
            // Soon: a server that takes it is not shutting down.
            self.sessions.watch_at = Millis(ctx.now.mono.0 + AGAIN_MS);
            if let (Some(confirm), Some(error)) = (&mut self.progress.confirm, cause.server())
                && matches!(error.code.as_str(), "57P01" | "57P02" | "57P03")
            {
                confirm.server_stops(ctx.now.mono);
            }
            return;
        }
        match self.stage {
            Stage::Held { .. } | Stage::Paused | Stage::Closing { .. } | Stage::Ended => {}
            Stage::Finishing { .. } => {}
            _ => self.try_again_after(ctx, &cause),
        }
    }

    /// A session that is needed ended by itself, or did not come about.
    fn try_again_after(&mut self, ctx: &mut Ctx<'_>, cause: &PgConnError) {
        let streaming = matches!(self.stage, Stage::Streaming);
        match (cause, cause.server()) {
            (_, Some(error)) if streaming => self.stream_refused(ctx, error),
            (PgConnError::Login { address, .. }, Some(error)) if !cause.is_final() => {
                self.refused(ctx, &of_passing_login(address, error));
            }
            _ => {
                let reason = match cause {
                    PgConnError::Login { .. } => reason::LOGIN_REFUSED,
                    PgConnError::Tls { .. } => reason::TLS_FAILED,
                    _ => reason::UPSTREAM_UNREACHABLE,
                };
                self.hold(ctx, reason, cause.to_string());
            }
        }
    }

    fn noticed(&mut self, ctx: &mut Ctx<'_>, notice: &Notice) {
        self.note(ctx, true, format!("the server remarks: {notice}"));
        if let Some(finding) = of_notice(&self.spec.plan.slot, notice) {
            self.refused(ctx, &finding);
        }
    }

    /// Looks at what the slot keeps from being removed.
    pub(super) fn watch_wal(&mut self, ctx: &mut Ctx<'_>) {
        if !matches!(self.stage, Stage::Streaming) {
            return;
        }
        if ctx.now.mono < self.sessions.watch_at {
            return self.wake(Some(self.sessions.watch_at));
        }
        self.sessions.watch_at = Millis(ctx.now.mono.0 + WAL_INTERVAL_MS);
        self.wake(Some(self.sessions.watch_at));
        let session = &mut self.sessions.query;
        match session.state {
            State::Up(ref server) if session.asked.is_empty() => {
                let sql = watch_sql(&self.spec.plan.slot, server.version_num);
                session.ask(ctx, Asked::Wal, sql);
            }
            State::Down => {
                session.state = State::Dialling;
                let plan = self.spec.plan.postgres.clone();
                let command = PgCommand::Connect { plan, replication: false };
                ctx.out.push(Command::Pg { conn: session.conn, command });
            }
            _ => {}
        }
    }

    /// Lets go of transactions that wait for their commit: no stream goes on with them.
    pub(super) fn empty(&mut self, ctx: &mut Ctx<'_>) {
        let (Some(stream), Some(done)) = (&mut self.intake.stream, &self.sessions.done) else {
            return;
        };
        let position = self.progress.read_until();
        let files = stream.restart(position, done.config_hash, done.binary, Vec::new());
        for xid in files {
            self.spill(ctx, Spill::Drop { xid });
        }
    }

    /// Ends the stream; what was read stays.
    pub(super) fn end_sessions(&mut self, ctx: &mut Ctx<'_>) {
        self.sessions.replication.close(ctx);
        self.sessions.query.close(ctx);
        self.intake.reset();
        self.progress.session_ended();
        self.stop_passing(ctx, "the session with the database ended before the transaction's end");
        // Rows read and not yet in a batch are: the next stream goes on behind them.
        self.submit(ctx);
    }
}
