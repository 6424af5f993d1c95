//! The configuration of a Postgres capture as an operator meets it: the documented block loads,
//! and every mistake is answered with file, line, key and what to do.

#![allow(clippy::disallowed_methods, reason = "tests own their files, sockets and clock")]

use std::collections::BTreeMap;
use std::time::Duration;

use tidegate::batch::TopicName;
use tidegate::config::{
    AdmissionMode, CapturePlan, ConfigError, ConfigErrors, Decoder, Durability, EnvelopePlan,
    KeyEncoding, OnAdmissionFailure, OnCorruptState, OnMissingDestination, PartitionBy,
    PayloadFormat, Plan, RequireDurable, SecretError, Secrets, SourceMode, TableName, Tables,
    parse,
};

/// Lines 1 to 6.
const HEAD: &str = r#"[daemon]
state_dir = "/var/lib/tidegate"
[clusters.west]
address = "10.1.0.1:8090"
username = "iggy"
password = "${file:/run/secrets/west}"
"#;

/// The block that introduces the capture to its users, as it is. Lines 7 to 44.
const EXAMPLE: &str = include_str!("data/capture.toml");

/// A bound source. Lines 7 to 13.
const BOUND: &str = r#"[sources.shop]
kind = "postgres_cdc"
to = "west"
connection = "postgresql://tidegate@db/shop"
tables = "*"
stream = "commerce"
topic = "changes"
"#;

struct Known(BTreeMap<&'static str, &'static str>);

impl Secrets for Known {
    fn env(&self, _: &str) -> Result<String, SecretError> {
        Err(SecretError::Unset)
    }
    fn file(&self, path: &str) -> Result<String, SecretError> {
        let missing = || SecretError::Unreadable("no such file".to_owned());
        self.0.get(path).map(|value| (*value).to_owned()).ok_or_else(missing)
    }
}

fn read(source: &str) -> Result<Plan, ConfigErrors> {
    let files = [("/run/secrets/west", "hunter2-west"), ("/run/secrets/pg", "hunter2-pg")];
    parse(&format!("{HEAD}{source}"), "t.toml", &Known(BTreeMap::from(files)))
}

#[track_caller]
fn capture(source: &str) -> (CapturePlan, Vec<ConfigError>) {
    let plan = read(source).unwrap_or_else(|errors| panic!("refused:\n{errors}"));
    let [capture] = plan.captures.as_slice() else { panic!("one capture") };
    ((**capture).clone(), plan.warnings)
}

/// [`EXAMPLE`] with pieces replaced; each must be there.
#[track_caller]
fn changed(pieces: &[(&str, &str)]) -> String {
    pieces.iter().fold(EXAMPLE.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "{from:?} is not in the example");
        text.replacen(from, to, 1)
    })
}

/// [`BOUND`] with something behind it, from line 14 on.
fn bound_and(more: &str) -> String {
    format!("{BOUND}{more}\n")
}

/// The only finding: at `line`, for `key`, saying each of `pieces`.
#[track_caller]
fn refuses(source: &str, line: usize, key: &str, pieces: &[&str]) {
    let errors = read(source).expect_err("the configuration is accepted");
    assert_eq!(errors.findings().len(), 1, "one finding expected:\n{errors}");
    says(&errors.findings()[0], line, key, pieces);
    assert!(!errors.to_string().contains("hunter"), "a secret is shown:\n{errors}");
}

/// The only warning, likewise; the plan is made.
#[track_caller]
fn warns(source: &str, line: usize, key: &str, pieces: &[&str]) {
    let (_, warnings) = capture(source);
    assert_eq!(warnings.len(), 1, "one warning expected: {warnings:#?}");
    says(&warnings[0], line, key, pieces);
}

