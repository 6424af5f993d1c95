//! The fixed reserve of a shard under pressure. [`World`] audits the books at every turn: nothing
//! above its bound, and never less than what is in memory.

use std::time::Duration;

use tidegate::batch::FeedId;
use tidegate::config::budget::{FEED_SHARE, SHARD_RESERVE};
use tidegate::config::{MirrorPlan, OnDestinationLost};
use tidegate::loopback::faults::Op;
use tidegate::loopback::{Fault, Scope, Times};
use tidegate::shard::event::FromControl;
use tidegate::shard::snapshot::{FeedSnapshot, Status};

use super::{SECOND, plan, world_with};
use crate::world::World;

const FEEDS: u32 = 200;
/// Messages that every partition holds before the resume.
const BEFORE: u64 = 20;
const MIB: u64 = 1 << 20;

/// Hundreds of partitions, copied once and killed: every one has to compare when it starts again.
fn killed() -> World {
    let mut w = world_with(plan(), FEEDS);
    w.limit = SHARD_RESERVE + u64::from(FEEDS) * FEED_SHARE + 16 * MIB;
    w.kill();
    for partition in 0..FEEDS {
        // Some compare a full MiB, most a little.
        let size = if partition % 20 == 0 { 60_000 } else { 500 };
        w.write_sized(true, partition, &[size; BEFORE as usize]);
    }
    w.start(FEEDS);
    until(&mut w, "copied", |w| all(w, |feed| feed.position == BEFORE));
    w.run(5 * SECOND);
    w.kill();
    for partition in 0..FEEDS {
        w.write_sized(true, partition, &[100]);
    }
    w
}

/// Polls of both sides take this long, as far as `scope` goes.
fn slow(w: &mut World, time: Duration) {
    let polls = || Scope { op: Op::Poll, ..Scope::any() };
    w.up.core.faults().set(Fault::Slow(time), polls(), Times::UntilCleared);
    w.down.core.faults().set(Fault::Slow(time), polls(), Times::UntilCleared);
}

fn heal(w: &mut World) {
    w.up.core.faults().clear_all();
    w.down.core.faults().clear_all();
    (w.up.up, w.down.up) = (true, true);
}

fn all(w: &World, is_so: impl Fn(&FeedSnapshot) -> bool) -> bool {
    w.feeds().iter().all(is_so)
}

/// [`World::until`], looking less often: hundreds of feeds are a lot to look at.
fn until(w: &mut World, what: &str, done: impl Fn(&World) -> bool) {
    for _ in 0..6000 {
        w.run(Duration::from_millis(50));
        if done(w) {
            return;
        }
    }
    panic!("never: {what}\n{:#?}", w.feeds());
}

/// [`World::assert_equal`] without showing megabytes.
fn assert_equal(w: &mut World, partitions: u32) {
    for partition in 0..partitions {
        let texts = |side: Vec<(u64, String)>| side.into_iter().map(|(_, text)| text);
        let (up, down) = (w.read(true, partition), w.read(false, partition));
        assert!(texts(up).eq(texts(down)), "partition {partition} differs");
    }
}

fn waits(feed: &FeedSnapshot) -> bool {
    let condition = &feed.condition;
    condition.reason == "resuming" && condition.detail.contains("waits for its turn")
}

/// Everything is copied, and nothing stays lent.
fn finishes(w: &mut World) {
    until(w, "all go on", |w| all(w, |feed| feed.position == BEFORE + 1));
    until(w, "nothing is lent", |w| w.reserve() == (0, 0));
    assert_equal(w, FEEDS);
    assert!(w.feeds().iter().all(|feed| feed.condition.status == Status::Running));
}

/// Runs until a good part of the feeds has finished and many still wait.
fn into_the_middle(w: &mut World) {
    w.start(FEEDS);
    until(w, "in the middle", |w| {
        let running = |feed: &&FeedSnapshot| feed.condition.status == Status::Running;
        w.feeds().iter().filter(running).count() > 20
    });
    assert!(w.reserve().1 > 100, "{:?}", w.reserve());
}

#[test]
fn hundreds_of_feeds_resume_within_the_reserve() {
    let mut w = killed();
    slow(&mut w, Duration::from_millis(150));
    w.start(FEEDS);
    let mut first = None;
    w.until("the first goes on", |w| {
        assert!(w.memory.total() <= SHARD_RESERVE, "{:?}", w.memory);
        let feeds = w.feeds();
        first = feeds.iter().find(|feed| feed.condition.status == Status::Running).cloned();
        first.is_some()
    });
    assert_eq!(first.map(|feed| feed.partition), Some(0), "first come, first served");
    let waiting = w.feeds().iter().filter(|feed| waits(feed)).count();
    assert!(waiting > FEEDS as usize - 20, "{waiting} of {FEEDS} wait");
    finishes(&mut w);
    assert!(w.most_waiting > FEEDS as usize - 20, "{} waited", w.most_waiting);
    assert!(w.most_lent > SHARD_RESERVE - 2 * MIB, "{} bytes were lent", w.most_lent);
}

