//! Logins to real Postgres servers, over io_uring and over epoll: every method, TLS as far as each
//! mode checks it, and refusals that say why.

#![allow(clippy::disallowed_methods, reason = "a test owns its clocks, files and threads")]

mod support;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate::config::postgres::{ChannelBinding, TargetSession};
use tidegate::config::{PostgresHost, RootCert, SslMode};
use tidegate::pg_wire::replication;
use tidegate::pg_wire::startup::StartupError;
use tidegate::shard::driver::pg::link::{PgLink, PgLinkError};
use tidegate::shard::event::{PgConnError, PgEvent, TlsFault};

use support::pg_client::{
    Client, LONG, on_both, plan, plan_to, plan_to_socket, resolver, shared_server, with,
};
use support::{Authority, Postgres};

const SECRET: &str = "pa:ss@w%rd";

// ---------------------------------------------------------------- logins

#[test]
fn every_method_logs_in_and_a_refusal_says_why() {
    let pg = Postgres::start();
    pg.sql(&format!(
        "SET password_encryption = 'md5'; CREATE ROLE by_md5 LOGIN PASSWORD '{SECRET}';
         SET password_encryption = 'scram-sha-256';
         CREATE ROLE by_scram LOGIN REPLICATION PASSWORD '{SECRET}';
         CREATE ROLE by_text LOGIN PASSWORD '{SECRET}'; CREATE ROLE by_trust LOGIN"
    ));
    pg.set_hba(&[
        "host all by_md5 127.0.0.1/32 md5",
        "host all by_scram 127.0.0.1/32 scram-sha-256",
        "host all by_text 127.0.0.1/32 password",
        "host all by_trust 127.0.0.1/32 trust",
    ]);
    let as_role = |role: &str, password: Option<&str>| {
        with(plan(&pg), |plan| {
            plan.user = role.into();
            plan.password = password.map(|text| text.to_owned().into());
        })
    };
    on_both(async || {
        for (role, password) in
            [("by_md5", Some(SECRET)), ("by_scram", Some(SECRET)), ("by_trust", None)]
        {
            let client = Client::open(as_role(role, password), false);
            let info = client.expect_up().await;
            assert_eq!(info.version_num / 10_000, pg.major());
            assert!(!info.tls && info.backend_pid > 0);
            assert_eq!(client.value("SELECT current_user").await, role);
            client.close().await;
        }
        let refusal = async |role: &str, password: Option<&str>| {
            let cause = Client::open(as_role(role, password), false).down().await;
            assert!(!cause.to_string().contains(SECRET), "{cause}");
            assert!(cause.is_final(), "{cause}");
            cause
        };
        for role in ["by_md5", "by_scram"] {
            let cause = refusal(role, Some("wrong")).await;
            assert_eq!(cause.server().expect("the server's words").code, "28P01", "{cause}");
            let cause = refusal(role, None).await;
            let PgConnError::Login { error, .. } = cause else { panic!("{cause}") };
            assert!(matches!(error, StartupError::PasswordMissing { .. }), "{error}");
        }
        let cause = refusal("by_text", Some(SECRET)).await;
        let PgConnError::Login { error, .. } = cause else { panic!("{cause}") };
        assert_eq!(error, StartupError::CleartextWithoutTls);
        let cause = refusal("nobody_at_all", None).await;
        assert_eq!(cause.server().expect("the server's words").code, "28000", "{cause}");
    });
}

