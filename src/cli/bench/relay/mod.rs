//! `tidegate bench relay`: what copying costs, beside a peer that does the same in the same
//! minutes.
//!
//! ```text
//! this process      broker, filled once ◀─polls─┐          ┌─sends─▶ broker, new for every run
//! a process a run                               ├ tidegate ┤
//!                   runs take turns             └ or peer ─┘
//! ```
#![allow(clippy::disallowed_methods)] // reads the clock

mod brokers;
mod copy;
mod figures;
pub mod idle;
mod side;

use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

pub use self::brokers::{Destination, Shape, Upstream};
pub use self::copy::{CopyArgs, run as run_copy};
pub use self::figures::few;
use self::figures::{Figures, Ran};
pub use self::side::{Side, Who};
use super::client::Endpoint;
use super::error::BenchError;
use super::pace::{self, Pace};
use super::procfs;
use super::wait::Patience;
use crate::cli::Exit;
use crate::cli::report;

/// Fewer runs than this make no figure that is worth quoting.
pub const RUNS_WORTH: u32 = 7;
/// Every wait ends after this, and a second more for each so many messages.
const WAIT: u64 = 120;
const SLOWEST: u64 = 5_000;
/// Bytes that a run copies unless it is told how much.
const USUAL_BYTES: u64 = 2_000_000_000;
const USUAL_MESSAGES: u64 = 4_000_000;
/// With `--duration` the upstream topic is kept so many bytes ahead.
const AHEAD_BYTES: u64 = 512 << 20;
/// Messages a second while latency is measured.
const RATE: u32 = 10_000;

/// Arguments of `tidegate bench relay`.
#[derive(Debug, Args)]
#[command(after_help = "\
How the figures are made:
  messages_per_second      messages acked between the first ack and the last one, over that time
  megabytes_per_second     payload bytes of those, in 10^6 bytes
  cpu_seconds_per_gb       user and system time of the process from start to end, all threads and
                           the kernel's workers among them, per 10^9 payload bytes acked
  cpu_seconds_per_million  the same per million messages
  p50_us, p99_us           from the moment a message was due at its producer until the destination
                           had acked it, at 10,000 messages a second (--latency)
All are medians of the runs; runs of both sides take turns. The peers: copy does the polls and
sends of a mirror without looking at a record; sdk is the official client in a loop.")]
pub struct RelayArgs {
    /// Payload bytes of a message
    #[arg(long, value_name = "BYTES", default_value_t = 1_000,
          value_parser = clap::value_parser!(u32).range(0..=10_000_000))]
    pub size: u32,
    /// Messages of a record upstream
    #[arg(long, value_name = "N", default_value_t = 1_000,
          value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub record: u32,
    /// Partitions of the topic
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=4_096))]
    pub partitions: u32,
    /// Threads that copy
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=1_024))]
    pub shards: u16,
    /// Seconds of a run, instead of a number of messages
    #[arg(long, value_name = "SECONDS", conflicts_with = "messages",
          value_parser = clap::value_parser!(u64).range(1..=3_600))]
    pub duration: Option<u64>,
    /// Messages of a run, instead of 2 GB or 4 million of them, whichever is less
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub messages: Option<u64>,
    /// Whether tidegate checks the checksum of every message
    #[arg(long, value_enum, default_value_t = Switch::On)]
    pub verify: Switch,
    /// max_batch_bytes of the source
    #[arg(long, value_name = "BYTES", default_value_t = 8 << 20,
          value_parser = clap::value_parser!(u64).range(4_096..=60 << 20))]
    pub max_batch_bytes: u64,
    /// A real server to read from: `[user:password@]host:port`
    #[arg(long, value_name = "SERVER", requires = "down")]
    pub up: Option<Endpoint>,
    /// A real server to write to
    #[arg(long, value_name = "SERVER", requires = "up")]
    pub down: Option<Endpoint>,
    /// Milliseconds by which built-in brokers answer polls and sends later
    #[arg(long, value_name = "MS", default_value_t = 0, conflicts_with = "up",
          value_parser = clap::value_parser!(u64).range(0..=10_000))]
    pub round_trip: u64,
    /// What to compare with
    #[arg(long, value_enum, default_value_t = Peer::Copy)]
    pub peer: Peer,
    /// Runs of each side
    #[arg(long, value_name = "N", default_value_t = RUNS_WORTH,
          value_parser = clap::value_parser!(u32).range(1..=100))]
    pub runs: u32,
    /// Seconds of steady messages for each side; 0 leaves that part out
    #[arg(long, value_name = "SECONDS", default_value_t = 5,
          value_parser = clap::value_parser!(u64).range(0..=90))]
    pub latency: u64,
    /// Print the result as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `--verify`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// As the daemon does unless told otherwise
    On,
    /// The framing alone is checked
    Off,
}

