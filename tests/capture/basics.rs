//! Rows arrive where they belong, as what they are.

use super::stage::Stage;

const ORDERS: &str = "create table orders (id bigint primary key, note text)";
const BOUND: &str = "tables = [\"public.orders\"]\nstream = \"$stream\"\ntopic = \"orders\"";

#[test]
fn inserts_updates_and_deletes_arrive_in_order_with_their_headers() {
    let stage = Stage::new(ORDERS, BOUND);
    let mut daemon = stage.streaming();
    stage.pg.sql(
        "insert into orders values (1, 'one'); update orders set note = 'uno'; \
                  delete from orders",
    );
    let got = stage.wait_for(&mut daemon, "orders", 3);
    let ops: Vec<&str> = got.iter().map(|message| message.text("op")).collect();
    assert_eq!(ops, ["I", "U", "D"]);
    assert_eq!(got[0].payload["table_name"], "public.orders");
    assert_eq!(got[0].payload["data"], serde_json::json!({"id": 1, "note": "one"}));
    assert_eq!(got[1].payload["data"]["note"], "uno");
    assert_eq!(got[2].payload["data"], serde_json::Value::Null);
    stage.wait_confirmed(&mut daemon);
    daemon.stop();
    let again = stage.streaming();
    stage.pg.sql("insert into orders values (2, 'two')");
    let mut again = again;
    let got = stage.wait_for(&mut again, "orders", 4);
    assert_eq!(got.len(), 4, "an orderly restart repeats nothing");
    again.stop();
}
