//! Which destinations are admitted, and what becomes of rows that are not.

use std::time::Duration;

use super::stage::{Stage, limit};
use super::support::{Daemon, eventually, soak, throughout};
use super::switches::row_ids;

const EVENTS: &str = "create table events (id bigint primary key, kind text)";
const PLAIN: &str = "tables = [\"public.events\"]\nstream = \"$stream\"\ntopic = \"all\"";

/// A source that routes by `kind`, with these lines in its admission.
fn source(key: &str, admission: &str) -> String {
    format!(
        "tables = [\"public.events\"]\n[sources.{key}.routing]\ntopic_column = \"kind\"\n\
         default_topic = \"unknown\"\ndefault_stream = \"$stream\"\n\
         [sources.{key}.routing.admission]\n{admission}\n"
    )
}

#[track_caller]
fn arrived(stage: &Stage, daemon: &mut Daemon, key: &str, topic: &str, ids: &[i64]) {
    let got = eventually(limit(), &format!("{ids:?} in {topic} of {key}"), || {
        daemon.assert_running();
        let got = row_ids(&stage.got_of(key, topic));
        (got.len() >= ids.len()).then_some(got)
    });
    assert_eq!(got, ids, "{topic} of {key}");
}

/// What becomes of rows that are not admitted.
const DROP: &str = "on_admission_failure = \"drop\"\n";
const LETTERS: &str = "on_admission_failure = \"dead_letter\"\n\
                       dead_letter = { stream = \"$stream\", topic = \"dead\" }\n";

#[test]
fn a_full_table_of_destinations_holds_in_every_mode_unless_the_operator_wrote_otherwise() {
    let mut stage = Stage::new(EVENTS, PLAIN);
    let modes = [
        ("open", ""),
        ("allow", "mode = \"allowlist\"\nallowlist = [{ stream = \"$stream\", topic = \"*\" }]\n"),
        ("deny", "mode = \"denylist\"\ndenylist = [{ stream = \"x\", topic = \"*\" }]\n"),
    ];
    for (mode, lines) in modes {
        // The default destination and the dead letters' take a place each.
        for (policy, more, most) in [("hold", "", 2), ("drop", DROP, 2), ("letters", LETTERS, 3)] {
            let key = format!("{mode}-{policy}");
            let admission = format!("{lines}{more}max_destinations = {most}");
            stage.add_source(&key, &source(&key, &admission));
        }
    }
    let mut daemon = stage.all_streaming(10);
    let before = stage.insert_lsn();
    stage.pg.sql("insert into events values (1, 'a'); insert into events values (2, 'b')");
    stage.pg.sql("insert into events values (3, 'a'), (4, 'b'), (5, 'c'), (6, null), (7, 'a')");
    for (mode, _) in modes {
        for policy in ["hold", "drop", "letters"] {
            let key = format!("{mode}-{policy}");
            arrived(&stage, &mut daemon, &key, "a", &[1, 3, 7]);
            arrived(&stage, &mut daemon, &key, "unknown", &[6]);
            for refused in ["b", "c"] {
                assert_eq!(stage.got_of(&key, refused), [], "{key}");
            }
        }
        let (hold, drop) = (format!("{mode}-hold"), format!("{mode}-drop"));
        let letters = format!("{mode}-letters");
        arrived(&stage, &mut daemon, &letters, "dead", &[2, 4, 5]);
        for (letter, meant) in stage.got_of(&letters, "dead").iter().zip(["b", "b", "c"]) {
            assert_eq!(letter.text("tidegate_reason"), "cap");
            assert_eq!(letter.text("tidegate_topic"), meant);
            assert_eq!(letter.text("tidegate_stream"), stage.stream_of(&letters));
            assert_eq!(letter.text("table"), "public.events");
        }
        for key in [&drop, &letters] {
            stage.wait_confirmed_of(&mut daemon, key);
            stage.running(&mut daemon, key);
        }
        for key in [&hold, &drop, &letters] {
            stage.rejected(&mut daemon, key, "cap", 3);
        }
        stage.degraded(&mut daemon, &hold, &["destination_refused", "cap", "/b"]);
        assert!(stage.confirmed_of(&hold) < stage.insert_lsn(), "{hold}");
    }
    // What is held is not confirmed, however much log is written.
    stage.pg.sql("select pg_switch_wal()");
    let waits = |key: &str| stage.confirmed_of(key) <= stage_after_first(&stage, before);
    throughout(Duration::from_millis(500), "the slots wait", || {
        ["open-hold", "allow-hold", "deny-hold"].into_iter().all(waits)
    });
    daemon.stop();
}

/// Row 1 was committed behind `before` and may be confirmed; row 2 is held.
fn stage_after_first(stage: &Stage, before: u64) -> u64 {
    let second = stage.got_of("open-letters", "dead");
    let lsn = second.iter().find(|letter| letter.payload["data"]["id"] == 2).expect("row 2");
    let commit = lsn.text("lsn").parse::<tidegate::pg_wire::Lsn>().expect("an LSN").0;
    assert!(before < commit);
    commit
}

