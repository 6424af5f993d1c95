//! `tidegate bench latency`: what a mirror adds to the way of a message.
//!
//! ```text
//! direct    producer ─▶ destination                       due ─▶ acked by the destination
//! mirrored  producer ─▶ upstream ─▶ tidegate ─▶ destination       the same, added = the rest
//! ```

use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use super::error::BenchError;
use super::figures::{Spread, rounded};
use super::pace::{Pace, Ways};
use super::procfs;
use super::relay::{RUNS_WORTH, Setting, Shape, Side, Upstream, Who, few};
use super::wait::Patience;
use crate::cli::Exit;
use crate::cli::report;

/// Beyond the time that messages take.
const WAIT: u64 = 60;
const PERCENTILES: [(&str, f64); 3] = [("p50_us", 50.0), ("p99_us", 99.0), ("p999_us", 99.9)];

/// Arguments of `tidegate bench latency`.
#[derive(Debug, Args)]
#[command(after_help = "\
A message's way begins when it is due at its producer, on time or not, and ends when the
destination has acked it. Direct: one hop, from the producer to the destination. Mirrored: from the
producer to an upstream broker, from there through tidegate. Added is the difference of the
medians over the runs.")]
pub struct LatencyArgs {
    /// Messages a second, over all partitions
    #[arg(long, value_name = "N", default_value_t = 10_000,
          value_parser = clap::value_parser!(u32).range(1..=200_000))]
    pub rate: u32,
    /// Partitions of the topic, each with a producer of its own
    #[arg(long, value_name = "N", default_value_t = 8,
          value_parser = clap::value_parser!(u32).range(1..=64))]
    pub partitions: u32,
    /// Payload bytes of a message
    #[arg(long, value_name = "BYTES", default_value_t = 100,
          value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub size: u32,
    /// Threads that copy
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=1_024))]
    pub shards: u16,
    /// Seconds of a run
    #[arg(long, value_name = "SECONDS", default_value_t = 10,
          value_parser = clap::value_parser!(u64).range(1..=90))]
    pub seconds: u64,
    /// Runs of each
    #[arg(long, value_name = "N", default_value_t = RUNS_WORTH,
          value_parser = clap::value_parser!(u32).range(1..=100))]
    pub runs: u32,
    /// Print the result as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Measures and prints.
pub fn run(args: &LatencyArgs) -> Exit {
    match perform(args) {
        Ok(text) => {
            report::out(&text);
            Exit::Ok
        }
        Err(error) => report::fail(args.json, Exit::Findings, &error.to_string()),
    }
}

fn perform(args: &LatencyArgs) -> Result<String, BenchError> {
    let shape = Shape { size: args.size, record: 1, partitions: args.partitions };
    let (rate, seconds, partitions) = (args.rate, args.seconds, args.partitions);
    let pace = Pace { rate, seconds, size: args.size, partitions };
    if pace.messages() > 1 << 20 {
        let why = format!("{} messages; at most 1048576 of a run are kept", pace.messages());
        return Err(BenchError::Refused(why));
    }
    let setting = Setting { shape, shards: args.shards, verify: true, max_batch_bytes: 8 << 20 };
    let limit = Duration::from_secs(WAIT + args.seconds);
    let patience = Patience::new(limit).map_err(BenchError::machine("signals"))?;
    let (mut direct, mut mirrored) = (Vec::new(), Vec::new());
    for _ in 0..args.runs {
        patience.go_on("the next run")?;
        let upstream = Upstream::open(setting.shape.clone(), None, Duration::ZERO)?;
        direct.push(pace.direct(upstream.stream(), upstream.destination()?, &patience)?);
        let destination = upstream.destination()?;
        let mut side = Side::start(Who::Ours, &upstream, &destination, &setting)?;
        mirrored.push(pace.through(&mut side, &upstream, destination, &patience)?);
        side.stop()?;
    }
    Ok(match args.json {
        true => json(args, &direct, &mirrored).to_string(),
        false => text(&direct, &mirrored),
    })
}

fn spread(ways: &[Ways], percent: f64) -> Spread {
    Spread::of(ways.iter().map(|ways| ways.value_at_percentile(percent) as f64))
}

fn json(args: &LatencyArgs, direct: &[Ways], mirrored: &[Ways]) -> Value {
    let side = |ways: &[Ways]| {
        let mut side = json!({ "messages": ways.iter().map(Ways::len).sum::<u64>() });
        for (name, percent) in PERCENTILES {
            let Spread { median, least, most } = spread(ways, percent);
            side[name] = median.into();
            side["spread"][name] = json!([least, most]);
        }
        side["max_us"] = ways.iter().map(Ways::max).max().into();
        side
    };
    let (direct, mirrored) = (side(direct), side(mirrored));
    let added = PERCENTILES.map(|(name, _)| {
        let of = |side: &Value| side[name].as_f64().unwrap_or(0.0);
        (name.to_owned(), Value::from(rounded(of(&mirrored) - of(&direct))))
    });
    let (model, cpus, kernel) = procfs::machine();
    let mut report = json!({
        "direct": direct,
        "mirrored": mirrored,
        "added": Value::Object(added.into_iter().collect()),
        "rate": args.rate,
        "runs": args.runs,
        "machine": {
            "cpu": model, "cpus": cpus, "kernel": kernel, "build": super::build(),
            "version": env!("CARGO_PKG_VERSION"), "partitions": args.partitions,
            "size": args.size, "shards": args.shards, "seconds": args.seconds,
        },
    });
    if let Some(note) = few(args.runs as usize) {
        report["note"] = note.into();
    }
    report
}

fn text(direct: &[Ways], mirrored: &[Ways]) -> String {
    let lines: Vec<Vec<String>> = PERCENTILES
        .iter()
        .map(|(name, percent)| {
            let (direct, mirrored) = (spread(direct, *percent), spread(mirrored, *percent));
            let added = mirrored.median - direct.median;
            vec![(*name).to_owned(), direct.shown(0), mirrored.shown(0), format!("{added:.0}")]
        })
        .collect();
    let heads = ["median (least to most)", "direct", "mirrored", "added"];
    let table = report::table(&heads, &lines);
    let note = few(direct.len()).unwrap_or_default();
    format!("{table}{note}").trim_end().to_owned()
}
