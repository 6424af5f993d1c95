//! What commands print: results on standard output, errors on standard error, or both as one
//! JSON object on standard output. A reader that closed the pipe is no error.

use std::fmt::Write as _;
use std::io::Write as _;

use serde_json::{Value, json};

use super::exit::Exit;
use crate::config::{ConfigError, ConfigErrors};

/// Something a command found, in the words of the one who has to act on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What it is about, and with that the exit code.
    pub class: Class,
    /// File, key, cluster or topic, and where it matters line and column.
    pub subject: String,
    /// What was seen.
    pub seen: String,
    /// What would have been right; empty for a note.
    pub expected: String,
    /// What to do; empty when nothing.
    pub advice: String,
}

/// Whose affair a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// The configuration.
    Config,
    /// State directory or files.
    State,
    /// A cluster that refuses or cannot be reached.
    Peer,
    /// Anything else that is wrong.
    Other,
    /// Works, and may hurt; it changes no exit code.
    Warning,
    /// Nothing is wrong, but worth knowing.
    Note,
}

impl Class {
    /// Whether something has to be mended.
    pub fn is_wrong(self) -> bool {
        !matches!(self, Class::Warning | Class::Note)
    }

    /// The word in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Class::Config => "config",
            Class::State => "state",
            Class::Peer => "peer",
            Class::Other => "finding",
            Class::Warning => "warning",
            Class::Note => "note",
        }
    }
}

impl Finding {
    /// Worth knowing, nothing to mend.
    pub fn note(subject: impl Into<String>, seen: impl Into<String>) -> Finding {
        Finding {
            class: Class::Note,
            subject: subject.into(),
            seen: seen.into(),
            expected: String::new(),
            advice: String::new(),
        }
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut text = format!("{}: {}: {}", self.class.as_str(), self.subject, self.seen);
        for (label, part) in [("expected", &self.expected), ("to do", &self.advice)] {
            if !part.is_empty() {
                let label = format!("{label}:");
                // Writing to a String cannot fail.
                let _ = write!(text, "\n  {label:9} {part}");
            }
        }
        text
    }

    /// For programs.
    pub fn json(&self) -> Value {
        json!({
            "class": self.class.as_str(),
            "subject": self.subject,
            "seen": self.seen,
            "expected": self.expected,
            "advice": self.advice,
        })
    }
}

/// The exit code of a list: that of the first class concerned, configuration before state
/// before clusters, and 1 if there are only findings of other kinds.
pub fn exit_of(findings: &[Finding]) -> Exit {
    match findings.iter().map(|finding| finding.class).min() {
        Some(Class::Config) => Exit::Usage,
        Some(Class::State) => Exit::State,
        Some(Class::Peer) => Exit::Peer,
        Some(Class::Other) => Exit::Findings,
        Some(Class::Warning | Class::Note) | None => Exit::Ok,
    }
}

/// Prints a result.
pub fn out(text: &str) {
    let mut stdout = std::io::stdout().lock();
    // A closed pipe means that nobody wants the rest.
    let _ = writeln!(stdout, "{text}").and_then(|()| stdout.flush());
}

/// Prints to standard error.
pub fn complain(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// Reports why a command did nothing, and returns its exit code.
pub fn fail(json: bool, exit: Exit, message: &str) -> Exit {
    if json {
        out(&error_json(exit, message, Vec::new()).to_string());
    } else {
        complain(&format!("error: {message}"));
    }
    exit
}

/// Reports a refused configuration, and returns the exit code.
pub fn fail_config(json: bool, errors: &ConfigErrors) -> Exit {
    if json {
        let findings = errors.findings().iter().map(config_json).collect();
        let message = "the configuration is refused";
        out(&error_json(Exit::Usage, message, findings).to_string());
    } else {
        complain(&format!("error: the configuration is refused\n{errors}"));
    }
    Exit::Usage
}

/// One finding of the configuration, with its place.
pub fn config_json(error: &ConfigError) -> Value {
    json!({
        "class": Class::Config.as_str(),
        "subject": error.key,
        "file": error.file,
        "line": error.at.map(|at| at.line),
        "column": error.at.map(|at| at.column),
        "key": error.key,
        "seen": error.seen,
        "expected": error.expected,
        "advice": error.advice,
    })
}

fn error_json(exit: Exit, message: &str, findings: Vec<Value>) -> Value {
    json!({
        "error": {
            "kind": exit.as_str(),
            "exit": exit.code(),
            "message": message,
            "findings": findings,
        }
    })
}

/// Rows below a head, columns as wide as needed; numbers (by their first row) to the right.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let wide = |text: &str| text.chars().count();
    let mut widths: Vec<usize> = head.iter().map(|cell| wide(cell)).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(wide(cell));
        }
    }
    let numeric: Vec<bool> = (0..head.len())
        .map(|column| {
            let cell = rows.first().and_then(|row| row.get(column));
            cell.is_some_and(|cell| cell.parse::<i128>().is_ok())
        })
        .collect();
    let mut text = String::new();
    let head = head.iter().map(|cell| (*cell).to_owned()).collect();
    for row in std::iter::once(&head).chain(rows) {
        let mut line = String::new();
        for ((cell, width), numeric) in row.iter().zip(&widths).zip(&numeric) {
            let pad = " ".repeat(width - wide(cell));
            let (left, right) = if *numeric { (pad.as_str(), "") } else { ("", pad.as_str()) };
            line.push_str(&format!("{left}{cell}{right}  "));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// A moment in UTC, to the second: `2026-01-31T23:59:59Z`.
pub fn utc(unix_micros: u64) -> String {
    let seconds = unix_micros / 1_000_000;
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    // Gregorian calendar in years that begin in March: leap days come last, months follow
    // a pattern of 153 days in five. Valid for every u64 of microseconds.
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_shown_in_utc() {
        for (seconds, shown) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_210_096, "2024-02-29T12:34:56Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (1_767_225_599, "2025-12-31T23:59:59Z"),
        ] {
            assert_eq!(utc(seconds * 1_000_000 + 999_999), shown);
        }
    }

    #[test]
    fn the_gravest_class_decides_the_exit_code() {
        let of = |class| Finding { class, ..Finding::note("x", "y") };
        assert_eq!(exit_of(&[]), Exit::Ok);
        assert_eq!(exit_of(&[of(Class::Note)]), Exit::Ok);
        assert_eq!(exit_of(&[of(Class::Note), of(Class::Warning)]), Exit::Ok);
        assert_eq!(exit_of(&[of(Class::Note), of(Class::Other)]), Exit::Findings);
        assert_eq!(exit_of(&[of(Class::Other), of(Class::Peer)]), Exit::Peer);
        assert_eq!(exit_of(&[of(Class::Peer), of(Class::State)]), Exit::State);
    }

    #[test]
    fn tables_align_numbers_to_the_right() {
        let rows =
            [vec!["a".to_owned(), "7".to_owned()], vec!["bcd".to_owned(), "1000".to_owned()]];
        assert_eq!(table(&["name", "n"], &rows), "name     n\na        7\nbcd   1000\n");
    }
}
