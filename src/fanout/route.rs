//! From a row to its destination (R1 to R3, R6). What depends on the table alone is worked out
//! once per relation version ([`Router::bind`]); a row then costs two column reads and one look
//! at the table of destinations. A known destination's verdict is cached in its record.
//!
//! by_table wins over the columns. NULL or a missing column means the default of that part.
//! Where nothing says anything, `on_missing_destination` decides.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::admission::{Disposition, Reason, disposition, judge};
use super::destinations::{DestId, Destinations, Standing};
use super::partition::{self, Wish};
use crate::batch::TopicName;
use crate::config::{
    AdmissionPlan, CapturePlan, KeyEncoding, OnMissingDestination, PartitionBy, RoutingPlan,
};

/// A row's columns as text, by position.
pub trait Columns {
    /// The text of a column; `None` for NULL and for a value the row does not carry.
    fn text(&self, index: usize) -> Option<&[u8]>;

    /// The texts of two of them.
    fn two_texts(&self, indexes: [Option<usize>; 2]) -> [Option<&[u8]>; 2] {
        indexes.map(|index| index.and_then(|index| self.text(index)))
    }
}

/// What a relation version makes of the routing.
#[derive(Clone, Debug)]
pub struct BoundRoute {
    place: Place,
    /// What every row of it is meant for, unless its columns say that.
    meant: Option<TopicName>,
    key: Key,
    stripped: Vec<usize>,
}

impl BoundRoute {
    /// Positions of the columns that stay out of the payload, ascending.
    pub fn stripped(&self) -> &[usize] {
        &self.stripped
    }

    /// Which partition a row asks for.
    pub fn wish(&self, row: &impl Columns) -> Wish {
        self.key.wish(row)
    }

    /// Positions of the columns that routing reads: their values must be text.
    pub fn reads(&self) -> impl Iterator<Item = usize> {
        let named = match &self.place {
            Place::Columns { stream, topic } => [*stream, *topic],
            Place::Fixed(_) => [None, None],
        };
        let key: &[usize] = match &self.key {
            Key::None => &[],
            Key::Column { index, .. } => std::slice::from_ref(index),
            Key::Identity(indexes) => indexes,
        };
        named.into_iter().flatten().chain(key.iter().copied())
    }
}

#[derive(Clone, Debug)]
enum Place {
    /// The same for every row.
    Fixed(Verdict),
    /// Read from the row; the default where a part is absent.
    Columns { stream: Option<usize>, topic: Option<usize> },
}

/// What admission says of a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// There is a record; its standing says the rest.
    Record(DestId),
    DeadLetter(Reason),
    Dropped(Reason),
    /// No destination, by policy.
    Missing(OnMissingDestination),
}

#[derive(Clone, Debug)]
enum Key {
    None,
    Column { index: usize, encoding: KeyEncoding },
    Identity(Vec<usize>),
}

/// Which group of a destination a row joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyChoice {
    /// This partition.
    Partition(u32),
    /// One that is worked out when the topic's partitions are known.
    Later(Wish),
}

/// Where a row goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routed {
    /// There.
    Destination(DestId, KeyChoice),
    /// It is written for this destination like any other, and waits there.
    Held(DestId, KeyChoice, Reason),
    /// It has no destination and waits.
    Unmatched(DestId),
    /// To the dead-letter topic, with the headers of [`super::admission::dead_letter_headers`].
    DeadLetter(DestId, Reason),
    /// Counted and forgotten; `None`: it had no destination.
    Dropped(Option<Reason>),
}

/// A column that routing needs was there and is not any more (P6).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "table {table} has no column {column:?} any more, which {key} of the source names; put it \
     back, or name the table's destination in by_table or another {key}, and restart"
)]
pub struct RouteError {
    /// Schema and name.
    pub table: String,
    /// The column.
    pub column: String,
    /// Which key names it.
    pub key: &'static str,
}

