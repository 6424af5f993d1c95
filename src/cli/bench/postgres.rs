//! A Postgres server of one's own: its programs, the user that may run them, a fresh cluster on a
//! free port of the loopback interface, and its end.
//!
//! The server refuses to run as root, so root runs it as `postgres` or, if there is no such user,
//! as `nobody`. A server ends with its handle, or with this process however that ends: a shell
//! waits for the end of a pipe. Only processes started here are signalled, by id.
#![allow(clippy::disallowed_methods)] // files, ports, processes and the clock

use std::fs;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::cli::scratch::{Scratch, free_port};
use crate::pg_wire::startup::StartupConfig;
use crate::shard::driver::child::send_signal;

/// Where distributions put servers, each version in its own directory.
pub const INSTALLED: &str = "/usr/lib/postgresql";

/// A busy machine takes its time.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Port attempts: another process may take a free port first.
const PORTS: u32 = 5;
/// Lines of a server's log in an error.
const LINES_SHOWN: usize = 10;

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
pub enum PostgresError {
    /// No programs.
    #[error(
        "no Postgres server in {looked}; expected a directory with initdb, postgres and \
         pg_recvlogical: install the package postgresql, or name it with --pg-bin"
    )]
    NotInstalled {
        /// Where they were looked for.
        looked: String,
    },
    /// One of them said no.
    #[error("{program} failed: {said}")]
    Failed {
        /// Which.
        program: &'static str,
        /// Its words.
        said: String,
    },
    /// The server ended, or was never ready.
    #[error("the server did not start; the end of its log:\n{log}")]
    NotReady {
        /// End of its log.
        log: String,
    },
    /// The machine does not provide something.
    #[error("{what}: {why}")]
    Machine {
        /// What was tried.
        what: &'static str,
        /// The kernel's words.
        why: io::Error,
    },
}

/// The user that runs the server when this process is root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    uid: u32,
    gid: u32,
}

impl Owner {
    /// `None` for a process that may run the server itself.
    pub fn needed() -> io::Result<Option<Owner>> {
        let status = fs::read_to_string("/proc/self/status")?;
        let uids = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
        if uids.split_whitespace().nth(1) != Some("0") {
            return Ok(None);
        }
        let passwd = fs::read_to_string("/etc/passwd")?;
        let entry = |name: &str| {
            let line = passwd.lines().find(|line| line.split(':').next() == Some(name))?;
            let mut fields = line.split(':').skip(2).map(|field| field.parse().ok());
            Some(Owner { uid: fields.next()??, gid: fields.next()?? })
        };
        let owner = entry("postgres").or_else(|| entry("nobody"));
        let missing = || io::Error::other("root needs a user postgres or nobody to run it as");
        owner.ok_or_else(missing).map(Some)
    }
}

/// Gives a file or directory to the server's user.
pub fn give(path: &Path, owner: Option<Owner>) -> io::Result<()> {
    match owner {
        Some(Owner { uid, gid }) => chown(path, Some(uid), Some(gid)),
        None => Ok(()),
    }
}

/// Directory of the newest installed server's programs.
pub fn newest_installed() -> Option<PathBuf> {
    let versions = fs::read_dir(INSTALLED).into_iter().flatten().filter_map(Result::ok);
    let number = |path: &Path| path.file_name()?.to_str()?.parse::<u32>().ok();
    let newest = versions
        .map(|entry| entry.path())
        .filter(|path| path.join("bin/postgres").exists())
        .max_by_key(|path| number(path));
    newest.map(|path| path.join("bin"))
}

/// Programs of the server to start: in `given`, the newest installed one's, or those in `PATH`.
pub fn find(given: Option<&Path>) -> Result<PathBuf, PostgresError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = || std::env::split_paths(&path).find(|dir| dir.join("initdb").exists());
    let found = match given {
        Some(given) => Some(given.to_owned()),
        None => newest_installed().or_else(on_path),
    };
    let programs = ["initdb", "postgres", "pg_recvlogical"];
    let is_whole = |dir: &PathBuf| programs.iter().all(|name| dir.join(name).exists());
    found.filter(is_whole).ok_or_else(|| {
        let looked = given.map_or(format!("{INSTALLED} and PATH"), |dir| dir.display().to_string());
        PostgresError::NotInstalled { looked }
    })
}

/// A program of the server, run as its user.
pub fn command_as(program: &Path, owner: Option<Owner>, dir: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir(dir).env("LC_ALL", "C").env_remove("PGDATA");
    if let Some(Owner { uid, gid }) = owner {
        command.uid(uid).gid(gid);
    }
    command
}

