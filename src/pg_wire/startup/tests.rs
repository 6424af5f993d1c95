//! Start-up against recorded bytes of a 15.18, against a SCRAM server made for the purpose and
//! checked by recorded exchanges, and against whatever may come.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use proptest::collection::vec;
use proptest::prelude::*;
use sha2::{Digest, Sha256};

use super::super::frame::Messages;
use super::*;

/// Role, password and answers of the recorded sessions.
const PASSWORD: &str = "pä:ss@%";
const MD5_REQUEST: &[u8] = b"\0\0\0\x05\xa1J*\xd3";
const MD5_ANSWER: &[u8] = b"p\0\0\0(md5c3155f8c6ea816fe9f18e220e8141171\0";
const OFFER: &[u8] = b"\0\0\0\nSCRAM-SHA-256\0\0";
const OFFER_OVER_TLS: &[u8] = b"\0\0\0\nSCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0\0";
const LOGGED_IN: &[u8] = b"R\0\0\0\x08\0\0\0\0S\0\0\0\x1eapplication_name\0tidegate\0\
    S\0\0\0\x19client_encoding\0UTF8\0S\0\0\0\x17DateStyle\0ISO, MDY\0\
    S\0\0\0\x26default_transaction_read_only\0off\0S\0\0\0\x17in_hot_standby\0off\0\
    S\0\0\0\x19integer_datetimes\0on\0S\0\0\0\x1bIntervalStyle\0postgres\0\
    S\0\0\0\x15is_superuser\0off\0S\0\0\0\x19server_encoding\0UTF8\0\
    S\0\0\0\x32server_version\x0015.18 (Debian 15.18-0+deb12u1)\0\
    S\0\0\0\x1fsession_authorization\0md5u\0S\0\0\0#standard_conforming_strings\0on\0\
    S\0\0\0\x11TimeZone\0UTC\0K\0\0\0\x0c\0\0m\xee+\x92\xc4=Z\0\0\0\x05I";
const WRONG_PASSWORD: &[u8] = b"SFATAL\0VFATAL\0C28P01\0M\
    password authentication failed for user \"md5u\"\0Fauth.c\0L334\0Rauth_failed\0\0";
const NOT_LET_IN: &[u8] = b"SFATAL\0VFATAL\0C28000\0Mno pg_hba.conf entry for host \
    \"127.0.0.1\", user \"tlsonly\", database \"postgres\", no encryption\0Fauth.c\0L544\0\
    RClientAuthentication\0\0";
const NO_DATABASE: &[u8] = b"SFATAL\0VFATAL\0C3D000\0Mdatabase \"nodb\" does not exist\0\
    Fpostinit.c\0L948\0RInitPostgres\0\0";
const NO_REPLICATION: &[u8] = b"SFATAL\0VFATAL\0C42501\0M\
    must be superuser or replication role to start walsender\0Fpostinit.c\0L896\0\
    RInitPostgres\0\0";

fn config() -> StartupConfig {
    StartupConfig {
        user: "md5u".to_owned(),
        database: "postgres".to_owned(),
        password: Some(PASSWORD.into()),
        application_name: "tidegate".to_owned(),
        ..StartupConfig::default()
    }
}

fn with(ssl: SslWish, channel_binding: ChannelBinding) -> Startup {
    Startup::new(StartupConfig { ssl, channel_binding, ..config() })
}

/// Past the handshake, with a certificate hash of `end_point`.
fn over_tls(channel_binding: ChannelBinding, end_point: Option<&[u8]>) -> Startup {
    let mut startup = with(SslWish::Require, channel_binding);
    assert_eq!(startup.begin(), Step::Send(b"\0\0\0\x08\x04\xd2\x16\x2f".to_vec()));
    assert_eq!(startup.ssl_answer(b'S', false), Ok(Step::StartTls));
    sent(Ok(startup.tls_ready(end_point.map(<[u8]>::to_vec))));
    startup
}

fn plain(channel_binding: ChannelBinding) -> Startup {
    let mut startup = with(SslWish::Disable, channel_binding);
    sent(Ok(startup.begin()));
    startup
}

