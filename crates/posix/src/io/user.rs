//! The memory that a program names in its calls. Copying gives EFAULT where that memory cannot be read or written, as
//! in the kernel. After a fault inside the copying routine, `fault` continues at the routine's exit.

use core::mem::MaybeUninit;
use towpath_client::sys::Sys;

/// The distance of the bytes that are read to find whether memory is there. Every page has one.
const PAGE: usize = 4096;

#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".text",
    ".p2align 4",
    ".hidden towpath_user_copy",
    ".hidden towpath_user_copy_long",
    ".hidden towpath_user_copy_end",
    ".hidden towpath_user_copy_fault",
    ".hidden towpath_user_copy_long_fault",
    ".globl towpath_user_copy",
    ".globl towpath_user_copy_long",
    ".globl towpath_user_copy_end",
    ".globl towpath_user_copy_fault",
    ".globl towpath_user_copy_long_fault",
    "towpath_user_copy:",
    // Preserves all registers but rax, rcx and xmm0 to xmm3, so that callers need not save theirs.
    "cmp rdx, 16",
    "jb 3f",
    "cmp rdx, 64",
    "ja 5f",
    "cmp rdx, 32",
    "ja 6f",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + rdx - 16]",
    "movups [rdi], xmm0",
    "movups [rdi + rdx - 16], xmm1",
    "xor eax, eax",
    "ret",
    "6:",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups xmm2, [rsi + rdx - 32]",
    "movups xmm3, [rsi + rdx - 16]",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm1",
    "movups [rdi + rdx - 32], xmm2",
    "movups [rdi + rdx - 16], xmm3",
    "xor eax, eax",
    "ret",
    "5:",
    "cmp rdx, 256",
    "ja 4f",
    "lea rcx, [rdx - 16]",
    "xor eax, eax",
    "2:",
    "movups xmm0, [rsi + rax]",
    "movups [rdi + rax], xmm0",
    "add rax, 16",
    "cmp rax, rcx",
    "jb 2b",
    "movups xmm0, [rsi + rcx]",
    "movups [rdi + rcx], xmm0",
    "xor eax, eax",
    "ret",
    "3:",
    "cmp rdx, 8",
    "jb 4f",
    "mov rax, [rsi]",
    "mov rcx, [rsi + rdx - 8]",
    "mov [rdi], rax",
    "mov [rdi + rdx - 8], rcx",
    "xor eax, eax",
    "ret",
    "4:",
    "mov rcx, rdx",
    "movq xmm0, rdi",
    "movq xmm1, rsi",
    "towpath_user_copy_long:",
    "rep movsb",
    "towpath_user_copy_end:",
    "movq rdi, xmm0",
    "movq rsi, xmm1",
    "xor eax, eax",
    "ret",
    "towpath_user_copy_long_fault:",
    "movq rdi, xmm0",
    "movq rsi, xmm1",
    "towpath_user_copy_fault:",
    "mov eax, 1",
    "ret",
);

#[cfg(target_arch = "x86_64")]
unsafe extern "C" {
    // To: rdi, from: rsi, count: rdx. Returns 0 in eax, or 1 after a fault. Some bytes may have been copied then.
    fn towpath_user_copy();
    fn towpath_user_copy_long();
    fn towpath_user_copy_end();
    fn towpath_user_copy_fault();
    fn towpath_user_copy_long_fault();
}

/// The address at which to continue after a fault of the instruction at this one. `None` = the fault is not of a copy.
#[cfg(target_arch = "x86_64")]
pub fn way_out(instruction: usize) -> Option<usize> {
    let [begin, long, end] = [towpath_user_copy, towpath_user_copy_long, towpath_user_copy_end]
        .map(|label: unsafe extern "C" fn()| label as *const () as usize);
    match instruction {
        _ if (begin..long).contains(&instruction) => Some(towpath_user_copy_fault as *const () as usize),
        _ if (long..end).contains(&instruction) => Some(towpath_user_copy_long_fault as *const () as usize),
        _ => None,
    }
}