#[test]
fn a_drain_ends_while_feeds_wait_for_the_reserve() {
    let mut w = killed();
    slow(&mut w, Duration::from_millis(150));
    into_the_middle(&mut w);
    w.drain();
    until(&mut w, "drained", |w| w.is_drained());
    assert!(w.feeds().iter().all(|feed| feed.condition.reason == "drained"));
    w.run(SECOND);
    assert_eq!(w.reserve(), (0, 0));
    assert_eq!(w.saved().unwrap().feeds.len(), FEEDS as usize);
    w.kill();
    heal(&mut w);
    w.start(FEEDS);
    finishes(&mut w);
}

#[test]
fn a_pause_empties_the_line_and_its_end_fills_it_again() {
    let mut w = killed();
    slow(&mut w, Duration::from_millis(150));
    into_the_middle(&mut w);
    let pause = |paused| FromControl::Pause { source: "test".into(), paused };
    w.tell(pause(true));
    until(&mut w, "all rest", |w| all(w, |feed| feed.condition.reason == "paused"));
    w.run(SECOND);
    assert_eq!(w.reserve(), (0, 0));
    w.tell(pause(false));
    w.until("wait again", |w| w.reserve().1 > 50);
    finishes(&mut w);
}

#[test]
fn connections_lost_while_feeds_wait_for_the_reserve_are_survived() {
    let mut w = killed();
    slow(&mut w, Duration::from_millis(150));
    into_the_middle(&mut w);
    w.cut(false, false);
    assert!(w.reserve().1 > 100);
    w.run(SECOND);
    assert_eq!(w.reserve().1, 0, "who cannot begin does not wait");
    w.down.up = true;
    w.until("wait again", |w| w.reserve().1 > 50);
    w.cut(true, true);
    w.run(3 * SECOND);
    w.cut(false, true);
    w.cut(true, false);
    w.run(3 * SECOND);
    heal(&mut w);
    finishes(&mut w);
}

#[test]
fn a_holder_that_is_never_answered_does_not_stop_the_line() {
    let mut w = killed();
    for partition in 0..10 {
        let silent = Scope { op: Op::Poll, ..Scope::any() }.partition(partition);
        w.down.core.faults().set(Fault::DropReply, silent, Times::UntilCleared);
    }
    w.start(FEEDS);
    let goes_on = |feed: &FeedSnapshot| feed.position == BEFORE + 1;
    until(&mut w, "the others go on", |w| all(w, |feed| feed.partition < 10 || goes_on(feed)));
    assert!(w.feeds().iter().all(|feed| goes_on(feed) == (feed.partition >= 10)));
    heal(&mut w);
    finishes(&mut w);
}

/// A feed that gives up while a reply is on its way must not let that reply be a surprise.
#[test]
fn a_reply_that_outlives_its_round_stays_in_the_books() {
    let mut w = killed();
    // Upstream answers late; the destination is cut meanwhile, again and again.
    let polls = Scope { op: Op::Poll, ..Scope::any() };
    w.up.core.faults().set(Fault::Slow(4 * SECOND), polls, Times::UntilCleared);
    w.start(FEEDS);
    for _ in 0..20 {
        w.run(Duration::from_millis(1700));
        w.cut(false, true);
    }
    heal(&mut w);
    finishes(&mut w);
}

#[test]
fn cut_records_are_renumbered_where_they_lie_and_borrow_nothing() {
    let feeds = 10;
    let mut w = world_with(plan(), feeds);
    for partition in 0..feeds {
        w.write_batch(true, partition, &[10_000; 400]);
    }
    let sends = Scope::sends();
    w.down.core.faults().set(Fault::Slow(Duration::from_millis(400)), sends, Times::UntilCleared);
    w.start(feeds);
    until(&mut w, "streaming", |w| all(w, |feed| feed.sends > 0));
    // [`World`] asks at every turn that no send lies outside of the replies' buffers.
    while !all(&w, |feed| feed.position == 400) {
        w.run(Duration::from_millis(5));
        assert_eq!(w.reserve(), (0, 0));
    }
    assert!(all(&w, |feed| feed.sends > 1), "nothing was cut");
    assert_equal(&mut w, feeds);
}

