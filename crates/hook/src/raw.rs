//! System calls past all hooks.

use core::arch::asm;

/// An errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

/// A system call past all hooks. A negative result is an errno.
///
/// # Safety
/// The contract of the system call.
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
