//! Addresses: literals are parsed at once, names are looked up on a thread of their own, because
//! `getaddrinfo` blocks for as long as the name server likes. The answer comes back through a
//! mailbox; a thread that asks never waits for it other than in its runtime.

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::thread;

use crossbeam_channel::{Receiver, Sender, bounded};

use super::wake::listen;
use crate::shard::mailbox::{Post, mailbox};

/// Questions that may wait for the resolver thread; more are answered with an error at once.
const QUEUE: usize = 256;

type Answer = Result<Vec<SocketAddr>, String>;

struct Question {
    id: u64,
    address: String,
    reply: Post<(u64, Answer)>,
}

/// The resolver thread, seen from other threads. It ends when every clone is gone.
#[derive(Clone)]
pub struct ResolverThread {
    questions: Sender<Question>,
}

impl ResolverThread {
    /// Starts the thread.
    pub fn start() -> io::Result<ResolverThread> {
        let (questions, receiver) = bounded::<Question>(QUEUE);
        thread::Builder::new().name("resolver".into()).spawn(move || answer_all(&receiver))?;
        Ok(ResolverThread { questions })
    }
}

fn answer_all(questions: &Receiver<Question>) {
    for Question { id, address, reply } in questions {
        let found = match address.to_socket_addrs() {
            Ok(found) => Ok(found.collect()),
            Err(error) => Err(error.to_string()),
        };
        // A full mailbox or a thread that ended: the question times out where it was asked.
        let _ = reply.send((id, found));
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
        let question = Question { id, address: address.into(), reply: self.reply.clone() };
        let answer = if self.thread.questions.try_send(question).is_err() {
            Err("too many names are being looked up".into())
        } else {
            poll_fn(|cx| self.poll(id, cx.waker(), &given_up)).await
        };
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
