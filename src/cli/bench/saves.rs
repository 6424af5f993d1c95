//! `tidegate bench commit`: saves of positions as a shard makes them (a new file past the page
//! cache, synced, renamed, the directory synced), one after the other, alone and while a mirror
//! copies as fast as it can.
#![allow(clippy::disallowed_methods)] // threads, files and the clock

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};

use super::error::BenchError;
use super::figures::{Spread, rounded};
use super::pace::{Ways, histogram};
use super::procfs;
use super::relay::{RUNS_WORTH, Setting, Shape, Side, Upstream, Who, few};
use super::wait::Patience;
use crate::batch::{DeltaPiece, Fingerprint, TopicName};
use crate::cli::Exit;
use crate::cli::report;
use crate::cli::scratch::Scratch;
use crate::shard::driver::files::{FileFaults, StateDir, save};
use crate::shard::driver::runtime::Runtimes;
use crate::statefile::format::encode;
use crate::statefile::{FeedState, LastMessage, SourceState};

const WAIT: Duration = Duration::from_secs(120);
/// What the mirror under load copies: large records, so that the disk is what is shared.
const LOAD: Shape = Shape { size: 1_000, record: 1_000, partitions: 1 };
/// Messages upstream at a time, and when there are that many left, as many more.
const AHEAD: u64 = 2_000_000;

/// Arguments of `tidegate bench commit`.
#[derive(Debug, Args)]
#[command(after_help = "\
A save makes a file, writes it past the page cache where the file system allows that, syncs it,
renames it over the old one and syncs the directory. Saves follow each other without a pause; a
mirror keeps them apart. The latency of a save is the time of all its steps.")]
pub struct CommitArgs {
    /// Where to save: a directory on the disk to measure, in which nothing is left behind
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Partitions whose positions are in the file
    #[arg(long, value_name = "N", default_value_t = 8,
          value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub feeds: u32,
    /// Seconds of a run
    #[arg(long, value_name = "SECONDS", default_value_t = 5,
          value_parser = clap::value_parser!(u64).range(1..=600))]
    pub seconds: u64,
    /// Runs of each
    #[arg(long, value_name = "N", default_value_t = RUNS_WORTH,
          value_parser = clap::value_parser!(u32).range(1..=100))]
    pub runs: u32,
    /// Print the result as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// One run.
struct Ran {
    elapsed: Duration,
    ways: Ways,
    direct: bool,
    bytes: usize,
}

/// Measures and prints.
pub fn run(args: &CommitArgs) -> Exit {
    match perform(args) {
        Ok(text) => {
            report::out(&text);
            Exit::Ok
        }
        Err(error) => report::fail(args.json, Exit::Findings, &error.to_string()),
    }
}

fn perform(args: &CommitArgs) -> Result<String, BenchError> {
    let patience = Patience::new(WAIT).map_err(BenchError::machine("signals"))?;
    let (mut alone, mut loaded) = (Vec::new(), Vec::new());
    for _ in 0..args.runs {
        patience.go_on("the next run")?;
        alone.push(saves(args)?);
        loaded.push(under_load(&patience, || saves(args))?);
    }
    Ok(match args.json {
        true => json(args, &alone, &loaded).to_string(),
        false => text(&alone, &loaded),
    })
}

