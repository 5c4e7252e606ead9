//! `fcntl`.

use crate::fd::close;
use crate::fd::table::{self, Descriptor, Pending};
use crate::io::sigurg;
use libc::{c_int, c_long};
use towpath_client::private::flag;
use towpath_client::socket::Socket;
use towpath_client::sys;
use towpath_hook::{Answer, outcome, real};

/// Linux's constant, which libc lacks.
const F_SETOWN_EX: c_int = 15;

/// `fcntl` for sockets in slots. All else is left to the kernel.
///
/// # Safety
/// The contract of `fcntl`.
pub unsafe fn fcntl(fd: c_int, cmd: c_int, arg: c_long) -> Answer<c_int> {
    let kind = table::get(fd);
    if kind == Descriptor::Kernel {
        return None;
    }
    match (cmd, kind) {
        // SAFETY: the arguments are those of the program's `fcntl`, and the kernel checks addresses.
        (libc::F_DUPFD | libc::F_DUPFD_CLOEXEC, _) => close::duplicate(fd, || unsafe { real::fcntl(fd, cmd, arg) }),
        (libc::F_SETOWN | F_SETOWN_EX, Descriptor::Pending(_)) => {
            table::update_pending(fd, |pending| pending.owned = true);
            None
        }
        (libc::F_SETOWN | F_SETOWN_EX, Descriptor::Slot { slot, generation }) => {
            let socket = Socket::at(slot, generation)?;
            // SAFETY: the arguments are those of the program's `fcntl`, and the kernel checks addresses.
            let set = outcome(unsafe { real::fcntl(fd, cmd, arg) });
            socket.mark(flag::FILE_CHANGED, true);
            Some(set.inspect(|_| sigurg::set_owner(&socket, cmd, arg)))
        }
        // The descriptor's socket stores the flags that have no effect on a slot.
        (libc::F_GETFL, Descriptor::Slot { slot, generation }) => {
            let socket = Socket::at(slot, generation)?;
            let nonblock = if socket.has(flag::NONBLOCK) { libc::O_NONBLOCK } else { 0 };
            Some(sys::fcntl(fd, cmd, 0).map(|flags| flags & !libc::O_NONBLOCK | nonblock))
        }
        (libc::F_SETFL, Descriptor::Pending(Pending { lost: true, .. })) => {
            table::update_pending(fd, |pending| pending.nonblock = arg as c_int & libc::O_NONBLOCK != 0);
            None
        }
        (libc::F_SETFL, Descriptor::Slot { slot, generation }) => {
            let socket = Socket::at(slot, generation)?;
            let flags = arg as c_int;
            if flags & !(libc::O_ACCMODE | libc::O_NONBLOCK) != 0 {
                socket.mark(flag::FILE_CHANGED, true);
            }
            let own = if socket.kernel_half() { libc::O_NONBLOCK } else { 0 };
            Some(sys::fcntl(fd, cmd, flags & !libc::O_NONBLOCK | own).inspect(|_| {
                socket.mark(flag::NONBLOCK, flags & libc::O_NONBLOCK != 0);
            }))
        }
        (libc::F_GETFD | libc::F_SETFD | libc::F_GETOWN, _) => None,
        // The kernel carries it out on the open file.
        (_, Descriptor::Slot { slot, generation }) => {
            Socket::at(slot, generation)?.mark(flag::FILE_CHANGED, true);
            None
        }
        _ => None,
    }
}
