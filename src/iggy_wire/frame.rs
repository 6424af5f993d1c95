//! The 256-byte headers.
