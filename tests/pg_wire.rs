//! The Postgres protocol: against a real server over plain blocking sockets, and on generated
//! input.

#![allow(clippy::disallowed_methods, reason = "tests own their files, sockets and clock")]

mod support;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use support::{Postgres, Stop};
use tidegate::pg_wire::end_point::server_end_point;
use tidegate::pg_wire::frame::{HEADER, Messages, Prefix, prefix};
use tidegate::pg_wire::query::{
    Collector, QueryEnd, Rows, bind, describe_portal, encode_extended, encode_query, execute,
    parse, quote_identifier, quote_literal, sync,
};
use tidegate::pg_wire::replication::{
    Identity, Replication, SlotCreated, SlotOptions, copy_done, create_slot_sql, drop_slot_sql,
    identify_system, parse as parse_replication, publication_list, read_timeline_history,
    start_replication_sql, status_update, terminate, timeline_history_sql,
};
use tidegate::pg_wire::startup::{
    ChannelBinding, ServerInfo, SslWish, Startup, StartupConfig, StartupError, Step,
};
use tidegate::pg_wire::{Lsn, Notice, ServerError};

/// Not ASCII, and changed by SASLprep (the no-break space becomes a blank).
const PASSWORD: &str = "pä:ss@%\u{a0}x";
const LARGEST: u32 = 1 << 20;

trait Pipe: Read + Write {}
impl<T: Read + Write> Pipe for T {}

/// A connection that is logged in.
struct Session {
    pipe: Box<dyn Pipe>,
    buffer: Vec<u8>,
    info: ServerInfo,
    collector: Collector,
}

fn config(user: &str, ssl: SslWish) -> StartupConfig {
    StartupConfig {
        user: user.to_owned(),
        database: "postgres".to_owned(),
        password: Some(PASSWORD.into()),
        application_name: "wire".to_owned(),
        ssl,
        ..StartupConfig::default()
    }
}

fn dial(pg: &Postgres) -> TcpStream {
    let socket = TcpStream::connect(pg.address()).expect("a server");
    socket.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
    socket
}

fn log_in(pg: &Postgres, config: StartupConfig, ca: Option<&str>) -> Result<Session, StartupError> {
    let mut startup = Startup::new(config);
    'attempt: loop {
        let mut socket = dial(pg);
        let mut step = startup.begin();
        if let Step::Send(question) = &step
            && question.len() == 8
        {
            socket.write_all(question).expect("a send");
            let mut answer = [0];
            socket.read_exact(&mut answer).expect("an answer");
            step = startup.ssl_answer(answer[0], false)?;
        }
        let mut pipe: Box<dyn Pipe> = if step == Step::StartTls {
            let (tls, end_point) = handshake(socket, ca.expect("a root"));
            step = startup.tls_ready(end_point);
            tls
        } else {
            Box::new(socket)
        };
        let mut buffer = Vec::new();
        loop {
            match step {
                Step::Send(bytes) => pipe.write_all(&bytes).expect("a send"),
                Step::Continue => {}
                Step::Reconnect { .. } => continue 'attempt,
                Step::Ready(info) => {
                    return Ok(Session { pipe, buffer, info, collector: Collector::new() });
                }
                Step::StartTls => panic!("TLS twice"),
            }
            let (tag, body) = receive(&mut *pipe, &mut buffer);
            step = startup.message(tag, &body)?;
        }
    }
}

fn handshake(mut socket: TcpStream, ca: &str) -> (Box<dyn Pipe>, Option<Vec<u8>>) {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ca.as_bytes()).expect("PEM")).expect("a root");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").expect("a name");
    let mut tls = ClientConnection::new(Arc::new(config), name).expect("a client");
    while tls.is_handshaking() {
        tls.complete_io(&mut socket).expect("a handshake");
    }
    let certificate = tls.peer_certificates().and_then(|chain| chain.first());
    let end_point = certificate.and_then(|certificate| server_end_point(certificate));
    (Box::new(StreamOwned::new(tls, socket)), end_point)
}

fn receive(pipe: &mut dyn Pipe, buffer: &mut Vec<u8>) -> (u8, Vec<u8>) {
    loop {
        let found = prefix(buffer, LARGEST).expect("messages");
        if let Some((tag, body)) = Messages::new(&buffer[..found.complete]).next() {
            let body = body.to_vec();
            buffer.drain(..HEADER + body.len());
            return (tag, body);
        }
        let mut chunk = [0; 4096];
        let count = pipe.read(&mut chunk).expect("bytes in time");
        assert!(count > 0, "the server closed the connection");
        buffer.extend_from_slice(&chunk[..count]);
    }
}

