//! The configuration as an operator meets it: the documented example loads, and every mistake is
//! answered with file, line, key and what to do.

#![allow(clippy::disallowed_methods, reason = "tests own their files, sockets and clock")]

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

use tidegate::config::{
    ConfigErrors, Credentials, InitialOffset, OnBadRecord, OnCorruptState, OnDestinationLost,
    OnHistoryChanged, OnMissingUpstream, OnNonemptyDestination, OnOffsetExpired, Partitions, Plan,
    SecretError, Secrets, Settle, Shards, load, load_without_credentials, parse,
};

/// The configuration block that introduces the mirror to its users.
const EXAMPLE: &str = r#"[daemon]
state_dir = "/var/lib/tidegate"     # required
shards = "auto"
[admin]
listen = "127.0.0.1:8099"
[clusters.east]
address = "10.0.0.1:8090"           # or addresses = [..]
username = "iggy"
password = "${env:IGGY_PASSWORD}"   # or token = "…"
[clusters.west]
address = "10.1.0.1:8090"
username = "iggy"
password = "${file:/run/secrets/west}"
[sources.orders]
kind = "iggy"
from = "east"
to = "west"
include = [ { stream = "orders", topic = "events" }, { stream = "orders", topic = "audit" } ]
initial_offset = "earliest"
partitions = "preserve"
auto_create = true
retry_interval = "1s"
max_retry_interval = "60s"
"#;

const EAST: &str = "hunter2-east";
const WEST: &str = "hunter2-west";

struct Known(BTreeMap<&'static str, &'static str>);

impl Secrets for Known {
    fn env(&self, name: &str) -> Result<String, SecretError> {
        self.0.get(name).map(|value| (*value).to_owned()).ok_or(SecretError::Unset)
    }
    fn file(&self, path: &str) -> Result<String, SecretError> {
        let missing = || SecretError::Unreadable("no such file".to_owned());
        self.0.get(path).map(|value| (*value).to_owned()).ok_or_else(missing)
    }
}

fn secrets() -> Known {
    Known(BTreeMap::from([
        ("IGGY_PASSWORD", EAST),
        ("/run/secrets/west", "hunter2-west\n"),
        ("EMPTY", ""),
        ("TWO_LINES", "hunter2\nhunter3"),
        ("WORD", "hunter2-word"),
    ]))
}

fn read(text: &str) -> Result<Plan, ConfigErrors> {
    parse(text, "t.toml", &secrets())
}

/// [`EXAMPLE`] with one piece replaced; the piece must be there.
fn changed(from: &str, to: &str) -> String {
    assert!(EXAMPLE.contains(from), "{from:?} is not in the example");
    EXAMPLE.replacen(from, to, 1)
}

/// [`EXAMPLE`] with a line added to its source (line 24).
fn with_source_key(line: &str) -> String {
    format!("{EXAMPLE}{line}\n")
}

/// The only finding of `text`: at `line`, for `key`, saying each of `pieces`.
#[track_caller]
fn refuses(text: &str, line: usize, key: &str, pieces: &[&str]) {
    let errors = read(text).expect_err("the configuration is accepted");
    assert_eq!(errors.findings().len(), 1, "one finding expected:\n{errors}");
    finds(&errors, line, key, pieces);
}

/// One of several findings.
#[track_caller]
fn finds(errors: &ConfigErrors, line: usize, key: &str, pieces: &[&str]) {
    let shown = errors
        .findings()
        .iter()
        .find(|finding| finding.key == key && finding.at.map(|at| at.line) == Some(line))
        .unwrap_or_else(|| panic!("nothing about {key} on line {line}:\n{errors}"))
        .to_string();
    assert!(shown.starts_with(&format!("t.toml:{line}:")), "{shown}");
    for piece in pieces.iter().chain(&[key, "expected: ", "to do: "]) {
        assert!(shown.contains(piece), "{piece:?} is not said:\n{shown}");
    }
    let all = errors.to_string();
    assert!(!all.contains("hunter"), "a secret is shown:\n{all}");
}

