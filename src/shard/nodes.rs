//! The nodes of a cluster, as addresses: which a server advertises, which the operator wrote
//! down, and which of them are one.
//!
//! An address only ever stands for one node, and a set of voters is either the configured
//! addresses or the advertised ones, never a mixture: one node under two names would count twice.
//! Advertised loopback addresses are believed only over a loopback connection; from elsewhere
//! they lead to another server, possibly to the other side of the mirror.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::event::Place;
use crate::config::same_address;
use crate::iggy_wire::Node;

/// What is known of a cluster's nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nodes {
    configured: Vec<Arc<str>>,
    /// Those of the roster that can be dialled from here.
    advertised: Vec<Arc<str>>,
    /// How many nodes there are.
    count: usize,
}

/// Who is asked where a partition ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Voters {
    /// One address per node.
    pub addresses: Vec<Arc<str>>,
    /// How many of them, and of nodes without a usable address, are a majority.
    pub majority: usize,
    /// The addresses are the cluster's own words.
    pub is_advertised: bool,
}

impl Place {
    /// Whether this is the server at `address`.
    pub fn is(&self, address: &str) -> bool {
        same_address(&self.address, address) || same_address(&self.peer, address)
    }
}

impl Nodes {
    /// What the roster says that came over the connection to `place`. An empty one says nothing:
    /// every configured address is a node then.
    pub fn new(configured: &[String], roster: &[Node], place: &Place) -> Nodes {
        Nodes {
            configured: configured.iter().map(|address| address.as_str().into()).collect(),
            advertised: roster.iter().filter_map(|node| address_of(node, place)).collect(),
            count: if roster.is_empty() { configured.len() } else { roster.len() },
        }
    }

    /// More than one node: a follower's answers may lag.
    pub fn are_several(&self) -> bool {
        self.count > 1
    }

    /// Who is asked. The configured addresses if they are all nodes, else the advertised ones,
    /// unless those cannot be reached.
    pub fn voters(&self, reachable: bool) -> Voters {
        let complete = self.configured.len() >= self.count;
        let is_advertised = !complete && reachable && self.advertised.len() > 1;
        let addresses = if is_advertised { &self.advertised } else { &self.configured };
        let nodes = if is_advertised || complete { self.count } else { self.configured.len() };
        Voters { addresses: addresses.clone(), majority: nodes / 2 + 1, is_advertised }
    }

    /// Where else a send may be tried, in order: configured addresses, then advertised ones that
    /// are not among them.
    pub fn to_try(&self) -> Vec<Arc<str>> {
        let mut all = self.configured.clone();
        for address in &self.advertised {
            if !all.iter().any(|known| same_address(known, address)) {
                all.push(address.clone());
            }
        }
        all
    }
}

