//! Records that wait go out together (M16): on a short way and on a long one, and whatever happens
//! to a batch that was made of several.

use std::time::Duration;

use tidegate::config::MirrorPlan;
use tidegate::loopback::{Fault, Scope, Times};
use tidegate::shard::snapshot::{FeedSnapshot, Status};

use super::{SECOND, copied, plan, world_with};
use crate::world::World;

const RTT: Duration = Duration::from_millis(80);

/// A world whose destination is 80 ms away, and `count` records of one message each upstream.
fn far(count: u64) -> World {
    let mut w = world_with(plan(), 1);
    w.down.core.faults().set(Fault::Slow(RTT), Scope::any(), Times::UntilCleared);
    write_single(&mut w, 0, count);
    w
}

fn write_single(w: &mut World, from: u64, count: u64) {
    (from..from + count).for_each(|n| w.write(true, 0, n, 1));
}

fn records_per_send(feed: &FeedSnapshot) -> u64 {
    feed.sent_records / feed.sends.max(1)
}

#[test]
fn single_messages_are_copied_many_per_round_trip_m16() {
    let mut w = far(20_000);
    w.start(1);
    let begun = w.now;
    w.until("copied", |w| copied(w, 0, 20_000));
    assert!(w.now - begun < 3_000, "{} ms", w.now - begun);
    let feed = w.feed(0);
    assert_eq!((feed.sent_records, feed.counters.messages), (20_000, 20_000));
    assert!(records_per_send(&feed) > 1_000, "{} sends", feed.sends);
    assert_eq!(feed.round_trip, Some(RTT));
    w.assert_equal(1);
}

#[test]
fn what_is_written_meanwhile_goes_with_the_next_send_or_the_one_after_m16() {
    let mut w = far(1);
    w.start(1);
    w.until("copied", |w| copied(w, 0, 1));
    let mut next = 1;
    // One message every 2 ms: 40 per round trip.
    for _ in 0..1_000 {
        write_single(&mut w, next, 1);
        next += 1;
        w.run(Duration::from_millis(2));
    }
    let lag = next - w.feed(0).position;
    assert!(lag < 130, "{lag} behind: more than three round trips");
    w.until("copied", |w| copied(w, 0, next));
    let feed = w.feed(0);
    assert!(feed.sends < 60, "{} sends in 25 round trips", feed.sends);
    w.assert_equal(1);
}

#[test]
fn large_records_fill_a_batch_where_the_way_is_long_and_go_alone_where_it_is_short_m16() {
    let sizes = [1_000_000 - 304; 40];
    let mut w = far(0);
    w.limit = 128 << 20;
    w.kill();
    w.write_sized(true, 0, &sizes);
    w.start(1);
    w.until("the first", |w| w.feed(0).position > 0);
    let (begun, from) = (w.now, w.feed(0).position);
    w.until("copied", |w| copied(w, 0, 40));
    let rate = (40 - from) * 1_000_000 / (w.now - begun);
    let bound = (8 << 20) / 80;
    assert!(rate * 10 >= bound * 8, "{rate} of {bound} bytes per ms");
    w.assert_equal(1);

    let mut w = world_with(plan(), 1);
    w.latency = 0;
    w.write_sized(true, 0, &sizes);
    w.start(1);
    w.until("copied", |w| copied(w, 0, 40));
    let feed = w.feed(0);
    assert_eq!((feed.sends, feed.sent_records), (40, 40), "{:?}", feed.round_trip);
    w.assert_equal(1);
}

#[test]
fn a_merged_batch_is_bounded_by_max_batch_bytes_m16() {
    let mut w = world_with(MirrorPlan { max_batch_bytes: 64 << 10, ..plan() }, 1);
    w.down.core.faults().set(Fault::Slow(RTT), Scope::any(), Times::UntilCleared);
    w.write_sized(true, 0, &[10_000; 26]);
    w.start(1);
    w.until("copied", |w| copied(w, 0, 26));
    let feed = w.feed(0);
    assert!(feed.sends >= 5, "{} sends", feed.sends);
    assert!(records_per_send(&feed) >= 2, "{} sends", feed.sends);
    w.assert_equal(1);
}

