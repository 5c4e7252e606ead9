//! Rings that grow, in a flow group that is turned by hand.
#![allow(clippy::unwrap_used)]

use crate::group_tests::{Bench, FLOW, RTT_US, START};
use crate::messages::ToGroup;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::Ordering::Relaxed;
use towpath_ring::lines::app_flags;
use towpath_ring::ring_size::{GIVING, IDLE, IDLE_BYTES, RECEIVE, RECEIVE_GRANTED, RECEIVE_WANTED, SEND, SEND_WANTED};
use towpath_ring::{AppLine, Slot, StackLine};
use towpath_runtime::clients::MOST_GROWTH_KIB;
use towpath_tcp::buffers::Rings;
use towpath_tcp::flow::PortId;
use towpath_tcp::messages::ToFast;
use towpath_wire::emit::{Header, emit, fill_checksum};
use towpath_wire::segment::{Options, flags};

/// The rings' size at first.
const FIRST: u32 = 4096;
const RECEIVE_START: u32 = 2000;

/// A byte that tells its position in the stream.
fn byte(at: u32) -> u8 {
    (at % 251) as u8
}

/// A connection in slot 3 whose rings may be doubled twice.
struct Connection {
    bench: Bench,
    slot: Slot,
    received: u32,
}

impl Connection {
    fn new() -> Self {
        Self::growing(2)
    }
    /// Its rings may be doubled so many times.
    fn growing(doublings: u32) -> Self {
        let mut bench = Bench::growing_to(FIRST << doublings);
        let slot = bench.slot(3);
        let region = &bench.client.region;
        region.app(slot).want.store(SEND.word(doublings) | RECEIVE_GRANTED.word(doublings), Relaxed);
        let sizes = RECEIVE.word(doublings) | RECEIVE_WANTED.word(doublings) | SEND_WANTED.word(doublings);
        region.stack(slot).flow_group.store(sizes, Relaxed);
        region.app(slot).flags.store(app_flags::NODELAY, Relaxed);
        bench.install(slot);
        bench.turn();
        Self { bench, slot, received: 0 }
    }
    fn app(&self) -> &AppLine {
        self.bench.client.region.app(self.slot)
    }
    fn line(&self) -> &StackLine {
        self.bench.client.region.stack(self.slot)
    }
    /// In use and wanted.
    fn receive_sizes(&self) -> (u32, u32) {
        let word = self.line().flow_group.load(Relaxed);
        (RECEIVE.of(word), RECEIVE_WANTED.of(word))
    }
    /// `count` more bytes of the peer, which has got ours up to `ack`.
    fn comes(&mut self, count: u32, ack: u32) {
        let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let header = Header {
            vlan: None,
            source_mac: [0; 6],
            destination_mac: [0; 6],
            source: address,
            destination: address,
            source_port: 2,
            destination_port: 1,
            seq: RECEIVE_START + self.received,
            ack: START + ack,
            flags: flags::ACK,
            window: 60_000,
            ident: 0,
            tos: 0,
            ttl: 64,
            urgent: 0,
            options: Options::default(),
        };
        let mut frame = vec![0; 100 + count as usize];
        let start = emit(&header, count as usize, &mut frame).unwrap();
        frame.truncate(start + count as usize);
        for (at, place) in (self.received..).zip(&mut frame[start..]) {
            *place = byte(at);
        }
        fill_checksum(&mut frame);
        self.received += count;
        self.bench.to.send(ToGroup::Tcp(ToFast::Inject(PortId(0), frame.into())));
        self.bench.turn();
    }
    /// The application shows its line, some time later.
    fn shows(&mut self, us: u32) {
        self.bench.now.0 += u64::from(us);
        self.bench.queue_data(self.slot);
        self.bench.turn();
    }
    /// The application reads all, in `us`, by the size that it is shown.
    fn reads(&mut self, us: u32) {
        let (tail, head) = (self.line().rx_tail.load(Relaxed), self.app().rx_head.load(Relaxed));
        assert_eq!(tail, self.received, "the stack has taken it");
        let mut got = vec![0; (tail - head) as usize];
        self.bench.client.region.rx(self.slot).read(head, &mut got);
        assert!((head..).zip(&got).all(|(at, got)| *got == byte(at)), "bytes from {head} to {tail}");
        self.app().rx_head.store(tail, Relaxed);
        self.shows(us);
    }
    /// Once around the ring of `bytes`, in so many µs.
    fn around(&mut self, bytes: u32, us: u32) {
        for _ in 0..4 {
            self.comes(bytes / 4, 0);
            self.reads(us / 4);
        }
    }
}

