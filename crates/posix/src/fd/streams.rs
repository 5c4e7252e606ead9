//! `fdopen` on sockets in slots. libc's own streams call the kernel from within libc, where no call can be caught. So
//! the stream is a `fopencookie` stream with functions of this file.

use crate::fd::table;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicUsize, Ordering};
use libc::{FILE, c_char, c_int, c_void, off64_t, size_t, ssize_t};
use std::sync::OnceLock;
use towpath_client::lock::Lock;
use towpath_client::sys;
use towpath_hook::{Answer, finish, real};

/// glibc's `cookie_io_functions_t`.
#[repr(C)]
struct Functions {
    read: unsafe extern "C" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    write: unsafe extern "C" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
    seek: Option<unsafe extern "C" fn(*mut c_void, *mut off64_t, c_int) -> c_int>,
    close: unsafe extern "C" fn(*mut c_void) -> c_int,
}

/// The calls that a stream makes on its descriptor. Each has the contract of the libc function of its name.
pub struct Calls {
    /// `read`.
    pub read: unsafe fn(c_int, *mut c_void, size_t) -> Answer<ssize_t>,
    /// `write`.
    pub write: unsafe fn(c_int, *const c_void, size_t) -> Answer<ssize_t>,
    /// `close`.
    pub close: fn(c_int) -> Answer<c_int>,
}

static CALLS: OnceLock<Calls> = OnceLock::new();

/// Sets these functions. Only the first call has an effect.
pub fn set_calls(calls: Calls) {
    let _ = CALLS.set(calls);
}

unsafe extern "C" {
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut FILE;
}

/// The streams that were made here, and their descriptors.
struct Streams {
    lock: Lock,
    all: UnsafeCell<Vec<(usize, c_int)>>,
}

// SAFETY: `all` is only accessed under the lock.
unsafe impl Sync for Streams {}

static STREAMS: Streams = Streams { lock: Lock::new(), all: UnsafeCell::new(Vec::new()) };
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// `fdopen`.
///
/// # Safety
/// `mode` is a C string.
pub unsafe fn fdopen(fd: c_int, mode: *const c_char) -> Answer<*mut FILE> {
    table::socket(fd)?;
    // SAFETY: the caller passes a C string.
    let stream = unsafe { open(fd, mode) };
    Some(if stream.is_null() { Err(sys::errno()) } else { Ok(stream) })
}

/// A stream that acts on whatever the descriptor is at the time of each use; null = no memory.
///
/// # Safety
/// As [`fdopen`].
pub unsafe fn open(fd: c_int, mode: *const c_char) -> *mut FILE {
    let functions = Functions { read, write, seek: None, close };
    // SAFETY: the caller passes a C string, and each function has the type and contract of its place.
    let stream = unsafe { fopencookie(fd as usize as *mut c_void, mode, functions) };
    if !stream.is_null()
        && let Some(_locked) = STREAMS.lock.lock()
    {
        // SAFETY: the lock is held, so this is the only reference.
        unsafe { &mut *STREAMS.all.get() }.push((stream as usize, fd));
        COUNT.fetch_add(1, Ordering::Release);
    }
    stream
}

/// `fileno`. libc itself knows no descriptor for these streams.
pub fn fileno(stream: *mut FILE) -> Answer<c_int> {
    if COUNT.load(Ordering::Acquire) == 0 {
        return None;
    }
    let _locked = STREAMS.lock.lock()?;
    // SAFETY: the lock is held, so nobody changes it.
    let all = unsafe { &*STREAMS.all.get() };
    all.iter().find(|(known, _)| *known == stream as usize).map(|(_, fd)| Ok(*fd))
}

/// A stream is about to be closed. True: it was made here, and closes its descriptor itself after writing everything.
pub fn closing(stream: *mut FILE) -> bool {
    if COUNT.load(Ordering::Acquire) == 0 {
        return false;
    }
    let Some(_locked) = STREAMS.lock.lock() else { return false };
    // SAFETY: the lock is held, so this is the only reference.
    let all = unsafe { &mut *STREAMS.all.get() };
    let Some(at) = all.iter().position(|(known, _)| *known == stream as usize) else { return false };
    all.swap_remove(at);
    COUNT.fetch_sub(1, Ordering::Release);
    true
}

/// # Safety
/// Only libc calls it, with the descriptor as the cookie.
unsafe extern "C" fn read(cookie: *mut c_void, buffer: *mut c_char, len: size_t) -> ssize_t {
    let fd = cookie as usize as c_int;
    // SAFETY: libc gives a buffer of `len` bytes.
    unsafe {
        let ours = CALLS.get().and_then(|calls| (calls.read)(fd, buffer.cast(), len));
        ours.map_or_else(|| real::read(fd, buffer.cast(), len), finish)
    }
}

/// # Safety
/// Only libc calls it, with the descriptor as the cookie.
unsafe extern "C" fn write(cookie: *mut c_void, buffer: *const c_char, len: size_t) -> ssize_t {
    let fd = cookie as usize as c_int;
    // SAFETY: libc gives a buffer of `len` bytes.
    let written = unsafe {
        let ours = CALLS.get().and_then(|calls| (calls.write)(fd, buffer.cast(), len));
        ours.map_or_else(|| real::write(fd, buffer.cast(), len), finish)
    };
    // A function of `fopencookie` returns 0 for a failure.
    written.max(0)
}

/// # Safety
/// Only libc calls it, with the descriptor as the cookie.
unsafe extern "C" fn close(cookie: *mut c_void) -> c_int {
    let fd = cookie as usize as c_int;
    let ours = CALLS.get().and_then(|calls| (calls.close)(fd));
    // SAFETY: integers only.
    ours.map_or_else(|| unsafe { real::close(fd) }, finish)
}
