//! Waiting with a limit: nothing in the demonstration waits for ever, and whoever waited in vain
//! says for what.
#![allow(clippy::disallowed_methods)] // reads the clock and sleeps

use std::io;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::process::Process;
use crate::loopback::ControlError;

/// Pause between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// Log lines shown with a failure.
const LINES_SHOWN: usize = 15;

/// Why the demonstration has no result.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// Somebody asked for an end.
    #[error("interrupted while waiting for {what}; the mirror and the brokers are gone")]
    Interrupted {
        /// What it waited for.
        what: String,
    },
    /// Too slow, or stuck.
    #[error(
        "waited {waited:.0?} in vain for {what}; a slow machine needs fewer messages \
         (--messages N). The mirror's last lines:\n{log}"
    )]
    TimeLimit {
        /// What it waited for.
        what: String,
        /// How long, all in all.
        waited: Duration,
        /// End of the mirror's log.
        log: String,
    },
    /// It should have gone on, or have ended with 0.
    #[error("the mirror ended with {end} during {what}. Its last lines:\n{log}")]
    MirrorEnded {
        /// How it ended.
        end: ExitStatus,
        /// What was going on.
        what: String,
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
    /// A built-in broker refused something.
    #[error("a built-in broker refused: {0}")]
    Broker(#[from] ControlError),
}

/// A limit and an interrupt shared by all waits.
#[derive(Clone, Debug)]
pub struct Watch {
    begun: Instant,
    limit: Duration,
    interrupted: Arc<AtomicBool>,
}

impl Watch {
    /// A watch that starts now; SIGINT and SIGTERM end every wait.
    pub fn start(limit: Duration) -> io::Result<Watch> {
        let interrupted = Arc::new(AtomicBool::new(false));
        for signal in [libc::SIGINT, libc::SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
        }
        Ok(Watch { begun: Instant::now(), limit, interrupted })
    }

    /// The same without a limit, for waits that people end.
    pub fn without_limit(&self) -> Watch {
        Watch { limit: Duration::MAX, ..self.clone() }
    }

    /// Whether somebody asked for an end.
    pub fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    /// Fails if somebody asked for an end.
    pub fn go_on(&self, what: &str) -> Result<(), DemoError> {
        match self.is_interrupted() {
            true => Err(DemoError::Interrupted { what: what.to_owned() }),
            false => Ok(()),
        }
    }

    /// Waits until `done`, while `mirror` runs.
    pub fn until(
        &self,
        what: &str,
        mirror: &mut Process,
        mut done: impl FnMut() -> Result<bool, DemoError>,
    ) -> Result<(), DemoError> {
        loop {
            if done()? {
                return Ok(());
            }
            self.go_on(what)?;
            if let Some(ended) = mirror.try_wait() {
                return Err(ended_early(what, mirror, ended.status));
            }
            if self.begun.elapsed() > self.limit {
                return Err(DemoError::TimeLimit {
                    what: what.to_owned(),
                    waited: self.begun.elapsed(),
                    log: mirror.last_lines(LINES_SHOWN),
                });
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

/// The mirror ended when it should not have, or not as it should.
pub fn ended_early(what: &str, mirror: &mut Process, end: ExitStatus) -> DemoError {
    // Ended already: this only waits for the rest of its output.
    mirror.kill();
    DemoError::MirrorEnded { end, what: what.to_owned(), log: mirror.last_lines(LINES_SHOWN) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn shell(script: &str) -> Process {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        Process::spawn(command).expect("a shell")
    }

    fn watch(limit: Duration) -> Watch {
        Watch { begun: Instant::now(), limit, interrupted: Arc::default() }
    }

    #[test]
    fn a_wait_in_vain_names_what_it_waited_for_and_shows_the_log() {
        let mut mirror = shell("echo last words; exec sleep 600");
        while mirror.lines().is_empty() {
            std::thread::sleep(LOOK_EVERY);
        }
        let watch = watch(Duration::from_millis(30));
        let error = watch.until("the moon", &mut mirror, || Ok(false)).expect_err("in vain");
        let words = error.to_string();
        assert!(words.contains("in vain for the moon") && words.contains("last words"), "{words}");
    }

    #[test]
    fn a_mirror_that_ends_early_ends_the_wait() {
        let mut mirror = shell("echo broken >&2; exit 4");
        let watch = watch(Duration::from_secs(60));
        let error = watch.until("the moon", &mut mirror, || Ok(false)).expect_err("it ended");
        let words = error.to_string();
        assert!(words.contains("exit status: 4") && words.contains("broken"), "{words}");
    }

    #[test]
    fn an_interrupt_ends_every_wait() {
        let mut mirror = shell("exec sleep 600");
        let watch = watch(Duration::from_secs(60));
        watch.interrupted.store(true, Ordering::Relaxed);
        for watch in [watch.without_limit(), watch] {
            let result = watch.until("the moon", &mut mirror, || Ok(false));
            assert!(matches!(result, Err(DemoError::Interrupted { .. })), "{result:?}");
        }
    }
}
