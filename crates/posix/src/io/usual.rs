//! What most calls find: a connection of the process's own that the stack carries, with bytes or room enough. These ways through them need
//! few registers and do one thing; all else they leave to the [`handler`](crate::handler).

use crate::fd::table;
use crate::handler::Posix;
use crate::io::{receive, send};
use crate::ready::epoll_wait;
use libc::{c_int, c_void, epoll_event, size_t, ssize_t};
use towpath_client::carrier::Carrier;
use towpath_client::session;
use towpath_client::socket::Socket;
use towpath_hook::{Answer, Handler, Usual, finish, real};
use towpath_ring::Slot;

/// The socket behind a descriptor, if it is of the process's own session and calls on it are not counted.
#[inline(always)]
fn own(fd: c_int) -> Option<Socket> {
    let (slot, generation) = table::look_for_own(fd)?;
    let session = session::get()?;
    Some(Socket { session, slot: session.region.slot(slot)?, generation })
}

/// What a call on a direct connection returns, of which most is done at once by `way`, and the rest by the handler and libc. The call ends
/// with this.
#[inline(always)]
fn directly(
    (slot, generation): (Slot, u32),
    way: impl FnOnce(&Socket) -> Option<usize>,
    handler: impl FnOnce() -> Answer<ssize_t>,
    real: impl FnOnce() -> ssize_t,
) -> ssize_t {
    let done = session::get().and_then(|session| way(&Socket { session, slot, generation }));
    match done {
        Some(count) => count as ssize_t,
        None => handler().map_or_else(real, finish),
    }
}

/// Calls that move the bytes of one buffer, by both ways.
macro_rules! usual {
    ($($name:ident($buf:ty $(, $flags:ident out of $known:expr)?): $module:ident::$by_stack:ident or $directly:ident;)*) => {$(
        #[inline(always)]
        unsafe fn $name(fd: c_int, buf: $buf, len: size_t $(, $flags: c_int)?) -> Option<ssize_t> {
            /// # Safety
            /// The contract of the function.
            #[inline(never)]
            unsafe fn ends(
                fd: c_int, buf: $buf, len: size_t, slot: Slot, generation: u32 $(, $flags: c_int)?
            ) -> ssize_t {
                // SAFETY: as below.
                unsafe {
                    directly(
                        (slot, generation),
                        |socket| $module::$directly(socket, buf, len),
                        || <Posix as Handler>::$name(fd, buf, len $(, $flags)?),
                        || real::$name(fd, buf, len $(, $flags)?),
                    )
                }
            }
            $(if $flags & !$known != 0 {
                return None;
            })?
            let Socket { session, slot, generation } = own(fd)?;
            // SAFETY: the caller keeps the contract of the function: the buffer has `len` bytes.
            unsafe {
                match Carrier::of(session, slot, generation) {
                    Carrier::Stack(lines) => $module::$by_stack(session, slot, &lines, buf, len).map(|count| count as ssize_t),
                    Carrier::Direct => Some(ends(fd, buf, len, slot, generation $(, $flags)?)),
                    Carrier::Neither => None,
                }
            }
        }
    )*};
}

impl Usual for Posix {
    #[inline(always)]
    unsafe fn epoll_wait(epfd: c_int, events: *mut epoll_event, count: c_int, _: c_int) -> Option<c_int> {
        // SAFETY: the caller keeps the contract of `epoll_wait`.
        unsafe { epoll_wait::fast_path(epfd, events, count) }
    }
    usual! {
        read(*mut c_void): receive::take_by_stack or take_directly;
        recv(*mut c_void, flags out of libc::MSG_DONTWAIT): receive::take_by_stack or take_directly;
        write(*const c_void): send::put_by_stack or put_directly;
        send(*const c_void, flags out of (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)): send::put_by_stack or put_directly;
    }
}
