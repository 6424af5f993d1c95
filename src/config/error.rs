//! What is wrong with a configuration, in a form for people and for programs.

use std::fmt;

/// Where in the file, both from 1; columns count characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Line.
    pub line: usize,
    /// Column.
    pub column: usize,
}

impl Position {
    /// Position of the byte at `offset` of `text`; past the end is the end.
    pub fn of(text: &str, offset: usize) -> Position {
        let before = text.get(..offset).unwrap_or(text);
        let start = before.rfind('\n').map_or(0, |at| at + 1);
        Position {
            line: before.matches('\n').count() + 1,
            column: before[start..].chars().count() + 1,
        }
    }
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// File as named by the caller.
    pub file: String,
    /// Where; `None` when the file could not be read at all.
    pub at: Option<Position>,
    /// Dotted path of the key, empty for the file as a whole.
    pub key: String,
    /// What was seen. Never an expanded secret.
    pub seen: String,
    /// What would have been right.
    pub expected: String,
    /// What to do.
    pub advice: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(at) = self.at {
            write!(f, ":{}:{}", at.line, at.column)?;
        }
        if !self.key.is_empty() {
            write!(f, ": {}", self.key)?;
        }
        write!(f, ": {}", self.seen)?;
        write!(f, "\n  expected: {}", self.expected)?;
        write!(f, "\n  to do:    {}", self.advice)
    }
}

/// All findings of one file, in the order of the file; at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors {
    findings: Vec<ConfigError>,
}

impl ConfigErrors {
    /// From findings in any order.
    pub(super) fn new(mut findings: Vec<ConfigError>) -> ConfigErrors {
        findings.sort_by_key(|finding| finding.at);
        ConfigErrors { findings }
    }

    /// The findings.
    pub fn findings(&self) -> &[ConfigError] {
        &self.findings
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, finding) in self.findings.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{finding}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_count_characters_not_bytes() {
        let text = "a = 1\nü = \"é\" # x";
        let offset = text.find('#').unwrap();
        assert_eq!(Position::of(text, offset), Position { line: 2, column: 9 });
    }

    #[test]
    fn an_offset_past_the_end_is_the_end() {
        assert_eq!(Position::of("a\nbc", 99), Position { line: 2, column: 3 });
    }
}
