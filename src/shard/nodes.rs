//! The nodes of a cluster, as addresses: which a server advertises, which the operator wrote
//! down, and which of them are one.
//!
//! An address only ever stands for one node, and a set of voters is either the configured
//! addresses or the advertised ones, never a mixture: one node under two names would count twice.
//! Which answers came from different nodes is told by what the cluster calls them, see
//! [`Nodes::told_apart`]. How many nodes there are is what the roster counts, whatever their
//! addresses: nodes that share one, as behind a translated network, have one vote among them, and a
//! majority stays that of all. Advertised loopback addresses are believed only over a loopback
//! connection; from elsewhere they lead to another server, perhaps to the mirror's other side.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::event::Place;
use crate::config::same_address;
use crate::iggy_wire::Node;

/// Moves from node to node, each because of what the last one said, before whoever moves stays
/// where it is (H08).
pub const MOST_HOPS: u32 = 3;

/// What is known of a cluster's nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nodes {
    configured: Vec<Arc<str>>,
    /// Those of the roster that can be dialled from here, each once.
    advertised: Vec<Arc<str>>,
    /// Those that several nodes advertise.
    shared: Vec<Arc<str>>,
    /// How many nodes there are.
    count: usize,
}

/// Who is asked where a partition ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Voters {
    /// One address per node.
    pub addresses: Vec<Arc<str>>,
    /// The addresses are the cluster's own words.
    pub is_advertised: bool,
}

/// How many answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Heard {
    /// Nodes for certain.
    pub nodes: usize,
    /// Addresses.
    pub answers: usize,
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
        let mut nodes = Nodes::default();
        for address in configured {
            nodes.configured.extend(once(&nodes.configured, address.as_str().into()));
        }
        for address in roster.iter().filter_map(|node| address_of(node, place)) {
            match once(&nodes.advertised, address.clone()) {
                Some(new) => nodes.advertised.push(new),
                None => nodes.shared.extend(once(&nodes.shared, address)),
            }
        }
        nodes.count = if roster.is_empty() { nodes.configured.len() } else { roster.len() };
        nodes
    }

    /// More than one node: a follower's answers may lag.
    pub fn are_several(&self) -> bool {
        self.count > 1
    }

    /// How many nodes have to answer before their word counts.
    pub fn majority(&self) -> usize {
        self.count / 2 + 1
    }

    /// Who is asked, and who is asked next where too few of those can be reached: the configured
    /// addresses if there are as many as nodes, and the advertised ones if they are a majority.
    /// Fewer configured addresses say nothing: two of them may lead to one node (its IPv4 and its
    /// IPv6 address), and would be a majority of three.
    pub fn voters(&self) -> Vec<Voters> {
        let configured = Voters { addresses: self.configured.clone(), is_advertised: false };
        let advertised = Voters { addresses: self.advertised.clone(), is_advertised: true };
        let mut all = Vec::new();
        if self.configured.len() >= self.count {
            all.push(configured);
        }
        if self.advertised.len() >= self.majority() {
            all.push(advertised);
        }
        all
    }

    /// How many nodes certainly answered, of those at these places; all of one set of voters.
    ///
    /// One node may be reached at several addresses (IPv4 and IPv6, a name of its own), so only
    /// what the cluster calls a node tells it from another: as soon as one configured address or
    /// its peer is an advertised one, the others that are not count for nothing. Where none is,
    /// as behind a translated network, the operator's word has to do that every node is named:
    /// then each address beyond the number of nodes may be the second one of any.
    pub fn told_apart(&self, places: &[Place]) -> usize {
        let of_peer = |peer: &str| self.advertised.iter().position(|it| same_address(it, peer));
        let name_of = |place: &Place| of_peer(&place.peer).or_else(|| of_peer(&place.address));
        let is_one = |name: usize| !self.is_shared(&self.advertised[name]);
        let (mut peers, mut names) = (Vec::new(), Vec::new());
        let (mut named, mut unnamed, mut again) = (0_usize, 0, 0);
        for place in places {
            let name = name_of(place);
            let is_new =
                !peers.contains(&&place.peer) && !name.is_some_and(|it| names.contains(&it));
            peers.push(&place.peer);
            names.extend(name);
            match name {
                _ if !is_new => again += 1,
                Some(_) => named += 1,
                None => unnamed += 1,
            }
        }
        let calls = |address: &Arc<str>| of_peer(address).is_some_and(is_one);
        let tells = names.iter().any(|name| is_one(*name)) || self.configured.iter().any(calls);
        let spare = (self.configured.len().saturating_sub(again)).saturating_sub(self.count);
        let sure = if tells { named } else { (named + unnamed).saturating_sub(spare) };
        sure.max(usize::from(!places.is_empty()))
    }

    /// Whether an address is advertised by several nodes: who is named by it is not known.
    pub fn is_shared(&self, address: &str) -> bool {
        self.shared.iter().any(|shared| same_address(shared, address))
    }

    /// Whether an address is the operator's word, not the cluster's.
    pub fn is_configured(&self, address: &str) -> bool {
        self.configured.iter().any(|known| same_address(known, address))
    }

    /// Whether an address is configured or advertised at all.
    pub fn names(&self, address: &str) -> bool {
        self.to_try().iter().any(|known| same_address(known, address))
    }

    /// Where else a send may be tried, in order: configured addresses, then advertised ones that
    /// are not among them.
    pub fn to_try(&self) -> Vec<Arc<str>> {
        let mut all = self.configured.clone();
        for address in &self.advertised {
            all.extend(once(&all, address.clone()));
        }
        all
    }

    /// That too few nodes answered, and what to do where too few are configured, or where some of
    /// those that answered cannot be told apart.
    pub fn too_few(&self, heard: Heard, silent: &str) -> String {
        let (count, majority, configured) = (self.count, self.majority(), self.configured.len());
        let Heard { nodes, answers } = heard;
        let few = if configured < count {
            let advertised = self.advertised.len();
            format!(
                "; {configured} configured and {advertised} usable advertised addresses are \
                 known: name every node in addresses"
            )
        } else if answers > nodes {
            format!(
                "; {answers} addresses answered, which may lead to fewer nodes: name each node \
                 once in addresses, as it is advertised"
            )
        } else {
            String::new()
        };
        format!(
            "{nodes} nodes say what the destination holds, {majority} of {count} are a \
             majority{few}{silent}"
        )
    }
}

