//! Asks both clusters what the searches want to know. Decides nothing.

use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::batch::TopicName;
use crate::cli::report;
use crate::cli::state::forget::Selection;
use crate::config::{MirrorPlan, TopicPlan};
use crate::iggy_wire::{PollFrom, Polled, Reply, Request, ServerError, TopicInfo};
use crate::shard::driver::link::Link;
use crate::shard::driver::resolve::{Resolver, ResolverThread};
use crate::shard::driver::runtime::{IoDriver, Runtimes};
use crate::shard::event::Failure;
use crate::shard::provision::Trouble;
use crate::shard::rebuild::entry::Identity;
use crate::shard::rebuild::{Ask, Counted, Search, Side, Step, Verdict, end_of};

/// Pause before a question is repeated.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// Time between two lines about a long search.
const TELL_EVERY: Duration = Duration::from_secs(2);

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    pub source: &'a MirrorPlan,
    /// Everything of the source without it.
    pub selection: Option<Selection<'a>>,
    /// The operator's place.
    pub accept: Option<u64>,
    /// Nobody watches.
    pub quiet: bool,
}

/// One partition, or a topic of which none can be looked at.
#[derive(Debug)]
pub(super) struct Looked {
    /// Index into the source's topics.
    pub topic: usize,
    pub partition: Option<u32>,
    pub answer: Answer,
}

/// What the clusters say.
#[derive(Debug)]
pub(super) enum Answer {
    /// It is not there: what, and what to do.
    Missing(String, &'static str),
    /// What came of the search.
    Verdict(Identity, Verdict),
}

/// Both clusters.
pub(super) struct Links {
    up: Link,
    pub(super) down: Link,
    /// The node of the destination whose word counts for the partition that is looked at; none
    /// where there is one server.
    pub(super) authority: Option<Link>,
    pub(super) resolver: Rc<Resolver>,
}

/// Looks at every wanted partition, one after the other. The error is that of a cluster.
pub(super) fn look(wanted: Wanted<'_>) -> Result<Vec<Looked>, String> {
    with_links(wanted.source, async |links| {
        // What a daemon that died just now had sent may still be appended (M6).
        let several = links.nodes(wanted.source).await?.are_several();
        monoio::time::sleep(wanted.source.to.settle.among(several)).await;
        let mut looked = Vec::new();
        for (index, topic) in wanted.source.topics.iter().enumerate() {
            if wanted.selection.is_none_or(|selection| selection.names(&topic.upstream)) {
                links.topic(wanted, index, topic, &mut looked).await?;
            }
        }
        Ok(looked)
    })
}

/// Where these partitions of the destination end now.
pub(super) fn ends(source: &MirrorPlan, of: &[(TopicName, u32)]) -> Result<Vec<u64>, String> {
    with_links(source, async |links| {
        let mut ends = Vec::new();
        for (topic, partition) in of {
            let down = describe(&mut links.down, &source.to.key, topic).await?;
            if let Some(down) = down {
                links.go_to_authority(source, topic, *partition, down.created_at).await?;
            }
            let (from, count, limit) = (PollFrom::Last, 1, crate::shard::rebuild::LARGEST_REPLY);
            let ask = Ask { side: Side::Destination, from, count, limit };
            let polled = links.poll(ask, topic, *partition).await;
            let polled = polled.map_err(|trouble| words(&cluster(&source.to.key), trouble))?;
            ends.push(end_of(&polled).map_err(|error| error.to_string())?);
        }
        Ok(ends)
    })
}

fn with_links<T>(
    source: &MirrorPlan,
    work: impl AsyncFnOnce(&mut Links) -> Result<T, String>,
) -> Result<T, String> {
    let failed = |error: io::Error| format!("no way to the clusters: {error}");
    let (mut runtime, _) = Runtimes::new(IoDriver::Epoll).build().map_err(failed)?;
    runtime.block_on(async {
        let resolver = ResolverThread::start().and_then(Resolver::new).map_err(failed)?;
        let up = Link::new(source.from.clone(), resolver.clone());
        let down = Link::new(source.to.clone(), resolver.clone());
        let mut links = Links { up, down, authority: None, resolver };
        let done = work(&mut links).await;
        links.leave_authority().await;
        links.up.close().await;
        links.down.close().await;
        done
    })
}

impl Links {
    async fn topic(
        &mut self,
        wanted: Wanted<'_>,
        index: usize,
        topic: &TopicPlan,
        looked: &mut Vec<Looked>,
    ) -> Result<(), String> {
        let source = wanted.source;
        let up = describe(&mut self.up, &source.from.key, &topic.upstream).await?;
        let down = describe(&mut self.down, &source.to.key, &topic.downstream).await?;
        let only = wanted.selection.and_then(|selection| selection.partition);
        let missing = |name: &TopicName, key: &str, to_do| Looked {
            topic: index,
            partition: only,
            answer: Answer::Missing(format!("{name} does not exist on cluster {key}"), to_do),
        };
        let Some(up) = up else {
            let to_do = "restore it, or correct include";
            looked.push(missing(&topic.upstream, &source.from.key, to_do));
            return Ok(());
        };
        let Some(down) = down else {
            let to_do = "restore it; or forget the positions with `tidegate state reset` and let \
                         the copy begin anew";
            looked.push(missing(&topic.downstream, &source.to.key, to_do));
            return Ok(());
        };
        let partitions = only.map_or(0..up.partitions_count, |only| only..only.saturating_add(1));
        for partition in partitions {
            let answer = if partition >= up.partitions_count {
                let (name, has) = (&topic.upstream, up.partitions_count);
                let why = format!("upstream {name} has {has} partitions, numbered from 0");
                Answer::Missing(why, "name one of those")
            } else {
                self.partition(wanted, topic, partition, &up, &down).await?
            };
            looked.push(Looked { topic: index, partition: Some(partition), answer });
        }
        Ok(())
    }