/// Saves one after the other, on a thread with a runtime like a shard's.
fn saves(args: &CommitArgs) -> Result<Ran, BenchError> {
    let dir = match &args.dir {
        Some(dir) => Scratch::create_in(dir, "bench-commit"),
        None => Scratch::create("bench-commit"),
    };
    let dir = dir.map_err(BenchError::machine("a directory"))?;
    let time = Duration::from_secs(args.seconds);
    let path = dir.state_dir();
    let feeds = args.feeds;
    let work = std::thread::spawn(move || save_for(&path, feeds, time));
    match work.join() {
        Ok(ran) => ran.map_err(BenchError::machine("a save")),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

fn save_for(path: &Path, feeds: u32, time: Duration) -> io::Result<Ran> {
    let runtimes = Runtimes::from_environment().map_err(io::Error::other)?;
    let (mut runtime, _) = runtimes.build()?;
    let faults = FileFaults::from_env().map_err(io::Error::other)?;
    let dir = StateDir::new(path);
    let mut state = state(feeds);
    let (mut ways, begun, mut bytes) = (histogram(), Instant::now(), 0);
    runtime.block_on(async {
        while begun.elapsed() < time {
            let started = Instant::now();
            state.generation += 1;
            let image = encode(&state);
            bytes = image.len();
            let saved = save(&dir, dir.begin("bench", 0, image), &faults).await;
            saved.map_err(io::Error::other)?;
            let took = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
            ways.saturating_record(took);
        }
        Ok(Ran { elapsed: begun.elapsed(), ways, direct: dir.is_direct(), bytes })
    })
}

/// Runs `work` while a mirror copies; it must have copied all the time.
fn under_load<T: Send>(
    patience: &Patience,
    work: impl FnOnce() -> Result<T, BenchError> + Send,
) -> Result<T, BenchError> {
    let setting = Setting { shape: LOAD, ..Setting::usual() };
    let mut upstream = Upstream::open(LOAD, None, Duration::ZERO)?;
    upstream.fill(AHEAD)?;
    let mut destination = upstream.destination()?;
    let mut side = Side::start(Who::Ours, &upstream, &destination, &setting)?;
    let mut copied = || Ok::<u64, BenchError>(destination.acked()?.messages);
    side.until(patience, "the mirror to copy", || Ok(copied()? > 0))?;
    let over = AtomicBool::new(false);
    let (made, before, after) = std::thread::scope(|scope| {
        let before = copied()?;
        let work = scope.spawn(|| {
            let made = work();
            over.store(true, Ordering::Release);
            made
        });
        let waited = side.until(patience, "the saves", || {
            if copied()? + AHEAD / 2 > upstream.messages() {
                upstream.fill(upstream.messages() + AHEAD)?;
            }
            Ok(over.load(Ordering::Acquire))
        });
        let made = match work.join() {
            Ok(made) => made?,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        waited?;
        Ok::<_, BenchError>((made, before, copied()?))
    })?;
    side.stop()?;
    match after > before {
        true => Ok(made),
        false => Err(BenchError::Refused("the mirror copied nothing meanwhile".to_owned())),
    }
}

/// The positions of a mirror under way.
fn state(feeds: u32) -> SourceState {
    let feed = |partition: u32| FeedState {
        epoch: 1,
        sequence: 1_000,
        position: 1_000_000,
        deltas: vec![DeltaPiece { from_upstream: 0, delta: 0 }],
        last: Some(LastMessage {
            offset: 999_999,
            fingerprint: Fingerprint {
                id: u128::from(partition),
                origin_timestamp: 1_752_000_000_000_000,
                payload_len: 100,
                headers_len: 0,
                hash: 7,
            },
        }),
        upstream_created_at: 1,
        downstream_created_at: 2,
        first_count: Some(feeds),
        ..FeedState::fresh(
            TopicName::new("orders", "events"),
            TopicName::new("orders", "events"),
            partition,
        )
    };
    SourceState {
        source: "bench".into(),
        shard: 0,
        generation: 0,
        saved_at: 1_752_000_000_000_000,
        feeds: (0..feeds).map(feed).collect(),
        captures: Vec::new(),
    }
}

fn rate(runs: &[Ran]) -> Spread {
    Spread::of(runs.iter().map(|run| run.ways.len() as f64 / run.elapsed.as_secs_f64()))
}

fn way(runs: &[Ran], percent: f64) -> Spread {
    Spread::of(runs.iter().map(|run| run.ways.value_at_percentile(percent) as f64))
}

fn json(args: &CommitArgs, alone: &[Ran], loaded: &[Ran]) -> Value {
    let side = |runs: &[Ran]| {
        let (rate, p50, p99) = (rate(runs), way(runs, 50.0), way(runs, 99.0));
        json!({
            "saves": runs.iter().map(|run| run.ways.len()).sum::<u64>(),
            "saves_per_second": rounded(rate.median),
            "p50_us": p50.median,
            "p99_us": p99.median,
            "max_us": runs.iter().map(|run| run.ways.max()).max(),
            "spread": {
                "saves_per_second": [rounded(rate.least), rounded(rate.most)],
                "p50_us": [p50.least, p50.most],
                "p99_us": [p99.least, p99.most],
            },
        })
    };
    let (model, cpus, kernel) = procfs::machine();
    let mut report = json!({
        "alone": side(alone),
        "under_load": side(loaded),
        "runs": args.runs,
        "machine": {
            "cpu": model, "cpus": cpus, "kernel": kernel, "build": super::build(),
            "version": env!("CARGO_PKG_VERSION"), "feeds": args.feeds,
            "seconds": args.seconds, "bytes": alone.first().map(|run| run.bytes),
            "o_direct": alone.first().map(|run| run.direct),
        },
    });
    if let Some(note) = few(args.runs as usize) {
        report["note"] = note.into();
    }
    report
}

fn text(alone: &[Ran], loaded: &[Ran]) -> String {
    let lines = [
        vec!["saves a second".to_owned(), rate(alone).shown(0), rate(loaded).shown(0)],
        vec!["one save, p50 us".to_owned(), way(alone, 50.0).shown(0), way(loaded, 50.0).shown(0)],
        vec!["one save, p99 us".to_owned(), way(alone, 99.0).shown(0), way(loaded, 99.0).shown(0)],
    ];
    let table = report::table(&["median (least to most)", "alone", "beside a mirror"], &lines);
    let first = alone.first();
    let how = match first.is_some_and(|run| run.direct) {
        true => "past the page cache",
        false => "through the page cache: the file system refuses O_DIRECT",
    };
    let bytes = first.map_or(0, |run| run.bytes);
    let note = few(alone.len()).unwrap_or_default();
    format!("{table}{bytes} bytes a save, {how}\n{note}").trim_end().to_owned()
}