#[track_caller]
fn says(finding: &ConfigError, line: usize, key: &str, pieces: &[&str]) {
    let shown = finding.to_string();
    assert!(shown.starts_with(&format!("t.toml:{line}:")), "not on line {line}: {shown}");
    assert_eq!(finding.key, key, "{shown}");
    for piece in pieces.iter().chain(&["expected: ", "to do: "]) {
        assert!(shown.contains(piece), "{piece:?} is not said:\n{shown}");
    }
}

fn table(name: &str) -> TableName {
    TableName { schema: "public".into(), name: name.into() }
}

#[test]
fn the_documented_block_loads_as_it_is() {
    let (plan, warnings) = capture(EXAMPLE);
    assert_eq!(warnings, []);
    assert_eq!((&*plan.key, &*plan.to.key), ("shop", "west"));
    assert_eq!((&*plan.slot, &*plan.publication), ("tidegate_shop", "tidegate_shop"));
    assert_eq!(plan.tables, Tables::List(vec![table("orders"), table("events")]));
    assert_eq!((plan.decoder, &plan.envelope), (Decoder::PgOutput, &EnvelopePlan::Record));
    assert!(plan.operations.truncate && plan.operations.delete);
    assert_eq!(plan.commit_failure_threshold, 16);
    assert_eq!(plan.commit_stop_grace, Duration::from_secs(30));
    let routing = &plan.routing;
    assert_eq!(routing.bound, None);
    assert_eq!(routing.topic_column.as_deref(), Some("event_type"));
    assert_eq!(routing.stream_column.as_deref(), Some("tenant"));
    assert_eq!(routing.default, Some(TopicName::new("default", "events.unknown")));
    assert!(routing.strip);
    assert_eq!(routing.partition_key_column.as_deref(), Some("user_id"));
    assert_eq!(routing.partition_key_encoding, KeyEncoding::Bytes);
    assert_eq!(routing.by_table, [(table("orders"), TopicName::new("commerce", "orders"))]);
    assert_eq!(routing.topic_defaults.partitions_count, 4);
    assert_eq!(routing.topic_defaults.durability, Durability::Persisted);
    assert_eq!(routing.on_missing_destination, OnMissingDestination::Default);
    let admission = &routing.admission;
    assert_eq!(admission.mode, AdmissionMode::Allowlist);
    assert_eq!(admission.entries.len(), 3);
    assert_eq!((admission.max_destinations, admission.max_concurrent_destinations), (256, 16));
    assert_eq!(admission.on_failure, OnAdmissionFailure::Error);
    assert!(admission.written_by_operator);
    assert_eq!(routing.breaker.failure_threshold, 5);
    assert_eq!(routing.breaker.cool_down, Duration::from_secs(30));
    let known: Vec<String> = routing.literals().iter().map(TopicName::to_string).collect();
    assert_eq!(known, ["commerce/orders", "default/events.unknown"]);
    assert_eq!(plan.mode(), SourceMode::Cdc);
}

#[test]
fn a_bound_source_has_every_default() {
    let (plan, warnings) = capture(BOUND);
    assert_eq!(warnings, []);
    assert_eq!((&*plan.slot, &*plan.publication), ("tidegate_shop", "tidegate_shop"));
    assert_eq!(plan.tables, Tables::All);
    assert!(!plan.streaming && !plan.binary && plan.include_metadata && plan.auto_create);
    assert!(!plan.snake_case_columns && !plan.numeric_as_string);
    assert_eq!(plan.degraded_after, Duration::from_secs(60));
    let waits = (plan.retry_interval, plan.max_retry_interval);
    assert_eq!(waits, (Duration::from_secs(1), Duration::from_secs(30)));
    assert_eq!((plan.max_in_flight_batches, plan.max_batch_bytes), (8, 1 << 20));
    assert_eq!(plan.require_durable, RequireDurable::Warn);
    assert_eq!(plan.on_corrupt_state, OnCorruptState::Fail);
    let routing = plan.routing;
    assert_eq!(routing.bound, Some(TopicName::new("commerce", "changes")));
    assert_eq!(routing.topic_defaults.partitions_count, 1);
    assert_eq!(routing.partition_by, PartitionBy::Balanced);
    assert_eq!(routing.admission.mode, AdmissionMode::Open);
    assert!(!routing.admission.written_by_operator);
    assert_eq!(routing.on_missing_destination, OnMissingDestination::Error);
    assert_eq!(routing.startup_prewarm_deadline, Duration::from_secs(60));
}

