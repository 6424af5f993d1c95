//! Which feed runs on which shard: deterministic and even.
