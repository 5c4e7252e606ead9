//! Frames that modules send back, over ports with offloads and without.
#![allow(clippy::unwrap_used)]

use crate::filter::Filter;
use crate::module_port_tests::{attached, counts, insn};
use crate::portset::PortSet;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use towpath_modules::{Attached, Chains};
use towpath_ports::{Capabilities, Port, PortCounters, RxChecksum, RxFrame, TxOffload};
use towpath_tcp::flow::PortId;
use towpath_wire::{
    ETHERNET_BYTES, Header, Options, TTL, Timestamps, VLAN_BYTES, checksum, checksum_ok, emit, fill_checksum, flags,
    has_partial_checksum, parse, partial_checksum,
};

const MTU: u32 = 1500;
const TIMESTAMPS: usize = 12;

/// Sends all back, and writes 77 to the byte at this place.
fn changes(place: i16) -> Attached {
    attached(vec![insn(0x61, 2, 1, 0, 0), insn(0x72, 2, 0, place, 77), insn(0xb7, 0, 0, 0, 3), insn(0x95, 0, 0, 0, 0)])
}

/// The same with room around the frame, whose ends it leaves.
fn changes_with_room(place: i16) -> Attached {
    attached(vec![
        insn(0xbf, 6, 1, 0, 0),
        insn(0xb7, 2, 0, 0, 0),
        insn(0x85, 0, 0, 0, 44),
        insn(0x61, 2, 6, 0, 0),
        insn(0x72, 2, 0, place, 77),
        insn(0xb7, 0, 0, 0, 3),
        insn(0x95, 0, 0, 0, 0),
    ])
}

/// What a port has sent.
type Sent = Arc<Mutex<Vec<(Vec<u8>, TxOffload)>>>;

/// A port that has received these frames.
struct Wire {
    able: Capabilities,
    come: Vec<Vec<u8>>,
    checksum: RxChecksum,
    gso_bytes: u16,
    told: usize,
    buffer: Vec<u8>,
    sent: Sent,
    /// It sends received super-segments from where they lie.
    returns: bool,
}

