//! The state directory: held by one daemon at a time (S4), and read as a whole.
//!
//! ```text
//! <state_dir>/lock                     flock, 0600, the holder's process id
//! <state_dir>/<source>.<shard>.state   see `statefile`
//! ```
//! The lock is the kernel's, so it ends with the process however that ends; the file stays.
//! Opening creates nothing else: a missing directory is more often a wrong path or a missing
//! mount than a first start.
#![allow(clippy::disallowed_methods)] // start-up and operator commands, before any shard exists

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::statefile::format;
use crate::statefile::inspect::{FoundFile, StateError, parse_file_name};
use crate::statefile::store::MODE;

/// A state directory held by this process until dropped.
#[derive(Debug)]
pub struct StateDir {
    path: PathBuf,
    /// Holds the lock.
    _lock: File,
}

/// Why a state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateDirError {
    /// It is not there.
    #[error(
        "state_dir {0:?} does not exist; if this is a first start, create it for the user that \
         runs tidegate: mkdir -p -m 0700 {0:?}"
    )]
    Missing(PathBuf),
    /// It is something else.
    #[error("state_dir {0:?} is not a directory; name a directory")]
    NotADirectory(PathBuf),
    /// Another process holds it.
    #[error(
        "state_dir {path:?} is held by another daemon ({}); stop it first, or give this one a \
         state_dir of its own",
        holder(.pid)
    )]
    Held {
        /// Directory.
        path: PathBuf,
        /// Process id in the lock file, if one is there.
        pid: Option<u32>,
    },
    /// The kernel says no.
    #[error(
        "{step} {path:?} failed: {why}; the user that runs tidegate needs to read, write and \
         enter state_dir"
    )]
    Io {
        /// What was tried.
        step: &'static str,
        /// On what.
        path: PathBuf,
        /// The kernel's words.
        why: io::Error,
    },
}

/// Name of the lock file.
pub const LOCK: &str = "lock";

impl StateDir {
    /// Takes the directory, or says who has it.
    pub fn open(path: &Path) -> Result<StateDir, StateDirError> {
        check_directory(path)?;
        let lock_path = path.join(LOCK);
        let failed = |step| move |why| StateDirError::Io { step, path: path.join(LOCK), why };
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(MODE)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&lock_path)
            .map_err(failed("opening"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let pid = read_pid(&mut lock);
                return Err(StateDirError::Held { path: path.to_owned(), pid });
            }
            Err(TryLockError::Error(why)) => return Err(failed("locking")(why)),
        }
        // For people only: the lock itself is in the kernel.
        lock.set_len(0)
            .and_then(|()| writeln!(lock, "{}", std::process::id()))
            .map_err(failed("writing"))?;
        Ok(StateDir { path: path.to_owned(), _lock: lock })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Every state file in it.
    pub fn files(&self) -> Result<Vec<FoundFile>, StateDirError> {
        read_files(&self.path)
    }
}

/// Creates a directory as this program wants it: for its user alone. For `demo` and tests;
/// `run` never does.
pub fn create(path: &Path) -> Result<(), StateDirError> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|why| StateDirError::Io {
        step: "creating",
        path: path.to_owned(),
        why,
    })
}

/// Every state file of a directory, by name, whoever holds it. Each is the old or the new
/// version of itself, even while a daemon saves.
pub fn read_files(dir: &Path) -> Result<Vec<FoundFile>, StateDirError> {
    check_directory(dir)?;
    let failed = |why| StateDirError::Io { step: "listing", path: dir.to_owned(), why };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let Some((source, shard)) = name.to_str().and_then(parse_file_name) else { continue };
        let path = dir.join(&name);
        let file = path.display().to_string();
        let state = read_file(&path)
            .map_err(|why| StateError::Unreadable { file: file.clone(), why: why.to_string() })
            .and_then(|bytes| Ok(format::decode(&bytes, &file)?));
        found.push(FoundFile { source: source.into(), shard, file, state });
    }
    found.sort_by(|a, b| (&a.source, a.shard).cmp(&(&b.source, b.shard)));
    Ok(found)
}