fn sent(step: Result<Step, StartupError>) -> Vec<u8> {
    match step {
        Ok(Step::Send(bytes)) => bytes,
        other => panic!("{other:?}"),
    }
}

fn log_in(startup: &mut Startup, run: &[u8]) -> ServerInfo {
    for (tag, body) in Messages::new(run) {
        match startup.message(tag, body) {
            Ok(Step::Continue) => {}
            Ok(Step::Ready(info)) => return info,
            other => panic!("{other:?}"),
        }
    }
    panic!("not ready after all");
}

#[test]
fn md5_answers_as_recorded_and_the_session_opens() {
    let mut startup = plain(ChannelBinding::Prefer);
    assert_eq!(sent(startup.message(b'R', MD5_REQUEST)), MD5_ANSWER);
    let info = log_in(&mut startup, LOGGED_IN);
    assert_eq!((info.version_num, info.backend_pid, info.tls), (150_018, 0x6dee, false));
    assert_eq!((info.parameters.len(), info.is_standby()), (13, Some(false)));
    assert_eq!(info.is_read_only(), Some(false));
    let cancel = b"\0\0\0\x10\x04\xd2\x16\x2e\0\0m\xee+\x92\xc4=";
    assert_eq!(startup.cancel_request().as_deref(), Some(&cancel[..]));
    let late = startup.message(b'Z', b"I");
    assert_eq!(late, Err(StartupError::OutOfTurn("a message")));
}

#[test]
fn the_session_is_pinned_and_marked_for_replication() {
    let mut startup = Startup::new(StartupConfig { replication: true, ..config() });
    let bytes = sent(Ok(startup.begin()));
    assert_eq!(bytes[..8], [0, 0, u8::try_from(bytes.len() >> 8).unwrap(), bytes[3], 0, 3, 0, 0]);
    let text = String::from_utf8(bytes[8..].to_vec()).unwrap();
    for pair in [
        "user\0md5u\0",
        "replication\0database\0",
        "search_path\0\0",
        "idle_session_timeout\x000\0",
    ] {
        assert!(text.contains(pair), "{pair:?} in {text:?}");
    }
    assert!(text.ends_with("timeout\x000\0\0"));
    assert!(
        !String::from_utf8_lossy(&sent(Ok(plain(ChannelBinding::Prefer).begin())))
            .contains("replication")
    );
}

#[test]
fn every_pinned_setting_is_documented() {
    let text = include_str!("../../../docs/postgres-connection.md");
    for (name, _) in PINNED_SETTINGS {
        assert!(text.contains(&format!("`{name}`")), "docs/postgres-connection.md: no `{name}`");
    }
}

#[test]
fn a_nul_cannot_smuggle_a_setting() {
    let user = "a\0options\0-c x=y".to_owned();
    let bytes = sent(Ok(Startup::new(StartupConfig { user, ..config() }).begin()));
    assert!(bytes[8..].starts_with(b"user\0a\0database\0"));
}

#[test]
fn scram_proves_both_sides() {
    let server = ScramServer::new(PASSWORD, 4096);
    let mut startup = plain(ChannelBinding::Prefer);
    let info = server.accept(&mut startup, OFFER, b"n,,", &[]);
    assert!(!info.tls);
}

#[test]
fn scram_plus_is_bound_to_the_certificate() {
    let server = ScramServer::new(PASSWORD, 4096);
    let header = b"p=tls-server-end-point,,";
    for binding in [ChannelBinding::Prefer, ChannelBinding::Require] {
        let mut startup = over_tls(binding, Some(b"hash"));
        assert!(server.accept(&mut startup, OFFER_OVER_TLS, header, b"hash").tls);
    }
    // The server did not offer it: say that we could, so that a removed offer is noticed.
    server.accept(&mut over_tls(ChannelBinding::Prefer, Some(b"hash")), OFFER, b"y,,", &[]);
    for (binding, end_point) in
        [(ChannelBinding::Disable, Some(&b"hash"[..])), (ChannelBinding::Prefer, None)]
    {
        server.accept(&mut over_tls(binding, end_point), OFFER_OVER_TLS, b"n,,", &[]);
    }
}

