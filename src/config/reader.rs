//! Typed reads from a TOML table that know where each value stands and collect findings.
//!
//! A read returns `None` for an absent *or* an invalid value; the second leaves a finding, and a
//! document with findings yields no plan. So callers fill in defaults without asking which.
//! Strings that came out of a reference are never quoted in a finding, and neither are strings
//! of a wrong type: one of them may be a connection string with its password.

use std::cell::RefCell;
use std::ops::{Range, RangeInclusive};
use std::sync::LazyLock;
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeInteger, DeTable, DeValue};

use super::error::{ConfigError, ConfigErrors, Position};
use super::secret::{self, Secrets};
use super::value;
use crate::secret::Secret;

/// The file being read, and what is wrong with it so far.
pub(super) struct Document<'d> {
    text: &'d str,
    file: &'d str,
    secrets: &'d dyn Secrets,
    credentials: bool,
    findings: RefCell<Vec<ConfigError>>,
    warnings: RefCell<Vec<ConfigError>>,
}

/// The table that an absent one is read as.
static NOTHING: LazyLock<DeTable<'static>> = LazyLock::new(DeTable::new);

/// The three things a finding says.
pub(super) struct Words {
    pub seen: String,
    pub expected: String,
    pub advice: String,
}

/// The three things a finding says, from whatever is at hand.
pub(super) fn words(
    seen: impl Into<String>,
    expected: impl Into<String>,
    advice: impl Into<String>,
) -> Words {
    Words { seen: seen.into(), expected: expected.into(), advice: advice.into() }
}

/// A string value with its references replaced.
pub(super) struct Text {
    /// What the plan gets.
    pub value: String,
    /// What a finding may show: the text as written.
    pub shown: String,
}

/// One table of the file.
#[derive(Clone)]
pub(super) struct Section<'t> {
    doc: &'t Document<'t>,
    table: &'t DeTable<'t>,
    /// Dotted path, empty for the root.
    path: String,
    /// Byte offset of its key.
    at: usize,
}

impl<'d> Document<'d> {
    pub fn new(
        text: &'d str,
        file: &'d str,
        secrets: &'d dyn Secrets,
        credentials: bool,
    ) -> Document<'d> {
        let (findings, warnings) = (RefCell::default(), RefCell::default());
        Document { text, file, secrets, credentials, findings, warnings }
    }

    pub fn text(&self) -> &'d str {
        self.text
    }

    pub fn root<'t>(&'t self, table: &'t DeTable<'t>) -> Section<'t> {
        Section { doc: self, table, path: String::new(), at: 0 }
    }

    /// A syntax error. Of the source only a duplicated key is quoted.
    pub fn syntax(&self, message: &str, span: Option<Range<usize>>) {
        let span = span.unwrap_or(self.text.len()..self.text.len());
        let at = span.start;
        let (key, said) = if message == "duplicate key" {
            let key = self.text.get(span).unwrap_or_default().to_owned();
            (key, words(message, "each key once", "remove or rename one of the two"))
        } else {
            let said = words(
                format!("not TOML: {message}"),
                "TOML 1.0",
                "correct the syntax; strings need quotes, tables a [header]",
            );
            (String::new(), said)
        };
        self.fail(at, key, said);
    }

    pub fn fail(&self, at: usize, key: String, said: Words) {
        self.findings.borrow_mut().push(self.finding(at, key, said));
    }

    /// Not wrong, but hardly meant: the plan is made all the same.
    pub fn warn(&self, at: usize, key: String, said: Words) {
        self.warnings.borrow_mut().push(self.finding(at, key, said));
    }

    fn finding(&self, at: usize, key: String, said: Words) -> ConfigError {
        let Words { seen, expected, advice } = said;
        let at = Some(Position::of(self.text, at));
        ConfigError { file: self.file.to_owned(), at, key, seen, expected, advice }
    }

    /// The warnings, in the order of the file.
    pub fn take_warnings(&self) -> Vec<ConfigError> {
        let mut warnings = self.warnings.take();
        warnings.sort_by_key(|warning| warning.at);
        warnings
    }

    pub fn line_of(&self, at: usize) -> usize {
        Position::of(self.text, at).line
    }

    pub fn has_findings(&self) -> bool {
        !self.findings.borrow().is_empty()
    }

    pub fn take_errors(&self) -> ConfigErrors {
        ConfigErrors::new(self.findings.take())
    }
}

impl<'t> Section<'t> {
    pub fn at(&self) -> usize {
        self.at
    }

