//! A blocking session with a Postgres server: what prepares a benchmark, what commits at a steady
//! rate, and the greedy reader that everything is compared with. Greedy means: it reads whenever
//! there is anything, as libpq does.
#![allow(clippy::disallowed_methods)] // owns a socket

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::pg_wire::frame::{Messages, prefix};
use crate::pg_wire::query::{Collector, QueryEnd, Rows, encode_query};
use crate::pg_wire::startup::{Startup, StartupConfig, StartupError, Step};
use crate::pg_wire::{PgWireError, ServerError};

/// Room for one read.
const READ: usize = 64 << 10;
/// Largest message; benchmarks know theirs.
const LARGEST: u32 = 64 << 20;

/// Why a session failed.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// Its socket.
    #[error("the connection to the benchmark's server failed: {0}")]
    Io(#[from] io::Error),
    /// No session came about.
    #[error("no session with the benchmark's server: {0}")]
    Startup(#[from] StartupError),
    /// The server's bytes.
    #[error("the benchmark's server: {0}")]
    Wire(#[from] PgWireError),
    /// It refused a statement.
    #[error("the benchmark's server refused {sql:?}: {error}")]
    Refused {
        /// Which; its beginning.
        sql: String,
        /// In its words.
        error: ServerError,
    },
    /// It did not answer as expected.
    #[error("the benchmark's server answered {sql:?} with {seen}")]
    Odd {
        /// What was asked.
        sql: String,
        /// What came.
        seen: &'static str,
    },
}

/// An open session.
#[derive(Debug)]
pub struct Session {
    socket: TcpStream,
    buffer: Vec<u8>,
    /// What was read and not yet used.
    unread: std::ops::Range<usize>,
}

impl Session {
    /// Connects and logs in.
    pub fn connect(address: SocketAddr, config: StartupConfig) -> Result<Session, SessionError> {
        let socket = TcpStream::connect(address)?;
        socket.set_nodelay(true)?;
        let mut session = Session { socket, buffer: vec![0; READ], unread: 0..0 };
        let mut startup = Startup::new(config);
        let mut step = startup.begin();
        loop {
            match step {
                Step::Send(bytes) => session.send(&bytes)?,
                Step::Ready(_) => return Ok(session),
                Step::Continue => {}
                // Only with TLS.
                Step::StartTls | Step::Reconnect { .. } => {
                    return Err(io::Error::from(io::ErrorKind::ConnectionAborted).into());
                }
            }
            step = session.next(|tag, body| Ok(Some(startup.message(tag, body)?)))?;
        }
    }

    /// Runs a statement.
    pub fn query(&mut self, sql: &str) -> Result<Vec<Rows>, SessionError> {
        match self.ask(sql)? {
            QueryEnd::Done(rows) => Ok(rows),
            QueryEnd::Failed(error) => Err(SessionError::Refused { sql: brief(sql), error }),
            QueryEnd::CopyBoth => Err(SessionError::Odd { sql: brief(sql), seen: "a copy" }),
        }
    }

    /// The only value of its only row.
    pub fn value(&mut self, sql: &str) -> Result<String, SessionError> {
        let rows = self.query(sql)?;
        let value = rows.first().and_then(|rows| rows.rows.first()?.first()?.clone());
        value.ok_or_else(|| SessionError::Odd { sql: brief(sql), seen: "no value" })
    }

    /// Starts a stream of changes.
    pub fn stream(&mut self, sql: &str) -> Result<(), SessionError> {
        match self.ask(sql)? {
            QueryEnd::CopyBoth => Ok(()),
            QueryEnd::Done(_) => Err(SessionError::Odd { sql: brief(sql), seen: "no copy" }),
            QueryEnd::Failed(error) => Err(SessionError::Refused { sql: brief(sql), error }),
        }
    }

    /// How long [`Session::next`] waits for bytes before it fails with `TimedOut`.
    pub fn wait_at_most(&self, limit: Duration) -> Result<(), SessionError> {
        Ok(self.socket.set_read_timeout(Some(limit))?)
    }

    /// Writes whole messages.
    pub fn send(&mut self, bytes: &[u8]) -> Result<(), SessionError> {
        Ok(self.socket.write_all(bytes)?)
    }

    /// Hands message by message to `take` until it makes something of one.
    pub fn next<T>(
        &mut self,
        mut take: impl FnMut(u8, &[u8]) -> Result<Option<T>, SessionError>,
    ) -> Result<T, SessionError> {
        loop {
            let run = self.buffer.get(self.unread.clone()).unwrap_or_default();
            let whole = prefix(run, LARGEST)?.complete;
            let mut messages = Messages::new(run.get(..whole).unwrap_or_default());
            while let Some((tag, body)) = messages.next() {
                let made = take(tag, body)?;
                if made.is_some() || messages.rest().is_empty() {
                    self.unread.start += whole - messages.rest().len();
                }
                if let Some(made) = made {
                    return Ok(made);
                }
            }
            self.read()?;
        }
    }

    fn ask(&mut self, sql: &str) -> Result<QueryEnd, SessionError> {
        self.send(&encode_query(sql))?;
        let mut collector = Collector::new();
        self.next(|tag, body| Ok(collector.push(tag, body)?))
    }

    /// One read, of whatever there is.
    fn read(&mut self) -> io::Result<()> {
        self.buffer.copy_within(self.unread.clone(), 0);
        self.unread = 0..self.unread.len();
        if self.buffer.len() < self.unread.end + READ {
            self.buffer.resize(self.unread.end + READ, 0);
        }
        let room = self.buffer.get_mut(self.unread.end..).unwrap_or_default();
        match self.socket.read(room)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            read => {
                self.unread.end += read;
                Ok(())
            }
        }
    }
}

/// Enough of a statement to know it by.
fn brief(sql: &str) -> String {
    sql.chars().take(120).collect()
}
