//! Modules and a capture beside a port, and the same before one that shows nothing of what it has taken: what goes out, what is
//! counted and what is captured are the same.
#![allow(clippy::unwrap_used)]

use crate::filter::Filter;
use crate::module_port_tests::{by_byte, captured, counts};
use crate::portset::PortSet;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::AtomicU8;
use std::sync::{Arc, Mutex};
use towpath_capture::record::Kind;
use towpath_capture::{Memory, Reader, Tap, Wish};
use towpath_modules::Chains;
use towpath_ports::memory::Loopback;
use towpath_ports::{Capabilities, Outgoing, Port, PortCounters, RxChecksum, RxFrame, TxOffload};
use towpath_rng::Rng;
use towpath_tcp::buffers::TxPorts;
use towpath_tcp::flow::PortId;

/// Frames that a port takes until it is flushed.
const ROOM: usize = 1000;
const BYTES: usize = 60;
const WIRE: PortId = PortId(1);

/// What has gone out, in its order.
type Gone = Arc<Mutex<Vec<(Vec<u8>, TxOffload)>>>;

/// A port with few buffers, that cuts super-segments.
struct Wire {
    /// Does it show what waits?
    shows: bool,
    come: Arc<Mutex<Vec<Vec<u8>>>>,
    received: Vec<Vec<u8>>,
    buffer: Vec<u8>,
    waiting: Vec<(Vec<u8>, TxOffload)>,
    committed: u32,
    gone: Gone,
}

impl Port for Wire {
    fn capabilities(&self) -> Capabilities {
        Capabilities { mtu_bytes: 1500, tx_checksum: false, gso_max_bytes: 60_000 }
    }
    fn receive(&mut self, frames: &mut Vec<RxFrame>, max: usize) {
        let mut come = self.come.lock().unwrap();
        let count = come.len().min(max);
        for bytes in come.drain(..count) {
            let (handle, len) = (self.received.len() as u64, bytes.len() as u32);
            frames.push(RxFrame { handle, len, checksum: RxChecksum::Unknown, gso_bytes: 0 });
            self.received.push(bytes);
        }
    }
    fn bytes(&self, frame: &RxFrame) -> &[u8] {
        &self.received[frame.handle as usize]
    }
    fn bytes_mut(&mut self, frame: &RxFrame) -> Option<&mut [u8]> {
        self.received.get_mut(frame.handle as usize).map(|bytes| &mut bytes[..])
    }
    fn release(&mut self, _: &[RxFrame]) {}
    fn reserve(&mut self) -> Option<&mut [u8]> {
        (self.waiting.len() < ROOM).then_some(&mut self.buffer[..2000])
    }
    fn reserve_super(&mut self) -> Option<&mut [u8]> {
        Some(&mut self.buffer)
    }
    fn commit(&mut self, len: usize, offload: TxOffload) {
        self.waiting.push((self.buffer[..len].to_vec(), offload));
        if offload.gso_bytes == 0 {
            self.committed = self.committed.wrapping_add(1);
        } else {
            // It goes at once.
            self.flush();
        }
    }
    fn outgoing(&mut self) -> Option<&mut dyn Outgoing> {
        self.shows.then_some(self as _)
    }
    fn flush(&mut self) {
        self.gone.lock().unwrap().append(&mut self.waiting);
    }
    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    fn pending(&mut self) -> bool {
        false
    }
    fn counters(&self) -> PortCounters {
        PortCounters::default()
    }
}

impl Outgoing for Wire {
    fn committed(&self) -> u32 {
        self.committed
    }
    fn waiting(&self, since: u32) -> Range<usize> {
        let all = self.waiting.len();
        all - (self.committed.wrapping_sub(since) as usize).min(all)..all
    }
    fn waiting_mut(&mut self, place: usize) -> Option<&mut [u8]> {
        self.waiting.get_mut(place).map(|(bytes, _)| &mut bytes[..])
    }
    fn take_back(&mut self, since: u32, numbers: &mut dyn Iterator<Item = usize>) {
        let first = self.waiting(since).start;
        let numbers: Vec<usize> = numbers.collect();
        assert!(numbers.is_sorted());
        for number in numbers.into_iter().rev() {
            self.waiting.remove(first + number);
            self.committed = self.committed.wrapping_sub(1);
        }
    }
}

/// A set with such a port, and what comes and goes there.
struct Bench {
    set: PortSet,
    come: Arc<Mutex<Vec<Vec<u8>>>>,
    gone: Gone,
    chains: Chains,
    reader: Option<Reader>,
}

impl Bench {
    fn new(shows: bool) -> Self {
        let (come, gone) = (Arc::default(), Gone::default());
        // The count of all frames runs over.
        let wire = Wire {
            shows,
            come: Arc::clone(&come),
            received: Vec::new(),
            buffer: vec![0; 60_000],
            waiting: Vec::new(),
            committed: u32::MAX - 500,
            gone: Arc::clone(&gone),
        };
        let set = PortSet::new(vec![Box::new(Loopback::new()), Box::new(wire)]);
        Self { set, come, gone, chains: Chains::default(), reader: None }
    }

