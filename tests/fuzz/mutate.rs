//! Damage, as links, disks and liars do it.

use fastrand::Rng;

const EDGES: [u64; 12] = [
    0,
    1,
    2,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    i64::MAX as u64,
    u64::MAX,
];

/// Damages `input` one to six times; pieces of `others` may come into it.
pub fn damage(rng: &mut Rng, input: &mut Vec<u8>, others: &[Vec<u8>]) {
    for _ in 0..rng.usize(1..=6) {
        once(rng, input, others);
    }
}

fn once(rng: &mut Rng, input: &mut Vec<u8>, others: &[Vec<u8>]) {
    if input.is_empty() {
        input.extend((0..rng.usize(1..64)).map(|_| rng.u8(..)));
        return;
    }
    let at = rng.usize(..input.len());
    let most = input.len() - at;
    let length = if rng.bool() { rng.usize(1..=most.min(8)) } else { rng.usize(1..=most) };
    match rng.u8(..10) {
        0 => input[at] ^= 1 << rng.u8(..8),
        1 => input[at] = rng.u8(..),
        2 => {
            let value = EDGES[rng.usize(..EDGES.len())];
            let width = [1, 2, 4, 8][rng.usize(..4)].min(most);
            let bytes = if rng.bool() { value.to_le_bytes() } else { value.to_be_bytes() };
            let from = if rng.bool() { 0 } else { 8 - width };
            input[at..at + width].copy_from_slice(&bytes[from..from + width]);
        }
        3 => input.truncate(at),
        4 => drop(input.drain(at..at + length)),
        5 => {
            let piece = input[at..at + length].to_vec();
            let to = rng.usize(..=input.len());
            input.splice(to..to, piece);
        }
        6 => {
            let made: Vec<u8> = (0..rng.usize(1..16)).map(|_| rng.u8(..)).collect();
            input.splice(at..at, made);
        }
        7 => input[at..at + length].fill(rng.u8(..)),
        8 => {
            let other = &others[rng.usize(..others.len())];
            if !other.is_empty() {
                let from = rng.usize(..other.len());
                let end = rng.usize(from..other.len()) + 1;
                input.splice(at..at + length, other[from..end].iter().copied());
            }
        }
        _ => {
            // A number a little larger or smaller.
            let step = rng.u8(1..4);
            let value = input[at];
            input[at] =
                if rng.bool() { value.wrapping_add(step) } else { value.wrapping_sub(step) };
        }
    }
}
