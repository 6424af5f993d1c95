//! Captures on a shard between a database made of answers and a destination that is away: what
//! was read waits, and every command of the shard is carried out at once.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;

use super::*;
use crate::config::{self, CapturePlan, SecretError, Secrets};
use crate::ingest::postgres_cdc::setup::tests::Fake;
use crate::ingest::postgres_cdc::setup::{Ask, Session as Which, watch_sql};
use crate::ingest::postgres_cdc::wire;
use crate::pg_wire::Lsn;
use crate::pg_wire::pgoutput::Column;
use crate::pg_wire::startup::ServerInfo;
use crate::shard::event::{Event, FromControl, PgCommand, PgConnError};
use crate::shard::order::{Abandon, Answer};
use crate::shard::pipeline::{Pipeline, PipelineConfig};
use crate::statefile::{SourceState, format};
use crate::time::UnixMicros;

const VERSION: u32 = 150_018;
const OID: u32 = 16_400;
const NOON: i64 = 1_709_251_200_000_000;

struct NoSecrets;

impl Secrets for NoSecrets {
    fn env(&self, _: &str) -> Result<String, SecretError> {
        Err(SecretError::Unset)
    }
    fn file(&self, _: &str) -> Result<String, SecretError> {
        Err(SecretError::Unset)
    }
}

/// A capture of table orders from slot `slot`, with these lines in its table.
fn plan(key: &str, lines: &str) -> Arc<CapturePlan> {
    let text = format!(
        "[daemon]\nstate_dir = \"s\"\n[clusters.west]\naddress = \"w:1\"\ntoken = \"t\"\n\
         [sources.{key}]\nkind = \"postgres_cdc\"\nto = \"west\"\n\
         connection = \"postgresql://tidegate@db/shop\"\ntables = [\"public.orders\"]\n\
         slot = \"slot\"\nstream = \"s\"\ntopic = \"t\"\n{lines}\n"
    );
    let plan = config::parse(&text, "t.toml", &NoSecrets);
    plan.unwrap_or_else(|errors| panic!("{errors}")).captures.remove(0)
}

/// A shard with its captures.
struct World {
    pipeline: Pipeline,
    db: Fake,
    now: Millis,
    events: Vec<Event>,
    /// What the stream of each capture brings, one chunk for each read.
    chunks: Vec<VecDeque<Bytes>>,
    /// Reads that were granted and have nothing to bring yet.
    granted: Vec<PgConnId>,
    /// Questions that set streams going.
    starts: Vec<String>,
    /// Logins that were asked for.
    logins: usize,
    notes: Vec<String>,
    answers: Vec<Answer>,
    /// Large slots that were asked for and given back.
    slots: Vec<(FeedId, bool)>,
    saved: Option<SourceState>,
    /// Where the first position stands once the history of timelines was asked for.
    acked: Option<u64>,
}

impl World {
    /// With these captures, which stream unless the database refuses.
    fn new(db: Fake, plans: &[Arc<CapturePlan>]) -> World {
        World::accepting(db, plans, false)
    }

    fn accepting(mut db: Fake, plans: &[Arc<CapturePlan>], accept_gap: bool) -> World {
        db.publications.iter_mut().for_each(|record| record[0].1 = "slot".into());
        db.published.iter_mut().for_each(|record| record[0] = Some("slot".into()));
        let config = PipelineConfig { shard: 0, buffer_limit: 64 << 20, seed: 7 };
        let mut world = World {
            pipeline: Pipeline::new(config),
            db,
            now: Millis(1_000),
            events: Vec::new(),
            chunks: plans.iter().map(|_| VecDeque::new()).collect(),
            granted: Vec::new(),
            starts: Vec::new(),
            logins: 0,
            notes: Vec::new(),
            answers: Vec::new(),
            slots: Vec::new(),
            saved: None,
            acked: None,
        };
        for (id, plan) in (0..).map(FeedId).zip(plans) {
            let (plan, saved, carried) = (plan.clone(), None, Vec::new());
            let spec = CaptureSpec { id, plan, saved, carried, generation: 0, accept_gap };
            world.tell(FromControl::AddCapture(Box::new(spec)));
        }
        world
    }

