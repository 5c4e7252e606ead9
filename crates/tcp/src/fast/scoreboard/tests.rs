use super::*;
use proptest::prelude::*;

fn scoreboard(start: Seq, end: Seq, at: u32) -> Scoreboard {
    let mut scoreboard = Scoreboard::default();
    scoreboard.begin(start, end, at, false);
    scoreboard
}

fn spans(scoreboard: &Scoreboard) -> Vec<(u32, u32, u8)> {
    scoreboard.iter().map(|(start, span)| (start.0, span.end.0, span.state)).collect()
}

#[test]
fn what_is_sent_at_about_the_same_time_is_one_span() {
    let mut b = scoreboard(Seq(0), Seq(10), 5);
    b.sent(Seq(20), 50, 100);
    b.sent(Seq(30), 105, 100);
    b.sent(Seq(40), 106, 100);
    assert_eq!(b.iter().map(|(_, span)| (span.end.0, span.at)).collect::<Vec<_>>(), [(30, 105), (40, 106)]);
    b.advance(Seq(30));
    assert_eq!(spans(&b), [(30, 40, 0)]);
}

#[test]
fn a_hole_is_lost_repaired_and_found() {
    let mut b = scoreboard(Seq(0), Seq(100), 5);
    b.report(Seq(40), Seq(60), |_, _| {});
    assert_eq!(b.lose(|span| span.end == Seq(40)), 40);
    assert_eq!(b.first_lost(), Some((Seq(0), Seq(40))));
    b.resent(Seq(0), Seq(10), 50);
    assert_eq!(spans(&b), [(0, 10, AGAIN), (10, 40, LOST), (40, 60, SACKED), (60, 100, 0)]);
    assert_eq!((b.bytes(LOST), b.bytes(SACKED)), (30, 20));
    b.find();
    assert_eq!(b.bytes(LOST), 0);
}

#[test]
fn a_peer_that_reports_the_first_missing_byte_has_reneged() {
    let mut b = scoreboard(Seq(0), Seq(100), 5);
    b.report(Seq(40), Seq(60), |_, _| {});
    assert_eq!(b.clone().time_out(), 80, "what is reported is not sent again");
    b.acknowledge(Seq(40), |_, _| {});
    assert_eq!(b.time_out(), 60, "all is");
}

#[test]
fn a_full_scoreboard_forgets_reports_before_it_loses_data() {
    let mut b = scoreboard(Seq(0), Seq(3000), 5);
    for n in 0..600 {
        b.report(Seq(n * 4 + 2), Seq(n * 4 + 4), |_, _| {});
    }
    assert!(b.iter().count() >= SPANS - 1);
    b.sent(Seq(4000), 9, 0);
    let (start, last) = b.iter().last().expect("not empty");
    assert!(!start.after(Seq(3000)) && last.end == Seq(4000) && last.state == 0);
}

/// A scoreboard from 0 on of these ends, times and states.
fn of(list: impl IntoIterator<Item = (u32, u32, u8)>) -> Scoreboard {
    let mut scoreboard = Scoreboard::default();
    for (end, at, state) in list {
        scoreboard.spans[scoreboard.len] = Span { end: Seq(end), at, state };
        scoreboard.len += 1;
    }
    scoreboard
}

fn all(scoreboard: &Scoreboard) -> Vec<(u32, u32, u8)> {
    scoreboard.iter().map(|(_, span)| (span.end.0, span.at, span.state)).collect()
}

/// A full scoreboard: span `i` ends at `10 * (i + 1)`.
fn full(at: impl Fn(u32) -> u32, state: impl Fn(u32) -> u8) -> Vec<(u32, u32, u8)> {
    (0..SPANS as u32).map(|i| (10 * (i + 1), at(i), state(i))).collect()
}

