//! Receive rings of which an idle application keeps a part.

use super::*;

const KEPT: u32 = 3000;

/// A flow that has received some bytes, whose application keeps memory for the next [`KEPT`].
fn trimmed() -> Harness {
    let mut h = Harness::new();
    h.rx(seg(0, 0, &bytes(0, 2000)));
    assert_eq!(h.read(), 2000);
    h.wait(10_000);
    assert!(h.fast.trim_receive_ring(h.now, FLOW, KEPT));
    h
}

/// RFC 9293 SHLD-14.
#[test]
fn what_is_kept_is_filled_and_the_window_stays_as_it_was_offered() {
    let mut h = trimmed();
    let edge = 2000 + h.snapshot().rcv_wnd;
    h.rx(seg(2000, 0, &bytes(2000, 1000)));
    // More than there is memory for, within the window.
    let sent = h.rx(seg(3000, 0, &bytes(3000, 2500)));
    assert_eq!(
        (sent[0].ack, sent[0].ack + u32::from(sent[0].wnd)),
        (2000 + KEPT, edge),
        "cut, and acknowledged at once"
    );
    assert_eq!((h.drops(), h.take_events()), (0, event::READABLE));
    for start in [2000 + KEPT, 9000] {
        let sent = h.rx(seg(start, 0, &bytes(start, 500)));
        assert_eq!((sent[0].ack, sent[0].ack + u32::from(sent[0].wnd)), (2000 + KEPT, edge));
    }
    assert_eq!((h.dropped(Drop::OutOfWindow), h.take_events()), (2, 0));
    assert_eq!(h.read(), KEPT);
    h.rx(seg(2000 + KEPT, 0, &bytes(2000 + KEPT, 500)));
    assert_eq!(h.dropped(Drop::OutOfWindow), 3, "reading brings no memory");
    h.fast.restore_receive_ring(h.now, FLOW);
    h.rx(seg(2000 + KEPT, 0, &bytes(2000 + KEPT, 40_000)));
    assert_eq!((h.read(), h.drops()), (40_000, 3));
}

#[test]
fn a_ring_that_takes_nothing_for_now_loses_nothing() {
    let mut h = trimmed();
    h.take_events();
    assert!(h.fast.trim_receive_ring_again(h.now, FLOW, 0));
    let sent = h.rx(seg(2000, 0, &bytes(2000, 1000)));
    assert_eq!((sent[0].ack, h.dropped(Drop::OutOfWindow), h.take_events()), (2000, 1, 0), "asked for again at once");
    h.rx(seg(2500, 0, &bytes(2500, 100)));
    assert_eq!((h.dropped(Drop::OutOfWindow), h.view().rx_tail), (2, 2000));
    assert!(h.fast.trim_receive_ring_again(h.now, FLOW, KEPT));
    h.rx(seg(2000, 0, &bytes(2000, KEPT)));
    assert!(!h.fast.trim_receive_ring_again(h.now, FLOW, 0), "unread");
    assert_eq!(h.read(), KEPT);
    h.fast.restore_receive_ring(h.now, FLOW);
    assert!(!h.fast.trim_receive_ring_again(h.now, FLOW, 0), "only one that is trimmed");
}

#[test]
fn what_comes_ahead_of_a_hole_needs_memory_too() {
    let mut h = trimmed();
    h.rx(seg(2000 + KEPT - 100, 0, &bytes(2000 + KEPT - 100, 500)));
    h.rx(seg(2000, 0, &bytes(2000, KEPT - 100)));
    assert_eq!((h.read(), h.drops()), (KEPT, 0));
}

#[test]
fn bytes_that_nobody_wants_and_the_end_of_the_stream_need_no_memory() {
    let mut h = trimmed();
    h.rx(seg(2000, 0, &bytes(2000, KEPT)));
    assert_eq!(h.read(), KEPT);
    h.rx(seg(2000 + KEPT, 0, &[]).with(ACK | FIN));
    assert!(h.view().eof);
    let mut h = trimmed();
    h.app.shut_rd = true;
    h.update().unwrap();
    h.rx(seg(2000, 0, &[0xee; 5000]));
    assert_eq!((h.drops(), h.view().rx_tail), (0, 2000));
}

#[test]
fn memory_goes_only_from_a_ring_with_nothing_in_it() {
    let mut h = Harness::new();
    h.rx(seg(0, 0, &bytes(0, 100)));
    assert!(!h.fast.trim_receive_ring(h.now, FLOW, KEPT), "unread");
    h.read();
    h.rx(seg(200, 0, &bytes(200, 100)));
    assert!(!h.fast.trim_receive_ring(h.now, FLOW, KEPT), "behind a hole");
    h.rx(seg(100, 0, &bytes(100, 100)));
    h.read();
    assert!(h.fast.trim_receive_ring(h.now, FLOW, KEPT));
    assert!(!h.fast.trim_receive_ring(h.now, FLOW, KEPT), "once");
    h.fast.restore_receive_ring(h.now, FLOW);
    h.rx(seg(300, 0, &[]).with(ACK | FIN));
    assert!(!h.fast.trim_receive_ring(h.now, FLOW, KEPT), "nothing comes any more");
    assert!(!h.fast.trim_receive_ring(h.now, FlowId(4), KEPT), "no flow");
}
