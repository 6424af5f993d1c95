//! The loop of a shard thread with a stand-in for the pipeline, over io_uring and over epoll.

#![allow(clippy::disallowed_methods, reason = "a test owns its clocks, files and threads")]

use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tidegate::batch::FeedId;
use tidegate::config::{ClusterPlan, Credentials, PostgresPlan, Settle};
use tidegate::shard::driver::files::{FileFaults, StateDir};
use tidegate::shard::driver::resolve::ResolverThread;
use tidegate::shard::driver::runtime::{IoDriver, Runtimes};
use tidegate::shard::driver::shard::{Decide, ShardStart, spawn};
use tidegate::shard::event::{
    Command, ConnError, ConnId, Event, Failure, FromControl, PgCommand, PgConnError, PgConnId,
    PgEvent, Ticket, ToControl, Wake,
};
use tidegate::shard::mailbox::{FromShard, Inbox, Post, Signed, ToShard, mailbox};
use tidegate::shard::pin;
use tidegate::shard::snapshot::{FeedSnapshot, ShardSnapshot};
use tidegate::time::{Millis, Now};

type React = Box<dyn FnMut(Now, Event, &mut Vec<Command>) -> Wake + Send>;

/// A wake that is due on every turn.
const ALWAYS: Millis = Millis(0);

/// Answers each event by a function; sleeps until the latest wake it returned.
struct StandIn {
    react: React,
    wake: Wake,
}

impl Decide for StandIn {
    fn step(&mut self, now: Now, events: &mut Vec<Event>, out: &mut Vec<Command>) -> Wake {
        if self.wake.is_some_and(|at| at <= now.mono && at != ALWAYS) {
            self.wake = None;
            out.push(Command::Control(ToControl::Drained));
        }
        for event in events.drain(..) {
            self.wake = (self.react)(now, event, out).or(self.wake);
        }
        self.wake
    }
    fn snapshot(&self, _: Now) -> Vec<FeedSnapshot> {
        Vec::new()
    }
    fn buffered(&self) -> (u64, u64) {
        (3, 5)
    }
    fn saves(&self) -> (u64, u64) {
        (0, 0)
    }
}

struct Rig {
    post: Post<ToShard>,
    letters: Inbox<Signed>,
    bell: UnixStream,
    thread: JoinHandle<()>,
    snapshots: Vec<ShardSnapshot>,
    _dir: tempfile::TempDir,
    dir: std::path::PathBuf,
}

impl Rig {
    fn start(
        driver: IoDriver,
        react: impl FnMut(Now, Event, &mut Vec<Command>) -> Wake + Send + 'static,
    ) -> Rig {
        let (post, inbox, heard) = mailbox(64).expect("sockets");
        let (to_control, letters, bell) = mailbox(64).expect("sockets");
        let temp = tempfile::tempdir().expect("a directory");
        let dir = temp.path().to_path_buf();
        let unreachable = Arc::new(ClusterPlan {
            key: "nowhere".into(),
            addresses: vec!["127.0.0.1:1".into()],
            credentials: Credentials::Token("t".into()),
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(5),
            settle: Settle::always(Duration::from_secs(2)),
            allow_untested_server: false,
        });
        let start = ShardStart {
            shard: 7,
            cpu: pin::allowed_cpus().expect("a mask").first().copied(),
            runtimes: Runtimes::new(driver),
            clusters: BTreeMap::from([(unreachable.key.clone(), unreachable)]),
            state_dir: Arc::new(StateDir::new(&dir)),
            faults: FileFaults::default(),
            resolver: ResolverThread::start().expect("a thread"),
            inside: None,
            inbox: (inbox, heard),
            post: to_control,
        };
        let react: React = Box::new(react);
        let make = || StandIn { react, wake: None };
        let thread = spawn(start, make).expect("a thread");
        Rig { post, letters, bell, thread, snapshots: Vec::new(), _dir: temp, dir }
    }

    /// The next letter that is not a snapshot.
    fn letter(&mut self) -> FromShard {
        self.bell.set_read_timeout(Some(Duration::from_secs(10))).expect("a socket");
        loop {
            match self.letters.take() {
                Some((7, FromShard::Snapshot(snapshot))) => self.snapshots.push(*snapshot),
                Some((7, letter)) => return letter,
                Some((shard, _)) => panic!("letter from shard {shard}"),
                None => {
                    let _ = self.bell.read(&mut [0; 16]).expect("a letter in time");
                    self.letters.clear_bell();
                }
            }
        }
    }

