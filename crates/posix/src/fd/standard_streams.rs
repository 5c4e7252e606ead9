//! `stdin`, `stdout` and `stderr` of a program whose descriptor 0, 1 or 2 is an accelerated socket, inherited or by
//! `dup2`.
//!
//! libc's own streams call the kernel from within libc. So a stream like those of `fdopen` replaces libc's as long as
//! the descriptor is such a socket. Code with a copy of the old pointer (C++'s `cout`) still writes to libc's own.

use crate::fd::{streams, table};
use core::sync::atomic::{AtomicUsize, Ordering};
use libc::{FILE, c_char, c_int, c_void, size_t};
use towpath_client::lock::Lock;
use towpath_hook::real;

unsafe extern "C" {
    static mut stdin: *mut FILE;
    static mut stdout: *mut FILE;
    static mut stderr: *mut FILE;
    fn __fpending(stream: *mut FILE) -> size_t;
    fn __fpurge(stream: *mut FILE);
}

/// The first words of glibc's `FILE`. Its macros compile them into every program, so they do not change.
#[repr(C)]
struct Layout {
    flags: c_int,
    read: [*mut c_char; 3],
    write_base: *mut c_char,
}

const UNBUFFERED: c_int = 2;
const LINE_BUFFERED: c_int = 0x200;

/// libc's own streams while they are replaced; 0 = not replaced.
static FORMER: [AtomicUsize; 3] = [const { AtomicUsize::new(0) }; 3];
/// The replacements, made when first needed.
static OURS: [AtomicUsize; 3] = [const { AtomicUsize::new(0) }; 3];
static CHANGING: Lock = Lock::new();

/// In a forked child: the thread that held the lock does not exist.
pub fn forked() {
    CHANGING.reset();
}

fn place(fd: c_int) -> *mut *mut FILE {
    match fd {
        0 => &raw mut stdin,
        1 => &raw mut stdout,
        _ => &raw mut stderr,
    }
}

/// The kind of `fd` has changed.
pub fn follow(fd: c_int) {
    if !(0..3).contains(&fd) {
        return;
    }
    let at = fd as usize;
    let (is_ours, stands_in) = (table::socket(fd).is_some(), FORMER[at].load(Ordering::Acquire) != 0);
    if is_ours != stands_in
        && let Some(_changing) = CHANGING.lock()
    {
        if is_ours { stand_in(fd, at) } else { stand_back(fd, at) }
    }
}

fn stand_in(fd: c_int, at: usize) {
    // SAFETY: this is libc's variable, which holds a stream or null. The program may change it at any time too.
    let own = unsafe { *place(fd) };
    // SAFETY: `own` is a stream of the program's.
    if own.is_null() || unsafe { real::fileno(own) } != fd {
        return;
    }
    let mut ours = OURS[at].load(Ordering::Acquire) as *mut FILE;
    if ours.is_null() {
        // SAFETY: the mode is a C string.
        ours = unsafe { streams::open(fd, if fd == 0 { c"r" } else { c"w" }.as_ptr()) };
        if ours.is_null() {
            return;
        }
        OURS[at].store(ours as usize, Ordering::Release);
    }
    // SAFETY: both are streams. Bytes in the buffer of libc's own would go to the wrong descriptor when it is
    // flushed, so they move.
    unsafe {
        let (flags, base) = ((*own.cast::<Layout>()).flags, (*own.cast::<Layout>()).write_base);
        let mode = match flags {
            flags if flags & UNBUFFERED != 0 => libc::_IONBF,
            flags if flags & LINE_BUFFERED != 0 => libc::_IOLBF,
            _ => libc::_IOFBF,
        };
        libc::setvbuf(ours, core::ptr::null_mut(), mode, 0);
        let pending = if fd == 0 { 0 } else { __fpending(own) };
        if pending > 0 {
            libc::fwrite(base.cast::<c_void>(), 1, pending, ours);
            __fpurge(own);
        }
        *place(fd) = ours;
    }
    FORMER[at].store(own as usize, Ordering::Release);
}

fn stand_back(fd: c_int, at: usize) {
    let own = FORMER[at].swap(0, Ordering::AcqRel) as *mut FILE;
    let ours = OURS[at].load(Ordering::Acquire) as *mut FILE;
    // SAFETY: these are streams, and libc's variable. Bytes in the replacement's buffer go to the present descriptor.
    unsafe {
        if fd != 0 && !ours.is_null() {
            libc::fflush(ours);
        }
        if *place(fd) == ours {
            *place(fd) = own;
        }
    }
}

/// A stream is about to be closed. If it is a replacement, libc's own stream comes back.
pub fn closing(stream: *mut FILE) {
    let Some(at) = OURS.iter().position(|ours| ours.load(Ordering::Relaxed) == stream as usize) else { return };
    let own = FORMER[at].swap(0, Ordering::AcqRel) as *mut FILE;
    OURS[at].store(0, Ordering::Relaxed);
    // SAFETY: this is libc's variable, which holds a stream or null.
    unsafe {
        if !own.is_null() && *place(at as c_int) == stream {
            *place(at as c_int) = own;
        }
    }
}
