//! `readv` and `writev`, and what their younger relatives add.

use crate::io::{message, receive, send};
use libc::{c_int, iovec, off_t};
use towpath_client::socket::Socket;

/// A name of Linux that libc lacks.
const RWF_NOWAIT: c_int = 8;

/// The MSG_* flags of a `preadv2` or `pwritev2`; a socket has no positions.
pub fn at_no_position(offset: off_t, flags: c_int) -> Result<c_int, i32> {
    match flags & !RWF_NOWAIT {
        _ if offset != -1 => Err(libc::ESPIPE),
        0 if flags & RWF_NOWAIT != 0 => Ok(libc::MSG_DONTWAIT),
        0 => Ok(0),
        _ => Err(libc::EOPNOTSUPP),
    }
}

/// `readv` with flags. Room for nothing is filled at once.
///
/// # Safety
/// The contract of `readv`.
pub unsafe fn read(socket: &Socket, iov: *const iovec, vectors: c_int, flags: c_int) -> Result<usize, i32> {
    // SAFETY: the caller vouches for all (a negative number is refused).
    unsafe {
        let iov = message::vectors(iov, vectors as usize)?;
        if iov.iter().all(|vector| vector.iov_len == 0) {
            return Ok(0);
        }
        receive::receive(socket, iov, flags)
    }
}

/// `writev` with flags.
///
/// # Safety
/// The contract of `writev`.
pub unsafe fn write(socket: &Socket, iov: *const iovec, vectors: c_int, flags: c_int) -> Result<usize, i32> {
    // SAFETY: the caller vouches for all (a negative number is refused).
    unsafe { send::send(socket, message::vectors(iov, vectors as usize)?, flags) }
}