    fn stop(mut self) -> Vec<ShardSnapshot> {
        self.post.send(ToShard::Stop).expect("room");
        match self.letter() {
            FromShard::Ended(Ok(())) => {}
            other => panic!("not ended in order: {other:?}"),
        }
        self.thread.join().expect("ended");
        self.snapshots
    }
}

fn both(test: impl Fn(IoDriver)) {
    test(IoDriver::Uring);
    test(IoDriver::Epoll);
}

fn drained(letter: FromShard) {
    assert!(matches!(letter, FromShard::Control(ToControl::Drained)), "{letter:?}");
}

#[test]
fn a_letter_wakes_a_sleeping_shard_within_milliseconds() {
    both(|driver| {
        let mut rig = Rig::start(driver, |_, event, out| {
            assert!(matches!(event, Event::Control(FromControl::Drain)));
            out.push(Command::Control(ToControl::Drained));
            None
        });
        let mut waits: Vec<Duration> = (0..21)
            .map(|_| {
                std::thread::sleep(Duration::from_millis(3));
                let sent = Instant::now();
                rig.post.send(ToShard::Control(FromControl::Drain)).expect("room");
                drained(rig.letter());
                sent.elapsed()
            })
            .collect();
        waits.sort_unstable();
        assert!(waits[10] < Duration::from_millis(5), "median {:?}", waits[10]);
        rig.stop();
    });
}

#[test]
fn the_wake_of_a_step_is_kept_without_any_event() {
    both(|driver| {
        let mut rig = Rig::start(driver, |now, _, _| Some(now.mono + Duration::from_millis(120)));
        rig.post.send(ToShard::Control(FromControl::Drain)).expect("room");
        let sent = Instant::now();
        drained(rig.letter());
        let waited = sent.elapsed();
        assert!(waited >= Duration::from_millis(118), "{waited:?}");
        assert!(waited < Duration::from_millis(400), "{waited:?}");
        rig.stop();
    });
}

#[test]
fn a_dial_and_a_request_end_in_events_and_the_slot_can_be_dialled_again() {
    both(|driver| {
        let conn = ConnId(3);
        let mut downs = 0;
        let mut rig = Rig::start(driver, move |_, event, out| {
            let connect =
                |cluster: &str| Command::Connect { conn, cluster: cluster.into(), node: None };
            match event {
                Event::Control(_) => out.push(Command::Request {
                    conn,
                    ticket: Ticket(1),
                    request: tidegate::iggy_wire::Request::Ping,
                    reply_limit: 4096,
                    timeout: Duration::from_secs(1),
                }),
                Event::Replied { ticket: Ticket(1), result } => {
                    assert_eq!(result.expect_err("no connection"), Failure::Lost);
                    out.push(connect("nowhere"));
                }
                Event::ConnDown { cause: ConnError::Dial { address, .. }, .. } => {
                    downs += 1;
                    match downs {
                        1 => {
                            assert_eq!(address, "127.0.0.1:1");
                            out.push(connect("unknown"));
                        }
                        2 => {
                            assert_eq!(address, "unknown");
                            out.push(connect("nowhere"));
                        }
                        _ => out.push(Command::Control(ToControl::Drained)),
                    }
                }
                other => panic!("{other:?}"),
            }
            None
        });
        rig.post.send(ToShard::Control(FromControl::Drain)).expect("room");
        drained(rig.letter());
        rig.stop();
    });
}

#[test]
fn a_connection_to_postgres_ends_in_an_event_and_its_slot_can_be_dialled_again() {
    both(|driver| {
        let plan = PostgresPlan::parse("host=127.0.0.1 port=1 user=u", None).expect("a plan");
        let (conn, plan) = (PgConnId(3), Arc::new(plan));
        let mut downs = 0;
        let mut rig = Rig::start(driver, move |_, event, out| {
            let connect = PgCommand::Connect { plan: plan.clone(), replication: true };
            match event {
                Event::Control(_) => {
                    // Nobody is there: as after an end that was not seen yet.
                    out.push(Command::Pg { conn, command: PgCommand::Close });
                    out.push(Command::Pg { conn, command: connect });
                }
                Event::Pg { conn: PgConnId(3), event: PgEvent::Down(cause) } => {
                    assert!(matches!(cause, PgConnError::Dial { .. }), "{cause}");
                    downs += 1;
                    out.push(match downs {
                        1 => Command::Pg { conn, command: connect },
                        _ => Command::Control(ToControl::Drained),
                    });
                }
                other => panic!("{other:?}"),
            }
            None
        });
        rig.post.send(ToShard::Control(FromControl::Drain)).expect("room");
        drained(rig.letter());
        rig.stop();
    });
}

