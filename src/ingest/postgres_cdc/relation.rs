//! What tables look like, as far as the server has said so on this connection.
//!
//! Kept by OID, used by name: a table that was dropped and made again is another relation under
//! the old name. A description that changes gets a new version; whoever derives something from a
//! relation (routes, column numbers) keeps it by that number, which no two descriptions share.

use std::cell::Cell;

use hashbrown::HashMap;

use super::StreamError;
use super::test_lines::TableFact;
use crate::config::Tables;
use crate::pg_wire::pgoutput::RelationBody;
use crate::pg_wire::value::{Form, has_binary_codec, json_string};

/// Relations kept per connection (I5). Beyond that the connection is made anew: the server then
/// describes again what it still needs.
pub const MAX_RELATIONS: usize = 65_536;

/// One description of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relation {
    /// Its number in the database; made up for decoders that do not tell it.
    pub oid: u32,
    /// Unique to this description, also across reconnects.
    pub version: u32,
    /// Schema, without quotes.
    pub schema: String,
    /// Name in it, without quotes.
    pub name: String,
    /// `schema.name`.
    pub table: String,
    /// The same as a JSON string.
    pub table_json: Vec<u8>,
    /// In the order of a row's values.
    pub columns: Vec<RelationColumn>,
    /// Replica identity: `d`efault, `n`othing, `f`ull or `i`ndex; 0 where the decoder does not
    /// tell it.
    pub identity: u8,
    /// Whether the configuration asks for this table.
    pub captured: bool,
}

impl Relation {
    /// Its UPDATE and DELETE cannot say which row, as far as the decoder tells.
    pub fn names_no_row(&self) -> bool {
        self.identity != 0 && !self.columns.iter().any(|column| column.key)
    }
}

/// One of its columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelationColumn {
    /// Name, without quotes, as the database has it.
    pub name: String,
    /// `,"name":`, in snake case if so configured.
    pub json_key: Vec<u8>,
    /// Number of its type.
    pub type_oid: u32,
    /// How values of that type are written.
    pub form: Form,
    /// Part of what names the row: the replica identity, or with REPLICA IDENTITY FULL the primary
    /// key as far as set-up knows it.
    pub key: bool,
}

/// A description before it has a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ColumnDraft<'a> {
    /// Name, without quotes.
    pub name: &'a str,
    /// Number of its type.
    pub type_oid: u32,
    /// Part of the replica identity.
    pub key: bool,
}

/// All relations of a connection.
#[derive(Debug)]
pub struct Relations {
    tables: Tables,
    snake_case: bool,
    /// Columns that name a row, by schema, NUL and table, as set-up found them.
    row_keys: HashMap<String, Vec<String>>,
    known: Vec<Relation>,
    /// Their places by number.
    places: HashMap<u32, usize>,
    /// The one asked for last: most rows are of the table of the row before.
    recent: Cell<usize>,
    next_version: u32,
}

impl Relations {
    /// None yet.
    pub fn new(tables: Tables, snake_case: bool) -> Relations {
        Relations {
            tables,
            snake_case,
            row_keys: HashMap::new(),
            known: Vec::new(),
            places: HashMap::new(),
            recent: Cell::new(0),
            next_version: 1,
        }
    }

    /// A connection begins, as set-up left it: nothing is known but the versions given out.
    pub fn restart(&mut self, facts: &[TableFact]) {
        self.row_keys = row_keys(facts);
        self.known.clear();
        self.places.clear();
    }

    /// The server describes a relation, whose values come in `binary` form or as text.
    pub fn learn(&mut self, body: &RelationBody<'_>, binary: bool) -> Result<(), StreamError> {
        let schema = if body.namespace.is_empty() { "pg_catalog" } else { body.namespace };
        let row_key = self.row_key(schema, body);
        let columns = body.columns().map(|column| ColumnDraft {
            name: column.name,
            type_oid: column.type_oid,
            key: match &row_key {
                Some(names) => names.iter().any(|name| name == column.name),
                None => column.key,
            },
        });
        self.define(body.id, schema, body.name, body.identity, columns)?;
        match self.get(body.id) {
            Some(relation) if binary && relation.captured => relation.check_binary(),
            _ => Ok(()),
        }
    }

