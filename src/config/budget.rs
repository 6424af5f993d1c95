//! How `max_buffered_bytes` is split (G6): pure arithmetic, used when the file is read (with the
//! least the plan can need) and again at start, when shards and feeds are counted.
//!
//! ```text
//! max_buffered_bytes / shards = one shard's part
//! ┌────────────────────┬───────────────┬───────────────┬─────┬───────────────────────────┐
//! │ SHARD_RESERVE      │ FEED_MINIMUM  │ FEED_MINIMUM  │  …  │ shared by the feeds        │
//! │ never polled into  │ feed 1 always │ feed 2 always │     │ first come, first served   │
//! └────────────────────┴───────────────┴───────────────┴─────┴───────────────────────────┘
//! ```

use super::value::show_size;

/// Kept free on every shard for comparing at resume, renumbering cut records, merging and
/// repair; polls can never take it. 8 MiB is one batch of the default `max_batch_bytes`: these
/// steps run one after the other on a shard, so one batch is the most they hold.
pub const SHARD_RESERVE: u64 = 8 << 20;

/// What every feed keeps, whatever the others do: an idle or stuck feed can still read one
/// ordinary message.
pub const FEED_MINIMUM: u64 = 256 << 10;

/// One shard's part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// All of it, bytes.
    pub per_shard: u64,
    /// What feeds may reserve for polls: without [`SHARD_RESERVE`].
    pub for_polls: u64,
    /// Feeds on the fullest shard the share was computed for.
    pub feeds_per_shard: u32,
}

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

/// Splits `max_buffered_bytes` over `shards` that share `feeds` evenly. Zero shards count as one.
pub fn split(max_buffered_bytes: u64, shards: u16, feeds: u32) -> Result<Share, BudgetShort> {
    let shards = shards.max(1);
    let feeds_per_shard = feeds.div_ceil(u32::from(shards));
    let per_shard = max_buffered_bytes / u64::from(shards);
    let least = SHARD_RESERVE + u64::from(feeds_per_shard) * FEED_MINIMUM;
    if per_shard < least {
        let needed = least * u64::from(shards);
        return Err(BudgetShort { given: max_buffered_bytes, shards, feeds_per_shard, needed });
    }
    Ok(Share { per_shard, for_polls: per_shard - SHARD_RESERVE, feeds_per_shard })
}

/// The most shards, up to `at_most`, for which [`split`] succeeds: `shards = "auto"` on a large
/// machine takes fewer cores rather than refusing the default budget. `None`: not even one.
pub fn most_shards(max_buffered_bytes: u64, at_most: u16, feeds: u32) -> Option<u16> {
    (1..=at_most.max(1)).rev().find(|shards| split(max_buffered_bytes, *shards, feeds).is_ok())
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
            show_size(FEED_MINIMUM),
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

    #[test]
    fn a_share_holds_the_reserve_and_every_minimum() {
        let share = split(128 << 20, 4, 64).unwrap();
        assert_eq!(share.per_shard, 32 << 20);
        assert_eq!(share.for_polls, 24 << 20);
        assert_eq!(share.feeds_per_shard, 16);
    }

    #[test]
    fn needed_is_the_least_that_is_accepted() {
        for (shards, feeds) in [(1, 1), (2, 3), (7, 64), (64, 5)] {
            let short = split(1, shards, feeds).unwrap_err();
            assert!(split(short.needed, shards, feeds).is_ok());
            assert_eq!(split(short.needed - 1, shards, feeds).unwrap_err().needed, short.needed);
        }
    }

    #[test]
    fn a_short_budget_says_its_figures() {
        let text = split(16 << 20, 2, 4).unwrap_err().to_string();
        for figure in ["16MiB", "2 shards", "8388608", "17MiB", "8MiB", "256KiB", "2 feeds"] {
            assert!(text.contains(figure), "{figure} not in {text}");
        }
    }

    #[test]
    fn auto_takes_fewer_shards_before_it_gives_up() {
        assert_eq!(most_shards(128 << 20, 64, 64), Some(13));
        assert_eq!(most_shards(128 << 20, 2, 64), Some(2));
        assert_eq!(most_shards(8 << 20, 64, 1), None);
    }
}
