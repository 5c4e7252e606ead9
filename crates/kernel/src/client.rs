//! What this stack keeps of a client and of a slot beside what every stack does.

use crate::ahead::Ahead;
use crate::asides::{Asides, ClientFiles};
use crate::rate::Bucket;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use towpath_ring::command::{Command, Options};
use towpath_ring::{Geometry, Slot};
use towpath_stack::slots::Client;

/// A client.
pub type KernelClient = Client<OfClient, OfSlot>;

/// Of a client.
#[derive(Default)]
pub struct OfClient {
    /// Position in the door queue.
    pub door_head: u32,
    /// Commands that wait for the reservation of their port.
    pub waiting: Vec<Waiting>,
    /// While it moves: see [`crate::shield`].
    pub shields: Vec<OwnedFd>,
    /// Files that it has shown.
    pub files: ClientFiles,
    /// What the rate of its limit allows, if that has one.
    pub bucket: Option<Arc<Bucket>>,
}

/// A command whose reservation has not come yet. The two come on different ways.
pub struct Waiting {
    /// Its slot.
    pub slot: Slot,
    /// Its number.
    pub seq: u32,
    /// What it says.
    pub command: Command,
    /// When it is given up, µs.
    pub until_us: u64,
}

/// Of a slot: its kernel socket and how far both directions have come.
pub struct OfSlot {
    /// The socket.
    pub fd: Option<OwnedFd>,
    /// Its ends.
    pub local: SocketAddr,
    /// See `local`.
    pub remote: SocketAddr,
    /// Bytes taken from the send ring: the kernel has them.
    pub sent: u32,
    /// The application's `tx_tail` as last believed.
    pub tx_tail: u32,
    /// Bytes put into the receive ring.
    pub got: u32,
    /// The application's `rx_head` as last believed.
    pub rx_head: u32,
    /// `status` bits shown.
    pub status: u32,
    /// The kernel may have bytes, connections or an error for us.
    pub readable: bool,
    /// The kernel may take bytes.
    pub writable: bool,
    /// The kernel has told of an end or an error, so a read that finds no more is not the last.
    pub ending: bool,
    /// An urgent byte is announced and its place not known yet.
    pub marked: bool,
    /// Position of a new urgent byte in the receive ring that the application has not been told of.
    pub urgent_got: Option<u32>,
    /// Position after the last urgent byte that was sent as such.
    pub urgent_sent: Option<u32>,
    /// The kernel knows that nothing more will be sent.
    pub shut: bool,
    /// The application has closed it; what is queued is still to be sent.
    pub closing: bool,
    /// What goes out between the bytes of the ring.
    pub asides: Asides,
    /// On the list of those to be looked at in this turn.
    pub noticed: bool,
    /// What was done for it before.
    pub ahead: Ahead,
    /// On the list of those to be looked at again.
    pub again: bool,
    /// On the list of those that wait for their rate.
    pub paced: bool,
    /// `app_flags` that the kernel has been told of.
    pub flags: u32,
    /// Options that the kernel has been told of.
    pub options: Options,
}

impl Default for OfSlot {
    fn default() -> Self {
        let none = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        Self {
            fd: None,
            local: none,
            remote: none,
            sent: 0,
            tx_tail: 0,
            got: 0,
            rx_head: 0,
            status: 0,
            readable: false,
            writable: false,
            ending: false,
            marked: false,
            urgent_got: None,
            urgent_sent: None,
            shut: false,
            closing: false,
            asides: Asides::default(),
            noticed: false,
            ahead: Ahead::default(),
            again: false,
            paced: false,
            flags: 0,
            options: Options::default(),
        }
    }
}

impl OfSlot {
    /// Free bytes of the receive ring, as far as `SO_RCVBUF` lets it be filled.
    pub fn receive_room(&self, geometry: Geometry) -> u32 {
        geometry.receive_limit(self.options.receive_buffer).saturating_sub(self.got.wrapping_sub(self.rx_head))
    }

    /// Is there something to send that the kernel has not taken?
    pub fn has_unsent(&self) -> bool {
        self.sent != self.tx_tail || self.asides.is_due(self.sent, self.tx_tail)
    }
}
