//! Addresses: literals are parsed at once, names are looked up on threads of their own, because
//! `getaddrinfo` blocks for as long as the name server likes. The answer comes back through a
//! mailbox; a thread that asks never waits for it other than in its runtime.
//!
//! A name is asked for once at a time, whoever wants it, and each on its own thread, so one
//! cluster's dead name server delays no other cluster. Beyond [`THREADS`] names at a time the
//! next ones wait; a name that nobody waits for any more is skipped.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Poll, Waker};
use std::thread;

use super::wake::listen;
use crate::shard::mailbox::{Post, mailbox};

/// Names being looked up at a time; each has a thread for as long as it takes.
const THREADS: usize = 8;
/// Names that may wait for a thread; more are answered with an error at once.
const QUEUE: usize = 256;

/// What a look-up found, or why nothing.
pub type Answer = Result<Vec<SocketAddr>, String>;

/// Somebody who waits for a name.
struct Asker {
    id: u64,
    reply: Post<(u64, Answer)>,
    /// Gone when the asker has given up.
    alive: Weak<()>,
}

/// Who waits for which name.
#[derive(Default)]
struct Book {
    askers: HashMap<String, Vec<Asker>>,
    /// Names that wait for a thread.
    waiting: VecDeque<String>,
    threads: usize,
}

/// What an asker has to do after [`Book::ask`].
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    /// Nothing: a thread has the name or will take it.
    Taken,
    /// Start a thread.
    ThreadWanted,
    /// Too many names wait.
    Full,
}

impl Book {
    fn ask(&mut self, name: &str, asker: Asker) -> Asked {
        if let Some(askers) = self.askers.get_mut(name) {
            askers.retain(|asker| asker.alive.strong_count() > 0);
            askers.push(asker);
            return Asked::Taken;
        }
        if self.waiting.len() >= QUEUE {
            return Asked::Full;
        }
        self.askers.insert(name.into(), vec![asker]);
        self.waiting.push_back(name.into());
        if self.threads >= THREADS {
            return Asked::Taken;
        }
        self.threads += 1;
        Asked::ThreadWanted
    }

    /// The next name somebody still waits for; `None` ends the thread that asks.
    fn next(&mut self) -> Option<String> {
        while let Some(name) = self.waiting.pop_front() {
            let askers = self.askers.get(&name).map(Vec::as_slice).unwrap_or_default();
            if askers.iter().any(|asker| asker.alive.strong_count() > 0) {
                return Some(name);
            }
            self.askers.remove(&name);
        }
        self.threads -= 1;
        None
    }

    fn answered(&mut self, name: &str) -> Vec<Asker> {
        self.askers.remove(name).unwrap_or_default()
    }
}

/// How a name is looked up.
type LookUp = dyn Fn(&str) -> Answer + Send + Sync;

/// The resolver's threads, seen from other threads. They end when they have nothing to look up.
#[derive(Clone)]
pub struct ResolverThread {
    book: Arc<Mutex<Book>>,
    look_up: Arc<LookUp>,
}

impl ResolverThread {
    /// Uses the system's resolver.
    pub fn start() -> io::Result<ResolverThread> {
        Ok(ResolverThread::with(|name| match name.to_socket_addrs() {
            Ok(found) => Ok(found.collect()),
            Err(error) => Err(error.to_string()),
        }))
    }

    /// Names are looked up by `look_up`.
    pub fn with(look_up: impl Fn(&str) -> Answer + Send + Sync + 'static) -> ResolverThread {
        ResolverThread { book: Arc::default(), look_up: Arc::new(look_up) }
    }

    fn ask(&self, name: &str, asker: Asker) -> Result<(), String> {
        match lock(&self.book).ask(name, asker) {
            Asked::Taken => return Ok(()),
            Asked::Full => return Err("too many names are being looked up".into()),
            Asked::ThreadWanted => {}
        }
        let (book, look_up) = (self.book.clone(), self.look_up.clone());
        let work = move || answer_all(&book, &*look_up);
        let started = thread::Builder::new().name("resolver".into()).spawn(work);
        started.map(drop).map_err(|error| {
            let mut book = lock(&self.book);
            book.threads -= 1;
            book.waiting.retain(|waiting| waiting != name);
            book.answered(name);
            format!("no thread to look the name up: {error}")
        })
    }
}

fn lock(book: &Mutex<Book>) -> std::sync::MutexGuard<'_, Book> {
    // Nothing panics while it is held.
    book.lock().unwrap_or_else(PoisonError::into_inner)
}

fn answer_all(book: &Mutex<Book>, look_up: &LookUp) {
    loop {
        // A guard in the loop's condition would be held while the name is looked up.
        let next = lock(book).next();
        let Some(name) = next else { return };
        let answer = look_up(&name);
        for Asker { id, reply, alive } in lock(book).answered(&name) {
            if alive.strong_count() > 0 {
                // A full mailbox or a thread that ended: the asker times out by itself.
                let _ = reply.send((id, answer.clone()));
            }
        }
    }
}

enum Slot {
    Waiting(Option<Waker>),
    Answered(Answer),
}

/// One thread's access to the resolver.
pub struct Resolver {
    thread: ResolverThread,
    reply: Post<(u64, Answer)>,
    slots: RefCell<(u64, HashMap<u64, Slot>)>,
}

impl Resolver {
    /// To be made inside the runtime that asks.
    pub fn new(thread: ResolverThread) -> io::Result<Rc<Resolver>> {
        let (reply, inbox, heard) = mailbox(QUEUE)?;
        let resolver = Rc::new(Resolver { thread, reply, slots: RefCell::default() });
        let weak = Rc::downgrade(&resolver);
        monoio::spawn(listen(heard, inbox, move |(id, answer)| match weak.upgrade() {
            Some(resolver) => {
                resolver.arrived(id, answer);
                true
            }
            None => false,
        }));
        Ok(resolver)
    }