impl Session {
    fn send(&mut self, bytes: &[u8]) {
        self.pipe.write_all(bytes).expect("a send");
    }

    fn end(&mut self) -> QueryEnd {
        loop {
            let (tag, body) = receive(&mut *self.pipe, &mut self.buffer);
            if tag == b'd' {
                // Sent before the server saw the end of the copy.
                continue;
            }
            if let Some(end) = self.collector.push(tag, &body).expect("an answer") {
                return end;
            }
        }
    }

    fn rows(&mut self) -> Vec<Rows> {
        match self.end() {
            QueryEnd::Done(rows) => rows,
            other => panic!("{other:?}"),
        }
    }

    fn error(&mut self) -> ServerError {
        match self.end() {
            QueryEnd::Failed(error) => error,
            other => panic!("{other:?}"),
        }
    }

    fn query(&mut self, sql: &str) -> Vec<Rows> {
        self.send(&encode_query(sql));
        self.rows()
    }

    fn value(&mut self, sql: &str) -> Option<String> {
        self.query(sql)[0].rows[0][0].clone()
    }

    /// The body of the next CopyData.
    fn copy_data(&mut self) -> Vec<u8> {
        let (tag, body) = receive(&mut *self.pipe, &mut self.buffer);
        assert_eq!(tag, b'd', "{body:?}");
        body
    }
}

fn superuser(pg: &Postgres, replication: bool) -> Session {
    let config = StartupConfig { replication, ..config("postgres", SslWish::Disable) };
    log_in(pg, config, None).expect("a session")
}

#[test]
fn every_kind_of_password_opens_the_session_and_wrong_ones_do_not() {
    let pg = Postgres::start();
    let tls = pg.enable_tls(&["localhost"]);
    let ca = tls.authority.certificate_pem();
    let password = quote_literal(PASSWORD);
    pg.sql(&format!(
        "SET password_encryption = 'md5'; CREATE ROLE md5_role LOGIN PASSWORD {password};
         SET password_encryption = 'scram-sha-256';
         CREATE ROLE scram LOGIN REPLICATION PASSWORD {password};
         CREATE ROLE clear LOGIN PASSWORD {password}; CREATE ROLE nothing LOGIN"
    ));
    pg.set_hba(&[
        "hostnossl all postgres 127.0.0.1/32 trust",
        "host all md5_role 127.0.0.1/32 md5",
        "host all scram 127.0.0.1/32 scram-sha-256",
        "host all clear 127.0.0.1/32 password",
        "hostssl all nothing 127.0.0.1/32 trust",
    ]);
    let plain = |user: &str| log_in(&pg, config(user, SslWish::Disable), None);
    for user in ["postgres", "md5_role", "scram"] {
        let mut session = plain(user).expect(user);
        assert_eq!(session.value("SELECT current_user").as_deref(), Some(user));
        assert_eq!((session.info.tls, session.info.version_num / 10_000), (false, pg.major()));
    }
    assert_eq!(plain("clear").err(), Some(StartupError::CleartextWithoutTls));
    for (user, code) in [("nothing", "28000"), ("absent", "28000")] {
        match plain(user).err() {
            Some(StartupError::Refused { error, .. }) => assert!(error.is(code), "{user}: {error}"),
            other => panic!("{user}: {other:?}"),
        }
    }
    let secured = |user: &str, channel_binding| {
        let config = StartupConfig { channel_binding, ..config(user, SslWish::Require) };
        log_in(&pg, config, Some(&ca))
    };
    for binding in [ChannelBinding::Require, ChannelBinding::Prefer, ChannelBinding::Disable] {
        assert!(secured("scram", binding).expect("SCRAM over TLS").info.tls);
    }
    assert!(secured("clear", ChannelBinding::Prefer).expect("clear").info.tls);
    let unbound = secured("md5_role", ChannelBinding::Require).err();
    assert!(matches!(unbound, Some(StartupError::Unbound(_))), "{unbound:?}");
    // Refused without TLS, and the other way round.
    for (user, ssl, tls) in
        [("nothing", SslWish::Allow, true), ("postgres", SslWish::Prefer, false)]
    {
        assert_eq!(log_in(&pg, config(user, ssl), Some(&ca)).expect(user).info.tls, tls);
    }
    for user in ["md5_role", "scram"] {
        let wrong = Some("wrong".into());
        let config = StartupConfig { password: wrong, ..config(user, SslWish::Disable) };
        match log_in(&pg, config, None).err() {
            Some(StartupError::Refused { error, .. }) => assert!(error.is("28P01"), "{error}"),
            other => panic!("{user}: {other:?}"),
        }
    }
}

