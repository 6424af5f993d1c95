//! `/metrics`: a [`View`] in the Prometheus and OpenMetrics text formats.
//!
//! Labels are `source` or `connector_key`, `shard`, `status`, `reason` and `action` only, so the
//! number of series follows the configuration and never the number of streams, topics or
//! partitions. Counters are derived so that they never fall while the process lives.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeLabelSet, EncodeMetric,
    NoLabelSet, prometheus_text, text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use super::board::{ShardView, SourceKind, SourceView, View};
use super::capture_metrics::encode_captures;
use super::ledger::Totals;
use super::process::ProcessUsage;
use crate::shard::snapshot::{Condition, ShardSnapshot, Status};
use crate::time::Now;

const STATUSES: [Status; 6] = [
    Status::Starting,
    Status::Running,
    Status::Degraded,
    Status::Stopping,
    Status::Stopped,
    Status::Error,
];

/// Name, help and value of a metric that is read off a `T`.
pub(super) type Family<T> = (&'static str, &'static str, fn(&T) -> u64);

/// Which of the two formats a scraper understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextFormat {
    /// Text format 0.0.4.
    Prometheus,
    /// OpenMetrics 1.0.0.
    OpenMetrics,
}

impl TextFormat {
    /// By the scraper's `Accept` header.
    pub fn negotiate(accept: &str) -> TextFormat {
        if accept.contains("application/openmetrics-text") {
            TextFormat::OpenMetrics
        } else {
            TextFormat::Prometheus
        }
    }

    /// Value of `Content-Type`.
    pub fn content_type(self) -> &'static str {
        match self {
            TextFormat::Prometheus => prometheus_text::CONTENT_TYPE,
            TextFormat::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// One scrape.
#[derive(Debug)]
pub struct Exposition {
    view: Arc<View>,
    now: Now,
    process: ProcessUsage,
}

impl Exposition {
    /// Of this view at this moment.
    pub fn new(view: Arc<View>, now: Now, process: ProcessUsage) -> Exposition {
        Exposition { view, now, process }
    }

    /// The text.
    pub fn render(self, format: TextFormat) -> Result<String, fmt::Error> {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        let mut body = String::new();
        match format {
            TextFormat::Prometheus => prometheus_text::encode(&mut body, &registry)?,
            TextFormat::OpenMetrics => text::encode(&mut body, &registry)?,
        }
        Ok(body)
    }
}

impl Collector for Exposition {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut out = Out { encoder };
        self.encode_sources(&mut out)?;
        self.encode_mirror(&mut out)?;
        encode_captures(&self.view, self.now, &mut out)?;
        self.encode_shards(&mut out)?;
        self.encode_process(&mut out)
    }
}

impl Exposition {
    fn encode_sources(&self, out: &mut Out<'_>) -> fmt::Result {
        let sources = &self.view.sources;
        let status = sources.iter().flat_map(|source| {
            STATUSES.map(|status| {
                let is = source.condition.status == status;
                ([("source", &*source.info.key), ("status", status.as_str())], u64::from(is))
            })
        });
        out.gauge("tidegate_source_status", "1 for the status the source is in", status)?;
        let feeds = self.mirrors().flat_map(|source| {
            STATUSES.map(|status| {
                let is = source.feeds.iter().filter(|f| f.snapshot.condition.status == status);
                ([("source", &*source.info.key), ("status", status.as_str())], is.count() as u64)
            })
        });
        out.gauge("tidegate_feeds", "Feeds (upstream partitions) by status", feeds)?;
        let reasons: Vec<_> = sources.iter().flat_map(reasons_of).collect();
        let help = "Feeds, captures and topics that stand with this reason";
        out.gauge("tidegate_conditions", help, reasons.into_iter())
    }

    fn mirrors(&self) -> impl Iterator<Item = &SourceView> {
        self.view.sources.iter().filter(|source| source.info.kind == SourceKind::Iggy)
    }

