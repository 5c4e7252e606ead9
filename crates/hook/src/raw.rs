//! System calls past all hooks.

use core::arch::asm;

/// An errno.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

/// A system call past all hooks. A negative result is an errno.
///
/// # Safety
/// The contract of the system call.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn raw(number: i64, [a, b, c, d, e, f]: [u64; 6]) -> i64 {
    let result: i64;
    // SAFETY: the caller keeps the contract of the system call, and the kernel changes no other registers.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") a,
            in("rsi") b,
            in("rdx") c,
            in("r10") d,
            in("r8") e,
            in("r9") f,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack)
        );
    }
    result
}

/// A system call past all hooks. A negative result is an errno.
///
/// # Safety
/// The contract of the system call.
#[cfg(target_arch = "aarch64")]
pub(crate) unsafe fn raw(number: i64, [a, b, c, d, e, f]: [u64; 6]) -> i64 {
    let result: u64;
    // SAFETY: the caller keeps the contract of the system call, and the kernel changes no other registers.
    unsafe {
        asm!(
            "svc #0",
            in("x8") number,
            inlateout("x0") a => result,
            in("x1") b,
            in("x2") c,
            in("x3") d,
            in("x4") e,
            in("x5") f,
            options(nostack)
        );
    }
    result.cast_signed()
}
