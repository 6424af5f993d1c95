//! Faults of the file layer, by rule, for tests of the real binary: off unless
//! `TIDEGATE_FAULT_FILES` is set (or a test builds them). Rules are separated by `;`:
//! ```text
//!   log=PATH                         one line per operation: file, step, result, tab-separated
//!   STEP:ACTION[:CONDITION]...
//!     STEP       open | write | sync | close | rename | sync_dir | unlink | any (of these)
//!                mark_look | mark | mark_sync | mark_remove | mark_sync_dir   of a pause's marker
//!     ACTION     eio | enospc | edquot | einval | erofs | eacces   not performed, reported so
//!                pause=MS              waits first; the log has a line `pause` before the wait
//!                short=BYTES           a write takes at most so many
//!     CONDITION  times=N, skip=N       only the first N matches; not the first N
//!                while=PATH            only while that file exists
//!                source=KEY            only this source's file
//! ```
//! Example: `log=/run/ops;sync:eio:times=1;rename:pause=2000:skip=3:source=orders`.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::statefile::inspect::parse_file_name;

/// Environment variable that holds the rules.
pub const FAULTS_ENV: &str = "TIDEGATE_FAULT_FILES";

const STEPS: [&str; 8] = ["open", "write", "sync", "close", "rename", "sync_dir", "unlink", "any"];
/// Steps of a pause's marker; they can only fail.
const MARKER_STEPS: [&str; 5] = ["mark_look", "mark", "mark_sync", "mark_remove", "mark_sync_dir"];

const ERRNOS: [(&str, i32); 6] = [
    ("eio", libc::EIO),
    ("enospc", libc::ENOSPC),
    ("edquot", libc::EDQUOT),
    ("einval", libc::EINVAL),
    ("erofs", libc::EROFS),
    ("eacces", libc::EACCES),
];

/// Injected faults, shared by all shards. The default has none and costs one comparison.
#[derive(Clone, Debug, Default)]
pub struct FileFaults(Option<Arc<Plan>>);

/// A rule that is not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{FAULTS_ENV}: in rule {rule:?}, {part:?} is not {expected}")]
pub struct FaultRuleError {
    /// The whole rule.
    pub rule: String,
    /// The part at fault.
    pub part: String,
    /// What may stand there.
    pub expected: &'static str,
}

/// What becomes of one operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Verdict {
    Perform,
    Fail(i32),
    Short(usize),
}

#[derive(Debug, Default)]
struct Plan {
    log: Option<PathBuf>,
    /// Locked by test runs only.
    rules: Mutex<Vec<Rule>>,
}

#[derive(Clone, Debug)]
struct Rule {
    step: String,
    action: Action,
    skip: u64,
    times: u64,
    while_exists: Option<PathBuf>,
    source: Option<String>,
}

#[derive(Clone, Copy, Debug)]
enum Action {
    Fail(i32),
    Pause(Duration),
    Short(usize),
}

impl FileFaults {
    /// The faults that the environment asks for; none if the variable is not set.
    pub fn from_env() -> Result<FileFaults, FaultRuleError> {
        match std::env::var(FAULTS_ENV) {
            Ok(rules) => FileFaults::parse(&rules),
            Err(std::env::VarError::NotPresent) => Ok(FileFaults::default()),
            Err(std::env::VarError::NotUnicode(rules)) => {
                let rules = rules.to_string_lossy().into_owned();
                Err(FaultRuleError { rule: rules.clone(), part: rules, expected: "text" })
            }
        }
    }

    /// Reads rules; the module's head has the grammar.
    pub fn parse(rules: &str) -> Result<FileFaults, FaultRuleError> {
        let mut plan = Plan::default();
        let mut parsed = Vec::new();
        for rule in rules.split(';').map(str::trim).filter(|rule| !rule.is_empty()) {
            match rule.strip_prefix("log=") {
                Some(path) => plan.log = Some(path.into()),
                None => parsed.push(Rule::parse(rule)?),
            }
        }
        plan.rules = Mutex::new(parsed);
        Ok(FileFaults(Some(Arc::new(plan))))
    }

    /// True if any rule or log is set: the daemon says so when it starts.
    pub fn active(&self) -> bool {
        self.0.is_some()
    }

    /// What to wait and what to do before `step` of the save of `file`.
    pub(super) fn before(&self, step: &str, file: &Path) -> (Option<Duration>, Verdict) {
        let Some(plan) = &self.0 else { return (None, Verdict::Perform) };
        let (mut pause, mut verdict) = (None::<Duration>, Verdict::Perform);
        for rule in plan.rules.lock().unwrap_or_else(PoisonError::into_inner).iter_mut() {
            if !rule.applies(step, file) {
                continue;
            }
            match rule.action {
                Action::Pause(time) => pause = Some(pause.unwrap_or_default() + time),
                Action::Fail(errno) => verdict = Verdict::Fail(errno),
                Action::Short(bytes) => verdict = Verdict::Short(bytes),
            }
        }
        if let Some(pause) = pause {
            plan.append(step, file, &format!("pause {}", pause.as_millis()));
        }
        (pause, verdict)
    }

    /// The error that a step of a pause's marker ends with instead of being done.
    pub(in crate::shard::driver) fn errno(&self, step: &str, marker: &Path) -> Option<i32> {
        match self.before(step, marker).1 {
            Verdict::Fail(errno) => Some(errno),
            Verdict::Perform | Verdict::Short(_) => None,
        }
    }

