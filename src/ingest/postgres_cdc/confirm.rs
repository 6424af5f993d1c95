//! What the server is told, and when (P2).
//!
//! Told ≤ durable (I1): the flush LSN of a status update is what the server may forget. Written
//! is only how far we have read, so that an idle server does not ask all the time.
//!
//! Between transactions, with nothing pending, the position follows keepalives: first saved, then
//! told. A keepalive inside a transaction moves nothing. One that comes while rows wait for their
//! acks is remembered: a quiet server sends it right behind the last commit and the next one only
//! when we speak, so it counts once those rows are durable, unless something began behind it.
//!
//! A server that shuts down asks again and again at its last position until that is flushed. Each
//! answer draws the next question, so answers that say nothing new are spaced; and if the rows
//! cannot be delivered in time the connection is closed, so that the database can stop.

use std::time::Duration;

use crate::pg_wire::Lsn;
use crate::time::Millis;

/// How often, how long. [`ConfirmOptions::new`] has the usual values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfirmOptions {
    /// A status update at least this often.
    pub interval: Duration,
    /// Pause between two status updates, unless a question can be answered with something new.
    pub spacing: Duration,
    /// An idle position is saved at most this often …
    pub idle_spacing: Duration,
    /// … unless it moved by this many bytes.
    pub idle_bytes: u64,
    /// Questions in a row at one position that mean a shutdown.
    pub shutdown_questions: u32,
    /// Two such questions are at most this far apart.
    pub shutdown_gap: Duration,
    /// How long a server that shuts down waits for the rows that are left.
    pub shutdown_grace: Duration,
}

impl ConfirmOptions {
    /// For a server that cuts a silent connection after `wal_sender_timeout`; `None` for never.
    pub fn new(wal_sender_timeout: Option<Duration>) -> ConfirmOptions {
        let third = wal_sender_timeout.map_or(Duration::MAX, |timeout| timeout / 3);
        ConfirmOptions {
            interval: third.clamp(Duration::from_millis(10), Duration::from_secs(10)),
            spacing: Duration::from_millis(100),
            idle_spacing: Duration::from_secs(1),
            idle_bytes: 16 << 20,
            shutdown_questions: 8,
            shutdown_gap: Duration::from_secs(1),
            shutdown_grace: Duration::from_secs(10),
        }
    }
}

/// The LSNs of a status update; applied is the same as flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// Read up to here.
    pub written: Lsn,
    /// Durable up to here.
    pub flushed: Lsn,
}

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing.
    Nothing,
    /// Send a status update.
    Send(Status),
    /// The position may move to `to` although no transaction ended there: save it and report it
    /// by [`Confirm::durable`]. Send the status, if there is one, without waiting for that.
    Advance {
        /// The new position.
        to: Lsn,
        /// An answer that is due.
        status: Option<Status>,
    },
    /// The server shuts down and waits for rows that do not get delivered: close the connection.
    /// Nothing is lost, they come again.
    CloseForShutdown {
        /// Bytes of log that were read and are not durable.
        unconfirmed: u64,
    },
}

