//! The captures of a view in `/metrics`.
//!
//! What is named `iggy_connector_*` carries the names and the label `connector_key` that users of
//! Iggy's connector runtime know; the rest has the label `source`. A destination is never a label.

use std::fmt;

use super::board::{CaptureView, View};
use super::capture::unmatched;
use super::metrics::{Family, Out};
use crate::shard::snapshot::{CaptureSnapshot, Latency, Rejection, Watch};
use crate::time::Now;

/// The states that Postgres knows; none is 1 while the slot keeps no log.
const WAL_STATUSES: [&str; 4] = ["reserved", "extended", "unreserved", "lost"];

/// Every metric of captures. A capture that has not reported yet has no rows.
pub(super) fn encode_captures(view: &View, now: Now, out: &mut Out<'_>) -> fmt::Result {
    let captures: Vec<Row<'_>> = view
        .sources
        .iter()
        .filter_map(|source| Some((&*source.info.key, source.capture.as_ref()?)))
        .collect();
    encode_routing(&captures, out)?;
    encode_progress(&captures, now, out)?;
    encode_counters(&captures, out)?;
    encode_log(&captures, out)
}

/// A capture under its key.
type Row<'v> = (&'v str, &'v CaptureView);

fn encode_routing(captures: &[Row<'_>], out: &mut Out<'_>) -> fmt::Result {
    let routed = captures.iter().map(|(key, c)| (connector(key), c.snapshot.outlet.routed));
    let help = "Messages acked by the destination they were routed to";
    out.counter("iggy_connector_messages_routed", help, routed)?;
    let gauges: [Family<CaptureSnapshot>; 2] = [
        ("iggy_connector_destinations_active", "Admitted destinations", |s| {
            u64::from(s.outlet.destinations)
        }),
        (
            "iggy_connector_destination_circuit_open",
            "Destinations whose circuit breaker is not closed",
            |s| u64::from(s.outlet.circuits_open),
        ),
    ];
    for (name, help, of) in gauges {
        out.gauge(name, help, captures.iter().map(|(key, c)| (connector(key), of(&c.snapshot))))?;
    }
    let rejected = captures.iter().flat_map(|(key, capture)| {
        let counts = Rejection::ALL.iter().zip(capture.snapshot.outlet.rejected.rejected);
        counts.map(|(reason, n)| ([("connector_key", *key), ("reason", reason.as_str())], n))
    });
    let help = "Messages not sent to their destination, by reason";
    out.counter("iggy_connector_destinations_rejected", help, rejected)?;
    let without = captures.iter().flat_map(|(key, capture)| {
        let counts = unmatched(&capture.snapshot).into_iter();
        counts.map(|(action, n)| ([("connector_key", *key), ("action", action)], n))
    });
    let help = "Messages without a destination of their own, by what was done with them";
    out.counter("iggy_connector_routing_unmatched", help, without)?;
    let created = captures.iter().map(|(key, capture)| {
        let latency = &capture.snapshot.outlet.created;
        (connector(key), latency.sum.as_secs_f64(), buckets(latency))
    });
    let help = "How long making a stream and topic took";
    out.histogram("iggy_connector_destination_create_latency_seconds", help, created)
}

fn encode_progress(captures: &[Row<'_>], now: Now, out: &mut Out<'_>) -> fmt::Result {
    let gauges: [Family<CaptureSnapshot>; 4] = [
        (
            "tidegate_capture_lag_bytes",
            "Bytes of log between the position and the server's end",
            |s| s.lag_bytes,
        ),
        ("tidegate_capture_pending_batches", "Batches that are not acked whole", |s| {
            u64::try_from(s.pending_batches).unwrap_or(u64::MAX)
        }),
        ("tidegate_capture_pending_bytes", "Bytes of those", |s| s.pending_bytes),
        ("tidegate_capture_failures", "Tries in a row that moved nothing", |s| {
            u64::from(s.failures)
        }),
    ];
    for (name, help, of) in gauges {
        out.gauge(name, help, captures.iter().map(|(key, c)| (source(key), of(&c.snapshot))))?;
    }
    let waits = captures.iter().map(|(key, capture)| {
        let since = capture.waiting_since.map(|since| now.mono.since(since.mono));
        (source(key), since.unwrap_or_default().as_secs_f64())
    });
    let help = "How long the oldest position has waited for its acks; 0 while nothing waits";
    out.gauge("tidegate_capture_oldest_pending_seconds", help, waits)
}

fn encode_counters(captures: &[Row<'_>], out: &mut Out<'_>) -> fmt::Result {
    let counters: [Family<CaptureSnapshot>; 14] = [
        ("tidegate_capture_messages", "Messages acked", |s| s.counters.messages),
        ("tidegate_capture_bytes", "Bytes of those", |s| s.counters.bytes),
        ("tidegate_capture_transactions", "Transactions acked whole", |s| s.counters.transactions),
        ("tidegate_capture_errors", "Failed operations", |s| s.counters.errors),
        ("tidegate_capture_gaps", "Gap records", |s| s.counters.gaps),
        ("tidegate_capture_resets", "Positions given up", |s| s.counters.resets),
        ("tidegate_capture_repeated_transactions", "Transactions that were done already", |s| {
            s.stream.repeated_transactions
        }),
        ("tidegate_capture_repeated_rows", "Rows that were done already", |s| {
            s.stream.repeated_rows
        }),
        ("tidegate_capture_filtered_rows", "Rows that are not asked for", |s| {
            s.stream.filtered_rows
        }),
        ("tidegate_capture_logical_messages", "Logical messages passed over", |s| {
            s.stream.logical_messages
        }),
        ("tidegate_capture_rows_without_payload", "Rows that gave no payload", |s| {
            s.without_payload
        }),
        ("tidegate_capture_odd_values", "Values sent as the server's text", |s| s.odd_values),
        ("tidegate_capture_lost_tails", "Offsets that a destination gave out again", |s| {
            s.outlet.lost_tails
        }),
        ("tidegate_capture_destination_trips", "Times that a circuit breaker opened", |s| {
            s.destinations.iter().map(|destination| destination.trips).sum()
        }),
    ];
    for (name, help, of) in counters {
        out.counter(name, help, captures.iter().map(|(key, c)| (source(key), of(&c.snapshot))))?;
    }
    Ok(())
}

/// What the slot keeps on the database's disk; absent until the server was asked.
fn encode_log(captures: &[Row<'_>], out: &mut Out<'_>) -> fmt::Result {
    let watched: Vec<(&str, &Watch)> =
        captures.iter().filter_map(|(key, c)| Some((*key, c.snapshot.wal.as_ref()?))).collect();
    let retained = watched.iter().map(|(key, wal)| (source(key), wal.retained));
    let help = "Bytes of log that the database cannot remove because of the slot";
    out.gauge("tidegate_capture_wal_retained_bytes", help, retained)?;
    let unconfirmed = watched.iter().map(|(key, wal)| (source(key), wal.unconfirmed));
    let help = "Bytes of log behind the slot's confirmed position";
    out.gauge("tidegate_capture_wal_unconfirmed_bytes", help, unconfirmed)?;
    let safe = watched.iter().filter_map(|(key, wal)| Some((source(key), wal.safe_wal_size?)));
    let help = "Bytes of log until the slot may be lost; absent without a limit";
    out.gauge("tidegate_capture_wal_safe_bytes", help, safe)?;
    let status = watched.iter().flat_map(|(key, wal)| {
        WAL_STATUSES.map(|status| {
            ([("source", *key), ("status", status)], u64::from(wal.wal_status == status))
        })
    });
    let help = "1 for what the server says of the slot's log";
    out.gauge("tidegate_capture_wal_status", help, status)
}

fn connector(key: &str) -> [(&'static str, &str); 1] {
    [("connector_key", key)]
}

fn source(key: &str) -> [(&'static str, &str); 1] {
    [("source", key)]
}

/// Upper bounds in seconds with how many lie below them and above the one before.
fn buckets(latency: &Latency) -> Vec<(f64, u64)> {
    let bounds = Latency::BOUNDS_MS.iter().map(|millis| *millis as f64 / 1e3);
    bounds.chain([f64::INFINITY]).zip(latency.counts).collect()
}

#[cfg(test)]
mod tests {
    use super::super::derive::Deriver;
    use super::super::fixture::{at, capture, condition, info_of, running, scrape, shard};
    use super::super::metrics::TextFormat;
    use super::*;
    use crate::shard::snapshot::{CaptureSnapshot, Status};

    fn view_of(captures: Vec<CaptureSnapshot>) -> View {
        let mut deriver = Deriver::new(info_of(1, &["orders"], &["shop", "late"]));
        let mut snapshot = shard(0, 3, vec![running("orders", 0, 1)]);
        snapshot.captures = captures;
        deriver.derive(at(6), vec![snapshot], Vec::new())
    }

    fn busy() -> CaptureSnapshot {
        capture("shop", condition(Status::Degraded, "circuit_open", 3))
    }

    #[test]
    fn every_promised_series_of_a_capture_is_there() {
        let text = scrape(view_of(vec![busy()]), 8, TextFormat::Prometheus);
        for line in [
            "tidegate_source_status{source=\"shop\",status=\"Degraded\"} 1",
            "tidegate_source_status{source=\"late\",status=\"Starting\"} 1",
            "tidegate_conditions{source=\"shop\",reason=\"circuit_open\"} 1",
            "iggy_connector_messages_routed_total{connector_key=\"shop\"} 498",
            "iggy_connector_destinations_active{connector_key=\"shop\"} 2",
            "iggy_connector_destination_circuit_open{connector_key=\"shop\"} 1",
            "iggy_connector_routing_unmatched_total{connector_key=\"shop\",action=\"drop\"} 6",
            "iggy_connector_routing_unmatched_total{connector_key=\"shop\",action=\"default\"} 0",
            "iggy_connector_routing_unmatched_total{connector_key=\"shop\",action=\"error\"} 0",
            "tidegate_capture_lag_bytes{source=\"shop\"} 4294975488",
            "tidegate_capture_pending_batches{source=\"shop\"} 4",
            "tidegate_capture_pending_bytes{source=\"shop\"} 4000",
            "tidegate_capture_oldest_pending_seconds{source=\"shop\"} 2.0",
            "tidegate_capture_failures{source=\"shop\"} 9",
            "tidegate_capture_messages_total{source=\"shop\"} 500",
            "tidegate_capture_bytes_total{source=\"shop\"} 50000",
            "tidegate_capture_transactions_total{source=\"shop\"} 40",
            "tidegate_capture_errors_total{source=\"shop\"} 3",
            "tidegate_capture_gaps_total{source=\"shop\"} 1",
            "tidegate_capture_resets_total{source=\"shop\"} 2",
            "tidegate_capture_repeated_transactions_total{source=\"shop\"} 14",
            "tidegate_capture_repeated_rows_total{source=\"shop\"} 13",
            "tidegate_capture_filtered_rows_total{source=\"shop\"} 12",
            "tidegate_capture_logical_messages_total{source=\"shop\"} 11",
            "tidegate_capture_rows_without_payload_total{source=\"shop\"} 17",
            "tidegate_capture_odd_values_total{source=\"shop\"} 18",
            "tidegate_capture_lost_tails_total{source=\"shop\"} 1",
            "tidegate_capture_destination_trips_total{source=\"shop\"} 1",
            "tidegate_capture_wal_retained_bytes{source=\"shop\"} 9000",
            "tidegate_capture_wal_unconfirmed_bytes{source=\"shop\"} 8000",
            "tidegate_capture_wal_safe_bytes{source=\"shop\"} -70",
            "tidegate_capture_wal_status{source=\"shop\",status=\"extended\"} 1",
            "tidegate_capture_wal_status{source=\"shop\",status=\"lost\"} 0",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is missing in\n{text}");
        }
        for reason in Rejection::ALL {
            let count = if reason == Rejection::Denylist { 2 } else { 0 };
            let labels = format!("{{connector_key=\"shop\",reason=\"{}\"}}", reason.as_str());
            let line = format!("iggy_connector_destinations_rejected_total{labels} {count}\n");
            assert!(text.contains(&line), "{line} is missing in\n{text}");
        }
    }

    #[test]
    fn creations_are_a_histogram_in_seconds() {
        let name = "iggy_connector_destination_create_latency_seconds";
        for format in [TextFormat::Prometheus, TextFormat::OpenMetrics] {
            let text = scrape(view_of(vec![busy()]), 8, format);
            let opening = format!("{name}_bucket{{");
            let buckets = text.lines().filter_map(|line| {
                let (labels, count) = line.strip_prefix(&opening)?.split_once("} ")?;
                assert!(labels.contains("connector_key=\"shop\""), "{labels}");
                let bound = labels.split("le=\"").nth(1)?.split('"').next()?.parse().ok()?;
                Some((bound, count.parse().ok()?))
            });
            let buckets: Vec<(f64, u64)> = buckets.collect();
            let expected = [
                (0.005, 0),
                (0.01, 1),
                (0.025, 1),
                (0.05, 3),
                (0.1, 3),
                (0.25, 3),
                (1.0, 3),
                (5.0, 3),
                (30.0, 3),
                (f64::INFINITY, 4),
            ];
            assert_eq!(buckets, expected, "{format:?}");
            for line in [
                format!("# TYPE {name} histogram\n"),
                format!("{name}_sum{{connector_key=\"shop\"}} 40.25\n"),
                format!("{name}_count{{connector_key=\"shop\"}} 4\n"),
            ] {
                assert!(text.contains(&line), "{line} is missing in\n{text}");
            }
        }
    }

    #[test]
    fn a_capture_has_no_series_of_a_mirror_and_the_other_way_round() {
        let text = scrape(view_of(vec![busy()]), 8, TextFormat::Prometheus);
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let of_mirrors =
                line.starts_with("tidegate_mirror") || line.starts_with("tidegate_feeds");
            let of_captures =
                line.starts_with("tidegate_capture") || line.starts_with("iggy_connector");
            assert!(!(of_mirrors && line.contains("\"shop\"")), "{line}");
            assert!(!(of_captures && line.contains("\"orders\"")), "{line}");
        }
    }

    #[test]
    fn more_destinations_make_no_more_series() {
        let few = scrape(view_of(vec![busy()]), 8, TextFormat::Prometheus);
        let mut many = busy();
        many.destinations = many.destinations.iter().cycle().take(300).cloned().collect();
        let many = scrape(view_of(vec![many]), 8, TextFormat::Prometheus);
        assert_eq!(few.lines().count(), many.lines().count());
        assert!(!many.contains("commerce") && !many.contains("audit"), "{many}");
    }

    #[test]
    fn the_log_has_no_series_until_the_server_was_asked() {
        let mut fresh = busy();
        fresh.wal = None;
        let text = scrape(view_of(vec![fresh]), 8, TextFormat::Prometheus);
        assert!(!text.contains("tidegate_capture_wal_status{"), "{text}");
        let mut unlimited = busy();
        unlimited.wal = unlimited.wal.map(|wal| Watch { safe_wal_size: None, ..wal });
        let text = scrape(view_of(vec![unlimited]), 8, TextFormat::Prometheus);
        assert!(text.contains("tidegate_capture_wal_retained_bytes{"), "{text}");
        assert!(!text.contains("tidegate_capture_wal_safe_bytes{"), "{text}");
    }
}
