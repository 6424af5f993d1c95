//! Both ends of the measured copy: an upstream topic that is filled once, and for every run a
//! destination that is empty. Brokers in this process, or real servers.

use std::io;
use std::time::Duration;

use bytes::Bytes;

use super::super::client::{Client, Endpoint};
use super::super::drain::now;
use super::super::error::BenchError;
use crate::iggy_wire::build::{Message as Built, build_record};
use crate::iggy_wire::{Reply, Request, SendTo};
use crate::loopback::{
    Acked, Arrival, Control, Fault, Message, Scope, Server, ServerOptions, Times,
};

/// Bytes that small records may take in this process's memory.
const MOST_BYTES: u64 = 6 << 30;

/// What is copied.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Payload bytes of a message.
    pub size: u32,
    /// Messages of a record.
    pub record: u32,
    /// Partitions of the topic.
    pub partitions: u32,
}

/// The upstream topic, filled.
pub struct Upstream {
    stream: String,
    shape: Shape,
    /// Topics of that shape, more than one only on a broker in this process.
    topics: u32,
    /// Records of each partition.
    records: Vec<u64>,
    end: End,
    real_down: Option<Endpoint>,
    /// Replies of built-in brokers come so much later.
    round_trip: Duration,
}

enum End {
    Loopback(Server),
    Real(Endpoint),
}

/// An empty topic to copy to.
pub struct Destination {
    topic: String,
    end: DestinationEnd,
}

enum DestinationEnd {
    Loopback(Server),
    Real(Box<Watched>),
}

struct Watched {
    endpoint: Endpoint,
    client: Client,
    stream: String,
}

impl Shape {
    /// Bytes of one record as a server stores it.
    pub fn record_bytes(&self) -> u64 {
        256 + u64::from(self.record) * (48 + u64::from(self.size))
    }
}

impl Upstream {
    /// Its name.
    pub const TOPIC: &str = "messages";

    /// Starts a broker, or connects to the servers, and creates the topic.
    pub fn open(
        shape: Shape,
        real: Option<(Endpoint, Endpoint)>,
        round_trip: Duration,
    ) -> Result<Upstream, BenchError> {
        let stream = format!("tidegate-bench-{:08x}", fastrand::u32(..));
        let (end, real_down) = match real {
            Some((up, down)) => {
                let mut client = Client::connect(&up).map_err(server(&up))?;
                create(&mut client, &stream, Upstream::TOPIC, shape.partitions)
                    .map_err(server(&up))?;
                (End::Real(up), Some(down))
            }
            None => {
                let broker = start(round_trip, false)?;
                broker.control().create_topic(&stream, Upstream::TOPIC, shape.partitions);
                (End::Loopback(broker), None)
            }
        };
        let records = vec![0; shape.partitions as usize];
        Ok(Upstream { stream, shape, topics: 1, records, end, real_down, round_trip })
    }

    /// A broker in this process with several topics.
    pub fn open_topics(shape: Shape, topics: u32) -> Result<Upstream, BenchError> {
        let partitions = shape.partitions;
        let mut upstream = Upstream::open(shape, None, Duration::ZERO)?;
        upstream.topics = topics;
        if let End::Loopback(broker) = &upstream.end {
            for number in 1..topics {
                let topic = numbered(Upstream::TOPIC, number);
                broker.control().create_topic(&upstream.stream, &topic, partitions);
            }
        }
        Ok(upstream)
    }

    /// Upstream's topics with the ones they are copied to.
    pub fn pairs(&self, destination: &Destination) -> Vec<(String, String)> {
        let pair = |number| {
            let to = numbered(destination.topic(), number);
            (numbered(Upstream::TOPIC, number), to)
        };
        (0..self.topics).map(pair).collect()
    }