/// Copies `count` bytes, of which one side is the program's. EFAULT: some may have been copied.
///
/// # Safety
/// The library's side must have `count` bytes. The program's side may be any address, but no memory that Rust has
/// references to.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub unsafe fn copy(to: *mut u8, from: *const u8, count: usize) -> Sys<()> {
    let failed: u32;
    // SAFETY: the caller vouches for the library's side, and a fault on the program's side ends the copy. The routine
    // changes only the registers named here.
    unsafe {
        core::arch::asm!(
            "call {routine}",
            routine = sym towpath_user_copy,
            in("rdi") to,
            in("rsi") from,
            in("rdx") count,
            out("eax") failed,
            out("rcx") _,
            out("xmm0") _,
            out("xmm1") _,
            out("xmm2") _,
            out("xmm3") _,
        );
    }
    if failed == 0 { Ok(()) } else { Err(libc::EFAULT) }
}

/// Copies `count` bytes, of which one side is the program's. On this processor only null gives EFAULT.
///
/// # Safety
/// Both sides must have `count` bytes or be null.
#[cfg(not(target_arch = "x86_64"))]
pub unsafe fn copy(to: *mut u8, from: *const u8, count: usize) -> Sys<()> {
    if count != 0 && (to.is_null() || from.is_null()) {
        return Err(libc::EFAULT);
    }
    // SAFETY: the caller vouches for `count` bytes on both sides, and neither is null.
    unsafe { towpath_ring::shared_bytes::copy(from, to, count) };
    Ok(())
}

/// Reads a plain C value.
///
/// # Safety
/// `T` must be valid with any bytes. `from` may be any address, but no memory that Rust has references to.
#[inline]
pub unsafe fn read<T: Copy>(from: *const T) -> Sys<T> {
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: `value` has room for a `T`. After the copy all its bytes are set, and any bytes are a `T`.
    unsafe {
        copy(value.as_mut_ptr().cast(), from.cast(), size_of::<T>())?;
        Ok(value.assume_init())
    }
}

/// Writes a plain C value.
///
/// # Safety
/// `to` may be any address, but no memory that Rust has references to.
#[inline]
pub unsafe fn write<T: Copy>(to: *mut T, value: T) -> Sys<()> {
    // SAFETY: `value` has the bytes of a `T`, and the caller vouches for `to`.
    unsafe { copy(to.cast(), (&raw const value).cast(), size_of::<T>()) }
}

/// Can all of an array be read? Reads a byte of each page.
///
/// # Safety
/// `from` may be any address, but no memory that Rust has references to.
pub unsafe fn is_there<T>(from: *const T, count: usize) -> Sys<()> {
    let bytes = count.checked_mul(size_of::<T>()).ok_or(libc::EFAULT)?;
    let Some(last) = bytes.checked_sub(1) else { return Ok(()) };
    let mut at = 0;
    loop {
        // SAFETY: any byte is a `u8`, and the caller vouches that Rust has no references to the memory.
        unsafe { read(from.cast::<u8>().wrapping_add(at)) }?;
        if at == last {
            return Ok(());
        }
        at = (at + PAGE).min(last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_every_length_and_no_more() {
        let from: Vec<u8> = (0..600).map(|i| i as u8).collect();
        for count in (0..300).chain([599, 600]) {
            let mut to = vec![0xa5u8; 600];
            // SAFETY: both sides have 600 bytes.
            assert_eq!(unsafe { copy(to.as_mut_ptr(), from.as_ptr(), count) }, Ok(()));
            assert_eq!(to[..count], from[..count]);
            assert!(to[count..].iter().all(|byte| *byte == 0xa5));
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_page_that_is_not_there_is_efault() {
        crate::io::fault::install();
        // SAFETY: the mapping is fresh, so nothing refers to the page that is made unreadable.
        let page = unsafe {
            let pages = libc::mmap(
                core::ptr::null_mut(),
                2 * PAGE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_eq!(libc::mprotect(pages.add(PAGE), PAGE, libc::PROT_NONE), 0);
            pages.cast::<u8>()
        };
        let mut ours = [0u8; PAGE];
        for count in [8, 9, 300] {
            // SAFETY: `ours` has the bytes, and the other side may be any address, which is what is tested.
            unsafe {
                let near_the_end = page.add(PAGE - count);
                assert_eq!(copy(ours.as_mut_ptr(), near_the_end, count), Ok(()));
                assert_eq!(copy(ours.as_mut_ptr(), near_the_end, count + 1), Err(libc::EFAULT));
                assert_eq!(copy(near_the_end, ours.as_ptr(), count + 1), Err(libc::EFAULT));
                assert_eq!(read(core::ptr::null::<u64>()), Err(libc::EFAULT));
                assert_eq!(is_there(page, PAGE), Ok(()));
                assert_eq!(is_there(page, PAGE + 1), Err(libc::EFAULT));
            }
        }
    }
}
