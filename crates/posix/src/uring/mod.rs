//! io_uring. Its submissions go past all other calls, so they are looked at when they are handed over (`io_uring_enter`): those on
//! descriptors of ours are carried here (`submission`, `operation`), at once or when their sockets are ready (`pending`), and their
//! completions posted by the kernel (`post`). All others the kernel takes as they are.

mod abi;
mod buffers;
mod operation;
mod pending;
mod post;
mod ring;
mod submission;

pub use ring::copied;

use crate::fd::table::{self, Descriptor};
use crate::io::user;
use crate::lifecycle::registration;
use crate::observe::fallback;
use abi::{Params, register, setup};
use core::ptr::null_mut;
use libc::{c_int, c_uint, c_void};
use submission::Batch;
use towpath_client::sys::{self, Sys};
use towpath_hook::Answer;
#[cfg(target_arch = "x86_64")]
use towpath_hook::uring::by_kernel as kernel;
use towpath_ring::report::Count;

/// A system call. Elsewhere none of these is caught.
///
/// # Safety
/// The contract of the system call.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn kernel(number: libc::c_long, [a, b, c, d, e, f]: [u64; 6]) -> Sys<libc::c_long> {
    // SAFETY: the caller's contract.
    towpath_hook::outcome(unsafe { libc::syscall(number, a, b, c, d, e, f) } as isize).map(|done| done as libc::c_long)
}

/// Environment variable: `kernel` leaves io_uring to the program, which then must not use it with sockets of ours; `off` refuses it.
const VARIABLE: &str = "TOWPATH_IO_URING";
/// Fixed files that are looked at in one call.
const FILES: u32 = 1 << 20;

fn chosen(what: &str) -> bool {
    std::env::var_os(VARIABLE).is_some_and(|value| value == what)
}

fn refuse() -> Answer<c_int> {
    fallback::count(Count::IoUringRefused);
    Some(Err(libc::ENOSYS))
}

/// Is io_uring none of our business?
fn is_left() -> bool {
    // Without a service all sockets are the kernel's.
    let left = chosen("kernel") || registration::start().is_none();
    if left {
        fallback::count(Count::IoUringLeft);
    }
    left
}

/// A ring whose further calls are not seen: ENOSYS, as from a kernel without io_uring.
pub fn unseen() -> Answer<c_int> {
    if is_left() { None } else { refuse() }
}

/// `io_uring_setup`.
///
/// # Safety
/// `params` may be any address.
pub unsafe fn set_up(entries: c_uint, params: *mut c_void) -> Answer<c_int> {
    if is_left() {
        return None;
    }
    if chosen("off") {
        return refuse();
    }
    let params = params.cast::<Params>();
    // SAFETY: any bytes are parameters. What is nowhere the kernel refuses.
    let wanted = unsafe { user::read(params) }.ok()?.flags;
    // Submissions that a thread of the kernel takes are not seen here. EPERM is what programs without the right to that are told.
    if wanted & (setup::SQPOLL | setup::SQ_AFF) != 0 {
        fallback::count(Count::IoUringRefused);
        return Some(Err(libc::EPERM));
    }
    if wanted & setup::REGISTERED_FD_ONLY != 0 || wanted >= setup::UNKNOWN {
        fallback::count(Count::IoUringRefused);
        return Some(Err(libc::EINVAL));
    }
    if post::start().is_err() {
        // The kernel says why there are none.
        return None;
    }
    // SAFETY: the caller keeps the contract of the system call.
    let made = unsafe { kernel(libc::SYS_io_uring_setup, [entries.into(), params as u64, 0, 0, 0, 0]) };
    Some(made.and_then(|fd| follow(fd as c_int, params)))
}

/// A ring of the program's own; one that cannot be followed is refused.
fn follow(fd: c_int, params: *const Params) -> Sys<c_int> {
    // SAFETY: as in `set_up`.
    let params = unsafe { user::read(params) };
    let followed = params.and_then(|params| match params.flags & setup::IOPOLL {
        0 => ring::created(fd, &params),
        // The kernel lets these work on files only.
        _ => Ok(()),
    });
    if followed.is_err() {
        sys::close(fd);
        fallback::count(Count::IoUringRefused);
        return Err(libc::ENOSYS);
    }
    fallback::count(Count::IoUringCarried);
    Ok(fd)
}

/// A ring has one descriptor less.
pub fn closed(id: u32) {
    ring::closed(id, || {
        pending::forget(id);
        buffers::forget(id);
    });
}

/// `io_uring_enter`: the kernel carries it out, after a look at what is about to be submitted.
pub fn enter(fd: c_int, submit: c_uint) -> Answer<c_int> {
    let Descriptor::Ring(id) = table::get(fd) else { return None };
    if submit > 0 {
        ring::ring(id).look(|entries, put| Batch::of(id).look(entries, put));
    }
    None
}