    /// Appends records, spread evenly, until each topic has so many messages or a few more; how
    /// many it has then.
    pub fn fill(&mut self, messages: u64) -> Result<u64, BenchError> {
        let record = u64::from(self.shape.record);
        let wanted = messages.div_ceil(record);
        let stored = wanted.saturating_mul(self.shape.record_bytes());
        if self.shape.record_bytes() < 32 << 10 && stored > MOST_BYTES && self.is_loopback() {
            let why = format!("{stored} bytes of small records do not fit in memory");
            return Err(BenchError::Refused(why));
        }
        let width = u64::from(self.shape.partitions);
        let mut client = match &self.end {
            End::Real(up) => Some(Client::connect(up).map_err(server(up))?),
            End::Loopback(_) => None,
        };
        let payload = payload(self.shape.size);
        for partition in 0..self.shape.partitions {
            let at = partition as usize;
            let total = wanted / width + u64::from(u64::from(partition) < wanted % width);
            let missing = total.saturating_sub(self.records[at]);
            match (&self.end, &mut client) {
                (End::Loopback(broker), _) => {
                    self.append(&broker.control(), partition, &payload, missing)?;
                }
                (End::Real(up), Some(client)) => {
                    let sent = self.send(client, partition, &payload, missing);
                    sent.map_err(server(up))?;
                }
                (End::Real(_), None) => {}
            }
            self.records[at] += missing;
        }
        Ok(self.messages())
    }

    /// Messages in each topic.
    pub fn messages(&self) -> u64 {
        self.records.iter().sum::<u64>() * u64::from(self.shape.record)
    }

    /// Whether it is a broker in this process.
    pub fn is_loopback(&self) -> bool {
        matches!(self.end, End::Loopback(_))
    }

    /// Where it is.
    pub fn endpoint(&self) -> Endpoint {
        match &self.end {
            End::Loopback(broker) => Endpoint::local(broker.address()),
            End::Real(up) => up.clone(),
        }
    }

    /// Stream of both topics.
    pub fn stream(&self) -> &str {
        &self.stream
    }

    /// An empty topic.
    pub fn destination(&self) -> Result<Destination, BenchError> {
        let topic = format!("copy-{:08x}", fastrand::u32(..));
        let partitions = self.shape.partitions;
        let end = match &self.real_down {
            Some(down) => {
                let mut client = Client::connect(down).map_err(server(down))?;
                create(&mut client, &self.stream, &topic, partitions).map_err(server(down))?;
                let (endpoint, stream) = (down.clone(), self.stream.clone());
                DestinationEnd::Real(Box::new(Watched { endpoint, client, stream }))
            }
            None => {
                let broker = start(self.round_trip, true)?;
                for number in 0..self.topics {
                    let topic = numbered(&topic, number);
                    broker.control().create_topic(&self.stream, &topic, partitions);
                }
                DestinationEnd::Loopback(broker)
            }
        };
        Ok(Destination { topic, end })
    }

    fn append(
        &self,
        control: &Control,
        partition: u32,
        payload: &Bytes,
        records: u64,
    ) -> Result<(), BenchError> {
        let message = |number: u32| Message {
            id: u128::from(number) + 1,
            origin_timestamp: now(),
            payload: payload.clone(),
            user_headers: Bytes::new(),
        };
        let messages: Vec<Message> = (0..self.shape.record).map(message).collect();
        (0..self.topics).try_for_each(|number| {
            let topic = numbered(Upstream::TOPIC, number);
            let made = control.append_copies(&self.stream, &topic, partition, &messages, records);
            made.map_err(|error| BenchError::Refused(error.to_string()))
        })
    }

    fn send(
        &self,
        client: &mut Client,
        partition: u32,
        payload: &Bytes,
        records: u64,
    ) -> io::Result<()> {
        let message = |number: u32| Built {
            id: u128::from(number) + 1,
            origin_timestamp: now(),
            payload,
            user_headers: &[],
        };
        let messages: Vec<Built<'_>> = (0..self.shape.record).map(message).collect();
        let record = build_record(&messages).map_err(io::Error::other)?;
        let (stream, topic) = (self.stream.as_str().into(), Upstream::TOPIC.into());
        let to = SendTo::Partition(partition);
        let send = Request::Send { stream, topic, to, record };
        (0..records).try_for_each(|_| client.expect(&send).map(drop))
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        let (End::Real(up), Some(down)) = (&self.end, &self.real_down) else { return };
        for endpoint in [up, down] {
            // What cannot be deleted stays under a name that says whose it is.
            let _ = Client::connect(endpoint).and_then(|client| client.delete_stream(&self.stream));
        }
    }
}

impl Destination {
    /// Its topic.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// Where it is.
    pub fn endpoint(&self) -> Endpoint {
        match &self.end {
            DestinationEnd::Loopback(broker) => Endpoint::local(broker.address()),
            DestinationEnd::Real(watched) => watched.endpoint.clone(),
        }
    }

