//! Rewrites the system calls of a program while it is loaded, so that they reach the library without a signal. Only
//! unmistakable sequences are changed, while nobody executes them. The kernel catches every other call, only slower
//! (Syscall User Dispatch).

use super::{entry, memory};
use crate::raw::raw;
use crate::system_calls::next_call;
use std::collections::HashSet;

/// A sequence of bytes around a call. The bytes before and behind the call move to the stub. `None` matches any byte.
type Known = (&'static [Option<u8>], usize, usize);

/// Each sequence is too long and too special to occur in data. (Programs that generate code have `syscall; ret` in
/// their data.)
const KNOWN: [Known; 5] = [
    // `syscall; cmp $-4096,%rax` and `$-4095`: glibc, Go.
    (&bytes([0x0f, 0x05, 0x48, 0x3d, 0x00, 0xf0, 0xff, 0xff]), 0, 6),
    (&bytes([0x0f, 0x05, 0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff]), 0, 6),
    // `mov $number,%eax; syscall; mov %eax,n(%rsp)`: Go's runtime.
    (
        &[Some(0xb8), None, None, Some(0), Some(0), Some(0x0f), Some(0x05), Some(0x89), Some(0x44), Some(0x24), None],
        5,
        4,
    ),
    // `mov %r11,8(%rsp); syscall; ret`: musl's cancellation point, through which all blocking calls go.
    (&bytes([0x4c, 0x89, 0x5c, 0x24, 0x08, 0x0f, 0x05, 0xc3]), 5, 0),
    // `mov 8(%rsp),%r9; mov %rcx,%rdx; syscall; ret`: musl's, where nothing cancels threads.
    (&bytes([0x4c, 0x8b, 0x4c, 0x24, 0x08, 0x48, 0x89, 0xca, 0x0f, 0x05, 0xc3]), 8, 0),
];
/// Bytes of `syscall`.
const CALL: usize = 2;
/// Bytes of the jump that replaces the first bytes of a sequence.
const JUMP: usize = 5;
/// Bytes of the stub's `lea`, and of its indirect jump.
const LEA: usize = 7;
const INDIRECT: usize = 6;

const fn bytes<const N: usize>(bytes: [u8; N]) -> [Option<u8>; N] {
    let mut some = [None; N];
    let mut at = 0;
    while at < N {
        some[at] = Some(bytes[at]);
        at += 1;
    }
    some
}
/// Bytes of a stub.
const STUB: usize = 32;
const PAGE: u64 = 4096;
/// The reach of a jump, with a margin for the program's own size.
const REACH: u64 = 1 << 30;

/// A sequence that is to be rewritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Site {
    /// Its position.
    at: usize,
    /// Bytes of the instruction before the call, which moves to the stub.
    before: usize,
    /// Bytes of the instruction behind the call, which moves to the stub.
    behind: usize,
}

impl Site {
    /// The sequence around the call at `call`.
    fn around(code: &[u8], call: usize) -> Option<Self> {
        KNOWN.iter().find_map(|(sequence, before, behind)| {
            let at = call.checked_sub(*before)?;
            let bytes = code.get(at..at + sequence.len())?;
            let same = sequence.iter().zip(bytes).all(|(wanted, byte)| wanted.is_none_or(|wanted| wanted == *byte));
            // With a prefix, a move of a number to EAX is another instruction.
            let prefixed = bytes[0] == 0xb8 && at > 0 && code[at - 1] & 0xf0 == 0x40;
            (same && !prefixed).then_some(Self { at, before: *before, behind: *behind })
        })
    }

    /// The bytes of code that change.
    fn length(&self) -> usize {
        self.before + CALL + self.behind
    }

    /// All of it except its first byte.
    fn inner(&self) -> core::ops::Range<usize> {
        self.at + 1..self.at + self.length()
    }
}

/// The insides of all sites. A large program has a million jumps and few sites, so most targets are dismissed by a table
/// that stays in the processor's cache.
struct Insides {
    exact: HashSet<usize>,
    near: [bool; Self::TABLE],
}

impl Insides {
    const TABLE: usize = 1 << 13;

