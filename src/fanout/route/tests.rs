//! Routing of single rows.

use super::*;
use crate::fanout::fixture::{Row, plan, routed, row};
use crate::fanout::partition::{NOWHERE, hash};

const COLUMNS: [(&str, bool); 4] =
    [("id", true), ("topic", false), ("stream", false), ("user", false)];

struct World {
    table: Destinations,
    router: Router,
    bound: BoundRoute,
}

impl World {
    fn new(plan: &Arc<CapturePlan>) -> World {
        World::of(plan, "events")
    }

    fn of(plan: &Arc<CapturePlan>, name: &str) -> World {
        let routing = &plan.routing;
        let mut table = Destinations::new(routing.admission.max_destinations, routing.breaker);
        let mut router = Router::new(plan.clone(), &mut table);
        let bound = router.bind(&mut table, "public", name, &COLUMNS).unwrap();
        World { table, router, bound }
    }

    fn send(&mut self, row: &Row<'_>) -> Routed {
        self.router.route(&mut self.table, &self.bound, row)
    }

    fn place(&mut self, topic: Option<&str>, stream: Option<&str>) -> Routed {
        self.send(&row(&[Some("1"), topic, stream, None]))
    }

    fn name(&self, routed: Routed) -> String {
        match routed {
            Routed::Destination(dest, _) | Routed::Held(dest, _, _) => {
                self.table.at(dest).topic.to_string()
            }
            other => format!("{other:?}"),
        }
    }

    fn rejected(&self, reason: Reason) -> u64 {
        self.router.counters().rejected[reason.index()]
    }
}

fn ready(world: &mut World, dest: DestId, partitions: u32) {
    let facts = crate::fanout::ensure::TopicFacts { partitions, created_at: 1, not_durable: None };
    world.table.at_mut(dest).facts = Some(facts);
}

#[test]
fn columns_name_the_destination_and_null_means_the_default_of_that_part() {
    let mut world = World::new(&routed(""));
    for (topic, stream, expected) in [
        (Some("login"), Some("identity"), "identity/login"),
        (None, Some("identity"), "identity/unknown"),
        (Some("login"), None, "default/login"),
        (None, None, "default/unknown"),
        (Some("7"), Some("0"), "0/7"),
        (Some("Login"), Some("identity"), "identity/Login"),
        (Some("a/b"), Some("ünï"), "ünï/a/b"),
    ] {
        let routed = world.place(topic, stream);
        assert!(matches!(routed, Routed::Destination(_, KeyChoice::Later(Wish::Balanced))));
        assert_eq!(world.name(routed), expected);
    }
    let counters = *world.router.counters();
    assert_eq!((counters.unmatched_default, counters.rejected), (3, [0; 7]));
    assert_eq!(world.table.live(), 7, "case variants are not merged");
}

#[test]
fn a_column_that_a_table_never_had_means_the_default() {
    let plan = routed("");
    let mut world = World::new(&plan);
    world.bound = world.router.bind(&mut world.table, "public", "plain", &[("id", true)]).unwrap();
    let routed = world.send(&row(&[Some("1")]));
    assert_eq!(world.name(routed), "default/unknown");
}

#[test]
fn a_routing_column_that_disappears_is_named() {
    let plan = routed("partition_key_column = \"user\"");
    let mut world = World::new(&plan);
    for (gone, key) in
        [("topic", "topic_column"), ("stream", "stream_column"), ("user", "partition_key_column")]
    {
        let left: Vec<_> = COLUMNS.into_iter().filter(|(name, _)| *name != gone).collect();
        let error = world.router.bind(&mut world.table, "public", "events", &left).unwrap_err();
        assert_eq!((error.column.as_str(), error.key), (gone, key));
        assert!(error.to_string().contains("public.events has no column"), "{error}");
    }
    let moved = [("stream", false), ("user", false), ("topic", false)];
    world.bound = world.router.bind(&mut world.table, "public", "events", &moved).unwrap();
    let routed = world.send(&row(&[Some("s"), None, Some("t")]));
    assert_eq!(world.name(routed), "s/t", "positions follow the new version");
}

#[test]
fn a_table_of_its_own_wins_over_the_columns() {
    let plan = routed(
        "[sources.shop.routing.by_table]\n\
         events = { stream = \"commerce\", topic = \"orders\" }",
    );
    let mut world = World::new(&plan);
    let routed = world.place(Some("login"), Some("identity"));
    assert_eq!(world.name(routed), "commerce/orders");
    let without = [("id", true)];
    world.router.bind(&mut world.table, "public", "events", &without).unwrap();
    let mut other = World::of(&plan, "Events");
    let routed = other.place(Some("login"), Some("identity"));
    assert_eq!(other.name(routed), "identity/login", "names are exact");
    let schema = other.router.bind(&mut other.table, "shop", "events", &COLUMNS).unwrap();
    other.bound = schema;
    let routed = other.place(None, None);
    assert_eq!(other.name(routed), "default/unknown");
}

