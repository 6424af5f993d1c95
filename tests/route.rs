//! `tidegate route explain` and the routing tests of `tidegate check`, as a script meets them.

#![allow(clippy::disallowed_methods, reason = "tests own their files, sockets and clock")]

use std::process::Command;

use serde_json::{Value, json};

const ROUTING: &str = r#"[sources.shop.routing]
topic_column = "event_type"
stream_column = "tenant"
default_topic = "events.unknown"
default_stream = "default"
strip_routing_columns = true
partition_key_column = "user_id"
[sources.shop.routing.by_table]
"public.orders" = { stream = "commerce", topic = "orders" }
[sources.shop.routing.topic_defaults]
partitions_count = 4
[sources.shop.routing.admission]
mode = "allowlist"
allowlist = [
  { stream = "commerce", topic = "orders" },
  { stream = "identity", topic = "*" },
  { stream = "default", topic = "events.unknown" },
]
"#;

/// A configuration whose secrets cannot be read.
fn config(more: &str) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    std::fs::create_dir(&state).unwrap();
    let text = format!(
        "[daemon]\nstate_dir = {state:?}\n[clusters.west]\naddress = \"127.0.0.1:1\"\n\
         token = \"${{env:TIDEGATE_TEST_UNSET}}\"\n[sources.shop]\nkind = \"postgres_cdc\"\n\
         to = \"west\"\nconnection = \"postgresql://u@127.0.0.1:1/shop\"\n\
         password = \"${{file:/nowhere}}\"\ntables = [\"public.orders\", \"public.events\"]\n\
         {ROUTING}{more}"
    );
    let path = dir.path().join("tidegate.toml");
    std::fs::write(&path, text).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (dir, path)
}

struct Ran {
    code: i32,
    out: String,
    err: String,
}

fn tidegate(words: &[&str]) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    let output = command.args(words).env("TIDEGATE_TEST_SET", "secret").output().unwrap();
    Ran {
        code: output.status.code().unwrap(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

fn explain(table: &str, row: &str, more: &[&str]) -> Ran {
    let (_dir, config) = config("");
    let words = ["route", "explain", "--config", &config, "--source", "shop", "--table", table];
    tidegate(&[&words[..], &["--row", row], more].concat())
}

#[test]
fn a_row_is_explained_without_secrets_database_or_cluster() {
    let row = r#"{"id": 1, "event_type": "login", "tenant": "identity", "user_id": "abc"}"#;
    let ran = explain("public.events", row, &[]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{}", ran.out);
    for line in [
        "destination: identity/login",
        "partition:   3 of 4",
        "verdict:     send",
        "left out:    event_type, tenant",
        "  topic_column \"event_type\" is \"login\"",
        "  the key user_id falls on partition 3 of 4",
        "  admission lets it through",
    ] {
        assert!(ran.out.lines().any(|seen| seen == line), "{line:?} is not in\n{}", ran.out);
    }
}

#[test]
fn the_json_form_has_the_same_content() {
    let ran = explain("events", r#"{"event_type": "x", "tenant": "other"}"#, &["--json"]);
    assert_eq!(ran.code, 0);
    let mut report: Value = serde_json::from_str(&ran.out).unwrap();
    let why = report.as_object_mut().unwrap().remove("why").unwrap();
    let expected = json!({
        "source": "shop",
        "table": "public.events",
        "destination": { "stream": "other", "topic": "x" },
        "partition": null,
        "partitions": 4,
        "verdict": "hold",
        "reason": "unknown",
        "dead_letter": null,
        "stripped": ["event_type", "tenant"],
    });
    assert_eq!(report, expected);
    let why = why.as_array().unwrap();
    assert!(why.iter().any(|step| step.as_str().unwrap().contains("allowlist does not name")));
}

#[test]
fn a_table_with_a_destination_of_its_own_says_so() {
    let ran = explain("orders", "{}", &[]);
    assert!(ran.out.contains("destination: commerce/orders"), "{}", ran.out);
    assert!(ran.out.contains("by_table sends public.orders to commerce/orders"), "{}", ran.out);
    let ran = explain("sold", r#"{"tenant": null}"#, &[]);
    assert!(ran.out.contains("public.sold is not in tables"), "{}", ran.out);
    assert!(ran.out.contains("destination: default/events.unknown"), "{}", ran.out);
}

#[test]
fn what_cannot_be_explained_is_a_usage_error() {
    let (_dir, config) = config("");
    let of = |source: &str, table: &str, row: &str| {
        let words = ["route", "explain", "--config", &config, "--source", source];
        tidegate(&[&words[..], &["--table", table, "--row", row]].concat())
    };
    for (source, table, row, said) in [
        ("shoq", "orders", "{}", "no source \"shoq\" of kind postgres_cdc; known are shop"),
        ("shop", "a.b.c", "{}", "has more than schema and table"),
        ("shop", "orders", "[]", "the row is no JSON object"),
    ] {
        let ran = of(source, table, row);
        assert_eq!(ran.code, 2, "{}", ran.out);
        assert!(ran.err.contains(said), "{said:?} is not said:\n{}", ran.err);
    }
}

#[test]
fn check_runs_the_routing_tests_and_shows_warnings() {
    let tests = r#"[[sources.shop.tests]]
table = "public.events"
row = '{"event_type": "login", "tenant": "identity"}'
expect = { stream = "identity", topic = "login" }
[[sources.shop.tests]]
table = "public.events"
row = '{"event_type": "login", "tenant": "elsewhere"}'
expect = { verdict = "send" }
"#;
    let (dir, path) = config(tests);
    let text = std::fs::read_to_string(&path).unwrap();
    let text = text
        .replace("${env:TIDEGATE_TEST_UNSET}", "${env:TIDEGATE_TEST_SET}")
        .replace("password = \"${file:/nowhere}\"\n", "")
        .replace("\"public.orders\", ", "");
    std::fs::write(&path, text).unwrap();
    let ran = tidegate(&["check", "--offline", "--json", "--config", &path]);
    assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    let findings = report["findings"].as_array().unwrap();
    assert_eq!(findings.len(), 1, "{report:#}");
    assert_eq!(findings[0]["subject"], "sources.shop.tests[1] on line 33");
    let seen = findings[0]["seen"].as_str().unwrap();
    assert!(seen.starts_with("verdict hold, expected send; "), "{seen}");
    let notes = report["notes"].as_array().unwrap();
    let note = notes.iter().find(|note| {
        note["subject"] == "sources.shop.routing.by_table.\"public.orders\" on line 19"
    });
    let note = note.unwrap_or_else(|| panic!("{notes:#?}"));
    assert!(note["seen"].as_str().unwrap().contains("public.orders is not in tables"));
    assert!(note["advice"].as_str().unwrap().contains("add the table"));
    drop(dir);
}
