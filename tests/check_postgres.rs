//! `tidegate check` of captures: the real binary, a real Postgres, a built-in broker.
#![allow(clippy::disallowed_methods)] // files and processes

mod support;

use std::time::Duration;

use serde_json::Value;
use support::{Daemon, Home, Postgres, eventually, when};
use tidegate::loopback::{Flavour, Server, ServerOptions};

const SECONDS: Duration = Duration::from_secs(60);
const BOUND: &str = "stream = \"shop\"\ntopic = \"orders\"";
const ORDERS: &str = "create table orders (id bigint primary key, note text)";

/// A database, a broker, a configuration between them.
struct Place {
    pg: Postgres,
    broker: Server,
    home: Home,
    connection: String,
    source: String,
}

/// What a check said.
struct Checked {
    code: i32,
    report: Value,
}

impl Place {
    fn new(sql: &str) -> Place {
        Place::on(Postgres::start(), sql)
    }

    fn on(pg: Postgres, sql: &str) -> Place {
        pg.sql(sql);
        let broker = Server::start(ServerOptions::default()).expect("a broker");
        let (connection, home) = (pg.url(), Home::new());
        let source = format!("tables = [\"public.orders\"]\n{BOUND}");
        Place { pg, broker, home, connection, source }
    }

    fn write(&self) {
        let text = format!(
            "[daemon]\nstate_dir = {:?}\n[admin]\nlisten = \"{}\"\n\
             [clusters.west]\naddress = \"{}\"\nusername = \"iggy\"\npassword = \"iggy\"\n\
             [sources.shop]\nkind = \"postgres_cdc\"\nto = \"west\"\nconnection = {:?}\n\
             retry_interval = \"50ms\"\n{}\n",
            self.home.state_dir().display().to_string(),
            self.home.admin(),
            self.broker.address(),
            self.connection,
            self.source,
        );
        std::fs::write(self.home.config_file(), text).expect("a configuration file");
    }

    fn check(&self) -> Checked {
        self.check_with(&[])
    }

    fn check_with(&self, more: &[&str]) -> Checked {
        self.write();
        let file = self.home.config_file().display().to_string();
        let line = [&["check", "--json", "--config", &file], more].concat();
        let (code, out, err) = self.home.run(&line);
        let report = serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out}{err}"));
        Checked { code, report }
    }

    /// A started daemon that has copied what there is.
    fn copied(&self, messages: u64) -> Daemon {
        self.write();
        let mut daemon = Daemon::start_written(&self.home, &[]);
        eventually(SECONDS, "the copy", || {
            daemon.assert_running();
            when(self.broker.control().end("shop", "orders", 0) == Ok(messages))
        });
        daemon
    }
}

impl Checked {
    fn all(&self, list: &str) -> Vec<[String; 5]> {
        let text = |entry: &Value, key: &str| entry[key].as_str().expect("text").to_owned();
        let keys = ["class", "subject", "seen", "expected", "advice"];
        let list = self.report[list].as_array().expect("a list");
        list.iter().map(|entry| keys.map(|key| text(entry, key))).collect()
    }

    /// The only thing that is wrong: what was seen, and what is to be done.
    #[track_caller]
    fn only(&self, code: i32, about: &str) -> (String, String) {
        let wrong = self.all("findings");
        assert_eq!((self.code, wrong.len()), (code, 1), "{:#}", self.report);
        let [_, subject, seen, _, advice] = &wrong[0];
        assert_eq!(subject, &format!("sources.shop{about}"));
        (seen.clone(), advice.clone())
    }

    /// Something that is right, or only worth knowing.
    #[track_caller]
    fn noted(&self, class: &str, about: &str) -> (String, String) {
        let subject = format!("sources.shop{about}");
        let notes = self.all("notes");
        let found = notes.into_iter().find(|note| note[0] == class && note[1] == subject);
        let [_, _, seen, _, advice] =
            found.unwrap_or_else(|| panic!("no {class} about {subject}: {:#}", self.report));
        (seen, advice)
    }

    #[track_caller]
    fn ok(&self) {
        assert_eq!((self.code, self.all("findings").len()), (0, 0), "{:#}", self.report);
        assert_eq!(self.report["ok"], true);
    }
}