/// Whether this user can make files in the directory: makes one and removes it.
pub fn probe_writable(dir: &Path) -> Result<(), StateDirError> {
    let path = dir.join(format!("write-probe.{}", std::process::id()));
    let failed = |why| StateDirError::Io { step: "creating a file in", path: dir.to_owned(), why };
    OpenOptions::new().write(true).create_new(true).mode(MODE).open(&path).map_err(failed)?;
    std::fs::remove_file(&path).map_err(failed)
}

fn check_directory(path: &Path) -> Result<(), StateDirError> {
    match std::fs::metadata(path) {
        Ok(meta) if meta.is_dir() => Ok(()),
        Ok(_) => Err(StateDirError::NotADirectory(path.to_owned())),
        Err(why) if why.kind() == io::ErrorKind::NotFound => {
            Err(StateDirError::Missing(path.to_owned()))
        }
        Err(why) => Err(StateDirError::Io { step: "looking at", path: path.to_owned(), why }),
    }
}

fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    // A pipe of that name would block for ever, hence the flag and the look at the type.
    let mut file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn read_pid(lock: &mut File) -> Option<u32> {
    let mut text = String::new();
    lock.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

fn holder(pid: &Option<u32>) -> String {
    pid.map_or_else(|| "process unknown".to_owned(), |pid| format!("process {pid}"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_missing_directory_is_not_created() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("state");
        let error = StateDir::open(&missing).unwrap_err();
        assert!(matches!(&error, StateDirError::Missing(path) if *path == missing));
        assert!(error.to_string().contains("mkdir -p -m 0700"), "{error}");
        assert!(!missing.exists());
    }

    #[test]
    fn a_held_directory_names_its_holder_and_is_free_afterwards() {
        let dir = tempfile::tempdir().unwrap();
        let held = StateDir::open(dir.path()).unwrap();
        let mode = std::fs::metadata(dir.path().join(LOCK)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let error = StateDir::open(dir.path()).unwrap_err();
        let this = std::process::id();
        assert!(matches!(error, StateDirError::Held { pid: Some(pid), .. } if pid == this));
        assert!(error.to_string().contains(&format!("process {this}")), "{error}");
        drop(held);
        StateDir::open(dir.path()).unwrap();
    }

    #[test]
    fn a_shorter_process_id_leaves_no_digits_of_a_longer_one() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(LOCK), "99999999999999\nrest").unwrap();
        let _held = StateDir::open(dir.path()).unwrap();
        let text = std::fs::read_to_string(dir.path().join(LOCK)).unwrap();
        assert_eq!(text, format!("{}\n", std::process::id()));
    }

    #[test]
    fn the_lock_file_is_not_followed_elsewhere() {
        let dir = tempfile::tempdir().unwrap();
        let victim = dir.path().join("victim");
        std::fs::write(&victim, "keep").unwrap();
        std::os::unix::fs::symlink(&victim, dir.path().join(LOCK)).unwrap();
        assert!(matches!(StateDir::open(dir.path()), Err(StateDirError::Io { .. })));
        assert_eq!(std::fs::read_to_string(victim).unwrap(), "keep");
    }

    #[test]
    fn only_state_files_are_read_and_unreadable_ones_are_kept_in_the_picture() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["lock", "orders.0.state.tmp", "orders.0.state.reset-1", "notes.txt"] {
            std::fs::write(dir.path().join(name), "x").unwrap();
        }
        std::fs::create_dir(dir.path().join("orders.1.state")).unwrap();
        std::fs::write(dir.path().join("audit.0.state"), "").unwrap();
        let files = read_files(dir.path()).unwrap();
        let names: Vec<_> = files.iter().map(|file| (&*file.source, file.shard)).collect();
        assert_eq!(names, [("audit", 0), ("orders", 1)]);
        assert!(matches!(files[0].state, Err(StateError::Format(_))));
        let error = files[1].state.as_ref().unwrap_err();
        assert!(error.to_string().contains("not a regular file"), "{error}");
    }

    #[test]
    fn a_file_is_no_directory() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(matches!(StateDir::open(file.path()), Err(StateDirError::NotADirectory(_))));
    }
}
