//! Urgent data (RFC 9293 §3.8.5, RFC 6093).

use super::*;

const URG: u8 = flags::URG;

/// The application has written `len` bytes, the last of them urgent.
fn write_urgent(h: &mut Harness, len: u32) -> Vec<Seg> {
    h.app.marks.get_or_insert_default().urgent = Some(h.app.tx_tail + len);
    h.write(len)
}

fn pointers(sent: &[Seg]) -> Vec<(u32, usize, bool, u16)> {
    sent.iter().map(|s| (s.seq, s.data.len(), s.flags & URG != 0, s.urgent)).collect()
}

#[test]
fn the_pointer_leads_to_the_byte_after_the_urgent_one_in_every_segment_before_it() {
    let mut h = Harness::new();
    let sent = write_urgent(&mut h, 2500);
    assert_eq!(pointers(&sent), [(0, 1000, true, 2500), (1000, 1000, true, 1500), (2000, 500, true, 500)]);
    assert!(sent.iter().all(|s| s.flags & !PSH == ACK | URG), "nothing else is said");
    assert_eq!(pointers(&h.write(100)), [(2500, 100, false, 0)], "beyond it");
    h.rx(seg(0, 2600, &[]));
    assert_eq!(pointers(&h.write(100)), [(2600, 100, false, 0)]);
}

/// RFC 9293 MUST-31.
#[test]
fn the_pointer_of_a_segment_far_before_the_urgent_byte_is_the_largest() {
    let mut h = Harness::of(FlowSetup {
        tx_bytes: 1 << 17,
        snd_wnd: 1 << 20,
        window: Window { cwnd: 1000, ssthresh: u32::MAX, growth: 256, beta: 512, pacing: 0 },
        ..setup()
    });
    assert_eq!(pointers(&write_urgent(&mut h, 100_000)), [(0, 1000, true, u16::MAX)]);
}

#[test]
fn a_closed_window_does_not_keep_urgent_data_from_being_announced() {
    let mut h = Harness::new();
    h.rx(seg(0, 0, &[]).wnd(0));
    assert_eq!(pointers(&write_urgent(&mut h, 10)), [(0, 0, true, 10)]);
    h.message(ToFast::ProbeWindow(FLOW));
    assert_eq!(pointers(&h.flush()), [(0, 1, true, 10)], "probes say it too");
}

#[test]
fn urgent_data_do_not_wait_for_nagle() {
    let mut h = Harness::of(FlowSetup { nodelay: false, ..setup() });
    h.write(10);
    assert_eq!(h.write(10).len(), 0);
    assert_eq!(pointers(&write_urgent(&mut h, 1)), [(10, 11, true, 11)]);
}

#[test]
fn an_application_cannot_point_outside_what_it_has_written() {
    let mut h = Harness::new();
    h.app.marks.get_or_insert_default().urgent = Some(4000);
    assert_eq!(pointers(&h.write(10)), [(0, 10, false, 0)]);
    h.rx(seg(0, 10, &[]));
    h.app.marks.get_or_insert_default().urgent = Some(5);
    assert_eq!(pointers(&h.write(10)), [(10, 10, false, 0)]);
}

#[test]
fn urgent_data_are_announced_before_they_come_and_stay_in_the_stream() {
    let mut h = Harness::new();
    assert_eq!(h.view().urgent, None);
    h.rx(Seg { urgent: 30, ..seg(0, 0, &bytes(0, 10)).with(ACK | URG) });
    assert_eq!((h.take_events() & event::URGENT, h.view().urgent), (event::URGENT, Some(29)));
    h.rx(Seg { urgent: 20, ..seg(10, 0, &bytes(10, 10)).with(ACK | URG) });
    assert_eq!((h.take_events() & event::URGENT, h.view().urgent), (0, Some(29)), "the same again");
    h.rx(Seg { urgent: 10, ..seg(20, 0, &bytes(20, 20)).with(ACK | URG) });
    assert_eq!(h.read(), 40);
    h.rx(Seg { urgent: 1, ..seg(40, 0, &bytes(40, 1)).with(ACK | URG) });
    assert_eq!((h.take_events() & event::URGENT, h.view().urgent), (event::URGENT, Some(40)));
}

#[test]
fn an_urgent_pointer_without_flag_or_to_what_is_read_says_nothing() {
    let mut h = Harness::new();
    h.rx(Seg { urgent: 10, ..seg(0, 0, &bytes(0, 100)) });
    h.rx(Seg { urgent: 50, ..seg(0, 0, &bytes(0, 101)).with(ACK | URG) });
    h.rx(Seg { urgent: 0, ..seg(101, 0, &bytes(101, 1)).with(ACK | URG) });
    assert_eq!((h.take_events() & event::URGENT, h.view().urgent), (0, None));
}

#[test]
fn urgent_data_are_announced_at_a_closed_receive_window() {
    let mut h = Harness::of(FlowSetup { rx_bytes: 2048, rcv_wnd: 2048, ..setup() });
    h.rx(seg(0, 0, &bytes(0, 1000)));
    assert_eq!(h.rx(seg(1000, 0, &bytes(1000, 1048))).last().map(|s| s.wnd), Some(0));
    h.take_events();
    h.rx(Seg { urgent: 1, ..seg(2048, 0, b"!").with(ACK | URG) });
    assert_eq!((h.take_events(), h.view().urgent), (event::URGENT, Some(2048)), "MUST-66");
}
