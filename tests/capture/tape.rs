//! A stage and what came out of it, read on and on.

use serde_json::Value;

use super::stage::{Got, Stage};
use super::support::{Daemon, Postgres};

/// A stage whose rows all arrive in one partition, and how many were looked at.
pub struct Tape {
    pub stage: Stage,
    pub daemon: Daemon,
    seen: usize,
}

impl Tape {
    pub fn new(sql: &str, tables: &[&str]) -> Tape {
        Tape::with(sql, tables, "")
    }

    /// With more keys of the source.
    pub fn with(sql: &str, tables: &[&str], more: &str) -> Tape {
        Tape::on(Postgres::start(), sql, tables, more)
    }

    /// The same on this server.
    pub fn on(pg: Postgres, sql: &str, tables: &[&str], more: &str) -> Tape {
        let source = format!("tables = {tables:?}\nstream = \"$stream\"\ntopic = \"all\"\n{more}");
        Tape::of(Stage::on(pg, sql, &source))
    }

    /// Of a stage whose source is bound to topic `all`.
    pub fn of(stage: Stage) -> Tape {
        let daemon = stage.streaming();
        Tape { stage, daemon, seen: 0 }
    }

    /// Runs the statements; the messages they lead to, which must be that many.
    #[track_caller]
    pub fn play(&mut self, sql: &str, count: usize) -> Vec<Got> {
        self.stage.pg.sql(sql);
        self.next(count)
    }

    #[track_caller]
    pub fn next(&mut self, count: usize) -> Vec<Got> {
        let got = self.stage.wait_for(&mut self.daemon, "all", self.seen + count);
        let new = got[self.seen..].to_vec();
        self.seen = got.len();
        let shown: Vec<String> =
            new.iter().map(|got| String::from_utf8_lossy(&got.raw).into_owned()).collect();
        assert_eq!(new.len(), count, "{shown:#?}");
        new
    }

    /// Nothing more came, and nothing is left behind.
    #[track_caller]
    pub fn end(mut self) -> Stage {
        self.stage.wait_confirmed(&mut self.daemon);
        assert_eq!(self.stage.got("all").len(), self.seen, "a message nobody expected");
        self.daemon.stop();
        self.stage
    }
}

/// Operations, in order.
pub fn ops(got: &[Got]) -> String {
    got.iter().map(|got| got.text("op")).collect()
}

pub fn data(got: &Got) -> &Value {
    &got.payload["data"]
}

pub fn tables(got: &[Got]) -> Vec<&str> {
    got.iter().map(|got| got.text("table")).collect()
}
