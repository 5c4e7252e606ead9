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