#[test]
fn routing_columns_are_stripped_and_the_key_is_not() {
    let plan = routed("strip_routing_columns = true\npartition_key_column = \"user\"");
    let world = World::new(&plan);
    assert_eq!(world.bound.stripped(), [1, 2]);
    assert_eq!(world.bound.reads().collect::<Vec<_>>(), [2, 1, 3]);
    assert!(World::new(&routed("")).bound.stripped().is_empty());
}

#[test]
fn names_that_iggy_has_not_are_held_in_order_by_default() {
    let mut world = World::new(&routed(""));
    let long = "x".repeat(300);
    let mut held = Vec::new();
    for topic in ["", "  ", "a\u{7}b", long.as_str()] {
        match world.place(Some(topic), None) {
            Routed::Held(dest, _, Reason::InvalidName) => held.push(dest),
            other => panic!("{topic:?}: {other:?}"),
        }
    }
    let broken = Row(vec![None, Some(b"\xff\xfe"), None, None]);
    assert!(matches!(world.send(&broken), Routed::Held(_, _, Reason::InvalidName)));
    assert_eq!(world.rejected(Reason::InvalidName), 5);
    let again = world.place(Some(""), None);
    assert!(matches!(again, Routed::Held(dest, ..) if dest == held[0]), "one queue for one name");
    assert_eq!(world.table.live(), 1, "the default alone is live");
}

#[test]
fn lists_hold_drop_or_redirect_as_written() {
    let list = "[sources.shop.routing.admission]\nmode = \"allowlist\"\n\
                allowlist = [{ stream = \"default\", topic = \"*\" }]\n";
    let mut world = World::new(&routed(list));
    assert!(matches!(world.place(Some("t"), Some("s")), Routed::Held(_, _, Reason::Unknown)));
    assert!(matches!(world.place(Some("t"), None), Routed::Destination(..)));
    let mut world = World::new(&routed(&format!("{list}on_admission_failure = \"drop\"")));
    let dropped = Routed::Dropped(Some(Reason::Unknown));
    assert_eq!(world.place(Some("t"), Some("s")), dropped);
    assert_eq!(world.place(Some("t"), Some("s")), dropped);
    assert_eq!(world.rejected(Reason::Unknown), 2);
    assert_eq!(world.table.all().count(), 1, "what is dropped leaves no record");
    let mut world = World::new(&routed(&format!(
        "{list}on_admission_failure = \"dead_letter\"\n\
         dead_letter = {{ stream = \"dead\", topic = \"letters\" }}"
    )));
    let Routed::DeadLetter(dest, Reason::Unknown) = world.place(Some("t"), Some("s")) else {
        panic!("a dead letter");
    };
    assert_eq!(world.table.at(dest).topic.to_string(), "dead/letters", "though not listed");
}

#[test]
fn a_dead_letter_names_what_its_row_was_meant_for() {
    let by_table = "[sources.shop.routing.by_table]
\
                    \"public.orders\" = { stream = \"commerce\", topic = \"orders\" }";
    let meant = |world: &World, topic, stream| {
        let row = row(&[Some("1"), topic, stream, None]);
        let (stream, topic) = world.router.meant(&world.bound, &row);
        format!("{}|{}", String::from_utf8_lossy(stream), String::from_utf8_lossy(topic))
    };
    let events = World::new(&routed(by_table));
    assert_eq!(meant(&events, Some("a/b"), Some(" ")), " |a/b", "names or not");
    assert_eq!(meant(&events, None, Some("s")), "s|unknown");
    let orders = World::of(&routed(by_table), "orders");
    assert_eq!(meant(&orders, Some("t"), Some("s")), "commerce|orders");
    let bound = World::new(&plan("stream = \"s\"\ntopic = \"t\""));
    assert_eq!(meant(&bound, None, None), "s|t");
}

