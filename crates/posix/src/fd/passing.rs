//! Descriptor passing: sockets that leave the process by `exec` or in a message (SCM_RIGHTS), and sockets that arrive.
//! The sender tells the service the name of the socket. The receiver shows the service its descriptor, learns the
//! socket's slot, and goes on where the sender has stopped.
//!
//! A passed socket is marked by options of its socketpair, or of a listener's kernel half, that have no other use there. So a receiver need not ask the
//! service about other descriptors. A program without the library cannot use a connection: writes fail with EPIPE, reads
//! with EAGAIN. A listener accepts there what comes to its kernel half.

use crate::fd::standard_streams;
use crate::fd::table::{self, Descriptor, Pending};
use crate::io::user;
use crate::lifecycle::{kernel_half, registration};
use core::sync::atomic::{AtomicI32, Ordering};
use libc::{c_int, cmsghdr, mmsghdr, msghdr, timeval};
use std::ffi::CString;
use towpath_client::private::flag;
use towpath_client::session::{self, Session};
use towpath_client::socket::Socket;
use towpath_client::stacks;
use towpath_client::sys::{self, Sys};
use towpath_hook::{Answer, outcome, real};
use towpath_ring::control::Request;
use towpath_ring::lines::app_flags;

/// Environment variable for a program that inherits descriptors: one more than the highest of them. It tells a program
/// without `/proc`, and makes one hooked whose environment has lost the library.
const VARIABLE: &str = "TOWPATH_INHERITED";
/// Descriptors below this are always looked at. `posix_spawn` may have put a socket there without the library's notice.
const ALWAYS_LOOKED_AT: c_int = 64;
/// Marks a pair whose socket has been named, as the pair's `SO_RCVLOWAT`: "towp".
const MARK: c_int = 0x746f_7770;
/// The most descriptors in one message (Linux: `SCM_MAX_FD`).
const MOST_RIGHTS: usize = 253;

/// The process that has made a copy for its next program, which the table does not list; 0 = none has.
static UNSEEN: AtomicI32 = AtomicI32::new(0);

/// Tells the service the name of the socket behind `fd`, which may appear in another process. Also called in a `vfork`
/// child, on its parent's memory.
pub fn name(fd: c_int, socket: &Socket) {
    socket.mark(flag::SHARED, true);
    if socket.kernel_half() {
        kernel_half::lend(fd, socket);
        socket.app().flags.fetch_or(app_flags::PASSED, Ordering::AcqRel);
    }
    if socket.has(flag::NAMED) {
        return;
    }
    let request = Request::Name { slot: socket.slot.raw(), generation: socket.generation };
    if socket.session.send(&request, &[fd]).is_err() {
        return;
    }
    stacks::name(fd, socket);
    if socket.kernel_half() {
        let _ = sys::setsockopt(fd, libc::SOL_SOCKET, kernel_half::SO_NOFCS, 1);
        socket.mark(flag::NAMED, true);
        return;
    }
    let _ = sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, MARK);
    let soon = timeval { tv_sec: 0, tv_usec: 1 };
    let len = size_of::<timeval>() as libc::socklen_t;
    // SAFETY: `soon` has `len` bytes. `shutdown` takes numbers and no memory.
    unsafe {
        real::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, (&raw const soon).cast(), len);
        real::shutdown(fd, libc::SHUT_WR);
    }
    socket.mark(flag::NAMED, true);
}

