//! What the demonstration plays on: two brokers in this process, a temporary directory with a
//! configuration, and the writers.
#![allow(clippy::disallowed_methods)] // files, ports, threads and the clock

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use super::compare::{Report, Seen, compare};
use super::process::Process;
use super::watch::{DemoError, Watch};
use super::workload::Workload;
use crate::cli::scratch::{Scratch, free_port};
use crate::loopback::ControlError;
use crate::loopback::{Control, Server, ServerOptions};

/// Stream of the mirrored topic.
pub const STREAM: &str = "demo";
/// The mirrored topic.
pub const TOPIC: &str = "events";

/// Built-in brokers append nothing once a connection is gone, so a short wait is enough; the
/// default for real ones is 2 s.
const SETTLE: &str = "200ms";
/// Messages of a batch, at most.
const BACKLOG_BATCH: u64 = 1_000;
const LIVE_BATCH: u64 = 200;
/// The admin interface answers from memory.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);
/// The live writer is through after this time, even if nothing moves.
const LIVE_TIME: Duration = Duration::from_secs(5);
/// Parts of the live messages, in tenths, that may be written before the first kill, before the
/// second, and after both: each kill finds messages to be sent.
const LIVE_CAP: [u64; 3] = [5, 9, 10];

/// Brokers, files and messages.
pub struct Stage {
    upstream: Server,
    downstream: Server,
    dir: Scratch,
    admin: SocketAddr,
    workload: Workload,
    totals: Vec<u64>,
}

/// The second writer; ends with its handle.
pub struct LiveWriter {
    thread: Option<JoinHandle<Result<(), ControlError>>>,
    kills: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
}

impl Stage {
    /// Starts the brokers and creates the upstream topic; the mirror creates the other one.
    pub fn build(messages: u64, partitions: u32) -> Result<Stage, DemoError> {
        let broker = || {
            Server::start(ServerOptions::default())
                .map_err(|why| DemoError::Machine { what: "cannot start a broker", why })
        };
        let (upstream, downstream) = (broker()?, broker()?);
        upstream.control().create_topic(STREAM, TOPIC, partitions);
        let dir = Scratch::create("demo")
            .map_err(|why| DemoError::Machine { what: "cannot make a temporary directory", why })?;
        let admin = free_port().map_err(|why| DemoError::Machine { what: "no free port", why })?;
        let (width, count) = (u64::from(partitions), messages);
        let totals = (0..width).map(|p| count / width + u64::from(p < count % width)).collect();
        let workload = Workload::new(fastrand::u64(..));
        let stage = Stage { upstream, downstream, dir, admin, workload, totals };
        fs::write(stage.config_file(), stage.config())
            .map_err(|why| DemoError::Machine { what: "cannot write the configuration", why })?;
        Ok(stage)
    }

    /// Where the mirror's admin interface listens.
    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// The destination broker.
    pub fn downstream(&self) -> Control {
        self.downstream.control()
    }

    /// Writes what waits upstream before the mirror starts; how many messages.
    pub fn write_backlog(&self, watch: &Watch) -> Result<u64, DemoError> {
        let control = self.upstream.control();
        for (partition, total) in (0..).zip(&self.totals) {
            let mut at = 0;
            while at < backlog_of(*total) {
                watch.go_on("the backlog")?;
                let count = fastrand::u64(1..=BACKLOG_BATCH).min(backlog_of(*total) - at);
                append(&control, &self.workload, partition, at, count)?;
                at += count;
            }
        }
        Ok(self.totals.iter().map(|total| backlog_of(*total)).sum())
    }

