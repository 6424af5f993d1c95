//! Messages of the `pgoutput` plugin, protocol versions 1 to 4, borrowed from the bytes they came
//! in. All of a message is checked when it is decoded, so that walking over its columns later
//! cannot fail; anything left behind its last field is refused.
//!
//! ```text
//! 'B' final_lsn:8 time:8 xid:4                 'C' flags:1 commit:8 end:8 time:8
//! 'R' [xid:4] id:4 namespace\0 name\0 identity:1 n:2 ( key:1 name\0 type:4 modifier:4 ) * n
//! 'Y' [xid:4] id:4 namespace\0 name\0          'O' lsn:8 name\0
//! 'I' [xid:4] relation:4 'N' tuple             'D' [xid:4] relation:4 'K'|'O' tuple
//! 'U' [xid:4] relation:4 ['K'|'O' tuple] 'N' tuple
//! 'T' [xid:4] n:4 flags:1 ( relation:4 ) * n   'M' [xid:4] flags:1 lsn:8 prefix\0 len:4 content
//! 'S' xid:4 first:1   'E'   'c' xid:4 flags:1 commit:8 end:8 time:8
//! 'A' xid:4 subxid:4 [lsn:8 time:8]            'b' prepare:8 end:8 time:8 xid:4 gid\0
//! 'P' 'K' 'p' flags:1 lsn:8 end:8 time:8 xid:4 gid\0    'r' as these, with a second time:8
//! ```

mod message;
mod relation;
#[cfg(test)]
mod tests;
mod tuple;

use super::error::PgWireError;
use super::lsn::Lsn;
use super::reader::Reader;

pub use message::{Message, OldKind, Prepared};
pub use relation::{ColumnInfo, Columns, RelationBody, RelationIds};
pub use tuple::{Column, Full, Tuple, TupleBuilder, TupleColumns};

/// A message that does not follow its layout.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("pgoutput message {tag:?} of {length} bytes, at byte {offset}: {problem}")]
pub struct DecodeError {
    /// Its first byte; NUL if there is none.
    pub tag: char,
    /// Its length.
    pub length: usize,
    /// How far it could be read.
    pub offset: usize,
    /// What is wrong there.
    pub problem: PgWireError,
}

/// Reads one message. `streamed` is whether it comes between a Stream Start and its Stop, where
/// changes begin with a transaction number.
#[inline(always)] // so that an insert, which is most of them, is not moved about in the enum
pub fn decode(data: &[u8], streamed: bool) -> Result<Message<'_>, DecodeError> {
    match plain_insert(data) {
        Some((relation, new)) if !streamed => Ok(Message::Insert { xid: None, relation, new }),
        _ => decode_any(data, streamed),
    }
}

/// A whole Insert outside of a piece, if it is one.
#[inline]
fn plain_insert(data: &[u8]) -> Option<(u32, Tuple<'_>)> {
    let ([b'I', a, b, c, d, b'N'], tuple) = data.split_first_chunk()? else { return None };
    Some((u32::from_be_bytes([*a, *b, *c, *d]), Tuple::whole(tuple)?))
}

#[inline(never)]
fn decode_any(data: &[u8], streamed: bool) -> Result<Message<'_>, DecodeError> {
    let mut reader = Reader::new(data);
    let message = message(&mut reader, streamed);
    match message.and_then(|message| reader.end("message").map(|()| message)) {
        Ok(message) => Ok(message),
        Err(problem) => Err(failed(data, reader, problem)),
    }
}

#[cold]
fn failed(data: &[u8], reader: Reader<'_>, problem: PgWireError) -> DecodeError {
    let tag = data.first().copied().map_or('\0', char::from);
    let offset = data.len().saturating_sub(reader.rest().len());
    DecodeError { tag, length: data.len(), offset, problem }
}

