//! The same on Postgres 18: a smoke set, with every change in pieces before its commit.

use serde_json::json;
use tidegate::config::{Decoder, Operations, Tables};
use tidegate::ingest::postgres_cdc::{Item, Op, Position, Spill, Stream, StreamOptions};
use tidegate::pg_wire::frame::Messages;
use tidegate::pg_wire::{Lsn, replication};
use tidegate::shard::driver::runtime::IoDriver;

use super::stage::{Stage, limit};
use super::support::pg_client::{Client, on, plan};
use super::support::{Postgres, Stop, eventually, when};
use super::switches::{named, row_ids};
use super::tape::{Tape, data, ops, tables};

const ORDERS: &str = "create table orders (id bigint primary key, kind text, note text)";
const SLOT: &str = "tidegate_shop";

/// Every change is streamed at once, whatever its transaction becomes.
const AT_ONCE: (&str, &str) = ("debug_logical_replication_streaming", "immediate");

const ROUTED: &str = "tables = [\"public.orders\"]\nstreaming = \"on\"\n\
    [sources.shop.routing]\ntopic_column = \"kind\"\ndefault_topic = \"unknown\"\n\
    default_stream = \"$stream\"\n";

#[test]
fn version_18_is_captured_routed_restarted_and_goes_on() {
    let Some(pg) = Postgres::start_second(&[AT_ONCE]) else { return };
    assert!(pg.major() >= 18);
    let stage = Stage::on(pg, ORDERS, ROUTED);
    let mut daemon = stage.streaming();
    stage.pg.sql(
        "insert into orders values (1, 'a', 'x'), (2, 'b', 'y'), (3, null, 'z'); \
         update orders set note = 'w' where id = 2; delete from orders where id = 3",
    );
    assert_eq!(row_ids(&stage.wait_for(&mut daemon, "a", 1)), [1]);
    let got = stage.wait_for(&mut daemon, "b", 2);
    assert_eq!((ops(&got).as_str(), data(&got[1])["note"].as_str()), ("IU", Some("w")));
    // A DELETE has its key alone, which says nothing of the route.
    assert_eq!(ops(&stage.wait_for(&mut daemon, "unknown", 2)), "ID");
    stage.wait_confirmed_of(&mut daemon, "shop");
    daemon.stop();
    let mut daemon = stage.streaming();
    stage.pg.sql("insert into orders values (4, 'a', '')");
    assert_eq!(row_ids(&stage.wait_for(&mut daemon, "a", 2)), [1, 4], "nothing repeats");
    daemon.kill();
    stage.pg.sql("insert into orders values (5, 'a', '')");
    let mut daemon = stage.streaming();
    for (id, how) in [(6, Stop::Fast), (7, Stop::Immediate)] {
        stage.pg.stop(how);
        stage.pg.launch();
        stage.pg.sql(&format!("insert into orders values ({id}, 'a', '')"));
    }
    eventually(limit(), "row 7", || {
        daemon.assert_running();
        when(row_ids(&stage.got("a")).contains(&7))
    });
    stage.wait_confirmed_of(&mut daemon, "shop");
    assert_eq!(row_ids(&super::switches::once(stage.got("a"))), [1, 4, 5, 6, 7]);
    daemon.stop();
}

#[test]
fn pieces_of_version_18_become_what_was_committed() {
    let Some(pg) = Postgres::start_second(&[AT_ONCE]) else { return };
    let sql = "create table a (id int primary key, big text, twice int generated always as \
               (id * 2) stored); alter table a alter big set storage external; \
               create table b (id int primary key)";
    let names = ["public.a", "public.b"];
    let mut tape = Tape::on(pg, sql, &names, "streaming = \"on\"\n");
    let got = tape.play(
        "begin; insert into a values (1, repeat('x', 9000)); savepoint s; \
         alter table a add c int default 7; insert into a values (2, 'lost'); rollback to s; \
         insert into b values (1); insert into a values (3, ''); commit; \
         update a set id = 4 where id = 1; begin; insert into b values (2); rollback; \
         truncate b; delete from a where id = 4",
        6,
    );
    assert_eq!(ops(&got), "IIIUTD");
    assert_eq!(tables(&got[..3]), ["public.a", "public.b", "public.a"]);
    assert_eq!(data(&got[2]), &json!({"id": 3, "big": ""}), "generated columns stay out");
    assert_eq!(got[3].payload["unchanged"], json!(["big"]));
    assert_eq!(got[3].payload["old_data"], json!({"id": 1}));
    assert_eq!(got[5].payload["old_data"], json!({"id": 4}));
    // The shape changes inside a transaction that is committed, and in one that is not.
    let got = tape.play(
        "begin; alter table a add c int default 7; insert into a (id) values (5); rollback; \
         insert into a (id) values (6); \
         begin; alter table a add d text; insert into a (id, d) values (7, 'd'); \
         alter table a drop big; insert into a (id) values (8); commit",
        3,
    );
    assert_eq!(data(&got[0]), &json!({"id": 6, "big": null}));
    assert_eq!(data(&got[1]), &json!({"id": 7, "big": null, "d": "d"}));
    assert_eq!(data(&got[2]), &json!({"id": 8, "d": null}));
    // Transactions that overlap come in the order of their commits.
    let mut older = tape.stage.pg.session("postgres");
    older.sql("begin; insert into b values (10)");
    tape.stage.pg.sql("insert into b values (11)");
    older.sql("insert into b values (12); commit");
    let got = tape.next(3);
    assert_eq!(row_ids(&got), [11, 10, 12]);
    tape.end();
}

