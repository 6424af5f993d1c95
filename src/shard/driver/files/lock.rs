//! The lock of a state directory: one daemon at a time (S4).
//!
//! The kernel lets go of it with the last descriptor of the dead process, and descriptors used by
//! io_uring outlive their process for some milliseconds. So a lock whose holder is gone, or is
//! on its way, is waited for. One whose holder lives is reported after a moment: early in its end
//! a killed process cannot be told from one that lives.

use std::fs::{self, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::statefile::store::MODE;

/// Locked by the daemon that owns the directory.
const LOCK_FILE: &str = "lock";
/// How long a lock without a living holder is waited for.
const WAIT: Duration = Duration::from_secs(2);
/// How long a lock whose holder seems to live is waited for.
const GRACE: Duration = Duration::from_millis(200);
/// Time between two tries.
const RETRY: Duration = Duration::from_millis(50);
/// `PF_EXITING` in the flags of `/proc/<pid>/stat`.
const EXITING: u64 = 0x4;
/// SIGKILL in the masks of `/proc/<pid>/status`.
const KILL_BIT: u64 = 1 << (libc::SIGKILL - 1);

/// Held for as long as the daemon owns the directory; the kernel lets go of it with the process.
#[derive(Debug)]
pub struct DirLock {
    _file: fs::File,
}

/// Why the directory is not ours.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another daemon runs on it (S4).
    #[error(
        "state_dir {dir} is in use by process {holder}: one daemon per state_dir; stop that one or \
         configure another directory"
    )]
    Held {
        /// Directory.
        dir: String,
        /// Process id as that daemon wrote it, `?` if it has not yet.
        holder: String,
    },
    /// It cannot be used at all.
    #[error(
        "state_dir {dir} cannot be locked: {why}; expected an existing directory that this user \
         may write to"
    )]
    Unusable {
        /// Directory.
        dir: String,
        /// The kernel's words.
        why: String,
    },
}

/// The file that is locked.
pub fn lock_path(dir: &Path) -> PathBuf {
    dir.join(LOCK_FILE)
}

/// Takes the directory for this process, or says who has it. Blocks, for the lock only as long as
/// its holder may be ending, at most [`WAIT`].
pub fn lock(dir: &Path) -> Result<DirLock, LockError> {
    let named = || dir.display().to_string();
    let unusable = |e: io::Error| LockError::Unusable { dir: named(), why: e.to_string() };
    let mut file = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(MODE)
        // A link of that name would have us truncate a file elsewhere.
        .custom_flags(libc::O_NOFOLLOW)
        .open(lock_path(dir))
        .map_err(unusable)?;
    let started = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => break,
            Err(TryLockError::Error(e)) => return Err(unusable(e)),
            Err(TryLockError::WouldBlock) => {}
        }
        let written = written_holder(&mut file);
        // The kernel's answer counts: a process id in a file may have been given away again.
        let lives = match holder(dir) {
            Some(pid) => is_alive(pid),
            None => written.is_some_and(|pid| pid != std::process::id() && is_alive(pid)),
        };
        if started.elapsed() >= if lives { GRACE } else { WAIT } {
            let holder = written.map_or_else(|| "?".into(), |pid| pid.to_string());
            return Err(LockError::Held { dir: named(), holder });
        }
        thread::sleep(RETRY);
    }
    // For the message above only: a full disk is no reason not to start.
    let _ = file
        .set_len(0)
        .and_then(|()| file.rewind())
        .and_then(|()| writeln!(file, "{}", std::process::id()));
    Ok(DirLock { _file: file })
}

/// The process that holds the directory, without taking the lock: a daemon that starts meanwhile
/// must not find it taken. `None` too where the kernel does not tell.
pub fn holder(dir: &Path) -> Option<u32> {
    let lock = fs::metadata(lock_path(dir)).ok()?;
    let (major, minor) = (libc::major(lock.dev()), libc::minor(lock.dev()));
    let place = format!("{major:02x}:{minor:02x}:{}", lock.ino());
    let locks = fs::read_to_string("/proc/locks").ok()?;
    // `1: FLOCK  ADVISORY  WRITE 4711 fd:01:1234 0 EOF`
    locks.lines().find_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let is_flock = fields.next() == Some("FLOCK");
        let pid = fields.nth(2)?.parse().ok()?;
        (is_flock && fields.next() == Some(&place)).then_some(pid)
    })
}

