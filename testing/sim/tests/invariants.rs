//! The invariant checker itself: a correct connection passes, and each violation of a rule is detected.
#![allow(clippy::expect_used)]

use std::net::{IpAddr, Ipv4Addr};
use towpath_ports::TxOffload;
use towpath_sim::InvariantChecker;
use towpath_wire::emit::{Header, emit, fill_checksum};
use towpath_wire::{Options, Timestamps, flags};

const ACK: u8 = flags::ACK;

fn header(from: u8, seq: u32, ack: u32, flags: u8) -> Header {
    let address = |n| IpAddr::V4(Ipv4Addr::new(10, 0, 0, n));
    let port = |n| 1000 + u16::from(n);
    let to = 3 - from;
    let stamp = Timestamps { value: u32::from(from) * 100, echo: u32::from(to) * 100 };
    Header {
        source_mac: [2, 0, 0, 0, 0, from],
        destination_mac: [2, 0, 0, 0, 0, to],
        vlan: None,
        source: address(from),
        destination: address(to),
        source_port: port(from),
        destination_port: port(to),
        seq,
        ack,
        flags,
        window: 1000,
        ident: 0,
        tos: 0,
        ttl: towpath_wire::TTL,
        urgent: 0,
        options: Options { timestamps: Some(stamp), ..Options::default() },
    }
}

fn frame(header: &Header, payload: usize) -> Vec<u8> {
    let mut frame = vec![7; 4000];
    let at = emit(header, payload, &mut frame).expect("it fits");
    frame.truncate(at + payload);
    fill_checksum(&mut frame);
    frame
}

/// Our ISN is 5000, with a window shift of 3. The peer's is 9000, with a shift of 1 and an MSS of 700. Both have all
/// options.
fn open() -> InvariantChecker {
    let syn = |from, seq, ack, flags, shift, mss| {
        let mut header = header(from, seq, ack, flags);
        (header.options.window_scale, header.options.sack_permitted) = (Some(shift), true);
        header.options.mss = Some(mss);
        frame(&header, 0)
    };
    let mut checker = InvariantChecker::default();
    checker.sends(&syn(1, 5000, 0, flags::SYN, 3, 1460), TxOffload::default());
    checker.received(&syn(2, 9000, 5001, flags::SYN | ACK, 1, 700));
    checker.sends(&frame(&header(1, 5001, 9001, ACK), 0), TxOffload::default());
    // 500 bytes, 600 missing, 400 bytes.
    checker.received(&frame(&header(2, 9001, 5001, ACK), 500));
    checker.received(&frame(&header(2, 10_101, 5001, ACK), 400));
    checker
}

/// The checker's message about a frame of ours in an open connection; empty = none.
fn verdict(header: Header, payload: usize, spoil: impl FnOnce(&mut Vec<u8>)) -> String {
    let mut frame = frame(&header, payload);
    spoil(&mut frame);
    let mut checker = open();
    let sent = std::panic::AssertUnwindSafe(|| checker.sends(&frame, TxOffload::default()));
    match std::panic::catch_unwind(sent) {
        Ok(()) => String::new(),
        Err(panic) => panic.downcast_ref::<String>().cloned().unwrap_or_else(|| "?".into()),
    }
}

fn next() -> Header {
    header(1, 5001, 9501, ACK)
}

fn good(change: impl FnOnce(&mut Header), payload: usize) {
    let mut header = next();
    change(&mut header);
    assert_eq!(verdict(header, payload, |_| ()), "");
}

fn bad(expected: &str, change: impl FnOnce(&mut Header), payload: usize) {
    let mut header = next();
    change(&mut header);
    let verdict = verdict(header, payload, |_| ());
    assert!(verdict.contains(expected), "{expected:?} expected, {verdict:?}");
}

