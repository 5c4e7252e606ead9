//! The lines to the host: messages, and the wakes of applications.

use crate::message::{self, FromCard};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use towpath_ring::Slot;
use towpath_ring::card::{CardMemory, Wake};
use towpath_ring::wake::{doorbell, ring};
use towpath_stack::Far;

/// The line of the messages, for those who send.
pub struct Line(Mutex<File>);

impl Line {
    /// Over a serial line.
    pub fn new(line: OwnedFd) -> Self {
        Self(Mutex::new(line.into()))
    }
    /// Sends.
    pub fn send(&self, number: u32, message: &FromCard) -> io::Result<()> {
        message::send(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), number, message)
    }
    /// A handle to read from.
    pub fn reader(&self) -> io::Result<File> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).try_clone()
    }
}

/// The line of the bells: what comes in says that an application has rung, what goes out that there are wakes in the queue.
pub struct Bells {
    memory: Arc<CardMemory>,
    line: OwnedFd,
    again: OwnedFd,
    /// Position in the queue, and the host's sleep from which it has been woken last.
    positions: Mutex<(u32, u32)>,
}

impl Bells {
    /// Over a serial line that does not block.
    pub fn new(memory: Arc<CardMemory>, line: OwnedFd) -> io::Result<Self> {
        Ok(Self { memory, line, again: doorbell()?, positions: Mutex::new((0, 0)) })
    }
    /// Has the host wake somebody.
    fn wake(&self, wake: Wake) {
        let mut positions = self.positions.lock().unwrap_or_else(PoisonError::into_inner);
        let (put, rung) = &mut *positions;
        self.memory.put(put, wake);
        if self.memory.must_ring(rung) {
            // It has room for a byte, or there are thousands in it that nobody has read yet.
            let _ = rustix::io::write(&self.line, b"!");
        }
    }
    /// Takes what applications have rung, so that the line has room. It has done its work by arriving, unless the stack was about to
    /// look and now finds nothing: it is rung once more.
    pub fn drain(&self) {
        let mut rings = [0u8; 4096];
        let mut any = false;
        while matches!(rustix::io::read(&self.line, &mut rings), Ok(1..)) {
            any = true;
        }
        if any {
            ring(self.again.as_fd());
        }
    }
    /// What is readable when applications have rung and that has been drained.
    pub fn again(&self) -> BorrowedFd<'_> {
        self.again.as_fd()
    }
    /// What is readable when applications have rung.
    pub fn line(&self) -> BorrowedFd<'_> {
        self.line.as_fd()
    }
}

/// Tells how one client is woken, and when the stack has forgotten it.
pub struct Client {
    /// The bells.
    pub bells: Arc<Bells>,
    /// The line of the messages.
    pub messages: Arc<Line>,
    /// Its place.
    pub place: u32,
}

impl Far for Client {
    fn wake(&self, slot: Slot, first: bool) {
        self.bells.wake(Wake::Slot { place: self.place, slot: slot.raw(), first });
    }
    fn ring(&self, context: u32) {
        self.bells.wake(Wake::Context { place: self.place, context });
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // If the host is gone, so are we, soon.
        let _ = self.messages.send(0, &FromCard::Left { place: self.place });
    }
}
