//! `tidegate check`: everything that can be known before a start, with what to do about it.
//!
//! Offline it reads the configuration with its secrets, and the state directory without its
//! lock, so that it can be run beside a daemon. [`check_online`] adds what clusters and databases
//! say.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};

use super::report::{self, Class, Finding, exit_of};
use super::statedir::{self, StateDirError};
use super::{Exit, check_online, route};
use crate::config::{self, CapturePlan, ConfigError, OnCorruptState, Partitions, Plan};
use crate::shard::driver::control;
use crate::statefile::inspect::FoundFile;

/// Arguments of `tidegate check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Configuration file
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Print the findings as one JSON object
    #[arg(long)]
    pub json: bool,
    /// Do not connect to clusters and databases
    #[arg(long)]
    pub offline: bool,
}

/// Checks and reports.
pub fn run(args: &CheckArgs) -> Exit {
    let plan = match config::load(&args.config) {
        Ok(plan) => plan,
        Err(errors) if args.json => {
            let findings = errors.findings().iter().map(report::config_json).collect();
            report::out(&report_json(args, findings, Vec::new()).to_string());
            return Exit::Usage;
        }
        Err(errors) => return report::fail_config(false, &errors),
    };
    let dir = &plan.daemon.state_dir;
    let files = statedir::read_files(dir);
    let holder = statedir::holder(dir);
    let mut findings = offline(&plan, &files, holder);
    if !args.offline {
        let files = files.unwrap_or_default();
        findings.extend(check_online::findings(&plan, &files, holder.is_some()));
    }
    findings.sort_by_key(|finding| finding.class);
    let exit = exit_of(&findings);
    if args.json {
        let (wrong, notes) =
            findings.iter().partition::<Vec<_>, _>(|finding| finding.class.is_wrong());
        let json = |list: Vec<&Finding>| list.into_iter().map(Finding::json).collect();
        report::out(&report_json(args, json(wrong), json(notes)).to_string());
    } else {
        findings.iter().for_each(|finding| report::out(&finding.text()));
        let wrong = findings.iter().filter(|finding| finding.class.is_wrong()).count();
        let verdict = match wrong {
            0 => "ok".to_owned(),
            1 => "1 finding".to_owned(),
            count => format!("{count} findings"),
        };
        report::out(&format!("{}: {verdict}", args.config.display()));
    }
    exit
}

fn report_json(args: &CheckArgs, findings: Vec<Value>, notes: Vec<Value>) -> Value {
    json!({
        "ok": findings.is_empty(),
        "config": args.config.display().to_string(),
        "findings": findings,
        "notes": notes,
    })
}

/// What the plan, this machine and the state directory say.
fn offline(
    plan: &Plan,
    files: &Result<Vec<FoundFile>, StateDirError>,
    holder: Option<u32>,
) -> Vec<Finding> {
    let mut findings = plan_notes(plan);
    findings.extend(plan.warnings.iter().map(warning));
    findings.extend(plan.captures.iter().flat_map(|capture| connection_warnings(capture)));
    findings.extend(route::test_findings(plan));
    if let Err(error) = control::plan_shards(plan, files.as_deref().unwrap_or_default()) {
        // Says what to do by itself.
        let note = Finding::note("daemon", error.to_string());
        findings.push(Finding { class: Class::Config, ..note });
    }
    let dir = &plan.daemon.state_dir;
    if let Some(pid) = holder {
        let seen = format!("in use by process {pid}: a daemon runs on {}", dir.display());
        findings.push(Finding::note("daemon.state_dir", seen));
    }
    match files {
        Ok(files) => {
            if let Err(error) = statedir::probe_writable(dir) {
                findings.push(state_finding(&error));
            }
            findings.extend(files.iter().filter_map(|file| file_finding(plan, file)));
        }
        Err(error) => findings.push(state_finding(error)),
    }
    findings
}

fn plan_notes(plan: &Plan) -> Vec<Finding> {
    let mut notes = Vec::new();
    for source in &plan.sources {
        if source.partitions == Partitions::Balanced {
            notes.push(Finding::note(
                format!("sources.{}.partitions", source.key),
                "\"balanced\" delivers at least once and unordered; \"preserve\" delivers exactly \
                 once and in order",
            ));
        }
    }
    for (key, cluster) in &plan.clusters {
        let is_mirrored =
            plan.sources.iter().any(|s| s.from.key == cluster.key || s.to.key == cluster.key);
        if !is_mirrored && !plan.captures.iter().any(|capture| capture.to.key == cluster.key) {
            notes.push(Finding::note(format!("clusters.{key}"), "used by no source"));
        }
    }
    notes
}

/// Not wrong, and hardly meant.
fn warning(warning: &ConfigError) -> Finding {
    let place = warning.at.map_or_else(String::new, |at| format!(" on line {}", at.line));
    Finding {
        class: Class::Warning,
        expected: warning.expected.clone(),
        advice: warning.advice.clone(),
        ..Finding::note(format!("{}{place}", warning.key), warning.seen.clone())
    }
}

/// What is odd about a connection string or its password file.
fn connection_warnings(capture: &CapturePlan) -> impl Iterator<Item = Finding> {
    capture.postgres.warnings.iter().map(|warning| Finding {
        class: Class::Warning,
        ..Finding::note(format!("sources.{}.connection", capture.key), warning.clone())
    })
}

// These errors say what to do in their last clause already.
fn state_finding(error: &StateDirError) -> Finding {
    Finding { class: Class::State, ..Finding::note("daemon.state_dir", error.to_string()) }
}

fn file_finding(plan: &Plan, file: &FoundFile) -> Option<Finding> {
    let mirror = plan.sources.iter().find(|source| source.key == file.source);
    let capture = plan.captures.iter().find(|source| source.key == file.source);
    let policy = mirror.map(|source| source.on_corrupt_state);
    let policy = policy.or(capture.map(|source| source.on_corrupt_state));
    let seen = match (&file.state, policy) {
        (Err(error), Some(OnCorruptState::Fail)) => {
            let note = Finding::note(file.file.clone(), error.to_string());
            return Some(Finding { class: Class::State, ..note });
        }
        (Err(error), Some(OnCorruptState::Reset)) => {
            format!("{error}; a start sets it aside (on_corrupt_state = \"reset\")")
        }
        // Of a source that does not run, it hinders nobody.
        (Err(error), None) => error.to_string(),
        (Ok(_), None) => {
            format!("no source {:?} in the configuration; kept as it is", file.source)
        }
        (Ok(_), Some(_)) => return None,
    };
    Some(Finding::note(file.file.clone(), seen))
}
