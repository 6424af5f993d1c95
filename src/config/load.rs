//! Reads the configuration file and what its references name. The only file access in `config`.
#![allow(clippy::disallowed_methods)] // start-up reads, before any shard exists

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::error::{ConfigError, ConfigErrors, Position};
use super::plan::Plan;
use super::secret::{SecretError, Secrets};
use crate::secret::Secret;

/// References resolved from this process's environment and files.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemSecrets;

/// Reads and validates a file with [`SystemSecrets`].
pub fn load(path: &Path) -> Result<Plan, ConfigErrors> {
    let name = path.display().to_string();
    super::parse(read_config(path)?.expose(), &name, &SystemSecrets)
}

/// Like [`load`], but passwords and tokens stay unread: an operator who looks at state files
/// needs no right to the secrets.
pub fn load_without_credentials(path: &Path) -> Result<Plan, ConfigErrors> {
    let name = path.display().to_string();
    super::parse_without_credentials(read_config(path)?.expose(), &name, &SystemSecrets)
}

impl Secrets for SystemSecrets {
    fn env(&self, name: &str) -> Result<String, SecretError> {
        let value = std::env::var_os(name).ok_or(SecretError::Unset)?;
        value.into_string().map_err(|_| SecretError::NotText)
    }

    fn file(&self, path: &str) -> Result<String, SecretError> {
        let bytes = read_bounded(Path::new(path), SECRET_LIMIT)
            .map_err(|error| SecretError::Unreadable(error.to_string()))?
            .ok_or(SecretError::TooLarge { limit: SECRET_LIMIT })?;
        String::from_utf8(bytes).map_err(|_| SecretError::NotText)
    }

    fn private_file(&self, path: &str) -> Result<String, SecretError> {
        let metadata = std::fs::metadata(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => SecretError::Absent,
            _ => SecretError::Unreadable(error.to_string()),
        })?;
        let mode = metadata.permissions().mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(SecretError::Exposed { mode });
        }
        if !metadata.is_file() {
            return Err(SecretError::Unreadable("it is not a plain file".to_owned()));
        }
        self.file(path)
    }
}

/// Largest secret file, bytes.
const SECRET_LIMIT: u64 = 64 << 10;
/// Largest configuration file, bytes.
const CONFIG_LIMIT: u64 = 4 << 20;

// Passwords may stand in it.
fn read_config(path: &Path) -> Result<Secret, ConfigErrors> {
    let bytes = match read_bounded(path, CONFIG_LIMIT) {
        Ok(Some(bytes)) => bytes,
        Ok(None) => {
            let seen = format!("the file is larger than {CONFIG_LIMIT} bytes");
            return Err(whole_file(path, None, seen, "name the configuration file"));
        }
        Err(error) => {
            let seen = format!("the file cannot be read: {error}");
            let advice = "check the path after --config and the file's permissions";
            return Err(whole_file(path, None, seen, advice));
        }
    };
    String::from_utf8(bytes).map(Secret::from).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let text = String::from_utf8_lossy(&error.as_bytes()[..valid]).into_owned();
        let seen = "bytes that are not UTF-8".to_owned();
        whole_file(path, Some(Position::of(&text, valid)), seen, "save the file as UTF-8")
    })
}

fn whole_file(path: &Path, at: Option<Position>, seen: String, advice: &str) -> ConfigErrors {
    ConfigErrors::new(vec![ConfigError {
        file: path.display().to_string(),
        at,
        key: String::new(),
        seen,
        expected: "a readable TOML file".to_owned(),
        advice: advice.to_owned(),
    }])
}

/// `None` when there is more than `limit`.
fn read_bounded(path: &Path, limit: u64) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(limit + 1).read_to_end(&mut bytes)?;
    Ok(if bytes.len() as u64 > limit { None } else { Some(bytes) })
}