#[test]
fn every_key_can_be_set() {
    let (plan, _) = capture(
        r#"[sources.my-shop]
kind = "postgres_cdc"
to = "west"
connection = "host=db dbname=shop user=u"
tables = ["shop.\"Odd.Name\""]
decoder = "pgoutput"
streaming = "on"
binary = true
payload_column = "body"
payload_format = "jsonb"
include_metadata = false
snake_case_columns = true
numeric_as = "string"
capture_operations = ["insert"]
auto_create = false
commit_failure_threshold = 3
commit_stop_grace = "5s"
degraded_after = "2m"
retry_interval = "10ms"
max_retry_interval = "1s"
max_in_flight_batches = 2
max_batch_bytes = "64KiB"
require_durable = "refuse"
on_corrupt_state = "reset"
[sources.my-shop.routing]
partition_by = "identity"
default_stream = "s"
default_topic = "t"
[sources.my-shop.routing.topic_defaults]
partitions_count = 7
compression_algorithm = "gzip"
message_expiry = "7d"
max_topic_size = "unlimited"
durability = "replicated"
[sources.my-shop.routing.admission]
mode = "denylist"
denylist = [{ stream = "*", topic = "secret" }]
on_admission_failure = "dead_letter"
dead_letter = { stream = "dead", topic = "letters" }
startup_prewarm_deadline = "5s"
"#,
    );
    assert_eq!(plan.slot, "tidegate_my_shop", "a slot name has no '-'");
    let odd = TableName { schema: "shop".into(), name: "Odd.Name".into() };
    assert_eq!(plan.tables, Tables::List(vec![odd]));
    assert!(plan.streaming && !plan.binary && plan.snake_case_columns && plan.numeric_as_string);
    assert!(!plan.include_metadata && !plan.auto_create && !plan.operations.update);
    let column = EnvelopePlan::Column { column: "body".into(), format: PayloadFormat::Jsonb };
    assert_eq!(plan.envelope, column);
    assert_eq!((plan.max_in_flight_batches, plan.max_batch_bytes), (2, 64 << 10));
    assert_eq!(plan.require_durable, RequireDurable::Refuse);
    assert_eq!(plan.on_corrupt_state, OnCorruptState::Reset);
    let routing = plan.routing;
    assert_eq!(routing.partition_by, PartitionBy::Identity);
    let topic = &routing.topic_defaults;
    assert_eq!(topic.compression_algorithm.as_deref(), Some("gzip"));
    assert_eq!(topic.message_expiry, Some(7 * 86_400_000_000));
    assert_eq!((topic.max_topic_size, topic.durability), (Some(u64::MAX), Durability::Replicated));
    assert_eq!(routing.admission.dead_letter, Some(TopicName::new("dead", "letters")));
    assert_eq!(routing.startup_prewarm_deadline, Duration::from_secs(5));
    let known: Vec<String> = routing.literals().iter().map(TopicName::to_string).collect();
    assert_eq!(known, ["s/t", "dead/letters"]);
}

