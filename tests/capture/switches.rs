//! More of a stage: what a test can do to its destination, further sources, waits by source.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::Value;
use tidegate::batch::TopicName;
use tidegate::loopback::Control;
use tidegate::loopback::faults::{Op, Scope};
use tidegate::pg_wire::Lsn;

use super::stage::{Got, Stage, limit};
use super::support::{ADMIN_TOKEN, Daemon, eventually, skipped, when};

impl Stage {
    /// The destination's fault switches; `None`, with the reason printed, on a real server.
    pub fn switches(&self, test: &str) -> Option<Control> {
        let control = self.pair.down.control().cloned();
        if control.is_none() {
            skipped(test, "it needs fault switches, which real servers do not have");
        }
        control
    }

    /// One more source between the same ends. In its keys, `$stream` stands for the stage's
    /// stream with the key behind it.
    pub fn add_source(&mut self, key: &str, keys: &str) {
        let retries = match keys.contains("retry_interval") {
            true => "",
            false => "retry_interval = \"50ms\"\nmax_retry_interval = \"500ms\"\n",
        };
        let text = format!(
            "\n[sources.{key}]\nkind = \"postgres_cdc\"\nto = \"west\"\nconnection = {:?}\n\
             {retries}{}\n",
            self.connection,
            keys.replace("$stream", &self.stream_of(key)),
        );
        self.source.push_str(&text);
    }

    /// The stream of [`Stage::add_source`].
    pub fn stream_of(&self, key: &str) -> String {
        format!("{}-{key}", self.stream)
    }

    /// Everything in one topic of an added source's stream.
    pub fn got_of(&self, key: &str, topic: &str) -> Vec<Got> {
        let topic = TopicName::new(&self.stream_of(key), topic);
        self.got_in(&topic).into_iter().flatten().collect()
    }

    /// A started daemon of which this many sources stream.
    #[track_caller]
    pub fn all_streaming(&self, sources: usize) -> Daemon {
        self.streaming_with(sources, &[])
    }

    /// The same with environment variables.
    #[track_caller]
    pub fn streaming_with(&self, sources: usize, environment: &[(&str, &str)]) -> Daemon {
        let mut daemon = self.start_with(environment);
        eventually(limit(), &format!("{sources} streams"), || {
            daemon.assert_running();
            let lines = daemon.lines();
            when(lines.iter().filter(|l| l.contains("streaming from slot")).count() >= sources)
        });
        daemon
    }