#[test]
fn what_follows_joins_a_young_span_wherever_the_list_begins() {
    for first in [0, 1, 3] {
        let mut b = of([(10, 100, 0), (20, 200, 0), (30, 300, 0), (40, 400, 0)]);
        b.begun = 400;
        b.advance(Seq(first * 10));
        b.sent(Seq(50), 450, 50);
        assert_eq!(all(&b).last(), Some(&(50, 450, 0)), "first {first}");
        assert_eq!(b.iter().count(), 4 - first as usize);
        // The span's age counts from its first byte.
        b.sent(Seq(60), 451, 50);
        assert_eq!(all(&b)[3 - first as usize..], [(50, 450, 0), (60, 451, 0)]);
        b.sent(Seq(70), 501, 50);
        assert_eq!(all(&b)[4 - first as usize..], [(70, 501, 0)]);
    }
    // Bytes that are lost, reported or sent again are in another state than new data.
    for state in [SACKED, LOST, AGAIN] {
        let mut b = of([(10, 100, state)]);
        b.begun = 100;
        b.sent(Seq(20), 101, 50);
        assert_eq!(all(&b), [(10, 100, state), (20, 101, 0)]);
    }
    let mut b = of([(10, 100, 0)]);
    b.advance(Seq(10));
    assert_eq!(all(&b), []);
    b.sent(Seq(20), 100, 50);
    assert_eq!(all(&b), [(20, 100, 0)]);
}

#[test]
fn a_full_scoreboard_moves_to_the_front_before_it_joins_anything() {
    let list = full(|i| i * 100, |i| if i % 2 == 0 { 0 } else { AGAIN });
    let mut b = of(list.clone());
    b.advance(Seq(30));
    b.push(Span { end: Seq(5000), at: 7, state: 0 });
    b.push(Span { end: Seq(5010), at: 8, state: AGAIN });
    b.push(Span { end: Seq(5020), at: 9, state: 0 });
    let more = [(5000, 7, 0), (5010, 8, AGAIN), (5020, 9, 0)];
    assert_eq!(all(&b), [&list[3..], &more].concat());
    assert_eq!((b.first, b.len), (0, SPANS));
}

#[test]
fn a_full_scoreboard_joins_the_two_neighbours_that_were_sent_closest_together() {
    // Between 100 and 101 there are 400 µs, between 200 and 201 500, else 1000. Or the later one was sent 300 µs
    // earlier.
    let near: fn(u32) -> u32 = |i| i * 1000 - if i > 100 { 600 } else { 0 } - if i > 200 { 500 } else { 0 };
    let back: fn(u32) -> u32 = |i| 1_000_000 + i * 1000 - if i > 150 { 1300 } else { 0 };
    for (at, joined, later) in [(near, 100, near(101)), (back, 150, back(150))] {
        let list = full(at, |_| 0);
        let mut b = of(list.clone());
        assert!(b.has_room());
        let mut wanted = list;
        wanted[joined] = (wanted[joined + 1].0, later, 0);
        wanted.remove(joined + 1);
        assert_eq!(all(&b), wanted, "sent by the later time of the two");
    }
}

#[test]
fn a_full_scoreboard_joins_only_what_is_alike() {
    // Neighbours are alike if both are reported, both are lost, or neither. Nothing but the two at `pair` is.
    for (alternate, pair) in [
        ([SACKED, 0], (SACKED, SACKED | AGAIN)),
        ([0, SACKED], (0, AGAIN)),
        ([LOST, 0], (LOST, LOST | AGAIN)),
        ([LOST, SACKED], (LOST | AGAIN, LOST)),
    ] {
        let state = |i: u32| if i == 101 { pair.1 } else { alternate[(i + u32::from(i > 101)) as usize % 2] };
        let state = |i: u32| if i == 100 { pair.0 } else { state(i) };
        let list = full(|i| i * i, state);
        let mut b = of(list.clone());
        assert!(b.has_room(), "{alternate:?}");
        let mut wanted = list;
        wanted[100] = (wanted[101].0, wanted[101].1, pair.0 | pair.1);
        wanted.remove(101);
        assert_eq!(all(&b), wanted, "{alternate:?}");
    }
}