    /// Adds one line about an operation that has ended.
    pub(super) fn log(&self, step: &str, file: &Path, result: &io::Result<usize>) {
        let Some(plan) = &self.0 else { return };
        match result {
            Ok(_) if step != "write" => plan.append(step, file, "ok"),
            Ok(bytes) => plan.append(step, file, &format!("ok {bytes}")),
            Err(error) => plan.append(step, file, &error.to_string()),
        }
    }
}

impl Plan {
    fn append(&self, step: &str, file: &Path, what: &str) {
        let Some(log) = &self.log else { return };
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let line = format!("{name}\t{step}\t{what}\n");
        let written = fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(log)
            .and_then(|mut log| log.write_all(line.as_bytes()));
        if let Err(error) = written {
            tracing::warn!(log = %log.display(), %error, "operation log of injected faults");
        }
    }
}

impl Rule {
    fn parse(text: &str) -> Result<Rule, FaultRuleError> {
        let refuse = |part: &str, expected| {
            Err(FaultRuleError { rule: text.to_owned(), part: part.to_owned(), expected })
        };
        let mut parts = text.split(':');
        let step = parts.next().unwrap_or_default();
        if !STEPS.contains(&step) && !MARKER_STEPS.contains(&step) {
            return refuse(step, "log=PATH or a step of a save or a marker");
        }
        let action = parts.next().unwrap_or_default();
        let Some(parsed) = Action::parse(action) else {
            return refuse(action, "an error name, pause=MS or short=BYTES");
        };
        let mut rule = Rule {
            step: step.to_owned(),
            action: parsed,
            skip: 0,
            times: u64::MAX,
            while_exists: None,
            source: None,
        };
        for part in parts {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            match (key, value.parse::<u64>()) {
                ("times", Ok(times)) => rule.times = times,
                ("skip", Ok(skip)) => rule.skip = skip,
                ("while", _) if !value.is_empty() => rule.while_exists = Some(value.into()),
                ("source", _) if !value.is_empty() => rule.source = Some(value.to_owned()),
                _ => return refuse(part, "times=N, skip=N, while=PATH or source=KEY"),
            }
        }
        Ok(rule)
    }

    fn applies(&mut self, step: &str, file: &Path) -> bool {
        let source = || {
            let name = file.file_name()?.to_str()?;
            name.strip_suffix(".paused").or_else(|| parse_file_name(name).map(|(source, _)| source))
        };
        let matches = (self.step == step || self.step == "any" && STEPS.contains(&step))
            && self.source.as_deref().is_none_or(|wanted| source() == Some(wanted))
            && self.while_exists.as_ref().is_none_or(|flag| flag.exists());
        if !matches {
            return false;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        let left = self.times > 0;
        self.times = self.times.saturating_sub(1);
        left
    }
}

impl Action {
    fn parse(text: &str) -> Option<Action> {
        if let Some((_, errno)) = ERRNOS.iter().find(|(name, _)| *name == text) {
            return Some(Action::Fail(*errno));
        }
        let (key, value) = text.split_once('=')?;
        match key {
            "pause" => value.parse().ok().map(|ms| Action::Pause(Duration::from_millis(ms))),
            "short" => value.parse().ok().map(Action::Short),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "/state/orders.0.state";

    fn verdicts(rules: &str, step: &str, n: usize) -> Vec<Verdict> {
        let faults = FileFaults::parse(rules).unwrap();
        (0..n).map(|_| faults.before(step, Path::new(FILE)).1).collect()
    }

    #[test]
    fn a_rule_counts_skips_and_times() {
        use Verdict::{Fail, Perform, Short};
        let eio = Fail(libc::EIO);
        assert_eq!(verdicts("sync:eio:times=1", "sync", 3), [eio, Perform, Perform]);
        assert_eq!(verdicts("sync:eio:skip=1:times=1", "sync", 3), [Perform, eio, Perform]);
        assert_eq!(verdicts("any:eio", "rename", 2), [eio, eio]);
        assert_eq!(verdicts("sync:eio", "rename", 1), [Perform]);
        assert_eq!(verdicts("write:short=512", "write", 1), [Short(512)]);
        assert_eq!(verdicts("sync:eio:source=audit", "sync", 1), [Perform]);
        assert_eq!(verdicts("sync:eio:source=orders", "sync", 1), [eio]);
    }

    #[test]
    fn a_flag_file_turns_a_rule_on_and_off() {
        let dir = tempfile::tempdir().unwrap();
        let flag = dir.path().join("flag");
        let faults = FileFaults::parse(&format!("any:enospc:while={}", flag.display())).unwrap();
        let verdict = || faults.before("write", Path::new(FILE)).1;
        assert_eq!(verdict(), Verdict::Perform);
        fs::write(&flag, b"").unwrap();
        assert_eq!(verdict(), Verdict::Fail(libc::ENOSPC));
        fs::remove_file(&flag).unwrap();
        assert_eq!(verdict(), Verdict::Perform);
    }

    #[test]
    fn a_rule_that_is_not_understood_is_refused() {
        for (rules, part) in [
            ("fsync:eio", "fsync"),
            ("sync", ""),
            ("sync:boom", "boom"),
            ("sync:pause=soon", "pause=soon"),
            ("log=/x; sync:eio:times=-1", "times=-1"),
            ("sync:eio:while=", "while="),
            ("sync:eio:often", "often"),
        ] {
            let error = FileFaults::parse(rules).unwrap_err();
            assert_eq!(error.part, part, "{error}");
        }
    }

    #[test]
    fn without_rules_nothing_happens() {
        let faults = FileFaults::default();
        assert!(!faults.active());
        assert_eq!(faults.before("sync", Path::new(FILE)), (None, Verdict::Perform));
    }
}
