//! The answers to set-up's questions as values. A value that does not read is a finding of its
//! own: a pooler or a fork of Postgres answers in another way.

use std::str::FromStr;
use std::time::Duration;

use super::finding::Finding;
use crate::config::TableName;
use crate::ingest::postgres_cdc::test_lines::{FactColumn, TableFact};
use crate::pg_wire::Lsn;
use crate::pg_wire::query::Rows;

/// The server and the role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// `150004` is 15.4.
    pub version: u32,
    /// Database of the session.
    pub database: String,
    /// Role of the session.
    pub role: String,
    /// `logical` is wanted.
    pub wal_level: String,
    /// After which silence a connection is cut; `None` for never.
    pub sender_timeout: Option<Duration>,
    /// max_replication_slots.
    pub max_slots: u32,
    /// Slots there are.
    pub slots: u32,
    /// max_wal_senders.
    pub max_senders: u32,
    /// Replication connections there are.
    pub senders: u32,
    /// max_slot_wal_keep_size; `-1` for no limit.
    pub keep_size: String,
    /// In recovery.
    pub standby: bool,
    /// Of the database.
    pub encoding: String,
    /// The role may make a publication.
    pub may_create: bool,
}

/// A replication slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Output plugin; none of a physical slot.
    pub plugin: Option<String>,
    /// Logical.
    pub logical: bool,
    /// Its database.
    pub database: Option<String>,
    /// Gone with its connection.
    pub temporary: bool,
    /// Who uses it.
    pub active_pid: Option<u32>,
    /// Where that client is and what it calls itself, as far as the role may see.
    pub client: String,
    /// Oldest log it needs.
    pub restart_lsn: Option<Lsn>,
    /// What was confirmed.
    pub confirmed: Option<Lsn>,
    /// `reserved`, `extended`, `unreserved`, `lost`.
    pub wal_status: String,
    /// Bytes until it may be lost.
    pub safe_wal_size: Option<i64>,
    /// Decodes at PREPARE.
    pub two_phase: bool,
    /// Why it is of no use.
    pub invalid: Option<String>,
    /// How many transactions ago its view of the catalogue is.
    pub age: Option<i64>,
}

/// A publication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publication {
    /// Its name.
    pub name: String,
    /// FOR ALL TABLES.
    pub all_tables: bool,
    /// What it publishes, in the order of INSERT, UPDATE, DELETE, TRUNCATE.
    pub operations: [bool; 4],
    /// Partitions under the name of their root.
    pub via_root: bool,
    /// How many transactions ago it was made or changed.
    pub age: i64,
}

/// A table in a publication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// Which publication.
    pub publication: String,
    /// Which table.
    pub table: TableName,
    /// Its published columns; none before 15.
    pub columns: Option<String>,
}

/// A table, or a partition below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The table that was asked for.
    pub root: TableName,
    /// This one.
    pub table: TableName,
    /// They are the same.
    pub is_root: bool,
    /// `r`, `p`, and others that have no changes.
    pub kind: char,
    /// `p`ermanent, `u`nlogged, `t`emporary.
    pub persistence: char,
    /// Replica identity.
    pub identity: char,
    /// The role owns it.
    pub owned: bool,
    /// A primary key that can be an identity.
    pub has_key: bool,
    /// An index that is the identity.
    pub has_index: bool,
}

impl Table {
    /// Whether UPDATE and DELETE can name the row.
    pub fn can_identify(&self) -> bool {
        match self.identity {
            'f' => true,
            'i' => self.has_index,
            'd' => self.has_key,
            _ => false,
        }
    }

    /// Its replica identity as SQL writes it.
    pub fn identity_name(&self) -> &'static str {
        match self.identity {
            'f' => "FULL",
            'i' => "USING INDEX",
            'd' => "DEFAULT",
            _ => "NOTHING",
        }
    }
}

/// A column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnFact {
    /// Whose.
    pub table: TableName,
    /// REPLICA IDENTITY FULL.
    pub full: bool,
    /// Its name.
    pub name: String,
    /// Its type as SQL writes it.
    pub type_name: String,
    /// Its type.
    pub type_oid: u32,
    /// Its values may be stored out of line.
    pub long: bool,
    /// Generated: not part of changes unless so published.
    pub generated: bool,
    /// Part of what names the row: the replica identity, or with REPLICA IDENTITY FULL the primary
    /// key if there is one.
    pub key: bool,
}