    fn streaming(plan: &Arc<CapturePlan>) -> World {
        let world = World::new(Fake::set_up(), std::slice::from_ref(plan));
        assert!(matches!(world.capture(0).stage, Stage::Streaming));
        world
    }

    fn capture(&self, id: u32) -> &Capture {
        &self.pipeline.captures[&FeedId(id)]
    }

    fn reason(&self, id: u32) -> &'static str {
        self.capture(id).condition.reason
    }

    fn tell(&mut self, order: FromControl) {
        self.events.push(Event::Control(order));
        self.run();
    }

    fn restart(&mut self, id: u32) {
        let source = self.capture(id).spec.plan.key.clone();
        self.tell(FromControl::Restart { source });
    }

    fn abandon(&mut self, id: u32, through: Option<u64>) -> Option<Answer> {
        let oldest = self.capture(id).oldest_pending().map_or(0, |lsn| lsn.0);
        let range = Abandon { oldest, through };
        self.tell(FromControl::Abandon { feed: FeedId(id), order: 1, range });
        self.answers.pop()
    }

    /// Turns until the shard has nothing more to do now.
    fn run(&mut self) {
        for _ in 0..10_000 {
            let now = Now { mono: self.now, wall: UnixMicros(self.now.0 * 1_000) };
            let mut out = Vec::new();
            let mut events = std::mem::take(&mut self.events);
            self.pipeline.step(now, &mut events, &mut out);
            out.into_iter().for_each(|command| self.obey(command));
            self.feed();
            if self.events.is_empty() {
                return;
            }
        }
        panic!("the shard never rests");
    }

    fn pass(&mut self, millis: u64) {
        self.now = Millis(self.now.0 + millis);
        self.run();
    }

    /// Brings chunks to reads that wait for them.
    fn feed(&mut self) {
        for conn in std::mem::take(&mut self.granted) {
            match self.chunks[conn.0 as usize / 2].pop_front() {
                Some(chunk) => self.events.push(Event::Pg { conn, event: PgEvent::Chunk(chunk) }),
                None => self.granted.push(conn),
            }
        }
    }

    /// These messages come in one read.
    fn bring(&mut self, id: u32, bodies: &[Vec<u8>]) {
        let mut chunk = Vec::new();
        for body in bodies {
            chunk.push(b'd');
            chunk.extend((body.len() as u32 + 4).to_be_bytes());
            chunk.extend(body);
        }
        self.chunks[id as usize].push_back(chunk.into());
        self.feed();
        self.run();
    }

    /// The session that streams ends by itself.
    fn lose(&mut self, id: u32) {
        let conn = PgConnId(id * 2 + 1);
        self.granted.retain(|granted| *granted != conn);
        let event = PgEvent::Down(PgConnError::Lost("reset".into()));
        self.events.push(Event::Pg { conn, event });
        self.run();
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Pg { conn, command } => self.postgres(conn, command),
            Command::Persist { source, generation, image } => {
                self.saved = Some(format::decode(&image, "t").expect("a state file"));
                self.events.push(Event::Persisted { source, generation, result: Ok(()) });
            }
            Command::Spill { feed, .. } => {
                self.events.push(Event::Spilled { feed, result: Ok(Vec::new()) });
            }
            Command::Control(ToControl::Note { text, .. }) => self.notes.push(text),
            Command::Control(ToControl::Abandoned { answer, .. }) => self.answers.push(answer),
            Command::Control(ToControl::LargeSlotWanted { feed }) => self.slots.push((feed, true)),
            Command::Control(ToControl::LargeSlotReleased { feed }) => {
                self.slots.push((feed, false));
            }
            // The destination is away.
            _ => {}
        }
    }

    fn postgres(&mut self, conn: PgConnId, command: PgCommand) {
        let event = match command {
            PgCommand::Connect { .. } => {
                self.logins += 1;
                let (version_num, parameters) = (VERSION, std::collections::BTreeMap::new());
                let info = ServerInfo { parameters, version_num, backend_pid: 1, tls: false };
                PgEvent::Up(Box::new(info))
            }
            PgCommand::Query(sql) if sql.starts_with("START_REPLICATION") => {
                self.starts.push(sql);
                PgEvent::CopyStarted
            }
            PgCommand::Query(sql) if sql == watch_sql("slot", VERSION) => {
                PgEvent::Answer(Ok(Vec::new()))
            }
            PgCommand::Query(sql) => {
                if sql.starts_with("TIMELINE_HISTORY")
                    && let Some(end) = self.acked.take()
                {
                    let capture = self.pipeline.captures.get_mut(&FeedId(0));
                    capture.expect("the capture").entry.end_lsn = end;
                }
                let on = if conn.0.is_multiple_of(2) { Which::Query } else { Which::Replication };
                PgEvent::Answer(self.db.answer(&Ask { on, sql, within: None }))
            }
            PgCommand::Read { .. } => {
                self.granted.retain(|granted| *granted != conn);
                return self.granted.push(conn);
            }
            PgCommand::Close => {
                self.granted.retain(|granted| *granted != conn);
                PgEvent::Down(PgConnError::Closed)
            }
            PgCommand::Write(_) | PgCommand::Watch(_) => return,
        };
        self.events.push(Event::Pg { conn, event });
    }
}