#[test]
fn values_come_as_text_where_a_column_is_read_by_its_text() {
    let (plan, warnings) = capture(&BOUND.replace("topic =", "binary = true\ntopic ="));
    assert!(plan.binary && warnings.is_empty());
    let column = "payload_column = \"body\"\npayload_format = \"text\"\n";
    let default = "default_topic = \"t\"\ndefault_stream = \"s\"";
    let keyed = "[sources.shop.routing]\npartition_";
    for (by, more) in [
        ("payload_column", format!("{column}stream = \"s\"\ntopic = \"t\"")),
        (
            "routing.topic_column",
            format!("[sources.shop.routing]\ntopic_column = \"c\"\n{default}"),
        ),
        (
            "routing.stream_column",
            format!("[sources.shop.routing]\nstream_column = \"c\"\n{default}"),
        ),
        (
            "routing.partition_key_column",
            format!("stream = \"s\"\ntopic = \"t\"\n{keyed}key_column = \"c\""),
        ),
        (
            "routing.partition_by",
            format!("stream = \"s\"\ntopic = \"t\"\n{keyed}by = \"identity\""),
        ),
    ] {
        let nowhere = BOUND.replace("stream = \"commerce\"\ntopic = \"changes\"\n", "");
        let source = format!("{nowhere}binary = true\n{more}\n");
        assert!(!capture(&source).0.binary, "{by}");
        let line = 12;
        warns(&source, line, "sources.shop.binary", &["next to", by, "come as text"]);
    }
}

#[test]
fn a_source_that_says_nowhere_is_refused() {
    let nowhere = BOUND.replace("stream = \"commerce\"\ntopic = \"changes\"\n", "");
    refuses(&nowhere, 7, "sources.shop.stream", &["nothing says", "stream = ", "by_table"]);
    let half = BOUND.replace("topic = \"changes\"\n", "");
    refuses(&half, 7, "sources.shop.topic", &["stream without topic"]);
    let empty = bound_and("[sources.shop.routing]\ntopic_columm = \"x\"");
    refuses(&empty, 15, "sources.shop.routing.topic_columm", &["did you mean \"topic_column\"?"]);
    let named = BOUND.replace("\"changes\"", "\"  \"");
    refuses(&named, 13, "sources.shop.topic", &["blanks only"]);
}

#[test]
fn a_bound_source_takes_no_second_destination() {
    for routing in [
        "default_topic = \"t\"\ndefault_stream = \"s\"",
        "topic_column = \"c\"\ndefault_topic = \"t\"\ndefault_stream = \"s\"",
        "by_table = { \"public.a\" = { stream = \"s\", topic = \"t\" } }",
    ] {
        let source = bound_and(&format!("[sources.shop.routing]\n{routing}"));
        let pieces = ["stream of the source next to routing.", "one place"];
        refuses(&source, 12, "sources.shop.stream", &pieces);
    }
    let keyed = bound_and(
        "[sources.shop.routing]\npartition_key_column = \"id\"\n\
         [sources.shop.routing.admission]\nmax_destinations = 1",
    );
    let (plan, _) = capture(&keyed);
    assert_eq!(plan.routing.partition_key_column.as_deref(), Some("id"));
}

#[test]
fn a_column_needs_its_default() {
    for (gone, line, key, said) in [
        ("default_topic = \"events.unknown\"\n", 20, "default_topic", "topic_column without"),
        ("default_stream = \"default\"\n", 20, "default_stream", "stream_column without"),
    ] {
        let key = format!("sources.shop.routing.{key}");
        refuses(&changed(&[(gone, "")]), line, &key, &[said, "NULL or missing"]);
    }
    let without_stream =
        changed(&[("stream_column = \"tenant\"\n", ""), ("default_stream = \"default\"\n", "")]);
    let pieces = ["topic_column without default_stream", "no stream_column either"];
    refuses(&without_stream, 20, "sources.shop.routing.default_stream", &pieces);
    let lone = changed(&[
        ("topic_column = \"event_type\"\nstream_column = \"tenant\"\n", ""),
        ("strip_routing_columns = true\n", ""),
        ("default_stream = \"default\"\n", ""),
    ]);
    refuses(&lone, 20, "sources.shop.routing.default_stream", &["default_topic without"]);
}

