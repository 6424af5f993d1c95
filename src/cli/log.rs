//! Logs on standard error (T4): text on a terminal, JSON elsewhere, repeats held back.
//!
//! A line is told from another by its place in the code, its message and the fields that say
//! what it is about ([`SUBJECTS`]); figures belong in other fields. Of equal lines, [`BURST`] are
//! written per [`INTERVAL`]; how many more there were is said with the first line of any kind
//! after the interval. `DEBUG` and `TRACE` pass: who asks for them wants all.
#![allow(clippy::disallowed_methods)] // reads the clocks

use std::collections::HashMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::IsTerminal;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use serde_json::json;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, JsonFields, Writer};
use tracing_subscriber::fmt::{FmtContext, MakeWriter};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{Layer, Registry};

use super::report::utc;
use crate::config::LogFormat;
use crate::time::{Millis, Now, UnixMicros};

/// Equal lines written per interval.
pub const BURST: u32 = 5;
/// See [`BURST`].
pub const INTERVAL: Duration = Duration::from_secs(60);
/// Fields that tell lines with the same message apart.
pub const SUBJECTS: &[&str] =
    &["source", "cluster", "stream", "topic", "partition", "feed", "shard", "file"];
/// Lines remembered at a time; beyond that, new ones pass unlimited.
const REMEMBERED: usize = 4096;

/// Starts logging for the whole process. `level` as in `[daemon]`, already checked.
pub fn init(format: Option<LogFormat>, level: &str) -> Result<(), String> {
    let filter: Targets = level.parse().map_err(|error| format!("log level {level:?}: {error}"))?;
    let terminal = std::io::stderr().is_terminal();
    let format = format.unwrap_or(if terminal { LogFormat::Text } else { LogFormat::Json });
    let start = Instant::now();
    let clock = move || {
        let mono = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let wall = u64::try_from(wall.as_micros()).unwrap_or(u64::MAX);
        Now { mono: Millis(mono), wall: UnixMicros(wall) }
    };
    let layer = layer(format, terminal, std::io::stderr, clock).with_filter(filter);
    tracing::subscriber::set_global_default(Registry::default().with(layer))
        .map_err(|error| error.to_string())
}

/// The formatting layer over any writer and clock.
fn layer<W>(
    format: LogFormat,
    ansi: bool,
    writer: W,
    clock: impl Fn() -> Now + Send + Sync + 'static,
) -> Box<dyn Layer<Registry> + Send + Sync>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    use tracing_subscriber::fmt::{format as line, layer};
    let repeats = Mutex::new(Repeats::new(BURST, INTERVAL));
    let clock = Box::new(clock);
    let layer = layer().with_writer(writer).with_ansi(ansi);
    match format {
        LogFormat::Text => {
            layer.event_format(Limited { line: line(), format, repeats, clock }).boxed()
        }
        LogFormat::Json => layer
            .fmt_fields(JsonFields::new())
            .event_format(Limited {
                line: line().json().flatten_event(true),
                format,
                repeats,
                clock,
            })
            .boxed(),
    }
}

/// A line format that holds repeats back.
struct Limited<F> {
    line: F,
    format: LogFormat,
    repeats: Mutex<Repeats>,
    clock: Box<dyn Fn() -> Now + Send + Sync>,
}

impl<S, N, F> FormatEvent<S, N> for Limited<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        ctx: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let metadata = event.metadata();
        if *metadata.level() > Level::INFO {
            return self.line.format_event(ctx, writer, event);
        }
        let mut said = Said::new();
        metadata.callsite().hash(&mut said.hasher);
        event.record(&mut said);
        let now = (self.clock)();
        let (held, write) = {
            let mut repeats = self.repeats.lock().unwrap_or_else(PoisonError::into_inner);
            let held = repeats.ended(now.mono);
            let label = || Label {
                level: *metadata.level(),
                target: metadata.target().to_owned(),
                message: said.message.clone(),
            };
            (held, repeats.admit(said.hasher.finish(), now.mono, label))
        };
        for held in held {
            self.write_held(&mut writer, now.wall, &held)?;
        }
        // What is not written here leaves the writer without a byte.
        if write { self.line.format_event(ctx, writer, event) } else { Ok(()) }
    }
}

impl<F> Limited<F> {
    fn write_held(&self, writer: &mut Writer<'_>, wall: UnixMicros, held: &Held) -> fmt::Result {
        let Label { level, target, message } = &held.label;
        let (time, count, seconds) = (utc(wall.0), held.count, INTERVAL.as_secs());
        match self.format {
            LogFormat::Text => writeln!(
                writer,
                "{time} {level:>5} {target}: {count} more in {seconds} s: {message}"
            ),
            LogFormat::Json => {
                let line = json!({
                    "timestamp": time,
                    "level": level.as_str(),
                    "target": target,
                    "message": message,
                    "held_back": count,
                });
                writeln!(writer, "{line}")
            }
        }
    }
}

/// Which lines repeat; pure, time comes with each call.
#[derive(Debug)]
pub struct Repeats {
    burst: u32,
    interval: Duration,
    lines: HashMap<u64, Line>,
    /// No interval ends before this.
    next_end: Millis,
}

/// What is said of lines that were held back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// Their level.
    pub level: Level,
    /// Their target.
    pub target: String,
    /// Their message.
    pub message: String,
}

/// Lines held back in an interval that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// What they said.
    pub label: Label,
    /// How many.
    pub count: u64,
}

#[derive(Debug)]
struct Line {
    end: Millis,
    written: u32,
    held: u64,
    label: Label,
}