#[test]
fn without_room_new_data_forget_reports_and_other_changes_are_left_out() {
    // No neighbours are alike.
    for (first, kept) in [(LOST, 0), (SACKED | AGAIN, AGAIN)] {
        let list = full(|i| i, |i| if i % 2 == 1 { first } else { SACKED ^ LOST ^ (first & !AGAIN) });
        let mut b = of(list.clone());
        b.report(Seq(13), Seq(17), |_, _| unreachable!("there is no room for a boundary"));
        assert_eq!(all(&b), list);
        b.sent(Seq(2600), 9, 0);
        let mut wanted = list.clone();
        *wanted.last_mut().expect("full") = (2600, 9, kept);
        assert_eq!(all(&b), wanted);
    }
    let list = full(|i| i, |i| if i % 2 == 1 { LOST } else { SACKED });
    let mut b = of(list.clone());
    b.resent(Seq(13), Seq(17), 77);
    let mut wanted = list;
    wanted[1] = (20, 77, AGAIN);
    assert_eq!(all(&b), wanted, "all of the span is taken for sent again");
}

#[test]
fn a_boundary_in_a_full_scoreboard_is_where_it_should_be() {
    // The two that are joined are before, around and behind the boundary.
    for (joined, seq) in [(3, 1005), (100, 1005), (99, 1005), (200, 1005)] {
        let mut b = of(full(|i| i * 1000 - if i > joined { 900 } else { 0 }, |_| 0));
        assert!(b.split(Seq(seq)));
        let ends: Vec<u32> = all(&b).iter().map(|span| span.0).collect();
        let mut wanted: Vec<u32> = (1..=SPANS as u32).map(|n| n * 10).filter(|end| *end != (joined + 1) * 10).collect();
        wanted.push(seq);
        wanted.sort_unstable();
        assert_eq!(ends, wanted, "{joined}");
    }
}

#[test]
fn a_boundary_parts_one_span_in_two_that_are_alike() {
    for (seq, wanted) in [
        (0, vec![10, 20, 30]),
        (1, vec![1, 10, 20, 30]),
        (10, vec![10, 20, 30]),
        (11, vec![10, 11, 20, 30]),
        (29, vec![10, 20, 29, 30]),
        (30, vec![10, 20, 30]),
        (31, vec![10, 20, 30]),
    ] {
        let mut b = of([(10, 1, 0), (20, 2, SACKED), (30, 3, LOST)]);
        assert!(b.split(Seq(seq)));
        let part = |end: &u32| [(1, 0), (2, SACKED), (3, LOST)][(*end as usize - 1) / 10];
        let wanted: Vec<_> = wanted.iter().map(|end| (*end, part(end).0, part(end).1)).collect();
        assert_eq!(all(&b), wanted, "{seq}");
    }
}

/// Karn's rule: what was sent twice gives no round trip (RFC 6298 §3).
#[test]
fn the_time_of_what_an_acknowledgement_is_for_is_known_if_it_was_sent_once() {
    let mut b = of([(10, 100, 0), (20, 200, SACKED), (30, 300, AGAIN), (40, 400, LOST), (50, 500, SACKED | AGAIN)]);
    let times = |b: &Scoreboard| [1, 10, 11, 20, 21, 30, 31, 40, 41, 50, 51].map(|ack| b.sent_at(Seq(ack)));
    let second = [Some(200), Some(200), None, None, Some(400), Some(400), None, None, None];
    assert_eq!(times(&b)[..2], [Some(100); 2]);
    assert_eq!(times(&b)[2..], second);
    b.advance(Seq(10));
    assert_eq!(times(&b)[2..], second);
}

