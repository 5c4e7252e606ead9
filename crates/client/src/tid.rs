//! The calling thread's id, kept by the thread. With glibc it is an initial-exec thread-local word, which a few instructions
//! read. In a shared library the compiler's own way is a call. The library is loaded with its program; if it is loaded later,
//! glibc has room for these few bytes.

use crate::sys;

#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), target_env = "gnu"))]
mod word {
    core::arch::global_asm!(
        ".pushsection .tbss.towpath_tid, \"awT\", %nobits",
        ".p2align 2",
        ".hidden towpath_tid",
        ".globl towpath_tid",
        ".type towpath_tid, %object",
        ".size towpath_tid, 4",
        "towpath_tid:",
        ".zero 4",
        ".popsection",
    );

    /// Where the word is.
    #[cfg(target_arch = "aarch64")]
    #[inline(always)]
    fn place() -> *mut u32 {
        let at: *mut u32;
        // SAFETY: reads the thread's register and the word's distance from it, which the dynamic linker has stored.
        unsafe {
            core::arch::asm!(
                "adrp {at}, :gottprel:towpath_tid",
                "ldr {at}, [{at}, :gottprel_lo12:towpath_tid]",
                "mrs {thread}, tpidr_el0",
                "add {at}, {at}, {thread}",
                at = out(reg) at,
                thread = out(reg) _,
                options(nostack, preserves_flags, pure, readonly),
            );
        }
        at
    }

    #[cfg(target_arch = "aarch64")]
    #[inline(always)]
    pub fn get() -> u32 {
        // SAFETY: the thread's own word, defined in the assembly of this file, which nobody else uses.
        unsafe { place().read_volatile() }
    }

    #[cfg(target_arch = "aarch64")]
    pub fn set(id: u32) {
        // SAFETY: as for reading.
        unsafe { place().write_volatile(id) }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub fn get() -> u32 {
        let at: u64;
        // SAFETY: reads the thread's own word, defined in the assembly of this file.
        unsafe {
            core::arch::asm!(
                "mov {at}, qword ptr [rip + towpath_tid@GOTTPOFF]",
                "mov {at:e}, dword ptr fs:[{at}]",
                at = out(reg) at,
                options(nostack, preserves_flags, pure, readonly),
            );
        }
        at as u32
    }

    #[cfg(target_arch = "x86_64")]
    pub fn set(id: u32) {
        // SAFETY: writes the thread's own word, defined in the assembly of this file.
        unsafe {
            core::arch::asm!(
                "mov {at}, qword ptr [rip + towpath_tid@GOTTPOFF]",
                "mov dword ptr fs:[{at}], {id:e}",
                at = out(reg) _,
                id = in(reg) id,
                options(nostack, preserves_flags),
            );
        }
    }
}

#[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), target_env = "gnu")))]
mod word {
    use core::cell::Cell;

    thread_local! {
        static TID: Cell<u32> = const { Cell::new(0) };
    }

    pub fn get() -> u32 {
        TID.get()
    }

    pub fn set(id: u32) {
        TID.set(id);
    }
}

/// The calling thread's id.
#[inline(always)]
pub fn tid() -> u32 {
    match word::get() {
        0 => ask(),
        id => id,
    }
}

/// The calling thread's id; 0 if it has not asked for it yet.
#[inline(always)]
pub fn known() -> u32 {
    word::get()
}

#[cold]
fn ask() -> u32 {
    let id = sys::gettid() as u32;
    word::set(id);
    id
}

/// In a forked child: forgets the parent's id.
pub fn forget() {
    word::set(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_has_its_own() {
        let mine = tid();
        assert_eq!(mine, sys::gettid() as u32);
        let others = std::thread::spawn(|| (tid(), sys::gettid() as u32)).join().expect("ended");
        assert_eq!(others.0, others.1);
        assert_ne!(others.0, mine);
        assert_eq!(tid(), mine);
        forget();
        assert_eq!(tid(), mine, "asked anew");
    }
}
