//! Captures in the text of `tidegate state show`.

use crate::cli::report::{table, utc};
use crate::statefile::inspect::CaptureReport;

/// A table of all captures of a source, and what it has no room for.
pub fn text(captures: &[CaptureReport]) -> String {
    let head = ["slot", "position", "timeline", "messages", "errors", "gaps", "stop", "database"];
    let rows: Vec<Vec<String>> = captures.iter().map(row).collect();
    let mut text = String::new();
    for line in table(&head, &rows).lines() {
        text.push_str(&format!("  {line}\n"));
    }
    for capture in captures {
        text.push_str(&details(capture));
    }
    text
}

fn row(capture: &CaptureReport) -> Vec<String> {
    vec![
        capture.slot.clone(),
        capture.position.clone(),
        capture.timeline.to_string(),
        capture.counters.messages.to_string(),
        capture.counters.errors.to_string(),
        capture.counters.gaps.to_string(),
        if capture.clean_stop { "clean" } else { "open" }.to_owned(),
        format!("{}, system {}", capture.database, capture.system_id),
    ]
}

fn details(capture: &CaptureReport) -> String {
    let name = &capture.slot;
    let mut text = String::new();
    if let Some(next) = &capture.unfinished {
        let (rows, xid, lsn) = (next.rows, next.xid, &next.final_lsn);
        text.push_str(&format!(
            "  {name}: {rows} rows of transaction {xid}, committed at {lsn}, are done\n"
        ));
    }
    if let Some(at) = capture.last_abandon_at_us {
        text.push_str(&format!("  {name}: a batch was last abandoned {}\n", utc(at)));
    }
    for table in &capture.routed {
        let (schema, columns) = (&table.schema, table.columns.join(", "));
        text.push_str(&format!("  {name}: {schema}.{} is routed by {columns}\n", table.table));
    }
    for gap in &capture.gaps {
        let (first, last, found) = (&gap.first, &gap.last, utc(gap.found_at_us));
        text.push_str(&format!(
            "  {name}: gap of {} bytes of log, {first} to {last}, found {found}: {}\n",
            gap.bytes, gap.why
        ));
    }
    text
}
