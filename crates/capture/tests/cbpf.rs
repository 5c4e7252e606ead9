//! Classic BPF: programs of tcpdump, refused programs, and any program beside the kernel.
#![allow(clippy::unwrap_used)]

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;
use towpath_capture::cbpf::{Frame, Instruction, MAX_INSTRUCTIONS, Program, Refused};

const fn word(code: u16, jt: u8, jf: u8, k: u32) -> Instruction {
    Instruction { code, jt, jf, k }
}

/// `tcpdump -ddd -y EN10MB 'tcp port 80'`
const PORT_80: &str = "20
40 0 0 12
21 0 6 34525
48 0 0 20
21 0 15 6
40 0 0 54
21 12 0 80
40 0 0 56
21 10 11 80
21 0 10 2048
48 0 0 23
21 0 8 6
40 0 0 20
69 6 0 8191
177 0 0 14
72 0 0 14
21 2 0 80
72 0 0 16
21 0 1 80
6 0 0 262144
6 0 0 0
";

fn tcp(source: u16, destination: u16) -> Vec<u8> {
    let mut frame = vec![0; 54];
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14] = 0x45;
    frame[23] = 6;
    frame[34..36].copy_from_slice(&source.to_be_bytes());
    frame[36..38].copy_from_slice(&destination.to_be_bytes());
    frame
}

fn run(program: &Program, bytes: &[u8]) -> u32 {
    program.run(Frame { bytes, outgoing: false })
}

#[test]
fn a_filter_of_tcpdump_picks_its_port() {
    let program = Program::parse(PORT_80).unwrap();
    assert_eq!(run(&program, &tcp(4000, 80)), 262_144);
    assert_eq!(run(&program, &tcp(80, 4000)), 262_144);
    assert_eq!(run(&program, &tcp(8080, 4000)), 0);
    let mut fragment = tcp(4000, 80);
    fragment[21] = 1;
    assert_eq!(run(&program, &fragment), 0);
    for len in 0..54 {
        let cut = run(&program, &tcp(4000, 80)[..len]);
        assert_eq!(cut != 0, len >= 38, "{len} bytes");
    }
}

#[test]
fn a_program_with_commas_is_the_same() {
    assert_eq!(Program::parse(&PORT_80.replace('\n', ",")).unwrap(), Program::parse(PORT_80).unwrap());
    assert_eq!(Program::parse("1,6 0 0 96").unwrap().instructions(), [word(6, 0, 0, 96)]);
}

#[test]
fn the_direction_of_a_frame_can_be_asked() {
    // `tcpdump -ddd -y EN10MB inbound`
    let inbound = Program::parse("4,40 0 0 4294963204,21 0 1 4,6 0 0 0,6 0 0 262144").unwrap();
    assert_eq!(inbound.run(Frame { bytes: &[0; 60], outgoing: false }), 262_144);
    assert_eq!(inbound.run(Frame { bytes: &[0; 60], outgoing: true }), 0);
}

#[test]
fn what_is_no_program_is_refused() {
    let refused = |instructions: &[Instruction]| Program::new(instructions).unwrap_err();
    let end = word(6, 0, 0, 0);
    assert_eq!(refused(&[]), Refused::Length(0));
    assert_eq!(refused(&vec![end; MAX_INSTRUCTIONS + 1]), Refused::Length(MAX_INSTRUCTIONS + 1));
    assert_eq!(refused(&[word(0x20, 0, 0, 0)]), Refused::NoReturn);
    assert_eq!(refused(&[word(0xff, 0, 0, 0), end]), Refused::Code(0, 0xff));
    assert_eq!(refused(&[word(0x34, 0, 0, 0), end]), Refused::Operand(0, 0), "a division by zero");
    assert_eq!(refused(&[word(0x64, 0, 0, 32), end]), Refused::Operand(0, 32), "a shift too far");
    assert_eq!(refused(&[word(0x02, 0, 0, 16), end]), Refused::Operand(0, 16));
    assert_eq!(refused(&[word(0x05, 0, 0, 1), end]), Refused::Jump(0));
    assert_eq!(refused(&[word(0x15, 0, 1, 1), end]), Refused::Jump(0));
    assert_eq!(refused(&[word(0x60, 0, 0, 3), end]), Refused::Memory(0));
    assert_eq!(refused(&[word(0x20, 0, 0, 0xffff_f008), end]), Refused::Extension(0), "the interface's index");
    for text in ["", "x", "1", "2,6 0 0 0", "1,6 0 0", "1,6 0 0 0 0", "1,6 0 0 4294967296", "1,6 256 0 0"] {
        assert!(Program::parse(text).is_err(), "{text:?}");
    }
}

