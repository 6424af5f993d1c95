//! The replication copy of real Postgres servers, over io_uring and over epoll: chunks against
//! grants, back-pressure, and every way it can end.

#![allow(clippy::disallowed_methods, reason = "a test owns its clocks, files and threads")]

mod support;

use std::cell::Cell;
use std::time::{Duration, Instant};

use tidegate::config::{RootCert, SslMode};
use tidegate::pg_wire::Lsn;
use tidegate::pg_wire::replication;
use tidegate::shard::driver::runtime::IoDriver;
use tidegate::shard::event::{PgCommand, PgConnError, PgEvent};

use support::pg_client::{
    Client, Seen, on, on_both, plan, plan_to, plan_to_socket, publish, shared_server, with,
};
use support::{Postgres, Proxy, Stop, eventually, when};

const LONG: Duration = Duration::from_secs(30);
const START: Lsn = Lsn(0);
const MOST: u32 = 128 * 1024;

/// Rows in transactions of a thousand.
fn insert(pg: &Postgres, table: &str, thousands: usize) {
    pg.sql(&format!(
        "DO $$ BEGIN FOR t IN 0..{last} LOOP
           INSERT INTO {table}
             SELECT t * 1000 + n, repeat('x', 100) FROM generate_series(1, 1000) n;
           COMMIT;
         END LOOP; END $$",
        last = thousands - 1
    ));
}

async fn read_until(client: &Client, seen: &mut Seen, inserts: usize) {
    while seen.inserts < inserts {
        let chunk = client.chunk(MOST).await;
        assert!(chunk.len() <= MOST as usize, "a chunk of {} bytes", chunk.len());
        seen.add(&chunk);
    }
}

#[test]
fn rows_wait_in_the_server_while_grants_are_withheld_and_none_is_lost() {
    let pg = shared_server();
    publish(pg, "withheld");
    insert(pg, "withheld", 200);
    on_both(async || {
        let client = Client::up(plan(pg), true).await;
        client.start("withheld", "withheld", START).await;
        let mut seen = Seen::default();
        read_until(&client, &mut seen, 5_000).await;
        // The socket's buffers fill up; then the server waits.
        let position = "SELECT sent_lsn - '0/0' FROM pg_stat_replication s
            JOIN pg_replication_slots r ON r.active_pid = s.pid AND r.slot_name = 'withheld'";
        let mut sent = String::new();
        let mut still = 0;
        while still < 10 {
            monoio::time::sleep(Duration::from_millis(100)).await;
            let now = pg.value(position);
            still = if now == sent { still + 1 } else { 0 };
            sent = now;
        }
        // Had anything been read without a grant, the server would have gone on to the end.
        let behind: u64 = pg
            .value(&format!("SELECT pg_current_wal_lsn() - '0/0' - {sent}"))
            .parse()
            .expect("a number");
        assert!(behind > 8 << 20, "only {behind} bytes wait in the server");
        read_until(&client, &mut seen, 200_000).await;
        assert_eq!(seen.inserts, 200_000);
        client.close().await;
    });
}

#[test]
fn status_updates_keep_a_connection_that_reads_nothing_and_without_them_it_dies() {
    let pg = Postgres::start_with(&[("wal_sender_timeout", "2s")]);
    publish(&pg, "busy");
    insert(&pg, "busy", 100);
    let hold = Duration::from_secs(5);
    on_both(async || {
        let client = Client::up(plan(&pg), true).await;
        client.start("busy", "busy", START).await;
        let mut seen = Seen::default();
        read_until(&client, &mut seen, 1_000).await;
        let begun = Instant::now();
        while begun.elapsed() < hold {
            client.confirm(Lsn(1));
            monoio::time::sleep(Duration::from_millis(500)).await;
        }
        read_until(&client, &mut seen, 100_000).await;
        client.close().await;
        settled(&pg, "busy").await;
    });
    // The same without them: the server gives up, so the above proves something.
    on(IoDriver::Uring, async || {
        let client = Client::up(plan(&pg), true).await;
        client.start("busy", "busy", START).await;
        monoio::time::sleep(hold).await;
        let cause = loop {
            client.conn.read(MOST, MOST);
            match client.next().await {
                PgEvent::Chunk(_) => {}
                PgEvent::Down(cause) => break cause,
                other => panic!("neither data nor the end: {other:?}"),
            }
        };
        assert!(matches!(cause, PgConnError::Lost(_)), "{cause}");
        assert!(pg.log().contains("replication timeout"), "{}", pg.log());
    });
}

