//! The lane that decides when positions are saved.

use std::time::Duration;

use divan::Bencher;
use tidegate::batch::FeedId;
use tidegate::commit::lane::Lane;
use tidegate::time::Millis;

fn main() {
    divan::main();
}

/// Marked by every partition, started, finished.
#[divan::bench(args = [1, 64, 1_024])]
fn save(bencher: Bencher<'_, '_>, feeds: u32) {
    let mut lane = Lane::new(Duration::ZERO, 0);
    let mut rng = fastrand::Rng::with_seed(1);
    let mut now = 0;
    bencher.bench_local(|| {
        (0..feeds).for_each(|_| lane.mark());
        lane.barrier();
        now += 1;
        let positions = || (0..feeds).map(|feed| (FeedId(feed), 7)).collect();
        let generation = lane.start(Millis(now), positions).expect("a barrier is due");
        lane.finished(Millis(now), generation, true, &mut rng)
    });
}
