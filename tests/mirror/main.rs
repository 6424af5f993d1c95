//! The mirror's decisions on virtual time, against two broker cores that misbehave by name.
//!
//! Every test ends in the same oracle: both sides hold the same messages in the same order, or
//! the feed stopped with the reason that the documents promise.

#![allow(clippy::disallowed_methods, reason = "tests own their files, sockets and clock")]

mod heap;
mod merge;
mod nodes;
mod outages;
mod random;
mod reserve;
mod setup;
mod world;

use std::sync::Arc;
use std::time::Duration;

use setup::*;
use tidegate::batch::TopicName;
use tidegate::config::*;
use tidegate::loopback::{Fault, Scope, Times};
use tidegate::shard::event::{FromControl, SaveError, ToControl};
use tidegate::shard::snapshot::Status;
use world::World;

#[global_allocator]
static HEAP: heap::Heap = heap::Heap;

#[test]
fn a_backlog_and_what_follows_are_copied_in_order() {
    let mut w = world(3);
    for partition in 0..3 {
        for batch in 0..20 {
            w.write(true, partition, batch * 50, 50);
        }
    }
    w.start(3);
    w.until("copied", |w| (0..3).all(|p| copied(w, p, 1000)));
    for n in 1000..1040 {
        w.write(true, 1, n, 1);
        w.run(Duration::from_millis(30));
    }
    w.until("followed", |w| copied(w, 1, 1040));
    w.assert_equal(3);
    let feed = w.feed(1);
    assert_eq!((feed.condition.status, feed.lag_messages, feed.delta), (Status::Running, 0, 0));
    assert_eq!(feed.counters.messages, 1040);
    assert_eq!(feed.counters.errors, 0, "{}", feed.last_error);
}

#[test]
fn a_kill_at_any_moment_loses_and_repeats_nothing() {
    for at in 0..120 {
        let mut w = world(2);
        for partition in 0..2 {
            (0..30).for_each(|batch| w.write(true, partition, batch * 40, 40));
        }
        w.start(2);
        w.run(Duration::from_millis(at));
        w.kill();
        w.write(true, 0, 1200, 3);
        w.start(2);
        w.until("copied", |w| copied(w, 0, 1203) && copied(w, 1, 1200));
        w.assert_equal(2);
    }
}

#[test]
fn an_orderly_stop_is_clean_and_resends_nothing_h02() {
    let mut w = world(1);
    w.write(true, 0, 0, 100);
    w.start(1);
    w.until("copied", |w| copied(w, 0, 100));
    for round in 0..3 {
        w.drain();
        w.until("drained", |w| w.is_drained());
        let saved = w.saved().unwrap();
        assert!(saved.feeds[0].clean_stop, "round {round}");
        assert_eq!(saved.feeds[0].position, 100);
        w.to_control.clear();
        w.kill();
        w.start(1);
        let started = w.now;
        w.until("running", |w| w.feed(0).condition.status == Status::Running);
        assert!(w.now - started < 1000, "a clean start does not settle: {} ms", w.now - started);
        w.run(30 * SECOND);
    }
    w.write(true, 0, 100, 1);
    w.until("one more", |w| copied(w, 0, 101));
    w.assert_equal(1);
    assert_eq!(w.read(false, 0).len(), 101);
}

#[test]
fn a_lost_reply_is_looked_up_not_resent() {
    for fault in [Fault::DropReply, Fault::DropRequest, Fault::EmptyConfirmation] {
        let mut w = world(1);
        w.start(1);
        w.until("running", |w| w.feed(0).condition.status == Status::Running);
        w.down.core.faults().set(fault, Scope::sends(), Times::Next(2));
        (0..10).for_each(|batch| w.write(true, 0, batch * 10, 10));
        w.until("copied", |w| copied(w, 0, 100));
        w.assert_equal(1);
    }
}

#[test]
fn codes_57_and_58_neither_lose_nor_repeat() {
    for (code, applied) in [(57, true), (57, false), (58, false)] {
        let mut w = world(2);
        w.start(2);
        w.down.core.faults().set(Fault::Reject { code, applied }, Scope::sends(), Times::Next(7));
        for partition in 0..2 {
            (0..10).for_each(|batch| w.write(true, partition, batch * 10, 10));
        }
        w.until("copied", |w| copied(w, 0, 100) && copied(w, 1, 100));
        w.assert_equal(2);
        assert!(w.feed(0).counters.errors + w.feed(1).counters.errors > 0);
    }
}

#[test]
fn a_late_append_within_settle_is_waited_for() {
    let mut w = world(1);
    w.start(1);
    w.until("running", |w| w.feed(0).condition.status == Status::Running);
    let late = Fault::LateAppend { after: Duration::from_millis(1500) };
    w.down.core.faults().set(late, Scope::sends(), Times::Next(3));
    (0..10).for_each(|batch| w.write(true, 0, batch * 10, 10));
    w.until("copied", |w| copied(w, 0, 100));
    w.assert_equal(1);
}

