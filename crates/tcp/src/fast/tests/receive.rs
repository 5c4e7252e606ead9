//! Data in: order, holes, overlap, windows.

use super::*;

fn h() -> Harness {
    Harness::new()
}

#[test]
fn data_in_order_across_the_wrap_of_sequence_numbers() {
    let mut h = h();
    for n in 0..4 {
        h.rx(seg(n * 1000, 0, &bytes(n * 1000, 1000)));
        assert_eq!(h.take_events(), event::READABLE);
    }
    assert_eq!(h.view().rx_tail, 4000);
    assert_eq!(h.read(), 4000);
    assert_eq!((h.snapshot().bytes_in, h.snapshot().rx_queued, h.drops()), (4000, 0, 0));
}

/// RFC 9293 SHLD-31.
#[test]
fn a_hole_is_filled_and_joined() {
    let mut h = h();
    for start in [2000, 4000, 6000] {
        let sent = h.rx(seg(start, 0, &bytes(start, 1000)));
        assert_eq!(sent.len(), 1, "duplicate ACK at once");
        assert_eq!((sent[0].ack, sent[0].flags), (0, ACK));
        assert_eq!(h.take_events(), 0);
    }
    assert_eq!(h.fast.state.out_of_order.in_use(), 1);
    let sent = h.rx(seg(0, 0, &bytes(0, 2500)));
    assert_eq!(sent.last().unwrap().ack, 3000);
    assert_eq!(h.read(), 3000);
    let sent = h.rx(seg(3000, 0, &bytes(3000, 3000)));
    assert_eq!(sent.last().unwrap().ack, 7000);
    assert_eq!(h.read(), 4000);
    assert_eq!((h.fast.state.out_of_order.in_use(), h.drops()), (0, 0));
}

/// Bytes beyond a hole lie where they lie in a ring of the old size.
#[test]
fn a_receive_ring_is_doubled_unless_a_hole_an_end_or_the_memory_forbids_it() {
    let flow = FLOW;
    let mut h = h();
    h.rx(seg(0, 0, &bytes(0, 1000)));
    let mut asked = Vec::new();
    let fits = |yes: bool, asked: &mut Vec<(u32, u32, u32)>, h: &mut Harness| {
        h.fast.double_receive_ring(h.now, flow, |bytes, head, tail| {
            asked.push((bytes, head, tail));
            yes
        })
    };
    assert!(!fits(false, &mut asked, &mut h), "it does not fit");
    assert!(fits(true, &mut asked, &mut h) && fits(true, &mut asked, &mut h));
    assert_eq!(asked, [(RING, 0, 1000), (RING, 0, 1000), (2 * RING, 0, 1000)]);
    h.rx(seg(2000, 0, &bytes(2000, 10)));
    assert!(!fits(true, &mut asked, &mut h), "a hole");
    h.rx(seg(1000, 0, &bytes(1000, 1000)).with(ACK));
    assert!(fits(true, &mut asked, &mut h));
    h.rx(seg(2010, 0, &[]).with(ACK | FIN));
    assert!(!fits(true, &mut asked, &mut h), "nothing more comes");
    assert!(!h.fast.double_receive_ring(h.now, FlowId(9), |_, _, _| true), "there is no such flow");
}

#[test]
fn partial_fill_is_acknowledged_at_once() {
    let mut h = h();
    h.rx(seg(2000, 0, &bytes(2000, 100)));
    let sent = h.rx(seg(0, 0, &bytes(0, 100)));
    assert_eq!(sent[0].ack, 100);
}

#[test]
fn one_range_too_many_is_dropped() {
    let mut h = h();
    for n in 1..=128 {
        h.rx(seg(n * 20, 0, &bytes(n * 20, 10)));
    }
    assert_eq!(h.drops(), 0);
    h.rx(seg(129 * 20, 0, &bytes(129 * 20, 10)));
    assert_eq!(h.dropped(Drop::OutOfOrderFull), 1);
    h.rx(seg(0, 0, &bytes(0, 20)));
    assert_eq!(h.read(), 30);
}

