//! Whose fault it was: the peer's bytes ([`PgWireError`]) or the peer's complaint
//! ([`ServerError`], and [`Notice`] where it only remarks on something).
//!
//! ```text
//! ErrorResponse 'E', NoticeResponse 'N'    ( field:1 text\0 ) ... 0
//! ```

use std::fmt;
use std::str::Utf8Error;

use super::reader::Reader;

/// Bytes that do not follow the protocol. The connection that carried them is beyond use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PgWireError {
    /// A length inside the message points behind its end.
    #[error("{what} is cut: need {need} bytes, have {have}")]
    Truncated {
        /// The field or structure.
        what: &'static str,
        /// Bytes needed.
        need: usize,
        /// Bytes there.
        have: usize,
    },
    /// A message longer than the reader takes.
    #[error("message {} has {size} bytes, more than the {largest} allowed", shown_tag(*tag))]
    TooLarge {
        /// Its tag.
        tag: u8,
        /// All of its bytes, tag and length included.
        size: u64,
        /// The limit.
        largest: u32,
    },
    /// A message that cannot come now.
    #[error("unexpected message {} {during}", shown_tag(*tag))]
    UnexpectedTag {
        /// Its tag.
        tag: u8,
        /// What was going on.
        during: &'static str,
    },
    /// Text that is not UTF-8 although `client_encoding` is.
    #[error("{what} is not UTF-8: byte {byte:#04x} at {at}")]
    NotUtf8 {
        /// The field.
        what: &'static str,
        /// First byte that does not fit.
        byte: u8,
        /// Its place in the field.
        at: usize,
    },
    /// A value that no server sends.
    #[error("{what}: saw {seen}, expected {expected}")]
    Invalid {
        /// The field or structure.
        what: &'static str,
        /// What was there.
        seen: String,
        /// What the protocol allows.
        expected: &'static str,
    },
}

impl PgWireError {
    /// From the failed check of `bytes`.
    pub(super) fn not_utf8(what: &'static str, bytes: &[u8], error: Utf8Error) -> PgWireError {
        let at = error.valid_up_to();
        PgWireError::NotUtf8 { what, byte: bytes.get(at).copied().unwrap_or_default(), at }
    }
}

/// What the server said went wrong. Shown in one line.
#[derive(Clone, Debug, Default, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ServerError(pub Box<Notice>);

impl std::ops::Deref for ServerError {
    type Target = Notice;

    fn deref(&self) -> &Notice {
        &self.0
    }
}

/// The fields of an error or a notice. Shown in one line. Text in another encoding than UTF-8
/// (a server's complaint before the session's encoding is set) has its odd bytes replaced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notice {
    /// `ERROR`, `FATAL`, `WARNING`, …; never translated.
    pub severity: String,
    /// SQLSTATE, for example `42704`.
    pub code: String,
    /// The message.
    pub message: String,
    /// More about it.
    pub detail: Option<String>,
    /// What to do.
    pub hint: Option<String>,
    /// Context: the call stack of the server.
    pub where_: Option<String>,
    /// Schema it is about.
    pub schema: Option<String>,
    /// Table it is about.
    pub table: Option<String>,
    /// Column it is about.
    pub column: Option<String>,
}

impl ServerError {
    /// From the body of an ErrorResponse.
    pub fn parse(body: &[u8]) -> Result<ServerError, PgWireError> {
        Ok(ServerError(Box::new(Notice::parse(body)?)))
    }

    /// Whether the session is over.
    pub fn is_fatal(&self) -> bool {
        matches!(self.severity.as_str(), "FATAL" | "PANIC")
    }
}

impl Notice {
    /// From the body of an ErrorResponse or NoticeResponse.
    pub fn parse(body: &[u8]) -> Result<Notice, PgWireError> {
        let mut notice = Notice::default();
        let mut reader = Reader::new(body);
        let mut translated = String::new();
        loop {
            let field = reader.u8("field of an error or notice")?;
            if field == 0 {
                break;
            }
            let text = reader.cstr("text of an error or notice")?;
            let text = String::from_utf8_lossy(text).into_owned();
            match field {
                b'V' => notice.severity = text,
                b'S' => translated = text,
                b'C' => notice.code = text,
                b'M' => notice.message = text,
                b'D' => notice.detail = Some(text),
                b'H' => notice.hint = Some(text),
                b'W' => notice.where_ = Some(text),
                b's' => notice.schema = Some(text),
                b't' => notice.table = Some(text),
                b'c' => notice.column = Some(text),
                // Source positions of the server, and whatever a later version adds.
                _ => {}
            }
        }
        if notice.severity.is_empty() {
            // Servers before 9.6 and poolers send the translated one only.
            notice.severity = translated;
        }
        Ok(notice)
    }

    /// Whether the SQLSTATE is `code`.
    pub fn is(&self, code: &str) -> bool {
        self.code == code
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: ", or(&self.severity, "ERROR"), or(&self.code, "without a code"))?;
        one_line(f, &self.message)?;
        for (name, text) in
            [("detail", &self.detail), ("hint", &self.hint), ("context", &self.where_)]
        {
            if let Some(text) = text {
                write!(f, "; {name}: ")?;
                one_line(f, text)?;
            }
        }
        Ok(())
    }
}

fn or<'t>(text: &'t str, otherwise: &'t str) -> &'t str {
    if text.is_empty() { otherwise } else { text }
}

/// Control characters could break a log line or steer a terminal.
fn one_line(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    use fmt::Write;
    text.chars().try_for_each(|c| f.write_char(if c.is_control() { ' ' } else { c }))
}

/// A tag as the manual writes it.
fn shown_tag(tag: u8) -> String {
    if tag.is_ascii_graphic() { format!("'{}'", char::from(tag)) } else { format!("{tag:#04x}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNKNOWN_SLOT: &[u8] =
        b"SFEHLER\0VERROR\0C42704\0Mreplication slot \"x\" does not\n exist\0\
        Dline one\0Hcreate it\0Fslot.c\0L401\0RReplicationSlotAcquire\0\0";

    #[test]
    fn the_untranslated_severity_wins_and_the_display_is_one_line() {
        let error = ServerError::parse(UNKNOWN_SLOT).unwrap();
        assert_eq!((error.severity.as_str(), error.code.as_str()), ("ERROR", "42704"));
        assert!(error.is("42704") && !error.is_fatal());
        assert_eq!(
            error.to_string(),
            "ERROR 42704: replication slot \"x\" does not  exist; detail: line one; \
             hint: create it"
        );
    }

    #[test]
    fn every_cut_of_an_error_is_an_error_of_the_wire() {
        for length in 0..UNKNOWN_SLOT.len() {
            let cut = Notice::parse(&UNKNOWN_SLOT[..length]);
            assert!(matches!(cut, Err(PgWireError::Truncated { .. })), "{length}: {cut:?}");
        }
    }

    #[test]
    fn an_old_server_or_pooler_has_one_severity_only() {
        let error = ServerError::parse(b"SFATAL\0C08P01\0Mno\xe9\0\0").unwrap();
        assert!(error.is_fatal());
        assert_eq!(error.message, "no\u{fffd}");
    }

    #[test]
    fn tags_are_shown_as_the_manual_writes_them() {
        let during = "while waiting for an answer";
        let printed = PgWireError::UnexpectedTag { tag: b'G', during }.to_string();
        assert_eq!(printed, "unexpected message 'G' while waiting for an answer");
        let printed = PgWireError::TooLarge { tag: 0, size: 9, largest: 5 }.to_string();
        assert_eq!(printed, "message 0x00 has 9 bytes, more than the 5 allowed");
    }
}
