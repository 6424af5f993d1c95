//! A database, a destination cluster and a daemon between them.
#![allow(dead_code, reason = "each theme uses its part")]

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use tidegate::batch::TopicName;

use super::support::{Daemon, Home, Pair, Postgres, eventually, soak, when};

/// One message as a consumer of the destination sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Got {
    /// Message id.
    pub id: u128,
    /// Origin timestamp, µs.
    pub origin: u64,
    /// The payload, bytes.
    pub raw: Vec<u8>,
    /// The payload as JSON; null where it is none.
    pub payload: Value,
    /// User headers: kind and bytes.
    pub headers: BTreeMap<String, (u8, Vec<u8>)>,
}

impl Got {
    /// A text header.
    pub fn text(&self, key: &str) -> &str {
        let (_, value) = self.headers.get(key).unwrap_or_else(|| panic!("no header {key}"));
        std::str::from_utf8(value).expect("text")
    }

    /// A 64-bit header.
    pub fn number(&self, key: &str) -> u64 {
        let (_, value) = self.headers.get(key).unwrap_or_else(|| panic!("no header {key}"));
        u64::from_le_bytes(value.as_slice().try_into().expect("8 bytes"))
    }
}

/// Everything of one test.
pub struct Stage {
    pub pg: Postgres,
    pub pair: Pair,
    pub home: Home,
    /// Keys of the source and its sub-tables, below `[sources.shop]`.
    pub source: String,
    /// Keys of `[clusters.west]` and `[daemon]`.
    pub cluster: String,
    pub daemon: String,
    /// Unique in streams of servers that live on.
    pub stream: String,
    /// Where the source connects to; a proxy, maybe.
    pub connection: String,
    /// Where the destination is, several nodes with commas between; a proxy, maybe.
    pub address: String,
}

/// How long anything may take.
pub fn limit() -> Duration {
    Duration::from_secs(if soak() { 600 } else { 60 })
}

impl Stage {
    /// With these tables, bound to one topic unless `source` says otherwise.
    pub fn new(sql: &str, source: &str) -> Stage {
        Stage::on(Postgres::start(), sql, source)
    }

    pub fn on(pg: Postgres, sql: &str, source: &str) -> Stage {
        Stage::with_pair(pg, sql, source, Pair::start())
    }

    pub fn with_pair(pg: Postgres, sql: &str, source: &str, pair: Pair) -> Stage {
        pg.sql(sql);
        let stream = format!("cap{:x}", fastrand::u64(..));
        let (connection, address) = (pg.url(), pair.down.address());
        let cluster = "request_timeout = \"2s\"".to_owned();
        let daemon = "log_level = \"info,tidegate=debug\"".to_owned();
        let source = source.replace("$stream", &stream);
        let home = Home::new();
        Stage { pg, pair, home, source, cluster, daemon, stream, connection, address }
    }

    /// The configuration file.
    pub fn config(&self) -> String {
        format!(
            "[daemon]\nstate_dir = {:?}\n{}\n[admin]\nlisten = \"{}\"\ntoken = {:?}\n\
             [clusters.west]\naddresses = {:?}\nusername = \"iggy\"\npassword = \"iggy\"\n\
             allow_untested_server = true\n{}\n\
             [sources.shop]\nkind = \"postgres_cdc\"\nto = \"west\"\nconnection = {:?}\n\
             retry_interval = \"50ms\"\nmax_retry_interval = \"500ms\"\n{}\n",
            self.home.state_dir().display().to_string(),
            self.daemon,
            self.home.admin(),
            super::support::ADMIN_TOKEN,
            self.address.split(',').collect::<Vec<_>>(),
            self.cluster,
            self.connection,
            self.source,
        )
    }

    pub fn start(&self) -> Daemon {
        self.start_with(&[])
    }

    pub fn start_with(&self, environment: &[(&str, &str)]) -> Daemon {
        std::fs::write(self.home.config_file(), self.config()).expect("a configuration file");
        Daemon::start_written(&self.home, environment)
    }

    /// The same with `--accept-gap`.
    pub fn start_accepting(&self) -> Daemon {
        std::fs::write(self.home.config_file(), self.config()).expect("a configuration file");
        Daemon::start_as(&self.home, &["--accept-gap"], &[])
    }