#[test]
fn a_receive_ring_is_doubled_when_it_may_bound_the_peer_and_its_memory_is_there() {
    let mut c = Connection::new();
    c.around(FIRST, 4 * RTT_US);
    c.around(FIRST, 4 * RTT_US);
    assert_eq!(c.receive_sizes(), (2, 2), "a slow reader, or a slow peer");
    c.around(FIRST, 2 * RTT_US);
    assert_eq!(c.receive_sizes(), (2, 1));
    c.around(FIRST, RTT_US);
    assert_eq!(c.receive_sizes(), (2, 1), "it is not granted");
    // A liar has touched nothing.
    RECEIVE_GRANTED.set(&c.app().want, 0);
    c.shows(10);
    assert_eq!(c.receive_sizes(), (2, 1));
    // What he writes into the stack's words moves nothing.
    RECEIVE.set(&c.line().flow_group, 0);
    RECEIVE_WANTED.set(&c.line().flow_group, 0);
    c.shows(10);
    c.shows(10);
    assert_eq!(c.bench.table.snapshot(FLOW).rcv_wnd, FIRST);
    RECEIVE.set(&c.line().flow_group, 2);
    RECEIVE_WANTED.set(&c.line().flow_group, 1);
    c.bench.client.region.touch_receive_ring(c.slot, FIRST..2 * FIRST);
    c.around(FIRST, RTT_US);
    assert_eq!(c.receive_sizes().0, 1);
    // A whole larger ring at once, which wraps in the smaller one.
    c.comes(FIRST, 0);
    c.comes(FIRST, 0);
    assert_eq!(c.bench.table.snapshot(FLOW).rcv_wnd, 0);
    c.reads(RTT_US);
    c.around(2 * FIRST, RTT_US);
    c.bench.client.region.touch_receive_ring(c.slot, 2 * FIRST..4 * FIRST);
    for _ in 0..4 {
        c.around(2 * FIRST, RTT_US);
    }
    assert_eq!(c.receive_sizes(), (0, 0));
    for _ in 0..4 {
        c.around(4 * FIRST, RTT_US);
    }
    assert_eq!(c.receive_sizes(), (0, 0), "it is as large as it may be");
}

#[test]
fn nobody_makes_a_ring_smaller_or_larger_than_it_was_asked_for() {
    for halvings in [0, 1, 3, 15] {
        let mut c = Connection::new();
        SEND.set(&c.app().want, halvings);
        c.bench.client.region.tx_halved(c.slot, 2).write(0, &[7; FIRST as usize]);
        c.app().tx_tail.store(FIRST, Relaxed);
        c.shows(10);
        let mut got = [0; FIRST as usize];
        c.bench.flow_group.rings.fetch(FLOW, 0, &mut got);
        assert!(got.iter().all(|byte| *byte == 7), "all of it is there with {halvings}");
        assert_eq!(c.bench.client.contract_violations.load(Relaxed), 0);
        c.app().tx_tail.store(FIRST + 1, Relaxed);
        c.shows(10);
        assert_eq!(c.bench.client.contract_violations.load(Relaxed), 1, "{halvings}");
    }
}

#[test]
fn all_rings_of_a_client_together_have_a_limit_and_those_of_closed_connections_do_not_count() {
    let mut c = Connection::new();
    let client = std::sync::Arc::clone(&c.bench.client);
    assert!(client.take_growth((MOST_GROWTH_KIB - 4) * 1024));
    client.region.touch_receive_ring(c.slot, 0..4 * FIRST);
    RECEIVE_GRANTED.set(&c.app().want, 0);
    c.around(FIRST, RTT_US);
    c.around(FIRST, RTT_US);
    c.around(FIRST, RTT_US);
    assert_eq!(c.receive_sizes(), (1, 1), "the last 4 KiB");
    c.around(2 * FIRST, RTT_US);
    assert_eq!(c.receive_sizes(), (1, 1));
    assert!(!client.take_growth(1024));
    c.bench.to.send(ToGroup::Tcp(ToFast::Remove(FLOW)));
    // It goes after what it has still to send.
    for _ in 0..20 {
        c.bench.now.0 += u64::from(RTT_US);
        c.bench.turn();
    }
    let given = (client.take_growth(4096), client.take_growth(1024));
    assert_eq!((c.bench.flow_group.rings.flows(), given), (0, (true, false)), "no more and no less");
}