/// Takes a descriptor that has come from elsewhere into the table, if it is a socket for the library.
pub fn take(fd: c_int) {
    let option = |name| sys::getsockopt::<c_int>(fd, libc::SOL_SOCKET, name, 0);
    match option(libc::SO_DOMAIN) {
        Ok(libc::AF_UNIX) if option(libc::SO_RCVLOWAT) == Ok(MARK) => adopt(fd),
        // Accepted connections inherit the mark.
        Ok(libc::AF_INET | libc::AF_INET6)
            if option(kernel_half::SO_NOFCS) == Ok(1) && option(libc::SO_ACCEPTCONN) == Ok(1) =>
        {
            adopt(fd);
        }
        Ok(domain @ (libc::AF_INET | libc::AF_INET6)) if option(libc::SO_PROTOCOL) == Ok(libc::IPPROTO_TCP) => {
            if let Some(pending) = pending(fd, domain == libc::AF_INET6)
                && registration::start().is_some()
            {
                table::set(fd, Descriptor::Pending(pending));
            }
        }
        _ => {}
    }
}

/// Goes on with a named socket where its sender has stopped.
fn adopt(fd: c_int) {
    let Some((session, slot, generation)) = registration::adopt(fd) else { return };
    let Some(slot) = session.region.slot(slot) else { return };
    let socket = Socket { session, slot, generation };
    if !socket.is_gone() {
        socket.mark(flag::SHARED | flag::NAMED, true);
    }
    table::set(fd, table::kind_of(&socket));
    standard_streams::follow(fd);
}

/// The pending socket, if `fd` is a kernel socket that has neither listened nor connected.
fn pending(fd: c_int, six: bool) -> Option<Pending> {
    let bound = crate::lifecycle::address::of_kernel(fd, six).is_ok_and(|local| local.1 != 0);
    sys::is_closed(fd).then(|| Pending { six, bound, options: true, emulated: true, ..Pending::default() })
}

/// Takes the descriptors that the program has inherited into the table. A shell that libc has started (`system`, `popen`)
/// has no variable that tells of them.
pub fn inherit() {
    let end = std::env::var(VARIABLE).ok().and_then(|value| value.parse::<c_int>().ok());
    if end.is_some() {
        // SAFETY: the program has not begun, so no other thread uses the environment.
        unsafe { std::env::remove_var(VARIABLE) };
    }
    let Some(open) = open_descriptors() else {
        return (0..end.unwrap_or(0).clamp(ALWAYS_LOOKED_AT, table::NUMBERS as c_int)).for_each(take);
    };
    open.into_iter().filter(|fd| *fd < table::NUMBERS as c_int).for_each(take);
}