impl Port for Wire {
    fn capabilities(&self) -> Capabilities {
        self.able
    }
    fn receive(&mut self, frames: &mut Vec<RxFrame>, max: usize) {
        for (at, bytes) in self.come.iter().enumerate().skip(self.told).take(max) {
            frames.push(RxFrame {
                handle: at as u64,
                len: bytes.len() as u32,
                checksum: self.checksum,
                gso_bytes: self.gso_bytes,
            });
            self.told += 1;
        }
    }
    fn bytes(&self, frame: &RxFrame) -> &[u8] {
        &self.come[frame.handle as usize]
    }
    fn bytes_mut(&mut self, frame: &RxFrame) -> Option<&mut [u8]> {
        self.come.get_mut(frame.handle as usize).map(|bytes| &mut bytes[..])
    }
    fn release(&mut self, _: &[RxFrame]) {}
    fn reserve(&mut self) -> Option<&mut [u8]> {
        Some(&mut self.buffer[..MTU as usize + ETHERNET_BYTES + VLAN_BYTES])
    }
    fn reserve_super(&mut self) -> Option<&mut [u8]> {
        Some(&mut self.buffer[..self.able.gso_max_bytes as usize])
    }
    fn commit(&mut self, len: usize, offload: TxOffload) {
        assert!(offload.gso_bytes != 0 || self.able.tx_checksum || !offload.checksum_needed);
        self.sent.lock().unwrap().push((self.buffer[..len].to_vec(), offload));
    }
    fn return_super(&mut self, frame: &RxFrame, headers: usize, offload: TxOffload) -> bool {
        if self.returns {
            let bytes = self.come[frame.handle as usize][..frame.len as usize].to_vec();
            assert_eq!(usize::from(offload.checksum_start) + 20 + TIMESTAMPS, headers);
            self.sent.lock().unwrap().push((bytes, offload));
        }
        self.returns
    }
    fn flush(&mut self) {}
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

const NOTHING: Capabilities = Capabilities { mtu_bytes: MTU, tx_checksum: false, gso_max_bytes: 0 };
const SUMS: Capabilities = Capabilities { tx_checksum: true, ..NOTHING };
/// As the ports of interfaces are.
const CUTS: Capabilities = Capabilities { gso_max_bytes: 65_535 + ETHERNET_BYTES as u32, ..NOTHING };

/// Frames that a port sends after it has received one, and how many have failed.
fn back(module: &Attached, able: Capabilities, checksum: RxChecksum, frame: &[u8]) -> (Vec<(Vec<u8>, TxOffload)>, u64) {
    back_cut(module, able, (checksum, 0), frame)
}

/// The same of a frame that has come as segments of so much payload.
fn back_cut(
    module: &Attached,
    able: Capabilities,
    come: (RxChecksum, u16),
    frame: &[u8],
) -> (Vec<(Vec<u8>, TxOffload)>, u64) {
    let copied = back_over(module, able, come, frame, false);
    assert_eq!(copied, back_over(module, able, come, frame, true), "with a copy or without");
    copied
}

fn back_over(
    module: &Attached,
    able: Capabilities,
    (checksum, gso_bytes): (RxChecksum, u16),
    frame: &[u8],
    returns: bool,
) -> (Vec<(Vec<u8>, TxOffload)>, u64) {
    let before = counts(module)[5];
    let sent = Sent::default();
    let (come, buffer) = (vec![frame.to_vec()], vec![0; 70_000]);
    let port = Wire { able, come, checksum, gso_bytes, told: 0, buffer, sent: Arc::clone(&sent), returns };
    let chains = Chains { ingress: vec![module.clone()], egress: Vec::new() };
    let (mut set, mut passed) = (PortSet::new(vec![Box::new(port)]), Vec::new());
    set.filter(Some(vec![Filter::new(&chains, 0, 1)]));
    set.receive(0, &mut passed, 64).unwrap();
    assert!(passed.is_empty());
    let sent = std::mem::take(&mut *sent.lock().unwrap());
    (sent, counts(module)[5] - before)
}

/// A segment with timestamps and so much payload, without its checksum. And the place of a byte that a module may change: of the
/// port, or of the address, which changes the pseudo-header's sum, too.
pub(crate) fn segment(v6: bool, vlan: Option<u16>, payload: usize) -> (Vec<u8>, i16) {
    let [source, destination] = if v6 { ["fd00::1", "fd00::2"] } else { ["10.0.0.1", "10.0.0.2"] };
    let header = Header {
        source_mac: [2; 6],
        destination_mac: [4; 6],
        vlan,
        source: source.parse().unwrap(),
        destination: destination.parse().unwrap(),
        source_port: 1,
        destination_port: 2,
        seq: 1,
        ack: 1,
        flags: flags::ACK,
        window: 1,
        ident: 1,
        tos: 0,
        ttl: TTL,
        urgent: 0,
        options: Options { timestamps: Some(Timestamps { value: 1, echo: 2 }), ..Options::NONE },
    };
    let mut frame = vec![0; header.wire_bytes() + payload];
    let at = emit(&header, payload, &mut frame).unwrap();
    frame[at..].iter_mut().zip(0u32..).for_each(|(byte, number)| *byte = (number * 7) as u8);
    let tcp = at - TIMESTAMPS - 20;
    (frame, if v6 { tcp - 17 } else { tcp + 1 } as i16)
}

fn all_kinds() -> impl Iterator<Item = (bool, Option<u16>)> {
    [(false, None), (true, None), (false, Some(7)), (true, Some(7))].into_iter()
}

fn modules(place: i16) -> [Attached; 2] {
    [changes(place), changes_with_room(place)]
}

/// The frame with the checksum that a device computes for it.
fn completed(frame: &[u8], offload: TxOffload) -> Vec<u8> {
    assert!(offload.checksum_needed && has_partial_checksum(frame));
    let mut frame = frame.to_vec();
    let start = usize::from(offload.checksum_start);
    let sum = checksum::finish(checksum::add(0, &frame[start..]));
    let field = start + usize::from(offload.checksum_offset);
    frame[field..field + 2].copy_from_slice(&sum);
    frame
}

/// The frame as the module leaves it, with a right checksum.
fn right(frame: &[u8], place: i16) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[place as usize] = 77;
    fill_checksum(&mut frame);
    assert!(checksum_ok(&frame, &parse(&frame).unwrap(), RxChecksum::Unknown));
    frame
}