    pub fn line(&self) -> usize {
        self.doc.line_of(self.at)
    }

    pub fn path(&self) -> &str {
        &self.path
    }

    pub fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// Dotted path of a key of this table.
    pub fn path_of(&self, key: &str) -> String {
        let bare = !key.is_empty()
            && key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
        let key = if bare { key.to_owned() } else { format!("{key:?}") };
        if self.path.is_empty() { key } else { format!("{}.{key}", self.path) }
    }

    /// Finding at a key's value, or at the table when the key is absent.
    pub fn fail(&self, key: &str, said: Words) {
        let at = self.table.get(key).map_or(self.at, |value| value.span().start);
        self.doc.fail(at, self.path_of(key), said);
    }

    /// Finding at a place within a key's value.
    pub fn fail_at(&self, at: usize, key: &str, said: Words) {
        self.doc.fail(at, self.path_of(key), said);
    }

    /// Like [`Section::fail`], as a warning.
    pub fn warn(&self, key: &str, said: Words) {
        let at = self.table.get(key).map_or(self.at, |value| value.span().start);
        self.doc.warn(at, self.path_of(key), said);
    }

    /// Like [`Section::fail_here`], as a warning.
    pub fn warn_here(&self, said: Words) {
        self.doc.warn(self.at, self.path.clone(), said);
    }

    /// Finding at the table itself.
    pub fn fail_here(&self, said: Words) {
        self.doc.fail(self.at, self.path.clone(), said);
    }

    /// Refuses every key that is neither `known` nor announced for `later`.
    pub fn refuse_unknown(&self, known: &[&str], later: &[&str]) {
        for (key, _) in self.table {
            let name = key.get_ref().as_ref();
            if known.contains(&name) {
                continue;
            }
            let said = if later.contains(&name) {
                words(
                    "not available in this version",
                    format!("one of {}", list(known)),
                    "remove the key",
                )
            } else {
                let advice = match nearest(name, known) {
                    Some(near) => format!("did you mean {near:?}? Otherwise remove the key"),
                    None => "remove the key".to_owned(),
                };
                words("unknown key", format!("one of {}", list(known)), advice)
            };
            self.doc.fail(key.span().start, self.path_of(name), said);
        }
    }

    /// Its tables by key, in key order; anything else is a finding.
    pub fn tables(&self) -> Vec<(&'t str, Section<'t>)> {
        let keys = self.table.keys().map(|key| key.get_ref().as_ref());
        keys.filter_map(|key| Some((key, self.table(key)?))).collect()
    }