/// Messages by what became of them, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouteCounters {
    /// Not sent to their destination, by [`Reason::index`].
    pub rejected: [u64; Reason::ALL.len()],
    /// Without a destination of their own, gone to the default.
    pub unmatched_default: u64,
    /// Without a destination, dropped.
    pub unmatched_drop: u64,
    /// Without a destination, kept.
    pub unmatched_error: u64,
}

/// Routes the rows of one source.
#[derive(Debug)]
pub struct Router {
    plan: Arc<CapturePlan>,
    /// Routing columns that a table had, by schema and name.
    seen: BTreeMap<(String, String), BTreeSet<String>>,
    dead_letter: Option<DestId>,
    counters: RouteCounters,
}

impl Router {
    /// Reserves the places of the destinations that the plan names, so that rows cannot take
    /// them: the default must be there when it is needed.
    pub fn new(plan: Arc<CapturePlan>, table: &mut Destinations) -> Router {
        for name in plan.routing.literals() {
            table.admit(&name.stream, &name.topic);
        }
        let dead_letter = plan.routing.admission.dead_letter.as_ref();
        let dead_letter = dead_letter.and_then(|name| table.admit(&name.stream, &name.topic));
        Router { plan, seen: BTreeMap::new(), dead_letter, counters: RouteCounters::default() }
    }

    /// Remembers the routing columns that tables had before this start.
    pub fn remember(&mut self, tables: impl IntoIterator<Item = ((String, String), Vec<String>)>) {
        for (table, columns) in tables {
            self.seen.entry(table).or_default().extend(columns);
        }
    }

    /// Every table seen that had a column that the plan routes by, with those columns.
    pub fn routed(&self) -> impl Iterator<Item = (&(String, String), Vec<String>)> {
        let RoutingPlan { topic_column, stream_column, partition_key_column, .. } =
            &self.plan.routing;
        let named = [topic_column, stream_column, partition_key_column];
        let of_plan = move |table, columns: &BTreeSet<String>| {
            let counts = |column: &&String| named.iter().any(|name| name.as_ref() == Some(column));
            let kept: Vec<String> = columns.iter().filter(counts).cloned().collect();
            (!kept.is_empty()).then_some((table, kept))
        };
        self.seen.iter().filter_map(move |(table, columns)| of_plan(table, columns))
    }

    /// What became of the messages so far.
    pub fn counters(&self) -> &RouteCounters {
        &self.counters
    }

    /// The dead-letter topic.
    pub fn dead_letter(&self) -> Option<DestId> {
        self.dead_letter
    }

    /// Counts a message that could not be sent for a reason found after routing.
    pub fn reject(&mut self, reason: Reason) {
        self.counters.rejected[reason.index()] += 1;
    }