#[test]
fn super_segments_go_back_for_the_port_to_cut() {
    for (v6, vlan) in all_kinds() {
        for length in [1461, 40_000, 65_535 - 52 - 4 - 20] {
            let (mut frame, place) = segment(v6, vlan, length);
            partial_checksum(&mut frame);
            for module in modules(place) {
                let (sent, failed) = back(&module, CUTS, RxChecksum::Valid, &frame);
                assert_eq!((sent.len(), failed), (1, 0));
                let (bytes, offload) = &sent[0];
                let headers = if v6 { 40 } else { 20 } + 20 + TIMESTAMPS;
                assert_eq!(usize::from(offload.gso_bytes), MTU as usize - headers);
                assert_eq!(completed(bytes, *offload), right(&frame, place));
            }
        }
    }
}

#[test]
fn a_frame_without_its_checksum_gets_one() {
    for (v6, vlan) in all_kinds() {
        for length in [0, 1, 1000, if v6 { 1428 } else { 1448 }] {
            let (mut frame, place) = segment(v6, vlan, length);
            partial_checksum(&mut frame);
            for module in modules(place) {
                for checksum in [RxChecksum::Valid, RxChecksum::MaybePartial] {
                    let (sent, failed) = back(&module, SUMS, checksum, &frame);
                    assert_eq!((sent.len(), failed), (1, 0));
                    assert_eq!(completed(&sent[0].0, sent[0].1), right(&frame, place), "the port completes it");
                    for able in [NOTHING, CUTS] {
                        let (sent, _) = back(&module, able, checksum, &frame);
                        assert_eq!(sent, [(right(&frame, place), TxOffload::default())]);
                    }
                }
            }
        }
    }
}

#[test]
fn a_segment_that_was_kept_goes_back_as_if_it_came_now() {
    for able in [NOTHING, SUMS, CUTS] {
        let (frame, place) = segment(false, None, 1000);
        for module in modules(place) {
            let sent = Sent::default();
            let (checksum, buffer) = (RxChecksum::Unknown, vec![0; 70_000]);
            let port = Wire {
                able,
                come: Vec::new(),
                checksum,
                gso_bytes: 0,
                told: 0,
                buffer,
                sent: Arc::clone(&sent),
                returns: false,
            };
            let chains = Chains { ingress: vec![module.clone()], egress: Vec::new() };
            let mut set = PortSet::new(vec![Box::new(port)]);
            set.filter(Some(vec![Filter::new(&chains, 0, 1)]));
            // More often than there are buffers with room.
            for _ in 0..200 {
                set.translate(PortId(0), &mut frame.clone());
            }
            let sent = std::mem::take(&mut *sent.lock().unwrap());
            assert_eq!(sent.len(), 200);
            for (bytes, offload) in sent {
                let whole = if able.tx_checksum { completed(&bytes, offload) } else { bytes };
                assert_eq!(whole, right(&frame, place));
            }
            assert_eq!(counts(&module)[3], 200);
        }
    }
}

