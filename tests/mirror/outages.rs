//! What passes by itself: pauses, outages, servers that start. None of it is a verdict.

use std::time::Duration;

use tidegate::config::{InitialOffset, MirrorPlan, OnHistoryChanged, OnOffsetExpired};
use tidegate::loopback::{Fault, Scope, Times};
use tidegate::shard::event::FromControl;
use tidegate::shard::snapshot::Status;

use super::{SECOND, copied, copy, meanwhile, plan, world, world_with};
use crate::world::World;

fn pause(paused: bool) -> FromControl {
    FromControl::Pause { source: "test".into(), paused }
}

#[test]
fn a_pause_that_ends_before_the_answer_leaves_nothing_out_o2() {
    let milli = Duration::from_millis(1);
    for (waits, polled_meanwhile) in [(0, false), (10, false), (10, true), (200, true)] {
        let mut w = world(1);
        w.start(1);
        w.until("running", |w| w.feed(0).condition.status == Status::Running);
        w.down.core.faults().set(Fault::HoldReply, Scope::sends(), Times::Next(1));
        w.write(true, 0, 0, 10);
        w.until("a send", |w| w.holds_replies());
        if polled_meanwhile {
            // Its answer comes while the feed is told to rest.
            let slow = Fault::Slow(5 * milli);
            w.up.core.faults().set(slow, Scope::polls(), Times::Next(1));
        }
        w.write(true, 0, 10, 10);
        w.run(if polled_meanwhile { 52 * milli } else { 100 * milli });
        w.tell(pause(true));
        w.run(waits * milli);
        w.tell(pause(false));
        w.run(milli);
        w.write(true, 0, 20, 10);
        w.run(100 * milli);
        w.release_replies();
        w.until("copied", |w| copied(w, 0, 30));
        w.assert_equal(1);
        assert_eq!(w.feed(0).counters.gaps, 0);
    }
}

#[test]
fn a_message_the_destination_swallows_is_found_by_halving_m15() {
    let mut w = world(1);
    w.write(true, 0, 0, 10);
    w.start(1);
    w.until("copied", |w| copied(w, 0, 10));
    // Eight, four: what stands before the bad one is taken in pairs.
    w.down.core.faults().set(Fault::DropRequest, Scope::sends(), Times::Next(6));
    w.write(true, 0, 10, 8);
    w.until("the first pair", |w| copied(w, 0, 12));
    w.down.core.faults().set(Fault::DropRequest, Scope::sends(), Times::UntilCleared);
    w.until("stopped", |w| w.feed(0).condition.reason == "bad_record");
    assert!(w.feed(0).condition.detail.contains("offset 14"), "{}", w.feed(0).condition.detail);
    assert_eq!(w.read(false, 0).len(), 14, "what precedes it is copied");
}

#[test]
fn a_message_the_destination_swallows_is_told_from_an_outage_by_other_partitions_m15() {
    let mut w = world(2);
    w.start(2);
    w.until("running", |w| (0..2).all(|p| w.feed(p).condition.status == Status::Running));
    let only_here = Scope::sends().partition(0);
    w.down.core.faults().set(Fault::DropRequest, only_here, Times::UntilCleared);
    w.write(true, 0, 0, 1);
    // Alone it is not known to be bad.
    w.run(100 * SECOND);
    let condition = w.feed(0).condition;
    assert_eq!((condition.status, condition.reason), (Status::Degraded, "unanswered"));
    let mut written = 0;
    while w.feed(0).condition.status != Status::Error && written < 200 {
        w.write(true, 1, written, 1);
        written += 1;
        w.run(5 * SECOND);
    }
    assert_eq!(w.feed(0).condition.reason, "bad_record");
    assert!(w.feed(0).condition.detail.contains("offset 0"), "{}", w.feed(0).condition.detail);
    w.until("the other goes on", |w| copied(w, 1, written));
}

