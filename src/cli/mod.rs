//! The command line: arguments, one file per subcommand, exit codes, logging, the state
//! directory.
//!
//! Results go to standard output, errors and logs to standard error; with `--json` both results
//! and errors are one JSON object on standard output. A wrong command line exits with 2 like a
//! wrong configuration.

pub mod announce;
pub mod bench;
pub mod check;
pub mod check_online;
pub mod demo;
mod exit;
pub mod log;
pub mod null_sink;
pub mod report;
pub mod route;
pub mod run;
pub mod scratch;
pub mod state;
pub mod statedir;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

pub use exit::Exit;

use crate::config::{self, LogFormat};

/// Moves messages into Apache Iggy.
#[derive(Debug, Parser)]
#[command(name = "tidegate", version, about, max_term_width = 100)]
pub struct Arguments {
    /// Log level or filter: error, warn, info, debug, trace, or module=level pairs; overrides
    /// the configuration
    #[arg(long, global = true, value_name = "FILTER", value_parser = log_level)]
    pub log_level: Option<String>,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Mirror the configured topics until stopped
    Run(run::RunArgs),
    /// Measure, with everything that it takes started by the command itself
    #[command(subcommand)]
    Bench(bench::BenchCommand),
    /// Check the configuration, the state directory, clusters and databases
    Check(check::CheckArgs),
    /// Mirror a million messages between two built-in brokers, killing the mirror on the way
    Demo(demo::DemoArgs),
    /// Ask where rows of captured tables would go
    #[command(subcommand)]
    Route(route::RouteCommand),
    /// Look at saved positions, forget them, or read them back from the destination
    #[command(subcommand)]
    State(state::StateCommand),
}

/// Runs the process's command line.
pub fn main() -> ExitCode {
    main_with(std::env::args_os())
}

/// Runs a command line; the first item is the program's name.
pub fn main_with(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    match Arguments::try_parse_from(&arguments) {
        Ok(arguments) => dispatch(arguments),
        Err(error) => usage(&error, arguments.iter().any(|argument| argument == "--json")).into(),
    }
}

fn dispatch(arguments: Arguments) -> ExitCode {
    let level = arguments.log_level.as_deref();
    match arguments.command {
        Command::Run(args) => match config::load(&args.config) {
            Ok(plan) => {
                let level = level.unwrap_or(&plan.daemon.log_level);
                match log::init(plan.daemon.log_format, level) {
                    Ok(()) => run::run(&plan, &args).into(),
                    Err(error) => report::fail(false, Exit::Usage, &error).into(),
                }
            }
            Err(errors) => report::fail_config(false, &errors).into(),
        },
        Command::Bench(command) => with_logs(level, command.json(), || bench::run(&command)),
        Command::Check(args) => with_logs(level, args.json, || check::run(&args)),
        Command::Demo(args) => with_logs(level, args.json, || demo::run(&args)),
        Command::Route(command) => with_logs(level, command.json(), || route::run(&command)),
        Command::State(command) => with_logs(level, command.json(), || state::run(&command)),
    }
}

/// Commands that report in the end log little: warnings, unless asked for more.
fn with_logs<E: Into<ExitCode>>(
    level: Option<&str>,
    json: bool,
    command: impl FnOnce() -> E,
) -> ExitCode {
    let format = json.then_some(LogFormat::Json);
    match log::init(format, level.unwrap_or("warn")) {
        Ok(()) => command().into(),
        Err(error) => report::fail(json, Exit::Usage, &error).into(),
    }
}

/// `--help` and `--version` end here too.
fn usage(error: &clap::Error, json: bool) -> Exit {
    if !error.use_stderr() {
        // Fails only on a closed pipe.
        let _ = error.print();
        return Exit::Ok;
    }
    if json {
        return report::fail(true, Exit::Usage, error.to_string().trim_end());
    }
    let _ = error.print();
    Exit::Usage
}

fn log_level(filter: &str) -> Result<String, String> {
    config::check_log_level(filter).map(|()| filter.to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn exit_codes_are_the_documented_ones() {
        let all = [Exit::Ok, Exit::Findings, Exit::Usage, Exit::State, Exit::Peer, Exit::Killed];
        assert_eq!(all.map(Exit::code), [0, 1, 2, 3, 4, 143]);
    }

    #[test]
    fn the_documented_forms_are_understood() {
        for line in [
            "run --config f",
            "run --config f --log-level debug",
            "check --config f --json --offline",
            "bench capture",
            "bench capture --workload toast --rows 1000 --runs 3 --sink null --latency 0 --json",
            "bench relay",
            "bench relay --size 100 --record 1 --partitions 8 --shards 2 --duration 3 --verify off",
            "bench relay --messages 10 --peer sdk --runs 1 --latency 0 --json --round-trip 80",
            "bench relay --up a:b@h:1 --down h:2 --peer none",
            "bench latency --rate 100 --partitions 2 --seconds 1 --runs 1 --json",
            "bench commit --dir /tmp --feeds 3 --seconds 1 --runs 1 --json",
            "bench idle --topics 3 --partitions 2 --seconds 1 --runs 1 --json",
            "demo",
            "demo --json --keep --messages 10 --partitions 2",
            "route explain --config f --source s --table t --row {}",
            "route explain --config f --source s --table a.b --row {} --key id --key x --json",
            "state show --config f",
            "state show --config f --json orders",
            "state reset --config f --source orders --yes --json",
            "state reset --config f --source orders --topic s/t --partition 0",
            "state rebuild --config f --source orders --yes --json",
            "state rebuild --config f --source orders --topic s/t --partition 0 --accept-tail 7",
        ] {
            let words = ["tidegate"].into_iter().chain(line.split(' '));
            Arguments::try_parse_from(words).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }

    #[test]
    fn wrong_levels_and_numbers_are_usage_errors() {
        for line in [
            "bench",
            "bench capture --rows 0",
            "bench capture --workload huge",
            "bench relay --messages 1 --duration 1",
            "bench relay --record 0",
            "bench relay --up h:1",
            "bench relay --up h:1 --down nowhere",
            "bench latency --seconds 100",
            "demo --messages 0",
            "demo --partitions 0",
            "demo --partitions 1001",
            "run",
            "run --config f --log-level inof",
            "route explain --config f --source s --table t",
            "state reset --config f",
            "state reset --config f --source orders --partition 0",
            "state rebuild --config f --source orders --topic s/t --accept-tail 7",
            "state rebuild --config f --source orders --topic s/t --partition 0 --accept-tail -1",
            "state",
        ] {
            let words = ["tidegate"].into_iter().chain(line.split(' '));
            assert!(Arguments::try_parse_from(words).is_err(), "{line}");
        }
    }
}