/// The table, as the server describes it before its first row.
fn table() -> Vec<u8> {
    let columns = [("id", 23, true), ("note", 25, false)];
    wire::data(Lsn(0), &wire::relation(None, OID, "public", "orders", b'd', &columns))
}

fn begin(final_lsn: u64) -> Vec<u8> {
    wire::data(Lsn(final_lsn), &wire::begin(Lsn(final_lsn), NOON, final_lsn as u32))
}

fn row(note: &[u8]) -> Vec<u8> {
    wire::data(Lsn(0), &wire::insert(None, OID, &[Column::Text(b"1"), Column::Text(note)]))
}

fn commit(final_lsn: u64, end: u64) -> Vec<u8> {
    wire::data(Lsn(final_lsn), &wire::commit(Lsn(final_lsn), Lsn(end), NOON))
}

/// A transaction of one row that ends 0x20 behind its commit record.
fn transaction(final_lsn: u64) -> Vec<Vec<u8>> {
    vec![begin(final_lsn), row(b"a"), commit(final_lsn, final_lsn + 0x20)]
}

/// These commits in one read.
fn transactions(commits: &[u64]) -> Vec<Vec<u8>> {
    let rows = commits.iter().flat_map(|commit| transaction(*commit));
    std::iter::once(table()).chain(rows).collect()
}

#[test]
fn what_was_read_behind_a_fork_is_read_anew_on_the_branch_that_was_promoted() {
    let mut world = World::streaming(&plan("shop", ""));
    world.bring(0, &transactions(&[0x3800, 0x3900, 0x4100]));
    assert_eq!(world.capture(0).progress.read_until().end_lsn, Lsn(0x4120));
    assert_eq!(world.capture(0).entry.end_lsn, 0x3000, "the destination is away");
    // The standby had not heard of the last commit.
    (world.db.timeline, world.db.history) = (2, Ok("1\t0/4000\tpromoted".to_owned()));
    world.lose(0);
    world.pass(60_000);
    assert!(matches!(world.capture(0).stage, Stage::Streaming));
    assert_eq!(world.capture(0).entry.timeline, 2);
    assert_eq!(world.capture(0).progress.read_until(), position_at(0x3000));
    assert_eq!(world.capture(0).progress.pending(), 0, "no ack of it moves the position");
    let told = world.notes.iter().find(|note| note.starts_with("timeline_left")).expect("a note");
    assert!(told.contains("0/4000") && told.contains("3 messages"), "{told}");
    // Another commit at a place that had one on the branch that is gone.
    world.bring(0, &transactions(&[0x3800, 0x3900, 0x4080]));
    let capture = world.capture(0);
    assert_eq!(capture.intake.stream.as_ref().expect("a stream").counters().transactions, 6);
    assert_eq!(capture.progress.read_until().end_lsn, Lsn(0x40a0));
}

