//! The kernel's side of a child process: its life is bound to ours, and its end tells what it
//! used. [`std::process`] has neither. Decides nothing and keeps nothing.

use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};
use std::time::Duration;

/// How a child ended and what it used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Exit code or signal.
    pub status: ExitStatus,
    /// Processor time of all its threads, user and system.
    pub cpu: Duration,
    /// Largest resident set, bytes. Counts the parent's at the start too: a child is a copy of
    /// it before it becomes another program.
    pub max_memory: u64,
}

/// Has the kernel kill the child when the thread that starts it ends.
pub fn die_with_parent(command: &mut Command) {
    let parent = std::process::id();
    let bind = move || {
        // SAFETY: this option takes one integer and touches no memory.
        if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // The parent may have died before the line above.
        if std::os::unix::process::parent_id() != parent {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure only makes system calls; it neither allocates
    // nor locks.
    unsafe { command.pre_exec(bind) };
}

/// Sends a signal. The caller vouches that the child was not reaped: its id is then still its.
pub fn send_signal(pid: u32, signal: i32) -> io::Result<()> {
    let pid = libc::pid_t::try_from(pid).map_err(io::Error::other)?;
    // SAFETY: no pointers.
    match unsafe { libc::kill(pid, signal) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Reaps a child that has ended; `None` while it runs.
pub fn try_reap(pid: u32) -> io::Result<Option<Ended>> {
    reap_with(pid, libc::WNOHANG)
}

/// Waits for a child's end and reaps it.
pub fn reap(pid: u32) -> io::Result<Ended> {
    loop {
        match reap_with(pid, 0) {
            Ok(Some(ended)) => return Ok(ended),
            Ok(None) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn reap_with(pid: u32, options: i32) -> io::Result<Option<Ended>> {
    let pid = libc::pid_t::try_from(pid).map_err(io::Error::other)?;
    let mut status = 0;
    // SAFETY: `rusage` is a struct of integers, for which all-zero bytes are a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to live locals of the types the call writes.
    match unsafe { libc::wait4(pid, &raw mut status, options, &raw mut usage) } {
        0 => Ok(None),
        reaped if reaped == pid => Ok(Some(Ended {
            status: ExitStatus::from_raw(status),
            cpu: duration(usage.ru_utime) + duration(usage.ru_stime),
            max_memory: u64::try_from(usage.ru_maxrss).unwrap_or(0) << 10,
        })),
        _ => Err(io::Error::last_os_error()),
    }
}

fn duration(time: libc::timeval) -> Duration {
    let part = |number: i64| u64::try_from(number).unwrap_or(0);
    Duration::from_secs(part(time.tv_sec)) + Duration::from_micros(part(time.tv_usec))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> u32 {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        die_with_parent(&mut command);
        command.spawn().unwrap().id()
    }

    #[test]
    fn a_child_that_ends_is_reaped_once_with_what_it_used() {
        let pid = shell("exit 3");
        let ended = reap(pid).unwrap();
        assert_eq!(ended.status.code(), Some(3));
        assert!(ended.max_memory > 0);
        assert_eq!(reap(pid).unwrap_err().raw_os_error(), Some(libc::ECHILD));
    }

    #[test]
    fn a_signal_ends_a_running_child() {
        let pid = shell("exec sleep 600");
        assert_eq!(try_reap(pid).unwrap(), None);
        send_signal(pid, libc::SIGTERM).unwrap();
        assert_eq!(reap(pid).unwrap().status.signal(), Some(libc::SIGTERM));
    }

    #[test]
    fn a_child_dies_with_the_thread_that_started_it() {
        let start = || shell("exec sleep 600");
        let pid = std::thread::spawn(start).join().unwrap();
        assert_eq!(reap(pid).unwrap().status.signal(), Some(libc::SIGKILL));
    }
}