#[test]
fn a_full_table_holds_unless_the_operator_wrote_otherwise() {
    let cap = "[sources.shop.routing.admission]\nmax_destinations = 2\n";
    for (more, mode) in [
        ("", "open"),
        ("mode = \"denylist\"\ndenylist = [{ stream = \"x\", topic = \"*\" }]\n", "denylist"),
        (
            "mode = \"allowlist\"\nallowlist = [{ stream = \"s\", topic = \"*\" }, \
             { stream = \"default\", topic = \"*\" }]\n",
            "allowlist",
        ),
    ] {
        let mut world = World::new(&routed(&format!("{cap}{more}")));
        assert!(matches!(world.place(Some("a"), Some("s")), Routed::Destination(..)), "{mode}");
        for topic in ["b", "c", "b"] {
            let held = world.place(Some(topic), Some("s"));
            assert!(matches!(held, Routed::Held(_, _, Reason::Cap)), "{mode} {topic}: {held:?}");
        }
        assert!(matches!(world.place(Some("a"), Some("s")), Routed::Destination(..)));
        assert!(matches!(world.place(None, None), Routed::Destination(..)), "its place was kept");
        assert_eq!((world.table.live(), world.rejected(Reason::Cap)), (2, 3), "{mode}");
    }
    let written = format!("{cap}on_admission_failure = \"drop\"");
    let mut world = World::new(&routed(&written));
    world.place(Some("a"), Some("s"));
    let dropped = world.place(Some("b"), Some("s"));
    assert_eq!(dropped, Routed::Dropped(Some(Reason::Cap)));
}

#[test]
fn an_open_breaker_holds_and_never_goes_elsewhere() {
    let mut world = World::new(&routed(""));
    let Routed::Destination(dest, _) = world.place(Some("t"), Some("s")) else { panic!("sent") };
    let open = |world: &mut World| {
        let breaker = &mut world.table.at_mut(dest).breaker;
        for _ in 0..5 {
            breaker.failed(crate::time::Millis(0));
        }
    };
    open(&mut world);
    let held = world.place(Some("t"), Some("s"));
    assert!(matches!(held, Routed::Held(there, _, Reason::CircuitOpen) if there == dest));
    assert!(matches!(world.place(Some("u"), Some("s")), Routed::Destination(..)));
    world.table.at_mut(dest).breaker.succeeded();
    assert!(matches!(world.place(Some("t"), Some("s")), Routed::Destination(..)));
    let drop = "[sources.shop.routing.admission]\non_admission_failure = \"drop\"";
    let mut world = World::new(&routed(drop));
    assert!(
        matches!(world.place(Some("t"), Some("s")), Routed::Destination(there, _) if there == dest)
    );
    open(&mut world);
    assert_eq!(world.place(Some("t"), Some("s")), Routed::Dropped(Some(Reason::CircuitOpen)));
}

#[test]
fn tables_without_a_destination_follow_their_policy() {
    let by_table = |policy: &str, more: &str| {
        plan(&format!(
            "[sources.shop.routing]\n{more}[sources.shop.routing.by_table]\n\
             orders = {{ stream = \"c\", topic = \"o\" }}\n\
             [sources.shop.routing.admission]\non_missing_destination = \"{policy}\""
        ))
    };
    let mut world = World::new(&by_table("drop", ""));
    assert_eq!(world.place(None, None), Routed::Dropped(None));
    assert_eq!(world.router.counters().unmatched_drop, 1);
    let mut world = World::new(&by_table("error", ""));
    assert!(matches!(world.place(None, None), Routed::Unmatched(_)));
    assert_eq!(world.router.counters().unmatched_error, 1);
    let default = "default_stream = \"d\"\ndefault_topic = \"t\"\n";
    let mut world = World::new(&by_table("default", default));
    let routed = world.place(None, None);
    assert_eq!(world.name(routed), "d/t");
    assert_eq!(world.router.counters().unmatched_default, 1);
}

#[test]
fn keys_choose_partitions_once_these_are_known() {
    let plan = routed("partition_key_column = \"user\"");
    let mut world = World::new(&plan);
    let of = |user| row(&[Some("1"), Some("t"), Some("s"), user]);
    let Routed::Destination(dest, choice) = world.send(&of(Some("abc"))) else { panic!("sent") };
    assert_eq!(choice, KeyChoice::Later(Wish::Hash(hash(b"abc"))));
    ready(&mut world, dest, 2);
    let known = |world: &mut World, user| match world.send(&of(user)) {
        Routed::Destination(_, choice) => choice,
        other => panic!("{other:?}"),
    };
    assert_eq!(known(&mut world, Some("abc")), KeyChoice::Partition(1), "as a server chose");
    assert_eq!(known(&mut world, None), KeyChoice::Partition(0), "the turn of the first");
    world.table.at_mut(dest).turn = 3;
    assert_eq!(known(&mut world, None), KeyChoice::Partition(1));
    assert_eq!(world.router.counters().rejected, [0; 7], "a missing key is no error");
}

