//! Has an instance watch a socket in a slot.

use crate::ready::instance::{self, waits};
use crate::ready::interest::{EntryName, Interest};
use crate::ready::readiness;
use core::sync::atomic::Ordering;
use libc::{c_int, epoll_event};
use towpath_client::socket::Socket;
use towpath_client::sys::Sys;
use towpath_client::{process, session};

/// No errno: the kernel tells of the instance's sockets (see `past`).
pub const GIVEN_UP: c_int = c_int::MIN;

/// `epoll_ctl` on a socket in a slot. `fd` is a descriptor of it, by which the kernel watches a listener's other half.
pub fn control(
    id: u32,
    op: c_int,
    name: EntryName,
    fd: c_int,
    socket: &Socket,
    event: Option<&epoll_event>,
) -> Sys<c_int> {
    let instance = instance::instance(id);
    let changed = instance.with(|interest| {
        if instance.waits() == waits::OWN {
            return Err(GIVEN_UP);
        }
        if op == libc::EPOLL_CTL_DEL {
            let removed = interest.remove(name, socket, interest.pid == process::pid());
            if let (EntryName::Descriptor(fd), waits::UNSEEN) = (name, instance.waits()) {
                interest.withdraw(instance.descriptor(), fd);
            }
            return removed;
        }
        let event = event.ok_or(libc::EFAULT)?;
        let own = (socket.can_subscribe()).then_some(socket.session);
        session::get().into_iter().chain(own).for_each(|session| instance.subscribe(session, interest));
        match op {
            libc::EPOLL_CTL_ADD => interest.add(name, socket, event)?,
            libc::EPOLL_CTL_MOD => interest.modify(name, socket, event)?,
            _ => return Err(libc::EINVAL),
        }
        if socket.kernel_half() {
            watch_half(instance.descriptor(), op, interest, name, fd, socket)?;
        }
        if event.events & libc::EPOLLEXCLUSIVE as u32 != 0 {
            // While a context is armed, the stack takes its instance for one of those that sleep, and wakes only one.
            instance.waits_through_library(interest);
        }
        if let (EntryName::Descriptor(fd), waits::UNSEEN) = (name, instance.waits())
            && interest.give_notice(instance.descriptor(), fd, socket, event)
        {
            instance.native_first.store(true, Ordering::Relaxed);
        }
        // A sleeping thread has armed only the pair regions that existed when it fell asleep.
        if socket.can_subscribe()
            && socket.direct().is_some()
            && instance.has_sleepers()
            && let Some(context) = interest.context_at(socket.session.number)
        {
            context.arm();
        }
        if readiness::events_for(socket, event.events) != 0 {
            interest.activity = interest.activity.wrapping_add(1);
            instance.nudge();
        }
        Ok(())
    });
    changed.unwrap_or(Err(libc::EAGAIN)).map(|()| 0)
}

/// Has the kernel watch the other half of a listener as its slot is watched.
#[cold]
fn watch_half(epfd: c_int, op: c_int, interest: &mut Interest, name: EntryName, fd: c_int, socket: &Socket) -> Sys<()> {
    if op == libc::EPOLL_CTL_MOD {
        return interest.modify_half(name, socket, fd);
    }
    interest.add_half(epfd, name, socket, fd).inspect_err(|_| {
        let _ = interest.remove(name, socket, interest.pid == process::pid());
    })
}
