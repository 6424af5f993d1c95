//! Connections to Postgres servers.
//!
//! Like every connection of the driver, one is a single task: [`login`] dials and logs in,
//! [`traffic`] reads, writes and watches, and the rest of the thread only changes its state in
//! [`conn`] and wakes it. While a copy runs the socket is read against grants alone: a destination
//! that stalls makes the server wait and costs no memory. Status updates go out regardless.
//!
//! * [`transport`] TCP and unix sockets, [`tls`] sessions over them, [`certificate`] the one name
//!   that the TLS library does not look at, [`settings`] what a plan means for each
//! * [`intake`] bytes cut into messages without a copy
//! * [`link`] question and answer for threads that only ask

mod certificate;
pub mod conn;
mod intake;
pub mod link;
mod login;
mod settings;
mod tls;
mod traffic;
mod transport;