#[test]
fn a_late_append_beyond_settle_is_detected() {
    let mut w = world(1);
    w.write(true, 0, 0, 10);
    w.start(1);
    w.until("copied", |w| copied(w, 0, 10));
    let late = Fault::LateAppend { after: Duration::from_millis(3500) };
    w.down.core.faults().set(late, Scope::sends(), Times::Next(1));
    w.write(true, 0, 10, 10);
    w.run(8 * SECOND);
    w.foreign = true;
    w.write(true, 0, 20, 10);
    w.until("stopped", |w| w.feed(0).condition.status == Status::Error);
    assert_eq!(w.feed(0).condition.reason, "diverged");
}

#[test]
fn a_foreign_writer_is_reported_as_diverged() {
    let mut w = world(2);
    w.write(true, 0, 0, 10);
    w.start(2);
    w.until("copied", |w| copied(w, 0, 10));
    w.foreign = true;
    w.write(false, 0, 900, 1);
    w.write(true, 0, 10, 5);
    w.write(true, 1, 0, 5);
    w.until("stopped", |w| w.feed(0).condition.reason == "diverged");
    w.until("the other goes on", |w| copied(w, 1, 5));
    // While stopped in order, too.
    let mut w = world(1);
    w.write(true, 0, 0, 10);
    w.start(1);
    w.until("copied", |w| copied(w, 0, 10));
    w.drain();
    w.until("drained", |w| w.is_drained());
    w.kill();
    w.write(false, 0, 900, 1);
    w.start(1);
    w.until("stopped", |w| w.feed(0).condition.reason == "diverged");
}

#[test]
fn a_lost_tail_is_sent_again_under_a_new_epoch() {
    let mut w = world(1);
    w.write(true, 0, 0, 100);
    w.start(1);
    w.until("copied", |w| copied(w, 0, 100));
    w.down.core.log("orders", "events", 0).unwrap().lose_tail(30);
    w.cut(false, true);
    w.until("again", |w| w.feed(0).epoch == 1 && copied(w, 0, 100));
    w.assert_equal(1);
    assert_eq!(w.feed(0).counters.resets, 1);
    // The same while stopped.
    w.run(2 * SECOND);
    w.kill();
    w.down.core.log("orders", "events", 0).unwrap().lose_tail(20);
    w.write(true, 0, 100, 10);
    w.start(1);
    w.until("again", |w| w.feed(0).epoch == 2 && copied(w, 0, 110));
    w.assert_equal(1);
}

#[test]
fn a_destination_that_is_starting_is_not_taken_for_empty() {
    let mut w = world(1);
    w.write(true, 0, 0, 100);
    w.start(1);
    w.until("copied", |w| copied(w, 0, 100));
    let until = 1_700_000_000_000_000 + (w.now + 20_000) * 1000;
    w.down.core.starting_until(until);
    w.cut(false, true);
    w.write(true, 0, 100, 10);
    w.until("copied", |w| copied(w, 0, 110));
    w.assert_equal(1);
    assert_eq!(w.feed(0).epoch, 0);
}

#[test]
fn an_upstream_that_is_starting_is_not_taken_for_another_history() {
    let mut w = world(1);
    w.write(true, 0, 0, 100);
    w.start(1);
    w.until("copied", |w| copied(w, 0, 100));
    let until = 1_700_000_000_000_000 + (w.now + 30_000) * 1000;
    w.up.core.starting_until(until);
    w.cut(true, true);
    w.run(10 * SECOND);
    assert_eq!(w.feed(0).condition.reason, "waiting_upstream");
    w.write(true, 0, 100, 10);
    w.until("copied", |w| copied(w, 0, 110));
    w.assert_equal(1);
}

#[test]
fn an_upstream_that_lost_its_tail_stops_or_restarts_by_policy() {
    for policy in [OnHistoryChanged::Fail, OnHistoryChanged::Restart] {
        let mut w = world_with(MirrorPlan { on_history_changed: policy, ..plan() }, 1);
        w.write(true, 0, 0, 100);
        w.start(1);
        w.until("copied", |w| copied(w, 0, 100));
        w.up.core.log("orders", "events", 0).unwrap().lose_tail(40);
        w.cut(true, true);
        w.run(50 * SECOND);
        assert_eq!(w.feed(0).condition.reason, "waiting_upstream", "grace");
        if policy == OnHistoryChanged::Fail {
            w.until("stopped", |w| w.feed(0).condition.reason == "history_changed");
        } else {
            w.until("restarted", |w| w.feed(0).epoch == 1 && copied(w, 0, 60));
            w.run(SECOND);
            let down = w.read(false, 0);
            assert_eq!(down.len(), 160, "the old history stays, the new one follows");
            assert_eq!(w.feed(0).delta, 100);
        }
    }
}

