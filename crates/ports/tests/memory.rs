//! The in-memory ports fulfil the contract of `Port`: order, no loss, back-pressure, ownership until release.

#![allow(clippy::unwrap_used)]

use towpath_ports::memory::{Loopback, MAX_MTU_BYTES, MemoryPort, pair};
use towpath_ports::{Port, RxChecksum, RxFrame, TxOffload};

fn send(port: &mut impl Port, content: &[u8]) -> bool {
    let Some(buffer) = port.reserve() else { return false };
    buffer[..content.len()].copy_from_slice(content);
    port.commit(content.len(), TxOffload::default());
    true
}

fn receive(port: &mut impl Port) -> Vec<RxFrame> {
    let mut frames = Vec::new();
    port.receive(&mut frames, usize::MAX);
    frames
}

#[test]
fn loopback_gives_back_what_was_sent_in_order() {
    let mut port = Loopback::new();
    assert_eq!(port.capabilities().mtu_bytes, MAX_MTU_BYTES);
    assert!(port.capabilities().tx_checksum && !port.pending());
    for n in 0..100u32 {
        assert!(send(&mut port, &n.to_be_bytes()));
    }
    assert!(port.pending());
    let mut frames = Vec::new();
    port.receive(&mut frames, 30);
    assert_eq!(frames.len(), 30);
    port.receive(&mut frames, 1000);
    assert_eq!(frames.len(), 100, "appended");
    assert!(!port.pending());
    for (n, frame) in frames.iter().enumerate() {
        assert_eq!(port.bytes(frame), (n as u32).to_be_bytes());
        assert_eq!(frame.checksum, RxChecksum::Valid);
    }
    port.release(&frames);
    assert_eq!((port.counters().tx_frames, port.counters().rx_frames), (100, 100));
}

#[test]
fn loopback_takes_the_largest_frame_with_a_tag() {
    for mtu in [MAX_MTU_BYTES, 1500, 576] {
        let mut port = Loopback::with_mtu(mtu);
        let frame: Vec<u8> = (0..mtu as usize + 14 + 4).map(|i| i as u8).collect();
        assert_eq!(port.reserve().map(|b| b.len()), Some(frame.len()));
        assert!(send(&mut port, &frame) && send(&mut port, &frame));
        let got = receive(&mut port);
        assert_eq!(port.bytes(&got[0]), frame);
        assert_eq!(port.bytes(&got[1]), frame);
    }
}

#[test]
fn loopback_pushes_back_instead_of_losing() {
    let mut port = Loopback::with_buffers(1500, 8);
    for n in 0..8 {
        assert!(send(&mut port, &[n]));
    }
    assert!(port.reserve().is_none());
    let frames = receive(&mut port);
    assert!(port.reserve().is_none(), "received frames are still in use");
    port.release(&frames[..3]);
    for n in 0..3 {
        assert!(send(&mut port, &[100 + n]));
    }
    assert!(port.reserve().is_none());
    // Frames sent since have not overwritten the held ones.
    for (n, frame) in frames.iter().enumerate().skip(3) {
        assert_eq!(port.bytes(frame), [n as u8]);
    }
    let more = receive(&mut port);
    assert_eq!(more.iter().map(|f| port.bytes(f)[0]).collect::<Vec<_>>(), [100, 101, 102]);
}

#[test]
fn loopback_uses_the_last_buffer_first() {
    let mut port = Loopback::new();
    let mut handles = std::collections::HashSet::new();
    for n in 0..1000u32 {
        assert!(send(&mut port, &n.to_be_bytes()));
        let frames = receive(&mut port);
        handles.insert(frames[0].handle);
        port.release(&frames);
    }
    assert_eq!(handles.len(), 1);
}

#[test]
fn reserving_twice_is_one_buffer() {
    let mut port = Loopback::with_buffers(1500, 2);
    for _ in 0..10 {
        assert!(port.reserve().is_some());
    }
    assert!(send(&mut port, b"a") && send(&mut port, b"b") && !send(&mut port, b"c"));
}

#[test]
#[cfg(not(debug_assertions))]
fn releasing_twice_does_not_share_a_buffer() {
    let mut port = Loopback::with_buffers(1500, 2);
    assert!(send(&mut port, b"a"));
    let frames = receive(&mut port);
    port.release(&frames);
    port.release(&frames);
    assert!(send(&mut port, b"a") && send(&mut port, b"b") && !send(&mut port, b"c"));
    assert_eq!(port.bytes(&frames[0]), b"");
}