/// The address, unless it is known.
fn once(known: &[Arc<str>], address: Arc<str>) -> Option<Arc<str>> {
    (!known.iter().any(|known| same_address(known, &address))).then_some(address)
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

    /// The sets that are asked: each by its first letter, and its addresses.
    fn sets(nodes: &Nodes) -> Vec<(bool, Vec<String>)> {
        let owned = |set: Voters| {
            let addresses = set.addresses.iter().map(|address| address.to_string()).collect();
            (set.is_advertised, addresses)
        };
        nodes.voters().into_iter().map(owned).collect()
    }

    fn set(is_advertised: bool, addresses: &[&str]) -> (bool, Vec<String>) {
        (is_advertised, addresses.iter().map(|address| (*address).to_owned()).collect())
    }

    #[test]
    fn voters_are_never_mixed_and_always_a_majority_of_all_nodes() {
        let three = [("10.0.0.1", 1), ("10.0.0.2", 1), ("10.0.0.3", 1)];
        let advertised = set(true, &["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"]);
        let all = nodes(&["a:1", "b:1", "c:1"], &three);
        assert_eq!(sets(&all), [set(false, &["a:1", "b:1", "c:1"]), advertised.clone()]);
        let some = nodes(&["a:1", "b:1"], &three);
        assert_eq!(
            sets(&some),
            std::slice::from_ref(&advertised),
            "two names of one node, perhaps"
        );
        let hidden = nodes(&["a:1", "b:1"], &[("", 1), ("", 1), ("", 1)]);
        assert_eq!(sets(&hidden), []);
        assert_eq!(sets(&nodes(&["a:1"], &three)), [advertised], "one of three says nothing");
        for nodes in [&all, &some] {
            assert_eq!(nodes.majority(), 2);
        }
        let five = [("10.0.0.1", 1), ("10.0.0.2", 1), ("", 1), ("", 1), ("", 1)];
        let five = nodes(&["a:1"], &five);
        assert_eq!((five.majority(), sets(&five)), (3, vec![]), "of five, two in sight");
        let heard = |nodes, answers| Heard { nodes, answers };
        let few = five.too_few(heard(0, 0), "");
        assert!(few.contains("3 of 5 are a majority; 1 configured and 2"), "{few}");
        assert!(some.too_few(heard(1, 1), "").contains("name every node"));
        assert!(!all.too_few(heard(1, 1), "").contains("; name"));
        assert!(all.too_few(heard(1, 2), "").contains("2 addresses answered"));
    }

    /// How many nodes these addresses are for certain; `name@peer` or the peer alone.
    fn apart(nodes: &Nodes, heard: &[&str]) -> usize {
        let place_of = |text: &&str| {
            let (address, peer) = text.split_once('@').unwrap_or((text, text));
            place(address, peer)
        };
        nodes.told_apart(&heard.iter().map(place_of).collect::<Vec<_>>())
    }

    #[test]
    fn two_addresses_of_one_node_are_one_vote() {
        let three = [("10.0.0.1", 1), ("10.0.0.2", 1), ("10.0.0.3", 1)];
        // As many addresses as nodes, and two of them lead to the first one.
        let twice = nodes(&["10.0.0.1:1", "[fd00::1]:1", "10.0.0.2:1"], &three);
        assert_eq!(apart(&twice, &["10.0.0.1:1", "[fd00::1]:1"]), 1);
        assert_eq!(apart(&twice, &["[fd00::1]:1", "10.0.0.2:1"]), 1, "who the first is, who knows");
        assert_eq!(apart(&twice, &["[fd00::1]:1"]), 1, "one at least");
        assert_eq!(apart(&twice, &["10.0.0.1:1", "[fd00::1]:1", "10.0.0.2:1"]), 2);
        // Names: what they lead to tells.
        let named = nodes(&["a:1", "a6:1", "b:1"], &three);
        assert_eq!(apart(&named, &["a:1@10.0.0.1:1", "a6:1@[fd00::1]:1"]), 1);
        assert_eq!(apart(&named, &["a:1@10.0.0.1:1", "b:1@10.0.0.2:1"]), 2);
        assert_eq!(apart(&named, &["a:1@10.0.0.1:1", "b:1@10.0.0.1:1"]), 1);
        let by_name = nodes(&["n1:1", "n2:1", "n3:1"], &[("n1", 1), ("n2", 1), ("n3", 1)]);
        assert_eq!(apart(&by_name, &["n1:1@10.0.0.1:1", "n2:1@10.0.0.2:1"]), 2);
        assert_eq!(apart(&by_name, &[]), 0);
    }

    #[test]
    fn addresses_that_no_node_advertises_are_believed_to_name_every_node() {
        let hidden = [("172.17.0.2", 1), ("172.17.0.3", 1), ("172.17.0.4", 1)];
        let each = nodes(&["a:1", "b:1", "c:1"], &hidden);
        assert_eq!(apart(&each, &["a:1", "b:1"]), 2);
        assert_eq!(apart(&each, &["a:1@10.0.0.1:1", "b:1@10.0.0.1:1"]), 1);
        // One too many: any of them may be the second one of any other.
        let more = nodes(&["a:1", "a6:1", "b:1", "c:1"], &hidden);
        assert_eq!(apart(&more, &["a:1", "a6:1"]), 1);
        assert_eq!(apart(&more, &["a:1", "a6:1", "b:1"]), 2);
        // Unless it is known which.
        assert_eq!(apart(&more, &["a:1@10.0.0.1:1", "a6:1@10.0.0.1:1", "b:1"]), 2);
        let alike = nodes(&["10.0.0.1:1", "b:1", "c:1"], &[("10.0.0.1", 1); 3]);
        assert_eq!(apart(&alike, &["10.0.0.1:1", "b:1"]), 2, "what all are called tells nothing");
        assert_eq!(apart(&nodes(&["a:1", "b:1"], &[]), &["a:1", "b:1"]), 2);
    }

    #[test]
    fn nodes_that_share_an_address_have_one_vote() {
        let shared = [("10.0.0.1", 1), ("10.0.0.1", 1), ("10.0.0.1", 1)];
        let one = nodes(&["a:1"], &shared);
        assert_eq!((one.majority(), sets(&one)), (2, vec![]));
        assert!(one.is_shared("10.0.0.1:1") && one.are_several());
        let listed = nodes(&["a:1", "b:1", "c:1"], &shared);
        assert_eq!(sets(&listed), [set(false, &["a:1", "b:1", "c:1"])]);
        let two = nodes(&["a:1"], &[("n1", 1), ("N1.", 1), ("n2", 1)]);
        assert_eq!(sets(&two), [set(true, &["n1:1", "n2:1"])]);
        assert!(two.is_shared("n1:1") && !two.is_shared("n2:1"));
        assert_eq!(texts(&two.to_try()), ["a:1", "n1:1", "n2:1"]);
        let twice = nodes(&["a:1", "A.:1"], &[("n1", 1), ("n2", 1)]);
        assert_eq!(sets(&twice), [set(true, &["n1:1", "n2:1"])], "one configured node");
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
