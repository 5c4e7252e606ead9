//! Finds programs that make system calls of their own, past libc's functions. A preloaded library would see their
//! sockets, but not their waits.
//!
//! The text is searched for `syscall` instructions whose number is that of a call on sockets or of a wait. A compiler
//! puts the number into EAX shortly before. So the instructions between the two are decoded, and bytes that only look
//! like a call are passed over. Nothing is kept between two programs.

use crate::elf_file::ElfFile;
use crate::needed::{Dynamic, headers};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// `p_type` of segments that are loaded, and the flag of those that are executed.
const PT_LOAD: u32 = 1;
const PF_X: u32 = 1;
/// Bytes of text that are read at once.
const CHUNK: usize = 256 * 1024;
/// The bytes before a call in which its number is looked for.
const BEFORE: usize = 64;
/// `syscall`.
const CALL: [u8; 2] = [0x0f, 0x05];
/// The most libraries of a program that are searched.
const LIBRARIES_MAX: usize = 64;
/// Libraries whose calls are hooked.
const KNOWN: [&[u8]; 5] = [b"libc.so", b"ld-linux", b"libpthread.so", b"liburing.so", b"libtowpath.so"];

/// Calls that make sockets, act on sockets only, or wait for them. `read` and `write` are left out: what uses them for
/// files alone (allocators, crash handlers, sanitizers) is common.
const NUMBERS: &[i64] = &[
    libc::SYS_socket,
    libc::SYS_connect,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_shutdown,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_setsockopt,
    libc::SYS_getsockopt,
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_sendmmsg,
    libc::SYS_recvmmsg,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    libc::SYS_ppoll,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_select,
    libc::SYS_pselect6,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_create,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
];

/// True if the program, or a library that comes with it, makes such calls itself.
pub fn are_made_by(file: &Path, source: &ElfFile, dynamic: &Dynamic) -> bool {
    let mut seen: Vec<PathBuf> = Vec::new();
    let mut waiting = bundled(file, dynamic);
    if in_text(source) {
        return true;
    }
    while let Some(library) = waiting.pop().filter(|_| seen.len() < LIBRARIES_MAX) {
        if seen.contains(&library) {
            continue;
        }
        let Ok(source) = ElfFile::open(&library) else { continue };
        if in_text(&source) {
            return true;
        }
        if let Some(dynamic) = Dynamic::of(&source) {
            waiting.extend(bundled(&library, &dynamic));
        }
        seen.push(library);
    }
    false
}

/// True if this library, which the program has loaded at run time, makes such calls itself.
pub fn are_made_by_library(library: &Path) -> bool {
    let name = library.file_name().unwrap_or_default().as_bytes();
    let is_known = KNOWN.iter().any(|known| name.starts_with(known));
    cfg!(target_arch = "x86_64") && !is_known && ElfFile::open(library).is_ok_and(|source| in_text(&source))
}

/// The libraries that come with a program: those in the directories that it names itself.
fn bundled(file: &Path, dynamic: &Dynamic) -> Vec<PathBuf> {
    let Some(path) = dynamic.search_path() else { return Vec::new() };
    let resolved = file.canonicalize().unwrap_or_else(|_| file.to_owned());
    let origin = resolved.parent().unwrap_or(Path::new("/")).as_os_str().as_bytes();
    let directory = |entry: &[u8]| {
        let rest = entry.strip_prefix(b"$ORIGIN").or_else(|| entry.strip_prefix(b"${ORIGIN}"));
        PathBuf::from(OsStr::from_bytes(&rest.map_or_else(|| entry.to_vec(), |rest| [origin, rest].concat())))
    };
    let directories: Vec<_> =
        path.split(|byte| *byte == b':').filter(|entry| !entry.is_empty()).map(directory).collect();
    let names = dynamic.libraries().filter(|name| !KNOWN.iter().any(|known| name.starts_with(known)));
    let first =
        |name: &[u8]| directories.iter().map(|dir| dir.join(OsStr::from_bytes(name))).find(|file| file.exists());
    names.filter_map(first).collect()
}

