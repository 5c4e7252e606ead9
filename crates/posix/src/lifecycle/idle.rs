//! Which sockets of this process are idle, and may give memory back.

use crate::fd::table::{self, Descriptor};
use crate::lifecycle::in_flight;
use core::cell::UnsafeCell;
use libc::c_int;
use towpath_client::lock::Lock;
use towpath_client::socket::{SLOT_BITS, Socket};
use towpath_client::{descriptors, idle};

/// Copies of the descriptors of the sockets that give memory back now. A child that is forked meanwhile does not keep them.
struct Copies {
    lock: Lock,
    fds: UnsafeCell<[Option<c_int>; TOGETHER]>,
}

// SAFETY: `fds` is only accessed under the lock.
unsafe impl Sync for Copies {}

static COPIES: Copies = Copies { lock: Lock::new(), fds: UnsafeCell::new([None; TOGETHER]) };

/// So many connections wait for the stack together.
const TOGETHER: usize = 32;

/// Looks at the sockets of the session of this number. All signals are blocked.
pub fn look_at_all(number: u32) {
    let (mut ready, mut count, mut answers) = ([None; TOGETHER], 0, true);
    for (fd, kind) in table::within(0, u32::MAX) {
        if let Some(socket) = socket_of(kind)
            && socket.number() >> SLOT_BITS == number
            && idle::look_at(&socket)
        {
            ready[count] = Some((fd, kind));
            count += 1;
        }
        if count == TOGETHER {
            give_back_all(&mut ready, &mut answers);
            count = 0;
        }
    }
    give_back_all(&mut ready, &mut answers);
}

fn socket_of(kind: Descriptor) -> Option<Socket> {
    let Descriptor::Slot { slot, generation } = kind else { return None };
    Socket::at(slot, generation)
}

/// Copies of the descriptors keep the service from closing the connections meanwhile, and calls in flight this library. They are
/// made before the stack is asked, as it drops what comes from then on. Nobody waits for a stack that has not answered once.
fn give_back_all(ready: &mut [Option<(c_int, Descriptor)>; TOGETHER], answers: &mut bool) {
    let (locked, mut going) = (COPIES.lock.lock(), [None; TOGETHER]);
    for (place, ready) in ready.iter_mut().enumerate() {
        let Some((fd, kind)) = ready.take() else { continue };
        let Some(socket) = socket_of(kind) else { continue };
        in_flight::begin(&socket);
        let copy = locked.as_ref().and_then(|_| descriptors::protected_copy(fd).ok());
        if copy.is_some() {
            set(place, copy);
        }
        // Else the descriptor was closed before it was copied, or there is none for a copy.
        if copy.is_some() && table::get(fd) == kind {
            going[place] = Some(socket);
        } else {
            idle::keep(&socket);
            end(place, copy, &socket);
        }
    }
    let asked = going.map(|socket| socket.filter(idle::ask_for_all));
    *answers = *answers && idle::wait_for_stack(asked.iter().flatten().copied());
    asked.iter().flatten().for_each(idle::give_back);
    for (place, socket) in going.iter().enumerate() {
        if let Some(socket) = socket {
            end(place, set(place, None), socket);
        }
    }
}

/// A socket gives nothing back any more.
fn end(place: usize, copy: Option<c_int>, socket: &Socket) {
    if let Some(copy) = copy {
        set(place, None);
        descriptors::unprotect(copy);
    }
    in_flight::end(socket);
}

/// Under the lock. Returns what was there.
fn set(place: usize, fd: Option<c_int>) -> Option<c_int> {
    // SAFETY: the lock is held, so this is the only reference.
    core::mem::replace(unsafe { &mut (*COPIES.fds.get())[place] }, fd)
}

/// In a forked child: the copies are the parent's.
pub fn forked() {
    COPIES.lock.reset();
    let Some(_locked) = COPIES.lock.lock() else { return };
    for copy in (0..TOGETHER).filter_map(|place| set(place, None)) {
        descriptors::unprotect(copy);
    }
}
