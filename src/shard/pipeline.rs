//! The heart: events in, commands out.