#[test]
fn the_session_ignores_hostile_defaults_of_role_and_database() {
    let pg = Postgres::start();
    pg.sql(
        "CREATE SCHEMA s; CREATE TYPE s.mood AS ENUM ('ok');
         ALTER ROLE postgres SET DateStyle = 'German'; ALTER ROLE postgres SET TimeZone = 'Japan';
         ALTER ROLE postgres SET IntervalStyle = 'iso_8601';
         ALTER ROLE postgres SET bytea_output = 'escape';
         ALTER ROLE postgres SET extra_float_digits = -3; ALTER ROLE postgres SET search_path = s;
         ALTER ROLE postgres SET client_min_messages = 'error';
         ALTER ROLE postgres SET standard_conforming_strings = off;
         ALTER DATABASE postgres SET statement_timeout = '1ms';
         ALTER DATABASE postgres SET client_encoding = 'LATIN1'",
    );
    for replication in [false, true] {
        let mut session = superuser(&pg, replication);
        let sql = "SELECT '2000-01-02'::date, '2000-01-02 03:04:05+00'::timestamptz, \
             interval '1 day 2 hours', '\\xff'::bytea, 0.1::float8 + 0.2, 's.mood'::regtype, \
             'ä'";
        let answer = session.query(sql);
        let row: Vec<&str> = answer[0].rows[0].iter().flatten().map(String::as_str).collect();
        assert_eq!(
            row,
            [
                "2000-01-02",
                "2000-01-02 03:04:05+00",
                "1 day 02:00:00",
                "\\xff",
                "0.30000000000000004",
                "s.mood",
                "ä"
            ]
        );
        session.query("DO $$ BEGIN RAISE WARNING 'seen'; END $$");
        let (notices, lost) = session.collector.take_notices();
        let seen = |notice: &Notice| notice.severity == "WARNING" && notice.message == "seen";
        assert!(notices.iter().any(seen) && lost == 0, "{notices:?}");
    }
}

#[test]
fn statements_answer_in_both_forms_and_survive_errors() {
    let pg = Postgres::start();
    let mut session = superuser(&pg, false);
    let odd = "a'b\\c\"d ü";
    let table = format!("public.{}", quote_identifier(odd));
    let rows = session.query(&format!(
        "CREATE TABLE {table} (id int, v text); INSERT INTO {table} VALUES (1, {}), (2, NULL); ; \
         SELECT * FROM {table} ORDER BY id",
        quote_literal(odd)
    ));
    assert_eq!(rows.len(), 3, "the empty statement between the others has no answer");
    assert_eq!(rows[2].columns, ["id", "v"]);
    assert_eq!(rows[2].rows[0][1].as_deref(), Some(odd));
    assert_eq!(rows[2].rows[1][1], None);
    assert_eq!(session.query(""), [Rows::default()]);

    let sql = format!("SELECT v FROM {table} WHERE id > $1 AND v IS NOT DISTINCT FROM $2");
    session.send(&encode_extended(&sql, &[Some("0"), Some(odd)]).expect("parameters"));
    assert_eq!(session.rows()[0].rows, [[Some(odd.to_owned())]]);
    session.send(&encode_extended(&sql, &[Some("0"), None]).expect("parameters"));
    assert_eq!(session.rows()[0].rows, [[None]]);
    session.send(&encode_extended(&sql, &[Some("x"), None]).expect("parameters"));
    assert!(session.error().is("22P02"));
    session.send(&encode_extended("SET lock_timeout = 1", &[]).expect("none"));
    assert_eq!(session.rows(), [Rows::default()]);
    session.send(&encode_query("SELECT 1; SELECT nothing; SELECT 2"));
    assert!(session.error().is("42703"));
    session.send(&encode_query("SELECT 1\0; DROP TABLE x"));
    assert!(session.error().is("08P01"), "a NUL runs nothing");

    session.query("BEGIN");
    session.send(&parse("s", "SELECT generate_series(1, $1::int)"));
    session.send(&bind("p", "s", &[Some("5")]).expect("a parameter"));
    session.send(&[describe_portal("p"), execute("p", 2), sync().to_vec()].concat());
    let mut counts = vec![session.rows()[0].rows.len()];
    while session.collector.is_suspended() {
        session.send(&[execute("p", 2), sync().to_vec()].concat());
        counts.push(session.rows()[0].rows.len());
    }
    assert_eq!(counts, [2, 2, 1]);
    session.query("COMMIT");
    session.send(&encode_query("SELECT pg_terminate_backend(pg_backend_pid())"));
    let ended = session.error();
    assert!(ended.is("57P01") && ended.is_fatal(), "{ended}");
}

