//! `tidegate bench`: figures that anybody can make again, with everything they need started by
//! the command itself.

pub mod capture;
mod destination;
mod drain;
mod error;
mod figures;
mod latency;
pub mod postgres;
mod procfs;
pub mod route;
mod rows;
mod session;
mod stage;
mod wait;
mod workload;

use clap::Subcommand;

use super::Exit;

/// Subcommands of `tidegate bench`.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Drain a Postgres replication slot, side by side with pg_recvlogical
    Capture(capture::CaptureArgs),
    /// Decode, route and batch rows in memory, for one destination and for many
    Route(route::RouteArgs),
}

impl BenchCommand {
    /// Whether the result is JSON.
    pub fn json(&self) -> bool {
        match self {
            BenchCommand::Capture(args) => args.json,
            BenchCommand::Route(args) => args.json,
        }
    }
}

/// Runs it.
pub fn run(command: &BenchCommand) -> Exit {
    match command {
        BenchCommand::Capture(args) => capture::run(args),
        BenchCommand::Route(args) => route::run(args),
    }
}

/// How this program was built, for the fingerprint.
fn build() -> &'static str {
    if cfg!(debug_assertions) { "debug" } else { "release" }
}
