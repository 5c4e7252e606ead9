//! One event for a listener whose halves are both ready in one wait.

use super::Wait;
use crate::ready::readiness;
use core::ops::Range;
use libc::epoll_event;

/// The events of a listener.
const OF_LISTENERS: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM | libc::EPOLLRDHUP) as u32 | readiness::ALWAYS;

/// The place of a listener's event with this data.
///
/// # Safety
/// The places of `events` can be read.
unsafe fn find(events: *mut epoll_event, places: Range<usize>, data: u64) -> Option<usize> {
    places.into_iter().find(|at| {
        // SAFETY: the caller vouches for the place.
        let event = unsafe { events.add(*at).read_unaligned() };
        event.u64 == data && event.events & !OF_LISTENERS == 0
    })
}

/// Adds the bits of `other` to the event at this place.
///
/// # Safety
/// The place can be read and written.
unsafe fn add_to(events: *mut epoll_event, at: usize, other: epoll_event) {
    // SAFETY: the caller vouches for the place.
    unsafe {
        let mut event = events.add(at).read_unaligned();
        event.events |= other.events;
        events.add(at).write_unaligned(event);
    }
}

impl Wait {
    /// The kernel tells of a listener's half: makes it the program's event. False: it is none, or the listener is among
    /// the first `skip` events already, to which this has been added.
    #[cold]
    pub(super) fn is_of_half(&self, skip: usize, event: &mut epoll_event) -> bool {
        let (word, events) = (event.u64, event.events);
        let Some(Some(programs)) = self.instance.with(|interest| interest.half_event(word, events)) else {
            return false;
        };
        *event = programs;
        // SAFETY: this call has written its first `skip` events there.
        unsafe { find(self.events, 0..skip, programs.u64) }.is_none_or(|at| {
            // SAFETY: as above.
            unsafe { add_to(self.events, at, programs) };
            false
        })
    }

    /// Of the program's events the first `native` are the kernel's, and then come slots, up to `found`. A listener whose
    /// halves are among both has one event. Returns how many there are then.
    pub(super) fn merged(&self, native: usize, found: usize) -> usize {
        if native == 0 || native == found {
            return found;
        }
        let of_halves = self.instance.with(|interest| interest.data_of_halves().collect::<Vec<_>>());
        let mut found = found;
        for data in of_halves.into_iter().flatten() {
            // SAFETY: this call has written its first `found` events there, and all places are below that.
            unsafe {
                if let Some(at) = find(self.events, 0..native, data)
                    && let Some(twin) = find(self.events, native..found, data)
                {
                    add_to(self.events, at, self.events.add(twin).read_unaligned());
                    core::ptr::copy(self.events.add(twin + 1), self.events.add(twin), found - twin - 1);
                    found -= 1;
                }
            }
        }
        found
    }
}