#[test]
fn what_the_server_was_told_is_shown_when_the_session_is_gone() {
    let mut world = World::streaming(&plan("shop", ""));
    let shown = |world: &World| world.capture(0).snapshot(Now::default()).confirmed;
    let told = shown(&world);
    assert_eq!(told, 0x3000);
    world.lose(0);
    assert!(world.capture(0).progress.confirm.is_none());
    assert_eq!(shown(&world), told);
}

#[test]
fn what_was_read_before_a_fork_is_not_read_again() {
    let mut world = World::streaming(&plan("shop", ""));
    world.bring(0, &transactions(&[0x3800, 0x3900]));
    (world.db.timeline, world.db.history) = (2, Ok("1\t0/4000\tpromoted".to_owned()));
    world.lose(0);
    world.pass(60_000);
    assert_eq!(world.capture(0).progress.read_until().end_lsn, Lsn(0x3920));
    assert!(world.capture(0).progress.pending() > 0 && world.capture(0).entry.timeline == 2);
    assert!(!world.notes.iter().any(|note| note.starts_with("timeline_left")));
}

#[test]
fn a_restored_log_that_ends_before_what_was_read_has_it_read_anew() {
    let mut world = World::streaming(&plan("shop", ""));
    world.bring(0, &transactions(&[0x3800, 0x4100]));
    world.db.wal_end = Lsn(0x4000);
    world.lose(0);
    world.pass(60_000);
    assert!(matches!(world.capture(0).stage, Stage::Streaming));
    assert_eq!(world.capture(0).progress.read_until(), position_at(0x3000));
}

#[test]
fn an_ack_that_moves_the_position_behind_the_fork_has_set_up_look_again() {
    let mut world = World::streaming(&plan("shop", ""));
    world.bring(0, &transactions(&[0x4100]));
    (world.db.timeline, world.db.history) = (2, Ok("1\t0/4000\tpromoted".to_owned()));
    world.lose(0);
    // Set-up has begun with the position before the fork.
    world.acked = Some(0x4120);
    world.pass(60_000);
    assert_eq!(world.reason(0), "capture_waiting", "{}", world.capture(0).condition.detail);
    world.pass(60_000);
    assert_eq!(world.reason(0), "timeline_forked");
    assert!(world.capture(0).is_ended());
}

fn position_at(end: u64) -> crate::ingest::postgres_cdc::Position {
    crate::ingest::postgres_cdc::Position::at(Lsn(end))
}

#[test]
fn a_half_done_transaction_that_does_not_come_again_stops_neither_saves_nor_the_capture() {
    let mut world = World::streaming(&plan("shop", ""));
    let unfinished = |hash| crate::statefile::UnfinishedState {
        final_lsn: 0x3800,
        xid: 7,
        ordinal: 3,
        config_hash: hash,
    };
    let hash = world.capture(0).progress.config_hash;
    let entry = |world: &mut World, hash| {
        let capture = world.pipeline.captures.get_mut(&FeedId(0)).expect("the capture");
        capture.entry.unfinished = Some(unfinished(hash));
    };
    entry(&mut world, hash);
    world.restart(0);
    assert_eq!(world.capture(0).entry.unfinished, Some(unfinished(hash)), "nothing changed");
    // The transaction is filtered out now, or on a branch that is gone.
    world.bring(0, &[wire::keepalive(Lsn(0x4000), false)]);
    world.pass(5_000);
    world.pass(5_000);
    assert_eq!((world.capture(0).entry.end_lsn, world.capture(0).entry.unfinished), (0x4000, None));
    let saved = world.saved.as_ref().expect("a save");
    assert_eq!((saved.captures[0].end_lsn, saved.captures[0].unfinished), (0x4000, None));
    // Counted in another way.
    entry(&mut world, hash + 1);
    world.restart(0);
    assert_eq!(world.capture(0).entry.unfinished, None);
}

