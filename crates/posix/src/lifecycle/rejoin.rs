//! After the service's end: the listeners of this process join another service, once there is one.

use crate::fd::table::{self, Descriptor, Pending};
use crate::lifecycle::{address, kernel_half, pending, promote, registration, stack_address};
use crate::observe::fallback;
use crate::ready::rewatch;
use crate::uring;
use core::sync::atomic::{AtomicU32, Ordering};
use libc::{c_int, tcp_info};
use towpath_client::command::Refusal;
use towpath_client::private::flag;
use towpath_client::session::{self, Session};
use towpath_client::socket::Socket;
use towpath_client::{rejoin, stacks, sys};
use towpath_ring::command::{Command, V6ONLY, op};
use towpath_ring::report::Count;

/// How often a service is asked to take a listener. Two processes that have it may ask at the same time, and then the
/// later one finds it named at its next attempt.
const ATTEMPTS: u32 = 5;
/// The attempts with the present service.
static ATTEMPTED: AtomicU32 = AtomicU32::new(0);

/// Looks for a service, and lets the listeners join it.
pub fn look() {
    let session = match session::get() {
        Some(session) if session.is_dead() => joined(session),
        session => session,
    };
    rejoin::looked(session.is_none_or(join_listeners));
}

/// Joins another service than this lost one.
fn joined(lost: &Session) -> Option<&'static Session> {
    kernel_half::give_back_all();
    let named = listeners().map(|(fd, _)| fd).find(|fd| kernel_half::is_named(*fd));
    let session = rejoin::join(named)?;
    ATTEMPTED.store(0, Ordering::Relaxed);
    registration::registered(session);
    fallback::service_is_back(lost);
    Some(session)
}

/// The listeners that wait for a service.
fn listeners() -> impl Iterator<Item = (c_int, Pending)> {
    let pending = |(fd, kind)| match kind {
        Descriptor::Pending(pending) => Some((fd, pending)),
        _ => None,
    };
    table::within(0, u32::MAX).filter_map(pending).filter(|(fd, _)| kernel_half::listens(*fd))
}

/// Lets all listeners join the service of this session. True: some are to try again.
fn join_listeners(session: &'static Session) -> bool {
    let last = ATTEMPTED.fetch_add(1, Ordering::Relaxed) + 1 >= ATTEMPTS;
    let mut more = false;
    for (fd, pending) in listeners() {
        // Its copy may have joined just now.
        if table::get(fd) != Descriptor::Pending(pending) {
            continue;
        }
        match join_listener(fd, pending, session) {
            Ok(socket) => {
                fallback::count(Count::Listening);
                uring::moved(fd);
                if pending.shared && !socket.has(flag::NAMED) {
                    kernel_half::name(fd, &socket);
                }
            }
            Err(_) if session.is_dead() => return true,
            Err(why) if last => {
                fallback::count(why);
                if !kernel_half::is_named(fd) {
                    kernel_half::take_filter_off(fd);
                }
                pending::leave(fd, pending);
            }
            Err(_) => more = true,
        }
    }
    more
}

fn join_listener(fd: c_int, pending: Pending, session: &'static Session) -> Result<Socket, Count> {
    if kernel_half::is_named(fd) {
        return adopt(fd, session).ok_or(Count::ServiceRefused);
    }
    let session = registration::serving(session, fd).ok_or(Count::Namespace)?;
    let local = address::of_kernel(fd, pending.six).map_err(|_| Count::Address)?;
    if address::is_kernels(local.0) {
        return Err(Count::Address);
    }
    if pending.kept && stack_address::is_foreign(fd, pending, session, local) {
        return Err(Count::KernelOption);
    }
    let flags = if pending.six && pending::is_v6only(fd) { V6ONLY } else { 0 };
    let (local_addr, local_port, backlog) = (local.0, local.1.into(), backlog(fd));
    let command = Command { op: op::LISTEN, local_addr, local_port, backlog, flags, ..Command::default() };
    promote::promote(fd, pending, session, command).map_err(|refusal| match refusal {
        Refusal::Kernel(why) => why,
        Refusal::Failed(_) | Refusal::OtherStack(_) | Refusal::Join(_) => Count::ServiceRefused,
    })
}

/// Takes part in a listener that another process has shown to the service already.
fn adopt(fd: c_int, session: &'static Session) -> Option<Socket> {
    let (session, slot, generation) = stacks::adopt(session, fd)?;
    let socket = Socket { session, slot: session.region.slot(slot)?, generation };
    if socket.is_gone() || !socket.kernel_half() {
        return None;
    }
    socket.mark(flag::SHARED | flag::NAMED, true);
    let copies = table::copies(fd);
    let watchers: Vec<_> = copies.iter().map(|copy| (*copy, rewatch::take_pending(*copy))).collect();
    copies.iter().for_each(|copy| table::set(*copy, table::kind_of(&socket)));
    for (copy, watchers) in watchers {
        rewatch::watch_promoted(copy, &socket, watchers);
    }
    Some(socket)
}

/// The backlog of a kernel listener, which the kernel tells in a field that means something else for connections.
fn backlog(fd: c_int) -> u32 {
    // SAFETY: `tcp_info` consists of numbers, for which zeros are valid.
    let zero: tcp_info = unsafe { core::mem::zeroed() };
    sys::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, zero).map_or(0, |info| info.tcpi_sacked)
}