/// The process id in the lock file.
fn written_holder(file: &mut fs::File) -> Option<u32> {
    let mut text = String::new();
    file.rewind().ok()?;
    file.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

/// Whether a process is there and not about to end.
fn is_alive(pid: u32) -> bool {
    let proc = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}"));
    let (Ok(stat), Ok(status)) = (proc("stat"), proc("status")) else { return false };
    // `4711 (any name) S 1 …`, the flags are seven fields after the state.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let mut fields = fields.split_whitespace();
    let is_dead = matches!(fields.next(), Some("Z" | "X") | None);
    let flags: u64 = fields.nth(5).and_then(|flags| flags.parse().ok()).unwrap_or(0);
    let is_killed = status
        .lines()
        .filter_map(|line| line.strip_prefix("SigPnd:").or(line.strip_prefix("ShdPnd:")))
        .filter_map(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .any(|mask| mask & KILL_BIT != 0);
    !(is_dead || is_killed || flags & EXITING != 0)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_second_daemon_is_told_who_holds_the_directory() {
        let tmp = tempfile::tempdir().unwrap();
        let held = lock(tmp.path()).unwrap();
        let started = Instant::now();
        let error = lock(tmp.path()).unwrap_err().to_string();
        assert!(started.elapsed() < WAIT, "nothing to wait for");
        let pid = std::process::id();
        assert!(error.contains(&format!("is in use by process {pid}:")), "{error}");
        drop(held);
        lock(tmp.path()).unwrap();
        let error = lock(&tmp.path().join("missing")).unwrap_err();
        assert!(matches!(error, LockError::Unusable { .. }), "{error}");
    }

    /// A lock that a process took and left behind when it ended: this process still has the
    /// descriptor, as the kernel has one after a kill.
    fn left_behind(dir: &Path) -> fs::File {
        let file = fs::File::create(lock_path(dir)).unwrap();
        let fd = file.as_raw_fd();
        let mut child = Command::new("true");
        // SAFETY: one system call, which is allowed between fork and exec; `fd` is open there.
        unsafe {
            child.pre_exec(move || match libc::flock(fd, libc::LOCK_EX | libc::LOCK_NB) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            });
        }
        let mut child = child.spawn().unwrap();
        writeln!(&file, "{}", child.id()).unwrap();
        assert!(child.wait().unwrap().success());
        file
    }

    #[test]
    fn the_lock_of_a_process_that_is_gone_is_waited_for() {
        let tmp = tempfile::tempdir().unwrap();
        let left = left_behind(tmp.path());
        assert!(fs::File::open(lock_path(tmp.path())).unwrap().try_lock().is_err(), "held");
        let release = thread::spawn(move || {
            thread::sleep(Duration::from_millis(300));
            drop(left);
        });
        let started = Instant::now();
        lock(tmp.path()).unwrap();
        assert!(started.elapsed() >= Duration::from_millis(250));
        release.join().unwrap();
    }

    #[test]
    fn a_lock_that_nobody_lets_go_of_is_reported_in_the_end() {
        let tmp = tempfile::tempdir().unwrap();
        let _left = left_behind(tmp.path());
        let started = Instant::now();
        let error = lock(tmp.path()).unwrap_err();
        assert!(matches!(error, LockError::Held { .. }), "{error}");
        assert!(started.elapsed() >= WAIT);
    }

    #[test]
    fn a_process_is_alive_until_it_is_killed() {
        assert!(is_alive(std::process::id()));
        let mut child = Command::new("sleep").arg("60").stdout(Stdio::null()).spawn().unwrap();
        assert!(is_alive(child.id()));
        child.kill().unwrap();
        assert!(!is_alive(child.id()), "killed, perhaps not ended");
        child.wait().unwrap();
        assert!(!is_alive(child.id()));
    }
}