#[test]
fn a_refused_source_that_was_mended_runs_again_by_a_restart() {
    let mut world = World::streaming(&plan("shop", ""));
    let slot = world.db.slot.take();
    world.lose(0);
    world.pass(60_000);
    assert!(world.capture(0).is_ended() && world.reason(0) == "slot_missing");
    let (starts, logins) = (world.starts.len(), world.logins);
    // Still refused, then mended.
    world.restart(0);
    assert!(world.capture(0).is_ended() && world.logins == logins + 2);
    world.db.slot = slot;
    world.restart(0);
    assert!(matches!(world.capture(0).stage, Stage::Streaming), "{}", world.reason(0));
    assert_eq!((world.starts.len(), world.logins), (starts + 1, logins + 4));
    world.bring(0, &transactions(&[0x3800]));
    assert_eq!(world.capture(0).progress.pending(), 1);
}

fn line(at: u64, text: &str) -> Vec<u8> {
    wire::data(Lsn(at), text.as_bytes())
}

/// The same as [`transaction`], as test_decoding says it: one row after the other, and the end of
/// the commit record alone.
fn lines(xid: u32, end: u64, rows: usize) -> Vec<Vec<u8>> {
    let text = "table public.orders: INSERT: id[integer]:1 note[text]:'a'";
    let mut all = vec![line(0, &format!("BEGIN {xid}"))];
    all.extend((0..rows).map(|_| line(0, text)));
    all.push(line(end, &format!("COMMIT {xid} (at 2024-03-01 00:00:00+00)")));
    all
}

#[test]
fn giving_up_a_transaction_of_lines_ends_with_it() {
    let mut db = Fake::set_up();
    db.slot.as_mut().expect("a slot")[0].1 = Some("test_decoding".into());
    db.columns.retain(|_| true);
    let plan = plan("shop", "decoder = \"test_decoding\"\n");
    let mut world = World::new(db, std::slice::from_ref(&plan));
    assert!(matches!(world.capture(0).stage, Stage::Streaming), "{}", world.reason(0));
    // So long that the batch is closed in the middle of it, with no room for the rest.
    let final_lsn = Lsn(0x4000);
    world.pipeline.captures.get_mut(&FeedId(0)).expect("the capture").sink.given_up =
        Some(final_lsn);
    world.pipeline.captures.get_mut(&FeedId(0)).expect("the capture").passing =
        Some(give_up::Passing { order: 1, final_lsn });
    world.bring(0, &lines(7, 0x4000, 3));
    let Some(Ok(words)) = world.answers.pop() else { panic!("{:?}", world.answers) };
    assert!(words.contains("0/4000"), "{words}");
    world.bring(0, &lines(8, 0x4100, 1));
    assert_eq!(world.capture(0).oldest_pending(), Some(Lsn(0x4100)), "the next one waits");
    assert_eq!(world.capture(0).entry.end_lsn, 0x4000);
}

#[test]
fn never_more_is_given_up_than_was_asked_c5() {
    let mut world = World::streaming(&plan("shop", ""));
    let commits: Vec<u64> = (0..50).map(|n| 0x3800 + n * 0x40).collect();
    world.bring(0, &transactions(&commits));
    let (first, last) = (commits[0], commits[49] + 0x20);
    for through in [first, first + 0x20, commits[48] + 0x20] {
        let answer = world.abandon(0, Some(through)).expect("an answer");
        let Err(crate::shard::order::Refused::Conflict(why)) = answer else { panic!("{answer:?}") };
        assert!(why.contains(&Lsn(last).to_string()), "{why}");
    }
    assert_eq!((world.capture(0).entry.end_lsn, world.capture(0).entry.gaps.len()), (0x3000, 0));
    world.abandon(0, Some(last)).expect("an answer").expect("the end that was named");
    assert_eq!(world.capture(0).entry.end_lsn, last);
}

#[test]
fn a_transaction_of_several_batches_is_given_up_without_those_behind_it_c5() {
    let mut world = World::streaming(&plan("shop", ""));
    world.bring(0, &[table(), begin(0x4000), row(b"a")]);
    world.pass(1_000);
    assert_eq!(world.capture(0).oldest_pending(), Some(Lsn(0x4000)), "one of its batches");
    let mut rest = vec![row(b"b"), commit(0x4000, 0x4020)];
    rest.extend([0x4100, 0x4200].into_iter().flat_map(transaction));
    world.bring(0, &rest);
    world.pass(1_000);
    world.abandon(0, Some(0x4000)).expect("an answer").expect("given up");
    assert_eq!(world.capture(0).entry.end_lsn, 0x4020);
    assert_eq!(world.capture(0).oldest_pending(), Some(Lsn(0x4220)), "the others still wait");
}

