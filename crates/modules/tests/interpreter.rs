//! The interpreter ends a run that does what it may not, counts a fault, and the frame is dropped. Nothing else changes.
#![allow(clippy::unwrap_used)]

mod common;

use common::{ARRAY, CONSTANTS, EXIT, HASH, PROGRAMS, RING, VALUE, call, insn, instance, map, value};
use towpath_modules::{Action, Fault, Frame, Insn, Instance};

const LENGTH: usize = 60;
const ROOM: usize = 256;

/// Runs it on a frame with room around it, and returns what it says of it and the buffer.
fn run(instance: &mut Instance) -> (Action, Vec<u8>) {
    let mut buffer = vec![0x5a; ROOM + LENGTH + ROOM];
    let mut frame = Frame { start: ROOM, length: LENGTH, room: true, ..Frame::whole(&mut buffer) };
    let action = instance.run(&mut frame);
    (action, buffer)
}

/// Why a program ends that passes otherwise, of which this is a part. In r6 is the context, in r7 the frame.
#[track_caller]
fn fault(part: &[Insn]) -> Option<Fault> {
    let start = [insn(0xbf, 6, 1, 0, 0), insn(0x61, 7, 1, 0, 0)];
    let insns: Vec<_> = start.iter().chain(part).copied().chain([insn(0xb7, 0, 0, 0, 2), EXIT]).collect();
    of(insns, vec![0])
}

#[track_caller]
fn of(insns: Vec<Insn>, functions: Vec<usize>) -> Option<Fault> {
    let mut one = instance(insns, functions);
    for number in 1..=2 {
        let (action, buffer) = run(&mut one);
        let failed = one.faults != 0;
        assert_eq!((action, one.faults), if failed { (Action::Aborted, number) } else { (Action::Pass, 0) });
        // Some programs move the ends a little.
        let around = [&buffer[..ROOM - 64], &buffer[ROOM + LENGTH + 64..]].concat();
        assert!(around.iter().all(|byte| *byte == 0x5a), "nothing around the frame was written");
    }
    let mut buffer = vec![0x5a; ROOM + LENGTH + ROOM];
    let mut frame = Frame { start: ROOM, length: LENGTH, room: true, ..Frame::whole(&mut buffer) };
    let why = one.interpret(&mut frame).err();
    assert_eq!(why.is_some(), one.faults != 0);
    // What it had taken is given back: nobody waits for a record, and the ring buffer has all its room.
    let ring = one.module().maps()[RING as usize].ring().unwrap();
    while ring.next().is_some() {}
    assert!(!ring.reserve(4000).is_null());
    why
}

/// An access of eight bytes: by its base register and offset. It loads, stores or adds.
fn accesses(base: u8, off: i16) -> [Insn; 4] {
    [insn(0x79, 0, base, off, 0), insn(0x7a, base, 0, off, 7), insn(0x7b, base, 1, off, 0), insn(0xdb, base, 1, off, 0)]
}

/// Each access of eight bytes at this offset of r2, after these steps, is made or ends the run.
#[track_caller]
fn access(steps: &[Insn], off: i16, fails: bool) {
    for access in accesses(2, off) {
        let part = [steps, &[insn(0xb7, 1, 0, 0, 1)], &[access]].concat();
        // Atomic ones are aligned, which a frame need not be.
        if !fails && access.code == 0xdb {
            continue;
        }
        assert_eq!(fault(&part), fails.then_some(Fault::Access), "{access:?}");
    }
}

#[test]
fn a_frame_ends_where_it_ends() {
    let frame = [insn(0xbf, 2, 7, 0, 0)];
    let end = LENGTH as i16;
    for (off, fails) in [(0, false), (end - 8, false), (-1, true), (-8, true), (end - 7, true), (end, true)] {
        access(&frame, off, fails);
    }
    // Nothing is there, or everything would be.
    for number in [0, 8, -8, i32::MIN, i32::MAX] {
        access(&[insn(0xb7, 2, 0, 0, number)], 0, true);
    }
    let unaligned = [insn(0x61, 2, 6, 4, 0), insn(0x17, 2, 0, 0, 9), insn(0xb7, 1, 0, 0, 1)];
    let both = [0, 1].map(|off| fault(&[&unaligned[..], &[insn(0xc3, 2, 1, off, 0)]].concat()));
    assert!(both.contains(&Some(Fault::Access)), "an atomic operation at an odd place: {both:?}");
}

