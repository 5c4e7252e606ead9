//! Selective acknowledgements as receiver (RFC 2018, RFC 2883).

use super::*;

fn h() -> Harness {
    Harness::of(FlowSetup { sack: true, ..setup() })
}

fn data(h: &mut Harness, from: u32, to: u32) -> Vec<Seg> {
    h.rx(seg(from, 0, &bytes(from, to - from)))
}

#[test]
fn the_newest_range_is_reported_first() {
    let mut h = h();
    assert_eq!(data(&mut h, 200, 300)[0].sack, [(200, 300)]);
    assert_eq!(data(&mut h, 400, 500)[0].sack, [(400, 500), (200, 300)]);
    assert_eq!(data(&mut h, 600, 700)[0].sack, [(600, 700), (400, 500), (200, 300)]);
    assert_eq!(data(&mut h, 300, 350)[0].sack, [(200, 350), (600, 700), (400, 500)]);
    data(&mut h, 800, 900);
    assert_eq!(data(&mut h, 1000, 1100)[0].sack, [(1000, 1100), (800, 900), (200, 350), (600, 700)], "four at most");
    // Ranges that join the stream are no longer reported.
    let out = data(&mut h, 0, 200);
    assert_eq!((out[0].ack, &out[0].sack[..]), (350, &[(1000, 1100), (800, 900), (600, 700), (400, 500)][..]));
    h.read();
}

#[test]
fn beside_timestamps_there_is_room_for_three() {
    let mut h = Harness::of(FlowSetup { sack: true, timestamps: true, ..setup() });
    for n in 1..=4 {
        h.batch(&[seg(n * 200, 0, &bytes(n * 200, 100)).ts(1, 0)]);
    }
    assert_eq!(h.flush()[0].sack.len(), 3);
}

#[test]
fn the_acknowledgements_of_a_batch_report_all_its_ranges() {
    let mut h = h();
    let batch: Vec<_> = (1..=9).map(|n| seg(n * 200, 0, &bytes(n * 200, 100))).collect();
    h.batch(&batch);
    let out = h.flush();
    assert_eq!(out.len(), 9);
    assert!(out.iter().all(|ack| ack.sack[0] == (1800, 1900)));
    let told: std::collections::HashSet<_> = out.iter().flat_map(|ack| ack.sack.clone()).collect();
    assert_eq!(told.len(), 9);
}

#[test]
fn what_comes_twice_is_reported_once() {
    let mut h = h();
    data(&mut h, 0, 100);
    data(&mut h, 100, 200);
    // Below RCV.NXT.
    let out = data(&mut h, 100, 200);
    assert_eq!((out[0].ack, &out[0].sack[..]), (200, &[(100, 200)][..]));
    assert_eq!(data(&mut h, 300, 500)[0].sack, [(300, 500)], "not again");
    // Inside a kept range, which stands second.
    data(&mut h, 600, 700);
    assert_eq!(data(&mut h, 350, 400)[0].sack, [(350, 400), (300, 500), (600, 700)]);
    // Partly.
    let out = data(&mut h, 150, 250);
    assert_eq!((out[0].ack, &out[0].sack[..]), (250, &[(150, 200), (300, 500), (600, 700)][..]));
    h.read();
}

#[test]
fn data_carry_only_the_blocks_that_fit_beside_them() {
    let mut h = h();
    data(&mut h, 200, 300);
    data(&mut h, 400, 500);
    let out = h.write(MSS + MSS - 12);
    assert_eq!(out.iter().map(|s| (s.data.len(), s.sack.len())).collect::<Vec<_>>(), [(1000, 0), (988, 1)]);
    assert_eq!(out[1].sack, [(400, 500)]);
}

#[test]
fn nothing_is_reported_unless_it_was_agreed() {
    let mut h = Harness::new();
    assert!(data(&mut h, 200, 300)[0].sack.is_empty());
    assert!(data(&mut h, 200, 300)[0].sack.is_empty());
}

/// RFC 2018 §4: the newest range stands first. The other eight take turns.
#[test]
fn the_acknowledgements_of_a_batch_take_turns_in_naming_the_other_ranges() {
    let mut h = h();
    let batch: Vec<_> = (1..=9).map(|n| seg(n * 200, 0, &bytes(n * 200, 100))).collect();
    h.batch(&batch);
    let named: Vec<Vec<u32>> =
        h.flush().iter().map(|s| s.sack[1..].iter().map(|block| block.0 / 200).collect()).collect();
    let turns = [vec![8, 7, 6], vec![2, 1, 8], vec![4, 3, 2], vec![6, 5, 4]];
    let wanted: Vec<_> = (0..9).map(|n| turns[n % 4].clone()).collect();
    assert_eq!(named, wanted);
}

/// RFC 2883 §4: one report. What follows in the same batch is added to it.
#[test]
fn neighbours_that_come_twice_are_reported_as_one() {
    let mut harness = h();
    let mut turn = harness.turn();
    let reported = |turn: &FlowTurn<'_>| turn.lines.recovery.duplicate.each_ref().map(|word| word.get());
    for (start, end, wanted) in [
        (100, 200, [100, 200]),
        (200, 300, [100, 300]),
        (400, 500, [400, 500]),
        (50, 60, [50, 60]),
        (70, 70, [50, 60]),
        (80, 70, [50, 60]),
    ] {
        report::duplicate(STAGES.receive, &mut turn.t, turn.lines, Seq(start), Seq(end));
        assert_eq!((reported(&turn), turn.t.has(bits::DSACK)), (wanted, true), "{start} {end}");
    }
    // The first after the report has gone out begins anew, also right behind it.
    turn.t.clear(STAGES.receive, bits::DSACK);
    report::duplicate(STAGES.receive, &mut turn.t, turn.lines, Seq(60), Seq(70));
    assert_eq!((reported(&turn), turn.t.has(bits::DSACK)), ([60, 70], true));
    turn.t.clear(STAGES.receive, bits::DSACK);
    turn.t.clear(STAGES.install, bits::SACK);
    report::duplicate(STAGES.receive, &mut turn.t, turn.lines, Seq(80), Seq(90));
    assert_eq!((reported(&turn), turn.t.has(bits::DSACK)), ([60, 70], false));
}