#[test]
fn a_pair_carries_frames_both_ways_on_flush() {
    let (mut a, mut b) = pair(1500);
    assert!(send(&mut a, b"one") && send(&mut a, b"two"));
    assert!(!b.pending(), "not before flush");
    a.flush();
    assert!(b.pending() && !a.pending());
    assert!(send(&mut b, b"back"));
    b.flush();
    let there = receive(&mut b);
    assert_eq!(there.iter().map(|f| b.bytes(f)).collect::<Vec<_>>(), [b"one", b"two"]);
    assert_eq!(there[0].checksum, RxChecksum::Unknown);
    let back = receive(&mut a);
    assert_eq!(a.bytes(&back[0]), b"back");
    a.release(&back);
    b.release(&there);
    assert_eq!((a.counters().tx_frames, b.counters().rx_frames, a.counters().rx_frames), (2, 2, 1));
}

#[test]
fn a_pair_is_bounded_and_recycles() {
    let (mut a, mut b) = pair(1500);
    let mut sent = 0u32;
    while send(&mut a, &sent.to_be_bytes()) {
        sent += 1;
    }
    a.flush();
    assert_eq!(sent, 1024);
    let mut received = 0;
    for _ in 0..10 {
        let frames = receive(&mut b);
        for frame in &frames {
            assert_eq!(b.bytes(frame), u32::to_be_bytes(received));
            received += 1;
        }
        b.release(&frames);
        for _ in 0..frames.len() {
            assert!(send(&mut a, &sent.to_be_bytes()));
            sent += 1;
        }
        a.flush();
    }
    assert_eq!(received, 10 * 1024);
}

#[test]
fn ports_go_to_threads() {
    fn is_send<T: Send>() {}
    is_send::<Loopback>();
    is_send::<MemoryPort>();
}

/// What waits to be sent, and what is taken back: nothing else changes, and its order stays.
fn waits(port: &mut impl Port, mut sent: impl FnMut(&mut dyn Port) -> Vec<u8>) {
    let commit = |port: &mut dyn Port, byte: u8| {
        port.reserve().unwrap()[..60].fill(byte);
        port.commit(60, TxOffload::default());
    };
    let mut looked = 0;
    for turn in 0..600 {
        commit(port, 0);
        // The first one was looked at before.
        let since = port.outgoing().unwrap().committed();
        let count = [3, 0, 130][turn % 3];
        (1..=count).for_each(|byte| commit(port, byte));
        let outgoing = port.outgoing().unwrap();
        assert_eq!(outgoing.committed(), since.wrapping_add(count.into()));
        let mut seen = Vec::new();
        outgoing.batches(since, &mut |first, frames| {
            assert_eq!(first, seen.len());
            for frame in frames {
                seen.push(frame[0]);
                assert_eq!(frame.len(), 60);
                frame[1] = 77;
            }
        });
        assert_eq!(seen, (1..=count).collect::<Vec<_>>());
        looked += seen.len();
        let goes = |byte: &u8| byte % 5 == 2 || byte % 7 == 3;
        let numbers = (1..=count).filter(goes).map(|byte| usize::from(byte) - 1);
        outgoing.take_back(since, &mut { numbers });
        let stays: Vec<u8> = (0..=count).filter(|byte| *byte == 0 || !goes(byte)).collect();
        assert_eq!(outgoing.committed(), since.wrapping_add(stays.len() as u32 - 1));
        assert_eq!(sent(port), stays);
    }
    assert_eq!(looked, 200 * 133);
}

#[test]
fn frames_that_wait_are_looked_at_and_taken_back() {
    let take = |port: &mut dyn Port| {
        let mut frames = Vec::new();
        port.receive(&mut frames, 500);
        let bytes = frames.iter().map(|frame| port.bytes(frame));
        let first = bytes.inspect(|bytes| assert!(bytes[0] == 0 || bytes[1] == 77)).map(|bytes| bytes[0]).collect();
        port.release(&frames);
        first
    };
    waits(&mut Loopback::with_mtu(1500), |port| {
        port.flush();
        take(port)
    });
    let (mut near, mut far) = pair(1500);
    waits(&mut near, |port| {
        port.flush();
        take(&mut far)
    });
}