#[test]
fn a_frame_has_moved_after_its_ends_were_moved() {
    let moved = |helper: i32, by: i32| {
        [insn(0xbf, 1, 6, 0, 0), insn(0xb7, 2, 0, 0, by), call(helper), insn(0xbf, 2, 7, 0, 0)].to_vec()
    };
    let (head, meta, tail) = (44, 54, 65);
    let end = LENGTH as i16;
    // From here on r2 is where the frame was.
    for (steps, inside, outside) in [
        (moved(head, 20), 20, 19),
        (moved(head, -20), -20, -21),
        (moved(meta, -16), -16, -17),
        (moved(tail, -20), end - 28, end - 27),
        (moved(tail, 20), end + 12, end + 13),
    ] {
        access(&steps, inside, false);
        access(&steps, outside, true);
    }
    // Ends that would cross, or leave the room, do not move, and that is an answer and no fault.
    for (helper, by) in [(head, 50), (head, -250), (tail, -50), (tail, 300), (meta, 4), (meta, -3)] {
        let refused = [moved(helper, by), vec![insn(0x15, 0, 0, 1, 0), insn(0x05, 0, 0, 1, 0), insn(0x79, 0, 0, 0, 0)]];
        assert_eq!(fault(&refused.concat()), None, "{helper} {by}");
        access(&moved(helper, by), end - 8, false);
        access(&moved(helper, by), end - 7, true);
    }
}

#[test]
fn the_stack_and_the_context_end_where_they_end() {
    let stack = [insn(0xbf, 2, 10, 0, 0)];
    for (off, fails) in [(-8, false), (-512, false), (0, true), (-7, true), (-4097, true)] {
        access(&stack, off, fails);
    }
    // The context is read word by word, and is no memory.
    let context = |insn| fault(&[insn]);
    assert_eq!(context(insn(0x61, 0, 6, 16, 0)), None);
    for access in [
        insn(0x61, 0, 6, 20, 0),
        insn(0x61, 0, 6, 2, 0),
        insn(0x61, 0, 6, -4, 0),
        insn(0x79, 0, 6, 0, 0),
        insn(0x63, 6, 0, 0, 0),
        insn(0xdb, 6, 0, 0, 0),
    ] {
        assert_eq!(context(access), Some(Fault::Access), "{access:?}");
    }
    assert_eq!(fault(&[insn(0x07, 6, 0, 0, 4), insn(0x61, 0, 6, 0, 0)]), Some(Fault::Access), "it was moved");
}

#[test]
fn values_of_maps_end_where_they_end_and_constants_stay() {
    let end = VALUE as i16;
    let array = value(2, ARRAY);
    // The next value begins four bytes behind this one.
    for (off, fails) in
        [(0, false), (end - 8, false), (end - 7, true), (end, true), (16, false), (-1, true), (60, true)]
    {
        access(&array, off, fails);
    }
    let hash = [
        &map(1, HASH)[..],
        &[insn(0x62, 10, 0, -4, 1), insn(0xbf, 2, 10, 0, 0), insn(0x07, 2, 0, 0, -4), call(1), insn(0xbf, 2, 0, 0, 0)],
    ]
    .concat();
    for (off, fails) in [(0, false), (end - 8, false), (end - 7, true), (end, true), (-1, true)] {
        access(&hash, off, fails);
    }
    let constants = value(2, CONSTANTS);
    assert_eq!(fault(&[&constants[..], &[insn(0x79, 0, 2, 4, 0)]].concat()), None);
    for store in &accesses(2, 0)[1..] {
        assert_eq!(fault(&[&constants[..], &[*store]].concat()), Some(Fault::Access), "{store:?}");
    }
    // Maps without values to point at, and what a map itself is made of.
    for number in [HASH, RING, PROGRAMS] {
        access(&value(2, number), 0, true);
    }
    for number in [ARRAY, HASH, CONSTANTS, RING, PROGRAMS] {
        access(&map(2, number), 0, true);
    }
}

