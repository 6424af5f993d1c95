//! What Linux tells about processes that are not ours to reap: processor time of a server's ended
//! children, who its children are, the largest memory of a running process, the machine's name.
#![allow(clippy::disallowed_methods)] // reads procfs

use std::fs;
use std::time::Duration;

/// Linux shows processor time in hundredths of a second, whatever its own clock does.
const TICKS_PER_SECOND: u64 = 100;

/// User and system time of all children that this process has reaped.
pub fn reaped_cpu(pid: u32) -> Duration {
    let ticks = stat(pid).map_or(0, |stat| number(&stat, 13) + number(&stat, 14));
    Duration::from_millis(ticks * 1_000 / TICKS_PER_SECOND)
}

/// How many children this process has.
pub fn children(pid: u32) -> usize {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|child| stat(*child).is_some_and(|stat| number(&stat, 1) == u64::from(pid))).count()
}

/// User and system time of this thread; zero where the kernel does not say.
pub fn thread_cpu() -> Duration {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = text.split_whitespace().next().and_then(|nanos| nanos.parse().ok());
    Duration::from_nanos(nanos.unwrap_or(0))
}

/// Largest resident set so far, bytes; 0 for a process that has ended.
pub fn peak_memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kibibytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kibibytes.unwrap_or(0) << 10
}

/// Model of the processors, how many of them we may use, and the kernel's release.
pub fn machine() -> (String, usize, String) {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model =
        model.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.to_owned());
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    (model, count, kernel.trim().to_owned())
}

/// The fields behind the name, which may hold anything.
fn stat(pid: u32) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(text.rsplit_once(')')?.1.split_whitespace().map(str::to_owned).collect())
}

fn number(stat: &[String], index: usize) -> u64 {
    stat.get(index).and_then(|field| field.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn spin() -> std::process::Child {
        Command::new("/bin/sh").args(["-c", "while :; do :; done"]).spawn().expect("a shell")
    }

    #[test]
    fn children_are_counted_and_their_time_comes_with_their_end() {
        let me = std::process::id();
        let before = reaped_cpu(me);
        let mut child = spin();
        assert!(children(me) >= 1);
        assert!(peak_memory(child.id()) > 0);
        std::thread::sleep(Duration::from_millis(300));
        child.kill().expect("our child");
        child.wait().expect("our child");
        assert!(reaped_cpu(me) > before, "its time is ours now");
        assert_eq!(peak_memory(child.id()), 0);
    }
}