    async fn partition(
        &mut self,
        wanted: Wanted<'_>,
        topic: &TopicPlan,
        partition: u32,
        up: &TopicInfo,
        down: &TopicInfo,
    ) -> Result<Answer, String> {
        let identity = Identity {
            upstream: topic.upstream.clone(),
            downstream: topic.downstream.clone(),
            partition,
            upstream_created_at: up.created_at,
            downstream_created_at: down.created_at,
        };
        if partition >= down.partitions_count && wanted.accept.is_some() {
            let why = format!("{} has {} partitions", topic.downstream, down.partitions_count);
            return Ok(Answer::Missing(why, "add the partition to the destination first"));
        }
        if partition >= down.partitions_count {
            // A start adds it.
            return Ok(Answer::Verdict(identity, Verdict::Empty));
        }
        let counted =
            Counted { upstream: messages(up, partition), destination: messages(down, partition) };
        let name = &topic.downstream;
        self.go_to_authority(wanted.source, name, partition, down.created_at).await?;
        let verdict = self.search(wanted, topic, partition, counted).await?;
        Ok(Answer::Verdict(identity, verdict))
    }

    async fn search(
        &mut self,
        wanted: Wanted<'_>,
        topic: &TopicPlan,
        partition: u32,
        counted: Counted,
    ) -> Result<Verdict, String> {
        let mut search = Search::new(wanted.accept, counted);
        let mut told_at = Instant::now();
        let mut ask = search.ask();
        loop {
            let (name, key) = match ask.side {
                Side::Upstream => (&topic.upstream, &wanted.source.from.key),
                Side::Destination => (&topic.downstream, &wanted.source.to.key),
            };
            let step = match self.poll(ask, name, partition).await {
                Ok(polled) => search.polled(&polled),
                Err(Trouble::Failed(failure)) => search.failed(&failure),
                Err(unreachable) => return Err(words(&cluster(key), unreachable)),
            };
            ask = match step {
                Step::Ask(next) => next,
                Step::AskAgain(next) => {
                    self.side(next.side).close().await;
                    monoio::time::sleep(LOOK_AGAIN).await;
                    next
                }
                Step::Done(verdict) => return Ok(verdict),
            };
            if let Some((read, end)) = search.progress()
                && !wanted.quiet
                && told_at.elapsed() >= TELL_EVERY
            {
                told_at = Instant::now();
                let name = &topic.upstream;
                report::complain(&format!("{name} partition {partition}: read {read} of {end}"));
            }
        }
    }

    async fn poll(
        &mut self,
        ask: Ask,
        name: &TopicName,
        partition: u32,
    ) -> Result<Polled, Trouble> {
        let Ask { side, from, count, limit } = ask;
        let (stream, topic) = (name.stream.clone(), name.topic.clone());
        let poll = Request::Poll { stream, topic, partition, from, count };
        let limit = u32::try_from(limit).unwrap_or(u32::MAX);
        match self.side(side).ask_within(&poll, limit).await? {
            Reply::Polled(polled) => Ok(polled),
            other => Err(Trouble::Failed(Failure::Malformed(format!("{other:?} to a poll")))),
        }
    }

    fn side(&mut self, side: Side) -> &mut Link {
        match side {
            Side::Upstream => &mut self.up,
            Side::Destination => self.authority.as_mut().unwrap_or(&mut self.down),
        }
    }
}

async fn describe(
    link: &mut Link,
    key: &str,
    name: &TopicName,
) -> Result<Option<TopicInfo>, String> {
    let (stream, topic) = (name.stream.clone(), name.topic.clone());
    match link.ask(&Request::Topic { stream, topic }).await {
        Ok(Reply::Topic(info)) => Ok(info),
        Ok(_) => Ok(None),
        Err(Trouble::Failed(Failure::Refused(code))) if (ServerError { code }).is_not_found() => {
            Ok(None)
        }
        Err(trouble) => Err(words(&cluster(key), trouble)),
    }
}

fn messages(info: &TopicInfo, partition: u32) -> u64 {
    let row = info.partitions.iter().find(|row| row.id == partition);
    row.map_or(0, |row| row.messages_count)
}

pub(super) fn cluster(key: &str) -> String {
    format!("cluster {key}")
}

pub(super) fn words(peer: &str, trouble: Trouble) -> String {
    let why = match trouble {
        Trouble::Unreachable(error) => error.to_string(),
        Trouble::Failed(Failure::Refused(code)) => ServerError { code }.to_string(),
        Trouble::Failed(failure) => format!("{failure:?}"),
    };
    format!("{peer}: {why}")
}