#[test]
fn required_binding_is_never_given_up() {
    let require = ChannelBinding::Require;
    let unbound = |result: Result<Step, StartupError>| {
        assert!(matches!(result, Err(StartupError::Unbound(_))), "{result:?}");
    };
    unbound(plain(require).message(b'R', OFFER));
    unbound(over_tls(require, Some(b"hash")).message(b'R', OFFER));
    unbound(over_tls(require, None).message(b'R', OFFER_OVER_TLS));
    for request in [MD5_REQUEST, b"\0\0\0\x03", b"\0\0\0\0"] {
        unbound(over_tls(require, Some(b"hash")).message(b'R', request));
    }
    let downgraded = plain(ChannelBinding::Prefer).message(b'R', OFFER_OVER_TLS);
    assert_eq!(downgraded, Err(StartupError::BindingWithoutTls));
}

#[test]
fn a_server_that_proves_nothing_is_refused() {
    let server = ScramServer::new(PASSWORD, 4096);
    for early in 0..2 {
        let mut startup = plain(ChannelBinding::Prefer);
        let first = sent(startup.message(b'R', OFFER));
        if early == 0 {
            server.answer(&mut startup, &first);
        }
        assert_eq!(startup.message(b'R', b"\0\0\0\0"), Err(StartupError::ServerUnproven));
    }
    let mut startup = plain(ChannelBinding::Prefer);
    let first = sent(startup.message(b'R', OFFER));
    server.answer(&mut startup, &first);
    let forged = format!("\0\0\0\x0cv={}", STANDARD.encode([7; 32]));
    let refused = startup.message(b'R', forged.as_bytes()).unwrap_err();
    assert!(refused.to_string().contains("verification"), "{refused}");
    assert!(refused.advice().contains("do not trust"));
}

#[test]
fn too_many_iterations_are_refused_with_what_to_do() {
    let server = ScramServer::new(PASSWORD, 100_001);
    let mut startup = plain(ChannelBinding::Prefer);
    let first = sent(startup.message(b'R', OFFER));
    let refused = startup.message(b'R', &server.challenge(&first).1).unwrap_err();
    assert!(refused.to_string().contains("iteration count exceeds"), "{refused}");
    assert!(refused.advice().contains("scram_iterations"));
    assert!(!refused.is_passing());
}

#[test]
fn a_password_in_clear_needs_tls_or_leave() {
    let request = b"\0\0\0\x03";
    let refused = plain(ChannelBinding::Prefer).message(b'R', request);
    assert_eq!(refused, Err(StartupError::CleartextWithoutTls));
    let password = [b"p\0\0\0\x0d", PASSWORD.as_bytes(), b"\0"].concat();
    let mut over_tls = over_tls(ChannelBinding::Prefer, None);
    assert_eq!(sent(over_tls.message(b'R', request)), password);
    let mut allowed =
        Startup::new(StartupConfig { cleartext_allowed_without_tls: true, ..config() });
    allowed.begin();
    assert_eq!(sent(allowed.message(b'R', request)), password);
}

#[test]
fn what_cannot_be_answered_is_named() {
    for password in [None, Some(Secret::default())] {
        for request in [MD5_REQUEST, OFFER] {
            let mut startup =
                Startup::new(StartupConfig { password: password.clone(), ..config() });
            startup.begin();
            let refused = startup.message(b'R', request).unwrap_err();
            assert!(matches!(refused, StartupError::PasswordMissing { .. }), "{refused}");
        }
    }
    let refused = plain(ChannelBinding::Prefer).message(b'R', b"\0\0\0\x07").unwrap_err();
    assert!(refused.to_string().contains("GSSAPI (code 7)"), "{refused}");
    let oauth = b"\0\0\0\nOAUTHBEARER\0\0";
    let refused = plain(ChannelBinding::Prefer).message(b'R', oauth).unwrap_err();
    assert!(refused.to_string().contains("OAUTHBEARER"), "{refused}");
    let mut startup = plain(ChannelBinding::Prefer);
    sent(startup.message(b'R', MD5_REQUEST));
    let again = startup.message(b'R', MD5_REQUEST);
    assert_eq!(again, Err(StartupError::AuthOutOfTurn { code: 5 }));
}

