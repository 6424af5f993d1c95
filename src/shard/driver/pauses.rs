//! Which sources rest by the operator's word: one marker file each, so that a pause survives
//! restarts (T2).
//!
//! ```text
//! <state_dir>/<source>.paused    0600, when it was written, for people
//! ```
//! The control thread owns them. They are small and rare, so that thread writes them itself.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::statefile::store::MODE;
use crate::time::UnixMicros;

/// True if the source rests.
pub fn is_paused(dir: &Path, source: &str) -> io::Result<bool> {
    marker(dir, source).try_exists()
}

/// Writes or removes the marker, durable when it returns.
pub fn set_paused(dir: &Path, source: &str, paused: bool, now: UnixMicros) -> io::Result<()> {
    let marker = marker(dir, source);
    if paused {
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(MODE).open(&marker)?;
        writeln!(file, "paused at {} us since 1970-01-01", now.0)?;
        file.sync_all()?;
    } else if let Err(error) = fs::remove_file(&marker)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(error);
    }
    File::open(dir)?.sync_all()
}

/// Source keys are `[a-z0-9_-]`: they cannot leave the directory.
fn marker(dir: &Path, source: &str) -> PathBuf {
    dir.join(format!("{source}.paused"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_there_until_it_is_taken_back() {
        let dir = tempfile::tempdir().unwrap();
        let is = |source: &str| is_paused(dir.path(), source).unwrap();
        assert!(!is("orders"));
        set_paused(dir.path(), "orders", true, UnixMicros(7)).unwrap();
        set_paused(dir.path(), "orders", true, UnixMicros(8)).unwrap();
        assert!(is("orders") && !is("audit"));
        for _ in 0..2 {
            set_paused(dir.path(), "orders", false, UnixMicros(9)).unwrap();
            assert!(!is("orders"));
        }
    }

    #[test]
    fn a_directory_that_is_gone_is_an_error_and_no_pause() {
        let dir = tempfile::tempdir().unwrap().keep();
        fs::remove_dir(&dir).unwrap();
        assert!(set_paused(&dir, "orders", true, UnixMicros(7)).is_err());
        assert!(!is_paused(&dir, "orders").unwrap());
    }
}