#[test]
fn an_acknowledgement_tells_what_had_not_been_reported() {
    let list = [(10, 100, 0), (20, 200, SACKED), (30, 300, AGAIN), (40, 400, LOST)];
    for (una, told, left) in [
        (0, vec![], 4),
        (5, vec![(0, 5, 100, 0)], 4),
        (10, vec![(0, 10, 100, 0)], 3),
        (15, vec![(0, 10, 100, 0)], 3),
        (20, vec![(0, 10, 100, 0)], 2),
        (21, vec![(0, 10, 100, 0), (20, 21, 300, AGAIN)], 2),
        (40, vec![(0, 10, 100, 0), (20, 30, 300, AGAIN), (30, 40, 400, LOST)], 0),
    ] {
        let (mut b, mut new) = (of(list), vec![]);
        b.acknowledge(Seq(una), |start, span| new.push((start.0, span.end.0, span.at, span.state)));
        assert_eq!((&new, all(&b)), (&told, list[4 - left..].to_vec()), "{una}");
        assert_eq!(b.iter().next().map(|(start, _)| start), (left > 0).then_some(Seq(una)));
    }
}

#[test]
fn counts_are_of_the_bytes_in_each_state() {
    let b =
        of([(1, 0, 0), (3, 0, SACKED), (7, 0, LOST), (15, 0, AGAIN), (31, 0, SACKED | AGAIN), (63, 0, LOST | AGAIN)]);
    assert_eq!([SACKED, LOST, AGAIN, SACKED | LOST].map(|state| b.bytes(state)), [18, 36, 56, 54]);
    assert_eq!(b.resent_bytes(), 8, "neither what was reported nor what was lost again");
    assert_eq!(b.first_lost(), Some((Seq(3), Seq(7))));
    assert_eq!(of([(1, 0, 0), (3, 0, SACKED)]).first_lost(), None);
}

#[test]
fn only_what_flies_is_lost_and_a_clean_scoreboard_stays_so_without_a_loss() {
    let list = [(1, 0, 0), (3, 0, SACKED), (7, 0, LOST), (15, 0, AGAIN), (31, 0, 0)];
    for (clean, loses, bytes, left_clean) in
        [(true, true, 25, false), (true, false, 0, true), (false, true, 25, false), (false, false, 0, false)]
    {
        let (mut b, mut asked) = (of(list), vec![]);
        b.clean = clean;
        let lost = b.lose(|span| {
            asked.push(span.end.0);
            loses
        });
        assert_eq!((lost, b.clean, asked), (bytes, left_clean, vec![1, 15, 31]), "{clean} {loses}");
        let lost = if loses { LOST } else { 0 };
        assert_eq!(spans(&b).iter().map(|span| span.2).collect::<Vec<_>>(), [lost, SACKED, LOST, AGAIN | lost, lost]);
    }
}

#[test]
fn a_scoreboard_is_clean_if_nothing_is_in_any_state_and_no_probe_is_out() {
    for (state, probe, clean) in [
        (0, None, true),
        (SACKED, None, false),
        (LOST, None, false),
        (AGAIN, None, false),
        (0, Some((Seq(20), false)), false),
        (AGAIN, Some((Seq(20), true)), false),
    ] {
        for before in [true, false] {
            let mut b = of([(10, 0, 0), (20, 0, state)]);
            (b.clean, b.probe) = (before, probe);
            b.look();
            assert_eq!(b.clean, clean, "{state} {probe:?} {before}");
        }
    }
}

#[test]
fn reports_and_repairs_make_a_scoreboard_unclean() {
    let mut b = scoreboard(Seq(0), Seq(20), 5);
    assert!(b.clean);
    b.report(Seq(10), Seq(20), |_, _| {});
    assert!(!b.clean);
    let mut b = scoreboard(Seq(0), Seq(20), 5);
    b.resent(Seq(0), Seq(10), 6);
    assert!(!b.clean);
}

