//! What is wrong with a database for a capture: facts in, findings out. Nothing is asked here and
//! nothing changed.

use std::collections::BTreeMap;
use std::time::Duration;

use super::SetupOptions;
use super::facts::{ColumnFact, Publication, Published, Server, Slot, Table};
use super::finding::{Finding, Level};
use super::sql;
use crate::config::{Decoder, Operations, TableName, Tables};
use crate::pg_wire::query::quote_identifier;

/// The server and the role.
pub fn server(server: &Server, options: &SetupOptions) -> Vec<Finding> {
    let mut findings = Vec::new();
    if server.version < 140_000 {
        findings.push(Finding::refusal(
            "server_version",
            format!("server version {}", server.version),
            "Postgres 14 to 18",
            "upgrade the server",
        ));
    }
    if server.wal_level != "logical" {
        findings.push(Finding::refusal(
            "wal_level",
            format!("wal_level is {:?}", server.wal_level),
            "\"logical\"",
            "ALTER SYSTEM SET wal_level = 'logical'; then restart the server",
        ));
    }
    if let Some(database) = &options.database
        && *database != server.database
    {
        findings.push(Finding::refusal(
            "other_database",
            format!("the connection leads to database {:?}", server.database),
            format!("{database:?}, of which the saved position is"),
            "connect to that database, or forget the position with `tidegate state reset`",
        ));
    }
    if server.standby && server.version < 160_000 {
        findings.push(Finding::refusal(
            "standby",
            "the server is a standby",
            "a primary; standbys decode from Postgres 16 on",
            "connect to the primary",
        ));
    }
    if server.encoding == "SQL_ASCII" {
        findings.push(Finding::new(
            Level::Warning,
            "encoding",
            "the database's encoding is SQL_ASCII",
            "UTF8",
            "bytes that are not UTF-8 become U+FFFD; keep them in bytea columns",
        ));
    }
    if server.sender_timeout.is_some_and(|timeout| timeout < Duration::from_secs(3)) {
        findings.push(Finding::new(
            Level::Warning,
            "wal_sender_timeout",
            format!("wal_sender_timeout is {:?}", server.sender_timeout.unwrap_or_default()),
            "3 s or more",
            "raise it: a short stall would end the connection",
        ));
    }
    if server.keep_size == "-1" {
        findings.push(Finding::new(
            Level::Info,
            "max_slot_wal_keep_size",
            "max_slot_wal_keep_size is -1: a capture that stands still fills the disk",
            "",
            "set a limit that the disk has room for",
        ));
    }
    findings
}

/// A slot that is there.
pub fn slot(slot: &Slot, server: &Server, options: &SetupOptions) -> Vec<Finding> {
    let name = &options.slot;
    let another = "name another slot, or drop this one if nobody needs it";
    let mut findings = Vec::new();
    let mut refuse = |code, found: String, wanted: String, fix: &str| {
        findings.push(Finding::refusal(code, format!("slot {name:?} {found}"), wanted, fix));
    };
    if !slot.logical {
        refuse("slot_physical", "is a physical one".into(), "a logical one".into(), another);
        return findings;
    }
    let plugin = slot.plugin.as_deref().unwrap_or("none");
    if plugin != options.decoder.as_str() {
        let wanted = format!("{:?}", options.decoder.as_str());
        refuse("slot_plugin", format!("has plugin {plugin:?}"), wanted, another);
    }
    let database = slot.database.as_deref().unwrap_or("none");
    if database != server.database {
        let wanted = format!("{:?}", server.database);
        refuse("slot_database", format!("belongs to database {database:?}"), wanted, another);
    }
    if slot.temporary {
        refuse("slot_temporary", "is temporary".into(), "one that stays".into(), another);
    }
    if slot.two_phase {
        let fix = if server.version >= 180_000 {
            "ALTER_REPLICATION_SLOT ... (TWO_PHASE false) on a replication connection"
        } else {
            "drop it, forget the position with `tidegate state reset`, let it be made anew"
        };
        refuse("slot_two_phase", "has two_phase on".into(), "two_phase off".into(), fix);
    }
    if slot.wal_status == "lost" || slot.invalid.is_some() {
        let why = slot.invalid.as_deref().unwrap_or("wal_status lost");
        let fix = "its changes are gone: drop it with pg_drop_replication_slot, then start with \
                   --accept-gap (what is missing is recorded), or `tidegate state reset`; raise \
                   max_slot_wal_keep_size";
        refuse("slot_lost", format!("is invalidated ({why})"), "a valid one".into(), fix);
    } else if matches!(slot.wal_status.as_str(), "unreserved" | "extended") {
        let (status, left) = (&slot.wal_status, slot.safe_wal_size.unwrap_or(0));
        findings.push(Finding::new(
            Level::Warning,
            "slot_wal_status",
            format!("slot {name:?} has wal_status {status}, {left} bytes until it may be lost"),
            "reserved",
            "let the capture catch up, or raise max_slot_wal_keep_size",
        ));
    }
    findings
}

