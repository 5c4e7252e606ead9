//! Linux AIO on accelerated sockets is refused. Its operations are not caught and would go to the socketpair. Programs
//! fall back to calls that are caught.

use crate::fd::table::{self, Descriptor};
use crate::io::user;
use crate::observe::fallback;
use libc::{c_int, c_long, c_ulong, c_void};
use towpath_client::session;
use towpath_hook::{Answer, outcome};
use towpath_ring::report::Count;

/// The offset of the descriptor in a `struct iocb`.
const IOCB_FD: usize = 20;

/// Is the descriptor an accelerated socket? Counts the refusal that follows.
pub fn is_accelerated(fd: c_int) -> bool {
    let ours = matches!(table::get(fd), Descriptor::Slot { .. });
    if ours {
        fallback::count(Count::AioRefused);
    }
    ours
}

/// `io_submit`. A request on an accelerated socket is refused as invalid for its descriptor. The requests before it are
/// submitted.
///
/// # Safety
/// The contract of `io_submit`, with any addresses.
pub unsafe fn submit(context: c_ulong, count: c_long, requests: *const *const c_void) -> Answer<c_long> {
    session::get()?;
    for at in 0..usize::try_from(count).ok()? {
        // SAFETY: `user::read` accepts any address, and any bytes are a pointer.
        let request = unsafe { user::read(requests.wrapping_add(at)) }.ok()?;
        // SAFETY: `user::read` accepts any address, and any bytes are an integer.
        let fd = unsafe { user::read(request.cast::<u8>().wrapping_add(IOCB_FD).cast::<c_int>()) }.ok()?;
        if !is_accelerated(fd) {
            continue;
        }
        if at == 0 {
            return Some(Err(libc::EINVAL));
        }
        // SAFETY: the arguments of `io_submit` as the program gave them; the kernel checks them.
        let submitted = outcome(unsafe { libc::syscall(libc::SYS_io_submit, context, at, requests) } as isize);
        return Some(submitted.map(|count| count as c_long));
    }
    None
}
