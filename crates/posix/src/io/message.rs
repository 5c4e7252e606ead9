//! `recvmsg`, `sendmsg`, `recvmmsg`, `sendmmsg` and `sendfile`.

use crate::fd::table::{self, Descriptor};
use crate::io::{copy, receive, secure, send, user};
use crate::options::table::INQ;
use core::mem::offset_of;
use core::sync::atomic::Ordering;
use libc::{c_int, c_uint, iovec, mmsghdr, msghdr, off_t, sockaddr, socklen_t, timespec};
use std::time::Instant;
use towpath_client::private::flag;
use towpath_client::socket::Socket;
use towpath_client::sys::{self, Sys};

/// Linux's limit on the vectors of one call.
const IOV_MAX: usize = 1024;

/// The longest address (Linux: `sockaddr_storage`).
const ADDRESS_MAX: socklen_t = 128;

/// The vectors of a call.
///
/// # Safety
/// `iov` may be any address, but its memory must not go away while the result is in use.
pub unsafe fn vectors<'a>(iov: *const iovec, count: usize) -> Sys<&'a [iovec]> {
    match count {
        0 => Ok(&[]),
        // SAFETY: `is_there` finds whether all of it can be read, and any bytes are vectors. The caller vouches that
        // the memory stays.
        1..=IOV_MAX => unsafe {
            user::is_there(iov, count)?;
            Ok(core::slice::from_raw_parts(iov, count))
        },
        _ => Err(libc::EINVAL),
    }
}

/// A message and its vectors.
///
/// # Safety
/// As [`vectors`].
pub unsafe fn message<'a>(msg: *const msghdr) -> Sys<(msghdr, &'a [iovec])> {
    // SAFETY: `user::read` accepts any address, and any bytes are a header. The caller vouches that the vectors stay.
    unsafe {
        let msg = user::read(msg)?;
        if msg.msg_iovlen as usize > IOV_MAX {
            return Err(libc::EMSGSIZE);
        }
        Ok((msg, vectors(msg.msg_iov, msg.msg_iovlen as usize)?))
    }
}

/// Checks an address that a connected stream ignores, because Linux copies it first.
///
/// # Safety
/// `addr` may be any address.
pub unsafe fn ignored(addr: *const sockaddr, len: socklen_t) -> Sys<()> {
    if addr.is_null() {
        return Ok(());
    }
    if len > ADDRESS_MAX {
        return Err(libc::EINVAL);
    }
    // SAFETY: `is_there` accepts any address.
    unsafe { user::is_there(addr.cast::<u8>(), len as usize) }
}

/// `recvmsg`.
///
/// # Safety
/// `msg` and what it names may be any addresses.
pub unsafe fn receive_message(socket: &Socket, msg: *mut msghdr, flags: c_int) -> Sys<isize> {
    // SAFETY: the memory of the vectors stays for the call, as `recvmsg` asks of its caller; other addresses may be
    // any.
    unsafe {
        let (_, iov) = message(msg)?;
        let taken = receive::receive(socket, iov, flags)?;
        received(socket, msg, flags & libc::MSG_OOB)?;
        Ok(taken as isize)
    }
}

/// Says what came beside the bytes of a message: no name, and no control message but that of `TCP_INQ`.
///
/// # Safety
/// `msg` may be any address.
#[inline]
pub unsafe fn received(socket: &Socket, msg: *mut msghdr, flags: c_int) -> Sys<()> {
    let (mut control_bytes, mut flags) = (0, flags);
    // SAFETY: the addresses of the fields are not read here, and `user::read` and `user::write` accept any address.
    unsafe {
        if socket.private().emulated.load(Ordering::Relaxed) & INQ != 0 {
            let given = user::read(msg.cast_const())?;
            let (bytes, cut) = put_inquiry(socket, &given);
            (control_bytes, flags) = (bytes, flags | cut);
        }
        user::write(&raw mut (*msg).msg_namelen, 0)?;
        user::write(&raw mut (*msg).msg_controllen, control_bytes as _)?;
        user::write(&raw mut (*msg).msg_flags, flags)
    }
}

/// The control message of `TCP_INQ`: a `cmsghdr` and its number.
#[repr(C)]
struct Inquiry {
    len: usize,
    level: c_int,
    kind: c_int,
    unread: c_int,
}

/// Writes the control message of `TCP_INQ`. Returns the bytes of control messages, and MSG_CTRUNC if there was too
/// little room.
#[cold]
fn put_inquiry(socket: &Socket, msg: &msghdr) -> (usize, c_int) {
    let room = msg.msg_controllen;
    if msg.msg_control.is_null() || room < offset_of!(Inquiry, unread) {
        return (0, libc::MSG_CTRUNC);
    }
    let view = socket.view();
    // The end of the stream counts as a byte, as on Linux.
    let unread = i32::from(view.end().fin) + view.readable() as c_int;
    let whole = offset_of!(Inquiry, unread) + size_of::<c_int>();
    let len = whole.min(room);
    let inquiry = Inquiry { len, level: libc::IPPROTO_TCP, kind: libc::TCP_INQ, unread };
    // SAFETY: `inquiry` has at least `len` bytes, and `user::copy` accepts any address of the program.
    match unsafe { user::copy(msg.msg_control.cast(), (&raw const inquiry).cast(), len) } {
        Ok(()) => (size_of::<Inquiry>().min(room), if len < whole { libc::MSG_CTRUNC } else { 0 }),
        // The bytes of the stream have been received, so Linux reports no error.
        Err(_) => (0, 0),
    }
}

