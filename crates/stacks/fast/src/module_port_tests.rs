//! Modules before ports of memory: what passes, what does not, and what comes out.
#![allow(clippy::unwrap_used)]

use crate::filter::Filter;
use crate::portset::PortSet;
use crate::selection::tests::{selection, tuple};
use crate::send_back_tests::segment;
use std::os::fd::AsFd;
use std::sync::Arc;
use towpath_capture::record::Header;
use towpath_capture::{Memory, Reader, Tap, Wish};
use towpath_modules::{Attached, Chains, Counts, Insn, Module, Object, ProgramSpec, Tenant};
use towpath_ports::memory::{Loopback, MemoryPort, pair};
use towpath_ports::{Port, RxFrame, TxOffload};
use towpath_tcp::buffers::TxPorts;
use towpath_tcp::flow::{FlowId, Owner, PortId};

pub(crate) fn insn(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> Insn {
    Insn { code, dst, src, off, imm }
}

pub(crate) fn attached(insns: Vec<Insn>) -> Attached {
    let program = ProgramSpec { name: "test".into(), frags: false, insns, functions: vec![0] };
    let object = Object { programs: vec![program], maps: Vec::new(), license: "GPL".into() };
    let module = Arc::new(Module::interpreted(&object, 0, 1).unwrap());
    let tenant = Arc::new(Tenant::new("test", 100, 1));
    Attached { module, counts: Counts::new(1), tenant, selector: None, direct: None }
}

/// The verdict is the frame's second byte, and 100 is written to its first.
pub(crate) fn by_byte() -> Attached {
    attached(vec![insn(0x61, 2, 1, 0, 0), insn(0x71, 0, 2, 1, 0), insn(0x72, 2, 0, 0, 100), insn(0x95, 0, 0, 0, 0)])
}

/// Moves the frame's begin by this, and writes the first byte of what is there then.
fn by_head(by: i32) -> Attached {
    attached(vec![
        insn(0xbf, 6, 1, 0, 0),
        insn(0xb7, 2, 0, 0, by),
        insn(0x85, 0, 0, 0, 44),
        insn(0x61, 2, 6, 0, 0),
        insn(0x72, 2, 0, 0, 7),
        insn(0xb7, 0, 0, 0, 2),
        insn(0x95, 0, 0, 0, 0),
    ])
}

pub(crate) fn counts(of: &Attached) -> [u64; 6] {
    of.counts.sums()[..6].try_into().unwrap()
}

/// A loopback and a port with another end, which all frames of go through these.
fn set(chains: &Chains) -> (PortSet, MemoryPort) {
    let (near, far) = pair(1500);
    let mut set = PortSet::new(vec![Box::new(Loopback::new()), Box::new(near)]);
    set.filter(Some((0..2).map(|port| Filter::new(chains, 0, port)).collect()));
    (set, far)
}

/// What the stack sends on a port.
fn sends(set: &mut PortSet, port: u8, bytes: &[u8]) {
    set.reserve(PortId(port)).unwrap()[..bytes.len()].copy_from_slice(bytes);
    set.commit(PortId(port), bytes.len(), TxOffload::default());
    set.flush();
}

/// What the stack receives on a port. The buffers are given back.
fn came(set: &mut PortSet, port: u8) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let port = set.receive(port.into(), &mut frames, 64).unwrap();
    let bytes = frames.iter().map(|frame| port.bytes(frame).to_vec()).collect();
    port.release(&frames);
    bytes
}

fn send(port: &mut dyn Port, bytes: &[u8]) {
    port.reserve().unwrap()[..bytes.len()].copy_from_slice(bytes);
    port.commit(bytes.len(), TxOffload::default());
    port.flush();
}

/// All frames of a port. Their buffers are given back.
fn received(port: &mut dyn Port) -> Vec<Vec<u8>> {
    let mut frames: Vec<RxFrame> = Vec::new();
    port.receive(&mut frames, 64);
    let bytes = frames.iter().map(|frame| port.bytes(frame).to_vec()).collect();
    port.release(&frames);
    bytes
}

/// A frame whose second byte is this verdict.
fn frame(verdict: u8) -> Vec<u8> {
    let mut frame = vec![9; 60];
    frame[1] = verdict;
    frame
}

