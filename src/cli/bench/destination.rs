//! Where a daemon under measurement sends, and what was acked there.
#![allow(clippy::disallowed_methods)] // the clock

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::capture::Sink;
use super::error::BenchError;
use crate::cli::null_sink::Report;
use crate::loopback::{Acked, Arrival, Server, ServerOptions};

/// Time between two looks at the daemon's file, which is written twice a second. When the last
/// message was acked is in it, so that nothing hangs on this.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Where a daemon sends.
pub enum Destination {
    /// A broker in this process.
    Broker(Server),
    /// The daemon's own shard thread; the file says what was acked.
    Inside {
        /// Made by the daemon.
        report: PathBuf,
        /// When it was looked at last, and what it said.
        seen: Option<(Instant, Acked)>,
    },
}

impl Destination {
    /// For a daemon whose files are in `dir`. `each`: the way of each message is wanted.
    pub fn open(sink: Sink, dir: &Path, each: bool) -> Result<Destination, BenchError> {
        Ok(match sink {
            Sink::Null => Destination::Inside { report: dir.join("report"), seen: None },
            Sink::Loopback => {
                let broker = Server::start(ServerOptions::default());
                let broker = broker.map_err(BenchError::machine("a broker"))?;
                broker.control().watch_arrivals(each);
                Destination::Broker(broker)
            }
        })
    }

    /// For the configuration; of a sink inside the daemon, one that nobody dials.
    pub fn address(&self) -> SocketAddr {
        match self {
            Destination::Broker(broker) => broker.address(),
            Destination::Inside { .. } => (Ipv4Addr::LOCALHOST, 1).into(),
        }
    }

    /// What the daemon is started with because of it.
    pub fn arguments(&self, command: &mut Command, each: bool) {
        if let Destination::Inside { report, .. } = self {
            command.arg("--bench-null-sink").arg(report);
            command.args(each.then_some("--bench-each-message"));
        }
    }

    /// What was acked so far, or a moment ago.
    pub fn acked(&mut self) -> Result<Acked, BenchError> {
        match self {
            Destination::Broker(broker) => Ok(broker.control().acked()),
            Destination::Inside { report, seen } => {
                if let Some((at, acked)) = seen
                    && at.elapsed() < LOOK_EVERY
                {
                    return Ok(*acked);
                }
                let acked = read(report)?.acked;
                *seen = Some((Instant::now(), acked));
                Ok(acked)
            }
        }
    }

    /// All that was acked, and the way of each message if that was wanted: after the daemon's
    /// stop.
    pub fn outcome(&self) -> Result<(Acked, Vec<Arrival>), BenchError> {
        match self {
            Destination::Broker(broker) => {
                let control = broker.control();
                Ok((control.acked(), control.take_arrivals()))
            }
            Destination::Inside { report, .. } => {
                let report = read(report)?;
                Ok((report.acked, report.arrivals))
            }
        }
    }
}

fn read(report: &Path) -> Result<Report, BenchError> {
    Report::read(report).map_err(BenchError::machine("the daemon's report"))
}
