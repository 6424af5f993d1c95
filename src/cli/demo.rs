//! `tidegate demo`: the whole promise in one command, without any service.
//!
//! ```text
//!   writers ──▶ broker ──▶ tidegate run (child process) ──▶ broker ──▶ compare
//!               upstream   killed twice with sends unacked  downstream
//! ```
//!
//! It judges by what both brokers hold, never by what the mirror says. Every wait has a limit,
//! and on every way out the child is dead, the brokers are down and the directory is gone.
#![allow(clippy::disallowed_methods)] // reads the clock and sleeps

pub mod compare;
pub mod process;
mod stage;
mod summary;
mod watch;
pub mod workload;

use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

use clap::Args;

use self::process::{Process, Signal};
use self::stage::{LiveWriter, STREAM, Stage, TOPIC};
use self::summary::{Summary, grouped};
use self::watch::{DemoError, Watch, ended_early};
use super::Exit;
use super::report;
use crate::loopback::{Control, Fault, Scope, Times};

/// All waits together, for up to three million messages.
const TIME_LIMIT: Duration = Duration::from_secs(300);
/// A kill waits so long for an unacked send.
const UNACKED_LIMIT: Duration = Duration::from_secs(10);
/// After the first unacked send, so that other partitions have one too.
const GATHER: Duration = Duration::from_millis(20);
/// An orderly stop of the mirror is bounded by itself; this is above its bound.
const STOP_LIMIT: Duration = Duration::from_secs(45);
/// Percent of all messages that are copied before a kill.
const KILL_AT: [u64; 2] = [20, 55];

/// Arguments of `tidegate demo`.
#[derive(Debug, Args)]
#[command(after_help = "\
How the figures are made:
  messages_per_second      messages over the time from the first start of the mirror until the
                           destination held all of them, both kills and restarts included
  megabytes_per_second     payload and user header bytes over the same time, in 10^6 bytes
  cpu_seconds_per_million  user and system time of the mirror's processes alone
  kills_with_unacked_sends kills at which the destination had sends it had not answered yet
  duplicates, reordered    a message that upstream never had counts as a duplicate, an offset
                           out of step with the others as reordered
Exit code 0 means that lost, duplicates and reordered are 0.")]
pub struct DemoArgs {
    /// Print the result as one JSON object
    #[arg(long)]
    pub json: bool,
    /// Leave brokers and mirror running and show where to look
    #[arg(long)]
    pub keep: bool,
    /// Messages to mirror
    #[arg(long, value_name = "N", default_value_t = 1_000_000,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub messages: u64,
    /// Partitions to spread them over
    #[arg(long, value_name = "N", default_value_t = 8,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub partitions: u32,
}

/// Runs the demonstration; [`Exit::Ok`] only if nothing was lost, duplicated or reordered.
pub fn run(args: &DemoArgs) -> Exit {
    match perform(args) {
        Ok(true) => Exit::Ok,
        Ok(false) => Exit::Findings,
        Err(error) => report::fail(args.json, Exit::Findings, &error.to_string()),
    }
}

fn perform(args: &DemoArgs) -> Result<bool, DemoError> {
    let limit = TIME_LIMIT.max(Duration::from_millis(args.messages / 10));
    let watch = Watch::start(limit)
        .map_err(|why| DemoError::Machine { what: "cannot watch for signals", why })?;
    let stage = Stage::build(args.messages, args.partitions)?;
    let say = |text: String| {
        if !args.json {
            report::out(&text);
        }
    };
    say(format!(
        "two brokers in this process, topic {STREAM}/{TOPIC} with {} partitions",
        args.partitions
    ));
    let begun = Instant::now();
    let backlog = stage.write_backlog(&watch)?;
    say(format!(
        "backlog    {} messages in {:.1} s; {} more while the mirror runs",
        grouped(backlog),
        begun.elapsed().as_secs_f64(),
        grouped(args.messages - backlog),
    ));
    let mut show = Show { args, watch, say: &say, cpu: Duration::ZERO, unacked: 0 };
    let mut live = stage.write_live();
    let begun = Instant::now();
    let mut mirror = stage.start_mirror()?;
    for (nth, percent) in (1..).zip(KILL_AT) {
        mirror = show.kill_and_restart(&stage, mirror, nth, percent)?;
        live.killed();
    }
    show.wait_for_all(&stage, &mut live, &mut mirror)?;
    let elapsed = begun.elapsed();
    show.wait_until_ready(&stage, &mut mirror)?;
    if !args.keep {
        show.stop(&mut mirror)?;
    }
    let (report, bytes) = stage.compare()?;
    let summary = Summary {
        report,
        bytes,
        kills: KILL_AT.len() as u64,
        kills_with_unacked_sends: show.unacked,
        elapsed,
        // A mirror that is kept is still running: its time is not known yet.
        cpu: show.cpu + if args.keep { mirror.cpu_so_far() } else { Duration::ZERO },
    };
    report::out(&if args.json { summary.json().to_string() } else { summary.text() });
    if args.keep {
        show.keep(&stage, &mut mirror)?;
    }
    Ok(summary.is_good())
}