    /// Starts the writer of the rest: it keeps ahead of the mirror, and `killed` lets it go on.
    pub fn write_live(&self) -> LiveWriter {
        let (kills, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let live = Live {
            upstream: self.upstream.control(),
            downstream: self.downstream.control(),
            workload: self.workload.clone(),
            totals: self.totals.clone(),
            kills: Arc::clone(&kills),
            stop: Arc::clone(&stop),
        };
        LiveWriter { thread: Some(std::thread::spawn(move || live.write())), kills, stop }
    }

    /// Starts a mirror.
    pub fn start_mirror(&self) -> Result<Process, DemoError> {
        let start = || {
            let mut command = Command::new(std::env::current_exe()?);
            command.arg("run").arg("--config").arg(self.config_file());
            Process::spawn(command)
        };
        start().map_err(|why| DemoError::Machine { what: "cannot start the mirror", why })
    }

    /// Whether the mirror's admin interface says so.
    pub fn is_mirror_ready(&self) -> bool {
        ask_readiness(self.admin).unwrap_or(false)
    }

    /// Messages the destination holds.
    pub fn copied(&self) -> u64 {
        copied(&self.downstream.control(), self.totals.len())
    }

    /// Compares both sides, partition by partition; bytes of payload and headers come along.
    pub fn compare(&self) -> Result<(Report, u64), DemoError> {
        let (mut sum, mut bytes) = (Report::default(), 0);
        for partition in (0..).zip(&self.totals).map(|(partition, _)| partition) {
            let (upstream, size) = read(&self.upstream.control(), partition)?;
            let (downstream, _) = read(&self.downstream.control(), partition)?;
            sum.add(compare(&upstream, &downstream));
            bytes += size;
        }
        Ok((sum, bytes))
    }

    fn config_file(&self) -> PathBuf {
        self.dir.path().join("tidegate.toml")
    }

    fn config(&self) -> String {
        let state_dir = toml::Value::from(self.dir.state_dir().display().to_string());
        let (from, to) = (self.upstream.address(), self.downstream.address());
        let admin = self.admin;
        format!(
            "[daemon]\nstate_dir = {state_dir}\nlog_format = \"text\"\n\n\
             [admin]\nlisten = \"{admin}\"\n\n\
             [clusters.upstream]\naddress = \"{from}\"\nusername = \"iggy\"\n\
             password = \"iggy\"\n\n\
             [clusters.downstream]\naddress = \"{to}\"\nusername = \"iggy\"\n\
             password = \"iggy\"\nsettle = \"{SETTLE}\"\n\n\
             [sources.demo]\nkind = \"iggy\"\nfrom = \"upstream\"\nto = \"downstream\"\n\
             include = [ {{ stream = \"{STREAM}\", topic = \"{TOPIC}\" }} ]\n\
             retry_interval = \"100ms\"\n"
        )
    }
}

impl LiveWriter {
    /// Another kill is done: more may be written.
    pub fn killed(&self) {
        self.kills.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether everything is written.
    pub fn is_done(&mut self) -> Result<bool, DemoError> {
        if self.thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return Ok(false);
        }
        match self.thread.take().map(JoinHandle::join) {
            None | Some(Ok(Ok(()))) => Ok(true),
            Some(Ok(Err(error))) => Err(error.into()),
            Some(Err(panic)) => std::panic::resume_unwind(panic),
        }
    }
}

impl Drop for LiveWriter {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of that thread has been printed; there is nothing to add.
            let _ = thread.join();
        }
    }
}

struct Live {
    upstream: Control,
    downstream: Control,
    workload: Workload,
    totals: Vec<u64>,
    kills: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
}

impl Live {
    fn write(&self) -> Result<(), ControlError> {
        let begun = Instant::now();
        let all: u64 = self.totals.iter().sum();
        let mut next: Vec<u64> = self.totals.iter().map(|total| backlog_of(*total)).collect();
        let live = all - next.iter().sum::<u64>();
        let (mut written, mut partition) = (0, 0);
        while written < live && !self.stop.load(Ordering::Relaxed) {
            let copied = copied(&self.downstream, self.totals.len());
            let kills = self.kills.load(Ordering::Relaxed);
            let target = target(live, copied as f64 / all as f64, begun.elapsed(), kills);
            if written >= target {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            partition = (partition + 1) % self.totals.len();
            let left = (self.totals[partition] - next[partition]).min(target - written);
            if left > 0 {
                let count = fastrand::u64(1..=LIVE_BATCH).min(left);
                let id = u32::try_from(partition).unwrap_or(u32::MAX);
                append(&self.upstream, &self.workload, id, next[partition], count)?;
                next[partition] += count;
                written += count;
            }
        }
        Ok(())
    }
}

/// How many of `live` messages should be written by now: all when four fifths of everything are
/// copied, or when the time is up, but kept back until the kills are done.
fn target(live: u64, copied: f64, elapsed: Duration, kills: usize) -> u64 {
    let by_copy = copied / 0.8;
    let by_time = elapsed.as_secs_f64() / LIVE_TIME.as_secs_f64();
    let wanted = (live as f64 * by_copy.max(by_time)).ceil() as u64;
    let tenths = LIVE_CAP[kills.min(LIVE_CAP.len() - 1)];
    wanted.min((live * tenths).div_ceil(10))
}

/// Seven tenths wait before the mirror starts.
fn backlog_of(total: u64) -> u64 {
    total * 7 / 10
}

fn append(
    control: &Control,
    workload: &Workload,
    partition: u32,
    from: u64,
    count: u64,
) -> Result<(), ControlError> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let now = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
    let messages: Vec<_> =
        (from..from + count).map(|number| workload.message(partition, number, now)).collect();
    control.append(STREAM, TOPIC, partition, &messages).map(drop)
}

