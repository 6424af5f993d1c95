//! What an operator asks of a running source (T2), and how the answer finds its way back.
//!
//! ```text
//! admin thread ── Ask ──▶ control thread ── letters ──▶ shards
//!              ◀─ reply ─┘
//! ```
//!
//! A refused order has changed nothing.

use std::fmt;

use crate::batch::SourceKey;

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Stop reading and sending once what is outstanding has ended; survives restarts.
    Pause,
    /// Go on where it stood.
    Resume,
    /// Begin again from the saved positions, stopped feeds included.
    Restart,
    /// Give up what a capture cannot deliver (C5).
    Abandon(Abandon),
}

/// The range to give up, in log positions of the upstream. Data loss by the operator's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abandon {
    /// The stuck position the operator saw; refused when another one is stuck by now.
    pub oldest: u64,
    /// Give up everything up to the end of the transaction that holds this position; `None`:
    /// everything read so far.
    pub through: Option<u64>,
}

/// Why an order was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// No such source in the configuration.
    #[error("there is no source {0:?}")]
    Unknown(String),
    /// It contradicts what the source is doing.
    #[error("{0}")]
    Conflict(String),
    /// This kind of source has no such action.
    #[error("{0}")]
    Unsuited(String),
    /// It could not be made durable; nothing has changed.
    #[error("{0}")]
    Failed(String),
}

/// What was done, in words, or why not.
pub type Answer = Result<String, Refused>;

/// One order on its way, with the way back.
pub struct Ask {
    /// Which source.
    pub source: SourceKey,
    /// What.
    pub action: Action,
    /// Called once with the answer; a caller that went away does not matter.
    pub reply: Box<dyn FnOnce(Answer) + Send>,
}

impl fmt::Debug for Ask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {}", self.action, self.source)
    }
}
