//! What a line says, borrowed from its bytes. Only the parser makes these, after it has read
//! them to their end once.

use crate::pg_wire::pgoutput::{Full, TupleBuilder};

use super::cursor::Cursor;
use super::{field, table_name};

/// One line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line<'a> {
    /// A transaction begins; all of it follows.
    Begin {
        /// Its number, with `include-xids`.
        xid: Option<u32>,
    },
    /// It ends.
    Commit {
        /// Its number, with `include-xids`.
        xid: Option<u32>,
    },
    /// A changed row.
    Change(Change<'a>),
    /// Emptied tables.
    Truncate {
        /// The tables.
        tables: Tables<'a>,
        /// Tables that refer to them were emptied too.
        cascade: bool,
        /// Their sequences began anew.
        restart_identity: bool,
    },
    /// A message of `pg_logical_emit_message`.
    Message {
        /// Part of the transaction around it.
        transactional: bool,
        /// Whom it is for.
        prefix: &'a [u8],
        /// What it says.
        content: &'a [u8],
    },
    /// A step of a transaction in two phases.
    TwoPhase {
        /// The step.
        step: Step,
        /// Name under which it was prepared.
        gid: Quoted<'a>,
        /// Its number, with `include-xids`.
        xid: Option<u32>,
    },
}

/// A step of a transaction in two phases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The rows so far are prepared.
    Prepare,
    /// What was prepared is committed.
    Commit,
    /// What was prepared is undone.
    Rollback,
}

/// What happened to a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// It is new.
    Insert,
    /// It changed.
    Update,
    /// It is gone.
    Delete,
}

/// A changed row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change<'a> {
    /// The table's schema.
    pub schema: Identifier<'a>,
    /// The table.
    pub table: Identifier<'a>,
    /// What happened.
    pub op: Op,
    /// What it was before: columns of the replica identity, those that are null left out.
    pub old: Option<Fields<'a>>,
    /// What it is now; `None` if the server does not say, and of a delete.
    pub new: Option<Fields<'a>>,
}

/// A name as the line has it. [`Identifier::write`] takes the quotes off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identifier<'a>(pub(super) Quoted<'a>);

/// Text between quotes, in which a quote stands twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quoted<'a> {
    pub(super) inside: &'a [u8],
    /// The quote that stands twice; without any, the text is taken as it is.
    pub(super) doubled: Option<u8>,
}

/// Columns of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fields<'a> {
    pub(super) text: &'a [u8],
}

/// One column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field<'a> {
    /// Its name.
    pub name: Identifier<'a>,
    /// Its type as SQL writes it: `integer`, `character varying`, `public."My Type"[]`.
    pub type_name: &'a str,
    /// Its value.
    pub value: Value<'a>,
}

/// A value of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// NULL.
    Null,
    /// A large value that the change did not touch and the server did not send: not NULL.
    Unchanged,
    /// A number, or `true` or `false`.
    Bare(&'a [u8]),
    /// The server's text.
    Text(Quoted<'a>),
}

/// Tables of a truncate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tables<'a> {
    pub(super) text: &'a [u8],
}

impl<'a> Fields<'a> {
    /// The columns in the order of the line.
    pub fn iter(&self) -> impl Iterator<Item = Field<'a>> + use<'a> {
        let mut cursor = Cursor::new(self.text);
        // Read once before, so this cannot fail.
        std::iter::from_fn(
            move || {
                if cursor.rest().is_empty() { None } else { field(&mut cursor).ok() }
            },
        )
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }
}

impl<'a> Tables<'a> {
    /// Schema and name of each.
    pub fn iter(&self) -> impl Iterator<Item = (Identifier<'a>, Identifier<'a>)> + use<'a> {
        let mut cursor = Cursor::new(self.text);
        // Read once before, so this cannot fail.
        std::iter::from_fn(move || {
            if cursor.rest().is_empty() {
                return None;
            }
            cursor.eat(b", ");
            table_name(&mut cursor).ok()
        })
    }
}

impl<'a> Identifier<'a> {
    /// Appends the name without its quotes.
    pub fn write(&self, out: &mut String) {
        for piece in self.0.pieces() {
            // Checked to be UTF-8 when the line was parsed.
            out.push_str(std::str::from_utf8(piece).unwrap_or_default());
        }
    }

    /// The name without its quotes.
    pub fn name(&self) -> String {
        let mut out = String::with_capacity(self.0.inside.len());
        self.write(&mut out);
        out
    }

    /// Whether the name is `name`.
    pub fn is(&self, name: &str) -> bool {
        self.0.is(name.as_bytes())
    }
}

impl<'a> Quoted<'a> {
    /// Appends the text, each doubled quote once.
    pub fn write(&self, out: &mut Vec<u8>) {
        self.pieces().for_each(|piece| out.extend_from_slice(piece));
    }

    /// Whether the text is `text`.
    pub fn is(&self, mut text: &[u8]) -> bool {
        let same = self.pieces().all(|piece| {
            let rest = text.strip_prefix(piece);
            text = rest.unwrap_or(text);
            rest.is_some()
        });
        same && text.is_empty()
    }

    /// The text without the second one of each pair of quotes.
    fn pieces(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let doubled = self.doubled;
        let mut rest = Some(self.inside);
        std::iter::from_fn(move || {
            let text = rest.take()?;
            let quote = doubled.and_then(|quote| text.iter().position(|byte| *byte == quote));
            let Some(quote) = quote else { return Some(text) };
            rest = text.get(quote.saturating_add(2)..);
            text.get(..=quote)
        })
    }
}

impl Value<'_> {
    /// Adds it to a row as pgoutput would have sent it: `true` and `false` as `t` and `f`.
    pub fn add_to(&self, row: &mut TupleBuilder) -> Result<(), Full> {
        match self {
            Value::Null => row.null(),
            Value::Unchanged => row.unchanged(),
            Value::Bare(b"true") => row.text(b"t"),
            Value::Bare(b"false") => row.text(b"f"),
            Value::Bare(text) => row.text(text),
            Value::Text(text) => row.text_with(|out| text.write(out)),
        }
    }
}
