//! Which sockets of this process are idle, and may give memory back.

use crate::fd::table::{self, Descriptor};
use crate::lifecycle::in_flight;
use core::cell::UnsafeCell;
use libc::c_int;
use towpath_client::lock::Lock;
use towpath_client::socket::{SLOT_BITS, Socket};
use towpath_client::{descriptors, idle};

/// A copy of the descriptor of the socket that gives memory back now. A child that is forked meanwhile does not keep it.
struct DescriptorCopy {
    lock: Lock,
    fd: UnsafeCell<Option<c_int>>,
}

// SAFETY: `fd` is only accessed under the lock.
unsafe impl Sync for DescriptorCopy {}

static COPY: DescriptorCopy = DescriptorCopy { lock: Lock::new(), fd: UnsafeCell::new(None) };

/// So many connections wait for the stack together.
const TOGETHER: usize = 32;

/// Looks at the sockets of the session of this number. All signals are blocked.
pub fn look_at_all(number: u32) {
    let (mut asking, mut count, mut answers) = ([None; TOGETHER], 0, true);
    for (fd, kind) in table::within(0, u32::MAX) {
        if let Some(socket) = socket_of(kind)
            && socket.number() >> SLOT_BITS == number
            && idle::look_at(&socket)
        {
            asking[count] = Some((fd, kind));
            count += 1;
        }
        if count == TOGETHER {
            give_back_all(&mut asking, &mut answers);
            count = 0;
        }
    }
    give_back_all(&mut asking, &mut answers);
}

fn socket_of(kind: Descriptor) -> Option<Socket> {
    let Descriptor::Slot { slot, generation } = kind else { return None };
    Socket::at(slot, generation)
}

/// Nobody waits for a stack that has not answered once.
fn give_back_all(asking: &mut [Option<(c_int, Descriptor)>], answers: &mut bool) {
    let sockets = asking.iter().flatten().filter_map(|(_, kind)| socket_of(*kind));
    *answers = *answers && idle::wait_for_stack(sockets);
    for (fd, kind) in asking.iter_mut().filter_map(Option::take) {
        if let Some(socket) = socket_of(kind) {
            give_back(fd, kind, &socket);
        }
    }
}

/// A copy of the descriptor keeps the service from closing the connection meanwhile, and a call in flight this library.
fn give_back(fd: c_int, kind: Descriptor, socket: &Socket) {
    in_flight::begin(socket);
    if let Some(_locked) = COPY.lock.lock()
        && let Ok(copy) = descriptors::protected_copy(fd)
    {
        set(Some(copy));
        // Else the descriptor was closed before it was copied.
        if table::get(fd) == kind {
            idle::give_back(socket);
        }
        set(None);
        descriptors::unprotect(copy);
    }
    in_flight::end(socket);
}

/// Under the lock. Returns what was there.
fn set(fd: Option<c_int>) -> Option<c_int> {
    // SAFETY: the lock is held, so this is the only reference.
    core::mem::replace(unsafe { &mut *COPY.fd.get() }, fd)
}

/// In a forked child: the copy is the parent's.
pub fn forked() {
    COPY.lock.reset();
    if let Some(_locked) = COPY.lock.lock()
        && let Some(fd) = set(None)
    {
        descriptors::unprotect(fd);
    }
}
