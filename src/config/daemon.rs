//! `[daemon]`.

use std::path::PathBuf;
use std::time::Duration;

use super::plan::{DaemonPlan, LogFormat, Shards};
use super::reader::{Document, Section, Words, list, nearest, short, words};

pub(super) const DAEMON_KEYS: &[&str] = &[
    "state_dir",
    "shards",
    "max_buffered_bytes",
    "drain_timeout",
    "core_dumps",
    "log_format",
    "log_level",
];

const DAEMON_LATER: &[&str] = &["commit_stop_grace", "max_in_flight_batches"];

/// More shards than any machine has cores is a typing error.
const MOST_SHARDS: u64 = 1024;

pub(super) fn read_daemon(doc: &Document<'_>, root: &Section<'_>) -> Option<DaemonPlan> {
    if !root.has("daemon") {
        let said =
            super::absent("the table [daemon]", "[daemon] with state_dir = \"/var/lib/tidegate\"");
        doc.fail(0, "daemon".to_owned(), said);
        return None;
    }
    let section = root.table("daemon")?;
    section.refuse_unknown(DAEMON_KEYS, DAEMON_LATER);
    let state_dir = read_state_dir(&section);
    let shards = read_shards(&section);
    let max_buffered_bytes = section.size("max_buffered_bytes");
    let drain_timeout = section.interval("drain_timeout");
    let core_dumps = section.boolean("core_dumps");
    let formats =
        [("text", Some(LogFormat::Text)), ("json", Some(LogFormat::Json)), ("auto", None)];
    let log_format = section.choice("log_format", &formats, &[]);
    let log_level = read_log_level(&section);
    Some(DaemonPlan {
        state_dir: state_dir?,
        shards: shards.unwrap_or(Shards::Auto),
        max_buffered_bytes: max_buffered_bytes.unwrap_or(128 << 20),
        drain_timeout: drain_timeout.unwrap_or(Duration::from_secs(30)),
        core_dumps: core_dumps.unwrap_or(false),
        log_format: log_format.flatten(),
        log_level: log_level.unwrap_or_else(|| "info".to_owned()),
    })
}

/// Checks a log filter: levels, alone or per module, separated by commas.
pub fn check_log_level(filter: &str) -> Result<(), String> {
    level_problem(filter).map_or(Ok(()), |said| {
        Err(format!("{}; expected {}; {}", said.seen, said.expected, said.advice))
    })
}

const LEVELS: &[&str] = &["off", "error", "warn", "info", "debug", "trace"];

// The filter's own parser takes any bare word for a module name, so that "inof" would silence
// everything; a bare word must be a level here.
fn level_problem(filter: &str) -> Option<Words> {
    for directive in filter.split(',') {
        let level = directive.rsplit('=').next().unwrap_or_default().trim();
        if !LEVELS.contains(&level.to_lowercase().as_str()) {
            let advice = match nearest(level, LEVELS) {
                Some(near) => format!("did you mean {near:?}?"),
                None => "write a level, or module=level pairs separated by commas".to_owned(),
            };
            let expected = format!("one of {}, or module=level", list(LEVELS));
            return Some(words(format!("{:?} is no log level", short(level)), expected, advice));
        }
    }
    let parsed = filter.parse::<tracing_subscriber::filter::Targets>();
    parsed.err().map(|error| {
        words(error.to_string(), "a level, or module=level", "write for example \"info\"")
    })
}

fn read_log_level(section: &Section<'_>) -> Option<String> {
    let text = section.text("log_level")?;
    if let Some(mut said) = level_problem(&text.value) {
        if text.value != text.shown {
            said.seen = format!("{:?} is no log level", short(&text.shown));
        }
        section.fail("log_level", said);
        return None;
    }
    Some(text.value)
}

fn read_state_dir(section: &Section<'_>) -> Option<PathBuf> {
    let expected = "the directory for position files, such as \"/var/lib/tidegate\"";
    if !section.has("state_dir") {
        let advice = "add state_dir; create the directory for tidegate's user alone, mode 0700";
        section.fail("state_dir", words("the key is missing", expected, advice));
        return None;
    }
    let text = section.text("state_dir")?;
    if text.value.trim().is_empty() || text.value.contains('\0') {
        section.fail("state_dir", words("not a path", expected, "name a directory"));
        return None;
    }
    Some(PathBuf::from(text.value))
}

fn read_shards(section: &Section<'_>) -> Option<Shards> {
    if section.is_integer("shards") {
        let count = section.number("shards", 1..=MOST_SHARDS)?;
        return u16::try_from(count).ok().map(Shards::Count);
    }
    let text = section.text("shards")?;
    if text.value == "auto" {
        return Some(Shards::Auto);
    }
    let advice = if text.value.trim().parse::<u16>().is_ok() {
        "write the number without quotes"
    } else {
        "write shards = \"auto\" for one per allowed CPU, or a number without quotes"
    };
    let seen = format!("{:?}", short(&text.shown));
    section.fail("shards", words(seen, format!("\"auto\" or 1 to {MOST_SHARDS}"), advice));
    None
}
