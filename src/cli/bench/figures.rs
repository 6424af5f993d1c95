//! What the runs come to: medians with the range they lie in, percentiles, and the two ratios.

use serde_json::{Value, json};

use super::drain::Drained;
use super::latency::Ways;
use crate::cli::report;

/// Everything measured of one of the two.
#[derive(Clone, Debug, Default)]
pub struct Side {
    /// One for each run.
    pub runs: Vec<Drained>,
    /// Of all rounds; empty where they were left out.
    pub ways: Ways,
}

/// Both, and what they were measured on.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Rows of the backlog.
    pub rows: u64,
    /// The daemon.
    pub ours: Side,
    /// pg_recvlogical; its ways are the greedy reader's.
    pub theirs: Side,
}

/// Median, least and most.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spread {
    /// Half of them are below it.
    pub median: f64,
    /// The smallest.
    pub least: f64,
    /// The largest.
    pub most: f64,
}

impl Spread {
    /// Of these values; all zero if there are none.
    pub fn of(values: impl Iterator<Item = f64>) -> Spread {
        let mut sorted: Vec<f64> = values.collect();
        sorted.sort_by(f64::total_cmp);
        let (Some(least), Some(most)) = (sorted.first(), sorted.last()) else {
            return Spread::default();
        };
        let (low, high) = (sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
        Spread { median: f64::midpoint(low, high), least: *least, most: *most }
    }

    /// In another unit.
    pub fn times(self, factor: f64) -> Spread {
        let Spread { median, least, most } = self;
        Spread { median: median * factor, least: least * factor, most: most * factor }
    }

    /// In words, with so many digits.
    pub fn shown(&self, digits: usize) -> String {
        let Spread { median, least, most } = self;
        format!("{median:.digits$} ({least:.digits$} to {most:.digits$})")
    }
}

impl Side {
    fn rows_per_second(&self, rows: u64) -> Spread {
        Spread::of(self.runs.iter().map(|run| rows as f64 / run.elapsed.as_secs_f64()))
    }

    fn cpu(&self, rows: u64) -> Spread {
        Spread::of(self.runs.iter().map(|run| run.cpu.as_secs_f64() * 1e6 / rows as f64))
    }

    fn server_cpu(&self, rows: u64) -> Spread {
        Spread::of(self.runs.iter().map(|run| run.server_cpu.as_secs_f64() * 1e6 / rows as f64))
    }

    fn memory(&self) -> Spread {
        Spread::of(self.runs.iter().map(|run| run.peak_memory as f64 / 1_048_576.0))
    }

    fn json(&self, rows: u64) -> Value {
        json!({
            "rows_per_second": self.rows_per_second(rows).median.round(),
            "cpu_seconds_per_million": rounded(self.cpu(rows).median),
            "walsender_cpu_seconds_per_million": rounded(self.server_cpu(rows).median),
            "p50_us": percentile(&self.ways, 50),
            "p99_us": percentile(&self.ways, 99),
        })
    }
}

impl Figures {
    /// Ours over theirs.
    fn ratios(&self) -> (f64, f64) {
        let over = |ours: Spread, theirs: Spread| match theirs.median > 0.0 {
            true => rounded(ours.median / theirs.median),
            false => 0.0,
        };
        let rows = self.rows;
        let speed = over(self.ours.rows_per_second(rows), self.theirs.rows_per_second(rows));
        (speed, over(self.ours.cpu(rows), self.theirs.cpu(rows)))
    }

    /// For programs.
    pub fn json(&self, machine: &Value, options: &Value) -> Value {
        let (rows_per_second, cpu) = self.ratios();
        json!({
            "ours": self.ours.json(self.rows),
            "pg_recvlogical": self.theirs.json(self.rows),
            "ratio": { "rows_per_second": rows_per_second, "cpu": cpu },
            "runs": self.ours.runs.len(),
            "machine": machine,
            "options": options,
        })
    }

