//! A password or token on its way from the configuration to the wire.
//!
//! It shows itself to nobody who does not ask by name, and its memory is wiped when the last
//! owner lets go. Copies that others make (the TOML parser, TLS, the kernel) are out of reach;
//! what keeps those out of core dumps is [`crate::shard::driver::limits`].

use std::fmt;

use zeroize::Zeroizing;

/// Text that `Debug` hides and `Drop` wipes.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// The text, for the one who needs it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Secret {
        Secret(Zeroizing::new(text))
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Secret {
        text.to_owned().into()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_shown_to_nobody_who_does_not_ask_by_name() {
        let secret = Secret::from("hunter2");
        assert_eq!(format!("{secret:?} {:#?}", Some(secret.clone())).matches("hidden").count(), 2);
        assert!(!format!("{:?}", (secret.clone(), [secret.clone()])).contains("hunter2"));
        assert_eq!(secret.expose(), "hunter2");
    }
}