#[test]
fn unix_sockets_and_further_hosts_are_tried_in_order() {
    let pg = shared_server();
    let nobody = TcpListener::bind("127.0.0.1:0").expect("a port");
    let closed = nobody.local_addr().expect("bound").port();
    drop(nobody);
    on_both(async || {
        let client = Client::up(plan_to_socket(pg), false).await;
        assert_eq!(client.value("SELECT inet_client_addr() IS NULL").await, "t");
        client.close().await;
        let hosts = vec![
            PostgresHost::Tcp { host: "127.0.0.1".into(), port: closed },
            PostgresHost::Unix { directory: "/nonexistent".into(), port: 5432 },
            PostgresHost::Tcp { host: "no-such-host.invalid".into(), port: 5432 },
            PostgresHost::Tcp { host: "localhost".into(), port: pg.port() },
        ];
        let client = Client::up(with(plan(pg), |plan| plan.hosts = hosts), true).await;
        let answer = client.ask(replication::identify_system()).await.expect("an answer");
        assert_eq!(answer[0].columns[0], "systemid");
        client.close().await;
        let cause = Client::open(plan_to("127.0.0.1", closed), false).down().await;
        assert!(matches!(cause, PgConnError::Dial { .. }) && !cause.is_final(), "{cause}");
        let cause = Client::open(plan_to("no-such-host.invalid", 1), false).down().await;
        assert!(matches!(cause, PgConnError::Resolve { .. }), "{cause}");
        let database = with(plan(pg), |plan| plan.database = "absent".into());
        let cause = Client::open(database, false).down().await;
        assert_eq!(cause.server().expect("the server's words").code, "3D000");
        assert!(cause.is_final());
    });
}

#[test]
fn a_server_of_the_wrong_kind_is_passed_over() {
    let (pg, read_only) = (shared_server(), Postgres::start());
    read_only.set("default_transaction_read_only", "on");
    let port = |pg: &Postgres| PostgresHost::Tcp { host: "127.0.0.1".into(), port: pg.port() };
    let wanted = |hosts: Vec<PostgresHost>| {
        with(plan(pg), |plan| {
            plan.hosts = hosts;
            plan.target = TargetSession::ReadWrite;
        })
    };
    on_both(async || {
        let client = Client::up(wanted(vec![port(&read_only), port(pg)]), false).await;
        assert_eq!(client.value("SHOW port").await, pg.port().to_string());
        client.close().await;
        let cause = Client::open(wanted(vec![port(&read_only)]), false).down().await;
        assert!(matches!(cause, PgConnError::Unsuitable { .. }) && !cause.is_final(), "{cause}");
    });
}

#[test]
fn statements_are_answered_in_order_and_errors_leave_the_connection_up() {
    on_both(async || {
        let client = Client::up(plan(shared_server()), false).await;
        client.conn.query("SELECT 1; SELECT 'two'");
        client.conn.query("SELECT nonsense");
        client.conn.query("DO $$ BEGIN RAISE NOTICE 'by the way'; END $$");
        let PgEvent::Answer(Ok(first)) = client.next().await else { panic!("no answer") };
        assert_eq!(first.len(), 2);
        assert_eq!(first[1].rows, [[Some("two".to_owned())]]);
        let PgEvent::Answer(Err(error)) = client.next().await else { panic!("no error") };
        assert_eq!(error.code, "42703");
        let PgEvent::Notice(notice) = client.next().await else { panic!("no notice") };
        assert_eq!(notice.message, "by the way");
        assert!(matches!(client.next().await, PgEvent::Answer(Ok(_))));
        client.close().await;
    });
}

#[test]
fn a_link_asks_and_answers_and_ends_a_question_that_takes_too_long() {
    on_both(async || {
        let plan = Arc::new(plan(shared_server()));
        let mut link = PgLink::connect(plan, false, resolver()).await.expect("a link");
        assert_eq!(link.server().parameters["TimeZone"], "UTC");
        let rows = link.query("SELECT 1 + 1").await.expect("an answer");
        assert_eq!(rows[0].rows, [[Some("2".to_owned())]]);
        let refused = link.query("SELECT nonsense").await.unwrap_err();
        assert!(matches!(refused, PgLinkError::Server(_)), "{refused}");
        let begun = Instant::now();
        let limit = Duration::from_millis(200);
        let late = link.query_within("SELECT pg_sleep(20)", limit).await.unwrap_err();
        assert_eq!(late, PgLinkError::TimedOut(limit));
        assert!(begun.elapsed() < Duration::from_secs(5));
        let after = link.query("SELECT 1").await.unwrap_err();
        assert_eq!(after, PgLinkError::Conn(PgConnError::Closed));
        link.close().await;
    });
}