#[test]
fn lists_drop_or_hold_or_redirect_what_they_refuse_and_the_rest_goes() {
    let mut stage = Stage::new(EVENTS, PLAIN);
    let lists = [
        (
            "allow",
            "unknown",
            "mode = \"allowlist\"\nallowlist = [{ stream = \"$stream\", topic = \"good\" }, \
             { stream = \"$stream\", topic = \"unknown\" }]\n",
        ),
        (
            "deny",
            "denylist",
            "mode = \"denylist\"\ndenylist = [{ stream = \"$stream\", topic = \"bad\" }]\n",
        ),
    ];
    for (list, _, lines) in lists {
        for (policy, more) in
            [("usual", ""), ("error", "on_admission_failure = \"error\"\n"), ("drop", DROP)]
        {
            let key = format!("{list}-{policy}");
            stage.add_source(&key, &source(&key, &format!("{lines}{more}")));
        }
        let key = format!("{list}-letters");
        stage.add_source(&key, &source(&key, &format!("{lines}{LETTERS}")));
    }
    let mut daemon = stage.all_streaming(9);
    stage.pg.sql("insert into events values (1, 'good'), (2, 'bad'), (3, 'good'), (4, null)");
    stage.pg.sql("insert into events values (5, 'bad')");
    stage.pg.sql("insert into events values (6, 'good')");
    for (list, reason, _) in lists {
        for policy in ["usual", "error", "drop", "letters"] {
            let key = format!("{list}-{policy}");
            arrived(&stage, &mut daemon, &key, "good", &[1, 3, 6]);
            arrived(&stage, &mut daemon, &key, "unknown", &[4]);
            assert_eq!(stage.got_of(&key, "bad"), [], "{key}");
            match policy {
                "drop" | "letters" => {
                    stage.wait_confirmed_of(&mut daemon, &key);
                    stage.running(&mut daemon, &key);
                    stage.rejected(&mut daemon, &key, reason, 2);
                }
                _ => {
                    stage.degraded(&mut daemon, &key, &["destination_refused", reason, "/bad"]);
                }
            }
        }
        let letters = format!("{list}-letters");
        arrived(&stage, &mut daemon, &letters, "dead", &[2, 5]);
        for letter in stage.got_of(&letters, "dead") {
            assert_eq!(letter.text("tidegate_reason"), reason);
            assert_eq!(letter.text("tidegate_topic"), "bad");
        }
    }
    // The operator admits it: what was held is the first to go.
    let refused = "{ stream = \"$stream\", topic = \"bad\" }";
    daemon.stop();
    let key = "allow-error";
    let refused = refused.replace("$stream", &stage.stream_of(key));
    let own = format!("[sources.{key}]");
    let at = stage.source.find(&own).expect("the source");
    let (head, tail) = stage.source.split_at(at);
    let listed = tail.replacen("allowlist = [", &format!("allowlist = [{refused}, "), 1);
    stage.source = format!("{head}{listed}");
    let mut daemon = stage.all_streaming(9);
    arrived(&stage, &mut daemon, key, "bad", &[2, 5]);
    stage.wait_confirmed_of(&mut daemon, key);
    stage.running(&mut daemon, key);
    daemon.stop();
}

#[test]
fn a_message_that_fits_no_frame_is_refused_before_it_is_sent() {
    let text = "create table events (id bigint primary key, kind text, body text)";
    let mut stage = Stage::new(text, PLAIN);
    let bound = "tables = [\"public.events\"]\nstream = \"$stream\"\ntopic = \"events\"\n";
    // A debug build takes its time over each of them.
    let policies = [("letters", LETTERS), ("drop", DROP), ("hold", "")];
    let policies = if soak() { &policies[..] } else { &policies[..1] };
    for (key, policy) in policies {
        let admission = format!("[sources.{key}.routing.admission]\n{policy}");
        stage.add_source(key, &format!("{bound}{admission}"));
    }
    // The stage's own source captures another table.
    stage.pg.sql("create table other (id bigint primary key)");
    stage.source = stage.source.replacen("public.events", "public.other", 1);
    let mut daemon = stage.all_streaming(1 + policies.len());
    // Each of these characters is six in JSON.
    stage.pg.sql(
        "insert into events values (1, '', ''), (2, '', repeat(E'\\x01', 11500000)), (3, '', '')",
    );
    for (key, policy) in policies {
        if policy.is_empty() {
            arrived(&stage, &mut daemon, key, "events", &[1]);
            stage.degraded(&mut daemon, key, &["destination_refused", "too_large", "/events"]);
            let ids = row_ids(&stage.got_of(key, "events"));
            assert_eq!(ids, [1], "what follows waits behind it");
        } else {
            arrived(&stage, &mut daemon, key, "events", &[1, 3]);
            stage.wait_confirmed_of(&mut daemon, key);
        }
    }
    let letters = stage.got_of("letters", "dead");
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].text("tidegate_reason"), "too_large");
    assert_eq!(letters[0].text("tidegate_topic"), "events");
    assert_eq!((letters[0].raw.as_slice(), letters[0].text("op")), (b"null".as_slice(), "I"));
    daemon.stop();
}