/// Somebody else reads the slot.
pub fn active(slot: &Slot, options: &SetupOptions) -> Option<Finding> {
    let pid = slot.active_pid?;
    let client = if slot.client.is_empty() {
        "a client this role may not see".to_owned()
    } else {
        slot.client.clone()
    };
    Some(Finding::new(
        Level::Wait,
        "slot_active",
        format!("slot {:?} is active for process {pid} ({client})", options.slot),
        "nobody else to read it",
        "stop the other client; an own connection that broke is given up by the server after \
         wal_sender_timeout",
    ))
}

/// No slot can be made.
pub fn new_slot(server: &Server, options: &SetupOptions) -> Option<Finding> {
    (server.slots >= server.max_slots).then(|| {
        Finding::new(
            Level::Wait,
            "slots_exhausted",
            format!(
                "slot {:?} has to be made, {} of {} slots are in use",
                options.slot, server.slots, server.max_slots
            ),
            "a free slot",
            "raise max_replication_slots or drop an old slot",
        )
    })
}

/// The tables the configuration names.
pub fn tables(tables: &[Table], options: &SetupOptions) -> Vec<Finding> {
    let Tables::List(wanted) = &options.tables else { return Vec::new() };
    let mut findings = Vec::new();
    for name in wanted {
        let Some(table) = tables.iter().find(|table| table.is_root && table.table == *name) else {
            findings.push(Finding::refusal(
                "table_missing",
                format!("there is no table {name}"),
                "every table in `tables`",
                "make it, correct its name (case counts, \"quotes\" around odd names), or leave \
                 it out",
            ));
            continue;
        };
        if !matches!(table.kind, 'r' | 'p') || table.persistence != 'p' {
            findings.push(Finding::refusal(
                "table_kind",
                format!("{name} is {}", kind_name(table)),
                "a table whose changes are in the log",
                "leave it out of `tables`",
            ));
        } else if table.kind == 'p' && options.decoder == Decoder::TestDecoding {
            findings.push(Finding::refusal(
                "partition_root",
                format!("{name} is partitioned, and test_decoding names the partitions alone"),
                "",
                "name the partitions in `tables`, or use decoder = \"pgoutput\"",
            ));
        }
    }
    findings
}

fn kind_name(table: &Table) -> &'static str {
    match (table.kind, table.persistence) {
        ('r' | 'p', 'u') => "unlogged",
        ('r' | 'p', _) => "temporary",
        ('v', _) => "a view",
        ('m', _) => "a materialized view",
        ('f', _) => "a foreign table",
        ('S', _) => "a sequence",
        _ => "no table",
    }
}

/// Whether UPDATE and DELETE can name their rows. `level` is a refusal for a publication that we
/// would make: the application's own statements would begin to fail (H20).
pub fn identities(tables: &[Table], operations: Operations, level: Level) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !operations.update && !operations.delete {
        return findings;
    }
    for table in tables.iter().filter(|table| table.kind == 'r' && !table.can_identify()) {
        let name = &table.table;
        let found = match level {
            Level::Refusal => format!(
                "{name} has no primary key and replica identity {}: publishing its UPDATE and \
                 DELETE would make these fail in the application",
                table.identity_name()
            ),
            _ => format!(
                "{name} has no primary key and replica identity {}: its UPDATE and DELETE fail in \
                 the application or do not say which row",
                table.identity_name()
            ),
        };
        findings.push(Finding::new(
            level,
            "replica_identity",
            found,
            "a primary key or a replica identity",
            format!(
                "ALTER TABLE {0} ADD PRIMARY KEY (...); or ALTER TABLE {0} REPLICA IDENTITY FULL \
                 (larger log); or capture_operations = [\"INSERT\", \"TRUNCATE\"]",
                quoted(name)
            ),
        ));
    }
    for leaf in tables.iter().filter(|table| !table.is_root && table.kind == 'r') {
        let root = tables.iter().find(|t| t.is_root && t.table == leaf.root);
        if let Some(root) = root.filter(|root| root.identity != leaf.identity) {
            findings.push(Finding::new(
                Level::Warning,
                "partition_identity",
                format!(
                    "partition {} has replica identity {}, its root {} has {}",
                    leaf.table,
                    leaf.identity_name(),
                    root.table,
                    root.identity_name()
                ),
                "the same on both: old rows would differ from partition to partition",
                format!("ALTER TABLE {} REPLICA IDENTITY ...", quoted(&leaf.table)),
            ));
        }
    }
    findings
}

