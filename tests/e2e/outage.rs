//! Clusters that are away, half-open, restarted, or come back with less than they had.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate::loopback::Restart;

use super::support::{Config, Daemon, Proxy, Writer, eventually, seed, soak, throughout, when};
use super::{Rig, limit, loopbacks, number, ready, text};

#[test]
fn either_side_down_at_start_is_waited_for() {
    let Some(brokers) = loopbacks("either_side_down_at_start_is_waited_for") else { return };
    let sides = [(&brokers.up, "upstream_unreachable"), (&brokers.down, "destination_unreachable")];
    for (side, reason) in sides {
        let rig = Rig::new(&brokers.pair, 2);
        rig.write_all(0..100);
        side.stop();
        let mut daemon = rig.start();
        let source = rig.source_reason(&mut daemon, reason);
        assert_eq!(source["status"], "Degraded");
        assert!(text(&source["detail"]).contains(&side.address().to_string()), "{source:#}");
        assert_eq!(daemon.get("/readyz").map(|(code, _)| code).ok(), Some(503));
        assert_eq!(daemon.get("/livez").map(|(code, _)| code).ok(), Some(200));
        side.start().expect("a free port");
        rig.copied(&mut daemon);
        ready(&mut daemon);
        daemon.stop();
        rig.assert_exact();
    }
}

#[test]
fn an_outage_of_either_side_heals_by_itself_h06() {
    let test = "an_outage_of_either_side_heals_by_itself_h06";
    let Some(brokers) = loopbacks(test) else { return };
    let outage = Duration::from_secs(if soak() { 90 } else { 3 });
    let rig = Rig::new(&brokers.pair, 2);
    let up = Arc::clone(&brokers.pair.up);
    let mut daemon = rig.start();
    let writer = Writer::start(up, &rig.topic, 2, 400, seed(test));
    let sides = [(&brokers.up, "upstream_unreachable"), (&brokers.down, "destination_unreachable")];
    for (side, reason) in sides {
        let before = rig.pair.down.total(&rig.topic, 2);
        eventually(limit(), "messages", || when(rig.pair.down.total(&rig.topic, 2) > before + 50));
        side.stop();
        let begun = Instant::now();
        rig.source_reason(&mut daemon, reason);
        std::thread::sleep(outage.saturating_sub(begun.elapsed()));
        assert_eq!(daemon.get("/readyz").map(|(code, _)| code).ok(), Some(503));
        let stood_at = rig.pair.down.total(&rig.topic, 2);
        side.start().expect("a free port");
        let begun = Instant::now();
        eventually(limit(), "messages", || when(rig.pair.down.total(&rig.topic, 2) > stood_at));
        let backoff_cap = Duration::from_secs(if soak() { 60 } else { 1 });
        let limit = backoff_cap + Duration::from_secs(5);
        assert!(begun.elapsed() < limit, "it took {:?}", begun.elapsed());
    }
    writer.stop();
    rig.copied(&mut daemon);
    ready(&mut daemon);
    daemon.stop();
    rig.assert_exact();
}

#[test]
fn half_open_connections_are_noticed_and_replaced_h06() {
    let test = "half_open_connections_are_noticed_and_replaced_h06";
    let Some(brokers) = loopbacks(test) else { return };
    let (up, down) = (&brokers.pair.up, &brokers.pair.down);
    let (up_way, down_way) = (Proxy::start(&up.address()), Proxy::start(&down.address()));
    let rig = Rig::new(&brokers.pair, 2);
    let rig = rig.with(|_| Config::between(up_way.address(), down_way.address()));
    let topic = rig.topic.clone();
    let rig = rig.with(|config| {
        config.topic(&topic).up("connect_timeout", "1s").down("connect_timeout", "1s")
    });
    let mut daemon = rig.start();
    let writer = Writer::start(Arc::clone(up), &rig.topic, 2, 400, seed(test));
    for (way, reason) in [(&up_way, "upstream_unreachable"), (&down_way, "destination_unreachable")]
    {
        let before = down.total(&rig.topic, 2);
        eventually(limit(), "messages", || when(down.total(&rig.topic, 2) > before + 50));
        way.pause();
        rig.source_reason(&mut daemon, reason);
        // What stood in the way is lost with it, as on a network; it must not arrive late.
        way.cut();
        way.resume();
        let stood_at = down.total(&rig.topic, 2);
        eventually(limit(), "messages", || when(down.total(&rig.topic, 2) > stood_at));
    }
    writer.stop();
    rig.copied(&mut daemon);
    ready(&mut daemon);
    daemon.stop();
    rig.assert_exact();
}