/// The tables of these columns.
pub fn table_facts(columns: &[ColumnFact]) -> Vec<TableFact> {
    let mut facts: Vec<TableFact> = Vec::new();
    for column in columns {
        let TableName { schema, name } = &column.table;
        if facts.last().is_none_or(|last| last.schema != *schema || last.name != *name) {
            facts.push(TableFact {
                schema: schema.clone(),
                name: name.clone(),
                full: column.full,
                columns: Vec::new(),
            });
        }
        if let Some(fact) = facts.last_mut() {
            fact.columns.push(FactColumn {
                name: column.name.clone(),
                type_name: column.type_name.clone(),
                key: column.key,
            });
        }
    }
    facts
}

/// The rows of one answer.
#[derive(Clone, Copy, Debug)]
pub struct Answer<'r> {
    what: &'static str,
    rows: Option<&'r Rows>,
}

/// One of them.
#[derive(Clone, Copy, Debug)]
pub struct Record<'r> {
    what: &'static str,
    columns: &'r [String],
    values: &'r [Option<String>],
}

impl<'r> Answer<'r> {
    /// The answer to the question about `what`.
    pub fn new(what: &'static str, answer: &'r [Rows]) -> Answer<'r> {
        Answer { what, rows: answer.first() }
    }

    /// Its rows.
    pub fn records(self) -> impl Iterator<Item = Record<'r>> {
        let rows =
            self.rows.into_iter().flat_map(|rows| rows.rows.iter().zip(std::iter::repeat(rows)));
        rows.map(move |(values, rows)| Record { what: self.what, columns: &rows.columns, values })
    }

    /// Its rows as values.
    pub fn read<T>(
        self,
        read: impl Fn(Record<'r>) -> Result<T, Finding>,
    ) -> Result<Vec<T>, Finding> {
        self.records().map(read).collect()
    }

    /// Its only row.
    pub fn one(self) -> Result<Record<'r>, Finding> {
        let mut records = self.records();
        match (records.next(), records.next()) {
            (Some(record), None) => Ok(record),
            (None, _) => Err(odd(self.what, "no row", "one row")),
            _ => Err(odd(self.what, "several rows", "one row")),
        }
    }
}

impl<'r> Record<'r> {
    /// A value; `None` if it is NULL or not there.
    pub fn value(&self, name: &str) -> Option<&'r str> {
        let at = self.columns.iter().position(|column| column == name)?;
        self.values.get(at)?.as_deref()
    }

    /// A value that has to be there.
    pub fn text(&self, name: &'static str) -> Result<String, Finding> {
        let value = self.value(name).map(str::to_owned);
        value.ok_or_else(|| odd(self.what, &format!("no {name}"), "a value"))
    }

    /// The same, of another type.
    pub fn parsed<T: FromStr>(&self, name: &'static str) -> Result<T, Finding> {
        let text = self.text(name)?;
        text.parse().map_err(|_| odd(self.what, &format!("{name} {text:?}"), "a value of its type"))
    }

    /// One that may be NULL.
    pub fn optional<T: FromStr>(&self, name: &'static str) -> Result<Option<T>, Finding> {
        self.value(name).map(|_| self.parsed(name)).transpose()
    }

    /// `t` or `f`.
    pub fn flag(&self, name: &'static str) -> Result<bool, Finding> {
        match self.value(name) {
            Some("t" | "true" | "on") => Ok(true),
            Some("f" | "false" | "off") => Ok(false),
            other => Err(odd(self.what, &format!("{name} {other:?}"), "t or f")),
        }
    }

    /// Schema and name.
    pub fn table(&self, schema: &'static str, name: &'static str) -> Result<TableName, Finding> {
        Ok(TableName { schema: self.text(schema)?, name: self.text(name)? })
    }
}

fn odd(what: &'static str, seen: &str, wanted: &str) -> Finding {
    Finding::refusal(
        "unexpected_answer",
        format!("the question about {what} was answered with {seen}"),
        wanted,
        "connect to Postgres 14 to 18 itself, without a pooler between",
    )
}

