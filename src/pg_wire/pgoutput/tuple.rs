//! Rows: checked once, walked many times; and the builder that makes the same bytes.
//!
//! ```text
//! tuple   count:2 column * count
//! column  'n' | 'u' | 't' length:4 bytes | 'b' length:4 bytes
//! ```
//!
//! Invariant: the slice behind a [`Tuple`] was walked to its end by [`Tuple::read`] or written by
//! [`TupleBuilder`]; nothing else makes one.

use crate::pg_wire::error::PgWireError;
use crate::pg_wire::reader::{Reader, wide};

/// One value of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column<'a> {
    /// NULL.
    Null,
    /// A large value that the change did not touch and the server did not send: not NULL.
    Unchanged,
    /// The server's text, in the encoding of the session.
    Text(&'a [u8]),
    /// The type's binary form.
    Binary(&'a [u8]),
}

/// A row. Copying it copies a pointer.
#[derive(Clone, Copy, Debug)]
pub struct Tuple<'a> {
    count: u16,
    columns: &'a [u8],
}

impl<'a> Tuple<'a> {
    /// Reads and checks one row.
    #[inline]
    pub(super) fn read(reader: &mut Reader<'a>) -> Result<Tuple<'a>, PgWireError> {
        let count = reader.u16("number of columns")?;
        // The plain walk is several times as fast as one that can say what is wrong.
        match behind(count, reader.rest()) {
            Some(behind) => {
                let length = reader.rest().len().saturating_sub(behind.len());
                Ok(Tuple { count, columns: reader.take(length, "columns")? })
            }
            None => Tuple::read_slowly(reader, count),
        }
    }

    /// One row and nothing behind it; `None` for anything else.
    #[inline]
    pub(super) fn whole(bytes: &'a [u8]) -> Option<Tuple<'a>> {
        let (count, columns) = bytes.split_first_chunk()?;
        let count = u16::from_be_bytes(*count);
        behind(count, columns)?.is_empty().then_some(Tuple { count, columns })
    }

    #[cold]
    fn read_slowly(reader: &mut Reader<'a>, count: u16) -> Result<Tuple<'a>, PgWireError> {
        let columns = reader.rest();
        for _ in 0..count {
            match reader.u8("kind of column")? {
                b't' | b'b' => {
                    let length = reader.u32("column's length")?;
                    reader.take(wide(length), "column")?;
                }
                b'n' | b'u' => {}
                kind => {
                    return Err(super::unknown("kind of column", kind, "'n', 'u', 't' or 'b'"));
                }
            }
        }
        let length = columns.len().saturating_sub(reader.rest().len());
        let columns = columns.get(..length).unwrap_or_default();
        Ok(Tuple { count, columns })
    }

    /// Number of columns.
    pub fn len(&self) -> usize {
        usize::from(self.count)
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Its values in the order of the relation's columns.
    #[inline]
    pub fn iter(&self) -> TupleColumns<'a> {
        TupleColumns { left: self.count, rest: self.columns }
    }

    /// The value at `index`, found by walking to it.
    #[inline]
    pub fn nth(&self, index: usize) -> Option<Column<'a>> {
        self.iter().nth(index)
    }

    /// The columns as they are on the wire, without the number in front of them.
    pub fn wire(&self) -> &'a [u8] {
        self.columns
    }
}

/// What follows `count` columns, if these are sound.
#[inline]
fn behind(count: u16, mut rest: &[u8]) -> Option<&[u8]> {
    for _ in 0..count {
        rest = behind_one(rest)?;
    }
    Some(rest)
}

/// What follows one column, if it is sound.
#[inline]
fn behind_one(columns: &[u8]) -> Option<&[u8]> {
    let (kind, after) = columns.split_first()?;
    match kind {
        b't' | b'b' => {
            let (length, after) = after.split_first_chunk()?;
            after.get(wide(u32::from_be_bytes(*length))..)
        }
        b'n' | b'u' => Some(after),
        _ => None,
    }
}

impl PartialEq for Tuple<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.count == other.count && self.columns == other.columns
    }
}

impl Eq for Tuple<'_> {}

impl<'a> IntoIterator for Tuple<'a> {
    type Item = Column<'a>;
    type IntoIter = TupleColumns<'a>;

    fn into_iter(self) -> TupleColumns<'a> {
        self.iter()
    }
}

