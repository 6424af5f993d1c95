//! What the tests of the real binary share: clusters (built-in brokers or real servers), daemons,
//! writers, a proxy, one oracle, and waits that name what they waited for.
//!
//! By default the clusters are brokers in this process. With `TIDEGATE_TEST_IGGY_UP` and
//! `TIDEGATE_TEST_IGGY_DOWN` (`host:port` each, user and password `iggy`) they are real servers;
//! tests that need faults are then skipped with a printed reason.
#![allow(dead_code, unused_imports)] // each test binary uses its part
#![allow(clippy::disallowed_methods)] // sockets, files, threads and the clock

mod certs;
mod client;
mod cluster;
mod daemon;
pub mod pg_client;
mod postgres;
mod proxy;
mod writer;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tidegate::batch::TopicName;
pub use tidegate::cli::demo::compare::{Report, Seen, compare as compare_logs};
pub use tidegate::cli::demo::workload::Workload;

pub use certs::{Authority, Leaf};
pub use client::Client;
pub use cluster::{Cluster, Loopbacks, Pair, over_the_wire};
pub use daemon::{ADMIN_TOKEN, Config, Daemon, Home};
pub use postgres::{Postgres, ServerTls, Session, SqlRows, Stop};
pub use proxy::Proxy;
pub use writer::Writer;

/// Pause between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Waits until `look` finds something; panics naming what it waited for.
#[track_caller]
pub fn eventually<T>(limit: Duration, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < limit, "waited {limit:?} in vain for {what}");
        std::thread::sleep(LOOK_EVERY);
    }
}

/// A condition for [`eventually`].
pub fn when(condition: bool) -> Option<()> {
    condition.then_some(())
}

/// Panics as soon as `holds` is false within `span`.
#[track_caller]
pub fn throughout(span: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while begun.elapsed() < span {
        assert!(holds(), "after {:?}, no longer true: {what}", begun.elapsed());
        std::thread::sleep(LOOK_EVERY);
    }
}

/// A name nobody else uses, on this machine or on a server that other runs share.
pub fn unique(base: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let nth = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{base}-{}-{:04x}-{nth}", std::process::id(), fastrand::u16(..))
}

/// A topic in a stream of its own.
pub fn unique_topic(base: &str) -> TopicName {
    TopicName::new(&unique(base), "events")
}

/// Compares a topic with its copy, partition by partition.
pub fn compare(
    up: &dyn Cluster,
    from: &TopicName,
    down: &dyn Cluster,
    to: &TopicName,
    partitions: u32,
) -> Report {
    let mut sum = Report::default();
    for partition in 0..partitions {
        let (upstream, copy) = (up.seen(from, partition, 0), down.seen(to, partition, 0));
        let mut report = compare_logs(&upstream, &copy);
        if let Some(difference) = &mut report.first_difference {
            *difference = format!("in partition {partition}: {difference}");
        }
        sum.add(report);
    }
    sum
}

/// Full-length waits instead of scaled ones.
pub fn soak() -> bool {
    std::env::var_os("TIDEGATE_SOAK").is_some_and(|value| value != "0")
}

/// The seed of this run: `TIDEGATE_SEED`, or a random one. Printed, so that it can be repeated.
pub fn seed(test: &str) -> u64 {
    let given = std::env::var("TIDEGATE_SEED").ok();
    let seed = given.map_or_else(
        || fastrand::u64(..1 << 32),
        |text| text.parse().expect("TIDEGATE_SEED is a number"),
    );
    println!("{test}: TIDEGATE_SEED={seed} repeats this run's choices");
    seed
}

/// Says why a test, or a part of it, is not run here.
pub fn skipped(what: &str, why: &str) {
    println!("skipped: {what}: {why}");
}