/// Programs below a home directory cannot be run by the server's user: then they are copied to
/// `dir`.
pub fn reachable(bin: PathBuf, dir: &Path, owner: Option<Owner>) -> io::Result<PathBuf> {
    let version = command_as(&bin.join("postgres"), owner, dir).arg("--version").output();
    if version.is_ok_and(|output| output.status.success()) {
        return Ok(bin);
    }
    let (Some(root), Some(name)) = (bin.parent(), bin.file_name()) else { return Ok(bin) };
    let copied = Command::new("cp").arg("-r").arg(root).arg(dir.join("server")).output()?;
    if !copied.status.success() {
        return Err(io::Error::other(words(&copied)));
    }
    Ok(dir.join("server").join(name))
}

/// Ends the server and removes its files when standard input ends, which it does with this
/// process.
pub fn guard(server: u32, dir: &Path) -> io::Result<Child> {
    let script = "read line; kill -QUIT \"$1\"; \
                  for _ in 1 2 3 4 5 6 7 8 9; do kill -0 \"$1\" || break; sleep 0.2; done; \
                  rm -rf \"$2\"";
    Command::new("sh")
        .args(["-c", script, "sh", &server.to_string()])
        .arg(dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // A terminal's interrupt must not end it before its time.
        .process_group(0)
        .spawn()
}

/// Whether this server process accepts sessions.
pub fn is_ready(data: &Path, server: u32) -> bool {
    let text = fs::read_to_string(data.join("postmaster.pid")).unwrap_or_default();
    let mut lines = text.lines();
    lines.next() == Some(&server.to_string()) && lines.any(|line| line.trim() == "ready")
}

/// What a program wrote.
pub fn words(output: &Output) -> String {
    let mut text = String::from_utf8_lossy(&output.stderr).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stdout));
    text.trim_end().to_owned()
}

/// Superuser of a cluster.
pub const USER: &str = "postgres";
/// The database that is used.
pub const DATABASE: &str = "postgres";

/// A running server and its files; both go with the handle.
#[derive(Debug)]
pub struct Cluster {
    dir: Scratch,
    bin: PathBuf,
    address: SocketAddr,
    password: String,
    server: Child,
    guard: Child,
}

impl Cluster {
    /// Starts a fresh one with these lines of `postgresql.conf`. Only who knows the password of
    /// this process gets in.
    pub fn start(bin: PathBuf, settings: &[(&str, String)]) -> Result<Cluster, PostgresError> {
        let owner = Owner::needed().map_err(machine("whom to run the server as"))?;
        let dir = Scratch::create("bench").map_err(machine("a temporary directory"))?;
        let open = fs::Permissions::from_mode(0o711);
        fs::set_permissions(dir.path(), open).map_err(machine("permissions"))?;
        let bin = reachable(bin, dir.path(), owner).map_err(machine("copying the server"))?;
        let password = format!("{:016x}{:016x}", fastrand::u64(..), fastrand::u64(..));
        let files = Files { dir: dir.path(), bin: &bin, owner };
        files.init(&password, settings)?;
        for _ in 0..PORTS {
            let address = free_port().map_err(machine("a free port"))?;
            let Some((server, guard)) = files.launch(address.port())? else { continue };
            return Ok(Cluster { dir, bin, address, password, server, guard });
        }
        Err(PostgresError::NotReady { log: files.end_of_log() })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.server.id()
    }

    /// The superuser's password.
    pub fn password(&self) -> &str {
        &self.password
    }

    /// A directory that is removed with the cluster; only its owner sees what is in `state`.
    pub fn dir(&self) -> &Scratch {
        &self.dir
    }

    /// One of its programs, to be run by ourselves.
    pub fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.bin.join(name));
        command.env("LC_ALL", "C").env("PGPASSWORD", &self.password);
        command
    }

    /// How to log in.
    pub fn login(&self, replication: bool) -> StartupConfig {
        StartupConfig {
            user: USER.to_owned(),
            database: DATABASE.to_owned(),
            password: Some(self.password.as_str().into()),
            replication,
            application_name: "tidegate-bench".to_owned(),
            ..StartupConfig::default()
        }
    }

    /// When the server began to decode for a slot the last time, microseconds since the Unix
    /// epoch, to the millisecond.
    pub fn decoding_began(&self, slot: &str) -> Option<u64> {
        let text = fs::read_to_string(log_file(self.dir.path())).ok()?;
        began(&text, slot)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // The files go too, so there is nothing to save. It may have ended by itself.
        let _ = send_signal(self.server.id(), libc::SIGQUIT);
        let _ = self.server.wait();
        let _ = self.guard.kill();
        let _ = self.guard.wait();
    }
}

