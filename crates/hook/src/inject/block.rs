//! The library's data about one thread of the program. The thread's GS base points at it.

use crate::raw::raw;
use core::arch::asm;
use core::sync::atomic::{AtomicI32, AtomicU8, AtomicU64, Ordering};

/// Size of the stack that the library has in each thread of the program.
pub const STACK_BYTES: usize = 512 * 1024;

/// The block. Only its own thread uses it, including signal handlers. The kernel reads the selector.
#[repr(C, align(64))]
#[derive(Default)]
pub struct Block {
    /// Its own address.
    pub own: AtomicU64,
    /// The top of the free part of the library's stack.
    pub top: AtomicU64,
    /// The library's FS base: its thread-local storage.
    pub library_fs: AtomicU64,
    /// Whether system calls are let through ([`selector`]); the kernel reads it.
    pub selector: AtomicU8,
    /// The program's FS base, while the library's is loaded.
    pub program_fs: AtomicU64,
    /// The lowest address of the library's stack.
    pub stack_low: AtomicU64,
    /// The end of the library's stack.
    pub stack_high: AtomicU64,
    /// The stack pointer at the call of `towpath_launch`.
    pub base: AtomicU64,
    /// The top of the free part when no signal handler has interrupted the library.
    pub base_top: AtomicU64,
    /// The stack pointer of the outermost handler that has interrupted the library; 0 = none is running.
    pub outer: AtomicU64,
    /// The stack pointer of the innermost such handler.
    pub inner: AtomicU64,
    /// The address that the kernel would clear at the thread's end (`set_tid_address`); 0 = none.
    pub clear_tid: AtomicU64,
    /// The thread's id.
    pub tid: AtomicI32,
    /// The thread is not libc's: it ends by the plain system call.
    pub plain_end: AtomicU8,
}

/// Values of [`Block::selector`], which are Linux's.
pub mod selector {
    /// `SYSCALL_DISPATCH_FILTER_ALLOW`
    pub const ALLOW: u8 = 0;
}

impl Block {
    /// The block of the calling thread.
    pub fn current() -> &'static Self {
        let own: u64;
        // SAFETY: only called on threads whose GS base points at their block, which begins with its own address.
        unsafe {
            asm!("mov {}, gs:[0]", out(reg) own, options(nostack, readonly, preserves_flags));
            &*(own as *const Self)
        }
    }

    /// Makes this the calling thread's block. It must not move until the thread ends.
    pub fn install(&self, stack_low: u64, stack_high: u64) {
        let own = core::ptr::from_ref(self) as u64;
        let fs: u64;
        // SAFETY: the caller has checked that the kernel allows these instructions, and nobody else uses GS.
        unsafe {
            asm!("rdfsbase {}", out(reg) fs, options(nostack, nomem, preserves_flags));
            asm!("wrgsbase {}", in(reg) own, options(nostack, preserves_flags));
        }
        self.own.store(own, Ordering::Relaxed);
        self.library_fs.store(fs, Ordering::Relaxed);
        self.selector.store(selector::ALLOW, Ordering::Relaxed);
        self.stack_low.store(stack_low, Ordering::Relaxed);
        self.stack_high.store(stack_high, Ordering::Relaxed);
        // SAFETY: the call takes no arguments.
        self.tid.store(unsafe { raw(libc::SYS_gettid, [0; 6]) } as i32, Ordering::Relaxed);
    }
}