#[test]
fn the_documented_example_loads_with_every_default() {
    let plan = read(EXAMPLE).unwrap();
    assert_eq!(plan.daemon.shards, Shards::Auto);
    assert_eq!(plan.daemon.max_buffered_bytes, 128 << 20);
    assert_eq!(plan.daemon.drain_timeout, Duration::from_secs(30));
    assert_eq!(plan.daemon.log_format, None);
    assert_eq!(plan.daemon.log_level, "info");
    assert_eq!(plan.admin.unwrap().listen.to_string(), "127.0.0.1:8099");
    let east = &plan.clusters["east"];
    assert_eq!(east.addresses, ["10.0.0.1:8090"]);
    assert_eq!(east.connect_timeout, Duration::from_secs(5));
    assert_eq!(east.request_timeout, Duration::from_secs(10));
    let (one, several) = (Duration::from_secs(2), Duration::from_secs(10));
    assert_eq!(east.settle, Settle { configured: one, several });
    assert!(!east.allow_untested_server);
    let [source] = plan.sources.as_slice() else { panic!("one source") };
    assert_eq!(&*source.key, "orders");
    assert_eq!((&*source.from.key, &*source.to.key), ("east", "west"));
    let topics: Vec<String> = source.topics.iter().map(|t| t.upstream.to_string()).collect();
    assert_eq!(topics, ["orders/events", "orders/audit"]);
    assert!(source.topics.iter().all(|topic| topic.upstream == topic.downstream));
    assert_eq!(source.initial_offset, InitialOffset::Earliest);
    assert_eq!(source.partitions, Partitions::Preserve);
    assert!(source.auto_create && source.verify_checksums);
    assert_eq!(source.retry_interval, Duration::from_secs(1));
    assert_eq!(source.max_retry_interval, Duration::from_secs(60));
    assert_eq!(source.reset_grace, Duration::from_secs(60));
    assert_eq!(source.state_interval, Duration::from_secs(1));
    assert_eq!(source.discovery_interval, Duration::from_secs(5));
    assert_eq!(source.degraded_after, Duration::from_secs(60));
    assert_eq!(source.commit_failure_threshold, 16);
    assert_eq!(source.max_batch_bytes, 8 << 20);
    assert_eq!(source.on_offset_expired, OnOffsetExpired::EarliestAvailable);
    assert_eq!(source.on_history_changed, OnHistoryChanged::Fail);
    assert_eq!(source.on_destination_lost, OnDestinationLost::Fail);
    assert_eq!(source.on_nonempty_destination, OnNonemptyDestination::Fail);
    assert_eq!(source.on_missing_upstream, OnMissingUpstream::Wait);
    assert_eq!(source.on_bad_record, OnBadRecord::Fail);
    assert_eq!(source.on_corrupt_state, OnCorruptState::Fail);
}

#[test]
fn every_key_can_be_set() {
    let text = r#"
[daemon]
state_dir = "state"
shards = 3
max_buffered_bytes = "64MiB"
drain_timeout = "5s"
log_format = "json"
log_level = "info,tidegate::shard=debug"
[clusters.a]
addresses = ["a1:8090", "[::1]:8090"]
token = "${env:IGGY_PASSWORD}"
connect_timeout = "100ms"
request_timeout = "200ms"
allow_untested_server = true
[clusters.b]
address = "b:8090"
username = "u"
password = "p"
settle = "50ms"
[sources.x]
kind = "iggy"
from = "a"
to = "b"
initial_offset = 18446744073709551615
partitions = "balanced"
auto_create = false
retry_interval = "10ms"
max_retry_interval = "1s"
reset_grace = "2s"
state_interval = "0s"
discovery_interval = "3s"
degraded_after = "4m"
commit_failure_threshold = 2
verify_checksums = false
max_batch_bytes = "60MiB"
on_offset_expired = "initial_offset"
on_history_changed = "restart"
on_destination_lost = "refill"
on_nonempty_destination = "append"
on_missing_upstream = "create"
on_bad_record = "fail"
on_corrupt_state = "reset"
[[sources.x.include]]
stream = "s"
topic = "t"
to_stream = "s2"
to_topic = "t2"
"#;
    // TOML's integers end at 2^63 − 1 in many programs; offsets here do not.
    let plan = read(text).unwrap();
    assert_eq!(plan.daemon.shards, Shards::Count(3));
    assert_eq!(plan.daemon.max_buffered_bytes, 64 << 20);
    assert_eq!(plan.daemon.log_format, Some(tidegate::config::LogFormat::Json));
    assert!(plan.admin.is_none());
    assert_eq!(
        plan.clusters["a"].settle,
        Settle::always(Duration::from_secs(10)),
        "several addresses"
    );
    assert!(matches!(&plan.clusters["a"].credentials, Credentials::Token(t) if t.expose() == EAST));
    assert_eq!(plan.clusters["b"].settle, Settle::always(Duration::from_millis(50)));
    let source = &plan.sources[0];
    assert_eq!(source.initial_offset, InitialOffset::At(u64::MAX));
    assert_eq!(source.partitions, Partitions::Balanced);
    assert_eq!(source.max_batch_bytes, 60 << 20);
    assert_eq!(source.state_interval, Duration::ZERO);
    assert_eq!(source.degraded_after, Duration::from_secs(240));
    assert_eq!(source.on_corrupt_state, OnCorruptState::Reset);
    assert_eq!(source.topics[0].downstream.to_string(), "s2/t2");
}

