//! The Iggy client protocol, sans-IO: bytes ↔ values, no sockets, clocks or threads.
//!
//! Every frame is a 256-byte header and a body; see [`frame`]. A [`session::Session`] numbers
//! requests and matches replies. [`record`] checks polled batch records and makes them sendable
//! without touching payloads. Incomplete input is `Ok(None)`, malformed input a typed error.

pub mod assemble;
mod blob;
pub mod build;
pub mod command;
pub mod decode;
pub mod encode;
pub mod error;
pub mod frame;
mod layout;
pub mod record;
pub mod run;
pub mod session;

pub use assemble::BatchBuilder;
pub use command::{
    Node, OptionInfo, PartitionInfo, PollFrom, Polled, Reply, Request, SendTo, StreamInfo,
    TopicInfo, TopicOption,
};
pub use error::{ServerError, WireError};
pub use record::{MessageView, Record, RecordError, Relay, Verify};
pub use run::{Batch, Run, Runs};
