//! What copies: `tidegate run`, or a peer, each in a process of its own, so that its processor
//! time with all its threads is nobody else's.
#![allow(clippy::disallowed_methods)] // files and processes

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::super::error::BenchError;
use super::super::procfs;
use super::super::stage::write_private;
use super::super::wait::Patience;
use super::brokers::{Destination, Upstream};
use super::copy::{DOWN, UP};
use super::{Setting, Shape};
use crate::cli::demo::process::{Ended, Process, Signal};
use crate::cli::scratch::Scratch;

/// An orderly stop is bounded by itself; this is above its bound.
const STOP_LIMIT: Duration = Duration::from_secs(45);
const LINES_SHOWN: usize = 15;
/// The example that is the SDK's side.
const SDK_PROGRAM: &str = "sdk_relay";

/// Who copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// The daemon.
    Ours,
    /// The same I/O and nothing else.
    Copy,
    /// The official SDK in a loop.
    Sdk,
}

impl Who {
    /// In texts.
    pub fn name(self) -> &'static str {
        match self {
            Who::Ours => "tidegate",
            Who::Copy => "copy",
            Who::Sdk => "sdk",
        }
    }
}

/// A running one.
pub struct Side {
    who: Who,
    process: Process,
    // Its files go after it.
    _dir: Scratch,
}

impl Side {
    /// Starts it. What it needs is in `setting`.
    pub fn start(
        who: Who,
        upstream: &Upstream,
        destination: &Destination,
        setting: &Setting,
    ) -> Result<Side, BenchError> {
        let dir = Scratch::create("bench-run").map_err(BenchError::machine("a directory"))?;
        let command = match who {
            Who::Ours => {
                let file = dir.path().join("tidegate.toml");
                let text = config(upstream, destination, setting, &dir.state_dir());
                write_private(&file, &text).map_err(BenchError::machine("a configuration file"))?;
                let mut command = itself()?;
                command.arg("run").arg("--config").arg(file);
                command
            }
            Who::Copy => {
                let mut command = itself()?;
                command.args(["bench", "copy"]);
                peer(command, upstream, destination, setting)
            }
            Who::Sdk => peer(Command::new(sdk_program()?), upstream, destination, setting),
        };
        let process = Process::spawn(command).map_err(BenchError::machine(who.name()))?;
        Ok(Side { who, process, _dir: dir })
    }

    /// Waits while it runs.
    pub fn until(
        &mut self,
        patience: &Patience,
        what: &str,
        mut done: impl FnMut() -> Result<bool, BenchError>,
    ) -> Result<(), BenchError> {
        patience.until(what, self.who.name(), &mut self.process, |_| done())
    }

    /// Waits for so long while it runs; how long that was.
    pub fn rest(&mut self, patience: &Patience, time: Duration) -> Result<Duration, BenchError> {
        let begun = Instant::now();
        self.until(patience, "the time to be over", || Ok(begun.elapsed() >= time))?;
        Ok(begun.elapsed())
    }

    /// Its largest memory so far, bytes.
    pub fn peak_memory(&self) -> u64 {
        procfs::peak_memory(self.process.id())
    }

    /// Its processor time so far, in steps of 10 ms.
    pub fn cpu_so_far(&self) -> Duration {
        self.process.cpu_so_far()
    }

    /// Ends it: the daemon in order, a peer at once.
    pub fn stop(mut self) -> Result<Ended, BenchError> {
        if self.who != Who::Ours {
            return Ok(self.process.kill());
        }
        self.process.signal(Signal::Term);
        let ended = self.process.wait(STOP_LIMIT).unwrap_or_else(|| self.process.kill());
        if ended.status.success() {
            return Ok(ended);
        }
        self.process.kill();
        Err(BenchError::Ended {
            who: self.who.name(),
            end: ended.status,
            what: "an orderly stop".to_owned(),
            log: self.process.last_lines(LINES_SHOWN),
        })
    }
}

fn itself() -> Result<Command, BenchError> {
    Ok(Command::new(std::env::current_exe().map_err(BenchError::machine("this program"))?))
}

/// Beside this program, or where cargo puts examples.
fn sdk_program() -> Result<PathBuf, BenchError> {
    let own = std::env::current_exe().map_err(BenchError::machine("this program"))?;
    let dir = own.parent().unwrap_or(Path::new("."));
    let places = [dir.to_owned(), dir.join("examples")];
    let found = places.iter().map(|place| place.join(SDK_PROGRAM)).find(|path| path.is_file());
    found.ok_or_else(|| BenchError::NoPeer {
        looked: places.map(|place| place.display().to_string()).join(" or "),
        flags: if cfg!(debug_assertions) { "" } else { "--release " },
    })
}

fn peer(
    mut command: Command,
    upstream: &Upstream,
    destination: &Destination,
    setting: &Setting,
) -> Command {
    let Shape { size, record, partitions } = setting.shape;
    let shards = setting.shards;
    for (name, value) in [
        ("--partitions", u64::from(partitions)),
        ("--shards", u64::from(shards)),
        ("--size", u64::from(size)),
        ("--record", u64::from(record)),
        ("--max-batch-bytes", setting.max_batch_bytes),
    ] {
        command.arg(name).arg(value.to_string());
    }
    command.args(["--stream", upstream.stream(), "--topic", destination.topic()]);
    command.env(UP, upstream.endpoint().shown());
    command.env(DOWN, destination.endpoint().shown());
    command
}

fn config(
    upstream: &Upstream,
    destination: &Destination,
    setting: &Setting,
    state_dir: &Path,
) -> String {
    let text = |value: &str| toml::Value::from(value).to_string();
    let cluster = |key: &str, endpoint: super::super::client::Endpoint| {
        let (user, password) = (text(&endpoint.username), text(&endpoint.password));
        let address = text(&endpoint.address);
        format!(
            "[clusters.{key}]\naddress = {address}\nusername = {user}\npassword = {password}\n\n"
        )
    };
    let mut config = format!(
        "[daemon]\nstate_dir = {}\nshards = {}\nlog_format = \"text\"\n\
         max_buffered_bytes = \"{}\"\n\n",
        text(&state_dir.display().to_string()),
        setting.shards,
        setting.buffers(),
    );
    config += &cluster("upstream", upstream.endpoint());
    config += &cluster("downstream", destination.endpoint());
    config += &format!(
        "[sources.bench]\nkind = \"iggy\"\nfrom = \"upstream\"\nto = \"downstream\"\n\
         verify_checksums = {}\nmax_batch_bytes = \"{}\"\n\
         include = [\n",
        setting.verify, setting.max_batch_bytes,
    );
    let stream = text(upstream.stream());
    for (from, to) in upstream.pairs(destination) {
        let (from, to) = (text(&from), text(&to));
        config += &format!("  {{ stream = {stream}, topic = {from}, to_topic = {to} }},\n");
    }
    config + "]\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{self, SystemSecrets};

    #[test]
    fn the_configuration_is_one_the_daemon_accepts() {
        for partitions in [1, 1_024] {
            let setting = Setting {
                shape: Shape { size: 10, record: 1, partitions },
                shards: 2,
                verify: false,
                max_batch_bytes: 1 << 20,
            };
            let upstream = Upstream::open(setting.shape.clone(), None, Duration::ZERO).unwrap();
            let destination = upstream.destination().unwrap();
            let text = config(&upstream, &destination, &setting, Path::new("/tmp"));
            let plan = config::parse(&text, "tidegate.toml", &SystemSecrets).unwrap();
            assert_eq!(plan.sources.len(), 1);
            assert!(!plan.sources[0].verify_checksums && plan.warnings.is_empty());
        }
    }
}