    fn of(sites: &[Site]) -> Self {
        let exact: HashSet<usize> = sites.iter().flat_map(Site::inner).collect();
        let mut near = [false; Self::TABLE];
        for at in &exact {
            near[Self::place(*at)] = true;
        }
        Self { exact, near }
    }

    fn place(at: usize) -> usize {
        (at >> 3) % Self::TABLE
    }

    fn has(&self, at: usize) -> bool {
        self.near[Self::place(at)] && self.exact.contains(&at)
    }
}

/// The sites in a piece of code. A site that a jump may reach in its middle is left out.
fn find(code: &[u8]) -> Vec<Site> {
    let calls = core::iter::successors(next_call(code, 0), |call| next_call(code, call + 1));
    let mut sites: Vec<Site> = calls.filter_map(|call| Site::around(code, call)).collect();
    let insides = Insides::of(&sites);
    let mut reached = HashSet::new();
    // Every byte that could be a jump counts, even if no instruction begins there. A short one is near its target.
    for site in &sites {
        let around = site.at.saturating_sub(0x100)..(site.at + 0x100).min(code.len());
        reached.extend(around.filter_map(|at| short(code, at)).filter(|target| insides.has(*target)));
    }
    if !sites.is_empty() {
        for at in 0..code.len() {
            let last = match code[at] {
                0xe8 | 0xe9 => at,
                // The last opcode byte of `jcc near` is followed by the distance, as that of `jmp` is.
                0x0f if code.get(at + 1).is_some_and(|byte| byte & 0xf0 == 0x80) => at + 1,
                _ => continue,
            };
            let Some(distance) = code.get(last + 1..last + 5).and_then(|bytes| bytes.try_into().ok()) else { continue };
            let target = (last + 5).wrapping_add_signed(i32::from_le_bytes(distance) as isize);
            if insides.has(target) {
                reached.insert(target);
            }
        }
    }
    sites.retain(|site| !site.inner().any(|at| reached.contains(&at)));
    sites
}

/// The target of the short jump whose opcode is the byte at `at`.
fn short(code: &[u8], at: usize) -> Option<usize> {
    let jump = matches!(code[at], 0x70..=0x7f | 0xe0..=0xe3 | 0xeb);
    code.get(at + 1).filter(|_| jump).map(|byte| (at + 2).wrapping_add_signed(isize::from(*byte as i8)))
}

/// Segments up to this size are looked at. A C library has 2 MiB; to read one of hundreds would cost a program's start more than
/// it gains.
const LARGEST: u64 = 8 << 20;

/// `mmap` of a program. Its dynamic linker maps the segments of libraries, first of all libc's, by which the program makes its
/// system calls. With `may_rewrite` they are rewritten, which allocates.
///
/// # Safety
/// The contract of the system call.
pub unsafe fn map(arguments: [u64; 6], may_rewrite: bool) -> i64 {
    let [_, length, protection, flags, file, offset] = arguments;
    // SAFETY: the caller keeps the contract.
    let at = unsafe { raw(libc::SYS_mmap, arguments) };
    let (protection, flags) = (protection as i32, flags as i32);
    let is_code = protection == libc::PROT_READ | libc::PROT_EXEC
        && flags & (libc::MAP_TYPE | libc::MAP_ANONYMOUS) == libc::MAP_PRIVATE;
    if at <= 0 || !is_code || !may_rewrite {
        return at;
    }
    // Pages behind the file's end cannot be read.
    let bytes = length.min(file_bytes(file as i32).saturating_sub(offset));
    if bytes <= LARGEST && !rewrite(at as u64, bytes as usize, protection) {
        let again = [
            at as u64,
            length,
            protection as u64,
            (flags & !libc::MAP_FIXED_NOREPLACE | libc::MAP_FIXED) as u64,
            file,
            offset,
        ];
        // SAFETY: the mapping has just been made, and nobody knows its address yet.
        return unsafe { raw(libc::SYS_mmap, again) };
    }
    at
}

/// Bytes of this file; 0 if nobody knows.
fn file_bytes(file: i32) -> u64 {
    // SAFETY: the structure consists of integers, for which zero is a valid value.
    let mut about: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: the kernel writes no more than the structure.
    let known = unsafe { raw(libc::SYS_fstat, [file as u64, &raw mut about as u64, 0, 0, 0, 0]) } == 0;
    if known { about.st_size.try_into().unwrap_or(0) } else { 0 }
}

