//! `epoll_create` and `epoll_ctl`.

use crate::fd::table::{self, Descriptor};
use crate::io::user;
use crate::ready::interest::{EntryName, Interest};
use crate::ready::{instance, nested, readiness, service_death};
use libc::{c_int, epoll_event};
use towpath_client::socket::Socket;
use towpath_client::sys::Sys;
use towpath_client::{process, session};
use towpath_hook::{Answer, outcome, real};

/// Makes an instance of a new epoll descriptor of the kernel.
pub fn created(fd: c_int) {
    if let Some(id) = instance::claimed(fd) {
        table::set(fd, Descriptor::Epoll(id));
    }
}

/// `epoll_ctl`.
///
/// # Safety
/// The contract of `epoll_ctl`: `event` is null or valid.
pub unsafe fn control(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> Answer<c_int> {
    let (Descriptor::Epoll(id), mut kind) = (table::get(epfd), table::get(fd)) else { return None };
    if table::socket(fd).is_some_and(|socket| service_death::is_left_alone(&socket)) {
        service_death::give_back();
        kind = table::get(fd);
    }
    if kind == Descriptor::Internal {
        return Some(Err(libc::EBADF));
    }
    if let Descriptor::Slot { slot, generation } = kind {
        // SAFETY: `user::read` accepts any address, and any bytes are a valid event.
        let event = unsafe { user::read(event) }.ok();
        let socket = Socket::at(slot, generation)?;
        return Some(control_slot(id, op, EntryName::Descriptor(fd), fd, &socket, event.as_ref()));
    }
    if let (Descriptor::Epoll(inner), true) = (kind, session::get().is_some()) {
        // SAFETY: `user::read` accepts any address, and any bytes are a valid event.
        let event = unsafe { user::read(event) }.ok();
        return Some(nested::control(id, op, fd, inner, event.as_ref()));
    }
    // SAFETY: the caller keeps the contract of `epoll_ctl`, and the kernel checks the event's address.
    let done = outcome(unsafe { real::epoll_ctl(epfd, op, fd, event) });
    if done.is_ok() {
        instance::instance(id).with(|interest| {
            interest.pending.retain(|(watched, _)| *watched != fd);
            match op {
                libc::EPOLL_CTL_ADD => interest.native += 1,
                libc::EPOLL_CTL_DEL => interest.native = interest.native.saturating_sub(1),
                _ => {}
            }
            if let (Descriptor::Pending(_) | Descriptor::Epoll(_), false) = (kind, op == libc::EPOLL_CTL_DEL) {
                // SAFETY: the kernel has just read the event there.
                interest.pending.push((fd, unsafe { event.read_unaligned() }));
            }
        });
    }
    Some(done)
}

/// `epoll_ctl` on a socket in a slot. `fd` is a descriptor of it, by which the kernel watches a listener's other half.
pub fn control_slot(
    id: u32,
    op: c_int,
    name: EntryName,
    fd: c_int,
    socket: &Socket,
    event: Option<&epoll_event>,
) -> Sys<c_int> {
    let instance = instance::instance(id);
    let changed = instance.with(|interest| {
        if op == libc::EPOLL_CTL_DEL {
            return interest.remove(name, socket, interest.pid == process::pid());
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
