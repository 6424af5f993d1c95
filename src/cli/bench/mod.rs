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
}

impl BenchCommand {
    /// Whether the result is JSON.
    pub fn json(&self) -> bool {
        let BenchCommand::Capture(args) = self;
        args.json
    }
}

/// Runs it.
pub fn run(command: &BenchCommand) -> Exit {
    let BenchCommand::Capture(args) = command;
    capture::run(args)
}
