//! `libtowpath_uml.so`, preloaded into user-mode Linux: its `ptrace`, with two things mended.
//!
//! - UML up to 6.12 writes a process's floating point registers from a buffer of a fixed size. Linux takes them only whole, and with AMX
//!   they are larger than that: `PTRACE_SETREGSET` fails, and UML panics before its first program. Here the registers are read whole,
//!   overlaid with UML's part, and written back.
//! - If UML is killed, Linux lets the processes that it traced run on, as processes of the host, which nobody meant. With
//!   `PTRACE_O_EXITKILL` they die with it.

use libc::{c_int, c_long, c_void, iovec, pid_t};

/// `PTRACE_SETOPTIONS` as it was numbered before Linux 2.4.6.
const OLD_SETOPTIONS: c_int = 21;
/// Registers of all extensions, bytes: more than any processor has.
const XSTATE_BYTES: usize = 65_536;
/// `NT_X86_XSTATE`.
const XSTATE: usize = 0x202;

/// The system call; -1 and `errno` on failure.
///
/// # Safety
/// As `ptrace(2)`.
unsafe fn call(request: c_int, pid: pid_t, addr: *mut c_void, data: *mut c_void) -> c_long {
    // SAFETY: the caller's promise.
    unsafe { libc::syscall(libc::SYS_ptrace, c_long::from(request), c_long::from(pid), addr, data) }
}

/// `ptrace(2)`.
///
/// # Safety
/// As `ptrace(2)`: `addr` and `data` must be what the request takes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ptrace(request: c_int, pid: pid_t, addr: *mut c_void, data: *mut c_void) -> c_long {
    match request as _ {
        // The library's function gives the word that the system call stores.
        libc::PTRACE_PEEKTEXT | libc::PTRACE_PEEKDATA | libc::PTRACE_PEEKUSER => {
            let mut word: c_long = 0;
            // SAFETY: the kernel stores one word.
            if unsafe { call(request, pid, addr, (&raw mut word).cast()) } < 0 {
                return -1;
            }
            // SAFETY: this thread's errno. -1 may be the word, so the caller looks at errno.
            unsafe { *libc::__errno_location() = 0 };
            word
        }
        libc::PTRACE_SETOPTIONS => {
            let options = data as usize | libc::PTRACE_O_EXITKILL as usize;
            // SAFETY: the options are a number.
            unsafe { call(request, pid, addr, options as *mut c_void) }
        }
        _ if request == OLD_SETOPTIONS => {
            let options = data as usize | libc::PTRACE_O_EXITKILL as usize;
            // SAFETY: as above; the request of today's number knows more options.
            unsafe { call(libc::PTRACE_SETOPTIONS as c_int, pid, addr, options as *mut c_void) }
        }
        libc::PTRACE_SETREGSET if addr as usize == XSTATE => {
            // SAFETY: the caller's promise.
            let result = unsafe { call(request, pid, addr, data) };
            // SAFETY: this thread's errno.
            if result == 0 || unsafe { *libc::__errno_location() } != libc::EFAULT {
                return result;
            }
            // SAFETY: with this request `data` is an `iovec`.
            unsafe { set_whole(pid, &*data.cast::<iovec>()) }
        }
        // SAFETY: the caller's promise.
        _ => unsafe { call(request, pid, addr, data) },
    }
}

/// Sets the extended registers from a part of them.
///
/// # Safety
/// `part` must be readable memory.
unsafe fn set_whole(pid: pid_t, part: &iovec) -> c_long {
    let mut whole = [0u64; XSTATE_BYTES / size_of::<u64>()];
    let mut span = iovec { iov_base: whole.as_mut_ptr().cast(), iov_len: XSTATE_BYTES };
    let span_ptr = (&raw mut span).cast();
    // SAFETY: the kernel writes up to `iov_len` bytes and says how many.
    let got = unsafe { call(libc::PTRACE_GETREGSET as c_int, pid, XSTATE as *mut c_void, span_ptr) };
    if got < 0 {
        return got;
    }
    let bytes = part.iov_len.min(span.iov_len).min(XSTATE_BYTES);
    // SAFETY: both are that long, and `whole` is ours alone.
    unsafe { core::ptr::copy_nonoverlapping(part.iov_base.cast::<u8>(), whole.as_mut_ptr().cast::<u8>(), bytes) };
    // SAFETY: the kernel reads `iov_len` bytes of `whole`.
    unsafe { call(libc::PTRACE_SETREGSET as c_int, pid, XSTATE as *mut c_void, (&raw mut span).cast()) }
}
