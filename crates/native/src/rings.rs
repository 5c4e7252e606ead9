//! The rings of a connection: where their bytes are, and moving their positions.

use crate::error::errno;
use core::sync::atomic::Ordering;
use std::io;
use towpath_client::socket::Socket;
use towpath_client::view::View;
use towpath_ring::bytes::Pieces;
use towpath_ring::lines::{state, status};

/// The rings and their words. A thread that moves their positions has exclusive access to the connection.
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
    pub fn received(&self) -> io::Result<Pieces> {
        let unread = self.view.readable();
        if unread == 0 || self.view.is_gone() {
            return self.nothing_received();
        }
        Ok(self.spans(unread))
    }

    #[inline]
    fn spans(&self, unread: u32) -> Pieces {
        self.view.receive_ring().spans(self.view.app.rx_head.load(Ordering::Relaxed), unread)
    }

    #[cold]
    fn nothing_received(&self) -> io::Result<Pieces> {
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
        let unread = self.view.readable();
        let count = count.min(unread as usize);
        if count > 0 && !self.view.is_gone() {
            self.view.consume_of(count as u32, unread);
        }
    }

    #[inline]
    pub fn room(&self, most: usize) -> io::Result<Pieces> {
        if !self.view.may_send()
            && let Some(error) = self.cannot_send()
        {
            return Err(error);
        }
        let most = most.min(self.view.send_limit() as usize) as u32;
        let mut room = self.view.room_after_growth();
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
    fn cannot_send(&self) -> Option<io::Error> {
        let state = self.view.state();
        let closed = state != state::ESTABLISHED || self.view.send_closed_in(state);
        if !closed && self.view.status() & status::PEER_CLOSED == 0 {
            return None;
        }
        if state == state::CONNECTING {
            return Some(io::ErrorKind::WouldBlock.into());
        }
        Some(self.take_error().unwrap_or_else(|| errno(libc::EPIPE)))
    }

    /// Sends the first `count` bytes of the room that was reserved last; `count` is at most its length.
    #[inline]
    pub fn commit(&self, count: usize) {
        if count == 0 || self.view.is_gone() {
            return;
        }
        self.view.publish(count, false);
    }

    pub fn take_error(&self) -> Option<io::Error> {
        self.socket.take_error().map(errno)
    }
}
