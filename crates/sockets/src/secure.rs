//! kTLS (`TCP_ULP`, `SOL_TLS`): the keys of what is sent go to the stack's kernel, which makes the records; what the program writes after
//! that is plaintext. What is received stays as it comes: the program, in which the stack has put it already, decrypts it.

use crate::block;
use crate::doors;
use crate::private::flag;
use crate::send::{self, Filled};
use crate::socket::Socket;
use crate::sys::Sys;
use crate::user;
use crate::view::View;
use core::sync::atomic::Ordering;
use core::time::Duration;
use libc::{c_int, c_void, cmsghdr, iovec, msghdr, socklen_t};
use std::time::Instant;
use towpath_ring::aside::{Aside, RECORD_MOST, Secure, VALUE_MOST};
use towpath_ring::lines::state;

/// Linux's level of the options and control messages of kTLS.
const SOL_TLS: c_int = 282;
const TLS_TX: c_int = 1;
const TLS_RX: c_int = 2;
const TLS_SET_RECORD_TYPE: c_int = 1;
/// The content type of data (RFC 8446 §5.1).
const DATA: u8 = 23;
/// How long the bytes before the keys may take to reach the kernel: a handshake's fit any buffer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Which of these options it is.
pub fn option(level: c_int, name: c_int) -> Option<Secure> {
    match (level, name) {
        (libc::IPPROTO_TCP, libc::TCP_ULP) => Some(Secure::Protocol),
        (SOL_TLS, TLS_TX) => Some(Secure::Send),
        (SOL_TLS, TLS_RX) => Some(Secure::Receive),
        _ => None,
    }
}

/// `setsockopt` of one of them.
///
/// # Safety
/// The contract of `setsockopt`: `value` is null or has `len` readable bytes.
pub unsafe fn set(socket: &Socket, what: Secure, value: *const c_void, len: socklen_t) -> Sys<c_int> {
    let mut bytes = [0; VALUE_MOST as usize];
    let value = match bytes.get_mut(..len as usize) {
        // SAFETY: the program's memory, and `bytes` has the room.
        Some(bytes) if !bytes.is_empty() => unsafe {
            user::copy(bytes.as_mut_ptr(), value.cast(), bytes.len())?;
            bytes
        },
        _ => return Err(libc::EINVAL),
    };
    if socket.state() != state::ESTABLISHED {
        return Err(libc::ENOTCONN);
    }
    // As by a kernel that does not have it.
    let none = if what == Secure::Protocol { libc::ENOENT } else { libc::ENOPROTOOPT };
    if socket.direct().is_some() || what == Secure::Receive {
        return Err(none);
    }
    let until = Instant::now() + PATIENCE;
    loop {
        match told(socket, what, value) {
            Err(libc::EAGAIN) if Instant::now() < until => {
                socket.want_room();
                let _ = block::until(socket, Some(until), || socket.send_closed() || has_gone(&socket.view()));
            }
            Err(libc::EAGAIN) => return Err(libc::EBUSY),
            Err(libc::EOPNOTSUPP) => return Err(none),
            Err(errno) => return Err(errno),
            Ok(()) => {
                if what == Secure::Send {
                    socket.mark(flag::SECURE, true);
                }
                return Ok(0);
            }
        }
    }
}

/// Has the kernel taken all that was sent?
fn has_gone(view: &View) -> bool {
    view.queued() == 0 && !view.is_sending_file()
}

fn told(socket: &Socket, what: Secure, value: &[u8]) -> Sys<()> {
    let view = &socket.view();
    let _sending = view.private.sending.lock().ok_or(libc::EAGAIN)?;
    let _commanding = view.private.commanding.lock().ok_or(libc::EAGAIN)?;
    if view.send_closed() {
        return Err(libc::EPIPE);
    }
    if !has_gone(view) {
        return Err(libc::EAGAIN);
    }
    let (at, length) = (view.app.tx_tail.load(Ordering::Relaxed), value.len() as u32);
    view.send_ring().write(at, value);
    let told = doors::command(view.session, view.slot, &Aside::Secure { at, length, what }.command());
    // Keys do not lie about.
    view.send_ring().write(at, &[0; VALUE_MOST as usize][..value.len()]);
    told.map_err(|errno| errno.unwrap_or(libc::EOPNOTSUPP))
}

/// The content type that a message asks for, if it is to be a record that is no data.
///
/// # Safety
/// The control messages may be any addresses.
pub unsafe fn record_type(msg: &msghdr) -> Sys<Option<u8>> {
    let header = msg.msg_control.cast::<cmsghdr>();
    if header.is_null() || msg.msg_controllen < size_of::<cmsghdr>() {
        return Ok(None);
    }
    // SAFETY: any bytes are a header and a type; the program's memory is read with care. Only the first message counts, as programs
    // that send records send no other.
    unsafe {
        let first = user::read(header)?;
        if (first.cmsg_level, first.cmsg_type) != (SOL_TLS, TLS_SET_RECORD_TYPE) {
            return Ok(None);
        }
        let kind = user::read(libc::CMSG_DATA(header))?;
        Ok(Some(kind).filter(|kind| *kind != DATA))
    }
}

/// Sends a record that is no data, or the first part of what does not fit one.
///
/// # Safety
/// The vectors must be readable memory.
pub unsafe fn send_record(socket: &Socket, iov: &[iovec], total: usize, kind: u8, flags: c_int) -> Sys<usize> {
    let most = (socket.session.geometry.tx_bytes / 4).min(socket.view().send_limit());
    let total = total.min(RECORD_MOST.min(most) as usize);
    send::pump(socket, total, flags, |view, done, room| {
        let none = Filled { count: 0, in_ring: false };
        if room < total - done {
            return Ok(none);
        }
        // SAFETY: the caller vouches for the vectors.
        let filled = unsafe { send::from_vectors(view, iov, total, done, room) }?;
        let (at, length) = (view.app.tx_tail.load(Ordering::Relaxed), filled.count as u32);
        let told = {
            let _commanding = view.private.commanding.lock().ok_or(libc::EAGAIN)?;
            doors::command(view.session, view.slot, &Aside::Record { at, length, kind }.command())
        };
        match told {
            Ok(()) => Ok(filled),
            // More of them wait than the stack remembers.
            Err(Some(libc::EAGAIN)) => {
                std::thread::sleep(Duration::from_millis(1));
                Ok(none)
            }
            Err(errno) => Err(errno.unwrap_or(libc::EIO)),
        }
    })
}
