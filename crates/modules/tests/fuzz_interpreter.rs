//! Random programs that no verifier has seen. The interpreter ends each, and none has a byte that is not its own.
#![allow(clippy::unwrap_used)]

mod common;

use common::{ARRAY, CONSTANTS, ENTRIES, EXIT, HASH, VALUE, call, insn, map, maps, value};
use std::sync::Arc;
use towpath_modules::{Frame, Insn, Instance, Module, Object, ProgramSpec, check};

const PAGE: usize = 4096;

/// A page between two that nobody may use: whoever reads over its borders is ended by the kernel.
struct Page(*mut u8);

impl Page {
    fn new() -> Self {
        // SAFETY: the kernel chooses the place, and the middle one of three new pages is made usable.
        unsafe {
            let how = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let at = libc::mmap(std::ptr::null_mut(), 3 * PAGE, libc::PROT_NONE, how, -1, 0);
            assert_ne!(at, libc::MAP_FAILED);
            let page = at.cast::<u8>().add(PAGE);
            assert_eq!(libc::mprotect(page.cast(), PAGE, libc::PROT_READ | libc::PROT_WRITE), 0);
            Self(page)
        }
    }
    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the page is ours, and borrowed as long as the bytes are.
        unsafe { std::slice::from_raw_parts_mut(self.0, PAGE) }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: the pages are ours, and nobody uses them any more.
        unsafe { libc::munmap(self.0.sub(PAGE).cast(), 3 * PAGE) };
    }
}

/// Helpers that modules have, and one that they do not.
const HELPERS: [i32; 24] =
    [1, 2, 3, 5, 6, 7, 8, 12, 23, 28, 44, 51, 54, 65, 125, 130, 131, 132, 133, 177, 188, 189, 190, 4];

/// An instruction of what may be anything. Most are of a kind that there is.
type Raw = (u8, u8, i8, i32);

fn one(raw: Raw) -> Vec<Insn> {
    let (kind, registers, off, imm) = raw;
    let (dst, src) = (registers & 15, registers >> 4);
    let (dst, src) = if dst > 10 || src > 10 { (dst % 10, src % 10) } else { (dst, src) };
    let near = i16::from(off);
    let code = |codes: &[u8]| codes[imm.unsigned_abs() as usize % codes.len()];
    match kind % 32 {
        0..=7 => vec![insn(code(&[0x61, 0x69, 0x71, 0x79, 0x81, 0x89, 0x91]), dst % 10, src, near, 0)],
        8..=13 => vec![insn(code(&[0x62, 0x63, 0x6a, 0x6b, 0x72, 0x73, 0x7a, 0x7b]), dst, src, near, imm)],
        14 | 15 => {
            let how = [0, 1, 0x40, 0x41, 0x50, 0xa1, 0xe1, 0xf1][kind as usize / 32];
            vec![insn(code(&[0xc3, 0xdb]), dst % 10, src % 10, near, how)]
        }
        // Pointers go a little to and fro.
        16..=18 => vec![insn(0x07, dst % 10, 0, 0, off.into())],
        19 | 20 => vec![insn(0xbf, dst % 10, src, 0, 0)],
        21 => vec![insn(0xb7, dst % 10, 0, 0, if off < 0 { imm } else { off.into() })],
        22 => vec![insn(code(&[0x0f, 0x1f, 0x2c, 0x3c, 0x5f, 0x6f, 0x97, 0xcf, 0xd4, 0xd7]), dst % 10, src, 0, 32)],
        // Forward mostly: a loop takes a million steps.
        23 | 24 => {
            vec![insn(code(&[0x15, 0x1d, 0x25, 0x3e, 0x4d, 0x66, 0xb5, 0xdd]), dst, src, near.rem_euclid(16), imm)]
        }
        25 if off % 32 == 0 => vec![insn(0x05, 0, 0, near, 0)],
        25..=27 => vec![call(HELPERS[imm.unsigned_abs() as usize % HELPERS.len()])],
        28 => map(dst % 10, i32::from(src) % 6).to_vec(),
        29 => value(dst % 10, i32::from(src) % 6).to_vec(),
        30 => vec![insn(0x85, 0, 1, 0, near.into())],
        _ => vec![insn(kind, dst, src, near, imm)],
    }
}