#[test]
fn a_good_place_is_ok_says_what_to_know_and_is_left_as_it_was() {
    let place = Place::new(ORDERS);
    let checked = place.check();
    checked.ok();
    let (seen, advice) = checked.noted("note", ": max_slot_wal_keep_size");
    assert!(seen.contains("fills the disk") && advice.contains("set a limit"), "{seen}; {advice}");
    let (seen, _) = checked.noted("note", ": long_values");
    assert!(seen.contains("public.orders.note"), "{seen}");
    let (seen, _) = checked.noted("note", ": shop/orders");
    assert_eq!(
        seen,
        "does not exist on cluster west; it will be created, partitions: 1 \
                      (auto_create)"
    );
    assert!(place.pg.sql("select from pg_publication").is_empty());
    assert!(place.pg.sql("select from pg_replication_slots").is_empty());
    assert!(place.broker.control().end("shop", "orders", 0).is_err(), "no topic was made");

    place.pg.set("wal_sender_timeout", "1s");
    let checked = place.check();
    checked.ok();
    let (seen, advice) = checked.noted("warning", ": wal_sender_timeout");
    assert!(seen.contains("1s") && advice.contains("raise it"), "{seen}; {advice}");
    place.write();
    let file = place.home.config_file().display().to_string();
    let (code, out, _) = place.home.run(&["check", "--config", &file]);
    assert_eq!(code, 0, "{out}");
    assert!(out.contains("warning: sources.shop: wal_sender_timeout: "), "{out}");
    assert!(out.ends_with(&format!("{file}: ok\n")), "{out}");
}

#[test]
fn a_server_without_logical_decoding_or_free_slots_is_told_how_to_get_them() {
    let settings = [("wal_level", "replica"), ("max_replication_slots", "1")];
    let place = Place::on(Postgres::start_with(&settings), ORDERS);
    let (seen, advice) = place.check().only(1, ": wal_level");
    assert!(seen.contains("wal_level is \"replica\""), "{seen}");
    assert!(advice.contains("ALTER SYSTEM SET wal_level = 'logical'"), "{advice}");
    assert!(advice.contains("restart"), "{advice}");

    place.pg.set("wal_level", "logical");
    place.pg.restart();
    place.check().ok();
    place.pg.sql("select pg_create_logical_replication_slot('other', 'pgoutput')");
    let (seen, advice) = place.check().only(1, ": slots_exhausted");
    assert!(seen.contains("1 of 1 slots are in use"), "{seen}");
    assert!(advice.contains("max_replication_slots"), "{advice}");

    place.pg.sql("select pg_drop_replication_slot('other')");
    let slot = "select pg_create_logical_replication_slot('tidegate_shop', 'test_decoding')";
    place.pg.sql(slot);
    let (seen, advice) = place.check().only(1, ": slot_plugin");
    assert!(seen.contains("has plugin \"test_decoding\""), "{seen}");
    assert!(advice.contains("name another slot"), "{advice}");
}

#[test]
fn a_role_is_told_what_it_lacks() {
    let mut place = Place::new(ORDERS);
    place.pg.sql("create role app login");
    place.connection = place.pg.url_of("app", None, "postgres");
    let (seen, advice) = place.check().only(1, ": privilege_missing");
    assert!(seen.contains("42501") || seen.contains("replication"), "{seen}");
    assert!(advice.contains("REPLICATION"), "{advice}");

    place.pg.sql("alter role app replication");
    let (seen, advice) = place.check().only(1, ": publication_privileges");
    assert!(seen.contains("role \"app\" has no CREATE on database"), "{seen}");
    assert!(advice.contains("CREATE PUBLICATION \"tidegate_shop\" FOR TABLE"), "{advice}");
    let (_, sql) = advice.split_once("as another role: ").expect("a statement");
    place.pg.sql(sql);
    place.check().ok();
}

#[test]
fn tables_without_a_key_and_missing_ones_are_found() {
    let mut place = Place::new("create table orders (id bigint)");
    let (seen, advice) = place.check().only(1, ": replica_identity");
    assert!(seen.contains("public.orders has no primary key"), "{seen}");
    assert!(advice.contains("ALTER TABLE \"public\".\"orders\" ADD PRIMARY KEY"), "{advice}");
    place.pg.sql("alter table orders replica identity full");
    place.check().ok();

    place.source = format!("tables = [\"public.orders\", \"public.Orders\"]\n{BOUND}");
    let (seen, advice) = place.check().only(1, ": table_missing");
    assert!(seen.contains("there is no table public.Orders"), "{seen}");
    assert!(advice.contains("case counts"), "{advice}");
}

