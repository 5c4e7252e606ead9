//! Rewrites the system calls of a program that is being loaded, so that they reach the library without a signal. Only
//! sequences that can be nothing else are changed, at a time when nobody executes them; every other system call is
//! caught by the kernel (Syscall User Dispatch), only slower.

use super::{entry, memory};

/// `syscall; cmp $-4096,%rax`, `syscall; cmp $-4095,%rax`: glibc, Go.
const COMPARED: [[u8; 8]; 2] =
    [[0x0f, 0x05, 0x48, 0x3d, 0x00, 0xf0, 0xff, 0xff], [0x0f, 0x05, 0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff]];
/// `mov %r11,8(%rsp); syscall; ret`: musl's cancellation point, through which all its blocking calls go.
const MUSL: [u8; 8] = [0x4c, 0x89, 0x5c, 0x24, 0x08, 0x0f, 0x05, 0xc3];
/// Bytes of a piece of code beside the program.
const STUB: usize = 32;
const PAGE: u64 = 4096;
/// How far a jump reaches, with a margin for the program's own size.
const REACH: u64 = 1 << 30;

/// A sequence to be rewritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Site {
    /// The call is first, and the comparison moves to the stub.
    Compared(usize),
    /// The move is first and goes to the stub.
    Musl(usize),
}

/// The sites in a piece of code. One that a jump in the code may reach in its middle is left out.
fn find(code: &[u8]) -> Vec<Site> {
    let mut sites = Vec::new();
    for (at, window) in code.windows(8).enumerate() {
        let musl = window == MUSL;
        // Most bytes are none of these.
        if musl || (window[0] == 0x0f && COMPARED.iter().any(|sequence| window == sequence)) {
            sites.push(if musl { Site::Musl(at) } else { Site::Compared(at) });
        }
    }
    if sites.is_empty() {
        return sites;
    }
    let inner: std::collections::HashSet<usize> = sites
        .iter()
        .map(|site| match *site {
            // The middles that are instructions.
            Site::Compared(at) => at + 2,
            Site::Musl(at) => at + 5,
        })
        .collect();
    let mut reached = std::collections::HashSet::new();
    for at in 0..code.len() {
        // Whatever could be a jump, whether or not an instruction begins there.
        let short = code.get(at + 1).map(|byte| (at + 2).wrapping_add_signed(isize::from(*byte as i8)));
        let near = code.get(at + 1..at + 5).and_then(|bytes| bytes.try_into().ok()).map(i32::from_le_bytes);
        let near = near.map(|distance| (at + 5).wrapping_add_signed(distance as isize));
        let target = match code[at] {
            0x70..=0x7f | 0xe0..=0xe3 | 0xeb => short,
            // The last byte of `jcc near` stands before the distance as `jmp`'s does.
            0x80..=0x8f | 0xe8 | 0xe9 => near,
            _ => continue,
        };
        reached.extend(target.filter(|target| inner.contains(target)));
    }
    sites.retain(|site| match site {
        Site::Compared(at) => !reached.contains(&(at + 2)),
        Site::Musl(at) => !reached.contains(&(at + 5)),
    });
    sites
}

/// Rewrites what can be in the executable segment at `address`, which then has `protection` again. False: it has not, because the
/// system does not let changed code be executed, and must be mapped anew.
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
        // SAFETY: memory that was mapped here for the program, which does not run yet.
        unsafe { libc::mprotect(begin as *mut _, bytes as usize, protection) == 0 }
    };
    let places = sites.iter().enumerate().map(|(number, site)| (site, stubs + ((number + 1) * STUB) as u64));
    // The first words say where the entry is.
    // SAFETY: the stubs' memory is new and has room for all.
    unsafe {
        (stubs as *mut u64).write(&raw const entry::towpath_entry as u64);
        for (site, stub) in places.clone() {
            let code = build(*site, address, stub, stubs).1;
            core::ptr::copy_nonoverlapping(code.as_ptr(), stub as *mut u8, code.len());
        }
    }
    let (begin, end) = (address & !(PAGE - 1), (address + length as u64).next_multiple_of(PAGE));
    if !protect(stubs, bytes, libc::PROT_READ | libc::PROT_EXEC)
        || !protect(begin, end - begin, libc::PROT_READ | libc::PROT_WRITE)
    {
        return protect(begin, end - begin, protection);
    }
    for (site, stub) in places {
        let (offset, length) = match *site {
            Site::Compared(offset) => (offset, 8),
            Site::Musl(offset) => (offset, 7),
        };
        let at = address + offset as u64;
        let mut jump = [0xe9, 0, 0, 0, 0, 0x0f, 0x0b, 0xcc];
        jump[1..5].copy_from_slice(&distance(at + 5, stub));
        // SAFETY: the site lies in the segment, which is writable now.
        unsafe { core::ptr::copy_nonoverlapping(jump.as_ptr(), at as *mut u8, length) };
    }
    protect(begin, end - begin, protection)
}