/// Every fault that a send can meet, while many records go out as one.
#[test]
fn no_fault_of_a_merged_send_loses_or_repeats_a_message_m6() {
    let faults = [
        Fault::DropReply,
        Fault::DropRequest,
        Fault::EmptyConfirmation,
        Fault::Reject { code: 57, applied: true },
        Fault::Reject { code: 57, applied: false },
        Fault::Reject { code: 58, applied: false },
        Fault::LateAppend { after: Duration::from_millis(1500) },
    ];
    for fault in faults {
        for skip in 0..3 {
            let mut w = world_with(plan(), 1);
            write_single(&mut w, 0, 50);
            w.start(1);
            w.until("copied", |w| copied(w, 0, 50));
            w.down.core.faults().set(Fault::Slow(RTT), Scope::sends(), Times::UntilCleared);
            write_single(&mut w, 50, 30);
            w.run(Duration::from_millis(5 + 60 * skip));
            // The rule that was set first acts first.
            w.down.core.faults().clear_all();
            w.down.core.faults().set(fault, Scope::sends(), Times::Next(1));
            w.down.core.faults().set(Fault::Slow(RTT), Scope::sends(), Times::UntilCleared);
            write_single(&mut w, 80, 200);
            w.until("copied", |w| copied(w, 0, 280));
            w.assert_equal(1);
            let feed = w.feed(0);
            assert_eq!(feed.counters.messages, 280, "{fault:?}");
            assert!(records_per_send(&feed) > 1, "{fault:?}: nothing was merged");
        }
    }
}

#[test]
fn a_kill_at_any_moment_between_merged_sends_loses_and_repeats_nothing_m6() {
    for at in (0..600).step_by(7) {
        let mut w = far(300);
        w.start(1);
        w.run(Duration::from_millis(at));
        w.kill();
        write_single(&mut w, 300, 50);
        w.start(1);
        w.until("copied", |w| copied(w, 0, 350));
        w.assert_equal(1);
    }
}

#[test]
fn a_tail_lost_in_the_middle_of_a_merged_batch_is_sent_again_m6() {
    for lost in [1, 7, 99, 130] {
        let mut w = far(200);
        w.start(1);
        w.until("copied", |w| copied(w, 0, 200));
        let before = w.feed(0);
        assert!(before.sends < 20, "{} sends", before.sends);
        w.down.core.log("orders", "events", 0).unwrap().lose_tail(lost);
        w.cut(false, true);
        write_single(&mut w, 200, 10);
        w.until("copied", |w| copied(w, 0, 210) && w.read(false, 0).len() == 210);
        w.assert_equal(1);
        assert_eq!(w.feed(0).epoch, before.epoch + 1, "{lost}");
    }
}

#[test]
fn a_foreign_message_behind_a_merged_batch_is_reported_as_diverged_m6() {
    let mut w = far(100);
    w.start(1);
    w.until("copied", |w| copied(w, 0, 100));
    w.foreign = true;
    w.write(false, 0, 9_000, 1);
    write_single(&mut w, 100, 100);
    w.until("stopped", |w| w.feed(0).condition.status == Status::Error);
    assert_eq!(w.feed(0).condition.reason, "diverged");
}

#[test]
fn one_message_of_a_merged_batch_that_is_never_taken_is_found_among_the_others_m15() {
    let mut w = far(0);
    w.start(1);
    w.until("running", |w| w.feed(0).condition.status == Status::Running);
    w.poison = Some(b"message 13");
    write_single(&mut w, 0, 40);
    for _ in 0..200 {
        w.run(5 * SECOND);
        if w.feed(0).condition.status == Status::Error {
            break;
        }
    }
    let condition = w.feed(0).condition;
    assert_eq!(condition.reason, "bad_record");
    assert!(condition.detail.contains("upstream offset 13:"), "{}", condition.detail);
    assert_eq!(w.read(false, 0).len(), 13, "what precedes it is copied");
}