#[test]
fn the_identity_is_every_key_column() {
    let plan = routed("partition_by = \"identity\"");
    let mut world = World::new(&plan);
    assert_eq!(world.bound.wish(&row(&[Some("17")])), Wish::Hash(hash(b"17")));
    let two = [("id", true), ("region", true), ("x", false)];
    world.bound = world
        .router
        .bind(
            &mut world.table,
            "public",
            "events",
            &[("id", true), ("topic", true), ("stream", false)],
        )
        .unwrap();
    let both = world.bound.wish(&row(&[Some("17"), Some("t"), None]));
    assert!(matches!(both, Wish::Hash(found) if found != hash(b"17")));
    world.bound = world.router.bind(&mut world.table, "public", "free", &two).unwrap();
    assert_eq!(world.bound.wish(&row(&[Some("17"), Some("t")])), both);
    let none = world.router.bind(&mut world.table, "public", "log", &[("x", false)]).unwrap();
    assert_eq!(none.wish(&row(&[Some("1")])), Wish::Balanced, "a table without a key");
}

#[test]
fn a_partition_that_is_not_there_is_refused_alone() {
    let ids = "partition_key_column = \"user\"\npartition_key_encoding = \"partition_id\"\n\
               [sources.shop.routing.topic_defaults]\npartitions_count = 4\n";
    let of = |user| row(&[Some("1"), Some("t"), Some("s"), user]);
    let mut world = World::new(&routed(ids));
    let Routed::Destination(dest, _) = world.send(&of(Some("9"))) else { panic!("not yet known") };
    ready(&mut world, dest, 4);
    for (user, partition) in [("9", 9), ("x", NOWHERE)] {
        let held = world.send(&of(Some(user)));
        let Routed::Held(there, KeyChoice::Partition(to), Reason::PartitionIdOutOfRange) = held
        else {
            panic!("{user}: {held:?}");
        };
        assert_eq!((there, to), (dest, partition));
    }
    let good = world.send(&of(Some("3")));
    assert_eq!(good, Routed::Destination(dest, KeyChoice::Partition(3)));
    assert_eq!(world.rejected(Reason::PartitionIdOutOfRange), 2);
    assert_eq!(world.table.at(dest).breaker.failures(), 0);
    let drop = format!("{ids}[sources.shop.routing.admission]\non_admission_failure = \"drop\"");
    let mut world = World::new(&routed(&drop));
    assert!(matches!(world.send(&of(None)), Routed::Destination(there, _) if there == dest));
    ready(&mut world, dest, 4);
    let dropped = Routed::Dropped(Some(Reason::PartitionIdOutOfRange));
    assert_eq!(world.send(&of(Some("4"))), dropped);
}

#[test]
fn what_a_table_was_routed_by_is_known_across_starts() {
    let plan = routed("partition_key_column = \"user\"");
    let world = World::new(&plan);
    let known: Vec<_> = world.router.routed().map(|(table, by)| (table.clone(), by)).collect();
    let place = ("public".to_owned(), "events".to_owned());
    let columns = ["stream", "topic", "user"].map(str::to_owned).to_vec();
    assert_eq!(known, [(place.clone(), columns)]);

    let mut table = Destinations::new(256, plan.routing.breaker);
    let mut router = Router::new(plan.clone(), &mut table);
    router.remember(known.clone());
    let without = [("id", true), ("topic", false), ("stream", false)];
    let error = router.bind(&mut table, "public", "events", &without).unwrap_err();
    assert_eq!((&*error.column, error.key), ("user", "partition_key_column"));
    router.bind(&mut table, "public", "other", &without).unwrap();

    // Another setting is not bound by what an earlier one read.
    let plan = routed("");
    let mut router = Router::new(plan.clone(), &mut table);
    router.remember(known.clone());
    router.bind(&mut table, "public", "events", &without).unwrap();
    let kept: Vec<_> = router.routed().map(|(_, by)| by).collect();
    assert_eq!(kept, [["stream", "topic"]]);

    // A table with a destination in by_table may lose all of them.
    let plan = routed(
        "partition_key_column = \"user\"\n[sources.shop.routing.by_table]\n\
         events = { stream = \"commerce\", topic = \"orders\" }",
    );
    let mut router = Router::new(plan.clone(), &mut table);
    router.remember(known);
    router.bind(&mut table, "public", "events", &[("id", true)]).unwrap();
}