#[test]
fn a_reset_log_that_grew_past_the_old_end_is_noticed() {
    let mut w = world(1);
    copy(&mut w, 100);
    w.up.core.log("orders", "events", 0).unwrap().clear();
    w.write(true, 0, 5000, 150);
    w.until("stopped", |w| w.feed(0).condition.status == Status::Error);
    assert_eq!(w.feed(0).condition.reason, "history_changed");
    assert_eq!(w.read(false, 0).len(), 100, "nothing of the new history was copied");
}

#[test]
fn another_log_in_place_of_a_stopped_one_is_upstreams_change_not_the_destinations() {
    for policy in [OnHistoryChanged::Fail, OnHistoryChanged::Restart] {
        let mut w = world_with(MirrorPlan { on_history_changed: policy, ..plan() }, 1);
        copy(&mut w, 100);
        w.kill();
        w.up.core.log("orders", "events", 0).unwrap().clear();
        w.write(true, 0, 5000, 150);
        w.start(1);
        if policy == OnHistoryChanged::Fail {
            w.until("stopped", |w| w.feed(0).condition.status == Status::Error);
            assert_eq!(w.feed(0).condition.reason, "history_changed");
            assert_eq!(w.read(false, 0).len(), 100, "nothing of the new history was copied");
        } else {
            w.until("restarted", |w| w.feed(0).epoch == 1 && copied(w, 0, 150));
            assert_eq!((w.read(false, 0).len(), w.feed(0).delta), (250, 100));
        }
    }
}

#[test]
fn a_recreated_upstream_topic_is_another_history() {
    for more in [10, 100, 500] {
        let restart = MirrorPlan { on_history_changed: OnHistoryChanged::Restart, ..plan() };
        let mut w = world_with(restart, 1);
        copy(&mut w, 100);
        w.up.core.forget_topic("orders", "events");
        w.run(3 * SECOND);
        assert_eq!(w.feed(0).condition.reason, "waiting_upstream");
        w.create(true, "orders", "events", 1);
        w.write(true, 0, 7000, more);
        w.until("restarted", |w| w.feed(0).epoch == 1 && copied(w, 0, more));
        let down = w.read(false, 0);
        assert_eq!(down.len() as u64, 100 + more);
        assert_eq!(down[100].1, "message 7000");
        assert_eq!(w.feed(0).lag_messages, 0);
    }
}

#[test]
fn retention_past_the_position_is_a_gap_recorded_once_h28() {
    let mut w = world(1);
    w.write(true, 0, 0, 100);
    w.start(1);
    w.until("copied", |w| copied(w, 0, 100));
    w.drain();
    w.until("drained", |w| w.is_drained());
    w.kill();
    w.write(true, 0, 100, 200);
    w.write(true, 0, 300, 200);
    w.up.core.log("orders", "events", 0).unwrap().retain_from(300);
    w.start(1);
    w.until("copied", |w| copied(w, 0, 500));
    let feed = w.feed(0);
    assert_eq!(feed.gaps.len(), 1);
    assert_eq!((feed.gaps[0].first, feed.gaps[0].last), (100, 299));
    assert_eq!((feed.counters.gaps, feed.counters.gap_messages), (1, 200));
    assert_eq!(feed.delta, -200);
    let down = w.read(false, 0);
    assert_eq!((down.len(), down[100].1.as_str()), (300, "message 300"));
    // The gap is behind us: a kill changes nothing.
    w.run(2 * SECOND);
    w.kill();
    w.write(true, 0, 500, 5);
    w.start(1);
    w.until("copied", |w| copied(w, 0, 505));
    assert_eq!(w.read(false, 0).len(), 305);
    assert_eq!(w.feed(0).gaps.len(), 1);
}

#[test]
fn retention_with_policy_fail_stops_that_partition_only_h28() {
    let fail = MirrorPlan { on_offset_expired: OnOffsetExpired::Fail, ..plan() };
    let mut w = world_with(fail, 2);
    for partition in 0..2 {
        w.write(true, partition, 0, 100);
    }
    w.start(2);
    w.until("copied", |w| copied(w, 0, 100) && copied(w, 1, 100));
    w.cut(true, false);
    w.write(true, 0, 100, 200);
    w.write(true, 0, 300, 10);
    w.write(true, 1, 100, 10);
    w.up.core.log("orders", "events", 0).unwrap().retain_from(300);
    w.cut(true, true);
    w.until("stopped", |w| w.feed(0).condition.reason == "offset_expired");
    w.until("the other goes on", |w| copied(w, 1, 110));
    assert_eq!(w.read(false, 0).len(), 100);
}

#[test]
fn a_gap_while_the_queue_is_full_keeps_order_and_survives_a_kill() {
    for at in (0..400).step_by(7) {
        let mut w = world(1);
        w.write(true, 0, 0, 100);
        w.start(1);
        w.until("copied", |w| copied(w, 0, 100));
        w.cut(true, false);
        w.write(true, 0, 100, 200);
        w.write(true, 0, 300, 10);
        w.up.core.log("orders", "events", 0).unwrap().retain_from(300);
        w.cut(true, true);
        w.run(Duration::from_millis(1200 + at));
        w.kill();
        w.start(1);
        w.until("copied", |w| copied(w, 0, 310));
        assert_eq!(w.read(false, 0).len(), 110, "killed at {at}");
        assert_eq!(w.feed(0).counters.gap_messages, 200);
    }
}

