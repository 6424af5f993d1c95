//! The real binary as a child process: its directory, its configuration, its status.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::{Deref, DerefMut};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tidegate::batch::TopicName;
use tidegate::cli::demo::process::{Ended, Process, Signal};

use super::cluster::Pair;
use super::{eventually, soak};

/// Log lines shown when a test fails.
const LINES_SHOWN: usize = 60;
/// Above the daemon's own bound on an orderly stop.
const STOP_LIMIT: Duration = Duration::from_secs(45);
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// Directory and admin port of a daemon; they outlive the process.
pub struct Home {
    dir: TempDir,
    state: PathBuf,
    admin: SocketAddr,
}

/// A configuration file under construction: one source `mirror` from `up` to `down`.
#[derive(Clone)]
pub struct Config {
    up: String,
    down: String,
    include: Vec<String>,
    keys: [Vec<(String, toml::Value)>; 4],
    more: String,
}

/// A running daemon, killed and reaped with its handle.
pub struct Daemon {
    process: Process,
    admin: SocketAddr,
}

impl Home {
    /// An empty directory.
    pub fn new() -> Home {
        let dir = tempfile::Builder::new().prefix("tidegate-test-").tempdir().expect("a directory");
        let state = dir.path().join("state");
        std::fs::create_dir(&state).expect("a state directory");
        // Somebody may take the port before the daemon does; the daemon then says so.
        let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        Home { dir, state, admin: port.expect("a free port") }
    }

    /// The same with state files somewhere else.
    pub fn with_state_dir(state: &Path) -> Home {
        Home { state: state.to_owned(), ..Home::new() }
    }

    /// Where test files may go.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The daemon's `state_dir`.
    pub fn state_dir(&self) -> PathBuf {
        self.state.clone()
    }

    /// The configuration file.
    pub fn config_file(&self) -> PathBuf {
        self.dir.path().join("tidegate.toml")
    }

    /// Where a daemon of this directory has its admin interface.
    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// Runs another subcommand to its end: exit code, standard output, standard error.
    pub fn run(&self, arguments: &[&str]) -> (i32, String, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        let output = command.args(arguments).output().expect("the binary");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let code = output.status.code().unwrap_or(-1);
        (code, text(&output.stdout), text(&output.stderr))
    }
}

/// What a test shows to change something.
pub const ADMIN_TOKEN: &str = "open sesame";

const DAEMON: usize = 0;
const UP: usize = 1;
const DOWN: usize = 2;
const SOURCE: usize = 3;

impl Config {
    /// A mirror between the two, with waits scaled down unless this is a soak run.
    pub fn new(pair: &Pair) -> Config {
        Config::between(pair.up.address(), pair.down.address())
    }

    /// The same by address, for proxies.
    pub fn between(up: impl ToString, down: impl ToString) -> Config {
        let (up, down) = (up.to_string(), down.to_string());
        let (include, keys, more) = (Vec::new(), Default::default(), String::new());
        let config = Config { up, down, include, keys, more };
        // A broker in this process may call itself anything; a real one may be a snapshot.
        let config = config.up("allow_untested_server", true).down("allow_untested_server", true);
        let config = config.daemon("log_level", "info,tidegate=debug");
        if soak() {
            return config;
        }
        config
            .up("request_timeout", "2s")
            .down("request_timeout", "2s")
            .down("settle", "400ms")
            .source("retry_interval", "50ms")
            .source("max_retry_interval", "500ms")
            .source("reset_grace", "2s")
            .source("state_interval", "50ms")
            .source("discovery_interval", "500ms")
    }

    /// These addresses of the destination in place of the one.
    pub fn down_addresses(mut self, addresses: &[String]) -> Config {
        self.down = addresses.join(",");
        self
    }

    /// Mirrors this topic to its namesake.
    pub fn topic(self, topic: &TopicName) -> Config {
        self.topic_to(topic, topic)
    }