#[test]
fn unread_bytes_across_the_middle_keep_a_receive_ring_from_being_doubled() {
    let mut c = Connection::new();
    c.bench.client.region.touch_receive_ring(c.slot, 0..4 * FIRST);
    c.around(FIRST, RTT_US);
    assert_eq!(c.receive_sizes(), (2, 1));
    c.comes(FIRST, 0);
    c.app().rx_head.fetch_add(FIRST / 2, Relaxed);
    c.shows(10);
    c.comes(FIRST / 2, 0);
    RECEIVE_GRANTED.set(&c.app().want, 1);
    c.shows(10);
    assert_eq!(c.receive_sizes(), (2, 1), "from the middle of the second half to that of the third");
    c.reads(10);
    assert_eq!(c.receive_sizes().0, 1, "nothing is unread");
}

#[test]
fn a_send_ring_is_asked_for_when_the_network_could_carry_more_and_read_by_its_new_size() {
    let mut c = Connection::new();
    let write = |c: &mut Connection, count: u32| {
        let tail = c.app().tx_tail.load(Relaxed);
        let bytes: Vec<u8> = (tail..tail + count).map(byte).collect();
        c.bench.client.region.tx(c.slot).write(tail, &bytes);
        c.app().tx_tail.store(tail + count, Relaxed);
        c.shows(10);
    };
    let wanted = |c: &Connection| SEND_WANTED.of(c.line().flow_group.load(Relaxed));
    write(&mut c, FIRST - 1);
    assert_eq!(wanted(&c), 2);
    c.comes(0, FIRST - 1);
    write(&mut c, 1);
    assert_eq!(wanted(&c), 1, "once around, and the window is 14 kB");
    SEND.double(&c.app().want);
    write(&mut c, 2 * FIRST - 1);
    for at in (FIRST - 1..3 * FIRST - 2).step_by(97) {
        let mut got = [0; 2];
        c.bench.flow_group.rings.fetch(FLOW, at, &mut got);
        assert_eq!(got, [byte(at), byte(at + 1)], "at {at}");
    }
    assert_eq!(c.bench.client.contract_violations.load(Relaxed), 0);
    // More than the ring has is a breach.
    write(&mut c, 1);
    write(&mut c, 1);
    assert_eq!(c.bench.client.contract_violations.load(Relaxed), 1);
}

/// A connection with a receive ring of twice what an idle one keeps.
fn with_large_ring() -> Connection {
    let mut c = Connection::growing(3);
    c.bench.client.region.touch_receive_ring(c.slot, 0..8 * FIRST);
    RECEIVE_GRANTED.set(&c.app().want, 0);
    let mut bytes = FIRST;
    while c.receive_sizes() != (0, 0) {
        c.around(bytes, RTT_US);
        bytes = (8 * FIRST) >> c.receive_sizes().0;
    }
    c
}

impl Connection {
    /// The application says that it is idle, or no longer.
    fn says(&mut self, idle: bool) {
        if idle {
            self.app().want.fetch_or(IDLE, Relaxed)
        } else {
            self.app().want.fetch_and(!IDLE, Relaxed)
        };
        self.shows(10);
    }
    fn is_agreed(&self) -> bool {
        self.line().flow_group.load(Relaxed) & IDLE != 0
    }
    /// A segment whose bytes come, but for those that do not fit.
    fn comes_for_nothing(&mut self, count: u32) {
        let before = self.line().rx_tail.load(Relaxed);
        self.comes(count, 0);
        self.received = self.line().rx_tail.load(Relaxed);
        assert!(self.received - before < count, "all of it came");
    }
}

