//! The part of `tidegate check` that connects to clusters and databases.
//!
//! [`survey`] asks every cluster of every source the questions a daemon would ask at its start,
//! and nothing that changes anything, and has [`database`] do the same with every captured
//! database; [`judge`] and [`capture`] compare the answers with the plan and the saved positions,
//! without I/O; [`alias`] finds clusters that are one server under two names.

mod alias;
mod capture;
mod database;
mod judge;
mod survey;

use self::survey::{SavedPositions, Survey};
use super::report::{Class, Finding};
use crate::config::{CapturePlan, MirrorPlan, OnCorruptState, Plan};
use crate::shard::driver::runtime::{IoDriver, Runtimes};
use crate::shard::saved::{CaptureStart, capture_start};
use crate::statefile::inspect::{FoundFile, newest_feeds};
use crate::statefile::{CaptureState, FeedState};

/// What the clusters of the plan say. `files`: the state files; `running`: a daemon holds them.
pub fn findings(plan: &Plan, files: &[FoundFile], running: bool) -> Vec<Finding> {
    let mirrors: Vec<Option<Vec<FeedState>>> =
        plan.sources.iter().map(|source| saved_of(&source.key, source, files)).collect();
    // What a running daemon saves and confirms while we ask does not fit together for us.
    let position = |capture| if running { None } else { saved_capture(capture, files) };
    let captures = plan.captures.iter().map(|capture| position(capture)).collect();
    let saved = SavedPositions { mirrors: mirrors.clone(), captures };
    let surveyed = Runtimes::new(IoDriver::Epoll)
        .build()
        .and_then(|(mut runtime, _)| runtime.block_on(Survey::take(plan, saved)));
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
    for (source, saved) in plan.sources.iter().zip(&mirrors) {
        judge::source(source, &survey, saved.as_deref(), running, &mut findings);
    }
    for plan in &plan.captures {
        let database = survey.database(&plan.key);
        findings.extend(capture::findings(plan, database, &survey, running));
    }
    findings.extend(judge::buffers(plan, &survey, files));
    findings.extend(alias::findings(plan, &survey));
    findings
}

/// Newest entries of a source; `None` when it would not start for want of a readable file.
fn saved_of(key: &str, source: &MirrorPlan, files: &[FoundFile]) -> Option<Vec<FeedState>> {
    let ours = || files.iter().filter(|file| &*file.source == key);
    let broken = ours().any(|file| file.state.is_err());
    if broken && source.on_corrupt_state == OnCorruptState::Fail {
        return None;
    }
    Some(newest_feeds(ours().filter_map(|file| file.state.as_ref().ok())))
}

/// Where a capture would go on; `None` too when it would not start, which is found without us.
fn saved_capture(plan: &CapturePlan, files: &[FoundFile]) -> Option<CaptureState> {
    match capture_start(plan, files) {
        CaptureStart::Ready(saved) => saved.entry,
        CaptureStart::Broken(_) => None,
    }
}