impl Server {
    /// From the answer.
    pub fn read(answer: &[Rows]) -> Result<Server, Finding> {
        let row = Answer::new("the server", answer).one()?;
        let timeout: u64 = row.parsed("sender_timeout")?;
        Ok(Server {
            version: row.parsed("version")?,
            database: row.text("database")?,
            role: row.text("role")?,
            wal_level: row.text("wal_level")?,
            sender_timeout: Some(Duration::from_millis(timeout)).filter(|t| !t.is_zero()),
            max_slots: row.parsed("max_slots")?,
            slots: row.parsed("slots")?,
            max_senders: row.parsed("max_senders")?,
            senders: row.parsed("senders")?,
            keep_size: row.text("keep_size")?,
            standby: row.flag("standby")?,
            encoding: row.text("encoding")?,
            may_create: row.flag("may_create")?,
        })
    }
}

impl Slot {
    /// From the answer; `None` if there is no such slot.
    pub fn read(answer: &[Rows]) -> Result<Option<Slot>, Finding> {
        let answer = Answer::new("the slot", answer);
        if answer.records().next().is_none() {
            return Ok(None);
        }
        let row = answer.one()?;
        let client = [row.value("client_addr"), row.value("application_name")];
        let client: Vec<&str> = client.into_iter().flatten().filter(|t| !t.is_empty()).collect();
        Ok(Some(Slot {
            plugin: row.value("plugin").map(str::to_owned),
            logical: row.value("slot_type") == Some("logical"),
            database: row.value("database").map(str::to_owned),
            temporary: row.flag("temporary")?,
            active_pid: row.optional("active_pid")?,
            client: client.join(" "),
            restart_lsn: row.optional("restart_lsn")?,
            confirmed: row.optional("confirmed_flush_lsn")?,
            wal_status: row.value("wal_status").unwrap_or_default().to_owned(),
            safe_wal_size: row.optional("safe_wal_size")?,
            two_phase: row.value("two_phase") == Some("t"),
            invalid: row.value("invalid").map(str::to_owned),
            age: row.optional("age")?,
        }))
    }
}

impl Publication {
    /// From the answer.
    pub fn read(answer: &[Rows]) -> Result<Vec<Publication>, Finding> {
        Answer::new("publications", answer).read(|row| {
            Ok(Publication {
                name: row.text("name")?,
                all_tables: row.flag("all_tables")?,
                operations: [
                    row.flag("insert")?,
                    row.flag("update")?,
                    row.flag("delete")?,
                    row.flag("truncate")?,
                ],
                via_root: row.flag("via_root")?,
                age: row.parsed("age")?,
            })
        })
    }
}

impl Published {
    /// From the answer.
    pub fn read(answer: &[Rows]) -> Result<Vec<Published>, Finding> {
        Answer::new("published tables", answer).read(|row| {
            Ok(Published {
                publication: row.text("publication")?,
                table: row.table("schema", "name")?,
                columns: row.value("columns").map(str::to_owned),
            })
        })
    }
}

impl Table {
    /// From the answer.
    pub fn read(answer: &[Rows]) -> Result<Vec<Table>, Finding> {
        Answer::new("tables", answer).read(|row| {
            Ok(Table {
                root: row.table("root_schema", "root_name")?,
                table: row.table("schema", "name")?,
                is_root: row.flag("is_root")?,
                kind: row.parsed("kind")?,
                persistence: row.parsed("persistence")?,
                identity: row.parsed("identity")?,
                owned: row.flag("owned")?,
                has_key: row.flag("has_key")?,
                has_index: row.flag("has_index")?,
            })
        })
    }
}

impl ColumnFact {
    /// From the answer.
    pub fn read(answer: &[Rows]) -> Result<Vec<ColumnFact>, Finding> {
        Answer::new("columns", answer).read(|row| {
            Ok(ColumnFact {
                table: row.table("schema", "name")?,
                full: row.flag("is_full")?,
                name: row.text("column")?,
                type_name: row.text("type_name")?,
                type_oid: row.parsed("type_oid")?,
                long: row.flag("is_long")?,
                generated: row.flag("generated")?,
                key: row.flag("key")?,
            })
        })
    }
}