    /// Mirrors one topic to another.
    pub fn topic_to(mut self, from: &TopicName, to: &TopicName) -> Config {
        self.include.push(format!(
            "{{ stream = {:?}, topic = {:?}, to_stream = {:?}, to_topic = {:?} }}",
            from.stream, from.topic, to.stream, to.topic
        ));
        self
    }

    /// A key of `[daemon]`.
    pub fn daemon(self, key: &str, value: impl Into<toml::Value>) -> Config {
        self.with(DAEMON, key, value.into())
    }

    /// A key of the upstream cluster.
    pub fn up(self, key: &str, value: impl Into<toml::Value>) -> Config {
        self.with(UP, key, value.into())
    }

    /// A key of the destination cluster.
    pub fn down(self, key: &str, value: impl Into<toml::Value>) -> Config {
        self.with(DOWN, key, value.into())
    }

    /// A key of the source.
    pub fn source(self, key: &str, value: impl Into<toml::Value>) -> Config {
        self.with(SOURCE, key, value.into())
    }

    /// One more source between the same clusters, with the other one's keys.
    pub fn second_source(mut self, key: &str, topic: &TopicName) -> Config {
        self.more.push_str(&format!(
            "\n[sources.{key}]\nkind = \"iggy\"\nfrom = \"up\"\nto = \"down\"\n\
             include = [ {{ stream = {:?}, topic = {:?} }} ]\n{}",
            topic.stream,
            topic.topic,
            self.keys_of(SOURCE)
        ));
        self
    }

    fn keys_of(&self, table: usize) -> String {
        self.keys[table].iter().map(|(key, value)| format!("{key} = {value}\n")).collect()
    }

    fn with(mut self, table: usize, key: &str, value: toml::Value) -> Config {
        self.keys[table].retain(|(known, _)| known != key);
        self.keys[table].push((key.to_owned(), value));
        self
    }

    /// The file for this directory.
    pub fn text(&self, home: &Home) -> String {
        let keys = |table: usize| self.keys_of(table);
        let cluster = |name: &str, address: &str, table: usize| {
            let several: Vec<&str> = address.split(',').collect();
            let address = match several[..] {
                [one] => format!("address = {one:?}"),
                _ => format!("addresses = {several:?}"),
            };
            format!(
                "[clusters.{name}]\n{address}\nusername = \"iggy\"\n\
                 password = \"iggy\"\n{}\n",
                keys(table)
            )
        };
        format!(
            "[daemon]\nstate_dir = {:?}\n{}\n[admin]\nlisten = \"{}\"\n\
             token = {ADMIN_TOKEN:?}\n\n{}{}\
             [sources.mirror]\nkind = \"iggy\"\nfrom = \"up\"\nto = \"down\"\n\
             include = [\n  {}\n]\n{}{}",
            home.state_dir().display().to_string(),
            keys(DAEMON),
            home.admin,
            cluster("up", &self.up, UP),
            cluster("down", &self.down, DOWN),
            self.include.join(",\n  "),
            keys(SOURCE),
            self.more,
        )
    }
}

impl Daemon {
    /// Writes the configuration and starts `tidegate run`.
    pub fn start(home: &Home, config: &Config) -> Daemon {
        Daemon::start_with(home, config, &[])
    }

    /// The same with environment variables.
    pub fn start_with(home: &Home, config: &Config, environment: &[(&str, &str)]) -> Daemon {
        std::fs::write(home.config_file(), config.text(home)).expect("a configuration file");
        Daemon::start_written(home, environment)
    }

    /// Starts `tidegate run` with the configuration file as it is.
    pub fn start_written(home: &Home, environment: &[(&str, &str)]) -> Daemon {
        Daemon::start_as(home, &[], environment)
    }

    /// The same with more arguments.
    pub fn start_as(home: &Home, more: &[&str], environment: &[(&str, &str)]) -> Daemon {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.arg("run").arg("--config").arg(home.config_file()).args(more);
        command.envs(environment.iter().copied());
        let process = Process::spawn(command).expect("the binary");
        Daemon { process, admin: home.admin }
    }