#[test]
fn a_destination_that_reads_but_takes_no_sends_is_waited_for_m13() {
    for (step, alone) in (0..10).flat_map(|step| [(step, true), (step, false)]) {
        let partitions = if alone { 1 } else { 3 };
        let mut w = world(partitions);
        w.start(partitions);
        let is_running = |w: &World, p| w.feed(p).condition.status == Status::Running;
        w.until("running", |w| (0..partitions).all(|p| is_running(w, p)));
        w.down.core.faults().set(Fault::DropRequest, Scope::sends(), Times::UntilCleared);
        let counts = [1, 8, 2];
        for partition in 0..partitions {
            w.write(true, partition, 0, counts[partition as usize]);
        }
        let mut said = false;
        for _ in 0..180 + 3 * step {
            w.run(SECOND);
            assert!(w.feeds().iter().all(|feed| feed.condition.status != Status::Error));
            let condition = w.feed(0).condition;
            said |= condition.reason == "unanswered";
            assert!(!said || condition.status == Status::Degraded, "{condition:?}");
        }
        assert!(said);
        w.down.core.faults().clear_all();
        let all = |w: &mut World| (0..partitions).all(|p| copied(w, p, counts[p as usize]));
        w.until("copied", all);
        w.run(5 * SECOND);
        w.assert_equal(partitions);
        assert!((0..partitions).all(|p| is_running(&w, p)), "{:#?}", w.feeds());
    }
}

/// A server that starts is seen for a second, is away for longer than any grace, and starts again.
#[test]
fn a_grace_does_not_run_while_its_side_is_away_m5_m6() {
    for (upstream, cold, pause_instead) in
        [(true, false), (true, true), (false, false), (false, true)]
            .into_iter()
            .flat_map(|(up, cold)| [(up, cold, false), (up, cold, true)])
    {
        let mut w = world(1);
        copy(&mut w, 100);
        if cold {
            w.kill();
        }
        let start = |w: &mut World| {
            let until = w.wall() + 1_000_000;
            let side = if upstream { &mut w.up } else { &mut w.down };
            side.core.starting_until(until);
            w.cut(upstream, true);
        };
        start(&mut w);
        if cold {
            w.start(1);
        }
        w.run(SECOND - Duration::from_millis(50));
        if pause_instead {
            w.tell(pause(true));
        } else {
            w.cut(upstream, false);
        }
        w.run(70 * SECOND);
        start(&mut w);
        if pause_instead {
            w.tell(pause(false));
        }
        w.write(true, 0, 100, 10);
        w.until("copied", |w| copied(w, 0, 110));
        w.assert_equal(1);
        assert_eq!(w.feed(0).epoch, 0, "upstream {upstream}, cold {cold}");
    }
}

#[test]
fn a_start_beyond_the_end_of_the_log_is_waited_for_m4() {
    for killed in [false, true] {
        let at = MirrorPlan { initial_offset: InitialOffset::At(1000), ..plan() };
        let mut w = world_with(at, 1);
        w.write(true, 0, 0, 10);
        w.start(1);
        w.run(200 * SECOND);
        assert_eq!(w.feed(0).condition.status, Status::Running, "{:?}", w.feed(0).condition);
        if killed {
            w.kill();
            w.start(1);
            w.run(200 * SECOND);
        }
        w.write(true, 0, 10, 400);
        w.run(100 * SECOND);
        assert_eq!(w.feed(0).condition.status, Status::Running, "{:?}", w.feed(0).condition);
        w.write(true, 0, 410, 600);
        w.until("copied", |w| copied(w, 0, 1010));
        let down = w.read(false, 0);
        assert_eq!((down.len(), down[0].1.as_str()), (10, "message 1000"));
        assert_eq!(w.feed(0).counters.errors, 0, "{}", w.feed(0).last_error);
    }
}

