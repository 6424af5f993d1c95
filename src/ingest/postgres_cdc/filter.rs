//! Which rows of a stream are delivered: those of captured tables and operations that are not done.

use super::StreamError;
use super::relation::Relations;
use super::row::{Item, Op, Row, TxHead};
use super::stream::{StreamCounters, StreamOptions};
use crate::pg_wire::pgoutput::{OldKind, Tuple};

/// A row that is not done yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Numbered {
    pub tx: TxHead,
    pub ordinal: u64,
}

/// The last step of a row; borrows only what it needs.
pub(super) struct Filter<'f> {
    pub options: &'f StreamOptions,
    pub counters: &'f mut StreamCounters,
}

impl Filter<'_> {
    #[inline(always)]
    pub fn row<'s, 'a>(
        self,
        relations: &'s Relations,
        number: Option<Numbered>,
        relation: u32,
        op: Op,
        new: Option<Tuple<'a>>,
        old: Option<(OldKind, Tuple<'a>)>,
    ) -> Result<Item<'s, 'a>, StreamError> {
        let Some(Numbered { tx, ordinal }) = number else { return Ok(Item::Nothing) };
        let Some(relation) = relations.get(relation) else {
            return Err(StreamError::UnknownRelation { oid: relation, lsn: tx.final_lsn });
        };
        let wanted = match op {
            Op::Insert => self.options.operations.insert,
            Op::Update => self.options.operations.update,
            Op::Delete => self.options.operations.delete,
            Op::Truncate => self.options.operations.truncate,
        };
        if !wanted || !relation.captured {
            self.counters.filtered_rows += 1;
            return Ok(Item::Nothing);
        }
        let expected = relation.columns.len();
        let differs = |tuple: &Tuple<'a>| tuple.len() != expected;
        let odd = new.filter(differs).or(old.map(|(_, tuple)| tuple).filter(differs));
        if let Some(tuple) = odd {
            return Err(StreamError::ColumnCount {
                table: relation.table.clone(),
                seen: tuple.len(),
                expected,
                lsn: tx.final_lsn,
            });
        }
        Ok(Item::Row(Row { relation, op, new, old, tx, ordinal }))
    }
}