fn in_text(source: &ElfFile) -> bool {
    let code = headers(source).into_iter().flatten().filter(|part| part.kind == PT_LOAD && part.flags & PF_X != 0);
    code.into_iter().any(|part| in_segment(source, part.offset, part.bytes))
}

fn in_segment(source: &ElfFile, offset: u64, bytes: u64) -> bool {
    let mut buffer = vec![0; BEFORE + CHUNK];
    let (mut kept, mut read) = (0, 0);
    while read < bytes {
        let wanted = CHUNK.min((bytes - read) as usize);
        let count = source.read_into(offset.saturating_add(read), &mut buffer[kept..kept + wanted]);
        if count == 0 {
            return false;
        }
        let end = kept + count;
        if in_code(&buffer[..end]) {
            return true;
        }
        // A call may begin in this piece and end in the next.
        let from = end.saturating_sub(BEFORE);
        buffer.copy_within(from..end, 0);
        (kept, read) = (end - from, read + count as u64);
    }
    false
}

fn in_code(code: &[u8]) -> bool {
    let mut from = 0;
    while let Some(at) = next_call(code, from) {
        let start = at.saturating_sub(BEFORE - CALL.len());
        if (start..at).any(|begin| leads_to(&code[begin..at], begin.checked_sub(1).map(|before| code[before]))) {
            return true;
        }
        from = at + 1;
    }
    false
}