#[test]
fn a_start_anew_beyond_the_end_of_the_log_is_waited_for_m4() {
    let initial = MirrorPlan {
        initial_offset: InitialOffset::At(1000),
        on_offset_expired: OnOffsetExpired::InitialOffset,
        ..plan()
    };
    let mut w = world_with(initial, 1);
    w.write(true, 0, 0, 10);
    w.start_with(1, true);
    w.until("copied", |w| copied(w, 0, 10));
    w.cut(true, false);
    w.write(true, 0, 10, 10);
    w.write(true, 0, 20, 10);
    w.up.core.log("orders", "events", 0).unwrap().retain_from(20);
    w.cut(true, true);
    w.until("the gap", |w| w.feed(0).counters.gaps == 1);
    w.run(200 * SECOND);
    assert_eq!(w.feed(0).condition.status, Status::Running, "{:?}", w.feed(0).condition);
    w.write(true, 0, 30, 980);
    w.until("copied", |w| copied(w, 0, 1010));
    assert_eq!(w.read(false, 0).len(), 20);
}

#[test]
fn retention_of_the_only_message_is_not_another_history_m5() {
    for killed in [false, true] {
        let mut w = world(1);
        copy(&mut w, 1);
        meanwhile(&mut w, killed, |w| w.up.core.log("orders", "events", 0).unwrap().retain_from(1));
        w.run(200 * SECOND);
        let feed = w.feed(0);
        assert_eq!(feed.condition.status, Status::Running, "{:?}", feed.condition);
        assert_eq!(feed.lag_messages, 0);
        w.write(true, 0, 1, 5);
        w.until("copied", |w| copied(w, 0, 6));
        assert_eq!((w.read(false, 0).len(), w.feed(0).counters.gaps), (6, 0));
    }
}

#[test]
fn another_log_in_place_of_one_message_is_noticed_m5() {
    for killed in [false, true] {
        let mut w = world(1);
        copy(&mut w, 1);
        meanwhile(&mut w, killed, |w| w.up.core.log("orders", "events", 0).unwrap().clear());
        w.run(100 * SECOND);
        w.write(true, 0, 500, 20);
        w.until("stopped", |w| w.feed(0).condition.status == Status::Error);
        assert_eq!(w.feed(0).condition.reason, "history_changed");
        assert_eq!(w.read(false, 0).len(), 1, "nothing of the new history was copied");
    }
}

#[test]
fn damage_of_the_message_that_proves_the_history_is_read_again_m5() {
    for policy in [OnHistoryChanged::Fail, OnHistoryChanged::Restart] {
        let trusting = MirrorPlan { verify_checksums: false, on_history_changed: policy, ..plan() };
        let mut w = world_with(trusting, 1);
        copy(&mut w, 100);
        let damage = Fault::CorruptRecord { offset: 99 };
        w.up.core.faults().set(damage, Scope::polls(), Times::Next(1));
        w.run(10 * SECOND);
        assert!(w.up.core.faults().is_empty(), "the poll that proves came by");
        w.write(true, 0, 100, 10);
        w.until("copied", |w| copied(w, 0, 110));
        assert_eq!((w.feed(0).epoch, w.feed(0).condition.status), (0, Status::Running));
        w.assert_equal(1);
    }
}

#[test]
fn a_foreign_append_is_said_although_upstream_changed_too_m6() {
    let restart = MirrorPlan { on_history_changed: OnHistoryChanged::Restart, ..plan() };
    let mut w = world_with(restart, 1);
    copy(&mut w, 10);
    w.foreign = true;
    w.write(false, 0, 900, 1);
    w.down.core.faults().set(Fault::HoldReply, Scope::sends(), Times::Next(1));
    w.write(true, 0, 10, 5);
    w.until("a send", |w| w.holds_replies());
    w.up.core.forget_topic("orders", "events");
    w.create(true, "orders", "events", 1);
    w.write(true, 0, 5000, 5);
    w.release_replies();
    w.until("stopped", |w| w.feed(0).condition.status == Status::Error);
    assert_eq!(w.feed(0).condition.reason, "diverged");
    assert_eq!(w.read(false, 0).len(), 16, "nothing of the new history was copied");
}
