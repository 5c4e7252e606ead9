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
use towpath_client::stacks::{self, Absent, WantedBy};
use towpath_client::{rejoin, sys};
use towpath_ring::command::{Command, V6ONLY, op};
use towpath_ring::report::Count;

/// How often a stack may refuse a listener, one look after another, before that is its kernel's for good. Two processes that
/// have it may ask at the same time, and then the later one finds it named at its next attempt.
const ATTEMPTS: u32 = 5;

/// Why a listener still waits.
enum Waits {
    /// This session's stack does not take it.
    Refused(&'static Session, Count),
    /// Its stack cannot be had now. That is no refusal, however long it lasts. The service looks for the stack, or starts it,
    /// at most once a second.
    Away,
}

/// Looks for a service, and lets the listeners join it.
pub fn look() {
    let session = match session::get() {
        Some(session) if session.is_dead() => joined(session),
        session => session,
    };
    let more = session.is_none_or(join_listeners);
    if !more {
        // A listener that is lost later has all its attempts.
        session::all().for_each(|session| session.refusals.store(0, Ordering::Relaxed));
    }
    rejoin::looked(more);
}

/// Joins another service than this lost one.
fn joined(lost: &Session) -> Option<&'static Session> {
    kernel_half::give_back_all();
    let named = listeners().map(|(fd, _)| fd).find(|fd| kernel_half::is_named(*fd));
    let session = rejoin::join(named)?;
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
    let (mut more, mut look) = (false, Look::default());
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
            Err(Waits::Refused(by, why)) if !by.is_dead() && look.is_last(by.number, &by.refusals) => {
                fallback::count(why);
                if !kernel_half::is_named(fd) {
                    kernel_half::take_filter_off(fd);
                }
                pending::leave(fd, pending);
            }
            Err(Waits::Refused(..) | Waits::Away) => more = true,
        }
    }
    more
}

/// One look at all listeners that wait.
#[derive(Default)]
struct Look {
    /// The sessions (bits) whose stacks have refused one.
    refused: u32,
}

impl Look {
    /// The stack of the session of this number, which has refused so often before, has refused a listener. Is that its last
    /// refusal? All of a look count once.
    fn is_last(&mut self, session: u32, refusals: &AtomicU32) -> bool {
        let bit = 1 << session;
        if self.refused & bit == 0 {
            self.refused |= bit;
            refusals.fetch_add(1, Ordering::Relaxed);
        }
        refusals.load(Ordering::Relaxed) >= ATTEMPTS
    }
}

fn join_listener(fd: c_int, pending: Pending, home: &'static Session) -> Result<Socket, Waits> {
    let refused = |by: &'static Session| move |why: Count| Waits::Refused(by, why);
    if kernel_half::is_named(fd) {
        return adopt(fd, home).ok_or(Waits::Refused(home, Count::ServiceRefused));
    }
    let session = registration::serving_by(home, fd, WantedBy::Look).map_err(|absent| match absent {
        Absent::Unserved => Waits::Refused(home, Count::Namespace),
        Absent::Away => Waits::Away,
    })?;
    let command = listen_command(fd, pending, session).map_err(refused(session))?;
    let taken = promote::promote_at(fd, pending, session, command);
    let Err(Refusal::OtherStack(number)) = taken else { return taken.map_err(why).map_err(refused(session)) };
    let there = stacks::session(session, number, WantedBy::Look).ok_or(Waits::Away)?;
    promote::promote_at(fd, pending, there, command).map_err(why).map_err(refused(there))
}

/// The command that has a stack take this listener.
fn listen_command(fd: c_int, pending: Pending, session: &'static Session) -> Result<Command, Count> {
    let local = address::of_kernel(fd, pending.six).map_err(|_| Count::Address)?;
    if address::is_kernels(local.0) {
        return Err(Count::Address);
    }
    if pending.emulated && stack_address::is_foreign(fd, pending, session, local) {
        return Err(Count::KernelOption);
    }
    let flags = if pending.six && pending::is_v6only(fd) { V6ONLY } else { 0 };
    let (local_addr, local_port, backlog) = (local.0, local.1.into(), backlog(fd));
    Ok(Command { op: op::LISTEN, local_addr, local_port, backlog, flags, ..Command::default() })
}

fn why(refusal: Refusal) -> Count {
    match refusal {
        Refusal::Kernel(why) => why,
        Refusal::Failed(_) | Refusal::OtherStack(_) | Refusal::Join(_) => Count::ServiceRefused,
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_refusals_of_each_stack_count_once_in_a_look_and_by_themselves() {
        let (home, other) = (AtomicU32::new(0), AtomicU32::new(0));
        for nth in 1..=ATTEMPTS {
            let mut look = Look::default();
            // Two listeners of the one; the other has come later.
            assert_eq!([look.is_last(3, &home), look.is_last(3, &home)], [nth == ATTEMPTS; 2], "look {nth}");
            if nth > 2 {
                assert!(!look.is_last(0, &other), "look {nth}");
            }
        }
        assert_eq!((home.into_inner(), other.into_inner()), (ATTEMPTS, ATTEMPTS - 2));
    }
}
