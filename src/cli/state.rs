//! `tidegate state show | reset | rebuild`: saved positions, for people and for programs.
//!
//! `show` needs no lock and disturbs no daemon. `reset` holds the lock, asks, and sets files
//! aside under another name instead of deleting them; for one topic or partition it rewrites them
//! ([`forget`]). Neither reads passwords or tokens. [`rebuild`] holds the lock too, asks the
//! clusters, and then its user.
#![allow(clippy::disallowed_methods)] // an operator's command, no shard runs

mod capture;
mod forget;
pub mod rebuild;

use std::io::{self, BufRead, IsTerminal};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use clap::{Args, Subcommand};
use serde_json::json;

use self::forget::{Removed, Selection};
use super::Exit;
use super::report::{self, table, utc};
use super::statedir::{self, StateDir};
use crate::batch::TopicName;
use crate::config::{self, Plan};
use crate::shard::driver::files;
use crate::statefile::inspect::{
    FeedReport, FileReport, FoundFile, SourceReport, TopicReport, report as merge,
};

/// `tidegate state …`
#[derive(Debug, Subcommand)]
pub enum StateCommand {
    /// Show the saved position of every partition
    Show(ShowArgs),
    /// Forget the positions of a source (its files are set aside), of a topic or of a partition:
    /// the next start begins these anew
    Reset(ResetArgs),
    /// Read positions back from the destination after their file was lost or the two sides
    /// contradicted each other, or name the place of one partition
    Rebuild(rebuild::RebuildArgs),
}

/// Arguments of `tidegate state show`.
#[derive(Debug, Args)]
pub struct ShowArgs {
    /// Configuration file
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Print everything that is saved as one JSON object
    #[arg(long)]
    pub json: bool,
    /// Only this source
    pub source: Option<String>,
}

/// Arguments of `tidegate state reset`.
#[derive(Debug, Args)]
pub struct ResetArgs {
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
    /// Do not ask
    #[arg(long)]
    pub yes: bool,
    /// Print the result as one JSON object
    #[arg(long)]
    pub json: bool,
}

impl StateCommand {
    /// Whether the result is to be JSON.
    pub fn json(&self) -> bool {
        match self {
            StateCommand::Show(args) => args.json,
            StateCommand::Reset(args) => args.json,
            StateCommand::Rebuild(args) => args.json,
        }
    }
}

/// Runs the command and reports.
pub fn run(command: &StateCommand) -> Exit {
    let result = match command {
        StateCommand::Show(args) => show(args),
        StateCommand::Reset(args) => reset(args),
        StateCommand::Rebuild(args) => rebuild::run(args),
    };
    match result {
        Ok(exit) => exit,
        Err(Stop::Config(errors)) => report::fail_config(command.json(), &errors),
        Err(Stop::Other(exit, message)) => report::fail(command.json(), exit, &message),
    }
}

/// Why a command did not do what was asked.
enum Stop {
    Config(config::ConfigErrors),
    Other(Exit, String),
}

impl From<statedir::StateDirError> for Stop {
    fn from(error: statedir::StateDirError) -> Stop {
        Stop::Other(Exit::State, error.to_string())
    }
}

fn load(path: &Path) -> Result<Plan, Stop> {
    config::load_without_credentials(path).map_err(Stop::Config)
}

fn show(args: &ShowArgs) -> Result<Exit, Stop> {
    let plan = load(&args.config)?;
    let mut files = statedir::read_files(&plan.daemon.state_dir)?;
    if let Some(source) = &args.source {
        check_source(&plan, &files, source)?;
        files.retain(|file| *file.source == **source);
    }
    let merged = merge(&files);
    if args.json {
        let text = serde_json::to_string(&merged)
            .map_err(|error| Stop::Other(Exit::State, error.to_string()))?;
        report::out(&text);
    } else if merged.sources.is_empty() {
        report::out(&format!("no saved positions in {}", plan.daemon.state_dir.display()));
    } else {
        let texts: Vec<String> = merged.sources.iter().map(source_text).collect();
        report::out(texts.join("\n").trim_end());
    }
    let broken = files.iter().any(|file| file.state.is_err());
    Ok(if broken { Exit::State } else { Exit::Ok })
}

/// A source is known from the configuration or from its files.
fn check_source(plan: &Plan, files: &[FoundFile], source: &str) -> Result<(), Stop> {
    let mut known: Vec<&str> = plan.sources.iter().map(|source| &*source.key).collect();
    known.extend(plan.captures.iter().map(|capture| &*capture.key));
    known.extend(files.iter().map(|file| &*file.source));
    known.sort_unstable();
    known.dedup();
    if known.contains(&source) {
        return Ok(());
    }
    let message = format!("there is no source {source:?}; expected one of {}", known.join(", "));
    Err(Stop::Other(Exit::Usage, message))
}