#[test]
fn routing_next_to_a_route_transform_is_refused() {
    let both = format!("{EXAMPLE}[sources.shop.transforms.route]\ntopic_field = \"a\"\n");
    let errors = read(&both).unwrap_err();
    let findings = errors.findings();
    assert_eq!(findings.len(), 2, "{errors}");
    let pieces = ["transforms.route next to routing.topic_column", "one place"];
    says(&findings[0], 21, "sources.shop.routing.topic_column", &pieces);
    says(&findings[1], 43, "sources.shop.transforms", &["not available in this version"]);
}

#[test]
fn partition_keys_that_contradict_are_refused() {
    let routing = |key: &str| format!("sources.shop.routing.{key}");
    let lone = changed(&[("partition_key_column = \"user_id\"\n", "")]);
    refuses(&lone, 26, &routing("partition_key_encoding"), &["without partition_key_column"]);
    let two = changed(&[("partition_key_encoding = \"bytes\"", "partition_by = \"identity\"")]);
    refuses(&two, 27, &routing("partition_by"), &["next to partition_key_column"]);
    let id = changed(&[("\"bytes\"", "\"partition_id\""), ("partitions_count = 4\n", "")]);
    let pieces = ["partitions_count = 1", "a count above 1"];
    refuses(&id, 27, &routing("partition_key_encoding"), &pieces);
    capture(&changed(&[("\"bytes\"", "\"partition_id\"")]));
    let strip = changed(&[("topic_column = \"event_type\"\nstream_column = \"tenant\"\n", "")]);
    refuses(&strip, 23, &routing("strip_routing_columns"), &["without a routing column"]);
}

#[test]
fn a_list_that_covers_everything_is_refused() {
    let all = "{ stream = \"*\", topic = \"*\" }";
    let key = "sources.shop.routing.admission.allowlist[1]";
    let text = changed(&[("{ stream = \"identity\", topic = \"*\" }", all)]);
    refuses(&text, 39, key, &["covers everything", "mode = \"open\""]);
    let denied = bound_and(&format!(
        "[sources.shop.routing.admission]\nmode = \"denylist\"\ndenylist = [{all}]"
    ));
    let key = "sources.shop.routing.admission.denylist[0]";
    refuses(&denied, 16, key, &["covers everything", "mode = \"allowlist\""]);
}

#[test]
fn list_entries_are_names_or_a_star() {
    for (segment, advice) in [
        ("ident*", "there are no other patterns"),
        ("**", "there are no other patterns"),
        ("", "correct the name"),
        ("a b", "correct the name"),
        ("ünï", "correct the name"),
        ("a/b", "correct the name"),
    ] {
        let text = changed(&[("stream = \"identity\"", &format!("stream = {segment:?}"))]);
        let key = "sources.shop.routing.admission.allowlist[1].stream";
        refuses(&text, 39, key, &["or exactly \"*\"", advice]);
    }
    let missing = changed(&[("{ stream = \"identity\", topic = \"*\" }", "{ topic = \"*\" }")]);
    let key = "sources.shop.routing.admission.allowlist[1].stream";
    refuses(&missing, 39, key, &["the key is missing"]);
}

#[test]
fn a_list_and_its_mode_belong_together() {
    let key = |key: &str| format!("sources.shop.routing.admission.{key}");
    let open = changed(&[("mode = \"allowlist\"\n", "")]);
    refuses(&open, 38, &key("allowlist"), &["in another mode", "mode = \"allowlist\""]);
    let start = EXAMPLE.find("allowlist = [").unwrap();
    let end = start + EXAMPLE[start..].find('\n').unwrap();
    let with = |list: &str| format!("{}{list}{}", &EXAMPLE[..start], &EXAMPLE[end..]);
    refuses(&with(""), 33, &key("allowlist"), &["without it", "{ stream = "]);
    refuses(&with("allowlist = []"), 39, &key("allowlist"), &["an empty list"]);
    let wrong = changed(&[("mode = \"allowlist\"", "mode = \"allow\"")]);
    let errors = read(&wrong).unwrap_err();
    says(&errors.findings()[0], 34, &key("mode"), &["\"open\", \"allowlist\", \"denylist\""]);
}

