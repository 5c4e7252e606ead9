//! A direct connection as a capture shows it.
#![allow(clippy::unwrap_used)]

mod common;

use common::records;
use rustix::fd::{AsFd, OwnedFd};
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Release;
use towpath_capture::conversation::MOST_BYTES;
use towpath_capture::direct::{Place, Sink, Watch};
use towpath_capture::record::DIRECT;
use towpath_capture::{Memory, Reader, Tap, Wish};
use towpath_ring::lines::app_flags;
use towpath_ring::{PairGeometry, PairRegion};
use towpath_wire::{flags, parse};

const GEOMETRY: PairGeometry = PairGeometry { slots: 64, ring_bytes: 256 << 10 };
const PAIR: u32 = 5;
const SLOT: u32 = 9;

struct Bench {
    /// As a program maps it.
    region: PairRegion,
    memfd: OwnedFd,
    watch: Watch<Tap>,
    reader: Reader,
    _memory: Memory,
}

fn ends() -> [SocketAddr; 2] {
    ["127.0.0.1:4000", "127.0.0.1:80"].map(|end| end.parse().unwrap())
}

impl Bench {
    fn new() -> Self {
        let (_service, memfd) = PairRegion::create(GEOMETRY, PAIR).unwrap();
        let region = PairRegion::map(memfd.as_fd(), GEOMETRY, PAIR).unwrap();
        let (memory, mut writers) = Memory::new(1, 8 << 20).unwrap();
        let wish = Wish { filter: None, snap: u32::MAX, bytes: 0 };
        let reader = Reader::new(memory.as_fd()).unwrap();
        Self { region, memfd, watch: Watch::new(Tap::new(writers.remove(0), &wish)), reader, _memory: memory }
    }
    /// The program of side 1 has opened it.
    fn opens(&mut self) {
        let place =
            Place { pair: PAIR, memory: self.memfd.as_fd(), geometry: GEOMETRY, slot: SLOT, side: 1, selectors: 0 };
        self.watch.opens(&place, ends());
        assert_eq!(self.frames().len(), 3);
    }
    fn send(&self, side: usize, at: u32, bytes: &[u8]) {
        self.region.ring(SLOT, side).unwrap().write(at, bytes);
        self.region.lines(SLOT, side).line.tx_tail.store(at.wrapping_add(bytes.len() as u32), Release);
    }
    fn read(&self, side: usize, head: u32) {
        self.region.lines(SLOT, side).line.rx_head.store(head, Release);
    }
    /// Source port, flags, sequence number, payload.
    fn frames(&mut self) -> Vec<(u16, u8, u32, Vec<u8>)> {
        records(&mut self.reader, 0)
            .into_iter()
            .map(|(header, bytes)| {
                assert_eq!(header.place, DIRECT);
                let segment = parse(&bytes).unwrap();
                let payload = bytes[segment.payload_offset as usize..].to_vec();
                (segment.source_port, segment.flags, segment.seq, payload)
            })
            .collect()
    }
}

#[test]
fn bytes_that_pass_are_shown_from_their_sender() {
    let mut bench = Bench::new();
    bench.opens();
    bench.send(1, 0, b"question");
    assert!(!bench.watch.look(), "little has passed");
    bench.send(0, 0, b"answer");
    bench.watch.look();
    bench.watch.look();
    let both = flags::ACK | flags::PSH;
    assert_eq!(bench.frames(), [(4000, both, 1, b"question".to_vec()), (80, both, 1, b"answer".to_vec())]);
}

#[test]
fn the_last_bytes_are_shown_before_the_end() {
    let mut bench = Bench::new();
    bench.opens();
    bench.send(1, 0, b"last");
    bench.region.lines(SLOT, 1).line.flags.store(app_flags::SHUT_WR, Release);
    bench.watch.look();
    bench.send(0, 0, b"words");
    bench.watch.ends(PAIR, SLOT, 0, true);
    bench.watch.ends(PAIR, SLOT, 1, false);
    bench.watch.forget(PAIR, SLOT);
    let shown: Vec<_> = bench.frames().into_iter().map(|(port, what, _, bytes)| (port, what, bytes)).collect();
    let (ack, both) = (flags::ACK, flags::ACK | flags::PSH);
    let expected = [
        (4000, both, b"last".to_vec()),
        (4000, ack | flags::FIN, Vec::new()),
        (80, both, b"words".to_vec()),
        (80, ack | flags::RST, Vec::new()),
    ];
    assert_eq!(shown, expected);
    assert_eq!(bench.reader.counts(), (7, 0));
}

#[test]
fn a_connection_that_is_there_already_is_shown_from_now_on() {
    let mut bench = Bench::new();
    bench.send(0, 0, b"before");
    let place =
        Place { pair: PAIR, memory: bench.memfd.as_fd(), geometry: GEOMETRY, slot: SLOT, side: 0, selectors: 0 };
    bench.watch.is_open(&place, ends());
    bench.send(0, 6, b"after");
    bench.watch.look();
    assert_eq!(bench.frames(), [(4000, flags::ACK | flags::PSH, 7, b"after".to_vec())]);
}

