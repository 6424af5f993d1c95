//! A broker that plays several nodes of one cluster: one catalogue and one log, seen from each.
//!
//! Every connection is to one node. The *primary* of all partitions takes sends and offset writes,
//! the *leader* takes metadata operations; the others refuse with 58. Reads go anywhere, but a
//! node that is not the primary shows every partition without its last `lag` messages. What a
//! crash of a node would lose is not played.

use iggy_binary_protocol::responses::system::{ClusterMetadataResponse, ClusterNodeResponse};

/// "Not accepted": this node is not the one that decides.
pub(super) const NOT_ACCEPTED: u32 = 58;

/// The nodes and what each of them does.
#[derive(Clone, Debug)]
pub struct Nodes {
    nodes: Vec<Node>,
    primary: Option<usize>,
    leader: usize,
    routes: bool,
}

#[derive(Clone, Debug)]
struct Node {
    ip: String,
    port: u16,
    lag: u64,
    /// Has yet to hear of every topic.
    unaware: bool,
    names: Option<usize>,
}

impl Nodes {
    /// One node, which leads.
    pub(super) fn single(ip: String, port: u16) -> Nodes {
        let node = Node { ip, port, lag: 0, unaware: false, names: None };
        Nodes { nodes: vec![node], primary: Some(0), leader: 0, routes: true }
    }

    /// One more node; its number comes back.
    pub fn add(&mut self, ip: &str, port: u16) -> usize {
        self.nodes.push(Node { ip: ip.to_owned(), port, lag: 0, unaware: false, names: None });
        self.nodes.len() - 1
    }

    /// The address a node advertises from now on.
    pub fn advertise(&mut self, node: usize, ip: &str, port: u16) {
        self.nodes[node].ip = ip.to_owned();
        self.nodes[node].port = port;
    }

    /// Who leads the partitions from now on; `None`: nobody, as in a view change.
    pub fn set_primary(&mut self, node: Option<usize>) {
        self.primary = node;
    }

    /// Who leads the partitions.
    pub fn primary(&self) -> Option<usize> {
        self.primary
    }

    /// Who leads the metadata from now on.
    pub fn set_leader(&mut self, node: usize) {
        self.leader = node;
    }

    /// How many messages of every partition a node does not show unless it is the primary.
    pub fn set_lag(&mut self, node: usize, messages: u64) {
        self.nodes[node].lag = messages;
    }

    /// Whether a node has yet to hear of every topic: it answers that there is none.
    pub fn set_unaware(&mut self, node: usize, unaware: bool) {
        self.nodes[node].unaware = unaware;
    }

    pub(super) fn is_unaware(&self, node: usize) -> bool {
        self.nodes[node].unaware
    }

    /// Whether the question for a partition's primary (103) is known.
    pub fn set_routes(&mut self, known: bool) {
        self.routes = known;
    }

    /// Whom a node takes for the primary; `None`: the true one.
    pub fn set_named(&mut self, node: usize, named: Option<usize>) {
        self.nodes[node].names = named;
    }

    pub(super) fn knows_routes(&self) -> bool {
        self.routes
    }

    pub(super) fn is_primary(&self, node: usize) -> bool {
        self.primary == Some(node)
    }

    pub(super) fn is_leader(&self, node: usize) -> bool {
        self.leader == node
    }

    /// Messages that a node does not show.
    pub(super) fn lag(&self, node: usize) -> u64 {
        if self.is_primary(node) { 0 } else { self.nodes[node].lag }
    }

    /// The primary as a node sees it.
    pub(super) fn route(&self, node: usize) -> Result<ClusterNodeResponse, u32> {
        self.nodes[node].names.or(self.primary).map(|named| self.row(named)).ok_or(NOT_ACCEPTED)
    }

    pub(super) fn roster(&self) -> ClusterMetadataResponse {
        let name = if self.nodes.len() == 1 { "single-node" } else { "loopback-cluster" };
        let nodes = (0..self.nodes.len()).map(|node| self.row(node)).collect();
        ClusterMetadataResponse { name: name.to_owned(), nodes }
    }

