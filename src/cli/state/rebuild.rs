//! `tidegate state rebuild`: reads lost or contradicted positions back from the destination (M6,
//! S2), or takes the operator's word for one partition.
//!
//! [`look`] asks the clusters, [`authority`] finds the node of the destination that counts,
//! [`outcome`] says what follows, [`super::forget`] writes.
//! The lock is held throughout. Partitions without a clear place keep what is saved, the others
//! are written: each was judged by itself. Before anything is written the destination's ends
//! are read once more: who moves them is still at work.
//!
//! A rebuild of the whole source sets an unreadable file aside whatever it finds: nothing in it
//! can be kept, and while it stands there is no way to name the place of a refused partition.
//! Those begin as new then, so it is refused where that would not stop them (`check_refused`).

mod authority;
mod look;
mod outcome;

use std::io::{self, IsTerminal};
use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use self::look::Wanted;
use self::outcome::Outcome;
use super::forget::{self, Selection};
use super::{Stop, confirm, now_us, report, set_aside};
use crate::batch::SourceKey;
use crate::cli::Exit;
use crate::cli::statedir::StateDir;
use crate::config::{self, MirrorPlan, OnNonemptyDestination, Partitions, Plan};
use crate::shard::driver::control::plan_shards;
use crate::shard::placement::{first_topics, place};
use crate::statefile::format::{Fault, FormatError};
use crate::statefile::inspect::{FoundFile, StateError, newest_feeds};
use crate::statefile::{FeedState, SourceState};

/// Arguments of `tidegate state rebuild`.
#[derive(Debug, Args)]
pub struct RebuildArgs {
    /// Configuration file
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// The source
    #[arg(long, value_name = "NAME")]
    pub source: String,
    /// Only this upstream topic; the others keep their positions
    #[arg(long, value_name = "STREAM/TOPIC")]
    pub topic: Option<String>,
    /// Only this partition of the topic
    #[arg(long, value_name = "N", requires = "topic")]
    pub partition: Option<u32>,
    /// Do not search: the destination's end belongs to this upstream offset, the next to copy
    #[arg(long, value_name = "UPSTREAM OFFSET", requires = "partition")]
    pub accept_tail: Option<u64>,
    /// Do not ask
    #[arg(long)]
    pub yes: bool,
    /// Print the result as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Runs the command.
pub(super) fn run(args: &RebuildArgs) -> Result<Exit, Stop> {
    let plan = config::load(&args.config).map_err(Stop::Config)?;
    let (index, source) = source_of(&plan, args)?;
    let dir = StateDir::open(&plan.daemon.state_dir)?;
    let all = dir.files()?;
    // A plan that cannot start is no reason not to rebuild: a start moves entries by itself.
    let shards = plan_shards(&plan, &all).map_or(1, |cpus| cpus.len());
    let shards = u16::try_from(shards).unwrap_or(u16::MAX);
    let files: Vec<FoundFile> = all.into_iter().filter(|f| f.source == source.key).collect();
    check_files(&files, args)?;
    let selection = args.topic.as_deref();
    let selection = selection.map(|topic| Selection { topic, partition: args.partition });
    let wanted = Wanted { source, selection, accept: args.accept_tail, quiet: args.json };
    let looked = look::look(wanted).map_err(peer)?;

    let saved = newest_feeds(files.iter().filter_map(|file| file.state.as_ref().ok()));
    let now = now_us();
    let mut outcomes = Vec::new();
    for looked in looked {
        let Some(topic) = source.topics.get(looked.topic) else { continue };
        let partition = looked.partition;
        let is_it = |feed: &&FeedState| {
            (&feed.upstream, &feed.downstream) == (&topic.upstream, &topic.downstream)
                && Some(feed.partition) == partition
        };
        outcomes.push(Outcome::of(looked, topic, saved.iter().find(is_it), now));
    }
    let first_topic = first_topics(&plan).get(index).copied().unwrap_or(0);
    let home = |entry: &FeedState| {
        let topic = source.topics.iter().position(|topic| topic.upstream == entry.upstream);
        place(first_topic + topic.unwrap_or(0), entry.partition, shards)
    };
    let entries = outcomes.iter().filter_map(|outcome| outcome.entry.clone()).collect();
    let states = rewrite(&source.key, &files, &saved, entries, home, now);
    conclude(args, source, &dir, &files, &outcomes, &states)
}

fn source_of<'a>(plan: &'a Plan, args: &RebuildArgs) -> Result<(usize, &'a MirrorPlan), Stop> {
    let usage = |message| Err(Stop::Other(Exit::Usage, message));
    let found = plan.sources.iter().position(|source| *source.key == *args.source);
    let Some((index, source)) = found.and_then(|i| plan.sources.get(i).map(|s| (i, s))) else {
        let known: Vec<&str> = plan.sources.iter().map(|source| &*source.key).collect();
        let (name, known) = (&args.source, known.join(", "));
        if plan.captures.iter().any(|capture| *capture.key == *args.source) {
            return usage(format!(
                "source {name:?} is a capture: no destination says which rows of a slot are done. \
                 Restore its state file from a backup, or begin anew with `tidegate state reset \
                 --source {name}`: rows that were sent since the slot's own position come again"
            ));
        }
        if known.is_empty() {
            return usage(format!("there is no source {name:?} to mirror, nor any other mirror"));
        }
        return usage(format!("there is no source {name:?} to mirror; expected one of {known}"));
    };
    if source.partitions == Partitions::Balanced {
        let why = "has partitions = \"balanced\": no partition of the destination belongs to one \
                   upstream, so no position can be read back";
        return usage(format!("source {:?} {why}", args.source));
    }
    if let Some(name) = &args.topic
        && !source.topics.iter().any(|topic| topic.upstream.to_string() == *name)
    {
        let known: Vec<String> = source.topics.iter().map(|t| t.upstream.to_string()).collect();
        let known = known.join(", ");
        return usage(format!("source {:?} has no topic {name:?}; it has {known}", args.source));
    }
    Ok((index, source))
}