/// The feedback of one connection. Make a new one for every START_REPLICATION.
#[derive(Clone, Debug)]
pub struct Confirm {
    options: ConfirmOptions,
    read: Lsn,
    /// End of the last complete transaction, or the idle position that followed it.
    ended: Lsn,
    durable: Lsn,
    told: Lsn,
    last_sent: Millis,
    last_asked: Millis,
    last_advance: Millis,
    /// The newest keepalive that came between transactions.
    kept: Option<Lsn>,
    /// Something is due at [`Confirm::wake_at`] before the interval is over.
    due: Due,
    /// A transaction is half received.
    inside: bool,
    /// Questions in a row that look like a shutdown.
    questions: Questions,
    closing_since: Option<Millis>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Due {
    /// A question was not answered yet.
    answer: bool,
    /// The durable position moved and was not told yet.
    told: bool,
    /// An idle position waits for its turn.
    idle: Option<Lsn>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Questions {
    at: Lsn,
    last: Millis,
    count: u32,
}

impl Confirm {
    /// Streaming starts at `start`, the durable position.
    pub fn new(options: ConfirmOptions, start: Lsn, now: Millis) -> Confirm {
        Confirm {
            options,
            read: start,
            ended: start,
            durable: start,
            told: start,
            last_sent: now,
            last_asked: now,
            last_advance: now,
            kept: None,
            due: Due::default(),
            inside: false,
            questions: Questions::default(),
            closing_since: None,
        }
    }

    /// A transaction is complete. Its rows may still wait for acks.
    pub fn ended(&mut self, end_lsn: Lsn) {
        self.ended = self.ended.max(end_lsn);
        self.read = self.read.max(end_lsn);
    }

    /// The server says how far it has read; `between` is whether no transaction has begun to
    /// arrive ([`super::Stream::is_between`]).
    pub fn keepalive(
        &mut self,
        now: Millis,
        wal_end: Lsn,
        reply_requested: bool,
        between: bool,
    ) -> Verdict {
        self.read = self.read.max(wal_end);
        self.inside = !between;
        if between {
            self.kept = self.kept.max(Some(wal_end));
        }
        self.follow();
        if reply_requested {
            self.due.answer = true;
            self.count_question(now, wal_end);
        }
        self.decide(now, reply_requested)
    }

    /// The state file holds position `lsn`.
    ///
    /// # Panics
    /// If nothing ended there: a wrong acknowledgement costs data, a crash costs a replay.
    pub fn durable(&mut self, now: Millis, lsn: Lsn) -> Verdict {
        assert!(lsn <= self.ended, "durable {lsn}, but no transaction ended behind {}", self.ended);
        self.durable = self.durable.max(lsn);
        self.due.told |= self.durable > self.told;
        if self.durable >= self.questions.at {
            self.questions = Questions::default();
            self.closing_since = None;
        }
        self.follow();
        self.decide(now, false)
    }

    /// With nothing pending and nothing begun, the newest keepalive is where it may move.
    fn follow(&mut self) {
        self.kept = self.kept.filter(|kept| *kept > self.ended);
        if self.is_idle() && !self.inside {
            self.due.idle = self.kept.filter(|kept| *kept > self.durable).or(self.due.idle);
        }
    }

    /// Whether a transaction is half received now. A server that shuts down waits for its rest.
    pub fn set_inside(&mut self, inside: bool) {
        self.inside = inside;
    }

    /// Time passed.
    pub fn tick(&mut self, now: Millis) -> Verdict {
        self.decide(now, false)
    }

    /// A sign from elsewhere that the server shuts down, such as another session ended by it.
    /// Matters when back-pressure keeps us from reading its questions.
    pub fn server_stops(&mut self, now: Millis) {
        self.closing_since.get_or_insert(now);
    }

    /// A sign from elsewhere that it does not: it takes new sessions.
    pub fn server_runs(&mut self) {
        self.questions = Questions::default();
        self.closing_since = None;
    }

    /// Whether the server seems to be shutting down.
    pub fn is_closing(&self) -> bool {
        self.closing_since.is_some()
    }

    /// Whether the status update that goes out now should ask for an answer: about once an
    /// interval. A server with nothing to send that hears of us says nothing for ever, and that
    /// cannot be told from one that is gone.
    pub fn asks(&mut self, now: Millis) -> bool {
        let asks = now.since(self.last_asked) >= self.options.interval;
        if asks {
            self.last_asked = now;
        }
        asks
    }

    /// What the server was last told it may forget.
    pub fn told(&self) -> Lsn {
        self.told
    }

    /// When [`Confirm::tick`] has something to do.
    pub fn wake_at(&self) -> Millis {
        let mut at = self.last_sent + self.options.interval;
        if self.due.answer || self.due.told {
            at = at.min(self.last_sent + self.options.spacing);
        }
        if self.due.idle.is_some() {
            at = at.min(self.last_advance + self.options.idle_spacing);
        }
        match self.closing_since {
            Some(since) if self.is_lagging() => at.min(since + self.options.shutdown_grace),
            _ => at,
        }
    }

    fn decide(&mut self, now: Millis, asked: bool) -> Verdict {
        if let Some(since) = self.closing_since
            && self.is_lagging()
            && now.since(since) >= self.options.shutdown_grace
        {
            let unconfirmed = self.read.bytes_since(self.durable);
            return Verdict::CloseForShutdown { unconfirmed };
        }
        let status = self.status_is_due(now).then(|| self.status(now));
        match (self.advance(now, asked), status) {
            (Some(to), status) => Verdict::Advance { to, status },
            (None, Some(status)) => Verdict::Send(status),
            (None, None) => Verdict::Nothing,
        }
    }

    fn status_is_due(&self, now: Millis) -> bool {
        let silent = now.since(self.last_sent);
        let news = self.due.answer && self.durable > self.told;
        let spaced = (self.due.answer || self.due.told) && silent >= self.options.spacing;
        news || spaced || silent >= self.options.interval
    }

    fn status(&mut self, now: Millis) -> Status {
        self.last_sent = now;
        self.told = self.durable;
        self.due.answer = false;
        self.due.told = false;
        Status { written: self.read.max(self.durable), flushed: self.durable }
    }

    /// An idle position whose turn it is. A server that asks may be waiting for it. It stays good
    /// whatever begins behind it: every later commit lies at or behind a keepalive's position.
    fn advance(&mut self, now: Millis, asked: bool) -> Option<Lsn> {
        self.due.idle = self.due.idle.filter(|to| *to > self.ended);
        let to = self.due.idle?;
        let far = to.bytes_since(self.durable) >= self.options.idle_bytes;
        let since = now.since(self.last_advance);
        let asked = asked && since >= self.options.spacing;
        if !(far || asked || since >= self.options.idle_spacing) {
            return None;
        }
        self.due.idle = None;
        self.last_advance = now;
        self.ended = self.ended.max(to);
        Some(to)
    }

    /// All that ended is durable.
    fn is_idle(&self) -> bool {
        self.ended <= self.durable
    }

    fn is_lagging(&self) -> bool {
        self.inside || self.durable < self.read
    }

    fn count_question(&mut self, now: Millis, wal_end: Lsn) {
        let last = self.questions;
        let again = last.count > 0
            && last.at == wal_end
            && now.since(last.last) <= self.options.shutdown_gap;
        if self.durable >= wal_end {
            self.questions = Questions::default();
            return;
        }
        let count = if again { last.count.saturating_add(1) } else { 1 };
        self.questions = Questions { at: wal_end, last: now, count };
        if count >= self.options.shutdown_questions {
            self.closing_since.get_or_insert(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    fn confirm() -> Confirm {
        Confirm::new(ConfirmOptions::new(Some(TIMEOUT)), Lsn(100), Millis(0))
    }

    fn send(written: u64, flushed: u64) -> Verdict {
        Verdict::Send(Status { written: Lsn(written), flushed: Lsn(flushed) })
    }

    fn advance(to: u64) -> Verdict {
        Verdict::Advance { to: Lsn(to), status: None }
    }

    #[test]
    fn the_interval_is_a_third_of_the_timeout_and_at_most_ten_seconds() {
        let interval = |timeout| ConfirmOptions::new(timeout).interval;
        assert_eq!(interval(Some(Duration::from_secs(6))), Duration::from_secs(2));
        assert_eq!(interval(Some(TIMEOUT)), Duration::from_secs(10));
        assert_eq!(interval(None), Duration::from_secs(10), "it may never ask");
        assert_eq!(interval(Some(Duration::from_millis(1))), Duration::from_millis(10));
    }

    #[test]
    fn a_stalled_destination_still_sends_status_updates() {
        let mut confirm = confirm();
        confirm.ended(Lsn(200));
        for n in 1..5 {
            let at = Millis(n * 10_000);
            assert_eq!(confirm.wake_at(), at);
            assert_eq!(confirm.tick(Millis(at.0 - 1)), Verdict::Nothing);
            assert_eq!(confirm.tick(at), send(200, 100));
        }
    }

    #[test]
    fn flush_is_what_is_durable_and_told_soon() {
        let mut confirm = confirm();
        confirm.ended(Lsn(200));
        assert_eq!(confirm.durable(Millis(50), Lsn(200)), Verdict::Nothing, "spaced");
        assert_eq!(confirm.told(), Lsn(100));
        assert_eq!(confirm.wake_at(), Millis(100));
        assert_eq!(confirm.tick(Millis(100)), send(200, 200));
        assert_eq!(confirm.told(), Lsn(200));
        assert_eq!(confirm.tick(Millis(101)), Verdict::Nothing);
    }

    #[test]
    #[should_panic(expected = "no transaction ended behind 0/64")]
    fn a_position_that_nothing_ended_at_is_never_told() {
        let mut confirm = confirm();
        let _ = confirm.keepalive(Millis(1), Lsn(500), false, false);
        let _ = confirm.durable(Millis(2), Lsn(500));
    }

    #[test]
    fn a_keepalive_inside_a_transaction_moves_nothing() {
        let mut confirm = confirm();
        assert_eq!(confirm.keepalive(Millis(5_000), Lsn(900), false, false), Verdict::Nothing);
        confirm.ended(Lsn(200));
        confirm.set_inside(false);
        // Not even afterwards: what the keepalive skipped is not known to be ours.
        assert_eq!(confirm.durable(Millis(5_002), Lsn(200)), send(900, 200));
        assert_eq!(confirm.tick(Millis(9_000)), Verdict::Nothing);
        assert_eq!(confirm.keepalive(Millis(9_001), Lsn(960), false, true), advance(960));
    }

    #[test]
    fn the_newest_keepalive_from_before_the_acks_counts_once_they_are_durable() {
        let mut confirm = confirm();
        confirm.ended(Lsn(200));
        confirm.ended(Lsn(220));
        for lsn in [240, 250] {
            let verdict = confirm.keepalive(Millis(5_000), Lsn(lsn), false, true);
            assert_eq!(verdict, Verdict::Nothing, "rows wait");
        }
        assert_eq!(confirm.durable(Millis(5_001), Lsn(200)), send(250, 200), "some still wait");
        // Saved first: what is told meanwhile is what was durable before.
        assert_eq!(confirm.durable(Millis(5_050), Lsn(220)), advance(250));
        assert_eq!(confirm.tick(Millis(5_101)), send(250, 220));
        assert_eq!(confirm.durable(Millis(5_110), Lsn(250)), Verdict::Nothing, "spaced");
        assert_eq!(confirm.tick(Millis(5_201)), send(250, 250), "not after an interval");
        assert_eq!(confirm.tick(Millis(9_000)), Verdict::Nothing, "once");
    }

    #[test]
    fn a_keepalive_from_before_the_acks_is_dropped_by_what_comes_behind_it() {
        let mut confirm = confirm();
        confirm.ended(Lsn(200));
        assert_eq!(confirm.keepalive(Millis(10), Lsn(250), false, true), Verdict::Nothing);
        confirm.set_inside(true);
        assert_eq!(confirm.durable(Millis(2_000), Lsn(200)), send(250, 200), "one has begun");
        confirm.ended(Lsn(400));
        confirm.set_inside(false);
        assert_eq!(confirm.durable(Millis(4_000), Lsn(400)), send(400, 400), "it has ended");
        assert_eq!(confirm.tick(Millis(9_000)), Verdict::Nothing);
    }

    #[test]
    fn an_idle_position_that_waits_is_dropped_by_a_transaction_that_ends_behind_it() {
        let mut confirm = confirm();
        assert_eq!(confirm.keepalive(Millis(10), Lsn(300), false, true), Verdict::Nothing);
        assert_eq!(confirm.wake_at(), Millis(1_000));
        confirm.ended(Lsn(400));
        assert_eq!(confirm.tick(Millis(1_000)), Verdict::Nothing);
        assert_eq!(confirm.durable(Millis(1_001), Lsn(400)), send(400, 400));
        assert_eq!(confirm.tick(Millis(3_000)), Verdict::Nothing);
    }

    #[test]
    fn an_idle_position_stays_good_while_the_next_transaction_arrives() {
        let mut confirm = confirm();
        assert_eq!(confirm.keepalive(Millis(10), Lsn(300), false, true), Verdict::Nothing);
        // A transaction begins; its commit lies at 300 or behind.
        assert_eq!(confirm.tick(Millis(1_000)), advance(300));
        assert_eq!(confirm.durable(Millis(1_001), Lsn(300)), send(300, 300));
        confirm.ended(Lsn(400));
        assert_eq!(confirm.tick(Millis(2_001)), Verdict::Nothing);
    }

    #[test]
    fn idle_positions_are_saved_first_and_then_told_once_a_second() {
        let mut confirm = confirm();
        let mut saves = 0;
        for ms in 1..=5_000 {
            match confirm.keepalive(Millis(ms), Lsn(100 + ms), false, true) {
                Verdict::Advance { to, status: None } => {
                    saves += 1;
                    assert!(confirm.told() < to);
                    let told = confirm.durable(Millis(ms), to);
                    assert_eq!(told, send(to.0, to.0));
                }
                Verdict::Nothing => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(saves, 5);
    }

    #[test]
    fn a_busy_unrelated_table_moves_the_position_by_segments() {
        let mut confirm = confirm();
        let far = 100 + (16 << 20);
        assert_eq!(confirm.keepalive(Millis(1), Lsn(far - 1), false, true), Verdict::Nothing);
        assert_eq!(confirm.keepalive(Millis(2), Lsn(far), false, true), advance(far));
    }

    #[test]
    fn a_question_is_answered_at_once_and_then_at_the_spacing() {
        let mut confirm = confirm();
        assert_eq!(confirm.keepalive(Millis(30_000), Lsn(150), true, false), send(150, 100));
        for ms in 30_001..30_100 {
            assert_eq!(
                confirm.keepalive(Millis(ms), Lsn(150), true, false),
                Verdict::Nothing,
                "{ms}"
            );
        }
        assert_eq!(confirm.wake_at(), Millis(30_100));
        assert_eq!(confirm.tick(Millis(30_100)), send(150, 100));
        assert_eq!(confirm.tick(Millis(30_200)), Verdict::Nothing, "nobody asked again");
    }

    #[test]
    fn a_question_when_idle_is_answered_and_the_position_follows() {
        let mut confirm = confirm();
        let status = Some(Status { written: Lsn(300), flushed: Lsn(100) });
        let verdict = confirm.keepalive(Millis(500), Lsn(300), true, true);
        assert_eq!(verdict, Verdict::Advance { to: Lsn(300), status });
        // The server that shuts down asks again before the save is done; the news goes at once.
        assert_eq!(confirm.keepalive(Millis(510), Lsn(300), true, true), Verdict::Nothing);
        assert_eq!(confirm.durable(Millis(520), Lsn(300)), send(300, 300));
    }

    /// Questions as a server in shutdown puts them: the next one after every answer.
    fn shut_down(confirm: &mut Confirm, from: u64, until: u64, at: Lsn) -> (u32, Option<u64>) {
        let (mut asked, mut answers) = (true, 0);
        for ms in from..until {
            let verdict = match std::mem::take(&mut asked) {
                true => confirm.keepalive(Millis(ms), at, true, true),
                false => confirm.tick(Millis(ms)),
            };
            match verdict {
                Verdict::Nothing => {}
                Verdict::Send(_) => (asked, answers) = (true, answers + 1),
                Verdict::Advance { status, .. } => {
                    asked = status.is_some();
                    answers += u32::from(asked);
                }
                Verdict::CloseForShutdown { .. } => return (answers, Some(ms)),
            }
        }
        (answers, None)
    }

    #[test]
    fn a_fast_shutdown_with_undelivered_rows_ends_by_closing() {
        let mut confirm = confirm();
        confirm.ended(Lsn(200));
        let (answers, closed) = shut_down(&mut confirm, 1_000, 60_000, Lsn(200));
        let closed = closed.expect("closed");
        assert!((11_000..13_000).contains(&closed), "{closed}");
        assert!(answers <= 120, "{answers} answers in {closed} ms");
        let mut confirm = self::confirm();
        confirm.ended(Lsn(200));
        confirm.server_stops(Millis(0));
        assert_eq!(confirm.tick(Millis(9_999)), Verdict::Nothing, "rows may still be acked");
        assert_eq!(confirm.wake_at(), Millis(10_000));
        let closed = Verdict::CloseForShutdown { unconfirmed: 100 };
        assert_eq!(confirm.tick(Millis(10_000)), closed);
    }

    #[test]
    fn an_answer_is_asked_for_once_an_interval() {
        let mut confirm = confirm();
        let asked: Vec<u64> =
            (0..400).map(|n| n * 100).filter(|n| confirm.asks(Millis(*n))).collect();
        assert_eq!(asked, [10_000, 20_000, 30_000]);
    }

    #[test]
    fn a_shutdown_inside_a_transaction_whose_rows_are_stuck_ends_by_closing() {
        let mut confirm = confirm();
        confirm.server_stops(Millis(0));
        confirm.set_inside(true);
        assert_eq!(confirm.wake_at(), Millis(10_000));
        let closed = Verdict::CloseForShutdown { unconfirmed: 0 };
        assert_eq!(confirm.tick(Millis(10_000)), closed);
        confirm.server_runs();
        assert_eq!(confirm.tick(Millis(10_001)), send(100, 100), "it was another session's end");
    }

    #[test]
    fn rows_that_are_acked_during_a_shutdown_let_the_server_stop() {
        let mut confirm = confirm();
        confirm.ended(Lsn(200));
        assert_eq!(shut_down(&mut confirm, 1_000, 5_000, Lsn(200)).1, None);
        assert!(confirm.is_closing());
        let verdict = confirm.durable(Millis(5_000), Lsn(200));
        assert_eq!(verdict, send(200, 200));
        assert!(!confirm.is_closing());
        assert_eq!(confirm.tick(Millis(15_000)), send(200, 200), "no close later on");
    }

    #[test]
    fn questions_at_half_the_timeout_are_no_shutdown() {
        let options = ConfirmOptions {
            interval: Duration::from_secs(3_600),
            ..ConfirmOptions::new(Some(Duration::from_secs(4)))
        };
        let mut confirm = Confirm::new(options, Lsn(100), Millis(0));
        confirm.ended(Lsn(200));
        for n in 1..100 {
            assert_eq!(confirm.keepalive(Millis(n * 2_000), Lsn(200), true, true), send(200, 100));
        }
        assert!(!confirm.is_closing());
    }
}
