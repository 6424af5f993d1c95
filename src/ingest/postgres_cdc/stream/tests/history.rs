//! Random histories, sent whole or in pieces, with restarts at random places.

use proptest::prelude::*;

use super::*;

/// A committed or aborted transaction.
#[derive(Clone, Debug)]
struct Tx {
    xid: u32,
    commits: bool,
    changes: Vec<Change>,
}

#[derive(Clone, Debug)]
struct Change {
    /// 0 is the transaction itself.
    sub: u8,
    what: What,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum What {
    Insert,
    Update,
    Delete,
    Truncate,
    /// The table gets another shape.
    Alter,
}

/// Sub-transactions with an odd number are undone.
fn undone(sub: u8) -> bool {
    sub % 2 == 1
}

fn any_tx() -> impl Strategy<Value = Tx> {
    let what = prop_oneof![
        6 => Just(What::Insert),
        2 => Just(What::Update),
        1 => Just(What::Delete),
        1 => Just(What::Truncate),
        1 => Just(What::Alter),
    ];
    let change = (0u8..4, what).prop_map(|(sub, what)| Change { sub, what });
    let changes = prop::collection::vec(change, 0..12);
    (changes, prop::bool::weighted(0.85)).prop_map(|(changes, commits)| Tx {
        xid: 0,
        commits,
        changes,
    })
}

fn any_history() -> impl Strategy<Value = Vec<Tx>> {
    prop::collection::vec(any_tx(), 1..9).prop_map(|mut history| {
        for (n, tx) in history.iter_mut().enumerate() {
            tx.xid = 1_000 + 10 * n as u32;
            // The shape of a table changes in transactions that commit and are not undone in
            // part: what an undone ALTER does to descriptions is the server's affair.
            let commits = tx.commits;
            tx.changes.retain(|c| c.what != What::Alter || commits && !undone(c.sub));
        }
        history
    })
}

fn final_lsn(n: usize) -> Lsn {
    Lsn(1_000 + 100 * n as u64)
}

fn end_lsn(n: usize) -> Lsn {
    Lsn(final_lsn(n).0 + 40)
}

/// A server with this history. It sends what it is asked for as a server would: descriptions
/// before the first use on a connection, commits in order, at or behind the asked position.
struct Server<'h> {
    history: &'h [Tx],
    /// In pieces of that many changes; 0 for whole transactions.
    piece: usize,
}

impl Server<'_> {
    fn bodies(&self, from: Lsn) -> Vec<Vec<u8>> {
        let mut messages = Vec::new();
        if self.piece == 0 {
            let mut described = None;
            for (n, tx) in self.sent(from).into_iter().filter(|(_, tx)| tx.commits) {
                self.whole(&mut messages, n, tx, &mut described);
            }
        } else {
            self.pieces(&mut messages, from);
        }
        bodies(messages)
    }

    fn sent(&self, from: Lsn) -> Vec<(usize, &Tx)> {
        self.history.iter().enumerate().filter(|(n, _)| final_lsn(*n) >= from).collect()
    }

    /// How wide the table is at the start of transaction `n`.
    fn width(&self, n: usize) -> usize {
        let before = self.history[..n].iter().filter(|tx| tx.commits);
        1 + before.flat_map(|tx| &tx.changes).filter(|c| c.what == What::Alter).count()
    }

    fn whole(&self, messages: &mut Vec<Vec<u8>>, n: usize, tx: &Tx, described: &mut Option<usize>) {
        messages.push(wire::begin(final_lsn(n), NOON, tx.xid));
        let mut width = self.width(n);
        for (index, change) in tx.changes.iter().enumerate() {
            if change.what == What::Alter {
                width += 1;
            } else if !undone(change.sub) {
                if *described != Some(width) {
                    messages.push(description(None, width));
                    *described = Some(width);
                }
                messages.push(message(None, tx, index, change.what, width));
            }
        }
        messages.push(wire::commit(final_lsn(n), end_lsn(n), NOON));
    }

    /// Every transaction ends in its turn; those behind send a piece now and then before that.
    fn pieces(&self, messages: &mut Vec<Vec<u8>>, from: Lsn) {
        let open = self.sent(from);
        let mut at = vec![0; open.len()];
        let mut described = vec![None; open.len()];
        for (turn, (n, last)) in open.iter().enumerate() {
            for (other, (m, tx)) in open.iter().enumerate().skip(turn).rev() {
                // No table is altered while another transaction uses it.
                let alters = |tx: &Tx| tx.changes.iter().any(|c| c.what == What::Alter);
                let waits = open[turn..other].iter().any(|(_, tx)| alters(tx)) || alters(tx);
                let until = match other == turn {
                    true => tx.changes.len(),
                    false if waits => continue,
                    false => (at[other] + self.piece).min(tx.changes.len()),
                };
                while at[other] < until || at[other] == 0 {
                    let to = (at[other] + self.piece).min(until);
                    messages.push(wire::stream_start(tx.xid, at[other] == 0));
                    self.piece(messages, *m, tx, at[other]..to, &mut described[other]);
                    messages.push(wire::stream_stop());
                    at[other] = to;
                    if to == until {
                        break;
                    }
                }
            }
            for sub in (1..4).filter(|sub| undone(*sub)) {
                if last.changes.iter().any(|change| change.sub == sub) {
                    messages.push(wire::stream_abort(last.xid, last.xid + u32::from(sub)));
                }
            }
            messages.push(match last.commits {
                true => wire::stream_commit(last.xid, final_lsn(*n), end_lsn(*n), NOON),
                false => wire::stream_abort(last.xid, last.xid),
            });
        }
    }

    fn piece(
        &self,
        messages: &mut Vec<Vec<u8>>,
        n: usize,
        tx: &Tx,
        range: std::ops::Range<usize>,
        described: &mut Option<usize>,
    ) {
        let altered = tx.changes[..range.start].iter().filter(|c| c.what == What::Alter).count();
        let mut width = self.width(n) + altered;
        for (index, change) in tx.changes.iter().enumerate().take(range.end).skip(range.start) {
            let xid = Some(tx.xid + u32::from(change.sub));
            if change.what == What::Alter {
                width += 1;
                continue;
            }
            if *described != Some(width) {
                messages.push(description(xid, width));
                *described = Some(width);
            }
            messages.push(message(xid, tx, index, change.what, width));
        }
    }

    /// What a consumer has to see.
    fn expected(&self) -> Vec<Seen> {
        let server = Server { history: self.history, piece: 0 };
        Consumer::new(stream()).all(&server.bodies(Lsn(0)))
    }
}

