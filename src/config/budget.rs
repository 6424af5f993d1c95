//! How `max_buffered_bytes` is split (G6): the only home of this arithmetic. Pure; used when the
//! file is read (with the least the plan can need), at start, by the shards, and when a feed is
//! added while running.
//!
//! ```text
//! max_buffered_bytes / shards = one shard's part
//! ┌────────────────────┬───────────────┬───────────────┬─────┬───────────────────────────┐
//! │ SHARD_RESERVE      │ FEED_SHARE    │ FEED_SHARE    │  …  │ pool of the feeds whose    │
//! │ never polled into  │ feed 1 always │ feed 2 always │     │ destination moves          │
//! └────────────────────┴───────────────┴───────────────┴─────┴───────────────────────────┘
//! ```

use super::value::show_size;

/// Kept free on every shard for comparing at resume and for other questions; polls can never take
/// it. It is lent in parts, first come, first served: 8 MiB let seven feeds compare their last MiB
/// at once. A feed that finds it lent waits.
pub const SHARD_RESERVE: u64 = 8 << 20;

/// What every feed keeps, whatever the others do: an idle or stuck feed can still read one
/// ordinary message.
pub const FEED_SHARE: u64 = 256 << 10;

/// Batches that the pool of a shard should hold under `shards = "auto"`: one being sent while the
/// next is read.
const POOL_BATCHES: u64 = 2;

/// The split is too small, with the figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetShort {
    /// `max_buffered_bytes` as configured.
    pub given: u64,
    /// Shards it is split over.
    pub shards: u16,
    /// Feeds on the fullest shard.
    pub feeds_per_shard: u32,
    /// Least value that would do for this many shards and feeds.
    pub needed: u64,
}

/// What is left of one shard's part for all its feeds together; `None`: not even their shares fit.
pub fn pool(part: u64, feeds: u64) -> Option<u64> {
    part.checked_sub(SHARD_RESERVE)?.checked_sub(feeds.saturating_mul(FEED_SHARE))
}

/// Whether every shard has its reserve and every feed its share, with `feeds_per_shard` feeds on
/// the fullest shard. Zero shards count as one.
pub fn check(given: u64, shards: u16, feeds_per_shard: u32) -> Result<(), BudgetShort> {
    let shards = shards.max(1);
    let part = given / u64::from(shards);
    if pool(part, u64::from(feeds_per_shard)).is_some() {
        return Ok(());
    }
    let least = SHARD_RESERVE + u64::from(feeds_per_shard) * FEED_SHARE;
    Err(BudgetShort { given, shards, feeds_per_shard, needed: least * u64::from(shards) })
}

/// The shards that `"auto"` takes of `allowed` ones: as many as leave each a pool that holds some
/// batches of the largest size, at least one. `feeds_per_shard`: on the fullest of so many shards.
pub fn auto_shards(
    given: u64,
    allowed: u16,
    max_batch_bytes: u64,
    feeds_per_shard: impl Fn(u16) -> u32,
) -> u16 {
    let is_roomy = |shards: &u16| {
        let part = given / u64::from(*shards);
        let pool = pool(part, u64::from(feeds_per_shard(*shards)));
        pool.is_some_and(|pool| pool >= max_batch_bytes.saturating_mul(POOL_BATCHES))
    };
    (1..=allowed).rev().find(is_roomy).unwrap_or(1)
}

impl BudgetShort {
    /// What was seen.
    pub fn seen(&self) -> String {
        format!(
            "{} split over {} leaves {} bytes each",
            show_size(self.given),
            count(u64::from(self.shards), "shard"),
            self.given / u64::from(self.shards.max(1)),
        )
    }

    /// What would have been right.
    pub fn expected(&self) -> String {
        format!(
            "at least {}: on each shard {} in reserve plus {} for each of {}",
            show_size(self.needed),
            show_size(SHARD_RESERVE),
            show_size(FEED_SHARE),
            count(u64::from(self.feeds_per_shard), "feed"),
        )
    }

    /// What to do.
    pub fn advice(&self) -> String {
        format!("set max_buffered_bytes = \"{}\" or more, or fewer shards", show_size(self.needed))
    }
}

impl std::fmt::Display for BudgetShort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "daemon.max_buffered_bytes: {}; expected {}; {}",
            self.seen(),
            self.expected(),
            self.advice()
        )
    }
}

impl std::error::Error for BudgetShort {}

fn count(number: u64, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_pool_is_what_reserve_and_shares_leave() {
        assert_eq!(pool(32 * MIB, 16), Some(20 * MIB));
        assert_eq!(pool(SHARD_RESERVE + FEED_SHARE, 1), Some(0));
        assert_eq!(pool(SHARD_RESERVE + FEED_SHARE, 2), None);
        assert_eq!(pool(SHARD_RESERVE - 1, 0), None);
    }

    #[test]
    fn needed_is_the_least_that_is_accepted() {
        for (shards, feeds) in [(1, 1), (2, 2), (7, 10), (64, 1)] {
            let short = check(1, shards, feeds).unwrap_err();
            assert_eq!(check(short.needed, shards, feeds), Ok(()));
            assert_eq!(check(short.needed - 1, shards, feeds).unwrap_err().needed, short.needed);
        }
    }

    #[test]
    fn a_short_budget_says_its_figures() {
        let text = check(16 << 20, 2, 2).unwrap_err().to_string();
        for figure in ["16MiB", "2 shards", "8388608", "17MiB", "8MiB", "256KiB", "2 feeds"] {
            assert!(text.contains(figure), "{figure} not in {text}");
        }
    }

    #[test]
    fn auto_leaves_every_shard_a_pool_of_two_batches() {
        let auto = |given, allowed, batch, feeds| auto_shards(given, allowed, batch, |_| feeds);
        assert_eq!(auto(128 * MIB, 64, 8 * MIB, 4), 5);
        assert_eq!(auto(128 * MIB, 2, 8 * MIB, 4), 2, "no more than there are");
        assert_eq!(auto(128 * MIB, 64, MIB, 4), 11);
        assert_eq!(auto(128 * MIB, 64, 60 * MIB, 4), 1, "one at least, however small");
        assert_eq!(auto(8 * MIB, 64, 8 * MIB, 4), 1);
        let spread = |shards: u16| 160_u32.div_ceil(u32::from(shards));
        assert_eq!(auto_shards(128 * MIB, 64, 8 * MIB, spread), 3, "feeds take their shares first");
    }
}
