//! Lines of the `test_decoding` plugin. All of a line is checked when it is parsed, so that
//! walking over its columns later cannot fail. Nothing is searched for inside a value: a line
//! is read from left to right, and a value ends where its own quotes end.
//!
//! ```text
//! BEGIN [xid]                COMMIT [xid] [(at time)]
//! table s."T b": INSERT: id[integer]:1 "na me"[character varying]:'it''s' x[text]:null
//! table s.t: UPDATE: old-key: id[integer]:1 new-tuple: id[integer]:2 b[bit]:B'101'
//! table s.t: DELETE: id[integer]:1      (no-tuple-data) where no row is said
//! table s.t, s.u: TRUNCATE: (no-flags)  or  restart_seqs cascade
//! message: transactional: 1 prefix: p, sz: 5 content:hello
//! PREPARE TRANSACTION 'gid', txid 5     COMMIT PREPARED, ROLLBACK PREPARED likewise
//! ```

mod cursor;
mod line;
#[cfg(test)]
mod tests;

use cursor::Cursor;

pub use line::{Change, Field, Fields, Identifier, Line, Op, Quoted, Step, Tables, Value};

/// A line that does not follow its layout.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("test_decoding line, at byte {offset} of {length}: saw {seen:?}, expected {expected}")]
pub struct LineError {
    /// How far it could be read.
    pub offset: usize,
    /// Its length.
    pub length: usize,
    /// What stands there, cut where it is long.
    pub seen: String,
    /// What should.
    pub expected: &'static str,
}

/// Reads one line.
pub fn parse(line: &[u8]) -> Result<Line<'_>, LineError> {
    const SHOWN: usize = 48;
    let mut cursor = Cursor::new(line);
    parse_line(&mut cursor).map_err(|expected| {
        let rest = cursor.rest();
        LineError {
            offset: line.len().saturating_sub(rest.len()),
            length: line.len(),
            seen: rest.get(..SHOWN).unwrap_or(rest).escape_ascii().to_string(),
            expected,
        }
    })
}

/// What was expected and did not come.
type Expected = &'static str;

fn parse_line<'a>(cursor: &mut Cursor<'a>) -> Result<Line<'a>, Expected> {
    if cursor.eat(b"table ") {
        return table_line(cursor);
    }
    if cursor.eat(b"BEGIN") {
        let xid = transaction(cursor)?;
        cursor.end()?;
        return Ok(Line::Begin { xid });
    }
    if cursor.eat(b"COMMIT PREPARED ") {
        return two_phase(cursor, Step::Commit);
    }
    if cursor.eat(b"ROLLBACK PREPARED ") {
        return two_phase(cursor, Step::Rollback);
    }
    if cursor.eat(b"PREPARE TRANSACTION ") {
        return two_phase(cursor, Step::Prepare);
    }
    if cursor.eat(b"COMMIT") {
        let xid = transaction(cursor)?;
        timestamp(cursor)?;
        return Ok(Line::Commit { xid });
    }
    if cursor.eat(b"message: transactional: ") {
        return message(cursor);
    }
    Err("a line of test_decoding")
}

fn table_line<'a>(cursor: &mut Cursor<'a>) -> Result<Line<'a>, Expected> {
    let text = cursor.rest();
    let (schema, table) = table_name(cursor)?;
    let mut tables = 1;
    while cursor.eat(b", ") {
        table_name(cursor)?;
        tables += 1;
    }
    let text = cursor.since(text);
    cursor.need(b": ", "a colon behind the table's name")?;
    if cursor.eat(b"TRUNCATE:") {
        let restart_identity = cursor.eat(b" restart_seqs");
        let cascade = cursor.eat(b" cascade");
        if !restart_identity && !cascade {
            cursor.need(b" (no-flags)", "flags of a truncate")?;
        }
        cursor.end()?;
        return Ok(Line::Truncate { tables: Tables { text }, cascade, restart_identity });
    }
    if tables != 1 {
        return Err("TRUNCATE: behind several tables");
    }
    let change = |op, old, new| Ok(Line::Change(Change { schema, table, op, old, new }));
    if cursor.eat(b"INSERT:") {
        return change(Op::Insert, None, last_fields(cursor)?);
    }
    if cursor.eat(b"DELETE:") {
        return change(Op::Delete, last_fields(cursor)?, None);
    }
    cursor.need(b"UPDATE:", "INSERT:, UPDATE:, DELETE: or TRUNCATE:")?;
    let mut old = None;
    if cursor.eat(b" old-key:") {
        old = Some(fields(cursor, b" new-tuple:")?);
        cursor.need(b" new-tuple:", "the new row behind the old key")?;
    }
    change(Op::Update, old, last_fields(cursor)?)
}