#[test]
fn received_frames_pass_are_dropped_or_go_back() {
    let module = by_byte();
    let (mut set, mut far) = set(&Chains { ingress: vec![module.clone()], egress: Vec::new() });
    // More than there are buffers, so that each must come back.
    for _ in 0..40 {
        for verdict in 0..=5 {
            send(&mut far, &frame(verdict));
        }
        let mut passed = frame(2);
        passed[0] = 100;
        assert_eq!(came(&mut set, 1), [passed]);
        set.redirect();
        set.flush();
        let mut back = frame(3);
        back[0] = 100;
        assert_eq!(received(&mut far), [back]);
    }
    assert_eq!(counts(&module), [240, 40, 40, 40, 40, 120], "runs, pass, drop, tx, redirect, aborted");
}

#[test]
fn what_passes_and_what_goes_back_keep_their_order() {
    let module = by_byte();
    let (mut set, mut far) = set(&Chains { ingress: vec![module], egress: Vec::new() });
    for number in 0..30 {
        let mut numbered = frame([3, 2, 1][usize::from(number) % 3]);
        numbered[2] = number;
        send(&mut far, &numbered);
    }
    let numbers = |frames: Vec<Vec<u8>>| frames.iter().map(|frame| frame[2]).collect::<Vec<_>>();
    assert_eq!(numbers(came(&mut set, 1)), (1..30).step_by(3).collect::<Vec<_>>());
    set.flush();
    assert_eq!(numbers(received(&mut far)), (0..30).step_by(3).collect::<Vec<_>>());
}

#[test]
fn sent_frames_are_seen_before_they_go_and_none_goes_back() {
    let module = by_byte();
    let (mut set, mut far) = set(&Chains { ingress: Vec::new(), egress: vec![module.clone()] });
    for verdict in 0..=4 {
        sends(&mut set, 1, &frame(verdict));
    }
    assert_eq!(received(&mut far).iter().map(|frame| (frame[0], frame[1])).collect::<Vec<_>>(), [(100, 2)]);
    assert_eq!(counts(&module), [5, 1, 1, 1, 1, 3]);
    // Those of the loopback, too.
    sends(&mut set, 0, &frame(2));
    assert_eq!(came(&mut set, 0)[0][0], 100);
}

#[test]
fn a_module_may_move_the_begin_of_a_frame_both_ways() {
    for (by, length) in [(-4i32, 64), (4, 56)] {
        let chains = Chains { ingress: vec![by_head(by)], egress: vec![by_head(by)] };
        let (mut set, mut far) = set(&chains);
        for _ in 0..70 {
            send(&mut far, &frame(2));
        }
        let mut frames = came(&mut set, 1);
        frames.extend(came(&mut set, 1));
        assert_eq!(frames.len(), 70);
        sends(&mut set, 1, &frame(2));
        frames.extend(received(&mut far));
        assert!(frames.iter().all(|frame| frame.len() == length && frame[0] == 7));
        let failed = [&chains.ingress[0], &chains.egress[0]].map(|one| counts(one)[5]);
        assert_eq!(failed, [0, 0]);
    }
}

/// Modules in their place, with room around frames, and none: each in turn takes the place of each.
#[test]
fn each_frame_that_waits_while_modules_are_exchanged_is_seen_once_and_comes() {
    const KINDS: [fn() -> Vec<Attached>; 3] = [|| vec![by_byte()], || vec![by_head(-8)], Vec::new];
    let numbered = |number: u8| [&frame(2)[..], &[number]].concat();
    let last = |frames: Vec<Vec<u8>>| frames.iter().map(|frame| frame[frame.len() - 1]).collect::<Vec<_>>();
    for (old, new) in KINDS.into_iter().flat_map(|old| KINDS.map(|new| (old, new))) {
        let [old, new] = [old, new].map(|kind| Chains { ingress: kind(), egress: kind() });
        let (mut set, mut far) = set(&old);
        (0..30).for_each(|number| send(&mut far, &numbered(number)));
        let mut frames = Vec::new();
        let port = set.receive(1, &mut frames, 10).unwrap();
        let mut came: Vec<_> = frames.iter().map(|frame| port.bytes(frame).to_vec()).collect();
        port.release(&frames);
        // The stack has handed frames to the port in this turn. The port's device has not got them yet.
        let commit = |set: &mut PortSet, number: u8| {
            let bytes = numbered(number);
            set.reserve(PortId(1)).unwrap()[..bytes.len()].copy_from_slice(&bytes);
            set.commit(PortId(1), bytes.len(), TxOffload::default());
        };
        (0..10).for_each(|number| commit(&mut set, number));
        set.filter(Some((0..2).map(|port| Filter::new(&new, 0, port)).collect()));
        (10..20).for_each(|number| commit(&mut set, number));
        set.flush();
        came.extend(self::came(&mut set, 1));
        assert_eq!(last(came), (0..30).collect::<Vec<_>>());
        assert_eq!(last(received(&mut far)), (0..20).collect::<Vec<_>>());
        let runs = |modules: &[Attached]| modules.first().map(|one| counts(one)[0]);
        let has = |chains: &Chains, frames: u64| (!chains.ingress.is_empty()).then_some(frames);
        assert_eq!([runs(&old.ingress), runs(&new.ingress)], [has(&old, 10), has(&new, 20)]);
        assert_eq!([runs(&old.egress), runs(&new.egress)], [has(&old, 10), has(&new, 10)]);
    }
}

