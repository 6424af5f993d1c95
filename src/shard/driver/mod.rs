//! The monoio driver.

#![allow(clippy::disallowed_methods, reason = "clocks, sockets and threads live here")]

pub mod files;
