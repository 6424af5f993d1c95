//! Connection strings: what libpq reads is read alike, what is not understood is refused, and
//! nothing secret is shown.

use proptest::prelude::*;

use super::*;

fn plan(connection: &str) -> PostgresPlan {
    PostgresPlan::parse(connection, None).unwrap_or_else(|error| panic!("{connection}: {error}"))
}

fn refused(connection: &str) -> String {
    PostgresPlan::parse(connection, None).unwrap_err().to_string()
}

fn tcp(host: &str, port: u16) -> PostgresHost {
    PostgresHost::Tcp { host: host.to_owned(), port }
}

fn password(plan: &PostgresPlan) -> Option<&str> {
    plan.password.as_ref().map(Secret::expose)
}

#[test]
fn both_syntaxes_say_the_same() {
    let uri = plan(
        "postgresql://tide:p%40ss%3A%C3%A4@db.example:6432/shop?sslmode=verify-full\
         &sslrootcert=/etc/ca.pem&channel_binding=require&connect_timeout=5&application_name=a%20b",
    );
    let pairs = plan(
        " host = db.example port=6432 user=tide password='p@ss:ä' dbname=shop sslmode=verify-full\n\
         sslrootcert=/etc/ca.pem channel_binding=require connect_timeout=5 application_name=a\\ b",
    );
    assert_eq!(uri, pairs);
    assert_eq!(uri.hosts, [tcp("db.example", 6432)]);
    assert_eq!((uri.user.as_str(), uri.database.as_str()), ("tide", "shop"));
    assert_eq!(password(&uri), Some("p@ss:ä"));
    assert_eq!((uri.ssl_mode, uri.channel_binding), (SslMode::VerifyFull, ChannelBinding::Require));
    assert_eq!(uri.root_cert, Some(RootCert::File(PathBuf::from("/etc/ca.pem"))));
    assert_eq!(uri.connect_timeout, Duration::from_secs(5));
    assert_eq!(uri.application_name, "a b");
}

#[test]
fn what_is_left_out_has_its_default() {
    let plan = plan("postgres://tide@db");
    assert_eq!(plan.hosts, [tcp("db", 5432)]);
    assert_eq!((plan.database.as_str(), plan.application_name.as_str()), ("tide", "tidegate"));
    assert_eq!((plan.ssl_mode, plan.direct_tls), (SslMode::VerifyFull, false));
    assert_eq!((plan.channel_binding, plan.target), (ChannelBinding::Prefer, TargetSession::Any));
    assert_eq!((plan.root_cert.clone(), plan.client_cert.clone()), (None, None));
    assert!(plan.keepalives);
    assert_eq!((plan.keepalives_idle, plan.keepalives_interval), (None, None));
    assert_eq!((plan.keepalives_count, plan.tcp_user_timeout), (None, None));
    assert_eq!((password(&plan), plan.password_of(0), plan.password_of(9)), (None, None, None));
}

#[test]
fn a_value_may_look_like_a_scheme() {
    let parsed = plan("host=h user=u password='a://b' dbname=c://d");
    assert_eq!((password(&parsed), parsed.database.as_str()), (Some("a://b"), "c://d"));
    for other in ["mysql://u@h/d", " http://h", "://h"] {
        assert!(refused(other).contains("another scheme"), "{other}");
    }
}

#[test]
fn who_is_elsewhere_has_to_prove_it_unless_the_string_says_otherwise() {
    for (hosts, mode) in [
        ("db", SslMode::VerifyFull),
        ("localhost.example", SslMode::VerifyFull),
        ("10.0.0.1", SslMode::VerifyFull),
        ("localhost,db", SslMode::VerifyFull),
        ("localhost", SslMode::Prefer),
        ("LocalHost,127.0.0.9,::1,::ffff:127.0.0.1,/run/postgresql", SslMode::Prefer),
    ] {
        assert_eq!(plan(&format!("host={hosts} user=u")).ssl_mode, mode, "{hosts}");
        let said = plan(&format!("host={hosts} user=u sslmode=prefer"));
        assert_eq!(said.ssl_mode, SslMode::Prefer, "{hosts}");
    }
}

#[test]
fn several_hosts_addresses_and_sockets() {
    let socket = |directory: &str, port| PostgresHost::Unix { directory: directory.into(), port };
    for (connection, hosts) in [
        ("postgresql://u@a:1,[::1]:2,b/d", vec![tcp("a", 1), tcp("::1", 2), tcp("b", 5432)]),
        ("postgresql://u@[2001:db8::1]/d", vec![tcp("2001:db8::1", 5432)]),
        ("host=a,b port=7 user=u", vec![tcp("a", 7), tcp("b", 7)]),
        ("host=a,::1 port=7,8 user=u", vec![tcp("a", 7), tcp("::1", 8)]),
        ("host=/run/postgresql/ user=u", vec![socket("/run/postgresql/", 5432)]),
        ("postgresql://u@%2Ftmp:7/d", vec![socket("/tmp", 7)]),
        ("postgresql:///d?host=/tmp&port=7&user=u", vec![socket("/tmp", 7)]),
        ("postgresql://u@ignored:9/d?host=/tmp", vec![socket("/tmp", 9)]),
    ] {
        assert_eq!(plan(connection).hosts, hosts, "{connection}");
    }
}