#[test]
fn configured_destinations_must_be_admitted() {
    let text = changed(&[(", { stream = \"default\", topic = \"events.unknown\" }", "")]);
    let pieces = ["admission refuses default/events.unknown", "default destination"];
    refuses(&text, 23, "sources.shop.routing.default_topic", &pieces);
    let bound = bound_and(
        "[sources.shop.routing.admission]\nmode = \"denylist\"\n\
         denylist = [{ stream = \"*\", topic = \"changes\" }]",
    );
    let pieces = ["admission refuses commerce/changes", "off the denylist"];
    refuses(&bound, 13, "sources.shop.topic", &pieces);
    let table = changed(&[("topic = \"orders\" }, {", "topic = \"other\" }, {")]);
    let (_, warnings) = capture(&table);
    let entry = "sources.shop.routing.by_table.\"public.orders\"";
    says(&warnings[0], 29, entry, &["admission refuses commerce/orders", "of public.orders"]);
}

#[test]
fn a_missing_destination_needs_somewhere_to_go() {
    let by_table = format!(
        "{}[sources.shop.routing.by_table]\n\"public.a\" = {{ stream = \"s\", topic = \"t\" }}\n\
         [sources.shop.routing.admission]\non_missing_destination = \"default\"\n",
        BOUND.replace("stream = \"commerce\"\ntopic = \"changes\"\n", "")
    );
    let key = "sources.shop.routing.admission.on_missing_destination";
    refuses(&by_table, 15, key, &["without a default destination", "\"drop\""]);
    let (plan, _) = capture(&by_table.replace("\"default\"", "\"drop\""));
    assert_eq!(plan.routing.on_missing_destination, OnMissingDestination::Drop);
}

#[test]
fn dead_letters_need_a_topic() {
    let key = "sources.shop.routing.admission.dead_letter";
    let failure = "on_admission_failure = \"error\"";
    let without = changed(&[(failure, "on_admission_failure = \"dead_letter\"")]);
    refuses(&without, 33, key, &["dead_letter\" without one", "stream = "]);
    let unused = changed(&[(
        failure,
        "on_admission_failure = \"drop\"\ndead_letter = { stream = \"d\", topic = \"l\" }",
    )]);
    refuses(&unused, 39, key, &["nothing goes to"]);
}

#[test]
fn known_destinations_must_fit_under_the_cap() {
    let text = changed(&[("max_destinations = 256", "max_destinations = 1")]);
    let key = "sources.shop.routing.admission.max_destinations";
    refuses(&text, 35, key, &["names 2 destinations", "2 or more"]);
}

#[test]
fn a_grace_beyond_the_stop_is_refused() {
    let text = changed(&[("commit_stop_grace = \"30s\"", "commit_stop_grace = \"31s\"")]);
    let pieces = ["commit_stop_grace is 31s", "drain_timeout is 30s", "raise drain_timeout"];
    refuses(&text, 19, "sources.shop.commit_stop_grace", &pieces);
    let short = format!("{HEAD}{BOUND}").replace("[clusters", "drain_timeout = \"5s\"\n[clusters");
    let files = [("/run/secrets/west", "x")];
    let plan = parse(&short, "t.toml", &Known(BTreeMap::from(files))).unwrap();
    assert_eq!(plan.captures[0].commit_stop_grace, Duration::from_secs(5), "bends to it");
}

