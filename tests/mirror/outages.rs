//! What passes by itself: pauses, outages, servers that start. None of it is a verdict.

use std::time::Duration;

use tidegate::loopback::{Fault, Scope, Times};
use tidegate::shard::event::FromControl;
use tidegate::shard::snapshot::Status;

use super::{copied, world};

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
