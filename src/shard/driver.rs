//! The monoio driver.