#[test]
fn a_publication_that_lacks_a_table_is_found_with_the_statement_that_adds_it() {
    let mut place = Place::new(ORDERS);
    place.pg.sql("create publication tidegate_shop");
    let (seen, advice) = place.check().only(1, ": table_not_published");
    assert!(seen.contains("public.orders is in `tables` and not in publication"), "{seen}");
    place.pg.sql(&advice);
    place.check().ok();

    place.pg.sql("alter publication tidegate_shop set (publish = 'insert')");
    let checked = place.check();
    checked.ok();
    let (seen, _) = checked.noted("warning", ": publication_operations");
    assert!(seen.contains("does not publish"), "{seen}");

    place.source = format!("tables = \"*\"\npublication = \"by_hand\"\n{BOUND}");
    let (seen, advice) = place.check().only(1, ": publication_missing");
    assert!(seen.contains("\"by_hand\" does not exist"), "{seen}");
    assert!(advice.contains("CREATE PUBLICATION \"by_hand\" FOR ALL TABLES"), "{advice}");
}

#[test]
fn a_database_that_cannot_be_used_exits_with_4_and_says_why() {
    let mut place = Place::new(ORDERS);
    place.pg.sql("create role app login replication password 'right'");
    place.pg.set_hba(&["host all all 127.0.0.1/32 scram-sha-256"]);
    place.connection = place.pg.url_of("app", Some("hunter2"), "postgres");
    let checked = place.check();
    let (seen, advice) = checked.only(4, ".connection");
    assert!(seen.contains("password authentication failed"), "{seen}");
    assert!(advice.contains("check user and password"), "{advice}");
    assert!(!checked.report.to_string().contains("hunter2"), "a secret is shown");

    place.connection = place.pg.url_of("app", None, "postgres");
    let (seen, advice) = place.check().only(4, ".connection");
    assert!(seen.contains("no password is configured"), "{seen}");
    assert!(advice.contains("set password"), "{advice}");

    place.connection = place.pg.url_of("app", Some("right"), "nowhere");
    let (seen, advice) = place.check().only(4, ".connection");
    assert!(seen.contains("\"nowhere\" does not exist"), "{seen}");
    assert!(advice.contains("correct its name"), "{advice}");

    place.connection = format!("{}?sslmode=require", place.pg.url_of("app", Some("right"), "x"));
    let (seen, advice) = place.check().only(4, ".connection");
    assert!(seen.contains("no TLS") || seen.contains("does not offer"), "{seen}");
    assert!(advice.contains("ssl = on"), "{advice}");

    place.connection = "postgresql://app@no-such-host.invalid/shop".to_owned();
    let (seen, advice) = place.check().only(4, ".connection");
    assert!(seen.contains("no-such-host.invalid") && seen.contains("does not resolve"), "{seen}");
    assert!(advice.contains("name service"), "{advice}");

    place.connection = place.pg.url();
    place.pg.stop(support::Stop::Fast);
    let (seen, advice) = place.check().only(4, ".connection");
    assert!(seen.contains(&place.pg.address()) && seen.contains("cannot be reached"), "{seen}");
    assert!(advice.contains("start the database or correct host and port"), "{advice}");
    let checked = place.check_with(&["--offline"]);
    checked.ok();
}

#[test]
fn destinations_are_looked_at_for_what_their_acks_promise() {
    let mut place = Place::new(ORDERS);
    let by_hand = format!("{}\nauto_create = false", place.source);
    place.source = by_hand.clone();
    let (seen, advice) = place.check().only(1, ": shop/orders");
    assert_eq!(seen, "does not exist on cluster west");
    assert!(advice.contains("auto_create = true"), "{advice}");

    let control = place.broker.control();
    let replicated = [("durability", "replicated")];
    assert_eq!(control.create_topic_with("shop", "orders", 1, &replicated), Ok(true));
    let checked = place.check();
    checked.ok();
    let (seen, advice) = checked.noted("warning", ": shop/orders");
    assert!(seen.contains("can lose what it has acked"), "{seen}");
    assert!(advice.contains("durability = \"persisted\""), "{advice}");
    place.source = format!("{by_hand}\nrequire_durable = \"refuse\"");
    let (_, advice) = place.check().only(1, ": shop/orders");
    assert!(advice.contains("nothing is sent there"), "{advice}");
    place.source = format!("{by_hand}\nrequire_durable = \"off\"");
    let checked = place.check();
    checked.ok();
    let of_topic = |note: &[String; 5]| note[1] == "sources.shop: shop/orders";
    assert!(!checked.all("notes").iter().any(of_topic), "{:#}", checked.report);
}

