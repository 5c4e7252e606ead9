//! Sets the functions that lower layers call in higher ones, when the library is loaded.

use crate::fd::table::{self, Descriptor};
use crate::fd::{close, streams};
use crate::lifecycle::{idle, kernel_half, rejoin};
use crate::observe::fallback;
use crate::ready::{instance, service_death};
use crate::uring;
use towpath_client::callbacks::Callbacks;
use towpath_client::socket::SLOT_BITS;

static CALLBACKS: Callbacks = Callbacks {
    protected: |fd| table::set(fd, Descriptor::Internal),
    unprotected: |fd| table::set(fd, Descriptor::Kernel),
    count: fallback::count,
    is_session_open,
    forget_session: instance::forget_session,
    look_at_idle: idle::look_at_all,
};

/// Sets them. Called before there is a session.
pub fn install(streams: streams::Calls) {
    towpath_client::callbacks::install(&CALLBACKS);
    close::set_ring_events(close::RingEvents { copied: uring::copied, closed: uring::closed });
    service_death::set_calls(service_death::Calls { give_back: kernel_half::give_back_all, look: rejoin::look });
    streams::set_calls(streams);
}

fn is_session_open(number: u32) -> bool {
    table::within(0, u32::MAX)
        .any(|(_, kind)| matches!(kind, Descriptor::Slot { slot, .. } if slot >> SLOT_BITS == number))
}
