//! The types every Postgres from 14 to 18 has under the same number: no server says their names
//! on the wire, and a table of them costs less than asking.
//!
//! Refuses nothing: a type that is not here (enum, domain, composite, extension) is `None`, and
//! its values pass as the server's text.

/// What sort of type it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TypeKind {
    /// A scalar.
    Base,
    /// An array of another type.
    Array,
    /// A range.
    Range,
    /// Ranges in a row.
    Multirange,
}

/// A builtin type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Builtin {
    /// Its number.
    pub oid: u32,
    /// Name in `pg_type`: `int4`, `_int4`.
    pub name: &'static str,
    /// Name in SQL, as `format_type` writes it: `integer`, `integer[]`.
    pub sql_name: &'static str,
    /// What sort of type it is.
    pub kind: TypeKind,
    /// Of an array, the type of its elements; else 0.
    pub element: u32,
}

/// The builtin type with this number.
pub fn of_oid(oid: u32) -> Option<&'static Builtin> {
    BUILTINS.iter().find(|builtin| builtin.oid == oid)
}

/// Name in `pg_type` of a builtin type.
pub fn name_of(oid: u32) -> Option<&'static str> {
    of_oid(oid).map(|builtin| builtin.name)
}

/// Number of the type with this name, either as SQL has it (`character varying`,
/// `timestamp(3) without time zone`, `integer[]`, `"char"`) or as `pg_type` has it (`varchar`,
/// `_int4`), also behind `pg_catalog.`. Type modifiers are passed over.
pub fn of_type_name(name: &str) -> Option<u32> {
    let name = name.strip_prefix("pg_catalog.").unwrap_or(name);
    if let Some(element) = name.strip_suffix("[]") {
        // No type is an array of arrays.
        let element = if element.ends_with(']') { None } else { of_type_name(element) }?;
        return BUILTINS.iter().find(|array| array.element == element).map(|array| array.oid);
    }
    let (before, after) = split_modifier(name);
    // Only `"char"` is known by a quoted name; as `pg_type` has it, it would mean `character`.
    let plain = |builtin: &Builtin| builtin.oid != CHAR && builtin.oid != CHAR_ARRAY;
    let same = |known: &str| known.strip_prefix(before) == Some(after);
    BUILTINS
        .iter()
        .find(|builtin| same(builtin.sql_name) || plain(builtin) && same(builtin.name))
        .map(|builtin| builtin.oid)
}

/// `("timestamp", " with time zone")` of `timestamp(3) with time zone`.
fn split_modifier(name: &str) -> (&str, &str) {
    let split = name.split_once('(').and_then(|(before, rest)| {
        let (_, after) = rest.split_once(')')?;
        Some((before, after))
    });
    split.unwrap_or((name, ""))
}

macro_rules! builtins {
    ($($constant:ident = $oid:expr, $name:expr, $sql:expr, $array:expr, $kind:ident;)*) => {
        $(
            #[doc = concat!("`", $name, "`")]
            pub const $constant: u32 = $oid;
        )*

        /// Element type of a builtin array type.
        pub fn element_of(array: u32) -> Option<u32> {
            match array {
                $($array => Some($oid),)*
                _ => None,
            }
        }

        /// Every builtin type a column can have, each followed by its array type.
        static BUILTINS: &[Builtin] = &[
            $(
                Builtin {
                    oid: $oid,
                    name: $name,
                    sql_name: $sql,
                    kind: TypeKind::$kind,
                    element: 0,
                },
                Builtin {
                    oid: $array,
                    name: concat!("_", $name),
                    sql_name: concat!($sql, "[]"),
                    kind: TypeKind::Array,
                    element: $oid,
                },
            )*
        ];
    };
}

const CHAR_ARRAY: u32 = 1002;

