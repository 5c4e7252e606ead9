//! The memory that the protocol works on, as its owners show it. Implemented by the engine and the simulator.

use crate::flow::FlowId;
use towpath_wire::offload::{RxChecksum, TxOffload};

/// A port of this core, by number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PortId(pub u8);

/// A batch of received frames.
pub trait RxBatch {
    /// How many.
    fn len(&self) -> usize;
    /// None at all?
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Frame `i`, Ethernet header first.
    fn bytes(&self, i: usize) -> &[u8];
    /// What is known of its checksum.
    fn checksum(&self, i: usize) -> RxChecksum;
}

/// Where outgoing frames go.
pub trait TxPorts {
    /// A buffer for the next frame on `port`, or none now.
    fn reserve(&mut self, port: PortId) -> Option<&mut [u8]>;
    /// Sends the first `len` bytes of the buffer reserved last on `port`.
    fn commit(&mut self, port: PortId, len: usize, offload: TxOffload);
    /// May the TCP checksum be left to the port (`TxOffload::checksum_needed`)?
    fn tx_checksum(&self, port: PortId) -> bool;
}

/// The byte rings of the applications. Positions are bytes since the start of the connection, modulo 2^32; the
/// implementation takes them modulo the ring size.
pub trait Rings {
    /// Puts received bytes at `position` of the flow's receive ring (maybe beyond the in-order edge).
    fn deliver(&mut self, flow: FlowId, position: u32, bytes: &[u8]);
    /// Copies bytes at `position` of the flow's send ring into `out`.
    fn fetch(&self, flow: FlowId, position: u32, out: &mut [u8]);
}
