//! The memory that a program names in its calls. Copying gives EFAULT where that memory cannot be read or written, as
//! in the kernel. After a fault inside the copying routine, `fault` continues at the routine's exit.

use core::mem::MaybeUninit;
use libc::epoll_event;
use towpath_client::sys::Sys;

#[cfg(target_arch = "aarch64")]
mod aarch64;

#[cfg(target_arch = "aarch64")]
pub use aarch64::{copy, way_out};

/// The distance of the bytes that are read to find whether memory is there. Every page has one, whatever the kernel's pages are.
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

/// Instructions that touch the program's memory outside of the routine, and where to continue after a fault of one of them. All
/// are distances from the word itself.
#[cfg(target_arch = "x86_64")]
#[repr(C)]
struct Way {
    begin: i32,
    end: i32,
    exit: i32,
}

#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(".hidden __start_towpath_ways", ".hidden __stop_towpath_ways");

#[cfg(target_arch = "x86_64")]
unsafe extern "C" {
    // The linker makes these symbols of the section's name.
    static __start_towpath_ways: [Way; 0];
    static __stop_towpath_ways: [Way; 0];
}

/// Makes a [`Way`] of the instructions between the labels 2 and 3, which continues at the label operand `fault`.
#[cfg(target_arch = "x86_64")]
macro_rules! guarded {
    ($($instruction:literal),* ; $($operand:tt)*) => {
        core::arch::asm!(
            "2:",
            $($instruction,)*
            "3:",
            ".pushsection towpath_ways, \"aR\", @progbits",
            ".p2align 2",
            ".long 2b - .",
            ".long 3b - .",
            ".long {fault} - .",
            ".popsection",
            $($operand)*
        )
    };
}

/// The address at which to continue after a fault of the instruction at this one. `None` = the fault is not of a copy.
#[cfg(target_arch = "x86_64")]
pub fn way_out(instruction: usize) -> Option<usize> {
    let [begin, long, end] = [towpath_user_copy, towpath_user_copy_long, towpath_user_copy_end]
        .map(|label: unsafe extern "C" fn()| label as *const () as usize);
    match instruction {
        _ if (begin..long).contains(&instruction) => Some(towpath_user_copy_fault as *const () as usize),
        _ if (long..end).contains(&instruction) => Some(towpath_user_copy_long_fault as *const () as usize),
        _ => ways().iter().find_map(|way| {
            let at = |word: &i32| core::ptr::from_ref(word).addr().wrapping_add_signed(*word as isize);
            (at(&way.begin)..at(&way.end)).contains(&instruction).then(|| at(&way.exit))
        }),
    }
}

#[cfg(target_arch = "x86_64")]
fn ways() -> &'static [Way] {
    let (begin, end) = ((&raw const __start_towpath_ways).cast::<Way>(), (&raw const __stop_towpath_ways).addr());
    // SAFETY: the section has nothing but such records, one behind the other, and nobody writes to it.
    unsafe { core::slice::from_raw_parts(begin, (end - begin.addr()) / size_of::<Way>()) }
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

/// [`copy`] for the calls that are made most often: small messages are copied in place.
///
/// # Safety
/// As [`copy`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub unsafe fn copy_inline(to: *mut u8, from: *const u8, count: usize) -> Sys<()> {
    if !(16..=64).contains(&count) {
        // SAFETY: the caller keeps the contract.
        return unsafe { copy(to, from, count) };
    }
    if count > 32 {
        // SAFETY: the caller vouches for the library's side, and a fault on the program's side continues at `fault`. All 16
        // bytes of each move are among the `count`, and all are loaded before any is stored.
        unsafe {
            guarded!(
                "movups {a}, [{from}]",
                "movups {b}, [{from} + 16]",
                "movups {c}, [{from} + {count} - 32]",
                "movups {d}, [{from} + {count} - 16]",
                "movups [{to}], {a}",
                "movups [{to} + 16], {b}",
                "movups [{to} + {count} - 32], {c}",
                "movups [{to} + {count} - 16], {d}";
                to = in(reg) to, from = in(reg) from, count = in(reg) count,
                a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,
                fault = label { return Err(libc::EFAULT) }, options(nostack, preserves_flags),
            );
        }
    } else {
        // SAFETY: as above.
        unsafe {
            guarded!(
                "movups {a}, [{from}]",
                "movups {b}, [{from} + {count} - 16]",
                "movups [{to}], {a}",
                "movups [{to} + {count} - 16], {b}";
                to = in(reg) to, from = in(reg) from, count = in(reg) count,
                a = out(xmm_reg) _, b = out(xmm_reg) _,
                fault = label { return Err(libc::EFAULT) }, options(nostack, preserves_flags),
            );
        }
    }
    Ok(())
}

/// As [`copy`].
///
/// # Safety
/// As [`copy`].
#[cfg(not(target_arch = "x86_64"))]
#[inline]
pub unsafe fn copy_inline(to: *mut u8, from: *const u8, count: usize) -> Sys<()> {
    // SAFETY: the caller keeps the contract.
    unsafe { copy(to, from, count) }
}