fn distance(from: u64, to: u64) -> [u8; 4] {
    (to.wrapping_sub(from) as i64 as i32).to_le_bytes()
}

/// The address of a site, and the code of its stub.
fn build(site: Site, base: u64, stub: u64, pointer: u64) -> (u64, Vec<u8>) {
    let mut code = Vec::with_capacity(STUB);
    // lea back(%rip),%rcx; jmp *pointer(%rip)
    let call = |code: &mut Vec<u8>, back: u64| {
        code.extend([0x48, 0x8d, 0x0d]);
        let next = stub + code.len() as u64 + 4;
        code.extend(distance(next, back));
        code.extend([0xff, 0x25]);
        let next = stub + code.len() as u64 + 4;
        code.extend(distance(next, pointer));
    };
    match site {
        Site::Compared(offset) => {
            let at = base + offset as u64;
            call(&mut code, stub + 13);
            // SAFETY: the site's eight bytes, not yet rewritten.
            code.extend(unsafe { core::slice::from_raw_parts((at + 2) as *const u8, 6) });
            code.push(0xe9);
            code.extend(distance(stub + code.len() as u64 + 4, at + 8));
            (at, code)
        }
        Site::Musl(offset) => {
            let at = base + offset as u64;
            code.extend(&MUSL[..5]);
            call(&mut code, at + 7);
            (at, code)
        }
    }
}

/// Memory that jumps from the segment reach.
fn near(address: u64, length: u64, bytes: u64) -> Option<u64> {
    const STEP: u64 = 1 << 20;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let above = (0..REACH / STEP).map(|step| (address + length).next_multiple_of(PAGE) + step * STEP);
    let below = (1..REACH / STEP).filter_map(|step| (address & !(PAGE - 1)).checked_sub(step * STEP));
    // A kernel that does not know the flag takes the address as a hint; the answer is looked at anyway.
    let reached = |at: &u64| at.abs_diff(address) + length < (1 << 31) - PAGE;
    above
        .chain(below)
        .filter(|at| *at >= STEP)
        .find_map(|at| memory::map(at, bytes, protection, libc::MAP_FIXED_NOREPLACE).filter(reached))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn code(parts: &[&[u8]]) -> Vec<u8> {
        parts.concat()
    }

    #[test]
    fn only_whole_sequences_are_found() {
        let all = code(&[&[0x90], &COMPARED[0], &[0x77, 0x10], &COMPARED[1], &MUSL]);
        assert_eq!(find(&all), [Site::Compared(1), Site::Compared(11), Site::Musl(19)]);
        assert_eq!(find(&[0x0f, 0x05, 0x48, 0x3d, 0x02, 0xf0, 0xff, 0xff]), []);
        assert_eq!(find(&COMPARED[0][..7]), []);
        assert_eq!(find(&[]), []);
    }

    #[test]
    fn a_sequence_with_a_jump_into_it_is_left_alone() {
        // `jmp` to the comparison: short, near, conditional.
        assert_eq!(find(&code(&[&[0xeb, 0x02], &COMPARED[0]])), []);
        assert_eq!(find(&code(&[&[0xe9, 2, 0, 0, 0], &COMPARED[0]])), []);
        assert_eq!(find(&code(&[&COMPARED[0], &[0x0f, 0x84, 0xf4, 0xff, 0xff, 0xff]])), []);
        assert_eq!(find(&code(&[&[0xeb, 0x00], &COMPARED[0]])), [Site::Compared(2)]);
    }

    #[test]
    fn a_stub_goes_back_behind_the_sequence() {
        let (at, code) = build(Site::Musl(16), 0x1000, 0x2020, 0x2000);
        assert_eq!(at, 0x1010);
        assert_eq!(code[..5], MUSL[..5]);
        let back = i32::from_le_bytes(code[8..12].try_into().unwrap());
        assert_eq!(0x2020 + 12 + i64::from(back), 0x1017, "the return");
        let pointer = i32::from_le_bytes(code[14..18].try_into().unwrap());
        assert_eq!(0x2020 + 18 + i64::from(pointer), 0x2000);
        assert!(code.len() <= STUB);
    }
}