#[test]
fn a_stopping_shard_closes_its_connections_to_postgres() {
    both(|driver| {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let text = format!("host=127.0.0.1 port={port} user=u sslmode=disable");
        let plan = Arc::new(PostgresPlan::parse(&text, None).expect("a plan"));
        let mut rig = Rig::start(driver, move |_, event, out| {
            if let Event::Control(_) = event {
                let command = PgCommand::Connect { plan: plan.clone(), replication: false };
                out.push(Command::Pg { conn: PgConnId(1), command });
                out.push(Command::Control(ToControl::Drained));
            }
            None
        });
        rig.post.send(ToShard::Control(FromControl::Drain)).expect("room");
        drained(rig.letter());
        let (mut peer, _) = listener.accept().expect("a connection");
        peer.set_read_timeout(Some(Duration::from_secs(10))).expect("a socket option");
        let begun = Instant::now();
        rig.stop();
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
        let mut rest = Vec::new();
        // A reset is an end, too; a timeout is none.
        if let Err(error) = peer.read_to_end(&mut rest) {
            assert_eq!(error.raw_os_error(), Some(libc::ECONNRESET), "{error}");
        }
    });
}

#[test]
fn a_save_is_on_disk_when_its_event_comes() {
    both(|driver| {
        let mut rig = Rig::start(driver, |_, event, out| {
            match event {
                Event::Control(_) => out.push(Command::Persist {
                    source: "orders".into(),
                    generation: 9,
                    image: vec![0x5A; 8192],
                }),
                Event::Persisted { source, generation: 9, result } => {
                    assert_eq!((&*source, result), ("orders", Ok(())));
                    out.push(Command::Control(ToControl::Drained));
                }
                other => panic!("{other:?}"),
            }
            None
        });
        rig.post.send(ToShard::Control(FromControl::Drain)).expect("room");
        drained(rig.letter());
        let written = std::fs::read(rig.dir.join("orders.7.state")).expect("the file");
        assert_eq!(written, vec![0x5A; 8192]);
        rig.stop();
    });
}

#[test]
fn snapshots_come_twice_a_second_and_show_a_turning_pinned_loop() {
    both(|driver| {
        let mut rig = Rig::start(driver, |now, _, _| Some(now.mono + Duration::from_millis(1200)));
        rig.post.send(ToShard::Control(FromControl::Drain)).expect("room");
        drained(rig.letter());
        let snapshots = rig.stop();
        assert!((2..=4).contains(&snapshots.len()), "{} snapshots", snapshots.len());
        let (first, last) = (&snapshots[0], &snapshots[snapshots.len() - 1]);
        assert!(last.loop_turns > first.loop_turns);
        assert_eq!((last.buffered, last.buffer_limit, last.shard), (3, 5, 7));
        assert_eq!(last.cpu, pin::allowed_cpus().expect("a mask").first().copied());
        assert!(driver == IoDriver::Uring || last.io_driver == "epoll");
    });
}

#[test]
fn letters_beyond_the_mailbox_are_kept_in_order_and_none_is_lost() {
    both(|driver| {
        let mut rig = Rig::start(driver, |_, _, out| {
            for feed in 0..1000 {
                let feed = FeedId(feed);
                out.push(Command::Control(ToControl::LargeSlotWanted { feed }));
            }
            None
        });
        rig.post.send(ToShard::Control(FromControl::Drain)).expect("room");
        std::thread::sleep(Duration::from_millis(50));
        for expected in 0..1000 {
            match rig.letter() {
                FromShard::Control(ToControl::LargeSlotWanted { feed }) => {
                    assert_eq!(feed, FeedId(expected));
                }
                other => panic!("{other:?}"),
            }
        }
        rig.stop();
    });
}

#[test]
fn a_decision_that_always_wants_to_run_does_not_starve_the_thread() {
    both(|driver| {
        let rig = Rig::start(driver, |_, _, _| Some(ALWAYS));
        rig.post.send(ToShard::Control(FromControl::Drain)).expect("room");
        std::thread::sleep(Duration::from_millis(20));
        rig.stop();
    });
}

#[test]
fn a_panic_is_the_threads_last_letter() {
    both(|driver| {
        let mut rig = Rig::start(driver, |_, _, _| panic!("I1 broken"));
        rig.post.send(ToShard::Control(FromControl::Drain)).expect("room");
        match rig.letter() {
            FromShard::Ended(Err(why)) => assert!(why.contains("I1 broken"), "{why}"),
            other => panic!("{other:?}"),
        }
    });
}
