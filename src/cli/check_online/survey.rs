//! Asks clusters and databases. Reads only: what a daemon would create or grow is left as it is.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use super::database::{self, Database};
use crate::batch::{SourceKey, TopicName};
use crate::config::{ClusterPlan, Partitions, Plan};
use crate::iggy_wire::{PollFrom, Reply, Request, ServerError, TopicInfo, Verify, record};
use crate::ingest::history::end_of_empty_reply;
use crate::shard::driver::link::Link;
use crate::shard::driver::resolve::{Resolver, ResolverThread};
use crate::shard::event::{ConnError, Failure};
use crate::shard::provision::Trouble;
use crate::statefile::{CaptureState, FeedState};

/// Positions by source, in the order of the plan.
#[derive(Debug, Default)]
pub(super) struct SavedPositions {
    /// Of mirrors; `None` for one that would not start.
    pub mirrors: Vec<Option<Vec<FeedState>>>,
    /// Of captures.
    pub captures: Vec<Option<CaptureState>>,
}

/// What everybody answered.
#[derive(Debug, Default)]
pub(super) struct Survey {
    /// Every cluster of the sources, by its key.
    clusters: BTreeMap<Arc<str>, Answers>,
    /// The database of every capture, by the capture's key.
    databases: BTreeMap<SourceKey, Database>,
}

/// One cluster.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// Every address and why it is of no use, in the order a daemon tries them.
    pub addresses: Vec<(String, Option<ConnError>)>,
    /// Names and addresses of its nodes.
    pub nodes: BTreeSet<(String, String, u16)>,
    /// Creation times of its streams.
    pub streams: BTreeMap<String, u64>,
    /// Topic options it knows; `None` when it does not say.
    pub options: Option<BTreeSet<String>>,
    /// The topics a source reads or writes there.
    pub topics: BTreeMap<TopicName, Look>,
    /// Where partitions with a saved position end.
    pub ends: BTreeMap<(TopicName, u32), u64>,
    /// The connection ended in the middle of the questions.
    pub broken_off: Option<String>,
}

/// One topic.
#[derive(Debug)]
pub(super) enum Look {
    /// It is there.
    Found(TopicInfo),
    /// It is not.
    Missing,
    /// The cluster would not say.
    Refused(ServerError),
}

/// What to ask one cluster.
#[derive(Debug, Default)]
struct Questions {
    topics: BTreeSet<TopicName>,
    ends: BTreeSet<(TopicName, u32)>,
}

impl Survey {
    /// Asks all clusters and databases at once; to be run inside a runtime.
    pub(super) async fn take(plan: &Plan, saved: SavedPositions) -> io::Result<Survey> {
        let resolver = Resolver::new(ResolverThread::start()?)?;
        let mut asked = Vec::new();
        for (key, questions) in questions(plan, &saved.mirrors) {
            let Some(cluster) = plan.clusters.get(&key) else { continue };
            let asking = ask_cluster(cluster.clone(), resolver.clone(), questions);
            asked.push((key, monoio::spawn(asking)));
        }
        let mut databases = Vec::new();
        for (capture, saved) in plan.captures.iter().zip(saved.captures) {
            let asking = database::ask(capture.clone(), saved, resolver.clone());
            databases.push((capture.key.clone(), monoio::spawn(asking)));
        }
        let mut survey = Survey::default();
        for (key, answers) in asked {
            survey.clusters.insert(key, answers.await);
        }
        for (key, database) in databases {
            survey.databases.insert(key, database.await);
        }
        Ok(survey)
    }

    /// All clusters that were asked.
    pub(super) fn clusters(&self) -> impl Iterator<Item = (&Arc<str>, &Answers)> {
        self.clusters.iter()
    }

    /// One cluster, if it could be reached.
    pub(super) fn reached(&self, key: &str) -> Option<&Answers> {
        self.clusters.get(key).filter(|answers| answers.is_reached())
    }

    /// What the database of a capture said.
    pub(super) fn database(&self, capture: &str) -> Option<&Database> {
        self.databases.get(capture)
    }

    /// One topic of it, if it is known to be there.
    pub(super) fn topic(&self, cluster: &str, topic: &TopicName) -> Option<&TopicInfo> {
        match self.reached(cluster)?.topics.get(topic)? {
            Look::Found(info) => Some(info),
            Look::Missing | Look::Refused(_) => None,
        }
    }
}

impl Answers {
    pub(super) fn is_reached(&self) -> bool {
        self.addresses.iter().any(|(_, error)| error.is_none())
    }
}

fn questions(plan: &Plan, saved: &[Option<Vec<FeedState>>]) -> BTreeMap<Arc<str>, Questions> {
    let mut all: BTreeMap<Arc<str>, Questions> = BTreeMap::new();
    for (source, saved) in plan.sources.iter().zip(saved) {
        for topic in &source.topics {
            let up = all.entry(source.from.key.clone()).or_default();
            up.topics.insert(topic.upstream.clone());
            let exact = source.partitions == Partitions::Preserve;
            let entries = saved.iter().flatten().filter(|feed| {
                exact && feed.upstream == topic.upstream && feed.downstream == topic.downstream
            });
            up.ends.extend(entries.map(|feed| (feed.upstream.clone(), feed.partition)));
            let down = all.entry(source.to.key.clone()).or_default();
            down.topics.insert(topic.downstream.clone());
        }
    }
    for capture in &plan.captures {
        let down = all.entry(capture.to.key.clone()).or_default();
        down.topics.extend(capture.routing.literals());
    }
    all
}

