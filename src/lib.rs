//! Tidegate moves messages into Apache Iggy, one pinned thread ("shard") per core.
//!
//! ```text
//!             one OS thread per core: nothing below is shared with another core
//!   upstream ┌──────────────────────────────────────────────────────────────┐ downstream
//!   Iggy ────┤ ingest ─batch─▶ fanout ─send─▶ … ─ack─▶ commit ─▶ statefile  ├──── Iggy
//!            └──────────────────────────────────────────────────────────────┘
//! ```
//!
//! Codecs turn bytes into values, decisions turn events into commands, the driver turns commands
//! into I/O; `ARCHITECTURE.md` has the rules.
//!
//! * [`iggy_wire`] the Iggy protocol: frames, session, commands, batch records
//! * [`pg_wire`] the Postgres protocol: start-up, queries, replication
//! * [`ingest`] where messages come from: one feed per upstream partition
//! * [`fanout`] where they go: one outstanding send per destination partition
//! * [`commit`] the ack barrier and the retry policy
//! * [`statefile`] positions on disk: format, safe write, inspection
//! * [`shard`] the pure pipeline and the monoio driver that runs it
//! * [`admin`] HTTP, metrics and status from published snapshots
//! * [`loopback`] an in-process Iggy broker with named faults
//! * [`config`] TOML to a validated plan; [`cli`] one file per subcommand
//! * [`batch`], [`time`] and [`mod@secret`] the shared words

#![allow(rustdoc::private_intra_doc_links, reason = "the docs are built with private items")]

pub mod admin;
pub mod batch;
pub mod cli;
pub mod commit;
pub mod config;
pub mod fanout;
pub mod iggy_wire;
pub mod ingest;
pub mod loopback;
pub mod pg_wire;
pub mod secret;
pub mod shard;
pub mod statefile;
pub mod time;