#[test]
fn a_wrong_range_is_never_accepted_h05() {
    for from in [0, 40, 150] {
        let mut w = world(1);
        w.write(true, 0, 0, 100);
        w.start(1);
        w.until("copied", |w| copied(w, 0, 100));
        w.up.core.faults().set(Fault::WrongRange { from }, Scope::polls(), Times::Next(3));
        w.write(true, 0, 100, 100);
        w.until("copied", |w| copied(w, 0, 200));
        w.assert_equal(1);
        assert_eq!(w.feed(0).counters.gaps, 0);
    }
}

#[test]
fn a_poisoned_record_stops_its_partition_behind_the_good_ones_h31() {
    let mut w = world(2);
    w.up.core.faults().set(
        Fault::CorruptRecord { offset: 57 },
        Scope::polls().partition(0),
        Times::UntilCleared,
    );
    for partition in 0..2 {
        (0..10).for_each(|batch| w.write(true, partition, batch * 10, 10));
    }
    w.start(2);
    w.until("stopped", |w| w.feed(0).condition.reason == "bad_record");
    w.until("the other goes on", |w| copied(w, 1, 100));
    assert!(w.feed(0).condition.detail.contains("57"), "{}", w.feed(0).condition.detail);
    assert_eq!(w.read(false, 0).len(), 57, "what precedes it is copied");
}

#[test]
fn damage_on_the_way_is_read_again() {
    let mut w = world(1);
    (0..10).for_each(|batch| w.write(true, 0, batch * 10, 10));
    w.up.core.faults().set(Fault::CorruptRecord { offset: 57 }, Scope::polls(), Times::Next(1));
    w.start(1);
    w.until("copied", |w| copied(w, 0, 100));
    w.assert_equal(1);
}

#[test]
fn a_nonempty_destination_without_state_needs_a_word_h32() {
    let mut w = world(1);
    w.write(false, 0, 5000, 1000);
    w.write(true, 0, 0, 10);
    w.start(1);
    w.until("stopped", |w| w.feed(0).condition.reason == "nonempty_destination");
    w.run(3 * SECOND);
    assert_eq!((w.feed(0).lag_messages, w.feed(0).upstream_end), (10, 10));
    let append = MirrorPlan { on_nonempty_destination: OnNonemptyDestination::Append, ..plan() };
    let mut w = world_with(append, 1);
    w.write(false, 0, 5000, 1000);
    w.write(true, 0, 0, 10);
    w.start(1);
    w.until("copied", |w| copied(w, 0, 10));
    let feed = w.feed(0);
    assert_eq!((feed.delta, feed.lag_messages, feed.upstream_end), (1000, 0, 10));
    w.run(120 * SECOND);
    assert_eq!(w.feed(0).lag_messages, 0);
    w.kill();
    w.write(true, 0, 10, 10);
    w.start(1);
    w.until("copied", |w| copied(w, 0, 20));
    assert_eq!(w.read(false, 0).len(), 1020);
}

#[test]
fn a_wiped_destination_stops_or_is_refilled_h29() {
    for policy in [OnDestinationLost::Fail, OnDestinationLost::Refill] {
        let mut w = world_with(MirrorPlan { on_destination_lost: policy, ..plan() }, 1);
        copy(&mut w, 100);
        w.kill();
        w.down.core.forget_topic("orders", "events");
        w.run(SECOND);
        w.create(false, "orders", "events", 1);
        w.start(1);
        if policy == OnDestinationLost::Fail {
            w.until("stopped", |w| w.feed(0).condition.reason == "destination_lost");
            assert!(w.read(false, 0).is_empty());
        } else {
            w.until("refilled", |w| w.feed(0).epoch == 1 && copied(w, 0, 100));
            w.assert_equal(1);
        }
    }
}

#[test]
fn a_destination_deleted_while_running_is_refilled_on_request() {
    let refill = MirrorPlan { on_destination_lost: OnDestinationLost::Refill, ..plan() };
    let mut w = world_with(refill, 1);
    w.write(true, 0, 0, 100);
    w.start(1);
    w.until("copied", |w| copied(w, 0, 100));
    w.down.core.forget_topic("orders", "events");
    w.write(true, 0, 100, 1);
    w.until("asked for it", |w| !w.to_control.is_empty());
    let created = w.create(false, "orders", "events", 1);
    let feed = tidegate::batch::FeedId(0);
    w.tell(FromControl::DestinationReady { feed, result: Ok(created) });
    w.until("refilled", |w| copied(w, 0, 101) && w.feed(0).epoch == 1);
    w.assert_equal(1);
}