#[test]
fn refusals_say_what_to_do_and_whether_to_wait() {
    let pooler: &[u8] = b"SFATAL\0C08P01\0Munsupported startup parameter: replication\0\0";
    let starting: &[u8] = b"SFATAL\0VFATAL\0C57P03\0Mthe database system is starting up\0\0";
    let full: &[u8] = b"SFATAL\0VFATAL\0C53300\0Msorry, too many clients already\0\0";
    for (body, advice, passing) in [
        (WRONG_PASSWORD, "check user and password", false),
        (NOT_LET_IN, "pg_hba.conf has a line", false),
        (NO_DATABASE, "create the database", false),
        (NO_REPLICATION, "ALTER ROLE", false),
        (pooler, "a connection pooler is in front", false),
        (starting, "wait: the server is starting", true),
        (full, "raise max_connections", true),
    ] {
        let refused = plain(ChannelBinding::Prefer).message(b'E', body).unwrap_err();
        assert!(refused.advice().contains(advice), "{refused}: {}", refused.advice());
        assert_eq!(refused.is_passing(), passing, "{refused}");
    }
    // An error may also come after the login was accepted.
    let mut startup = plain(ChannelBinding::Prefer);
    assert_eq!(startup.message(b'R', b"\0\0\0\0"), Ok(Step::Continue));
    let refused = startup.message(b'E', NO_DATABASE).unwrap_err();
    assert!(refused.to_string().contains("3D000: database \"nodb\" does not exist"));
}

#[test]
fn require_accepts_nothing_but_tls() {
    let begun = |ssl| {
        let mut startup = with(ssl, ChannelBinding::Prefer);
        startup.begin();
        startup
    };
    let no_tls = begun(SslWish::Require).ssl_answer(b'N', false);
    assert_eq!(no_tls, Err(StartupError::TlsRefused { earlier: None }));
    for ssl in [SslWish::Prefer, SslWish::Require] {
        for byte in [b'S', b'N'] {
            assert_eq!(begun(ssl).ssl_answer(byte, true), Err(StartupError::Injected));
        }
        let in_trouble = begun(ssl).ssl_answer(b'E', true).unwrap_err();
        assert_eq!(
            (in_trouble.is_passing(), in_trouble.clone()),
            (true, StartupError::ErrorInsteadOfTls)
        );
        let other = begun(ssl).ssl_answer(b'H', true);
        assert_eq!(other, Err(StartupError::NotPostgres { seen: b'H' }));
    }
    assert!(begun(SslWish::Require).message(b'R', OFFER).is_err(), "before TLS");
    let failed = begun(SslWish::Require).tls_failed("bad certificate").unwrap_err();
    assert_eq!(failed.to_string(), "TLS failed: bad certificate");
    assert_eq!(with(SslWish::Direct, ChannelBinding::Prefer).begin(), Step::StartTls);
}

#[test]
fn prefer_goes_on_without_tls_where_the_server_has_none() {
    let mut startup = with(SslWish::Prefer, ChannelBinding::Prefer);
    startup.begin();
    let bytes = sent(startup.ssl_answer(b'N', false));
    assert!(bytes[4..].starts_with(b"\0\x03\0\0user\0"));
    sent(startup.message(b'R', MD5_REQUEST));
    assert!(!log_in(&mut startup, LOGGED_IN).tls);
}

