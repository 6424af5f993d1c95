//! Where messages go: pure machines that decide what is sent next and what an answer means.
//!
//! [`dispatch`] is the window of one towards one destination partition (I2).

pub mod dispatch;