#[test]
fn a_slot_is_made_streamed_from_and_left_in_order() {
    stream_and_leave(&Postgres::start());
    if let Some(pg) = Postgres::start_second(&[]) {
        stream_and_leave(&pg);
        let mut session = superuser(&pg, true);
        let options = SlotOptions { failover: true, ..SlotOptions::default() };
        let version = session.info.version_num;
        session.send(&encode_query(&create_slot_sql("kept", "pgoutput", options, version)));
        session.rows();
        assert_eq!(pg.value("SELECT failover FROM pg_replication_slots"), "t");
    }
}

fn stream_and_leave(pg: &Postgres) {
    let publication = "My,Pub\"x'";
    pg.sql(&format!(
        "CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION {} FOR ALL TABLES",
        quote_identifier(publication)
    ));
    let mut session = superuser(pg, true);
    session.send(&encode_query(identify_system()));
    let identity = Identity::read(&session.rows()).expect("an identity");
    assert_eq!((identity.timeline, identity.database.as_deref()), (1, Some("postgres")));
    let options = SlotOptions { failover: true, ..SlotOptions::default() };
    let version = session.info.version_num;
    session.send(&encode_query(&create_slot_sql("wire", "pgoutput", options, version)));
    let created = SlotCreated::read(&session.rows()).expect("a slot");
    assert!(created.consistent_point >= identity.wal_end && created.snapshot.is_none());

    pg.sql("INSERT INTO t VALUES (1)");
    let names = publication_list(&[publication]);
    let options = [("proto_version", "1"), ("publication_names", names.as_str())];
    let start = start_replication_sql("wire", created.consistent_point, &options);
    session.send(&encode_query(&start));
    assert_eq!(session.end(), QueryEnd::CopyBoth);
    let mut kinds = Vec::new();
    let mut flushed = Lsn::INVALID;
    while kinds.last() != Some(&b'C') {
        let body = session.copy_data();
        if let Replication::Data { wal_end, data, .. } = parse_replication(&body).expect("data") {
            kinds.push(data[0]);
            flushed = wal_end;
        }
    }
    assert_eq!(kinds, b"BRIC");
    session.send(&status_update(flushed, flushed, flushed, 0, true));
    loop {
        let body = session.copy_data();
        if let Replication::Keepalive { wal_end, .. } = parse_replication(&body).expect("data") {
            assert!(wal_end >= flushed);
            break;
        }
    }
    session.send(&copy_done());
    assert_eq!(session.rows().len(), 2, "the copy and the command end");
    let confirmed = "SELECT confirmed_flush_lsn FROM pg_replication_slots";
    let confirmed: Lsn = session.value(confirmed).expect("a slot").parse().expect("a position");
    assert_eq!(confirmed, flushed);

    let too_new = [("proto_version", "99"), ("publication_names", names.as_str())];
    let start = start_replication_sql("wire", flushed, &too_new);
    session.send(&encode_query(&start));
    let refused = session.error();
    assert!(refused.is("0A000"), "{refused}");
    session.send(&encode_query(&drop_slot_sql("wire", true)));
    session.rows();
    session.send(&terminate());
}

#[test]
fn a_promoted_server_tells_where_it_forked_off() {
    let pg = Postgres::start();
    let mut session = superuser(&pg, true);
    session.send(&encode_query(&timeline_history_sql(2)));
    assert!(session.error().is("58P01"), "there is no second timeline yet");
    drop(session);
    let data = PathBuf::from(pg.value("SHOW data_directory"));
    let owner = fs::metadata(&data).expect("a directory").uid();
    pg.stop(Stop::Fast);
    fs::write(data.join("standby.signal"), "").expect("a file");
    chown(data.join("standby.signal"), Some(owner), None).expect("an owner");
    pg.launch();
    let mut session = superuser(&pg, true);
    assert_eq!(session.info.is_standby(), Some(true));
    session.query("SELECT pg_promote()");
    drop(session);
    let mut session = superuser(&pg, true);
    assert_eq!(
        (session.info.is_standby(), session.info.is_read_only()),
        (Some(false), Some(false))
    );
    session.send(&encode_query(identify_system()));
    let identity = Identity::read(&session.rows()).expect("an identity");
    session.send(&encode_query(&timeline_history_sql(identity.timeline)));
    let forks = read_timeline_history(&session.rows()).expect("a history");
    assert_eq!((identity.timeline, forks.len(), forks[0].timeline), (2, 1, 1));
    assert!(!forks[0].at.is_invalid() && forks[0].at <= identity.wal_end, "{forks:?}");
}