#[test]
fn prefer_and_allow_try_the_other_way_once() {
    let mut startup = with(SslWish::Prefer, ChannelBinding::Prefer);
    startup.begin();
    startup.ssl_answer(b'S', false).unwrap();
    startup.tls_ready(None);
    let again = startup.message(b'E', WRONG_PASSWORD);
    assert_eq!(again, Ok(Step::Reconnect { with_tls: false }));
    assert!(sent(Ok(startup.begin()))[4..].starts_with(b"\0\x03\0\0"));
    let refused = startup.message(b'E', NOT_LET_IN).unwrap_err().to_string();
    assert!(refused.contains("28000") && refused.contains("before that, with TLS: FATAL 28P01"));

    let mut startup = with(SslWish::Allow, ChannelBinding::Prefer);
    assert!(sent(Ok(startup.begin()))[4..].starts_with(b"\0\x03\0\0"));
    let again = startup.message(b'E', NOT_LET_IN);
    assert_eq!(again, Ok(Step::Reconnect { with_tls: true }));
    assert!(sent(Ok(startup.begin())).ends_with(&SSL_REQUEST.to_be_bytes()));
    let refused = startup.ssl_answer(b'N', false).unwrap_err().to_string();
    assert!(refused.contains("before that, without TLS: FATAL 28000"), "{refused}");

    let mut startup = with(SslWish::Prefer, ChannelBinding::Prefer);
    startup.begin();
    startup.ssl_answer(b'S', false).unwrap();
    assert_eq!(startup.tls_failed("alert 40"), Ok(Step::Reconnect { with_tls: false }));
    startup.begin();
    let refused = startup.message(b'E', NOT_LET_IN).unwrap_err().to_string();
    assert!(refused.contains("with TLS: TLS failed: alert 40"), "{refused}");
}

#[test]
fn a_server_without_room_is_not_asked_twice() {
    for (ssl, code) in [(SslWish::Allow, "57P03"), (SslWish::Allow, "53300")] {
        let mut startup = with(ssl, ChannelBinding::Prefer);
        startup.begin();
        let body = format!("SFATAL\0VFATAL\0C{code}\0Mno\0\0");
        let refused = startup.message(b'E', body.as_bytes());
        assert!(matches!(refused, Err(StartupError::Refused { .. })), "{refused:?}");
    }
    // Nor after the login: the database is missing with TLS and without.
    let mut startup = with(SslWish::Allow, ChannelBinding::Prefer);
    startup.begin();
    startup.message(b'R', b"\0\0\0\0").unwrap();
    assert!(startup.message(b'E', NO_DATABASE).is_err());
}

#[test]
fn an_older_protocol_is_agreed_on_and_notices_are_kept() {
    let mut startup = plain(ChannelBinding::Prefer);
    let older = b"\0\x03\0\0\0\0\0\x01_pq_.x\0";
    assert_eq!(startup.message(b'v', older), Ok(Step::Continue));
    let notice = b"SWARNING\0VWARNING\0C01000\0Mcollation\0\0";
    assert_eq!(startup.message(b'N', notice), Ok(Step::Continue));
    assert_eq!(startup.take_notices()[0].message, "collation");
    assert!(startup.message(b'v', b"\0\x02\0\0\0\0\0\0").is_err());
}

#[test]
fn secrets_are_not_in_debug_output() {
    let mut startup = plain(ChannelBinding::Prefer);
    let shown = format!("{startup:?} {:?}", startup.message(b'R', MD5_REQUEST));
    assert!(!shown.contains(PASSWORD) && !shown.contains("c3155f"), "{shown}");
    assert!(shown.contains("Send(41 bytes)"), "{shown}");
}

#[test]
fn versions_are_read_from_every_kind_of_server() {
    for (text, number) in [
        ("15.18 (Debian 15.18-0+deb12u1)", 150_018),
        ("18beta1", 180_000),
        ("16rc2", 160_000),
        ("17devel", 170_000),
        ("9.6.24", 90_624),
        ("14.4.1", 140_004),
    ] {
        assert_eq!(version_number(text), Ok(number), "{text}");
    }
    for text in ["", "Debian", "0.1", "1000.1", "99999999999.1"] {
        assert!(version_number(text).is_err(), "{text}");
    }
}