#[test]
fn the_separate_password_wins() {
    let parsed = PostgresPlan::parse("postgresql://u:old@h/d", Some("new")).unwrap();
    assert_eq!(password(&parsed), Some("new"));
    let parsed = PostgresPlan::parse("postgresql://u:old@h/d", Some("")).unwrap();
    assert_eq!(password(&parsed), Some("old"));
    assert!(PostgresPlan::parse("postgresql://u@h/d", Some("a\0b")).is_err());
    assert_eq!(password(&plan("postgresql://u:@h/d")), None);
    assert_eq!(password(&plan("postgresql://u:a?b&c=d@h/d")), Some("a?b&c=d"));
}

#[test]
fn the_rules_between_parameters_hold() {
    let base = "host=h user=u";
    let with = |rest: &str| format!("{base} {rest}");
    assert_eq!(plan(&with("sslrootcert=system")).ssl_mode, SslMode::VerifyFull);
    assert_eq!(plan(&with("sslrootcert=system")).root_cert, Some(RootCert::System));
    let checked = plan(&with("sslmode=require sslrootcert=/ca"));
    assert_eq!(checked.ssl_mode, SslMode::VerifyCa);
    assert_eq!(plan("postgresql://u@h/d?ssl=true").ssl_mode, SslMode::Require);
    let direct = plan(&with("sslmode=require sslnegotiation=direct"));
    assert!(direct.direct_tls);
    let cert = plan(&with("sslcert=/c sslkey=/k")).client_cert.unwrap();
    assert_eq!(cert, (PathBuf::from("/c"), PathBuf::from("/k")));
    assert!(!plan(&with("keepalives=0 keepalives_idle=5")).keepalives);
    let tuned = plan(&with("keepalives_idle=5 keepalives_interval=0 keepalives_count=9"));
    assert_eq!(tuned.keepalives_idle, Some(Duration::from_secs(5)));
    assert_eq!((tuned.keepalives_interval, tuned.keepalives_count), (None, Some(9)));
    let patient = plan(&with("tcp_user_timeout=0"));
    assert_eq!(patient.tcp_user_timeout, Some(Duration::ZERO));
    assert_eq!(plan(&with("target_session_attrs=primary")).target, TargetSession::Primary);
    assert_eq!(plan(&with("fallback_application_name=x")).application_name, "x");
    for (parameters, reason) in [
        ("sslmode=require sslrootcert=system", "a weaker sslmode"),
        ("sslmode=prefer sslnegotiation=direct", "direct without TLS"),
        ("sslmode=disable channel_binding=require", "channel_binding=require without TLS"),
        ("sslcert=/c", "one of sslcert and sslkey"),
        ("sslrootcert=ca.pem", "a relative path in sslrootcert"),
        ("connect_timeout=0", "an unusable value of connect_timeout; expected 1 to 3600"),
        ("keepalives_count=many", "an unusable value of keepalives_count"),
        ("target_session_attrs=prefer-standby", "for a standby; expected one of \"any\""),
        ("sslmode=verify-fulll", "did you mean \"verify-full\"?"),
    ] {
        let text = refused(&with(parameters));
        assert!(text.contains(reason), "{parameters}: {text}");
    }
}

#[test]
fn every_parameter_is_used_fixed_or_refused_with_a_reason() {
    let base = "host=h user=u";
    for good in ["client_encoding=UTF8", "gssencmode=prefer", "sslcompression=0", "sslsni=1"] {
        plan(&format!("{base} {good}"));
    }
    for (bad, reason) in [
        ("client_encoding=LATIN1", "another value of client_encoding"),
        ("gssencmode=require", "another value of gssencmode"),
        ("options='-c x=y'", "the session's settings are fixed"),
        ("hostaddr=10.0.0.1", "write the address as host"),
        ("replication=database", "it is set where it is needed"),
        ("service=x", "write the parameters of the service here"),
        ("sslpassword=hunter2", "store the key without a password"),
        ("ssl=true", "sslmode=verify-full"),
        ("sslmod=require", "unknown parameter \"sslmod\""),
        ("sslmod=require", "did you mean \"sslmode\"?"),
        ("user=v", "user is given twice"),
    ] {
        let text = refused(&format!("{base} {bad}"));
        assert!(text.contains(reason), "{bad}: {text}");
        assert!(!text.contains("hunter2"), "{text}");
    }
}