#[test]
fn what_version_18_leaves_out_with_a_warning_ends_the_capture() {
    let Some(pg) = Postgres::start_second(&[]) else { return };
    let source = "tables = [\"public.orders\"]\nstream = \"$stream\"\ntopic = \"all\"\n";
    let stage = Stage::on(pg, ORDERS, source);
    let mut daemon = stage.streaming();
    stage.pg.sql("insert into orders values (1, '', '')");
    stage.wait_for(&mut daemon, "all", 1);
    daemon.stop();
    stage.pg.sql(&format!("drop publication {SLOT}; insert into orders values (2, '', '')"));
    stage.pg.sql(&format!("create publication {SLOT} for table orders"));
    stage.pg.sql("insert into orders values (3, '', '')");
    let held = stage.confirmed();
    let mut daemon = stage.start();
    let source = stage.shows(&mut daemon, "shop", "at its end", |s| s["status"] == "Error");
    assert_eq!(source["reason"], "publication_younger", "{source:#}");
    let detail = source["detail"].as_str().expect("text");
    assert!(detail.contains(SLOT) && detail.contains("--accept-gap"), "{detail}");
    assert_eq!(stage.confirmed(), held, "nothing is confirmed behind what was left out");
    daemon.stop();
    // The operator accepts it: rows behind it arrive, and the gap is on record.
    stage.pg.sql(&format!("select pg_drop_replication_slot('{SLOT}')"));
    let mut daemon = stage.start_accepting();
    stage.running(&mut daemon, "shop");
    stage.pg.sql("insert into orders values (4, '', '')");
    assert_eq!(row_ids(&stage.wait_for(&mut daemon, "all", 2)), [1, 4]);
    assert_eq!(named(&daemon, "shop").expect("the source")["capture"]["gaps"], 1);
    daemon.stop();
}

/// What a stream of protocol 4 amounts to.
#[derive(Default)]
struct Rows {
    ids: Vec<i64>,
    ends: Vec<Lsn>,
    file: Vec<u8>,
}

impl Rows {
    fn take(&mut self, item: Item<'_, '_>) -> Option<Vec<u8>> {
        match item {
            Item::Row(row) => {
                assert_eq!(row.op, Op::Insert);
                let tidegate::pg_wire::pgoutput::Column::Text(text) =
                    row.new.expect("a row").nth(0).expect("a column")
                else {
                    panic!("not text")
                };
                let text = std::str::from_utf8(text).expect("text");
                self.ids.push(text.parse().expect("a number"));
            }
            Item::TransactionEnd { end_lsn, .. } => self.ends.push(end_lsn),
            Item::Spill(Spill::Append { offset, bytes, .. }) => {
                self.file.truncate(usize::try_from(offset).expect("small"));
                self.file.extend(bytes);
            }
            Item::Spill(Spill::Read { offset, length, .. }) => {
                let offset = usize::try_from(offset).expect("small");
                return Some(self.file[offset..offset + length].to_vec());
            }
            Item::Spill(Spill::Drop { .. }) => self.file.clear(),
            Item::Keepalive { .. } | Item::Nothing => {}
        }
        None
    }
}

#[test]
fn the_highest_protocol_of_version_18_says_the_same() {
    let Some(pg) = Postgres::start_second(&[AT_ONCE]) else { return };
    pg.sql(ORDERS);
    pg.sql("create publication p for table orders");
    pg.sql("select pg_create_logical_replication_slot('s', 'pgoutput')");
    pg.sql(
        "begin; insert into orders select n, '', '' from generate_series(1, 300) n; savepoint a; \
         insert into orders select n, '', '' from generate_series(1001, 1300) n; rollback to a; \
         insert into orders select n, '', '' from generate_series(301, 400) n; commit; \
         begin; insert into orders values (2000, '', ''); rollback; \
         insert into orders values (401, '', '')",
    );
    let options = StreamOptions {
        decoder: Decoder::PgOutput,
        tables: Tables::All,
        operations: Operations { insert: true, update: true, delete: true, truncate: true },
        snake_case_columns: false,
        binary: false,
        config_hash: 1,
        facts: Vec::new(),
        spool_memory: 1 << 14,
    };
    let mut stream = Stream::new(options, Position::default());
    let mut rows = Rows::default();
    on(IoDriver::Epoll, async || {
        let client = Client::up(plan(&pg), true).await;
        let pairs = [("proto_version", "4"), ("publication_names", "p"), ("streaming", "parallel")];
        client.begin(&replication::start_replication_sql("s", Lsn(0), &pairs)).await;
        while rows.ends.len() < 2 {
            let chunk = client.chunk(1 << 16).await;
            for (_, body) in Messages::new(&chunk) {
                rows.take(stream.message(body).expect("a message"));
                while let Some(item) = stream.more().expect("more") {
                    if let Some(bytes) = rows.take(item) {
                        stream.spilled(&bytes).expect("a piece");
                    }
                }
            }
        }
        client.close().await;
    });
    assert_eq!(rows.ids, (1..=401).collect::<Vec<_>>());
    assert!(rows.ends.is_sorted() && rows.file.is_empty());
}
