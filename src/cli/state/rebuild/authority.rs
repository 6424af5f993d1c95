//! The node of the destination whose word counts for a partition (M6): its primary where a server
//! says who that is, else the one with the highest end that a majority of the nodes shows. Asked
//! and counted as a running feed does it, see [`crate::shard::ballot`] and
//! [`crate::shard::nodes`].

use std::sync::Arc;

use super::look::{Links, cluster, words};
use crate::batch::TopicName;
use crate::config::MirrorPlan;
use crate::iggy_wire::{Reply, Request, ServerError};
use crate::shard::ballot::{self, Inquiry, Shown, Silence};
use crate::shard::driver::link::Link;
use crate::shard::event::{Failure, Place};
use crate::shard::nodes::{Heard, MOST_HOPS, Nodes, Voters, address_of};
use crate::shard::provision::Trouble;

/// Which partition, and of which topic.
#[derive(Clone, Copy)]
struct Of<'a> {
    source: &'a MirrorPlan,
    topic: &'a TopicName,
    partition: u32,
    /// Creation time as a configured address shows it.
    created_at: u64,
}

impl Of<'_> {
    fn inquiry(&self) -> Inquiry {
        Inquiry::new(self.topic, self.partition, self.created_at)
    }
}

impl Links {
    /// The nodes of the destination, as the configured address says that answers.
    pub(super) async fn nodes(&mut self, source: &MirrorPlan) -> Result<Nodes, String> {
        nodes_of(&mut self.down, source).await
    }

    /// Looks at this partition of the destination where its end is certain from now on.
    pub(super) async fn go_to_authority(
        &mut self,
        source: &MirrorPlan,
        topic: &TopicName,
        partition: u32,
        created_at: u64,
    ) -> Result<(), String> {
        self.leave_authority().await;
        let nodes = self.nodes(source).await?;
        if !nodes.are_several() {
            return Ok(());
        }
        let of = Of { source, topic, partition, created_at };
        let link = match self.primary(of, &nodes).await {
            Some(primary) => primary,
            None => self.elected(of, &nodes).await?,
        };
        self.authority = Some(link);
        Ok(())
    }

    /// Back to the configured addresses.
    pub(super) async fn leave_authority(&mut self) {
        if let Some(mut link) = self.authority.take() {
            link.close().await;
        }
    }

    fn link(&self, of: Of<'_>, node: &Arc<str>) -> Link {
        Link::to(of.source.to.clone(), self.resolver.clone(), Some(node.clone()))
    }

    /// The primary, if one is known, reached, of this cluster, and says so itself.
    async fn primary(&mut self, of: Of<'_>, nodes: &Nodes) -> Option<Link> {
        let TopicName { stream, topic } = of.topic.clone();
        let ask = Request::Primary { stream, topic, partition: of.partition };
        let mut at = self.link(of, &self.down.place()?.address.clone());
        for _ in 0..=MOST_HOPS {
            let node = match at.ask(&ask).await {
                Ok(Reply::Primary(node)) => node,
                _ => break,
            };
            let Some(place) = at.place() else { break };
            let Some(address) = address_of(&node, place) else { break };
            if nodes.is_shared(&address) {
                break;
            }
            if place.is(&address) {
                return Some(at);
            }
            at.close().await;
            at = self.link(of, &address);
            if !matches!(end_at(&mut at, of.inquiry()).await, Ok(Ok(_))) {
                break;
            }
        }
        at.close().await;
        None
    }

    /// The node with the highest end, once a majority has said where it is.
    async fn elected(&mut self, of: Of<'_>, nodes: &Nodes) -> Result<Link, String> {
        let (mut heard, mut silent) = (Heard::default(), String::new());
        for Voters { addresses, .. } in nodes.voters() {
            let (mut shown, mut mute) = (Vec::new(), String::new());
            for address in &addresses {
                let mut link = self.link(of, address);
                let said = end_at(&mut link, of.inquiry()).await;
                let peer = link.place().map_or(address, |place| &place.peer).clone();
                let place = Place { address: address.clone(), peer };
                link.close().await;
                match said {
                    Ok(Ok(end)) => shown.push(Shown { place, end }),
                    Ok(Err(why)) => mute.push_str(&format!("; {address}: {why}")),
                    Err(trouble) => {
                        mute.push_str(&format!("; {}", words(address, trouble)));
                    }
                }
            }
            (heard, silent) = (heard.max(ballot::heard(nodes, None, &shown)), mute);
            let is_majority = heard.nodes >= nodes.majority();
            if let Some(highest) = ballot::highest(&shown).filter(|_| is_majority) {
                return Ok(self.link(of, &highest.place.address));
            }
        }
        let why = nodes.too_few(heard, &silent);
        Err(format!("{} partition {}: {why}", of.topic, of.partition))
    }
}

/// Which nodes the cluster has; a server that will not say is what is configured.
async fn nodes_of(link: &mut Link, source: &MirrorPlan) -> Result<Nodes, String> {
    let roster = match link.ask(&Request::ClusterMetadata).await {
        Ok(Reply::Cluster(roster)) => roster,
        Ok(_) => return Err(format!("cluster {}: another kind of reply", source.to.key)),
        Err(Trouble::Failed(Failure::Refused(code))) if !(ServerError { code }).is_passing() => {
            Vec::new()
        }
        Err(trouble) => return Err(words(&cluster(&source.to.key), trouble)),
    };
    let place = link.place().ok_or_else(|| format!("cluster {}: not connected", source.to.key))?;
    Ok(Nodes::new(&source.to.addresses, &roster, place))
}

/// Where the partition ends as this node shows it.
async fn end_at(link: &mut Link, mut inquiry: Inquiry) -> Result<Result<u64, Silence>, Trouble> {
    loop {
        let result = match link.ask(&inquiry.request()).await {
            Ok(reply) => Ok(reply),
            Err(Trouble::Failed(failure)) => Err(failure),
            Err(unreachable) => return Err(unreachable),
        };
        if let Some(said) = inquiry.answered(&result) {
            return Ok(said);
        }
    }
}
