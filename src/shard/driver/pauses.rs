//! Which sources rest by the operator's word: one marker file each, so that a pause survives
//! restarts (T2).
//!
//! ```text
//! <state_dir>/<source>.paused    0600, empty; its time of change says since when
//! ```
//! Whatever stands at that name is a pause: a file, or a link to nowhere. A marker is there and
//! durable, or it is not there: a step that fails takes the steps before it back.
//!
//! The control thread owns the markers and syncs them itself. A sick disk keeps it that long, and
//! with it provisioning, status and the first look at SIGTERM; the shards copy on. An operator
//! asked for it and waits for the answer, it is two small syncs, and a thread of its own would
//! let a resume overtake the pause before it.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::files::FileFaults;
use crate::statefile::store::MODE;

/// Markers of one state directory.
#[derive(Clone, Copy)]
pub struct Pauses<'a> {
    dir: &'a Path,
    faults: &'a FileFaults,
}

impl<'a> Pauses<'a> {
    /// Of the sources whose state is in `dir`.
    pub fn new(dir: &'a Path, faults: &'a FileFaults) -> Pauses<'a> {
        Pauses { dir, faults }
    }

    /// True if the source rests. An error says neither: the caller must not take it for "no".
    pub fn is_paused(self, source: &str) -> io::Result<bool> {
        let marker = self.marker(source);
        self.fault("mark_look", &marker)?;
        match fs::symlink_metadata(&marker) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Makes or removes the marker, durable when it returns. After an error everything is as it
    /// was before; where even that failed, the error says so.
    pub fn set_paused(self, source: &str, paused: bool) -> io::Result<()> {
        let marker = self.marker(source);
        match paused {
            true => self.mark(&marker),
            false => self.unmark(&marker),
        }
    }

    fn mark(self, marker: &Path) -> io::Result<()> {
        let is_new = match self.make(marker) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            Err(error) => return Err(error),
        };
        self.sync(marker, "mark_sync").and_then(|()| self.sync_dir(marker)).map_err(|error| {
            if !is_new {
                return error;
            }
            match fs::remove_file(marker) {
                Ok(()) => error,
                Err(left) => undone(&error, "is still there and pauses the next start", &left),
            }
        })
    }

    fn unmark(self, marker: &Path) -> io::Result<()> {
        let removed = self.fault("mark_remove", marker).and_then(|()| fs::remove_file(marker));
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            // Nothing was there, or its removal may not be durable yet.
            Err(_) => return self.sync_dir(marker),
            Ok(()) => {}
        }
        self.sync_dir(marker).map_err(|error| match self.make(marker) {
            Ok(()) => error,
            Err(gone) => undone(&error, "is gone: the next start does not pause", &gone),
        })
    }

    fn make(self, marker: &Path) -> io::Result<()> {
        self.fault("mark", marker)?;
        OpenOptions::new().write(true).create_new(true).mode(MODE).open(marker).map(drop)
    }

    fn sync(self, path: &Path, step: &str) -> io::Result<()> {
        self.fault(step, path)?;
        match OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path) {
            Ok(file) => file.sync_all(),
            // A marker of another making that points nowhere; the name itself is what counts.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn sync_dir(self, marker: &Path) -> io::Result<()> {
        self.fault("mark_sync_dir", marker)?;
        File::open(self.dir)?.sync_all()
    }

    fn fault(self, step: &str, marker: &Path) -> io::Result<()> {
        self.faults
            .errno(step, marker)
            .map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)))
    }

    /// Source keys are `[a-z0-9_-]`: they cannot leave the directory.
    pub fn marker(self, source: &str) -> PathBuf {
        self.dir.join(format!("{source}.paused"))
    }
}

fn undone(error: &io::Error, what: &str, why: &io::Error) -> io::Error {
    io::Error::new(
        error.kind(),
        format!("{error}; taking it back failed, the marker {what}: {why}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(rules: &str, test: impl Fn(Pauses<'_>)) {
        let dir = tempfile::tempdir().unwrap();
        test(Pauses::new(dir.path(), &FileFaults::parse(rules).unwrap()));
    }

    #[test]
    fn a_pause_is_there_until_it_is_taken_back() {
        with("", |pauses| {
            let is = |source: &str| pauses.is_paused(source).unwrap();
            assert!(!is("orders"));
            pauses.set_paused("orders", true).unwrap();
            pauses.set_paused("orders", true).unwrap();
            assert!(is("orders") && !is("audit"));
            for _ in 0..2 {
                pauses.set_paused("orders", false).unwrap();
                assert!(!is("orders"));
            }
        });
    }

    #[test]
    fn an_order_that_fails_at_any_step_leaves_what_was_there() {
        for step in ["mark", "mark_sync", "mark_sync_dir"] {
            with(&format!("{step}:enospc:times=1"), |pauses| {
                assert!(pauses.set_paused("orders", true).is_err(), "{step}");
                assert!(!pauses.is_paused("orders").unwrap(), "{step}: not refused and paused");
                pauses.set_paused("orders", true).unwrap();
                assert!(pauses.is_paused("orders").unwrap(), "{step}");
            });
        }
        for step in ["mark_remove", "mark_sync_dir"] {
            with(
                &format!("{step}:eio:times=1:skip={}", u8::from(step == "mark_sync_dir")),
                |pauses| {
                    pauses.set_paused("orders", true).unwrap();
                    assert!(pauses.set_paused("orders", false).is_err(), "{step}");
                    assert!(pauses.is_paused("orders").unwrap(), "{step}: not refused and running");
                },
            );
        }
    }

    #[test]
    fn a_failed_second_pause_does_not_end_the_first() {
        with("mark_sync_dir:eio:skip=1:times=1", |pauses| {
            pauses.set_paused("orders", true).unwrap();
            assert!(pauses.set_paused("orders", true).is_err());
            assert!(pauses.is_paused("orders").unwrap());
        });
    }

    #[test]
    fn what_cannot_be_seen_is_an_error_and_never_no() {
        with("mark_look:eacces", |pauses| assert!(pauses.is_paused("orders").is_err()));
        with("", |pauses| {
            std::os::unix::fs::symlink("nowhere", pauses.marker("orders")).unwrap();
            assert!(pauses.is_paused("orders").unwrap(), "a link to nowhere");
            pauses.set_paused("orders", true).unwrap();
            pauses.set_paused("orders", false).unwrap();
            assert!(!pauses.is_paused("orders").unwrap());
        });
    }

    #[test]
    fn a_directory_that_is_gone_is_an_error_and_no_pause() {
        let dir = tempfile::tempdir().unwrap().keep();
        fs::remove_dir(&dir).unwrap();
        let faults = FileFaults::default();
        let pauses = Pauses::new(&dir, &faults);
        assert!(pauses.set_paused("orders", true).is_err());
        assert!(!pauses.is_paused("orders").unwrap());
    }
}