    fn encode_mirror(&self, out: &mut Out<'_>) -> fmt::Result {
        let lag = self.mirrors().map(|s| (of_source(s), s.lag_messages()));
        let help = "Messages upstream has and the copy has not, all feeds";
        out.gauge("tidegate_mirror_lag_messages", help, lag)?;
        let largest = self.mirrors().map(|source| {
            let feeds = source.feeds.iter().map(|feed| feed.snapshot.lag_messages);
            (of_source(source), feeds.max().unwrap_or(0))
        });
        let help = "Largest lag of a single feed";
        out.gauge("tidegate_mirror_lag_messages_max", help, largest)?;
        let trips = self.mirrors().filter_map(|source| {
            let feeds = source.feeds.iter().filter_map(|feed| feed.snapshot.round_trip);
            let millis = feeds.max()?.as_millis();
            Some((of_source(source), u64::try_from(millis).unwrap_or(u64::MAX)))
        });
        let help = "Round trip to the destination, of the feed with the longest";
        out.gauge("tidegate_mirror_round_trip_milliseconds", help, trips)?;
        let counters: [Family<Totals>; 8] = [
            ("tidegate_mirror_messages", "Messages acked by the destination", |t| t.messages),
            ("tidegate_mirror_bytes", "Bytes acked by the destination", |t| t.bytes),
            ("tidegate_mirror_errors", "Failed operations", |t| t.errors),
            ("tidegate_mirror_gaps", "Gap records", |t| t.gaps),
            ("tidegate_mirror_gap_messages", "Upstream offsets in gaps", |t| t.gap_messages),
            ("tidegate_mirror_resets", "Histories that ended", |t| t.resets),
            ("tidegate_mirror_sends", "Sends acked by the destination", |t| t.sends),
            ("tidegate_mirror_sent_records", "Upstream records in those sends", |t| t.sent_records),
        ];
        for (name, help, of) in counters {
            let rows = self.mirrors().map(|source| (of_source(source), of(&source.totals)));
            out.counter(name, help, rows)?;
        }
        Ok(())
    }

    fn encode_shards(&self, out: &mut Out<'_>) -> fmt::Result {
        let shards: Vec<(String, &ShardView)> =
            self.view.shards.iter().map(|shard| (shard.number.to_string(), shard)).collect();
        let live = shards.iter().map(|(label, shard)| {
            ([("shard", label.as_str())], u64::from(shard.is_live(self.now.mono)))
        });
        out.gauge("tidegate_shard_live", "1 while the shard's loop turns", live)?;
        let peaks = shards
            .iter()
            .map(|(label, shard)| ([("shard", label.as_str())], shard.loop_peak_us as f64 / 1e6));
        let help = "Longest turn of the shard's loop within the last minute";
        out.gauge("tidegate_shard_loop_max_seconds", help, peaks)?;
        let value = |of: fn(&ShardSnapshot) -> u64| {
            let row = move |(label, shard): &'_ (String, &ShardView)| {
                (label.clone(), shard.latest.as_ref().map_or(0, of))
            };
            shards.iter().map(row).collect::<Vec<_>>()
        };
        let gauges: [Family<ShardSnapshot>; 2] = [
            ("tidegate_buffered_bytes", "Reserved buffer bytes", |s| s.buffered),
            ("tidegate_buffer_limit_bytes", "Bound on those", |s| s.buffer_limit),
        ];
        for (name, help, of) in gauges {
            let rows = value(of);
            out.gauge(name, help, rows.iter().map(|(s, v)| ([("shard", s.as_str())], *v)))?;
        }
        let counters: [Family<ShardSnapshot>; 3] = [
            ("tidegate_shard_loop_turns", "Turns of the shard's loop", |s| s.loop_turns),
            ("tidegate_state_saves", "State files written", |s| s.saves),
            ("tidegate_state_save_failures", "Saves that failed", |s| s.save_failures),
        ];
        for (name, help, of) in counters {
            let rows = value(of);
            out.counter(name, help, rows.iter().map(|(s, v)| ([("shard", s.as_str())], *v)))?;
        }
        Ok(())
    }

