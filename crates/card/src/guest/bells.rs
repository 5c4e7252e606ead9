//! The lines to the host: messages, and the wakes of applications.

use super::post::Post;
use crate::message::{self, FromCard};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::fs::File;
use std::io::{self, Read};
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
    /// A handle to read from, which tells the host what has been read.
    pub fn reader(&self, memory: Arc<CardMemory>) -> io::Result<Reader> {
        Ok(Reader { line: self.0.lock().unwrap_or_else(PoisonError::into_inner).try_clone()?, memory })
    }
}

impl Post for Line {
    fn send(&self, number: u32, message: &FromCard) -> io::Result<()> {
        message::send(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), number, message)
    }
}

/// Reads the messages.
pub struct Reader {
    line: File,
    memory: Arc<CardMemory>,
}

impl Read for Reader {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.line.read(bytes)?;
        self.memory.consume(read);
        Ok(read)
    }
}

/// The line of the bells: what comes in says that an application has rung, what goes out that there are wakes in the queue.
pub struct Bells {
    memory: Arc<CardMemory>,
    line: OwnedFd,
    bell: OwnedFd,
    /// Position in the queue, and the host's sleep from which it has been woken last.
    positions: Mutex<(u32, u32)>,
}

impl Bells {
    /// Over a serial line.
    pub fn new(memory: Arc<CardMemory>, line: OwnedFd) -> io::Result<Self> {
        Ok(Self { memory, line, bell: doorbell()?, positions: Mutex::new((0, 0)) })
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
    /// Passes on what applications ring; the body of a thread. The stack does not watch the line itself, as somebody must empty it: UML
    /// never opens again a line that was full.
    pub fn pass_on(&self) {
        let mut rings = [0u8; 4096];
        while matches!(rustix::io::retry_on_intr(|| rustix::io::read(&self.line, &mut rings)), Ok(1..)) {
            ring(self.bell.as_fd());
        }
    }
    /// What is rung when applications have rung.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// Tells how one client is woken, and when the stack has forgotten it.
pub struct Client {
    /// The bells.
    pub bells: Arc<Bells>,
    /// The line of the messages.
    pub messages: Arc<dyn Post>,
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
