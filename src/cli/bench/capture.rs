//! `tidegate bench capture`: how fast a capture drains a slot and what that costs, next to
//! pg_recvlogical doing the same with an identical slot in the same minutes.
//!
//! ```text
//! Postgres ─ backlog ─┬─▶ slot a1 ─▶ tidegate run ─▶ broker in this process (or a null sink in it)
//!                     ├─▶ slot b1 ─▶ pg_recvlogical ─▶ /dev/null
//!                     ├─▶ slot a2 …     runs take turns, and who goes first does too
//! ```

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::error::BenchError;
use super::figures::{Figures, Side};
use super::latency::{self, RATE};
use super::stage::{Build, Stage, create_slot};
use super::wait::Patience;
use super::workload::Workload;
use super::{drain, listed, postgres, procfs};
use crate::cli::Exit;
use crate::cli::null_sink::SLOTS;
use crate::cli::report;

/// Turns of each side in the measurement of latency.
const ROUNDS: u64 = 2;
/// Every wait ends after this, and a second more for each so many rows.
const WAIT: u64 = 60;
const SLOWEST: u64 = 2_000;

/// Arguments of `tidegate bench capture`.
#[derive(Debug, Args)]
#[command(after_help = "\
How the figures are made:
  rows_per_second          rows over the time from the moment the server begins to decode for the
                           slot (its log says when) until the last row is acked by the sink, or
                           received by pg_recvlogical
  cpu_seconds_per_million  user and system time of the process from its start to its end, set-up
                           and stop included, per million rows
  walsender_cpu_…          the same of the server's sessions with it
  p50_us, p99_us           from the server's commit time until the sink has acked, at 450 one-row
                           transactions a second; for pg_recvlogical those of a reader in this
                           process that does nothing but read
All are medians of the runs. Both drain the same log from identical slots. With --sink null they
are the capture's alone: there is no network hop and no broker's work in them but the acks, which
the daemon gives itself, in the thread that sends.")]
pub struct CaptureArgs {
    /// What is in the log
    #[arg(long, value_enum, default_value_t = Workload::Bulk)]
    pub workload: Workload,
    /// Rows to drain instead of the workload's usual number
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub rows: Option<u64>,
    /// Runs of each side
    #[arg(long, value_name = "N", default_value_t = 7,
          value_parser = clap::value_parser!(u32).range(1..=100))]
    pub runs: u32,
    /// Where tidegate sends
    #[arg(long, value_enum, default_value_t = Sink::Loopback)]
    pub sink: Sink,
    /// Seconds of steady transactions for each side; 0 leaves that part out
    #[arg(long, value_name = "SECONDS", default_value_t = 10,
          value_parser = clap::value_parser!(u64).range(0..=3_600))]
    pub latency: u64,
    /// Directory with initdb, postgres and pg_recvlogical, instead of the newest installed ones
    #[arg(long, value_name = "DIR")]
    pub pg_bin: Option<PathBuf>,
    /// Print the result as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `--sink`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Sink {
    /// A broker in the benchmark's process, over TCP: checks and keeps every message
    Loopback,
    /// The thread of the daemon that sends: acks at once and keeps nothing, without a socket
    Null,
}

/// Measures and prints.
pub fn run(args: &CaptureArgs) -> Exit {
    match perform(args) {
        Ok(text) => {
            report::out(&text);
            Exit::Ok
        }
        Err(error) => report::fail(args.json, Exit::Findings, &error.to_string()),
    }
}

