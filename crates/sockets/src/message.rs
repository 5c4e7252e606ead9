//! `recvmsg`, `sendmsg` and the calls that take many messages or a file.

use crate::socket::Socket;
use crate::sys::Sys;
use crate::table::{self, Kind};
use crate::{receive, send};
use libc::{c_int, c_uint, iovec, mmsghdr, msghdr, off_t, timespec};
use std::time::Instant;

/// Linux's limit on the vectors of one call.
const IOV_MAX: usize = 1024;

/// The vectors of a call.
///
/// # Safety
/// `iov` must point at `count` vectors.
pub unsafe fn vectors<'a>(iov: *const iovec, count: usize) -> Sys<&'a [iovec]> {
    match count {
        0 => Ok(&[]),
        1..=IOV_MAX if iov.is_null() => Err(libc::EFAULT),
        // SAFETY: the caller vouches for it.
        1..=IOV_MAX => Ok(unsafe { core::slice::from_raw_parts(iov, count) }),
        _ => Err(libc::EINVAL),
    }
}

/// The messages of a call, of which Linux takes no more than it takes vectors.
///
/// # Safety
/// `msgs` must be null or point at `count` messages that nobody else uses meanwhile.
unsafe fn headers<'a>(msgs: *mut mmsghdr, count: c_uint) -> Sys<&'a mut [mmsghdr]> {
    match (count as usize).min(IOV_MAX) {
        0 => Ok(&mut []),
        _ if msgs.is_null() => Err(libc::EFAULT),
        // SAFETY: the caller vouches for it.
        count => Ok(unsafe { core::slice::from_raw_parts_mut(msgs, count) }),
    }
}

/// `recvmsg`.
///
/// # Safety
/// `msg` is null or valid; its vectors are writable memory.
pub unsafe fn receive_message(socket: &Socket, msg: *mut msghdr, flags: c_int) -> Sys<isize> {
    // SAFETY: the caller keeps the contract of `recvmsg`.
    unsafe {
        let msg = msg.as_mut().ok_or(libc::EFAULT)?;
        let iov = vectors(msg.msg_iov, msg.msg_iovlen)?;
        let received = receive::receive(socket, iov, flags)?;
        msg.msg_namelen = 0;
        msg.msg_controllen = 0;
        msg.msg_flags = flags & libc::MSG_OOB;
        Ok(received as isize)
    }
}

/// `sendmsg`. A connected stream socket ignores the name; it has no control messages that matter here.
///
/// # Safety
/// `msg` is null or valid; its vectors are readable memory.
pub unsafe fn send_message(socket: &Socket, msg: *const msghdr, flags: c_int) -> Sys<isize> {
    // SAFETY: the caller keeps the contract of `sendmsg`.
    unsafe {
        let msg = msg.as_ref().ok_or(libc::EFAULT)?;
        let iov = vectors(msg.msg_iov, msg.msg_iovlen)?;
        Ok(send::send(socket, iov, flags)? as isize)
    }
}

/// `recvmmsg`.
///
/// # Safety
/// `msgs` is null or has `count` entries, each as for [`receive_message`]; `timeout` is null or valid.
pub unsafe fn receive_messages(
    socket: &Socket,
    msgs: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *const timespec,
) -> Sys<c_int> {
    // SAFETY: the caller vouches for both.
    let (msgs, timeout) = unsafe { (headers(msgs, count)?, timeout.as_ref()) };
    // A time that no clock reaches is for ever.
    let give_up = timeout.and_then(crate::poll::duration).and_then(|time| Instant::now().checked_add(time));
    let for_one = flags & libc::MSG_WAITFORONE != 0;
    let mut flags = flags & !libc::MSG_WAITFORONE;
    for (done, message) in msgs.iter_mut().enumerate() {
        // SAFETY: as above.
        match unsafe { receive_message(socket, &raw mut message.msg_hdr, flags) } {
            Ok(received) => message.msg_len = received as c_uint,
            Err(errno) => return if done > 0 { Ok(done as c_int) } else { Err(errno) },
        }
        if for_one {
            flags |= libc::MSG_DONTWAIT;
        }
        if message.msg_len == 0 || give_up.is_some_and(|end| Instant::now() >= end) {
            return Ok(done as c_int + 1);
        }
    }
    Ok(msgs.len() as c_int)
}

/// `sendmmsg`.
///
/// # Safety
/// `msgs` is null or has `count` entries, each as for [`send_message`].
pub unsafe fn send_messages(socket: &Socket, msgs: *mut mmsghdr, count: c_uint, flags: c_int) -> Sys<c_int> {
    // SAFETY: the caller vouches for it.
    let msgs = unsafe { headers(msgs, count)? };
    for (done, message) in msgs.iter_mut().enumerate() {
        // SAFETY: as above.
        match unsafe { send_message(socket, &raw const message.msg_hdr, flags) } {
            Ok(sent) => message.msg_len = sent as c_uint,
            Err(errno) => return if done > 0 { Ok(done as c_int) } else { Err(errno) },
        }
    }
    Ok(msgs.len() as c_int)
}

/// `sendfile`.
///
/// # Safety
/// `offset` is null or valid.
pub unsafe fn send_file(socket: &Socket, input: c_int, offset: *mut off_t, len: usize) -> Sys<isize> {
    if matches!(table::get(input), Kind::Slot { .. }) {
        return Err(libc::EINVAL);
    }
    // SAFETY: the caller keeps the contract of `sendfile`.
    let start = unsafe { offset.as_ref().copied() };
    if start.is_some_and(|start| start < 0) {
        return Err(libc::EINVAL);
    }
    // Linux's limit for one call.
    let sent = send::sendfile(socket, input, start, len.min(0x7fff_f000))?;
    if let Some(start) = start {
        // SAFETY: as above.
        unsafe { *offset = start + sent as off_t };
    }
    Ok(sent as isize)
}