#[test]
fn what_the_destination_cluster_cannot_do_is_a_warning() {
    let mut place = Place::new(ORDERS);
    let options = ServerOptions { flavour: Flavour::Edge5, ..ServerOptions::default() };
    place.broker = Server::start(options).expect("a broker");
    place.source.push_str("\n[sources.shop.routing.topic_defaults]\ndurability = \"persisted\"");
    let checked = place.check();
    checked.ok();
    let (seen, _) = checked.noted("warning", ".routing.topic_defaults");
    assert!(seen.contains("durability = persisted: the server does not know the option"), "{seen}");
}

#[test]
fn routing_tests_and_odd_routes_are_found_offline() {
    let mut place = Place::new(ORDERS);
    place.source = format!(
        "{}\n[[sources.shop.tests]]\ntable = \"public.orders\"\nrow = '{{\"id\": 1}}'\n\
         expect = {{ topic = \"events\" }}",
        place.source
    );
    let checked = place.check_with(&["--offline"]);
    let wrong = checked.all("findings");
    assert_eq!((checked.code, wrong.len()), (1, 1), "{:#}", checked.report);
    let [_, subject, seen, _, advice] = &wrong[0];
    assert!(subject.starts_with("sources.shop.tests[0]"), "{subject}");
    assert!(seen.contains("topic orders, expected events"), "{seen}");
    assert!(advice.contains("correct the routing or the test"), "{advice}");
    place.source = place.source.replace("events", "orders");
    place.check().ok();
}

#[test]
fn a_saved_position_is_compared_with_the_slot() {
    let place = Place::new(ORDERS);
    place.pg.sql("create publication tidegate_shop for table orders");
    place.pg.sql("select pg_create_logical_replication_slot('tidegate_shop', 'pgoutput')");
    place.pg.sql("insert into orders select n, 'x' from generate_series(1, 10) n");
    let checked = place.check();
    checked.ok();
    let (seen, _) = checked.noted("note", ": slot_without_position");
    assert!(seen.contains("it starts at"), "{seen}");

    let mut daemon = place.copied(10);
    let checked = place.check();
    checked.ok();
    let (seen, _) = checked.noted("note", ": slot_active");
    assert!(seen.contains("is active for process"), "{seen}");
    place.pg.sql("insert into orders select n, 'x' from generate_series(11, 20) n");
    eventually(SECONDS, "the rest", || {
        daemon.assert_running();
        when(place.broker.control().end("shop", "orders", 0) == Ok(20))
    });
    daemon.stop();
    place.check().ok();

    place.pg.sql("select pg_drop_replication_slot('tidegate_shop')");
    let (seen, advice) = place.check().only(1, ": slot_missing");
    assert!(seen.contains("there is no slot \"tidegate_shop\""), "{seen}");
    assert!(advice.contains("--accept-gap"), "{advice}");
}

#[test]
fn routing_columns_that_no_table_or_no_delete_has_are_a_warning() {
    let mut place = Place::new(
        "create table orders (id bigint primary key, kind text); \
         create table plain (id bigint primary key)",
    );
    let routed = |column: &str| {
        format!(
            "tables = [\"public.orders\", \"public.plain\"]\n[sources.shop.routing]\n\
             topic_column = \"{column}\"\ndefault_topic = \"unknown\"\ndefault_stream = \"shop\""
        )
    };
    place.source = routed("kind");
    let checked = place.check();
    checked.ok();
    let (seen, advice) = checked.noted("warning", ": routing_identity");
    assert!(seen.contains("\"kind\"") && seen.contains("public.orders"), "{seen}");
    assert!(!seen.contains("public.plain") && advice.contains("REPLICA IDENTITY FULL"), "{advice}");
    place.source = routed("kinds");
    let (seen, _) = place.check().noted("warning", ": routing_column");
    assert!(seen.contains("\"kinds\""), "{seen}");
    place.pg.sql("alter table orders replica identity full");
    place.source = routed("kind");
    let checked = place.check();
    checked.ok();
    let about = |note: &[String; 5]| note[1].contains("routing_");
    assert!(!checked.all("notes").iter().any(about), "{:#}", checked.report);
}
