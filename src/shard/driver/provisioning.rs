//! One task per source on the control thread: runs its provisioner, keeps the I/O thin.
//!
//! Before anything else it writes the files of feeds that moved to another shard; until that
//! worked, the source has no feeds, and its old files are what they were.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::control::Control;
use super::files;
use super::link::Link;
use super::log_limit::LogLimit;
use super::notify::Notify;
use crate::batch::{FeedId, TopicName};
use crate::commit::policy::Backoff;
use crate::config::MirrorPlan;
use crate::shard::event::SaveError;
use crate::shard::provision::{Next, Notice, Output, Provisioner, Side, condition};
use crate::shard::reason;
use crate::shard::saved::SavedSource;
use crate::shard::snapshot::{Condition, SourceFinding, Status};
use crate::statefile::{SourceState, format};
use crate::time::{Millis, Now};

/// One source on the control thread.
pub(super) struct Source {
    pub(super) plan: Arc<MirrorPlan>,
    pub(super) index: usize,
    pub(super) first_topic: usize,
    machine: RefCell<Option<Provisioner>>,
    findings: RefCell<Vec<SourceFinding>>,
    logs: RefCell<HashMap<Option<TopicName>, LogLimit>>,
    /// An operator has it rest; the machine hears of it when there is one.
    rests: Cell<bool>,
    poked: Notify,
}

impl Source {
    pub(super) fn new(plan: Arc<MirrorPlan>, index: usize, first_topic: usize) -> Source {
        Source {
            plan,
            index,
            first_topic,
            machine: RefCell::default(),
            findings: RefCell::default(),
            logs: RefCell::default(),
            rests: Cell::new(false),
            poked: Notify::default(),
        }
    }

    /// Wakes the source's task.
    pub(super) fn poke(&self) {
        self.poked.notify();
    }

    /// An operator has it rest, or go on.
    pub(super) fn rest(&self, now: Now, rests: bool) {
        self.rests.set(rests);
        if let Some(machine) = self.machine.borrow_mut().as_mut() {
            machine.rest(now, rests);
        }
        self.poke();
    }

    /// An operator wants it to begin again.
    pub(super) fn begin_again(&self, now: Now) {
        if let Some(machine) = self.machine.borrow_mut().as_mut() {
            machine.begin_again(now);
        }
        self.poke();
    }

    /// A feed wants its destination made again.
    pub(super) fn ensure(&self, now: Now, topic: usize, feed: FeedId) {
        if let Some(machine) = self.machine.borrow_mut().as_mut() {
            machine.ensure(now, topic, feed);
        }
        self.poke();
    }

    /// A feed has let go of its destination.
    pub(super) fn released(&self, now: Now, topic: usize, feed: FeedId) {
        if let Some(machine) = self.machine.borrow_mut().as_mut() {
            machine.released(now, topic, feed);
        }
        self.poke();
    }

    pub(super) fn findings(&self) -> Vec<SourceFinding> {
        self.findings.borrow().clone()
    }

    /// Replaces the findings and logs what changed.
    pub(super) fn set_findings(&self, findings: Vec<SourceFinding>) {
        let before = self.findings.replace(findings.clone());
        let now = Instant::now();
        for finding in &findings {
            let known = before.iter().find(|old| old.topic == finding.topic);
            let (reason, detail) = (finding.condition.reason, &finding.condition.detail);
            let is_news = known.is_none_or(|old| {
                (old.condition.reason, &old.condition.detail) != (reason, detail)
            });
            if is_news && is_told(finding) {
                self.log(finding.topic.as_ref(), now, |left_out| {
                    let advice = finding.condition.advice;
                    let topic = finding.topic.as_ref().map(ToString::to_string);
                    tracing::warn!(
                        source = %self.plan.key, topic, reason, detail, advice, left_out,
                        "not running"
                    );
                });
            }
        }
        for old in before.iter().filter(|old| is_told(old)) {
            if !findings.iter().any(|finding| finding.topic == old.topic) {
                self.log(old.topic.as_ref(), now, |left_out| {
                    let (reason, topic) = (old.condition.reason, old.topic.as_ref());
                    let topic = topic.map(ToString::to_string);
                    tracing::info!(source = %self.plan.key, topic, reason, left_out, "over");
                });
            }
        }
    }

    fn log(&self, topic: Option<&TopicName>, now: Instant, line: impl FnOnce(u64)) {
        let mut logs = self.logs.borrow_mut();
        if let Some(left_out) = logs.entry(topic.cloned()).or_default().allow(now) {
            line(left_out);
        }
    }
}