#[test]
fn a_feed_lets_go_of_its_destination_and_goes_on_where_it_stood() {
    let mut w = world(2);
    (0..2).for_each(|partition| w.write(true, partition, 0, 100));
    w.start(2);
    w.until("copied", |w| copied(w, 0, 100) && copied(w, 1, 100));
    // With a send on its way that is appended after the connection is gone.
    let late = Fault::LateAppend { after: Duration::from_millis(500) };
    w.down.core.faults().set(late, Scope::sends().partition(1), Times::Next(1));
    (0..2).for_each(|partition| w.write(true, partition, 100, 10));
    w.run(Duration::from_millis(60));
    let feeds: Vec<_> = w.feeds().iter().map(|feed| feed.id).collect();
    for feed in feeds {
        w.tell(FromControl::ReleaseDestination { feed });
    }
    w.until("answers", |w| {
        let released = |m: &&ToControl| matches!(m, ToControl::DestinationReleased { .. });
        w.to_control.iter().filter(released).count() == 2
    });
    w.until("copied", |w| copied(w, 0, 110) && copied(w, 1, 110));
    w.assert_equal(2);
}

#[test]
fn latest_and_numbered_starts_are_durable_before_the_first_send() {
    for (initial, start) in [(InitialOffset::Latest, 100), (InitialOffset::At(40), 40)] {
        let mut w = world_with(MirrorPlan { initial_offset: initial, ..plan() }, 1);
        w.write(true, 0, 0, 100);
        w.start(1);
        w.until("saved", |w| w.saved().is_some());
        assert_eq!(w.saved().unwrap().feeds[0].position, start);
        assert!(w.read(false, 0).is_empty());
        w.kill();
        w.write(true, 0, 100, 10);
        w.start(1);
        w.until("copied", |w| copied(w, 0, 110));
        assert_eq!(w.read(false, 0)[0].1, format!("message {start}"));
    }
}

#[test]
fn a_late_partition_starts_at_its_first_message() {
    let mut w = world_with(MirrorPlan { initial_offset: InitialOffset::Latest, ..plan() }, 1);
    w.write(true, 0, 0, 100);
    w.start_with(1, true);
    w.until("copied", |w| copied(w, 0, 100));
    w.assert_equal(1);
}

#[test]
fn either_side_down_at_start_or_for_long_is_survived_h06() {
    for upstream in [true, false] {
        let mut w = world(1);
        w.write(true, 0, 0, 100);
        w.cut(upstream, false);
        w.start(1);
        w.run(90 * SECOND);
        assert_eq!(w.feed(0).condition.status, Status::Degraded);
        w.cut(upstream, true);
        let back = w.now;
        w.until("copied", |w| copied(w, 0, 100));
        assert!(w.now - back < 65_000, "within the longest back-off: {} ms", w.now - back);
        w.write(true, 0, 100, 100);
        w.cut(upstream, false);
        w.run(90 * SECOND);
        w.cut(upstream, true);
        w.until("copied", |w| copied(w, 0, 200));
        w.assert_equal(1);
    }
}

#[test]
fn lag_grows_while_the_destination_is_away_and_after_a_stop() {
    let mut w = world(2);
    (0..2).for_each(|partition| w.write(true, partition, 0, 100));
    w.start(2);
    w.until("copied", |w| copied(w, 0, 100) && copied(w, 1, 100));
    w.cut(false, false);
    w.write(true, 0, 100, 30);
    w.write(true, 1, 100, 1);
    w.until("lag", |w| w.feed(0).lag_messages == 30 && w.feed(1).lag_messages == 1);
    w.cut(false, true);
    w.until("copied", |w| copied(w, 0, 130) && copied(w, 1, 101));
    assert_eq!((w.feed(0).lag_messages, w.feed(1).lag_messages), (0, 0));
    // Stopped for good: what is not copied is still lag.
    w.foreign = true;
    w.write(false, 0, 9000, 1);
    w.write(true, 0, 130, 5);
    w.until("stopped", |w| w.feed(0).condition.reason == "diverged");
    w.write(true, 0, 135, 5);
    w.until("lag", |w| w.feed(0).lag_messages == 10);
}

#[test]
fn saves_keep_the_entries_of_feeds_that_do_not_run_here_yet_or_any_more() {
    let mut w = world(2);
    (0..2).for_each(|partition| w.write(true, partition, 0, 20));
    w.start(2);
    w.until("saved", |w| (0..2).all(|partition| w.feed(partition).durable_position == 20));
    w.kill();
    let before = w.saved().expect("a file");
    let mut gone = before.feeds[0].clone();
    gone.upstream = TopicName::new("orders", "gone");
    let entries = [&before.feeds[..], &[gone.clone()]].concat();
    let (plan, generation) = (w.plan.clone(), before.generation);
    w.tell(FromControl::Carry { plan, generation, entries });
    w.write(true, 0, 20, 5);
    w.start(1);
    w.until("saved", |w| w.feed(0).durable_position == 25);
    let kept = w.saved().expect("a file").feeds;
    let of = |name: &TopicName, partition| {
        let mut found = kept.iter().filter(|f| f.upstream == *name && f.partition == partition);
        (found.next().cloned(), found.count())
    };
    let events = &w.plan.topics[0].upstream;
    assert_eq!(of(&gone.upstream, 0), (Some(gone), 0));
    assert_eq!(of(events, 1), (before.feeds.iter().find(|f| f.partition == 1).cloned(), 0));
    let (running, twice) = of(events, 0);
    assert_eq!((running.expect("running").position, twice), (25, 0), "replaced, not doubled");
    w.kill();
    w.start(2);
    w.until("resumed", |w| w.feed(1).condition.status == Status::Running && copied(w, 0, 25));
    w.assert_equal(2);
}