/// Values of a row, one after the other.
#[derive(Clone, Copy, Debug)]
pub struct TupleColumns<'a> {
    left: u16,
    rest: &'a [u8],
}

impl<'a> Iterator for TupleColumns<'a> {
    type Item = Column<'a>;

    #[inline]
    fn next(&mut self) -> Option<Column<'a>> {
        self.left = self.left.checked_sub(1)?;
        let (kind, rest) = self.rest.split_first()?;
        if let b't' | b'b' = kind {
            let (length, rest) = rest.split_first_chunk()?;
            let (value, rest) = rest.split_at_checked(wide(u32::from_be_bytes(*length)))?;
            self.rest = rest;
            return Some(if *kind == b't' { Column::Text(value) } else { Column::Binary(value) });
        }
        self.rest = rest;
        Some(if *kind == b'n' { Column::Null } else { Column::Unchanged })
    }

    #[inline]
    fn nth(&mut self, n: usize) -> Option<Column<'a>> {
        let skipped = u16::try_from(n).unwrap_or(u16::MAX);
        self.left = self.left.saturating_sub(skipped);
        self.rest = behind(skipped, self.rest)?;
        self.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = usize::from(self.left);
        (left, Some(left))
    }
}

impl ExactSizeIterator for TupleColumns<'_> {}

/// More columns, or a longer value, than a row can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a row of more than 65535 columns, or a value of more than 2147483647 bytes")]
pub struct Full;

/// Makes rows with the bytes that pgoutput would have sent. Reused from row to row, it stops
/// allocating.
#[derive(Clone, Debug, Default)]
pub struct TupleBuilder {
    columns: Vec<u8>,
    count: u16,
}

impl TupleBuilder {
    /// An empty row.
    pub fn new() -> TupleBuilder {
        TupleBuilder::default()
    }

    /// Begins anew and keeps the memory.
    pub fn clear(&mut self) {
        self.columns.clear();
        self.count = 0;
    }

    /// Adds a NULL.
    pub fn null(&mut self) -> Result<(), Full> {
        self.mark(b'n')
    }

    /// Adds a value that the server did not send.
    pub fn unchanged(&mut self) -> Result<(), Full> {
        self.mark(b'u')
    }

    /// Adds a value in text form.
    pub fn text(&mut self, value: &[u8]) -> Result<(), Full> {
        self.value(b't', |out| out.extend_from_slice(value))
    }

    /// Adds a value in text form which `write` appends, without a copy in between.
    pub fn text_with(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Result<(), Full> {
        self.value(b't', write)
    }

    /// Adds a value in binary form.
    pub fn binary(&mut self, value: &[u8]) -> Result<(), Full> {
        self.value(b'b', |out| out.extend_from_slice(value))
    }

    /// Adds a column of another row.
    pub fn column(&mut self, column: Column<'_>) -> Result<(), Full> {
        match column {
            Column::Null => self.null(),
            Column::Unchanged => self.unchanged(),
            Column::Text(value) => self.text(value),
            Column::Binary(value) => self.binary(value),
        }
    }

    /// The row so far.
    pub fn tuple(&self) -> Tuple<'_> {
        Tuple { count: self.count, columns: &self.columns }
    }

    /// Appends the row as it is on the wire, its number of columns first.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.count.to_be_bytes());
        out.extend_from_slice(&self.columns);
    }

    fn mark(&mut self, kind: u8) -> Result<(), Full> {
        self.count = self.count.checked_add(1).ok_or(Full)?;
        self.columns.push(kind);
        Ok(())
    }

    /// A value that turns out to be too long leaves the row as it was.
    fn value(&mut self, kind: u8, write: impl FnOnce(&mut Vec<u8>)) -> Result<(), Full> {
        let before = self.columns.len();
        self.mark(kind)?;
        self.columns.extend_from_slice(&[0; 4]);
        let start = self.columns.len();
        write(&mut self.columns);
        let length = i32::try_from(self.columns.len().saturating_sub(start));
        let place = self.columns.get_mut(..start).and_then(|head| head.last_chunk_mut());
        match (length, place) {
            (Ok(length), Some(place)) => {
                *place = length.to_be_bytes();
                Ok(())
            }
            _ => {
                self.columns.truncate(before);
                self.count = self.count.saturating_sub(1);
                Err(Full)
            }
        }
    }
}