#[test]
fn a_whole_checksum_goes_as_the_module_leaves_it() {
    let (mut frame, place) = segment(false, None, 1001);
    fill_checksum(&mut frame);
    // This module does not correct it, which whoever receives the frame is to see.
    let mut left = frame.clone();
    left[place as usize] = 77;
    for module in modules(place) {
        for able in [NOTHING, SUMS, CUTS] {
            for checksum in [RxChecksum::Unknown, RxChecksum::MaybePartial] {
                assert_eq!(back(&module, able, checksum, &frame), (vec![(left.clone(), TxOffload::default())], 0));
            }
        }
    }
}

#[test]
fn what_a_port_cannot_send_has_failed() {
    let (mut long, place) = segment(false, None, 40_000);
    fill_checksum(&mut long);
    let mut no_segment = long.clone();
    no_segment[23] = 17;
    let small = Capabilities { gso_max_bytes: 30_000, ..CUTS };
    let no_room = Capabilities { mtu_bytes: 50, ..CUTS };
    for module in modules(place) {
        for able in [NOTHING, SUMS, small, no_room] {
            assert_eq!(back(&module, able, RxChecksum::Valid, &long), (vec![], 1));
        }
        assert_eq!(back(&module, CUTS, RxChecksum::Valid, &no_segment), (vec![], 1), "it is not TCP");
        for checksum in [RxChecksum::Unknown, RxChecksum::MaybePartial] {
            assert_eq!(back(&module, CUTS, checksum, &long), (vec![], 1), "a wrong checksum does not become right");
        }
    }
    // A right one may be computed again.
    long[place as usize] = 77;
    fill_checksum(&mut long);
    let (sent, failed) = back(&changes(place), CUTS, RxChecksum::Unknown, &long);
    assert_eq!((sent.len(), failed), (1, 0));
    assert_eq!(completed(&sent[0].0, sent[0].1), long);
}

#[test]
fn a_super_segment_goes_on_in_segments_as_small_as_it_has_come() {
    for module in [changes(60), changes_with_room(60)] {
        let cut = |bytes: usize, gso_bytes| {
            let (frame, _) = segment(false, None, bytes);
            let (sent, failed) = back_cut(&module, CUTS, (RxChecksum::Valid, gso_bytes), &frame);
            assert_eq!((sent.len(), failed), (1, 0));
            sent[0].1.gso_bytes
        };
        let most = MTU as u16 - 40 - TIMESTAMPS as u16;
        assert_eq!((cut(9000, 0), cut(9000, 1300), cut(9000, 9000)), (most, 1300, most));
        // Two small ones that have come together, and one that is none.
        assert_eq!((cut(1000, 600), cut(1000, 1000), cut(1000, 0)), (600, 0, 0));
        let (frame, _) = segment(false, None, 1000);
        let (sent, _) = back_cut(&module, NOTHING, (RxChecksum::Valid, 600), &frame);
        assert_eq!((sent.len(), sent[0].1.gso_bytes), (1, 0), "a port that cuts nothing sends what fits");
    }
}

/// Writes what it is told of the size of segments to the frame's first bytes, and sends all back.
fn tells_its_segments() -> Attached {
    attached(vec![
        insn(0x61, 2, 1, 0, 0),
        insn(0x61, 3, 1, 8, 0),
        insn(0x69, 4, 3, 4, 0),
        insn(0x6b, 2, 4, 0, 0),
        insn(0xb7, 0, 0, 0, 3),
        insn(0x95, 0, 0, 0, 0),
    ])
}

#[test]
fn a_module_that_asks_is_told_in_segments_of_what_size_a_frame_has_come() {
    let module = tells_its_segments();
    for (payload, gso_bytes) in [(4000, 1000), (60_000, 1448), (100, 0), (4000, 0)] {
        let (sent, failed) = back_cut(&module, CUTS, (RxChecksum::Valid, gso_bytes), &segment(false, None, payload).0);
        assert_eq!((sent.len(), failed), (1, 0));
        assert_eq!(sent[0].0[..2], gso_bytes.to_ne_bytes(), "{payload}");
    }
}