    pub fn table(&self, key: &str) -> Option<Section<'t>> {
        let (found, value) = self.table.get_key_value(key)?;
        let path = self.path_of(key);
        match value.get_ref() {
            DeValue::Table(table) => {
                Some(Section { doc: self.doc, table, path, at: found.span().start })
            }
            other => {
                let example = format!("a table, [{path}]");
                self.wrong_type(key, other, &example, "write it as a table");
                None
            }
        }
    }

    /// How many keys it has.
    pub fn keys(&self) -> usize {
        self.table.len()
    }

    /// A table of this one, without a finding if the key holds something else.
    pub fn peek_table(&self, key: &str) -> Option<Section<'t>> {
        self.table.get(key).filter(|value| value.get_ref().is_table())?;
        self.table(key)
    }

    /// What a table of this one would be if it were there with nothing in it.
    pub fn empty_table(&self, key: &str) -> Section<'t> {
        Section { doc: self.doc, table: &NOTHING, path: self.path_of(key), at: self.at }
    }

    /// The tables of an array of tables, with their paths.
    pub fn table_array(&self, key: &str, example: &str) -> Option<Vec<Section<'t>>> {
        let value = self.table.get(key)?;
        let DeValue::Array(items) = value.get_ref() else {
            self.wrong_type(key, value.get_ref(), "an array of tables", example);
            return None;
        };
        let mut sections = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let path = format!("{}[{index}]", self.path_of(key));
            let at = item.span().start;
            match item.get_ref() {
                DeValue::Table(table) => {
                    sections.push(Section { doc: self.doc, table, path, at });
                }
                other => {
                    let said = words(describe(other), "a table", example);
                    self.doc.fail(at, path, said);
                }
            }
        }
        Some(sections)
    }

    pub fn text(&self, key: &str) -> Option<Text> {
        let value = self.table.get(key)?;
        self.text_of(key, value)
    }

    /// The strings of an array, each with its place.
    pub fn texts(&self, key: &str, example: &str) -> Option<Vec<(usize, Text)>> {
        let value = self.table.get(key)?;
        let DeValue::Array(items) = value.get_ref() else {
            self.wrong_type(key, value.get_ref(), "an array of strings", example);
            return None;
        };
        let read =
            |item: &Spanned<DeValue<'t>>| Some((item.span().start, self.text_of(key, item)?));
        Some(items.iter().filter_map(read).collect())
    }

    /// Where passwords are kept, unless the document was opened without credentials.
    pub fn credentials(&self) -> Option<&'t dyn Secrets> {
        self.doc.credentials.then_some(self.doc.secrets)
    }

    /// A password or token: its text is never shown, and not read at all where the document was
    /// opened without credentials.
    pub fn credential(&self, key: &str) -> Option<Secret> {
        let value = self.table.get(key)?;
        if !value.get_ref().is_str() {
            let advice = "put the value in quotes; it is not shown here";
            self.fail(key, words("not a string", "a string", advice));
            return None;
        }
        if !self.doc.credentials {
            return Some("not read".into());
        }
        // As written, it may be the value itself: both are wiped on every way out.
        let Text { value: text, shown } = self.text_of(key, value)?;
        let (text, _shown) = (Secret::from(text), Secret::from(shown));
        let problem = if text.expose().is_empty() {
            "an empty value"
        } else if text.expose().len() > CREDENTIAL_LIMIT {
            "a value of more than 255 bytes"
        } else if text.expose().contains(['\n', '\r', '\0']) {
            "a value with a line break or NUL in it"
        } else {
            return Some(text);
        };
        self.fail(
            key,
            words(
                problem,
                "1 to 255 bytes on one line",
                "check the value, or what its reference leads to; it is not shown here",
            ),
        );
        None
    }

    /// A duration above zero.
    pub fn interval(&self, key: &str) -> Option<Duration> {
        let value = self.duration(key)?;
        if !value.is_zero() {
            return Some(value);
        }
        self.fail(
            key,
            words("a duration of zero", "more than zero", "set a longer time or remove the key"),
        );
        None
    }

    /// A duration, zero allowed.
    pub fn duration(&self, key: &str) -> Option<Duration> {
        self.quantity(key, "a duration as a string, such as \"10s\"", value::duration)
    }

    pub fn size(&self, key: &str) -> Option<u64> {
        self.quantity(key, "a size as a string, such as \"8MiB\"", value::size)
    }

    pub fn boolean(&self, key: &str) -> Option<bool> {
        let value = self.table.get(key)?;
        if let DeValue::Boolean(value) = value.get_ref() {
            return Some(*value);
        }
        self.wrong_type(key, value.get_ref(), "true or false", "write true or false, no quotes");
        None
    }

    /// A whole number within `range`.
    pub fn number(&self, key: &str, range: RangeInclusive<u64>) -> Option<u64> {
        let value = self.table.get(key)?;
        let expected = if *range.end() == u64::MAX {
            format!("a whole number of {} or more", range.start())
        } else {
            format!("a whole number from {} to {}", range.start(), range.end())
        };
        let DeValue::Integer(integer) = value.get_ref() else {
            let advice = "write the number without quotes, fraction or unit";
            self.wrong_type(key, value.get_ref(), &expected, advice);
            return None;
        };
        let number = whole(integer).filter(|number| range.contains(number));
        if number.is_none() {
            self.fail(key, words(describe(value.get_ref()), expected, "choose one in that range"));
        }
        number
    }

    pub fn is_text(&self, key: &str) -> bool {
        self.table.get(key).is_some_and(|value| value.get_ref().is_str())
    }

    pub fn is_integer(&self, key: &str) -> bool {
        self.table.get(key).is_some_and(|value| value.get_ref().is_integer())
    }

    /// One of the `allowed` words; `later` ones are known but not available yet.
    pub fn choice<T: Copy>(&self, key: &str, allowed: &[(&str, T)], later: &[&str]) -> Option<T> {
        let names: Vec<&str> = allowed.iter().map(|(name, _)| *name).collect();
        let value = self.table.get(key)?;
        if !value.get_ref().is_str() {
            let expected = format!("one of {}", list(&names));
            self.wrong_type(key, value.get_ref(), &expected, "write one of them in quotes");
            return None;
        }
        let text = self.text(key)?;
        let found = allowed.iter().find(|(name, _)| *name == text.value);
        if found.is_none() {
            self.refuse_word(key, &text, &names, later);
        }
        found.map(|(_, value)| *value)
    }

    /// Finding: `text` is none of the `allowed` words.
    pub fn refuse_word(&self, key: &str, text: &Text, allowed: &[&str], later: &[&str]) {
        let expected = format!("one of {}", list(allowed));
        let said = if later.contains(&text.value.as_str()) {
            let seen = format!("{:?} is not available in this version", short(&text.shown));
            words(seen, expected, "choose an available one")
        } else {
            let advice = match nearest(&text.value, allowed) {
                Some(near) => format!("did you mean {near:?}?"),
                None => "choose one of them".to_owned(),
            };
            words(format!("{:?} is unknown here", short(&text.shown)), expected, advice)
        };
        self.fail(key, said);
    }

    pub fn wrong_type(&self, key: &str, value: &DeValue<'_>, expected: &str, advice: &str) {
        self.fail(key, words(describe(value), expected, advice));
    }

    fn quantity<T>(
        &self,
        key: &str,
        expected: &str,
        parse: fn(&str) -> Result<T, &'static str>,
    ) -> Option<T> {
        let value = self.table.get(key)?;
        if let DeValue::Integer(number) = value.get_ref() {
            let advice = format!("add a unit and quotes to {number}");
            self.wrong_type(key, value.get_ref(), expected, &advice);
            return None;
        }
        if !value.get_ref().is_str() {
            self.wrong_type(key, value.get_ref(), expected, "write it as a string");
            return None;
        }
        let text = self.text(key)?;
        match parse(&text.value) {
            Ok(value) => Some(value),
            Err(needed) => {
                let seen = format!("{:?}", short(&text.shown));
                self.fail(key, words(seen, expected, format!("write {needed}")));
                None
            }
        }
    }

    fn text_of(&self, key: &str, value: &Spanned<DeValue<'t>>) -> Option<Text> {
        let DeValue::String(raw) = value.get_ref() else {
            let said = words(describe(value.get_ref()), "a string", "put the value in quotes");
            self.doc.fail(value.span().start, self.path_of(key), said);
            return None;
        };
        let shown = raw.to_string();
        match secret::expand(raw, self.doc.secrets) {
            Ok(expanded) => {
                let value = expanded.unwrap_or_else(|| shown.clone());
                Some(Text { value, shown })
            }
            Err(bad) => {
                let said = words(bad.seen, bad.expected, bad.advice);
                self.doc.fail(value.span().start, self.path_of(key), said);
                None
            }
        }
    }
}