    fn modules(&mut self, ingress: usize, egress: usize) {
        let more = |count: usize| (0..count).map(|_| by_byte()).collect();
        self.chains = Chains { ingress: more(ingress), egress: more(egress) };
        let filters = (0..2).map(|port| Filter::new(&self.chains, 0, port)).collect();
        self.set.filter(if self.chains.is_empty() { None } else { Some(filters) });
    }

    /// Begins a capture, or ends it. Returns what the one before has seen: received frames and sent ones, in their order.
    fn capture(&mut self, begins: bool) -> [Vec<Vec<u8>>; 2] {
        let (memory, writers) = Memory::new(2, 0).unwrap();
        let next = begins.then(|| Reader::new(memory.as_fd()).unwrap());
        let wish = Wish { filter: None, snap: 40, bytes: 0 };
        let taps = writers.into_iter().map(|writer| Tap::new(writer, &wish)).collect();
        self.set.tap(begins.then_some(taps));
        let Some(mut reader) = std::mem::replace(&mut self.reader, next) else { return Default::default() };
        let mut all = [Vec::new(), Vec::new()];
        for (header, bytes) in captured(&mut reader) {
            match header.kind {
                Kind::Frame { outgoing } => all[usize::from(outgoing)].push(bytes),
                Kind::Name => panic!("nobody tells a name"),
            }
        }
        all
    }

    /// Sends a frame. False: there is no room.
    fn send(&mut self, port: PortId, frame: &[u8]) -> bool {
        let Some(buffer) = self.set.reserve(port) else { return false };
        buffer[..frame.len()].copy_from_slice(frame);
        self.set.commit(port, frame.len(), TxOffload::default());
        true
    }

    fn send_super(&mut self, frame: &[u8], payload: &[AtomicU8]) {
        let Some(buffer) = self.set.reserve_super(WIRE) else { return };
        buffer[..frame.len()].copy_from_slice(frame);
        let offload = TxOffload { gso_bytes: 1000, ..TxOffload::default() };
        self.set.commit_gathered(WIRE, frame.len(), [payload, &[], &[]], offload);
    }

    fn receive(&mut self, port: PortId, max: usize) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        let port = self.set.receive(port.0.into(), &mut frames, max).unwrap();
        let bytes = frames.iter().map(|frame| port.bytes(frame).to_vec()).collect();
        port.release(&frames);
        bytes
    }

    fn counts(&self) -> Vec<[u64; 6]> {
        self.chains.ingress.iter().chain(&self.chains.egress).map(counts).collect()
    }
}

/// A frame that is like no other, and whose verdict mostly lets it pass.
fn frame(rng: &mut Rng, number: u32) -> Vec<u8> {
    let mut frame = vec![9; BYTES];
    frame[1] = if rng.chance(700_000) { 2 } else { rng.below(5) as u8 };
    frame[2..6].copy_from_slice(&number.to_ne_bytes());
    frame
}

#[test]
fn beside_a_port_and_before_it_modules_and_captures_do_the_same() {
    for seed in 0..40 {
        let rng = &mut Rng::new(seed);
        let mut benches = [true, false].map(Bench::new);
        let payload: Vec<AtomicU8> = (0..2000).map(|_| AtomicU8::new(7)).collect();
        let mut number = 0;
        for _ in 0..1500 {
            number += 1;
            let (frame, what, few) =
                (frame(rng, number), rng.below(100), [rng.below(3) as usize, rng.below(3) as usize]);
            let [shown, hidden] = benches.each_mut().map(|bench| {
                let mut seen = [const { Vec::new() }; 2];
                match what {
                    // A frame that a module drops may take the room of another one until the flush.
                    0..60 if bench.send(WIRE, &frame) => {}
                    0..60 => bench.set.flush(),
                    60..65 => bench.send_super(&frame, &payload),
                    65..75 => bench.come.lock().unwrap().push(frame.clone()),
                    75..80 => seen[0] = bench.receive(WIRE, 64),
                    80..83 => drop(bench.send(PortId(0), &frame)),
                    83..86 => seen[0] = bench.receive(PortId(0), 64),
                    86..88 => bench.set.translate(WIRE, &mut frame.clone()),
                    88 => bench.modules(few[0], few[1]),
                    89 => seen = bench.capture(few[0] > 0),
                    _ => bench.set.flush(),
                }
                (seen, bench.counts())
            });
            assert!(shown.0 == hidden.0, "seed {seed}, frame {number}: what was received, or captured before");
            if what >= 90 {
                assert_eq!(shown.1, hidden.1, "seed {seed}: the counts");
                let [one, other] = benches.each_mut().map(|bench| std::mem::take(&mut *bench.gone.lock().unwrap()));
                assert!(one == other, "seed {seed}, frame {number}: what was sent");
            }
        }
    }
}