/// A file that cannot be read is set aside by a rebuild of everything it may hold, and by nothing
/// less.
fn check_files(files: &[FoundFile], args: &RebuildArgs) -> Result<(), Stop> {
    for error in files.iter().filter_map(|file| file.state.as_ref().err()) {
        if let StateError::Format(FormatError { fault: Fault::NewerVersion { .. }, .. }) = error {
            return Err(Stop::Other(Exit::State, error.to_string()));
        }
        if args.topic.is_some() {
            let message = format!(
                "{error}; nothing was changed: it may hold positions of other topics and \
                 partitions, so rebuild the whole source first, without --topic"
            );
            return Err(Stop::Other(Exit::State, message));
        }
    }
    Ok(())
}

/// The files that hold `entries` in place of what they hold now. An entry goes where the newest
/// one of its feed is, a new one to the shard that will run it.
fn rewrite(
    source: &SourceKey,
    files: &[FoundFile],
    saved: &[FeedState],
    entries: Vec<FeedState>,
    home: impl Fn(&FeedState) -> u16,
    now: u64,
) -> Vec<SourceState> {
    let readable = || files.iter().filter_map(|file| file.state.as_ref().ok());
    let generation = 1 + readable().map(|state| state.generation).max().unwrap_or(0);
    let is_same = |a: &FeedState, b: &FeedState| {
        (&a.upstream, &a.downstream, a.partition) == (&b.upstream, &b.downstream, b.partition)
    };
    let mut states: Vec<SourceState> = Vec::new();
    for entry in entries {
        let old = saved.iter().find(|old| is_same(old, &entry));
        let holds = |state: &&SourceState| old.is_some_and(|old| state.feeds.contains(old));
        let shard = readable().find(holds).map_or_else(|| home(&entry), |state| state.shard);
        let index = states.iter().position(|state| state.shard == shard).unwrap_or_else(|| {
            let known = readable().find(|state| state.shard == shard).cloned();
            states.push(known.unwrap_or_else(|| SourceState {
                source: SourceKey::clone(source),
                shard,
                generation,
                saved_at: now,
                captures: Vec::new(),
                feeds: Vec::new(),
            }));
            states.len() - 1
        });
        let Some(state) = states.get_mut(index) else { continue };
        (state.generation, state.saved_at) = (generation, now);
        state.feeds.retain(|feed| !is_same(feed, &entry));
        state.feeds.push(entry);
    }
    states
}