#[test]
fn a_server_that_says_nothing_is_given_up_in_time() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    on_both(async || {
        let patience = Duration::from_millis(300);
        let plan = with(plan_to("127.0.0.1", port), |plan| plan.connect_timeout = patience);
        let begun = Instant::now();
        let cause = Client::open(plan, false).down().await;
        assert!(matches!(cause, PgConnError::Dial { .. }), "{cause}");
        assert!((patience..LONG).contains(&begun.elapsed()));
    });
}

#[test]
fn closing_while_the_login_goes_on_is_prompt() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    on_both(async || {
        let client = Client::open(plan_to("127.0.0.1", port), false);
        monoio::time::sleep(Duration::from_millis(50)).await;
        let begun = Instant::now();
        client.close().await;
        assert!(begun.elapsed() < Duration::from_secs(1));
    });
}

// ---------------------------------------------------------------- TLS

#[test]
fn tls_is_checked_as_far_as_the_mode_says_on_every_connection() {
    let pg = Postgres::start();
    let tls = pg.enable_tls(&["localhost"]);
    let other = Authority::new("Another authority");
    let wrong_ca = pg.write_file("other.crt", &other.certificate_pem());
    pg.sql(&format!("CREATE ROLE app LOGIN REPLICATION SUPERUSER PASSWORD '{SECRET}'"));
    pg.set_hba(&["hostssl all app 127.0.0.1/32 scram-sha-256"]);
    let to = |host: &str, mode: SslMode, root: Option<&Path>| {
        with(plan_to(host, pg.port()), |plan| {
            plan.user = "app".into();
            plan.password = Some(SECRET.to_owned().into());
            plan.ssl_mode = mode;
            plan.root_cert = root.map(|path| RootCert::File(path.to_owned()));
            plan.channel_binding = ChannelBinding::Require;
        })
    };
    let right = Some(tls.ca_file.as_path());
    let wrong = Some(wrong_ca.as_path());
    on_both(async || {
        for (host, mode, root) in [
            ("localhost", SslMode::VerifyFull, right),
            ("127.0.0.1", SslMode::VerifyCa, right),
            ("127.0.0.1", SslMode::Require, right),
            ("127.0.0.1", SslMode::Require, None),
            ("127.0.0.1", SslMode::Prefer, None),
        ] {
            for replication in [false, true] {
                let client = Client::up(to(host, mode, root), replication).await;
                let sql = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
                assert_eq!(client.value(sql).await, "t", "{mode:?}");
                client.close().await;
            }
        }
        let fault = async |host: &str, mode: SslMode, root| {
            let cause = Client::open(to(host, mode, root), true).down().await;
            assert!(cause.is_final(), "{cause}");
            match cause {
                PgConnError::Tls { fault, .. } => fault,
                other => panic!("not about TLS: {other}"),
            }
        };
        for mode in [SslMode::Require, SslMode::VerifyCa, SslMode::VerifyFull] {
            assert_eq!(fault("localhost", mode, wrong).await, TlsFault::WrongAuthority);
        }
        assert_eq!(fault("127.0.0.1", SslMode::VerifyFull, right).await, TlsFault::WrongName);
        let absent = Some(Path::new("/nonexistent/root.crt"));
        assert_eq!(fault("localhost", SslMode::VerifyFull, absent).await, TlsFault::Setup);
        // Without TLS the server lets nobody in; `allow` then goes the other way.
        let cause = Client::open(to("localhost", SslMode::Disable, None), false).down().await;
        assert_eq!(cause.server().expect("the server's words").code, "28000");
        Client::up(to("localhost", SslMode::Allow, None), false).await.close().await;
    });
}

#[test]
fn a_server_without_tls_is_refused_or_not_as_the_mode_says() {
    let pg = shared_server();
    on_both(async || {
        for mode in [SslMode::Require, SslMode::VerifyFull] {
            let cause =
                Client::open(with(plan(pg), |plan| plan.ssl_mode = mode), false).down().await;
            let PgConnError::Tls { fault, .. } = cause else { panic!("{cause}") };
            assert_eq!(fault, TlsFault::NotOffered);
        }
        for mode in [SslMode::Prefer, SslMode::Allow] {
            let client = Client::open(with(plan(pg), |plan| plan.ssl_mode = mode), false);
            assert!(!client.expect_up().await.tls);
            client.close().await;
        }
    });
}