#[test]
fn old_data_are_trimmed_or_acknowledged_again() {
    let mut h = h();
    h.rx(seg(0, 0, &bytes(0, 1000)));
    h.rx(seg(500, 0, &bytes(500, 1000)));
    assert_eq!(h.read(), 1500);
    assert_eq!(h.drops(), 0);
    h.wait(10_000);
    let sent = h.rx(seg(0, 0, &bytes(0, 1500)));
    assert_eq!((sent.len(), sent[0].ack), (1, 1500));
    assert_eq!(h.dropped(Drop::Duplicate), 1);
    let sent = h.rx(seg(200, 0, &bytes(200, 100)));
    assert_eq!((sent.len(), sent[0].ack), (1, 1500));
    assert_eq!(h.dropped(Drop::Duplicate), 2);
    // The same data behind a hole twice.
    h.rx(seg(3000, 0, &bytes(3000, 100)));
    h.rx(seg(3020, 0, &bytes(3020, 50)));
    assert_eq!((h.dropped(Drop::Duplicate), h.drops()), (3, 3));
}

#[test]
fn overlap_cannot_change_what_the_application_has_seen() {
    let mut h = h();
    h.rx(seg(0, 0, &bytes(0, 1000)));
    h.rx(seg(0, 0, &[&[0xee; 1000], &bytes(1000, 500)[..]].concat()));
    assert_eq!(h.read(), 1500);
}

#[test]
fn beyond_the_window_is_trimmed_and_dropped() {
    let mut h = Harness::of(FlowSetup { rx_bytes: 4096, rcv_wnd: 4096, ..setup() });
    let sent = h.rx(seg(3000, 0, &bytes(3000, 2000)));
    assert_eq!((sent[0].ack, sent[0].wnd), (0, 4096));
    h.rx(seg(4096, 0, &bytes(4096, 10)));
    assert_eq!((h.dropped(Drop::OutOfWindow), h.drops()), (1, 1));
    let sent = h.rx(seg(0, 0, &bytes(0, 3000)));
    assert_eq!((sent[0].ack, sent[0].wnd), (4096, 0), "the first 1096 bytes of the long one were kept");
    assert_eq!(h.read(), 4096);
    assert_eq!(h.flush()[0].wnd, 4096, "the window opens");
}

#[test]
fn a_closed_window_takes_acks_but_no_data_and_opens_in_worthwhile_steps() {
    let mut h = Harness::of(FlowSetup { rx_bytes: 4096, rcv_wnd: 4096, ..setup() });
    h.write(100);
    h.rx(seg(0, 0, &bytes(0, 4096)));
    let sent = h.rx(seg(4096, 100, b"x"));
    assert_eq!((sent[0].ack, sent[0].wnd), (4096, 0));
    assert_eq!(h.dropped(Drop::OutOfWindow), 1);
    assert_eq!(h.view().tx_head, 100, "the ACK in it counted");
    // Silly windows are not offered: 300 bytes read are too few.
    h.app.rx_head = 300;
    h.update().unwrap();
    assert_eq!(h.flush(), []);
    assert_eq!(h.rx(seg(4096, 100, b"x"))[0].wnd, 0);
    h.app.rx_head = 1100;
    h.update().unwrap();
    assert_eq!(h.flush()[0].wnd, 1100);
    // From here on, 1000 more bytes would not cause a window update of their own.
    h.app.rx_head = 2100;
    h.update().unwrap();
    assert_eq!(h.flush(), []);
    h.app.rx_head = 3200;
    h.update().unwrap();
    assert_eq!(h.flush()[0].wnd, 3200);
}