/// The process's descriptors; `None` if `/proc` is not there.
fn open_descriptors() -> Option<Vec<c_int>> {
    let names = std::fs::read_dir("/proc/self/fd").ok()?;
    Some(names.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

/// The process is about to execute another program: names the sockets that it will inherit. Returns the environment
/// variables that the new program needs; none if it inherits no socket.
pub fn executing() -> Vec<CString> {
    let Some(session) = session::get() else { return Vec::new() };
    let mut end = 0;
    for (fd, kind) in table::within(0, u32::MAX) {
        let stays = || sys::fcntl(fd, libc::F_GETFD, 0).is_ok_and(|flags| flags & libc::FD_CLOEXEC == 0);
        match kind {
            Descriptor::Slot { slot, generation } if stays() => {
                if let Some(socket) = Socket::at(slot, generation) {
                    name(fd, &socket);
                    end = fd + 1;
                }
            }
            Descriptor::Pending(_) if stays() => end = fd + 1,
            _ => {}
        }
    }
    if session.is_dead() {
        return Vec::new();
    }
    if end == 0 && UNSEEN.load(Ordering::Relaxed) != sys::getpid() {
        return Vec::new();
    }
    needs(session, end)
}

fn needs(session: &Session, end: c_int) -> Vec<CString> {
    let socket = [b"TOWPATH_SOCKET=", session.path()].concat();
    [socket, format!("{VARIABLE}={end}").into_bytes()]
        .into_iter()
        .filter_map(|entry| CString::new(entry).ok())
        .collect()
}

/// A copy of `fd` is made that the table cannot list: by `posix_spawn`, or in a `vfork` child.
pub fn unseen_copy(fd: c_int) {
    if let Some(socket) = table::socket(fd) {
        name(fd, &socket);
        UNSEEN.store(sys::getpid(), Ordering::Relaxed);
    }
}

fn in_message(fd: c_int) {
    if let Some(socket) = table::socket(fd) {
        name(fd, &socket);
    }
}

/// Passes each descriptor in a message's control data to `each`.
///
/// # Safety
/// `msg` and what it names may be any addresses.
unsafe fn rights(msg: *const msghdr, mut each: impl FnMut(c_int)) -> Sys<()> {
    // SAFETY: `user::read` accepts any address, and any bytes are a valid header.
    let msg = unsafe { user::read(msg) }?;
    let (start, length) = (msg.msg_control.cast::<u8>().cast_const(), msg.msg_controllen as usize);
    if start.is_null() {
        return Ok(());
    }
    let (header, align) = (size_of::<cmsghdr>(), align_of::<cmsghdr>());
    let mut at = 0;
    while at + header <= length {
        // SAFETY: `user::read` accepts any address, and any bytes are a valid value.
        let part = unsafe { user::read(start.wrapping_add(at).cast::<cmsghdr>()) }?;
        let len = part.cmsg_len as usize;
        if len < header || len > length - at {
            break;
        }
        if (part.cmsg_level, part.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            for n in 0..((len - header) / size_of::<c_int>()).min(MOST_RIGHTS) {
                // SAFETY: `user::read` accepts any address, and any bytes are a valid descriptor number.
                each(unsafe { user::read(start.wrapping_add(at + header).cast::<c_int>().wrapping_add(n)) }?);
            }
        }
        at += len.next_multiple_of(align);
    }
    Ok(())
}

/// `sendmsg` on a socket that is not accelerated: names the sockets that the message passes.
///
/// # Safety
/// `msg` and what it names may be any addresses.
pub unsafe fn send(msg: *const msghdr) {
    // Without a session there is no accelerated socket to pass.
    if session::get().is_some() {
        // SAFETY: `rights` accepts any addresses. The kernel reports errors of the message.
        let _ = unsafe { rights(msg, in_message) };
    }
}

/// `recvmsg` on a socket that is not accelerated.
///
/// # Safety
/// The contract of `recvmsg`.
pub unsafe fn receive(fd: c_int, msg: *mut msghdr, flags: c_int) -> Answer<isize> {
    // SAFETY: the caller keeps the contract of `recvmsg`, and the kernel has filled the message in.
    unsafe {
        let received = outcome(real::recvmsg(fd, msg, flags));
        if received.is_ok() {
            let _ = rights(msg, take);
        }
        Some(received)
    }
}

/// [`send`] for `sendmmsg`.
///
/// # Safety
/// As [`send`].
pub unsafe fn send_many(msgs: *const mmsghdr, count: libc::c_uint) {
    for n in 0..count.min(libc::UIO_MAXIOV as u32) as usize {
        // SAFETY: the address is only computed; `send` accepts any.
        unsafe { send((&raw const (*msgs.wrapping_add(n)).msg_hdr).cast()) };
    }
}

/// [`receive`] for `recvmmsg`.
///
/// # Safety
/// The contract of `recvmmsg`.
pub unsafe fn receive_many(
    fd: c_int,
    msgs: *mut mmsghdr,
    count: libc::c_uint,
    flags: c_int,
    timeout: *mut libc::timespec,
) -> Answer<c_int> {
    // SAFETY: the address is only computed.
    let header = |n: usize| unsafe { &raw mut (*msgs.wrapping_add(n)).msg_hdr };
    // SAFETY: the caller keeps the contract of `recvmmsg`, and the kernel has filled the messages in.
    unsafe {
        let received = outcome(real::recvmmsg(fd, msgs, count, flags, timeout));
        for n in 0..received.unwrap_or(0) as usize {
            let _ = rights(header(n), take);
        }
        Some(received)
    }
}
