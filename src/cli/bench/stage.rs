//! What a run happens on: the server with its backlog, a session that stays open for the whole
//! benchmark, and for each run of ours a fresh destination, directory and process.
#![allow(clippy::disallowed_methods)] // files

use std::fs;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::capture::Sink;
use super::destination::Destination;
use super::error::BenchError;
use super::postgres::{Cluster, DATABASE, USER};
use super::procfs;
use super::session::Session;
use super::wait::Patience;
use super::workload::{DESTINATIONS, Workload};
use crate::cli::demo::process::{Ended, Process, Signal};
use crate::cli::scratch::Scratch;
use crate::loopback::{Acked, Arrival};

/// An orderly stop is bounded by itself; this is above its bound.
const STOP_LIMIT: Duration = Duration::from_secs(45);
const LINES_SHOWN: usize = 15;

/// The server and what is in its log.
pub struct Stage {
    pub cluster: Cluster,
    pub session: Session,
    pub patience: Patience,
    pub rows: u64,
    pub sink: Sink,
    /// Where the log ends behind the backlog.
    pub end: String,
}

/// `slots`: names to create before the backlog is written, all at one point.
pub struct Build<'a> {
    pub bin: PathBuf,
    pub workload: Workload,
    pub rows: u64,
    pub sink: Sink,
    pub slots: &'a [String],
    /// Slots to come.
    pub more_slots: usize,
    pub patience: Patience,
}

impl Build<'_> {
    /// Starts the server and writes the backlog.
    pub fn stage(self) -> Result<Stage, BenchError> {
        let slots = self.slots.len() + self.more_slots;
        let cluster = Cluster::start(self.bin, &settings(slots))?;
        let mut session = Session::connect(cluster.address(), cluster.login(false))?;
        for statement in self.workload.prepare(self.rows) {
            session.query(&statement)?;
        }
        for slot in self.slots {
            self.patience.go_on("the slots")?;
            create_slot(&mut session, slot)?;
        }
        for statement in self.workload.write(self.rows) {
            self.patience.go_on("the backlog")?;
            session.query(&statement)?;
        }
        let end = session.value("SELECT pg_current_wal_insert_lsn()")?;
        // Commits did not wait for the disk; the server sends only what is there. And nothing is
        // left to write while it sends.
        session.query("CHECKPOINT")?;
        let Build { rows, sink, patience, .. } = self;
        Ok(Stage { cluster, session, patience, rows, sink, end })
    }
}

/// A slot that begins here.
pub fn create_slot(session: &mut Session, slot: &str) -> Result<(), BenchError> {
    let sql = format!("SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')");
    session.query(&sql)?;
    Ok(())
}

/// Nothing runs besides what is measured, and nothing waits for a disk.
fn settings(slots: usize) -> Vec<(&'static str, String)> {
    let own = |value: &str| value.to_owned();
    vec![
        ("listen_addresses", own("127.0.0.1")),
        ("unix_socket_directories", own("")),
        ("wal_level", own("logical")),
        ("max_replication_slots", slots.to_string()),
        ("max_wal_senders", own("10")),
        ("shared_buffers", own("256MB")),
        ("fsync", own("off")),
        ("full_page_writes", own("off")),
        ("autovacuum", own("off")),
        ("checkpoint_timeout", own("1d")),
        ("max_wal_size", own("64GB")),
        ("jit", own("off")),
        ("lc_messages", own("C")),
        ("timezone", own("UTC")),
        ("log_timezone", own("UTC")),
        ("log_line_prefix", own("%n ")),
    ]
}

impl Stage {
    /// Runs `work` and tells how much processor time the server's sessions took for it: those
    /// that began and ended with it.
    pub fn server_cpu<T>(
        &self,
        work: impl FnOnce() -> Result<T, BenchError>,
    ) -> Result<(T, Duration), BenchError> {
        let server = self.cluster.id();
        let (others, before) = (procfs::children(server), procfs::reaped_cpu(server));
        let made = work()?;
        let what = "the server's sessions to end";
        self.patience.for_that(what, || Ok(procfs::children(server) <= others))?;
        Ok((made, procfs::reaped_cpu(server).saturating_sub(before)))
    }

    /// When the server began to decode for this slot, microseconds since the Unix epoch.
    pub fn decoding_began(&self, slot: &str) -> Result<u64, BenchError> {
        self.cluster.decoding_began(slot).ok_or_else(|| BenchError::NoStart(slot.to_owned()))
    }
}

/// A daemon that reads one slot, and where it sends.
pub struct Daemon {
    destination: Destination,
    process: Process,
    // Its files go after it.
    _dir: Scratch,
}

impl Daemon {
    /// Starts both. `each`: the way of each message is wanted.
    pub fn start(
        cluster: &Cluster,
        slot: &str,
        sink: Sink,
        each: bool,
    ) -> Result<Daemon, BenchError> {
        let dir = Scratch::create("bench-run").map_err(BenchError::machine("a directory"))?;
        let destination = Destination::open(sink, dir.path(), each)?;
        let file = dir.path().join("tidegate.toml");
        let text = config(cluster, destination.address(), slot, &dir.state_dir());
        write_private(&file, &text).map_err(BenchError::machine("a configuration file"))?;
        let start = || {
            let mut command = Command::new(std::env::current_exe()?);
            command.arg("run").arg("--config").arg(file);
            destination.arguments(&mut command, each);
            Process::spawn(command)
        };
        let process = start().map_err(BenchError::machine("tidegate run"))?;
        Ok(Daemon { destination, process, _dir: dir })
    }