/// A program notifies once for each quarter of the ring that it has read. Segments are half a ring long. However much
/// was unread at the last notification: once the program has read everything, its peer can send a segment (RFC 9293
/// §3.8.6.2.2).
#[test]
fn who_reads_everything_without_ringing_again_leaves_no_silly_window_behind() {
    const RX: u32 = 32768;
    let mss = RX / 2 - 50;
    for unread in (1000..RX).step_by(500) {
        let mut h = Harness::of(FlowSetup { rx_bytes: RX, rcv_wnd: RX, mss: mss as u16, ..setup() });
        let mut edge = RX;
        for start in (0..unread).step_by(500) {
            h.rx(seg(start, 0, &bytes(start, 500)));
        }
        let (mut told, end) = (0, unread.next_multiple_of(500));
        for head in (0..=end).step_by(500) {
            h.app.rx_head = head;
            if head - told >= RX / 4 {
                told = head;
                h.update().unwrap();
                edge = h.flush().iter().map(|s| s.ack + u32::from(s.wnd)).fold(edge, u32::max);
            }
        }
        assert!(edge - end >= mss, "{end} bytes read, and the peer knows of {} free", edge - end);
    }
}

/// RFC 9293 SHLD-14.
#[test]
fn the_right_edge_never_goes_back() {
    for shift in [0u8, 3, 7] {
        let mut h = Harness::of(FlowSetup { rcv_wscale: shift, rx_bytes: 32768, rcv_wnd: 32768, ..setup() });
        let (mut at, mut edge) = (0, 0u32);
        for n in 0..200u32 {
            let len = 1 + n * 37 % 700;
            let len = len.min(h.snapshot_edge() - at);
            if len == 0 {
                h.read();
                h.flush();
                continue;
            }
            for s in h.rx(seg(at, 0, &bytes(at, len))) {
                let new = s.ack + (u32::from(s.wnd) << shift);
                assert!(new + (1 << shift) > edge, "shift {shift}: {new} after {edge}");
                assert!(new <= h.app.rx_head + 32768, "promised only what there is");
                let rounded = s.ack + edge.saturating_sub(s.ack).next_multiple_of(1 << shift);
                assert!(new >= edge || rounded > h.app.rx_head + 32768, "rounded up while there is room");
                edge = edge.max(new);
            }
            at += len;
            if n % 7 == 0 {
                h.read();
            }
        }
        assert!(at > 40_000);
        assert_eq!(h.drops(), 0);
    }
}

impl Harness {
    /// Right edge of the window that has been promised.
    fn snapshot_edge(&self) -> u32 {
        let t = self.fast.table.get(FLOW).unwrap().protocol.load();
        t.rcv_adv().bytes_since(self.setup.rcv_start)
    }
}

#[test]
fn positions_wrap_with_the_ring_and_with_32_bits() {
    let mut h = Harness::of(FlowSetup { rx_bytes: 4096, rcv_wnd: 4096, ..setup() });
    let mut at = 0;
    for _ in 0..100 {
        h.rx(seg(at + 700, 0, &bytes(at + 700, 500)));
        h.rx(seg(at, 0, &bytes(at, 700)));
        at += 1200;
        assert_eq!(h.read(), 1200);
        h.flush();
    }
    assert_eq!(h.drops(), 0);
}

#[test]
fn after_shut_rd_data_are_taken_and_thrown_away() {
    let mut h = Harness::of(FlowSetup { rx_bytes: 4096, rcv_wnd: 4096, ..setup() });
    h.rx(seg(0, 0, &bytes(0, 500)));
    h.app.shut_rd = true;
    h.update().unwrap();
    h.take_events();
    for n in 0..10 {
        let sent = h.rx(seg(500 + n * 2000, 0, &[0xee; 2000]));
        assert_eq!((sent[0].ack, sent[0].wnd), (2500 + n * 2000, 4096 - 500));
    }
    h.rx(seg(21500, 0, &[0xee; 100]));
    h.rx(seg(20500, 0, &[0xee; 1000]));
    assert_eq!((h.take_events(), h.view().rx_tail, h.snapshot().rx_queued), (0, 500, 500));
    assert_eq!(h.read(), 500, "what had come before can still be read");
    h.rx(seg(21600, 0, &[]).with(ACK | FIN));
    assert!(h.view().eof);
    assert_eq!(h.view().rx_tail, 500);
}

