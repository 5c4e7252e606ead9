//! kTLS (`TCP_ULP`, `SOL_TLS`), for sending only. The send keys go to the stack's kernel. It makes the records from the
//! plaintext that the program writes afterwards. Received bytes stay encrypted: they are already in the program's ring,
//! and the program decrypts them.

use crate::io::send::{self, Filled};
use crate::io::user;
use core::sync::atomic::Ordering;
use core::time::Duration;
use libc::{c_int, c_void, cmsghdr, iovec, msghdr, socklen_t};
use std::time::Instant;
use towpath_client::command::{self, Failure};
use towpath_client::private::flag;
use towpath_client::socket::Socket;
use towpath_client::sys::Sys;
use towpath_client::view::View;
use towpath_client::wait;
use towpath_ring::lines::state;
use towpath_ring::sideband::{RECORD_MOST, Secure, SidebandCommand, VALUE_MOST};

/// Linux's level of the options and control messages of kTLS.
const SOL_TLS: c_int = 282;
const TLS_TX: c_int = 1;
const TLS_RX: c_int = 2;
const TLS_SET_RECORD_TYPE: c_int = 1;
/// The content type of data (RFC 8446 §5.1).
const DATA: u8 = 23;
/// How long the bytes before the keys may take to reach the kernel. A handshake's bytes fit any buffer.
const TAKEN_WITHIN: Duration = Duration::from_secs(5);

/// The kTLS option of this level and name.
pub fn option(level: c_int, name: c_int) -> Option<Secure> {
    match (level, name) {
        (libc::IPPROTO_TCP, libc::TCP_ULP) => Some(Secure::Protocol),
        (SOL_TLS, TLS_TX) => Some(Secure::Send),
        (SOL_TLS, TLS_RX) => Some(Secure::Receive),
        _ => None,
    }
}

/// `setsockopt` of a kTLS option.
///
/// # Safety
/// The contract of `setsockopt`: `value` is null or has `len` readable bytes.
pub unsafe fn set(socket: &Socket, what: Secure, value: *const c_void, len: socklen_t) -> Sys<c_int> {
    let mut bytes = [0; VALUE_MOST as usize];
    let value = match bytes.get_mut(..len as usize) {
        // SAFETY: the slice has room for its length, and the program's side may be any address.
        Some(bytes) if !bytes.is_empty() => unsafe {
            user::copy(bytes.as_mut_ptr(), value.cast(), bytes.len())?;
            bytes
        },
        _ => return Err(libc::EINVAL),
    };
    if socket.state() != state::ESTABLISHED {
        return Err(libc::ENOTCONN);
    }
    // The error of a kernel without kTLS.
    let none = if what == Secure::Protocol { libc::ENOENT } else { libc::ENOPROTOOPT };
    if socket.direct().is_some() || what == Secure::Receive {
        return Err(none);
    }
    let until = Instant::now() + TAKEN_WITHIN;
    loop {
        match told(socket, what, value) {
            Err(libc::EAGAIN) if Instant::now() < until => {
                socket.want_room();
                let _ = wait::until(socket, Some(until), || socket.send_closed() || has_gone(&socket.view()));
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

/// Has the stack's kernel taken all bytes that were sent before?
fn has_gone(view: &View) -> bool {
    view.queued() == 0 && !view.is_sending_file()
}

/// Gives the option's value to the stack by way of the ring. EAGAIN: bytes that were sent before are still in it.
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
    let told = command::post(view.session, view.slot, &SidebandCommand::Secure { at, length, what }.command());
    // Keys must not stay in the ring.
    view.send_ring().write(at, &[0; VALUE_MOST as usize][..value.len()]);
    told.map_err(|failure| failure.errno_or(libc::EOPNOTSUPP))
}

/// The content type of a message, if it is not a data record.
///
/// # Safety
/// The control messages may be any addresses.
pub unsafe fn record_type(msg: &msghdr) -> Sys<Option<u8>> {
    let header = msg.msg_control.cast::<cmsghdr>();
    if header.is_null() || msg.msg_controllen < size_of::<cmsghdr>() {
        return Ok(None);
    }
    // Only the first control message counts, because programs that send records send no other.
    // SAFETY: `user::read` accepts any address, and any bytes are a header or a type. `CMSG_DATA` only adds to the
    // address.
    unsafe {
        let first = user::read(header)?;
        if (first.cmsg_level, first.cmsg_type) != (SOL_TLS, TLS_SET_RECORD_TYPE) {
            return Ok(None);
        }
        let kind = user::read(libc::CMSG_DATA(header))?;
        Ok(Some(kind).filter(|kind| *kind != DATA))
    }
}

/// Sends a record that is not data, or as much as one record holds.
///
/// # Safety
/// The vectors must be readable memory of `total` bytes.
pub unsafe fn send_record(socket: &Socket, iov: &[iovec], total: usize, kind: u8, flags: c_int) -> Sys<usize> {
    let most = (socket.session.geometry.tx_bytes / 4).min(socket.view().send_limit());
    let total = total.min(RECORD_MOST.min(most) as usize);
    send::pump(socket, total, flags, |view, done, room| {
        if room < total - done {
            return Ok(Filled::Beside(0));
        }
        // SAFETY: the caller vouches for the `total` bytes of the vectors.
        let count = unsafe { send::from_vectors(view, iov, total, done, room) }?;
        let (at, length) = (view.app.tx_tail.load(Ordering::Relaxed), count as u32);
        let told = {
            let _commanding = view.private.commanding.lock().ok_or(libc::EAGAIN)?;
            command::post(view.session, view.slot, &SidebandCommand::Record { at, length, kind }.command())
        };
        match told {
            Ok(()) => Ok(Filled::Ring(count)),
            // The stack cannot remember more waiting records.
            Err(Failure::Errno(libc::EAGAIN)) => {
                std::thread::sleep(Duration::from_millis(1));
                Ok(Filled::Beside(0))
            }
            Err(failure) => Err(failure.errno_or(libc::EIO)),
        }
    })
}