#[test]
fn an_idle_application_keeps_the_next_bytes_and_gets_the_rest_when_it_has_memory_again() {
    let mut c = with_large_ring();
    let (sizes, first) = (c.receive_sizes(), c.received);
    c.says(true);
    assert!(c.is_agreed());
    assert_eq!(c.receive_sizes(), sizes, "the ring is as large as it was");
    // It gives back everything else, and no page comes again.
    assert!(c.bench.client.region.touch_next(c.slot, first, IDLE_BYTES));
    c.bench.client.region.give_back_idle_rings(c.slot, IDLE_BYTES);
    for _ in 0..IDLE_BYTES / 1024 {
        c.comes(1024, 0);
    }
    c.comes_for_nothing(1024);
    assert_eq!(c.received - first, IDLE_BYTES);
    assert!(!c.bench.client.region.has_memory(c.slot, 0..8 * FIRST));
    c.reads(10);
    c.comes_for_nothing(1024);
    c.bench.client.region.touch_receive_ring(c.slot, 0..8 * FIRST);
    c.says(false);
    assert!(!c.is_agreed());
    for _ in 0..4 {
        c.comes(2 * FIRST, 0);
    }
    c.reads(10);
    c.says(true);
    assert!(c.is_agreed(), "and again");
}

#[test]
fn unread_bytes_put_the_agreement_off_and_who_lies_about_it_harms_nobody_else() {
    let mut c = with_large_ring();
    c.comes(100, 0);
    c.says(true);
    assert!(!c.is_agreed(), "100 bytes are unread");
    c.reads(10);
    assert!(c.is_agreed(), "it is asked for each time that the application shows its line");
    c.says(false);
    // What the application does to the stack's word moves nothing.
    c.line().flow_group.fetch_or(IDLE, Relaxed);
    for _ in 0..3 {
        c.comes(2 * FIRST, 0);
    }
    c.reads(10);
    c.line().flow_group.fetch_and(!IDLE, Relaxed);
    for idle in [true, false, true, true, false, false] {
        c.says(idle);
        assert_eq!(c.is_agreed(), idle);
    }
    assert_eq!(c.bench.client.contract_violations.load(Relaxed), 0);
}

#[test]
fn nothing_is_filled_while_the_memory_of_the_next_bytes_goes() {
    let mut c = with_large_ring();
    let answer = |c: &mut Connection, number| {
        GIVING.set(&c.app().want, number);
        c.shows(10);
        GIVING.of(c.line().flow_group.load(Relaxed))
    };
    assert_eq!(answer(&mut c, 1), 0, "it is not idle");
    c.says(true);
    assert!(c.is_agreed());
    assert_eq!(answer(&mut c, 1), 1);
    c.comes_for_nothing(100);
    c.bench.client.region.give_back_idle_rings(c.slot, 0);
    assert!(!c.bench.client.region.has_memory(c.slot, 0..1));
    assert_eq!(answer(&mut c, 2), 2);
    let first = c.received;
    for _ in 0..IDLE_BYTES / 1024 {
        c.comes(1024, 0);
    }
    c.comes_for_nothing(1024);
    assert_eq!(c.received - first, IDLE_BYTES, "the next bytes have places, and no more");
    assert_eq!(answer(&mut c, 3), 2, "they are unread");
    c.reads(10);
    assert_eq!((answer(&mut c, 3), answer(&mut c, 5), answer(&mut c, 6)), (3, 5, 6), "the one that stands there");
    // It is over at once.
    assert_eq!(answer(&mut c, 7), 7);
    c.bench.client.region.touch_receive_ring(c.slot, 0..8 * FIRST);
    GIVING.set(&c.app().want, 8);
    c.says(false);
    assert!(!c.is_agreed());
    c.comes(2 * FIRST, 0);
    assert_eq!(c.bench.client.contract_violations.load(Relaxed), 0);
}

#[test]
fn the_ring_of_an_idle_application_is_not_doubled() {
    let mut c = Connection::new();
    c.bench.client.region.touch_receive_ring(c.slot, 0..4 * FIRST);
    c.around(FIRST, RTT_US);
    assert_eq!(c.receive_sizes(), (2, 1));
    c.app().want.fetch_or(IDLE, Relaxed);
    c.shows(10);
    RECEIVE_GRANTED.set(&c.app().want, 1);
    c.shows(10);
    assert_eq!((c.receive_sizes(), c.is_agreed()), ((2, 1), true), "bytes would lie elsewhere");
    c.says(false);
    c.shows(10);
    assert_eq!(c.receive_sizes().0, 1);
}
