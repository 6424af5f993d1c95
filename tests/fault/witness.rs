//! What was committed, in the order of the commits, as a second slot of the same server tells it;
//! and what a capture made of it.

use std::collections::HashMap;

use super::stage::Got;
use super::support::Postgres;

/// Read by nobody but the test.
const SLOT: &str = "witness";

/// What rows of transactions that are rolled back say of themselves.
pub const UNDONE: &str = "undone";

/// One committed change of the table `events`: no two are equal, since an update counts `v` up.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Change {
    pub op: char,
    pub id: u64,
    pub group: u64,
    pub v: u64,
    pub filler: String,
}

/// What a row of the log is kept together by.
pub type Key = fn(&Change) -> u64;

/// All of a test's changes in the order of their commits.
pub struct Truth {
    changes: Vec<Change>,
    place: HashMap<Change, usize>,
}

/// What a comparison found.
#[derive(Debug, Default)]
pub struct Report {
    pub changes: usize,
    pub repeats: usize,
    /// Times that the log of a partition goes on at an earlier change, the worst partition's.
    pub most_steps_back: usize,
}

/// From now on everything is remembered.
pub fn begin(pg: &Postgres) {
    pg.sql(&format!("select pg_create_logical_replication_slot('{SLOT}', 'test_decoding')"));
}

impl Truth {
    /// Everything since [`begin`].
    pub fn of(pg: &Postgres) -> Truth {
        let rows = pg.sql(&format!(
            "select data from pg_logical_slot_get_changes('{SLOT}', null, null, \
             'include-xids', 'off', 'skip-empty-xacts', 'on')"
        ));
        let lines = rows.iter().filter_map(|row| row[0].as_deref());
        let changes: Vec<Change> = lines.filter_map(change).collect();
        let place: HashMap<Change, usize> =
            changes.iter().cloned().enumerate().map(|(n, change)| (change, n)).collect();
        assert_eq!(place.len(), changes.len(), "two changes are equal");
        Truth { changes, place }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.changes.len()
    }

    /// Panics unless every change arrived under one id, no other did, and every partition has its
    /// changes in the order of the commits, apart from going back to an earlier one and on from
    /// there; all of one key are in one partition.
    #[track_caller]
    pub fn compare(&self, logs: &[Vec<Got>], key: Key) -> Report {
        let mut report = Report { changes: self.changes.len(), ..Report::default() };
        let mut partition_of_key = HashMap::new();
        let mut place_of_id = HashMap::new();
        let mut id_of_place: Vec<Option<u128>> = vec![None; self.changes.len()];
        let mut places: Vec<Vec<usize>> = Vec::new();
        for (partition, log) in logs.iter().enumerate() {
            let mut found = Vec::new();
            for got in log {
                let place = self.place_of(got);
                found.push(place);
                let key = key(&self.changes[place]);
                let home = *partition_of_key.entry(key).or_insert(partition);
                assert_eq!(home, partition, "key {key} is in two partitions");
                let first = *place_of_id.entry(got.id).or_insert(place);
                assert_eq!(first, place, "two changes have one id: {got:?}");
                if let Some(before) = id_of_place[place].replace(got.id) {
                    assert_eq!(before, got.id, "a change came again under another id: {got:?}");
                    report.repeats += 1;
                }
            }
            places.push(found);
        }
        let missing = id_of_place.iter().filter(|id| id.is_none()).count();
        let first = id_of_place.iter().position(Option::is_none);
        assert_eq!(missing, 0, "never arrived: {:?} …", first.map(|n| &self.changes[n]));
        for (partition, log) in places.iter().enumerate() {
            let wanted = (0..self.changes.len())
                .filter(|n| partition_of_key.get(&key(&self.changes[*n])) == Some(&partition));
            let steps = steps_back(&wanted.collect::<Vec<usize>>(), log, partition);
            report.most_steps_back = report.most_steps_back.max(steps);
        }
        report
    }

    #[track_caller]
    fn place_of(&self, got: &Got) -> usize {
        let data = &got.payload["data"];
        let number = |name: &str| data[name].as_u64().unwrap_or_else(|| panic!("{name}: {got:?}"));
        let change = Change {
            op: got.text("op").chars().next().expect("an operation"),
            id: number("id"),
            group: number("grp"),
            v: number("v"),
            filler: data["filler"].as_str().expect("text").to_owned(),
        };
        assert_ne!(change.filler, UNDONE, "it was rolled back: {got:?}");
        match self.place.get(&change) {
            Some(place) => *place,
            None => panic!("it was never committed: {got:?}"),
        }
    }
}

/// How often a partition's log begins again at an earlier one of its changes. It may never run
/// ahead of them, and ends with the last one.
#[track_caller]
fn steps_back(wanted: &[usize], log: &[usize], partition: usize) -> usize {
    let rank: HashMap<usize, usize> = wanted.iter().enumerate().map(|(n, at)| (*at, n)).collect();
    let (mut next, mut steps) = (0, 0);
    for place in log {
        let at = rank[place];
        assert!(at <= next, "partition {partition}: change {at} of it follows {next} too early");
        steps += usize::from(at < next);
        next = at + 1;
    }
    assert_eq!(next, wanted.len(), "partition {partition} ends with an earlier change");
    steps
}

/// `table public.events: UPDATE: id[bigint]:1 grp[integer]:2 v[integer]:3 filler[text]:'x'`
fn change(line: &str) -> Option<Change> {
    let rest = line.strip_prefix("table public.events: ")?;
    let (op, columns) = rest.split_once(": ").expect("an operation");
    let mut values = columns.split(' ').map(|column| column.split_once("]:").expect("a value").1);
    let mut number = || values.next().and_then(|text| text.parse().ok()).expect("a number");
    let (id, group, v) = (number(), number(), number());
    let filler = values.next().expect("a filler").trim_matches('\'').to_owned();
    Some(Change { op: op.chars().next().expect("a letter"), id, group, v, filler })
}