fn description(xid: Option<u32>, width: usize) -> Vec<u8> {
    let names: Vec<String> = (0..width).map(|n| format!("c{n}")).collect();
    let columns: Vec<(&str, u32, bool)> =
        names.iter().map(|name| (name.as_str(), 25, name == "c0")).collect();
    wire::relation(xid, 5, "public", "t", b'd', &columns)
}

fn message(xid: Option<u32>, tx: &Tx, index: usize, what: What, width: usize) -> Vec<u8> {
    let id = format!("{}-{index}", tx.xid);
    let mut row = vec![Column::Null; width];
    row[0] = text(&id);
    match what {
        What::Insert => wire::insert(xid, 5, &row),
        What::Update => wire::update(xid, 5, Some((OldKind::Full, &row)), &row),
        What::Delete => wire::delete(xid, 5, OldKind::Key, &row),
        What::Truncate => wire::truncate(xid, &[5]),
        What::Alter => unreachable!("not a message"),
    }
}

/// Positions a consumer may save after each item.
fn positions(items: &[Seen], start: Position) -> Vec<Position> {
    let mut now = start;
    let mut positions = vec![start];
    for item in items {
        match item {
            Seen::Row { at: (final_lsn, xid, ordinal), .. } => {
                let head = TxHead { xid: *xid, final_lsn: Lsn(*final_lsn), commit_time_us: NOON };
                now = head.position_after(now.end_lsn, *ordinal, HASH);
            }
            Seen::End(end) => now = Position::at(Lsn(*end)),
            Seen::Keepalive(..) => {}
        }
        positions.push(now);
    }
    positions
}

fn rows(items: &[Seen]) -> Vec<&Seen> {
    items.iter().filter(|item| matches!(item, Seen::Row { .. })).collect()
}

fn add_new(once: &mut Vec<Seen>, items: &[Seen]) {
    for item in items {
        if !once.contains(item) {
            once.push(item.clone());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn in_pieces_or_whole_the_same_items_come(
        history in any_history(),
        piece in 1usize..5,
        memory in prop_oneof![Just(0), Just(100), Just(usize::MAX)],
    ) {
        let server = Server { history: &history, piece };
        let options = StreamOptions { spool_memory: memory, ..options() };
        let mut consumer = Consumer::new(Stream::new(options, Position::default()));
        let items = consumer.all(&server.bodies(Lsn(0)));
        prop_assert_eq!(items, server.expected());
        prop_assert!(consumer.files.is_empty());
        prop_assert_eq!(consumer.stream.spooled(), (0, 0));
        prop_assert!(consumer.most_in_memory <= memory);
    }

    /// A consumer that ends anywhere and begins again at what it had saved by then, or at an
    /// older place of the server's choice, sees every row, each saved one once, in order.
    #[test]
    fn every_row_comes_at_least_once_and_what_was_durable_exactly_once(
        history in any_history(),
        stops in prop::collection::vec((1usize..30, 0usize..30, 0u64..600, 0usize..4), 0..6),
        last_piece in 0usize..4,
    ) {
        let expected = Server { history: &history, piece: 0 }.expected();
        let mut stream = stream();
        let mut position = Position::default();
        let (mut durable, mut once): (Vec<Seen>, Vec<Seen>) = (Vec::new(), Vec::new());
        for (most, unsaved, older, piece) in stops {
            let server = Server { history: &history, piece };
            prop_assert!(stream.restart(position, HASH, false, Vec::new()).is_empty());
            let mut consumer = Consumer::new(stream);
            // A server may also begin earlier than it was asked to.
            for body in server.bodies(Lsn(position.end_lsn.0.saturating_sub(older))) {
                if !consumer.take(&body, most).unwrap() {
                    break;
                }
            }
            let kept = consumer.seen.len().saturating_sub(unsaved);
            position = positions(&consumer.seen, position)[kept];
            durable.extend(consumer.seen[..kept].iter().cloned());
            add_new(&mut once, &consumer.seen);
            stream = consumer.stream;
        }
        stream.restart(position, HASH, false, Vec::new());
        let mut consumer = Consumer::new(stream);
        let server = Server { history: &history, piece: last_piece };
        let rest = consumer.all(&server.bodies(position.end_lsn));
        add_new(&mut once, &rest);
        durable.extend(rest);
        prop_assert_eq!(rows(&durable), rows(&expected), "exactly once when durable");
        prop_assert_eq!(rows(&once), rows(&expected), "first deliveries are in order");
    }

    #[test]
    fn noise_never_panics(
        bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 0..40),
    ) {
        let mut consumer = Consumer::new(stream());
        for body in bodies {
            let _ = consumer.take(&wire::data(Lsn(1), &body), usize::MAX);
            let _ = consumer.take(&body, usize::MAX);
        }
    }
}
