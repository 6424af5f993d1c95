//! One connection to a Postgres server and its events, in a runtime of its own.

use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use tidegate::config::PostgresPlan;
use tidegate::pg_wire::frame::Messages;
use tidegate::pg_wire::query::Rows;
use tidegate::pg_wire::replication::{self, Replication};
use tidegate::pg_wire::startup::ServerInfo;
use tidegate::pg_wire::{Lsn, ServerError};
use tidegate::shard::driver::pg::conn::{PgConn, PgDial};
use tidegate::shard::driver::queue::EventQueue;
use tidegate::shard::driver::resolve::{Resolver, ResolverThread};
use tidegate::shard::driver::runtime::{IoDriver, Runtimes};
use tidegate::shard::event::{Event, PgConnError, PgConnId, PgEvent};

use super::Postgres;

/// Longest wait for one event.
pub const LONG: Duration = Duration::from_secs(30);

/// The superuser over TCP, without TLS.
pub fn plan(pg: &Postgres) -> PostgresPlan {
    plan_to("127.0.0.1", pg.port())
}

/// The same to another address.
pub fn plan_to(host: &str, port: u16) -> PostgresPlan {
    let text = format!("host={host} port={port} user=postgres dbname=postgres sslmode=disable");
    PostgresPlan::parse(&text, None).expect("a connection string")
}

/// The same to a unix socket.
pub fn plan_to_socket(pg: &Postgres) -> PostgresPlan {
    plan_to(&pg.socket_dir().display().to_string(), pg.port())
}

/// A plan with something changed.
pub fn with(mut plan: PostgresPlan, change: impl FnOnce(&mut PostgresPlan)) -> PostgresPlan {
    change(&mut plan);
    plan
}

pub struct Client {
    pub conn: PgConn,
    events: Rc<EventQueue>,
}

impl Client {
    pub fn open(plan: PostgresPlan, replication: bool) -> Client {
        let events = Rc::new(EventQueue::default());
        let dial = PgDial {
            conn: PgConnId(3),
            plan: Arc::new(plan),
            replication,
            events: events.clone(),
            resolver: resolver(),
        };
        Client { conn: PgConn::open(dial), events }
    }

    pub async fn up(plan: PostgresPlan, replication: bool) -> Client {
        let client = Client::open(plan, replication);
        client.expect_up().await;
        client
    }

    pub async fn expect_up(&self) -> ServerInfo {
        match self.next().await {
            PgEvent::Up(info) => *info,
            other => panic!("not up: {other:?}"),
        }
    }

    pub async fn next(&self) -> PgEvent {
        let event = monoio::time::timeout(LONG, self.events.next()).await;
        match event.expect("an event in time") {
            Event::Pg { conn: PgConnId(3), event } => event,
            other => panic!("not ours: {other:?}"),
        }
    }

    /// What has happened so far, without waiting.
    pub fn drain(&self) -> Vec<Event> {
        let mut events = Vec::new();
        self.events.take_into(&mut events, usize::MAX);
        events
    }

    pub async fn down(&self) -> PgConnError {
        match self.next().await {
            PgEvent::Down(cause) => cause,
            other => panic!("not down: {other:?}"),
        }
    }

    pub async fn ask(&self, sql: &str) -> Result<Vec<Rows>, ServerError> {
        self.conn.query(sql);
        match self.next().await {
            PgEvent::Answer(answer) => answer,
            other => panic!("not an answer: {other:?}"),
        }
    }

    pub async fn value(&self, sql: &str) -> String {
        let rows = self.ask(sql).await.expect("an answer");
        rows[0].rows[0][0].clone().expect("a value")
    }

    pub async fn start(&self, slot: &str, publication: &str, at: Lsn) {
        let options = [("proto_version", "1"), ("publication_names", publication)];
        self.begin(&replication::start_replication_sql(slot, at, &options)).await;
    }

    /// The same in these words.
    pub async fn begin(&self, sql: &str) {
        self.conn.query(sql);
        match self.next().await {
            PgEvent::CopyStarted => {}
            other => panic!("no copy: {other:?}"),
        }
    }

    /// One chunk, of at most `most` bytes unless it is a single message.
    pub async fn chunk(&self, most: u32) -> Bytes {
        self.conn.read(most, 64 << 20);
        match self.next().await {
            PgEvent::Chunk(bytes) => bytes,
            other => panic!("no chunk: {other:?}"),
        }
    }

    pub fn confirm(&self, at: Lsn) {
        self.conn.write(&replication::status_update(at, at, at, 0, false));
    }

    pub async fn close(&self) {
        self.conn.close();
        assert_eq!(self.down().await, PgConnError::Closed);
    }
}

pub fn resolver() -> Rc<Resolver> {
    Resolver::new(ResolverThread::start().expect("a thread")).expect("a mailbox")
}

pub fn on(driver: IoDriver, test: impl AsyncFnOnce()) {
    let (mut runtime, _) = Runtimes::new(driver).build().expect("a runtime");
    runtime.block_on(test());
}

pub fn on_both(test: impl AsyncFn()) {
    for driver in [IoDriver::Uring, IoDriver::Epoll] {
        on(driver, &test);
    }
}

/// A server that no test stops or reconfigures.
pub fn shared_server() -> &'static Postgres {
    static SERVER: OnceLock<Postgres> = OnceLock::new();
    SERVER.get_or_init(Postgres::start)
}

/// What a chunk holds: inserted rows, and the end of the last transaction.
#[derive(Default)]
pub struct Seen {
    pub inserts: usize,
    pub bytes: usize,
    pub end: Option<Lsn>,
}

impl Seen {
    pub fn add(&mut self, chunk: &[u8]) {
        self.bytes += chunk.len();
        let mut messages = Messages::new(chunk);
        for (tag, body) in messages.by_ref() {
            assert_eq!(tag, b'd');
            if let Replication::Data { data, .. } = replication::parse(body).expect("replication") {
                match data[0] {
                    b'I' => self.inserts += 1,
                    // flags:1, commit LSN:8, end LSN:8
                    b'C' => {
                        let end = data[10..18].try_into().expect("8 bytes");
                        self.end = Some(Lsn(u64::from_be_bytes(end)));
                    }
                    _ => {}
                }
            }
        }
        assert!(messages.rest().is_empty(), "a chunk has whole messages only");
    }
}

/// A table, its publication and its slot, all of one name.
pub fn publish(pg: &Postgres, name: &str) {
    pg.sql(&format!("CREATE TABLE {name} (id bigint PRIMARY KEY, body text)"));
    pg.sql(&format!("CREATE PUBLICATION {name} FOR TABLE {name}"));
    pg.sql(&format!("SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')"));
}