/// Zero as long as the topic does not exist.
fn copied(downstream: &Control, partitions: usize) -> u64 {
    let ids = 0..u32::try_from(partitions).unwrap_or(u32::MAX);
    ids.map(|id| downstream.end(STREAM, TOPIC, id).unwrap_or(0)).sum()
}

fn read(control: &Control, partition: u32) -> Result<(Vec<Seen>, u64), DemoError> {
    let messages = control.dump(STREAM, TOPIC, partition, 0, u32::MAX)?;
    let bytes = messages.iter().map(|m| (m.payload.len() + m.user_headers.len()) as u64).sum();
    let seen = messages
        .iter()
        .map(|m| Seen::new(m.offset, m.id, m.origin_timestamp, &m.payload, &m.user_headers));
    Ok((seen.collect(), bytes))
}

fn ask_readiness(admin: SocketAddr) -> io::Result<bool> {
    let mut socket = TcpStream::connect_timeout(&admin, ANSWER_LIMIT)?;
    socket.set_read_timeout(Some(ANSWER_LIMIT))?;
    write!(socket, "GET /readyz HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer)?;
    Ok(answer.split(' ').nth(1) == Some("200"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{self, SystemSecrets};

    #[test]
    fn the_configuration_is_one_the_mirror_accepts() {
        let stage = Stage::build(10, 3).expect("a stage");
        let text = stage.config();
        let plan = config::parse(&text, "tidegate.toml", &SystemSecrets).expect("a valid plan");
        assert_eq!(plan.sources.len(), 1);
        assert_eq!(plan.daemon.state_dir, stage.dir.state_dir());
        let dir = stage.dir.path().to_owned();
        assert!(dir.join("tidegate.toml").exists());
        drop(stage);
        assert!(!dir.exists(), "removed with its handle");
    }

    #[test]
    fn backlog_and_live_writer_write_every_message_once() {
        let stage = Stage::build(1_003, 4).expect("a stage");
        let watch = Watch::start(Duration::from_secs(60)).expect("a watch");
        let backlog = stage.write_backlog(&watch).expect("a backlog");
        assert_eq!(backlog, [251, 251, 251, 250].map(backlog_of).iter().sum::<u64>());
        let mut live = stage.write_live();
        live.killed();
        live.killed();
        while !live.is_done().expect("a writer") {
            std::thread::sleep(Duration::from_millis(5));
        }
        let control = stage.upstream.control();
        for (partition, total) in (0..).zip([251, 251, 251, 250]) {
            assert_eq!(control.end(STREAM, TOPIC, partition), Ok(total));
            let stored = control.dump(STREAM, TOPIC, partition, 0, u32::MAX).expect("a log");
            for (number, message) in (0u64..).zip(&stored) {
                assert_eq!(message.payload[..8], number.to_le_bytes());
            }
        }
    }

    #[test]
    fn the_live_writer_waits_for_kills_and_never_for_ever() {
        let second = Duration::from_secs(1);
        assert_eq!(target(100, 0.0, Duration::ZERO, 0), 0);
        assert_eq!(target(100, 0.4, Duration::ZERO, 2), 50);
        assert_eq!(target(100, 0.9, Duration::ZERO, 0), 50);
        assert_eq!(target(100, 0.0, second * 9, 1), 90);
        assert_eq!(target(100, 0.0, second * 9, 7), 100);
        assert_eq!(target(1, 0.0, second * 9, 0), 1);
    }
}
