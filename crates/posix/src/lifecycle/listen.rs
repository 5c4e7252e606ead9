//! `listen`.

use crate::fd::table::{self, Descriptor, Pending};
use crate::lifecycle::{address, kernel_half, pending, promote, registration, stack_address};
use crate::observe::{fallback, measure};
use crate::ready::service_death;
use libc::c_int;
use towpath_client::command::{self, Refusal};
use towpath_client::socket::Socket;
use towpath_hook::Answer;
use towpath_ring::command::{Command, V6ONLY, op};
use towpath_ring::lines::state;
use towpath_ring::report::Count;

/// Linux's default `net.core.somaxconn`.
const BACKLOG_LIMIT: c_int = 4096;

/// `listen`.
pub fn listen(fd: c_int, backlog: c_int) -> Answer<c_int> {
    match table::get(fd) {
        Descriptor::Pending(pending) => listen_pending(fd, pending, backlog),
        Descriptor::Slot { slot, generation } => {
            let socket = Socket::at(slot, generation)?;
            listen_again(fd, &socket, backlog)
        }
        _ => None,
    }
}

/// `listen` on a socket in a slot.
fn listen_again(fd: c_int, socket: &Socket, backlog: c_int) -> Answer<c_int> {
    let listens = socket.state() == state::LISTENING;
    if socket.kernel_half() {
        if !listens {
            kernel_half::give_back(fd, socket);
            return listen(fd, backlog);
        }
        if let Err(errno) = kernel_half::listen(fd, backlog) {
            return Some(Err(errno));
        }
    } else if !listens {
        return Some(Err(libc::EINVAL));
    }
    Some(command::change_backlog(socket, limited(backlog)).map(|()| 0))
}

/// Linux takes a negative backlog for a huge unsigned one.
fn limited(backlog: c_int) -> u32 {
    (if backlog < 0 { BACKLOG_LIMIT } else { backlog.min(BACKLOG_LIMIT) }) as u32
}

fn listen_pending(fd: c_int, pending: Pending, backlog: c_int) -> Answer<c_int> {
    let Some(session) = registration::start() else {
        let why = fallback::why_no_session();
        return if service_death::is_awaited() {
            listen_alone(fd, backlog, why)
        } else {
            settle_kernel(fd, pending, why)
        };
    };
    let Some(session) = registration::serving(session, fd) else {
        return settle_kernel(fd, pending, Count::Namespace);
    };
    // A socket whose port went when it was told to listen no longer shows that port still, until it listens again.
    let begun = if session.listens_in_kernel() {
        kernel_half::listen(fd, backlog).map(|_| ())
    } else if !pending.bound {
        address::bind_any(fd, pending.six)
    } else {
        Ok(())
    };
    if let Err(errno) = begun {
        return Some(Err(errno));
    }
    table::update_pending(fd, |u| u.bound = true);
    let local = match address::of_kernel(fd, pending.six) {
        Ok(local) if address::is_kernels(local.0) => return settle_kernel(fd, pending, Count::Address),
        Ok(local) if pending.emulated && stack_address::is_foreign(fd, pending, session, local) => {
            return settle_kernel(fd, pending, Count::KernelOption);
        }
        Ok(local) => local,
        Err(errno) => return Some(Err(errno)),
    };
    let flags = if pending.six && pending::is_v6only(fd) { V6ONLY } else { 0 };
    let (local_addr, local_port) = (local.0, local.1.into());
    let command =
        Command { op: op::LISTEN, local_addr, local_port, backlog: limited(backlog), flags, ..Command::default() };
    let answer = match promote::promote(fd, pending, session, command) {
        Ok(_) => {
            fallback::count(Count::Listening);
            Some(Ok(0))
        }
        // The kernel could listen on this address, but would get no packets.
        Err(Refusal::Kernel(_)) if pending.foreign && stack_address::is_not_local(pending.six, local) => {
            Some(Err(libc::EADDRNOTAVAIL))
        }
        Err(Refusal::Kernel(why)) => {
            let left = settle_kernel(fd, pending, why);
            if why == Count::Policy {
                measure::listening(fd, local.1);
            }
            left
        }
        Err(Refusal::Failed(errno)) => Some(Err(errno)),
        Err(Refusal::OtherStack(_) | Refusal::Join(_)) => Some(Err(libc::EADDRNOTAVAIL)),
    };
    if let Some(Err(_)) = answer {
        kernel_half::unlisten(fd, pending.six, local);
    }
    answer
}

/// The kernel alone listens, until there is a service again.
fn listen_alone(fd: c_int, backlog: c_int, why: Count) -> Answer<c_int> {
    fallback::count(why);
    Some(registration::required_but_gone().map_or_else(|| kernel_half::listen(fd, backlog), Err))
}

/// Leaves a pending socket and its `listen` to the kernel, for good.
fn settle_kernel<T>(fd: c_int, pending: Pending, why: Count) -> Answer<T> {
    fallback::count(why);
    if let Some(errno) = registration::required_but_gone() {
        return Some(Err(errno));
    }
    pending::leave(fd, pending);
    None
}
