//! Where messages come from. One file per kind of source; each is a pure state machine over
//! polls and their replies.
//!
//! [`iggy`] reads one partition of an Iggy topic; [`history`] tells a moved log from another one.

pub mod history;
pub mod iggy;
pub mod postgres_cdc;

/// What a source can promise and what its upstream loses by a commit (C1). Computed by code from
/// the kind of source, never by configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A log that must not forget before the commit.
    Cdc,
    /// Asked again and again; `destructive` when a commit deletes or marks what was read.
    Polling {
        /// A commit changes the upstream.
        destructive: bool,
    },
    /// Cannot be asked again.
    Opaque,
}

/// The contract of a source towards the shard. Reading and committing are commands and events
/// of the concrete machine; what every source owes is its mode and the position it resumes at.
pub trait Source {
    /// See [`Mode`].
    fn mode(&self) -> Mode;
    /// Next upstream position to read.
    fn position(&self) -> u64;
}