/// The position of the next two bytes of a `syscall`. Sixteen positions are compared at once: almost all of the time
/// goes here.
#[cfg(target_arch = "x86_64")]
pub(crate) fn next_call(code: &[u8], from: usize) -> Option<usize> {
    use core::arch::x86_64::{_mm_and_si128, _mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_set1_epi8};
    let mut at = from;
    while at + 17 <= code.len() {
        // SAFETY: SSE2 is part of x86-64. Both loads end inside the slice, as the loop's condition says.
        let found = unsafe {
            let here = _mm_loadu_si128(code.as_ptr().add(at).cast());
            let next = _mm_loadu_si128(code.as_ptr().add(at + 1).cast());
            let (first, second) = (_mm_set1_epi8(CALL[0] as i8), _mm_set1_epi8(CALL[1] as i8));
            _mm_movemask_epi8(_mm_and_si128(_mm_cmpeq_epi8(here, first), _mm_cmpeq_epi8(next, second)))
        };
        if found != 0 {
            return Some(at + found.trailing_zeros() as usize);
        }
        at += 16;
    }
    code.get(at..)?.windows(2).position(|pair| pair == CALL).map(|more| at + more)
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn next_call(code: &[u8], from: usize) -> Option<usize> {
    code.get(from..)?.windows(2).position(|pair| pair == CALL).map(|more| from + more)
}

/// True if this code puts the number of such a call into EAX and then runs to its end, where the call is.
fn leads_to(code: &[u8], before: Option<u8>) -> bool {
    // A prefix makes the first byte another instruction's.
    if before.is_some_and(|byte| byte & 0xf0 == 0x40) {
        return false;
    }
    // The bytes of the first instruction, and the instructions that must follow. If the number may be any, the registers
    // of the arguments must be set too.
    let (mut at, mut missing): (usize, &[[u8; 3]]) = match *code {
        [0xb8, a, b, c, d, ..] if NUMBERS.contains(&u32::from_le_bytes([a, b, c, d]).into()) => (5, &[]),
        // From the function's own argument: `mov %rdi,%rax` and `mov %rsi,%rdi`.
        [0x48, 0x89, 0xf8, ..] => (3, &[[0x48, 0x89, 0xf7]]),
        // From a variable, not optimised: `mov x(%rbp),%rax`, and the same with RDI and RSI.
        [0x48, 0x8b, 0x45, ..] => (4, &[[0x48, 0x8b, 0x7d], [0x48, 0x8b, 0x75]]),
        [0x48, 0x8b, 0x85, ..] => (7, &[[0x48, 0x8b, 0xbd], [0x48, 0x8b, 0xb5]]),
        _ => return false,
    };
    while at < code.len() {
        let rest = &code[at..];
        if let [next, later @ ..] = missing
            && rest.starts_with(next)
        {
            missing = later;
        }
        match instruction(rest) {
            Some(Instruction { bytes, sets_eax: false }) => at += bytes,
            _ => return false,
        }
    }
    at == code.len() && missing.is_empty()
}

/// An instruction's length, and whether EAX has another value behind it.
#[derive(Debug, PartialEq, Eq)]
struct Instruction {
    bytes: usize,
    sets_eax: bool,
}

/// The instruction at the beginning. `None`: it is none that compilers put between a number and its call, or it does
/// not go on with the next one.
fn instruction(code: &[u8]) -> Option<Instruction> {
    let mut at = 0;
    let has_16_bits = code.first() == Some(&0x66);
    if matches!(code.first(), Some(0x66 | 0xf2 | 0xf3)) {
        at += 1;
    }
    let rex = *code.get(at)?;
    let rex = if rex & 0xf0 == 0x40 {
        at += 1;
        rex
    } else {
        0
    };
    let (is_wide, high_reg, high_rm) = (rex & 8 != 0, rex & 4 != 0, rex & 1 != 0);
    let opcode = *code.get(at)?;
    at += 1;
    let immediate = if has_16_bits { 2 } else { 4 };
    let plain = |bytes: usize| Some(Instruction { bytes, sets_eax: false });
    // An operand in memory or a register follows, then so many bytes.
    let operand = |at: usize, behind: usize, to_reg: bool, to_rm: bool| {
        let modrm = *code.get(at)?;
        let sets_eax = to_reg && modrm & 0x38 == 0 && !high_reg || to_rm && modrm & 0xc7 == 0xc0 && !high_rm;
        Some(Instruction { bytes: at + addressing(code.get(at..)?)? + behind, sets_eax })
    };
    let field = code.get(at).map_or(0, |modrm| modrm >> 3 & 7);
    match opcode {
        // Arithmetic: to the operand, to the register, with EAX. CMP sets nothing.
        0x00..=0x3f => match opcode & 7 {
            0 | 1 => operand(at, 0, false, opcode < 0x38),
            2 | 3 => operand(at, 0, opcode < 0x38, false),
            4 => Some(Instruction { bytes: at + 1, sets_eax: opcode < 0x38 }),
            5 => Some(Instruction { bytes: at + immediate, sets_eax: opcode < 0x38 }),
            _ if opcode == 0x0f => two_bytes(code, at, high_reg),
            _ => None,
        },
        0x50..=0x57 => plain(at),
        0x58..=0x5f => Some(Instruction { bytes: at, sets_eax: opcode == 0x58 && !high_rm }),
        0x63 | 0x8a | 0x8b | 0x8d => operand(at, 0, true, false),
        0x69 => operand(at, immediate, true, false),
        0x6b => operand(at, 1, true, false),
        0x70..=0x7f => plain(at + 1),
        0x80 | 0x83 => operand(at, 1, false, field != 7),
        0x81 => operand(at, immediate, false, field != 7),
        0x84 | 0x85 => operand(at, 0, false, false),
        0x86 | 0x87 => operand(at, 0, true, true),
        0x88 | 0x89 => operand(at, 0, false, true),
        0x90 => plain(at),
        0xa8 => plain(at + 1),
        0xa9 => plain(at + immediate),
        0xb0..=0xb7 => Some(Instruction { bytes: at + 1, sets_eax: opcode == 0xb0 && !high_rm }),
        0xb8..=0xbf => {
            let bytes = if is_wide { 8 } else { immediate };
            Some(Instruction { bytes: at + bytes, sets_eax: opcode == 0xb8 && !high_rm })
        }
        0xc0 | 0xc1 => operand(at, 1, false, true),
        0xc4 | 0xc5 => vector(code, at, opcode),
        0xc6 => operand(at, 1, false, true),
        0xc7 => operand(at, immediate, false, true),
        0xd0..=0xd3 => operand(at, 0, false, true),
        // NOT and NEG; INC, DEC and PUSH.
        0xf7 if matches!(field, 2 | 3) => operand(at, 0, false, true),
        0xff if matches!(field, 0 | 1 | 6) => operand(at, 0, false, field != 6),
        _ => None,
    }
}

/// Instructions that begin with 0F.
fn two_bytes(code: &[u8], at: usize, high_reg: bool) -> Option<Instruction> {
    let opcode = *code.get(at)?;
    let modrm = *code.get(at + 1).unwrap_or(&0);
    let bytes = || Some(at + 1 + addressing(code.get(at + 1..)?)?);
    match opcode {
        // Vector moves and logic, and NOP.
        0x10..=0x17 | 0x1e | 0x1f | 0x28 | 0x29 | 0x2e | 0x2f | 0x54..=0x57 | 0x60..=0x6f | 0x7f | 0xd6 | 0xef => {
            Some(Instruction { bytes: bytes()?, sets_eax: false })
        }
        // MOVD to a register may be to EAX; SETcc may be of AL.
        0x7e | 0x90..=0x9f => Some(Instruction { bytes: bytes()?, sets_eax: modrm & 0xc7 == 0xc0 }),
        0x40..=0x4f | 0xaf | 0xb6 | 0xb7 | 0xbe | 0xbf => {
            Some(Instruction { bytes: bytes()?, sets_eax: modrm & 0x38 == 0 && !high_reg })
        }
        0x80..=0x8f => Some(Instruction { bytes: at + 5, sets_eax: false }),
        _ => None,
    }
}

/// Instructions with a VEX prefix that set no general register and have no immediate.
fn vector(code: &[u8], at: usize, prefix: u8) -> Option<Instruction> {
    let (map, at) = if prefix == 0xc5 { (1, at + 1) } else { (code.get(at)? & 0x1f, at + 2) };
    let opcode = *code.get(at)?;
    if map != 1 || !matches!(opcode, 0x10..=0x17 | 0x28 | 0x29 | 0x54..=0x57 | 0x6e | 0x6f | 0x77 | 0x7f | 0xd6 | 0xef)
    {
        return None;
    }
    let operand = if opcode == 0x77 { 0 } else { addressing(code.get(at + 1..)?)? };
    Some(Instruction { bytes: at + 1 + operand, sets_eax: false })
}

/// Bytes of a ModRM byte with what belongs to it.
fn addressing(code: &[u8]) -> Option<usize> {
    let modrm = *code.first()?;
    let (mode, base) = (modrm >> 6, modrm & 7);
    let (index, base) = if mode != 3 && base == 4 { (1, code.get(1)? & 7) } else { (0, base) };
    Some(
        1 + index
            + match mode {
                0 if base == 5 => 4,
                1 => 1,
                2 => 4,
                _ => 0,
            },
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// `mov $441,%eax`, what a compiler puts behind it, `syscall`.
    fn wait(between: &[u8]) -> Vec<u8> {
        [&[0xc3, 0xb8, 0xb9, 0x01, 0, 0], between, &CALL, &[0xc3]].concat()
    }

    #[test]
    fn calls_are_found_behind_what_compilers_put_between() {
        assert!(in_code(&wait(&[])));
        // mov %r15,%r8; mov $8,%r9d; lea -0x58(%rbp),%r10; xor %edi,%edi; movaps %xmm0,-0x20(%rsp); je +5
        let between: &[u8] = &[
            0x4d, 0x89, 0xf8, 0x41, 0xb9, 8, 0, 0, 0, 0x4c, 0x8d, 0x55, 0xa8, 0x31, 0xff, 0x0f, 0x29, 0x44, 0x24, 0xe0,
            0x74, 0x05,
        ];
        assert!(in_code(&wait(between)));
        // vmovups %ymm0,(%rsp,%rax,8); movq $0,0x1000(%rdi); mov %fs-free absolute: 0x10(%rip)
        let between: &[u8] = &[
            0xc5, 0xfc, 0x11, 0x04, 0xc4, 0x48, 0xc7, 0x87, 0, 0x10, 0, 0, 0, 0, 0, 0, 0x48, 0x8b, 0x3d, 0x10, 0, 0, 0,
        ];
        assert!(in_code(&wait(between)));
        // The function `syscall` of a libc: mov %rdi,%rax; mov %rsi,%rdi; mov %rdx,%rsi; syscall.
        assert!(in_code(&[0x48, 0x89, 0xf8, 0x48, 0x89, 0xf7, 0x48, 0x89, 0xd6, 0x0f, 0x05]));
        // The same without optimisation: mov -8(%rbp),%rax; mov -0x10(%rbp),%rdi; mov -0x18(%rbp),%rsi; syscall.
        assert!(in_code(&[0x48, 0x8b, 0x45, 0xf8, 0x48, 0x8b, 0x7d, 0xf0, 0x48, 0x8b, 0x75, 0xe8, 0x0f, 0x05]));
    }

    #[test]
    fn what_only_looks_like_a_call_is_none() {
        // The number of `getpid`.
        assert!(!in_code(&[0xb8, 0x27, 0, 0, 0, 0x0f, 0x05]));
        // Another value in EAX: mov $1,%eax; xor %eax,%eax; mov (%rdi),%eax; pop %rax.
        for other in [&[0xb8u8, 1, 0, 0, 0][..], &[0x31, 0xc0], &[0x8b, 0x07], &[0x58]] {
            assert!(!in_code(&wait(other)), "{other:x?}");
        }
        // Inside an instruction: mov $0x050f0000,%ecx. Behind a return, a jump, a call.
        assert!(!in_code(&[0xb8, 0xb9, 1, 0, 0, 0xb9, 0, 0, 0x0f, 0x05]));
        for end in [&[0xc3u8][..], &[0xeb, 0], &[0xe8, 0, 0, 0, 0], &[0xff, 0xd0]] {
            assert!(!in_code(&wait(end)), "{end:x?}");
        }
        // mov $441,%r8d, and a copy of an argument by a program that calls one number only.
        assert!(!in_code(&[0x41, 0xb8, 0xb9, 1, 0, 0, 0x0f, 0x05]));
        assert!(!in_code(&[0x48, 0x89, 0xf8, 0x0f, 0x05]));
        for length in 0..8 {
            assert!(!in_code(&wait(&[])[..length]));
        }
    }

    #[test]
    fn a_call_is_found_wherever_the_pieces_of_the_text_end() {
        let path = std::env::temp_dir().join(format!("towpath-text-{}", std::process::id()));
        let call = wait(&[0x31, 0xff]);
        for at in [0, CHUNK - 20, CHUNK - 9, CHUNK - 3, CHUNK - 1, CHUNK, 2 * CHUNK - 70, 3 * CHUNK - 8] {
            let mut text = vec![0x90; 3 * CHUNK + 5];
            text[at..at + call.len()].copy_from_slice(&call);
            std::fs::write(&path, &text).unwrap();
            assert!(in_segment(&ElfFile::open(&path).unwrap(), 0, text.len() as u64), "{at}");
            text[at + 1] = 0x90;
            std::fs::write(&path, &text).unwrap();
            assert!(!in_segment(&ElfFile::open(&path).unwrap(), 0, u64::MAX), "{at}");
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn no_bytes_make_the_decoder_fail() {
        for first in 0..=u8::MAX {
            for second in 0..=u8::MAX {
                let code = [first, second, 0x84, 0x24, 0xff];
                for length in 0..=code.len() {
                    let _ = instruction(&code[..length]);
                }
            }
        }
    }
}
