//! From two sessions to a stream that can start (P1): a machine that asks one question at a time.
//!
//! The order is the point. Everything is looked at before anything is made; a publication is made
//! before the slot, because a slot decodes with the catalogue of its own time; the position of a
//! new slot is saved before streaming starts. Whatever does not fit what is saved or configured
//! is refused with its name; a slot is never taken from another client, never made again in
//! silence, never dropped.
//!
//! In check mode the same questions are asked, nothing is changed and all findings are kept.

mod facts;
mod finding;
mod judge;
mod resume;
mod sql;
mod step;
#[cfg(test)]
pub(crate) mod tests;
mod trouble;
mod watch;

use std::time::Duration;

use super::position::{Timelines, config_hash};
use crate::config::{Decoder, Tables};
use crate::pg_wire::query::{Rows, quote_literal};
use crate::pg_wire::replication::{
    Identity, SlotCreated, SlotOptions, create_slot_sql, identify_system, read_timeline_history,
    start_replication_sql, timeline_history_sql,
};
use crate::pg_wire::value::has_binary_codec;
use crate::pg_wire::{Lsn, PgWireError, ServerError};

use facts::{ColumnFact, Publication, Published, Server, Slot, Table};
use sql::Which;

pub use finding::{Finding, Level, Refusal};
pub use resume::{Gap, Saved};
pub use step::{Ask, RoutedBy, Session, SetupDone, SetupOptions, Step};
pub use trouble::{Poison, Trouble, of_notice, of_passing_login, of_stream_error};
pub use watch::{Watch, watch_sql};

/// Encoding of a database that does not know what its bytes mean. As UTF8 the server would refuse
/// the first row that is none, again and again; as this it sends what it has.
const PLAIN: &str = "SQL_ASCII";

/// The machine.
#[derive(Debug)]
pub struct Setup {
    options: SetupOptions,
    state: State,
    server: Option<Server>,
    identity: Option<Identity>,
    timelines: Timelines,
    slot: Option<Slot>,
    publications: Vec<Publication>,
    published: Vec<Published>,
    tables: Vec<Table>,
    columns: Vec<ColumnFact>,
    findings: Vec<Finding>,
    gap: Option<Gap>,
    waited: Duration,
    looks: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Server,
    Encoding,
    Identify,
    History,
    Slot,
    Publications,
    Published,
    Tables,
    Columns,
    CreatePublication,
    CreateSlot,
    /// The slot is being made, and somebody looks who holds it up.
    Blockers,
    /// It is given up.
    Abort,
    Done,
}

type Answer = Result<Vec<Rows>, ServerError>;

impl Setup {
    /// Nothing is known yet. Begin with [`Setup::begin`].
    pub fn new(options: SetupOptions) -> Setup {
        Setup {
            options,
            state: State::Server,
            server: None,
            identity: None,
            timelines: Timelines::only(0),
            slot: None,
            publications: Vec::new(),
            published: Vec::new(),
            tables: Vec::new(),
            columns: Vec::new(),
            findings: Vec::new(),
            gap: None,
            waited: Duration::ZERO,
            looks: 0,
        }
    }

    /// The first question.
    pub fn begin(&mut self) -> Step {
        self.ask(State::Server)
    }

    /// An answer, from the session it was asked on.
    pub fn answer(&mut self, from: Session, answer: Answer) -> Step {
        let result = match (self.state, from) {
            (State::Blockers, Session::Query) => return self.blockers(answer),
            (State::Abort, Session::Query) => {
                return self.refuse(self.blocked("it was given up"));
            }
            // The slot was made, or failed, while somebody looked.
            (State::Blockers, Session::Replication) => {
                self.state = State::CreateSlot;
                self.take(answer)
            }
            (State::Abort, Session::Replication) => return self.pending(),
            _ => self.take(answer),
        };
        match result {
            Ok(step) => step,
            Err(finding) => self.refuse(finding),
        }
    }