#[test]
fn secrets_reach_the_plan_and_nothing_else() {
    let plan = read(EXAMPLE).unwrap();
    let of = |key: &str| match &plan.clusters[key].credentials {
        Credentials::Password { password, .. } => password.expose().to_owned(),
        Credentials::Token(token) => token.expose().to_owned(),
    };
    assert_eq!((of("east"), of("west")), (EAST.to_owned(), WEST.to_owned()));
    assert!(!format!("{plan:?}").contains("hunter2"));
}

#[test]
fn unknown_keys_are_refused_with_a_suggestion() {
    refuses(
        &changed("retry_interval = ", "retry_intervall = "),
        22,
        "sources.orders.retry_intervall",
        &["unknown key", "did you mean \"retry_interval\"?"],
    );
    let errors = read(&changed("username", "user_name")).unwrap_err();
    finds(&errors, 8, "clusters.east.user_name", &["did you mean \"username\"?"]);
    refuses(
        &changed("topic = \"events\"", "topic = \"events\", to_topik = \"e\""),
        18,
        "sources.orders.include[0].to_topik",
        &["did you mean \"to_topic\"?"],
    );
    refuses(&with_source_key("frobnicate = 1"), 24, "sources.orders.frobnicate", &["remove"]);
}

#[test]
fn unknown_tables_are_refused_with_a_suggestion() {
    refuses(&changed("[admin]", "[admni]"), 4, "admni", &["did you mean \"admin\"?", "\"daemon\""]);
    let text = changed("[daemon]\n", "shards = 2\n[daemon]\n");
    refuses(&text, 1, "shards", &["unknown key", "\"daemon\", \"admin\", \"clusters\""]);
}

#[test]
fn keys_of_later_versions_are_named_as_such() {
    refuses(
        &with_source_key("exclude = []"),
        24,
        "sources.orders.exclude",
        &["not available in this version"],
    );
    refuses(
        &changed("[clusters.west]", "tls = true\n[clusters.west]"),
        10,
        "clusters.east.tls",
        &["not available in this version"],
    );
}

#[test]
fn unknown_words_list_the_allowed_ones() {
    refuses(
        &with_source_key("on_offset_expired = \"earliest\""),
        24,
        "sources.orders.on_offset_expired",
        &["\"earliest\"", "\"earliest_available\", \"initial_offset\", \"fail\""],
    );
    refuses(
        &changed("\"preserve\"", "\"preserv\""),
        20,
        "sources.orders.partitions",
        &["did you mean \"preserve\"?", "\"balanced\""],
    );
    refuses(
        &changed("\"earliest\"", "\"erliest\""),
        19,
        "sources.orders.initial_offset",
        &["did you mean \"earliest\"?"],
    );
    refuses(
        &with_source_key("on_bad_record = \"skip\""),
        24,
        "sources.orders.on_bad_record",
        &["\"skip\" is not available in this version", "\"fail\""],
    );
    refuses(
        &changed("shards = \"auto\"", "log_format = \"xml\""),
        3,
        "daemon.log_format",
        &["\"text\", \"json\", \"auto\""],
    );
    refuses(
        &changed("shards = \"auto\"", "log_level = \"inof\""),
        3,
        "daemon.log_level",
        &["did you mean \"info\"?"],
    );
}

#[test]
fn other_kinds_are_not_available_yet() {
    for kind in ["postgres_poll", "http", "file", "random"] {
        refuses(
            &changed("kind = \"iggy\"", &format!("kind = \"{kind}\"")),
            15,
            "sources.orders.kind",
            &[kind, "not available in this version", "\"iggy\""],
        );
    }
    refuses(
        &changed("kind = \"iggy\"", "kind = \"igy\""),
        15,
        "sources.orders.kind",
        &["did you mean \"iggy\"?"],
    );
    refuses(&changed("kind = \"iggy\"\n", ""), 14, "sources.orders.kind", &["kind = \"iggy\""]);
}

