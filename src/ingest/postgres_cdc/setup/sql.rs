//! The questions set-up asks, in the words of the server's version. Every name is qualified:
//! whatever search_path the role has, these find the catalogue.

use std::fmt::Write;

use crate::config::{Operations, TableName};
use crate::pg_wire::query::{quote_identifier, quote_literal};

/// About the server and the role. One row.
pub const SERVER: &str = "SELECT \
    pg_catalog.current_setting('server_version_num') AS version, \
    pg_catalog.current_database() AS database, current_user AS role, \
    pg_catalog.current_setting('wal_level') AS wal_level, \
    (SELECT setting FROM pg_catalog.pg_settings WHERE name = 'wal_sender_timeout') \
    AS sender_timeout, \
    pg_catalog.current_setting('max_replication_slots') AS max_slots, \
    (SELECT pg_catalog.count(*) FROM pg_catalog.pg_replication_slots) AS slots, \
    pg_catalog.current_setting('max_wal_senders') AS max_senders, \
    (SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_replication) AS senders, \
    pg_catalog.current_setting('max_slot_wal_keep_size') AS keep_size, \
    pg_catalog.pg_is_in_recovery() AS standby, \
    pg_catalog.current_setting('server_encoding') AS encoding, \
    pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE') AS may_create";

/// About one slot. No row if there is none.
pub fn slot(name: &str, version: u32) -> String {
    let reason = if version >= 170_000 { "s.invalidation_reason" } else { "NULL" };
    format!(
        "SELECT s.plugin, s.slot_type, s.database, s.temporary, s.active, s.active_pid, \
         s.restart_lsn, s.confirmed_flush_lsn, s.wal_status, s.safe_wal_size, s.two_phase, \
         {reason} AS invalid, pg_catalog.age(s.catalog_xmin) AS age, a.client_addr, \
         a.application_name FROM pg_catalog.pg_replication_slots s \
         LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = s.active_pid \
         WHERE s.slot_name = {}",
        quote_literal(name)
    )
}

/// About publications by name.
pub fn publications(names: &[String]) -> String {
    format!(
        "SELECT pubname AS name, puballtables AS all_tables, pubinsert AS insert, \
         pubupdate AS update, pubdelete AS delete, pubtruncate AS truncate, \
         pubviaroot AS via_root, \
         pg_catalog.age(xmin) AS age FROM pg_catalog.pg_publication \
         WHERE pubname IN ({})",
        literals(names)
    )
}

/// Which tables they hold, with which columns.
pub fn published(names: &[String], version: u32) -> String {
    let columns = if version >= 150_000 { "attnames::pg_catalog.text" } else { "NULL" };
    format!(
        "SELECT pubname AS publication, schemaname AS schema, tablename AS name, \
         {columns} AS columns FROM pg_catalog.pg_publication_tables \
         WHERE pubname IN ({}) ORDER BY 2, 3, 1",
        literals(names)
    )
}

/// Which tables a question is about.
#[derive(Clone, Copy, Debug)]
pub enum Which<'a> {
    /// These.
    Named(&'a [TableName]),
    /// Those of these publications.
    Published(&'a [String]),
    /// All that are not the system's.
    Every,
}

impl Which<'_> {
    fn condition(&self) -> String {
        match self {
            Which::Named(tables) => {
                let mut list = String::new();
                for table in *tables {
                    let comma = if list.is_empty() { "" } else { ", " };
                    let (schema, name) = (quote_literal(&table.schema), quote_literal(&table.name));
                    // Writing into a String does not fail.
                    let _ = write!(list, "{comma}({schema}, {name})");
                }
                format!("(n.nspname, c.relname) IN ({list})")
            }
            Which::Published(names) => format!(
                "(n.nspname, c.relname) IN (SELECT schemaname, tablename FROM \
                 pg_catalog.pg_publication_tables WHERE pubname IN ({}))",
                literals(names)
            ),
            Which::Every => "c.relkind IN ('r', 'p') AND n.nspname NOT IN \
                ('pg_catalog', 'information_schema') AND n.nspname !~ '^pg_'"
                .to_owned(),
        }
    }
}

