//! Around `fork`. The rings and the slots' private words are shared with the child. Event contexts, positions of
//! epoll instances and locks are this process's own.

use crate::fd::standard_streams;
use crate::fd::table::{self, Descriptor, Pending};
use crate::io::{hand_over, sigurg};
use crate::lifecycle::{idle, in_flight, pairs};
use crate::observe::{fallback, measure};
use crate::ready::instance;
use crate::ready::past::bridge;
use crate::uring;
use towpath_client::private::flag;
use towpath_client::socket::Socket;
use towpath_client::{process, session, single_threaded};

/// Called once when the library is loaded.
pub fn init() {
    process::pid();
    single_threaded::init();
    // SAFETY: the handlers have the right type, and the library is never unloaded.
    unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
}

/// In the parent, before anything else.
pub extern "C" fn before() {
    instance::forking();
    share();
    pairs::forking();
}

/// In the parent, after a `fork` of libc. Other threads may have made pairs since [`before`].
extern "C" fn in_parent() {
    pairs::forking();
}

/// Marks all sockets as shared: from now on two processes have each descriptor, so `close` in one of them ends nothing.
fn share() {
    for (fd, kind) in table::within(0, u32::MAX) {
        if let Descriptor::Slot { slot, generation } = kind
            && let Some(socket) = Socket::at(slot, generation)
            && !socket.is_gone()
        {
            socket.mark(flag::SHARED, true);
        } else if let Descriptor::Pending(pending) = kind {
            // The other process may set options, of which this one does not hear.
            table::set(fd, Descriptor::Pending(Pending { shared: true, options: true, ..pending }));
        }
    }
}

/// In the child: resets what belongs to one process only.
pub extern "C" fn in_child() {
    instance::forget_plain();
    towpath_client::at_fork::new_process();
    // Other threads of the parent may have made sockets since `before`.
    share();
    fallback::forked();
    measure::forked();
    if session::get().is_some() {
        standard_streams::forked();
        sigurg::forked();
    }
    towpath_client::at_fork::in_child();
    instance::forked();
    in_flight::forked();
    pairs::forked();
    idle::forked();
    hand_over::forked();
    bridge::forked();
    uring::forked();
}