/// The address at which a node can be dialled by whoever reached `place`.
pub fn address_of(node: &Node, place: &Place) -> Option<Arc<str>> {
    let host = node.ip.trim_start_matches('[').trim_end_matches(']');
    let ip = host.parse::<IpAddr>().ok();
    let is_here = ip.is_some_and(|ip| ip.is_loopback()) || host.eq_ignore_ascii_case("localhost");
    let from_here = place.peer.parse::<SocketAddr>().is_ok_and(|peer| peer.ip().is_loopback());
    let is_nowhere = ip.is_some_and(|ip| ip.is_unspecified());
    let is_odd = host.is_empty() || host.chars().any(|c| c.is_whitespace() || c.is_control());
    if node.tcp_port == 0 || is_nowhere || is_odd || (is_here && !from_here) {
        return None;
    }
    let port = node.tcp_port;
    Some(match ip {
        Some(IpAddr::V6(ip)) => format!("[{ip}]:{port}").into(),
        _ => format!("{host}:{port}").into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(address: &str, peer: &str) -> Place {
        Place { address: address.into(), peer: peer.into() }
    }

    fn node(ip: &str, tcp_port: u16) -> Node {
        Node { name: "n".into(), ip: ip.into(), tcp_port, leader: false, healthy: true }
    }

    fn texts(addresses: &[Arc<str>]) -> Vec<&str> {
        addresses.iter().map(AsRef::as_ref).collect()
    }

    fn nodes(configured: &[&str], roster: &[(&str, u16)]) -> Nodes {
        let configured: Vec<String> = configured.iter().map(|a| (*a).to_owned()).collect();
        let roster: Vec<Node> = roster.iter().map(|(ip, port)| node(ip, *port)).collect();
        Nodes::new(&configured, &roster, &place("a.example:1", "10.0.0.1:1"))
    }

    #[test]
    fn a_node_is_known_by_name_and_by_address() {
        let place = place("a.example:8090", "10.0.0.1:8090");
        assert!(place.is("A.example.:8090") && place.is("10.0.0.1:8090"));
        assert!(!place.is("10.0.0.1:8091") && !place.is("b.example:8090"));
    }

    #[test]
    fn addresses_that_lead_elsewhere_are_not_used() {
        let far = place("a.example:1", "10.0.0.1:1");
        let near = place("localhost:1", "127.0.0.1:1");
        for (ip, port) in [("0.0.0.0", 1), ("", 1), ("10.0.0.2", 0), ("a b", 1), ("::", 1)] {
            assert_eq!(address_of(&node(ip, port), &near), None, "{ip}:{port}");
        }
        for ip in ["127.0.0.1", "localhost", "::1"] {
            assert_eq!(address_of(&node(ip, 1), &far), None, "{ip} from afar");
            assert!(address_of(&node(ip, 1), &near).is_some(), "{ip} from here");
        }
        assert_eq!(address_of(&node("2001:db8::1", 9), &far).as_deref(), Some("[2001:db8::1]:9"));
        assert_eq!(address_of(&node("n2.internal", 9), &far).as_deref(), Some("n2.internal:9"));
    }

    #[test]
    fn voters_are_never_mixed() {
        let three = [("10.0.0.1", 1), ("10.0.0.2", 1), ("10.0.0.3", 1)];
        let all = nodes(&["a:1", "b:1", "c:1"], &three);
        let some = nodes(&["a:1", "b:1"], &three);
        let voters = all.voters(true);
        assert_eq!(texts(&voters.addresses), ["a:1", "b:1", "c:1"]);
        assert_eq!((voters.majority, voters.is_advertised), (2, false));
        let voters = some.voters(true);
        assert_eq!(texts(&voters.addresses), ["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"]);
        assert_eq!((voters.majority, voters.is_advertised), (2, true));
        let voters = some.voters(false);
        assert_eq!(texts(&voters.addresses), ["a:1", "b:1"]);
        assert_eq!((voters.majority, voters.is_advertised), (2, false));
        let five = [("10.0.0.1", 1), ("10.0.0.2", 1), ("", 1), ("", 1), ("", 1)];
        assert_eq!(nodes(&["a:1"], &five).voters(true).majority, 3, "of five, two in sight");
    }

    #[test]
    fn one_server_is_one_node_whatever_is_configured() {
        assert!(!nodes(&["a:1", "b:1"], &[("10.0.0.1", 1)]).are_several());
        assert!(nodes(&["a:1", "b:1"], &[]).are_several());
        assert!(!nodes(&["a:1"], &[]).are_several());
        assert!(nodes(&["a:1"], &[("10.0.0.1", 1), ("10.0.0.2", 1)]).are_several());
    }

    #[test]
    fn a_send_is_tried_once_at_each_address() {
        let nodes = nodes(&["b:1", "10.0.0.2:1"], &[("10.0.0.1", 1), ("10.0.0.2", 1)]);
        assert_eq!(texts(&nodes.to_try()), ["b:1", "10.0.0.2:1", "10.0.0.1:1"]);
    }
}
