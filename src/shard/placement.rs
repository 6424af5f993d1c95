//! Which feed runs on which shard.
//!
//! The rule, a pure function: topics are numbered through the whole plan (sources in key order,
//! their topics as written), and partition `p` of topic number `t` runs on shard
//! `(t + p) mod shards`. So the partitions of one topic differ by at most one between shards,
//! single-partition topics go round robin, a partition that appears later moves no other feed,
//! and a restart with the same plan finds every feed where it was. After a change of plan or of
//! the shard count a feed may start elsewhere; its greatest saved (epoch, sequence) goes with it.

use std::collections::BTreeMap;

use crate::config::Plan;

/// Number of the first topic of each source, in the order of `plan.sources`.
pub fn first_topics(plan: &Plan) -> Vec<usize> {
    let mut next = 0;
    let number = |source: &std::sync::Arc<crate::config::MirrorPlan>| {
        let first = next;
        next += source.topics.len();
        first
    };
    plan.sources.iter().map(number).collect()
}

/// Number of the first capture: they count as topics of one partition behind all mirrors.
pub fn first_capture(plan: &Plan) -> usize {
    plan.sources.iter().map(|source| source.topics.len()).sum()
}

/// Shard of partition `partition` of topic number `topic`, below `shards`.
pub fn place(topic: usize, partition: u32, shards: u16) -> u16 {
    let shards = u64::from(shards.max(1));
    let slot = (topic as u64 % shards + u64::from(partition) % shards) % shards;
    // Below `shards`, which came from a u16.
    u16::try_from(slot).unwrap_or(0)
}

/// Feeds on the fullest of `shards`; `feeds`: topic number and partition of each.
pub fn fullest(feeds: impl IntoIterator<Item = (usize, u32)>, shards: u16) -> u32 {
    let mut counts: BTreeMap<u16, u32> = BTreeMap::new();
    for (topic, partition) in feeds {
        *counts.entry(place(topic, partition, shards)).or_default() += 1;
    }
    counts.into_values().max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn spread(counts: &[u32]) -> u32 {
        counts.iter().max().expect("a shard") - counts.iter().min().expect("a shard")
    }

    fn load(topics: &[u32], shards: u16) -> Vec<u32> {
        let mut counts = vec![0; usize::from(shards)];
        for (topic, partitions) in topics.iter().enumerate() {
            for partition in 0..*partitions {
                counts[usize::from(place(topic, partition, shards))] += 1;
            }
        }
        counts
    }

    proptest! {
        #[test]
        fn one_topic_is_even_to_within_one_feed(
            topic in 0_usize..10_000, partitions in 0_u32..1000, shards in 1_u16..200,
        ) {
            let mut counts = vec![0; usize::from(shards)];
            for partition in 0..partitions {
                counts[usize::from(place(topic, partition, shards))] += 1;
            }
            prop_assert!(spread(&counts) <= 1);
        }

        #[test]
        fn topics_of_equal_size_are_even_to_within_one_topic_round(
            topics in 1_usize..200, partitions in 1_u32..20, shards in 1_u16..64,
        ) {
            let counts = load(&vec![partitions; topics], shards);
            prop_assert!(spread(&counts) <= partitions);
        }

        #[test]
        fn an_added_partition_moves_no_other_feed(
            topic in 0_usize..10_000, partitions in 1_u32..1000, shards in 1_u16..200,
        ) {
            let before: Vec<u16> = (0..partitions).map(|p| place(topic, p, shards)).collect();
            let after: Vec<u16> = (0..=partitions).map(|p| place(topic, p, shards)).collect();
            prop_assert_eq!(&before[..], &after[..before.len()]);
        }
    }

    #[test]
    fn the_fullest_shard_is_counted_not_guessed() {
        assert_eq!(fullest([], 4), 0);
        let feeds = [(0, 0), (1, 0), (2, 0), (2, 1), (4, 0)];
        assert_eq!(fullest(feeds, 2), 3, "topics 0, 2 and 4 begin on shard 0");
        assert_eq!(fullest(feeds, 1), 5);
    }

    #[test]
    fn single_partition_topics_go_round_robin() {
        assert_eq!(load(&[1; 8], 4), [2, 2, 2, 2]);
    }
}
