//! The search against partitions that a test makes up, and the entries that follow.

use bytes::Bytes;
use proptest::prelude::*;

use super::entry::{Accepted, Identity, accepted, found, missing};
use super::*;
use crate::batch::{DeltaPiece, Gap, OffsetMap, Repeat, TopicName};
use crate::iggy_wire::record::{Message, build_record};
use crate::statefile::{FeedState, LastMessage, MAX_GAPS};

/// Header of a batch, and a message of eight bytes with its own header.
const HEADER: usize = 256;
const FRAME: usize = 48 + 8;

/// A partition as a server shows it.
#[derive(Default)]
struct Shown {
    records: Vec<Stored>,
    next: u64,
    /// Largest record of the next appends, messages.
    batch: usize,
}

struct Stored {
    base: u64,
    count: u64,
    bytes: Bytes,
}

impl Shown {
    /// These messages, by number, in batches of `batch`.
    fn of(batch: usize, numbers: impl IntoIterator<Item = u64>) -> Shown {
        let mut side = Shown { batch, ..Shown::default() };
        side.append(numbers);
        side
    }

    fn append(&mut self, numbers: impl IntoIterator<Item = u64>) {
        let numbers: Vec<u64> = numbers.into_iter().collect();
        for chunk in numbers.chunks(self.batch) {
            let payloads: Vec<_> = chunk.iter().map(|number| number.to_le_bytes()).collect();
            let message = |(number, payload)| Message {
                id: 0,
                origin_timestamp: 1_000_000 + number,
                payload,
                user_headers: &[],
            };
            let pairs = chunk.iter().copied().zip(payloads.iter().map(|p| &p[..]));
            let messages: Vec<_> = pairs.map(message).collect();
            let (base, count) = (self.next, chunk.len() as u64);
            let bytes = build_record(&messages).unwrap().stored(0, base, 0);
            self.records.push(Stored { base, count, bytes });
            self.next += count;
        }
    }

    /// Without the records that lie in this range; it begins and ends where records do.
    fn without(mut self, offsets: std::ops::Range<u64>) -> Shown {
        self.records.retain(|record| !offsets.contains(&record.base));
        self
    }

    fn retain_from(self, offset: u64) -> Shown {
        self.without(0..offset)
    }

    fn answer(&self, from: PollFrom, count: u32) -> Polled {
        let from = match from {
            PollFrom::Offset(offset) => offset,
            PollFrom::First => 0,
            PollFrom::Last => self.next.saturating_sub(u64::from(count)),
        };
        let (mut left, mut records) = (u64::from(count), Vec::new());
        for record in self.records.iter().filter(|record| record.base + record.count > from) {
            let skipped = from.saturating_sub(record.base);
            let taken = left.min(record.count - skipped);
            if taken > 0 {
                records.extend(record.cut(skipped, taken));
            }
            left -= taken;
        }
        Polled {
            partition: 0,
            current_offset: self.next.saturating_sub(1),
            count: count - left as u32,
            records: Bytes::from(records),
        }
    }

    fn counted(&self) -> u64 {
        self.records.iter().map(|record| record.count).sum()
    }
}

impl Stored {
    /// As a server cuts it: the frames stay as they are, and so does the base offset.
    fn cut(&self, skipped: u64, taken: u64) -> Vec<u8> {
        let frames = HEADER + FRAME * skipped as usize;
        let len = FRAME * taken as usize;
        let mut bytes = self.bytes[..HEADER].to_vec();
        bytes[32..40].copy_from_slice(&((HEADER + len) as u64).to_le_bytes());
        bytes[48..52].copy_from_slice(&(taken as u32).to_le_bytes());
        bytes.extend_from_slice(&self.bytes[frames..frames + len]);
        bytes
    }
}

/// Runs a search to its end; every answer is that of the sides.
fn verdict(up: &Shown, down: &Shown, accept: Option<u64>) -> Verdict {
    let counted = Counted { upstream: up.counted(), destination: down.counted() };
    let mut search = Search::new(accept, counted);
    let mut ask = search.ask();
    for _ in 0..10_000 {
        let side = if ask.side == Side::Upstream { up } else { down };
        match search.polled(&side.answer(ask.from, ask.count)) {
            Step::Ask(next) | Step::AskAgain(next) => ask = next,
            Step::Done(verdict) => return verdict,
        }
    }
    panic!("no end");
}

