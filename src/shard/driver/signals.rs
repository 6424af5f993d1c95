//! What tells the daemon to stop, and what does not.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::{flag, low_level};

/// Exit status at a second signal (O1).
pub const SECOND_SIGNAL: i32 = 143;

/// Becomes readable when the daemon is asked to stop.
pub type StopBell = UnixStream;

/// The bell of SIGTERM and SIGINT. The first of either asks for an orderly stop; a second one
/// ends the process inside the signal handler, whatever its threads are doing (O2). SIGHUP, which
/// would end the process by default, has no effect from here on: nothing is read again.
pub fn stop_signals() -> io::Result<StopBell> {
    let (rope, heard) = UnixStream::pair()?;
    let asked = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        // In this order: the first signal finds the flag unset.
        flag::register_conditional_shutdown(signal, SECOND_SIGNAL, asked.clone())?;
        flag::register(signal, asked.clone())?;
        low_level::pipe::register(signal, rope.try_clone()?)?;
    }
    // A flag that nobody reads: a handler of any kind replaces the default.
    flag::register(SIGHUP, Arc::default())?;
    Ok(heard)
}

/// Stops a daemon from within its process.
#[derive(Debug)]
pub struct Stopper {
    rope: UnixStream,
}

impl Stopper {
    /// A stopper and its bell.
    pub fn new() -> io::Result<(Stopper, StopBell)> {
        let (rope, heard) = UnixStream::pair()?;
        Ok((Stopper { rope }, heard))
    }

    /// Asks for an orderly stop.
    pub fn stop(&self) {
        // A closed bell: the daemon has stopped.
        let _ = (&self.rope).write(&[1]);
    }
}