#[test]
fn wrong_types_say_what_was_seen_and_how_to_write_it() {
    let cases: &[(&str, &str, usize, &str, &[&str])] = &[
        ("\"1s\"", "1", 22, "sources.orders.retry_interval", &["the integer 1", "unit", "\"10s\""]),
        ("\"1s\"", "\"1\"", 22, "sources.orders.retry_interval", &["\"1\"", "unit after"]),
        ("\"1s\"", "true", 22, "sources.orders.retry_interval", &["the boolean true"]),
        ("= true", "= \"true\"", 21, "sources.orders.auto_create", &["a string", "no quotes"]),
        ("\"auto\"", "\"4\"", 3, "daemon.shards", &["without quotes"]),
        ("\"auto\"", "0", 3, "daemon.shards", &["the integer 0", "from 1 to 1024"]),
        ("\"auto\"", "1.5", 3, "daemon.shards", &["the float 1.5"]),
        ("\"earliest\"", "-1", 19, "sources.orders.initial_offset", &["the integer -1"]),
        ("\"earliest\"", "\"7\"", 19, "sources.orders.initial_offset", &["without quotes"]),
        ("\"10.0.0.1:8090\"", "8090", 7, "clusters.east.address", &["the integer 8090", "quotes"]),
        (
            concat!(
                r#"[ { stream = "orders", topic = "events" }, "#,
                r#"{ stream = "orders", topic = "audit" } ]"#
            ),
            "\"orders/events\"",
            18,
            "sources.orders.include",
            &["a string", "an array of tables"],
        ),
        (
            "{ stream = \"orders\", topic = \"events\" }",
            "\"orders\"",
            18,
            "sources.orders.include[0]",
            &["a string", "a table"],
        ),
        (
            "[admin]\nlisten = \"127.0.0.1:8099\"",
            "[[admin]]\n",
            4,
            "admin",
            &["an array", "[admin]"],
        ),
    ];
    for (from, to, line, key, pieces) in cases {
        refuses(&changed(from, to), *line, key, pieces);
    }
}

#[test]
fn a_secret_of_a_wrong_type_is_not_shown() {
    let errors = read(&changed("\"${env:IGGY_PASSWORD}\"", "8675309")).unwrap_err();
    finds(&errors, 9, "clusters.east.password", &["not a string"]);
    assert!(!errors.to_string().contains("8675309"));
}

#[test]
fn a_missing_cluster_names_the_known_ones() {
    refuses(
        &changed("to = \"west\"", "to = \"wets\""),
        17,
        "sources.orders.to",
        &["no cluster \"wets\"", "\"east\", \"west\"", "did you mean \"west\"?"],
    );
    refuses(&changed("to = \"west\"\n", ""), 14, "sources.orders.to", &["missing", "\"east\""]);
    let text = "[daemon]\nstate_dir = \"s\"\n[sources.x]\nkind = \"iggy\"\n\
                from = \"a\"\nto = \"b\"\n\
                include = [{ stream = \"s\", topic = \"t\" }]\n";
    let errors = read(text).unwrap_err();
    finds(&errors, 5, "sources.x.from", &["no cluster \"a\"", "there is none"]);
}

#[test]
fn a_cluster_with_findings_is_not_reported_as_missing_too() {
    refuses(&changed("\"10.1.0.1:8090\"", "\"10.1.0.1\""), 11, "clusters.west.address", &["port"]);
}

#[test]
fn a_topic_onto_itself_is_refused() {
    refuses(
        &changed("to = \"west\"", "to = \"east\"")
            .replace(", { stream = \"orders\", topic = \"audit\" }", ""),
        18,
        "sources.orders.include[0]",
        &["orders/events would be copied onto itself", "\"east\"", "to_topic"],
    );
}

#[test]
fn a_topic_onto_itself_is_refused_through_another_name_of_the_cluster() {
    let same = changed("\"10.1.0.1:8090\"", "\"[::ffff:10.0.0.1]:8090\"");
    let errors = read(&same).unwrap_err();
    assert_eq!(errors.findings().len(), 2);
    finds(&errors, 18, "sources.orders.include[0]", &["the same address", "\"east\" and \"west\""]);
    finds(&errors, 18, "sources.orders.include[1]", &["orders/audit"]);
}

#[test]
fn a_renamed_copy_within_one_cluster_is_accepted() {
    let text = changed("to = \"west\"", "to = \"east\"")
        .replace("topic = \"events\"", "topic = \"events\", to_topic = \"events-copy\"")
        .replace("topic = \"audit\"", "topic = \"audit\", to_stream = \"copies\"");
    read(&text).unwrap();
}

/// A second source behind [`EXAMPLE`]; its include entry stands on line 28.
fn second_source(from: &str, to: &str, entry: &str) -> String {
    format!(
        "{EXAMPLE}[sources.second]\nkind = \"iggy\"\nfrom = \"{from}\"\nto = \"{to}\"\n\
         include = [{entry}]\n"
    )
}

