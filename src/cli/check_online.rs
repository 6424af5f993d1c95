//! The part of `tidegate check` that connects to the clusters.

use super::report::{Class, Finding};
use crate::config::Plan;

/// What the clusters of the plan say.
pub fn findings(plan: &Plan) -> Vec<Finding> {
    let unreached = plan.clusters.keys().map(|key| Finding {
        class: Class::Peer,
        subject: format!("clusters.{key}"),
        seen: "this build does not connect".to_owned(),
        expected: "a look at the cluster".to_owned(),
        advice: "check without the clusters: --offline".to_owned(),
    });
    unreached.collect()
}
