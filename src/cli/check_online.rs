//! The part of `tidegate check` that connects to the clusters.
//!
//! [`survey`] asks every cluster of every source the questions a daemon would ask at its start,
//! and nothing that changes anything; [`judge`] compares the answers with the plan and the saved
//! positions, without I/O; [`alias`] finds clusters that are one server under two names.

mod alias;
mod judge;
mod survey;

use self::survey::Survey;
use super::report::{Class, Finding};
use crate::config::{OnCorruptState, Plan};
use crate::shard::driver::runtime::{IoDriver, Runtimes};
use crate::statefile::FeedState;
use crate::statefile::inspect::{FoundFile, newest_feeds};

/// What the clusters of the plan say. `files`: the state files; `running`: a daemon holds them.
pub fn findings(plan: &Plan, files: &[FoundFile], running: bool) -> Vec<Finding> {
    let saved: Vec<Option<Vec<FeedState>>> =
        plan.sources.iter().map(|source| saved_of(&source.key, source, files)).collect();
    let surveyed = Runtimes::new(IoDriver::Epoll)
        .build()
        .and_then(|(mut runtime, _)| runtime.block_on(Survey::take(plan, &saved)));
    let survey = match surveyed {
        Ok(survey) => survey,
        Err(error) => {
            return vec![Finding {
                class: Class::Other,
                subject: "connections".to_owned(),
                seen: error.to_string(),
                expected: "a socket and a thread to resolve names".to_owned(),
                advice: "check the limits of this user: ulimit -n, ulimit -u".to_owned(),
            }];
        }
    };
    let mut findings = judge::clusters(&survey);
    for (source, saved) in plan.sources.iter().zip(&saved) {
        judge::source(source, &survey, saved.as_deref(), running, &mut findings);
    }
    findings.extend(judge::buffers(plan, &survey, files));
    findings.extend(alias::findings(plan, &survey));
    findings
}

/// Newest entries of a source; `None` when it would not start for want of a readable file.
fn saved_of(
    key: &str,
    source: &crate::config::MirrorPlan,
    files: &[FoundFile],
) -> Option<Vec<FeedState>> {
    let ours = || files.iter().filter(|file| &*file.source == key);
    let broken = ours().any(|file| file.state.is_err());
    if broken && source.on_corrupt_state == OnCorruptState::Fail {
        return None;
    }
    Some(newest_feeds(ours().filter_map(|file| file.state.as_ref().ok())))
}
