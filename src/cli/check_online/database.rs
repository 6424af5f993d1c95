//! Asks the database of a capture what a start would ask, through the same machine in its check
//! mode: nothing is made, nothing is changed, every finding is kept.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::config::{CapturePlan, PartitionBy};
use crate::ingest::postgres_cdc::setup::{
    Ask, Finding, RoutedBy, Saved, Session, Setup, SetupOptions, Step,
};
use crate::pg_wire::query::Rows;
use crate::pg_wire::{Lsn, ServerError};
use crate::shard::driver::pg::link::{PgLink, PgLinkError};
use crate::shard::driver::resolve::Resolver;
use crate::shard::event::PgConnError;
use crate::statefile::CaptureState;

/// Every question is about the catalogue.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// What came of the questions.
#[derive(Debug)]
pub(super) enum Database {
    /// All were answered.
    Judged(Vec<Finding>),
    /// There was no session.
    Unusable(PgConnError),
    /// The session ended in the middle.
    BrokenOff(String),
}

/// Both sessions of a capture. The second one may have been refused by the server, which says
/// what the role lacks.
struct Sessions {
    query: PgLink,
    replication: Result<PgLink, ServerError>,
}

/// Asks. `saved`: the position to go on from, if there is one.
pub(super) async fn ask(
    plan: Arc<CapturePlan>,
    saved: Option<CaptureState>,
    resolver: Rc<Resolver>,
) -> Database {
    let mut sessions = match Sessions::open(&plan, resolver).await {
        Ok(sessions) => sessions,
        Err(cause) => return Database::Unusable(cause),
    };
    let database = sessions.all_questions(options(&plan, saved)).await;
    sessions.close().await;
    database
}

fn options(plan: &CapturePlan, saved: Option<CaptureState>) -> SetupOptions {
    let position = saved.as_ref().map(|entry| Saved {
        system_id: entry.system_id,
        timeline: entry.timeline,
        end_lsn: Lsn(entry.end_lsn),
    });
    SetupOptions {
        tables: plan.tables.clone(),
        decoder: plan.decoder,
        operations: plan.operations,
        routed: RoutedBy::of(&plan.routing),
        streaming: plan.streaming,
        binary: plan.binary,
        row_keys: plan.routing.partition_by == PartitionBy::Identity,
        database: saved.map(|entry| entry.database),
        saved: position,
        check: true,
        ..SetupOptions::new(&plan.slot, &plan.publication)
    }
}

impl Sessions {
    async fn open(plan: &CapturePlan, resolver: Rc<Resolver>) -> Result<Sessions, PgConnError> {
        let query = PgLink::connect(plan.postgres.clone(), false, resolver.clone()).await?;
        let replication = match PgLink::connect(plan.postgres.clone(), true, resolver).await {
            Ok(link) => Ok(link),
            // A pooler does not pass replication on; the advice for that comes with the cause.
            Err(cause) => match cause.server() {
                Some(error) if error.code == "42501" || error.code == "53300" => Err(error.clone()),
                _ => return Err(cause),
            },
        };
        Ok(Sessions { query, replication })
    }

    async fn all_questions(&mut self, options: SetupOptions) -> Database {
        let mut setup = Setup::new(options);
        let mut step = setup.begin();
        loop {
            let question = match step {
                Step::Ask(question) => question,
                Step::Checked(findings) => return Database::Judged(findings),
                Step::Refused(refusal) => return Database::Judged(vec![*refusal.0]),
                Step::Wait { why, .. } | Step::Pending { why } => return Database::BrokenOff(why),
                Step::Ready(_) => return Database::Judged(Vec::new()),
            };
            let from = question.on;
            match self.ask(question).await {
                Ok(answer) => step = setup.answer(from, answer),
                Err(why) => return Database::BrokenOff(why),
            }
        }
    }

    /// The server's answer, good or bad; an error when there is none.
    async fn ask(&mut self, ask: Ask) -> Result<Result<Vec<Rows>, ServerError>, String> {
        let link = match (ask.on, &mut self.replication) {
            (Session::Query, _) => &mut self.query,
            (Session::Replication, Ok(link)) => link,
            (Session::Replication, Err(refused)) => return Ok(Err(refused.clone())),
        };
        match link.query_within(&ask.sql, ANSWER_LIMIT).await {
            Ok(rows) => Ok(Ok(rows)),
            Err(PgLinkError::Server(error)) => Ok(Err(error)),
            Err(error) => Err(error.to_string()),
        }
    }

    async fn close(mut self) {
        self.query.close().await;
        if let Ok(link) = &mut self.replication {
            link.close().await;
        }
    }
}
