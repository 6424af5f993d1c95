//! `tidegate run`: the daemon.

use std::path::PathBuf;

use clap::Args;

use super::Exit;
use super::report;
use crate::config::Plan;

/// Arguments of `tidegate run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Configuration file
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
}

/// Mirrors until stopped. Logging is set up, the plan is validated; nothing else has happened.
pub fn run(_plan: Plan, _args: &RunArgs) -> Exit {
    report::fail(false, Exit::Findings, "this build has no shards to run")
}