#[test]
fn balanced_feeds_need_no_partition_of_their_own_at_the_destination() {
    let mut w = World::new(MirrorPlan { partitions: Partitions::Balanced, ..plan() });
    w.create(true, "orders", "events", 3);
    w.create(false, "orders", "events", 1);
    (0..3).for_each(|partition| w.write(true, partition, 0, 50));
    w.start(3);
    w.until("copied", |w| (0..3).all(|partition| copied(w, partition, 50)));
    w.run(2 * SECOND);
    w.kill();
    (0..3).for_each(|partition| w.write(true, partition, 50, 10));
    w.start(3);
    w.until("copied", |w| (0..3).all(|partition| copied(w, partition, 60)));
    assert_eq!(w.read(false, 0).len(), 180);
}

#[test]
fn a_full_disk_pauses_the_flow_and_resumes_by_itself_h39() {
    let mut w = world(1);
    w.write(true, 0, 0, 100);
    w.start(1);
    w.until("copied", |w| copied(w, 0, 100));
    let full = || SaveError::DiskFull { step: "write", path: "test.0.state.tmp".into() };
    w.save_errors = (0..4).map(|_| full()).collect();
    w.run(2 * SECOND);
    w.write(true, 0, 100, 1);
    w.until("seen", |w| w.feed(0).condition.reason == "disk_full");
    let before = w.read(false, 0).len();
    w.write(true, 0, 101, 50);
    w.run(SECOND / 2);
    assert_eq!(w.read(false, 0).len(), before, "nothing is sent while saves fail");
    w.until("resumed", |w| copied(w, 0, 151) && w.feed(0).condition.status == Status::Running);
    w.assert_equal(1);
}

#[test]
fn a_failed_save_of_the_first_position_sends_nothing_h38() {
    let mut w = world(1);
    w.write(true, 0, 0, 100);
    let eio = SaveError::Io { step: "fdatasync", path: "x".into(), why: "EIO".into() };
    w.save_errors = vec![eio; 3];
    w.start(1);
    w.run(SECOND / 2);
    assert_eq!(w.feed(0).condition.reason, "save_failed");
    assert!(w.read(false, 0).is_empty());
    w.until("copied", |w| copied(w, 0, 100));
    w.assert_equal(1);
}

#[test]
fn large_messages_pass_one_at_a_time() {
    let mut w = world(2);
    w.write_sized(true, 0, &[100, 3 << 20, 40 << 20, 45 << 20, 10, 50 << 20, 7]);
    w.write_sized(true, 1, &[40 << 20, 1]);
    w.grant_large_slot = true;
    w.start(2);
    w.until("copied", |w| copied(w, 0, 7) && copied(w, 1, 2));
    w.assert_equal(2);
    w.kill();
    w.write_sized(true, 0, &[45 << 20]);
    w.start(2);
    w.until("copied", |w| copied(w, 0, 8));
    w.assert_equal(2);
}

#[test]
fn a_large_message_to_compare_takes_the_slot_while_it_is_the_last_one_and_no_longer() {
    let mut w = world(1);
    w.grant_large_slot = true;
    let resume = |w: &mut World, messages: u64| {
        w.until("copied", |w| copied(w, 0, messages));
        w.run(2 * SECOND);
        let before = w.wishes;
        w.cut(false, true);
        w.run(20 * SECOND);
        assert_eq!(w.feed(0).condition.status, Status::Running);
        w.wishes - before
    };
    w.write_sized(true, 0, &[100, 3 << 20]);
    w.start(1);
    assert_eq!(resume(&mut w, 2), 1, "it fits nowhere else");
    w.write(true, 0, 2, 20);
    assert_eq!(resume(&mut w, 22), 0, "twenty small ones stand behind it");
    // Seen by no last message: one of the sixteen is large.
    w.write_sized(true, 0, &[3 << 20, 5, 5]);
    assert_eq!(resume(&mut w, 25), 1);
    w.write(true, 0, 25, 20);
    assert_eq!(resume(&mut w, 45), 0);
    w.assert_equal(1);
}