    /// Waits until a source looks like this in status.
    #[track_caller]
    pub fn shows(
        &self,
        daemon: &mut Daemon,
        key: &str,
        what: &str,
        mut looks: impl FnMut(&Value) -> bool,
    ) -> Value {
        let mut last = Value::Null;
        let begun = Instant::now();
        loop {
            daemon.assert_running();
            if let Some(source) = named(daemon, key) {
                if looks(&source) {
                    return source;
                }
                last = source;
            }
            assert!(begun.elapsed() < limit(), "source {key} never was {what}: {last:#}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until a source is `Running`.
    #[track_caller]
    pub fn running(&self, daemon: &mut Daemon, key: &str) {
        self.shows(daemon, key, "running", |source| source["status"] == "Running");
    }

    /// Waits until a source is `Degraded` and says these words.
    #[track_caller]
    pub fn degraded(&self, daemon: &mut Daemon, key: &str, words: &[&str]) -> Value {
        self.shows(daemon, key, &format!("degraded by {words:?}"), |source| {
            let said = format!("{} {}", source["reason"], source["detail"]);
            source["status"] == "Degraded" && words.iter().all(|word| said.contains(word))
        })
    }

    /// Waits until a source has counted this many rejected messages, of this reason and no more
    /// of any.
    #[track_caller]
    pub fn rejected(&self, daemon: &mut Daemon, key: &str, reason: &str, count: u64) {
        let shown = self.shows(daemon, key, &format!("{count} {reason}"), |source| {
            source["capture"]["routing"]["rejected"][reason] == count
        });
        let all = shown["capture"]["routing"]["rejected"].as_object().expect("counts");
        let sum: u64 = all.values().filter_map(Value::as_u64).sum();
        assert_eq!(sum, count, "{all:?}");
    }

    /// What the slot of a source was confirmed up to.
    pub fn confirmed_of(&self, key: &str) -> u64 {
        let slot = key.replace('-', "_");
        self.lsn_of(&format!(
            "select confirmed_flush_lsn from pg_replication_slots where slot_name = \
             'tidegate_{slot}'"
        ))
    }

    /// Where the next change of the database will be.
    pub fn insert_lsn(&self) -> u64 {
        self.lsn_of("select pg_current_wal_insert_lsn()")
    }

    fn lsn_of(&self, sql: &str) -> u64 {
        self.pg.value(sql).parse::<Lsn>().expect("an LSN").0
    }

    /// Waits until a source has confirmed everything committed so far.
    #[track_caller]
    pub fn wait_confirmed_of(&self, daemon: &mut Daemon, key: &str) {
        let end = self.insert_lsn();
        eventually(limit(), &format!("the confirmation of {key}"), || {
            daemon.assert_running();
            // The server speaks of log that nobody captures only when there is more of it.
            self.pg.sql("select pg_logical_emit_message(false, 'filler', '')");
            when(self.confirmed_of(key) >= end)
        });
    }
}

/// Sends an order with a JSON body: status code and body.
pub fn order_json(stage: &Stage, path: &str, body: &str) -> (u16, String) {
    let limit = Duration::from_secs(30);
    let mut socket = TcpStream::connect(stage.home.admin()).expect("the admin interface");
    socket.set_read_timeout(Some(limit)).expect("a socket option");
    let length = body.len();
    write!(
        socket,
        "POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ADMIN_TOKEN}\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n{body}"
    )
    .expect("written");
    let mut answer = String::new();
    socket.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    (code.expect("a code"), body.to_owned())
}

/// One of the destinations of a source as the admin interface shows them.
pub fn destination(daemon: &Daemon, key: &str, topic: &str) -> Option<Value> {
    let (_, body) = daemon.get(&format!("/connectors/{key}/destinations")).ok()?;
    let rows: Value = serde_json::from_str(&body).ok()?;
    rows.as_array()?.iter().find(|row| row["topic"] == topic).cloned()
}

/// One source as status shows it.
pub fn named(daemon: &Daemon, key: &str) -> Option<Value> {
    let status = daemon.status()?;
    status["sources"].as_array()?.iter().find(|source| source["key"] == key).cloned()
}

/// Sends to one topic.
pub fn sends_to(stage: &Stage, topic: &str) -> Scope {
    Scope::sends().topic(&stage.stream, topic)
}

/// Topics and partitions of the sends that met a fault, in order of arrival.
pub fn sends_met(control: &Control) -> Vec<(String, u32, u64)> {
    let met = control.applied_faults().into_iter().filter(|fault| fault.op == Op::Send);
    met.filter_map(|fault| fault.place.map(|(_, topic, part)| (topic, part, fault.at))).collect()
}

/// `data.id` of each message; of a DELETE, that of the old row.
pub fn row_ids(got: &[Got]) -> Vec<i64> {
    let id = |message: &Got| {
        let row = match &message.payload["data"] {
            Value::Null => &message.payload["old_data"],
            data => data,
        };
        row["id"].as_i64().unwrap_or_else(|| panic!("no id: {}", message.payload))
    };
    got.iter().map(id).collect()
}

/// The first of each message id, in order: what at-least-once may have repeated is gone. Repeats
/// must be the same message.
pub fn once(got: Vec<Got>) -> Vec<Got> {
    let mut kept: Vec<Got> = Vec::new();
    for message in got {
        match kept.iter().find(|other| other.id == message.id) {
            Some(other) => assert_eq!(*other, message, "one id, two messages"),
            None => kept.push(message),
        }
    }
    kept
}
