//! Waits of the benchmark: each has a limit, ends with the process it is about, and with an
//! interrupt.
#![allow(clippy::disallowed_methods)] // reads the clock and sleeps

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::error::BenchError;
use crate::cli::demo::process::Process;

/// Pause between two looks: ends of processes are seen this exactly.
const LOOK_EVERY: Duration = Duration::from_millis(1);
const LINES_SHOWN: usize = 15;

/// Ends every wait when somebody asks for an end.
#[derive(Clone, Debug)]
pub struct Patience {
    interrupted: Arc<AtomicBool>,
    limit: Duration,
}

impl Patience {
    /// SIGINT and SIGTERM end every wait, and `limit` ends each.
    pub fn new(limit: Duration) -> io::Result<Patience> {
        let interrupted = Arc::new(AtomicBool::new(false));
        for signal in [libc::SIGINT, libc::SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
        }
        Ok(Patience { interrupted, limit })
    }

    /// Fails if somebody asked for an end.
    pub fn go_on(&self, what: &str) -> Result<(), BenchError> {
        match self.interrupted.load(Ordering::Relaxed) {
            true => Err(BenchError::Interrupted { what: what.to_owned() }),
            false => Ok(()),
        }
    }

    /// Waits until `done`, while `process`, which is `who`, runs.
    pub fn until(
        &self,
        what: &str,
        who: &'static str,
        process: &mut Process,
        mut done: impl FnMut(&mut Process) -> Result<bool, BenchError>,
    ) -> Result<(), BenchError> {
        let begun = Instant::now();
        loop {
            if done(process)? {
                return Ok(());
            }
            self.go_on(what)?;
            if let Some(ended) = process.try_wait() {
                // Ended already: this only waits for the rest of its output.
                process.kill();
                let log = process.last_lines(LINES_SHOWN);
                return Err(BenchError::Ended {
                    who,
                    end: ended.status,
                    what: what.to_owned(),
                    log,
                });
            }
            if begun.elapsed() > self.limit {
                return Err(self.in_vain(what, process.last_lines(LINES_SHOWN)));
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Waits until `done`, whatever processes there are.
    pub fn for_that(
        &self,
        what: &str,
        mut done: impl FnMut() -> Result<bool, BenchError>,
    ) -> Result<(), BenchError> {
        let begun = Instant::now();
        while !done()? {
            self.go_on(what)?;
            if begun.elapsed() > self.limit {
                return Err(self.in_vain(what, String::new()));
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    fn in_vain(&self, what: &str, log: String) -> BenchError {
        let seconds = self.limit.as_secs();
        BenchError::TimeLimit { what: what.to_owned(), seconds, log }
    }
}
