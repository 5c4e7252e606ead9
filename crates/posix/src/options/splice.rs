//! `TOWPATH_SPLICE`, by which a proxy hands two connections over to the stack: `setsockopt` on the one, with the descriptor of
//! the other as value. It is an option, so that a program needs no library for it. A kernel answers ENOPROTOOPT.

use crate::fd::table::{self, Descriptor};
use crate::lifecycle::in_flight::Call;
use crate::options::values;
use libc::{c_int, c_void, socklen_t};
use towpath_client::private::flag;
use towpath_client::socket::Socket;
use towpath_client::splice;
use towpath_client::sys::{self, Sys};
use towpath_hook::Answer;

/// Its name at the level `IPPROTO_TCP`: "TP". Linux's options have numbers below 256.
pub const TOWPATH_SPLICE: c_int = 0x5450;

/// `setsockopt`.
///
/// # Safety
/// `value` is null or has `len` readable bytes.
pub unsafe fn set(fd: c_int, value: *const c_void, len: socklen_t) -> Answer<c_int> {
    let one = match table::get(fd) {
        Descriptor::Slot { slot, generation } => Some(Socket::at(slot, generation)?),
        Descriptor::Pending(_) => None,
        _ => return None,
    };
    // SAFETY: the caller vouches for `value`, and any bytes are a number.
    let other = unsafe { values::given::<c_int>(value, len) };
    Some(other.and_then(|other| {
        let one = one.ok_or(libc::ENOTCONN)?;
        let other = named(other)?;
        // Another thread may close either descriptor meanwhile.
        let _one = Call::on(&one);
        let _other = Call::on(&other);
        splice::splice(&one, &other, !one.has(flag::NONBLOCK)).map(|()| 0)
    }))
}

/// The socket behind the descriptor that the value names.
fn named(fd: c_int) -> Sys<Socket> {
    match table::get(fd) {
        Descriptor::Slot { slot, generation } => Socket::at(slot, generation).ok_or(libc::ENOTCONN),
        Descriptor::Pending(_) => Err(libc::ENOTCONN),
        Descriptor::Internal => Err(libc::EBADF),
        _ => match sys::fcntl(fd, libc::F_GETFD, 0) {
            Err(libc::EBADF) => Err(libc::EBADF),
            _ => Err(libc::EOPNOTSUPP),
        },
    }
}