async fn ask_cluster(
    cluster: Arc<ClusterPlan>,
    resolver: Rc<Resolver>,
    questions: Questions,
) -> Answers {
    let mut answers = Answers::default();
    let dial = |address: &String| {
        let one = ClusterPlan { addresses: vec![address.clone()], ..ClusterPlan::clone(&cluster) };
        let mut link = Link::new(Arc::new(one), resolver.clone());
        monoio::spawn(async move {
            let answer = link.ask(&Request::Ping).await;
            (link, answer)
        })
    };
    let dials: Vec<_> = cluster.addresses.iter().map(dial).collect();
    let mut usable = None;
    for (address, dial) in cluster.addresses.iter().zip(dials) {
        let (mut link, answer) = dial.await;
        let error = match answer {
            Err(Trouble::Unreachable(error)) => Some(error),
            Err(Trouble::Failed(failure)) => {
                let why = format!("logged in, but a ping failed: {}", words(&failure));
                Some(ConnError::Dial { address: address.clone(), why })
            }
            Ok(_) => None,
        };
        if error.is_none() && usable.is_none() {
            usable = Some(link);
        } else {
            link.close().await;
        }
        answers.addresses.push((address.clone(), error));
    }
    if let Some(mut link) = usable {
        if let Err(why) = answers.fill(&mut link, questions).await {
            answers.broken_off = Some(why);
        }
        link.close().await;
    }
    answers
}

impl Answers {
    async fn fill(&mut self, link: &mut Link, questions: Questions) -> Result<(), String> {
        if let Ok(Reply::Cluster(nodes)) = ask(link, Request::ClusterMetadata).await? {
            self.nodes = nodes.into_iter().map(|n| (n.name, n.ip, n.tcp_port)).collect();
        }
        if let Ok(Reply::Streams(streams)) = ask(link, Request::Streams).await? {
            self.streams = streams.into_iter().map(|s| (s.name, s.created_at)).collect();
        }
        if let Ok(Reply::Options(options)) = ask(link, Request::DescribeTopicOptions).await? {
            self.options = Some(options.into_iter().map(|option| option.key).collect());
        }
        for name in questions.topics {
            let (stream, topic) = (name.stream.clone(), name.topic.clone());
            let look = match ask(link, Request::Topic { stream, topic }).await? {
                Ok(Reply::Topic(Some(info))) => Look::Found(info),
                Ok(_) => Look::Missing,
                Err(error) => Look::Refused(error),
            };
            self.topics.insert(name, look);
        }
        for (name, partition) in questions.ends {
            if matches!(self.topics.get(&name), Some(Look::Found(_)))
                && let Some(end) = end_of(link, &name, partition).await?
            {
                self.ends.insert((name, partition), end);
            }
        }
        Ok(())
    }
}

/// The cluster's answer, good or bad; an error when there is none.
async fn ask(link: &mut Link, request: Request) -> Result<Result<Reply, ServerError>, String> {
    match link.ask(&request).await {
        Ok(reply) => Ok(Ok(reply)),
        Err(Trouble::Failed(Failure::Refused(code))) => Ok(Err(ServerError { code })),
        Err(Trouble::Failed(failure)) => Err(words(&failure)),
        Err(Trouble::Unreachable(error)) => Err(error.to_string()),
    }
}

/// Where a partition ends; `None` when the last message is too large to look at.
async fn end_of(link: &mut Link, name: &TopicName, partition: u32) -> Result<Option<u64>, String> {
    let (stream, topic) = (name.stream.clone(), name.topic.clone());
    let poll = Request::Poll { stream, topic, partition, from: PollFrom::Last, count: 1 };
    match link.ask(&poll).await {
        Ok(Reply::Polled(polled)) => {
            let records = record::scan(&polled.records, Verify::FramingOnly);
            let last = records.ok().and_then(|records| records.last().map(|r| r.next_offset()));
            Ok(Some(last.unwrap_or_else(|| end_of_empty_reply(&polled))))
        }
        Ok(_) | Err(Trouble::Failed(Failure::Refused(_) | Failure::TooLarge { .. })) => Ok(None),
        Err(Trouble::Failed(failure)) => Err(words(&failure)),
        Err(Trouble::Unreachable(error)) => Err(error.to_string()),
    }
}

fn words(failure: &Failure) -> String {
    match failure {
        Failure::Refused(code) => ServerError { code: *code }.to_string(),
        Failure::TimedOut => "no answer within request_timeout".to_owned(),
        Failure::Lost => "the connection was lost".to_owned(),
        Failure::TooLarge { size } => format!("a reply of {size} bytes is too large"),
        Failure::Malformed(why) => format!("a reply that does not decode: {why}"),
    }
}