#[test]
fn a_giant_value_waits_until_a_grant_allows_it_and_arrives_in_one_piece() {
    let pg = shared_server();
    publish(pg, "giant");
    pg.sql("INSERT INTO giant VALUES (1, repeat('y', 30000000)), (2, 'small')");
    on_both(async || {
        let client = Client::up(plan(pg), true).await;
        client.start("giant", "giant", START).await;
        let mut seen = Seen::default();
        let size = loop {
            client.conn.read(MOST, 8 << 20);
            match client.next().await {
                PgEvent::Chunk(bytes) => seen.add(&bytes),
                PgEvent::TooLarge { size } => break size,
                other => panic!("neither a chunk nor too large: {other:?}"),
            }
        };
        assert_eq!(seen.inserts, 0);
        assert!((30_000_000..30_001_000).contains(&size), "{size}");
        client.conn.read(MOST, size - 1);
        let PgEvent::TooLarge { size: again } = client.next().await else { panic!("it fits?") };
        assert_eq!(again, size);
        client.conn.read(MOST, size);
        let PgEvent::Chunk(giant) = client.next().await else { panic!("no chunk") };
        assert_eq!(giant.len(), size as usize);
        assert_eq!(giant.iter().filter(|byte| **byte == b'y').count(), 30_000_000);
        seen.add(&giant);
        read_until(&client, &mut seen, 2).await;
        client.close().await;
    });
}

#[test]
fn a_copy_over_tls_yields_the_same_rows() {
    let pg = Postgres::start();
    let tls = pg.enable_tls(&["localhost"]);
    publish(&pg, "sealed");
    insert(&pg, "sealed", 20);
    pg.sql("INSERT INTO sealed VALUES (0, repeat('z', 3000000))");
    let sealed = with(plan_to("localhost", pg.port()), |plan| {
        plan.ssl_mode = SslMode::VerifyFull;
        plan.root_cert = Some(RootCert::File(tls.ca_file.clone()));
    });
    on_both(async || {
        let mut sums = Vec::new();
        for plan in [plan(&pg), sealed.clone()] {
            let client = Client::up(plan, true).await;
            client.start("sealed", "sealed", START).await;
            let mut seen = Seen::default();
            read_until_any(&client, &mut seen, 20_001).await;
            client.confirm(Lsn(1));
            client.conn.write(&replication::copy_done());
            end_of_copy(&client, &mut seen).await;
            assert_eq!(client.value("SELECT 5").await, "5");
            sums.push((seen.inserts, seen.end));
            client.close().await;
        }
        assert_eq!(sums[0], sums[1]);
    });
}

/// Like [`read_until`] where single messages exceed a chunk.
async fn read_until_any(client: &Client, seen: &mut Seen, inserts: usize) {
    while seen.inserts < inserts {
        seen.add(&client.chunk(MOST).await);
    }
}

/// Reads on until the copy has ended in an orderly way.
async fn end_of_copy(client: &Client, seen: &mut Seen) {
    loop {
        client.conn.read(MOST, 64 << 20);
        match client.next().await {
            PgEvent::Chunk(bytes) => seen.add(&bytes),
            PgEvent::CopyEnded(None) => return,
            other => panic!("neither data nor the end of it: {other:?}"),
        }
    }
}

