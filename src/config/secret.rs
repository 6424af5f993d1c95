//! References in string values: `${env:NAME}`, `${file:/path}`, and `$${` for a literal `${`.
//!
//! What a reference expands to is returned and nowhere shown: errors carry the name of the
//! variable or file. An expanded value is not expanded again.

/// Where references lead. The driver side reads the process's environment and files.
pub trait Secrets {
    /// Value of an environment variable.
    fn env(&self, name: &str) -> Result<String, SecretError>;
    /// Content of a file, as it is.
    fn file(&self, path: &str) -> Result<String, SecretError>;
    /// Content of a file that only its owner may read; where rights are not known, of any file.
    fn private_file(&self, path: &str) -> Result<String, SecretError> {
        self.file(path)
    }
}

/// Why a reference has no value. Never holds the value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// The variable is not in the environment.
    #[error("is not set")]
    Unset,
    /// Not UTF-8.
    #[error("is not valid UTF-8")]
    NotText,
    /// The file is larger than any secret.
    #[error("is larger than {limit} bytes")]
    TooLarge {
        /// The limit.
        limit: u64,
    },
    /// The file cannot be opened or read.
    #[error("cannot be read: {0}")]
    Unreadable(String),
    /// There is no such file.
    #[error("does not exist")]
    Absent,
    /// The file is no secret: its group or the world may read it.
    #[error("may be read by others (mode {mode:04o}, expected 0600)")]
    Exposed {
        /// Its permissions.
        mode: u32,
    },
}

/// A reference that has no value.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BadReference {
    pub seen: String,
    pub expected: &'static str,
    pub advice: String,
}

/// The text with its references replaced; `None` if it has none.
pub(super) fn expand(raw: &str, secrets: &dyn Secrets) -> Result<Option<String>, BadReference> {
    if !raw.contains("${") {
        return Ok(None);
    }
    let mut out = String::with_capacity(raw.len());
    let mut rest = raw;
    while let Some(at) = rest.find("${") {
        if let Some(literal) = rest[..at].strip_suffix('$') {
            out.push_str(literal);
            out.push_str("${");
            rest = &rest[at + 2..];
            continue;
        }
        out.push_str(&rest[..at]);
        let inner = &rest[at + 2..];
        let end = inner.find('}').ok_or_else(unfinished)?;
        out.push_str(&resolve(&inner[..end], secrets)?);
        rest = &inner[end + 1..];
    }
    out.push_str(rest);
    Ok(Some(out))
}

fn resolve(reference: &str, secrets: &dyn Secrets) -> Result<String, BadReference> {
    if let Some(name) = reference.strip_prefix("env:") {
        if !is_variable_name(name) {
            return Err(malformed("an ${env:…} reference without a proper variable name"));
        }
        return secrets.env(name).map_err(|error| BadReference {
            seen: format!("environment variable {name} {error}"),
            expected: "a variable that holds the value",
            advice: format!("set {name} for the process, or use ${{file:/path}}"),
        });
    }
    if let Some(path) = reference.strip_prefix("file:") {
        if !path.starts_with('/') {
            return Err(malformed("a ${file:…} reference without an absolute path"));
        }
        let content = secrets.file(path).map_err(|error| BadReference {
            seen: format!("file {path:?} {error}"),
            expected: "a readable text file that holds the value",
            advice: format!(
                "create {path:?} or let the user that runs tidegate read it, or use ${{env:NAME}}"
            ),
        })?;
        return Ok(without_final_newline(&content).to_owned());
    }
    Err(malformed("a reference that is neither ${env:NAME} nor ${file:/path}"))
}

// The text of a malformed reference may be a password that happens to contain "${": not shown.
fn malformed(seen: &str) -> BadReference {
    BadReference {
        seen: seen.to_owned(),
        expected: "${env:NAME} or ${file:/path}",
        advice: "correct the reference; write $${ where a literal ${ is meant".to_owned(),
    }
}

fn unfinished() -> BadReference {
    malformed("a \"${\" without its closing brace")
}

fn is_variable_name(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn without_final_newline(content: &str) -> &str {
    let content = content.strip_suffix('\n').unwrap_or(content);
    content.strip_suffix('\r').unwrap_or(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed;

    impl Secrets for Fixed {
        fn env(&self, name: &str) -> Result<String, SecretError> {
            if name == "SET" { Ok("${env:SET}".to_owned()) } else { Err(SecretError::Unset) }
        }
        fn file(&self, path: &str) -> Result<String, SecretError> {
            match path {
                "/unix" => Ok("line\n".to_owned()),
                "/dos" => Ok("line\r\n".to_owned()),
                "/blank-end" => Ok("line \n\n".to_owned()),
                _ => Err(SecretError::Unreadable("no such file".to_owned())),
            }
        }
    }

    fn expanded(raw: &str) -> String {
        expand(raw, &Fixed).unwrap().unwrap()
    }

    #[test]
    fn one_trailing_newline_is_dropped_and_nothing_else() {
        assert_eq!(expanded("${file:/unix}"), "line");
        assert_eq!(expanded("${file:/dos}"), "line");
        assert_eq!(expanded("${file:/blank-end}"), "line \n");
    }

    #[test]
    fn an_expanded_value_is_not_expanded_again() {
        assert_eq!(expanded("a-${env:SET}-b"), "a-${env:SET}-b");
    }

    #[test]
    fn doubled_dollar_is_a_literal() {
        assert_eq!(expanded("$${env:X} ${file:/unix}"), "${env:X} line");
        assert_eq!(expand("plain $ text", &Fixed), Ok(None));
    }

    #[test]
    fn malformed_references_never_show_their_text() {
        for raw in ["pw${hunter2}", "pw${hunter2", "${env:hunter2 }", "${file:hunter2}", "${env:}"]
        {
            let bad = expand(raw, &Fixed).unwrap_err();
            let shown = format!("{} {} {}", bad.seen, bad.expected, bad.advice);
            assert!(!shown.contains("hunter2"), "{shown}");
        }
    }

    #[test]
    fn a_missing_value_names_its_variable_or_file() {
        assert!(expand("${env:GONE}", &Fixed).unwrap_err().seen.contains("GONE is not set"));
        assert!(expand("${file:/gone}", &Fixed).unwrap_err().seen.contains("\"/gone\" cannot"));
    }
}
