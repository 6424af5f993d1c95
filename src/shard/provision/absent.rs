//! A destination topic that is not there: made, made again, waited for, or lost (M6, M8).

use super::topic::Step;
use super::{Output, Provisioner};
use crate::config::OnDestinationLost;
use crate::shard::reason;
use crate::time::Now;

impl Provisioner {
    /// `changed`: this round has just created it.
    pub(super) fn absent(&mut self, now: Now, index: usize, changed: bool) {
        let name = &self.plan.topics[index].downstream;
        let topic = &mut self.topics[index];
        let detail = format!("destination topic {name} does not exist");
        if changed {
            let detail = format!("{detail} right after it was created");
            return self.retry(now, index, reason::WAITING_DESTINATION, detail);
        }
        if topic.added.is_empty() || !topic.ensuring.is_empty() {
            if self.plan.auto_create && !topic.may_create(now.mono) {
                if !topic.is_released() {
                    self.outputs.push(Output::Release { topic: index });
                    topic.create_at = now.mono + self.plan.max_retry_interval;
                }
                topic.step = Step::FindUpstream;
                topic.due = topic.create_at;
                let detail = format!("{detail}; it is made again once nothing is on its way");
                return topic.say(reason::WAITING_DESTINATION, detail, now);
            }
            if self.plan.auto_create {
                let known = self.catalogue.is_some();
                topic.go(if known { Step::CreateStream } else { Step::AskOptions }, now);
                return;
            }
            return self.retry(now, index, reason::WAITING_DESTINATION, detail);
        }
        let reason = match self.plan.on_destination_lost {
            OnDestinationLost::Fail => reason::DESTINATION_LOST,
            OnDestinationLost::Refill => reason::WAITING_DESTINATION,
        };
        self.retry(now, index, reason, detail);
    }
}
