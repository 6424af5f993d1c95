//! `tidegate bench`: figures that anybody can make again, with everything they need started by
//! the command itself.

pub mod capture;
mod client;
mod destination;
mod drain;
mod error;
mod figures;
pub mod hop;
mod latency;
mod pace;
pub mod postgres;
mod procfs;
pub mod relay;
pub mod route;
mod rows;
pub mod saves;
mod session;
mod stage;
mod wait;
mod workload;

use clap::Subcommand;
use serde_json::Value;

use super::Exit;

/// Subcommands of `tidegate bench`.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Drain a Postgres replication slot, side by side with pg_recvlogical
    Capture(capture::CaptureArgs),
    /// Mirror between two built-in brokers or real servers, side by side with a peer
    Relay(relay::RelayArgs),
    /// What a mirror adds to the way of a message at a steady rate
    Latency(hop::LatencyArgs),
    /// Save positions as a mirror does, alone and beside one that copies
    Commit(saves::CommitArgs),
    /// A mirror that has nothing to do: processor time and memory
    Idle(relay::idle::IdleArgs),
    /// The peer of `bench relay` that only copies
    #[command(hide = true)]
    Copy(relay::CopyArgs),
    /// Decode, route and batch rows in memory, for one destination and for many
    Route(route::RouteArgs),
}

impl BenchCommand {
    /// Whether the result is JSON.
    pub fn json(&self) -> bool {
        match self {
            BenchCommand::Capture(args) => args.json,
            BenchCommand::Relay(args) => args.json,
            BenchCommand::Latency(args) => args.json,
            BenchCommand::Commit(args) => args.json,
            BenchCommand::Idle(args) => args.json,
            BenchCommand::Copy(_) => false,
            BenchCommand::Route(args) => args.json,
        }
    }
}

/// Runs it.
pub fn run(command: &BenchCommand) -> Exit {
    match command {
        BenchCommand::Capture(args) => capture::run(args),
        BenchCommand::Relay(args) => relay::run(args),
        BenchCommand::Latency(args) => hop::run(args),
        BenchCommand::Commit(args) => saves::run(args),
        BenchCommand::Idle(args) => relay::idle::run(args),
        BenchCommand::Copy(args) => relay::run_copy(args),
        BenchCommand::Route(args) => route::run(args),
    }
}

/// How this program was built, for the fingerprint.
fn build() -> &'static str {
    if cfg!(debug_assertions) { "debug" } else { "release" }
}

/// An object's members on one line.
fn listed(object: &Value) -> String {
    let members = object.as_object().into_iter().flatten();
    let shown = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    members.map(|(key, value)| format!("{key} {}", shown(value))).collect::<Vec<_>>().join(", ")
}