    /// All that was acked, and the way of each message if that was wanted: after the stop.
    pub fn outcome(&self) -> Result<(Acked, Vec<Arrival>), BenchError> {
        self.destination.outcome()
    }

    /// Waits while it runs.
    pub fn until(
        &mut self,
        patience: &Patience,
        what: &str,
        mut done: impl FnMut() -> Result<bool, BenchError>,
    ) -> Result<(), BenchError> {
        patience.until(what, "tidegate run", &mut self.process, |_| done())
    }

    /// Waits while it runs, until so many messages are acked.
    pub fn until_acked(
        &mut self,
        patience: &Patience,
        count: u64,
        what: &str,
    ) -> Result<(), BenchError> {
        let what = format!("{count} acked {what}");
        let Daemon { destination, process, .. } = self;
        let mut seen = 0;
        let waited = patience.until(&what, "tidegate run", process, |_| {
            seen = destination.acked()?.messages;
            Ok(seen >= count)
        });
        waited.map_err(|error| match error {
            BenchError::TimeLimit { what, seconds, log } => {
                let what = format!("{what} ({seen} came)");
                BenchError::TimeLimit { what, seconds, log }
            }
            error => error,
        })
    }

    /// Its largest memory so far, bytes.
    pub fn peak_memory(&self) -> u64 {
        procfs::peak_memory(self.process.id())
    }

    /// Ends it in order.
    pub fn stop(&mut self) -> Result<Ended, BenchError> {
        self.process.signal(Signal::Term);
        let ended = self.process.wait(STOP_LIMIT).unwrap_or_else(|| self.process.kill());
        if ended.status.success() {
            return Ok(ended);
        }
        self.process.kill();
        Err(BenchError::Ended {
            who: "tidegate run",
            end: ended.status,
            what: "an orderly stop".to_owned(),
            log: self.process.last_lines(LINES_SHOWN),
        })
    }
}

/// The configuration of a run: JSON records, routed by two columns, an allowlist.
fn config(cluster: &Cluster, sink: SocketAddr, slot: &str, state_dir: &Path) -> String {
    let server = cluster.address();
    let connection = format!("postgresql://{USER}@{server}/{DATABASE}?sslmode=disable");
    text(&connection, cluster.password(), sink, slot, state_dir)
}

fn text(
    connection: &str,
    password: &str,
    sink: SocketAddr,
    slot: &str,
    state_dir: &Path,
) -> String {
    let state_dir = toml::Value::from(state_dir.display().to_string());
    let entries = DESTINATIONS
        .map(|(stream, topic)| format!("{{ stream = \"{stream}\", topic = \"{topic}\" }}"));
    let (stream, topic) = DESTINATIONS[0];
    format!(
        "[daemon]\nstate_dir = {state_dir}\nshards = 1\nlog_format = \"text\"\n\n\
         [clusters.sink]\naddress = \"{sink}\"\nusername = \"iggy\"\npassword = \"iggy\"\n\n\
         [sources.bench]\nkind = \"postgres_cdc\"\nto = \"sink\"\nconnection = \"{connection}\"\n\
         password = \"{password}\"\nslot = \"{slot}\"\npublication = \"tidegate_bench\"\n\
         tables = [\"public.events\"]\nenvelope = \"record\"\n\n\
         [sources.bench.routing]\ntopic_column = \"event_type\"\nstream_column = \"tenant\"\n\
         default_stream = \"{stream}\"\ndefault_topic = \"{topic}\"\n\n\
         [sources.bench.routing.admission]\nmode = \"allowlist\"\nallowlist = [ {} ]\n",
        entries.join(", "),
    )
}

/// It holds a password.
pub fn write_private(file: &Path, text: &str) -> io::Result<()> {
    let mut options = fs::File::options();
    let mut file = options.write(true).create_new(true).mode(0o600).open(file)?;
    file.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{self, AdmissionMode, SystemSecrets};

    #[test]
    fn the_configuration_is_one_the_daemon_accepts_without_a_warning() {
        let sink = "127.0.0.1:8090".parse().expect("an address");
        let connection = "postgresql://postgres@127.0.0.1:5432/postgres?sslmode=disable";
        let text = text(connection, "secret", sink, "bench_1", Path::new("/tmp"));
        let plan = config::parse(&text, "tidegate.toml", &SystemSecrets).expect("a valid plan");
        let [capture] = plan.captures.as_slice() else { panic!("one capture") };
        assert_eq!(capture.slot, "bench_1");
        assert_eq!(capture.routing.literals().len(), DESTINATIONS.len());
        assert_eq!(capture.routing.admission.mode, AdmissionMode::Allowlist);
        assert!(plan.warnings.is_empty() && capture.postgres.warnings.is_empty());
    }
}