    /// The wait is over.
    pub fn waited(&mut self) -> Step {
        self.ask(State::Slot)
    }

    /// The answer to a question with a time limit is not there.
    pub fn overdue(&mut self) -> Step {
        if self.state != State::CreateSlot {
            return self.pending();
        }
        self.looks += 1;
        self.ask(State::Blockers)
    }

    fn take(&mut self, answer: Answer) -> Result<Step, Finding> {
        let doing = self.doing();
        let rows = match answer {
            Ok(rows) => rows,
            Err(error) if self.state == State::History => return self.no_history(&error),
            Err(error) => return Err(Finding::of_error(doing, &error)),
        };
        match self.state {
            State::Server => self.on_server(&rows),
            State::Encoding => Ok(self.ask(State::Identify)),
            State::Identify => self.on_identity(&rows),
            State::History => self.on_history(&rows),
            State::Slot => self.on_slot(&rows),
            State::Publications => self.on_publications(&rows),
            State::Published => self.on_published(&rows),
            State::Tables => self.on_tables(&rows),
            State::Columns => self.on_columns(&rows),
            State::CreatePublication => self.slot_step(),
            State::CreateSlot => self.on_slot_created(&rows),
            State::Blockers | State::Abort | State::Done => Ok(self.pending()),
        }
    }

    fn on_server(&mut self, rows: &[Rows]) -> Result<Step, Finding> {
        let server = Server::read(rows)?;
        self.note(judge::server(&server, &self.options))?;
        let plain = server.encoding == PLAIN && !self.options.check;
        self.server = Some(server);
        Ok(self.ask(if plain { State::Encoding } else { State::Identify }))
    }

    fn on_identity(&mut self, rows: &[Rows]) -> Result<Step, Finding> {
        let identity = Identity::read(rows).map_err(|error| odd_answer(&error))?;
        self.timelines = Timelines::only(identity.timeline);
        self.identity = Some(identity);
        match self.timelines.current() {
            1 => self.compare(),
            _ => Ok(self.ask(State::History)),
        }
    }

    fn on_history(&mut self, rows: &[Rows]) -> Result<Step, Finding> {
        let forks = read_timeline_history(rows).map_err(|error| odd_answer(&error))?;
        let current = self.timelines.current();
        self.timelines = Timelines::new(current, &forks).map_err(|error| {
            Finding::refusal("timeline_history", error.to_string(), "", "see the server's log")
        })?;
        self.compare()
    }

    /// Without the file, only a position of this very timeline can be judged.
    fn no_history(&mut self, error: &ServerError) -> Result<Step, Finding> {
        let current = self.timelines.current();
        let found = format!("the history of timeline {current} cannot be read: {error}");
        let saved = self.options.saved.as_ref().map(|saved| saved.timeline);
        let level = match saved {
            Some(timeline) if timeline != current => Level::Refusal,
            _ => Level::Info,
        };
        let fix = "put its .history file back into pg_wal";
        let finding =
            Finding::new(level, "timeline_history", found, "where earlier timelines ended", fix);
        self.note(vec![finding])?;
        self.compare()
    }

    /// What is saved against the server.
    fn compare(&mut self) -> Result<Step, Finding> {
        if let (Some(saved), Some(identity)) = (&self.options.saved, &self.identity) {
            let verdict = resume::server(saved, identity, &self.timelines, self.options.accept_gap);
            self.gap = verdict.gap;
            self.note(verdict.findings)?;
        }
        Ok(self.ask(State::Slot))
    }