builtins! {
    BOOL = 16, "bool", "boolean", 1000, Base;
    BYTEA = 17, "bytea", "bytea", 1001, Base;
    CHAR = 18, "char", "\"char\"", 1002, Base;
    NAME = 19, "name", "name", 1003, Base;
    INT8 = 20, "int8", "bigint", 1016, Base;
    INT2 = 21, "int2", "smallint", 1005, Base;
    INT2VECTOR = 22, "int2vector", "int2vector", 1006, Base;
    INT4 = 23, "int4", "integer", 1007, Base;
    REGPROC = 24, "regproc", "regproc", 1008, Base;
    TEXT = 25, "text", "text", 1009, Base;
    OID = 26, "oid", "oid", 1028, Base;
    TID = 27, "tid", "tid", 1010, Base;
    XID = 28, "xid", "xid", 1011, Base;
    CID = 29, "cid", "cid", 1012, Base;
    OIDVECTOR = 30, "oidvector", "oidvector", 1013, Base;
    JSON = 114, "json", "json", 199, Base;
    XML = 142, "xml", "xml", 143, Base;
    POINT = 600, "point", "point", 1017, Base;
    LSEG = 601, "lseg", "lseg", 1018, Base;
    PATH = 602, "path", "path", 1019, Base;
    BOX = 603, "box", "box", 1020, Base;
    POLYGON = 604, "polygon", "polygon", 1027, Base;
    LINE = 628, "line", "line", 629, Base;
    CIDR = 650, "cidr", "cidr", 651, Base;
    FLOAT4 = 700, "float4", "real", 1021, Base;
    FLOAT8 = 701, "float8", "double precision", 1022, Base;
    CIRCLE = 718, "circle", "circle", 719, Base;
    MACADDR8 = 774, "macaddr8", "macaddr8", 775, Base;
    MONEY = 790, "money", "money", 791, Base;
    MACADDR = 829, "macaddr", "macaddr", 1040, Base;
    INET = 869, "inet", "inet", 1041, Base;
    ACLITEM = 1033, "aclitem", "aclitem", 1034, Base;
    BPCHAR = 1042, "bpchar", "character", 1014, Base;
    VARCHAR = 1043, "varchar", "character varying", 1015, Base;
    DATE = 1082, "date", "date", 1182, Base;
    TIME = 1083, "time", "time without time zone", 1183, Base;
    TIMESTAMP = 1114, "timestamp", "timestamp without time zone", 1115, Base;
    TIMESTAMPTZ = 1184, "timestamptz", "timestamp with time zone", 1185, Base;
    INTERVAL = 1186, "interval", "interval", 1187, Base;
    TIMETZ = 1266, "timetz", "time with time zone", 1270, Base;
    BIT = 1560, "bit", "bit", 1561, Base;
    VARBIT = 1562, "varbit", "bit varying", 1563, Base;
    NUMERIC = 1700, "numeric", "numeric", 1231, Base;
    REFCURSOR = 1790, "refcursor", "refcursor", 2201, Base;
    REGPROCEDURE = 2202, "regprocedure", "regprocedure", 2207, Base;
    REGOPER = 2203, "regoper", "regoper", 2208, Base;
    REGOPERATOR = 2204, "regoperator", "regoperator", 2209, Base;
    REGCLASS = 2205, "regclass", "regclass", 2210, Base;
    REGTYPE = 2206, "regtype", "regtype", 2211, Base;
    UUID = 2950, "uuid", "uuid", 2951, Base;
    TXID_SNAPSHOT = 2970, "txid_snapshot", "txid_snapshot", 2949, Base;
    PG_LSN = 3220, "pg_lsn", "pg_lsn", 3221, Base;
    TSVECTOR = 3614, "tsvector", "tsvector", 3643, Base;
    TSQUERY = 3615, "tsquery", "tsquery", 3645, Base;
    GTSVECTOR = 3642, "gtsvector", "gtsvector", 3644, Base;
    REGCONFIG = 3734, "regconfig", "regconfig", 3735, Base;
    REGDICTIONARY = 3769, "regdictionary", "regdictionary", 3770, Base;
    JSONB = 3802, "jsonb", "jsonb", 3807, Base;
    INT4RANGE = 3904, "int4range", "int4range", 3905, Range;
    NUMRANGE = 3906, "numrange", "numrange", 3907, Range;
    TSRANGE = 3908, "tsrange", "tsrange", 3909, Range;
    TSTZRANGE = 3910, "tstzrange", "tstzrange", 3911, Range;
    DATERANGE = 3912, "daterange", "daterange", 3913, Range;
    INT8RANGE = 3926, "int8range", "int8range", 3927, Range;
    JSONPATH = 4072, "jsonpath", "jsonpath", 4073, Base;
    REGNAMESPACE = 4089, "regnamespace", "regnamespace", 4090, Base;
    REGROLE = 4096, "regrole", "regrole", 4097, Base;
    REGCOLLATION = 4191, "regcollation", "regcollation", 4192, Base;
    INT4MULTIRANGE = 4451, "int4multirange", "int4multirange", 6150, Multirange;
    NUMMULTIRANGE = 4532, "nummultirange", "nummultirange", 6151, Multirange;
    TSMULTIRANGE = 4533, "tsmultirange", "tsmultirange", 6152, Multirange;
    TSTZMULTIRANGE = 4534, "tstzmultirange", "tstzmultirange", 6153, Multirange;
    DATEMULTIRANGE = 4535, "datemultirange", "datemultirange", 6155, Multirange;
    INT8MULTIRANGE = 4536, "int8multirange", "int8multirange", 6157, Multirange;
    PG_SNAPSHOT = 5038, "pg_snapshot", "pg_snapshot", 5039, Base;
    XID8 = 5069, "xid8", "xid8", 271, Base;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_unique_and_arrays_know_their_elements() {
        let mut seen = std::collections::BTreeSet::new();
        for builtin in BUILTINS {
            assert!(seen.insert(builtin.oid), "{builtin:?}");
            assert_eq!(of_oid(builtin.oid), Some(builtin));
            assert_eq!(of_type_name(builtin.sql_name), Some(builtin.oid));
            let element = (builtin.kind == TypeKind::Array).then_some(builtin.element);
            assert_eq!(element_of(builtin.oid), element);
        }
        assert!(seen.len() > 140, "{}", seen.len());
        assert_eq!(of_oid(0), None);
        assert_eq!(element_of(0), None);
    }

    #[test]
    fn either_name_leads_to_the_number() {
        for (name, oid) in [
            ("integer", INT4),
            ("int4", INT4),
            ("_int4", 1007),
            ("int4[]", 1007),
            ("integer[]", 1007),
            ("pg_catalog.int4", INT4),
            ("character varying", VARCHAR),
            ("character varying(20)", VARCHAR),
            ("character varying(20)[]", 1015),
            ("character", BPCHAR),
            ("bpchar", BPCHAR),
            ("\"char\"", CHAR),
            ("\"char\"[]", CHAR_ARRAY),
            ("numeric(12,2)", NUMERIC),
            ("timestamp(3) without time zone", TIMESTAMP),
            ("timestamp with time zone", TIMESTAMPTZ),
            ("time(0) with time zone[]", 1270),
            ("bit varying", VARBIT),
            ("double precision", FLOAT8),
        ] {
            assert_eq!(of_type_name(name), Some(oid), "{name}");
        }
    }

    #[test]
    fn a_type_of_the_user_has_no_number() {
        for name in [
            "",
            "mood",
            "public.int4",
            "\"integer\"",
            "char",
            "integer[",
            "[]",
            "_",
            "_pg_node_tree",
        ] {
            assert_eq!(of_type_name(name), None, "{name}");
        }
    }
}