/// The acts, and what they add up.
struct Show<'a> {
    args: &'a DemoArgs,
    watch: Watch,
    say: &'a dyn Fn(String),
    cpu: Duration,
    unacked: u64,
}

impl Show<'_> {
    /// Waits until enough is copied, withholds acks until sends are unacked, kills.
    fn kill_and_restart(
        &mut self,
        stage: &Stage,
        mut mirror: Process,
        nth: usize,
        percent: u64,
    ) -> Result<Process, DemoError> {
        let enough = self.args.messages * percent / 100;
        let what = format!("{} copied messages, before kill {nth}", grouped(enough));
        self.watch.until(&what, &mut mirror, || Ok(stage.copied() >= enough))?;
        let broker = stage.downstream();
        self.withhold_acks(&broker, nth);
        let begun = Instant::now();
        let what = format!("an unacked send, for kill {nth}");
        self.watch.until(&what, &mut mirror, || {
            Ok(broker.unacked_sends() > 0 || begun.elapsed() > UNACKED_LIMIT)
        })?;
        std::thread::sleep(GATHER);
        let (unacked, copied) = (broker.unacked_sends(), stage.copied());
        let ended = mirror.kill();
        broker.clear_all();
        broker.release_held();
        if ended.status.signal() != Some(libc::SIGKILL) {
            return Err(ended_early("the wait for an unacked send", &mut mirror, ended.status));
        }
        self.cpu += ended.cpu;
        self.unacked += u64::from(unacked > 0);
        (self.say)(format!(
            "kill {nth}     SIGKILL at {} copied messages, {unacked} sends unacked; restarted",
            grouped(copied),
        ));
        stage.start_mirror()
    }

    /// At the first kill every unacked send is in the log, at the second one only those of even
    /// partitions are: the mirror cannot know which, and has to look.
    fn withhold_acks(&self, broker: &Control, nth: usize) {
        if nth > 1 {
            for partition in (1..self.args.partitions).step_by(2) {
                let scope = Scope::sends().topic(STREAM, TOPIC).partition(partition);
                broker.fault(Fault::DropRequest, scope, Times::UntilCleared);
            }
        }
        broker.fault(Fault::HoldReply, Scope::sends(), Times::UntilCleared);
    }

    fn wait_for_all(
        &mut self,
        stage: &Stage,
        live: &mut LiveWriter,
        mirror: &mut Process,
    ) -> Result<(), DemoError> {
        let all = self.args.messages;
        let what = format!("all {} messages at the destination", grouped(all));
        self.watch.until(&what, mirror, || Ok(live.is_done()? && stage.copied() >= all))
    }

    /// With few messages the destination may hold them all before the last mirror has begun; a
    /// signal would end it at once then.
    fn wait_until_ready(&self, stage: &Stage, mirror: &mut Process) -> Result<(), DemoError> {
        let what = format!("the mirror to be ready, as http://{}/readyz says", stage.admin());
        self.watch.until(&what, mirror, || Ok(stage.is_mirror_ready()))
    }

    fn stop(&mut self, mirror: &mut Process) -> Result<(), DemoError> {
        mirror.signal(Signal::Term);
        let ended = mirror.wait(STOP_LIMIT).unwrap_or_else(|| mirror.kill());
        if !ended.status.success() {
            return Err(ended_early("an orderly stop, expected exit code 0", mirror, ended.status));
        }
        self.cpu += ended.cpu;
        Ok(())
    }

    fn keep(&mut self, stage: &Stage, mirror: &mut Process) -> Result<(), DemoError> {
        report::complain(&format!(
            "running    http://{admin}/status and http://{admin}/metrics until Ctrl-C",
            admin = stage.admin(),
        ));
        match self.watch.without_limit().until("the end", mirror, || Ok(false)) {
            Err(DemoError::Interrupted { .. }) => self.stop(mirror),
            other => other,
        }
    }
}