#[test]
fn many_idle_partitions_are_watched_together() {
    let mut w = world(32);
    w.start(32);
    w.run(2 * SECOND);
    let before = w.polls(32);
    w.run(10 * SECOND);
    let idle = w.polls(32) - before;
    assert!(idle <= 32 * 4, "{idle} polls in 10 s of idling");
    w.write(true, 17, 0, 5);
    let at = w.now;
    w.until("woken", |w| copied(w, 17, 5));
    assert!(w.now - at <= 120, "{} ms from write to ack", w.now - at);
}

#[test]
fn a_slow_save_is_waited_for_across_a_lost_connection() {
    // A first start, and a gap: what is being saved must be on disk before anything is sent,
    // even if the destination's connection is lost and found again meanwhile.
    for cut_at in [0, 100, 1000, 2500] {
        let mut w = world(1);
        w.save_takes = 4000;
        w.write(true, 0, 0, 100);
        w.start(1);
        w.run(Duration::from_millis(50 + cut_at));
        w.cut(false, true);
        w.until("copied", |w| copied(w, 0, 100));
        w.cut(true, false);
        w.write(true, 0, 100, 200);
        w.write(true, 0, 300, 50);
        w.up.core.log("orders", "events", 0).unwrap().retain_from(300);
        w.cut(true, true);
        w.until("the gap", |w| w.feed(0).counters.gaps == 1);
        w.run(Duration::from_millis(cut_at));
        w.cut(false, true);
        w.run(Duration::from_millis(1500));
        w.kill();
        w.start(1);
        w.until("copied", |w| copied(w, 0, 350));
        assert_eq!(w.read(false, 0).len(), 150, "cut {cut_at} ms into the save");
    }
}

#[test]
fn a_gap_before_large_messages_is_crossed() {
    let mut w = world(2);
    w.grant_large_slot = true;
    w.write_sized(true, 0, &[2 << 20; 8]);
    w.start(2);
    w.until("copied", |w| copied(w, 0, 8));
    w.cut(true, false);
    w.write_sized(true, 0, &[2 << 20; 8]);
    w.up.core.log("orders", "events", 0).unwrap().retain_from(12);
    w.write(true, 1, 0, 10);
    w.cut(true, true);
    w.until("crossed", |w| copied(w, 0, 16) && copied(w, 1, 10));
    assert_eq!(w.feed(0).counters.gap_messages, 4);
    assert_eq!(w.read(false, 0).len(), 12);
}

#[test]
fn a_reply_that_stays_wrong_is_asked_for_ever_more_slowly_h05() {
    let mut w = world(2);
    (0..2).for_each(|partition| w.write(true, partition, 0, 100));
    w.start(2);
    w.until("copied", |w| copied(w, 0, 100) && copied(w, 1, 100));
    let wrong = Fault::WrongRange { from: 3 };
    w.up.core.faults().set(wrong, Scope::polls().partition(0), Times::UntilCleared);
    w.write(true, 0, 100, 10);
    w.run(30 * SECOND);
    let before = w.polls(2);
    w.run(120 * SECOND);
    assert!(w.polls(2) - before < 120, "{} polls in 120 s", w.polls(2) - before);
    w.write(true, 1, 100, 10);
    w.until("the other goes on", |w| copied(w, 1, 110));
    w.up.core.faults().clear_all();
    w.until("healed", |w| copied(w, 0, 110));
    w.assert_equal(2);
}

#[test]
fn a_longer_destination_is_never_taken_for_a_lost_upstream_tail() {
    for extra in [1, 20] {
        let restart = MirrorPlan { on_history_changed: OnHistoryChanged::Restart, ..plan() };
        let mut w = world_with(restart, 1);
        copy(&mut w, 100);
        w.kill();
        w.foreign = true;
        w.write(false, 0, 900, extra);
        w.start(1);
        w.until("stopped", |w| w.feed(0).condition.status == Status::Error);
        assert_eq!(w.feed(0).condition.reason, "diverged");
        assert_eq!(w.read(false, 0).len() as u64, 100 + extra);
    }
}

#[test]
fn a_destination_topic_that_is_away_for_a_moment_is_not_lost() {
    for policy in [OnDestinationLost::Fail, OnDestinationLost::Refill] {
        let mut w = world_with(MirrorPlan { on_destination_lost: policy, ..plan() }, 1);
        w.write(true, 0, 0, 100);
        w.start(1);
        w.until("copied", |w| copied(w, 0, 100));
        let topic = w.down.core.take_topic("orders", "events").unwrap();
        w.cut(false, true);
        w.run(SECOND);
        w.down.core.put_topic("orders", "events", topic);
        w.write(true, 0, 100, 10);
        w.until("copied", |w| copied(w, 0, 110));
        w.assert_equal(1);
        assert_eq!(w.feed(0).epoch, 0);
    }
}

