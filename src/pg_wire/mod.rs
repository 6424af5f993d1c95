//! The Postgres frontend/backend protocol (3.0), sans-IO: bytes ↔ values, no sockets, clocks or
//! threads. Input is never copied on the replication path and never trusted: a malformed message
//! is a typed error that says what was seen.
//!
//! * [`frame`] whole messages at the start of a buffer, and walking over them
//! * [`startup`] from the TLS question to the first ReadyForQuery, with `auth` in between;
//!   [`end_point`] what SCRAM binds to; `startup_error` what to do when it fails
//! * [`query`] simple and extended query, and the collector of their answers
//! * [`replication`] CopyBoth: WAL data, keepalives, status updates, and the slot commands
//! * [`pgoutput`] and [`test_decoding`] what the WAL data says; [`value`] its values as JSON by
//!   their type in [`oid`]
//! * [`lsn`] positions in the log; [`error`] the peer's bytes and the peer's complaints

mod auth;
pub mod end_point;
pub mod error;
pub mod frame;
pub mod lsn;
pub mod oid;
pub mod pgoutput;
pub mod query;
mod reader;
pub mod replication;
pub mod startup;
mod startup_error;
pub mod test_decoding;
pub mod value;

pub use error::{Notice, PgWireError, ServerError};
pub use lsn::Lsn;