fn message<'a>(reader: &mut Reader<'a>, streamed: bool) -> Result<Message<'a>, PgWireError> {
    let tag = reader.u8("tag")?;
    if let b'I' | b'U' | b'D' | b'R' | b'Y' | b'T' | b'M' = tag {
        let xid = if streamed { Some(reader.u32("transaction")?) } else { None };
        return match tag {
            b'I' => insert(reader, xid),
            b'U' => update(reader, xid),
            b'D' => delete(reader, xid),
            b'R' => Ok(Message::Relation { xid, relation: RelationBody::read(reader)? }),
            b'Y' => type_name(reader, xid),
            b'T' => truncate(reader, xid),
            _ => logical(reader, xid),
        };
    }
    match tag {
        b'B' => Ok(Message::Begin {
            final_lsn: lsn(reader, "final LSN")?,
            commit_time: reader.i64("commit time")?,
            xid: reader.u32("transaction")?,
        }),
        b'C' => commit(reader),
        b'O' => Ok(Message::Origin {
            lsn: lsn(reader, "origin's LSN")?,
            name: reader.text("origin's name")?,
        }),
        b'S' => Ok(Message::StreamStart {
            xid: reader.u32("transaction")?,
            first: flag(reader, "first piece")?,
        }),
        b'E' => Ok(Message::StreamStop),
        b'c' => stream_commit(reader),
        b'A' => stream_abort(reader),
        b'b' => Ok(Message::BeginPrepare(prepared(reader)?)),
        b'P' => flagged(reader).map(Message::Prepare),
        b'K' => flagged(reader).map(Message::CommitPrepared),
        b'p' => flagged(reader).map(Message::StreamPrepare),
        b'r' => rollback(reader),
        _ => Err(unknown("tag", tag, "a message of pgoutput versions 1 to 4")),
    }
}

fn insert<'a>(reader: &mut Reader<'a>, xid: Option<u32>) -> Result<Message<'a>, PgWireError> {
    let relation = reader.u32("relation")?;
    match reader.u8("kind of tuple")? {
        b'N' => Ok(Message::Insert { xid, relation, new: Tuple::read(reader)? }),
        kind => Err(unknown("kind of tuple", kind, "'N'")),
    }
}

fn update<'a>(reader: &mut Reader<'a>, xid: Option<u32>) -> Result<Message<'a>, PgWireError> {
    let relation = reader.u32("relation")?;
    let mut kind = reader.u8("kind of tuple")?;
    let mut old = None;
    if let Some(old_kind) = old_kind(kind) {
        old = Some((old_kind, Tuple::read(reader)?));
        kind = reader.u8("kind of the new tuple")?;
    }
    match kind {
        b'N' => Ok(Message::Update { xid, relation, old, new: Tuple::read(reader)? }),
        kind if old.is_some() => Err(unknown("kind of the new tuple", kind, "'N'")),
        kind => Err(unknown("kind of tuple", kind, "'K', 'O' or 'N'")),
    }
}

fn delete<'a>(reader: &mut Reader<'a>, xid: Option<u32>) -> Result<Message<'a>, PgWireError> {
    let relation = reader.u32("relation")?;
    let kind = reader.u8("kind of tuple")?;
    match old_kind(kind) {
        Some(kind) => Ok(Message::Delete { xid, relation, kind, old: Tuple::read(reader)? }),
        None => Err(unknown("kind of tuple", kind, "'K' or 'O'")),
    }
}

fn old_kind(kind: u8) -> Option<OldKind> {
    match kind {
        b'K' => Some(OldKind::Key),
        b'O' => Some(OldKind::Full),
        _ => None,
    }
}

fn type_name<'a>(reader: &mut Reader<'a>, xid: Option<u32>) -> Result<Message<'a>, PgWireError> {
    Ok(Message::Type {
        xid,
        id: reader.u32("type")?,
        namespace: reader.text("type's schema")?,
        name: reader.text("type's name")?,
    })
}

fn truncate<'a>(reader: &mut Reader<'a>, xid: Option<u32>) -> Result<Message<'a>, PgWireError> {
    let count = reader.u32("number of relations")?;
    let flags = reader.u8("truncate flags")?;
    if flags & !3 != 0 {
        return Err(unknown("truncate flags", flags, "cascade 1 and restart 2"));
    }
    let relations = RelationIds::read(reader, count)?;
    let (cascade, restart_identity) = (flags & 1 != 0, flags & 2 != 0);
    Ok(Message::Truncate { xid, relations, cascade, restart_identity })
}

