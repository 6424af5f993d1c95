//! `[[sources.<key>.tests]]`: rows and what must become of them (R9). `tidegate check` runs them.

use super::capture::parse_table;
use super::capture_plan::{Expectation, RouteTest};
use super::reader::{Section, words};

pub(super) const TEST_KEYS: &[&str] = &["table", "row", "key", "expect"];
pub(super) const EXPECT_KEYS: &[&str] = &["stream", "topic", "partition", "verdict", "reason"];

const EXAMPLE: &str = "write [[sources.<name>.tests]] with table, row and expect";
const VERDICTS: &[(&str, &str)] =
    &[("send", "send"), ("hold", "hold"), ("drop", "drop"), ("dead_letter", "dead_letter")];

/// The tests without findings.
pub(super) fn read_tests(section: &Section<'_>) -> Vec<RouteTest> {
    let sections = section.table_array("tests", EXAMPLE).unwrap_or_default();
    sections.iter().filter_map(read_test).collect()
}

fn read_test(section: &Section<'_>) -> Option<RouteTest> {
    section.refuse_unknown(TEST_KEYS, &[]);
    for (key, expected) in [
        ("table", "the row's table"),
        ("row", "the row as JSON text"),
        ("expect", "a table with stream and topic, or verdict"),
    ] {
        if !section.has(key) {
            section.fail(key, words("the key is missing", expected, format!("add {key}")));
        }
    }
    let table = section.text("table").and_then(|text| match parse_table(&text) {
        Ok(table) => Some(table),
        Err(said) => {
            section.fail("table", said);
            None
        }
    });
    let row = section.text("row").and_then(|text| {
        let parsed = serde_json::from_str::<serde_json::Value>(&text.value);
        if parsed.as_ref().is_ok_and(serde_json::Value::is_object) {
            return Some(text.value);
        }
        let seen = match parsed {
            Ok(_) => "JSON, but no object".to_owned(),
            Err(error) => format!("no JSON: {error}"),
        };
        let expected = "an object with a member for each column, such as '{\"id\": 1}'";
        section.fail("row", words(seen, expected, "correct the row"));
        None
    });
    let key = section.texts("key", "write key = [\"id\"]").unwrap_or_default();
    let expect = section.table("expect").and_then(|expect| read_expectation(&expect));
    Some(RouteTest {
        path: section.path().to_owned(),
        line: section.line(),
        table: table?,
        row: row?,
        key: key.into_iter().map(|(_, text)| text.value).collect(),
        expect: expect?,
    })
}

fn read_expectation(section: &Section<'_>) -> Option<Expectation> {
    section.refuse_unknown(EXPECT_KEYS, &[]);
    if !EXPECT_KEYS.iter().any(|key| section.has(key)) {
        let expected = "stream and topic, or verdict";
        section.fail_here(words("an empty table", expected, "say what must come of the row"));
        return None;
    }
    let text = |key| section.text(key).map(|text| text.value);
    let partition = section.number("partition", 0..=999).and_then(|n| u32::try_from(n).ok());
    Some(Expectation {
        stream: text("stream"),
        topic: text("topic"),
        partition,
        verdict: section.choice("verdict", VERDICTS, &[]).map(str::to_owned),
        reason: text("reason"),
    })
}