fn source_text(source: &SourceReport) -> String {
    let mut text = format!("{}\n", source.source);
    for file in &source.files {
        let line = match (&file.error, file.generation, file.saved_at_us) {
            (Some(error), ..) => format!("  {error}\n"),
            (None, generation, saved_at) => format!(
                "  {}: generation {}, saved {}, {}\n",
                file.file,
                generation.unwrap_or_default(),
                utc(saved_at.unwrap_or_default()),
                content(file),
            ),
        };
        text.push_str(&line);
    }
    if !source.captures.is_empty() {
        text.push_str(&capture::text(&source.captures));
    }
    if source.feeds.is_empty() {
        return text;
    }
    let head = [
        "partition",
        "position",
        "delta",
        "messages",
        "errors",
        "resets",
        "gaps",
        "missing",
        "stop",
        "topic",
    ];
    let rows: Vec<Vec<String>> = source.feeds.iter().map(feed_row).collect();
    for line in table(&head, &rows).lines() {
        text.push_str(&format!("  {line}\n"));
    }
    for feed in &source.feeds {
        text.push_str(&feed_details(feed));
    }
    text
}

fn content(file: &FileReport) -> String {
    let slots = if file.captures == 1 { "slot" } else { "slots" };
    match (file.feeds, file.captures) {
        (feeds, 0) => format!("{feeds} partitions"),
        (0, captures) => format!("{captures} replication {slots}"),
        (feeds, captures) => format!("{feeds} partitions, {captures} replication {slots}"),
    }
}

fn feed_row(feed: &FeedReport) -> Vec<String> {
    let counters = &feed.counters;
    vec![
        feed.partition.to_string(),
        feed.position.to_string(),
        feed.deltas.last().map_or(0, |piece| piece.delta).to_string(),
        counters.messages.to_string(),
        counters.errors.to_string(),
        counters.resets.to_string(),
        counters.gaps.to_string(),
        counters.gap_messages.to_string(),
        if feed.clean_stop { "clean" } else { "open" }.to_owned(),
        topic_text(feed),
    ]
}

fn topic_text(feed: &FeedReport) -> String {
    let upstream = format!("{}/{}", feed.upstream.stream, feed.upstream.topic);
    if feed.upstream == feed.downstream {
        return upstream;
    }
    format!("{upstream} → {}/{}", feed.downstream.stream, feed.downstream.topic)
}

/// What a row has no room for.
fn feed_details(feed: &FeedReport) -> String {
    let name = format!("{} partition {}", topic_text(feed), feed.partition);
    let mut text = String::new();
    for piece in feed.deltas.iter().filter(|_| feed.deltas.len() > 1) {
        let (from, delta) = (piece.from_upstream, piece.delta);
        text.push_str(&format!("  {name}: delta {delta} from offset {from} on\n"));
    }
    for gap in &feed.gaps {
        let (first, last, found) = (gap.first, gap.last, utc(gap.found_at_us));
        text.push_str(&format!(
            "  {name}: gap of {} messages, offsets {first} to {last}, found {found}\n",
            gap.messages
        ));
    }
    for it in &feed.repeats {
        let (first, last, found) = (it.first, it.last, utc(it.found_at_us));
        text.push_str(&format!(
            "  {name}: copied again: {} messages, offsets {first} to {last}, accepted {found}\n",
            it.messages
        ));
    }
    text
}

fn reset(args: &ResetArgs) -> Result<Exit, Stop> {
    let plan = load(&args.config)?;
    let dir = StateDir::open(&plan.daemon.state_dir)?;
    let mut files = dir.files()?;
    check_source(&plan, &files, &args.source)?;
    files.retain(|file| *file.source == *args.source);
    if let Some(topic) = &args.topic {
        let selection = Selection { topic, partition: args.partition };
        return reset_some(args, &dir, &files, selection);
    }
    if !files.is_empty() && !args.yes {
        let stdin = io::stdin();
        let names: Vec<&str> = files.iter().map(|file| &*file.file).collect();
        let (source, count) = (&args.source, files.len());
        let question = format!("Forget the positions of {source:?}, {count} file(s)?");
        confirm(&question, &names, stdin.is_terminal(), &mut stdin.lock())?;
    }
    let moved = set_aside(&files).map_err(|(path, error)| {
        let message = format!("setting {path} aside failed: {error}; nothing after it was touched");
        Stop::Other(Exit::State, message)
    })?;
    if args.json {
        let list: Vec<_> = moved.iter().map(|(from, to)| json!({"from": from, "to": to})).collect();
        report::out(&json!({"source": args.source, "set_aside": list}).to_string());
    } else if moved.is_empty() {
        report::out(&format!("{}: no saved positions", args.source));
    } else {
        for (from, to) in &moved {
            report::out(&format!("{from} is now {to}"));
        }
        report::out(&format!("{}: {}", args.source, next_start(&files)));
    }
    Ok(Exit::Ok)
}