#[test]
fn bytes_that_may_have_been_written_over_are_dropped_and_counted() {
    let mut bench = Bench::new();
    bench.opens();
    let whole = vec![1; GEOMETRY.ring_bytes as usize];
    bench.send(0, 0, &whole);
    // The reader has them all, so the writer may be writing over them now. It takes a step, over the first of them.
    bench.read(1, GEOMETRY.ring_bytes);
    bench.watch.look();
    assert!(bench.frames().is_empty());
    bench.send(0, GEOMETRY.ring_bytes, b"x");
    bench.watch.look();
    let pieces = GEOMETRY.ring_bytes as usize / MOST_BYTES + 1;
    let frames = bench.frames();
    assert_eq!((frames.len(), bench.reader.counts().1), (pieces, 1));
    let shown: usize = frames.iter().map(|frame| frame.3.len()).sum();
    assert_eq!((frames[0].2, shown), (MOST_BYTES as u32 + 1, whole.len() + 1 - MOST_BYTES));
    // A writer that was a whole ring ahead.
    bench.send(0, 3 * GEOMETRY.ring_bytes + 2, b"x");
    bench.watch.look();
    assert!(bench.frames().is_empty() && bench.reader.counts().1 > 1);
}

#[test]
fn nobody_writes_over_what_nobody_has_read() {
    let mut bench = Bench::new();
    bench.opens();
    bench.send(0, 0, &vec![1; GEOMETRY.ring_bytes as usize]);
    assert!(bench.watch.look(), "the watcher should look again at once");
    let shown: usize = bench.frames().iter().map(|frame| frame.3.len()).sum();
    assert_eq!((shown, bench.reader.counts().1), (GEOMETRY.ring_bytes as usize, 0));
}

#[test]
fn bytes_of_a_writer_that_rests_are_shown_soon() {
    let mut bench = Bench::new();
    bench.opens();
    bench.send(0, 0, b"answer");
    bench.read(1, 6);
    let asked = std::time::Instant::now();
    while bench.frames().is_empty() {
        assert!(asked.elapsed().as_secs() < 60, "nothing is shown");
        bench.watch.look();
    }
    assert!(asked.elapsed().as_millis() >= 10, "it could still be writing");
    // At the end of a capture nothing waits.
    bench.send(0, 6, b"bye");
    bench.read(1, 9);
    bench.watch.finish();
    assert_eq!(bench.frames().len(), 1);
}

#[test]
fn held_bytes_are_shown_when_they_are_sent() {
    let mut bench = Bench::new();
    bench.opens();
    let hold = |bench: &Bench, since_ms: u32| {
        bench.region.ring(SLOT, 0).unwrap().write(0, b"held");
        let line = &bench.region.lines(SLOT, 0).line;
        line.held_tail.store(4, Release);
        line.held_ms.store(since_ms, Release);
    };
    let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    // Since a second or two.
    hold(&bench, ((now.tv_sec as u64 * 1000) as u32).wrapping_sub(1000) | 1);
    bench.watch.look();
    assert_eq!(bench.frames().len(), 1);
    let mut bench = Bench::new();
    bench.opens();
    hold(&bench, 1);
    bench.region.lines(SLOT, 0).line.flags.store(app_flags::SHUT_WR, Release);
    bench.watch.look();
    assert_eq!(bench.frames().len(), 2, "the bytes and the FIN");
}

/// Keeps of each frame the selectors and the bytes, and how many were lost.
#[derive(Default)]
struct Kept(Vec<(u32, usize)>, Vec<(u32, u64)>);

impl Sink for Kept {
    fn frame(&mut self, selectors: u32, _: u64, bytes: &[u8]) {
        self.0.push((selectors, bytes.len() - parse(bytes).unwrap().payload_offset as usize));
    }
    fn lost(&mut self, selectors: u32, frames: u64, _: &[u8]) {
        self.1.push((selectors, frames));
    }
}

#[test]
fn a_sink_is_told_what_chooses_a_connection_and_nothing_of_one_that_nobody_wants_any_more() {
    let bench = Bench::new();
    let place = |slot, selectors| Place {
        pair: PAIR,
        memory: bench.memfd.as_fd(),
        geometry: GEOMETRY,
        slot,
        side: 0,
        selectors,
    };
    let mut watch = Watch::new(Kept::default());
    assert!(watch.is_empty());
    watch.opens(&place(SLOT, 1), ends());
    watch.is_open(&place(SLOT + 1, 2), ends());
    bench.send(0, 0, b"question");
    watch.look();
    assert_eq!(watch.sink().0, [(1, 0), (1, 0), (1, 0), (1, 8)]);
    // It is known, so it goes on where it was.
    watch.is_open(&place(SLOT, 4), ends());
    bench.send(0, 8, b"more");
    bench.send(0, 3 * GEOMETRY.ring_bytes, b"x");
    watch.look();
    assert!(watch.sink().1[0].0 == 4 && watch.sink().1[0].1 > 0, "{:?}", watch.sink().1);
    let before = (watch.sink().0.len(), watch.sink().1.len());
    // These bytes wait, as they may be written over still.
    bench.send(0, 3 * GEOMETRY.ring_bytes + 1, b"late");
    bench.read(1, 3 * GEOMETRY.ring_bytes + 5);
    watch.look();
    watch.leave(PAIR, SLOT);
    watch.ends(PAIR, SLOT, 0, false);
    watch.forget(PAIR, SLOT);
    assert_eq!((watch.sink().0.len(), watch.sink().1.len()), before);
    assert!(!watch.is_empty());
    watch.leave_all();
    watch.finish();
    assert!(watch.is_empty() && watch.sink().0.len() == before.0);
}
