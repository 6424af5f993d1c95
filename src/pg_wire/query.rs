//! Statements out, answers in.
//!
//! A simple query carries any number of statements; an extended one carries one statement and
//! its parameters apart from the text. Both end with ReadyForQuery, so one [`Collector`] reads
//! both. Values are text in UTF-8; anything else is refused, never replaced.
//!
//! ```text
//! 'T' count:2 ( name\0 table:4 column:2 type:4 length:2 modifier:4 format:2 ) ...
//! 'D' count:2 ( length:4 (-1 is NULL) value ) ...
//! 'W' format:1 count:2 ( format:2 ) ...      CopyBoth begins; 'd' messages are the caller's
//! ```

use super::error::{Notice, PgWireError, ServerError};
use super::frame::Frame;
use super::reader::Reader;

/// Bound on what one answer may hold in memory, bytes.
pub const MOST_ANSWER_BYTES: usize = 64 << 20;
/// Bound on the notices kept until they are taken; further ones are counted only.
pub const MOST_NOTICES: usize = 64;

/// A simple query.
pub fn encode_query(sql: &str) -> Vec<u8> {
    // A NUL in the text makes the server refuse the message; to cut it there would run a part.
    Frame::new(b'Q').bytes(sql.as_bytes()).u8(0).end()
}

/// One statement with text parameters (`$1`, …; `None` is NULL), unnamed, read to its end:
/// Parse, Bind, Describe, Execute and Sync in one write. The server infers parameter types.
pub fn encode_extended(sql: &str, parameters: &[Option<&str>]) -> Result<Vec<u8>, PgWireError> {
    let mut bytes = parse("", sql);
    bytes.extend(bind("", "", parameters)?);
    bytes.extend(describe_portal(""));
    bytes.extend(execute("", 0));
    bytes.extend(sync());
    Ok(bytes)
}

/// Prepares `sql` under a name; the empty name is replaced by the next Parse.
pub fn parse(statement: &str, sql: &str) -> Vec<u8> {
    // As in `encode_query`: a NUL in the text is for the server to refuse.
    Frame::new(b'P').text(statement).bytes(sql.as_bytes()).u8(0).u16(0).end()
}

/// Binds text parameters to a prepared statement; results come as text.
pub fn bind(
    portal: &str,
    statement: &str,
    parameters: &[Option<&str>],
) -> Result<Vec<u8>, PgWireError> {
    let too_many = |seen: usize, expected| PgWireError::Invalid {
        what: "parameters of a statement",
        seen: seen.to_string(),
        expected,
    };
    let count = u16::try_from(parameters.len())
        .map_err(|_| too_many(parameters.len(), "at most 65535 of them"))?;
    let mut frame = Frame::new(b'B').text(portal).text(statement).u16(0).u16(count);
    for value in parameters {
        frame = match value {
            None => frame.bytes(&(-1_i32).to_be_bytes()),
            Some(value) => {
                let length = i32::try_from(value.len())
                    .map_err(|_| too_many(value.len(), "at most 2 GiB in one of them"))?;
                frame.bytes(&length.to_be_bytes()).bytes(value.as_bytes())
            }
        };
    }
    Ok(frame.u16(0).end())
}

/// Asks for the columns of a portal.
pub fn describe_portal(portal: &str) -> Vec<u8> {
    Frame::new(b'D').u8(b'P').text(portal).end()
}

/// Runs a portal; `most_rows` 0 is all of them, else PortalSuspended may end the answer.
pub fn execute(portal: &str, most_rows: u32) -> Vec<u8> {
    Frame::new(b'E').text(portal).u32(most_rows).end()
}

/// Ends a sequence of extended messages; the server answers with ReadyForQuery.
pub fn sync() -> [u8; 5] {
    *b"S\0\0\0\x04"
}

/// The identifier in double quotes.
pub fn quote_identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// The text as a literal of SQL, right under either setting of `standard_conforming_strings`.
pub fn quote_literal(text: &str) -> String {
    let doubled = text.replace('\'', "''");
    if doubled.contains('\\') {
        // The blank keeps the E apart from a word before it.
        format!(" E'{}'", doubled.replace('\\', "\\\\"))
    } else {
        format!("'{doubled}'")
    }
}

/// The answer to one statement. A statement that returns no rows has no columns either.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    /// Column names.
    pub columns: Vec<String>,
    /// Rows of text values; `None` is NULL.
    pub rows: Vec<Vec<Option<String>>>,
}

