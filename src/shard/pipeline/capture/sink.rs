//! From rows to messages in the outlet's batch (R1 to R6, A1, P4).
//!
//! A row is routed, then written straight into the record that will be sent; nothing is copied
//! and nothing is allocated for it. What a relation version makes of the routing is worked out
//! once and kept by its number.

use std::sync::Arc;

use hashbrown::HashMap;

use crate::config::CapturePlan;
use crate::fanout::admission::Reason;
use crate::fanout::destinations::DestId;
use crate::fanout::outlet::{Outlet, Written};
use crate::fanout::route::{BoundRoute, Columns, KeyChoice, RouteError, Routed};
use crate::ingest::postgres_cdc::ids::cdc_id;
use crate::ingest::postgres_cdc::position::Timelines;
use crate::ingest::postgres_cdc::{
    Envelope, EnvelopeError, EnvelopeOptions, Relation, Rendered, Row, TxHead,
};
use crate::pg_wire::Lsn;
use crate::pg_wire::pgoutput::Column;
use crate::statefile::{MAX_ROUTED, RoutedTable};

/// Relation versions whose routes are kept (I5); beyond that they are worked out anew.
const MAX_BOUND: usize = 65_536;

/// The outlet and how rows get into it.
pub(super) struct Sink {
    pub outlet: Outlet,
    envelope: Envelope,
    bound: HashMap<u32, Arc<BoundRoute>>,
    /// Of the relation version that came last.
    current: Option<(u32, Arc<BoundRoute>)>,
    /// UPDATE or DELETE is captured.
    wants_rows_named: bool,
    /// What tables are routed by has changed since it was last saved.
    rerouted: bool,
    /// Rows of the transaction with this final LSN are passed over.
    pub given_up: Option<Lsn>,
    /// The last row that was taken: its transaction and its number.
    pub last: Option<(TxHead, u64)>,
    /// Rows without a payload, by `payload_column`: Iggy takes no empty message.
    pub without_payload: u64,
    /// Values that went out as the server's text because they lack the form of their type.
    pub odd_values: u64,
    /// Of the ids: which log the commit positions are from.
    pub system_id: u64,
    pub timelines: Timelines,
}

