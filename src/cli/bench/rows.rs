//! Rows as pgoutput sends them, made once and sent again with other positions.

use crate::pg_wire::pgoutput::TupleBuilder;

/// Rows of a transaction.
const ROWS: u32 = 1_000;
/// Number of the table.
const TABLE: u32 = 16_384;
/// Type numbers: bigint, text, jsonb.
const COLUMNS: [(&str, u32); 4] =
    [("id", 20), ("event_type", 25), ("tenant", 25), ("payload", 3_802)];
/// Bytes of log that a transaction takes, as far as anybody can see.
const STEP: u64 = 1 << 20;

/// Transactions of one table.
pub struct Rows {
    destinations: u32,
    /// CopyData messages of one transaction.
    bytes: Vec<u8>,
    /// Where its LSNs stand: begin, commit, end.
    places: [usize; 3],
    /// Behind each row.
    ends: Vec<usize>,
    lsn: u64,
}

impl Rows {
    /// Stream of every destination.
    pub const STREAM: &str = "acme";

    /// Topic of a destination.
    pub fn topic(number: u32) -> String {
        format!("events-{number}")
    }

    /// Rows for so many destinations, by turns.
    pub fn new(destinations: u32) -> Rows {
        let mut rows =
            Rows { destinations, bytes: Vec::new(), places: [0; 3], ends: Vec::new(), lsn: STEP };
        rows.make(ROWS, true);
        rows
    }

    /// The next transaction, of at most `most` rows, and how many it has.
    pub fn transaction(&mut self, most: u64) -> (&[u8], u64) {
        let rows = u32::try_from(most).unwrap_or(u32::MAX).min(ROWS);
        if self.lsn > STEP {
            // The table is known by now.
            let is_another = self.ends.len() != rows as usize || self.lsn == 2 * STEP;
            if is_another {
                self.make(rows, false);
            }
        } else if rows < ROWS {
            self.make(rows, true);
        }
        let lsn = self.lsn;
        self.lsn += STEP;
        for (place, lsn) in self.places.into_iter().zip([lsn, lsn, lsn + 64]) {
            self.bytes[place..place + 8].copy_from_slice(&lsn.to_be_bytes());
        }
        (&self.bytes, u64::from(rows))
    }

    /// `first`: the table is described as well.
    fn make(&mut self, rows: u32, first: bool) {
        let mut out = Vec::new();
        let begin = copy_data(&mut out, |body| {
            body.push(b'B');
            body.extend_from_slice(&[0; 8]);
            body.extend_from_slice(&800_000_000_000_000_u64.to_be_bytes());
            body.extend_from_slice(&700_u32.to_be_bytes());
        });
        if first {
            copy_data(&mut out, relation);
        }
        self.ends.clear();
        let mut tuple = TupleBuilder::new();
        for number in 0..rows {
            let topic = Rows::topic(number % self.destinations);
            let payload = format!(
                "{{\"user\": {number}, \"trace\": \"{:032x}\", \"amount\": {}.5, \"source\": \
                 \"web\", \"currency\": \"EUR\", \"campaign\": \"early autumn sale\"}}",
                u128::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835),
                number % 1_009,
            );
            tuple.clear();
            let id = (10_000_000 + number).to_string();
            for text in [&id, &topic, Rows::STREAM, &payload] {
                tuple.text(text.as_bytes()).expect("a short value");
            }
            copy_data(&mut out, |body| {
                body.push(b'I');
                body.extend_from_slice(&TABLE.to_be_bytes());
                body.push(b'N');
                tuple.write(body);
            });
            self.ends.push(out.len());
        }
        let commit = copy_data(&mut out, |body| {
            body.extend_from_slice(b"C\0");
            body.extend_from_slice(&[0; 16]);
            body.extend_from_slice(&800_000_000_000_000_u64.to_be_bytes());
        });
        self.places = [begin + 1, commit + 2, commit + 10];
        self.bytes = out;
    }
}

/// Appends one CopyData message of replication data; gives where what `write` appends begins.
fn copy_data(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) -> usize {
    let start = out.len();
    out.extend_from_slice(b"d\0\0\0\0w");
    out.extend_from_slice(&[0; 24]);
    let body = out.len();
    write(out);
    let length = u32::try_from(out.len() - start - 1).expect("a short message");
    out[start + 1..start + 5].copy_from_slice(&length.to_be_bytes());
    body
}

fn relation(body: &mut Vec<u8>) {
    body.push(b'R');
    body.extend_from_slice(&TABLE.to_be_bytes());
    body.extend_from_slice(b"public\0events\0d");
    body.extend_from_slice(&4_u16.to_be_bytes());
    for (index, (name, type_oid)) in COLUMNS.into_iter().enumerate() {
        body.push(u8::from(index == 0));
        body.extend_from_slice(name.as_bytes());
        body.push(0);
        body.extend_from_slice(&type_oid.to_be_bytes());
        body.extend_from_slice(&u32::MAX.to_be_bytes());
    }
}
