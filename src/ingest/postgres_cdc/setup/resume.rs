//! Whether a saved position still means something: the same log, the same branch of it, and a
//! slot that still has what comes next (P1).

use super::SetupOptions;
use super::facts::Slot;
use super::finding::{Finding, Level};
use crate::ingest::postgres_cdc::position::Timelines;
use crate::pg_wire::Lsn;
use crate::pg_wire::replication::Identity;

/// What is saved of an earlier run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Saved {
    /// System identifier.
    pub system_id: u64,
    /// Timeline of the position.
    pub timeline: u32,
    /// The position.
    pub end_lsn: Lsn,
}

/// Log whose changes never arrive, accepted by the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Where delivery ended.
    pub first: Lsn,
    /// End of what is missing; behind `first`.
    pub last: Lsn,
    /// Streaming goes on here, unless the slot was confirmed further.
    pub resume: Lsn,
    /// Why, in a sentence.
    pub why: String,
}

/// Findings, and what is given up to go on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// What was found.
    pub findings: Vec<Finding>,
    /// What is missing.
    pub gap: Option<Gap>,
}

const ACCEPT: &str = "start with --accept-gap to go on without them (what is missing is recorded), \
                      or forget the position with `tidegate state reset`";

/// The position against the server's log.
pub fn server(
    saved: &Saved,
    identity: &Identity,
    timelines: &Timelines,
    accept_gap: bool,
) -> Verdict {
    let at = saved.end_lsn;
    if saved.system_id != identity.system_id {
        return Verdict::from(Finding::refusal(
            "other_system",
            format!("the server's system identifier is {}", identity.system_id),
            format!("{}, of which the saved position {at} is", saved.system_id),
            "connect to that cluster; or forget the position with `tidegate state reset`, it \
             means nothing in another log",
        ));
    }
    let Some(end) = timelines.end_of(saved.timeline) else {
        return Verdict::from(Finding::refusal(
            "timeline_unknown",
            format!(
                "the server is on timeline {}, which never was timeline {}",
                identity.timeline, saved.timeline
            ),
            format!("a server whose history has the saved position {at}"),
            "connect to the server that was promoted from it; or forget the position with \
             `tidegate state reset`",
        ));
    };
    if at > end {
        let finding = Finding::refusal(
            "timeline_forked",
            format!(
                "timeline {} ended at {end}, where timeline {} began",
                saved.timeline, identity.timeline
            ),
            format!("the saved position {at} at or before that: what lies between is not there"),
            ACCEPT,
        );
        let why = format!("the server left timeline {} before the position", saved.timeline);
        return Verdict::decided(
            finding,
            accept_gap,
            Gap { first: end, last: at, resume: end, why },
        );
    }
    if at > identity.wal_end {
        let finding = Finding::refusal(
            "ahead_of_server",
            format!("the server's log ends at {}", identity.wal_end),
            format!("the saved position {at} inside of it: the database was restored"),
            ACCEPT,
        );
        let why = "the server's log ended before the position".to_owned();
        let gap = Gap { first: identity.wal_end, last: at, resume: Lsn::INVALID, why };
        return Verdict::decided(finding, accept_gap, gap);
    }
    if saved.timeline != identity.timeline {
        return Verdict::from(Finding::new(
            Level::Info,
            "timeline_followed",
            format!(
                "timeline {} follows timeline {} at {end}, behind the saved position {at}",
                identity.timeline, saved.timeline
            ),
            "",
            "",
        ));
    }
    Verdict::default()
}

/// The position against the slot.
pub fn slot(options: &SetupOptions, slot: Option<&Slot>, wal_end: Lsn, gap_known: bool) -> Verdict {
    let name = &options.slot;
    let Some(saved) = &options.saved else {
        let Some(confirmed) = slot.and_then(|slot| slot.confirmed) else {
            return Verdict::default();
        };
        return Verdict::from(Finding::new(
            Level::Info,
            "slot_without_position",
            format!("slot {name:?} exists and no position is saved: it starts at {confirmed}"),
            "",
            "",
        ));
    };
    let at = saved.end_lsn;
    let Some(slot) = slot else {
        let finding = Finding::refusal(
            "slot_missing",
            format!("there is no slot {name:?}"),
            format!("the slot that was read up to {at}: changes since then are gone"),
            ACCEPT,
        );
        if gap_known {
            return Verdict::default();
        }
        let why = format!("slot {name:?} was gone");
        let last = wal_end.max(Lsn(at.0.saturating_add(1)));
        let gap = Gap { first: at, last, resume: last, why };
        return Verdict::decided(finding, options.accept_gap, gap);
    };
    match slot.confirmed {
        Some(confirmed) if at < confirmed => {
            let finding = Finding::refusal(
                "confirmed_ahead",
                format!("slot {name:?} was confirmed up to {confirmed}"),
                format!("the saved position {at} at or behind that: changes between are gone"),
                format!("find out who else reads the slot; {ACCEPT}"),
            );
            let why = format!("slot {name:?} was confirmed by somebody else");
            let gap = Gap { first: at, last: confirmed, resume: confirmed, why };
            Verdict::decided(finding, options.accept_gap, gap)
        }
        _ => Verdict::default(),
    }
}

impl From<Finding> for Verdict {
    fn from(finding: Finding) -> Verdict {
        Verdict { findings: vec![finding], gap: None }
    }
}

impl Verdict {
    fn decided(finding: Finding, accept_gap: bool, gap: Gap) -> Verdict {
        if !accept_gap {
            return Verdict::from(finding);
        }
        let finding = Finding { level: Level::Warning, fix: "accepted".to_owned(), ..finding };
        Verdict { findings: vec![finding], gap: Some(gap) }
    }
}
