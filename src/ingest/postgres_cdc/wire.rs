//! What a server sends, made by hand for the tests of this folder.

use super::stream::POSTGRES_EPOCH_US;
use crate::pg_wire::Lsn;
use crate::pg_wire::pgoutput::{Column, OldKind, TupleBuilder};

/// CopyData body of a pgoutput message.
pub fn data(start: Lsn, message: &[u8]) -> Vec<u8> {
    let mut body = vec![b'w'];
    body.extend(start.0.to_be_bytes());
    body.extend(start.0.to_be_bytes());
    body.extend(0_i64.to_be_bytes());
    body.extend(message);
    body
}

/// CopyData body of a keepalive.
pub fn keepalive(wal_end: Lsn, reply: bool) -> Vec<u8> {
    let mut body = vec![b'k'];
    body.extend(wal_end.0.to_be_bytes());
    body.extend(0_i64.to_be_bytes());
    body.push(u8::from(reply));
    body
}

pub fn begin(final_lsn: Lsn, commit_time_us: i64, xid: u32) -> Vec<u8> {
    let mut message = vec![b'B'];
    message.extend(final_lsn.0.to_be_bytes());
    message.extend((commit_time_us - POSTGRES_EPOCH_US).to_be_bytes());
    message.extend(xid.to_be_bytes());
    message
}

pub fn commit(commit_lsn: Lsn, end_lsn: Lsn, commit_time_us: i64) -> Vec<u8> {
    let mut message = vec![b'C', 0];
    message.extend(commit_lsn.0.to_be_bytes());
    message.extend(end_lsn.0.to_be_bytes());
    message.extend((commit_time_us - POSTGRES_EPOCH_US).to_be_bytes());
    message
}

/// A message that has a transaction id in front inside a piece.
fn change(tag: u8, xid: Option<u32>) -> Vec<u8> {
    let mut message = vec![tag];
    message.extend(xid.into_iter().flat_map(u32::to_be_bytes));
    message
}

/// Columns as name, type and whether it is a key.
pub type Columns<'c> = &'c [(&'c str, u32, bool)];

pub fn relation(
    xid: Option<u32>,
    oid: u32,
    schema: &str,
    name: &str,
    identity: u8,
    columns: Columns<'_>,
) -> Vec<u8> {
    let mut message = change(b'R', xid);
    message.extend(oid.to_be_bytes());
    for text in [schema, name] {
        message.extend(text.as_bytes());
        message.push(0);
    }
    message.push(identity);
    message.extend((columns.len() as u16).to_be_bytes());
    for (name, type_oid, key) in columns {
        message.push(u8::from(*key));
        message.extend(name.as_bytes());
        message.push(0);
        message.extend(type_oid.to_be_bytes());
        message.extend((-1_i32).to_be_bytes());
    }
    message
}

fn tuple(message: &mut Vec<u8>, kind: u8, columns: &[Column<'_>]) {
    let mut builder = TupleBuilder::new();
    columns.iter().for_each(|column| builder.column(*column).unwrap());
    message.push(kind);
    builder.write(message);
}

fn old(message: &mut Vec<u8>, old: Option<(OldKind, &[Column<'_>])>) {
    if let Some((kind, columns)) = old {
        tuple(message, if kind == OldKind::Key { b'K' } else { b'O' }, columns);
    }
}

pub fn insert(xid: Option<u32>, oid: u32, new: &[Column<'_>]) -> Vec<u8> {
    let mut message = change(b'I', xid);
    message.extend(oid.to_be_bytes());
    tuple(&mut message, b'N', new);
    message
}

pub fn update(
    xid: Option<u32>,
    oid: u32,
    before: Option<(OldKind, &[Column<'_>])>,
    new: &[Column<'_>],
) -> Vec<u8> {
    let mut message = change(b'U', xid);
    message.extend(oid.to_be_bytes());
    old(&mut message, before);
    tuple(&mut message, b'N', new);
    message
}

pub fn delete(xid: Option<u32>, oid: u32, kind: OldKind, columns: &[Column<'_>]) -> Vec<u8> {
    let mut message = change(b'D', xid);
    message.extend(oid.to_be_bytes());
    old(&mut message, Some((kind, columns)));
    message
}

pub fn truncate(xid: Option<u32>, oids: &[u32]) -> Vec<u8> {
    let mut message = change(b'T', xid);
    message.extend((oids.len() as u32).to_be_bytes());
    message.push(0);
    oids.iter().for_each(|oid| message.extend(oid.to_be_bytes()));
    message
}

pub fn logical(xid: Option<u32>, transactional: bool) -> Vec<u8> {
    let mut message = change(b'M', xid);
    message.push(u8::from(transactional));
    message.extend(7_u64.to_be_bytes());
    message.extend(b"p\0");
    message.extend(2_u32.to_be_bytes());
    message.extend(b"hi");
    message
}

pub fn stream_start(xid: u32, first: bool) -> Vec<u8> {
    let mut message = change(b'S', Some(xid));
    message.push(u8::from(first));
    message
}

pub fn stream_stop() -> Vec<u8> {
    vec![b'E']
}

pub fn stream_commit(xid: u32, commit_lsn: Lsn, end_lsn: Lsn, commit_time_us: i64) -> Vec<u8> {
    let mut message = change(b'c', Some(xid));
    message.extend(&commit(commit_lsn, end_lsn, commit_time_us)[1..]);
    message
}

pub fn stream_abort(xid: u32, subxid: u32) -> Vec<u8> {
    let mut message = change(b'A', Some(xid));
    message.extend(subxid.to_be_bytes());
    message
}
