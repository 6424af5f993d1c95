//! One run: a backlog is drained, by ours or by pg_recvlogical, and what that took.
//!
//! The clock of both begins when the server begins to decode for the slot, by the server's own
//! log, and ends with the last row: acked by the sink, or received by pg_recvlogical, which
//! ends by itself there. Processor time counts from start to end of the process, set-up and
//! orderly stop included.
#![allow(clippy::disallowed_methods)] // reads the clock

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::error::BenchError;
use super::postgres::{DATABASE, USER};
use super::procfs;
use super::stage::{Daemon, Stage};
use crate::cli::demo::process::Process;

/// What a run took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drained {
    /// From the first byte decoded to the last row.
    pub elapsed: Duration,
    /// Of the process that drained.
    pub cpu: Duration,
    /// Of the server's sessions with it.
    pub server_cpu: Duration,
    /// Largest memory of the process, bytes.
    pub peak_memory: u64,
    /// Sends to the sink; none of pg_recvlogical.
    pub sends: u64,
}

/// Drains `slot` with a daemon.
pub fn ours(stage: &Stage, slot: &str) -> Result<Drained, BenchError> {
    let run = || {
        let mut daemon = Daemon::start(&stage.cluster, slot, stage.sink, false)?;
        daemon.until_acked(&stage.patience, stage.rows, "messages")?;
        let peak_memory = daemon.peak_memory();
        let cpu = daemon.stop()?.cpu;
        Ok((daemon.outcome()?.0, cpu, peak_memory))
    };
    let ((acked, cpu, peak_memory), server_cpu) = stage.server_cpu(run)?;
    if acked.messages != stage.rows {
        let (what, seen) = ("messages of the backlog".to_owned(), acked.messages);
        return Err(BenchError::Different { what, seen, expected: stage.rows });
    }
    let elapsed = since(stage.decoding_began(slot)?, acked.last);
    Ok(Drained { elapsed, cpu, server_cpu, peak_memory, sends: acked.sends })
}

/// Drains `slot` with pg_recvlogical, over TCP to /dev/null.
pub fn pg_recvlogical(stage: &Stage, slot: &str) -> Result<Drained, BenchError> {
    let address = stage.cluster.address();
    let mut command = stage.cluster.program("pg_recvlogical");
    command
        .args(["-h", &address.ip().to_string(), "-p", &address.port().to_string()])
        .args(["-U", USER, "-d", DATABASE, "-S", slot, "--start", "-f", "/dev/null"])
        .args(["-o", "proto_version=1", "-o", "publication_names=tidegate_bench"])
        .args(["--no-loop", "--endpos", &stage.end]);
    let run = || {
        let mut process = Process::spawn(command).map_err(BenchError::machine("pg_recvlogical"))?;
        let (mut ended, mut peak_memory, mut looks) = (None, 0, 0_u64);
        stage.patience.for_that("pg_recvlogical to reach the end", || {
            if looks.is_multiple_of(32) {
                peak_memory = procfs::peak_memory(process.id()).max(peak_memory);
            }
            looks += 1;
            ended = process.try_wait().map(|ended| (ended, now()));
            Ok(ended.is_some())
        })?;
        match ended {
            Some((ended, at)) if ended.status.success() => Ok((at, ended.cpu, peak_memory)),
            _ => {
                let end = process.kill().status;
                let (what, log) = ("its run".to_owned(), process.last_lines(15));
                Err(BenchError::Ended { who: "pg_recvlogical", end, what, log })
            }
        }
    };
    let ((at, cpu, peak_memory), server_cpu) = stage.server_cpu(run)?;
    let elapsed = since(stage.decoding_began(slot)?, at);
    Ok(Drained { elapsed, cpu, server_cpu, peak_memory, sends: 0 })
}

fn since(begun: u64, ended: u64) -> Duration {
    Duration::from_micros(ended.saturating_sub(begun).max(1))
}

/// Microseconds since the Unix epoch.
pub fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