    /// With REPLICA IDENTITY FULL the server marks every column, so that a row that changes would
    /// be another one. What tells it apart is its primary key, if that is published whole.
    fn row_key(&self, schema: &str, body: &RelationBody<'_>) -> Option<Vec<String>> {
        let names = self.row_keys.get(&full_name(schema, body.name));
        let names = names.filter(|_| body.identity == b'f')?;
        let is_there = |name: &String| body.columns().any(|column| column.name == name);
        names.iter().all(is_there).then(|| names.clone())
    }

    /// The same from its parts.
    pub fn define<'a>(
        &mut self,
        oid: u32,
        schema: &str,
        name: &str,
        identity: u8,
        columns: impl Iterator<Item = ColumnDraft<'a>> + Clone,
    ) -> Result<(), StreamError> {
        let known = self.places.get(&oid).copied();
        if let Some(known) = known.and_then(|place| self.known.get(place)) {
            let same = known.schema == schema
                && known.name == name
                && known.identity == identity
                && known.columns.len() == columns.clone().count()
                && known.columns.iter().zip(columns.clone()).all(|(known, draft)| known.is(draft));
            if same {
                return Ok(());
            }
        } else if self.known.len() >= MAX_RELATIONS {
            return Err(StreamError::TooManyRelations { most: MAX_RELATIONS });
        }
        let version = self.next_version;
        self.next_version = version.checked_add(1).unwrap_or(1);
        let table = format!("{schema}.{name}");
        let mut table_json = Vec::with_capacity(table.len() + 2);
        json_string(&mut table_json, table.as_bytes());
        let relation = Relation {
            oid,
            version,
            captured: self.tables.includes(schema, name),
            schema: schema.to_owned(),
            name: name.to_owned(),
            table,
            table_json,
            columns: self.columns(columns),
            identity,
        };
        match known.and_then(|place| self.known.get_mut(place)) {
            Some(known) => *known = relation,
            None => {
                self.places.insert(oid, self.known.len());
                self.known.push(relation);
            }
        }
        Ok(())
    }

    /// The latest description of a relation.
    #[inline]
    pub fn get(&self, oid: u32) -> Option<&Relation> {
        match self.known.get(self.recent.get()) {
            Some(recent) if recent.oid == oid => Some(recent),
            _ => self.find(oid),
        }
    }

    fn find(&self, oid: u32) -> Option<&Relation> {
        let place = *self.places.get(&oid)?;
        self.recent.set(place);
        self.known.get(place)
    }

    fn columns<'a>(&self, drafts: impl Iterator<Item = ColumnDraft<'a>>) -> Vec<RelationColumn> {
        let mut columns: Vec<RelationColumn> = drafts
            .map(|column| RelationColumn {
                name: column.name.to_owned(),
                json_key: Vec::new(),
                type_oid: column.type_oid,
                form: column.type_oid.into(),
                key: column.key,
            })
            .collect();
        let mut shown: Vec<String> = columns.iter().map(|column| column.name.clone()).collect();
        if self.snake_case {
            for at in 0..shown.len() {
                let snake = snake_case(&shown[at]);
                // Two columns must not become one key: the later one keeps its name.
                if !shown.contains(&snake) {
                    shown[at] = snake;
                }
            }
        }
        for (column, shown) in columns.iter_mut().zip(&shown) {
            column.json_key.push(b',');
            json_string(&mut column.json_key, shown.as_bytes());
            column.json_key.push(b':');
        }
        columns
    }
}

impl Relation {
    /// Whether UPDATE and DELETE can name their row (H20). A table that lost its key while we read
    /// it is described anew with its next row; the application's statements fail by then.
    pub fn can_identify(&self) -> bool {
        match self.identity {
            b'd' | b'i' => self.columns.iter().any(|column| column.key),
            identity => identity != b'n',
        }
    }