#[test]
fn a_feed_that_waits_for_anything_else_keeps_nothing() {
    let refill = OnDestinationLost::Refill;
    let mut w = world_with(MirrorPlan { on_destination_lost: refill, ..plan() }, 1);
    w.write(true, 0, 0, 100);
    w.start(1);
    w.until("copied", |w| w.feed(0).position == 100);
    // For its destination to stop answering as if it were empty.
    let until = w.wall() + 20_000_000;
    w.down.core.starting_until(until);
    w.cut(false, true);
    w.until("held", |w| w.feed(0).condition.reason == "destination_not_ready");
    w.until("keeps nothing", |w| w.reserve() == (0, 0) && w.memory.total() == 0);
    assert_eq!(w.feed(0).condition.reason, "destination_not_ready");
    w.until("goes on", |w| w.feed(0).condition.status == Status::Running);
    // For its destination to be made again.
    w.down.core.forget_topic("orders", "events");
    w.write(true, 0, 100, 1);
    w.until("asked for it", |w| !w.to_control.is_empty());
    w.until("keeps nothing", |w| w.reserve() == (0, 0) && w.memory.total() == 0);
    let created = w.create(false, "orders", "events", 1);
    w.tell(FromControl::DestinationReady { feed: FeedId(0), result: Ok(created) });
    w.until("refilled", |w| w.feed(0).position == 101);
    assert_equal(&mut w, 1);
}

#[test]
fn a_send_that_timed_out_stays_in_the_books_until_its_connection_is_down() {
    let mut w = world_with(plan(), 3);
    for partition in 0..3 {
        w.write_batch(true, partition, &[10_000; 400]);
    }
    let sends = || Scope::sends();
    w.down.core.faults().set(Fault::Slow(SECOND), sends(), Times::UntilCleared);
    w.start(3);
    w.until("sent", |w| w.memory.replies > MIB);
    w.down.core.faults().clear_all();
    w.down.core.faults().set(Fault::DropRequest, sends(), Times::Next(6));
    until(&mut w, "copied", |w| all(w, |feed| feed.position == 400));
    assert!(w.most_dying > 1_000_000, "{} bytes timed out", w.most_dying);
    assert_equal(&mut w, 3);
}

#[test]
fn a_feed_that_ended_gives_everything_back() {
    let mut w = world_with(plan(), 1);
    w.write_batch(true, 0, &[10_000; 100]);
    w.start(1);
    w.until("copied", |w| w.feed(0).position == 100);
    let slow = Fault::Slow(5 * SECOND);
    w.down.core.faults().set(slow, Scope::sends(), Times::UntilCleared);
    w.write_batch(true, 0, &[10_000; 100]);
    w.until("sent", |w| w.memory.replies > 500_000);
    w.up.core.forget_topic("orders", "events");
    w.create(true, "orders", "events", 1);
    w.cut(true, true);
    w.until("stopped", |w| w.feed(0).condition.reason == "history_changed");
    w.until("nothing is held", |w| w.memory.total() == 0);
}

#[test]
fn the_slot_is_kept_until_its_message_has_left_the_buffers() {
    let feeds = 14;
    let mut w = world_with(plan(), feeds);
    w.limit = SHARD_RESERVE + u64::from(feeds) * FEED_SHARE + MIB;
    w.kill();
    w.grant_large_slot = true;
    for partition in 0..feeds {
        w.write_sized(true, partition, &[6 << 20, 10]);
    }
    let sends = Scope::sends();
    w.down.core.faults().set(Fault::Slow(2 * SECOND), sends, Times::UntilCleared);
    w.start(feeds);
    until(&mut w, "copied", |w| all(w, |feed| feed.position == 2));
    assert_equal(&mut w, feeds);
}

#[test]
fn a_wish_for_the_slot_survives_a_lost_connection_and_is_granted_once() {
    let mut w = world_with(MirrorPlan { state_interval: SECOND, ..plan() }, 2);
    w.limit = SHARD_RESERVE + 2 * FEED_SHARE + MIB;
    w.kill();
    w.write_sized(true, 0, &[6 << 20, 10]);
    w.write_sized(true, 1, &[6 << 20, 10]);
    w.start(2);
    w.until("both want it", |w| w.large_wanted.len() == 2);
    for _ in 0..3 {
        w.cut(false, true);
        w.run(5 * SECOND);
        w.cut(true, true);
        w.run(5 * SECOND);
        assert_eq!(w.large_wanted.len(), 2, "nobody asks twice");
    }
    w.drain();
    until(&mut w, "drained", |w| w.is_drained());
    w.grant_large_slot = true;
    w.run(SECOND);
    assert_eq!(w.large_wanted.len(), 2, "no letter from a feed that ended");
    w.kill();
    w.to_control.clear();
    w.start(2);
    until(&mut w, "copied", |w| all(w, |feed| feed.position == 2));
    assert_equal(&mut w, 2);
}