#[test]
fn an_ended_copy_leaves_a_connection_that_can_ask() {
    let pg = shared_server();
    publish(pg, "again");
    insert(pg, "again", 3);
    on_both(async || {
        // The second copy is in the middle of its first transaction when it is ended.
        for (most, inserts) in [(MOST, 3_000), (4096, 1)] {
            let client = Client::up(plan(pg), true).await;
            client.start("again", "again", START).await;
            let mut seen = Seen::default();
            while seen.inserts < inserts {
                seen.add(&client.chunk(most).await);
            }
            client.conn.write(&replication::copy_done());
            end_of_copy(&client, &mut seen).await;
            assert_eq!(client.value("SELECT 'still here'").await, "still here");
            client.close().await;
        }
    });
    assert!(!pg.log().contains("unexpected EOF on standby connection"), "{}", pg.log());
}

#[test]
fn an_error_of_the_server_ends_the_copy_and_not_the_connection() {
    let pg = shared_server();
    publish(pg, "failing");
    insert(pg, "failing", 1);
    on_both(async || {
        let (one, two) = (Client::up(plan(pg), true).await, Client::up(plan(pg), true).await);
        one.start("failing", "failing", START).await;
        let options = [("proto_version", "1"), ("publication_names", "failing")];
        let start = replication::start_replication_sql("failing", START, &options);
        let error = two.ask(&start).await.unwrap_err();
        assert_eq!(error.code, "55006", "a slot that is in use: {error}");
        one.close().await;
        settled(pg, "failing").await;
        if pg.major() < 18 {
            two.start("failing", "absent_publication", START).await;
            let error = loop {
                two.conn.read(MOST, MOST);
                match two.next().await {
                    PgEvent::Chunk(_) => {}
                    PgEvent::CopyEnded(Some(error)) => break error,
                    other => panic!("neither data nor an error: {other:?}"),
                }
            };
            assert_eq!(error.code, "42704", "{error}");
        }
        assert_eq!(two.value("SELECT 1").await, "1");
        two.close().await;
        settled(pg, "failing").await;
    });
}

/// Waits until nobody uses the slot any more.
async fn settled(pg: &Postgres, slot: &str) {
    let active = format!("SELECT active FROM pg_replication_slots WHERE slot_name = '{slot}'");
    eventually(LONG, "the slot to be free", || when(pg.value(&active) == "f"));
}

#[test]
fn a_session_that_is_terminated_or_whose_server_dies_ends_with_its_reason() {
    let pg = Postgres::start();
    publish(&pg, "ending");
    insert(&pg, "ending", 20);
    on_both(async || {
        let client = Client::up(plan(&pg), true).await;
        client.start("ending", "ending", START).await;
        read_until(&client, &mut Seen::default(), 20_000).await;
        client.conn.read(MOST, MOST);
        pg.sql("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active");
        let cause = last(&client).await;
        assert_eq!(cause.server().expect("the server's words").code, "57P01", "{cause}");
        assert!(!cause.is_final());
        settled(&pg, "ending").await;

        let client = Client::up(plan(&pg), true).await;
        client.start("ending", "ending", START).await;
        read_until(&client, &mut Seen::default(), 1_000).await;
        pg.kill9();
        let cause = last(&client).await;
        assert!(matches!(cause, PgConnError::Lost(_)), "{cause}");
        let cause = Client::open(plan(&pg), true).down().await;
        assert!(matches!(cause, PgConnError::Dial { .. }), "{cause}");
        pg.launch();
    });
}

/// Reads on to the end.
async fn last(client: &Client) -> PgConnError {
    loop {
        client.conn.read(MOST, MOST);
        if let PgEvent::Down(cause) = client.next().await {
            return cause;
        }
    }
}

#[test]
fn a_server_that_stops_refuses_newcomers_and_ends_once_the_copy_is_closed() {
    let pg = Postgres::start();
    publish(&pg, "stopping");
    insert(&pg, "stopping", 20);
    on_both(async || {
        let client = Client::up(plan(&pg), true).await;
        client.start("stopping", "stopping", START).await;
        // Nothing is confirmed, so the server waits for this client.
        read_until(&client, &mut Seen::default(), 1_000).await;
        pg.begin_stop(Stop::Fast);
        eventually(LONG, "the stop to begin", || when(pg.log().contains("fast shutdown request")));
        let cause = Client::open(plan(&pg), false).down().await;
        assert_eq!(cause.server().expect("the server's words").code, "57P03", "{cause}");
        assert!(!cause.is_final(), "{cause}");
        assert!(!pg.has_stopped());
        client.close().await;
        pg.wait_stopped();
        pg.launch();
    });
}

