//! The state directory as commands see it: held by one daemon at a time (S4), or only read.
//!
//! ```text
//! <state_dir>/lock                     flock, 0600, the holder's process id
//! <state_dir>/<source>.<shard>.state   see `statefile`
//! ```
//! Opening creates nothing but the lock file: a missing directory is more often a wrong path or a
//! missing mount than a first start. The files themselves are read by the driver's file layer.
#![allow(clippy::disallowed_methods)] // start-up and operator commands, before any shard exists

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

pub use crate::shard::driver::files::holder;
use crate::shard::driver::files::{self, DirLock, LockError};
use crate::statefile::inspect::{FoundFile, StateError};
use crate::statefile::store::MODE;

/// A state directory held by this process until dropped.
#[derive(Debug)]
pub struct StateDir {
    path: PathBuf,
    _lock: DirLock,
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
    /// Another process holds it, or it cannot be locked.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// It cannot be listed.
    #[error(transparent)]
    Unreadable(#[from] StateError),
    /// The kernel says no.
    #[error(
        "{step} state_dir {path:?} failed: {why}; the user that runs tidegate needs to read, \
         write and enter it"
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

impl StateDir {
    /// Takes the directory, or says who has it.
    pub fn open(path: &Path) -> Result<StateDir, StateDirError> {
        check_directory(path)?;
        Ok(StateDir { path: path.to_owned(), _lock: files::lock(path)? })
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

/// Every state file of a directory, by name, whoever holds it. Each is the old or the new
/// version of itself, even while a daemon saves.
pub fn read_files(dir: &Path) -> Result<Vec<FoundFile>, StateDirError> {
    check_directory(dir)?;
    Ok(files::read_all(dir)?)
}

/// Whether this user can make files in the directory: makes one and removes it.
pub fn probe_writable(dir: &Path) -> Result<(), StateDirError> {
    let path = dir.join(format!("write-probe.{}", std::process::id()));
    let failed = |why| StateDirError::Io { step: "making a file in", path: dir.to_owned(), why };
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const LOCK: &str = "lock";

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
        assert!(matches!(error, StateDirError::Lock(LockError::Held { .. })), "{error}");
        assert!(error.to_string().contains(&format!("process {this}")), "{error}");
        assert_eq!(holder(dir.path()), Some(this));
        drop(held);
        assert_eq!(holder(dir.path()), None);
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
        let error = StateDir::open(dir.path()).unwrap_err();
        assert!(matches!(error, StateDirError::Lock(LockError::Unusable { .. })), "{error}");
        assert_eq!(std::fs::read_to_string(victim).unwrap(), "keep");
    }

    #[test]
    fn only_state_files_are_read_and_unreadable_ones_are_kept_in_the_picture() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["lock", "orders.0.state.tmp", "orders.0.state.aside-1", "notes.txt"] {
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
