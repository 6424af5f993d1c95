//! `tidegate bench idle`: a mirror of many partitions that has nothing to copy.

use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::super::error::BenchError;
use super::super::figures::{Spread, rounded};
use super::super::{build, procfs};
use super::brokers::{Destination, Upstream};
use super::side::{Side, Who};
use super::{RUNS_WORTH, Setting, Shape, few};
use crate::cli::Exit;
use crate::cli::bench::wait::Patience;
use crate::cli::report;

const WAIT: Duration = Duration::from_secs(300);
/// After the last partition is copied, so that pauses between polls have grown to their longest.
const REST: Duration = Duration::from_secs(3);

/// Arguments of `tidegate bench idle`.
#[derive(Debug, Args)]
#[command(after_help = "\
Every partition gets one message first; when all have arrived the mirror rests for 3 s, and then
its processor time is measured for --seconds, with nothing to copy. Memory is the largest of the
process, the start included.")]
pub struct IdleArgs {
    /// Topics
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=4_096))]
    pub topics: u32,
    /// Partitions of each topic
    #[arg(long, value_name = "N", default_value_t = 1_024,
          value_parser = clap::value_parser!(u32).range(1..=4_096))]
    pub partitions: u32,
    /// Threads that copy
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=1_024))]
    pub shards: u16,
    /// Seconds of a run
    #[arg(long, value_name = "SECONDS", default_value_t = 10,
          value_parser = clap::value_parser!(u64).range(1..=600))]
    pub seconds: u64,
    /// Runs
    #[arg(long, value_name = "N", default_value_t = RUNS_WORTH,
          value_parser = clap::value_parser!(u32).range(1..=100))]
    pub runs: u32,
    /// Print the result as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Measures and prints.
pub fn run(args: &IdleArgs) -> Exit {
    match perform(args) {
        Ok(text) => {
            report::out(&text);
            Exit::Ok
        }
        Err(error) => report::fail(args.json, Exit::Findings, &error.to_string()),
    }
}

fn perform(args: &IdleArgs) -> Result<String, BenchError> {
    let patience = Patience::new(WAIT).map_err(BenchError::machine("signals"))?;
    let (mut cpu, mut memory) = (Vec::new(), Vec::new());
    for _ in 0..args.runs {
        let (share, peak) = measure(args, &patience)?;
        cpu.push(share * 100.0);
        memory.push(peak as f64 / 1_048_576.0);
    }
    let (cpu, memory) = (Spread::of(cpu.into_iter()), Spread::of(memory.into_iter()));
    let note = few(args.runs as usize);
    if !args.json {
        let lines = [
            vec!["CPU, percent of a core".to_owned(), cpu.shown(2)],
            vec!["largest memory, MiB".to_owned(), memory.shown(1)],
        ];
        let table = report::table(&["median (least to most)", "tidegate"], &lines);
        return Ok(format!("{table}{}", note.unwrap_or_default()).trim_end().to_owned());
    }
    let (model, cpus, kernel) = procfs::machine();
    let spread = |of: Spread| json!([rounded(of.least), rounded(of.most)]);
    let mut report = json!({
        "cpu_percent": rounded(cpu.median),
        "peak_memory_mib": rounded(memory.median),
        "spread": { "cpu_percent": spread(cpu), "peak_memory_mib": spread(memory) },
        "topics": args.topics,
        "partitions": args.partitions,
        "seconds": args.seconds,
        "runs": args.runs,
        "machine": {
            "cpu": model, "cpus": cpus, "kernel": kernel, "build": build(),
            "version": env!("CARGO_PKG_VERSION"), "shards": args.shards,
        },
    });
    if let Some(note) = note {
        report["note"] = note.into();
    }
    Ok(report.to_string())
}

/// Share of a core and largest memory.
fn measure(args: &IdleArgs, patience: &Patience) -> Result<(f64, u64), BenchError> {
    let shape = Shape { size: 100, record: 1, partitions: args.partitions };
    let feeds = args.topics.saturating_mul(args.partitions);
    let budget = Shape { partitions: feeds, ..shape.clone() };
    let setting = Setting { shape: budget, shards: args.shards, ..Setting::usual() };
    let mut upstream = Upstream::open_topics(shape, args.topics)?;
    let expected = upstream.fill(u64::from(args.partitions))? * u64::from(args.topics);
    let mut destination: Destination = upstream.destination()?;
    let mut side = Side::start(Who::Ours, &upstream, &destination, &setting)?;
    let what = "one message of every partition";
    side.until(patience, what, || Ok(destination.acked()?.messages >= expected))?;
    side.rest(patience, REST)?;
    let before = side.cpu_so_far();
    let elapsed = side.rest(patience, Duration::from_secs(args.seconds))?;
    let cpu = side.cpu_so_far().saturating_sub(before);
    let peak = side.peak_memory();
    side.stop()?;
    Ok((cpu.as_secs_f64() / elapsed.as_secs_f64(), peak))
}
