//! Plans and worlds that several tests begin with.

use std::sync::Arc;
use std::time::Duration;

use tidegate::batch::TopicName;
use tidegate::config::*;

use crate::world::World;

pub const SECOND: Duration = Duration::from_secs(1);

pub fn cluster(key: &str) -> Arc<ClusterPlan> {
    Arc::new(ClusterPlan {
        key: key.into(),
        addresses: vec!["127.0.0.1:1".into()],
        credentials: Credentials::Token("t".into()),
        connect_timeout: 5 * SECOND,
        request_timeout: 10 * SECOND,
        settle: Settle { configured: 2 * SECOND, several: 10 * SECOND },
        allow_untested_server: false,
    })
}

pub fn plan() -> MirrorPlan {
    MirrorPlan {
        key: "test".into(),
        from: cluster("east"),
        to: cluster("west"),
        topics: vec![TopicPlan {
            upstream: TopicName::new("orders", "events"),
            downstream: TopicName::new("orders", "events"),
        }],
        initial_offset: InitialOffset::Earliest,
        partitions: Partitions::Preserve,
        auto_create: true,
        retry_interval: SECOND,
        max_retry_interval: 60 * SECOND,
        reset_grace: 60 * SECOND,
        state_interval: SECOND,
        discovery_interval: 5 * SECOND,
        degraded_after: 60 * SECOND,
        commit_failure_threshold: 16,
        verify_checksums: true,
        max_batch_bytes: 8 << 20,
        on_offset_expired: OnOffsetExpired::EarliestAvailable,
        on_history_changed: OnHistoryChanged::Fail,
        on_destination_lost: OnDestinationLost::Fail,
        on_nonempty_destination: OnNonemptyDestination::Fail,
        on_missing_upstream: OnMissingUpstream::Wait,
        on_bad_record: OnBadRecord::Fail,
        on_corrupt_state: OnCorruptState::Fail,
    }
}

/// A world with the topic on both sides.
pub fn world_with(plan: MirrorPlan, partitions: u32) -> World {
    let mut world = World::new(plan);
    world.create(true, "orders", "events", partitions);
    world.create(false, "orders", "events", partitions);
    world
}

pub fn world(partitions: u32) -> World {
    world_with(plan(), partitions)
}

pub fn copied(world: &World, partition: u32, position: u64) -> bool {
    world.feed(partition).position >= position
}

/// The same with a destination of `nodes` nodes.
pub fn cluster_world(plan: MirrorPlan, nodes: usize) -> World {
    let mut w = world_with(plan, 1);
    w.cluster(nodes);
    w
}

/// One server as destination, and an upstream of two nodes of which one address is configured.
pub fn upstream_of_two(plan: MirrorPlan) -> World {
    let mut w = cluster_world(plan, 1);
    w.up.core.nodes().add("10.1.0.2", 1);
    w
}

/// Starts the daemon; `messages` messages are copied, and that is saved.
pub fn copy(w: &mut World, messages: u64) {
    w.write(true, 0, 0, messages);
    w.start(1);
    w.until("copied", |w| copied(w, 0, messages));
    w.run(2 * SECOND);
}

/// Something happens while the daemon runs, or between a kill and the next start.
pub fn meanwhile<T>(w: &mut World, killed: bool, happens: impl FnOnce(&mut World) -> T) -> T {
    if killed {
        w.kill();
    }
    let came_of_it = happens(w);
    if killed {
        w.start(1);
    }
    came_of_it
}
