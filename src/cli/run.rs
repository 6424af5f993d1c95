//! `tidegate run`: the daemon.

use std::path::PathBuf;

use clap::Args;

use super::Exit;
use super::announce::Announcer;
use super::report;
use super::statedir::StateDir;
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
}

/// Mirrors until stopped. Logging is set up, the plan is validated; nothing else has happened.
pub fn run(plan: Plan, args: &RunArgs) -> Exit {
    // Before anything opens files and sockets of its own.
    let open_files = match limits::raise_open_files() {
        Ok(allowed) => allowed,
        Err(error) => return report::fail(false, Exit::Usage, &error.to_string()),
    };
    let runtimes = match Runtimes::from_environment() {
        Ok(runtimes) => runtimes,
        Err(error) => return report::fail(false, Exit::Usage, &error.to_string()),
    };
    let opened = StateDir::open(&plan.daemon.state_dir);
    let (state_dir, found) = match opened.and_then(|dir| dir.files().map(|found| (dir, found))) {
        Ok(opened) => opened,
        Err(error) => return report::fail(false, Exit::State, &error.to_string()),
    };
    let faults = match FileFaults::from_env() {
        Ok(faults) => faults,
        Err(error) => return report::fail(false, Exit::Usage, &error.to_string()),
    };
    let stop = match signals::stop_signals() {
        Ok(bell) => bell,
        Err(error) => return report::fail(false, Exit::Usage, &format!("signals: {error}")),
    };
    let cpus = match control::plan_shards(&plan, &found) {
        Ok(cpus) => cpus,
        Err(error) => return report::fail(false, Exit::Usage, &error.to_string()),
    };
    let shards = u16::try_from(cpus.len()).unwrap_or(u16::MAX);
    let info = DaemonInfo::new(&plan, shards);
    let mut announcer = Announcer::new(info.started_at);
    let board = Board::new(info);
    let (post, inbox, heard) = match mailbox(ORDERS_WAITING) {
        Ok(mailbox) => mailbox,
        Err(error) => return report::fail(false, Exit::Usage, &format!("sockets: {error}")),
    };
    let admin = match admin_of(&plan, &board, post) {
        Ok(admin) => admin,
        Err(why) => return report::fail(false, Exit::Usage, &why),
    };
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        shards,
        sources = plan.sources.len() + plan.captures.len(),
        state_dir = %plan.daemon.state_dir.display(),
        open_files,
        "started"
    );
    warn(&plan.warnings);
    let options = RunOptions {
        cpus,
        runtimes,
        faults,
        stop: vec![stop],
        publish: Box::new(move |snapshots, findings| {
            announcer.announce(&snapshots, &findings);
            board.publish(snapshots, findings);
        }),
        orders: Some((inbox, heard)),
        accept_gap: args.accept_gap,
    };
    let outcome = control::run(&plan, found, options);
    drop(admin);
    drop(state_dir);
    match outcome {
        Ok(outcome) => ended(&outcome),
        Err(error) => report::fail(false, Exit::Usage, &error.to_string()),
    }
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
            tracing::info!("stopped: everything acked is saved");
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
