//! From commit to ack at a steady rate of small transactions, and the same for a reader that does
//! nothing but read greedily and look for the end of each transaction.
//!
//! A commit's time is the server's own, which both read from the stream; the end is the moment
//! the sink has given its ack, or the reader has the commit in its hands. All on one clock.
#![allow(clippy::disallowed_methods)] // threads and the clock

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::drain::now;
use super::error::BenchError;
use super::session::{Session, SessionError};
use super::stage::{Daemon, Stage};
use super::workload::one_more;
use crate::pg_wire::Lsn;
use crate::pg_wire::pgoutput::{self, Message};
use crate::pg_wire::replication::{Replication, parse, start_replication_sql, status_update};

/// Transactions a second.
pub const RATE: u32 = 450;
/// Transactions at the start that are not counted: caches fill, pages are touched first.
const WARM_UP: usize = 100;
/// Before the first commit, so that everything has come to rest.
const REST: Duration = Duration::from_millis(300);
/// The greedy reader looks so often whether it is over.
const LOOK: Duration = Duration::from_millis(100);
/// Seconds from 1970 to 2000.
const EPOCH_2000: i64 = 946_684_800;

/// A way in microseconds for each counted transaction.
pub type Ways = Vec<u64>;

/// Commits for so long while a daemon reads `slot`.
pub fn ours(stage: &Stage, slot: &str, span: Duration, from: u64) -> Result<Ways, BenchError> {
    let mut daemon = Daemon::start(&stage.cluster, slot, stage.sink, true)?;
    daemon.until(&stage.patience, "the stream", || {
        Ok(stage.cluster.decoding_began(slot).is_some())
    })?;
    std::thread::sleep(REST);
    let written = write(stage, span, from)?;
    daemon.until_acked(&stage.patience, written, "transactions")?;
    daemon.stop()?;
    let (_, mut arrivals) = daemon.outcome()?;
    same("transactions acked", arrivals.len() as u64, written)?;
    arrivals.sort_by_key(|arrival| arrival.origin);
    let counted = arrivals.iter().skip(WARM_UP);
    Ok(counted.map(|arrival| arrival.acked.saturating_sub(arrival.origin)).collect())
}

/// The same while the greedy reader reads it.
pub fn greedy(stage: &Stage, slot: &str, span: Duration, from: u64) -> Result<Ways, BenchError> {
    let mut session = Session::connect(stage.cluster.address(), stage.cluster.login(true))?;
    let options = [("proto_version", "1"), ("publication_names", "tidegate_bench")];
    session.stream(&start_replication_sql(slot, Lsn::INVALID, &options))?;
    session.wait_at_most(LOOK)?;
    let over = Arc::new(AtomicBool::new(false));
    let reader = std::thread::spawn({
        let over = Arc::clone(&over);
        move || read(session, &over)
    });
    std::thread::sleep(REST);
    let written = write(stage, span, from);
    std::thread::sleep(LOOK * 2);
    over.store(true, Ordering::Release);
    let ways = match reader.join() {
        Ok(ways) => ways?,
        Err(panic) => std::panic::resume_unwind(panic),
    };
    same("transactions read", ways.len() as u64, written?)?;
    Ok(ways.into_iter().skip(WARM_UP).collect())
}

fn same(what: &str, seen: u64, expected: u64) -> Result<(), BenchError> {
    match seen == expected {
        true => Ok(()),
        false => Err(BenchError::Different { what: what.to_owned(), seen, expected }),
    }
}

/// Commits one row after the other, each at its time; how many.
fn write(stage: &Stage, span: Duration, from: u64) -> Result<u64, BenchError> {
    let mut session = Session::connect(stage.cluster.address(), stage.cluster.login(false))?;
    let count = u64::from(RATE) * span.as_millis() as u64 / 1_000 + WARM_UP as u64;
    let begun = Instant::now();
    for number in 0..count {
        stage.patience.go_on("the transactions")?;
        let due = Duration::from_micros(number * 1_000_000 / u64::from(RATE));
        // Behind its time it does not wait: the next one is due all the same.
        std::thread::sleep(due.saturating_sub(begun.elapsed()));
        session.query(&one_more(from + number))?;
    }
    Ok(count)
}

fn read(mut session: Session, over: &AtomicBool) -> Result<Ways, SessionError> {
    enum Seen {
        Commit(i64),
        Question,
    }
    let mut ways = Ways::new();
    let mut end = Lsn::INVALID;
    while !over.load(Ordering::Acquire) {
        let seen = session.next(|tag, body| {
            if tag != b'd' {
                return Ok(None);
            }
            match parse(body)? {
                Replication::Data { data, .. } => match pgoutput::decode(data, false) {
                    Ok(Message::Commit { end_lsn, commit_time, .. }) => {
                        end = end_lsn;
                        Ok(Some(Seen::Commit(commit_time)))
                    }
                    _ => Ok(None),
                },
                Replication::Keepalive { reply_requested, .. } => {
                    Ok(reply_requested.then_some(Seen::Question))
                }
            }
        });
        match seen {
            Ok(Seen::Commit(time)) => {
                let committed = u64::try_from(time + EPOCH_2000 * 1_000_000).unwrap_or(0);
                ways.push(now().saturating_sub(committed));
            }
            Ok(Seen::Question) => session.send(&status_update(end, end, end, 0, false))?,
            Err(SessionError::Io(error)) if is_timeout(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(ways)
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}
