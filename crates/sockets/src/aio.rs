//! AIO carries no accelerated socket: its operations go past this library to the socketpair that stands in for it. So they are refused,
//! and programs fall back to what is caught.

use crate::fallback;
use crate::session;
use crate::table::{self, Kind};
use crate::user;
use libc::{c_int, c_long, c_ulong, c_void};
use towpath_hook::{Answer, outcome};
use towpath_ring::report::Count;

/// Where the descriptor stands in a `struct iocb`.
const IOCB_FD: usize = 20;

/// Is it a socket of ours? Counts the refusal that follows.
pub fn is_accelerated(fd: c_int) -> bool {
    let ours = matches!(table::get(fd), Kind::Slot { .. });
    if ours {
        fallback::count(Count::AioRefused);
    }
    ours
}

/// `io_submit`: a request on a socket of ours is one that is invalid for its descriptor; those before it are submitted.
///
/// # Safety
/// The contract of `io_submit`: wherever the addresses lead.
pub unsafe fn submit(context: c_ulong, count: c_long, requests: *const *const c_void) -> Answer<c_long> {
    session::get()?;
    for at in 0..usize::try_from(count).ok()? {
        // SAFETY: the program's memory, which need not be there.
        let request = unsafe { user::read(requests.wrapping_add(at)) }.ok()?;
        // SAFETY: as above.
        let fd = unsafe { user::read(request.cast::<u8>().wrapping_add(IOCB_FD).cast::<c_int>()) }.ok()?;
        if !is_accelerated(fd) {
            continue;
        }
        if at == 0 {
            return Some(Err(libc::EINVAL));
        }
        // SAFETY: as above; the kernel looks itself.
        let submitted = outcome(unsafe { libc::syscall(libc::SYS_io_submit, context, at, requests) } as isize);
        return Some(submitted.map(|count| count as c_long));
    }
    None
}
