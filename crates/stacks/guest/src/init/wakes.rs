//! The lines to the host: messages, and wakes of applications.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::fs::File;
use std::io::{self, Read};
use std::sync::{Arc, Mutex, PoisonError};
use towpath_forward::message::{self, ToHost};
use towpath_forward::server::sender::MessageSender;
use towpath_ring::Slot;
use towpath_ring::guest_memory::{GuestMemory, Wake};
use towpath_ring::wake::{doorbell, notify};
use towpath_runtime::RemoteWaker;

/// The line of the messages, for senders.
pub struct MessageLine(Mutex<File>);

impl MessageLine {
    /// Over a serial line.
    pub fn new(line: OwnedFd) -> Self {
        Self(Mutex::new(line.into()))
    }
    /// A handle to read from. It reports to the host how much has been read.
    pub fn reader(&self, memory: Arc<GuestMemory>) -> io::Result<MessageReader> {
        Ok(MessageReader { line: self.0.lock().unwrap_or_else(PoisonError::into_inner).try_clone()?, memory })
    }
}

impl MessageSender for MessageLine {
    fn send(&self, number: u32, message: &ToHost) -> io::Result<()> {
        message::send(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), number, message)
    }
}

/// Reads the messages.
pub struct MessageReader {
    line: File,
    memory: Arc<GuestMemory>,
}

impl Read for MessageReader {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.line.read(bytes)?;
        self.memory.consume(read);
        Ok(read)
    }
}

/// The line of the notifications. Incoming bytes say that an application has notified the stack; outgoing ones say
/// that the wake queue has entries.
pub struct WakeLine {
    memory: Arc<GuestMemory>,
    line: OwnedFd,
    doorbell: OwnedFd,
    /// Position in the wake queue, and the host's sleep from which it was last woken.
    positions: Mutex<(u32, u32)>,
}

impl WakeLine {
    /// Over a serial line.
    pub fn new(memory: Arc<GuestMemory>, line: OwnedFd) -> io::Result<Self> {
        Ok(Self { memory, line, doorbell: doorbell()?, positions: Mutex::new((0, 0)) })
    }
    /// Has the host wake an application.
    fn wake(&self, wake: Wake) {
        let mut positions = self.positions.lock().unwrap_or_else(PoisonError::into_inner);
        let (put, notified) = &mut *positions;
        self.memory.put(put, wake);
        if self.memory.must_notify(notified) {
            // The line has room for a byte, or holds thousands of unread ones.
            let _ = rustix::io::write(&self.line, b"!");
        }
    }
    /// Forwards notifications of applications; the body of a thread. The stack does not watch the line itself, because
    /// the line must be emptied: UML never reopens one that was full.
    pub fn forward_notifications(&self) {
        let mut rings = [0u8; 4096];
        while matches!(rustix::io::retry_on_intr(|| rustix::io::read(&self.line, &mut rings)), Ok(1..)) {
            notify(self.doorbell.as_fd());
        }
    }
    /// The doorbell that is notified when applications notify.
    pub fn doorbell(&self) -> BorrowedFd<'_> {
        self.doorbell.as_fd()
    }
}

/// Wakes one client. Dropped when the stack has forgotten the client.
pub struct GuestWaker {
    /// The line of the notifications.
    pub wake_line: Arc<WakeLine>,
    /// The line of the messages.
    pub messages: Arc<dyn MessageSender>,
    /// Index of the client.
    pub index: u32,
}

impl RemoteWaker for GuestWaker {
    fn wake(&self, slot: Slot, first: bool) {
        self.wake_line.wake(Wake::Slot { place: self.index, slot: slot.raw(), first });
    }
    fn notify(&self, context: u32) {
        self.wake_line.wake(Wake::Context { place: self.index, context });
    }
}

impl Drop for GuestWaker {
    fn drop(&mut self) {
        // If the host is gone, this guest ends soon.
        let _ = self.messages.send(0, &ToHost::Left { index: self.index });
    }
}
