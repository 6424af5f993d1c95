//! Messages at a steady rate, and how long each takes until the destination has acked it.
//!
//! Every message has a time at which it is due, and that is its origin timestamp, whatever happens:
//! a producer that falls behind sends all that is due in one batch, and the wait is in the figure
//! (no coordinated omission). One producer for each partition, each on a connection of its own.
#![allow(clippy::disallowed_methods)] // threads and the clock

use std::io;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::client::{Client, Endpoint};
use super::drain::now;
use super::error::BenchError;
use super::relay::{Destination, Side, Upstream};
use super::wait::Patience;
use crate::iggy_wire::build::{Message, build_record};
use crate::iggy_wire::{Request, SendTo};

/// Microseconds of every counted message.
pub type Ways = Histogram<u64>;

/// Longest way that is told apart from longer ones.
const LONGEST: u64 = 60_000_000;
/// Seconds at the beginning that are not counted.
const WARM_UP: u64 = 1;
/// Before the first message, so that whoever copies has found its topics.
const REST: Duration = Duration::from_millis(300);

/// How fast, how long.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Messages a second, over all partitions.
    pub rate: u32,
    /// Seconds that count; one more goes before.
    pub seconds: u64,
    /// Payload bytes of a message.
    pub size: u32,
    /// Partitions, and so producers.
    pub partitions: u32,
}

impl Pace {
    /// Produces upstream while `side` copies.
    pub fn through(
        &self,
        side: &mut Side,
        upstream: &Upstream,
        mut destination: Destination,
        patience: &Patience,
    ) -> Result<Ways, BenchError> {
        // Once a message of every partition is through, the copy runs.
        let first = Pace { rate: self.partitions, seconds: 0, ..*self };
        let (stream, topic) = (upstream.stream(), Upstream::TOPIC);
        let endpoint = upstream.endpoint();
        let sent = first.produce(&endpoint, stream, topic)?;
        side.until(patience, "the first messages", || Ok(destination.acked()?.messages >= sent))?;
        std::thread::sleep(REST);
        destination.watch();
        let sent = sent + self.produce(&endpoint, stream, topic)?;
        side.until(patience, "the last message", || Ok(destination.acked()?.messages >= sent))?;
        self.counted(&destination)
    }

    /// Produces at the destination itself.
    pub fn direct(
        &self,
        stream: &str,
        mut destination: Destination,
        patience: &Patience,
    ) -> Result<Ways, BenchError> {
        destination.watch();
        let sent = self.produce(&destination.endpoint(), stream, destination.topic())?;
        // An ack is on its way before it is counted.
        patience.for_that("the last message", || Ok(destination.acked()?.messages >= sent))?;
        self.counted(&destination)
    }

    /// Messages of a run, the ones at the beginning too.
    pub fn messages(&self) -> u64 {
        u64::from(self.share()) * u64::from(self.partitions)
    }

    /// Messages of one producer.
    fn share(&self) -> u32 {
        let seconds = u32::try_from(self.seconds + WARM_UP).unwrap_or(u32::MAX);
        (self.rate / self.partitions).max(1).saturating_mul(seconds)
    }

    fn produce(&self, to: &Endpoint, stream: &str, topic: &str) -> Result<u64, BenchError> {
        // Producers do not begin in step.
        let begin = (Instant::now() + Duration::from_millis(50), now() + 50_000);
        let sent = std::thread::scope(|scope| {
            let producers: Vec<_> = (0..self.partitions)
                .map(|partition| {
                    scope.spawn(move || self.produce_one(to, stream, topic, partition, begin))
                })
                .collect();
            producers.into_iter().try_fold(0, |sum, producer| match producer.join() {
                Ok(sent) => Ok(sum + sent?),
                Err(panic) => std::panic::resume_unwind(panic),
            })
        });
        sent.map_err(BenchError::machine("a producer"))
    }

    fn produce_one(
        &self,
        to: &Endpoint,
        stream: &str,
        topic: &str,
        partition: u32,
        (begin, begin_wall): (Instant, u64),
    ) -> io::Result<u64> {
        let mut client = Client::connect(to)?;
        let payload = vec![7; self.size as usize];
        let every = 1_000_000 / u64::from((self.rate / self.partitions).max(1));
        let shift = every * u64::from(partition) / u64::from(self.partitions);
        let due = |number: u64| shift + number * every;
        let (count, mut sent) = (u64::from(self.share()), 0);
        while sent < count {
            let elapsed = Instant::now().saturating_duration_since(begin).as_micros();
            let elapsed = u64::try_from(elapsed).unwrap_or(u64::MAX);
            let behind = (sent..count).take_while(|number| due(*number) <= elapsed).count() as u64;
            if behind == 0 {
                let at = begin + Duration::from_micros(due(sent));
                std::thread::sleep(at.saturating_duration_since(Instant::now()));
                continue;
            }
            let message = |number: u64| Message {
                id: u128::from(number) + 1,
                origin_timestamp: begin_wall + due(number),
                payload: &payload,
                user_headers: &[],
            };
            let messages: Vec<Message<'_>> = (sent..sent + behind).map(message).collect();
            let record = build_record(&messages).map_err(io::Error::other)?;
            let (stream, topic, to) = (stream.into(), topic.into(), SendTo::Partition(partition));
            client.expect(&Request::Send { stream, topic, to, record })?;
            sent += behind;
        }
        Ok(sent)
    }

    /// What the destination saw, behind the beginning.
    fn counted(&self, destination: &Destination) -> Result<Ways, BenchError> {
        let arrivals = destination.arrivals();
        let (seen, expected) = (arrivals.len() as u64, self.messages());
        if seen != expected {
            let what = "messages acked at a steady rate".to_owned();
            return Err(BenchError::Different { what, seen, expected });
        }
        let first = arrivals.iter().map(|arrival| arrival.origin).min().unwrap_or(0);
        let from = first + WARM_UP * 1_000_000;
        let mut ways = histogram();
        for arrival in arrivals.iter().filter(|arrival| arrival.origin >= from) {
            ways.saturating_record(arrival.acked.saturating_sub(arrival.origin));
        }
        Ok(ways)
    }
}

/// An empty one, of three digits.
pub fn histogram() -> Ways {
    Histogram::new_with_bounds(1, LONGEST, 3).expect("constant bounds that are in order")
}
