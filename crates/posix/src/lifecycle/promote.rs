//! Promotion: a pending socket moves into a slot, if the stack takes it.

use crate::fd::table::{self, Pending};
use crate::io::sigurg;
use crate::lifecycle::kernel_half;
use crate::lifecycle::pairs::Pair;
use crate::options::handover;
use crate::ready::rewatch;
use libc::c_int;
use towpath_client::command::{self, Refusal};
use towpath_client::private::flag;
use towpath_client::session::Session;
use towpath_client::socket::Socket;
use towpath_client::stacks;
use towpath_client::sys::{self, Sys};
use towpath_ring::command::{Command, MAY_JOIN, V6ONLY, op};
use towpath_ring::report::Count;

/// Asks the stack by a command to take a pending socket. If the answer names another stack, that one is asked. One that
/// may only join it is asked first.
pub fn promote(fd: c_int, pending: Pending, session: &'static Session, command: Command) -> Result<Socket, Refusal> {
    match promote_at(fd, pending, session, command) {
        Err(Refusal::OtherStack(stack)) => {
            stacks::instead(session, stack, &command, |there| promote_at(fd, pending, there, command))
        }
        Err(Refusal::Join(stack)) if command.flags & MAY_JOIN != 0 => join(fd, pending, stack, command)
            .or_else(|_| promote(fd, pending, session, Command { flags: command.flags & !MAY_JOIN, ..command })),
        taken => taken,
    }
}

/// Asks the stack of a listener's network namespace to join the socket to it. Any error leaves the socket as it was.
fn join(fd: c_int, pending: Pending, stack: u32, command: Command) -> Result<Socket, Refusal> {
    let there = stacks::of_join(stack).ok_or(Refusal::Kernel(Count::ServiceGone))?;
    let command = Command { op: op::JOIN, flags: command.flags & !MAY_JOIN, ..command };
    promote_at(fd, pending, there, command)
}

/// [`promote`], by this session's stack alone.
pub fn promote_at(
    fd: c_int,
    pending: Pending,
    session: &'static Session,
    mut command: Command,
) -> Result<Socket, Refusal> {
    let kernel_half = command.op == op::LISTEN && session.listens_in_kernel();
    if kernel_half && !kernel_half::listens(fd) {
        kernel_half::listen(fd, command.backlog.cast_signed()).map_err(Refusal::Failed)?;
    } else if !kernel_half && command.op == op::LISTEN {
        kernel_half::unlisten(fd, pending.six, (command.local_addr, command.local_port as u16));
    }
    let slot = session.claim_slot().ok_or(Refusal::Kernel(Count::NoSlot))?;
    let app_flags = handover::initial_flags(fd, pending);
    Socket::reset(session, slot, app_flags);
    handover::show_initial(fd, pending, session, slot);
    command.flags |= app_flags;
    let shows = command.local_port != 0 || command.op == op::JOIN;
    let socket = command::open_socket(session, slot, &command, shows.then_some(fd))?;
    socket.mark(flag::SIX, pending.six);
    socket.mark(flag::V6ONLY, command.flags & V6ONLY != 0);
    let put = match kernel_half {
        true => kernel_half::keep(fd, pending, &socket),
        false => replace_descriptors(fd, pending, &socket, command.op == op::CONNECT && !shows),
    };
    put.map_err(|errno| {
        towpath_client::close::abandon(&socket);
        Refusal::Failed(errno)
    })?;
    Ok(socket)
}

/// Puts one end of a socketpair in the place of all descriptors of the kernel socket. The service closes its end when it gives a
/// reserved port back, so the pair `may_reuse` only if none was reserved.
fn replace_descriptors(fd: c_int, pending: Pending, socket: &Socket, may_reuse: bool) -> Sys<()> {
    let status = sys::fcntl(fd, libc::F_GETFL, 0)?;
    let copies = table::copies(fd);
    socket.mark(flag::SHARED, copies.len() > 1);
    socket.mark(flag::NONBLOCK, status & libc::O_NONBLOCK != 0);
    if pending.options {
        handover::import(fd, pending, socket);
    }
    let owner = if pending.owned { sys::fcntl(fd, libc::F_GETOWN, 0).unwrap_or(0) } else { 0 };
    let pair = Pair::for_promoted(socket.session, may_reuse)?;
    let ours = pair.fd;
    if pending.emulated {
        handover::import_emulated(fd, ours, socket);
    }
    let mut watchers = Vec::new();
    for copy in &copies {
        watchers.push((*copy, rewatch::take_pending(*copy)));
        if let Err(errno) = sys::put_over(ours, *copy) {
            pair.close();
            return Err(errno);
        }
    }
    pair.release();
    if owner != 0 && sys::fcntl(fd, libc::F_SETOWN, owner).is_ok() {
        sigurg::set_owner(socket, libc::F_SETOWN, owner.into());
    }
    copies.iter().for_each(|copy| table::set(*copy, table::kind_of(socket)));
    pair.attach(socket, may_reuse && owner == 0);
    pair.installed(socket);
    command::release_holder(socket);
    for (copy, watchers) in watchers {
        rewatch::watch_promoted(copy, socket, watchers);
    }
    Ok(())
}
