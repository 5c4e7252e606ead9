//! Messages between two threads: a bounded SPSC ring, an overflow queue on the sender's side, and a doorbell. The
//! doorbell is used only while the receiver sleeps.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use towpath_ring::wake::{about_to_sleep, doorbell, must_wake, notify};

/// Wakes one thread.
pub struct Doorbell {
    armed: AtomicU32,
    fd: OwnedFd,
}

impl Doorbell {
    /// A doorbell whose owner is awake.
    pub fn new() -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self { armed: AtomicU32::new(0), fd: doorbell()? }))
    }
    /// Owner: about to sleep. It must look at its mailboxes once more after this.
    pub fn arm(&self) {
        self.armed.store(1, Ordering::Relaxed);
        about_to_sleep::<AtomicU32>();
    }
    /// Owner: awake.
    pub fn disarm(&self) {
        self.armed.store(0, Ordering::Relaxed);
    }
    /// Sender, after sending: wakes the owner if it sleeps.
    pub fn notify(&self) {
        if must_wake(&self.armed) && self.armed.swap(0, Ordering::Relaxed) != 0 {
            notify(self.fd.as_fd());
        }
    }
    /// Anyone: wakes the owner whether it sleeps or not. Its next turn sees everything that was stored before.
    pub fn notify_always(&self) {
        notify(self.fd.as_fd());
    }
    /// The descriptor that the owner waits for. It is watched edge-triggered and never read.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The sending end.
pub struct Sender<T> {
    ring: rtrb::Producer<T>,
    overflow: VecDeque<T>,
    doorbell: Arc<Doorbell>,
    fresh: bool,
}

/// The receiving end.
pub type Receiver<T> = rtrb::Consumer<T>;

/// A mailbox of `capacity` messages (more wait on the sender's side) to the owner of `doorbell`.
pub fn mailbox<T>(capacity: usize, doorbell: Arc<Doorbell>) -> (Sender<T>, Receiver<T>) {
    let (ring, receiver) = rtrb::RingBuffer::new(capacity);
    (Sender { ring, overflow: VecDeque::new(), doorbell, fresh: false }, receiver)
}

impl<T> Sender<T> {
    /// Sends; never lost, never reordered. [`Sender::flush`] must follow before the sender sleeps.
    pub fn send(&mut self, message: T) {
        self.fresh = true;
        if !self.overflow.is_empty() {
            self.overflow.push_back(message);
        } else if let Err(rtrb::PushError::Full(message)) = self.ring.push(message) {
            self.overflow.push_back(message);
        }
    }
    /// Is there room for another message without the overflow queue?
    pub fn has_room(&self) -> bool {
        self.overflow.is_empty() && !self.ring.is_full()
    }
    /// Moves waiting messages into the ring. Is there anything that the receiver has not been told of? The caller tells it.
    #[inline]
    pub fn settle(&mut self) -> bool {
        if !self.overflow.is_empty() {
            self.settle_waiting();
        }
        std::mem::take(&mut self.fresh)
    }
    #[cold]
    fn settle_waiting(&mut self) {
        while let Some(message) = self.overflow.pop_front() {
            if let Err(rtrb::PushError::Full(message)) = self.ring.push(message) {
                self.overflow.push_front(message);
                break;
            }
            self.fresh = true;
        }
    }
    /// Moves waiting messages into the ring, and wakes the receiver if there is anything new. False = a message still
    /// waits.
    #[inline]
    pub fn flush(&mut self) -> bool {
        if self.settle() {
            self.doorbell.notify();
        }
        self.overflow.is_empty()
    }
}
