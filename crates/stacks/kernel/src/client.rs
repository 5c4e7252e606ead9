//! The kernel stack's own state of a client and of a slot.

use crate::batch::BatchedResults;
use crate::client_files::ClientFiles;
use crate::rate::Bucket;
use crate::sideband_queue::SidebandQueue;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use towpath_ring::command::Command;
use towpath_ring::options::Options;
use towpath_ring::{Geometry, Slot};
use towpath_runtime::clients::{AppMarks, DescriptorShare};
use towpath_runtime::slots::ServedClient;

/// A client of this stack.
pub type KernelClient = ServedClient<ClientState, KernelSocket>;

/// State of a client.
#[derive(Default)]
pub struct ClientState {
    /// Position in the client's dirty set.
    pub data_head: u32,
    /// Commands that wait for the reservation of their port.
    pub pending_commands: Vec<PendingCommand>,
    /// Drop filters, while the client moves. See [`crate::drop_filter`].
    pub drop_filters: Vec<OwnedFd>,
    /// Files that the client has shown.
    pub files: ClientFiles,
    /// The rate of its limit, if the limit has one.
    pub bucket: Option<Arc<Bucket>>,
}

/// A command whose port reservation has not arrived. Command and reservation take different paths.
pub struct PendingCommand {
    /// Slot of the command.
    pub slot: Slot,
    /// Number of the command.
    pub seq: u32,
    /// The command.
    pub command: Command,
    /// When the command fails, µs.
    pub until_us: u64,
}

/// State of a slot: its kernel socket, and the positions of both directions.
pub struct KernelSocket {
    /// The socket.
    pub fd: Option<OwnedFd>,
    /// Its part of the user's share of descriptors.
    pub share: Option<DescriptorShare>,
    /// Local address.
    pub local: SocketAddr,
    /// Remote address.
    pub remote: SocketAddr,
    /// Bytes of the send ring that the kernel has taken.
    pub sent: u32,
    /// The application's `tx_tail`, as last validated.
    pub tx_tail: u32,
    /// Bytes put into the receive ring.
    pub got: u32,
    /// The application's `rx_head`, as last validated.
    pub rx_head: u32,
    /// `status` bits published.
    pub status: u32,
    /// The kernel may have bytes, connections or an error.
    pub readable: bool,
    /// The kernel may take bytes.
    pub writable: bool,
    /// The kernel has reported an end or an error, so a short read is not the last one.
    pub ending: bool,
    /// An urgent byte has been announced. Its position is not known yet.
    pub urgent_announced: bool,
    /// Position of a new urgent byte in the receive ring that the application has not seen.
    pub urgent_got: Option<u32>,
    /// The application's marks that have been dealt with.
    pub marks_done: AppMarks,
    /// There were others when its words were read last.
    pub marked: bool,
    /// The kernel knows that nothing more will be sent.
    pub shut: bool,
    /// The application has closed the socket. Queued bytes are still to be sent.
    pub closing: bool,
    /// Sideband entries, between the bytes of the ring.
    pub sideband: SidebandQueue,
    /// The slot is on the list of this turn.
    pub scheduled: bool,
    /// Results of calls that the batch has made.
    pub batched: BatchedResults,
    /// The slot is on the list of the next turn.
    pub next_turn: bool,
    /// The slot is on the list of those that wait for their rate.
    pub paced: bool,
    /// `app_flags` set on the kernel's socket.
    pub flags: u32,
    /// Options set on the kernel's socket.
    pub options: Options,
}

impl Default for KernelSocket {
    fn default() -> Self {
        let none = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        Self {
            fd: None,
            share: None,
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
            urgent_announced: false,
            urgent_got: None,
            marks_done: AppMarks::default(),
            marked: false,
            shut: false,
            closing: false,
            sideband: SidebandQueue::default(),
            scheduled: false,
            batched: BatchedResults::default(),
            next_turn: false,
            paced: false,
            flags: 0,
            options: Options::default(),
        }
    }
}

impl KernelSocket {
    /// Free bytes of the receive ring, within the limit that `SO_RCVBUF` sets.
    pub fn receive_room(&self, geometry: Geometry) -> u32 {
        geometry.receive_limit(self.options.receive_buffer).saturating_sub(self.got.wrapping_sub(self.rx_head))
    }

    /// True if there is something to send that the kernel has not taken.
    pub fn has_unsent(&self) -> bool {
        self.sent != self.tx_tail || self.sideband.is_due(self.sent, self.tx_tail)
    }
}