/// Adds what it is told to the frame's begin: the size of the structure, the flow group, and the connection.
fn tells() -> Attached {
    let mut insns = vec![insn(0x61, 2, 1, 0, 0), insn(0x61, 3, 1, 8, 0)];
    for (at, place) in [(0, 0), (12, 1), (16, 2)] {
        insns.extend([insn(0x61, 4, 3, at, 0), insn(0x63, 2, 4, place * 4, 0)]);
    }
    insns.extend([insn(0xb7, 0, 0, 0, 2), insn(0x95, 0, 0, 0, 0)]);
    attached(insns)
}

#[test]
fn a_module_that_asks_is_told_which_connection_a_frame_belongs_to() {
    let chains = Chains { ingress: vec![tells()], egress: vec![tells()] };
    let told = |frames: &[Vec<u8>]| -> Vec<[u32; 3]> {
        let words = |frame: &Vec<u8>| [0, 4, 8].map(|at| u32::from_ne_bytes(frame[at..at + 4].try_into().unwrap()));
        frames.iter().map(words).collect()
    };
    let (segment, _) = segment(false, None, 10);
    for knows in [true, false] {
        let mut table = selection(4);
        table.connection(Owner(0), &tuple(false), 0, Some(FlowId(7)));
        table.connection(Owner(1), &tuple(false).reversed(), 0, Some(FlowId(8)));
        let table = knows.then(|| table.table());
        let (mut set, mut far) = set(&Chains::default());
        set.filter(Some((0..2).map(|port| Filter::new(&chains, 3, port).select(table)).collect()));
        for bytes in [&segment[..], &[9; 60]] {
            send(&mut far, bytes);
            sends(&mut set, 1, bytes);
        }
        let numbers = |number| if knows { number } else { u32::MAX };
        assert_eq!(told(&came(&mut set, 1)), [[20, 3, numbers(7)], [20, 3, u32::MAX]]);
        assert_eq!(told(&received(&mut far)), [[20, 3, numbers(8)], [20, 3, u32::MAX]]);
    }
}

#[test]
fn modules_run_in_their_order_up_to_the_first_that_does_not_pass() {
    let (first, second) = (by_byte(), by_byte());
    let (mut set, mut far) = set(&Chains { ingress: vec![first.clone(), second.clone()], egress: Vec::new() });
    send(&mut far, &frame(1));
    send(&mut far, &frame(2));
    assert_eq!(came(&mut set, 1).len(), 1);
    assert_eq!((counts(&first)[0], counts(&second)[0]), (2, 1));
}

/// Takes all that a capture has left: headers and bytes, by ring.
pub(crate) fn captured(reader: &mut Reader) -> Vec<(Header, Vec<u8>)> {
    let (mut all, mut to) = (Vec::new(), vec![0; 1 << 20]);
    for ring in 0..reader.rings() {
        while reader.take(ring, &mut to, |_, header, bytes| all.push((header, bytes.to_vec()))) > 0 {}
    }
    all
}

