//! Exit codes (O1).

use std::process::ExitCode;

/// How the process ends. Scripts rely on the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Everything was as it should be.
    Ok,
    /// The command worked and found something wrong or different.
    Findings,
    /// The command line or the configuration is wrong; nothing was done.
    Usage,
    /// A state file or the state directory is unusable, or held by another daemon.
    State,
    /// A cluster refused or could not be reached.
    Peer,
    /// A second SIGTERM ended an orderly stop.
    Killed,
}

impl Exit {
    /// The number.
    pub fn code(self) -> u8 {
        match self {
            Exit::Ok => 0,
            Exit::Findings => 1,
            Exit::Usage => 2,
            Exit::State => 3,
            Exit::Peer => 4,
            // 128 + SIGTERM, what a shell reports for a process that the signal ended.
            Exit::Killed => 143,
        }
    }

    /// The word in JSON reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Exit::Ok => "ok",
            Exit::Findings => "findings",
            Exit::Usage => "usage",
            Exit::State => "state",
            Exit::Peer => "peer",
            Exit::Killed => "killed",
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit.code())
    }
}