fn search(up: &Shown, down: &Shown) -> Verdict {
    verdict(up, down, None)
}

#[track_caller]
fn place(verdict: Verdict) -> Place {
    match verdict {
        Verdict::Found { place, .. } => place,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn refusal(verdict: Verdict) -> Refusal {
    match verdict {
        Verdict::Refused(refusal) => refusal,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_one_place_is_found_wherever_it_lies() {
    for (copied, written) in [(4, 4), (16, 16), (17, 40), (300, 300), (300, 5_000), (900, 901)] {
        let (up, down) = (Shown::of(7, 0..written), Shown::of(3, 0..copied));
        let Verdict::Found { end, place, tail, .. } = search(&up, &down) else {
            panic!("{copied} of {written}")
        };
        let compared = copied.min(TAIL_MESSAGES);
        assert_eq!((end, tail), (copied, compared));
        assert_eq!(place, Place { offset: copied - 1, from: copied - compared, compared });
    }
}

#[test]
fn offsets_may_differ_between_the_sides() {
    let mut down = Shown::of(5, 5_000..5_100);
    down.append(40..80);
    let (up, place) = (Shown::of(9, 0..200), |v| place(v));
    assert_eq!(place(search(&up, &down)), Place { offset: 79, from: 64, compared: 16 });
}

#[test]
fn two_places_are_both_named() {
    // A producer that writes the same twenty messages twice.
    let up = Shown::of(10, (0..20).chain(30..60).chain(0..20).chain(70..75));
    let down = Shown::of(4, 0..20);
    let refusal = refusal(search(&up, &down));
    let Refusal::TwoPlaces { first, second, .. } = &refusal else { panic!("{refusal}") };
    assert_eq!((first.offset, second.offset), (19, 69));
    assert!(refusal.to_string().contains("behind offset 19"), "{refusal}");
    let advice = refusal.advice();
    assert!(advice.contains("--accept-tail 20 or --accept-tail 70"), "{advice}");
}

#[test]
fn a_run_of_equal_messages_gives_no_place() {
    let (up, down) = (Shown::of(8, [7; 30]), Shown::of(8, [7; 20]));
    assert!(matches!(refusal(search(&up, &down)), Refusal::TwoPlaces { .. }));
}

#[test]
fn nothing_upstream_like_the_tail_is_refused() {
    let (up, down) = (Shown::of(8, 0..100), Shown::of(8, 1_000..1_100));
    let refusal = refusal(search(&up, &down));
    assert!(matches!(refusal, Refusal::Nowhere { nearest: None, tail: 16, .. }), "{refusal:?}");
    assert!(refusal.advice().contains("--accept-tail"));
}

#[test]
fn one_foreign_message_is_no_match_and_the_nearest_place_is_named() {
    let up = Shown::of(8, 0..200);
    let mut behind = Shown::of(8, 0..100);
    behind.append([9_999]);
    let refused = refusal(search(&up, &behind));
    let Refusal::Nowhere { nearest: Some(near), .. } = &refused else { panic!("{refused}") };
    assert_eq!(*near, Stretch { index: 14, offset: 99, len: 15 });
    assert!(refused.to_string().contains("15 messages up to destination offset 99"), "{refused}");
    assert!(refused.advice().contains("--accept-tail 100"));

    // In the middle: what the copy wrote behind it counts more, however little.
    let mut inside = Shown::of(8, 0..100);
    inside.append([9_999, 100, 101]);
    let refused = refusal(search(&up, &inside));
    assert!(refused.advice().contains("--accept-tail 102"), "{refused}");
}

#[test]
fn a_tail_across_a_gap_is_found_and_keeps_the_distance_behind_the_gap() {
    // Retention took 50 to 69 before they were copied; the destination has both sides of it.
    let up = Shown::of(10, 0..100).without(50..70);
    let down = Shown::of(6, (0..50).chain(70..75));
    let found = place(search(&up, &down));
    assert_eq!(found, Place { offset: 74, from: 70, compared: 16 });
}

#[test]
fn a_hole_that_took_what_the_destination_has_leaves_fewer_to_compare() {
    let up = Shown::of(10, 0..100).without(50..70);
    let found = place(search(&up, &Shown::of(6, 0..75)));
    assert_eq!(found, Place { offset: 74, from: 70, compared: 5 });
    // A hole too small to have held the rest: 65 to 69 are there and differ.
    let up = Shown::of(10, 0..100).without(60..70);
    let down = Shown::of(6, (0..55).chain(900..905).chain(60..75));
    assert!(matches!(refusal(search(&up, &down)), Refusal::Nowhere { .. }));
}

#[test]
fn fewer_messages_decide_when_upstream_begins_inside_the_tail() {
    let down = Shown::of(6, 0..60);
    for (kept_from, compared) in [(40, 16), (50, 10), (55, 5), (56, 4)] {
        let up = Shown::of(1, 0..100).retain_from(kept_from);
        let place = place(search(&up, &down));
        assert_eq!((place.offset, place.compared), (59, compared), "from {kept_from}");
        assert_eq!(place.from, 60 - compared);
    }
}

#[test]
fn too_few_messages_are_left_to_the_operator() {
    for left in 1..COMPARE_LEAST {
        let up = Shown::of(1, 0..100).retain_from(60 - left);
        let refusal = refusal(search(&up, &Shown::of(6, 0..60)));
        assert!(matches!(&refusal, Refusal::TooFew { place, .. } if place.compared == left));
        assert!(refusal.advice().contains("--accept-tail 60"), "{refusal}");
        let young = search(&Shown::of(1, 0..100), &Shown::of(1, 0..left));
        assert!(matches!(young, Verdict::Refused(Refusal::TooFew { .. })), "{young:?}");
    }
}

#[test]
fn retention_that_removed_the_place_leaves_none() {
    let up = Shown::of(1, 0..100).retain_from(60);
    let refused = refusal(search(&up, &Shown::of(6, 0..60)));
    let Refusal::Nowhere { first, upstream_end, .. } = refused else { panic!("{refused}") };
    assert_eq!((first, upstream_end), (60, 100));
}

#[test]
fn records_cut_at_their_head_count_from_where_they_are_cut() {
    // Polls of 64 into records of 100: nearly every reply begins inside one.
    let up = Shown::of(100, 0..1_000);
    let second = up.answer(PollFrom::Offset(64), 64).scan(Verify::FramingOnly).unwrap();
    assert!(second[0].is_head_cut() && second[0].first_offset() == 64, "{second:?}");
    for copied in [150, 199, 200, 201, 777] {
        let found = place(search(&up, &Shown::of(100, 0..copied)));
        assert_eq!(found, Place { offset: copied - 1, from: copied - 16, compared: 16 });
    }
}

#[test]
fn an_empty_destination_has_nothing_to_read_back() {
    let nothing = Shown::of(1, []);
    assert_eq!(search(&Shown::of(1, 0..5), &nothing), Verdict::Empty);
    let refused = refusal(search(&nothing, &Shown::of(1, 0..5)));
    assert!(matches!(refused, Refusal::Nowhere { upstream_end: 0, .. }));
}

#[test]
fn a_server_that_answers_as_if_empty_is_not_believed() {
    let (up, down) = (Shown::of(1, 0..50), Shown::of(1, 0..50));
    let nothing = Shown::of(1, []);
    let counted = Counted { upstream: 50, destination: 50 };
    let mut search = Search::new(None, counted);
    for _ in 0..TRIES {
        let ask = search.ask();
        let step = search.polled(&nothing.answer(ask.from, ask.count));
        assert_eq!(step, Step::AskAgain(ask));
    }
    // It has started.
    let ask = search.ask();
    let step = search.polled(&down.answer(ask.from, ask.count));
    assert!(matches!(step, Step::Ask(Ask { side: Side::Destination, count: 16, .. })), "{step:?}");
    let step = search.polled(&down.answer(search.ask().from, 16));
    assert!(matches!(step, Step::Ask(Ask { side: Side::Upstream, .. })), "{step:?}");
    for _ in 0..TRIES {
        let ask = search.ask();
        assert_eq!(search.polled(&nothing.answer(ask.from, ask.count)), Step::AskAgain(ask));
    }
    let ask = search.ask();
    let step = search.polled(&nothing.answer(ask.from, ask.count));
    let Step::Done(verdict) = step else { panic!("{step:?}") };
    let refusal = refusal(verdict);
    assert!(matches!(refusal, Refusal::NoAnswer { side: Side::Upstream, .. }), "{refusal}");
    assert_eq!(up.counted(), 50);
}

#[test]
fn a_jump_is_a_hole_only_when_it_is_seen_twice() {
    let down = Shown::of(1, 0..20);
    let whole = Shown::of(1, 0..40);
    let mut search = Search::new(None, Counted { upstream: 40, destination: 20 });
    for side in [&down, &down, &whole] {
        let ask = search.ask();
        assert!(matches!(search.polled(&side.answer(ask.from, ask.count)), Step::Ask(_)));
    }
    let late = Shown::of(1, 0..40).retain_from(30);
    let ask = search.ask();
    let step = search.polled(&late.answer(ask.from, ask.count));
    assert!(
        matches!(step, Step::AskAgain(Ask { from: PollFrom::First, .. })),
        "the log has to say by itself that it begins there: {step:?}"
    );
    // The second answer is the good one.
    let Step::Done(verdict) = search.polled(&whole.answer(PollFrom::First, 64)) else {
        panic!("forty messages fit one reply")
    };
    assert_eq!(place(verdict).offset, 19);
}

#[test]
fn large_messages_are_asked_for_one_by_one_with_a_larger_bound() {
    let (up, down) = (Shown::of(1, 0..40), Shown::of(1, 0..30));
    let mut search = Search::new(None, Counted::default());
    let (mut ask, mut wide, mut largest) = (search.ask(), 0, 0);
    let verdict = loop {
        // More than two messages do not fit a reply, and number 20 needs a large one.
        let side = if ask.side == Side::Upstream { &up } else { &down };
        let polled = side.answer(ask.from, ask.count);
        let heavy = ask.count > 2;
        let giant = ask.limit == REPLY_LIMIT
            && polled
                .scan(Verify::FramingOnly)
                .unwrap()
                .iter()
                .any(|record| record.first_offset() == 20);
        let step = if heavy || giant {
            search.failed(&Failure::TooLarge { size: 9 << 20 })
        } else {
            largest = largest.max(polled.count);
            wide += u32::from(ask.limit == LARGEST_REPLY);
            assert!(ask.limit == REPLY_LIMIT || ask.count == 1, "{ask:?}");
            search.polled(&polled)
        };
        ask = match step {
            Step::Ask(next) | Step::AskAgain(next) => next,
            Step::Done(verdict) => break verdict,
        };
    };
    assert_eq!(place(verdict), Place { offset: 29, from: 14, compared: 16 });
    assert_eq!((wide, largest), (2, 2), "once on each side");
    let mut hopeless = Search::new(None, Counted::default());
    let too_large = Failure::TooLarge { size: u32::MAX };
    assert!(matches!(hopeless.failed(&too_large), Step::AskAgain(_)));
    assert!(matches!(hopeless.failed(&too_large), Step::Done(Verdict::Refused(_))));
}

#[test]
fn a_side_that_never_answers_ends_the_search() {
    let mut search = Search::new(None, Counted::default());
    let mut steps = 0;
    let verdict = loop {
        steps += 1;
        match search.failed(&Failure::TimedOut) {
            Step::Done(verdict) => break verdict,
            Step::AskAgain(_) => assert!(steps < 100),
            Step::Ask(ask) => panic!("{ask:?}"),
        }
    };
    let refusal = refusal(verdict);
    assert!(refusal.to_string().contains("no answer within request_timeout"), "{refusal}");
}

#[test]
fn the_operators_place_is_taken_where_upstream_has_it() {
    let (up, down) = (Shown::of(1, 0..40), Shown::of(1, 900..930));
    for position in [0, 17, 40] {
        let accepted = verdict(&up, &down, Some(position));
        assert_eq!(accepted, Verdict::Accepted { end: 30, position });
    }
    let refusal = refusal(verdict(&up, &down, Some(41)));
    assert_eq!(refusal, Refusal::BehindEnd { position: 41, upstream_end: 40 });
    let emptied = Shown::of(1, []);
    assert_eq!(verdict(&up, &emptied, Some(9)), Verdict::Accepted { end: 0, position: 9 });
}

proptest! {
    /// The naive answer: every offset at which the tail, as far as upstream reaches, is equal.
    #[test]
    fn the_search_agrees_with_a_naive_one(
        log in prop::collection::vec(0_u64..3, 1..80),
        tail in prop::collection::vec(0_u64..3, 1..20),
        batch in 1_usize..9,
        kept_from in 0_usize..20,
        slice in any::<Option<(u8, u8)>>(),
    ) {
        let kept_from = kept_from.min(log.len() - 1) / batch * batch;
        // Half of the tails are cut out of the log.
        let copied = slice.map_or(tail, |(from, len)| {
            let from = usize::from(from) % log.len();
            log[from..log.len().min(from + 1 + usize::from(len) % 20)].to_vec()
        });
        let up = Shown::of(batch, log.iter().copied()).retain_from(kept_from as u64);
        let down = Shown::of(batch, copied.iter().copied());
        let last = &copied[copied.len().saturating_sub(16)..];
        let naive: Vec<(usize, usize)> = (kept_from..log.len())
            .filter_map(|at| {
                let have = last.len().min(at + 1 - kept_from);
                let equal = log[at + 1 - have..=at] == last[last.len() - have..];
                equal.then_some((at, have))
            })
            .collect();
        match (search(&up, &down), &naive[..]) {
            (Verdict::Found { place, .. }, [(at, have)]) => {
                prop_assert_eq!((place.offset, place.compared), (*at as u64, *have as u64));
            }
            (Verdict::Refused(Refusal::TooFew { place, .. }), [(at, have)]) => {
                prop_assert!(*have < 4);
                prop_assert_eq!((place.offset, place.compared), (*at as u64, *have as u64));
            }
            (Verdict::Refused(Refusal::TwoPlaces { first, second, .. }), [one, two, ..]) => {
                prop_assert_eq!((first.offset, second.offset), (one.0 as u64, two.0 as u64));
            }
            (Verdict::Refused(Refusal::Nowhere { .. }), []) => {}
            (verdict, naive) => prop_assert!(false, "{:?}, naive {:?}", verdict, naive),
        }
    }
}

fn identity() -> Identity {
    Identity {
        upstream: TopicName::new("s", "a"),
        downstream: TopicName::new("copy", "a"),
        partition: 3,
        upstream_created_at: 10,
        downstream_created_at: 20,
    }
}

fn print(number: u64) -> Fingerprint {
    Fingerprint { id: 0, origin_timestamp: number, payload_len: 8, headers_len: 0, hash: number }
}

/// Copied up to `position` at destination offset `position + 100`, with a gap before 50.
fn saved(position: u64) -> FeedState {
    let lost = accepted(&identity(), None, 100, 0, 1).entry;
    let mut map = OffsetMap::starting(0, 110);
    map.push(50, 150);
    FeedState {
        epoch: 4,
        sequence: 9,
        position,
        deltas: map.pieces().to_vec(),
        last: Some(LastMessage { offset: position - 1, fingerprint: print(position - 1) }),
        clean_stop: true,
        ..lost
    }
}

fn at(offset: u64) -> Place {
    Place { offset, from: offset - 15, compared: 16 }
}

#[test]
fn a_lost_entry_is_made_of_what_was_compared() {
    let entry = found(&identity(), None, 300, at(199), print(199)).unwrap();
    assert_eq!((entry.epoch, entry.position, entry.clean_stop), (1, 200, false));
    assert_eq!(entry.deltas, [DeltaPiece { from_upstream: 184, delta: 100 }]);
    assert_eq!(entry.last, Some(LastMessage { offset: 199, fingerprint: print(199) }));
    assert_eq!((entry.upstream_created_at, entry.downstream_created_at), (10, 20));
    assert_eq!(OffsetMap::from_pieces(entry.deltas).upstream(300), Some(200));
}

#[test]
fn an_entry_that_says_the_same_is_left_alone() {
    assert_eq!(found(&identity(), Some(&saved(200)), 300, at(199), print(199)), None);
    let other = Identity { downstream_created_at: 21, ..identity() };
    let entry = found(&other, Some(&saved(200)), 300, at(199), print(199)).unwrap();
    assert_eq!((entry.downstream_created_at, entry.deltas.len()), (21, 1));
}

#[test]
fn a_confirmed_mapping_is_kept_and_a_contradicted_one_is_not() {
    let entry = found(&identity(), Some(&saved(190)), 300, at(199), print(199)).unwrap();
    assert_eq!((entry.epoch, entry.sequence, entry.deltas.len()), (5, 10, 2));
    assert_eq!(entry.counters.messages, 10, "acked, but not yet saved");
    let entry = found(&identity(), Some(&saved(200)), 400, at(199), print(199)).unwrap();
    assert_eq!(entry.deltas, [DeltaPiece { from_upstream: 184, delta: 200 }]);
    assert!(entry.version() > saved(200).version());
}

#[test]
fn what_the_operator_skips_is_a_gap_record() {
    let Accepted { entry, gap, repeats } = accepted_at(&saved(200), 300, 230);
    let expected = Gap { first: 200, last: 229, found_at: 77 };
    assert_eq!((gap, repeats), (Some(expected), None));
    assert_eq!(entry.gaps.last(), Some(&expected));
    assert_eq!((entry.counters.gaps, entry.counters.gap_messages), (1, 30));
    assert_eq!(entry.deltas, [DeltaPiece { from_upstream: 230, delta: 70 }]);
    assert_eq!((entry.position, entry.last, entry.clean_stop), (230, None, false));
}

#[test]
fn what_the_operator_repeats_is_named_and_counted_as_a_reset() {
    let Accepted { entry, gap, repeats } = accepted_at(&saved(200), 300, 150);
    let expected = Repeat { first: 150, last: 199, found_at: 77 };
    assert_eq!((gap, repeats), (None, Some(expected)));
    assert_eq!((entry.repeats.as_slice(), entry.gaps.len()), (&[expected][..], 0));
    assert_eq!((entry.position, entry.epoch), (150, 5));
    assert_eq!(entry.counters.resets, saved(200).counters.resets + 1);
}

#[test]
fn offsets_of_a_topic_that_is_no_more_are_not_compared() {
    let old = FeedState { upstream_created_at: 9, ..saved(200) };
    let Accepted { entry, gap, repeats } = accepted_at(&old, 300, 7);
    assert_eq!((gap, repeats, entry.position), (None, None, 7));
    assert_eq!(entry.upstream_created_at, 10);
}

#[test]
fn records_stay_bounded() {
    let mut full = saved(200);
    full.gaps = vec![Gap { first: 1, last: 2, found_at: 3 }; MAX_GAPS];
    let entry = accepted_at(&full, 300, 201).entry;
    assert_eq!(entry.gaps.len(), MAX_GAPS);
    assert_eq!(entry.gaps.last().unwrap().first, 200);
    full.repeats = vec![Repeat { first: 1, last: 2, found_at: 3 }; MAX_GAPS];
    let entry = accepted_at(&full, 300, 150).entry;
    assert_eq!(entry.repeats.len(), MAX_GAPS);
    assert_eq!(entry.repeats.last().unwrap().first, 150);
}

fn accepted_at(saved: &FeedState, end: u64, position: u64) -> Accepted {
    accepted(&identity(), Some(saved), end, position, 77)
}

#[test]
fn a_distance_that_became_smaller_is_a_hole_and_a_shorter_destination_is_none() {
    // Saved is that upstream 200 goes to 300.
    let saved = saved(200);
    assert_eq!(missing(&identity(), Some(&saved), 290, 200), Some(10), "ten are not there");
    assert_eq!(missing(&identity(), Some(&saved), 290, 190), None, "a lost tail alone");
    assert_eq!(missing(&identity(), Some(&saved), 300, 200), None);
    assert_eq!(missing(&identity(), Some(&saved), 310, 200), None, "others wrote before");
    assert_eq!(missing(&identity(), None, 290, 200), None, "nothing to compare with");
}