    fn encode_process(&self, out: &mut Out<'_>) -> fmt::Result {
        let build = Info::new([("version", self.view.info.version)]);
        let help = "Version of the running program";
        let metric =
            out.encoder.encode_descriptor("tidegate_build", help, None, MetricType::Info)?;
        build.encode(metric)?;
        let started = self.view.info.started_at as f64 / 1e6;
        out.plain_gauge("process_start_time_seconds", "Start, since the Unix epoch", started)?;
        let process = &self.process;
        if let Some(bytes) = process.resident_bytes {
            out.plain_gauge("process_resident_memory_bytes", "Resident memory", bytes)?;
        }
        if let Some(fds) = process.open_fds {
            out.plain_gauge("process_open_fds", "Open file descriptors", fds)?;
        }
        if let Some(fds) = process.max_fds {
            out.plain_gauge("process_max_fds", "Limit on file descriptors", fds)?;
        }
        if let Some(seconds) = process.cpu_seconds {
            let kind = MetricType::Counter;
            let help = "User and system time";
            let metric = out.encoder.encode_descriptor("process_cpu_seconds", help, None, kind)?;
            ConstCounter::new(seconds).encode(metric)?;
        }
        Ok(())
    }
}

fn of_source(source: &SourceView) -> [(&'static str, &str); 1] {
    [("source", &*source.info.key)]
}

/// How many feeds, captures and findings of a source stand with each reason that is not empty.
fn reasons_of(source: &SourceView) -> Vec<([(&'static str, &str); 2], u64)> {
    let findings = source.findings.iter().map(|finding| &finding.condition);
    let feeds = source.feeds.iter().map(|feed| &feed.snapshot.condition);
    let captures = source.capture.iter().map(|capture| &capture.snapshot.condition);
    let mut counts = std::collections::BTreeMap::new();
    for Condition { reason, .. } in findings.chain(feeds).chain(captures) {
        if !reason.is_empty() {
            *counts.entry(*reason).or_insert(0_u64) += 1;
        }
    }
    let key = &*source.info.key;
    counts.into_iter().map(|(reason, n)| ([("source", key), ("reason", reason)], n)).collect()
}

/// Writes whole metric families.
pub(super) struct Out<'a> {
    encoder: DescriptorEncoder<'a>,
}

impl Out<'_> {
    pub(super) fn gauge<S, V>(
        &mut self,
        name: &str,
        help: &str,
        rows: impl Iterator<Item = (S, V)>,
    ) -> fmt::Result
    where
        S: EncodeLabelSet,
        V: EncodeGaugeValue,
        ConstGauge<V>: EncodeMetric,
    {
        let mut family = self.encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in rows {
            ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    pub(super) fn counter<S, V>(
        &mut self,
        name: &str,
        help: &str,
        rows: impl Iterator<Item = (S, V)>,
    ) -> fmt::Result
    where
        S: EncodeLabelSet,
        V: EncodeCounterValue,
        ConstCounter<V>: EncodeMetric,
    {
        let mut family = self.encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in rows {
            ConstCounter::new(value).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    /// Rows of labels, sum, and how many lie in each bucket, named by its upper bound.
    pub(super) fn histogram<S: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        rows: impl Iterator<Item = (S, f64, Vec<(f64, u64)>)>,
    ) -> fmt::Result {
        let kind = MetricType::Histogram;
        let mut family = self.encoder.encode_descriptor(name, help, None, kind)?;
        for (labels, sum, buckets) in rows {
            let count = buckets.iter().map(|(_, count)| count).sum();
            let mut metric = family.encode_family(&labels)?;
            metric.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
        }
        Ok(())
    }

    fn plain_gauge<V>(&mut self, name: &str, help: &str, value: V) -> fmt::Result
    where
        V: EncodeGaugeValue,
        ConstGauge<V>: EncodeMetric,
    {
        let metric = self.encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        ConstGauge::new(value).encode(metric)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::derive::Deriver;
    use super::super::fixture::{at, condition, feed, finding, info, running, scrape, shard};
    use super::*;

    fn busy_view(partitions: u32) -> View {
        let mut deriver = Deriver::new(info(2, &["orders", "idle"]));
        let mut feeds: Vec<_> = (0..partitions).map(|p| running("orders", p, 100)).collect();
        feeds.push(feed("orders", partitions, condition(Status::Error, "diverged", 4)));
        let findings = vec![finding("idle", Some("audit"), "missing_upstream")];
        deriver.derive(at(6), vec![shard(0, 3, feeds), shard(1, 4, Vec::new())], findings)
    }

    #[test]
    fn every_promised_series_is_there() {
        let text = scrape(busy_view(2), 6, TextFormat::Prometheus);
        for line in [
            "tidegate_source_status{source=\"orders\",status=\"Error\"} 1",
            "tidegate_source_status{source=\"orders\",status=\"Running\"} 0",
            "tidegate_source_status{source=\"idle\",status=\"Degraded\"} 1",
            "tidegate_feeds{source=\"orders\",status=\"Running\"} 2",
            "tidegate_conditions{source=\"idle\",reason=\"missing_upstream\"} 1",
            "tidegate_conditions{source=\"orders\",reason=\"diverged\"} 1",
            "tidegate_mirror_lag_messages{source=\"orders\"} 300",
            "tidegate_mirror_lag_messages_max{source=\"orders\"} 100",
            "tidegate_mirror_messages_total{source=\"orders\"} 200",
            "tidegate_mirror_bytes_total{source=\"orders\"} 20000",
            "tidegate_mirror_errors_total{source=\"idle\"} 0",
            "tidegate_mirror_gaps_total{source=\"orders\"} 0",
            "tidegate_mirror_gap_messages_total{source=\"orders\"} 0",
            "tidegate_mirror_resets_total{source=\"orders\"} 0",
            "tidegate_mirror_sends_total{source=\"orders\"} 3",
            "tidegate_mirror_sent_records_total{source=\"orders\"} 21",
            "tidegate_mirror_round_trip_milliseconds{source=\"orders\"} 80",
            "tidegate_state_saves_total{shard=\"1\"} 2",
            "tidegate_state_save_failures_total{shard=\"0\"} 1",
            "tidegate_shard_loop_turns_total{shard=\"0\"} 3",
            "tidegate_shard_loop_max_seconds{shard=\"0\"} 0.0015",
            "tidegate_shard_live{shard=\"0\"} 1",
            "tidegate_buffered_bytes{shard=\"0\"} 4096",
            "tidegate_buffer_limit_bytes{shard=\"0\"} 65536",
            "tidegate_build_info{version=\"1.2.3\"} 1",
            "process_start_time_seconds 1750000000.0",
            "process_resident_memory_bytes 7",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is missing in\n{text}");
        }
        assert!(!text.contains("process_open_fds"), "what cannot be read is absent");
    }

    #[test]
    fn more_partitions_make_no_more_series_and_no_topic_is_a_label() {
        let few = scrape(busy_view(2), 6, TextFormat::Prometheus);
        let many = scrape(busy_view(500), 6, TextFormat::Prometheus);
        assert_eq!(few.lines().count(), many.lines().count());
        assert!(!many.contains("orders/events") && !many.contains("audit"));
    }

    #[test]
    fn counters_never_fall_within_a_process() {
        let counters = |text: &str| -> BTreeMap<String, f64> {
            let samples = text.lines().filter(|line| !line.starts_with('#'));
            let samples = samples.filter_map(|line| line.rsplit_once(' '));
            let counters = samples.filter(|(name, _)| name.contains("_total"));
            counters.map(|(name, value)| (name.to_owned(), value.parse().unwrap())).collect()
        };
        let mut deriver = Deriver::new(info(1, &["orders"]));
        let mut before = BTreeMap::new();
        for (turns, feeds) in [
            (9, vec![running("orders", 0, 50), running("orders", 1, 70)]),
            (8, vec![running("orders", 0, 60)]),
            (12, vec![running("orders", 0, 10), running("orders", 1, 71)]),
        ] {
            let view = deriver.derive(at(turns), vec![shard(0, turns, feeds)], Vec::new());
            let now = counters(&scrape(view, turns, TextFormat::Prometheus));
            for (name, value) in &before {
                assert!(now.get(name).is_some_and(|now| now >= value), "{name} fell below {value}");
            }
            before = now;
        }
        assert_eq!(before.get("tidegate_mirror_messages_total{source=\"orders\"}"), Some(&131.0));
    }

    #[test]
    fn scrapers_get_the_format_they_ask_for() {
        let asked = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.3";
        assert_eq!(TextFormat::negotiate(asked), TextFormat::OpenMetrics);
        assert_eq!(TextFormat::negotiate("*/*"), TextFormat::Prometheus);
        let open = scrape(busy_view(1), 6, TextFormat::OpenMetrics);
        assert!(open.ends_with("# EOF\n"));
        let plain = scrape(busy_view(1), 6, TextFormat::Prometheus);
        assert!(!plain.contains("# EOF"));
        assert!(plain.contains("# TYPE tidegate_mirror_messages_total counter\n"), "{plain}");
    }
}
