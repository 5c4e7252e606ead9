//! How much of its rings a socket may use, by `SO_SNDBUF` and `SO_RCVBUF` in its options line.

use crate::private::used;
use crate::socket::Socket;
use crate::{ring_growth, stack_info};
use core::sync::atomic::Ordering;

impl Socket {
    /// Takes possession of the slot. From now on the stack reads the application's line.
    pub fn adopt(&self) {
        self.app().generation.store(self.generation, Ordering::Release);
        self.private().used.store(used::LIVE, Ordering::Release);
        apply(self);
    }
}

/// Puts the options into effect.
pub fn apply(socket: &Socket) {
    let (options, private) = (socket.options(), socket.private());
    let send = options.send_buffer.load(Ordering::Relaxed);
    let receive = options.receive_buffer.load(Ordering::Relaxed);
    if let Some(direct) = socket.direct() {
        let geometry = direct.geometry();
        let (send, receive) = (geometry.send_withheld(send), geometry.receive_withheld(receive));
        private.send_limit.store(geometry.ring_bytes - send, Ordering::Relaxed);
        return direct.withhold(send, receive);
    }
    {
        // The lock orders this with a reader, which notifies the stack either by the old limit or by the new one.
        let _receiving = private.receiving.lock();
        ring_growth::limit_receive(socket.session, socket.slot);
        if receive != 0 {
            private.low_water.fetch_min(private.receive_limit.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
    // The fast stack holds nothing outside the ring.
    if stack_info::has_buffers(socket) {
        private.send_limit.store(socket.session.geometry.send_limit(send), Ordering::Relaxed);
    } else {
        ring_growth::limit_send(socket.session, socket.slot);
    }
}