/// The line `1764544443.123 LOG:  starting logical decoding for slot "x"`.
fn began(log: &str, slot: &str) -> Option<u64> {
    let wanted = format!("starting logical decoding for slot \"{slot}\"");
    let line = log.lines().rev().find(|line| line.ends_with(&wanted))?;
    let (seconds, rest) = line.split_once('.')?;
    let millis: u64 = rest.split(' ').next()?.parse().ok()?;
    Some(seconds.parse::<u64>().ok()? * 1_000_000 + millis * 1_000)
}

struct Files<'a> {
    dir: &'a Path,
    bin: &'a Path,
    owner: Option<Owner>,
}

impl Files<'_> {
    fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    fn command(&self, program: &str) -> Command {
        command_as(&self.bin.join(program), self.owner, self.dir)
    }

    fn init(&self, password: &str, settings: &[(&str, String)]) -> Result<(), PostgresError> {
        let data = self.data();
        fs::create_dir(&data).map_err(machine("a data directory"))?;
        give(&data, self.owner).map_err(machine("a data directory"))?;
        let secret = self.dir.join("password");
        let mut options = fs::File::options();
        let file = options.write(true).create_new(true).mode(0o600).open(&secret);
        file.and_then(|mut file| writeln!(file, "{password}"))
            .and_then(|()| give(&secret, self.owner))
            .map_err(machine("a file for the password"))?;
        let made = self
            .command("initdb")
            .args(["-A", "scram-sha-256", "-U", USER, "-E", "UTF8", "--locale=C", "--no-sync"])
            .arg(format!("--pwfile={}", secret.display()))
            .arg("-D")
            .arg(&data)
            .output()
            .map_err(machine("initdb"))?;
        fs::remove_file(&secret).map_err(machine("the file for the password"))?;
        if !made.status.success() {
            return Err(PostgresError::Failed { program: "initdb", said: words(&made) });
        }
        let file = fs::File::options().append(true).open(data.join("postgresql.conf"));
        let mut text = String::from("\n");
        for (name, value) in settings {
            text.push_str(&format!("{name} = '{value}'\n"));
        }
        file.and_then(|mut file| file.write_all(text.as_bytes()))
            .map_err(machine("postgresql.conf"))
    }

    /// `None` when somebody else took the port.
    fn launch(&self, port: u16) -> Result<Option<(Child, Child)>, PostgresError> {
        let log = fs::File::options().create(true).append(true).open(log_file(self.dir));
        let log = log.map_err(machine("a log file"))?;
        let mut server = self
            .command("postgres")
            .arg("-D")
            .arg(self.data())
            .args(["-p", &port.to_string()])
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(machine("a log file"))?)
            .stderr(log)
            // A terminal's interrupt is for us.
            .process_group(0)
            .spawn()
            .map_err(machine("postgres"))?;
        let mut guard = guard(server.id(), self.dir).map_err(machine("sh"))?;
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if is_ready(&self.data(), server.id()) {
                return Ok(Some((server, guard)));
            }
            if server.try_wait().map_err(machine("postgres"))?.is_some() {
                break;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        let _ = server.kill();
        let _ = server.wait();
        let _ = guard.kill();
        let _ = guard.wait();
        let log = self.end_of_log();
        if log.contains("could not bind") {
            return Ok(None);
        }
        Err(PostgresError::NotReady { log })
    }

    fn end_of_log(&self) -> String {
        let text = fs::read_to_string(log_file(self.dir)).unwrap_or_default();
        let lines: Vec<&str> = text.lines().rev().take(LINES_SHOWN).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }
}

fn log_file(dir: &Path) -> PathBuf {
    dir.join("server.log")
}

fn machine(what: &'static str) -> impl Fn(io::Error) -> PostgresError {
    move |why| PostgresError::Machine { what, why }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_start_of_a_slot_counts() {
        let log = "1764544443.123 LOG:  starting logical decoding for slot \"a\"\n\
                   1764544443.999 LOG:  starting logical decoding for slot \"ab\"\n\
                   1764544444.007 LOG:  starting logical decoding for slot \"a\"\n\
                   1764544444.008 DETAIL:  Streaming transactions committing after 0/1.\n";
        assert_eq!(began(log, "a"), Some(1_764_544_444_007_000));
        assert_eq!(began(log, "ab"), Some(1_764_544_443_999_000));
        assert_eq!(began(log, "b"), None);
    }

    #[test]
    fn what_is_missing_is_named() {
        let error = find(Some(Path::new("/nowhere"))).unwrap_err().to_string();
        assert!(error.contains("no Postgres server in /nowhere"), "{error}");
        assert!(error.contains("--pg-bin"), "{error}");
    }
}