/// How an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueryEnd {
    /// One entry per statement. After CopyBoth: the copy is over.
    Done(Vec<Rows>),
    /// CopyBoth began. When it has ended on both sides, the collector reads the rest.
    CopyBoth,
    /// The server refused. If [`ServerError::is_fatal`], the session is over as well.
    Failed(ServerError),
}

/// Reads the messages that answer one query, and after that the next one's. An error of the wire
/// leaves it unusable, like its connection.
#[derive(Debug, Default)]
pub struct Collector {
    done: Vec<Rows>,
    open: Option<Rows>,
    failed: Option<ServerError>,
    bytes: usize,
    notices: Vec<Notice>,
    notices_lost: u64,
    /// Columns of a portal that stopped at its row limit: they are not described again.
    suspended: Option<Vec<String>>,
}

impl Collector {
    /// Ready for the first answer.
    pub fn new() -> Collector {
        Collector::default()
    }

    /// Takes the next message; says when the answer is complete.
    pub fn push(&mut self, tag: u8, body: &[u8]) -> Result<Option<QueryEnd>, PgWireError> {
        match tag {
            b'T' => self.description(body)?,
            b'D' => self.row(body)?,
            b'C' | b'I' => self.statement_done(),
            b's' => {
                let rows = self.open.take().unwrap_or_default();
                self.suspended = Some(rows.columns.clone());
                self.done.push(rows);
            }
            b'E' => {
                let error = ServerError::parse(body)?;
                if error.is_fatal() {
                    self.reset();
                    return Ok(Some(QueryEnd::Failed(error)));
                }
                // The first says why; later ones only follow from it.
                self.failed.get_or_insert(error);
            }
            b'N' => self.notice(body)?,
            b'W' => return Ok(Some(QueryEnd::CopyBoth)),
            b'Z' => return Ok(Some(self.ready())),
            // CopyDone; ParseComplete, BindComplete, CloseComplete, NoData, parameter types;
            // settings and notifications, which may come at any time.
            b'c' | b'1' | b'2' | b'3' | b'n' | b't' | b'S' | b'A' => {}
            _ => {
                let during = "in the answer to a query";
                return Err(PgWireError::UnexpectedTag { tag, during });
            }
        }
        Ok(None)
    }

    /// Whether the last answer ended at its row limit, with more to come.
    pub fn is_suspended(&self) -> bool {
        self.suspended.is_some()
    }

    /// Remarks of the server since the last call, and how many more there were.
    pub fn take_notices(&mut self) -> (Vec<Notice>, u64) {
        (std::mem::take(&mut self.notices), std::mem::take(&mut self.notices_lost))
    }

    fn description(&mut self, body: &[u8]) -> Result<(), PgWireError> {
        if self.open.is_some() {
            let during = "inside the rows of a statement";
            return Err(PgWireError::UnexpectedTag { tag: b'T', during });
        }
        let mut reader = Reader::new(body);
        let count = reader.u16("column count")?;
        let mut rows = Rows::default();
        for _ in 0..count {
            let name = reader.text("column name")?;
            reader.array::<18>("column description")?;
            self.charge(name.len())?;
            rows.columns.push(name.to_owned());
        }
        reader.end("row description")?;
        self.suspended = None;
        self.open = Some(rows);
        Ok(())
    }

    fn row(&mut self, body: &[u8]) -> Result<(), PgWireError> {
        self.charge(body.len())?;
        if self.open.is_none() {
            self.open = self.resumed();
        }
        let Some(rows) = self.open.as_mut() else {
            let during = "before the description of its columns";
            return Err(PgWireError::UnexpectedTag { tag: b'D', during });
        };
        let mut reader = Reader::new(body);
        let count = usize::from(reader.u16("value count")?);
        if count != rows.columns.len() {
            return Err(PgWireError::Invalid {
                what: "values of a row",
                seen: format!("{count} for {} columns", rows.columns.len()),
                expected: "one for each column",
            });
        }
        let mut row = Vec::new();
        for _ in 0..count {
            row.push(text_value(&mut reader)?);
        }
        reader.end("row")?;
        rows.rows.push(row);
        self.charge(count.saturating_mul(size_of::<Option<String>>()))
    }

    fn statement_done(&mut self) {
        let rows = self.open.take().or_else(|| self.resumed()).unwrap_or_default();
        self.done.push(rows);
    }

    fn resumed(&mut self) -> Option<Rows> {
        self.suspended.take().map(|columns| Rows { columns, rows: Vec::new() })
    }

