//! Message ids that a replay gives out again (P7).
//!
//! ```text
//! XXH3-128, seed 0, of 28 bytes, all little endian:
//! system identifier:8 | timeline:4 | commit LSN:8 | ordinal:8
//! ```
//! The timeline is the one on which the commit was written, so that following a promoted standby
//! does not change the id of an old row. Frozen: a consumer's deduplication outlives releases.

use twox_hash::XxHash3_128;

use crate::pg_wire::Lsn;

/// The id of the row with number `ordinal` in the transaction committed at `commit_lsn`. Never 0,
/// which servers take as "none".
#[inline]
pub fn cdc_id(system_id: u64, timeline: u32, commit_lsn: Lsn, ordinal: u64) -> u128 {
    let mut fields = [0; 28];
    let parts: [&[u8]; 4] = [
        &system_id.to_le_bytes(),
        &timeline.to_le_bytes(),
        &commit_lsn.0.to_le_bytes(),
        &ordinal.to_le_bytes(),
    ];
    let mut rest = fields.as_mut_slice();
    for part in parts {
        let (head, tail) = rest.split_at_mut(part.len());
        head.copy_from_slice(part);
        rest = tail;
    }
    XxHash3_128::oneshot(&fields).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_frozen() {
        let vectors: [(u64, u32, u64, u64, u128); 5] = [
            (0, 0, 0, 0, 0x68ea_838a_2dee_7fef_ce61_ca9d_7b6f_0bb2),
            (
                7_523_190_467_211_098_765,
                1,
                0x16_b374_d848,
                0,
                0xe0f6_8e52_e1ba_bc42_80f1_9aaf_1096_a737,
            ),
            (
                7_523_190_467_211_098_765,
                1,
                0x16_b374_d848,
                1,
                0xc487_5674_c6ee_8022_5af8_a433_b02f_7b0e,
            ),
            (
                7_523_190_467_211_098_765,
                2,
                0x16_b374_d848,
                0,
                0xba02_4dfb_494d_8582_047e_167f_9ecf_bcb6,
            ),
            (u64::MAX, u32::MAX, u64::MAX, u64::MAX, 0x223a_3726_5e0b_7a87_c6be_d968_d982_b75e),
        ];
        for (system, timeline, lsn, ordinal, id) in vectors {
            let seen = cdc_id(system, timeline, Lsn(lsn), ordinal);
            assert_eq!(seen, id, "{system} {timeline} {lsn:#x} {ordinal}: {seen:#034x}");
        }
    }

    #[test]
    fn every_field_counts_and_none_bleeds_into_its_neighbour() {
        let ids = [
            cdc_id(1, 1, Lsn(1), 1),
            cdc_id(2, 1, Lsn(1), 1),
            cdc_id(1, 2, Lsn(1), 1),
            cdc_id(1, 1, Lsn(2), 1),
            cdc_id(1, 1, Lsn(1), 2),
            cdc_id(1 << 32, 0, Lsn(1), 1),
            cdc_id(0, 1, Lsn(1), 1),
            cdc_id(0, 0, Lsn(1 << 32), 1),
        ];
        let distinct: std::collections::HashSet<u128> = ids.into_iter().collect();
        assert_eq!(distinct.len(), ids.len());
    }
}
