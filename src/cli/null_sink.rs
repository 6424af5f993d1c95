//! The destination of `tidegate bench capture --sink null`: a broker in the daemon's own shard
//! thread that acks every send and keeps nothing ([`crate::loopback::Inside`]).
//!
//! Everything sent there is lost, and Postgres is told that it arrived. So it is reached by an
//! argument that no help shows and no configuration has, only for captures whose slots are named
//! as the benchmark names its own, and only with a state directory that nothing was ever saved in.
//! What was acked is in a file: twice a second the counts, and after the orderly stop everything.
#![allow(clippy::disallowed_methods)] // files

use std::cell::Cell;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use clap::Args;
use serde_json::{Value, json};

use crate::config::{ClusterPlan, Credentials, Plan};
use crate::iggy_wire::session::Outgoing;
use crate::loopback::{Acked, Arrival, Inside, Tally};
use crate::shard::driver::files::lock_path;
use crate::shard::driver::inside::{Broker, MakeBroker};

/// How the names of slots begin whose changes may be thrown away.
pub const SLOTS: &str = "bench_";

/// Hidden arguments of `tidegate run`.
#[derive(Debug, Default, Args)]
pub struct NullSinkArgs {
    /// Deliver nothing, ack everything, and say in this new file what that was
    #[arg(long, hide = true, value_name = "FILE")]
    pub bench_null_sink: Option<PathBuf>,
    /// Say also when each message was made and acked
    #[arg(long, hide = true, requires = "bench_null_sink")]
    pub bench_each_message: bool,
}

/// What was acked so far, and the file that says so.
#[derive(Clone, Debug)]
pub struct NullSink {
    file: Rc<Path>,
    tally: Tally,
    shown: Rc<Cell<u64>>,
}

/// What the file says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Messages, sends and the time of the last ack.
    pub acked: Acked,
    /// Way of each message, if asked for; only after the orderly stop.
    pub arrivals: Vec<Arrival>,
}

impl NullSink {
    /// `None` without the argument, an error where it must not be used.
    pub fn admit(args: &NullSinkArgs, plan: &Plan) -> Result<Option<NullSink>, String> {
        let Some(file) = &args.bench_null_sink else { return Ok(None) };
        may_lose(plan).map_err(|why| {
            format!(
                "--bench-null-sink throws every message away and tells Postgres that it arrived; \
                 {why}. It is for `tidegate bench capture --sink null`; leave it out"
            )
        })?;
        let unwritable = |error| format!("--bench-null-sink {}: {error}", file.display());
        fs::File::create_new(file).map_err(unwritable)?;
        let tally = Tally::default();
        tally.watch(args.bench_each_message);
        let sink =
            NullSink { file: file.as_path().into(), tally, shown: Rc::new(Cell::new(u64::MAX)) };
        sink.show();
        tracing::warn!(
            "NOTHING IS DELIVERED: --bench-null-sink acks every message and throws it away"
        );
        Ok(Some(sink))
    }

    /// What makes the broker, in each thread that needs one.
    pub fn maker(&self) -> MakeBroker {
        let tally = self.tally.clone();
        Arc::new(move |cluster| Box::new(Inside::new(user(cluster), tally.clone())))
    }

    /// Brings the counts in the file up to date.
    pub fn show(&self) {
        let acked = self.tally.acked();
        if self.shown.replace(acked.messages) != acked.messages
            && let Err(error) = self.write(&Report { acked, arrivals: Vec::new() })
        {
            tracing::warn!(file = %self.file.display(), %error, "no progress can be shown");
        }
    }

    /// Writes everything, after the last shard has ended.
    pub fn finish(self) -> Result<(), String> {
        let report = Report { acked: self.tally.acked(), arrivals: self.tally.take() };
        tracing::warn!(messages = report.acked.messages, "nothing was delivered");
        self.write(&report).map_err(|error| format!("{}: {error}", self.file.display()))
    }

    /// A reader finds the old content or the new one.
    fn write(&self, report: &Report) -> io::Result<()> {
        let new = self.file.with_extension("new");
        fs::write(&new, report.json().to_string())?;
        fs::rename(&new, &self.file)
    }
}

