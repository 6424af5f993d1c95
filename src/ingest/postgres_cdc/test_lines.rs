//! Lines of test_decoding as the rows pgoutput would have sent.
//!
//! A line names the columns it mentions and nothing else: a deleted row shows its key alone, or
//! with REPLICA IDENTITY FULL all that is not NULL. What set-up knows of the tables fills the
//! rest in; a table it does not know is learned from its lines.

use hashbrown::HashMap;

use super::StreamError;
use super::relation::{ColumnDraft, Relations};
use super::row::Op;
use crate::pg_wire::pgoutput::{Full, OldKind, Tuple, TupleBuilder};
use crate::pg_wire::test_decoding::{self, Change, Fields, Identifier};
use crate::pg_wire::{Lsn, oid};

/// What set-up found out about a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableFact {
    /// Schema, without quotes.
    pub schema: String,
    /// Name, without quotes.
    pub name: String,
    /// REPLICA IDENTITY FULL.
    pub full: bool,
    /// In the order of the table.
    pub columns: Vec<FactColumn>,
}

/// One of its columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FactColumn {
    /// Name, without quotes.
    pub name: String,
    /// Type as `format_type` writes it without a modifier.
    pub type_name: String,
    /// Part of what names the row: the replica identity, or with REPLICA IDENTITY FULL the primary
    /// key if there is one.
    pub key: bool,
}

/// All tables that lines mentioned.
#[derive(Debug, Default)]
pub struct Lines {
    /// By schema, NUL and name.
    tables: HashMap<String, Table>,
    facts: HashMap<String, TableFact>,
    /// A key for both, reused.
    name: String,
    new: TupleBuilder,
    old: TupleBuilder,
}

#[derive(Debug)]
struct Table {
    oid: u32,
    schema: String,
    name: String,
    full: bool,
    columns: Vec<FactColumn>,
}

/// A change whose table is known.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// The table's made up number.
    pub oid: u32,
    /// What happened.
    pub op: Op,
    /// Whether the table is wanted.
    pub captured: bool,
}

type Tuples<'s> = (Option<Tuple<'s>>, Option<(OldKind, Tuple<'s>)>);

impl Lines {
    /// Knows what set-up found.
    pub fn new(facts: &[TableFact]) -> Lines {
        let by_name = |fact: &TableFact| (key(&fact.schema, &fact.name), fact.clone());
        Lines { facts: facts.iter().map(by_name).collect(), ..Lines::default() }
    }

    /// The number of a table; its description if that is new.
    pub fn table(
        &mut self,
        relations: &mut Relations,
        schema: Identifier<'_>,
        name: Identifier<'_>,
    ) -> Result<u32, StreamError> {
        self.name.clear();
        schema.write(&mut self.name);
        self.name.push('\0');
        name.write(&mut self.name);
        if let Some(table) = self.tables.get(&self.name) {
            return Ok(table.oid);
        }
        let fact = self.facts.get(&self.name);
        let table = Table {
            oid: u32::try_from(self.tables.len()).unwrap_or(u32::MAX).saturating_add(1),
            schema: schema.name(),
            name: name.name(),
            full: fact.is_some_and(|fact| fact.full),
            columns: fact.map_or_else(Vec::new, |fact| fact.columns.clone()),
        };
        table.define(relations)?;
        let oid = table.oid;
        self.tables.insert(self.name.clone(), table);
        Ok(oid)
    }

    /// Takes over what a line says about the shape of its table.
    pub fn learn(
        &mut self,
        relations: &mut Relations,
        change: &Change<'_>,
        start: Lsn,
    ) -> Result<Known, StreamError> {
        let op = match change.op {
            test_decoding::Op::Insert => Op::Insert,
            test_decoding::Op::Update => Op::Update,
            test_decoding::Op::Delete => Op::Delete,
        };
        let oid = self.table(relations, change.schema, change.table)?;
        let Some(table) = self.tables.get_mut(&self.name) else {
            return Err(StreamError::UnknownRelation { oid, lsn: start });
        };
        let mut changed = false;
        if let Some(new) = change.new
            && !table.is_shaped_like(&new)
        {
            table.reshape(&new);
            changed = true;
        }
        if let Some(old) = change.old {
            if change.new.is_none() && !table.mentions(&old) {
                table.reshape(&old);
                changed = true;
            }
            changed |= table.mark_keys(&old);
        }
        if changed {
            table.define(relations)?;
        }
        let captured = relations.get(oid).is_some_and(|relation| relation.captured);
        Ok(Known { oid, op, captured })
    }

    /// The rows of a line that was learned.
    pub fn tuples(
        &mut self,
        change: &Change<'_>,
        known: &Known,
        start: Lsn,
    ) -> Result<Tuples<'_>, StreamError> {
        let full = |Full| StreamError::LongRow { lsn: start };
        let Some(table) = self.tables.get(&self.name) else {
            return Err(StreamError::UnknownRelation { oid: known.oid, lsn: start });
        };
        if let Some(new) = change.new {
            self.new.clear();
            for field in new.iter() {
                field.value.add_to(&mut self.new).map_err(full)?;
            }
        }
        if let Some(old) = change.old {
            self.old.clear();
            table.align(&old, &mut self.old).map_err(full)?;
        }
        let kind = if table.full { OldKind::Full } else { OldKind::Key };
        let new = change.new.map(|_| self.new.tuple());
        Ok((new, change.old.map(|_| (kind, self.old.tuple()))))
    }
}