/// Shows, asks, looks once more and writes.
fn conclude(
    args: &RebuildArgs,
    source: &MirrorPlan,
    dir: &StateDir,
    files: &[FoundFile],
    outcomes: &[Outcome],
    states: &[SourceState],
) -> Result<Exit, Stop> {
    let refused = outcomes.iter().any(Outcome::is_refused);
    let exit = if refused { Exit::Findings } else { Exit::Ok };
    if !args.json {
        report::out(outcome::text(outcomes).trim_end());
    }
    let broken: Vec<FoundFile> = files.iter().filter(|file| file.state.is_err()).cloned().collect();
    if states.is_empty() && broken.is_empty() {
        tell(args, outcomes, &[], &[]);
        return Ok(exit);
    }
    check_refused(source, outcomes, &broken)?;
    if !args.yes {
        let mut lines: Vec<String> = broken.iter().map(to_go).collect();
        if args.json {
            lines.extend(outcome::text(outcomes).lines().map(ToOwned::to_owned));
        }
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let stdin = io::stdin();
        let count = outcomes.iter().filter(|outcome| outcome.entry.is_some()).count();
        let question = format!("Save these positions of {count} partitions of {:?}?", args.source);
        confirm(&question, &lines, stdin.is_terminal(), &mut stdin.lock())?;
    }
    check_ends(source, outcomes)?;
    let aside = set_aside(&broken).map_err(|(path, error)| {
        let message = format!("setting {path} aside failed: {error}; nothing was written");
        Stop::Other(Exit::State, message)
    })?;
    forget::write(dir.path(), states).map_err(|message| {
        let moved: String =
            aside.iter().map(|(from, to)| format!("; {from} is now {to}")).collect();
        Stop::Other(Exit::State, format!("{message}{moved}"))
    })?;
    tell(args, outcomes, states, &aside);
    Ok(exit)
}

/// What is said of an unreadable file before it is set aside.
fn to_go(file: &FoundFile) -> String {
    format!(
        "{} cannot be read and will be set aside, with whatever it holds of topics that the \
         configuration does not list",
        file.file
    )
}

/// An unreadable file may hold the position of a refused partition. Without it that partition
/// begins as new, and only `on_nonempty_destination = "fail"` makes that visible.
fn check_refused(
    source: &MirrorPlan,
    outcomes: &[Outcome],
    broken: &[FoundFile],
) -> Result<(), Stop> {
    let appends = source.on_nonempty_destination == OnNonemptyDestination::Append;
    let Some(file) = broken.first().filter(|_| appends) else { return Ok(()) };
    let Some(refused) = outcomes.iter().find(|outcome| outcome.begins_anew()) else {
        return Ok(());
    };
    let message = format!(
        "{} was refused, and its position may be in {}, which cannot be read; with \
         on_nonempty_destination = \"append\" the next start would copy it again from \
         initial_offset; nothing was changed; set on_nonempty_destination = \"fail\" and run the \
         same command again, then name its place with --accept-tail",
        refused.name(),
        file.file
    );
    Err(Stop::Other(Exit::State, message))
}

/// Nobody wrote to the destination since it was looked at.
fn check_ends(source: &MirrorPlan, outcomes: &[Outcome]) -> Result<(), Stop> {
    let written = outcomes.iter().filter(|outcome| outcome.entry.is_some());
    let (of, seen): (Vec<_>, Vec<_>) =
        written.filter_map(|o| Some(((o.downstream.clone(), o.partition?), o.end?))).unzip();
    let ends = look::ends(source, &of).map_err(peer)?;
    for (((topic, partition), seen), now) in of.iter().zip(seen).zip(ends) {
        if seen != now {
            let message = format!(
                "the destination {topic} partition {partition} ended at offset {seen} and now \
                 ends at {now}: somebody writes to it; nothing was changed; find out who, then \
                 run the same command again"
            );
            return Err(Stop::Other(Exit::Findings, message));
        }
    }
    Ok(())
}

fn tell(
    args: &RebuildArgs,
    outcomes: &[Outcome],
    states: &[SourceState],
    aside: &[(String, String)],
) {
    let names: Vec<String> = states
        .iter()
        .map(|state| crate::statefile::inspect::file_name(&state.source, state.shard))
        .collect();
    if args.json {
        let aside: Vec<_> =
            aside.iter().map(|(from, to)| json!({"from": from, "to": to})).collect();
        let partitions: Vec<_> = outcomes.iter().map(Outcome::json).collect();
        let report = json!({
            "source": args.source,
            "written": names,
            "set_aside": aside,
            "partitions": partitions,
        });
        return report::out(&report.to_string());
    }
    for (from, to) in aside {
        report::out(&format!("{from} is now {to}"));
    }
    let source = &args.source;
    if !names.is_empty() {
        report::out(&format!("{source}: wrote {}", names.join(", ")));
    } else if aside.is_empty() {
        report::out(&format!("{source}: nothing was changed"));
    } else {
        report::out(&format!("{source}: no position was written"));
    }
    if !aside.is_empty() {
        for outcome in outcomes.iter().filter(|outcome| outcome.begins_anew()) {
            report::out(&format!("{}: no position is saved; it begins as new", outcome.name()));
        }
    }
}

fn peer(message: String) -> Stop {
    Stop::Other(Exit::Peer, format!("{message}; nothing was changed"))
}