#[test]
fn neighbours_are_joined_if_they_no_longer_differ() {
    for (a, z, joined) in [
        ((1, 0), (1, 0), Some((1, 0))),
        ((1, 0), (2, 0), None),
        ((1, AGAIN), (1, 0), None),
        ((1, AGAIN), (2, AGAIN), None),
        ((1, AGAIN), (1, AGAIN), Some((1, AGAIN))),
        ((1, LOST), (9, LOST), Some((9, LOST))),
        ((9, LOST), (1, LOST), Some((9, LOST))),
        ((1, LOST), (1, LOST | AGAIN), None),
        ((1, LOST | AGAIN), (2, LOST | AGAIN), Some((2, LOST | AGAIN))),
        ((1, LOST), (1, 0), None),
        ((1, SACKED), (9, SACKED), Some((9, SACKED))),
        ((1, SACKED), (9, SACKED | AGAIN), Some((9, SACKED | AGAIN))),
        ((1, SACKED), (1, 0), None),
        ((1, SACKED), (1, AGAIN), None),
    ] {
        // In the middle of a list that begins behind the front.
        let mut b = of([(10, 0, 0), (20, 0, LOST), (30, a.0, a.1), (40, z.0, z.1), (50, 99, LOST ^ AGAIN ^ SACKED)]);
        b.advance(Seq(10));
        // Its neighbours must not join it too.
        b.spans[1].state = 0x40;
        b.spans[4].state = 0x20;
        b.tidy();
        let wanted = match joined {
            Some((at, state)) => vec![(20, 0, 0x40), (40, at, state), (50, 99, 0x20)],
            None => vec![(20, 0, 0x40), (30, a.0, a.1), (40, z.0, z.1), (50, 99, 0x20)],
        };
        assert_eq!(all(&b), wanted, "{a:?} {z:?}");
    }
    let mut b = of([(10, 0, LOST), (20, 1, LOST), (30, 2, LOST), (40, 3, LOST)]);
    b.tidy();
    assert_eq!(all(&b), [(40, 3, LOST)], "to the last");
}

#[test]
fn a_scoreboard_that_is_taken_again_has_forgotten_the_last_flow() {
    let mut scoreboards = Scoreboards::default();
    assert_eq!(scoreboards.take(Seq(0), Seq(10), 5, false), Some(1));
    assert_eq!(scoreboards.take(Seq(0), Seq(10), 5, false), Some(2));
    let b = scoreboards.get(1).expect("taken");
    b.report(Seq(0), Seq(5), |_, _| {});
    (b.newest, b.highest, b.duplicates) = (Some(Newest { at: 1, end: Seq(5), rtt_us: 4 }), Seq(9), 3);
    (b.reduction.out, b.probe, b.doubtful, b.reordering_timer) = (7, Some((Seq(10), true)), 2, true);
    scoreboards.release(0);
    assert_eq!(scoreboards.in_use(), 2, "0 is no scoreboard");
    scoreboards.release(1);
    assert_eq!(scoreboards.in_use(), 1);
    for again in [false, true] {
        assert_eq!(scoreboards.take(Seq(100), Seq(120), 50, again), Some(1), "again {again}");
        let b = scoreboards.get(1).expect("taken");
        assert_eq!(all(b), [(120, 50, if again { AGAIN } else { 0 })]);
        assert_eq!((b.clean, b.newest.is_none(), b.highest, b.duplicates), (!again, true, Seq(100), 0));
        assert_eq!((b.reduction.out, b.probe, b.doubtful, b.reordering_timer), (0, None, 0, false));
        scoreboards.release(1);
    }
    assert!(scoreboards.get(0).is_none() && scoreboards.get(3).is_none());
}

#[derive(Clone, Debug)]
enum Step {
    Sent(u32),
    Report(u32, u32),
    Resent(u32, u32),
    Lose(u32),
    Acknowledge(u32),
    Find,
    TimeOut,
}