/// `io_uring_register`.
///
/// # Safety
/// The contract of the system call, with any addresses.
pub unsafe fn register(fd: c_int, op: c_uint, arg: *mut c_void, count: c_uint) -> Answer<c_int> {
    let Descriptor::Ring(id) = table::get(fd) else { return None };
    // SAFETY: the caller keeps the contract.
    let files = |updates: bool, tags: bool| unsafe { fixed_files(arg, count, updates, tags) };
    match op {
        // By another number the ring is not known; of another size neither; and one may have no NOP.
        register::RING_FDS | register::RESIZE_RINGS | register::RESTRICTIONS => Some(Err(libc::EINVAL)),
        register::FILES => files(false, false),
        register::FILES2 => files(false, true),
        register::FILES_UPDATE => files(true, false),
        register::FILES_UPDATE2 => files(true, true),
        register::ENABLE_RINGS => {
            // SAFETY: no memory.
            let enabled =
                unsafe { kernel(libc::SYS_io_uring_register, [fd as u64, op.into(), arg as u64, count.into(), 0, 0]) };
            Some(enabled.map(|done| done as c_int).inspect(|_| ring::ring(id).enabled()))
        }
        // SAFETY: the caller keeps the contract.
        register::PBUF_RING => Some(unsafe { buffers::register(fd, id, op, arg, count) }),
        register::UNREGISTER_PBUF_RING => {
            // SAFETY: as above.
            unsafe { buffers::unregister(id, arg) };
            None
        }
        // SAFETY: as above.
        register::PBUF_STATUS => unsafe { buffers::status(id, arg) },
        register::SYNC_CANCEL => {
            // SAFETY: any bytes are a request.
            let wanted = unsafe { user::read(arg.cast::<SyncCancel>()) }.ok()?;
            submission::cancel_of(id, wanted.flags, wanted.addr, wanted.fd, wanted.opcode).map(|_| Ok(0))
        }
        _ => None,
    }
}

/// `struct io_uring_sync_cancel_reg`, as far as it is used.
#[repr(C)]
#[derive(Clone, Copy)]
struct SyncCancel {
    addr: u64,
    fd: i32,
    flags: u32,
    _timeout: [i64; 2],
    opcode: u8,
}

/// The kernel would use the pairs behind accelerated descriptors: EBADF, as for a ring among them.
///
/// # Safety
/// As [`register()`].
unsafe fn fixed_files(arg: *mut c_void, count: c_uint, updates: bool, tags: bool) -> Answer<c_int> {
    // SAFETY: the program's memory, wherever it is.
    let (fds, count) = unsafe {
        match (updates, tags) {
            (false, false) => (arg as u64, count),
            // `struct io_uring_files_update`: a place, nothing, an address.
            (true, false) => (user::read(arg.cast::<[u64; 2]>()).ok()?[1], count),
            // `struct io_uring_rsrc_register`: their number, nothing, an address.
            (false, true) => {
                let [number, _, data] = user::read(arg.cast::<[u64; 3]>()).ok()?;
                (data, number as u32)
            }
            // `struct io_uring_rsrc_update2`: a place, an address, tags, their number.
            (true, true) => {
                let [_, data, _, number] = user::read(arg.cast::<[u64; 4]>()).ok()?;
                (data, number as u32)
            }
        }
    };
    if fds == 0 {
        return None;
    }
    let fds = operation::numbers(fds, count.min(FILES)).ok()?;
    fds.iter().any(|fd| submission::is_ours(*fd)).then_some(Err(libc::EBADF))
}

/// In a forked child.
pub fn forked() {
    ring::forked();
    buffers::forked();
    pending::forked();
    post::forked();
}

/// A mapping of a ring, for as long as this lives. A forked child does not have it.
pub struct Mapping {
    at: *mut c_void,
    bytes: usize,
}

impl Mapping {
    fn of(fd: c_int, offset: u64, bytes: usize) -> Sys<Self> {
        let (access, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
        // SAFETY: a fresh mapping.
        let at = unsafe { libc::mmap(null_mut(), bytes, access, shared, fd, offset as i64) };
        if at == libc::MAP_FAILED {
            return Err(sys::errno());
        }
        // SAFETY: the mapping just made.
        unsafe { libc::madvise(at, bytes, libc::MADV_DONTFORK) };
        Ok(Self { at, bytes })
    }

    /// The address of an offset within.
    fn at(&self, offset: u32) -> *const u8 {
        self.at.cast::<u8>().wrapping_add(offset as usize)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: made by `of`, and nobody has it any more.
        unsafe { libc::munmap(self.at, self.bytes) };
    }
}
