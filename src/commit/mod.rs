//! The ack barrier of a shard and its retry policy, pure.
//!
//! [`lane`] turns acked positions into group-committed saves, [`policy`] says when to try again
//! and when a failure is worth a status. I1: durable ≤ watermark ≤ acked, within an epoch.

pub mod lane;
pub mod policy;
