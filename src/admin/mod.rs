//! Status, health and metrics over HTTP, on a thread of its own.
//!
//! ```text
//!   control thread ── publish(snapshots, findings) ──▶ Board ──▶ View ──▶ /livez    /readyz
//!                                                        (one Arc swap)    /status   /metrics
//! ```
//!
//! Owns the listening socket, the derived figures (rates, totals, histories) and the renderings.
//! Every request reads the latest [`View`] or posts an order to the control thread, so a slow or
//! hostile client cannot reach a shard. Connections, request size and time are bounded (I5).

// Own thread: the admin listener, its clock and the look at /proc/self are its job.
#![allow(clippy::disallowed_methods)]

mod abandon;
mod board;
mod capture;
mod capture_metrics;
mod connectors;
mod derive;
mod ledger;
mod metrics;
mod process;
mod report;
mod routes;
mod server;

pub use board::{
    Board, CaptureView, DaemonInfo, FeedView, ShardView, SourceInfo, SourceKind, SourceView, View,
};
pub use ledger::{Change, Rates, Totals};
pub use metrics::{Exposition, TextFormat};
pub use process::ProcessUsage;
pub use report::{Liveness, Readiness, StatusReport, liveness, readiness, status_report};
pub use server::{AdminServer, start};

pub use crate::shard::snapshot::SourceFinding;

/// A shard whose loop has not turned for this long is stuck.
pub const STUCK_AFTER: std::time::Duration = std::time::Duration::from_secs(5);

/// JSON schema of `/status`, also served at `/status/schema.json`.
pub const STATUS_SCHEMA: &str = include_str!("../../docs/status.schema.json");

#[cfg(test)]
pub(crate) mod fixture;