/// `sendmsg`. A connected stream socket ignores the name. Of control messages only the type of a TLS record counts.
///
/// # Safety
/// `msg` and what it names may be any addresses.
pub unsafe fn send_message(socket: &Socket, msg: *const msghdr, flags: c_int) -> Sys<isize> {
    // SAFETY: the memory of the vectors stays for the call, as `sendmsg` asks of its caller; other addresses may be
    // any.
    unsafe {
        let (msg, iov) = message(msg)?;
        ignored(msg.msg_name.cast(), msg.msg_namelen.min(ADDRESS_MAX))?;
        let kind = if socket.has(flag::SECURE) { secure::record_type(&msg)? } else { None };
        if let Some(kind) = kind {
            return Ok(secure::send_record(socket, iov, copy::total(iov, 0)?, kind, flags)? as isize);
        }
        Ok(send::send(socket, iov, flags)? as isize)
    }
}

/// Does each message in turn. After a failure the messages before it count.
///
/// # Safety
/// `msgs` may be any address.
unsafe fn each(
    msgs: *mut mmsghdr,
    count: c_uint,
    mut work: impl FnMut(*mut msghdr) -> Sys<(isize, bool)>,
) -> Sys<c_int> {
    // Linux takes no more messages than vectors.
    let count = (count as usize).min(IOV_MAX);
    for done in 0..count {
        let message = msgs.wrapping_add(done);
        // SAFETY: the addresses of the fields are not read here, and `user::write` accepts any address.
        let outcome = unsafe {
            work(&raw mut (*message).msg_hdr).and_then(|(moved, goes_on)| {
                user::write(&raw mut (*message).msg_len, moved as c_uint)?;
                Ok(goes_on)
            })
        };
        match outcome {
            Ok(true) => {}
            Ok(false) => return Ok(done as c_int + 1),
            Err(_) if done > 0 => return Ok(done as c_int),
            Err(errno) => return Err(errno),
        }
    }
    Ok(count as c_int)
}

/// `recvmmsg`.
///
/// # Safety
/// `msgs`, what they name, and `timeout` may be any addresses.
pub unsafe fn receive_messages(
    socket: &Socket,
    msgs: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> Sys<c_int> {
    let give_up = if timeout.is_null() {
        None
    } else {
        // SAFETY: `user::read` accepts any address, and any bytes are a time.
        let time = sys::duration_of(&unsafe { user::read(timeout) }?).ok_or(libc::EINVAL)?;
        // A time beyond the clock's range never comes.
        Instant::now().checked_add(time)
    };
    let for_one = flags & libc::MSG_WAITFORONE != 0;
    let mut flags = flags & !libc::MSG_WAITFORONE;
    // SAFETY: all addresses may be any; the caller vouches that the vectors stay for the call.
    let received = unsafe {
        each(msgs, count, |message| {
            let received = receive_message(socket, message, flags)?;
            if for_one {
                flags |= libc::MSG_DONTWAIT;
            }
            Ok((received, give_up.is_none_or(|end| Instant::now() < end)))
        })
    };
    // Linux stores the remaining time.
    if let (Some(end), Ok(1..)) = (give_up, received) {
        let left = sys::timespec_of(end.saturating_duration_since(Instant::now()));
        // SAFETY: `user::write` accepts any address.
        unsafe { user::write(timeout, left)? };
    }
    received
}

/// `sendmmsg`.
///
/// # Safety
/// `msgs` and what they name may be any addresses.
pub unsafe fn send_messages(socket: &Socket, msgs: *mut mmsghdr, count: c_uint, flags: c_int) -> Sys<c_int> {
    // SAFETY: all addresses may be any; the caller vouches that the vectors stay for the call.
    unsafe { each(msgs, count, |message| Ok((send_message(socket, message, flags)?, true))) }
}

/// `sendfile`.
///
/// # Safety
/// `offset` may be any address.
pub unsafe fn send_file(socket: &Socket, input: c_int, offset: *mut off_t, len: usize) -> Sys<isize> {
    if matches!(table::get(input), Descriptor::Slot { .. }) {
        return Err(libc::EINVAL);
    }
    // SAFETY: `user::read` accepts any address, and any bytes are an offset.
    let start = if offset.is_null() { None } else { Some(unsafe { user::read(offset) }?) };
    if start.is_some_and(|start| start < 0) || sys::is_pipe(input) {
        return Err(libc::EINVAL);
    }
    // Linux's limit for one call.
    let sent = send::from_file(socket, input, start, len.min(0x7fff_f000), 0)?;
    if let Some(start) = start {
        // SAFETY: `user::write` accepts any address.
        unsafe { user::write(offset, start + sent as off_t) }?;
    }
    Ok(sent as isize)
}