#[test]
fn the_scram_server_of_these_tests_agrees_with_recorded_exchanges() {
    let hash = "7755edfe5bb726dbc80e08fadc6561bb32f2958b67c4fbd1d3f62e5571274847";
    let hash: Vec<u8> =
        (0..32).map(|i| u8::from_str_radix(&hash[2 * i..2 * i + 2], 16).unwrap()).collect();
    let nonce = "fyko+d2lbbFgONRv9qkxdawL";
    let exchanges = [
        (
            &b"n,,"[..],
            &[][..],
            "BpxlIsCw+41B5E7Vnf3OL4Md",
            "biws",
            "yYOWSWPEl/biUPsUC3AfxcDS1Wot0UpyIg7EgcBsyPQ=",
            "0t0kZAseCG3+0NyVH66gkiiJpM2c8Z1rd5O29NxcMJo=",
        ),
        (
            b"p=tls-server-end-point,,",
            &hash,
            "4XYNMsMqkXoBRh5gf2d3t0vE",
            "cD10bHMtc2VydmVyLWVuZC1wb2ludCwsd1Xt/lu3JtvIDgj63GVhuzLylYtnxPvR0/YuVXEnSEc=",
            "M2sFYT2OKn1KdkI3X2t3AO3puADPSSUi99qhkALnG7I=",
            "cCyfaDuYJvHa0ZYDP2hbb5q5usCQXnAxIwRU99D5Eds=",
        ),
    ];
    for (header, data, ours, binding, proof, signature) in exchanges {
        let nonces = format!("{nonce}{ours}");
        let server_first = format!("r={nonces},s=CI1wZhmQhK9EGMghVLbH5g==,i=4096");
        let client_final = format!("c={binding},r={nonces},p={proof}");
        let mut server = ScramServer::new(PASSWORD, 4096);
        server.salt = STANDARD.decode("CI1wZhmQhK9EGMghVLbH5g==").unwrap();
        let bare = format!("n=,r={nonce}");
        let seen = server.verify(&bare, &server_first, &client_final, header, data);
        assert_eq!(seen, format!("v={signature}"));
    }
}

proptest! {
    /// Any sequence of calls, any bytes: an answer or an error, never a panic.
    #[test]
    fn no_sequence_panics(
        ssl in 0..5_usize,
        binding in 0..3_usize,
        steps in vec((0..9_u8, any::<u8>(), vec(any::<u8>(), 0..40), 0..14_usize), 0..12),
    ) {
        let ssl = [SslWish::Disable, SslWish::Allow, SslWish::Prefer, SslWish::Require,
            SslWish::Direct][ssl];
        let binding =
            [ChannelBinding::Disable, ChannelBinding::Prefer, ChannelBinding::Require][binding];
        let mut startup = with(ssl, binding);
        startup.begin();
        let server = ScramServer::new(PASSWORD, 1);
        let mut first: Option<Vec<u8>> = None;
        for (call, byte, bytes, code) in steps {
            let step = match call {
                0 => Ok(startup.begin()),
                1 => startup.ssl_answer([b'S', b'N', b'E', byte][code % 4], byte > 128),
                2 => Ok(startup.tls_ready(Some(bytes))),
                3 => startup.tls_failed("x"),
                4 => {
                    let code = u32::try_from(code).unwrap().to_be_bytes();
                    startup.message(b'R', &[&code[..], &bytes].concat())
                }
                5 => startup.message(b'R', if byte > 128 { OFFER } else { OFFER_OVER_TLS }),
                6 => match first.take() {
                    Some(first) => startup.message(b'R', &server.challenge(&first).1),
                    None => startup.message(byte, &bytes),
                },
                7 => startup.message(b"ESKZNvR"[code % 7], &bytes),
                _ => startup.message(byte, &bytes),
            };
            if let Ok(Step::Send(bytes)) = step && bytes.starts_with(b"p") {
                first = Some(bytes);
            }
        }
    }

    /// A login cut or changed anywhere ends in an error or goes on waiting.
    #[test]
    fn no_damage_to_a_login_panics(at in 0..LOGGED_IN.len(), byte in any::<u8>()) {
        let mut startup = plain(ChannelBinding::Prefer);
        startup.message(b'R', MD5_REQUEST).unwrap();
        let mut run = LOGGED_IN.to_vec();
        run[at] = byte;
        for (tag, body) in Messages::new(&run) {
            if startup.message(tag, body).is_err() {
                break;
            }
        }
    }
}

/// The other side of SCRAM (RFC 5802), by hand.
struct ScramServer {
    password: String,
    salt: Vec<u8>,
    iterations: u32,
}