#[test]
fn a_connection_that_others_lose_says_nothing_about_a_record() {
    let mut w = world(1);
    w.start(1);
    w.until("running", |w| w.feed(0).condition.status == Status::Running);
    w.down.core.faults().set(Fault::DropRequest, Scope::sends(), Times::UntilCleared);
    w.write(true, 0, 0, 1);
    for _ in 0..8 {
        w.run(3 * SECOND);
        w.cut(false, true);
    }
    w.down.core.faults().clear_all();
    w.until("copied", |w| copied(w, 0, 1));
    w.assert_equal(1);
}

#[test]
fn a_balanced_copy_resends_what_was_not_confirmed() {
    let balanced = MirrorPlan { partitions: Partitions::Balanced, ..plan() };
    let mut w = world_with(balanced, 1);
    w.start(1);
    w.until("running", |w| w.feed(0).condition.status == Status::Running);
    w.down.core.faults().set(Fault::DropRequest, Scope::sends(), Times::Next(1));
    w.write(true, 0, 0, 10);
    w.until("copied", |w| copied(w, 0, 10));
    w.down.core.faults().set(Fault::EmptyConfirmation, Scope::sends(), Times::Next(1));
    w.write(true, 0, 10, 10);
    w.until("copied", |w| copied(w, 0, 20));
    let down = w.read(false, 0);
    assert!((0..20).all(|n| down.iter().any(|(_, text)| *text == format!("message {n}"))));
    assert_eq!(down.len(), 30, "at least once: the unconfirmed ten twice");
}

#[test]
fn many_failures_in_a_row_are_degraded_until_the_position_moves() {
    let mut w = world(1);
    w.start(1);
    w.until("running", |w| w.feed(0).condition.status == Status::Running);
    let refuse = Fault::Reject { code: 58, applied: false };
    w.down.core.faults().set(refuse, Scope::sends(), Times::UntilCleared);
    w.write(true, 0, 0, 10);
    w.run(40 * SECOND);
    assert_eq!(w.feed(0).condition.status, Status::Degraded);
    w.down.core.faults().clear_all();
    w.until("copied", |w| copied(w, 0, 10));
    w.until("running", |w| w.feed(0).condition.status == Status::Running);
}

#[test]
fn a_destination_replaced_while_running_is_lost_and_not_diverged() {
    let mut w = world(1);
    w.write(true, 0, 0, 100);
    w.start(1);
    w.until("copied", |w| copied(w, 0, 100));
    w.down.core.forget_topic("orders", "events");
    w.create(false, "orders", "events", 1);
    w.foreign = true;
    w.write(true, 0, 100, 5);
    w.until("stopped", |w| w.feed(0).condition.status == Status::Error);
    assert_eq!(w.feed(0).condition.reason, "destination_lost");
}

#[test]
fn a_log_of_one_message_is_caught_up_with() {
    let mut w = world(1);
    w.write(true, 0, 0, 1);
    w.start(1);
    w.until("copied", |w| copied(w, 0, 1));
    w.run(90 * SECOND);
    let feed = w.feed(0);
    assert_eq!((feed.condition.status, feed.upstream_end), (Status::Running, 1));
    assert_eq!(feed.counters.errors, 0, "{}", feed.last_error);
}

#[test]
fn a_paused_source_rests_and_goes_on_exactly_where_it_stood() {
    let mut w = world(2);
    w.write(true, 0, 0, 100);
    w.write(true, 1, 0, 100);
    let pause = |paused| FromControl::Pause { source: "test".into(), paused };
    w.tell(pause(true));
    w.start(2);
    w.run(5 * SECOND);
    assert!((0..2).all(|p| w.feed(p).condition.reason == "paused" && w.feed(p).position == 0));
    w.tell(pause(false));
    w.until("a copy under way", |w| copied(w, 0, 1));
    w.tell(pause(true));
    w.write(true, 0, 100, 50);
    w.until("rest", |w| (0..2).all(|p| w.feed(p).condition.reason == "paused"));
    // Both links break meanwhile: resting has nothing to lose.
    w.cut(true, true);
    w.cut(false, true);
    w.run(10 * SECOND);
    assert!(w.feed(0).position < 150);
    w.drain();
    w.until("a drain", |w| w.is_drained());
    w.kill();
    w.start(2);
    w.tell(pause(false));
    w.until("the rest", |w| copied(w, 0, 150) && copied(w, 1, 100));
    w.assert_equal(2);
}

#[test]
fn a_feed_that_stopped_begins_again_when_it_is_told_to() {
    let mut w = world(1);
    w.write(true, 0, 0, 50);
    w.start(1);
    w.until("a copy", |w| copied(w, 0, 50));
    // Somebody else writes to the destination.
    w.foreign = true;
    w.write(false, 0, 900, 1);
    w.write(true, 0, 50, 10);
    w.until("a stop", |w| w.feed(0).condition.status == Status::Error);
    assert_eq!(w.feed(0).condition.reason, "diverged");
    w.tell(FromControl::Restart { source: "test".into() });
    w.run(SECOND);
    w.until("the same finding", |w| w.feed(0).condition.status == Status::Error);
    assert_eq!(w.feed(0).condition.reason, "diverged", "looking again papers nothing over");
}
