//! A mirror as a child process: its log lines, its signals, its end, the processor time it used.
//!
//! No process outlives its handle: dropping the handle kills and reaps it, and the kernel kills
//! it when this process dies. For that the thread that started it has to live as long as it.
//! Reaped only here, never through [`std::process::Child`], so that a process id is never used
//! after it may name another process.
#![allow(clippy::disallowed_methods)] // processes, their pipes and the clock are its job

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::shard::driver::child;
pub use crate::shard::driver::child::Ended;

/// Log lines kept; the oldest go first.
const LINES_KEPT: usize = 20_000;
/// Pause between two looks at a process that should end.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// Linux shows processor time in hundredths of a second, whatever its own clock does.
const TICKS_PER_SECOND: u64 = 100;

/// What to send to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Stop in order.
    Term,
    /// Stop at once.
    Kill,
    /// Freeze.
    Stop,
    /// Go on.
    Continue,
}

/// A running or ended process.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    lines: Lines,
    readers: Vec<JoinHandle<()>>,
    ended: Option<Ended>,
}

impl Process {
    /// Starts it, in a process group of its own (a Ctrl-C is for its parent), with both outputs
    /// collected.
    pub fn spawn(mut command: Command) -> io::Result<Process> {
        child::die_with_parent(&mut command);
        command.process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let lines = Lines::default();
        let outputs: [Option<Box<dyn Read + Send>>; 2] = [
            child.stdout.take().map(|output| Box::new(output) as Box<dyn Read + Send>),
            child.stderr.take().map(|output| Box::new(output) as Box<dyn Read + Send>),
        ];
        let collect = |output| {
            let lines = lines.clone();
            std::thread::spawn(move || lines.collect(output))
        };
        let readers = outputs.into_iter().flatten().map(collect).collect();
        Ok(Process { pid: child.id(), lines, readers, ended: None })
    }

    /// Process id; another process may have it once this one was reaped.
    pub fn id(&self) -> u32 {
        self.pid
    }

    /// Sends a signal; nothing happens when the process has ended.
    pub fn signal(&self, signal: Signal) {
        if self.ended.is_some() {
            return;
        }
        let number = match signal {
            Signal::Term => libc::SIGTERM,
            Signal::Kill => libc::SIGKILL,
            Signal::Stop => libc::SIGSTOP,
            Signal::Continue => libc::SIGCONT,
        };
        // It was not reaped, so the id is still its; nothing else can go wrong.
        let _ = child::send_signal(self.pid, number);
    }

    /// How it ended, if it has.
    pub fn try_wait(&mut self) -> Option<Ended> {
        if self.ended.is_none() {
            self.ended = child::try_reap(self.pid).expect("only this handle reaps it");
        }
        self.ended
    }

    /// Waits for its end, at most so long.
    pub fn wait(&mut self, limit: Duration) -> Option<Ended> {
        let begun = Instant::now();
        loop {
            match self.try_wait() {
                None if begun.elapsed() < limit => std::thread::sleep(LOOK_EVERY),
                ended => return ended,
            }
        }
    }

    /// Kills it and waits until it is gone.
    pub fn kill(&mut self) -> Ended {
        self.signal(Signal::Kill);
        let ended = match self.ended {
            Some(ended) => ended,
            None => child::reap(self.pid).expect("only this handle reaps it"),
        };
        self.ended = Some(ended);
        for reader in self.readers.drain(..) {
            // A panic of that thread has been printed; there is nothing to add.
            let _ = reader.join();
        }
        ended
    }

    /// Processor time used until now; exact once it has ended.
    pub fn cpu_so_far(&self) -> Duration {
        match self.ended {
            Some(ended) => ended.cpu,
            None => running_cpu(self.pid).unwrap_or_default(),
        }
    }

    /// Everything it wrote, as far as it is kept, oldest first.
    pub fn lines(&self) -> Vec<String> {
        self.lines.locked().iter().cloned().collect()
    }

    /// The last lines it wrote, for a message.
    pub fn last_lines(&self, count: usize) -> String {
        let lines = self.lines.locked();
        let from = lines.len().saturating_sub(count);
        let text: Vec<&str> = lines.range(from..).map(String::as_str).collect();
        if text.is_empty() { "(it wrote nothing)".to_owned() } else { text.join("\n") }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The lines both outputs share.
#[derive(Clone, Debug, Default)]
struct Lines(Arc<Mutex<VecDeque<String>>>);

impl Lines {
    fn locked(&self) -> MutexGuard<'_, VecDeque<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads to the end, whatever comes: a full pipe would stop the process.
    fn collect(&self, output: impl Read) {
        let mut output = BufReader::new(output);
        let mut line = Vec::new();
        while output.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
            let mut lines = self.locked();
            if lines.len() == LINES_KEPT {
                lines.pop_front();
            }
            lines.push_back(String::from_utf8_lossy(&line).trim_end().to_owned());
            drop(lines);
            line.clear();
        }
    }
}

/// User and system time out of `/proc/<pid>/stat`, in whole ticks.
fn running_cpu(pid: u32) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything, so fields are counted behind it.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    let ticks = ticks()? + ticks()?;
    Some(Duration::from_millis(ticks * 1_000 / TICKS_PER_SECOND))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    fn shell(script: &str) -> Process {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        Process::spawn(command).expect("a shell")
    }

    #[test]
    fn an_ended_process_tells_how_and_what_it_wrote() {
        let mut process = shell("echo out; echo err >&2; exit 3");
        let ended = process.wait(Duration::from_secs(20)).expect("ends by itself");
        assert_eq!(ended.status.code(), Some(3));
        process.kill();
        let mut lines = process.lines();
        lines.sort();
        assert_eq!(lines, ["err", "out"]);
        assert_eq!(process.last_lines(5).lines().count(), 2);
    }

    #[test]
    fn a_killed_process_is_reaped_with_its_processor_time() {
        let mut process = shell("while :; do :; done");
        assert!(process.wait(Duration::from_millis(200)).is_none());
        assert!(process.cpu_so_far() > Duration::ZERO);
        let ended = process.kill();
        assert_eq!(ended.status.signal(), Some(libc::SIGKILL));
        assert!(ended.cpu > Duration::ZERO && ended.max_memory > 0);
        assert_eq!(process.kill(), ended, "once more changes nothing");
    }

    #[test]
    fn a_dropped_handle_leaves_no_process() {
        let process = shell("exec sleep 600");
        let path = format!("/proc/{}", process.id());
        assert!(std::path::Path::new(&path).exists());
        drop(process);
        assert!(!std::path::Path::new(&path).exists());
    }

    #[test]
    fn a_stopped_process_takes_a_signal_when_it_goes_on() {
        let mut process = shell("trap 'exit 7' TERM; echo ready; while :; do sleep 0.01; done");
        while process.lines().is_empty() {
            std::thread::sleep(LOOK_EVERY);
        }
        process.signal(Signal::Stop);
        process.signal(Signal::Term);
        assert!(process.wait(Duration::from_millis(50)).is_none());
        process.signal(Signal::Continue);
        let ended = process.wait(Duration::from_secs(20)).expect("ends on the signal");
        assert_eq!(ended.status.code(), Some(7));
    }
}
