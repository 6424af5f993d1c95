//! The monoio driver: the only code of a shard that touches the kernel.
//!
//! It turns every command into I/O and its end into exactly one event, and decides nothing.
//! [`shard`] is the loop of one pinned thread, [`conn`] a connection, [`control`] the thread that
//! owns what shards must not share: signals, discovery, creation of topics. Nothing here is
//! shared between threads but mailboxes.
//!
//! A read or write in progress is never dropped: its connection is reset instead and the
//! operation ends by itself ([`socket`]).

#![allow(clippy::disallowed_methods, reason = "clocks, sockets and threads live here")]

pub mod child;
pub mod clock;
pub mod conn;
pub mod control;
pub mod files;
mod foreign;
pub mod frames;
pub mod inside;
pub mod intake;
pub mod limits;
pub mod link;
mod log_limit;
mod login;
mod notify;
mod pauses;
pub mod pg;
mod provisioning;
pub mod queue;
pub mod resolve;
mod room;
pub mod runtime;
pub mod shard;
mod shard_desk;
pub mod signals;
mod socket;
mod spills;
pub(crate) mod traffic;
pub mod wake;