#[test]
fn both_directions_of_a_topic_are_refused() {
    let text = second_source("west", "east", "{ stream = \"orders\", topic = \"events\" }");
    refuses(
        &text,
        28,
        "sources.second.include[0]",
        &["comes back by sources.orders.include[0] on line 18", "one direction", "remove"],
    );
}

#[test]
fn both_directions_are_refused_through_another_name_of_the_cluster() {
    let third =
        "[clusters.third]\naddresses = [\"elsewhere:1\", \"10.0.0.1:8090\"]\ntoken = \"t\"\n";
    let text =
        second_source("west", "third", "{ stream = \"orders\", topic = \"events\" }") + third;
    refuses(&text, 28, "sources.second.include[0]", &["\"third\"", "comes back"]);
}

#[test]
fn both_directions_are_refused_behind_a_rename() {
    let entry = "{ stream = \"x\", topic = \"y\", to_stream = \"orders\", to_topic = \"events\" }";
    let there =
        changed("topic = \"events\"", "topic = \"events\", to_stream = \"x\", to_topic = \"y\"");
    let text = second_source("west", "east", entry).replace(EXAMPLE, &there);
    refuses(&text, 28, "sources.second.include[0]", &["comes back by sources.orders.include[0]"]);
}

#[test]
fn a_circle_over_three_clusters_is_refused() {
    let text = second_source("west", "north", "{ stream = \"orders\", topic = \"events\" }")
        + "[sources.third]\nkind = \"iggy\"\nfrom = \"north\"\nto = \"east\"\n\
           include = [{ stream = \"orders\", topic = \"events\" }]\n\
           [clusters.north]\naddress = \"n:1\"\ntoken = \"t\"\n";
    refuses(
        &text,
        33,
        "sources.third.include[0]",
        &["sources.orders.include[0] on line 18, then sources.second.include[0] on line 28"],
    );
}

#[test]
fn opposite_directions_of_different_topics_are_accepted() {
    read(&second_source("west", "east", "{ stream = \"orders\", topic = \"replies\" }")).unwrap();
}

#[test]
fn two_feeds_onto_one_partition_are_refused() {
    let merged = "{ stream = \"orders\", topic = \"audit\", to_topic = \"events\" }";
    refuses(
        &changed("{ stream = \"orders\", topic = \"audit\" }", merged),
        18,
        "sources.orders.include[1]",
        &["sources.orders.include[0] on line 18 already writes to orders/events", "rename"],
    );
    refuses(
        &second_source("east", "west", "{ stream = \"orders\", topic = \"audit\" }"),
        28,
        "sources.second.include[0]",
        &[
            "sources.orders.include[1] on line 18 already writes to orders/audit",
            "on cluster \"west\"",
        ],
    );
}

#[test]
fn a_duplicated_include_is_refused() {
    let audit = "{ stream = \"orders\", topic = \"audit\" }";
    for twin in [
        "{ stream = \"orders\", topic = \"events\" }",
        "{ stream = \"orders\", topic = \"events\", to_topic = \"elsewhere\" }",
    ] {
        refuses(
            &changed(audit, twin),
            18,
            "sources.orders.include[1]",
            &["orders/events is already included on line 18", "second source"],
        );
    }
}

#[test]
fn an_empty_include_is_refused() {
    let start = EXAMPLE.find("include = ").unwrap();
    let end = start + EXAMPLE[start..].find('\n').unwrap();
    let with = |text: &str| format!("{}{text}{}", &EXAMPLE[..start], &EXAMPLE[end..]);
    refuses(&with("include = []"), 18, "sources.orders.include", &["empty list", "stream ="]);
    refuses(&with(""), 14, "sources.orders.include", &["missing", "write include ="]);
    let errors = read(&with("include = [{ topic = \"t\" }, { stream = \"s\" }]")).unwrap_err();
    finds(&errors, 18, "sources.orders.include[0].stream", &["missing"]);
    finds(&errors, 18, "sources.orders.include[1].topic", &["missing"]);
}

#[test]
fn unusable_names_are_refused() {
    let long = "n".repeat(256);
    for (name, said) in [
        ("", "an empty name"),
        ("  ", "blanks only"),
        (long.as_str(), "more than 255 bytes"),
        ("a\\u0007b", "control characters"),
        ("orders-*", "names, not patterns"),
        ("*", "names, not patterns"),
    ] {
        refuses(
            &changed("topic = \"events\"", &format!("topic = \"{name}\"")),
            18,
            "sources.orders.include[0].topic",
            &[said, "1 to 255 bytes"],
        );
    }
    read(&changed("topic = \"events\"", &format!("topic = \"{}\"", "n".repeat(255)))).unwrap();
}

