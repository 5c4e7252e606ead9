//! `readv` and `writev`, and the flags of `preadv2` and `pwritev2`.

use crate::io::{message, receive, send};
use libc::{c_int, iovec, off_t};
use towpath_client::socket::Socket;

/// Linux's flag, which libc does not name.
const RWF_NOWAIT: c_int = 8;

/// The MSG_* flags of a `preadv2` or `pwritev2`. A socket has no positions, so the offset must be -1.
pub fn at_no_position(offset: off_t, flags: c_int) -> Result<c_int, i32> {
    match flags & !RWF_NOWAIT {
        _ if offset != -1 => Err(libc::ESPIPE),
        0 if flags & RWF_NOWAIT != 0 => Ok(libc::MSG_DONTWAIT),
        0 => Ok(0),
        _ => Err(libc::EOPNOTSUPP),
    }
}

/// `readv` with flags. A call with room for no bytes returns at once.
///
/// # Safety
/// The contract of `readv`.
pub unsafe fn read(socket: &Socket, iov: *const iovec, vectors: c_int, flags: c_int) -> Result<usize, i32> {
    // SAFETY: the caller vouches for the vectors and their memory. A negative number becomes one that `vectors`
    // refuses.
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
    // SAFETY: the caller vouches for the vectors and their memory. A negative number becomes one that `vectors`
    // refuses.
    unsafe { send::send(socket, message::vectors(iov, vectors as usize)?, flags) }
}