/// Whether the changes of a row have something that stays the same.
pub fn row_keys(tables: &[Table], options: &SetupOptions) -> Vec<Finding> {
    let changes = |table: &&Table| table.identity == 'f' && !table.has_key && table.kind == 'r';
    let tables = tables.iter().filter(|_| options.row_keys).filter(changes);
    let finding = |table: &Table| {
        let name = &table.table;
        Finding::new(
            Level::Warning,
            "row_key",
            format!(
                "{name} has REPLICA IDENTITY FULL and no primary key: with partition_by = \
                 \"identity\" a row goes to another partition whenever it changes"
            ),
            "a primary key: the changes of a row then stay in order",
            format!(
                "ALTER TABLE {} ADD PRIMARY KEY (...), or set partition_key_column",
                quoted(name)
            ),
        )
    };
    tables.map(finding).collect()
}

/// The publications that are there, against the configuration.
pub fn publications(
    found: &[Publication],
    published: &[Published],
    tables: &[Table],
    slot: Option<&Slot>,
    options: &SetupOptions,
) -> Vec<Finding> {
    let mut findings = column_lists(published);
    findings.extend(membership(found, published, tables, options));
    let Operations { insert, update, delete, truncate } = options.operations;
    let wanted = [insert, update, delete, truncate];
    for (index, name) in ["INSERT", "UPDATE", "DELETE", "TRUNCATE"].into_iter().enumerate() {
        if wanted[index] && !found.iter().any(|publication| publication.operations[index]) {
            findings.push(Finding::new(
                Level::Warning,
                "publication_operations",
                format!("{} does not publish {name}", names(options)),
                format!("{name}, which capture_operations asks for"),
                "ALTER PUBLICATION ... SET (publish = '...'), or leave it out of \
                 capture_operations",
            ));
        }
    }
    for publication in found {
        let Some(age) = slot.and_then(|slot| slot.age) else { continue };
        if publication.age < age {
            findings.push(Finding::new(
                Level::Warning,
                "publication_younger",
                format!(
                    "publication {:?} was made or changed after what slot {:?} may still decode",
                    publication.name, options.slot
                ),
                "a publication that is older than the slot",
                "if the server says that the publication does not exist: changes before it cannot \
                 be decoded, drop the slot and start with --accept-gap",
            ));
        }
    }
    findings
}

/// One table with two column lists ends the stream at its first change.
fn column_lists(published: &[Published]) -> Vec<Finding> {
    let mut lists: BTreeMap<&TableName, &Published> = BTreeMap::new();
    let mut findings = Vec::new();
    for entry in published {
        let first = lists.entry(&entry.table).or_insert(entry);
        if first.columns != entry.columns {
            findings.push(Finding::refusal(
                "column_lists",
                format!(
                    "publications {:?} and {:?} publish different columns of {}",
                    first.publication, entry.publication, entry.table
                ),
                "one list of columns for a table",
                "ALTER PUBLICATION ... SET TABLE ... with the same columns",
            ));
        }
    }
    findings
}

fn membership(
    found: &[Publication],
    published: &[Published],
    tables: &[Table],
    options: &SetupOptions,
) -> Vec<Finding> {
    let Tables::List(wanted) = &options.tables else { return Vec::new() };
    let is_published = |name: &TableName| published.iter().any(|entry| entry.table == *name);
    let mut findings = Vec::new();
    for name in wanted.iter().filter(|name| !is_published(name)) {
        let below = |t: &&Table| !t.is_root && t.root == *name && is_published(&t.table);
        if tables.iter().any(|table| below(&table)) {
            findings.push(Finding::refusal(
                "partition_root",
                format!("{} names the partitions of {name}, not {name}", names(options)),
                "changes under the name of the root, which `tables` has",
                format!(
                    "ALTER PUBLICATION {} SET (publish_via_partition_root = true)",
                    first_name(options)
                ),
            ));
            continue;
        }
        findings.push(Finding::refusal(
            "table_not_published",
            format!("{name} is in `tables` and not in {}", names(options)),
            "every table in `tables`: its changes would be missing without a word",
            format!("ALTER PUBLICATION {} ADD TABLE {}", first_name(options), quoted(name)),
        ));
    }
    let others: Vec<String> = published
        .iter()
        .filter(|entry| !wanted.contains(&entry.table))
        .map(|entry| entry.table.to_string())
        .collect();
    if !others.is_empty() && !found.iter().any(|publication| publication.all_tables) {
        findings.push(Finding::new(
            Level::Info,
            "tables_left_out",
            format!("{} also has {}", names(options), few(&others)),
            "",
            "their changes are read and left out; add them to `tables` to capture them",
        ));
    }
    findings
}