/// `--peer`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Peer {
    /// The official SDK, polling, sending and saving in a loop
    Sdk,
    /// The same polls and sends, records unread: the limit
    Copy,
    /// Nothing
    None,
}

/// What a side is told.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The topic.
    pub shape: Shape,
    /// Threads.
    pub shards: u16,
    /// Checksums of every message.
    pub verify: bool,
    /// Bound of one poll.
    pub max_batch_bytes: u64,
}

impl Setting {
    /// One partition of small messages, everything else as the daemon has it.
    pub fn usual() -> Setting {
        let shape = Shape { size: 100, record: 1, partitions: 1 };
        Setting { shape, shards: 1, verify: true, max_batch_bytes: 8 << 20 }
    }

    /// `max_buffered_bytes`: the default, and more where partitions need it.
    pub fn buffers(&self) -> u64 {
        let shards = u64::from(self.shards);
        let feeds = u64::from(self.shape.partitions).div_ceil(shards);
        (128 << 20).max(shards * ((8 << 20) + feeds * (256 << 10) + 4 * self.max_batch_bytes))
    }
}

/// Measures and prints.
pub fn run(args: &RelayArgs) -> Exit {
    match perform(args) {
        Ok(text) => {
            report::out(&text);
            Exit::Ok
        }
        Err(error) => report::fail(args.json, Exit::Findings, &error.to_string()),
    }
}

fn perform(args: &RelayArgs) -> Result<String, BenchError> {
    let bench = Bench::prepare(args)?;
    let say = |text: String| {
        if !args.json {
            report::out(&text);
        }
    };
    let machine = machine(args, &bench);
    say(format!("machine: {}", super::listed(&machine)));
    let sides: Vec<Who> = [Some(Who::Ours), bench.peer].into_iter().flatten().collect();
    let mut figures = Figures::new(args.size, bench.peer.map(Who::name));
    let mut upstream = bench.upstream()?;
    for turn in 0..args.runs {
        // Who goes first takes turns as well.
        let turns: Vec<Who> = match turn.is_multiple_of(2) {
            true => sides.clone(),
            false => sides.iter().rev().copied().collect(),
        };
        for who in turns {
            let ran = bench.measure(who, &mut upstream)?;
            say(format!("run {} {}", turn + 1, ran.line(who.name(), args.size)));
            figures.add(who, ran);
        }
    }
    if args.latency > 0 && upstream.is_loopback() {
        drop(upstream);
        say(format!("{RATE} messages a second for {} s each", args.latency));
        for who in sides.into_iter().filter(|who| *who != Who::Copy) {
            figures.ways(who, bench.ways(who, args.latency)?);
        }
    }
    Ok(match args.json {
        true => figures.json(&machine).to_string(),
        false => figures.text(),
    })
}

/// What all runs have in common.
struct Bench {
    setting: Setting,
    peer: Option<Who>,
    real: Option<(Endpoint, Endpoint)>,
    round_trip: Duration,
    messages: u64,
    duration: Option<Duration>,
    patience: Patience,
}

impl Bench {
    fn prepare(args: &RelayArgs) -> Result<Bench, BenchError> {
        let shape = Shape { size: args.size, record: args.record, partitions: args.partitions };
        let usual = (USUAL_BYTES / u64::from(args.size.max(1))).min(USUAL_MESSAGES);
        let messages = match args.duration {
            Some(_) => AHEAD_BYTES / (shape.record_bytes() / u64::from(args.record)).max(1),
            None => args.messages.unwrap_or(usual),
        };
        let limit = Duration::from_secs(WAIT + messages / SLOWEST + args.duration.unwrap_or(0));
        Ok(Bench {
            setting: Setting {
                shape,
                shards: args.shards,
                verify: args.verify == Switch::On,
                max_batch_bytes: args.max_batch_bytes,
            },
            peer: match args.peer {
                Peer::Sdk => Some(Who::Sdk),
                Peer::Copy => Some(Who::Copy),
                Peer::None => None,
            },
            real: args.up.clone().zip(args.down.clone()),
            round_trip: Duration::from_millis(args.round_trip),
            messages,
            duration: args.duration.map(Duration::from_secs),
            patience: Patience::new(limit).map_err(BenchError::machine("signals"))?,
        })
    }

