//! Hints to the processor that a cache line is about to be used. Lines that another processor has written take much of a
//! request's time on a direct connection, and several that are asked for together come together.

/// Asks for the line of `at`, to be read. The address need not be valid.
#[inline(always)]
pub fn to_read<T>(at: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a hint, which faults at no address.
    unsafe {
        core::arch::asm!("prefetcht0 [{0}]", in(reg) at, options(nostack, readonly, preserves_flags));
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: a hint, which faults at no address.
    unsafe {
        core::arch::asm!("prfm pldl1keep, [{0}]", in(reg) at, options(nostack, readonly, preserves_flags));
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let _ = at;
}

/// Asks for the line of `at`, to be written: the other processors lose their copies. The address need not be valid.
#[inline(always)]
pub fn to_write<T>(at: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a hint, which faults at no address. Processors without it take it for no operation.
    unsafe {
        core::arch::asm!("prefetchw [{0}]", in(reg) at, options(nostack, readonly, preserves_flags));
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: a hint, which faults at no address.
    unsafe {
        core::arch::asm!("prfm pstl1keep, [{0}]", in(reg) at, options(nostack, readonly, preserves_flags));
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let _ = at;
}