    fn row(&self, node: usize) -> ClusterNodeResponse {
        let single = self.nodes.len() == 1;
        let name = if single { "iggy-node".to_owned() } else { format!("iggy-node-{node}") };
        ClusterNodeResponse {
            name,
            ip: self.nodes[node].ip.clone(),
            tcp_port: self.nodes[node].port,
            quic_port: 0,
            http_port: 0,
            websocket_port: 0,
            role: u8::from(!self.is_leader(node)),
            status: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use iggy_binary_protocol::requests::streams::CreateStreamRequest;
    use iggy_binary_protocol::responses::messages::PollRoutingResponse;
    use iggy_binary_protocol::{Operation, WireDecode, WireEncode, WireOptions, result_code};

    use super::super::testing::{Peer, STREAM, TOPIC, confirmed, name, poll_body, polled};
    use super::super::{Control, Server, ServerOptions};

    fn cluster(count: usize) -> (Vec<Server>, Control, Vec<Peer>) {
        let servers = Server::start_cluster(ServerOptions::default(), count).expect("free ports");
        let control = servers[0].control();
        assert!(control.create_topic(STREAM, TOPIC, 1));
        let peers = (1..).zip(&servers).map(|(id, server)| Peer::new(server.address(), id));
        let peers = peers.collect();
        (servers, control, peers)
    }

    fn route(peer: &mut Peer, request: u64) -> Result<u16, u32> {
        peer.write(Operation::NonReplicated, 103, request, &poll_body(0, 0, 1));
        let reply = peer.read().expect("a reply");
        if reply.status != 0 {
            return Err(reply.status);
        }
        let (route, _) = PollRoutingResponse::decode(&reply.body).expect("a route");
        Ok(route.primary.tcp_port)
    }

    #[test]
    fn only_the_primary_takes_sends_and_every_node_shows_them() {
        let (_servers, control, mut peers) = cluster(3);
        assert_eq!(confirmed(&peers[0].send(0, 1, 2)), 0);
        assert_eq!(peers[1].send(0, 3, 1).status, 58);
        control.nodes(|nodes| nodes.set_primary(Some(1)));
        assert_eq!(confirmed(&peers[1].send(0, 3, 1)), 2);
        assert_eq!(peers[0].send(0, 4, 1).status, 58);
        control.nodes(|nodes| nodes.set_primary(None));
        for peer in &mut peers {
            assert_eq!(polled(&peer.poll(0, 0, 10)), Ok(vec![0, 1, 2]));
            assert_eq!(peer.send(0, 4, 1).status, 58);
        }
    }

    #[test]
    fn a_follower_shows_less_until_it_leads() {
        let (_servers, control, mut peers) = cluster(2);
        peers[0].send(0, 1, 3);
        peers[0].send(0, 4, 3);
        control.nodes(|nodes| nodes.set_lag(1, 4));
        let seen = peers[1].poll(0, 0, 10);
        assert_eq!(polled(&seen), Ok(vec![0, 1]), "a record is cut");
        assert_eq!(seen.body[4..12], 1u64.to_le_bytes(), "the last offset");
        assert_eq!(polled(&peers[0].poll(0, 0, 10)).map(|seen| seen.len()), Ok(6));
        control.nodes(|nodes| nodes.set_primary(Some(1)));
        assert_eq!(polled(&peers[1].poll(0, 0, 10)).map(|seen| seen.len()), Ok(6));
    }

    #[test]
    fn a_route_names_the_primary_or_whom_a_node_was_told_to_name() {
        let (servers, control, mut peers) = cluster(2);
        let ports: Vec<u16> = servers.iter().map(|server| server.address().port()).collect();
        assert_eq!(route(&mut peers[1], 1), Ok(ports[0]));
        control.nodes(|nodes| nodes.set_named(0, Some(1)));
        assert_eq!(route(&mut peers[0], 1), Ok(ports[1]));
        control.nodes(|nodes| nodes.set_primary(None));
        assert_eq!(route(&mut peers[1], 2), Err(58));
        control.nodes(|nodes| nodes.set_routes(false));
        assert_eq!(route(&mut peers[1], 3), Err(3));
    }

    #[test]
    fn metadata_changes_at_its_leader() {
        let (_servers, control, mut peers) = cluster(2);
        control.nodes(|nodes| nodes.set_leader(1));
        let body = CreateStreamRequest { name: name("new"), options: WireOptions::empty() };
        let codes = peers.iter_mut().map(|peer| {
            peer.write(Operation::CreateStream, 0, 7, &body.to_bytes());
            let reply = peer.read().expect("a reply");
            result_code(&reply.body)
        });
        assert_eq!(codes.collect::<Vec<_>>(), [Some(58), Some(0)]);
    }
}