impl Repeats {
    /// Lets `burst` equal lines through per `interval`, counted from the first of them.
    pub fn new(burst: u32, interval: Duration) -> Repeats {
        Repeats { burst, interval, lines: HashMap::new(), next_end: Millis(u64::MAX) }
    }

    /// Whether this line is to be written. Call [`Repeats::ended`] first.
    pub fn admit(&mut self, key: u64, now: Millis, label: impl FnOnce() -> Label) -> bool {
        if let Some(line) = self.lines.get_mut(&key) {
            let write = line.written < self.burst;
            if write {
                line.written += 1;
            } else {
                line.held += 1;
            }
            return write;
        }
        if self.lines.len() < REMEMBERED {
            let end = now + self.interval;
            self.next_end = self.next_end.min(end);
            self.lines.insert(key, Line { end, written: 1, held: 0, label: label() });
        }
        true
    }

    /// Forgets the intervals that ended; what they held back is returned once.
    pub fn ended(&mut self, now: Millis) -> Vec<Held> {
        if now < self.next_end {
            return Vec::new();
        }
        let ended: Vec<Held> = self
            .lines
            .extract_if(|_, line| line.end <= now)
            .filter(|(_, line)| line.held > 0)
            .map(|(_, line)| Held { label: line.label, count: line.held })
            .collect();
        let ends = self.lines.values().map(|line| line.end);
        self.next_end = ends.min().unwrap_or(Millis(u64::MAX));
        ended
    }
}

/// Collects what tells a line from others.
struct Said {
    hasher: DefaultHasher,
    message: String,
}

impl Said {
    fn new() -> Said {
        Said { hasher: DefaultHasher::new(), message: String::new() }
    }
}

impl Visit for Said {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.message = format!("{value:?}");
            self.message.hash(&mut self.hasher);
        } else if SUBJECTS.contains(&field.name()) {
            field.name().hash(&mut self.hasher);
            format!("{value:?}").hash(&mut self.hasher);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[derive(Clone, Default)]
    struct Captured(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Captured {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// Runs `work` with a log and a hand on its clock; returns the lines.
    fn logged(format: LogFormat, work: impl FnOnce(&AtomicU64)) -> Vec<String> {
        let captured = Captured::default();
        let clock = Arc::new(AtomicU64::new(0));
        let (writer, time) = (captured.clone(), clock.clone());
        let now = move || Now {
            mono: Millis(time.load(Ordering::Relaxed)),
            wall: UnixMicros(1_700_000_000_000_000),
        };
        let layer = layer(format, false, move || writer.clone(), now);
        tracing::subscriber::with_default(Registry::default().with(layer), || work(&clock));
        let bytes = captured.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap().lines().map(str::to_owned).collect()
    }

    fn refused(source: &str, attempt: u64) {
        tracing::warn!(source, attempt, "destination refused");
    }

    #[test]
    fn a_problem_that_repeats_for_a_minute_fills_at_most_ten_lines() {
        let lines = logged(LogFormat::Text, |clock| {
            for attempt in 0..600 {
                clock.store(attempt * 100, Ordering::Relaxed);
                refused("orders", attempt);
            }
        });
        assert_eq!(lines.len(), BURST as usize, "{lines:?}");
        assert!(lines.len() <= 10);
    }

    #[test]
    fn held_back_lines_are_counted_once_their_interval_ended() {
        for format in [LogFormat::Text, LogFormat::Json] {
            let lines = logged(format, |clock| {
                (0..12).for_each(|attempt| refused("orders", attempt));
                clock.store(INTERVAL.as_millis() as u64, Ordering::Relaxed);
                tracing::info!("something else");
                tracing::info!("something else again");
            });
            assert_eq!(lines.len(), BURST as usize + 3, "{lines:?}");
            let held = &lines[BURST as usize];
            if format == LogFormat::Json {
                let held: serde_json::Value = serde_json::from_str(held).unwrap();
                assert_eq!(held["held_back"], 7);
                assert_eq!(held["level"], "WARN");
                assert_eq!(held["message"], "destination refused");
            } else {
                assert!(held.contains("7 more in 60 s: destination refused"), "{held}");
            }
        }
    }

    #[test]
    fn other_subjects_and_other_messages_are_not_held_back() {
        let lines = logged(LogFormat::Json, |_| {
            for attempt in 0..20 {
                refused("orders", attempt);
                refused("audit", attempt);
                tracing::warn!("message {}", attempt);
            }
        });
        assert_eq!(lines.len(), 2 * BURST as usize + 20);
        let line: serde_json::Value = serde_json::from_str(&lines[0]).unwrap();
        assert_eq!((&line["source"], &line["attempt"]), (&json!("orders"), &json!(0)));
    }

    #[test]
    fn debug_lines_pass() {
        let lines = logged(LogFormat::Text, |_| {
            (0..50).for_each(|_| tracing::debug!("polled"));
        });
        assert_eq!(lines.len(), 50);
    }

    #[test]
    fn the_memory_of_lines_is_bounded() {
        let mut repeats = Repeats::new(1, INTERVAL);
        let label = || Label { level: Level::INFO, target: String::new(), message: String::new() };
        for key in 0..2 * REMEMBERED as u64 {
            assert!(repeats.admit(key, Millis(0), label));
        }
        assert_eq!(repeats.lines.len(), REMEMBERED);
        assert!(!repeats.admit(0, Millis(1), label));
        assert_eq!(repeats.ended(Millis(0) + INTERVAL).len(), 1);
        assert!(repeats.lines.is_empty());
    }
}