#[test]
fn source_names_cannot_leave_the_state_directory() {
    let long = "a".repeat(65);
    for name in ["../orders", "a/b", "Orders", "", "a.b", "ordérs", long.as_str()] {
        let path = format!("sources.{name:?}");
        let path = if name == "Orders" || name == long { path.replace('"', "") } else { path };
        refuses(
            &changed("[sources.orders]", &format!("[sources.{name:?}]")),
            14,
            &path,
            &["not a usable source name", "a-z, 0-9", "rename"],
        );
    }
}

#[test]
fn an_unreadable_secret_names_its_variable_or_file() {
    refuses(
        &changed("${env:IGGY_PASSWORD}", "${env:GONE}"),
        9,
        "clusters.east.password",
        &["variable GONE is not set", "set GONE"],
    );
    refuses(
        &changed("/run/secrets/west", "/run/secrets/gone"),
        13,
        "clusters.west.password",
        &["\"/run/secrets/gone\" cannot be read: no such file", "let the user"],
    );
    refuses(
        &changed("${env:IGGY_PASSWORD}", "${vault:hunter2}"),
        9,
        "clusters.east.password",
        &["neither ${env:NAME} nor ${file:/path}", "$${"],
    );
}

#[test]
fn an_unusable_secret_is_refused_without_showing_it() {
    for (reference, said) in
        [("${env:EMPTY}", "an empty value"), ("${env:TWO_LINES}", "a line break")]
    {
        refuses(
            &changed("${env:IGGY_PASSWORD}", reference),
            9,
            "clusters.east.password",
            &[said, "it is not shown"],
        );
    }
}

#[test]
fn an_expanded_value_never_appears_in_a_finding() {
    for (from, line, key) in [
        ("\"1s\"", 22, "sources.orders.retry_interval"),
        ("\"east\"\nto", 16, "sources.orders.from"),
        ("\"preserve\"", 20, "sources.orders.partitions"),
        ("\"10.0.0.1:8090\"", 7, "clusters.east.address"),
        ("\"127.0.0.1:8099\"", 5, "admin.listen"),
        ("\"earliest\"", 19, "sources.orders.initial_offset"),
        ("\"auto\"", 3, "daemon.shards"),
    ] {
        let rest = from.strip_prefix("\"east\"").unwrap_or_default();
        let to = format!("\"${{env:WORD}}\"{rest}");
        refuses(&changed(from, &to), line, key, &["${env:WORD}"]);
    }
    let text = changed("shards = \"auto\"", "log_level = \"${env:WORD}\"");
    refuses(&text, 3, "daemon.log_level", &["${env:WORD}"]);
}

#[test]
fn addresses_with_a_password_in_them_are_not_shown() {
    let errors = read(&changed("10.0.0.1:8090", "iggy://iggy:hunter2@10.0.0.1:8090")).unwrap_err();
    finds(&errors, 7, "clusters.east.address", &["'@'", "keys of their own"]);
}

#[test]
fn a_cluster_has_exactly_one_address_form() {
    let line = "address = \"10.0.0.1:8090\"";
    let none = changed(&format!("{line}           # or addresses = [..]\n"), "");
    refuses(&none, 6, "clusters.east.address", &["missing", "8090 by default"]);
    let both = changed(line, &format!("{line}\naddresses = [\"10.0.0.2:8090\"]"));
    refuses(&both, 7, "clusters.east.address", &["both address and addresses"]);
    let empty = changed(line, "addresses = []");
    refuses(&empty, 7, "clusters.east.addresses", &["0 usable addresses"]);
    let scheme = changed("10.0.0.1:8090", "tcp://10.0.0.1:8090");
    refuses(&scheme, 7, "clusters.east.address", &["scheme"]);
}

#[test]
fn a_cluster_has_exactly_one_login_form() {
    let user = "username = \"iggy\"\n";
    let password = "password = \"${env:IGGY_PASSWORD}\"";
    refuses(&changed(user, ""), 6, "clusters.east.username", &["password without username"]);
    refuses(&changed(password, ""), 6, "clusters.east.password", &["username without password"]);
    let both = changed(password, "password = \"p\"\ntoken = \"t\"");
    refuses(&both, 10, "clusters.east.token", &["token next to a user", "one of the two"]);
    let none = changed(user, "").replacen(password, "", 1);
    refuses(&none, 6, "clusters.east.username", &["no credentials", "${env:NAME}", "token"]);
}