#[test]
fn silence_ends_a_granted_read_once_it_is_watched_for() {
    let pg = shared_server();
    publish(pg, "silent");
    on_both(async || {
        let proxy = Proxy::start(&pg.address());
        let client = Client::up(plan_to("127.0.0.1", proxy.address().port()), true).await;
        client.start("silent", "silent", START).await;
        let silence = Duration::from_millis(400);
        let quiet = monoio::time::sleep(2 * silence);
        proxy.pause();
        client.conn.command(PgCommand::Watch(Some(silence)));
        // Nothing is asked for, so nothing is missed.
        let mut events = client.drain();
        quiet.await;
        events.extend(client.drain());
        assert!(events.is_empty(), "{events:?}");
        let begun = Instant::now();
        assert_eq!(last(&client).await, PgConnError::Silent(silence));
        assert!(begun.elapsed() >= silence && begun.elapsed() < LONG);
        drop(proxy);
        settled(pg, "silent").await;
    });
}

#[test]
fn a_watched_connection_that_is_kept_alive_stays_up() {
    let pg = Postgres::start_with(&[("wal_sender_timeout", "1s")]);
    publish(&pg, "alive");
    on_both(async || {
        let client = Client::up(plan(&pg), true).await;
        client.start("alive", "alive", START).await;
        client.conn.watch(Some(Duration::from_secs(2)));
        let begun = Instant::now();
        let keepalives = Cell::new(0);
        while begun.elapsed() < Duration::from_secs(4) {
            client.chunk(MOST).await;
            keepalives.set(keepalives.get() + 1);
            client.confirm(Lsn(1));
        }
        assert!(keepalives.get() >= 3, "{}", keepalives.get());
        client.close().await;
        settled(&pg, "alive").await;
    });
}

#[test]
fn descriptors_are_given_back_however_a_connection_ends() {
    let pg = Postgres::start();
    publish(&pg, "leaking");
    insert(&pg, "leaking", 1);
    on_both(async || {
        let over_local = Client::up(plan_to_socket(&pg), false).await;
        for round in 0..125 {
            Client::up(plan(&pg), false).await.close().await;
            let absent = with(plan(&pg), |plan| plan.database = "absent".into());
            Client::open(absent, false).down().await;
            let begun = Client::open(plan(&pg), false);
            monoio::time::sleep(Duration::from_millis(round % 4)).await;
            begun.conn.close();
            while !matches!(begun.next().await, PgEvent::Down(_)) {}
            let copying = Client::up(plan(&pg), true).await;
            copying.start("leaking", "leaking", START).await;
            copying.conn.read(MOST, MOST);
            copying.conn.close();
            while !matches!(copying.next().await, PgEvent::Down(_)) {}
            while over_local.value("SELECT bool_or(active) FROM pg_replication_slots").await == "t"
            {
                monoio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        assert_eq!(open_sockets_to(pg.port()), 0);
        let one = Client::up(plan(&pg), false).await;
        assert_eq!(open_sockets_to(pg.port()), 1, "the count sees what is open");
        one.close().await;
        over_local.close().await;
    });
}

/// Sockets of any process that are connected to this port; only this process does that.
fn open_sockets_to(port: u16) -> usize {
    let table = std::fs::read_to_string("/proc/self/net/tcp").expect("procfs");
    let remote = format!(":{port:04X}");
    let held = |line: &&str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields[2].ends_with(&remote) && fields[9] != "0"
    };
    table.lines().skip(1).filter(held).count()
}

#[test]
fn a_unix_socket_copies_as_well() {
    let pg = shared_server();
    publish(pg, "local");
    insert(pg, "local", 10);
    on_both(async || {
        let client = Client::up(plan_to_socket(pg), true).await;
        client.start("local", "local", START).await;
        read_until(&client, &mut Seen::default(), 10_000).await;
        client.close().await;
        settled(pg, "local").await;
    });
}
