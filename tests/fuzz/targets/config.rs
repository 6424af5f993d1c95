//! Configurations: any text is refused with its place and what to do, or becomes a plan; what a
//! reference leads to is shown by neither.

use tidegate::config::{PostgresPlan, SecretError, Secrets, parse, parse_without_credentials};

/// What every reference leads to. It has to be a word that no corpus has.
const SECRET: &str = "Zq7-hunter2-Zq7";

struct Everywhere;

impl Secrets for Everywhere {
    fn env(&self, _: &str) -> Result<String, SecretError> {
        Ok(SECRET.to_owned())
    }

    fn file(&self, path: &str) -> Result<String, SecretError> {
        match path.len() % 3 {
            0 => Err(SecretError::Unreadable("not there".to_owned())),
            _ => Ok(format!("{SECRET}\n")),
        }
    }
}

/// `data` as the text of a file, and as a connection string.
pub fn text(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for plan in [parse(&text, "x", &Everywhere), parse_without_credentials(&text, "x", &Everywhere)]
    {
        match plan {
            Ok(plan) => {
                let (mirrors, captures) = (&plan.sources, &plan.captures);
                let shown =
                    format!("{:?} {:?} {mirrors:?} {captures:?}", plan.admin, plan.clusters);
                assert!(!names_a_credential(&text) || !shown.contains(SECRET), "{shown}");
                assert!(!plan.sources.is_empty() || !plan.captures.is_empty());
            }
            Err(errors) => {
                let shown = format!("{errors} {errors:?}");
                assert!(!shown.contains(SECRET), "{shown}");
                assert!(!shown.trim().is_empty());
            }
        }
    }
    if let Ok(plan) = PostgresPlan::parse(&text, Some(SECRET)) {
        assert!(!plan.hosts.is_empty() && !plan.user.is_empty());
        let shown = format!("{plan:?} {}", plan.redacted());
        assert!(!shown.contains(SECRET), "{shown}");
    }
}

/// A reference may stand anywhere; in a host name it is no secret.
fn names_a_credential(text: &str) -> bool {
    let references = text.lines().filter(|line| line.contains("${"));
    references.into_iter().all(|line| {
        let key = line.split('=').next().unwrap_or_default().trim();
        matches!(key, "password" | "token")
    })
}
