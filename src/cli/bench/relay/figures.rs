//! What the runs of both sides come to.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::super::figures::{Spread, rounded};
use super::super::pace::Ways;
use super::{RUNS_WORTH, Who};
use crate::cli::report;

/// One run.
#[derive(Clone, Copy, Debug)]
pub struct Ran {
    /// Messages acked after the first that were seen.
    pub counted: u64,
    /// In this time.
    pub elapsed: Duration,
    /// All that were acked.
    pub messages: u64,
    /// In so many sends; 0 where nobody counts them.
    pub sends: u64,
    /// Of the process, for all of them.
    pub cpu: Duration,
    /// Largest memory of the process, bytes.
    pub peak_memory: u64,
}

impl Ran {
    fn rate(&self) -> f64 {
        self.counted as f64 / self.elapsed.as_secs_f64()
    }

    fn cpu_per_million(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.messages.max(1) as f64
    }

    /// For people who wait.
    pub fn line(&self, who: &str, size: u32) -> String {
        format!(
            "{who}: {:.0} messages/s, {:.0} MB/s, CPU s per million {:.3}, {} messages a send",
            self.rate(),
            self.rate() * f64::from(size) / 1e6,
            self.cpu_per_million(),
            self.messages.checked_div(self.sends).unwrap_or(0),
        )
    }
}

/// One side's.
#[derive(Default)]
struct Runs {
    runs: Vec<Ran>,
    ways: Option<Ways>,
}

/// Both sides'.
pub struct Figures {
    size: u32,
    peer: Option<&'static str>,
    ours: Runs,
    theirs: Runs,
}

impl Figures {
    /// None yet.
    pub fn new(size: u32, peer: Option<&'static str>) -> Figures {
        Figures { size, peer, ours: Runs::default(), theirs: Runs::default() }
    }

    /// One more run.
    pub fn add(&mut self, who: Who, ran: Ran) {
        self.side(who).runs.push(ran);
    }

    /// The ways of messages at a steady rate.
    pub fn ways(&mut self, who: Who, ways: Ways) {
        self.side(who).ways = Some(ways);
    }

    fn side(&mut self, who: Who) -> &mut Runs {
        if who == Who::Ours { &mut self.ours } else { &mut self.theirs }
    }

    /// Ours over theirs: messages a second, CPU per byte.
    fn ratios(&self) -> Option<(f64, f64)> {
        self.peer?;
        let over = |ours: Spread, theirs: Spread| match theirs.median > 0.0 {
            true => rounded(ours.median / theirs.median),
            false => 0.0,
        };
        let rate = over(self.ours.rate(), self.theirs.rate());
        // Both copied the same messages, so that per byte and per message is one ratio.
        Some((rate, over(self.ours.cpu_per_million(), self.theirs.cpu_per_million())))
    }

    /// For programs.
    pub fn json(&self, machine: &Value) -> Value {
        let peer = self.peer.map(|_| self.theirs.json(self.size));
        let ratio = self
            .ratios()
            .map(|(rate, cpu)| json!({ "messages_per_second": rate, "cpu_per_gb": cpu }));
        let mut report = json!({
            "ours": self.ours.json(self.size),
            "peer": peer,
            "ratio": ratio,
            "runs": self.ours.runs.len(),
            "machine": machine,
        });
        if let Some(note) = few(self.ours.runs.len()) {
            report["note"] = note.into();
        }
        report
    }

    /// For people.
    pub fn text(&self) -> String {
        let heads = ["median (least to most)", "tidegate", self.peer.unwrap_or("-")];
        let line = |what: &str, digits: usize, of: &dyn Fn(&Runs) -> Spread| {
            let theirs = match self.peer {
                Some(_) => of(&self.theirs).shown(digits),
                None => "-".to_owned(),
            };
            vec![what.to_owned(), of(&self.ours).shown(digits), theirs]
        };
        let way = |percent: f64| {
            let side = |runs: &Runs| runs.way(percent).map_or("-".to_owned(), |us| us.to_string());
            vec![format!("due to acked, p{percent} us"), side(&self.ours), side(&self.theirs)]
        };
        let size = f64::from(self.size);
        let lines = [
            line("messages a second", 0, &Runs::rate),
            line("MB a second", 1, &|runs| runs.rate().times(size / 1e6)),
            line("CPU s per GB", 3, &|runs| runs.cpu_per_million().times(1e3 / size.max(1.0))),
            line("CPU s per million messages", 3, &Runs::cpu_per_million),
            line("messages a send", 0, &Runs::messages_per_send),
            line("largest memory, MiB", 1, &Runs::memory),
            way(50.0),
            way(99.0),
        ];
        let mut text = report::table(&heads, &lines);
        if let Some((rate, cpu)) = self.ratios() {
            text += &format!("ratio: messages a second {rate}, CPU {cpu}");
        }
        match few(self.ours.runs.len()) {
            Some(note) => format!("{}\n{note}", text.trim_end()),
            None => text.trim_end().to_owned(),
        }
    }
}