/// RFC 5681 §4.2: two segments as large as the largest that has come.
#[test]
fn two_full_segments_are_acknowledged_at_once_and_less_is_not() {
    for (parts, acks) in [
        (vec![1000, 900, 100], [0, 0, 1]),
        (vec![1000, 999, 1], [0, 0, 1]),
        (vec![1000, 1000, 1], [0, 1, 0]),
        (vec![536, 535, 1], [0, 0, 1]),
        (vec![600, 600, 1], [0, 1, 0]),
        (vec![600, 599, 1], [0, 0, 1]),
    ] {
        let (mut h, mut at) = (Harness::new(), 0);
        let sent = parts.iter().map(|len| {
            at += len;
            h.rx(seg(at - len, 0, &bytes(at - len, *len))).len()
        });
        assert_eq!(sent.collect::<Vec<_>>(), acks, "{parts:?}");
    }
}

#[test]
fn data_ahead_of_a_hole_are_not_copied_for_an_application_that_does_not_want_them() {
    for shut_rd in [false, true] {
        let mut h = Harness::new();
        h.app.shut_rd = shut_rd;
        h.update().unwrap();
        h.rx(seg(10, 0, &[7; 10]));
        let copied = h.rings.rx[&FLOW][10..20] == [7; 10];
        assert_eq!(copied, !shut_rd);
        // The same again is not copied again.
        h.rings.rx.get_mut(&FLOW).unwrap().fill(0);
        h.rx(seg(10, 0, &[7; 10]));
        assert!(h.rings.rx[&FLOW].iter().all(|byte| *byte == 0));
    }
}

/// RFC 9293 §3.8.6.2.2 (MUST-39): two segments are much, and one if the peer cannot send one.
#[test]
fn the_peer_is_told_of_room_for_two_segments_or_for_one_if_it_had_less() {
    for (left, least) in [(1001, 2000), (1000, 2000), (999, 1000), (1, 1000)] {
        let mut h = Harness::of(FlowSetup { rcv_wnd: 20_000, rx_bytes: 32_768, ..setup() });
        h.app.rx_head = 0;
        let mut got = 0;
        while got < 32_768 - left {
            let len = (32_768 - left - got).min(1000);
            h.rx(seg(got, 0, &bytes(got, len)));
            got += len;
        }
        h.wait(10_000);
        let told = |h: &mut Harness, read: u32| {
            h.app.rx_head += read;
            h.update().unwrap();
            h.flush().len()
        };
        assert_eq!(told(&mut h, least - 1), 0, "{left}");
        assert_eq!(told(&mut h, 1), 1, "{left}");
    }
}

/// The window field names room beyond 64 KiB by its scale.
#[test]
fn the_peer_is_told_of_room_beyond_what_the_field_names_without_a_scale() {
    let ring = 1 << 18;
    let mut h =
        Harness::of(FlowSetup { rcv_wnd: ring - 4, rx_bytes: ring, rcv_wscale: 2, window_scaling: true, ..setup() });
    for n in 0..100 {
        h.rx(seg(n * 1000, 0, &bytes(n * 1000, 1000)));
    }
    h.wait(10_000);
    h.app.rx_head = 99_000;
    h.update().unwrap();
    let sent = h.flush();
    assert_eq!(sent.len(), 1);
    assert!(u32::from(sent[0].wnd) << 2 > ring - 2000, "{}", sent[0].wnd);
}

#[test]
fn room_is_kept_back_up_to_a_quarter_of_the_ring_and_two_large_segments_of_a_small_one() {
    for (ring, most) in [(1024, 512), (4096, 2048), (8192, 2920), (11_680, 2920), (16_384, 4096), (65_536, 16_384)] {
        assert_eq!(super::super::window_step::step_max(ring), most, "{ring}");
    }
}
