//! io_uring. Its operations are no calls that could be caught, so its submissions are looked at in `io_uring_enter`.
//! Operations on accelerated descriptors are carried out here (`submission`, `operation`), at once or when their
//! sockets are ready (`pending`). The kernel posts their completions (`post`). All other submissions stay as they are,
//! for the kernel.

mod abi;
mod buffers;
mod operation;
mod pending;
mod post;
mod ring;
mod submission;
#[cfg(test)]
mod tests;

pub use ring::copied;

use crate::fd::table::{self, Descriptor};
use crate::io::user;
use crate::lifecycle::registration;
use crate::observe::fallback;
use crate::ready::service_death;
use abi::{Params, register, setup};
use core::ptr::null_mut;
use libc::{c_int, c_uint, c_void};
use submission::Batch;
use towpath_client::sys::{self, Sys};
use towpath_hook::Answer;
use towpath_hook::uring::by_kernel as kernel;
use towpath_ring::report::Count;

/// Environment variable. `kernel` leaves io_uring to the kernel alone: the program must then not use accelerated
/// sockets with it. `off` refuses io_uring.
const VARIABLE: &str = "TOWPATH_IO_URING";
/// The most fixed files that one `io_uring_register` is checked for.
const FILES: u32 = 1 << 20;

fn chosen(what: &str) -> bool {
    std::env::var_os(VARIABLE).is_some_and(|value| value == what)
}

fn refuse() -> Answer<c_int> {
    fallback::count(Count::IoUringRefused);
    Some(Err(libc::ENOSYS))
}

/// Is io_uring left to the kernel?
fn is_left() -> bool {
    // Without a service all sockets are the kernel's.
    let left = chosen("kernel") || (registration::start().is_none() && !service_death::is_awaited());
    if left {
        fallback::count(Count::IoUringLeft);
    }
    left
}

/// `io_uring_setup` by a path that hides the ring's further calls: ENOSYS, as from a kernel without io_uring.
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
    // SAFETY: `user::read` accepts any address, and any bytes are valid `Params`. On EFAULT the kernel gives the error.
    let wanted = unsafe { user::read(params) }.ok()?.flags;
    // With SQPOLL a kernel thread takes submissions without a call, so nobody could look at them. EPERM is the error
    // for programs that lack the right to it.
    if wanted & (setup::SQPOLL | setup::SQ_AFF) != 0 {
        fallback::count(Count::IoUringRefused);
        return Some(Err(libc::EPERM));
    }
    if wanted & setup::REGISTERED_FD_ONLY != 0 || wanted >= setup::UNKNOWN {
        fallback::count(Count::IoUringRefused);
        return Some(Err(libc::EINVAL));
    }
    if post::start().is_err() {
        // The library cannot make a ring of its own. The kernel will refuse the program a ring too, with the reason.
        return None;
    }
    // SAFETY: the kernel checks the address itself and answers EFAULT.
    let made = unsafe { kernel(libc::SYS_io_uring_setup, [entries.into(), params as u64, 0, 0, 0, 0]) };
    Some(made.and_then(|fd| follow(fd as c_int, params)))
}