    fn check_binary(&self) -> Result<(), StreamError> {
        match self.columns.iter().find(|column| !has_binary_codec(column.type_oid)) {
            None => Ok(()),
            Some(column) => Err(StreamError::NoBinaryForm {
                table: self.table.clone(),
                column: column.name.clone(),
                type_oid: column.type_oid,
            }),
        }
    }
}

impl RelationColumn {
    fn is(&self, draft: ColumnDraft<'_>) -> bool {
        self.name == draft.name && self.type_oid == draft.type_oid && self.key == draft.key
    }
}

fn row_keys(facts: &[TableFact]) -> HashMap<String, Vec<String>> {
    let keys = |fact: &TableFact| {
        let keys = fact.columns.iter().filter(|column| column.key);
        keys.map(|column| column.name.clone()).collect::<Vec<String>>()
    };
    let known = facts.iter().map(|fact| (full_name(&fact.schema, &fact.name), keys(fact)));
    known.filter(|(_, keys)| !keys.is_empty()).collect()
}

fn full_name(schema: &str, name: &str) -> String {
    format!("{schema}\0{name}")
}

/// Upper case letters begin a word, a run of them is one word, as in Iggy's Postgres source.
fn snake_case(name: &str) -> String {
    let mut snake = String::with_capacity(name.len() + 4);
    let mut upper_before = false;
    for c in name.chars() {
        let upper = c.is_uppercase();
        if upper && !upper_before && !snake.is_empty() {
            snake.push('_');
        }
        if upper {
            // The first character, as that source takes it.
            snake.extend(c.to_lowercase().next());
        } else {
            snake.push(c);
        }
        upper_before = upper;
    }
    snake
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TableName;
    use crate::ingest::postgres_cdc::test_lines::FactColumn;
    use crate::ingest::postgres_cdc::wire;
    use crate::pg_wire::pgoutput::{self, Message};

    fn column(name: &str) -> ColumnDraft<'_> {
        ColumnDraft { name, type_oid: 25, key: false }
    }

    fn define(relations: &mut Relations, oid: u32, name: &str, columns: &[ColumnDraft<'_>]) -> u32 {
        relations.define(oid, "public", name, b'd', columns.iter().copied()).unwrap();
        relations.get(oid).unwrap().version
    }

    #[test]
    fn the_same_description_keeps_its_version_and_any_change_gets_a_new_one() {
        let mut relations = Relations::new(Tables::All, false);
        let (a, b) = (column("a"), column("b"));
        let first = define(&mut relations, 7, "t", &[a, b]);
        assert_eq!(define(&mut relations, 7, "t", &[a, b]), first);
        let mut seen = vec![first];
        for columns in [
            vec![a],
            vec![a, b, column("c")],
            vec![b, a],
            vec![a, ColumnDraft { key: true, ..b }],
            vec![a, ColumnDraft { type_oid: 23, ..b }],
        ] {
            seen.push(define(&mut relations, 7, "t", &columns));
        }
        seen.push(define(&mut relations, 7, "renamed", &[a, b]));
        seen.push(define(&mut relations, 8, "t", &[a, b]));
        relations.restart(&[]);
        assert!(relations.get(7).is_none());
        seen.push(define(&mut relations, 7, "t", &[a, b]));
        let distinct: std::collections::BTreeSet<u32> = seen.iter().copied().collect();
        assert_eq!(distinct.len(), seen.len(), "{seen:?}");
    }

    #[test]
    fn names_are_shown_as_json_whatever_is_in_them() {
        let mut relations = Relations::new(Tables::All, false);
        define(&mut relations, 7, "We \"ird.Tbl", &[column("na\"me"), column("ünï")]);
        let relation = relations.get(7).unwrap();
        assert_eq!(relation.table, "public.We \"ird.Tbl");
        assert_eq!(relation.table_json, b"\"public.We \\\"ird.Tbl\"");
        assert_eq!(relation.columns[0].json_key, b",\"na\\\"me\":");
        assert_eq!(relation.columns[1].json_key, ",\"ünï\":".as_bytes());
    }

    #[test]
    fn snake_case_is_that_of_iggys_source_and_never_joins_two_columns() {
        for (name, snake) in [
            ("userId", "user_id"),
            ("UserID", "user_id"),
            ("HTTPServer", "httpserver"),
            ("already_snake", "already_snake"),
            ("ÜberUns", "über_uns"),
            ("a1B", "a1_b"),
            ("", ""),
        ] {
            assert_eq!(snake_case(name), snake);
        }
        let mut relations = Relations::new(Tables::All, true);
        define(&mut relations, 7, "t", &[column("user_id"), column("userId"), column("UserId")]);
        let keys: Vec<_> = relations.get(7).unwrap().columns.iter().map(|c| &c.json_key).collect();
        assert_eq!(keys, [&b",\"user_id\":"[..], b",\"userId\":", b",\"UserId\":"]);
    }

    #[test]
    fn a_table_that_lost_its_key_says_so() {
        let mut relations = Relations::new(Tables::All, false);
        let key = ColumnDraft { key: true, ..column("id") };
        for (identity, draft, expected) in [
            (b'd', key, true),
            (b'd', column("id"), false),
            (b'i', column("id"), false),
            (b'f', key, true),
            (b'n', key, false),
            (0, column("id"), true),
        ] {
            relations.define(7, "public", "t", identity, std::iter::once(draft)).unwrap();
            let relation = relations.get(7).unwrap();
            assert_eq!(relation.can_identify(), expected, "{identity}");
        }
    }

    #[test]
    fn only_configured_tables_are_captured() {
        let table = TableName { schema: "public".into(), name: "t".into() };
        let mut relations = Relations::new(Tables::List(vec![table]), false);
        define(&mut relations, 7, "t", &[]);
        define(&mut relations, 8, "T", &[]);
        assert!(relations.get(7).unwrap().captured && !relations.get(8).unwrap().captured);
    }

    #[test]
    fn endless_new_tables_end_the_connection_and_not_the_memory() {
        let mut relations = Relations::new(Tables::All, false);
        for oid in 0..MAX_RELATIONS as u32 {
            define(&mut relations, oid, "t", &[]);
        }
        let more = relations.define(u32::MAX, "public", "t", b'd', std::iter::empty());
        assert!(matches!(more, Err(StreamError::TooManyRelations { .. })));
        define(&mut relations, 5, "known ones still change", &[]);
    }

    #[test]
    fn a_full_identity_is_narrowed_to_the_primary_key_that_is_known() {
        let column = |name: &str, key| FactColumn {
            name: name.to_owned(),
            type_name: "integer".to_owned(),
            key,
        };
        let fact = |name: &str, columns| TableFact {
            schema: "public".to_owned(),
            name: name.to_owned(),
            full: true,
            columns,
        };
        let facts = [fact("t", vec![column("a", true), column("b", true), column("c", false)])];
        let keys = |facts: &[TableFact], identity, names: &[&'static str]| {
            let columns: Vec<_> = names.iter().map(|name| (*name, 23, *name != "c")).collect();
            let bytes = wire::relation(None, 7, "public", "t", identity, &columns);
            let Ok(Message::Relation { relation, .. }) = pgoutput::decode(&bytes, false) else {
                panic!("no relation")
            };
            let mut relations = Relations::new(Tables::All, false);
            relations.restart(facts);
            relations.learn(&relation, false).unwrap();
            let found = relations.get(7).unwrap().columns.iter().filter(|column| column.key);
            found.map(|column| column.name.clone()).collect::<Vec<String>>()
        };
        assert_eq!(keys(&facts, b'f', &["a", "b", "c", "d"]), ["a", "b"]);
        assert_eq!(keys(&facts, b'd', &["a", "d"]), ["a", "d"], "the server says it");
        assert_eq!(keys(&facts, b'f', &["a", "d"]), ["a", "d"], "a list without all of the key");
        assert_eq!(keys(&[], b'f', &["a", "d"]), ["a", "d"], "not known");
    }
}