/// Why a row cannot be taken. The capture stops: an operator has to decide.
#[derive(Debug, thiserror::Error)]
pub(super) enum RowError {
    #[error(transparent)]
    Route(#[from] RouteError),
    #[error(transparent)]
    Envelope(#[from] EnvelopeError),
}

impl Sink {
    /// `routed`: routing columns that tables had, as far as they are known.
    pub fn new(plan: &Arc<CapturePlan>, routed: &[RoutedTable]) -> Sink {
        let envelope = EnvelopeOptions {
            form: plan.envelope.clone(),
            include_metadata: plan.include_metadata,
            numeric_as_string: plan.numeric_as_string,
        };
        let mut outlet = Outlet::new(plan.clone());
        outlet.remember(
            routed
                .iter()
                .cloned()
                .map(|RoutedTable { schema, name, columns }| ((schema, name), columns)),
        );
        Sink {
            outlet,
            envelope: Envelope::new(envelope),
            bound: HashMap::new(),
            current: None,
            wants_rows_named: plan.operations.update || plan.operations.delete,
            rerouted: false,
            given_up: None,
            last: None,
            without_payload: 0,
            odd_values: 0,
            system_id: 0,
            timelines: Timelines::only(0),
        }
    }

    /// Takes a row in.
    #[inline]
    pub fn row(&mut self, row: &Row<'_, '_>) -> Result<(), RowError> {
        if self.given_up == Some(row.tx.final_lsn) {
            return Ok(());
        }
        if self.current.as_ref().is_none_or(|(version, _)| *version != row.relation.version) {
            self.turn_to(row.relation)?;
        }
        let Some((_, bound)) = &self.current else { return Ok(()) };
        let taken = match self.outlet.route(bound, &RowText(row)) {
            Routed::Destination(dest, choice) => self.write(row, dest, choice, None),
            Routed::Held(dest, choice, _) => {
                self.outlet.name_kept(dest, || place(row));
                self.write(row, dest, choice, None)
            }
            Routed::Unmatched(dest) => {
                self.outlet.name_kept(dest, || place(row));
                let choice = self.outlet.any_partition(dest);
                self.write(row, dest, choice, None)
            }
            Routed::DeadLetter(dest, reason) => {
                let choice = self.outlet.any_partition(dest);
                self.write(row, dest, choice, Some(reason))
            }
            Routed::Dropped(_) => Ok(()),
        };
        // A row that stops the capture is none that was taken: it comes again.
        if taken.is_ok() {
            self.last = Some((row.tx, row.ordinal));
        }
        taken
    }

    /// Makes this relation version the current one.
    fn turn_to(&mut self, relation: &Relation) -> Result<(), RouteError> {
        let bound = match self.bound.get(&relation.version) {
            Some(bound) => bound.clone(),
            None => self.bind(relation)?,
        };
        self.current = Some((relation.version, bound));
        Ok(())
    }

    fn bind(&mut self, relation: &Relation) -> Result<Arc<BoundRoute>, RouteError> {
        if self.bound.len() >= MAX_BOUND {
            self.bound.clear();
        }
        let columns: Vec<(&str, bool)> =
            relation.columns.iter().map(|column| (&*column.name, column.key)).collect();
        let bound = self.outlet.bind(&relation.schema, &relation.name, &columns)?;
        let bound = Arc::new(bound);
        self.bound.insert(relation.version, bound.clone());
        self.rerouted = true;
        if relation.names_no_row() && self.wants_rows_named {
            self.outlet.tell(format!(
                "replica_identity: {} has no primary key or replica identity any more: its UPDATE \
                 and DELETE fail in the application or do not say which row; give it a key, or \
                 ALTER TABLE ... REPLICA IDENTITY FULL",
                relation.table
            ));
        }
        Ok(bound)
    }

    /// What tables are routed by, if that has to be saved. A row whose position is on disk was
    /// bound before, so its table is there as well.
    pub fn rerouted(&mut self) -> Option<Vec<RoutedTable>> {
        let table = |((schema, name), columns): (&(String, String), _)| RoutedTable {
            schema: schema.clone(),
            name: name.clone(),
            columns,
        };
        let rerouted = std::mem::take(&mut self.rerouted);
        rerouted.then(|| self.outlet.routed().map(table).take(MAX_ROUTED).collect())
    }

    /// Writes the row's message.
    fn write(
        &mut self,
        row: &Row<'_, '_>,
        dest: DestId,
        choice: KeyChoice,
        dead: Option<Reason>,
    ) -> Result<(), RowError> {
        let Some((_, bound)) = &self.current else { return Ok(()) };
        let timeline = self.timelines.of(row.tx.final_lsn);
        let id = cdc_id(self.system_id, timeline, row.tx.final_lsn, row.ordinal);
        let origin = u64::try_from(row.tx.commit_time_us).unwrap_or(0);
        self.outlet.begin(dest, choice, id, origin);
        match self.envelope.render(self.outlet.body(), row, bound.stripped()) {
            Ok(Rendered::Payload { odd_values }) => self.odd_values += u64::from(odd_values),
            Ok(Rendered::TooLarge { least }) => {
                let written = self.outlet.refuse(least);
                self.written(row, written);
                return Ok(());
            }
            Ok(Rendered::Nothing(_)) => {
                self.outlet.forget();
                self.without_payload += 1;
                return Ok(());
            }
            Err(error) => {
                self.outlet.forget();
                return Err(error.into());
            }
        }
        self.outlet.end_payload();
        self.end(row, dead);
        Ok(())
    }

    /// User headers, and those of a dead letter.
    fn end(&mut self, row: &Row<'_, '_>, dead: Option<Reason>) {
        let Some((_, bound)) = &self.current else { return };
        self.envelope.headers(self.outlet.body(), row);
        if let Some(reason) = dead {
            self.outlet.dead_letter_headers(bound, &RowText(row), reason);
        }
        let written = self.outlet.end();
        self.written(row, written);
    }

    /// What becomes of a message that fits no frame.
    fn written(&mut self, row: &Row<'_, '_>, written: Written) {
        let Some((_, bound)) = &self.current else { return };
        if let Written::Held(dest) = written {
            self.outlet.name_kept(dest, || place(row));
        }
        if let Written::DeadLetter(letters) = written {
            let choice = self.outlet.any_partition(letters);
            let timeline = self.timelines.of(row.tx.final_lsn);
            let id = cdc_id(self.system_id, timeline, row.tx.final_lsn, row.ordinal);
            let origin = u64::try_from(row.tx.commit_time_us).unwrap_or(0);
            self.outlet.begin(letters, choice, id, origin);
            // The payload is what did not fit; Iggy takes no empty one.
            self.outlet.body().extend_from_slice(b"null");
            self.outlet.end_payload();
            self.envelope.headers(self.outlet.body(), row);
            self.outlet.dead_letter_headers(bound, &RowText(row), Reason::TooLarge);
            // A few hundred bytes of headers fit any frame.
            let _ = self.outlet.end();
        }
    }
}

/// Which row it is, for errors.
#[cold]
fn place(row: &Row<'_, '_>) -> String {
    let (number, op, table) = (row.ordinal + 1, row.op.as_str(), &row.relation.table);
    let TxHead { xid, final_lsn, .. } = row.tx;
    format!("row {number} ({op} in {table}) of transaction {xid}, committed at {final_lsn}")
}

/// A row as routing reads it.
struct RowText<'r, 's, 'a>(&'r Row<'s, 'a>);

impl Columns for RowText<'_, '_, '_> {
    #[inline]
    fn text(&self, index: usize) -> Option<&[u8]> {
        match self.0.column(index)? {
            Column::Text(text) => Some(text),
            Column::Null | Column::Unchanged | Column::Binary(_) => None,
        }
    }