/// Records a ring that the program has made. A ring that cannot be recorded is closed again and refused.
fn follow(fd: c_int, params: *const Params) -> Sys<c_int> {
    // SAFETY: `user::read` accepts any address, and any bytes are valid `Params`.
    let params = unsafe { user::read(params) };
    let followed = params.and_then(|params| match params.flags & setup::IOPOLL {
        0 => ring::created(fd, &params),
        // An IOPOLL ring takes operations on files only, so there is nothing to look at.
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

/// A listener has joined another service under this descriptor.
pub fn moved(fd: c_int) {
    pending::moved(fd);
}

/// A descriptor of the ring `id` has been closed.
pub fn closed(id: u32) {
    ring::closed(id, || {
        pending::forget(id);
        buffers::forget(id);
    });
}

/// `io_uring_enter`: looks at the entries about to be submitted, then leaves the call to the kernel.
pub fn enter(fd: c_int, submit: c_uint) -> Answer<c_int> {
    let Descriptor::Ring(id) = table::get(fd) else { return None };
    service_death::look();
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
    // SAFETY: `fixed_files` accepts any address.
    let files = |updates: bool, tags: bool| unsafe { fixed_files(arg, count, updates, tags) };
    match op {
        // The library would lose a ring that has another number (RING_FDS) or size. Restrictions might forbid the NOPs
        // that replace operations.
        register::RING_FDS | register::RESIZE_RINGS | register::RESTRICTIONS => Some(Err(libc::EINVAL)),
        register::FILES => files(false, false),
        register::FILES2 => files(false, true),
        register::FILES_UPDATE => files(true, false),
        register::FILES_UPDATE2 => files(true, true),
        register::ENABLE_RINGS => {
            // SAFETY: IORING_REGISTER_ENABLE_RINGS uses no memory of the program.
            let enabled =
                unsafe { kernel(libc::SYS_io_uring_register, [fd as u64, op.into(), arg as u64, count.into(), 0, 0]) };
            Some(enabled.map(|done| done as c_int).inspect(|_| ring::ring(id).enabled()))
        }
        // SAFETY: `register` accepts any address.
        register::PBUF_RING => Some(unsafe { buffers::register(fd, id, op, arg, count) }),
        register::UNREGISTER_PBUF_RING => {
            // SAFETY: `unregister` accepts any address.
            unsafe { buffers::unregister(id, arg) };
            None
        }
        // SAFETY: `status` accepts any address.
        register::PBUF_STATUS => unsafe { buffers::status(id, arg) },
        register::SYNC_CANCEL => {
            // SAFETY: `user::read` accepts any address, and any bytes are a valid `SyncCancel`.
            let wanted = unsafe { user::read(arg.cast::<SyncCancel>()) }.ok()?;
            submission::cancel_of(id, wanted.flags, wanted.addr, wanted.fd, wanted.opcode).map(|_| Ok(0))
        }
        _ => None,
    }
}

/// The beginning of `struct io_uring_sync_cancel_reg`.
#[repr(C)]
#[derive(Clone, Copy)]
struct SyncCancel {
    addr: u64,
    fd: i32,
    flags: u32,
    _timeout: [i64; 2],
    opcode: u8,
}

/// EBADF for fixed files that contain an accelerated descriptor, as Linux answers for a ring among them. The kernel
/// would use the socketpair behind the descriptor.
///
/// # Safety
/// As [`register()`]: any address is allowed.
unsafe fn fixed_files(arg: *mut c_void, count: c_uint, updates: bool, tags: bool) -> Answer<c_int> {
    // SAFETY: `user::read` accepts any address, and any bytes are valid numbers.
    let (fds, count) = unsafe {
        match (updates, tags) {
            (false, false) => (arg as u64, count),
            // `struct io_uring_files_update`: an offset, padding, an address.
            (true, false) => (user::read(arg.cast::<[u64; 2]>()).ok()?[1], count),
            // `struct io_uring_rsrc_register`: a count, padding, an address.
            (false, true) => {
                let [number, _, data] = user::read(arg.cast::<[u64; 3]>()).ok()?;
                (data, number as u32)
            }
            // `struct io_uring_rsrc_update2`: an offset, an address, the address of tags, a count.
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

/// In a forked child: the rings are its parent's.
pub fn forked() {
    ring::forked();
    buffers::forked();
    pending::forked();
    post::forked();
}

/// A mapping of a ring, unmapped on drop. A forked child does not inherit it.
pub struct Mapping {
    at: *mut c_void,
    bytes: usize,
}

impl Mapping {
    fn of(fd: c_int, offset: u64, bytes: usize) -> Sys<Self> {
        let (access, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
        // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing.
        let at = unsafe { libc::mmap(null_mut(), bytes, access, shared, fd, offset as i64) };
        if at == libc::MAP_FAILED {
            return Err(sys::errno());
        }
        // SAFETY: the range is the mapping just made.
        unsafe { libc::madvise(at, bytes, libc::MADV_DONTFORK) };
        Ok(Self { at, bytes })
    }

    /// The address of an offset in the mapping. It may lie outside: whoever reads it checks.
    fn at(&self, offset: u32) -> *const u8 {
        self.at.cast::<u8>().wrapping_add(offset as usize)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `of` made this mapping, and all users of its addresses are gone with the owner.
        unsafe { libc::munmap(self.at, self.bytes) };
    }
}