/// The row that ends a line.
fn last_fields<'a>(cursor: &mut Cursor<'a>) -> Result<Option<Fields<'a>>, Expected> {
    if cursor.eat(b" (no-tuple-data)") {
        cursor.end()?;
        return Ok(None);
    }
    let fields = fields(cursor, b"")?;
    cursor.end()?;
    Ok(Some(fields))
}

/// Columns until `stop` or the end of the line. No column looks like `stop`: its name would be
/// in quotes.
fn fields<'a>(cursor: &mut Cursor<'a>, stop: &[u8]) -> Result<Fields<'a>, Expected> {
    let text = cursor.rest();
    while !cursor.rest().is_empty() && (stop.is_empty() || !cursor.rest().starts_with(stop)) {
        field(cursor)?;
    }
    Ok(Fields { text: cursor.since(text) })
}

/// ` name[type]:value`
fn field<'a>(cursor: &mut Cursor<'a>) -> Result<Field<'a>, Expected> {
    cursor.need(b" ", "a space in front of a column")?;
    let name = Identifier(cursor.identifier()?);
    cursor.need(b"[", "the column's type")?;
    let type_name = cursor.type_name()?;
    cursor.need(b"]:", "]: behind the column's type")?;
    Ok(Field { name, type_name, value: cursor.value()? })
}

fn table_name<'a>(cursor: &mut Cursor<'a>) -> Result<(Identifier<'a>, Identifier<'a>), Expected> {
    let schema = Identifier(cursor.identifier()?);
    cursor.need(b".", "a dot behind the schema")?;
    Ok((schema, Identifier(cursor.identifier()?)))
}

fn transaction(cursor: &mut Cursor<'_>) -> Result<Option<u32>, Expected> {
    let digits = cursor.rest().get(1).is_some_and(u8::is_ascii_digit);
    if digits && cursor.eat(b" ") { cursor.number().map(Some) } else { Ok(None) }
}

/// Passes over ` (at 2024-01-02 …)`.
fn timestamp(cursor: &mut Cursor<'_>) -> Result<(), Expected> {
    if !cursor.rest().is_empty() {
        cursor.need(b" (at ", "the time of the commit")?;
        if cursor.take_rest().last() != Some(&b')') {
            return Err("a closing parenthesis");
        }
    }
    Ok(())
}

fn message<'a>(cursor: &mut Cursor<'a>) -> Result<Line<'a>, Expected> {
    const SIZE: &[u8] = b", sz: ";
    const CONTENT: &[u8] = b" content:";
    let transactional = match cursor.number()? {
        0 => false,
        1 => true,
        _ => return Err("0 or 1"),
    };
    cursor.need(b" prefix: ", "the message's prefix")?;
    // Neither prefix nor content is quoted, so the size decides: it must fit what follows.
    let rest = cursor.rest();
    for (place, window) in rest.windows(SIZE.len()).enumerate() {
        if window != SIZE {
            continue;
        }
        let (prefix, after) = rest.split_at_checked(place).unwrap_or_default();
        let mut tail = Cursor::new(after);
        let fits = tail.eat(SIZE)
            && tail.number().is_ok_and(|size| {
                tail.eat(CONTENT) && usize::try_from(size).is_ok_and(|s| s == tail.rest().len())
            });
        if fits {
            return Ok(Line::Message { transactional, prefix, content: tail.rest() });
        }
    }
    Err("the message's size and as many bytes of content")
}

fn two_phase<'a>(cursor: &mut Cursor<'a>, step: Step) -> Result<Line<'a>, Expected> {
    let gid = cursor.literal()?;
    let xid = if cursor.eat(b", txid ") { Some(cursor.number()?) } else { None };
    timestamp(cursor)?;
    Ok(Line::TwoPhase { step, gid, xid })
}