    fn on_slot(&mut self, rows: &[Rows]) -> Result<Step, Finding> {
        self.slot = Slot::read(rows)?;
        let Some(server) = &self.server else { return Ok(self.ask(State::Server)) };
        let mut found = match &self.slot {
            Some(slot) => judge::slot(slot, server, &self.options),
            None => judge::new_slot(server, &self.options).into_iter().collect(),
        };
        let wal_end = self.identity.as_ref().map_or(Lsn::INVALID, |identity| identity.wal_end);
        let known = self.gap.is_some();
        let verdict = resume::slot(&self.options, self.slot.as_ref(), wal_end, known);
        self.gap = verdict.gap.or(self.gap.take());
        found.extend(verdict.findings);
        let active = self.slot.as_ref().and_then(|slot| judge::active(slot, &self.options));
        let limit = server.sender_timeout.unwrap_or(Duration::from_secs(60));
        let limit = limit.saturating_add(self.options.active_slack);
        self.note(found)?;
        match active {
            Some(finding) if self.options.check => self.note_as(Level::Info, finding),
            Some(finding) if self.waited >= limit => return Err(finding),
            Some(finding) => return Ok(self.wait(finding.to_string())),
            None => {}
        }
        match self.options.decoder {
            Decoder::PgOutput => Ok(self.ask(State::Publications)),
            Decoder::TestDecoding => Ok(self.ask(State::Tables)),
        }
    }

    /// Twice as long each time, up to ten seconds.
    fn wait(&mut self, why: String) -> Step {
        let (least, most) = (Duration::from_millis(250), Duration::from_secs(10));
        let after = self.waited.clamp(least, most);
        self.waited += after;
        Step::Wait { after, why }
    }

    fn on_publications(&mut self, rows: &[Rows]) -> Result<Step, Finding> {
        self.publications = Publication::read(rows)?;
        match self.publications.is_empty() {
            true if self.options.tables == Tables::All => {
                let found = self.missing_publication();
                self.note(found)?;
                self.finish()
            }
            true => Ok(self.ask(State::Tables)),
            false => Ok(self.ask(State::Published)),
        }
    }

    fn missing_publication(&self) -> Vec<Finding> {
        self.server.as_ref().map_or_else(Vec::new, |server| {
            judge::new_publication(&self.tables, server, &self.options)
        })
    }

    fn on_published(&mut self, rows: &[Rows]) -> Result<Step, Finding> {
        self.published = Published::read(rows)?;
        Ok(self.ask(State::Tables))
    }

    fn on_tables(&mut self, rows: &[Rows]) -> Result<Step, Finding> {
        self.tables = Table::read(rows)?;
        let mut found = judge::tables(&self.tables, &self.options);
        let make = self.options.decoder == Decoder::PgOutput && self.publications.is_empty();
        if make {
            // Only a complete list of tables can be judged, and published.
            if found.is_empty() {
                found = self.missing_publication();
            }
        } else {
            let operations = self.options.operations;
            found.extend(judge::identities(&self.tables, operations, Level::Warning));
            if self.options.decoder == Decoder::PgOutput {
                let slot = self.slot.as_ref();
                found.extend(judge::publications(
                    &self.publications,
                    &self.published,
                    &self.tables,
                    slot,
                    &self.options,
                ));
            }
        }
        found.extend(judge::row_keys(&self.tables, &self.options));
        self.note(found)?;
        let lines = self.options.decoder == Decoder::TestDecoding;
        let routes = !self.options.routed.columns.is_empty();
        let keys = self.options.row_keys;
        if lines || routes || keys || self.options.binary || self.options.check {
            return Ok(self.ask(State::Columns));
        }
        self.make()
    }

    fn on_columns(&mut self, rows: &[Rows]) -> Result<Step, Finding> {
        self.columns = ColumnFact::read(rows)?;
        if let Some(server) = &self.server {
            let mut found = judge::columns(&self.columns, server, &self.options);
            found.extend(judge::routing(&self.columns, &self.options));
            self.note(found)?;
        }
        let text = self.columns.iter().find(|column| !has_binary_codec(column.type_oid));
        if let (true, Some(column)) = (self.options.binary, text) {
            let (table, name, type_name) = (&column.table, &column.name, &column.type_name);
            self.options.binary = false;
            self.findings.push(Finding::new(
                Level::Info,
                "binary",
                format!("values come as text: {table}.{name} has type {type_name}"),
                "types with a known binary form for binary = true",
                "nothing, the messages are the same",
            ));
        }
        self.make()
    }