#[test]
fn what_nothing_can_reach_is_warned_about() {
    let entry = "{ stream = \"identity\", topic = \"*\" }";
    let key = "sources.shop.routing.admission.allowlist[1]";
    let fixed_stream = changed(&[("stream_column = \"tenant\"\n", "")]);
    warns(&fixed_stream, 38, key, &["nothing can reach it", "remove the entry"]);
    let twice = changed(&[(entry, "{ stream = \"commerce\", topic = \"orders\" }")]);
    warns(&twice, 39, key, &["listed twice"]);
    let elsewhere = changed(&[("\"public.orders\" = {", "\"public.sold\" = {")]);
    let table = "sources.shop.routing.by_table.\"public.sold\"";
    warns(&elsewhere, 29, table, &["public.sold is not in tables", "commerce/orders"]);
    let never =
        changed(&[("on_missing_destination = \"default\"", "on_missing_destination = \"drop\"")]);
    let key = "sources.shop.routing.admission.on_missing_destination";
    warns(&never, 37, key, &["never applies"]);
    let unused = format!(
        "{}[sources.shop.routing]\ndefault_stream = \"s\"\ndefault_topic = \"t\"\n\
         [sources.shop.routing.by_table]\norders = {{ stream = \"s\", topic = \"o\" }}\n",
        BOUND
            .replace("stream = \"commerce\"\ntopic = \"changes\"\n", "")
            .replace("\"*\"", "[\"public.orders\"]")
    );
    let key = "sources.shop.routing.default_topic";
    warns(&unused, 14, key, &["nothing can reach s/t", "every table"]);
    let factor =
        changed(&[("partitions_count = 4", "partitions_count = 4\nreplication_factor = 3")]);
    let key = "sources.shop.routing.topic_defaults.replication_factor";
    warns(&factor, 32, key, &["left out"]);
}

#[test]
fn tables_are_names() {
    let key = "sources.shop.tables";
    let tables = |to: &str| BOUND.replace("\"*\"", to);
    refuses(&tables("\"public.orders\""), 11, key, &["alone", "or \"*\""]);
    refuses(&tables("[]"), 11, key, &["an empty list"]);
    refuses(&tables("[\"public.*\"]"), 11, key, &["a pattern", "one by one"]);
    refuses(&tables("[\"a.b.c\"]"), 11, key, &["more than schema and table", "double quotes"]);
    refuses(&tables("[\"a\", \"public.a\"]"), 11, key, &["public.a is listed twice"]);
    refuses(&BOUND.replace("tables = \"*\"\n", ""), 7, key, &["missing", "public.orders"]);
    let twice = changed(&[(
        "topic = \"orders\" }\n",
        "topic = \"orders\" }\norders = { stream = \"s\", topic = \"t\" }\n",
    )]);
    let key = "sources.shop.routing.by_table.orders";
    let errors = read(&twice).unwrap_err();
    says(&errors.findings()[0], 30, key, &["public.orders has a destination already"]);
}

#[test]
fn slots_and_envelopes_are_checked() {
    for slot in ["Shop", "a-b", "", &"x".repeat(64)] {
        let text = changed(&[("slot = \"tidegate_shop\"", &format!("slot = {slot:?}"))]);
        refuses(&text, 12, "sources.shop.slot", &["no slot name", "a-z, 0-9 and '_'"]);
    }
    let key = |key: &str| format!("sources.shop.{key}");
    let later = changed(&[("\"record\"", "\"debezium\"")]);
    refuses(&later, 16, &key("envelope"), &["not available in this version"]);
    let two =
        changed(&[("decoder =", "payload_column = \"b\"\npayload_format = \"text\"\ndecoder =")]);
    refuses(&two, 18, &key("envelope"), &["next to payload_column"]);
    let half = bound_and("").replace("tables =", "payload_column = \"b\"\ntables =");
    refuses(&half, 7, &key("payload_format"), &["missing", "json_direct"]);
    let other = bound_and("").replace("tables =", "payload_format = \"text\"\ntables =");
    refuses(&other, 11, &key("payload_format"), &["without payload_column"]);
    let text =
        bound_and("").replace("tables =", "decoder = \"test_decoding\"\nbinary = true\ntables =");
    refuses(&text, 12, &key("binary"), &["set for test_decoding"]);
    let none = changed(&[("[\"INSERT\", \"UPDATE\", \"DELETE\", \"TRUNCATE\"]", "[]")]);
    refuses(&none, 17, &key("capture_operations"), &["at least one"]);
    let odd = changed(&[("\"UPDATE\"", "\"UPSERT\"")]);
    refuses(&odd, 17, &key("capture_operations"), &["\"UPSERT\" is unknown here"]);
}

