//! A shard: one pinned thread that owns its feeds, connections and state files.
//!
//! [`pipeline`] decides and is pure; [`event`] is the language between it and [`driver`], which
//! is the only code that touches the kernel; [`snapshot`] is what a shard publishes. [`rebuild`]
//! reads a lost position back, for the command line; [`nodes`] tells the servers of a cluster
//! apart, [`ballot`] what they say together.

pub mod ballot;
pub mod driver;
pub mod event;
pub mod large_slot;
pub mod mailbox;
pub mod nodes;
pub mod order;
pub mod pin;
pub mod pipeline;
pub mod placement;
pub mod provision;
pub mod reason;
pub mod rebuild;
pub mod saved;
pub mod snapshot;