    /// Everything was looked at.
    fn make(&mut self) -> Result<Step, Finding> {
        let make = self.options.decoder == Decoder::PgOutput && self.publications.is_empty();
        match make && !self.options.check {
            true => Ok(self.ask(State::CreatePublication)),
            false => self.slot_step(),
        }
    }

    fn slot_step(&mut self) -> Result<Step, Finding> {
        match self.slot.is_none() && !self.options.check {
            true => Ok(self.ask(State::CreateSlot)),
            false => self.finish(),
        }
    }

    fn on_slot_created(&mut self, rows: &[Rows]) -> Result<Step, Finding> {
        let created = SlotCreated::read(rows).map_err(|error| odd_answer(&error))?;
        self.state = State::Done;
        self.done(created.consistent_point, Some(created.consistent_point))
    }

    fn finish(&mut self) -> Result<Step, Finding> {
        self.state = State::Done;
        if self.options.check {
            return Ok(Step::Checked(std::mem::take(&mut self.findings)));
        }
        let confirmed = self.slot.as_ref().and_then(|slot| slot.confirmed);
        let confirmed = confirmed.unwrap_or(Lsn::INVALID);
        let saved = self.options.saved.as_ref().map(|saved| saved.end_lsn);
        let start_at = match (&self.gap, saved) {
            (Some(gap), _) => gap.resume.max(confirmed),
            (None, Some(saved)) => saved,
            (None, None) => confirmed,
        };
        self.done(start_at, None)
    }

    fn done(&mut self, start_at: Lsn, consistent_point: Option<Lsn>) -> Result<Step, Finding> {
        let (Some(server), Some(identity)) = (&self.server, &self.identity) else {
            return Ok(self.ask(State::Server));
        };
        let mut gap = self.gap.take();
        if let (Some(gap), Some(point)) = (&mut gap, consistent_point) {
            (gap.last, gap.resume) = (gap.last.max(point), point);
        }
        let start_options = step::start_options(&self.options, server.version);
        let pairs: Vec<(&str, &str)> =
            start_options.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let publications = match self.options.decoder {
            Decoder::PgOutput => vec![self.options.publication.clone()],
            Decoder::TestDecoding => Vec::new(),
        };
        let decoder = self.options.decoder.as_str();
        Ok(Step::Ready(Box::new(SetupDone {
            system_id: identity.system_id,
            timeline: identity.timeline,
            timelines: self.timelines.clone(),
            wal_end: identity.wal_end,
            database: server.database.clone(),
            version: server.version,
            wal_sender_timeout: server.sender_timeout,
            start_at,
            slot_created: consistent_point.is_some(),
            consistent_point,
            gap,
            start_sql: start_replication_sql(&self.options.slot, start_at, &pairs),
            config_hash: config_hash(&self.options.slot, &publications, decoder, &start_options),
            binary: self.options.binary,
            facts: facts::table_facts(&self.columns),
            notes: std::mem::take(&mut self.findings),
        })))
    }

    /// Who holds the new slot up.
    fn blockers(&mut self, answer: Answer) -> Step {
        let who = match &answer {
            Ok(rows) => facts::Answer::new("open transactions", rows)
                .records()
                .map(|row| {
                    let value = |name| row.value(name).unwrap_or("?");
                    format!("{} ({}, for {})", value("who"), value("what"), value("since"))
                })
                .collect::<Vec<_>>()
                .join(", "),
            Err(error) => format!("unknown: {error}"),
        };
        if self.looks >= self.options.create_looks {
            return self.ask(State::Abort);
        }
        self.state = State::CreateSlot;
        Step::Pending { why: self.blocked(&who).to_string() }
    }