/// About tables and, under each partitioned one, its partitions.
pub fn tables(which: Which<'_>) -> String {
    format!(
        "WITH asked AS (SELECT c.oid AS root FROM pg_catalog.pg_class c \
         JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE {}), \
         parts AS (SELECT root, root AS relid FROM asked UNION SELECT a.root, t.relid \
         FROM asked a, LATERAL pg_catalog.pg_partition_tree(a.root) t) \
         SELECT rn.nspname AS root_schema, r.relname AS root_name, n.nspname AS schema, \
         c.relname AS name, c.oid = r.oid AS is_root, c.relkind AS kind, \
         c.relpersistence AS persistence, c.relreplident AS identity, \
         pg_catalog.pg_has_role(c.relowner, 'USAGE') AS owned, \
         EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND i.indisprimary \
         AND i.indimmediate AND i.indisvalid) AS has_key, \
         EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid \
         AND i.indisreplident AND i.indisvalid) AS has_index \
         FROM parts p JOIN pg_catalog.pg_class c ON c.oid = p.relid \
         JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         JOIN pg_catalog.pg_class r ON r.oid = p.root \
         JOIN pg_catalog.pg_namespace rn ON rn.oid = r.relnamespace \
         ORDER BY 1, 2, 5 DESC, 3, 4",
        which.condition()
    )
}

/// About the columns of tables, in their order.
pub fn columns(which: Which<'_>) -> String {
    format!(
        "SELECT n.nspname AS schema, c.relname AS name, c.relreplident = 'f' AS is_full, \
         a.attname AS column, pg_catalog.format_type(a.atttypid, NULL) AS type_name, \
         a.atttypid AS type_oid, a.attstorage <> 'p' AS is_long, \
         a.attgenerated <> '' AS generated, \
         (c.relreplident = 'f' AND NOT EXISTS (SELECT FROM pg_catalog.pg_index i \
         WHERE i.indrelid = c.oid AND i.indisprimary)) \
         OR EXISTS (SELECT FROM pg_catalog.pg_index i \
         WHERE i.indrelid = c.oid AND a.attnum = ANY (i.indkey) \
         AND CASE WHEN c.relreplident IN ('d', 'f') THEN i.indisprimary \
         ELSE i.indisreplident END) AS key \
         FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid \
         WHERE {} AND a.attnum > 0 AND NOT a.attisdropped ORDER BY 1, 2, a.attnum",
        which.condition()
    )
}

/// Makes a publication of these tables.
pub fn create_publication(
    name: &str,
    tables: &[TableName],
    operations: Operations,
    via_root: bool,
) -> String {
    let tables: Vec<String> = tables
        .iter()
        .map(|t| format!("{}.{}", quote_identifier(&t.schema), quote_identifier(&t.name)))
        .collect();
    let wanted = [
        (operations.insert, "insert"),
        (operations.update, "update"),
        (operations.delete, "delete"),
        (operations.truncate, "truncate"),
    ];
    let publish: Vec<&str> = wanted.iter().filter(|(on, _)| *on).map(|(_, op)| *op).collect();
    let via_root = if via_root { ", publish_via_partition_root = true" } else { "" };
    format!(
        "CREATE PUBLICATION {} FOR TABLE {} WITH (publish = '{}'{via_root})",
        quote_identifier(name),
        tables.join(", "),
        publish.join(", ")
    )
}

/// Who keeps a new slot from its consistent point: it waits for every transaction that is open.
pub const BLOCKERS: &str = "SELECT pid::pg_catalog.text AS who, \
    pg_catalog.concat_ws(' ', usename, application_name, state) AS what, \
    pg_catalog.date_trunc('second', pg_catalog.now() - xact_start)::pg_catalog.text AS since \
    FROM pg_catalog.pg_stat_activity \
    WHERE backend_xid IS NOT NULL AND pid <> pg_catalog.pg_backend_pid() \
    UNION ALL SELECT 'prepared ' || gid, owner, \
    pg_catalog.date_trunc('second', pg_catalog.now() - prepared)::pg_catalog.text \
    FROM pg_catalog.pg_prepared_xacts ORDER BY 3 DESC LIMIT 10";

/// Ends the session that makes a slot. A slot that is not finished goes with it.
pub fn abort_creation(slot: &str) -> String {
    format!(
        "SELECT pg_catalog.pg_terminate_backend(active_pid) \
         FROM pg_catalog.pg_replication_slots WHERE slot_name = {} AND active",
        quote_literal(slot)
    )
}

/// How much log a slot keeps, and for how long it may (P11).
pub fn watch(slot: &str, version: u32) -> String {
    let reason = if version >= 170_000 { "invalidation_reason" } else { "NULL" };
    format!(
        "SELECT CASE WHEN pg_catalog.pg_is_in_recovery() \
         THEN pg_catalog.pg_last_wal_replay_lsn() ELSE pg_catalog.pg_current_wal_lsn() END \
         AS wal_end, \
         restart_lsn, confirmed_flush_lsn, wal_status, safe_wal_size, {reason} AS invalid \
         FROM pg_catalog.pg_replication_slots WHERE slot_name = {}",
        quote_literal(slot)
    )
}

fn literals(names: &[String]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| quote_literal(name)).collect();
    quoted.join(", ")
}
