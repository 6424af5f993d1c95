//! A capture from its server's bytes to sealed sends, without sessions, clock and disk: what the
//! benchmark of routing measures. The same stream, sink and outlet that a shard runs.

use std::sync::Arc;

use super::intake::{After, Trouble};
use super::sink::Sink;
use crate::config::CapturePlan;
use crate::fanout::Failure;
use crate::fanout::outlet::{Ask, Token};
use crate::iggy_wire::Reply;
use crate::ingest::postgres_cdc::position::Position;
use crate::ingest::postgres_cdc::{Stream, StreamOptions};
use crate::pg_wire::Lsn;
use crate::pg_wire::frame::Messages;
use crate::time::Millis;

/// Bytes of open transactions that may stay in memory; none are expected.
const SPOOL_MEMORY: usize = 1 << 20;

/// Rows in, requests out.
pub struct Press {
    stream: Stream,
    sink: Sink,
    rng: fastrand::Rng,
}

impl Press {
    /// For a plan that is read as text.
    pub fn new(plan: &Arc<CapturePlan>) -> Press {
        let options = StreamOptions {
            decoder: plan.decoder,
            tables: plan.tables.clone(),
            operations: plan.operations,
            snake_case_columns: plan.snake_case_columns,
            config_hash: 0,
            binary: false,
            facts: Vec::new(),
            spool_memory: SPOOL_MEMORY,
        };
        let position = Position { end_lsn: Lsn::INVALID, unfinished: None };
        let mut sink = Sink::new(plan, &[]);
        sink.outlet.start(Millis(0));
        Press { stream: Stream::new(options, position), sink, rng: fastrand::Rng::with_seed(1) }
    }

    /// Whole messages of the server, one behind the other; a full batch is closed. An error, in
    /// words: a message that does not follow the protocol, or a row that cannot be written.
    pub fn read(&mut self, now: Millis, chunk: &[u8]) -> Result<(), String> {
        for (_, body) in Messages::new(chunk) {
            let item = self.stream.message(body).map_err(|error| error.to_string())?;
            match self.sink.item(item) {
                Ok(After::Spill(_)) => return Err("a transaction in pieces".to_owned()),
                Ok(_) => {}
                Err(Trouble::Stream(error)) => return Err(error.to_string()),
                Err(Trouble::Row(error)) => return Err(error.to_string()),
            }
            if self.sink.outlet.is_full() {
                self.close(now);
            }
        }
        Ok(())
    }

    /// Closes the batch under construction.
    pub fn close(&mut self, now: Millis) {
        if self.sink.outlet.open_messages() > 0 {
            self.sink.outlet.close(now);
        }
    }

    /// The next request, if there is one to make.
    pub fn next(&mut self, now: Millis) -> Option<Ask> {
        self.sink.outlet.next(now)
    }

    /// What became of a request.
    pub fn answer(&mut self, now: Millis, token: Token, answer: Result<Reply, Failure>) {
        self.sink.outlet.answer(now, token, answer, &mut self.rng);
    }

    /// Nothing waits and nothing is on its way.
    pub fn is_empty(&self) -> bool {
        self.sink.outlet.is_empty()
    }

    /// Messages that were acked.
    pub fn acked(&self) -> u64 {
        self.sink.outlet.counters().routed
    }
}
