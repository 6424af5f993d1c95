//! An in-process Iggy broker: the official SDK talks to it, and it can be told to misbehave.
//!
//! ```text
//! TCP ── server (threads, sockets, clock) ──▶ core (sessions, catalogue, faults) ──▶ log (records)
//!                 ▲                             ▲
//!                 └────────── Control ──────────┘   named faults, direct writes, restart, pause
//! ```
//!
//! It stands in for a broker in tests, benchmarks and the demo: everything is in memory, one lock,
//! one node or several that are views of the same log ([`Nodes`]). The core is pure; time comes in
//! as an argument. It owns no client behaviour and no durability: what a crash would lose is lost
//! on request ([`Restart`]).

mod answer;
mod arrivals;
pub mod catalog;
mod control;
pub mod core;
pub mod faults;
pub mod frame;
#[cfg(test)]
mod golden;
mod inside;
pub mod log;
mod messages;
mod metadata;
pub mod nodes;
mod options;
mod outbox;
mod query;
mod server;
mod session;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use iggy_binary_protocol::EvictionReason;

pub use self::arrivals::{Acked, Arrival};
pub use self::catalog::Counters;
pub use self::control::{Control, ControlError, Message, Restart, StoredMessage};
pub use self::core::Flavour;
pub use self::faults::{AppliedFault, Fault, FaultId, Op, Scope, Times};
pub use self::inside::{Inside, Tally};
pub use self::messages::LateSend;
pub use self::nodes::Nodes;
pub use self::server::{Server, ServerOptions};
