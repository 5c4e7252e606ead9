//! Random programs that the verifier accepts give the same in the kernel, compiled and interpreted.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Three, frames, may_verify, one_cpu, say_compared};
use towpath_modules::{Insn, LoadError, MapKind, MapSpec, Object, ProgramSpec};
use towpath_rng::Rng;

/// Bytes of the frame and of the stack that programs use. Those of the stack are full of numbers, and before them stands a key.
const BYTES: u64 = 64;
const KEY: i32 = -72;

/// What a function may use: registers with numbers, and the frame, which is in r7. r6 has the context.
#[derive(Clone, Copy)]
struct May {
    numbers: &'static [u8],
    frame: bool,
}
const PROGRAM: May = May { numbers: &[0, 1, 2, 3, 4, 5, 8, 9], frame: true };
const FUNCTION: May = May { numbers: &[0, 1, 2, 3, 4, 5], frame: false };

fn insn(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> Insn {
    Insn { code, dst, src, off, imm }
}

fn register(rng: &mut Rng, may: May) -> u8 {
    may.numbers[rng.below(may.numbers.len() as u64) as usize]
}

/// A constant: often one at a border.
fn constant(rng: &mut Rng) -> i32 {
    let borders = [0, 1, -1, i32::MIN, i32::MAX, 0x80, 0xffff, -0x8000];
    if rng.chance(500_000) { borders[rng.below(8) as usize] } else { rng.next_u64() as i32 }
}

fn arithmetic(rng: &mut Rng, may: May) -> Insn {
    let (dst, src) = (register(rng, may), register(rng, may));
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

fn memory(rng: &mut Rng, may: May) -> Insn {
    let (size, bytes) = [(0x10, 1), (0x08, 2), (0x00, 4), (0x18, 8)][rng.below(4) as usize];
    let place = (rng.below(BYTES / bytes) * bytes) as i16;
    // The frame, or the stack, which is full of numbers.
    let (base, place) = if may.frame && rng.chance(500_000) { (7, place) } else { (10, place - BYTES as i16) };
    let value = register(rng, may);
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

fn jump(rng: &mut Rng, may: May, over: i16) -> Insn {
    let op = [0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0xa0, 0xb0, 0xc0, 0xd0][rng.below(11) as usize];
    let class = if rng.chance(500_000) { 5 } else { 6 };
    let (one, other) = (register(rng, may), register(rng, may));
    let by_register = rng.chance(500_000);
    match rng.below(20) {
        // With an offset of 32 bits, in version 4.
        0 => insn(0x06, 0, 0, 0, over.into()),
        _ if by_register => insn(op | class | 8, one, other, over, 0),
        _ => insn(op | class, one, 0, over, constant(rng)),
    }
}

/// After a call these registers have numbers again.
fn numbers_again(block: &mut Vec<Insn>) {
    block.extend((1..=5).map(|register| insn(0x79, register, 10, i16::from(register) * 8 - BYTES as i16, 0)));
}

/// Loads the place of a map, or of a tail call's programs, into a register.
fn map(block: &mut Vec<Insn>, register: u8, number: usize) {
    block.extend([insn(0x18, register, 1, 0, number as i32), Insn::default()]);
}

/// A map's element is looked up and used, set or removed.
fn element(rng: &mut Rng) -> Vec<Insn> {
    let (number, key) = (rng.below(PROGRAMS as u64) as usize, register(rng, PROGRAM));
    let mut block = vec![
        insn(0xbf, 2, key, 0, 0),
        insn(0x57, 2, 0, 0, 15 << rng.below(2)),
        insn(0x63, 10, 2, KEY as i16, 0),
        insn(0xbf, 2, 10, 0, 0),
        insn(0x07, 2, 0, 0, KEY),
    ];
    map(&mut block, 1, number);
    match rng.below(8) {
        0..=3 => {
            block.push(insn(0x85, 0, 0, 0, 1));
            let (to, from) = ([8, 9][rng.below(2) as usize], [8, 9][rng.below(2) as usize]);
            let counts = insn(0xdb, 0, from, 8, [0x00, 0x01, 0x41, 0xa1, 0xe1][rng.below(5) as usize]);
            let uses = [insn(0x79, to, 0, 0, 0), counts, insn(0x73, 0, to, rng.below(16) as i16, 0)];
            block.push(insn(0x15, 0, 0, uses.len() as i16, 0));
            block.extend(uses);
            // Found or not, it is a number again.
            block.push(insn(0xb7, 0, 0, 0, constant(rng)));
        }
        4 => block.push(insn(0x85, 0, 0, 0, 3)),
        _ => {
            block.extend([insn(0xbf, 3, 10, 0, 0), insn(0x07, 3, 0, 0, -(BYTES as i32))]);
            block.extend([insn(0xb7, 4, 0, 0, rng.below(3) as i32), insn(0x85, 0, 0, 0, 2)]);
        }
    }
    numbers_again(&mut block);
    block
}

/// It goes on in another program, or in the same one from its start, or there is none.
fn tail_call(rng: &mut Rng) -> Vec<Insn> {
    let mut block = vec![insn(0xbf, 1, 6, 0, 0), insn(0xbf, 3, register(rng, PROGRAM), 0, 0), insn(0x57, 3, 0, 0, 3)];
    map(&mut block, 2, PROGRAMS);
    block.extend([insn(0x85, 0, 0, 0, 12), insn(0xb7, 0, 0, 0, constant(rng))]);
    numbers_again(&mut block);
    block
}

/// Calls the function of this number. Where that begins is filled in later.
fn call(function: usize) -> Vec<Insn> {
    let mut block = vec![insn(0x85, 0, 1, 0, function as i32)];
    numbers_again(&mut block);
    block
}

/// Random instructions, and these blocks among them, over which jumps go as a whole.
fn body(rng: &mut Rng, may: May, count: u64, blocks: Vec<Vec<Insn>>) -> Vec<Insn> {
    let mut all: Vec<Vec<Insn>> = (0..count)
        .map(|_| match rng.below(10) {
            0 => Vec::new(),
            1..=3 => vec![memory(rng, may)],
            _ => vec![arithmetic(rng, may)],
        })
        .collect();
    for block in blocks {
        let place = rng.below(all.len() as u64) as usize;
        all.insert(place, block);
    }
    // The empty ones become jumps.
    let mut insns = Vec::new();
    for at in 0..all.len() {
        let left = (all.len() - at - 1) as u64;
        match all[at].is_empty() {
            true if left > 0 => {
                let over = rng.between(1, left.min(9)) as usize;
                let length: usize = all[at + 1..=at + over].iter().map(|block| block.len().max(1)).sum();
                insns.push(jump(rng, may, length as i16));
            }
            true => insns.push(arithmetic(rng, may)),
            false => insns.extend(&all[at]),
        }
    }
    insns
}

fn function(rng: &mut Rng, calls: Option<usize>) -> Vec<Insn> {
    let mut insns = vec![insn(0xbf, 0, 1, 0, 0)];
    for place in 0..BYTES as i16 / 8 {
        insns.push(insn(0x7b, 10, FUNCTION.numbers[place as usize % 6], place * 8 - BYTES as i16, 0));
    }
    let count = rng.between(5, 20);
    insns.extend(body(rng, FUNCTION, count, calls.map(call).into_iter().collect()));
    insns.push(insn(0x95, 0, 0, 0, 0));
    insns
}

/// A program with so many functions, of which it calls each, and these blocks.
fn program(rng: &mut Rng, name: &str, functions: usize, mut blocks: Vec<Vec<Insn>>) -> ProgramSpec {
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
    for (place, register) in PROGRAM.numbers.iter().enumerate() {
        insns.push(insn(0x79, *register, 7, place as i16 * 8, 0));
    }
    for place in 0..BYTES as i16 / 8 {
        insns.push(insn(0x7b, 10, PROGRAM.numbers[place as usize], place * 8 - BYTES as i16, 0));
    }
    blocks.extend((1..=functions).map(call));
    let count = rng.between(10, 80);
    insns.extend(body(rng, PROGRAM, count, blocks));
    for (place, register) in PROGRAM.numbers.iter().enumerate() {
        insns.push(insn(0x7b, 7, *register, place as i16 * 8, 0));
    }
    insns.extend([insn(0x57, 0, 0, 0, 7), insn(0x95, 0, 0, 0, 0)]);
    let mut starts = vec![0];
    for number in 1..=functions {
        starts.push(insns.len());
        let next = Some(number + 1).filter(|next| *next <= functions);
        insns.extend(function(rng, next));
    }
    // Calls name a function by its number until all have their places.
    let mut at = 0;
    while at < insns.len() {
        if (insns[at].code, insns[at].src) == (0x85, 1) {
            insns[at].imm = starts[insns[at].imm as usize] as i32 - at as i32 - 1;
        }
        at += if insns[at].code == 0x18 { 2 } else { 1 };
    }
    ProgramSpec { name: name.into(), frags: false, insns, functions: starts }
}

/// The number of the map with the programs of tail calls, behind all others.
const PROGRAMS: usize = 6;

/// Two programs, with maps, functions and tail calls.
fn object_with_all(rng: &mut Rng) -> Object {
    let spec = |kind: MapKind, entries| {
        let sizes = if kind == MapKind::ProgArray { [4, 4, entries] } else { [4, 16, entries] };
        MapSpec::new(kind.name(), kind.number(), sizes, 0).unwrap()
    };
    // Of the hashes without LRU some are full. An LRU hash has all keys: which one it forgets is the kernel's own affair.
    let mut maps: Vec<_> = [
        (MapKind::Array, 24),
        (MapKind::PerCpuArray, 24),
        (MapKind::Hash, 20),
        (MapKind::PerCpuHash, 20),
        (MapKind::LruHash, 256),
        (MapKind::LruPerCpuHash, 256),
    ]
    .map(|(kind, entries)| spec(kind, entries))
    .into();
    assert_eq!(maps.len(), PROGRAMS);
    let programs = vec![(1, "second".into()), (2, "random".into())];
    maps.push(MapSpec { programs, ..spec(MapKind::ProgArray, 3) });
    let programs = ["random", "second"].map(|name| {
        let mut blocks: Vec<_> = (0..rng.between(1, 8)).map(|_| element(rng)).collect();
        blocks.extend((0..rng.below(2)).map(|_| tail_call(rng)));
        let functions = rng.below(3) as usize;
        program(rng, name, functions, blocks)
    });
    Object { programs: programs.into(), maps, license: "GPL".into() }
}

/// A number from the environment.
fn count(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|count| count.parse().ok()).unwrap_or(usual)
}

/// Frames of random bytes, some of them at borders of numbers.
fn frames_of(rng: &mut Rng) -> Vec<Vec<u8>> {
    let one = |rng: &mut Rng| {
        let mut bytes = vec![0; rng.between(60, 70) as usize];
        rng.fill(&mut bytes);
        for byte in bytes.iter_mut().step_by(rng.between(1, 9) as usize) {
            *byte = [0, 1, 0x7f, 0x80, 0xff][rng.below(5) as usize];
        }
        bytes
    };
    (0..frames() / 100).map(|_| one(rng)).collect()
}

/// Objects of this kind do the same in the kernel, compiled and interpreted. Those that the verifier refuses are left out.
fn all_agree(what: &str, programs: u64, make: impl Fn(&mut Rng) -> Object) {
    if !may_verify() {
        return;
    }
    one_cpu();
    let mut refused = 0;
    for seed in 0..programs {
        let mut rng = Rng::new(seed);
        let object = make(&mut rng);
        let what = format!("{what} {seed}");
        let mut three = match Three::new(&object, "random") {
            Ok(three) => three,
            Err(LoadError::Verifier { .. }) => {
                refused += 1;
                continue;
            }
            Err(why) => panic!("{what}: {why}"),
        };
        let frames = frames_of(&mut rng);
        for bytes in &frames {
            three.agree(&what, bytes);
        }
        three.maps_agree(&what, &[]);
        if object.maps.is_empty() {
            three.batch_agrees(&what, &frames);
        }
    }
    say_compared();
    assert!(refused * 2 < programs, "{refused} of {programs} programs were refused");
}

#[test]
fn random_programs_agree() {
    all_agree("program", count("TOWPATH_MODULE_PROGRAMS", 300), |rng| Object {
        programs: vec![program(rng, "random", 0, Vec::new())],
        maps: Vec::new(),
        license: "GPL".into(),
    });
}

#[test]
fn random_programs_with_maps_functions_and_tail_calls_agree() {
    // They take longer to compile.
    all_agree("programs and maps", count("TOWPATH_MODULE_PROGRAMS", 240) / 3, object_with_all);
}