/// Longest user name, password or token, bytes.
const CREDENTIAL_LIMIT: usize = 255;

/// `"a", "b", "c"`.
pub(super) fn list(names: &[&str]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
    quoted.join(", ")
}

/// The candidate a typing error most likely meant.
pub(super) fn nearest<'c>(word: &str, candidates: &[&'c str]) -> Option<&'c str> {
    let plain = |text: &str| text.to_lowercase().replace(['-', ' '], "_");
    let word = plain(word);
    candidates
        .iter()
        .map(|candidate| (strsim::damerau_levenshtein(&word, &plain(candidate)), *candidate))
        .filter(|(distance, candidate)| *distance <= candidate.chars().count() / 3 + 1)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Text for a finding, cut where it is too long to help.
pub(super) fn short(text: &str) -> String {
    const LONGEST: usize = 64;
    if text.chars().count() <= LONGEST {
        return text.to_owned();
    }
    text.chars().take(LONGEST).chain("…".chars()).collect()
}

fn whole(integer: &DeInteger<'_>) -> Option<u64> {
    u64::from_str_radix(integer.as_str(), integer.radix()).ok()
}

fn describe(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(_) => "a string".to_owned(),
        DeValue::Integer(number) => format!("the integer {number}"),
        DeValue::Float(number) => format!("the float {number}"),
        DeValue::Boolean(value) => format!("the boolean {value}"),
        DeValue::Datetime(_) => "a date".to_owned(),
        DeValue::Array(_) => "an array".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggestions_stay_close() {
        let known = ["retry_interval", "max_retry_interval", "reset_grace", "to"];
        assert_eq!(nearest("retry_intervall", &known), Some("retry_interval"));
        assert_eq!(nearest("Retry-Interval", &known), Some("retry_interval"));
        assert_eq!(nearest("ot", &known), Some("to"));
        assert_eq!(nearest("frobnicate", &known), None);
    }
}