fn step() -> impl Strategy<Value = Step> {
    let at = || 0u32..300;
    prop_oneof![
        2 => (1u32..40).prop_map(Step::Sent),
        8 => (at(), 1u32..30).prop_map(|(a, n)| Step::Report(a, a + n)),
        4 => (at(), 1u32..30).prop_map(|(a, n)| Step::Resent(a, a + n)),
        2 => at().prop_map(Step::Lose),
        1 => at().prop_map(Step::Acknowledge),
        1 => Just(Step::Find),
        1 => Just(Step::TimeOut),
    ]
}

proptest! {
    /// Compared with a state for each byte. As long as there is room, both agree; without room only reports may be
    /// missing.
    #[test]
    fn is_a_state_per_byte(base in any::<u32>(), steps in prop::collection::vec(step(), 1..120)) {
        let at = |n: u32| Seq(base).add(n);
        let (mut b, mut bytes, mut una) = (scoreboard(at(0), at(100), 1), vec![0u8; 100], 0u32);
        let (mut full, mut reneged) = (false, false);
        for (now, step) in steps.into_iter().enumerate() {
            let max = bytes.len() as u32;
            let clip = |a: u32, z: u32| (a.clamp(una, max), z.clamp(una, max));
            match step {
                Step::Sent(n) => {
                    bytes.resize((max + n) as usize, 0);
                    b.sent(at(max + n), now as u32, 0);
                }
                Step::Report(a, z) => {
                    let (a, z) = clip(a, z);
                    let mut told = 0;
                    b.report(at(a), at(z), |from, span| told += span.end.bytes_since(from));
                    let range = &mut bytes[a as usize..z as usize];
                    let new = range.iter().filter(|s| **s & SACKED == 0).count();
                    prop_assert!(full || told as usize == new || b.iter().count() == SPANS);
                    range.iter_mut().for_each(|s| *s = *s & !LOST | SACKED);
                }
                Step::Resent(a, z) => {
                    let (a, z) = clip(a, z);
                    b.resent(at(a), at(z), now as u32);
                    bytes[a as usize..z as usize].iter_mut().filter(|s| **s & SACKED == 0).for_each(|s| *s = AGAIN);
                }
                Step::Lose(end) => {
                    // Whole spans only.
                    b.lose(|span| !span.end.after(at(end.max(una))));
                    if let Some((_, last)) = b.iter().filter(|(_, span)| !span.end.after(at(end.max(una)))).last() {
                        let end = last.end.bytes_since(at(0)) as usize;
                        bytes[una as usize..end].iter_mut().filter(|s| **s & SACKED == 0).for_each(|s| *s |= LOST);
                    }
                }
                Step::Acknowledge(to) => {
                    una = to.clamp(una, max);
                    b.acknowledge(at(una), |_, _| {});
                }
                Step::Find => {
                    b.find();
                    bytes.iter_mut().for_each(|s| *s &= !LOST);
                }
                Step::TimeOut => {
                    if bytes.get(una as usize).is_some_and(|s| s & SACKED != 0) {
                        bytes.iter_mut().for_each(|s| *s &= !SACKED);
                        reneged = true;
                    }
                    b.time_out();
                    bytes[una as usize..].iter_mut().filter(|s| **s & SACKED == 0).for_each(|s| *s |= LOST);
                }
            }
            full |= b.iter().count() == SPANS;
            let mut end = at(una);
            for (start, span) in b.iter() {
                prop_assert_eq!(start, end, "no gap");
                prop_assert!(span.end.after(start), "no empty span");
                end = span.end;
                for n in start.bytes_since(at(0))..end.bytes_since(at(0)) {
                    let (ours, theirs) = (span.state, bytes[n as usize]);
                    if full {
                        prop_assert!(ours & SACKED <= theirs & SACKED, "never more than was reported");
                    } else if ours & SACKED != 0 {
                        prop_assert_eq!(theirs & SACKED, SACKED);
                    } else {
                        // Reported neighbours are joined, whether or not they were sent again.
                        prop_assert!(ours == theirs || (reneged && ours == theirs | AGAIN), "byte {}", n);
                    }
                }
            }
            prop_assert_eq!(end, at(bytes.len() as u32));
        }
    }
}