fn logical<'a>(reader: &mut Reader<'a>, xid: Option<u32>) -> Result<Message<'a>, PgWireError> {
    let transactional = flag(reader, "message flags")?;
    let lsn = lsn(reader, "message's LSN")?;
    let prefix = reader.text("message's prefix")?;
    let length = reader.u32("message's length")?;
    let content = reader.take(super::reader::wide(length), "message's content")?;
    Ok(Message::Logical { xid, transactional, lsn, prefix, content })
}

fn commit<'a>(reader: &mut Reader<'a>) -> Result<Message<'a>, PgWireError> {
    unused(reader)?;
    Ok(Message::Commit {
        commit_lsn: lsn(reader, "commit LSN")?,
        end_lsn: lsn(reader, "end LSN")?,
        commit_time: reader.i64("commit time")?,
    })
}

fn stream_commit<'a>(reader: &mut Reader<'a>) -> Result<Message<'a>, PgWireError> {
    let xid = reader.u32("transaction")?;
    unused(reader)?;
    Ok(Message::StreamCommit {
        xid,
        commit_lsn: lsn(reader, "commit LSN")?,
        end_lsn: lsn(reader, "end LSN")?,
        commit_time: reader.i64("commit time")?,
    })
}

fn stream_abort<'a>(reader: &mut Reader<'a>) -> Result<Message<'a>, PgWireError> {
    let xid = reader.u32("transaction")?;
    let subxid = reader.u32("subtransaction")?;
    let abort = if reader.rest().is_empty() {
        None
    } else {
        Some((lsn(reader, "abort LSN")?, reader.i64("abort time")?))
    };
    Ok(Message::StreamAbort { xid, subxid, abort })
}

fn flagged<'a>(reader: &mut Reader<'a>) -> Result<Prepared<'a>, PgWireError> {
    unused(reader)?;
    prepared(reader)
}

fn prepared<'a>(reader: &mut Reader<'a>) -> Result<Prepared<'a>, PgWireError> {
    Ok(Prepared {
        lsn: lsn(reader, "prepare LSN")?,
        end_lsn: lsn(reader, "end LSN")?,
        time: reader.i64("prepare time")?,
        xid: reader.u32("transaction")?,
        gid: reader.text("name of the prepared transaction")?,
    })
}

fn rollback<'a>(reader: &mut Reader<'a>) -> Result<Message<'a>, PgWireError> {
    unused(reader)?;
    let (at, end_lsn) = (lsn(reader, "prepare's end LSN")?, lsn(reader, "rollback's end LSN")?);
    let (time, rollback_time) = (reader.i64("prepare time")?, reader.i64("rollback time")?);
    let xid = reader.u32("transaction")?;
    let gid = reader.text("name of the prepared transaction")?;
    let prepared = Prepared { lsn: at, end_lsn, time, xid, gid };
    Ok(Message::RollbackPrepared { prepared, rollback_time })
}

fn lsn(reader: &mut Reader<'_>, what: &'static str) -> Result<Lsn, PgWireError> {
    reader.u64(what).map(Lsn)
}

/// Flags that no version has a meaning for.
fn unused(reader: &mut Reader<'_>) -> Result<(), PgWireError> {
    match reader.u8("flags")? {
        0 => Ok(()),
        flags => Err(unknown("flags", flags, "0")),
    }
}

fn flag(reader: &mut Reader<'_>, what: &'static str) -> Result<bool, PgWireError> {
    match reader.u8(what)? {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(unknown(what, other, "0 or 1")),
    }
}

#[cold]
fn unknown(what: &'static str, seen: u8, expected: &'static str) -> PgWireError {
    let seen = if seen.is_ascii_graphic() {
        format!("'{}'", char::from(seen))
    } else {
        format!("{seen:#04x}")
    };
    PgWireError::Invalid { what, seen, expected }
}
