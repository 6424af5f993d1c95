//! What the demonstration found, for people and for programs.

use std::time::Duration;

use serde_json::{Value, json};

use super::compare::Report;

/// The result of a whole run.
#[derive(Clone, Debug)]
pub struct Summary {
    /// Both sides compared.
    pub report: Report,
    /// Payload and user header bytes upstream.
    pub bytes: u64,
    /// Times the mirror was killed.
    pub kills: u64,
    /// Those at which the destination had sends it had not answered.
    pub kills_with_unacked_sends: u64,
    /// From the first start of the mirror until the destination held everything.
    pub elapsed: Duration,
    /// Processor time of all mirror processes.
    pub cpu: Duration,
}

impl Summary {
    /// Nothing lost, duplicated, reordered or otherwise different.
    pub fn is_good(&self) -> bool {
        self.report.is_exact()
    }

    /// The one JSON object. What has no number of its own there is part of the nearest one: a
    /// foreign message is one too many, a changed distance an order not kept.
    pub fn json(&self) -> Value {
        let Report { messages, lost, duplicates, reordered, foreign, steps, .. } = self.report;
        // After a loss or a repetition the distance changes by itself.
        let steps = if lost + duplicates + foreign == 0 { steps } else { 0 };
        json!({
            "messages": messages,
            "lost": lost,
            "duplicates": duplicates + foreign,
            "reordered": if reordered > 0 { reordered } else { steps },
            "kills": self.kills,
            "kills_with_unacked_sends": self.kills_with_unacked_sends,
            "messages_per_second": self.messages_per_second().round(),
            "megabytes_per_second": rounded(self.megabytes_per_second(), 10.0),
            "cpu_seconds_per_million": rounded(self.cpu_seconds_per_million(), 1_000.0),
        })
    }

    /// For people.
    pub fn text(&self) -> String {
        let Report { messages, lost, duplicates, reordered, foreign, .. } = self.report;
        let mut text = format!(
            "compared   {} messages: id, origin time, payload, user headers, order, offset\n\
             result     lost {lost}, duplicated {duplicates}, reordered {reordered}",
            grouped(messages),
        );
        if foreign > 0 {
            text.push_str(&format!(", altered or foreign {foreign}"));
        }
        if let Some(difference) = &self.report.first_difference {
            text.push_str(&format!("\n           first {difference}"));
        }
        text.push_str(&format!(
            "\nkills      {}, of which {} with unacked sends\n\
             rate       {} messages/s, {:.1} MB/s over {:.2} s, kills and restarts included\n\
             processor  {:.3} s per million messages (the mirror alone)",
            self.kills,
            self.kills_with_unacked_sends,
            grouped(self.messages_per_second() as u64),
            self.megabytes_per_second(),
            self.elapsed.as_secs_f64(),
            self.cpu_seconds_per_million(),
        ));
        text
    }

    fn messages_per_second(&self) -> f64 {
        self.report.messages as f64 / self.elapsed.as_secs_f64().max(1e-6)
    }

    fn megabytes_per_second(&self) -> f64 {
        self.bytes as f64 / 1e6 / self.elapsed.as_secs_f64().max(1e-6)
    }

    fn cpu_seconds_per_million(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / (self.report.messages as f64).max(1.0)
    }
}

/// `1234567` as `1,234,567`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn rounded(number: f64, parts: f64) -> f64 {
    (number * parts).round() / parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(report: Report) -> Summary {
        Summary {
            report,
            bytes: 300_000_000,
            kills: 2,
            kills_with_unacked_sends: 2,
            elapsed: Duration::from_secs(2),
            cpu: Duration::from_millis(1_500),
        }
    }

    #[test]
    fn the_json_object_has_exactly_the_documented_members() {
        let good = summary(Report { messages: 1_000_000, ..Report::default() });
        assert!(good.is_good());
        let expected = json!({
            "messages": 1_000_000, "lost": 0, "duplicates": 0, "reordered": 0,
            "kills": 2, "kills_with_unacked_sends": 2,
            "messages_per_second": 500_000.0, "megabytes_per_second": 150.0,
            "cpu_seconds_per_million": 1.5,
        });
        assert_eq!(good.json(), expected);
    }

    #[test]
    fn whatever_is_not_exact_shows_in_one_of_the_three_numbers() {
        let numbers = |report: Report| {
            let bad = summary(report);
            assert!(!bad.is_good());
            ["lost", "duplicates", "reordered"].map(|key| bad.json()[key].as_u64().unwrap_or(99))
        };
        let none = Report::default;
        assert_eq!(numbers(Report { lost: 3, steps: 1, ..none() }), [3, 0, 0]);
        assert_eq!(numbers(Report { duplicates: 3, steps: 2, ..none() }), [0, 3, 0]);
        assert_eq!(numbers(Report { foreign: 1, steps: 2, ..none() }), [0, 1, 0]);
        assert_eq!(numbers(Report { reordered: 2, steps: 9, ..none() }), [0, 0, 2]);
        assert_eq!(numbers(Report { steps: 4, ..none() }), [0, 0, 4]);
    }

    #[test]
    fn digits_are_grouped_by_three() {
        for (number, shown) in [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")]
        {
            assert_eq!(grouped(number), shown);
        }
    }
}
