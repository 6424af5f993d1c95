//! What must hold whatever the bytes: one function per target, which panics if it does not. The
//! tests call them with damaged recordings for some seconds, the programs in `fuzz/` without end.

pub mod admin;
pub mod capture;
pub mod config;
pub mod iggy;
pub mod pipeline;
pub mod postgres;
pub mod state;

/// A target: its name, which is that of its corpus and its program, and its function.
pub type Target = (&'static str, fn(&[u8]));

/// All of them.
pub const TARGETS: [Target; 12] = [
    ("iggy_frames", iggy::frames),
    ("iggy_records", iggy::records),
    ("iggy_relay", iggy::relay),
    ("pgoutput", postgres::pgoutput),
    ("test_decoding", postgres::test_decoding),
    ("values", postgres::values),
    ("state_file", state::file),
    ("config", config::text),
    ("admin", admin::request),
    ("mirror_events", pipeline::events),
    ("capture_stream", capture::stream),
    ("capture_events", capture::events),
];

/// The bytes as a source of choices; at their end all of them are zero.
pub struct Choices<'a>(&'a [u8]);

impl<'a> Choices<'a> {
    pub fn new(bytes: &'a [u8]) -> Choices<'a> {
        Choices(bytes)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    pub fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// Below `bound`, which is at most 256.
    pub fn below(&mut self, bound: usize) -> usize {
        usize::from(self.byte()) % bound.max(1)
    }

    pub fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    /// Mostly small, sometimes at an edge of its type.
    pub fn number(&mut self) -> u64 {
        match self.byte() {
            small @ 0..=199 => u64::from(small) % 50,
            200..=229 => u64::from(self.byte()) << 8 | u64::from(self.byte()),
            230..=239 => u64::MAX - u64::from(self.byte()),
            240..=249 => (1 << 63) - 1 + u64::from(self.byte()),
            _ => u64::from(u32::MAX) - 1 + u64::from(self.byte()),
        }
    }
}