    /// SIGKILL, and waits until it is gone.
    pub fn kill(mut self) -> Ended {
        let ended = self.process.kill();
        let killed = ended.status.signal() == Some(9);
        assert!(killed, "it ended before the kill with {}", ended.status);
        ended
    }

    /// SIGTERM; it must end in order.
    pub fn stop(mut self) -> Ended {
        let ended = self.terminate();
        assert!(ended.status.success(), "an orderly stop ends with {}", ended.status);
        ended
    }

    /// SIGTERM; how it ends.
    pub fn terminate(&mut self) -> Ended {
        self.process.signal(Signal::Term);
        match self.process.wait(STOP_LIMIT) {
            Some(ended) => ended,
            None => panic!("no end within {STOP_LIMIT:?} of SIGTERM"),
        }
    }

    /// The body of `/status`; `None` while nobody answers.
    pub fn status(&self) -> Option<Value> {
        let (code, body) = self.get("/status").ok()?;
        (code == 200).then(|| serde_json::from_str(&body).expect("JSON"))
    }

    /// One feed of the source.
    pub fn feed(&self, topic: &TopicName, partition: u32) -> Option<Value> {
        let status = self.status()?;
        let feeds = status["sources"][0]["feeds"].as_array()?;
        let wanted = |feed: &&Value| {
            feed["upstream"]["stream"] == *topic.stream
                && feed["upstream"]["topic"] == *topic.topic
                && feed["partition"] == partition
        };
        feeds.iter().find(wanted).cloned()
    }

    /// Waits until a feed has this reason code; the feed comes back.
    #[track_caller]
    pub fn wait_for_reason(
        &mut self,
        limit: Duration,
        topic: &TopicName,
        partition: u32,
        reason: &str,
    ) -> Value {
        let what = format!("reason {reason:?} of {topic}/{partition}");
        eventually(limit, &what, || {
            self.assert_running();
            self.feed(topic, partition).filter(|feed| feed["reason"] == reason)
        })
    }

    /// Largest resident set so far, bytes. What the kernel reports at its end counts the parent's
    /// too: a child is a copy of its parent before it becomes another program.
    pub fn most_memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id()));
        let status = status.expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a line");
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
        kib << 10
    }

    /// Fails the test if the process has ended.
    #[track_caller]
    pub fn assert_running(&mut self) {
        if let Some(ended) = self.process.try_wait() {
            panic!("the daemon ended with {}", ended.status);
        }
    }

    /// One GET by hand: status code and body.
    pub fn get(&self, path: &str) -> io::Result<(u16, String)> {
        self.ask("GET", path)
    }

    /// One request by hand: status code and body.
    pub fn ask(&self, method: &str, path: &str) -> io::Result<(u16, String)> {
        self.ask_with(method, path, "")
    }

    /// The same as somebody who may change things.
    pub fn order(&self, path: &str) -> io::Result<(u16, String)> {
        self.ask_with("POST", path, &format!("Authorization: Bearer {ADMIN_TOKEN}\r\n"))
    }

    fn ask_with(&self, method: &str, path: &str, headers: &str) -> io::Result<(u16, String)> {
        let mut socket = TcpStream::connect_timeout(&self.admin, ANSWER_LIMIT)?;
        socket.set_read_timeout(Some(ANSWER_LIMIT))?;
        let host = self.admin;
        write!(socket, "{method} {path} HTTP/1.1\r\nHost: {host}\r\n{headers}")?;
        write!(socket, "Connection: close\r\n\r\n")?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer)?;
        let (head, body) = answer.split_once("\r\n\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
        let code = head.split(' ').nth(1).and_then(|code| code.parse().ok());
        Ok((code.ok_or(io::ErrorKind::InvalidData)?, body.to_owned()))
    }
}

impl Deref for Daemon {
    type Target = Process;
    fn deref(&self) -> &Process {
        &self.process
    }
}

impl DerefMut for Daemon {
    fn deref_mut(&mut self) -> &mut Process {
        &mut self.process
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.process.kill();
            eprintln!("last lines of the daemon:\n{}", self.process.last_lines(LINES_SHOWN));
        }
    }
}
