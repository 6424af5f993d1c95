//! `tidegate run`: the daemon.

use std::path::PathBuf;

use clap::Args;

use super::Exit;
use super::announce::Announcer;
use super::null_sink::{NullSink, NullSinkArgs};
use super::report;
use super::statedir::{StateDir, StateDirError};
use crate::admin::{self, AdminServer, Board, DaemonInfo};
use crate::config::{ConfigError, Plan};
use crate::shard::driver::control::{self, Ended, RunOptions, RunOutcome};
use crate::shard::driver::files::FileFaults;
use crate::shard::driver::runtime::Runtimes;
use crate::shard::driver::{limits, signals};
use crate::shard::mailbox::{Post, mailbox};
use crate::shard::order::Ask;

/// Orders of operators that wait for the control thread, at most.
const ORDERS_WAITING: usize = 64;

/// Arguments of `tidegate run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Configuration file
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Go on behind changes that Postgres no longer has, and record what is missing as a gap
    #[arg(long)]
    pub accept_gap: bool,
    /// For `tidegate bench` alone.
    #[command(flatten)]
    pub null_sink: NullSinkArgs,
}

/// Mirrors until stopped. Logging is set up, the plan is validated; nothing else has happened.
pub fn run(plan: &Plan, args: &RunArgs) -> Exit {
    match perform(plan, args) {
        Ok(outcome) => ended(&outcome),
        Err((exit, why)) => report::fail(false, exit, &why),
    }
}

fn perform(plan: &Plan, args: &RunArgs) -> Result<RunOutcome, (Exit, String)> {
    if !plan.daemon.core_dumps {
        limits::refuse_core_dumps().map_err(usage)?;
    }
    // Before anything opens files and sockets of its own.
    let open_files = limits::raise_open_files().map_err(usage)?;
    let runtimes = Runtimes::from_environment().map_err(usage)?;
    let unusable = |error: StateDirError| (Exit::State, error.to_string());
    let state_dir = StateDir::open(&plan.daemon.state_dir).map_err(unusable)?;
    let found = state_dir.files().map_err(unusable)?;
    let faults = FileFaults::from_env().map_err(usage)?;
    let null_sink = NullSink::admit(&args.null_sink, plan).map_err(usage)?;
    let stop = signals::stop_signals().map_err(|error| usage(format!("signals: {error}")))?;
    let cpus = control::plan_shards(plan, &found).map_err(usage)?;
    let shards = u16::try_from(cpus.len()).unwrap_or(u16::MAX);
    let info = DaemonInfo::new(plan, shards);
    let mut announcer = Announcer::new(info.started_at);
    let board = Board::new(info);
    let waiting = mailbox(ORDERS_WAITING);
    let (post, inbox, heard) = waiting.map_err(|error| usage(format!("sockets: {error}")))?;
    let admin = admin_of(plan, &board, post).map_err(usage)?;
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        shards,
        sources = plan.sources.len() + plan.captures.len(),
        state_dir = %plan.daemon.state_dir.display(),
        open_files,
        "started"
    );
    warn(&plan.warnings);
    let progress = null_sink.clone();
    let options = RunOptions {
        cpus,
        runtimes,
        faults,
        stop: vec![stop],
        publish: Box::new(move |snapshots, findings| {
            announcer.announce(&snapshots, &findings);
            board.publish(snapshots, findings);
            progress.iter().for_each(NullSink::show);
        }),
        orders: Some((inbox, heard)),
        accept_gap: args.accept_gap,
        inside: null_sink.as_ref().map(NullSink::maker),
    };
    let outcome = control::run(plan, found, options);
    drop(admin);
    drop(state_dir);
    let outcome = outcome.map_err(usage)?;
    if let Some(sink) = null_sink {
        sink.finish().map_err(|why| (Exit::Findings, why))?;
    }
    Ok(outcome)
}

fn usage(why: impl ToString) -> (Exit, String) {
    (Exit::Usage, why.to_string())
}

fn warn(warnings: &[ConfigError]) {
    for warning in warnings {
        tracing::warn!(key = warning.key, advice = warning.advice, "{}", warning.seen);
    }
}

fn admin_of(plan: &Plan, board: &Board, orders: Post<Ask>) -> Result<Option<AdminServer>, String> {
    let Some(admin) = &plan.admin else { return Ok(None) };
    let server = admin::start(admin, board.clone(), orders).map_err(|error| error.to_string())?;
    tracing::info!(address = %server.address(), "admin interface");
    Ok(Some(server))
}

fn ended(outcome: &RunOutcome) -> Exit {
    match &outcome.ended {
        Ended::Drained => {
            tracing::info!("stopped in order: positions are saved");
            Exit::Ok
        }
        Ended::TimedOut { shards } => {
            tracing::warn!(
                ?shards,
                "stopped after drain_timeout; what was in flight is looked up at the next start"
            );
            Exit::Findings
        }
        Ended::ShardFailed { shard, why } => {
            tracing::error!(shard, why, "stopped: a shard failed");
            Exit::Findings
        }
    }
}
