//! One shard as the control thread sees it: its post, its last snapshot, whether it has ended.
//!
//! Letters that do not fit into the mailbox wait here in order; the control thread never blocks.

use std::collections::VecDeque;

use crate::shard::mailbox::{Post, ToShard};
use crate::shard::snapshot::{FeedSnapshot, ShardSnapshot};

/// One shard as the control thread sees it.
pub(super) struct ShardDesk {
    post: Post<ToShard>,
    pub outbox: VecDeque<ToShard>,
    pub snapshot: Option<ShardSnapshot>,
    pub drained: bool,
    pub ended: bool,
}

impl ShardDesk {
    pub fn new(post: Post<ToShard>) -> ShardDesk {
        let outbox = VecDeque::new();
        ShardDesk { post, outbox, snapshot: None, drained: false, ended: false }
    }

    /// Keeps it; true if a feed came, went or has another condition than before.
    pub fn take_snapshot(&mut self, snapshot: ShardSnapshot) -> bool {
        let conditions = |snapshot: &ShardSnapshot| {
            let of = |feed: &FeedSnapshot| (feed.condition.status, feed.condition.reason);
            snapshot.feeds.iter().map(of).collect::<Vec<_>>()
        };
        let before = self.snapshot.as_ref().map(conditions);
        let changed = before.as_ref() != Some(&conditions(&snapshot));
        self.snapshot = Some(snapshot);
        changed
    }

    pub fn send(&mut self, letter: ToShard) {
        if !self.ended {
            self.outbox.push_back(letter);
            self.post_letters();
        }
    }

    pub fn post_letters(&mut self) {
        if self.ended {
            self.outbox.clear();
        }
        while let Some(letter) = self.outbox.pop_front() {
            if let Err(letter) = self.post.send(letter) {
                self.outbox.push_front(letter);
                return;
            }
        }
    }
}
