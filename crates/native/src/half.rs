//! The two directions of a connection.

use crate::rings::Rings;
use crate::span::{Received, Room};
use std::io;

/// The receiving direction.
pub struct ReadHalf<'a>(pub(crate) &'a Rings);

/// The sending direction.
pub struct WriteHalf<'a>(pub(crate) &'a Rings);

impl ReadHalf<'_> {
    /// Received bytes that have not been consumed. Empty = the end of the peer's stream; `WouldBlock` = nothing yet.
    #[inline]
    pub fn received(&self) -> io::Result<Received<'_>> {
        self.0.received().map(Received::new)
    }

    /// Releases the first `count` received bytes; more than there are means all.
    #[inline]
    pub fn consume(&mut self, count: usize) {
        self.0.consume(count);
    }
}

impl WriteHalf<'_> {
    /// Room for up to `most` bytes to send. `WouldBlock` = there is none. If there is less than `most`,
    /// [`Readiness::WRITABLE`](crate::Readiness::WRITABLE) reports when a third of the ring is free.
    #[inline]
    pub fn reserve(&mut self, most: usize) -> io::Result<Room<'_>> {
        Ok(Room::new(self.0.room(most)?, self.0))
    }
}
