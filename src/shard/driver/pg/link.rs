//! Question and answer with a Postgres server, for the control thread and the command line: over
//! the same connection as everything else, without a copy and without events.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::conn::{PgConn, PgDial};
use crate::config::PostgresPlan;
use crate::pg_wire::query::Rows;
use crate::pg_wire::startup::ServerInfo;
use crate::pg_wire::{Notice, ServerError};
use crate::shard::driver::queue::EventQueue;
use crate::shard::driver::resolve::Resolver;
use crate::shard::driver::wake::with_alarm;
use crate::shard::event::{Event, PgConnError, PgConnId, PgEvent};

const CONN: PgConnId = PgConnId(0);
/// Remarks kept for [`PgLink::take_notices`].
const MOST_NOTICES: usize = 64;

/// A connection that is up.
pub struct PgLink {
    conn: PgConn,
    events: Rc<EventQueue>,
    info: ServerInfo,
    notices: Vec<Notice>,
    ended: Option<PgConnError>,
}

/// Why a question has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PgLinkError {
    /// The server refused the statement; the connection goes on.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The connection is down.
    #[error(transparent)]
    Conn(#[from] PgConnError),
    /// No answer in time; the connection is closed.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
}

impl PgLink {
    /// Dials and logs in.
    pub async fn connect(
        plan: Arc<PostgresPlan>,
        replication: bool,
        resolver: Rc<Resolver>,
    ) -> Result<PgLink, PgConnError> {
        let events = Rc::<EventQueue>::default();
        let conn = PgConn::open(PgDial {
            conn: CONN,
            plan,
            replication,
            events: events.clone(),
            resolver,
        });
        let mut notices = Vec::new();
        loop {
            match events.next().await {
                Event::Pg { event: PgEvent::Up(info), .. } => {
                    return Ok(PgLink { conn, events, info: *info, notices, ended: None });
                }
                Event::Pg { event: PgEvent::Down(cause), .. } => return Err(cause),
                Event::Pg { event: PgEvent::Notice(notice), .. } => notices.push(*notice),
                _ => {}
            }
        }
    }

    /// Who is at the other end.
    pub fn server(&self) -> &ServerInfo {
        &self.info
    }

    /// Runs statements; one entry for each.
    pub async fn query(&mut self, sql: &str) -> Result<Vec<Rows>, PgLinkError> {
        if let Some(cause) = &self.ended {
            return Err(cause.clone().into());
        }
        self.conn.query(sql);
        loop {
            match self.events.next().await {
                Event::Pg { event: PgEvent::Answer(answer), .. } => return Ok(answer?),
                Event::Pg { event: PgEvent::CopyStarted, .. } => {
                    // A copy has no answer, and nobody here would read it.
                    let why = "a copy was started by a question".to_owned();
                    self.close().await;
                    return Err(PgConnError::Protocol(why).into());
                }
                Event::Pg { event: PgEvent::Down(cause), .. } => {
                    self.ended = Some(cause.clone());
                    return Err(cause.into());
                }
                Event::Pg { event: PgEvent::Notice(notice), .. }
                    if self.notices.len() < MOST_NOTICES =>
                {
                    self.notices.push(*notice);
                }
                _ => {}
            }
        }
    }

    /// The same within `limit`.
    pub async fn query_within(
        &mut self,
        sql: &str,
        limit: Duration,
    ) -> Result<Vec<Rows>, PgLinkError> {
        let expired = std::cell::Cell::new(false);
        let conn = self.conn.clone();
        let expire = || {
            expired.set(true);
            conn.close();
        };
        let outcome = with_alarm(self.query(sql), monoio::time::sleep(limit), expire).await;
        match outcome {
            Err(PgLinkError::Conn(PgConnError::Closed)) if expired.get() => {
                Err(PgLinkError::TimedOut(limit))
            }
            outcome => outcome,
        }
    }

    /// Remarks of the server since the last call.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    /// Closes the connection and waits until it is.
    pub async fn close(&mut self) {
        if self.ended.is_some() {
            return;
        }
        self.conn.close();
        loop {
            if let Event::Pg { event: PgEvent::Down(cause), .. } = self.events.next().await {
                self.ended = Some(cause);
                return;
            }
        }
    }
}

impl Drop for PgLink {
    /// The connection ends by itself, soon after.
    fn drop(&mut self) {
        self.conn.close();
    }
}