/// A program that begins with pointers to all that it has, and does these things then. Its second half is a function.
fn program(raw: &[Raw]) -> ProgramSpec {
    let mut insns =
        vec![insn(0xbf, 6, 1, 0, 0), insn(0x61, 7, 1, 0, 0), insn(0x61, 8, 1, 4, 0), insn(0xbf, 9, 10, 0, 0)];
    insns.extend([value(3, ARRAY), value(4, CONSTANTS), map(5, HASH)].concat());
    insns.push(insn(0x07, 9, 0, 0, -16));
    let (first, second) = raw.split_at(raw.len() / 2);
    first.iter().for_each(|raw| insns.extend(one(*raw)));
    insns.extend([insn(0xb7, 0, 0, 0, 2), EXIT]);
    let function = insns.len();
    second.iter().for_each(|raw| insns.extend(one(*raw)));
    insns.extend([insn(0xb7, 0, 0, 0, 2), EXIT]);
    // A call without a function goes to the second one.
    for (at, insn) in insns.iter_mut().enumerate() {
        if (insn.code, insn.src) == (0x85, 1) && insn.imm % 2 == 0 {
            insn.imm = function as i32 - at as i32 - 1;
        }
    }
    ProgramSpec { name: "main".into(), frags: false, insns, functions: vec![0, function] }
}

#[test]
fn fuzz_programs_that_no_verifier_has_seen() {
    let mut page = Page::new();
    bolero::check!().with_type::<(Vec<Raw>, u16)>().with_iterations(2000).for_each(|(raw, how)| {
        let raw = &raw[..raw.len().min(200)];
        // As it comes it need not be a program. What is left of it is one.
        let mut program = program(raw);
        let specs = maps();
        let mut left = raw.to_vec();
        while let Err(towpath_modules::LoadError::Instruction { .. }) = check(&program, specs.len()) {
            let half = left.len() / 2;
            if left.is_empty() {
                return;
            }
            left.retain(|raw| check(&self::program(&[*raw, (21, 0, 0, 0)]), specs.len()).is_ok());
            if left.len() > half && check(&self::program(&left), specs.len()).is_err() {
                left.truncate(half);
            }
            program = self::program(&left);
        }
        let object = Object { programs: vec![program], maps: specs, license: "GPL".into() };
        let module = Arc::new(Module::interpreted(&object, 0, 1).unwrap());
        module.maps()[HASH as usize].set(&1u32.to_ne_bytes(), &[3; VALUE]).unwrap();
        let mut instance = Instance::new(&module, 0);
        let length = 14 + usize::from(how % 100);
        // With room, or at either border of what may be used.
        for (start, room) in [(0, false), (PAGE - length, false), (256, true)] {
            let bytes = page.bytes();
            bytes.fill(0x5a);
            let frame = if room { &mut bytes[..] } else { &mut bytes[start..start + length] };
            let begin = if room { start } else { 0 };
            let mut frame = Frame { start: begin, length, room, ..Frame::whole(frame) };
            instance.run(&mut frame);
            let (from, to, meta) = (frame.start, frame.start + frame.length, frame.meta);
            assert!(meta <= from && to <= frame.buffer.len() && (room || (from, to, meta) == (0, length, 0)));
            let around = |range: std::ops::Range<usize>| bytes[range].iter().all(|byte| *byte == 0x5a);
            assert!(room || (around(0..start) && around(start + length..PAGE)), "it has written beside its frame");
        }
        // Between two values of an array nothing is written, and constants stay.
        let at = module.maps()[ARRAY as usize].first_value();
        for byte in (0..ENTRIES as usize * 16).filter(|byte| byte % 16 >= VALUE) {
            // SAFETY: the values lie 16 bytes apart, in the map's memory.
            assert_eq!(unsafe { at.add(byte).read() }, 0, "it has written beside a value");
        }
        assert_eq!(module.maps()[CONSTANTS as usize].elements()[0].1, [vec![7; VALUE]]);
        // Records that it had are finished: whoever reads them comes to the end.
        module.maps()[common::RING as usize].elements();
        let ring = module.maps()[common::RING as usize].ring().unwrap();
        assert!(!ring.reserve(4000).is_null(), "all its room is there again");
    });
}