    fn upstream(&self) -> Result<Upstream, BenchError> {
        let shape = self.setting.shape.clone();
        let mut upstream = Upstream::open(shape, self.real.clone(), self.round_trip)?;
        upstream.fill(self.messages)?;
        Ok(upstream)
    }

    /// One run, from the start of a process to its end.
    fn measure(&self, who: Who, upstream: &mut Upstream) -> Result<Ran, BenchError> {
        let mut destination = upstream.destination()?;
        let mut side = Side::start(who, upstream, &destination, &self.setting)?;
        let begun = Instant::now();
        let expected = upstream.messages();
        // The first look that finds something, and the last.
        let (mut first, mut last) = (None, (0, begun));
        let mut looks = 0_u64;
        side.until(&self.patience, "the last message at the destination", || {
            looks += 1;
            if !upstream.is_loopback() && !looks.is_multiple_of(10) {
                return Ok(false);
            }
            let seen = destination.acked()?.messages;
            let now = Instant::now();
            if seen > last.0 {
                last = (seen, now);
                first.get_or_insert(last);
            }
            let Some(duration) = self.duration else { return Ok(seen >= expected) };
            if seen + self.messages / 2 > upstream.messages() {
                upstream.fill(upstream.messages() + self.messages / 2)?;
            }
            Ok(first.is_some_and(|(_, at)| now - at >= duration))
        })?;
        let peak_memory = side.peak_memory();
        let ended = side.stop()?;
        let acked = destination.acked()?;
        if self.duration.is_none() && acked.messages != expected {
            let (what, seen) = (format!("messages copied by {}", who.name()), acked.messages);
            return Err(BenchError::Different { what, seen, expected });
        }
        let (before, from) = match first {
            Some(first) if first.0 < last.0 => first,
            // Everything came between two looks: the start of the process has to do.
            _ => (0, begun),
        };
        Ok(Ran {
            counted: last.0 - before,
            elapsed: (last.1 - from).max(Duration::from_micros(1)),
            messages: acked.messages,
            sends: acked.sends,
            cpu: ended.cpu,
            peak_memory,
        })
    }

    /// Ways of messages that come at a steady rate, microseconds.
    fn ways(&self, who: Who, seconds: u64) -> Result<pace::Ways, BenchError> {
        let upstream = Upstream::open(self.setting.shape.clone(), None, self.round_trip)?;
        let destination = upstream.destination()?;
        let size = self.setting.shape.size;
        let partitions = self.setting.shape.partitions;
        let pace = Pace { rate: RATE, seconds, size, partitions };
        let mut side = Side::start(who, &upstream, &destination, &self.setting)?;
        let ways = pace.through(&mut side, &upstream, destination, &self.patience)?;
        side.stop()?;
        Ok(ways)
    }
}

fn machine(args: &RelayArgs, bench: &Bench) -> Value {
    let (model, cpus, kernel) = procfs::machine();
    json!({
        "cpu": model,
        "cpus": cpus,
        "kernel": kernel,
        "build": super::build(),
        "version": env!("CARGO_PKG_VERSION"),
        "size": args.size,
        "record": args.record,
        "partitions": args.partitions,
        "shards": args.shards,
        "messages": args.duration.is_none().then_some(bench.messages),
        "duration_seconds": args.duration,
        "verify": if args.verify == Switch::On { "on" } else { "off" },
        "max_batch_bytes": args.max_batch_bytes,
        "max_buffered_bytes": bench.setting.buffers(),
        "round_trip_ms": args.round_trip,
        "servers": if bench.real.is_some() { "real" } else { "loopback" },
        "peer": bench.peer.map_or("none", Who::name),
        "latency_seconds": args.latency,
    })
}