/// Writes an event to the program's array.
///
/// # Safety
/// `to` may be any address, but no memory that Rust has references to.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub unsafe fn write_event(to: *mut epoll_event, event: epoll_event) -> Sys<()> {
    const { assert!(size_of::<epoll_event>() == 12 && core::mem::offset_of!(epoll_event, u64) == 4) };
    // SAFETY: a fault of either move continues at `fault`.
    unsafe {
        guarded!(
            "mov dword ptr [{to}], {events:e}",
            "mov qword ptr [{to} + 4], {data}";
            to = in(reg) to, events = in(reg) { event.events }, data = in(reg) { event.u64 },
            fault = label { return Err(libc::EFAULT) }, options(nostack, preserves_flags),
        );
    }
    Ok(())
}

/// Writes an event to the program's array.
///
/// # Safety
/// As [`write`].
#[cfg(not(target_arch = "x86_64"))]
#[inline]
pub unsafe fn write_event(to: *mut epoll_event, event: epoll_event) -> Sys<()> {
    // SAFETY: the caller keeps the contract.
    unsafe { write(to, event) }
}

/// Copies `count` bytes, of which one side is the program's. On this processor only null gives EFAULT.
///
/// # Safety
/// Both sides must have `count` bytes or be null.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
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
            for inline in [false, true] {
                let mut to = vec![0xa5u8; 600];
                let (at, from_at) = (to.as_mut_ptr(), from.as_ptr());
                // SAFETY: both sides have 600 bytes.
                let copied = unsafe { if inline { copy_inline(at, from_at, count) } else { copy(at, from_at, count) } };
                assert_eq!(copied, Ok(()));
                assert_eq!(to[..count], from[..count]);
                assert!(to[count..].iter().all(|byte| *byte == 0xa5));
            }
        }
    }

    #[test]
    fn an_event_is_written_wherever_it_is_to_be() {
        let mut array = [0xa5u8; 40];
        let (at, event) = (array.as_mut_ptr().wrapping_add(7), epoll_event { events: 0x0102_0304, u64: 7 << 56 });
        // SAFETY: from byte 7 on there is room for an event.
        assert_eq!(unsafe { write_event(at.cast(), event) }, Ok(()));
        let event = size_of::<epoll_event>();
        assert_eq!(array[7..11], 0x0102_0304u32.to_ne_bytes());
        assert_eq!(array[7 + event - 8..7 + event], (7u64 << 56).to_ne_bytes());
        assert!(array[..7].iter().chain(&array[7 + event..]).all(|byte| *byte == 0xa5));
    }

    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    #[test]
    fn a_page_that_is_not_there_is_efault() {
        crate::io::fault::install();
        // SAFETY: the call takes a number and no memory.
        let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        // SAFETY: the mapping is fresh, so nothing refers to the page that is made unreadable.
        let page = unsafe {
            let pages = libc::mmap(
                core::ptr::null_mut(),
                2 * page_bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_eq!(libc::mprotect(pages.add(page_bytes), page_bytes, libc::PROT_NONE), 0);
            pages.cast::<u8>()
        };
        let mut ours = [0u8; 512];
        // Both instructions and all four moves of each way can be those that fault.
        for event in
            [page.wrapping_add(page_bytes - 11), page.wrapping_add(page_bytes - 2), page.wrapping_add(page_bytes)]
        {
            // SAFETY: the address may be any, which is what is tested.
            let written = unsafe { write_event(event.cast(), epoll_event { events: 1, u64: 2 }) };
            assert_eq!(written, Err(libc::EFAULT));
        }
        for count in [15, 16, 17, 31, 32, 33, 40, 63, 64, 65] {
            for there in 0..=count {
                let at = page.wrapping_add(page_bytes - there);
                let expected = if there == count { Ok(()) } else { Err(libc::EFAULT) };
                // SAFETY: `ours` has the bytes, and the other side may be any address, which is what is tested.
                unsafe {
                    assert_eq!(copy_inline(ours.as_mut_ptr(), at, count), expected, "{there} of {count}");
                    assert_eq!(copy_inline(at, ours.as_ptr(), count), expected, "{there} of {count}");
                }
            }
        }
        for count in [8, 9, 300] {
            // SAFETY: `ours` has the bytes, and the other side may be any address, which is what is tested.
            unsafe {
                let near_the_end = page.add(page_bytes - count);
                assert_eq!(copy(ours.as_mut_ptr(), near_the_end, count), Ok(()));
                assert_eq!(copy(ours.as_mut_ptr(), near_the_end, count + 1), Err(libc::EFAULT));
                assert_eq!(copy(near_the_end, ours.as_ptr(), count + 1), Err(libc::EFAULT));
                assert_eq!(read(core::ptr::null::<u64>()), Err(libc::EFAULT));
                assert_eq!(is_there(page, page_bytes), Ok(()));
                assert_eq!(is_there(page, page_bytes + 1), Err(libc::EFAULT));
            }
        }
    }
}