/// What a source does at its next start without the positions in `files`.
fn next_start(files: &[FoundFile]) -> &'static str {
    let states = files.iter().filter_map(|file| file.state.as_ref().ok());
    if states.into_iter().any(|state| !state.captures.is_empty()) {
        return "the next start begins where the replication slot was confirmed, or makes a new \
                slot and begins there; changes before that never arrive";
    }
    "the next start begins at initial_offset; a destination that has messages already is handled \
     by on_nonempty_destination"
}

/// Forgets a part of a source.
fn reset_some(
    args: &ResetArgs,
    dir: &StateDir,
    files: &[FoundFile],
    selection: Selection<'_>,
) -> Result<Exit, Stop> {
    let state_stop = |message| Stop::Other(Exit::State, message);
    let rewrite = forget::plan(files, selection, now_us()).map_err(state_stop)?;
    if rewrite.removed.is_empty() {
        return Err(Stop::Other(Exit::Usage, nothing_matches(args, files, selection)));
    }
    let lines: Vec<String> = rewrite.removed.iter().map(removed_text).collect();
    if !args.yes {
        let stdin = io::stdin();
        let names: Vec<&str> = lines.iter().map(String::as_str).collect();
        let (what, source) = (selection.text(), &args.source);
        let question = format!("Forget the positions of {what} of {source:?}?");
        confirm(&question, &names, stdin.is_terminal(), &mut stdin.lock())?;
    }
    forget::write(dir.path(), &rewrite.states).map_err(state_stop)?;
    if args.json {
        let removed: Vec<_> = rewrite.removed.iter().map(removed_json).collect();
        report::out(&json!({"source": args.source, "removed": removed}).to_string());
        return Ok(Exit::Ok);
    }
    for line in &lines {
        report::out(&format!("removed {line}"));
    }
    report::out(&format!(
        "{}: {} starts as new; everything else keeps its position",
        args.source,
        selection.text()
    ));
    Ok(Exit::Ok)
}

fn nothing_matches(args: &ResetArgs, files: &[FoundFile], selection: Selection<'_>) -> String {
    let merged = merge(files);
    let feeds = merged.sources.iter().flat_map(|source| &source.feeds);
    let mut known: Vec<String> = feeds
        .map(|feed| {
            let TopicReport { stream, topic } = &feed.upstream;
            format!("{stream}/{topic} partition {}", feed.partition)
        })
        .collect();
    known.dedup();
    let known = if known.is_empty() { "nothing".to_owned() } else { known.join(", ") };
    format!(
        "no position of {} is saved for source {:?}; saved are: {known}; nothing was changed",
        selection.text(),
        args.source
    )
}

fn removed_text(removed: &Removed) -> String {
    let Removed { file, upstream, partition, position, .. } = removed;
    format!("{upstream} partition {partition}, position {position}, from {file}")
}

fn removed_json(removed: &Removed) -> serde_json::Value {
    let topic = |name: &TopicName| json!({"stream": *name.stream, "topic": *name.topic});
    json!({
        "file": removed.file,
        "upstream": topic(&removed.upstream),
        "downstream": topic(&removed.downstream),
        "partition": removed.partition,
        "position": removed.position,
    })
}

/// Asks `question`, of which `lines` tell more.
fn confirm(
    question: &str,
    lines: &[&str],
    terminal: bool,
    input: &mut dyn BufRead,
) -> Result<(), Stop> {
    let refuse = |message: &str| Err(Stop::Other(Exit::Usage, message.to_owned()));
    if !terminal {
        return refuse(
            "standard input is no terminal, so nobody can be asked and nothing was changed; add \
             --yes to go on without a question",
        );
    }
    for line in lines {
        report::complain(&format!("  {line}"));
    }
    report::complain(&format!("{question} [y/N]"));
    let mut answer = String::new();
    let read = input.read_line(&mut answer);
    if read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes") {
        return Ok(());
    }
    refuse("nothing was changed")
}

/// Gives the files a name that no start reads.
fn set_aside(files: &[FoundFile]) -> Result<Vec<(String, String)>, (String, io::Error)> {
    // Microseconds: a second reset within a second finds a name that is free.
    let stamp = now_us();
    let aside = |file: &FoundFile| {
        let to = files::set_aside(Path::new(&file.file), stamp);
        to.map(|to| (file.file.clone(), to.display().to_string()))
            .map_err(|error| (file.file.clone(), error))
    };
    files.iter().map(aside).collect()
}

fn now_us() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(terminal: bool, mut answer: &[u8]) -> bool {
        confirm("Forget orders?", &[], terminal, &mut answer).is_ok()
    }

    #[test]
    fn only_a_clear_yes_on_a_terminal_forgets_positions() {
        assert!(asked(true, b"y\n") && asked(true, b" yes \n"));
        for answer in [&b""[..], b"\n", b"n\n", b"yep\n", b"orders\n", b"\xff\n"] {
            assert!(!asked(true, answer), "{answer:?}");
        }
        assert!(!asked(false, b"y\n"));
    }
}
