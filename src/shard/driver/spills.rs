//! Spill files: what a capture keeps of transactions that are not committed yet (P8).
//!
//! ```text
//! <state_dir>/<feed>.<xid>.spill   0600, never read after a restart
//! ```
//! One task of the shard performs the operations in order, each answered by
//! [`Event::Spilled`]. No spill file outlives the connection it was written for, so nothing here
//! is synced; what a killed daemon left is removed when the next one starts.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fs;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use monoio::fs::{File, OpenOptions};

use super::notify::Notify;
use super::queue::EventQueue;
use crate::batch::FeedId;
use crate::ingest::postgres_cdc::Spill;
use crate::shard::event::Event;
use crate::statefile::store::MODE;

/// The task sleeps at most so long between two looks.
const FAR: Duration = Duration::from_secs(3600);

/// The queue in front of the task.
#[derive(Clone)]
pub struct Spills {
    inner: Rc<Inner>,
}

struct Inner {
    dir: PathBuf,
    queue: RefCell<VecDeque<(FeedId, Spill)>>,
    changed: Notify,
    events: Rc<EventQueue>,
}

impl Spills {
    /// Starts the task in the current runtime.
    pub fn start(dir: PathBuf, events: Rc<EventQueue>) -> Spills {
        let queue = RefCell::default();
        let inner = Rc::new(Inner { dir, queue, changed: Notify::default(), events });
        monoio::spawn(run(inner.clone()));
        Spills { inner }
    }

    /// One more operation.
    pub fn push(&self, feed: FeedId, op: Spill) {
        self.inner.queue.borrow_mut().push_back((feed, op));
        self.inner.changed.notify();
    }
}

/// Removes what an earlier daemon left in `dir`. Blocks.
pub fn remove_all(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "spill") {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

async fn run(inner: Rc<Inner>) {
    loop {
        let next = inner.queue.borrow_mut().pop_front();
        let Some((feed, op)) = next else {
            inner.changed.wait(FAR).await;
            continue;
        };
        let path = |xid: u32| inner.dir.join(format!("{}.{xid}.spill", feed.0));
        let result = match op {
            Spill::Append { xid, offset, bytes } => append(&path(xid), offset, bytes).await,
            Spill::Read { xid, offset, length } => read(&path(xid), offset, length).await,
            Spill::Drop { xid } => drop_file(&path(xid)).await,
        };
        let result = result.map_err(|error| format!("spill file: {error}"));
        inner.events.push(Event::Spilled { feed, result });
    }
}

async fn append(path: &Path, offset: u64, bytes: Vec<u8>) -> io::Result<Vec<u8>> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(offset == 0).mode(MODE);
    let file = options.open(path).await?;
    let (written, _) = file.write_all_at(bytes, offset).await;
    close(file, written).await.map(|()| Vec::new())
}

async fn read(path: &Path, offset: u64, length: usize) -> io::Result<Vec<u8>> {
    let file = File::open(path).await?;
    let (read, bytes) = file.read_exact_at(Vec::with_capacity(length), offset).await;
    close(file, read).await.map(|()| bytes)
}

async fn drop_file(path: &Path) -> io::Result<Vec<u8>> {
    match monoio::fs::remove_file(path).await {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(Vec::new()),
    }
}

/// Closes also after a failure; the first error counts.
async fn close(file: File, result: io::Result<()>) -> io::Result<()> {
    let closed = file.close().await;
    result.and(closed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard::driver::runtime::{IoDriver, Runtimes};

    fn on_both(test: impl AsyncFn(PathBuf)) {
        for driver in [IoDriver::Epoll, IoDriver::Uring] {
            let dir = tempfile::tempdir().unwrap();
            let Ok((mut runtime, _)) = Runtimes::new(driver).build() else { continue };
            runtime.block_on(test(dir.path().to_owned()));
        }
    }

    async fn end(events: &EventQueue) -> Result<Vec<u8>, String> {
        loop {
            let mut batch = Vec::new();
            events.take_into(&mut batch, 1);
            match batch.pop() {
                Some(Event::Spilled { result, .. }) => return result,
                Some(other) => panic!("{other:?}"),
                None => monoio::time::sleep(Duration::from_millis(1)).await,
            }
        }
    }

    #[test]
    fn what_was_appended_is_read_back_and_then_gone() {
        on_both(async |dir| {
            let events = Rc::new(EventQueue::default());
            let spills = Spills::start(dir.clone(), events.clone());
            let feed = FeedId(3);
            for (offset, bytes) in [(0, b"first".to_vec()), (5, b"second".to_vec())] {
                spills.push(feed, Spill::Append { xid: 7, offset, bytes });
            }
            spills.push(feed, Spill::Read { xid: 7, offset: 3, length: 5 });
            assert_eq!(end(&events).await, Ok(Vec::new()));
            assert_eq!(end(&events).await, Ok(Vec::new()));
            assert_eq!(end(&events).await, Ok(b"stsec".to_vec()));
            spills.push(feed, Spill::Read { xid: 7, offset: 9, length: 50 });
            assert!(end(&events).await.is_err(), "a short file is no data");
            spills.push(feed, Spill::Append { xid: 7, offset: 0, bytes: b"x".to_vec() });
            spills.push(feed, Spill::Read { xid: 7, offset: 0, length: 2 });
            assert_eq!(end(&events).await, Ok(Vec::new()));
            assert!(end(&events).await.is_err(), "offset 0 begins anew");
            for _ in 0..2 {
                spills.push(feed, Spill::Drop { xid: 7 });
                assert_eq!(end(&events).await, Ok(Vec::new()));
            }
            fs::write(dir.join("9.9.spill"), "left").unwrap();
            fs::write(dir.join("orders.0.state"), "kept").unwrap();
            remove_all(&dir).unwrap();
            assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
        });
    }
}