fn messages() -> impl Strategy<Value = Vec<(u8, Vec<u8>)>> {
    vec((any::<u8>(), vec(any::<u8>(), 0..40)), 0..12)
}

fn framed(messages: &[(u8, Vec<u8>)]) -> Vec<u8> {
    let mut run = Vec::new();
    for (tag, body) in messages {
        run.push(*tag);
        run.extend(u32::try_from(body.len() + 4).unwrap().to_be_bytes());
        run.extend(body);
    }
    run
}

proptest! {
    #[test]
    fn whole_messages_are_found_at_every_cut(messages in messages()) {
        let run = framed(&messages);
        let walked: Vec<_> = Messages::new(&run).map(|(tag, body)| (tag, body.to_vec())).collect();
        prop_assert_eq!(&walked, &messages);
        for cut in 0..=run.len() {
            let Prefix { complete, need } = prefix(&run[..cut], LARGEST).unwrap();
            let whole = Messages::new(&run[..complete]).count();
            prop_assert_eq!(framed(&messages[..whole]).len(), complete);
            let next = messages.get(whole).map_or(0, |(_, body)| HEADER + body.len());
            let missing = cut - complete;
            prop_assert!(missing < next.max(1), "a whole message was left");
            prop_assert_eq!(need, match missing {
                0 => 0,
                1..HEADER => HEADER,
                _ => next,
            });
        }
    }

    #[test]
    fn any_bytes_are_walked_or_refused(bytes in vec(any::<u8>(), 0..200), largest in 0..300_u32) {
        if let Ok(Prefix { complete, .. }) = prefix(&bytes, largest) {
            let mut messages = Messages::new(&bytes[..complete]);
            prop_assert!(messages.by_ref().all(|(_, body)| body.len() < 300));
            prop_assert!(messages.rest().is_empty());
        }
        Messages::new(&bytes).count();
        let _ = parse_replication(&bytes);
        let _ = Notice::parse(&bytes);
        let _ = server_end_point(&bytes);
    }

    #[test]
    fn the_collector_takes_anything(
        messages in vec((0..17_usize, any::<u8>(), vec(0..6_u8, 0..30)), 0..30),
    ) {
        let mut collector = Collector::new();
        for (kind, other, body) in messages {
            let tag = b"TDCIsENWZc123ntSA".get(kind).copied().unwrap_or(other);
            if collector.push(tag, &body).is_err() {
                break;
            }
        }
        collector.take_notices();
    }

    #[test]
    fn a_damaged_answer_is_refused_or_still_an_answer(
        at in 0..1_000_usize, byte in any::<u8>(), cut in 0..1_000_usize,
    ) {
        let column = [b"a\0".as_slice(), &[0; 18]].concat();
        let run = framed(&[
            (b'T', [&[0, 2][..], &column, &column].concat()),
            (b'D', b"\0\x02\0\0\0\x02ab\xff\xff\xff\xff".to_vec()),
            (b'N', b"VWARNING\0C01000\0Mx\0\0".to_vec()),
            (b'C', b"SELECT 1\0".to_vec()),
            (b'Z', b"I".to_vec()),
        ]);
        let mut damaged = run.clone();
        let (at, cut) = (at % run.len(), cut % run.len());
        damaged[at] = byte;
        for run in [&damaged[..], &run[..cut], &damaged[..cut]] {
            let mut collector = Collector::new();
            for (tag, body) in Messages::new(run) {
                match collector.push(tag, body) {
                    Ok(Some(QueryEnd::Done(rows))) => {
                        for rows in rows {
                            let width = rows.columns.len();
                            prop_assert!(rows.rows.iter().all(|row| row.len() == width));
                        }
                    }
                    Ok(_) => {}
                    Err(_) => break,
                }
            }
        }
    }
}