/// What to say of too few runs.
pub fn few(runs: usize) -> Option<String> {
    let enough = RUNS_WORTH as usize;
    (runs < enough).then(|| format!("{runs} runs: a figure to quote needs {enough} or more"))
}

impl Runs {
    fn spread(&self, of: impl Fn(&Ran) -> f64) -> Spread {
        Spread::of(self.runs.iter().map(of))
    }

    fn rate(&self) -> Spread {
        self.spread(Ran::rate)
    }

    fn cpu_per_million(&self) -> Spread {
        self.spread(Ran::cpu_per_million)
    }

    fn messages_per_send(&self) -> Spread {
        self.spread(|run| run.messages as f64 / run.sends.max(1) as f64)
    }

    fn memory(&self) -> Spread {
        self.spread(|run| run.peak_memory as f64 / 1_048_576.0)
    }

    fn way(&self, percent: f64) -> Option<u64> {
        self.ways.as_ref().map(|ways| ways.value_at_percentile(percent))
    }

    fn json(&self, size: u32) -> Value {
        let size = f64::from(size);
        let (rate, cpu) = (self.rate(), self.cpu_per_million());
        let named = [
            ("messages_per_second", rate),
            ("megabytes_per_second", rate.times(size / 1e6)),
            ("cpu_seconds_per_gb", cpu.times(1e3 / size.max(1.0))),
            ("cpu_seconds_per_million", cpu),
        ];
        let mut side = Map::new();
        let mut spread = Map::new();
        for (name, values) in named {
            side.insert(name.to_owned(), rounded(values.median).into());
            let ends = [rounded(values.least), rounded(values.most)];
            spread.insert(name.to_owned(), json!(ends));
        }
        side.insert("p50_us".to_owned(), json!(self.way(50.0)));
        side.insert("p99_us".to_owned(), json!(self.way(99.0)));
        side.insert("peak_memory_mib".to_owned(), rounded(self.memory().median).into());
        side.insert("messages_per_send".to_owned(), self.messages_per_send().median.round().into());
        side.insert("spread".to_owned(), Value::Object(spread));
        Value::Object(side)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(millis: u64, cpu: u64) -> Ran {
        Ran {
            counted: 900_000,
            elapsed: Duration::from_millis(millis),
            messages: 1_000_000,
            sends: 1_000,
            cpu: Duration::from_millis(cpu),
            peak_memory: 32 << 20,
        }
    }

    #[test]
    fn medians_and_ratios_are_those_of_the_runs() {
        let mut figures = Figures::new(1_000, Some("copy"));
        for (elapsed, cpu) in [(900, 600), (450, 500), (1_800, 700)] {
            figures.add(Who::Ours, ran(elapsed, cpu));
            figures.add(Who::Copy, ran(elapsed / 2, cpu / 2));
        }
        let json = figures.json(&json!("m"));
        assert_eq!(json["ours"]["messages_per_second"], 1_000_000.0);
        assert_eq!(json["ours"]["megabytes_per_second"], 1_000.0);
        assert_eq!(json["ours"]["cpu_seconds_per_million"], 0.6);
        assert_eq!(json["ours"]["cpu_seconds_per_gb"], 0.6);
        assert_eq!(json["ours"]["p99_us"], Value::Null);
        assert_eq!(json["ours"]["spread"]["cpu_seconds_per_gb"], json!([0.5, 0.7]));
        assert_eq!(json["ratio"], json!({ "messages_per_second": 0.5, "cpu_per_gb": 2.0 }));
        assert!(json["note"].as_str().is_some_and(|note| note.starts_with("3 runs")));
        assert!(figures.text().contains("ratio: messages a second 0.5, CPU 2"));
    }

    #[test]
    fn without_a_peer_there_is_no_ratio() {
        let mut figures = Figures::new(100, None);
        (0..7).for_each(|_| figures.add(Who::Ours, ran(900, 600)));
        let json = figures.json(&json!("m"));
        assert_eq!((&json["peer"], &json["ratio"]), (&Value::Null, &Value::Null));
        assert_eq!(json.get("note"), None, "seven are enough");
    }
}
