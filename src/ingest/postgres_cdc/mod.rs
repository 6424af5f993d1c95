//! Capturing a Postgres database through a logical replication slot, as decisions without I/O.
//!
//! [`Setup`] checks or makes slot and publication; [`Stream`] turns replication messages
//! into [`Row`]s; [`Envelope`] writes a row as a message; [`confirm::Confirm`] decides what the
//! server is told. The rest is what these share: [`position`], [`relation`], [`spill`],
//! [`test_lines`], [`ids`], [`coalesce`].

pub mod coalesce;
pub mod confirm;
pub mod envelope;
mod error;
mod filter;
pub mod ids;
pub mod position;
pub mod relation;
pub mod row;
pub mod setup;
pub mod spill;
pub mod stream;
pub mod test_lines;
#[cfg(test)]
pub(crate) mod wire;

pub use envelope::{Envelope, EnvelopeError, EnvelopeOptions, NoPayload, Rendered};
pub use error::StreamError;
pub use position::{Position, Timelines, Unfinished};
pub use relation::{Relation, RelationColumn};
pub use row::{Item, Op, Row, Spill, TxHead};
pub use setup::{Setup, SetupDone, SetupOptions};
pub use stream::{Stream, StreamCounters, StreamOptions};
