//! The connections of one event loop.

use crate::sys;
use std::io;

/// The connections of one event loop, by descriptor: bytes of a value that is not complete yet.
pub struct Connections {
    epoll: i32,
    bytes: usize,
    partial: Vec<Vec<u8>>,
    events: Vec<sys::Event>,
    buffer: Vec<u8>,
}

impl Connections {
    /// None yet.
    pub fn new(epoll: i32, bytes: usize) -> Self {
        let events = vec![sys::Event { events: 0, u64: 0 }; 256];
        Self { epoll, bytes, partial: Vec::new(), events, buffer: vec![0; 65536] }
    }

    /// Waits, and gives `each` the complete values of every ready connection, one after the other. `None` is the
    /// connection's end: `each` then closes it.
    pub fn turn(&mut self, mut each: impl FnMut(i32, Option<&mut [u8]>)) -> io::Result<()> {
        let ready = sys::wait(self.epoll, &mut self.events, -1)?;
        for event in &self.events[..ready] {
            let fd = event.u64 as i32;
            let index = fd as usize;
            if self.partial.len() <= index {
                self.partial.resize_with(index + 1, Vec::new);
            }
            match sys::read(fd, &mut self.buffer) {
                Ok(None) => {}
                Ok(Some(0)) | Err(_) => {
                    self.partial[index] = Vec::new();
                    sys::watch(self.epoll, libc::EPOLL_CTL_DEL, fd, 0, 0)?;
                    each(fd, None);
                }
                Ok(Some(n)) => {
                    let partial = &mut self.partial[index];
                    if partial.is_empty() {
                        let whole = n - n % self.bytes;
                        self.buffer[..whole].chunks_exact_mut(self.bytes).for_each(|value| each(fd, Some(value)));
                        partial.extend_from_slice(&self.buffer[whole..n]);
                    } else {
                        partial.extend_from_slice(&self.buffer[..n]);
                        let whole = partial.len() - partial.len() % self.bytes;
                        partial[..whole].chunks_exact_mut(self.bytes).for_each(|value| each(fd, Some(value)));
                        partial.drain(..whole);
                    }
                }
            }
        }
        Ok(())
    }
}