#[test]
fn who_captures_sees_what_is_on_the_wire_and_ports_are_themselves_again() {
    let (mut set, mut far) = set(&Chains { ingress: vec![by_byte()], egress: Vec::new() });
    let (memory, writers) = Memory::new(2, 0).unwrap();
    let mut reader = Reader::new(memory.as_fd()).unwrap();
    let wish = Wish { filter: None, snap: 60, bytes: 0 };
    set.tap(Some(writers.into_iter().map(|writer| Tap::new(writer, &wish)).collect()));
    send(&mut far, &frame(1));
    assert!(came(&mut set, 1).is_empty());
    let seen = captured(&mut reader);
    assert_eq!((seen.len(), seen[0].1[1]), (1, 1), "a frame that is dropped is captured");
    // The modules go first, then the capture.
    set.filter(None);
    send(&mut far, &frame(1));
    assert_eq!(came(&mut set, 1), [frame(1)]);
    assert!(!captured(&mut reader).is_empty(), "the capture goes on");
    set.tap(None);
    assert!(set.iter_mut().all(|port| port.inner().is_none()), "nothing stands before the ports");
    // And the other way round.
    let chains = Chains { ingress: vec![by_byte()], egress: Vec::new() };
    let (memory, writers) = Memory::new(2, 0).unwrap();
    set.tap(Some(writers.into_iter().map(|writer| Tap::new(writer, &wish)).collect()));
    set.filter(Some((0..2).map(|port| Filter::new(&chains, 0, port)).collect()));
    set.tap(None);
    drop(memory);
    // Another interface takes the port's place below them.
    let (other, mut end) = pair(1500);
    set.replace(PortId(1), Box::new(other));
    send(&mut end, &frame(1));
    send(&mut end, &frame(2));
    assert_eq!(came(&mut set, 1).len(), 1);
    set.filter(None);
    assert!(set.reserve(PortId(1)).is_some());
}

/// Frames that come to a connection which the module's selector chooses, those of another one, and frames that are nobody's:
/// what is left of them after the module, at both hooks.
fn selected(module: &Attached, v6: bool) -> [Vec<Vec<u8>>; 2] {
    let module = Attached { selector: Some(2), ..module.clone() };
    let chains = Chains { ingress: vec![module.clone()], egress: vec![module] };
    let (frame, _) = segment(v6, None, 10);
    let (other, _) = segment(!v6, None, 10);
    let mut table = selection(4);
    table.connection(Owner(0), &tuple(v6), 2, None);
    table.connection(Owner(1), &tuple(v6).reversed(), 2, None);
    table.connection(Owner(2), &tuple(!v6), 5, None);
    table.connection(Owner(3), &tuple(!v6).reversed(), 5, None);
    let (mut set, mut far) = set(&Chains::default());
    set.filter(Some((0..2).map(|port| Filter::new(&chains, 0, port).select(Some(table.table()))).collect()));
    let all = [&[9; 60][..], &frame, &other, &frame[..14]];
    all.iter().for_each(|bytes| send(&mut far, bytes));
    let first = came(&mut set, 1);
    // Buffers come back, whichever way a frame took.
    for _ in 0..100 {
        all.iter().for_each(|bytes| send(&mut far, bytes));
        assert_eq!(came(&mut set, 1), first);
    }
    all.iter().for_each(|bytes| sends(&mut set, 1, bytes));
    [first, received(&mut far)]
}

#[test]
fn a_module_with_a_selector_has_frames_of_the_connections_that_it_chooses_and_no_others() {
    let drops = || attached(vec![insn(0xb7, 0, 0, 0, 1), insn(0x95, 0, 0, 0, 0)]);
    for v6 in [false, true] {
        let ((mut frame, _), (other, _)) = (segment(v6, None, 10), segment(!v6, None, 10));
        let nobodys = (vec![9; 60], frame[..14].to_vec());
        let module = drops();
        let left = vec![nobodys.0.clone(), other.clone(), nobodys.1.clone()];
        assert_eq!(selected(&module, v6), [left.clone(), left]);
        assert_eq!(counts(&module), [102, 0, 102, 0, 0, 0]);
        // One that has a copy with room around it.
        let module = by_head(0);
        frame[0] = 7;
        let left = vec![nobodys.0, frame, other, nobodys.1];
        assert_eq!(selected(&module, v6), [left.clone(), left]);
        assert_eq!(counts(&module), [102, 102, 0, 0, 0, 0]);
    }
}

#[test]
fn modules_with_and_without_selectors_stand_in_one_chain() {
    let (all, some) = (by_byte(), Attached { selector: Some(1), ..by_byte() });
    let chains = Chains { ingress: vec![some.clone(), all.clone()], egress: vec![all.clone()] };
    let (mut set, mut far) = set(&Chains::default());
    let mut table = selection(4);
    table.connection(Owner(0), &tuple(false), 1, None);
    set.filter(Some((0..2).map(|port| Filter::new(&chains, 0, port).select(Some(table.table()))).collect()));
    // The second byte of the segment is a verdict that drops.
    send(&mut far, &segment(false, None, 10).0);
    send(&mut far, &frame(2));
    assert_eq!(came(&mut set, 1).len(), 1);
    assert_eq!((counts(&some)[0], counts(&all)[0]), (1, 1));
    sends(&mut set, 1, &frame(2));
    assert_eq!((received(&mut far).len(), counts(&all)[0]), (1, 2));
    // Without a table there is no connection, so such a module has no frame.
    set.filter(Some((0..2).map(|port| Filter::new(&chains, 0, port)).collect()));
    send(&mut far, &segment(false, None, 10).0);
    assert!(came(&mut set, 1).is_empty());
    assert_eq!((counts(&some)[0], counts(&all)[0]), (1, 3));
}

