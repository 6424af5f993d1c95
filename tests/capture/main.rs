//! Captures end to end: a real Postgres, the real binary, a destination cluster, one oracle.
#![allow(clippy::disallowed_methods)] // processes, sockets and the clock

#[path = "../support/mod.rs"]
mod support;

mod admission;
mod basics;
mod commits;
mod memory;
mod nodes;
mod orders;
mod outages;
mod progress;
mod routing;
mod rows;
mod second;
mod servers;
mod stage;
mod switches;
mod tape;
mod values;