#[test]
fn zero_durations_are_refused_where_they_make_no_sense() {
    for key in ["reset_grace", "discovery_interval", "degraded_after"] {
        refuses(
            &with_source_key(&format!("{key} = \"0s\"")),
            24,
            &format!("sources.orders.{key}"),
            &["a duration of zero", "longer"],
        );
    }
    refuses(&changed("\"1s\"", "\"0ms\""), 22, "sources.orders.retry_interval", &["zero"]);
    let errors = read(&changed("\"60s\"", "\"0s\"")).unwrap_err();
    finds(&errors, 23, "sources.orders.max_retry_interval", &["zero"]);
    for key in ["connect_timeout", "request_timeout", "settle"] {
        let text = changed("[clusters.west]", &format!("{key} = \"0s\"\n[clusters.west]"));
        refuses(&text, 10, &format!("clusters.east.{key}"), &["zero"]);
    }
    let text = changed("shards = \"auto\"", "drain_timeout = \"0s\"");
    refuses(&text, 3, "daemon.drain_timeout", &["zero"]);
    read(&with_source_key("state_interval = \"0s\"")).unwrap();
}

#[test]
fn the_first_retry_is_no_longer_than_the_longest() {
    refuses(
        &changed("\"1s\"", "\"2m\""),
        22,
        "sources.orders.retry_interval",
        &["retry_interval is 2m, max_retry_interval is 1m", "raise"],
    );
    let text = changed(
        "retry_interval = \"1s\"\nmax_retry_interval = \"60s\"",
        "max_retry_interval = \"500ms\"",
    );
    refuses(&text, 22, "sources.orders.max_retry_interval", &["retry_interval is 1s", "500ms"]);
}

#[test]
fn batch_sizes_stay_within_a_frame() {
    for size in ["61MiB", "4095", "0", "99999MiB"] {
        refuses(
            &with_source_key(&format!("max_batch_bytes = \"{size}\"")),
            24,
            "sources.orders.max_batch_bytes",
            &["4KiB to 60MiB"],
        );
    }
    refuses(
        &with_source_key("max_batch_bytes = \"8MB\""),
        24,
        "sources.orders.max_batch_bytes",
        &["\"8MB\"", "KiB, MiB or GiB"],
    );
    refuses(
        &with_source_key("max_batch_bytes = 8388608"),
        24,
        "sources.orders.max_batch_bytes",
        &["the integer 8388608", "as a string"],
    );
}

#[test]
fn a_budget_that_cannot_work_is_refused_with_the_figures() {
    refuses(
        &changed("shards = \"auto\"", "shards = 2\nmax_buffered_bytes = \"16MiB\""),
        4,
        "daemon.max_buffered_bytes",
        &[
            "16MiB split over 2 shards",
            "at least 16896KiB",
            "8MiB in reserve",
            "256KiB",
            "\"16896KiB\"",
        ],
    );
    let enough = "shards = 2\nmax_buffered_bytes = \"16896KiB\"";
    read(&changed("shards = \"auto\"", enough)).unwrap();
    refuses(
        &changed("shards = \"auto\"", "shards = 64"),
        1,
        "daemon.max_buffered_bytes",
        &["128MiB split over 64 shards", "fewer shards"],
    );
}

#[test]
fn the_admin_address_must_be_on_loopback_or_behind_a_token() {
    for address in ["0.0.0.0:8099", "192.168.1.5:8099", "[::]:8099"] {
        let text = changed("127.0.0.1:8099", address);
        refuses(&text, 5, "admin.listen", &[address, "loopback", "127.0.0.1:8099"]);
    }
    for address in ["[::1]:8099", "127.0.0.2:8099", "[::ffff:127.0.0.1]:8099"] {
        read(&changed("127.0.0.1:8099", address)).unwrap();
    }
    let admin = |lines: &str| changed("listen = \"127.0.0.1:8099\"", lines);
    let exposed = read(&admin("listen = \"0.0.0.0:8099\"\ntoken = \"s3same\"")).unwrap();
    let exposed = exposed.admin.unwrap();
    let token = exposed.token.as_ref().unwrap();
    assert!(token.matches("s3same") && !token.matches("s3sam") && !token.matches(""));
    assert!(!format!("{exposed:?}").contains("s3same"), "a token is never shown");
    let socket = read(&admin("listen = \"unix:/run/tidegate/admin.sock\"")).unwrap();
    assert_eq!(socket.admin.unwrap().listen.to_string(), "unix:/run/tidegate/admin.sock");
    let relative = admin("listen = \"unix:admin.sock\"");
    refuses(&relative, 5, "admin.listen", &["unix:admin.sock", "absolute path"]);
    let empty = admin("listen = \"127.0.0.1:1\"\ntoken = \"\"");
    refuses(&empty, 6, "admin.token", &["empty", "not shown"]);
    let text = changed("127.0.0.1:8099", "localhost:8099");
    refuses(&text, 5, "admin.listen", &["\"localhost:8099\"", "for localhost write 127.0.0.1"]);
    refuses(&changed("listen = \"127.0.0.1:8099\"\n", ""), 4, "admin.listen", &["missing"]);
}