    /// The socket addresses of `host:port`; waits in the runtime for a name, unless `given_up`
    /// turns true first (the caller is woken by whoever makes it true).
    pub async fn look_up(&self, address: &str, given_up: impl Fn() -> bool) -> Answer {
        if let Ok(literal) = address.parse() {
            return Ok(vec![literal]);
        }
        let id = {
            let mut slots = self.slots.borrow_mut();
            slots.0 += 1;
            let id = slots.0;
            slots.1.insert(id, Slot::Waiting(None));
            id
        };
        let alive = Arc::new(());
        let asker = Asker { id, reply: self.reply.clone(), alive: Arc::downgrade(&alive) };
        let answer = match self.thread.ask(address, asker) {
            Ok(()) => poll_fn(|cx| self.poll(id, cx.waker(), &given_up)).await,
            Err(why) => Err(why),
        };
        drop(alive);
        self.slots.borrow_mut().1.remove(&id);
        answer
    }

    fn poll(&self, id: u64, waker: &Waker, given_up: &impl Fn() -> bool) -> Poll<Answer> {
        let mut slots = self.slots.borrow_mut();
        match slots.1.remove(&id) {
            Some(Slot::Answered(answer)) => Poll::Ready(answer),
            _ if given_up() => Poll::Ready(Err("no answer from the name service".into())),
            _ => {
                slots.1.insert(id, Slot::Waiting(Some(waker.clone())));
                Poll::Pending
            }
        }
    }

    fn arrived(&self, id: u64, answer: Answer) {
        let mut slots = self.slots.borrow_mut();
        // Nobody waits any more for an id that is not there.
        if let Some(slot) = slots.1.get_mut(&id)
            && let Slot::Waiting(Some(waker)) = std::mem::replace(slot, Slot::Answered(answer))
        {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    use super::*;
    use crate::shard::driver::runtime::{IoDriver, Runtimes};

    const PATIENCE: Duration = Duration::from_secs(10);

    /// A resolver whose names starting with `slow` hang until `Sender` is dropped, and every name
    /// it was asked for.
    fn scripted() -> (ResolverThread, Sender<()>, Receiver<String>) {
        let (release, held) = channel::<()>();
        let (asked, names) = channel();
        let (held, asked) = (Mutex::new(held), Mutex::new(asked));
        let thread = ResolverThread::with(move |name| {
            asked.lock().unwrap().send(name.to_owned()).unwrap();
            if name.starts_with("slow") {
                let _ = held.lock().unwrap().recv();
            }
            Ok(vec!["127.0.0.1:1".parse().unwrap()])
        });
        (thread, release, names)
    }

    fn in_runtime<F: Future<Output = ()>>(test: impl FnOnce() -> F) {
        let (mut runtime, _) = Runtimes::new(IoDriver::Epoll).build().unwrap();
        runtime.block_on(async { monoio::time::timeout(PATIENCE, test()).await.unwrap() });
    }

    /// Starts a look-up as a task; sends what came of it.
    fn ask(resolver: &Rc<Resolver>, name: &str) -> Rc<RefCell<Option<Answer>>> {
        let found = Rc::new(RefCell::new(None));
        let (resolver, name, put) = (resolver.clone(), name.to_owned(), found.clone());
        monoio::spawn(async move {
            let answer = resolver.look_up(&name, || false).await;
            put.replace(Some(answer));
        });
        found
    }

    async fn until(holds: impl Fn() -> bool) {
        while !holds() {
            monoio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    #[test]
    fn a_name_that_hangs_delays_no_other_and_is_asked_for_once() {
        in_runtime(|| async {
            let (thread, release, names) = scripted();
            let resolver = Resolver::new(thread).unwrap();
            let slow: Vec<_> = (0..20).map(|_| ask(&resolver, "slow:1")).collect();
            assert!(resolver.look_up("quick:1", || false).await.is_ok());
            assert!(slow.iter().all(|found| found.borrow().is_none()));
            drop(release);
            until(|| slow.iter().all(|found| matches!(*found.borrow(), Some(Ok(_))))).await;
            let mut asked: Vec<String> = names.try_iter().collect();
            asked.sort_unstable();
            assert_eq!(asked, ["quick:1", "slow:1"]);
            assert!(resolver.look_up("slow:1", || false).await.is_ok());
            assert_eq!(names.try_iter().count(), 1, "an answer is not kept");
        });
    }

    #[test]
    fn a_name_nobody_waits_for_any_more_is_skipped() {
        in_runtime(|| async {
            let (thread, release, names) = scripted();
            let resolver = Resolver::new(thread).unwrap();
            let hanging: Vec<_> =
                (0..THREADS).map(|n| ask(&resolver, &format!("slow{n}:1"))).collect();
            let book = resolver.thread.book.clone();
            until(|| {
                let book = book.lock().unwrap();
                (book.threads, book.waiting.len()) == (THREADS, 0)
            })
            .await;
            let given_up = resolver.look_up("abandoned:1", || true).await;
            assert!(given_up.is_err());
            let wanted = ask(&resolver, "wanted:1");
            monoio::time::sleep(Duration::from_millis(5)).await;
            drop(release);
            until(|| wanted.borrow().is_some()).await;
            until(|| hanging.iter().all(|found| found.borrow().is_some())).await;
            let asked: Vec<String> = names.try_iter().collect();
            assert_eq!(asked.len(), THREADS + 1);
            assert!(!asked.contains(&"abandoned:1".to_owned()), "{asked:?}");
            until(|| book.lock().unwrap().threads == 0).await;
        });
    }
}
