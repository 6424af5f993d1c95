//! Which CPUs the shards run on.
//!
//! The inherited affinity mask (numactl, taskset, cgroup cpuset) is the only source of CPUs
//! (O4): it is read once, before any thread is pinned, and never widened. More shards than
//! allowed CPUs are refused, because two pinned shards on one CPU halve each other.
//!
//! The two calls into the kernel are here; what to do with the answer is pure.

use std::io;

use crate::config::Shards;

/// Why no CPU can be given to every shard.
#[derive(Debug, thiserror::Error)]
pub enum PinError {
    /// The kernel did not tell the mask.
    #[error("cannot read the CPU affinity mask: {0}")]
    Mask(io::Error),
    /// `shards = N` with a larger N than the mask allows.
    #[error(
        "shards = {wanted}, but the affinity mask allows only {allowed} CPUs; lower shards, use \
         \"auto\", or widen the mask (taskset, numactl, cpuset)"
    )]
    TooMany {
        /// Configured shards.
        wanted: u16,
        /// CPUs in the mask.
        allowed: usize,
    },
}

/// One CPU per shard, ascending: the first `shards` of the `allowed` ones.
pub fn choose_cpus(shards: Shards, allowed: &[u16]) -> Result<Vec<u16>, PinError> {
    match shards {
        Shards::Auto => Ok(allowed.to_vec()),
        Shards::Count(wanted) => allowed
            .get(..usize::from(wanted))
            .map(<[u16]>::to_vec)
            .ok_or(PinError::TooMany { wanted, allowed: allowed.len() }),
    }
}

/// The CPUs of the calling thread's affinity mask, ascending.
pub fn allowed_cpus() -> Result<Vec<u16>, PinError> {
    // The kernel refuses a mask shorter than its own; machines with more than 1024 CPUs exist.
    let mut words = 16_usize;
    loop {
        let mut mask = vec![0_u64; words];
        // SAFETY: the pointer and the byte length describe `mask`, which outlives the call; the
        // kernel writes plain bits into it.
        let rc = unsafe {
            libc::sched_getaffinity(0, words * size_of::<u64>(), mask.as_mut_ptr().cast())
        };
        if rc == 0 {
            return Ok(cpus_of(&mask));
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EINVAL) || words >= 1024 {
            return Err(PinError::Mask(error));
        }
        words *= 2;
    }
}

/// Keeps the calling thread on `cpu`.
pub fn pin(cpu: u16) -> io::Result<()> {
    let mut mask = vec![0_u64; usize::from(cpu) / 64 + 1];
    if let Some(word) = mask.last_mut() {
        *word = 1 << (cpu % 64);
    }
    // SAFETY: as above; the kernel only reads `mask`.
    let rc =
        unsafe { libc::sched_setaffinity(0, mask.len() * size_of::<u64>(), mask.as_ptr().cast()) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn cpus_of(mask: &[u64]) -> Vec<u16> {
    let bits = mask.iter().enumerate().flat_map(|(word, bits)| {
        (0..64_usize).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| word * 64 + bit)
    });
    bits.filter_map(|cpu| u16::try_from(cpu).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_takes_every_allowed_cpu() {
        assert_eq!(choose_cpus(Shards::Auto, &[2, 3, 7]).expect("fits"), [2, 3, 7]);
    }

    #[test]
    fn a_count_takes_the_first_allowed_cpus() {
        assert_eq!(choose_cpus(Shards::Count(2), &[2, 3, 7]).expect("fits"), [2, 3]);
    }

    #[test]
    fn more_shards_than_allowed_cpus_are_refused_with_both_figures() {
        let error = choose_cpus(Shards::Count(3), &[4, 5]).expect_err("two CPUs only");
        let text = error.to_string();
        assert!(text.contains("shards = 3") && text.contains("only 2 CPUs"), "{text}");
    }

    #[test]
    fn mask_bits_become_cpu_numbers_across_words() {
        assert_eq!(cpus_of(&[0b101, 1 << 63, 1]), [0, 2, 127, 128]);
    }

    #[test]
    fn a_pinned_thread_sees_only_its_cpu_and_never_widens_the_mask() {
        #[allow(clippy::disallowed_methods, reason = "the mask belongs to a thread")]
        let thread = std::thread::spawn(|| {
            let before = allowed_cpus().expect("a mask");
            let last = *before.last().expect("at least one CPU");
            pin(last).expect("an allowed CPU");
            assert_eq!(allowed_cpus().expect("a mask"), [last]);
        });
        thread.join().expect("pinned");
    }
}
