//! A thread that keeps writing numbered messages to all partitions of a topic.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use fastrand::Rng;
use tidegate::batch::TopicName;

use super::Workload;
use super::cluster::Cluster;

/// Messages of one batch, at most.
const BATCH: u64 = 64;

/// A running writer; stops with its handle.
pub struct Writer {
    thread: Option<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    written: Arc<AtomicU64>,
}

impl Writer {
    /// Writes about `per_second` messages a second, round robin over the partitions, in batches
    /// of 1 to 64.
    pub fn start(
        cluster: Arc<dyn Cluster>,
        topic: &TopicName,
        partitions: u32,
        per_second: u64,
        seed: u64,
    ) -> Writer {
        let (stop, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (topic, workload) = (topic.clone(), Workload::new(seed));
        let thread = std::thread::spawn({
            let (stop, written) = (Arc::clone(&stop), Arc::clone(&written));
            move || {
                let mut next: Vec<u64> =
                    (0..partitions).map(|partition| cluster.end(&topic, partition)).collect();
                let (begun, mut rng) = (Instant::now(), Rng::with_seed(seed));
                while !stop.load(Ordering::Relaxed) {
                    let due = begun.elapsed().as_secs_f64() * per_second as f64;
                    if written.load(Ordering::Relaxed) as f64 >= due {
                        std::thread::sleep(Duration::from_millis(1));
                        continue;
                    }
                    let partition = rng.u32(..partitions);
                    let first = &mut next[partition as usize];
                    let count = rng.u64(1..=BATCH);
                    write(&*cluster, &topic, &workload, partition, *first, count);
                    *first += count;
                    written.fetch_add(count, Ordering::Relaxed);
                }
            }
        });
        Writer { thread: Some(thread), stop, written }
    }

    /// Messages written so far.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Stops it; how many messages it wrote.
    pub fn stop(mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(Err(panic)) = self.thread.take().map(JoinHandle::join) {
            std::panic::resume_unwind(panic);
        }
        self.written()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of that thread has been printed; there is nothing to add.
            let _ = thread.join();
        }
    }
}

/// Messages `first` to `first + count` of a partition, as one batch.
pub fn write(
    cluster: &dyn Cluster,
    topic: &TopicName,
    workload: &Workload,
    partition: u32,
    first: u64,
    count: u64,
) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a clock");
    let now = u64::try_from(now.as_micros()).expect("a date");
    let messages: Vec<_> =
        (first..first + count).map(|number| workload.message(partition, number, now)).collect();
    cluster.append(topic, partition, &messages);
}
