//! Random programs that the verifier accepts give the same in the kernel, compiled and interpreted.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Three, may_verify};
use towpath_modules::{Insn, LoadError, Object, ProgramSpec};
use towpath_rng::Rng;

/// Registers with numbers. r6 has the context and r7 the frame.
const NUMBERS: [u8; 8] = [0, 1, 2, 3, 4, 5, 8, 9];
/// Bytes of the frame and of the stack that programs use.
const BYTES: u64 = 64;

fn insn(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> Insn {
    Insn { code, dst, src, off, imm }
}

fn register(rng: &mut Rng) -> u8 {
    NUMBERS[rng.below(8) as usize]
}

/// A constant: often one at a border.
fn constant(rng: &mut Rng) -> i32 {
    let borders = [0, 1, -1, i32::MIN, i32::MAX, 0x80, 0xffff, -0x8000];
    if rng.chance(500_000) { borders[rng.below(8) as usize] } else { rng.next_u64() as i32 }
}

fn arithmetic(rng: &mut Rng) -> Insn {
    let (dst, src) = (register(rng), register(rng));
    let wide = rng.chance(500_000);
    let class = if wide { 7 } else { 4 };
    let by_register = rng.chance(500_000);
    let x = if by_register { 8 } else { 0 };
    match rng.below(16) {
        // To little or big end, and the swap of version 4.
        0 => insn(0xd4 | x, dst, 0, 0, [16, 32, 64][rng.below(3) as usize]),
        1 => insn(0xd7, dst, 0, 0, [16, 32, 64][rng.below(3) as usize]),
        2 => insn(0x80 | class, dst, 0, 0, 0),
        // With signs, in version 4.
        3 => insn(0xb8 | class, dst, src, if wide { [8, 16, 32] } else { [8, 16, 16] }[rng.below(3) as usize], 0),
        4 | 5 => {
            let op = if rng.chance(500_000) { 0x30 } else { 0x90 };
            let imm = if by_register { 0 } else { constant(rng) | 1 };
            insn(op | class | x, dst, if by_register { src } else { 0 }, rng.below(2) as i16, imm)
        }
        6 | 7 => {
            let op = [0x60, 0x70, 0xc0][rng.below(3) as usize];
            let imm = if by_register { 0 } else { rng.below(if wide { 64 } else { 32 }) as i32 };
            insn(op | class | x, dst, if by_register { src } else { 0 }, 0, imm)
        }
        _ => {
            let op = [0x00, 0x10, 0x20, 0x40, 0x50, 0xa0, 0xb0][rng.below(7) as usize];
            let imm = if by_register { 0 } else { constant(rng) };
            insn(op | class | x, dst, if by_register { src } else { 0 }, 0, imm)
        }
    }
}

fn memory(rng: &mut Rng) -> Insn {
    let (size, bytes) = [(0x10, 1), (0x08, 2), (0x00, 4), (0x18, 8)][rng.below(4) as usize];
    let place = (rng.below(BYTES / bytes) * bytes) as i16;
    // The frame, or the stack, which is full of numbers.
    let (base, place) = if rng.chance(500_000) { (7, place) } else { (10, place - BYTES as i16) };
    let value = register(rng);
    match rng.below(8) {
        0..=2 => insn(0x61 | size, value, base, place, 0),
        3 if bytes < 8 => insn(0x81 | size, value, base, place, 0),
        4 => insn(0x62 | size, base, 0, place, constant(rng)),
        // On the stack, where programs may.
        5 if bytes >= 4 && base == 10 => {
            let operation = [0x00, 0x01, 0x40, 0x41, 0x50, 0x51, 0xa0, 0xa1, 0xe1, 0xf1][rng.below(10) as usize];
            // Linux 6.18 may keep the upper half of R0 where 32 bits are compared and equal; RFC 9669 has it zero.
            let operation = if operation == 0xf1 && bytes == 4 { 0xe1 } else { operation };
            insn(0xc3 | size, base, value, place, operation)
        }
        _ => insn(0x63 | size, base, value, place, 0),
    }
}

fn program(rng: &mut Rng) -> ProgramSpec {
    let mut insns = vec![
        insn(0xbf, 6, 1, 0, 0),
        insn(0x61, 7, 1, 0, 0),
        insn(0x61, 2, 1, 4, 0),
        insn(0xbf, 3, 7, 0, 0),
        insn(0x07, 3, 0, 0, BYTES as i32),
        // A shorter frame is passed.
        insn(0xbd, 3, 2, 2, 0),
        insn(0xb7, 0, 0, 0, 2),
        insn(0x95, 0, 0, 0, 0),
    ];
    for (place, register) in NUMBERS.into_iter().enumerate() {
        insns.push(insn(0x79, register, 7, place as i16 * 8, 0));
    }
    for place in 0..BYTES as i16 / 8 {
        insns.push(insn(0x7b, 10, NUMBERS[place as usize], place * 8 - BYTES as i16, 0));
    }
    let (start, count) = (insns.len(), rng.between(10, 80) as usize);
    for at in 0..count {
        let left = (count - at - 1) as u64;
        insns.push(match rng.below(10) {
            0 if left > 0 => {
                let op = [0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0xa0, 0xb0, 0xc0, 0xd0][rng.below(11) as usize];
                let class = if rng.chance(500_000) { 5 } else { 6 };
                let over = rng.between(1, left.min(9)) as i16;
                let (one, other) = (register(rng), register(rng));
                let by_register = rng.chance(500_000);
                match rng.below(20) {
                    // With an offset of 32 bits, in version 4.
                    0 => insn(0x06, 0, 0, 0, over.into()),
                    _ if by_register => insn(op | class | 8, one, other, over, 0),
                    _ => insn(op | class, one, 0, over, constant(rng)),
                }
            }
            1..=3 => memory(rng),
            _ => arithmetic(rng),
        });
    }
    assert_eq!(insns.len(), start + count);
    for (place, register) in NUMBERS.into_iter().enumerate() {
        insns.push(insn(0x7b, 7, register, place as i16 * 8, 0));
    }
    insns.extend([insn(0x57, 0, 0, 0, 7), insn(0x95, 0, 0, 0, 0)]);
    ProgramSpec { name: "random".into(), frags: false, insns, functions: vec![0] }
}

/// A number from the environment.
fn count(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|count| count.parse().ok()).unwrap_or(usual)
}

