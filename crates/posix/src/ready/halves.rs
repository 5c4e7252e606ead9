//! Waiting for a connection on a listener that has a kernel half: its slot and the kernel's own listening socket.

pub use crate::ready::hints::{clear, has_kernel_said, kernel_is_ready, kernel_said_ready};

use crate::fd::table::{self, Descriptor};
use crate::lifecycle::in_flight;
use crate::ready::poll::{self, Subscription};
use crate::ready::service_death;
use core::time::Duration;
use libc::{c_int, pollfd};
use towpath_client::context::Context;
use towpath_client::direct;
use towpath_client::liveness::LIFE_CHECK;
use towpath_client::signals::Blocked;
use towpath_client::sleep::Sleep;
use towpath_client::socket::Socket;
use towpath_client::sys::{self, Sys};
use towpath_client::undo_log::Undo;
use towpath_client::wait::{self, Deadline};
use towpath_ring::command::Accepted;
use towpath_ring::lines::state;

/// The longest sleep if the stack gave no event context.
const WITHOUT_CONTEXT: Duration = Duration::from_millis(1);

/// Waits until either half of a listener has a connection, or the listener has ended. EAGAIN: the deadline has passed.
/// EINTR: as from `accept`.
///
/// Of several threads that sleep here all are woken.
pub fn until_acceptable(fd: c_int, listener: &Socket, deadline: Deadline) -> Sys<()> {
    let waiting = || listener.readable() as usize >= Accepted::BYTES || listener.state() != state::LISTENING;
    if direct::spin(listener.session, waiting) {
        return Ok(());
    }
    let (asleep, subscription) = {
        let _blocked = Blocked::now();
        let subscription = Box::into_raw(Box::new(Subscription::to(listener)));
        let asleep = Sleep::on(None, Undo::Number(unsubscribe, subscription.expose_provenance()));
        // SAFETY: the box lives until `asleep`, which outlasts this reference, is dropped.
        (asleep, unsafe { &*subscription })
    };
    let longest = if subscription.is_subscribed() { LIFE_CHECK } else { WITHOUT_CONTEXT };
    let wake = subscription.doorbell(listener.session.number);
    loop {
        subscription.each(Context::arm);
        if waiting() {
            return Ok(());
        }
        asleep.check()?;
        let Some(time) = wait::remaining(deadline, longest) else { return Err(libc::EAGAIN) };
        let mut fds = [descriptor(fd, listener), wake].map(|fd| pollfd {
            fd: fd.unwrap_or(-1),
            events: libc::POLLIN,
            revents: 0,
        });
        match asleep.interrupted(sys::ppoll(&mut fds, Some(time), core::ptr::null())) {
            Err(libc::EINTR) if deadline.is_none() && sys::signals_restart() => {}
            Err(errno) => return Err(errno),
            Ok(0) => {
                wait::check_service(listener.session);
                service_death::look();
            }
            Ok(_) if fds[0].revents != 0 => {
                kernel_said_ready(listener);
                return Ok(());
            }
            Ok(_) => {
                towpath_ring::wake::drain(sys::borrow(&fds[1].fd));
                // No process holds the doorbell's other end: most likely the service has died.
                if fds[1].revents & libc::POLLHUP != 0 {
                    wait::check_service(listener.session);
                }
            }
        }
    }
}

/// Ends a subscription at its address. `accept` is safe in signal handlers, and so handlers may jump out of it.
fn unsubscribe(subscription: usize) {
    let _blocked = Blocked::now();
    poll::unsubscribe(subscription);
}

/// A descriptor of a listener: `fd` if it is one, else another. In the kernel a call in flight keeps its socket, however
/// the program's descriptors change meanwhile.
pub fn descriptor(fd: c_int, listener: &Socket) -> Option<c_int> {
    let (kind, known) = (table::kind_of(listener), table::get(fd));
    // A descriptor of the library's own is not of the program's table.
    if known == kind || known == Descriptor::Internal {
        return Some(fd);
    }
    let copy = table::within(0, u32::MAX).find(|(_, other)| *other == kind).map(|(copy, _)| copy);
    copy.or_else(|| in_flight::kept(listener))
}