    /// The route of a relation: its columns with whether they belong to the key.
    pub fn bind(
        &mut self,
        table: &mut Destinations,
        schema: &str,
        name: &str,
        columns: &[(&str, bool)],
    ) -> Result<BoundRoute, RouteError> {
        let plan = self.plan.clone();
        let routing = &plan.routing;
        let mut find = |key: &'static str, column: &Option<String>| -> Result<_, RouteError> {
            let Some(column) = column else { return Ok(None) };
            let index = columns.iter().position(|(name, _)| *name == column);
            let place = (schema.to_owned(), name.to_owned());
            if index.is_some() {
                self.seen.entry(place).or_default().insert(column.clone());
            } else if self.seen.get(&place).is_some_and(|seen| seen.contains(column)) {
                let (table, column) = (format!("{schema}.{name}"), column.clone());
                return Err(RouteError { table, column, key });
            }
            Ok(index)
        };
        let by_table = routing.by_table.iter().find(|(table, _)| table.is(schema, name));
        let fixed = by_table.map(|(_, to)| to).or(routing.bound.as_ref());
        let stripped = [
            find("topic_column", &routing.topic_column),
            find("stream_column", &routing.stream_column),
        ];
        let key_column = find("partition_key_column", &routing.partition_key_column);
        let [topic, stream] = stripped;
        // A table with a destination of its own may lose them, and with one in by_table the key.
        let (topic, stream) = match fixed {
            Some(_) => (topic.unwrap_or(None), stream.unwrap_or(None)),
            None => (topic?, stream?),
        };
        let key_column = if by_table.is_some() { key_column.unwrap_or(None) } else { key_column? };
        let (place, meant) = match fixed {
            Some(to) => (Place::Fixed(self.admit(table, to)), Some(to)),
            None if routing.topic_column.is_some() || routing.stream_column.is_some() => {
                (Place::Columns { stream, topic }, None)
            }
            None => {
                let missing = Verdict::Missing(routing.on_missing_destination);
                (Place::Fixed(missing), routing.default.as_ref())
            }
        };
        let key = match (key_column, routing.partition_by) {
            (Some(index), _) => Key::Column { index, encoding: routing.partition_key_encoding },
            (None, PartitionBy::Identity) => {
                let keys = columns.iter().enumerate().filter(|(_, (_, is_key))| *is_key);
                Key::Identity(keys.map(|(index, _)| index).collect())
            }
            (None, PartitionBy::Balanced) => Key::None,
        };
        let mut stripped: Vec<usize> =
            if routing.strip { topic.into_iter().chain(stream).collect() } else { Vec::new() };
        stripped.sort_unstable();
        stripped.dedup();
        Ok(BoundRoute { place, meant: meant.cloned(), key, stripped })
    }

    /// Stream and topic that a row is meant for, whether they are names or not: for the headers
    /// of a dead letter.
    pub fn meant<'r>(
        &'r self,
        bound: &'r BoundRoute,
        row: &'r impl Columns,
    ) -> (&'r [u8], &'r [u8]) {
        let usual = bound.meant.as_ref().or(self.plan.routing.default.as_ref());
        let usual =
            usual.map_or((&[][..], &[][..]), |to| (to.stream.as_bytes(), to.topic.as_bytes()));
        let Place::Columns { stream, topic } = &bound.place else { return usual };
        let own = |index: &Option<usize>| index.and_then(|index| row.text(index));
        (own(stream).unwrap_or(usual.0), own(topic).unwrap_or(usual.1))
    }

    /// Where a row goes, counted.
    pub fn route(
        &mut self,
        table: &mut Destinations,
        bound: &BoundRoute,
        row: &impl Columns,
    ) -> Routed {
        let verdict = match &bound.place {
            Place::Fixed(verdict) => *verdict,
            Place::Columns { stream, topic } => self.read(table, row, *stream, *topic),
        };
        let dest = match verdict {
            Verdict::Record(dest) => dest,
            Verdict::Missing(OnMissingDestination::Default) => {
                self.counters.unmatched_default += 1;
                match self.default_verdict(table) {
                    Verdict::Record(dest) => dest,
                    other => return self.refused(other),
                }
            }
            other => {
                if let Verdict::Missing(OnMissingDestination::Error) = other {
                    self.counters.unmatched_error += 1;
                    return Routed::Unmatched(table.nowhere());
                }
                return self.refused(other);
            }
        };
        self.towards(table, dest, bound, row)
    }

    /// A row on its way to a record.
    fn towards(
        &mut self,
        table: &Destinations,
        dest: DestId,
        bound: &BoundRoute,
        row: &impl Columns,
    ) -> Routed {
        let record = table.at(dest);
        let wish = bound.key.wish(row);
        let choice = choose(wish, record.partitions(), record.turn);
        let reason = match record.standing {
            Standing::Live if record.breaker.is_open() => Some(Reason::CircuitOpen),
            Standing::Live => None,
            Standing::Refused(reason) => Some(reason),
            Standing::Nowhere => return Routed::Unmatched(dest),
        };
        let is_outside = matches!((choice, record.partitions()),
            (KeyChoice::Partition(id), Some(count)) if id >= count);
        let outside = is_outside.then_some(Reason::PartitionIdOutOfRange);
        let Some(reason) = reason.or(outside) else {
            return Routed::Destination(dest, choice);
        };
        match disposition(&self.plan.routing.admission, reason) {
            Disposition::Keep => {
                self.reject(reason);
                Routed::Held(dest, choice, reason)
            }
            Disposition::Drop => self.refused(Verdict::Dropped(reason)),
            Disposition::DeadLetter => self.refused(Verdict::DeadLetter(reason)),
        }
    }

    fn read(
        &mut self,
        table: &mut Destinations,
        row: &impl Columns,
        stream: Option<usize>,
        topic: Option<usize>,
    ) -> Verdict {
        let RoutingPlan { default, topic_column, stream_column, .. } = &self.plan.routing;
        // A plan has no column without a default.
        let Some(default) = default else {
            return Verdict::Missing(OnMissingDestination::Error);
        };
        let [own_stream, own_topic] = row.two_texts([stream, topic]);
        let lacks_topic = topic_column.is_some() && own_topic.is_none();
        let lacks_stream = stream_column.is_some() && own_stream.is_none();
        self.counters.unmatched_default += u64::from(lacks_topic || lacks_stream);
        let stream = own_stream.unwrap_or(default.stream.as_bytes());
        let topic = own_topic.unwrap_or(default.topic.as_bytes());
        admit(&self.plan.routing.admission, table, stream, topic)
    }

    fn default_verdict(&self, table: &mut Destinations) -> Verdict {
        match &self.plan.routing.default {
            Some(to) => self.admit(table, to),
            None => Verdict::Missing(OnMissingDestination::Drop),
        }
    }

    fn admit(&self, table: &mut Destinations, to: &TopicName) -> Verdict {
        let admission = &self.plan.routing.admission;
        admit(admission, table, to.stream.as_bytes(), to.topic.as_bytes())
    }

    fn refused(&mut self, verdict: Verdict) -> Routed {
        match (verdict, self.dead_letter) {
            (Verdict::DeadLetter(reason), Some(dest)) => {
                self.reject(reason);
                Routed::DeadLetter(dest, reason)
            }
            (Verdict::Dropped(reason) | Verdict::DeadLetter(reason), _) => {
                self.reject(reason);
                Routed::Dropped(Some(reason))
            }
            (Verdict::Missing(_) | Verdict::Record(_), _) => {
                self.counters.unmatched_drop += 1;
                Routed::Dropped(None)
            }
        }
    }
}

