//! The system calls that the library makes for itself, as `Result`s. They call the real functions, never the caught
//! ones.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use core::time::Duration;
use libc::{c_int, c_long, c_void, iovec, pollfd, sigset_t, socklen_t, timespec};
use rustix::fd::BorrowedFd;
use towpath_hook::{outcome, real};

/// A result whose error is an errno.
pub type Sys<T> = Result<T, i32>;

/// Borrows one of the library's own descriptors.
pub fn borrow(fd: &i32) -> BorrowedFd<'_> {
    // SAFETY: the session and the contexts keep their descriptors open as long as their numbers, and the program
    // cannot close them.
    unsafe { BorrowedFd::borrow_raw(*fd) }
}

/// `close`. Its failure would tell nothing.
pub fn close(fd: c_int) {
    // SAFETY: closing a descriptor number touches no memory.
    let _ = unsafe { real::close(fd) };
}

/// `fcntl` with a command whose argument is an integer.
pub fn fcntl(fd: c_int, cmd: c_int, arg: c_int) -> Sys<c_int> {
    // SAFETY: the callers pass commands whose argument is an integer.
    outcome(unsafe { real::fcntl(fd, cmd, arg.into()) })
}

/// `dup3`.
pub fn dup3(from: c_int, to: c_int, flags: c_int) -> Sys<c_int> {
    // SAFETY: integers only.
    outcome(unsafe { real::dup3(from, to, flags) })
}

/// A close-on-exec TCP socket of the kernel.
pub fn socket(domain: c_int) -> Sys<c_int> {
    // SAFETY: integers only.
    outcome(unsafe { real::socket(domain, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) })
}

/// A close-on-exec AF_UNIX stream pair.
pub fn socketpair() -> Sys<[c_int; 2]> {
    let mut pair = [-1; 2];
    // SAFETY: `pair` has room for two descriptors. (`socketpair` is not a caught call.)
    outcome(unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0, pair.as_mut_ptr()) })?;
    Ok(pair)
}

/// Reads an option of a kernel socket.
pub fn getsockopt<T: Copy>(fd: c_int, level: c_int, name: c_int, zero: T) -> Sys<T> {
    let mut value = zero;
    let mut len = size_of::<T>() as socklen_t;
    // SAFETY: `value` has `len` bytes; it is only used with plain C structs and integers.
    outcome(unsafe { real::getsockopt(fd, level, name, (&raw mut value).cast(), &raw mut len) })?;
    Ok(value)
}

/// Sets an integer option of a kernel socket.
pub fn setsockopt(fd: c_int, level: c_int, name: c_int, value: c_int) -> Sys<()> {
    let len = size_of::<c_int>() as socklen_t;
    // SAFETY: `value` has `len` bytes.
    outcome(unsafe { real::setsockopt(fd, level, name, (&raw const value).cast::<c_void>(), len) }).map(|_| ())
}

/// `ppoll` without or with a signal mask (null = none) and a timeout (`None` = for ever).
#[allow(clippy::not_unsafe_ptr_arg_deref)] // the kernel checks the mask's address and answers EFAULT
pub fn ppoll(fds: &mut [pollfd], timeout: Option<Duration>, mask: *const sigset_t) -> Sys<usize> {
    let time = timeout.map(timespec_of);
    let time = time.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
    // SAFETY: the slice and the optional time are valid; `mask` is the caller's or null.
    outcome(unsafe { real::ppoll(fds.as_mut_ptr(), fds.len() as _, time, mask) }).map(|n| n as usize)
}

/// A time as the kernel has it.
pub fn timespec_of(time: Duration) -> timespec {
    timespec { tv_sec: time.as_secs().min(i32::MAX as u64) as libc::time_t, tv_nsec: time.subsec_nanos().into() }
}