    /// In one walk over the row where both are in it as text, which is usual.
    #[inline]
    fn two_texts(&self, indexes: [Option<usize>; 2]) -> [Option<&[u8]>; 2] {
        if let ([Some(one), Some(other)], Some(new)) = (indexes, self.0.new)
            && one != other
        {
            let (first, last) = (one.min(other), one.max(other));
            let mut columns = new.iter();
            let found = (columns.nth(first), columns.nth(last - first - 1));
            if let (Some(Column::Text(first)), Some(Column::Text(last))) = found {
                return if one < other {
                    [Some(first), Some(last)]
                } else {
                    [Some(last), Some(first)]
                };
            }
        }
        indexes.map(|index| index.and_then(|index| self.text(index)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Tables;
    use crate::ingest::postgres_cdc::Op;
    use crate::ingest::postgres_cdc::relation::{ColumnDraft, Relations};
    use crate::pg_wire::pgoutput::{OldKind, TupleBuilder};

    fn tuple(columns: &[Column<'_>]) -> TupleBuilder {
        let mut tuple = TupleBuilder::new();
        columns.iter().for_each(|column| tuple.column(*column).unwrap());
        tuple
    }

    #[test]
    fn two_columns_read_together_are_those_read_one_by_one() {
        let mut relations = Relations::new(Tables::All, false);
        let names = ["a", "b", "c", "d", "e"];
        let drafts = names.iter().map(|name| ColumnDraft { name, type_oid: 25, key: false });
        relations.define(7, "public", "t", b'f', drafts).unwrap();
        let new = [
            Column::Text(b"one"),
            Column::Unchanged,
            Column::Null,
            Column::Binary(b"four"),
            Column::Text(b"five"),
        ];
        let (new, old) = (tuple(&new), tuple(&[Column::Text(b"before"); 5]));
        let old = Some((OldKind::Full, old.tuple()));
        for (new, old) in [(Some(new.tuple()), None), (Some(new.tuple()), old), (None, old)] {
            let tx = TxHead { xid: 1, final_lsn: Lsn(2), commit_time_us: 3 };
            let relation = relations.get(7).unwrap();
            let row = Row { relation, op: Op::Update, new, old, tx, ordinal: 0 };
            let row = RowText(&row);
            let indexes = || (0..7).map(Some).chain([None]);
            for (one, other) in indexes().flat_map(|one| indexes().map(move |other| (one, other))) {
                let alone = [one, other].map(|index| index.and_then(|index| row.text(index)));
                assert_eq!(row.two_texts([one, other]), alone, "{one:?} {other:?}");
            }
        }
    }
}