#[test]
fn a_connection_is_never_shown() {
    let gone = BOUND.replace("connection = \"postgresql://tidegate@db/shop\"\n", "");
    refuses(&gone, 7, "sources.shop.connection", &["missing", "sslmode=verify-full"]);
    let bad = BOUND.replace("postgresql://tidegate@db/shop", "postgresql://u:hunter2@[db/shop");
    let errors = read(&bad).unwrap_err();
    says(&errors.findings()[0], 10, "sources.shop.connection", &["bracket"]);
    assert!(!errors.to_string().contains("hunter2"), "{errors}");
    let (plan, _) = capture(EXAMPLE);
    assert!(!format!("{plan:?}").contains("hunter2"));
}

#[test]
fn two_readers_of_one_slot_are_refused() {
    let second = BOUND
        .replace("[sources.shop]", "[sources.second]")
        .replace("tables", "slot = \"tidegate_shop\"\ntables");
    let text = format!("{BOUND}{second}");
    let pieces = ["slot \"tidegate_shop\" is read by sources.second on line 14", "another slot"];
    refuses(&text, 7, "sources.shop", &pieces);
    read(&text.replacen("@db/shop", "@other/shop", 1)).unwrap();
}

#[test]
fn a_capture_into_a_mirrored_topic_is_refused() {
    let mirror = "[clusters.east]\naddress = \"e:1\"\ntoken = \"t\"\n\
                  [sources.copy]\nkind = \"iggy\"\nfrom = \"east\"\nto = \"west\"\n\
                  include = [{ stream = \"commerce\", topic = \"changes\" }]\n";
    let pieces = ["sources.copy.include[0] on line 21 already writes to commerce/changes"];
    refuses(&bound_and(mirror), 7, "sources.shop", &pieces);
}

#[test]
fn routing_tests_are_read_and_checked() {
    let tests = r#"[[sources.shop.tests]]
table = "public.events"
row = '{"event_type": "login", "tenant": "identity"}'
key = ["id"]
expect = { stream = "identity", topic = "login", partition = 3 }
"#;
    let (plan, _) = capture(&format!("{EXAMPLE}{tests}"));
    let [test] = plan.tests.as_slice() else { panic!("one test") };
    assert_eq!((&*test.path, test.line), ("sources.shop.tests[0]", 43));
    assert_eq!((&test.table, &test.key), (&table("events"), &vec!["id".to_owned()]));
    assert_eq!(test.expect.partition, Some(3));
    let key = |key: &str| format!("sources.shop.tests[0].{key}");
    for (from, to, line, path, said) in [
        ("row = '{", "row = '[{", 45, key("row"), "no JSON"),
        ("table = \"public.events\"\n", "", 43, key("table"), "missing"),
        (
            "{ stream = \"identity\", topic = \"login\", partition = 3 }",
            "{}",
            47,
            key("expect"),
            "empty",
        ),
        ("partition = 3", "verdict = \"maybe\"", 47, key("expect.verdict"), "\"dead_letter\""),
    ] {
        assert!(tests.contains(from), "{from}");
        let text = format!("{EXAMPLE}{}", tests.replacen(from, to, 1));
        let errors = read(&text).unwrap_err();
        let found = errors.findings().iter().find(|f| f.key == path);
        says(found.unwrap_or_else(|| panic!("nothing on {path}:\n{errors}")), line, &path, &[said]);
    }
}