#[test]
fn every_parameter_is_documented() {
    let text = include_str!("../../../docs/postgres-connection.md");
    for name in parameters::all_names() {
        assert!(text.contains(&format!("`{name}`")), "docs/postgres-connection.md: no `{name}`");
    }
}

#[test]
fn broken_strings_say_how_to_write_it() {
    for (connection, reason) in [
        ("", "no connection"),
        ("mysql://u@h/d", "another scheme"),
        ("host=h", "no user"),
        ("user=u", "no host"),
        ("postgresql://u@/d", "no host"),
        ("host=h, user=u", "an empty host"),
        ("host=a,b port=1,2,3 user=u", "2 hosts and 3 ports"),
        ("host=h port=0 user=u", "a port that is none"),
        ("host=h port=+1 user=u", "a port that is none"),
        ("host=h port=65536 user=u", "a port that is none"),
        ("postgresql://u@h:x/d", "a port that is none"),
        ("postgresql://u@[::1/d", "no IPv6 address"),
        ("postgresql://u@[nothing]/d", "no IPv6 address"),
        ("postgresql://u@::1/d", "put an IPv6 address into brackets"),
        ("postgresql://u:p@ss@h/d", "write a '@' or '/' inside user or password as %40"),
        ("postgresql://u@h/d?sslmode", "a parameter without one '='"),
        ("postgresql://u:%zz@h/d", "password: a '%' without two hexadecimal digits"),
        ("postgresql://u:%e9@h/d", "password: escapes that are not UTF-8"),
        ("postgresql://u:%00@h/d", "a NUL in password"),
        ("host=h user='u", "a quoted value without its end"),
        ("host=h user", "a word without '='"),
        ("host=h user='a\nb'", "control characters in user"),
    ] {
        let text = refused(connection);
        assert!(text.contains(reason), "{connection}: {text}");
    }
    let long = format!("host=/{} user=u", "x".repeat(100));
    assert!(refused(&long).contains("a socket path of"));
}

#[test]
fn no_error_shows_a_value() {
    for connection in [
        "password=my hunter2 host=h user=u",
        "password=my hunter2=x host=h user=u",
        "host=h user=u password='hunter2",
        "postgresql://u:hunter2%zz@h/d",
        "postgresql://u:hun@ter2@h/d",
        "postgresql://u:x@hunter2:hunter2/d",
        "postgresql://u:x@h/d?sslmode=hunter2",
        "postgresql://u:x@h/d?hunter2=1&sslmode=require",
        "hunter2://u:x@h/d",
    ] {
        let text = refused(connection);
        assert!(!text.contains("hunter2") && !text.contains("ter2"), "{connection}: {text}");
    }
}

#[test]
fn the_redacted_form_keeps_who_and_where() {
    let parsed = plan("postgresql://a%40b:hunter2@h:1,[::1]:2/my%2Fdb?sslmode=require");
    assert_eq!(parsed.redacted(), "postgresql://a%40b@h:1,[::1]:2/my%2Fdb");
    assert!(!format!("{parsed:?}").contains("hunter2"));
    let socket = plan("host=/tmp user=u password=hunter2");
    assert_eq!(socket.redacted(), "postgresql://u@/tmp:5432/u");
}

#[test]
fn servers_are_the_same_where_a_host_is() {
    let same = |a: &str, b: &str| plan(a).same_server(&plan(b));
    assert!(same("host=a,DB user=u", "postgresql://v@x,db:5432/d"));
    assert!(same("host=/tmp user=u", "host=/tmp user=v"));
    assert!(!same("host=a user=u", "host=a port=1 user=u"));
    assert!(!same("host=/tmp user=u", "host=tmp user=u"));
}

proptest! {
    /// Whatever text: a plan or an error, and what was read is what was written.
    #[test]
    fn any_text_is_read_or_refused(text in "(postgresql://)?[ -~ä%=&@:/?'\\\\]{0,60}") {
        let _ = PostgresPlan::parse(&text, None);
    }

    #[test]
    fn values_survive_both_syntaxes(
        user in "[ -~äß€]{1,20}",
        secret in "[ -~äß€]{1,20}",
        database in "[ -~äß€]{1,20}",
    ) {
        let (u, p, d) = (every(&user), every(&secret), every(&database));
        let uri = plan(&format!("postgresql://{u}:{p}@h/{d}"));
        let quote = |text: &str| text.replace('\\', "\\\\").replace('\'', "\\'");
        let pairs = plan(&format!(
            "host=h user='{}' password='{}' dbname='{}'",
            quote(&user), quote(&secret), quote(&database),
        ));
        prop_assert_eq!(&uri, &pairs);
        prop_assert_eq!(password(&uri), Some(secret.as_str()));
        prop_assert_eq!((uri.user, uri.database), (user, database));
    }
}

/// Every byte as an escape.
fn every(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}