/// The verdict on these names: a look at the table, or for new ones at the lists.
fn admit(plan: &AdmissionPlan, table: &mut Destinations, stream: &[u8], topic: &[u8]) -> Verdict {
    if let Some(dest) = table.find(stream, topic) {
        return Verdict::Record(dest);
    }
    let admitted = judge(plan, stream, topic).and_then(|(stream, topic)| {
        table.admit(stream, topic).map(Verdict::Record).ok_or(Reason::Cap)
    });
    admitted.unwrap_or_else(|reason| match disposition(plan, reason) {
        Disposition::Keep => Verdict::Record(table.refuse(stream, topic, reason)),
        Disposition::Drop => Verdict::Dropped(reason),
        Disposition::DeadLetter => Verdict::DeadLetter(reason),
    })
}

impl Key {
    fn wish(&self, row: &impl Columns) -> Wish {
        match self {
            Key::None => Wish::Balanced,
            Key::Column { index, encoding } => match row.text(*index) {
                Some(text) => partition::wish(*encoding, text),
                None => Wish::Balanced,
            },
            Key::Identity(indexes) => {
                partition::identity(indexes.len(), indexes.iter().map(|index| row.text(*index)))
            }
        }
    }
}

/// What a wish means for a topic of so many partitions, when it is the turn of `turn`. An id
/// outside them is passed on: the caller refuses it. A balanced message joins the others of the
/// batch in one partition, so that a partition's messages stay in the order of the rows.
pub fn choose(wish: Wish, partitions: Option<u32>, turn: u32) -> KeyChoice {
    match (wish, partitions) {
        (_, None) => KeyChoice::Later(wish),
        (Wish::Balanced, Some(count)) => KeyChoice::Partition(partition::among(turn, count)),
        (Wish::Hash(hash), Some(count)) => KeyChoice::Partition(partition::among(hash, count)),
        (Wish::Id(id), Some(_)) => KeyChoice::Partition(id),
    }
}

#[cfg(test)]
mod tests;