impl ScramServer {
    fn new(password: &str, iterations: u32) -> ScramServer {
        ScramServer {
            password: password.to_owned(),
            salt: b"0123456789abcdef".to_vec(),
            iterations,
        }
    }

    /// The bare first message of the client, and the challenge that answers it.
    fn challenge(&self, first: &[u8]) -> (String, Vec<u8>) {
        let text = String::from_utf8_lossy(first).into_owned();
        let bare = text.rfind("n=,").map_or("", |at| &text[at..]).to_owned();
        let nonce = bare.split_once(",r=").map_or("", |(_, nonce)| nonce);
        let (salt, count) = (STANDARD.encode(&self.salt), self.iterations);
        let body = format!("r={nonce}3rfcNHYJY1ZVvWVs7j,s={salt},i={count}");
        (bare, [b"\0\0\0\x0b", body.as_bytes()].concat())
    }

    /// Sends the challenge; yields the client's proof and what is needed to check it.
    fn answer(&self, startup: &mut Startup, first: &[u8]) -> (String, String, String) {
        let (bare, challenge) = self.challenge(first);
        let proof = sent(startup.message(b'R', &challenge));
        let proof = String::from_utf8(proof[5..].to_vec()).unwrap();
        (bare, String::from_utf8(challenge[4..].to_vec()).unwrap(), proof)
    }

    /// A whole login in which the client must bind as `header` and `data` say.
    fn accept(
        &self,
        startup: &mut Startup,
        offer: &[u8],
        header: &[u8],
        data: &[u8],
    ) -> ServerInfo {
        let first = sent(startup.message(b'R', offer));
        let mechanism: &[u8] =
            if data.is_empty() { b"SCRAM-SHA-256\0" } else { b"SCRAM-SHA-256-PLUS\0" };
        assert!(first[5..].starts_with(mechanism));
        assert!(first[5 + mechanism.len() + 4..].starts_with(header));
        let (bare, challenge, proof) = self.answer(startup, &first);
        let signature = self.verify(&bare, &challenge, &proof, header, data);
        let outcome = [b"\0\0\0\x0c", signature.as_bytes()].concat();
        assert_eq!(startup.message(b'R', &outcome), Ok(Step::Continue));
        log_in(startup, LOGGED_IN)
    }

    /// Checks the client's proof and binding; yields the server's signature.
    fn verify(
        &self,
        bare: &str,
        challenge: &str,
        proof: &str,
        header: &[u8],
        data: &[u8],
    ) -> String {
        let (without_proof, proof) = proof.rsplit_once(",p=").unwrap();
        let bound = STANDARD.encode([header, data].concat());
        assert!(without_proof.starts_with(&format!("c={bound},r=")), "{without_proof}");
        let salted = self.salted_password();
        let client_key = hmac(&salted, b"Client Key");
        let exchange = format!("{bare},{challenge},{without_proof}");
        let signature = hmac(&Sha256::digest(client_key), exchange.as_bytes());
        let expected: Vec<u8> = client_key.iter().zip(signature).map(|(a, b)| a ^ b).collect();
        assert_eq!(proof, STANDARD.encode(expected), "the client's proof");
        let server_key = hmac(&salted, b"Server Key");
        format!("v={}", STANDARD.encode(hmac(&server_key, exchange.as_bytes())))
    }

    fn salted_password(&self) -> [u8; 32] {
        let password = self.password.as_bytes();
        let mut block = hmac(password, &[&self.salt[..], &[0, 0, 0, 1]].concat());
        let mut salted = block;
        for _ in 1..self.iterations {
            block = hmac(password, &block);
            salted.iter_mut().zip(block).for_each(|(sum, byte)| *sum ^= byte);
        }
        salted
    }
}

fn hmac(key: &[u8], text: &[u8]) -> [u8; 32] {
    let pad = |with: u8| {
        let mut pad = [with; 64];
        pad.iter_mut().zip(key).for_each(|(pad, byte)| *pad ^= byte);
        pad
    };
    let inner = Sha256::new().chain_update(pad(0x36)).chain_update(text).finalize();
    Sha256::new().chain_update(pad(0x5c)).chain_update(inner).finalize().into()
}
