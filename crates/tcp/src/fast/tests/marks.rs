//! Marks of the application: how far a cork was off for a moment, and the ends of records.

use super::*;
use crate::messages::AppMarks;

/// Sequence numbers and lengths of segments.
fn cuts(sent: &[Seg]) -> Vec<(u32, usize)> {
    sent.iter().map(|s| (s.seq, s.data.len())).collect()
}

fn marks(h: &mut Harness) -> &mut AppMarks {
    h.app.marks.get_or_insert_default()
}

fn corked() -> Harness {
    let mut h = Harness::of(FlowSetup { nodelay: false, ..setup() });
    h.app.cork = true;
    h
}

/// Writes without sending.
fn queue(h: &mut Harness, len: u32) {
    h.app.tx_tail += len;
    h.update().unwrap();
}

/// The stack may look only after the cork is on again.
#[test]
fn a_cork_that_was_off_for_a_moment_has_flushed() {
    let mut h = corked();
    assert_eq!(h.write(300), []);
    h.app.tx_tail = 350;
    marks(&mut h).flush = Some(300);
    h.update().unwrap();
    assert_eq!(cuts(&h.flush()), [(0, 300)], "what came later is held");
    assert_eq!(h.rx(seg(0, 300, &[])), []);
    assert_eq!(h.write(10), [], "the old mark means nothing any more");
    assert_eq!(cuts(&h.write(MSS)), [(300, MSS as usize)]);
    h.app.cork = false;
    h.update().unwrap();
    assert_eq!(h.flush(), [], "Nagle holds the rest");
    assert_eq!(cuts(&h.rx(seg(0, 300 + MSS, &[]))), [(300 + MSS, 60)]);
}

#[test]
fn what_is_flushed_obeys_nagle() {
    let mut h = corked();
    h.write(MSS);
    h.app.tx_tail = MSS + 250;
    marks(&mut h).flush = Some(MSS + 200);
    h.update().unwrap();
    assert_eq!(h.flush(), []);
    assert_eq!(cuts(&h.rx(seg(0, MSS, &[]))), [(MSS, 200)]);
}

#[test]
fn a_full_segment_goes_beyond_a_flush() {
    let mut h = corked();
    h.app.tx_tail = MSS + 100;
    marks(&mut h).flush = Some(300);
    h.update().unwrap();
    assert_eq!(cuts(&h.flush()), [(0, MSS as usize)]);
}

/// MSG_EOR.
#[test]
fn no_segment_goes_beyond_the_end_of_a_record() {
    let mut h = Harness::new();
    h.tx.room = 0;
    for end in [700, 1900, 2000] {
        marks(&mut h).record = Some(end);
        let len = end - h.app.tx_tail;
        queue(&mut h, len);
    }
    queue(&mut h, 500);
    h.tx.room = usize::MAX;
    let sent = h.flush();
    assert_eq!(cuts(&sent), [(0, 700), (700, 1000), (1700, 200), (1900, 100), (2000, 500)]);
    assert!(sent.iter().all(|s| (s.flags & PSH != 0) == (s.seq != 700)), "each record is pushed");
    h.message(ToFast::Timeout(FLOW, Window { cwnd: 5 * MSS, ..setup().window }));
    assert_eq!(cuts(&h.flush()), cuts(&sent), "they are sent again as they were");
    h.rx(seg(0, 2500, &[]));
    assert_eq!(cuts(&h.write(MSS)), [(2500, MSS as usize)]);
    assert!(!h.fast.table.get(FLOW).unwrap().protocol.load().has(bits::MARKED), "the marks are forgotten");
}

/// As on Linux: a record that something follows is complete, so nothing holds it.
#[test]
fn a_record_that_something_follows_waits_neither_for_nagle_nor_for_a_cork() {
    let mut h = Harness::of(FlowSetup { nodelay: false, ..setup() });
    assert_eq!(cuts(&h.write(100)), [(0, 100)]);
    marks(&mut h).record = Some(200);
    assert_eq!(h.write(100), [], "the last waits for the acknowledgement");
    assert_eq!(cuts(&h.write(50)), [(100, 100)]);
    assert_eq!(cuts(&h.rx(seg(0, 200, &[]))), [(200, 50)]);
    h.rx(seg(0, 250, &[]));
    h.app.cork = true;
    marks(&mut h).record = Some(350);
    assert_eq!(h.write(100), []);
    assert_eq!(cuts(&h.write(50)), [(250, 100)]);
}

#[test]
fn repairs_keep_the_ends_of_records() {
    let mut h = Harness::of(FlowSetup { sack: true, ..setup() });
    h.tx.room = 0;
    marks(&mut h).record = Some(300);
    queue(&mut h, 300);
    queue(&mut h, 4 * MSS);
    h.tx.room = usize::MAX;
    assert_eq!(h.flush().len(), 5);
    let end = 300 + 4 * MSS;
    h.now = h.now.after(10_000);
    let repair = h.rx(seg(0, 0, &[]).sack(&[(300 + MSS, end)]));
    assert_eq!(cuts(&repair)[0], (0, 300));
}

/// More ends than are kept: those that come first are kept, and the newest.
#[test]
fn of_too_many_ends_the_first_are_kept() {
    let mut h = Harness::new();
    h.tx.room = 0;
    for end in 1..=9 {
        marks(&mut h).record = Some(end * 10);
        queue(&mut h, 10);
    }
    h.tx.room = usize::MAX;
    assert_eq!(cuts(&h.flush()), [(0, 10), (10, 10), (20, 10), (30, 10), (40, 10), (50, 40)]);
}