    /// A started daemon that streams.
    #[track_caller]
    pub fn streaming(&self) -> Daemon {
        let mut daemon = self.start();
        eventually(limit(), "a stream", || {
            daemon.assert_running();
            when(daemon.lines().iter().any(|line| line.contains("streaming from slot")))
        });
        daemon
    }

    /// Waits until the source has this reason, `""` for running.
    #[track_caller]
    pub fn reason(&self, daemon: &mut Daemon, reason: &str) -> Value {
        eventually(limit(), &format!("reason {reason:?}"), || {
            daemon.assert_running();
            let source = self.source(daemon)?;
            (source["reason"] == reason && (source["status"] == "Running" || !reason.is_empty()))
                .then_some(source)
        })
    }

    /// The source as status shows it.
    pub fn source(&self, daemon: &Daemon) -> Option<Value> {
        let status = daemon.status()?;
        status["sources"].as_array()?.iter().find(|source| source["key"] == "shop").cloned()
    }

    pub fn topic(&self, topic: &str) -> TopicName {
        TopicName::new(&self.stream, topic)
    }

    /// Everything in one topic of this stage's stream, partition by partition.
    pub fn got(&self, topic: &str) -> Vec<Got> {
        self.got_in(&self.topic(topic)).into_iter().flatten().collect()
    }

    pub fn got_in(&self, topic: &TopicName) -> Vec<Vec<Got>> {
        let Some(info) = self.pair.down.topic(topic) else { return Vec::new() };
        let read = |partition| {
            let messages = self.pair.down.dump(topic, partition, 0);
            messages
                .iter()
                .map(|m| got(m.id, m.origin_timestamp, &m.payload, &m.user_headers))
                .collect::<Vec<_>>()
        };
        (0..info.partitions_count).map(read).collect()
    }

    /// Waits for this many messages in a topic.
    #[track_caller]
    pub fn wait_for(&self, daemon: &mut Daemon, topic: &str, count: usize) -> Vec<Got> {
        eventually(limit(), &format!("{count} messages in {topic}"), || {
            daemon.assert_running();
            let got = self.got(topic);
            (got.len() >= count).then_some(got)
        })
    }

    /// What the slot was confirmed up to.
    pub fn confirmed(&self) -> u64 {
        self.lsn(
            "select confirmed_flush_lsn from pg_replication_slots where slot_name = \
                  'tidegate_shop'",
        )
    }

    /// The server's end of the log.
    pub fn wal_end(&self) -> u64 {
        self.lsn("select pg_current_wal_flush_lsn()")
    }

    fn lsn(&self, sql: &str) -> u64 {
        let text = self.pg.value(sql);
        text.parse::<tidegate::pg_wire::Lsn>().expect("an LSN").0
    }

    /// Waits until everything committed so far is confirmed.
    #[track_caller]
    pub fn wait_confirmed(&self, daemon: &mut Daemon) {
        let end = self.lsn("select pg_current_wal_insert_lsn()");
        self.pg.sql("select pg_switch_wal()");
        eventually(limit(), "the confirmation", || {
            daemon.assert_running();
            when(self.confirmed() >= end)
        });
    }
}

fn got(id: u128, origin: u64, payload: &[u8], headers: &[u8]) -> Got {
    let json = serde_json::from_slice(payload).unwrap_or(Value::Null);
    Got { id, origin, raw: payload.to_vec(), payload: json, headers: headers_of(headers) }
}

/// `kind:1 length:4 bytes`, key then value, again and again.
fn headers_of(mut bytes: &[u8]) -> BTreeMap<String, (u8, Vec<u8>)> {
    let mut headers = BTreeMap::new();
    let mut part = || {
        let kind = *bytes.first()?;
        let length = u32::from_le_bytes(bytes[1..5].try_into().ok()?) as usize;
        let value = bytes[5..5 + length].to_vec();
        bytes = &bytes[5 + length..];
        Some((kind, value))
    };
    while let (Some((_, key)), Some(value)) = (part(), part()) {
        headers.insert(String::from_utf8(key).expect("a text key"), value);
    }
    headers
}
