//! The limit of open files. A shard's sockets, ring and state files count towards it, and service
//! managers start processes with a soft limit far below the hard one.

use std::io;

/// Fewer than this are refused: files that cannot be opened later would look like lost clusters.
pub const MIN_OPEN_FILES: u64 = 128;

/// Why the limit does not do.
#[derive(Debug, thiserror::Error)]
pub enum OpenFilesError {
    /// Even the hard limit is too low.
    #[error(
        "at most {limit} open files are allowed (RLIMIT_NOFILE), expected {MIN_OPEN_FILES} or \
         more; raise the hard limit: ulimit -Hn, LimitNOFILE= of the service, --ulimit nofile= of \
         the container"
    )]
    TooFew {
        /// What is allowed.
        limit: u64,
    },
    /// The kernel says no.
    #[error("the limit of open files (RLIMIT_NOFILE) cannot be read: {0}")]
    Unknown(#[from] io::Error),
}

/// Keeps this process's memory, and with it passwords and rows, out of core dumps, whatever the
/// system does with those. Nobody but root can trace the process from then on.
pub fn refuse_core_dumps() -> io::Result<()> {
    // SAFETY: this option takes one integer and touches no memory of ours.
    match unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Raises the soft limit of this process to the hard one and returns what is allowed then.
pub fn raise_open_files() -> Result<u64, OpenFilesError> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes one `rlimit` to the address of a live, exclusive one.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return Err(io::Error::last_os_error().into());
    }
    let raised = libc::rlimit { rlim_cur: limit.rlim_max, ..limit };
    // SAFETY: the kernel reads one `rlimit` from the address of a live one.
    let allowed = match unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) } {
        0 => raised.rlim_cur,
        // A security module may refuse; the limit is then as it was.
        _ => limit.rlim_cur,
    };
    if allowed < MIN_OPEN_FILES {
        return Err(OpenFilesError::TooFew { limit: allowed });
    }
    Ok(allowed)
}