#[test]
fn a_capture_that_stops_or_rests_leaves_buffers_and_large_slot_to_the_others() {
    let plans = [plan("shop", ""), plan("other", "")];
    for pause in [false, true] {
        let mut world = World::new(Fake::set_up(), &plans);
        world.bring(0, &transactions(&[0x3800]));
        // More than the shard's buffers have.
        let size = 60 << 20;
        let too_large = Event::Pg { conn: PgConnId(1), event: PgEvent::TooLarge { size } };
        world.granted.retain(|conn| *conn != PgConnId(1));
        world.events.push(too_large);
        world.run();
        assert_eq!(world.slots, [(FeedId(0), true)]);
        world.tell(FromControl::LargeSlotGranted { feed: FeedId(0) });
        assert!(world.capture(0).intake.holds_slot());
        let note = vec![b'x'; 8 << 20];
        world.bring(0, &[begin(0x3900), row(&note)]);
        assert!(world.capture(0).intake.holds_slot(), "it waits for the destination");
        let held = world.pipeline.budget.held();
        if pause {
            let source = plans[0].key.clone();
            world.tell(FromControl::Pause { source, paused: true });
            assert!(matches!(world.capture(0).stage, Stage::Paused));
        } else {
            world.db.slot = None;
            world.lose(0);
            world.pass(60_000);
            assert!(world.capture(0).is_ended());
        }
        assert_eq!(world.slots.last(), Some(&(FeedId(0), false)), "others may have it");
        assert!(world.pipeline.budget.held() + note.len() as u64 <= held);
    }
}

#[test]
fn an_order_to_give_up_ends_with_its_session_and_loses_nothing() {
    let mut world = World::streaming(&plan("shop", ""));
    let mut bodies = transactions(&[0x3800]);
    bodies.extend([begin(0x4000), row(b"b")]);
    world.bring(0, &bodies);
    assert_eq!(world.abandon(0, None), None, "its end is not read yet");
    world.lose(0);
    let answer = world.answers.pop().expect("an answer");
    assert!(matches!(answer, Err(crate::shard::order::Refused::Conflict(_))), "{answer:?}");
    world.pass(60_000);
    assert_eq!(world.capture(0).entry.end_lsn, 0x3000, "nothing was given up");
    world.bring(0, &transactions(&[0x3800, 0x4000, 0x4100]));
    assert_eq!(world.capture(0).progress.read_until().end_lsn, Lsn(0x4120));
    assert!(world.capture(0).progress.pending() > 0);
}

#[test]
fn a_gap_is_accepted_at_the_start_and_never_later_in_the_same_run() {
    let plans = [plan("shop", "")];
    let mut world = World::accepting(Fake::set_up(), &plans, true);
    assert!(matches!(world.capture(0).stage, Stage::Streaming));
    world.db.slot = None;
    world.lose(0);
    world.pass(60_000);
    assert!(world.capture(0).is_ended() && world.reason(0) == "slot_missing");
    assert!(world.capture(0).entry.gaps.is_empty());
}

#[test]
fn what_cannot_be_read_is_tried_ever_more_seldom_and_not_for_ever() {
    let mut world = World::streaming(&plan("shop", ""));
    let mut tries: Vec<u64> = Vec::new();
    while !world.capture(0).is_ended() {
        assert!(tries.len() < 20, "{tries:?}");
        tries.push(world.now.0);
        // A keepalive comes before it each time.
        world.bring(0, &[wire::keepalive(Lsn(0x3000), false), row(b"outside of any transaction")]);
        for _ in 0..10_000 {
            if !matches!(world.capture(0).stage, Stage::Held { .. }) {
                break;
            }
            world.pass(100);
        }
    }
    assert_eq!(world.reason(0), "poison_row");
    assert_eq!(tries.len(), 5);
    let pauses: Vec<u64> = tries.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(pauses[3] > pauses[0], "{pauses:?}");
}