/// What passes by itself and what an operator ordered is not logged as trouble.
fn is_told(finding: &SourceFinding) -> bool {
    !matches!(finding.condition.status, Status::Starting | Status::Stopped)
}

/// Runs the source until the daemon drains.
pub(super) async fn run(control: Rc<Control>, source: Rc<Source>, saved: SavedSource) {
    for state in &saved.moved {
        if !write_moved(&control, &source, state).await {
            return;
        }
    }
    source.set_findings(Vec::new());
    control.carry(&source, &saved);
    let now = control.clock.now();
    let mut machine = Provisioner::new(now, source.plan.clone(), &saved.feeds, fastrand::u64(..));
    if source.rests.get() {
        machine.rest(now, true);
    }
    source.machine.replace(Some(machine));
    let mut upstream = Link::new(source.plan.from.clone(), control.resolver.clone());
    let mut downstream = Link::new(source.plan.to.clone(), control.resolver.clone());
    while !control.is_draining() {
        match step(&control, &source, saved.generation) {
            Next::Ask { side, request } => {
                let answer = match side {
                    Side::Upstream => upstream.ask(&request).await,
                    Side::Downstream => downstream.ask(&request).await,
                };
                if let Some(machine) = source.machine.borrow_mut().as_mut() {
                    if machine.lacks_partitions(&answer) {
                        machine.copied(control.copied(&source));
                    }
                    machine.answer(control.clock.now(), answer);
                }
            }
            Next::Sleep(until) => {
                let longest = Duration::from_secs(3600);
                source.poked.wait(control.clock.until(until).min(longest)).await;
            }
        }
    }
    upstream.close().await;
    downstream.close().await;
}

/// Carries out what the provisioner decided and asks for more.
fn step(control: &Control, source: &Source, generation: u64) -> Next {
    let mut guard = source.machine.borrow_mut();
    let Some(machine) = guard.as_mut() else { return Next::Sleep(Millis(u64::MAX)) };
    let next = machine.next(control.clock.now());
    let (outputs, findings) = (machine.take_outputs(), machine.findings());
    drop(guard);
    let changed = !outputs.is_empty();
    for output in outputs {
        match output {
            Output::Add(feed) => control.add_feed(source, *feed, generation),
            Output::Ready { feed, result } => control.destination_ready(feed, result),
            Output::Release { topic } => control.release_destination(source, topic),
            Output::LookAgain { topic, created_at } => {
                control.look_again(source, topic, created_at);
            }
            Output::Notice(notice) => tell(&source.plan.key, notice),
        }
    }
    if changed || *source.findings.borrow() != findings {
        source.set_findings(findings);
        control.changed();
    }
    next
}

fn tell(source: &str, notice: Notice) {
    match notice {
        Notice::Done(text) => tracing::info!(source, "{text}"),
        Notice::Unusual(text) => tracing::warn!(source, "{text}"),
    }
}

/// Writes the file of feeds that moved, again and again until it is on disk; false if the daemon
/// drains before that.
async fn write_moved(control: &Control, source: &Source, state: &SourceState) -> bool {
    let mut backoff = Backoff::new(source.plan.retry_interval, source.plan.max_retry_interval);
    let mut rng = fastrand::Rng::new();
    while !control.is_draining() {
        let image = format::encode(state);
        let save = control.state_dir.begin(&source.plan.key, state.shard, image);
        let Err(error) = files::save(&control.state_dir, save, &control.faults).await else {
            return true;
        };
        let reason = match error {
            SaveError::DiskFull { .. } => reason::DISK_FULL,
            SaveError::Io { .. } => reason::SAVE_FAILED,
        };
        let condition: Condition = condition(reason, error.to_string(), control.clock.now());
        let key = source.plan.key.clone();
        source.set_findings(vec![SourceFinding { source: key, topic: None, condition }]);
        control.changed();
        source.poked.wait(backoff.failed(&mut rng)).await;
    }
    false
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::Mutex;

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_creation_is_logged_as_information_and_a_difference_as_a_warning() {
        let writer = Lines::default();
        let into = writer.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).without_time();
        let subscriber = subscriber.with_writer(move || into.clone()).finish();
        tracing::subscriber::with_default(subscriber, || {
            tell("orders", Notice::Done("created".into()));
            tell("orders", Notice::Unusual("left out".into()));
        });
        let text = String::from_utf8(writer.0.lock().unwrap().clone()).unwrap();
        let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
        assert!(lines[0].starts_with("INFO") && lines[0].contains("created"), "{text}");
        assert!(lines[1].starts_with("WARN") && lines[1].contains("left out"), "{text}");
        assert!(text.contains("source=\"orders\""), "{text}");
    }
}
