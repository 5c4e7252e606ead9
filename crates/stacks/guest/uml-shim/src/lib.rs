//! `libtowpath_uml.so` is preloaded into user-mode Linux. It replaces `ptrace` to mend two faults:
//!
//! - UML up to 6.12 writes a process's floating point registers from a buffer of a fixed size. Linux takes only the
//!   whole set, which AMX makes larger. So `PTRACE_SETREGSET` fails, and UML panics before its first program. This
//!   `ptrace` reads all registers, overlays UML's part, and writes them back.
//! - If UML is killed, the processes that it traced would go on as processes of the host. `PTRACE_O_EXITKILL` ends
//!   them with it.

use libc::{c_int, c_long, c_void, iovec, pid_t};
use std::sync::Mutex;

/// `PTRACE_SETOPTIONS` as it was numbered before Linux 2.4.6.
const OLD_SETOPTIONS: c_int = 21;
/// Bytes of all extended registers: more than any processor has.
const XSTATE_BYTES: usize = 65_536;
/// All extended registers of a process, while they are changed. UML calls from its kernel's stacks, which have 16 KiB: no room
/// for this.
static WHOLE: Mutex<[u64; XSTATE_BYTES / size_of::<u64>()]> = Mutex::new([0; XSTATE_BYTES / size_of::<u64>()]);
/// `NT_X86_XSTATE`.
const XSTATE: usize = 0x202;

/// The system call; -1 and `errno` on failure.
///
/// # Safety
/// As `ptrace(2)`.
unsafe fn call(request: c_int, pid: pid_t, addr: *mut c_void, data: *mut c_void) -> c_long {
    // SAFETY: the caller passes what the request takes.
    unsafe { libc::syscall(libc::SYS_ptrace, c_long::from(request), c_long::from(pid), addr, data) }
}

/// `ptrace(2)`.
///
/// # Safety
/// As `ptrace(2)`: `addr` and `data` must be what the request takes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ptrace(request: c_int, pid: pid_t, addr: *mut c_void, data: *mut c_void) -> c_long {
    match request as _ {
        // The library function returns the word that the system call stores.
        libc::PTRACE_PEEKTEXT | libc::PTRACE_PEEKDATA | libc::PTRACE_PEEKUSER => {
            let mut word: c_long = 0;
            // SAFETY: the kernel stores one word at this address.
            if unsafe { call(request, pid, addr, (&raw mut word).cast()) } < 0 {
                return -1;
            }
            // SAFETY: errno is this thread's own. It is cleared because -1 may be the word, so the caller checks
            // errno.
            unsafe { *libc::__errno_location() = 0 };
            word
        }
        libc::PTRACE_SETOPTIONS => {
            let options = data as usize | libc::PTRACE_O_EXITKILL as usize;
            // SAFETY: the options are a number, not an address.
            unsafe { call(request, pid, addr, options as *mut c_void) }
        }
        _ if request == OLD_SETOPTIONS => {
            let options = data as usize | libc::PTRACE_O_EXITKILL as usize;
            // SAFETY: the options are a number, not an address. Today's request knows more options than the old one.
            unsafe { call(libc::PTRACE_SETOPTIONS as c_int, pid, addr, options as *mut c_void) }
        }
        libc::PTRACE_SETREGSET if addr as usize == XSTATE => {
            // SAFETY: the caller passes what the request takes.
            let result = unsafe { call(request, pid, addr, data) };
            // SAFETY: errno is this thread's own.
            if result == 0 || unsafe { *libc::__errno_location() } != libc::EFAULT {
                return result;
            }
            // SAFETY: for this request `data` points to an `iovec`, by the caller's promise.
            unsafe { set_whole(pid, &*data.cast::<iovec>()) }
        }
        // SAFETY: the caller passes what the request takes.
        _ => unsafe { call(request, pid, addr, data) },
    }
}

/// Sets the extended registers from a part of them.
///
/// # Safety
/// `part` must describe readable memory.
unsafe fn set_whole(pid: pid_t, part: &iovec) -> c_long {
    // One thread runs UML's kernel, which is not preemptible, and no signal handler of it sets registers: the lock is free.
    let Ok(mut whole) = WHOLE.try_lock() else {
        // SAFETY: errno is this thread's own.
        unsafe { *libc::__errno_location() = libc::EBUSY };
        return -1;
    };
    let mut span = iovec { iov_base: whole.as_mut_ptr().cast(), iov_len: XSTATE_BYTES };
    let span_ptr = (&raw mut span).cast();
    // SAFETY: the kernel writes up to `iov_len` bytes of `whole`, and says how many.
    let got = unsafe { call(libc::PTRACE_GETREGSET as c_int, pid, XSTATE as *mut c_void, span_ptr) };
    if got < 0 {
        return got;
    }
    let bytes = part.iov_len.min(span.iov_len).min(XSTATE_BYTES);
    // SAFETY: both are at least that long, and `whole` is this library's own, so they do not overlap.
    unsafe { core::ptr::copy_nonoverlapping(part.iov_base.cast::<u8>(), whole.as_mut_ptr().cast::<u8>(), bytes) };
    // SAFETY: the kernel reads `iov_len` bytes of `whole`.
    unsafe { call(libc::PTRACE_SETREGSET as c_int, pid, XSTATE as *mut c_void, (&raw mut span).cast()) }
}
