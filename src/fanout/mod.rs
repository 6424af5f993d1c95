//! Where messages go: pure machines that decide what is sent next and what an answer means.
//!
//! Mirrors: [`dispatch`] is the window of one towards one destination partition (I2).
//!
//! Captures, in the order a row meets them: [`route`] and [`admission`] name its destination
//! among the [`destinations`], [`partition`] its partition; [`group`] is the batch it is written
//! into and [`linger`] says when that is closed; [`lanes`] send what is closed, each destination
//! partition in order, and say what is acked; [`ensure`] makes topics; [`breaker`] leaves failing
//! ones alone. [`outlet`] holds them together: one per feed. [`explain`] tells what would become
//! of a row.

pub mod admission;
pub mod breaker;
pub mod destinations;
pub mod dispatch;
pub mod ensure;
pub mod explain;
pub mod failure;
#[cfg(test)]
mod fixture;
pub mod group;
pub mod lanes;
pub mod linger;
pub mod outlet;
pub mod partition;
pub mod route;

pub use failure::Failure;