#[test]
fn the_state_directory_is_required() {
    let text = changed("state_dir = \"/var/lib/tidegate\"     # required\n", "");
    refuses(&text, 1, "daemon.state_dir", &["missing", "/var/lib/tidegate"]);
    refuses(&changed("/var/lib/tidegate", " "), 2, "daemon.state_dir", &["not a path"]);
    let start = EXAMPLE.find("[admin]").unwrap();
    refuses(&EXAMPLE[start..], 1, "daemon", &["missing", "state_dir"]);
}

#[test]
fn a_file_without_sources_is_refused() {
    let end = EXAMPLE.find("[sources").unwrap();
    refuses(&EXAMPLE[..end], 1, "sources", &["missing", "[sources.orders]"]);
    let text = EXAMPLE[..end].to_owned() + "[sources]\n";
    refuses(&text, 14, "sources", &["no source in it"]);
}

#[test]
fn all_findings_are_reported_at_once_in_the_order_of_the_file() {
    let text = EXAMPLE
        .replace("shards = \"auto\"", "shards = true")
        .replace("127.0.0.1", "0.0.0.0")
        .replace("${env:IGGY_PASSWORD}", "${env:GONE}")
        .replace("to = \"west\"", "to = \"nowhere\"")
        .replace("auto_create = true", "auto_create = 1\ncolour = \"red\"");
    let errors = read(&text).unwrap_err();
    let lines: Vec<usize> = errors.findings().iter().map(|f| f.at.unwrap().line).collect();
    assert_eq!(lines, [3, 5, 9, 17, 21, 22], "{errors}");
}

#[test]
fn syntax_errors_name_their_place_and_never_quote_the_line() {
    let errors = read(&changed("\"${env:IGGY_PASSWORD}\"", "\"hunter2")).unwrap_err();
    finds(&errors, 9, "", &["not TOML", "strings need quotes"]);
    let twice = changed("kind = \"iggy\"\n", "kind = \"iggy\"\nkind = \"iggy\"\n");
    refuses(&twice, 16, "kind", &["duplicate key", "remove or rename"]);
}

#[test]
fn columns_point_at_the_value() {
    let errors = read(&changed("to = \"west\"", "to = \"wets\"")).unwrap_err();
    assert!(errors.to_string().starts_with("t.toml:17:6: sources.orders.to: "), "{errors}");
}

#[test]
fn files_and_their_references_are_read_from_disk() {
    let dir = tempfile::tempdir().unwrap();
    let secret = dir.path().join("west");
    std::fs::write(&secret, "hunter2-west\n").unwrap();
    let config = dir.path().join("tidegate.toml");
    // Cargo sets this one for every test.
    let text = EXAMPLE
        .replace("/run/secrets/west", secret.to_str().unwrap())
        .replace("${env:IGGY_PASSWORD}", "${env:CARGO_PKG_NAME}");
    std::fs::write(&config, &text).unwrap();
    let plan = load(&config).unwrap();
    let Credentials::Password { password, .. } = &plan.clusters["west"].credentials else {
        panic!("a password");
    };
    assert_eq!(password.expose(), WEST);

    std::fs::remove_file(&secret).unwrap();
    let shown = load(&config).unwrap_err().to_string();
    let place = format!("{}:13:12: clusters.west.password", config.display());
    assert!(shown.contains(&place) && shown.contains("cannot be read"), "{shown}");
    load_without_credentials(&config).expect("credentials are not needed to look at files");
}

#[test]
fn unreadable_configuration_files_are_explained() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing.toml");
    let shown = load(&missing).unwrap_err().to_string();
    assert!(shown.contains("missing.toml: the file cannot be read"), "{shown}");
    assert!(shown.contains("--config"), "{shown}");
    let binary = dir.path().join("binary.toml");
    std::fs::File::create(&binary).unwrap().write_all(b"[daemon]\nx = \"\xff\"\n").unwrap();
    let shown = load(&binary).unwrap_err().to_string();
    assert!(shown.contains("binary.toml:2:6: bytes that are not UTF-8"), "{shown}");
}

#[test]
fn a_secret_file_of_unbounded_size_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("tidegate.toml");
    std::fs::write(&config, changed("/run/secrets/west", "/dev/zero")).unwrap();
    let shown = load(&config).unwrap_err().to_string();
    assert!(shown.contains("\"/dev/zero\" is larger than 65536 bytes"), "{shown}");
}