    /// For people.
    pub fn text(&self) -> String {
        let rows = self.rows;
        let line = |what: &str, digits: usize, of: &dyn Fn(&Side) -> Spread| {
            let side = |side: &Side| of(side).shown(digits);
            vec![what.to_owned(), side(&self.ours), side(&self.theirs)]
        };
        let way = |percent: u32| {
            let side = |side: &Side| {
                percentile(&side.ways, percent).map_or_else(|| "-".to_owned(), |us| us.to_string())
            };
            let what = format!("commit to ack, p{percent} us");
            vec![what, side(&self.ours), side(&self.theirs)]
        };
        let sends =
            Spread::of(self.ours.runs.iter().map(|run| rows as f64 / run.sends.max(1) as f64));
        let lines = [
            line("rows a second", 0, &|side| side.rows_per_second(rows)),
            line("CPU s per million rows", 3, &|side| side.cpu(rows)),
            line("walsender CPU s per million rows", 2, &|side| side.server_cpu(rows)),
            line("largest memory, MiB", 1, &Side::memory),
            vec!["messages a send".to_owned(), sends.shown(0), "-".to_owned()],
            way(50),
            way(99),
        ];
        let (speed, cpu) = self.ratios();
        let table =
            report::table(&["median (least to most)", "tidegate", "pg_recvlogical"], &lines);
        format!("{table}ratio: rows a second {speed}, CPU {cpu}")
    }
}

/// The smallest value that so many percent do not exceed.
fn percentile(values: &[u64], percent: u32) -> Option<u64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let rank = (sorted.len() * percent as usize).div_ceil(100).max(1);
    sorted.get(rank - 1).copied()
}

/// To three digits.
pub fn rounded(value: f64) -> f64 {
    (value * 1_000.0).round() / 1_000.0
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn run(millis: u64, cpu: u64) -> Drained {
        let (elapsed, cpu) = (Duration::from_millis(millis), Duration::from_millis(cpu));
        Drained { elapsed, cpu, server_cpu: cpu * 4, peak_memory: 8 << 20, sends: 100 }
    }

    #[test]
    fn medians_and_ratios_are_those_of_the_runs() {
        let figures = Figures {
            rows: 100_000,
            ours: Side { runs: vec![run(250, 20), run(500, 30), run(200, 10)], ways: vec![] },
            theirs: Side {
                runs: vec![run(500, 300), run(400, 100)],
                ways: (1..=1000).rev().collect(),
            },
        };
        let json = figures.json(&json!("m"), &json!({}));
        assert_eq!(json["ours"]["rows_per_second"], 400_000.0);
        assert_eq!(json["ours"]["cpu_seconds_per_million"], 0.2);
        assert_eq!(json["ours"]["p50_us"], Value::Null);
        assert_eq!(json["pg_recvlogical"]["rows_per_second"], 225_000.0);
        assert_eq!(json["pg_recvlogical"]["walsender_cpu_seconds_per_million"], 8.0);
        assert_eq!(json["pg_recvlogical"]["p50_us"], 500);
        assert_eq!(json["pg_recvlogical"]["p99_us"], 990);
        assert_eq!(json["ratio"], json!({ "rows_per_second": 1.778, "cpu": 0.1 }));
        assert_eq!(json["runs"], 3);
        let text = figures.text();
        assert!(text.contains("400000 (200000 to 500000)"), "{text}");
        assert!(text.ends_with("ratio: rows a second 1.778, CPU 0.1"), "{text}");
    }

    #[test]
    fn percentiles_of_few_values_are_values() {
        assert_eq!(percentile(&[], 50), None);
        assert_eq!(percentile(&[7], 50), Some(7));
        assert_eq!(percentile(&[7], 99), Some(7));
        assert_eq!(percentile(&[3, 1, 2], 50), Some(2));
        assert_eq!(percentile(&[3, 1, 2], 99), Some(3));
    }
}
