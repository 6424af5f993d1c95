//! What is in the log: one table of events, and changes of five kinds.
//!
//! The same rows come out at every run. Two columns name stream and topic of an event, so that a
//! capture has something to route by.

use clap::ValueEnum;

/// Stream and topic of an event, turn by turn.
pub const DESTINATIONS: [(&str, &str); 3] =
    [("acme", "orders"), ("bolt", "payments"), ("cove", "logins")];

/// Rows of the table whose large column never changes.
const TOAST_ROWS: u64 = 1_000;

/// Kinds of workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Workload {
    /// 1,000,000 inserts, 1,000 a transaction
    Bulk,
    /// 100,000 inserts, one a transaction
    Single,
    /// 1,000,000 inserts in one transaction
    Giant,
    /// 500,000 updates under REPLICA IDENTITY FULL, 1,000 a transaction
    Full,
    /// 100,000 updates next to an 8 KB column that stays, 1,000 a transaction
    Toast,
}

impl Workload {
    /// Rows where the command line does not say.
    pub fn usual_rows(self) -> u64 {
        match self {
            Workload::Bulk | Workload::Giant => 1_000_000,
            Workload::Full => 500_000,
            Workload::Single | Workload::Toast => 100_000,
        }
    }

    /// In words.
    pub fn describe(self, rows: u64) -> String {
        let a_transaction = self.transaction(rows);
        match self {
            Workload::Bulk => format!("bulk: {rows} inserts, {a_transaction} a transaction"),
            Workload::Single => format!("single: {rows} inserts, one a transaction"),
            Workload::Giant => format!("giant: {rows} inserts in one transaction"),
            Workload::Full => format!(
                "full: {rows} updates under REPLICA IDENTITY FULL, {a_transaction} a transaction"
            ),
            Workload::Toast => format!(
                "toast: {rows} updates next to an unchanged 8 KB column, {a_transaction} a \
                 transaction"
            ),
        }
    }

    /// Rows of a transaction.
    pub fn transaction(self, rows: u64) -> u64 {
        match self {
            Workload::Single => 1,
            Workload::Giant => rows,
            Workload::Bulk | Workload::Full => rows.min(1_000),
            Workload::Toast => rows.min(TOAST_ROWS),
        }
    }

    /// Before there are slots: the tables, and rows that are only there to be changed.
    pub fn prepare(self, rows: u64) -> Vec<String> {
        let mut statements = vec![
            "SET synchronous_commit = off".to_owned(),
            "CREATE TABLE public.events (id bigint PRIMARY KEY, event_type text, tenant text, \
             payload jsonb)"
                .to_owned(),
        ];
        match self {
            Workload::Bulk | Workload::Single | Workload::Giant => {}
            Workload::Full => {
                statements.push("ALTER TABLE public.events REPLICA IDENTITY FULL".to_owned());
                statements.push(insert("1", &rows.to_string()));
            }
            Workload::Toast => {
                let kept = self.transaction(rows);
                statements.push("ALTER TABLE public.events ADD body text".to_owned());
                // Out of line whatever its content, as values are that compress badly.
                let storage = "ALTER TABLE public.events ALTER body SET STORAGE EXTERNAL";
                statements.push(storage.to_owned());
                statements.push(insert("1", &kept.to_string()));
                let body = "UPDATE public.events SET body = repeat(md5(id::text), 256)";
                statements.push(body.to_owned());
            }
        }
        statements.push("CREATE PUBLICATION tidegate_bench FOR TABLE public.events".to_owned());
        statements
    }

    /// The changes that are drained: `rows` of them.
    pub fn write(self, rows: u64) -> Vec<String> {
        let size = self.transaction(rows).max(1);
        match self {
            Workload::Giant => vec![insert("1", &rows.to_string())],
            Workload::Bulk | Workload::Single => {
                vec![in_transactions(rows, size, &insert("first", "last"))]
            }
            Workload::Full => vec![in_transactions(
                rows,
                size,
                "UPDATE public.events SET payload = payload || '{\"amount\": 1.25}' \
                 WHERE id BETWEEN first AND last",
            )],
            // Every transaction changes every row; the last one what is left.
            Workload::Toast => vec![in_transactions(
                rows,
                size,
                "UPDATE public.events SET payload = payload || '{\"amount\": 1.25}' \
                 WHERE id <= last - first + 1",
            )],
        }
    }
}

/// One row, committed by itself, behind whatever the workload wrote.
pub fn one_more(number: u64) -> String {
    let id = 1_000_000_000 + number;
    insert(&id.to_string(), &id.to_string())
}

/// Rows by number. The payload is 142 bytes of text, give or take the digits of its numbers.
fn insert(first: &str, last: &str) -> String {
    let list = |pick: fn(&(&'static str, &'static str)) -> &'static str| {
        let quoted: Vec<String> =
            DESTINATIONS.iter().map(|names| format!("'{}'", pick(names))).collect();
        format!("(ARRAY[{}])[n % {} + 1]", quoted.join(", "), DESTINATIONS.len())
    };
    format!(
        "INSERT INTO public.events (id, event_type, tenant, payload) SELECT n, {}, {}, \
         format('{{\"user\": %s, \"trace\": \"%s\", \"amount\": %s.5, \"source\": \"web\", \
         \"currency\": \"EUR\", \"campaign\": \"early autumn sale\"}}', n % 100003, \
         md5(n::text), n % 1009)::jsonb FROM generate_series({first}::bigint, {last}::bigint) n",
        list(|(_, topic)| topic),
        list(|(stream, _)| stream),
    )
}

/// `statement` for rows `first` to `last`, with a commit behind each piece.
fn in_transactions(rows: u64, size: u64, statement: &str) -> String {
    format!(
        "DO $$ DECLARE first bigint := 1; last bigint; BEGIN WHILE first <= {rows} LOOP \
         last := least(first + {size} - 1, {rows}); {statement}; COMMIT; first := last + 1; \
         END LOOP; END $$"
    )
}