/// A publication that has to be made by us, or by somebody else.
pub fn new_publication(tables: &[Table], server: &Server, options: &SetupOptions) -> Vec<Finding> {
    let Tables::List(wanted) = &options.tables else {
        return vec![Finding::refusal(
            "publication_missing",
            format!("{} does not exist", names(options)),
            "one made by hand, as tables = \"*\" says",
            format!("CREATE PUBLICATION {} FOR ALL TABLES", first_name(options)),
        )];
    };
    let via_root = via_root(tables);
    let sql = sql::create_publication(&options.publication, wanted, options.operations, via_root);
    if server.standby {
        return vec![Finding::refusal(
            "publication_missing",
            format!("{} does not exist, and the server is a standby", names(options)),
            "a publication",
            format!("on the primary: {sql}"),
        )];
    }
    let mut findings = identities(tables, options.operations, Level::Refusal);
    let foreign: Vec<String> = tables
        .iter()
        .filter(|table| table.is_root && !table.owned)
        .map(|table| table.table.to_string())
        .collect();
    if !server.may_create || !foreign.is_empty() {
        let missing = if server.may_create {
            format!("does not own {}", few(&foreign))
        } else {
            format!("has no CREATE on database {:?}", server.database)
        };
        findings.push(Finding::refusal(
            "publication_privileges",
            format!("{} has to be made, and role {:?} {missing}", names(options), server.role),
            "CREATE on the database and ownership of the tables",
            format!("give them, or as another role: {sql}"),
        ));
    }
    findings
}

/// Whether changes of partitions have to come under the name of their root.
pub fn via_root(tables: &[Table]) -> bool {
    tables.iter().any(|table| table.is_root && table.kind == 'p')
}

/// Columns that behave in a way one should know of.
pub fn columns(columns: &[ColumnFact], server: &Server, options: &SetupOptions) -> Vec<Finding> {
    let list = |wanted: &dyn Fn(&&ColumnFact) -> bool| -> Vec<String> {
        let chosen = columns.iter().filter(wanted);
        chosen.map(|column| format!("{}.{}", column.table, column.name)).collect()
    };
    let mut findings = Vec::new();
    let long = list(&|column| column.long && !column.full && !column.generated);
    if options.operations.update && !long.is_empty() {
        findings.push(Finding::new(
            Level::Info,
            "long_values",
            format!("values that an UPDATE does not touch may be left out: {}", few(&long)),
            "",
            "they are named in `unchanged`; REPLICA IDENTITY FULL supplies them at the price of a \
             larger log",
        ));
    }
    let generated = list(&|column| column.generated);
    if options.decoder == Decoder::PgOutput && !generated.is_empty() {
        let fix = if server.version >= 180_000 {
            "the publication's publish_generated_columns = stored adds stored ones"
        } else {
            "compute them downstream, or use columns filled by a trigger"
        };
        let found = format!("generated columns are not part of changes: {}", few(&generated));
        findings.push(Finding::new(Level::Info, "generated_columns", found, "", fix));
    }
    findings
}

/// Columns that rows are routed by: whether any table has them, and whether a DELETE does, which
/// carries no more than the replica identity.
pub fn routing(columns: &[ColumnFact], options: &SetupOptions) -> Vec<Finding> {
    let mut findings = Vec::new();
    for name in &options.routed.columns {
        let having = columns.iter().filter(|column| column.name == *name);
        if !columns.is_empty() && having.clone().next().is_none() {
            findings.push(Finding::new(
                Level::Warning,
                "routing_column",
                format!("no captured table has column {name:?}, by which rows are routed"),
                "a table that has it: without it every row goes to the default destination",
                "correct the name in the routing; case counts",
            ));
        }
        let own = having.filter(|column| !options.routed.fixed.contains(&column.table));
        let silent = own.filter(|column| !column.key && !column.full);
        let silent: Vec<String> = silent.map(|column| column.table.to_string()).collect();
        if options.operations.delete && !silent.is_empty() {
            findings.push(Finding::new(
                Level::Warning,
                "routing_identity",
                format!(
                    "rows are routed by column {name:?}, which is not in the replica identity of \
                     {}",
                    few(&silent)
                ),
                "a replica identity with that column: a DELETE carries no other, so it goes \
                 where a row without the column goes and not to the row's destination",
                "ALTER TABLE ... REPLICA IDENTITY FULL, or USING INDEX one that has the column; \
                 or leave DELETE out of capture_operations",
            ));
        }
    }
    findings
}

fn names(options: &SetupOptions) -> String {
    format!("publication {:?}", options.publication)
}

fn first_name(options: &SetupOptions) -> String {
    quote_identifier(&options.publication)
}

fn quoted(table: &TableName) -> String {
    format!("{}.{}", quote_identifier(&table.schema), quote_identifier(&table.name))
}

/// The first few of a list that may be long.
fn few(list: &[String]) -> String {
    const SHOWN: usize = 10;
    let shown = list.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    match list.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