    fn blocked(&self, who: &str) -> Finding {
        Finding::new(
            Level::Wait,
            "slot_creation_blocked",
            format!(
                "slot {:?} is not made yet: it waits for open transactions ({who})",
                self.options.slot
            ),
            "every transaction that is older than the slot to end",
            "end them, or wait",
        )
    }

    fn ask(&mut self, state: State) -> Step {
        self.state = state;
        let (on, within) = match state {
            State::Encoding | State::Identify | State::History => (Session::Replication, None),
            State::CreateSlot => (Session::Replication, Some(self.options.create_patience)),
            _ => (Session::Query, None),
        };
        Step::Ask(Ask { on, sql: self.sql(state), within })
    }

    fn sql(&self, state: State) -> String {
        let version = self.server.as_ref().map_or(0, |server| server.version);
        let options = &self.options;
        let publications = [options.publication.clone()];
        let which = match (&options.tables, options.decoder) {
            (Tables::List(tables), _) => Which::Named(tables),
            (Tables::All, Decoder::PgOutput) => Which::Published(&publications),
            (Tables::All, Decoder::TestDecoding) => Which::Every,
        };
        match state {
            State::Server | State::Done => sql::SERVER.to_owned(),
            State::Encoding => format!("SET client_encoding TO {}", quote_literal(PLAIN)),
            State::Identify => identify_system().to_owned(),
            State::History => timeline_history_sql(self.timelines.current()),
            State::Slot => sql::slot(&options.slot, version),
            State::Publications => sql::publications(&publications),
            State::Published => sql::published(&publications, version),
            State::Tables => sql::tables(which),
            State::Columns => sql::columns(which),
            State::CreatePublication => {
                let Tables::List(tables) = &options.tables else { return String::new() };
                let via_root = judge::via_root(&self.tables);
                sql::create_publication(&options.publication, tables, options.operations, via_root)
            }
            State::CreateSlot => {
                let slot = SlotOptions { failover: options.failover, ..SlotOptions::default() };
                create_slot_sql(&options.slot, options.decoder.as_str(), slot, version)
            }
            State::Blockers => sql::BLOCKERS.to_owned(),
            State::Abort => sql::abort_creation(&options.slot),
        }
    }

    fn doing(&self) -> &'static str {
        match self.state {
            State::Server => "asking about the server",
            State::Encoding => "setting client_encoding",
            State::Identify => "IDENTIFY_SYSTEM",
            State::History => "TIMELINE_HISTORY",
            State::Slot => "asking about the slot",
            State::Publications | State::Published => "asking about the publication",
            State::Tables | State::Columns => "asking about the tables",
            State::CreatePublication => "making the publication",
            State::CreateSlot => "making the slot",
            State::Blockers | State::Abort | State::Done => "set-up",
        }
    }

    /// Keeps findings; outside of a check the first one that forbids a start ends it.
    fn note(&mut self, findings: Vec<Finding>) -> Result<(), Finding> {
        let stop = |finding: &&Finding| finding.level >= Level::Wait && !self.options.check;
        if let Some(finding) = findings.iter().find(stop) {
            return Err(finding.clone());
        }
        let new = findings.into_iter().filter(|finding| !self.findings.contains(finding));
        let new: Vec<Finding> = new.collect();
        self.findings.extend(new);
        Ok(())
    }

    fn note_as(&mut self, level: Level, finding: Finding) {
        self.findings.push(Finding { level, ..finding });
    }

    fn refuse(&mut self, finding: Finding) -> Step {
        self.state = State::Done;
        if self.options.check {
            self.findings.push(finding);
            return Step::Checked(std::mem::take(&mut self.findings));
        }
        Step::Refused(Refusal(Box::new(finding)))
    }

    fn pending(&self) -> Step {
        Step::Pending { why: self.doing().to_owned() }
    }
}

fn odd_answer(error: &PgWireError) -> Finding {
    let fix = "connect to Postgres itself, without a pooler between";
    Finding::refusal("unexpected_answer", error.to_string(), "", fix)
}