/// Rewrites the calls in the executable segment at `address`, and restores `protection`. False: the system refuses to
/// execute changed code, so the segment must be mapped anew.
#[must_use]
pub fn rewrite(address: u64, length: usize, protection: i32) -> bool {
    if protection & libc::PROT_READ == 0 {
        return true;
    }
    // SAFETY: the segment has just been mapped, and nobody else uses it yet.
    let code = unsafe { core::slice::from_raw_parts(address as *const u8, length) };
    let sites = find(code);
    let bytes = ((sites.len() + 1) * STUB).next_multiple_of(PAGE as usize) as u64;
    let Some(stubs) = (!sites.is_empty()).then(|| near(address, length as u64, bytes)).flatten() else { return true };
    let protect = |begin: u64, bytes: u64, protection: i32| {
        // SAFETY: the memory was mapped here for the program, which does not run yet.
        unsafe { libc::mprotect(begin as *mut _, bytes as usize, protection) == 0 }
    };
    let places = sites.iter().enumerate().map(|(number, site)| (site, stubs + ((number + 1) * STUB) as u64));
    // The first words are the address of the entry.
    // SAFETY: the stubs' memory is new and has room for all.
    unsafe {
        (stubs as *mut u64).write(&raw const entry::towpath_entry as u64);
        for (site, stub) in places.clone() {
            let sequence = &code[site.at..site.at + site.length()];
            let code = build(*site, sequence, address + site.at as u64, stub, stubs);
            core::ptr::copy_nonoverlapping(code.as_ptr(), stub as *mut u8, code.len());
        }
    }
    let (begin, end) = (address & !(PAGE - 1), (address + length as u64).next_multiple_of(PAGE));
    if !protect(stubs, bytes, libc::PROT_READ | libc::PROT_EXEC)
        || !protect(begin, end - begin, libc::PROT_READ | libc::PROT_WRITE)
    {
        // SAFETY: the stubs are new, and nobody knows them.
        unsafe { libc::munmap(stubs as *mut _, bytes as usize) };
        return protect(begin, end - begin, protection);
    }
    for (site, stub) in places {
        let at = address + site.at as u64;
        // The rest of the sequence must never be executed.
        let mut jump = vec![0xcc; site.length()];
        jump[0] = 0xe9;
        jump[1..JUMP].copy_from_slice(&distance(at + JUMP as u64, stub));
        // SAFETY: the site lies in the segment, which is writable now.
        unsafe { core::ptr::copy_nonoverlapping(jump.as_ptr(), at as *mut u8, jump.len()) };
    }
    protect(begin, end - begin, protection)
}

fn distance(from: u64, to: u64) -> [u8; 4] {
    (to.wrapping_sub(from) as i64 as i32).to_le_bytes()
}

/// The code of the stub for a site at `at` with these bytes.
fn build(site: Site, sequence: &[u8], at: u64, stub: u64, pointer: u64) -> Vec<u8> {
    let mut code = sequence[..site.before].to_vec();
    let end = at + site.length() as u64;
    // The entry returns to the rest of the stub, or directly to the program.
    let rest = stub + (site.before + LEA + INDIRECT) as u64;
    let back = if site.behind > 0 { rest } else { end };
    // lea back(%rip),%rcx; jmp *pointer(%rip)
    code.extend([0x48, 0x8d, 0x0d]);
    code.extend(distance(stub + code.len() as u64 + 4, back));
    code.extend([0xff, 0x25]);
    code.extend(distance(stub + code.len() as u64 + 4, pointer));
    if site.behind > 0 {
        code.extend(&sequence[site.before + CALL..]);
        code.push(0xe9);
        code.extend(distance(stub + code.len() as u64 + 4, end));
    }
    code
}

