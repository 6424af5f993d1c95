//! How long the payload of a large row is at least, before it is written: a value of control
//! characters grows sixfold as JSON, and nothing that fits no frame is to be built (G6).

use super::{Envelope, Row};
use crate::config::EnvelopePlan;
use crate::iggy_wire::frame::MAX_REQUEST;
use crate::pg_wire::pgoutput::Tuple;
use crate::pg_wire::value::json_least;

/// Rows of less than this need no look.
const LARGE: usize = 4 << 20;

impl Envelope {
    /// Makes room for a large row at once, rather than by doubling; gives the least length of its
    /// payload if that fits no frame.
    #[inline]
    pub(super) fn too_large(
        &self,
        out: &mut Vec<u8>,
        row: &Row<'_, '_>,
        strip: &[usize],
    ) -> Option<usize> {
        let wire = |tuple: Option<Tuple<'_>>| tuple.map_or(0, |tuple| tuple.wire().len());
        let old = row.old.map(|(_, old)| old);
        if wire(row.new) + wire(old) < LARGE {
            return None;
        }
        let both = matches!(self.options.form, EnvelopePlan::Record) || row.new.is_none();
        let tuples = [row.new, old.filter(|_| both)];
        let least = tuples.into_iter().flatten().map(|tuple| least(row, tuple, strip)).sum();
        if least > MAX_REQUEST {
            return Some(least);
        }
        out.reserve_exact(least + LARGE);
        None
    }
}

#[cold]
fn least(row: &Row<'_, '_>, tuple: Tuple<'_>, strip: &[usize]) -> usize {
    let columns = tuple.iter().zip(&row.relation.columns).enumerate();
    let kept = columns.filter(|(index, _)| !strip.contains(index));
    kept.map(|(_, (value, column))| json_least(column.form, value)).sum()
}
