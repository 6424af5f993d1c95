//! Which kernel interface a thread's runtime uses: io_uring, or epoll where it is not to be had.
//!
//! A container's seccomp profile, `kernel.io_uring_disabled`, a locked-memory limit or an old
//! kernel must not keep the daemon from running (O4): the cause is told in one line, for the
//! whole process, and everything goes on over epoll. Nothing here panics.
//!
//! `TIDEGATE_IO_DRIVER=epoll` forces the fallback; a value that names no driver is refused.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use io_uring::IoUring;
use monoio::time::TimeDriver;
use monoio::{FusionRuntime, IoUringDriver, LegacyDriver, RuntimeBuilder};

/// A runtime with timers on either driver.
pub type Runtime = FusionRuntime<TimeDriver<IoUringDriver>, TimeDriver<LegacyDriver>>;

/// Environment variable that forces a driver.
pub const DRIVER_VARIABLE: &str = "TIDEGATE_IO_DRIVER";

/// The kernel interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoDriver {
    /// Completion queue.
    Uring,
    /// Readiness.
    Epoll,
}

impl IoDriver {
    /// The word in status.
    pub fn as_str(self) -> &'static str {
        match self {
            IoDriver::Uring => "io_uring",
            IoDriver::Epoll => "epoll",
        }
    }
}

/// [`DRIVER_VARIABLE`] names no driver.
#[derive(Debug, thiserror::Error)]
#[error(
    "environment variable {DRIVER_VARIABLE} is {seen:?}; expected epoll or io_uring, or unset it"
)]
pub struct UnknownDriver {
    seen: String,
}

/// Builds runtimes for the threads of one process and tells a fallback once.
#[derive(Clone, Debug)]
pub struct Runtimes {
    wanted: IoDriver,
    told: Arc<AtomicBool>,
}

impl Runtimes {
    /// io_uring, unless the environment says otherwise.
    pub fn from_environment() -> Result<Runtimes, UnknownDriver> {
        let Some(value) = std::env::var_os(DRIVER_VARIABLE) else {
            return Ok(Runtimes::new(IoDriver::Uring));
        };
        let seen = value.to_string_lossy().into_owned();
        if seen.eq_ignore_ascii_case(IoDriver::Uring.as_str()) {
            return Ok(Runtimes::new(IoDriver::Uring));
        }
        if !seen.eq_ignore_ascii_case(IoDriver::Epoll.as_str()) {
            return Err(UnknownDriver { seen });
        }
        let runtimes = Runtimes::new(IoDriver::Epoll);
        runtimes.tell(&format!("{DRIVER_VARIABLE}=epoll"));
        Ok(runtimes)
    }

    /// Prefers `wanted`.
    pub fn new(wanted: IoDriver) -> Runtimes {
        Runtimes { wanted, told: Arc::default() }
    }

    /// A runtime for the calling thread.
    pub fn build(&self) -> io::Result<(Runtime, IoDriver)> {
        if self.wanted == IoDriver::Uring {
            match ring() {
                Ok(runtime) => return Ok((runtime, IoDriver::Uring)),
                Err(error) => self.tell(&cause(&error)),
            }
        }
        let runtime = RuntimeBuilder::<LegacyDriver>::new().enable_timer().build()?;
        Ok((runtime.into(), IoDriver::Epoll))
    }

    fn tell(&self, cause: &str) {
        if !self.told.swap(true, Ordering::Relaxed) {
            tracing::warn!(cause, "io_uring is not used, epoll is; expect a lower rate");
        }
    }
}

/// A ring with COOP_TASKRUN, without it on kernels before 5.19.
fn ring() -> io::Result<Runtime> {
    // Asked before monoio, whose own probe hides the error.
    IoUring::new(2)?;
    if !monoio::utils::detect_uring() {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "the kernel lacks operations"));
    }
    let mut cooperative = IoUring::builder();
    cooperative.setup_coop_taskrun();
    let build = |builder| {
        RuntimeBuilder::<IoUringDriver>::new().uring_builder(builder).enable_timer().build()
    };
    let runtime = match build(cooperative) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => build(IoUring::builder())?,
        built => built?,
    };
    Ok(runtime.into())
}

/// The error and what usually lies behind it.
fn cause(error: &io::Error) -> String {
    let hint = match error.raw_os_error() {
        Some(libc::ENOSYS) => "the kernel has no io_uring, or a seccomp profile hides it",
        Some(libc::EPERM) => "forbidden by sysctl kernel.io_uring_disabled or a seccomp profile",
        Some(libc::EACCES) => "forbidden by a security module",
        Some(libc::ENOMEM) => "the locked-memory limit (ulimit -l) is too low",
        Some(libc::EMFILE | libc::ENFILE) => "too many open files (ulimit -n)",
        _ => return error.to_string(),
    };
    format!("{error}: {hint}")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn both_drivers_run_timers() {
        for wanted in [IoDriver::Uring, IoDriver::Epoll] {
            let (mut runtime, _) = Runtimes::new(wanted).build().expect("a runtime");
            runtime.block_on(async { monoio::time::sleep(Duration::from_millis(2)).await });
        }
    }

    #[test]
    fn a_forced_fallback_is_epoll() {
        let (_runtime, driver) = Runtimes::new(IoDriver::Epoll).build().expect("a runtime");
        assert_eq!(driver, IoDriver::Epoll);
    }

    #[test]
    fn a_refused_ring_is_explained() {
        for (errno, words) in [
            (libc::EPERM, "io_uring_disabled"),
            (libc::ENOMEM, "locked-memory"),
            (libc::ENOSYS, "seccomp"),
        ] {
            let text = cause(&io::Error::from_raw_os_error(errno));
            assert!(text.contains(words), "{text}");
        }
    }
}
