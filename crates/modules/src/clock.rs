//! The kernel's clocks and its random numbers.

/// A clock of the kernel, ns.
pub fn clock(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writes. The vDSO answers without a system call.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// How many CPUs the kernel may have; 1 at least. The verifier has programs rely on a CPU's number being below it.
pub fn processors() -> u32 {
    // SAFETY: the call takes no memory.
    let count = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
    u32::try_from(count).unwrap_or(1).max(1)
}

/// A number that nobody can foresee.
pub fn random() -> u64 {
    let mut number = [0u8; 8];
    // SAFETY: there are eight bytes. Without an answer the clock is one.
    let got = unsafe { libc::getrandom(number.as_mut_ptr().cast(), 8, libc::GRND_NONBLOCK) };
    if got == 8 { u64::from_ne_bytes(number) } else { clock(libc::CLOCK_MONOTONIC) }
}
