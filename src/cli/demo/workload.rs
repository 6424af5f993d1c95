//! Messages to mirror: mixed sizes, user headers of every kind, ids with and without a value.
//!
//! A message is a function of seed, partition and number, so a run can be repeated and a writer
//! needs no memory. Payloads are 16 bytes to 4 KiB, most of them small, and one in twenty
//! thousand is 64 KiB; each begins with its partition and number. One id in sixteen is 0.

use bytes::Bytes;
use fastrand::Rng;

use crate::loopback::Message;

const SMALLEST: usize = 16;
const LARGEST: usize = 64 << 10;
/// One message in so many is of the largest size.
const LARGEST_EVERY: u64 = 20_000;
const POOL: usize = 1 << 20;

/// Type bytes of user header values and the lengths they have; 0 is any length.
const KINDS: [(u8, usize); 15] = [
    (RAW, 0),
    (TEXT, 0),
    (3, 1),
    (4, 1),
    (5, 2),
    (6, 4),
    (7, 8),
    (8, 16),
    (9, 1),
    (10, 2),
    (11, 4),
    (12, 8),
    (13, 16),
    (14, 4),
    (15, 8),
];
const RAW: u8 = 1;
const TEXT: u8 = 2;
const BOOL: u8 = 3;

/// A repeatable set of messages.
#[derive(Clone, Debug)]
pub struct Workload {
    seed: u64,
    pool: Bytes,
}

impl Workload {
    /// The messages of this seed.
    pub fn new(seed: u64) -> Workload {
        let mut pool = vec![0; POOL];
        Rng::with_seed(seed).fill(&mut pool);
        Workload { seed, pool: pool.into() }
    }

    /// Message `number` of `partition`, made at `now` microseconds since the Unix epoch.
    pub fn message(&self, partition: u32, number: u64, now: u64) -> Message {
        let place = u64::from(partition) << 40 ^ number;
        let mut rng = Rng::with_seed(self.seed ^ place.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let id = if rng.u8(..16) == 0 { 0 } else { rng.u128(..) };
        Message {
            id,
            // Not in step with anything the mirror counts: some repeat, some go back.
            origin_timestamp: now.saturating_sub(rng.u64(..3) * 500),
            payload: self.payload(partition, number, &mut rng),
            user_headers: self.user_headers(&mut rng),
        }
    }

    fn payload(&self, partition: u32, number: u64, rng: &mut Rng) -> Bytes {
        let size = match rng.u64(..LARGEST_EVERY) {
            0 => LARGEST,
            // 16 bytes times 1 to 256, the fifth power makes large ones rare.
            _ => (SMALLEST as f64 * 256f64.powf(rng.f64().powi(5))) as usize,
        };
        let mut payload = Vec::with_capacity(size);
        payload.extend_from_slice(&number.to_le_bytes());
        payload.extend_from_slice(&partition.to_le_bytes());
        self.extend(&mut payload, size, rng);
        payload.into()
    }

    /// Up to three headers; a third of the messages has none.
    fn user_headers(&self, rng: &mut Rng) -> Bytes {
        let mut headers = Vec::new();
        for nth in 0..rng.usize(..4).saturating_sub(usize::from(rng.bool())) {
            let (kind, length) = KINDS[rng.usize(..KINDS.len())];
            let mut value = Vec::new();
            match kind {
                RAW => self.extend(&mut value, rng.usize(1..=24), rng),
                TEXT => value.extend_from_slice(format!("value {}", rng.u32(..)).as_bytes()),
                BOOL => value.push(u8::from(rng.bool())),
                _ => self.extend(&mut value, length, rng),
            }
            field(&mut headers, TEXT, [b"trace".as_slice(), b"tenant", b"attempt"][nth]);
            field(&mut headers, kind, &value);
        }
        headers.into()
    }

    /// Fills up to `size` bytes from the pool.
    fn extend(&self, bytes: &mut Vec<u8>, size: usize, rng: &mut Rng) {
        let missing = size.saturating_sub(bytes.len());
        let from = rng.usize(..=POOL - missing);
        bytes.extend_from_slice(&self.pool[from..from + missing]);
    }
}

/// Key or value of a user header: `kind:1 | length:4 | bytes`.
fn field(headers: &mut Vec<u8>, kind: u8, bytes: &[u8]) {
    headers.push(kind);
    headers.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    headers.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn sample(count: u64) -> Vec<Message> {
        let workload = Workload::new(7);
        (0..count).map(|number| workload.message(3, number, 1_000_000)).collect()
    }

    #[test]
    fn a_message_depends_on_seed_partition_and_number_only() {
        let make = |seed, partition, number| Workload::new(seed).message(partition, number, 5_000);
        assert_eq!(make(1, 2, 3), make(1, 2, 3));
        for other in [make(2, 2, 3), make(1, 3, 3), make(1, 2, 4)] {
            assert_ne!(make(1, 2, 3), other);
        }
    }

    #[test]
    fn sizes_are_mixed_and_add_up_to_what_the_demonstration_has_memory_for() {
        let messages = sample(100_000);
        let sizes: Vec<usize> = messages.iter().map(|m| m.payload.len()).collect();
        assert_eq!(sizes.iter().min(), Some(&SMALLEST));
        assert!(sizes.contains(&LARGEST));
        assert!(sizes.iter().filter(|size| **size < 128).count() > 60_000);
        assert!(sizes.iter().any(|size| (2_048..4_097).contains(size)));
        let stored: usize =
            messages.iter().map(|m| 48 + m.payload.len() + m.user_headers.len()).sum();
        assert!((200..400).contains(&(stored / messages.len())), "{stored}");
    }

    #[test]
    fn headers_have_every_kind_and_ids_may_be_zero() {
        let messages = sample(5_000);
        let mut kinds = BTreeSet::new();
        for message in &messages {
            let mut rest = &message.user_headers[..];
            while let [kind, length @ ..] = rest {
                let size = u32::from_le_bytes(length[..4].try_into().expect("a length")) as usize;
                assert!((1..=255).contains(&size));
                kinds.insert(*kind);
                rest = &length[4 + size..];
            }
        }
        assert_eq!(kinds.into_iter().collect::<Vec<_>>(), (1..=15).collect::<Vec<_>>());
        assert!(messages.iter().any(|m| m.user_headers.is_empty()));
        assert!(messages.iter().any(|m| m.id == 0) && messages.iter().any(|m| m.id != 0));
    }
}