fn perform(args: &CaptureArgs) -> Result<String, BenchError> {
    let rows = args.rows.unwrap_or_else(|| args.workload.usual_rows());
    let limit = Duration::from_secs(WAIT + rows / SLOWEST);
    let patience = Patience::new(limit).map_err(BenchError::machine("signals"))?;
    let bin = postgres::find(args.pg_bin.as_deref())?;
    let say = |text: String| {
        if !args.json {
            report::out(&text);
        }
    };
    let slots: Vec<String> =
        (0..args.runs).flat_map(|run| [slot("a", run), slot("b", run)]).collect();
    let (workload, sink) = (args.workload, args.sink);
    let more_slots = usize::try_from(2 * ROUNDS).unwrap_or(0);
    let build = Build { bin, workload, rows, sink, slots: &slots, more_slots, patience };
    say(workload.describe(rows));
    let mut stage = build.stage()?;
    let (machine, options) = (machine(&mut stage)?, options(args, rows));
    say(format!("options: {}", listed(&options)));
    say(format!("machine: {}", listed(&machine)));
    let mut figures = Figures { rows, ..Figures::default() };
    for run in 0..args.runs {
        drain_both(&stage, run, &mut figures)?;
        let speed = |side: &Side| {
            let last = side.runs.last().map_or(Duration::MAX, |run| run.elapsed);
            rows as f64 / last.as_secs_f64()
        };
        let (ours, theirs) = (speed(&figures.ours), speed(&figures.theirs));
        say(format!("run {}: {ours:.0} rows/s, pg_recvlogical {theirs:.0}", run + 1));
    }
    if args.latency > 0 {
        say(format!("{RATE} one-row transactions a second for {} s each", args.latency));
        ways_of_both(&mut stage, Duration::from_secs(args.latency), &mut figures)?;
    }
    Ok(match args.json {
        true => figures.json(&machine, &options).to_string(),
        false => figures.text(),
    })
}

/// One run of each, the other one first every second time.
fn drain_both(stage: &Stage, run: u32, figures: &mut Figures) -> Result<(), BenchError> {
    for ours in if run.is_multiple_of(2) { [true, false] } else { [false, true] } {
        if ours {
            figures.ours.runs.push(drain::ours(stage, &slot("a", run))?);
        } else {
            figures.theirs.runs.push(drain::pg_recvlogical(stage, &slot("b", run))?);
        }
    }
    Ok(())
}

fn ways_of_both(
    stage: &mut Stage,
    span: Duration,
    figures: &mut Figures,
) -> Result<(), BenchError> {
    let span = span / u32::try_from(ROUNDS).unwrap_or(1);
    // Rows of a round have numbers of their own.
    let numbers = |turn: u64| turn * 10_000_000;
    for round in 0..ROUNDS {
        let (ours, theirs) = (format!("{SLOTS}c{round}"), format!("{SLOTS}d{round}"));
        create_slot(&mut stage.session, &ours)?;
        figures.ours.ways.extend(latency::ours(stage, &ours, span, numbers(2 * round))?);
        create_slot(&mut stage.session, &theirs)?;
        let ways = latency::greedy(stage, &theirs, span, numbers(2 * round + 1))?;
        figures.theirs.ways.extend(ways);
    }
    Ok(())
}

fn slot(side: &str, run: u32) -> String {
    format!("{SLOTS}{side}{run}")
}

fn machine(stage: &mut Stage) -> Result<Value, BenchError> {
    let (model, cpus, kernel) = procfs::machine();
    let postgres = stage.session.value("SHOW server_version")?;
    Ok(json!({ "cpu": model, "cpus": cpus, "kernel": kernel, "postgres": postgres }))
}

/// Everything that decides about the figures.
fn options(args: &CaptureArgs, rows: u64) -> Value {
    let name = |value: &dyn Fn() -> Option<clap::builder::PossibleValue>| {
        value().map_or_else(String::new, |value| value.get_name().to_owned())
    };
    json!({
        "workload": name(&|| args.workload.to_possible_value()),
        "rows": rows,
        "rows_per_transaction": args.workload.transaction(rows),
        "sink": name(&|| args.sink.to_possible_value()),
        "latency_seconds": args.latency,
        "destinations": super::workload::DESTINATIONS.len(),
        "envelope": "record",
        "shards": 1,
        "protocol": "pgoutput 1, text, TCP without TLS",
        "server": "fsync off, autovacuum off",
        "build": super::build(),
    })
}
