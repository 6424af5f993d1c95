//! The longer parts of a message that are not rows: what a relation looks like, and the list of
//! relations in a truncate. Both are walked once when they are read.

use crate::pg_wire::error::PgWireError;
use crate::pg_wire::reader::{Reader, wide};

use super::unknown;

/// What a relation looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelationBody<'a> {
    /// Its number.
    pub id: u32,
    /// Its schema; empty stands for `pg_catalog`.
    pub namespace: &'a str,
    /// Its name, without quotes.
    pub name: &'a str,
    /// Replica identity: `d`efault, `n`othing, `f`ull or `i`ndex.
    pub identity: u8,
    columns: Columns<'a>,
}

/// One column of a relation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ColumnInfo<'a> {
    /// Part of the replica identity.
    pub key: bool,
    /// Its name, without quotes.
    pub name: &'a str,
    /// Number of its type.
    pub type_oid: u32,
    /// Length, precision or -1.
    pub type_modifier: i32,
}

impl<'a> RelationBody<'a> {
    pub(super) fn read(reader: &mut Reader<'a>) -> Result<RelationBody<'a>, PgWireError> {
        let id = reader.u32("relation")?;
        let namespace = reader.text("relation's schema")?;
        let name = reader.text("relation's name")?;
        let identity = reader.u8("replica identity")?;
        if !matches!(identity, b'd' | b'n' | b'f' | b'i') {
            return Err(unknown("replica identity", identity, "'d', 'n', 'f' or 'i'"));
        }
        let left = reader.u16("number of columns")?;
        let columns = Columns { reader: *reader, left };
        for _ in 0..left {
            column(reader)?;
        }
        Ok(RelationBody { id, namespace, name, identity, columns })
    }

    /// Its columns, in the order of a row's values.
    pub fn columns(&self) -> Columns<'a> {
        self.columns
    }
}

/// Columns of a relation, one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Columns<'a> {
    reader: Reader<'a>,
    left: u16,
}

impl<'a> Iterator for Columns<'a> {
    type Item = ColumnInfo<'a>;

    fn next(&mut self) -> Option<ColumnInfo<'a>> {
        self.left = self.left.checked_sub(1)?;
        // Read once before, so this cannot fail.
        column(&mut self.reader).ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = usize::from(self.left);
        (left, Some(left))
    }
}

impl ExactSizeIterator for Columns<'_> {}

impl PartialEq for Columns<'_> {
    fn eq(&self, other: &Self) -> bool {
        (*self).eq(*other)
    }
}

impl Eq for Columns<'_> {}

fn column<'a>(reader: &mut Reader<'a>) -> Result<ColumnInfo<'a>, PgWireError> {
    let key = super::flag(reader, "column flags")?;
    Ok(ColumnInfo {
        key,
        name: reader.text("column's name")?,
        type_oid: reader.u32("column's type")?,
        type_modifier: reader.i32("column's type modifier")?,
    })
}

/// Numbers of relations, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelationIds<'a> {
    rest: &'a [u8],
}

impl<'a> RelationIds<'a> {
    pub(super) fn read(reader: &mut Reader<'a>, count: u32) -> Result<Self, PgWireError> {
        let rest = reader.take(wide(count).saturating_mul(4), "list of relations")?;
        Ok(RelationIds { rest })
    }
}

impl Iterator for RelationIds<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        let (id, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(u32::from_be_bytes(*id))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.rest.len() / 4;
        (left, Some(left))
    }
}

impl ExactSizeIterator for RelationIds<'_> {}