    fn notice(&mut self, body: &[u8]) -> Result<(), PgWireError> {
        let notice = Notice::parse(body)?;
        if self.notices.len() < MOST_NOTICES {
            self.notices.push(notice);
        } else {
            self.notices_lost = self.notices_lost.saturating_add(1);
        }
        Ok(())
    }

    fn ready(&mut self) -> QueryEnd {
        let done = std::mem::take(&mut self.done);
        let failed = self.failed.take();
        let suspended = self.suspended.take();
        self.reset();
        self.suspended = suspended;
        failed.map_or(QueryEnd::Done(done), QueryEnd::Failed)
    }

    /// Everything but the notices, which wait to be taken.
    fn reset(&mut self) {
        self.done.clear();
        self.open = None;
        self.failed = None;
        self.bytes = 0;
        self.suspended = None;
    }

    fn charge(&mut self, bytes: usize) -> Result<(), PgWireError> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes <= MOST_ANSWER_BYTES {
            return Ok(());
        }
        Err(PgWireError::Invalid {
            what: "answer to a query",
            seen: format!("more than {MOST_ANSWER_BYTES} bytes"),
            expected: "an answer that fits into memory",
        })
    }
}

fn text_value(reader: &mut Reader<'_>) -> Result<Option<String>, PgWireError> {
    const WHAT: &str = "value of a row";
    let length = reader.i32("length of a value")?;
    if length == -1 {
        return Ok(None);
    }
    let length = usize::try_from(length).map_err(|_| PgWireError::Invalid {
        what: "length of a value",
        seen: length.to_string(),
        expected: "-1 for NULL, or 0 and more",
    })?;
    let bytes = reader.take(length, WHAT)?;
    let text =
        std::str::from_utf8(bytes).map_err(|error| PgWireError::not_utf8(WHAT, bytes, error))?;
    Ok(Some(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::super::frame::Messages;
    use super::*;

    const READY: &[u8] = b"Z\0\0\0\x05I";

    fn description(names: &[&str]) -> Vec<u8> {
        let mut frame = Frame::new(b'T').u16(u16::try_from(names.len()).unwrap());
        for name in names {
            frame = frame.text(name).bytes(&[0; 18]);
        }
        frame.end()
    }

    fn row(values: &[Option<&[u8]>]) -> Vec<u8> {
        let mut frame = Frame::new(b'D').u16(u16::try_from(values.len()).unwrap());
        for value in values {
            let length = value.map_or(-1, |value| i32::try_from(value.len()).unwrap());
            frame = frame.bytes(&length.to_be_bytes()).bytes(value.unwrap_or_default());
        }
        frame.end()
    }

    fn complete(tag: &str) -> Vec<u8> {
        Frame::new(b'C').text(tag).end()
    }

    fn run(collector: &mut Collector, run: &[u8]) -> Result<Option<QueryEnd>, PgWireError> {
        let mut end = None;
        for (tag, body) in Messages::new(run) {
            assert_eq!(end, None, "a message behind the end");
            end = collector.push(tag, body)?;
        }
        Ok(end)
    }

    fn done(end: Result<Option<QueryEnd>, PgWireError>) -> Vec<Rows> {
        match end {
            Ok(Some(QueryEnd::Done(rows))) => rows,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_statement_has_its_entry() {
        let answer = [
            &description(&["a", "b"])[..],
            &row(&[Some(b"1"), None]),
            &row(&[Some(b""), Some("é".as_bytes())]),
            &complete("SELECT 2"),
            b"I\0\0\0\x04",
            &complete("CREATE PUBLICATION"),
            &description(&[]),
            &row(&[]),
            &complete("SELECT 1"),
            READY,
        ]
        .concat();
        let rows = done(run(&mut Collector::new(), &answer));
        assert_eq!(rows.len(), 4);
        assert_eq!(rows[0].columns, ["a", "b"]);
        assert_eq!(rows[0].rows[0], [Some("1".to_owned()), None]);
        assert_eq!(rows[0].rows[1], [Some(String::new()), Some("é".to_owned())]);
        assert_eq!((&rows[1], &rows[2]), (&Rows::default(), &Rows::default()));
        assert_eq!(rows[3], Rows { columns: vec![], rows: vec![vec![]] });
    }

    #[test]
    fn an_error_is_reported_at_ready_and_a_fatal_one_at_once() {
        let mut collector = Collector::new();
        let error = b"E\0\0\0\x19VERROR\0C42704\0Mgone\0\0";
        let answer = [&description(&["a"])[..], error].concat();
        assert_eq!(run(&mut collector, &answer), Ok(None));
        let end = run(&mut collector, READY).unwrap();
        assert!(matches!(&end, Some(QueryEnd::Failed(error)) if error.is("42704")), "{end:?}");
        assert_eq!(done(run(&mut collector, READY)), [], "nothing is carried over");
        let fatal = b"E\0\0\0\x19VFATAL\0C57P01\0Mgone\0\0";
        let end = run(&mut collector, fatal).unwrap();
        assert!(matches!(&end, Some(QueryEnd::Failed(error)) if error.is_fatal()), "{end:?}");
    }

    #[test]
    fn the_copy_begins_and_the_rest_is_read_after_it() {
        let mut collector = Collector::new();
        let begun = run(&mut collector, b"W\0\0\0\x07\0\0\0");
        assert_eq!(begun, Ok(Some(QueryEnd::CopyBoth)));
        let unexpected = collector.push(b'd', b"k");
        assert!(matches!(unexpected, Err(PgWireError::UnexpectedTag { tag: b'd', .. })));
        let rest = [b"c\0\0\0\x04", &complete("COPY 0")[..], &complete("START_REPLICATION"), READY];
        assert_eq!(done(run(&mut collector, &rest.concat())).len(), 2);
    }

    #[test]
    fn notices_are_kept_up_to_a_bound() {
        let mut collector = Collector::new();
        for _ in 0..MOST_NOTICES + 3 {
            assert_eq!(collector.push(b'N', b"VWARNING\0C01000\0Mcare\0\0"), Ok(None));
        }
        let (notices, lost) = collector.take_notices();
        assert_eq!((notices.len(), lost), (MOST_NOTICES, 3));
        assert_eq!(notices[0].message, "care");
        assert_eq!(collector.take_notices(), (vec![], 0));
    }

    #[test]
    fn a_suspended_portal_goes_on_with_the_same_columns() {
        let mut collector = Collector::new();
        let first = [&description(&["a"])[..], &row(&[Some(b"1")]), b"s\0\0\0\x04", READY].concat();
        assert_eq!(done(run(&mut collector, &first))[0].rows.len(), 1);
        assert!(collector.is_suspended());
        let last = [&row(&[Some(b"2")])[..], &complete("SELECT 1"), READY].concat();
        let rows = done(run(&mut collector, &last));
        assert_eq!((rows[0].columns[0].as_str(), rows[0].rows.len()), ("a", 1));
        assert!(!collector.is_suspended());
    }

    #[test]
    fn rows_that_contradict_their_description_are_refused() {
        let described = description(&["a"]);
        for bad in [row(&[]), row(&[None, None]), description(&["b"])] {
            let answer = [&described[..], &bad].concat();
            assert!(run(&mut Collector::new(), &answer).is_err(), "{bad:?}");
        }
        assert!(run(&mut Collector::new(), &row(&[None])).is_err());
        let latin = [&described[..], &row(&[Some(b"a\xe9")])].concat();
        let refused = run(&mut Collector::new(), &latin);
        assert!(matches!(refused, Err(PgWireError::NotUtf8 { at: 1, byte: 0xe9, .. })));
    }

    #[test]
    fn an_answer_that_never_ends_is_cut_off() {
        let mut collector = Collector::new();
        run(&mut collector, &description(&["a"])).unwrap();
        let value = vec![b'x'; 1 << 20];
        let row = row(&[Some(&value)]);
        let taken = (0..100).take_while(|_| run(&mut collector, &row).is_ok()).count();
        assert_eq!(taken, 63);
    }

    #[test]
    fn an_extended_query_keeps_values_apart_from_the_text() {
        let bytes = encode_extended("select $1", &[Some("it's"), None]).unwrap();
        let tags: Vec<u8> = Messages::new(&bytes).map(|(tag, _)| tag).collect();
        assert_eq!(tags, b"PBDES");
        let (_, bound) = Messages::new(&bytes).nth(1).unwrap();
        assert_eq!(bound, b"\0\0\0\0\0\x02\0\0\0\x04it's\xff\xff\xff\xff\0\0");
        assert!(bind("", "", &vec![None; 65_536]).is_err());
        assert_eq!(encode_query("x"), b"Q\0\0\0\x06x\0");
    }

    #[test]
    fn quoting_holds_against_quotes_and_backslashes() {
        assert_eq!(quote_identifier("na\"me"), "\"na\"\"me\"");
        assert_eq!(quote_literal("it's"), "'it''s'");
        assert_eq!(quote_literal("a\\'b"), " E'a\\\\''b'");
    }
}
