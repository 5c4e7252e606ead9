//! What most calls find: a connection of the process's own that the stack carries, with bytes or room enough. These ways through them need
//! few registers and do one thing; all else they leave to the [`handler`](crate::handler).

use crate::handler::Posix;
use crate::private::Private;
use crate::session::{self, Session};
use crate::socket::Socket;
use crate::{epoll_wait, receive, send, table};
use core::sync::atomic::Ordering;
use libc::{c_int, c_void, epoll_event, size_t, ssize_t};
use towpath_hook::{Answer, Handler, Usual, finish, real};
use towpath_ring::lines::state;
use towpath_ring::{AppLine, Slot, StackLine};

/// The lines of an established connection that the stack carries.
pub struct Lines {
    /// The application's line.
    pub app: &'static AppLine,
    /// The stack's line.
    pub stack: &'static StackLine,
    /// The library's own words.
    pub private: &'static Private,
}

/// Who carries a connection.
pub enum Way {
    /// The stack.
    Stack(Lines),
    /// Both ends themselves.
    Direct,
    /// It is not established, or the slot has been taken away.
    Neither,
}

impl Way {
    /// That of the slot of this generation.
    #[inline(always)]
    pub fn of(session: &'static Session, slot: Slot, generation: u32) -> Self {
        let (lines, private) = (in_register(session.region.lines(slot)), in_register(session.private(slot)));
        let (app, stack) = (&lines.app, &lines.stack);
        // In this order: before a connection is established it says whether it is a direct one.
        if stack.state.load(Ordering::Acquire) != state::ESTABLISHED {
            return Self::Neither;
        }
        if stack.pair.load(Ordering::Relaxed) != 0 {
            return Self::Direct;
        }
        if session.is_dead() || stack.generation.load(Ordering::Acquire) != generation {
            return Self::Neither;
        }
        Self::Stack(Lines { app, stack, private })
    }
}

/// The same reference, which the compiler keeps as one address: else it keeps a base and an offset, and runs out of registers.
#[inline(always)]
#[allow(clippy::pointers_in_nomem_asm_block)] // nothing is done with it there
fn in_register<T>(reference: &T) -> &T {
    #[cfg(target_arch = "x86_64")]
    {
        let mut address: *const T = reference;
        // SAFETY: no instruction.
        unsafe {
            core::arch::asm!("/* {0} */", inout(reg) address, options(pure, nomem, nostack, preserves_flags));
        }
        // SAFETY: the address of the reference.
        unsafe { &*address }
    }
    #[cfg(not(target_arch = "x86_64"))]
    reference
}

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
                match Way::of(session, slot, generation) {
                    Way::Stack(lines) => $module::$by_stack(session, slot, &lines, buf, len).map(|count| count as ssize_t),
                    Way::Direct => Some(ends(fd, buf, len, slot, generation $(, $flags)?)),
                    Way::Neither => None,
                }
            }
        }
    )*};
}

impl Usual for Posix {
    #[inline(always)]
    unsafe fn epoll_wait(epfd: c_int, events: *mut epoll_event, count: c_int, _: c_int) -> Option<c_int> {
        // SAFETY: the caller keeps the contract of `epoll_wait`.
        unsafe { epoll_wait::glance(epfd, events, count) }
    }
    usual! {
        read(*mut c_void): receive::take_by_stack or take_directly;
        recv(*mut c_void, flags out of libc::MSG_DONTWAIT): receive::take_by_stack or take_directly;
        write(*const c_void): send::put_by_stack or put_directly;
        send(*const c_void, flags out of (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)): send::put_by_stack or put_directly;
    }
}