impl Report {
    /// From a file that a [`NullSink`] writes; nothing acked where there is none yet.
    pub fn read(file: &Path) -> io::Result<Report> {
        let text = match fs::read_to_string(file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Report::default()),
            text => text?,
        };
        match text.is_empty() {
            true => Ok(Report::default()),
            false => Report::parse(&text).ok_or_else(|| io::ErrorKind::InvalidData.into()),
        }
    }

    fn json(&self) -> Value {
        let Acked { messages, sends, last } = self.acked;
        let ways: Vec<[u64; 2]> = self.arrivals.iter().map(|way| [way.origin, way.acked]).collect();
        json!({ "messages": messages, "sends": sends, "last_ack_us": last, "ways_us": ways })
    }

    fn parse(text: &str) -> Option<Report> {
        let value: Value = serde_json::from_str(text).ok()?;
        let number = |key: &str| value[key].as_u64();
        let acked = Acked {
            messages: number("messages")?,
            sends: number("sends")?,
            last: number("last_ack_us")?,
        };
        let way = |way: &Value| Some(Arrival { origin: way[0].as_u64()?, acked: way[1].as_u64()? });
        let arrivals = value["ways_us"].as_array()?.iter().map(way).collect::<Option<_>>()?;
        Some(Report { acked, arrivals })
    }
}

impl Broker for Inside {
    fn connect(&mut self) -> u64 {
        Inside::connect(self)
    }

    fn exchange(&mut self, connection: u64, request: &Outgoing) -> Option<Vec<Bytes>> {
        Inside::exchange(self, connection, request)
    }

    fn disconnect(&mut self, connection: u64) {
        Inside::disconnect(self, connection);
    }
}

/// Whether everything this plan captures may be lost; else why not.
fn may_lose(plan: &Plan) -> Result<(), String> {
    if let Some(source) = plan.sources.first() {
        return Err(format!("source {:?} is a mirror, and only captures are measured", source.key));
    }
    if plan.captures.is_empty() {
        return Err("there is no capture to measure".to_owned());
    }
    if let Some(capture) = plan.captures.iter().find(|capture| !capture.slot.starts_with(SLOTS)) {
        let (key, slot) = (&capture.key, &capture.slot);
        return Err(format!(
            "slot {slot:?} of source {key:?} is not named {SLOTS}…, its changes may be wanted"
        ));
    }
    let dir = &plan.daemon.state_dir;
    let lock = lock_path(dir);
    let unreadable = |error| format!("state_dir {} cannot be listed: {error}", dir.display());
    for entry in fs::read_dir(dir).map_err(unreadable)? {
        let found = entry.map_err(unreadable)?.path();
        if found != lock {
            let found = found.display();
            return Err(format!("there is {found}, and only a fresh state_dir may be used"));
        }
    }
    Ok(())
}

/// Who logs in there is whoever the configuration says.
fn user(cluster: &ClusterPlan) -> (String, String) {
    match &cluster.credentials {
        Credentials::Password { username, password } => {
            (username.clone(), password.expose().to_owned())
        }
        Credentials::Token(_) => ("iggy".to_owned(), "iggy".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read_as_it_was_written() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("report");
        assert_eq!(Report::read(&file).expect("nothing yet"), Report::default());
        fs::write(&file, "").expect("written");
        assert_eq!(Report::read(&file).expect("nothing yet"), Report::default());
        let arrivals = vec![Arrival { origin: 5, acked: 7 }, Arrival { origin: 6, acked: 9 }];
        let report = Report { acked: Acked { messages: 3, sends: 2, last: 9 }, arrivals };
        let sink = NullSink {
            file: file.as_path().into(),
            tally: Tally::default(),
            shown: Rc::new(Cell::new(0)),
        };
        sink.write(&report).expect("written");
        assert_eq!(Report::read(&file).expect("a report"), report);
        fs::write(&file, "{\"messages\": 1}").expect("written");
        assert!(Report::read(&file).is_err());
    }
}