/// A C time as a duration; `None` if it is not a valid time.
pub fn duration_of(time: &timespec) -> Option<Duration> {
    (time.tv_sec >= 0 && (0..1_000_000_000).contains(&time.tv_nsec))
        .then(|| Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

/// `preadv` (`offset` < 0: at the file's own position, `readv`).
///
/// # Safety
/// The vectors must be writable memory.
pub unsafe fn preadv(fd: c_int, iov: &[iovec], offset: i64) -> Sys<usize> {
    let count = iov.len() as c_int;
    // SAFETY: the caller vouches for the vectors.
    outcome(unsafe {
        if offset < 0 { real::readv(fd, iov.as_ptr(), count) } else { libc::preadv(fd, iov.as_ptr(), count, offset) }
    })
    .map(|n| n as usize)
}

/// The process id, by a system call.
pub fn getpid() -> i32 {
    // SAFETY: the call takes no arguments. It is made anew because a cached id would be wrong in a `vfork` child.
    unsafe { libc::syscall(libc::SYS_getpid) as i32 }
}

/// `lseek`.
pub fn lseek(fd: c_int, offset: i64, whence: c_int) -> Sys<i64> {
    // SAFETY: integers only.
    let at = unsafe { libc::lseek(fd, offset, whence) };
    if at < 0 { Err(errno()) } else { Ok(at) }
}

/// The inode of this process's PID namespace; 0 = it cannot be seen.
pub fn pid_namespace() -> u64 {
    rustix::fs::stat(c"/proc/self/ns/pid").map_or(0, |namespace| namespace.st_ino)
}

/// The thread id, by a system call.
pub fn gettid() -> i32 {
    // SAFETY: the call takes no arguments.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 }
}

/// Does a thread of this id exist that may still run? A killed process keeps its id until its parent waits for it. The
/// parent may never do so, if it waits for something that the process held.
pub fn alive(tid: i32) -> bool {
    // SAFETY: integers only.
    let process = unsafe { libc::syscall(libc::SYS_pidfd_open, tid as c_long, 0) } as c_int;
    if process >= 0 {
        let mut end = [libc::pollfd { fd: process, events: libc::POLLIN, revents: 0 }];
        let ended = ppoll(&mut end, Some(Duration::ZERO), core::ptr::null()) == Ok(1);
        close(process);
        return !ended;
    }
    // `tid` is not the first thread of a process, or the kernel is older.
    // SAFETY: `kill` takes numbers, and errno is this thread's own.
    unsafe { libc::syscall(libc::SYS_kill, tid as c_long, 0) == 0 || *libc::__errno_location() != libc::ESRCH }
}

/// Sends SIGPIPE to the calling thread, as the kernel does on a write to a closed connection.
pub fn raise_sigpipe() {
    // SAFETY: integers only.
    unsafe { libc::syscall(libc::SYS_tgkill, getpid(), gettid(), libc::SIGPIPE) };
}

/// Do all installed signal handlers restart interrupted calls? Nothing tells which signal has come, but programs hardly
/// ever have both kinds.
pub fn signals_restart() -> bool {
    (1..=64).all(|signal| {
        // SAFETY: an all-zero sigaction is a valid value.
        let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
        // SAFETY: null changes nothing, and `action` has room for the answer.
        let asked = unsafe { libc::sigaction(signal, core::ptr::null(), &raw mut action) };
        let handled = asked == 0 && action.sa_sigaction != libc::SIG_DFL && action.sa_sigaction != libc::SIG_IGN;
        !handled || action.sa_flags & libc::SA_RESTART != 0
    })
}

/// Is this a pipe, or something else without a position? False also if it is no descriptor.
pub fn is_pipe(fd: c_int) -> bool {
    // SAFETY: integers only.
    unsafe { libc::lseek(fd, 0, libc::SEEK_CUR) == -1 && *libc::__errno_location() == libc::ESPIPE }
}

/// Puts a copy of `from` over the descriptor `to`, which keeps its close-on-exec flag.
pub fn put_over(from: c_int, to: c_int) -> Sys<()> {
    let close_on_exec = fcntl(to, libc::F_GETFD, 0)? & libc::FD_CLOEXEC != 0;
    dup3(from, to, if close_on_exec { libc::O_CLOEXEC } else { 0 }).map(|_| ())
}

/// `futex_waitv`'s description of one word.
#[repr(C)]
struct Waiter {
    value: u64,
    address: u64,
    flags: u32,
    reserved: u32,
}

const SYS_FUTEX_WAITV: c_long = 449;
/// A word of 32 bits that other processes may wake.
const FUTEX_32: u32 = 2;

/// The time of a clock, by libc. rustix would look for the vDSO in the program's memory, where Valgrind hides it.
pub fn clock(clock: libc::clockid_t) -> Duration {
    let mut now = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` has room for a time.
    unsafe { libc::clock_gettime(clock, &raw mut now) };
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// A clock that tells which of two events came first. It counts one to five thousand million a second.
#[inline]
pub fn ticks() -> u64 {
    // SAFETY: every processor of this architecture has the counter, and Linux leaves it to user space.
    #[cfg(target_arch = "x86_64")]
    return unsafe { core::arch::x86_64::_rdtsc() };
    #[cfg(target_arch = "aarch64")]
    {
        let (count, hertz): (u64, u64);
        // SAFETY: every processor of this architecture has both registers, and Linux leaves them to user space. Nothing else is read.
        unsafe {
            core::arch::asm!(
                "mrs {0}, cntvct_el0",
                "mrs {1}, cntfrq_el0",
                out(reg) count,
                out(reg) hertz,
                options(nostack, nomem, preserves_flags),
            );
        }
        // It may be as slow as a million a second.
        count << 30u32.saturating_sub(hertz.max(1).ilog2())
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    return clock(libc::CLOCK_MONOTONIC).as_nanos() as u64;
}

/// Sleeps while the word has the value. Unlike `futex` it goes on after a signal handler with SA_RESTART, even with a
/// time limit. EINTR means a handler without SA_RESTART. ENOSYS before Linux 5.16.
pub fn sleep_on(word: &AtomicU32, value: u32, time: Duration) -> Sys<()> {
    // Not tried again once it is absent: Valgrind reports every call that it does not know.
    static ABSENT: AtomicBool = AtomicBool::new(false);
    if ABSENT.load(Ordering::Relaxed) {
        return Err(libc::ENOSYS);
    }
    let waiter =
        Waiter { value: value.into(), address: core::ptr::from_ref(word) as u64, flags: FUTEX_32, reserved: 0 };
    let end = timespec_of(clock(libc::CLOCK_MONOTONIC) + time);
    // SAFETY: one valid waiter, whose word lives during the call, and a valid time.
    let slept =
        unsafe { libc::syscall(SYS_FUTEX_WAITV, &raw const waiter, 1, 0, &raw const end, libc::CLOCK_MONOTONIC) };
    match outcome(slept as libc::ssize_t) {
        Ok(_) | Err(libc::EAGAIN) => Ok(()),
        Err(errno) => {
            if errno == libc::ENOSYS {
                ABSENT.store(true, Ordering::Relaxed);
            }
            Err(errno)
        }
    }
}

/// The errno of libc's last failed call.
pub fn errno() -> i32 {
    // SAFETY: the errno of the calling thread always exists.
    unsafe { *libc::__errno_location() }
}

/// Is this kernel TCP socket in the state CLOSED, neither listening nor connected?
pub fn is_closed(fd: c_int) -> bool {
    /// `tcpi_state`, the first byte.
    const TCP_CLOSE: u8 = 7;
    getsockopt::<u8>(fd, libc::IPPROTO_TCP, libc::TCP_INFO, 0) == Ok(TCP_CLOSE)
}