#[test]
fn an_idle_half_open_destination_is_noticed_too_h06() {
    let test = "an_idle_half_open_destination_is_noticed_too_h06";
    let Some(brokers) = loopbacks(test) else { return };
    let way = Proxy::start(&brokers.pair.down.address());
    let rig = Rig::new(&brokers.pair, 1);
    rig.write_all(0..10);
    let topic = rig.topic.clone();
    let rig = rig.with(|_| {
        let config = Config::between(brokers.pair.up.address(), way.address()).topic(&topic);
        config.down("connect_timeout", "1s")
    });
    let mut daemon = rig.start();
    rig.copied(&mut daemon);
    ready(&mut daemon);
    way.pause();
    // Nothing is being sent: only a sign of life can tell.
    rig.source_reason(&mut daemon, "destination_unreachable");
    way.cut();
    way.resume();
    ready(&mut daemon);
    rig.write_all(10..20);
    rig.copied(&mut daemon);
    daemon.stop();
    rig.assert_exact();
}

#[test]
fn five_restarts_of_each_side_under_load_leave_no_hole_h05() {
    let test = "five_restarts_of_each_side_under_load_leave_no_hole_h05";
    let Some(brokers) = loopbacks(test) else { return };
    let rig = Rig::new(&brokers.pair, 3);
    rig.write_all(0..400);
    let mut daemon = rig.start();
    let up = Arc::clone(&brokers.pair.up);
    let writer = Writer::start(up, &rig.topic, 3, 400, seed(test));
    for _ in 0..5 {
        for side in [&brokers.up, &brokers.down] {
            // A server that starts answers as if its partitions were empty.
            let starting_for = Duration::from_millis(150);
            let downtime = Duration::from_millis(100);
            side.restart(Restart { lose_tail: 0, starting_for, downtime }).expect("the port");
            std::thread::sleep(Duration::from_millis(300));
        }
    }
    writer.stop();
    rig.copied(&mut daemon);
    ready(&mut daemon);
    for partition in 0..3 {
        let feed = rig.reason(&mut daemon, partition, "");
        assert_eq!((number(&feed["gaps"]), number(&feed["resets"])), (0, 0), "{feed:#}");
    }
    daemon.stop();
    rig.assert_exact();
}

#[test]
fn a_destination_that_lost_its_tail_gets_it_again() {
    let Some(brokers) = loopbacks("a_destination_that_lost_its_tail_gets_it_again") else {
        return;
    };
    for while_running in [true, false] {
        let rig = Rig::new(&brokers.pair, 2);
        rig.write(0, 0..300);
        rig.write(1, 0..40);
        let mut daemon = rig.start();
        rig.copied(&mut daemon);
        eventually(limit(), "a save", || {
            when(daemon.feed(&rig.topic, 0).is_some_and(|f| f["durable_position"] == 300))
        });
        let mut running = Some(daemon);
        if !while_running {
            running.take().map(Daemon::stop);
        }
        brokers.down.restart(Restart { lose_tail: 70, ..Restart::default() }).expect("the port");
        let mut daemon = running.unwrap_or_else(|| rig.start());
        rig.copied(&mut daemon);
        // The second partition had less than was lost: all of it.
        for partition in 0..2 {
            let feed = eventually(limit(), "a reset", || {
                daemon.feed(&rig.topic, partition).filter(|feed| feed["resets"] == 1)
            });
            assert!(text(&feed["last_error"]).contains("lost its tail"), "{feed:#}");
        }
        rig.write_all(300..350);
        rig.ends_at(&mut daemon, 0, 350);
        rig.copied(&mut daemon);
        daemon.stop();
        rig.assert_exact();
    }
}

#[test]
fn an_upstream_that_lost_its_tail_is_another_history() {
    let Some(brokers) = loopbacks("an_upstream_that_lost_its_tail_is_another_history") else {
        return;
    };
    let rig = Rig::new(&brokers.pair, 2);
    rig.write(0, 0..300);
    let mut daemon = rig.start();
    rig.copied(&mut daemon);
    brokers.up.restart(Restart { lose_tail: 70, ..Restart::default() }).expect("the port");
    // It may be a server that starts: waited for at first.
    rig.reason(&mut daemon, 0, "waiting_upstream");
    rig.reason(&mut daemon, 0, "history_changed");
    throughout(Duration::from_millis(300), "the destination is left alone", || {
        rig.down_end(0) == 300
    });
    rig.write(1, 0..10);
    rig.ends_at(&mut daemon, 1, 10);
    daemon.stop();
}