/// Memory within the reach of jumps from the segment.
fn near(address: u64, length: u64, bytes: u64) -> Option<u64> {
    const STEP: u64 = 1 << 20;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let above = (0..REACH / STEP).map(|step| (address + length).next_multiple_of(PAGE) + step * STEP);
    let below = (1..REACH / STEP).filter_map(|step| (address & !(PAGE - 1)).checked_sub(step * STEP));
    // A kernel that does not know the flag takes the address as a hint, so the answer is checked.
    let reached = |at: &u64| at.abs_diff(address) + length < (1 << 31) - PAGE;
    // Above a library are those that were mapped before it, and the program's heap.
    below
        .chain(above)
        .filter(|at| *at >= STEP)
        .find_map(|at| memory::map(at, bytes, protection, libc::MAP_FIXED_NOREPLACE).filter(reached))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use towpath_rng::Rng;

    fn code(parts: &[&[u8]]) -> Vec<u8> {
        parts.concat()
    }

    const COMPARED: [u8; 8] = [0x0f, 0x05, 0x48, 0x3d, 0x00, 0xf0, 0xff, 0xff];
    const GO: [u8; 11] = [0xb8, 0xca, 0, 0, 0, 0x0f, 0x05, 0x89, 0x44, 0x24, 0x28];
    const MUSL: [u8; 8] = [0x4c, 0x89, 0x5c, 0x24, 0x08, 0x0f, 0x05, 0xc3];

    fn site(at: usize, before: usize, behind: usize) -> Site {
        Site { at, before, behind }
    }

    #[test]
    fn only_whole_sequences_are_found() {
        let all = code(&[&[0x90], &COMPARED, &[0x77, 0x7f], &GO, &MUSL]);
        assert_eq!(find(&all), [site(1, 0, 6), site(11, 5, 4), site(22, 5, 0)]);
        // `mov $0xca,%r8d` before the call.
        assert_eq!(find(&code(&[&[0x41], &GO])), []);
        assert_eq!(find(&[0x48, 0x89, 0xca, 0x0f, 0x05, 0xc3]), [], "as in data of programs that make code");
        assert_eq!(find(&[0x0f, 0x05, 0x48, 0x3d, 0x02, 0xf0, 0xff, 0xff]), []);
        assert_eq!(find(&COMPARED[..7]), []);
        assert_eq!(find(&[]), []);
    }

    #[test]
    fn a_sequence_with_a_jump_into_it_is_left_alone() {
        // `jmp` to the comparison: short, near, conditional.
        assert_eq!(find(&code(&[&[0xeb, 0x02], &COMPARED])), []);
        assert_eq!(find(&code(&[&[0xe9, 2, 0, 0, 0], &COMPARED])), []);
        assert_eq!(find(&code(&[&COMPARED, &[0x0f, 0x84, 0xf4, 0xff, 0xff, 0xff]])), []);
        assert_eq!(find(&code(&[&[0xeb, 0x00], &COMPARED])), [site(2, 0, 6)]);
        // `jmp` to the call behind the move.
        assert_eq!(find(&code(&[&[0xeb, 0x05], &MUSL])), []);
    }

    /// The rule in plain words: a sequence that no byte which could be a jump reaches in its middle.
    fn plain(code: &[u8]) -> Vec<Site> {
        let near = |last: usize| {
            let bytes = code.get(last + 1..last + 5)?.try_into().unwrap();
            Some((last + 5).wrapping_add_signed(i32::from_le_bytes(bytes) as isize))
        };
        let target = |at: usize| match code[at] {
            0x70..=0x7f | 0xe0..=0xe3 | 0xeb => {
                Some((at + 2).wrapping_add_signed(isize::from(*code.get(at + 1)? as i8)))
            }
            0xe8 | 0xe9 => near(at),
            0x80..=0x8f if at > 0 && code[at - 1] == 0x0f => near(at),
            _ => None,
        };
        let targets: Vec<usize> = (0..code.len()).filter_map(target).collect();
        let calls =
            (0..code.len()).filter_map(|at| Site::around(code, at).filter(|_| code[at..].starts_with(&[0x0f, 0x05])));
        calls.filter(|site| !targets.iter().any(|target| site.inner().contains(target))).collect()
    }

    #[test]
    fn what_is_found_among_many_jumps_is_what_the_plain_rule_finds() {
        let mut rng = Rng::new(1);
        let mut next = |below| rng.below(below);
        let (mut kept, mut left) = (0, 0);
        for _ in 0..300 {
            let mut code = Vec::new();
            while code.len() < 2000 {
                match next(12) {
                    0 => code.extend(COMPARED),
                    1 => code.extend(GO),
                    2 => code.extend(MUSL),
                    3 => code.extend([[0xeb, 0x74, 0xe2][next(3) as usize], next(256) as u8]),
                    4 => {
                        code.extend([&[0xe8][..], &[0xe9], &[0x0f, 0x8c], &[0x8c]][next(4) as usize]);
                        code.extend((next(4000) as i32 - 2000).to_le_bytes());
                    }
                    _ => code.extend((0..next(30)).map(|_| 0x90)),
                }
            }
            assert_eq!(find(&code), plain(&code));
            let sites = (0..code.len()).filter(|at| code[*at..].starts_with(&[0x0f, 0x05])).count();
            kept += find(&code).len();
            left += sites - find(&code).len();
        }
        assert!(kept > 1000 && left > 1000, "{kept} {left}");
    }

    #[test]
    fn a_stub_goes_back_behind_the_sequence() {
        let word = |code: &[u8], at: usize| i64::from(i32::from_le_bytes(code[at..at + 4].try_into().unwrap()));
        let code = build(site(16, 5, 0), &MUSL, 0x1010, 0x2020, 0x2000);
        assert_eq!(code[..5], MUSL[..5]);
        assert_eq!(0x2020 + 12 + word(&code, 8), 0x1017, "the return");
        assert_eq!(0x2020 + 18 + word(&code, 14), 0x2000);
        let code = build(site(16, 0, 6), &COMPARED, 0x1010, 0x2020, 0x2000);
        assert_eq!(0x2020 + 7 + word(&code, 3), 0x2020 + 13, "the comparison");
        assert_eq!(code[13..19], COMPARED[2..]);
        assert_eq!(0x2020 + 24 + word(&code, 20), 0x1018);
        assert!(code.len() <= STUB);
    }

    /// A file of a page and a half with a system call at its beginning and another in its last bytes.
    fn library() -> std::fs::File {
        use std::os::fd::FromRawFd;
        // SAFETY: the name is a C string, and the descriptor is new.
        let mut file =
            unsafe { std::fs::File::from_raw_fd(libc::memfd_create(c"library".as_ptr(), libc::MFD_CLOEXEC)) };
        let mut bytes = vec![0x90; 6000];
        bytes[..COMPARED.len()].copy_from_slice(&COMPARED);
        bytes[6000 - COMPARED.len()..].copy_from_slice(&COMPARED);
        std::io::Write::write_all(&mut file, &bytes).unwrap();
        file
    }

    /// The first byte of each call in a library that is mapped like this, three pages long.
    fn mapped(protection: i32, flags: i32) -> [u8; 2] {
        use std::os::fd::AsRawFd;
        let file = library();
        let arguments = [0, 3 * PAGE, protection as u64, flags as u64, file.as_raw_fd() as u64, 0];
        // SAFETY: the mapping is new, and its first two pages can be read.
        unsafe {
            let at = map(arguments, true);
            assert!(at > 0, "{at}");
            let bytes = [0, 6000 - COMPARED.len()].map(|place| *(at as *const u8).add(place));
            libc::munmap(at as *mut _, 3 * PAGE as usize);
            bytes
        }
    }

    #[test]
    fn calls_of_libraries_that_a_program_maps_become_jumps() {
        let code = libc::PROT_READ | libc::PROT_EXEC;
        assert_eq!(mapped(code, libc::MAP_PRIVATE), [0xe9; 2]);
        for (protection, flags) in [
            (libc::PROT_READ, libc::MAP_PRIVATE),
            (code | libc::PROT_WRITE, libc::MAP_PRIVATE),
            (code, libc::MAP_SHARED),
        ] {
            assert_eq!(mapped(protection, flags), [0x0f; 2], "{protection} {flags}");
        }
    }

    #[test]
    fn a_mapping_that_cannot_be_made_is_the_kernels_answer() {
        // SAFETY: nothing is mapped.
        let answer = unsafe {
            map([0, PAGE, (libc::PROT_READ | libc::PROT_EXEC) as u64, libc::MAP_PRIVATE as u64, u64::MAX, 0], true)
        };
        assert_eq!(answer, -i64::from(libc::EBADF));
    }
}
