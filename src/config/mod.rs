//! Configuration: TOML text → raw types → validated [`Plan`]. Unknown keys are refused with a
//! suggestion, every error names file, line and key (O1), secrets come from `${env:X}` and
//! `${file:F}` and are never shown.

pub mod plan;

pub use plan::*;
