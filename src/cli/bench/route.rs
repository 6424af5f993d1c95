//! `tidegate bench route`: what a row costs from the server's bytes to a sealed send, for one
//! destination and for many. In one thread, without Postgres, sockets and disk.
//!
//! ```text
//! pgoutput bytes ─▶ decode ─▶ route, admit ─▶ envelope ─▶ batch ─▶ checksums ─▶ acked at once
//! ```
#![allow(clippy::disallowed_methods)] // reads the clock

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};

use super::error::BenchError;
use super::figures::{Spread, rounded};
use super::procfs;
use super::rows::Rows;
use crate::cli::Exit;
use crate::cli::report;
use crate::config::{self, CapturePlan, SystemSecrets};
use crate::fanout::Failure;
use crate::iggy_wire::{Reply, Request, TopicInfo, TopicOption};
use crate::shard::pipeline::Press;
use crate::time::Millis;

/// Arguments of `tidegate bench route`.
#[derive(Debug, Args)]
#[command(after_help = "\
Every row has 4 columns (bigint, two routing columns, 142 bytes of jsonb), is one of 1,000 in its
transaction, and goes out in the record envelope, the routing columns stripped. Destinations are
admitted by a list and take turns. One thread does everything; sends are acked at once. The ratio
is rows_per_second of the last number of destinations over that of the first.")]
pub struct RouteArgs {
    /// Rows of a run
    #[arg(long, value_name = "N", default_value_t = 1_000_000,
          value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub rows: u64,
    /// Numbers of destinations, one after the other
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = [1, 16, 256],
          value_parser = clap::value_parser!(u32).range(1..=4_096))]
    pub destinations: Vec<u32>,
    /// Runs of each
    #[arg(long, value_name = "N", default_value_t = 7,
          value_parser = clap::value_parser!(u32).range(1..=100))]
    pub runs: u32,
    /// Print the result as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// One run.
struct Ran {
    elapsed: Duration,
    cpu: Duration,
    sends: u64,
}

/// Measures and prints.
pub fn run(args: &RouteArgs) -> Exit {
    match perform(args) {
        Ok(text) => {
            report::out(&text);
            Exit::Ok
        }
        Err(error) => report::fail(args.json, Exit::Findings, &error.to_string()),
    }
}

fn perform(args: &RouteArgs) -> Result<String, BenchError> {
    let mut runs: Vec<Vec<Ran>> = args.destinations.iter().map(|_| Vec::new()).collect();
    // Each number of destinations in every round: what the machine does meanwhile hits all.
    for _ in 0..args.runs {
        for (count, runs) in args.destinations.iter().zip(&mut runs) {
            runs.push(measure(*count, args.rows)?);
        }
    }
    let cases: Vec<Case> = args
        .destinations
        .iter()
        .zip(&runs)
        .map(|(destinations, runs)| Case::of(*destinations, args.rows, runs))
        .collect();
    let speed = |case: Option<&Case>| case.map_or(0.0, |case| case.speed.median);
    let ratio = rounded(speed(cases.last()) / speed(cases.first()).max(1.0));
    Ok(match args.json {
        true => json(args, &cases, ratio).to_string(),
        false => text(&cases, ratio),
    })
}

/// What the runs of one number of destinations come to.
struct Case {
    destinations: u32,
    speed: Spread,
    cpu: Spread,
    sends: u64,
}

impl Case {
    fn of(destinations: u32, rows: u64, runs: &[Ran]) -> Case {
        let rows = rows as f64;
        Case {
            destinations,
            speed: Spread::of(runs.iter().map(|run| rows / run.elapsed.as_secs_f64())),
            cpu: Spread::of(runs.iter().map(|run| run.cpu.as_secs_f64() * 1e6 / rows)),
            sends: runs.first().map_or(0, |run| run.sends),
        }
    }
}

fn json(args: &RouteArgs, cases: &[Case], ratio: f64) -> Value {
    let (model, cpus, kernel) = procfs::machine();
    let cases: Vec<Value> = cases
        .iter()
        .map(|case| {
            json!({
                "destinations": case.destinations,
                "rows_per_second": case.speed.median.round(),
                "cpu_seconds_per_million": rounded(case.cpu.median),
                "sends": case.sends,
            })
        })
        .collect();
    json!({
        "cases": cases,
        "ratio": { "rows_per_second": ratio },
        "rows": args.rows,
        "runs": args.runs,
        "machine": { "cpu": model, "cpus": cpus, "kernel": kernel },
        "build": super::build(),
    })
}

