//! This process as the kernel sees it, read from `/proc/self`. Whatever cannot be read is absent
//! from the metrics rather than zero.

use std::fs;

/// `USER_HZ`, part of the kernel's interface on every architecture this program runs on.
const TICKS_PER_SECOND: f64 = 100.0;

/// Memory, descriptors and processor time of the daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ProcessUsage {
    /// Resident memory, bytes.
    pub resident_bytes: Option<u64>,
    /// Open file descriptors.
    pub open_fds: Option<u64>,
    /// Limit on those.
    pub max_fds: Option<u64>,
    /// User and system time since the start, seconds.
    pub cpu_seconds: Option<f64>,
}

impl ProcessUsage {
    /// Reads the current values.
    pub fn read() -> ProcessUsage {
        let text = |name: &str| fs::read_to_string(format!("/proc/self/{name}")).ok();
        ProcessUsage {
            resident_bytes: text("status").as_deref().and_then(resident_bytes),
            // The listing itself holds one descriptor open.
            open_fds: fs::read_dir("/proc/self/fd").ok().map(|fds| fds.count() as u64 - 1),
            max_fds: text("limits").as_deref().and_then(max_fds),
            cpu_seconds: text("stat").as_deref().and_then(cpu_seconds),
        }
    }
}

fn resident_bytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

fn max_fds(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

fn cpu_seconds(stat: &str) -> Option<f64> {
    // The second field is the program's name in parentheses and may hold spaces itself.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some((user + system) as f64 / TICKS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_name_with_spaces_and_brackets_shifts_no_field() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 900 0 0 0 150 50 0 0 20 0 1 0 8 9 10";
        assert_eq!(cpu_seconds(stat), Some(2.0));
        assert_eq!(cpu_seconds("7 (a"), None);
    }

    #[test]
    fn memory_and_limits_are_read_in_their_units() {
        assert_eq!(resident_bytes("VmPeak:\t 9 kB\nVmRSS:\t    2048 kB\n"), Some(2 * 1024 * 1024));
        let limits = "Limit  Soft  Hard  Units\nMax open files            1024   4096   files\n";
        assert_eq!(max_fds(limits), Some(1024));
        assert_eq!(max_fds("Max open files   unlimited  unlimited files"), None);
    }

    #[test]
    fn this_process_has_memory_and_descriptors() {
        let usage = ProcessUsage::read();
        assert!(usage.resident_bytes.is_some_and(|bytes| bytes > 64 * 1024));
        assert!(usage.open_fds.is_some_and(|fds| fds >= 3));
        assert!(usage.cpu_seconds.is_some());
    }
}