    /// What arrived so far. A real server counts messages alone, and trails a little.
    pub fn acked(&mut self) -> Result<Acked, BenchError> {
        match &mut self.end {
            DestinationEnd::Loopback(broker) => Ok(broker.control().acked()),
            DestinationEnd::Real(watched) => {
                let topic = Request::Topic {
                    stream: watched.stream.as_str().into(),
                    topic: self.topic.as_str().into(),
                };
                let reply = watched.client.expect(&topic).map_err(server(&watched.endpoint))?;
                let messages = match reply {
                    Reply::Topic(Some(info)) => info.messages_count,
                    _ => 0,
                };
                Ok(Acked { messages, sends: 0, last: now() })
            }
        }
    }

    /// Remembers each message from now on, where it is a broker in this process.
    pub fn watch(&self) {
        if let DestinationEnd::Loopback(broker) = &self.end {
            broker.control().watch_arrivals(true);
        }
    }

    /// The messages that were remembered.
    pub fn arrivals(&self) -> Vec<Arrival> {
        match &self.end {
            DestinationEnd::Loopback(broker) => broker.control().take_arrivals(),
            DestinationEnd::Real(_) => Vec::new(),
        }
    }
}

/// `discard`: messages are checked and forgotten.
fn start(round_trip: Duration, discard: bool) -> Result<Server, BenchError> {
    let options = ServerOptions { discard, ..ServerOptions::default() };
    let broker = Server::start(options).map_err(BenchError::machine("a broker"))?;
    if !round_trip.is_zero() {
        for scope in [Scope::polls(), Scope::sends()] {
            broker.control().fault(Fault::Slow(round_trip), scope, Times::UntilCleared);
        }
    }
    Ok(broker)
}

fn create(client: &mut Client, stream: &str, topic: &str, partitions: u32) -> io::Result<()> {
    // A run before this one may have made it.
    let _ = client.ask(&Request::CreateStream { stream: stream.into() })?;
    let (stream, topic) = (stream.into(), topic.into());
    client.expect(&Request::CreateTopic { stream, topic, partitions, options: Vec::new() })?;
    Ok(())
}

/// The first topic has the name itself.
fn numbered(name: &str, number: u32) -> String {
    if number == 0 { name.to_owned() } else { format!("{name}-{number}") }
}

/// Bytes that nothing can make smaller.
fn payload(size: u32) -> Bytes {
    let mut bytes = vec![0; size as usize];
    fastrand::Rng::with_seed(4).fill(&mut bytes);
    bytes.into()
}

fn server(endpoint: &Endpoint) -> impl Fn(io::Error) -> BenchError {
    let address = endpoint.address.clone();
    move |why| BenchError::Server { address: address.clone(), why }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_spread_over_partitions_and_a_fill_adds_what_is_missing() {
        let shape = Shape { size: 100, record: 10, partitions: 3 };
        let mut upstream = Upstream::open(shape, None, Duration::ZERO).unwrap();
        assert_eq!(upstream.fill(45).unwrap(), 50);
        assert_eq!(upstream.fill(70).unwrap(), 70);
        assert_eq!(upstream.fill(20).unwrap(), 70, "never fewer");
        let End::Loopback(broker) = &upstream.end else { panic!("a broker") };
        let end = |partition| {
            broker.control().end(upstream.stream(), Upstream::TOPIC, partition).unwrap()
        };
        assert_eq!([end(0), end(1), end(2)], [30, 20, 20]);
    }

    #[test]
    fn messages_of_a_record_may_be_sent_to_a_server_as_well() {
        let shape = Shape { size: 50, record: 4, partitions: 2 };
        let brokers = [(); 2].map(|()| Server::start(ServerOptions::default()).unwrap());
        let at = |n: usize| Endpoint::local(brokers[n].address());
        let real = Some((at(0), at(1)));
        let mut upstream = Upstream::open(shape, real, Duration::ZERO).unwrap();
        assert_eq!(upstream.fill(16).unwrap(), 16);
        let stream = upstream.stream().to_owned();
        let control = brokers[0].control();
        assert_eq!(control.dump(&stream, Upstream::TOPIC, 1, 0, 99).unwrap().len(), 8);
        let mut destination = upstream.destination().unwrap();
        assert_eq!(destination.acked().unwrap().messages, 0);
        drop(upstream);
        assert!(control.end(&stream, Upstream::TOPIC, 0).is_err(), "nothing is left behind");
    }
}