fn text(cases: &[Case], ratio: f64) -> String {
    let lines: Vec<Vec<String>> = cases
        .iter()
        .map(|case| {
            vec![
                case.destinations.to_string(),
                case.speed.shown(0),
                case.cpu.shown(3),
                case.sends.to_string(),
            ]
        })
        .collect();
    let heads = ["destinations", "rows a second (least to most)", "CPU s per million", "sends"];
    format!("{}ratio: rows a second {ratio}", report::table(&heads, &lines))
}

/// One run: all rows through a fresh capture.
fn measure(destinations: u32, rows: u64) -> Result<Ran, BenchError> {
    let plan = plan(destinations)?;
    let mut press = Press::new(&plan);
    let mut source = Rows::new(destinations);
    let mut broker = Acks::default();
    broker.serve(&mut press);
    let (started, cpu) = (Instant::now(), procfs::thread_cpu());
    let mut left = rows;
    while left > 0 {
        let (chunk, taken) = source.transaction(left);
        press.read(Millis(0), chunk).map_err(BenchError::Refused)?;
        broker.serve(&mut press);
        left -= taken;
    }
    press.close(Millis(0));
    broker.serve(&mut press);
    let (elapsed, cpu) = (started.elapsed(), procfs::thread_cpu().saturating_sub(cpu));
    let acked = press.acked();
    if acked != rows || !press.is_empty() {
        let what = "messages that were acked".to_owned();
        return Err(BenchError::Different { what, seen: acked, expected: rows });
    }
    Ok(Ran { elapsed, cpu, sends: broker.sends })
}

/// A destination that has every topic and takes every message.
#[derive(Default)]
struct Acks {
    sends: u64,
    offset: u64,
}

impl Acks {
    fn serve(&mut self, press: &mut Press) {
        while let Some(ask) = press.next(Millis(0)) {
            let answer = match ask.request {
                Request::Topic { topic, .. } => Ok(Reply::Topic(Some(topic_info(&topic)))),
                Request::Send { record, .. } => {
                    self.sends += 1;
                    let base_offset = Some(self.offset);
                    self.offset += u64::from(record.count());
                    Ok(Reply::Sent { base_offset })
                }
                _ => Err(Failure::Refused(3)),
            };
            press.answer(Millis(0), ask.token, answer);
        }
    }
}

fn topic_info(name: &str) -> TopicInfo {
    TopicInfo {
        name: name.to_owned(),
        created_at: 1,
        partitions_count: 1,
        message_expiry: 0,
        compression: 1,
        max_size: 0,
        size: 0,
        messages_count: 0,
        options: vec![TopicOption { key: "durability".into(), value: "persisted".into() }],
        partitions: Vec::new(),
    }
}

/// The plan of a capture that routes by two columns to so many destinations.
fn plan(destinations: u32) -> Result<Arc<CapturePlan>, BenchError> {
    let names: Vec<String> = (0..destinations)
        .map(|n| format!("{{ stream = \"{}\", topic = \"{}\" }}", Rows::STREAM, Rows::topic(n)))
        .collect();
    let stream = Rows::STREAM;
    let text = format!(
        "[daemon]\nstate_dir = \"/nowhere\"\n\n\
         [clusters.sink]\naddress = \"127.0.0.1:1\"\nusername = \"iggy\"\npassword = \"iggy\"\n\n\
         [sources.bench]\nkind = \"postgres_cdc\"\nto = \"sink\"\n\
         connection = \"postgresql://bench@127.0.0.1:1/bench?sslmode=disable\"\n\
         slot = \"bench\"\npublication = \"bench\"\ntables = [\"public.events\"]\n\n\
         [sources.bench.routing]\ntopic_column = \"event_type\"\nstream_column = \"tenant\"\n\
         default_stream = \"{stream}\"\ndefault_topic = \"{}\"\n\n\
         [sources.bench.routing.admission]\nmode = \"allowlist\"\nmax_destinations = 4096\n\
         allowlist = [ {} ]\n",
        Rows::topic(0),
        names.join(", "),
    );
    let plan = config::parse(&text, Path::new("bench").to_string_lossy().as_ref(), &SystemSecrets);
    let plan = plan.map_err(|error| BenchError::Refused(error.to_string()))?;
    plan.captures.first().cloned().ok_or_else(|| BenchError::Refused("no capture".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_sent_once_to_its_destination() {
        for (destinations, rows) in [(1, 2_500), (16, 2_500), (256, 300)] {
            let ran = measure(destinations, rows).unwrap();
            assert!(ran.sends >= u64::from(destinations), "{} sends", ran.sends);
        }
    }
}