#[test]
fn what_the_rules_allow_passes() {
    good(|_| (), 0);
    // 700 less 12 for timestamps.
    good(|_| (), 688);
    good(|h| h.flags |= flags::FIN, 100);
    good(|h| h.options.sack.push(10_101, 10_501), 0);
    good(|h| h.options.timestamps = Some(Timestamps { value: 101, echo: 200 }), 10);
    // A window that moves with the acknowledgement; a keepalive probe.
    good(|h| h.window = 1000 - 500 / 8, 0);
    good(|h| h.seq = 5000, 0);
    for (seq, ack, flags) in [(5001, 9501, flags::RST | ACK), (5001, 0, flags::RST), (0, 9501, flags::RST | ACK)] {
        good(|h| (h.seq, h.ack, h.flags) = (seq, ack, flags), 0);
    }
}

#[test]
fn each_breach_is_seen() {
    bad("where the MSS is 700", |_| (), 689);
    bad("a gap", |h| h.seq = 5002, 100);
    bad("before the first", |h| h.seq = 4999, 0);
    bad("not received", |h| h.ack = 10_502, 0);
    bad("less than before", |h| h.ack = 9000, 0);
    bad("the window shrank", |h| h.window = 930, 0);
    bad("SACK block", |h| h.options.sack.push(10_101, 10_502), 0);
    bad("SACK block", |h| h.options.sack.push(10_101, 10_101), 0);
    bad(
        "below the acknowledgement",
        |h| [(10_101, 10_501), (9100, 9200)].iter().for_each(|b| h.options.sack.push(b.0, b.1)),
        0,
    );
    bad("the clock went back", |h| h.options.timestamps = Some(Timestamps { value: 99, echo: 200 }), 0);
    bad("not received: 201", |h| h.options.timestamps = Some(Timestamps { value: 100, echo: 201 }), 0);
    bad("no timestamps", |h| h.options.timestamps = None, 0);
    bad("belongs in a SYN", |h| h.options.mss = Some(1460), 0);
    bad("no ACK", |h| h.flags = flags::PSH, 10);
    bad("that we have not opened", |h| h.source_port = 1, 0);
    bad("number of nobody", |h| (h.seq, h.flags) = (5010, flags::RST), 0);
    bad("to no SYN that came", |h| (h.flags, h.options.mss) = (flags::SYN | ACK, Some(1460)), 0);
    let wrong = |spoil: fn(&mut Vec<u8>)| verdict(next(), 10, spoil);
    assert!(wrong(|frame| frame[60] ^= 1).contains("checksum"));
    assert!(wrong(|frame| frame[15] ^= 1).contains("cannot be read"), "the IPv4 header's sum");
    assert!(wrong(|frame| frame.truncate(40)).contains("cannot be read"));
}

fn breaks(checker: &mut InvariantChecker, header: &Header, payload: usize, expected: &str) {
    let frame = frame(header, payload);
    let sent = std::panic::AssertUnwindSafe(|| checker.sends(&frame, TxOffload::default()));
    let panic = std::panic::catch_unwind(sent).expect_err(expected);
    let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
    assert!(text.contains(expected), "{expected:?} expected, {text:?}");
}

#[test]
fn the_window_counts_scaled_and_a_probe_may_look_beyond_it() {
    // 1000 << 1 from 5001.
    let mut checker = open();
    for n in 0..4 {
        checker.sends(&frame(&header(1, 5001 + n * 500, 9501, ACK), 500), TxOffload::default());
    }
    checker.sends(&frame(&header(1, 7001, 9501, ACK), 1), TxOffload::default());
    breaks(&mut checker, &header(1, 7001, 9501, ACK), 2, "beyond the window");
}

#[test]
fn nothing_follows_the_fin() {
    let mut checker = open();
    checker.sends(&frame(&header(1, 5001, 9501, ACK | flags::FIN), 10), TxOffload::default());
    checker.sends(&frame(&header(1, 5012, 9501, ACK), 0), TxOffload::default());
    checker.sends(&frame(&header(1, 5001, 9501, ACK), 10), TxOffload::default());
    breaks(&mut checker, &header(1, 5001, 9501, ACK | flags::FIN), 11, "data after the FIN");
}
