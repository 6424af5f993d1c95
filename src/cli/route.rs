//! `tidegate route explain`: where a row would go and why, without a database or a cluster.

use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::Exit;
use super::report::{self, Class, Finding};
use crate::batch::TopicName;
use crate::config::{self, CapturePlan, Plan, TableName};
use crate::fanout::explain::{Explanation, explain};

/// Subcommands of `tidegate route`.
#[derive(Debug, Subcommand)]
pub enum RouteCommand {
    /// Say where a row of a captured table would go, and why
    Explain(ExplainArgs),
}

/// Arguments of `tidegate route explain`.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// Configuration file
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Source of kind postgres_cdc
    #[arg(long, value_name = "SOURCE")]
    pub source: String,
    /// Table of the row: schema.name, or a name in public
    #[arg(long, value_name = "TABLE")]
    pub table: String,
    /// The row as a JSON object, a member for each column; null is NULL
    #[arg(long, value_name = "JSON")]
    pub row: String,
    /// A key column of the table, for partition_by = "identity"; may be repeated
    #[arg(long, value_name = "COLUMN")]
    pub key: Vec<String>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

impl RouteCommand {
    /// Whether the result is JSON.
    pub fn json(&self) -> bool {
        let RouteCommand::Explain(args) = self;
        args.json
    }
}

/// Runs it.
pub fn run(command: &RouteCommand) -> Exit {
    let RouteCommand::Explain(args) = command;
    let plan = match config::load_without_credentials(&args.config) {
        Ok(plan) => plan,
        Err(errors) => return report::fail_config(args.json, &errors),
    };
    let fail = |message: &str| report::fail(args.json, Exit::Usage, message);
    let capture = match find(&plan, &args.source) {
        Ok(capture) => capture,
        Err(message) => return fail(&message),
    };
    let table = match TableName::parse(&args.table) {
        Ok(table) => table,
        Err(problem) => {
            return fail(&format!(
                "--table {:?} has {problem}; write schema.name, with double quotes around a part \
                 that has a dot in it",
                args.table
            ));
        }
    };
    match explain(capture, &table, &args.row, &args.key) {
        Ok(explanation) if args.json => {
            report::out(&to_json(&args.source, &table, &explanation).to_string());
            Exit::Ok
        }
        Ok(explanation) => {
            report::out(&text(&explanation));
            Exit::Ok
        }
        Err(message) => fail(&message),
    }
}

/// What the routing tests of the configuration find, for `tidegate check`.
pub fn test_findings(plan: &Plan) -> Vec<Finding> {
    let mut findings = Vec::new();
    for capture in &plan.captures {
        for test in &capture.tests {
            let seen = match explain(capture, &test.table, &test.row, &test.key) {
                Err(error) => error,
                Ok(explanation) => match explanation.differs(&test.expect) {
                    None => continue,
                    Some(difference) => format!("{difference}; {}", explanation.why.join("; ")),
                },
            };
            let subject = format!("{} on line {}", test.path, test.line);
            findings.push(Finding {
                class: Class::Other,
                expected: "what the test expects of the row".to_owned(),
                advice: "correct the routing or the test".to_owned(),
                ..Finding::note(subject, seen)
            });
        }
    }
    findings
}

fn find<'p>(plan: &'p Plan, source: &str) -> Result<&'p Arc<CapturePlan>, String> {
    if let Some(capture) = plan.captures.iter().find(|capture| &*capture.key == source) {
        return Ok(capture);
    }
    let known: Vec<&str> = plan.captures.iter().map(|capture| &*capture.key).collect();
    let known = if known.is_empty() {
        "the configuration has none".to_owned()
    } else {
        format!("known are {}", known.join(", "))
    };
    if plan.sources.iter().any(|mirror| &*mirror.key == source) {
        return Err(format!("source {source:?} is a mirror: its messages keep their topics"));
    }
    Err(format!("no source {source:?} of kind postgres_cdc; {known}"))
}

fn text(explanation: &Explanation) -> String {
    let destination = match &explanation.destination {
        Some(topic) => topic.to_string(),
        None => "none".to_owned(),
    };
    let partition = match explanation.partition {
        Some(id) => format!("{id} of {}", explanation.partitions),
        None => "any".to_owned(),
    };
    let verdict = match explanation.reason {
        Some(reason) => format!("{} ({reason})", explanation.verdict),
        None => explanation.verdict.to_owned(),
    };
    let mut lines = vec![
        format!("destination: {destination}"),
        format!("partition:   {partition}"),
        format!("verdict:     {verdict}"),
    ];
    if let Some(topic) = &explanation.dead_letter {
        lines.push(format!("dead letter: {topic}"));
    }
    if !explanation.stripped.is_empty() {
        lines.push(format!("left out:    {}", explanation.stripped.join(", ")));
    }
    lines.push("why:".to_owned());
    lines.extend(explanation.why.iter().map(|step| format!("  {step}")));
    lines.join("\n")
}

fn to_json(source: &str, table: &TableName, explanation: &Explanation) -> Value {
    let place = |to: &TopicName| json!({ "stream": &*to.stream, "topic": &*to.topic });
    json!({
        "source": source,
        "table": table.to_string(),
        "destination": explanation.destination.as_ref().map(place),
        "partition": explanation.partition,
        "partitions": explanation.partitions,
        "verdict": explanation.verdict,
        "reason": explanation.reason,
        "dead_letter": explanation.dead_letter.as_ref().map(place),
        "stripped": explanation.stripped,
        "why": explanation.why,
    })
}