#[test]
fn a_helper_has_arguments_of_its_kinds() {
    let number = |register, number| insn(0xb7, register, 0, 0, number);
    let stack = |register: u8, off: i32| [insn(0xbf, register, 10, 0, 0), insn(0x07, register, 0, 0, off)];
    let with = |parts: &[&[Insn]]| fault(&parts.concat());
    let wrong = Some(Fault::Argument);
    let array = &map(1, ARRAY);
    // A key, a value, a map.
    assert_eq!(with(&[array, &stack(2, -4), &[call(1)]]), None);
    assert_eq!(with(&[array, &stack(2, -3), &[call(1)]]), wrong, "the key is not all on the stack");
    assert_eq!(with(&[array, &[number(2, 0), call(1)]]), wrong);
    assert_eq!(with(&[&[number(1, 0)], &stack(2, -4), &[call(1)]]), wrong, "no map");
    assert_eq!(with(&[&value(1, ARRAY), &stack(2, -4), &[call(1)]]), wrong, "a value for a map");
    assert_eq!(with(&[array, &stack(2, -4), &stack(3, -12), &[number(4, 0), call(2)]]), None);
    assert_eq!(with(&[array, &stack(2, -4), &stack(3, -8), &[number(4, 0), call(2)]]), wrong, "the value's end");
    assert_eq!(with(&[array, &stack(2, -2), &[call(3)]]), wrong);
    // The context.
    for helper in [44, 54, 65, 188] {
        assert_eq!(with(&[&[insn(0xbf, 1, 6, 0, 0), number(2, 0), call(helper)]]), None, "{helper}");
        assert_eq!(with(&[&[insn(0xbf, 1, 7, 0, 0), number(2, 0), call(helper)]]), wrong, "{helper}");
    }
    // Bytes and how many.
    let context = |offset| [insn(0xbf, 1, 6, 0, 0), number(2, offset)];
    for helper in [189, 190] {
        for (length, answer) in [(0, None), (16, None), (17, wrong), (-1, wrong)] {
            let call = [number(4, length), call(helper)];
            assert_eq!(with(&[&context(0), &stack(3, -16), &call]), answer, "{helper} {length}");
        }
    }
    assert_eq!(with(&[&context(0), &value(3, CONSTANTS), &[number(4, 8), call(190)]]), None);
    assert_eq!(with(&[&context(0), &value(3, CONSTANTS), &[number(4, 8), call(189)]]), wrong, "constants are written");
    let sums =
        |from, to| with(&[&stack(1, -16), &[number(2, from)], &stack(3, -8), &[number(4, to), number(5, 0), call(28)]]);
    assert_eq!([sums(16, 8), sums(0, 0), sums(20, 8), sums(16, 12)], [None, None, wrong, wrong]);
    assert_eq!(with(&[&stack(1, -8), &[number(2, 9), call(6)]]), wrong, "a format's end");
    assert_eq!(with(&[&stack(1, -8), &[number(2, 8)], &stack(3, -8), &[number(4, 16), call(177)]]), wrong);
    // A map of another kind.
    let three = [number(2, 8), number(3, 0)];
    assert_eq!(with(&[array, &three, &[call(131)]]), wrong, "no ring buffer");
    assert_eq!(with(&[array, &stack(2, -8), &[number(3, 8), number(4, 0), call(130)]]), wrong);
    assert_eq!(with(&[&map(1, RING), &stack(2, -8), &[number(3, 9), number(4, 0), call(130)]]), wrong);
    assert_eq!(with(&[array, &three, &[call(51)]]), wrong, "no map of interfaces");
    let tail = |first| with(&[&[insn(0xbf, 1, first, 0, 0)], &map(2, PROGRAMS), &[number(3, 0), call(12)]]);
    assert_eq!([tail(6), tail(7)], [None, wrong]);
    assert_eq!(with(&[&[insn(0xbf, 1, 6, 0, 0)], array, &map(2, ARRAY), &[number(3, 0), call(12)]]), wrong);
}

