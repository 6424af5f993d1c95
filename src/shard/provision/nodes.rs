//! How many nodes a cluster has, and so how long a change may still take to have effect there.

use std::time::Duration;

use super::topic::{Step, failure_words};
use super::{Provisioner, Side, Trouble};
use crate::iggy_wire::{Reply, ServerError};
use crate::shard::event::Failure;
use crate::shard::reason::{self, Reason};
use crate::time::Now;

impl Provisioner {
    /// Before a change, and before feeds that wait for one: how long it may take to have effect.
    pub(super) fn needs_nodes(&self, step: Step) -> bool {
        let side = step.side();
        self.links[side as usize].several.is_none()
            && (side == Side::Downstream || step.changes_something())
    }

    /// The cluster says how many nodes it has. One that does not know the question is as many as
    /// there are addresses, as for the feeds.
    pub(super) fn nodes(
        &mut self,
        now: Now,
        index: usize,
        side: Side,
        answer: Result<Reply, Trouble>,
    ) {
        let configured = self.cluster(side).addresses.len();
        let several = match answer {
            Ok(Reply::Cluster(nodes)) if !nodes.is_empty() => nodes.len() > 1,
            Ok(_) => configured > 1,
            Err(Trouble::Unreachable(error)) => return self.unreachable(now, index, side, &error),
            Err(Trouble::Failed(failure)) => match failure {
                Failure::Refused(code) if !ServerError { code }.is_passing() => configured > 1,
                failure => {
                    let cluster = &self.cluster(side).key;
                    let why = failure_words(&failure);
                    let detail = format!("asking which nodes cluster {cluster} has: {why}");
                    return self.retry(now, index, silent(side), detail);
                }
            },
        };
        self.links[side as usize].several = Some(several);
    }

    /// How long a change may still take to have effect; the longest where that is not known yet.
    pub(super) fn settle(&self, side: Side) -> Duration {
        let several = self.links[side as usize].several;
        self.cluster(side).settle.among(several.unwrap_or(true))
    }
}

/// A cluster that does not answer.
pub(super) fn silent(side: Side) -> Reason {
    match side {
        Side::Upstream => reason::UPSTREAM_UNREACHABLE,
        Side::Downstream => reason::DESTINATION_UNREACHABLE,
    }
}