#[test]
fn memory_must_be_written_on_every_way_to_its_use() {
    // The store is skipped if the condition holds.
    let some = [word(0x15, 1, 0, 0), word(0x02, 0, 0, 0), word(0x60, 0, 0, 0), word(0x16, 0, 0, 0)];
    assert_eq!(Program::new(&some).unwrap_err(), Refused::Memory(2));
    let always = [word(0x02, 0, 0, 0), word(0x15, 0, 0, 0), word(0x60, 0, 0, 0), word(0x16, 0, 0, 0)];
    assert_eq!(run(&Program::new(&always).unwrap(), &[]), 0);
}

/// How many bytes of a datagram the kernel lets through; `None` = it refuses the program.
fn by_the_kernel(instructions: &[Instruction], bytes: &[u8]) -> Option<usize> {
    let (near, far) = UnixDatagram::pair().unwrap();
    let mut filter: Vec<libc::sock_filter> =
        instructions.iter().map(|i| libc::sock_filter { code: i.code, jt: i.jt, jf: i.jf, k: i.k }).collect();
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program and its instructions live during the call, which only reads them.
    let attached = unsafe {
        libc::setsockopt(
            far.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            std::ptr::from_ref(&program).cast(),
            size_of::<libc::sock_fprog>() as u32,
        )
    };
    if attached != 0 {
        return None;
    }
    far.set_nonblocking(true).unwrap();
    near.set_write_timeout(Some(Duration::from_secs(10))).unwrap();
    // A datagram that the filter drops may be an error of its sender.
    let _ = near.send(bytes);
    let mut received = [0; 256];
    Some(far.recv(&mut received).unwrap_or(0))
}

/// Codes that exist.
const CODES: [u16; 48] = [
    0x20, 0x28, 0x30, 0x40, 0x48, 0x50, 0x00, 0x60, 0x80, 0x01, 0x61, 0x81, 0xb1, 0x02, 0x03, 0x04, 0x0c, 0x14, 0x1c,
    0x24, 0x2c, 0x34, 0x3c, 0x44, 0x4c, 0x54, 0x5c, 0x64, 0x6c, 0x74, 0x7c, 0x84, 0x94, 0x9c, 0xa4, 0xac, 0x05, 0x15,
    0x1d, 0x25, 0x2d, 0x35, 0x3d, 0x45, 0x4d, 0x07, 0x87, 0x55,
];

/// An operand with which an instruction of this code can be checked and do something.
fn operand(code: u16, k: u32, left: u32) -> u32 {
    match code & 0xff {
        0x05 => k % left,
        0x02 | 0x03 | 0x60 | 0x61 => k % 4,
        0x64 | 0x74 => k % 32,
        0x34 | 0x94 => k.max(1),
        0x20 | 0x28 | 0x30 | 0x40 | 0x48 | 0x50 | 0xb1 => k % 190,
        _ if k & 1 == 0 => k % 256,
        _ => k,
    }
}

#[test]
fn fuzz_programs_beside_the_kernel() {
    type Raw = (u8, u8, u8, u32);
    bolero::check!().with_type::<(Vec<Raw>, Vec<u8>, bool)>().with_iterations(5_000).for_each(|(raw, seed, any)| {
        // Words that may be read are written first. At the end the low bits of A are the length.
        let mut instructions: Vec<Instruction> = (0..4).map(|at| word(0x02 + at as u16 % 2, 0, 0, at)).collect();
        let length = raw.len().min(24) as u32;
        for (at, &(code, jt, jf, k)) in raw.iter().take(24).enumerate() {
            let left = length - at as u32 + 1;
            let (jt, jf) = (jt % left as u8, jf % left as u8);
            let some = CODES[usize::from(code) % CODES.len()];
            let code = if *any && k & 64 == 0 { u16::from(code) } else { some };
            instructions.push(word(code, jt, jf, if *any { k } else { operand(code, k, left) }));
        }
        instructions.extend([word(0x54, 0, 0, 0x7f), word(0x16, 0, 0, 0)]);
        let bytes: Vec<u8> = (0..200u8).map(|at| seed.get(usize::from(at)).map_or(at, |seed| seed ^ at)).collect();
        let ours = Program::new(&instructions);
        if matches!(ours, Err(Refused::Extension(_))) {
            return;
        }
        let kernel = by_the_kernel(&instructions, &bytes);
        assert_eq!(ours.is_ok(), kernel.is_some(), "{ours:?}: {instructions:?}");
        let Ok(program) = ours else { return };
        // The kernel asks for other things than the frame at negative offsets, which indexed loads may have.
        let beyond = instructions.iter().any(|i| i.code & 0xe7 == 0x40);
        if !beyond {
            assert_eq!((run(&program, &bytes) as usize).min(bytes.len()), kernel.unwrap(), "{instructions:?}");
        }
    });
}