impl Table {
    fn define(&self, relations: &mut Relations) -> Result<(), StreamError> {
        let columns = self.columns.iter().map(|column| ColumnDraft {
            name: &column.name,
            // Types that are not builtin are shown as the server's text, whatever their number.
            type_oid: oid::of_type_name(&column.type_name).unwrap_or(0),
            key: column.key,
        });
        let identity = if self.full { b'f' } else { 0 };
        relations.define(self.oid, &self.schema, &self.name, identity, columns)
    }

    fn is_shaped_like(&self, fields: &Fields<'_>) -> bool {
        let mut columns = self.columns.iter();
        let same = fields.iter().all(|field| {
            columns.next().is_some_and(|column| {
                field.name.is(&column.name) && field.type_name == column.type_name
            })
        });
        same && columns.next().is_none()
    }

    fn mentions(&self, fields: &Fields<'_>) -> bool {
        let mut columns = self.columns.iter();
        // In the order of the table.
        fields.iter().all(|field| {
            columns.any(|column| field.name.is(&column.name) && field.type_name == column.type_name)
        })
    }

    /// Keys stay keys under the same name.
    fn reshape(&mut self, fields: &Fields<'_>) {
        let before = std::mem::take(&mut self.columns);
        let whole_row = self.full && before.iter().all(|column| column.key);
        self.columns = fields
            .iter()
            .map(|field| {
                let name = field.name.name();
                let key = whole_row || before.iter().any(|c| c.key && c.name == name);
                FactColumn { name, type_name: field.type_name.to_owned(), key }
            })
            .collect();
    }

    /// What an old row mentions belongs to the replica identity. A full one mentions everything.
    fn mark_keys(&mut self, old: &Fields<'_>) -> bool {
        if self.full {
            return false;
        }
        let mut changed = false;
        let mut columns = self.columns.iter_mut();
        for field in old.iter() {
            if let Some(column) = columns.find(|column| field.name.is(&column.name)) {
                changed |= !column.key;
                column.key = true;
            }
        }
        changed
    }

    /// An old row with all columns; those that are not mentioned read NULL.
    fn align(&self, old: &Fields<'_>, row: &mut TupleBuilder) -> Result<(), Full> {
        let mut fields = old.iter().peekable();
        for column in &self.columns {
            match fields.next_if(|field| field.name.is(&column.name)) {
                Some(field) => field.value.add_to(row)?,
                None => row.null()?,
            }
        }
        Ok(())
    }
}

fn key(schema: &str, name: &str) -> String {
    format!("{schema}\0{name}")
}

/// µs since the Unix epoch of `COMMIT 5 (at 2024-01-02 03:04:05.678901+00)`.
pub fn commit_time(line: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(line).ok()?;
    let (_, time) = text.strip_suffix(')')?.split_once(" (at ")?;
    let (date, time) = time.split_once(' ')?;
    let mut date = date.splitn(3, '-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let (clock, zone) = time.split_at(time.find(['+', '-'])?);
    let mut clock = clock.splitn(3, ':');
    let (hour, minute) = (number(clock.next()?)?, number(clock.next()?)?);
    let (second, fraction) = split_fraction(clock.next()?)?;
    let of_day = (hour * 3_600 + minute * 60 + second) * 1_000_000 + fraction;
    let sensible =
        (1..=12).contains(&month) && (1..=31).contains(&day) && (0..10_000).contains(&year);
    let time = days_from_civil(year, month, day) * 86_400_000_000 + of_day;
    sensible.then(|| offset_us(zone).map(|offset| time - offset))?
}

fn number(text: &str) -> Option<i64> {
    (text.len() <= 4 && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok())?
}

fn split_fraction(second: &str) -> Option<(i64, i64)> {
    let (whole, fraction) = second.split_once('.').unwrap_or((second, ""));
    let digits = fraction.len();
    if digits > 6 || !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let micros: i64 = if digits == 0 { 0 } else { fraction.parse().ok()? };
    Some((number(whole)?, micros * 10_i64.pow(6 - u32::try_from(digits).ok()?)))
}

/// `+00`, `-03:30`, `+05:53:28`.
fn offset_us(zone: &str) -> Option<i64> {
    let (sign, zone) = match zone.split_at_checked(1)? {
        ("+", zone) => (1, zone),
        (_, zone) => (-1, zone),
    };
    let mut seconds = 0;
    for (part, unit) in zone.split(':').zip([3_600, 60, 1]) {
        seconds += number(part)? * unit;
    }
    Some(sign * seconds * 1_000_000)
}

/// Days since 1970-01-01 of a date in the Gregorian calendar; the year begins in March.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commit_times_read_in_any_zone() {
        let at = |text: &str| commit_time(format!("COMMIT 5 (at {text})").as_bytes());
        assert_eq!(at("1970-01-01 00:00:00+00"), Some(0));
        assert_eq!(at("2000-01-01 00:00:00+00"), Some(946_684_800_000_000));
        assert_eq!(at("2024-02-29 23:59:59.5+00"), Some(1_709_251_199_500_000));
        assert_eq!(at("2024-02-29 23:59:59.000001+00"), Some(1_709_251_199_000_001));
        assert_eq!(at("1970-01-01 01:00:00+01"), Some(0));
        assert_eq!(at("1969-12-31 20:30:00-03:30"), Some(0));
        assert_eq!(at("1970-01-01 05:53:28+05:53:28"), Some(0));
        for text in ["", "now", "2024-13-01 00:00:00+00", "2024-01-01 00:00:00", "x-1-1 0:0:0+0"] {
            assert_eq!(at(text), None, "{text}");
        }
        assert_eq!(commit_time(b"COMMIT 5"), None);
        assert_eq!(commit_time(b"COMMIT \xff (at 2024-01-01 00:00:00+00)"), None);
    }
}
