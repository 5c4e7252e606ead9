//! The user at the other end of a UNIX socket.

use rustix::fd::AsFd;
use std::io;

/// The user at the other end: of a client when it connected, of a server when it began to listen.
pub fn uid(socket: impl AsFd) -> io::Result<u32> {
    Ok(rustix::net::sockopt::socket_peercred(socket)?.uid.as_raw())
}

/// True for root and this process's user, who is the operator. They are believed about other users, too. Root could be
/// any of them, and to the operator this process does no more than he can do himself.
pub fn is_believed(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}
