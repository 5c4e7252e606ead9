//! The two directions of a connection.

use crate::connection::errno;
use crate::span::{Received, Room};
use core::sync::atomic::Ordering;
use std::io;
use towpath_ring::lines::{state, status};
use towpath_sockets::narrow::{self, Socket, View};

/// The side that receives.
pub struct ReadHalf<'a>(pub(crate) &'a Rings);

/// The side that sends.
pub struct WriteHalf<'a>(pub(crate) &'a Rings);

impl ReadHalf<'_> {
    /// What has come and has not been consumed. Empty = the end of the peer's stream; `WouldBlock` = nothing yet.
    #[inline]
    pub fn received(&self) -> io::Result<Received<'_>> {
        self.0.received()
    }

    /// Gives back the first `count` received bytes; more than there are count as all.
    #[inline]
    pub fn consume(&mut self, count: usize) {
        self.0.consume(count);
    }
}

impl WriteHalf<'_> {
    /// Room for up to `most` bytes to be sent. `WouldBlock` = there is none. If there is less than `most`,
    /// [`Readiness::WRITABLE`](crate::Readiness::WRITABLE) will tell when a third of the ring is free.
    #[inline]
    pub fn reserve(&mut self, most: usize) -> io::Result<Room<'_>> {
        Ok(Room::new(self.0.room(most)?, self.0))
    }
}

/// The rings, and the words about them. Who moves their positions has its connection to himself.
pub(crate) struct Rings {
    pub socket: Socket,
    /// Its words, looked up.
    pub view: View,
}

impl Rings {
    pub fn of(socket: Socket) -> Self {
        Self { socket, view: socket.view() }
    }

    #[inline]
    pub fn received(&self) -> io::Result<Received<'_>> {
        let unread = self.view.readable();
        if unread == 0 || self.view.is_gone() {
            return self.nothing_received();
        }
        Ok(self.spans(unread))
    }

    #[inline]
    fn spans(&self, unread: u32) -> Received<'_> {
        Received::new(self.view.receive_ring().spans(self.view.app.rx_head.load(Ordering::Relaxed), unread))
    }

    #[cold]
    fn nothing_received(&self) -> io::Result<Received<'_>> {
        let state = self.view.state();
        if state == state::CONNECTING {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let end = self.view.end();
        let unread = self.view.readable();
        if unread > 0 && !self.view.is_gone() {
            return Ok(self.spans(unread));
        }
        if !end.fin {
            if let Some(error) = if end.failed { self.take_error() } else { None } {
                return Err(error);
            }
            if !end.closed {
                return Err(io::ErrorKind::WouldBlock.into());
            }
        }
        Ok(self.spans(0))
    }

    #[inline]
    pub fn consume(&self, count: usize) {
        let count = count.min(self.view.readable() as usize);
        if count > 0 && !self.view.is_gone() {
            narrow::consumed(&self.view, count as u32);
        }
    }

    #[inline]
    pub fn room(&self, most: usize) -> io::Result<[(*mut u8, usize); 2]> {
        let state = self.view.state();
        let closed = state != state::ESTABLISHED || self.view.send_closed_in(state);
        if closed || self.view.status() & status::PEER_CLOSED != 0 {
            return Err(self.cannot_send(state));
        }
        let most = most.min(self.view.send_limit() as usize) as u32;
        let mut room = self.view.room();
        if room < most {
            self.socket.want_room();
            room = self.view.room();
            if room == 0 {
                return Err(io::ErrorKind::WouldBlock.into());
            }
        }
        Ok(self.view.send_ring().spans(self.view.app.tx_tail.load(Ordering::Relaxed), room.min(most)))
    }

    #[cold]
    fn cannot_send(&self, state: u32) -> io::Error {
        if state == state::CONNECTING {
            return io::ErrorKind::WouldBlock.into();
        }
        self.take_error().unwrap_or_else(|| errno(libc::EPIPE))
    }

    /// Sends the first `count` bytes of the room that was given last: no more than it had.
    #[inline]
    pub fn commit(&self, count: usize) {
        if count == 0 || self.view.is_gone() {
            return;
        }
        let tail = self.view.app.tx_tail.load(Ordering::Relaxed).wrapping_add(count as u32);
        narrow::publish(&self.view, tail, count, false);
    }

    pub fn take_error(&self) -> Option<io::Error> {
        match self.socket.take_error() {
            0 => None,
            number => Some(errno(number)),
        }
    }
}