#[test]
fn random_programs_agree() {
    if !may_verify() {
        return;
    }
    let mut refused = 0;
    let programs = count("TOWPATH_MODULE_PROGRAMS", 300);
    for seed in 0..programs {
        let mut rng = Rng::new(seed);
        let object = Object { programs: vec![program(&mut rng)], maps: Vec::new(), license: "GPL".into() };
        let mut three = match Three::new(&object, "random") {
            Ok(three) => three,
            Err(LoadError::Verifier { .. }) => {
                refused += 1;
                continue;
            }
            Err(why) => panic!("program {seed}: {why}"),
        };
        let mut frames = Vec::new();
        for _ in 0..count("TOWPATH_MODULE_FRAMES", 30) {
            let mut bytes = vec![0; rng.between(60, 70) as usize];
            rng.fill(&mut bytes);
            for byte in bytes.iter_mut().step_by(rng.between(1, 9) as usize) {
                *byte = [0, 1, 0x7f, 0x80, 0xff][rng.below(5) as usize];
            }
            three.agree(&format!("program {seed}"), &bytes);
            frames.push(bytes);
        }
        three.batch_agrees(&format!("program {seed}"), &frames);
    }
    println!("{refused} of {programs} programs were refused");
    assert!(refused * 2 < programs, "{refused} of {programs} programs were refused");
}