/// Sends a frame over the interface that its third byte says, and writes 100 to its first. With room, it asks for it.
fn redirects(room: bool) -> Attached {
    let moves = [insn(0xbf, 6, 1, 0, 0), insn(0xb7, 2, 0, 0, 0), insn(0x85, 0, 0, 0, 44)];
    let stays = [insn(0xbf, 6, 1, 0, 0)];
    let mut program = if room { moves.to_vec() } else { stays.to_vec() };
    program.extend([insn(0x61, 2, 6, 0, 0), insn(0x71, 1, 2, 2, 0), insn(0x72, 2, 0, 0, 100)]);
    program.extend([insn(0xb7, 2, 0, 0, 0), insn(0x85, 0, 0, 0, 23), insn(0x95, 0, 0, 0, 0)]);
    attached(program)
}

/// Interfaces whose numbers are no ports'.
const ONE: u8 = 41;
const TWO: u8 = 42;
const AGAIN: u8 = 43;

#[test]
fn a_module_sends_frames_over_another_interface() {
    for room in [false, true] {
        let (module, passes) = (redirects(room), by_byte());
        let ((one, mut far_of_one), (two, mut far_of_two)) = (pair(1500), pair(1500));
        let [one, two] = [(one, ONE), (two, TWO)].map(|(port, number)| port.of_interface(number.into()));
        let mut set = PortSet::new(vec![Box::new(Loopback::new()), Box::new(one), Box::new(two)]);
        // What another port sends on is seen by no module of its egress.
        let chains = Chains { ingress: vec![module.clone()], egress: vec![passes.clone()] };
        set.filter(Some((0..3).map(|port| Filter::new(&chains, 0, port)).collect()));
        let over = |interface: u8, number: u8| [9, number, interface].into_iter().chain([9; 57]).collect::<Vec<u8>>();
        let gone =
            |interface, number: u8| [100].into_iter().chain(over(interface, number).into_iter().skip(1)).collect();
        // More than there are buffers, so that each must come back.
        for number in 0..200 {
            // To the other one, back to its own, to one that is not there, and to memory.
            [TWO, ONE, 77, 0].iter().for_each(|to| send(&mut far_of_one, &over(*to, number)));
            send(&mut far_of_two, &over(ONE, number));
            (1..3).for_each(|place| assert!(came(&mut set, place).is_empty()));
            set.redirect();
            set.flush();
            let both: [Vec<u8>; 2] = [gone(ONE, number), gone(ONE, number)];
            assert_eq!(received(&mut far_of_one), both);
            let frame: Vec<u8> = gone(TWO, number);
            assert_eq!(received(&mut far_of_two), [frame]);
        }
        // A frame that was kept goes the same way.
        for to in [TWO, ONE, 77, 0] {
            set.translate(PortId(1), &mut over(to, 3));
        }
        set.flush();
        let frames: [Vec<u8>; 2] = [gone(ONE, 3), gone(TWO, 3)];
        assert_eq!([received(&mut far_of_one), received(&mut far_of_two)].concat(), frames);
        // The first interface comes again, under another number.
        let (again, mut far_again) = pair(1500);
        set.replace(PortId(1), Box::new(again.of_interface(AGAIN.into())));
        [ONE, AGAIN].iter().for_each(|to| send(&mut far_of_two, &over(*to, 4)));
        send(&mut far_again, &over(AGAIN, 5));
        (1..3).for_each(|place| assert!(came(&mut set, place).is_empty()));
        set.redirect();
        set.flush();
        let frames: [Vec<u8>; 2] = [gone(AGAIN, 5), gone(AGAIN, 4)];
        assert_eq!(received(&mut far_again), frames);
        drop(set);
        assert_eq!(counts(&module), [1007, 0, 0, 0, 1007, 403], "those that cannot be sent");
        assert_eq!(counts(&passes), [0; 6]);
    }
}
