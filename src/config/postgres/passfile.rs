//! The password file: `host:port:database:user:password`, one line each, the first that matches
//! counts.
//!
//! `*` stands for anything, `\:` and `\\` for themselves, `#` begins a comment line. A Unix socket
//! matches as `localhost` and by its directory. A file that others may read is not used.

use std::path::{Path, PathBuf};

use super::{PostgresHost, PostgresPlan};
use crate::config::secret::{SecretError, Secrets};
use crate::secret::Secret;

impl PostgresPlan {
    /// With the passwords of the password file, unless there is a password already: the file
    /// `passfile` names, else `PGPASSFILE`, else `~/.pgpass`. What is wrong with the file becomes
    /// a warning.
    pub fn with_passfile(mut self, secrets: &dyn Secrets) -> PostgresPlan {
        if self.password.is_some() {
            return self;
        }
        let Some((path, named)) = self.passfile_path(secrets) else { return self };
        match secrets.private_file(&path.display().to_string()) {
            Ok(text) => {
                let find = |host| lookup(&text, host, &self.database, &self.user);
                self.host_passwords = self.hosts.iter().map(find).collect();
            }
            Err(SecretError::Absent) if !named => {}
            Err(error) => {
                self.warnings.push(format!("password file {path:?} {error}; it is not used"));
            }
        }
        self
    }

    /// Which file, and whether somebody named it.
    fn passfile_path(&self, secrets: &dyn Secrets) -> Option<(PathBuf, bool)> {
        let set = |name| secrets.env(name).ok().filter(|value| !value.is_empty());
        if let Some(path) = self.passfile.clone().or_else(|| set("PGPASSFILE").map(PathBuf::from)) {
            return Some((path, true));
        }
        Some((Path::new(&set("HOME")?).join(".pgpass"), false))
    }
}

/// The password of the first line that matches; an empty one counts as none.
fn lookup(text: &str, host: &PostgresHost, database: &str, user: &str) -> Option<Secret> {
    let (names, port) = match host {
        PostgresHost::Tcp { host, port } => (vec![host.clone()], port),
        PostgresHost::Unix { directory, port } => {
            (vec!["localhost".to_owned(), directory.display().to_string()], port)
        }
    };
    let port = port.to_string();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let password = lines.filter_map(|line| {
        let rest = names.iter().find_map(|name| field(line, name))?;
        field(field(field(rest, &port)?, database)?, user)
    });
    let password = unescape(password.into_iter().next()?);
    (!password.is_empty()).then(|| Secret::from(password))
}

/// What is behind the first field, if the field matches.
fn field<'l>(line: &'l str, wanted: &str) -> Option<&'l str> {
    if let Some(rest) = line.strip_prefix("*:") {
        return Some(rest);
    }
    let mut escaped = false;
    let end = line.find(|c| {
        let ends = c == ':' && !escaped;
        escaped = c == '\\' && !escaped;
        ends
    })?;
    let (name, rest) = line.split_at(end);
    (unescape(name) == wanted).then(|| &rest[1..])
}

fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => out.extend(chars.next()),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Files by path, or why they cannot be read.
    #[derive(Default)]
    struct Files {
        files: BTreeMap<String, Result<String, SecretError>>,
        env: BTreeMap<&'static str, &'static str>,
    }

    impl Secrets for Files {
        fn env(&self, name: &str) -> Result<String, SecretError> {
            self.env.get(name).map(|value| (*value).to_owned()).ok_or(SecretError::Unset)
        }
        fn file(&self, path: &str) -> Result<String, SecretError> {
            self.files.get(path).cloned().unwrap_or(Err(SecretError::Absent))
        }
    }

    const URI: &str = "postgresql://tide@db:5432,db2:5433/shop";

    fn found(line: &str, connection: &str) -> Option<String> {
        let plan = PostgresPlan::parse(connection, None).unwrap();
        lookup(line, &plan.hosts[0], &plan.database, &plan.user)
            .map(|secret| secret.expose().to_owned())
    }

    #[test]
    fn the_first_line_that_matches_counts() {
        let text = "# db:5432:shop:tide:comment\n\ndb:5432:other:tide:1\n*:*:shop:tide:2\n\
                    db:5432:shop:tide:3\n";
        assert_eq!(found(text, URI).as_deref(), Some("2"));
        assert_eq!(found("db:5432:shop:tide:a:b\\:c\\\\d\r\n", URI).as_deref(), Some("a:b:c\\d"));
        for line in ["db:5432:shop:tide:", "db:5432:shop:tide", "db:5433:shop:tide:x", "", "*:*"] {
            assert_eq!(found(line, URI), None, "{line}");
        }
    }

    #[test]
    fn escapes_and_sockets_match() {
        let odd = "host=::1 user='a:b\\\\c' dbname=d";
        assert_eq!(found("\\:\\:1:5432:d:a\\:b\\\\c:x", odd).as_deref(), Some("x"));
        let socket = "host=/run/postgresql port=5544 user=u dbname=d";
        assert_eq!(found("localhost:5544:d:u:x", socket).as_deref(), Some("x"));
        assert_eq!(found("/run/postgresql:5544:d:u:x", socket).as_deref(), Some("x"));
        assert_eq!(found("/tmp:5544:d:u:x", socket), None);
    }

    #[test]
    fn each_host_has_its_own_password_and_a_given_one_wins() {
        let text = "db:*:*:tide:first-pw\ndb2:5433:*:*:second-pw\n".to_owned();
        let files = Files {
            files: [("/home/t/.pgpass".to_owned(), Ok(text))].into(),
            env: [("HOME", "/home/t")].into(),
        };
        let plan = PostgresPlan::parse(URI, None).unwrap().with_passfile(&files);
        assert_eq!(
            (plan.password_of(0), plan.password_of(1)),
            (Some("first-pw"), Some("second-pw"))
        );
        assert!(!format!("{plan:?}").contains("first-pw"));
        let plan = PostgresPlan::parse(URI, Some("given")).unwrap().with_passfile(&files);
        assert_eq!((plan.password_of(0), plan.password_of(1)), (Some("given"), Some("given")));
    }

    #[test]
    fn a_file_that_others_may_read_is_not_used_and_said_so() {
        let exposed = || Err(SecretError::Exposed { mode: 0o644 });
        let files = Files {
            files: [("/etc/pw".to_owned(), exposed())].into(),
            env: [("PGPASSFILE", "/etc/pw"), ("HOME", "/home/t")].into(),
        };
        let plan = PostgresPlan::parse(URI, None).unwrap().with_passfile(&files);
        assert_eq!((plan.password_of(0), plan.warnings.len()), (None, 1));
        assert!(plan.warnings[0].contains("\"/etc/pw\" may be read by others"), "{plan:?}");
        // Nobody named this one, so its absence is no news; of a named one it is.
        let none = Files { env: [("HOME", "/home/t")].into(), ..Files::default() };
        assert!(PostgresPlan::parse(URI, None).unwrap().with_passfile(&none).warnings.is_empty());
        let named = format!("{URI}?passfile=/gone");
        let plan = PostgresPlan::parse(&named, None).unwrap().with_passfile(&none);
        assert!(plan.warnings[0].contains("\"/gone\" does not exist"), "{plan:?}");
    }
}