#[test]
fn a_run_ends_that_has_no_end() {
    // To itself, and back over others.
    assert_eq!(fault(&[insn(0x05, 0, 0, -1, 0)]), Some(Fault::Steps));
    assert_eq!(fault(&[insn(0x07, 7, 0, 0, 1), insn(0xbf, 0, 7, 0, 0), insn(0x06, 0, 0, 0, -3)]), Some(Fault::Steps));
    // Programs that go on in themselves do so 33 times.
    let again = [&[insn(0xbf, 1, 6, 0, 0)], &map(2, PROGRAMS)[..], &[insn(0xb7, 3, 0, 0, 1), call(12)]].concat();
    assert_eq!(fault(&again), None);
}

#[test]
fn functions_call_each_other_eight_deep() {
    // A function calls itself as often as the number says.
    let program = |times| {
        let main = [insn(0xb7, 1, 0, 0, times), insn(0x85, 0, 1, 0, 2), insn(0xb7, 0, 0, 0, 2), EXIT];
        let itself = [insn(0x15, 1, 0, 2, 0), insn(0x07, 1, 0, 0, -1), insn(0x85, 0, 1, 0, -3), EXIT];
        of([main, itself].concat(), vec![0, 4])
    };
    assert_eq!(program(6), None);
    assert_eq!(program(7), Some(Fault::Depth));
    assert_eq!(program(-1), Some(Fault::Depth));
}

#[test]
fn records_of_a_ring_buffer_are_taken_used_and_finished_once() {
    let (submit, discard) = (132, 133);
    let reserve = [&map(1, RING)[..], &[insn(0xb7, 2, 0, 0, 16), insn(0xb7, 3, 0, 0, 0), call(131)]].concat();
    let take = [&reserve[..], &[insn(0xbf, 8, 0, 0, 0), insn(0xbf, 2, 0, 0, 0)]].concat();
    let finish = |how| [insn(0xbf, 1, 8, 0, 0), insn(0xb7, 2, 0, 0, 0), call(how)];
    let then = |rest: &[Insn]| fault(&[&take[..], rest].concat());
    for how in [submit, discard] {
        assert_eq!(then(&finish(how)), None);
        assert_eq!(then(&[finish(how), finish(how)].concat()), Some(Fault::Argument), "a second time");
        let used = [&finish(how)[..], &[insn(0x79, 0, 8, 0, 0)]].concat();
        assert_eq!(then(&used), Some(Fault::Access), "it is another's by then");
        let inside = [&[insn(0x07, 8, 0, 0, 8)], &finish(how)[..]].concat();
        assert_eq!(then(&inside), Some(Fault::Argument), "not where it begins");
        let frame = [&[insn(0xbf, 8, 7, 0, 0)], &finish(how)[..]].concat();
        assert_eq!(then(&frame), Some(Fault::Argument), "no record");
    }
    assert_eq!(then(&[]), Some(Fault::Record), "it is neither submitted nor discarded");
    for (off, fails) in [(0, false), (8, false), (9, true), (16, true), (-1, true), (-8, true)] {
        let kept = [&[insn(0x7a, 2, 0, off, 7)], &finish(submit)[..]].concat();
        assert_eq!(then(&kept), fails.then_some(Fault::Access), "{off}");
    }
    // 64 at the same time are the most.
    let many = |count: i32| {
        let start = insn(0xb7, 9, 0, 0, count);
        let turn = [&[start], &reserve[..], &[insn(0x07, 9, 0, 0, -1), insn(0x55, 9, 0, -7, 0)]].concat();
        fault(&turn)
    };
    assert_eq!([many(64), many(65)], [Some(Fault::Record); 2], "they are left, or too many");
}