#[test]
fn a_binding_follows_the_hash_of_the_certificate_and_client_certificates_log_in() {
    let pg = Postgres::start();
    let tls = pg.enable_tls_with(Authority::with_sha384("Authority 384"), &["localhost"]);
    let leaf = tls.authority.issue_client("by_cert");
    let certificate = pg.write_file("client.crt", &leaf.certificate_pem);
    let key = pg.write_file("client.key", &leaf.key_pem);
    pg.sql(&format!("CREATE ROLE bound LOGIN PASSWORD '{SECRET}'; CREATE ROLE by_cert LOGIN"));
    pg.set_hba(&[
        "hostssl all bound 127.0.0.1/32 scram-sha-256",
        "hostssl all by_cert 127.0.0.1/32 cert",
    ]);
    let base = |role: &str| {
        with(plan_to("localhost", pg.port()), |plan| {
            plan.user = role.into();
            plan.ssl_mode = SslMode::VerifyFull;
            plan.root_cert = Some(RootCert::File(tls.ca_file.clone()));
        })
    };
    on_both(async || {
        let bound = with(base("bound"), |plan| {
            plan.password = Some(SECRET.to_owned().into());
            plan.channel_binding = ChannelBinding::Require;
        });
        Client::up(bound, false).await.close().await;
        let with_key = with(base("by_cert"), |plan| {
            plan.client_cert = Some((certificate.clone(), key.clone()));
        });
        let client = Client::up(with_key, false).await;
        assert_eq!(client.value("SELECT current_user").await, "by_cert");
        client.close().await;
        let cause = Client::open(base("by_cert"), false).down().await;
        assert!(cause.is_final(), "{cause}");
    });
}

#[test]
fn a_certificate_as_the_manual_makes_it_is_trusted_when_it_is_its_own_root() {
    let pg = Postgres::start();
    let (certificate, key) = Authority::self_signed("localhost");
    pg.enable_tls_as(&certificate, &key);
    let root = pg.write_file("root.crt", &certificate);
    let to = |host: &str| {
        with(plan_to(host, pg.port()), |plan| {
            plan.ssl_mode = SslMode::VerifyFull;
            plan.root_cert = Some(RootCert::File(root.clone()));
        })
    };
    on_both(async || {
        let client = Client::open(to("localhost"), false);
        assert!(client.expect_up().await.tls);
        client.close().await;
        let cause = Client::open(to("127.0.0.1"), false).down().await;
        let PgConnError::Tls { fault, .. } = cause else { panic!("{cause}") };
        assert_eq!(fault, TlsFault::WrongName);
    });
}

#[test]
fn bytes_that_come_with_the_answer_about_tls_end_the_attempt() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let server = std::thread::spawn(move || {
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().expect("a connection");
            let mut request = [0; 8];
            stream.read_exact(&mut request).expect("a request for TLS");
            stream.write_all(b"SE\0\0\0\x05\0").expect("written");
            // Held open until the client has gone.
            let _ = stream.read(&mut request);
        }
    });
    on_both(async || {
        let plan = with(plan_to("127.0.0.1", port), |plan| plan.ssl_mode = SslMode::Require);
        let cause = Client::open(plan, false).down().await;
        let PgConnError::Login { error, .. } = &cause else { panic!("{cause}") };
        assert_eq!(*error, StartupError::Injected);
    });
    server.join().expect("no panic");
}

#[test]
fn version_18_speaks_tls_without_a_question() {
    let Some(pg) = Postgres::start_second(&[]) else { return };
    let tls = pg.enable_tls(&["localhost"]);
    on_both(async || {
        let plan = with(plan_to("localhost", pg.port()), |plan| {
            plan.ssl_mode = SslMode::VerifyFull;
            plan.root_cert = Some(RootCert::File(tls.ca_file.clone()));
            plan.direct_tls = true;
        });
        let client = Client::open(plan, true);
        let info = client.expect_up().await;
        assert!(info.tls && info.version_num >= 180_000);
        client.close().await;
    });
}
