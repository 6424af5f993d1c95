//! A directory and a port for a command that sets something up, shows it and leaves no trace.
#![allow(clippy::disallowed_methods)] // files and ports

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// A directory of its own with one for state files in it, removed with its handle.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// `tidegate-<what>-…` where temporary files go.
    pub fn create(what: &str) -> io::Result<Scratch> {
        Scratch::create_in(&std::env::temp_dir(), what)
    }

    /// The same in another directory.
    pub fn create_in(place: &Path, what: &str) -> io::Result<Scratch> {
        let name = format!("tidegate-{what}-{}-{:08x}", std::process::id(), fastrand::u32(..));
        let dir = Scratch(place.join(name));
        let builder = || {
            let mut builder = fs::DirBuilder::new();
            builder.mode(0o700);
            builder
        };
        builder().create(dir.path())?;
        builder().create(dir.state_dir())?;
        Ok(dir)
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// For state files.
    pub fn state_dir(&self) -> PathBuf {
        self.0.join("state")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed stays where temporary files are expected.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A port nobody listens on. Somebody may take it before the one it is meant for does, who then
/// says so.
pub fn free_port() -> io::Result<SocketAddr> {
    TcpListener::bind("127.0.0.1:0")?.local_addr()
}
