//! The memory that the protocol works on, as traits. The fast stack and the simulator implement them.

use crate::flow::{FlowId, PortId};
use std::sync::atomic::Ordering;
use towpath_wire::offload::{Payload, RxChecksum, TxOffload};

/// A batch of received frames.
pub trait RxBatch {
    /// How many frames.
    fn len(&self) -> usize;
    /// There is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Frame `i`, Ethernet header first.
    fn bytes(&self, i: usize) -> &[u8];
    /// The port's knowledge of the checksum of frame `i`.
    fn checksum(&self, i: usize) -> RxChecksum;
}

/// The ports that outgoing frames leave by.
pub trait TxPorts {
    /// A buffer for the next frame on `port`; `None` = the port has no room now.
    fn reserve(&mut self, port: PortId) -> Option<&mut [u8]>;
    /// The same for a super-segment: a buffer of [`TxPorts::gso_max_bytes`].
    fn reserve_super(&mut self, port: PortId) -> Option<&mut [u8]> {
        self.reserve(port)
    }
    /// Sends the first `len` bytes of the buffer reserved last on `port`, which are no super-segment.
    fn commit(&mut self, port: PortId, len: usize, offload: TxOffload);
    /// Sends a super-segment: the first `header` bytes of the buffer reserved last on `port`, and this payload behind them.
    fn commit_gathered(&mut self, port: PortId, header: usize, payload: Payload<'_>, offload: TxOffload) {
        let Some(places) = self.reserve_super(port).and_then(|buffer| buffer.get_mut(header..)) else { return };
        let bytes = payload.into_iter().flatten();
        let len = places.iter_mut().zip(bytes).map(|(place, byte)| *place = byte.load(Ordering::Relaxed)).count();
        self.commit(port, header + len, offload);
    }
    /// True if the TCP checksum may be left to the port (`TxOffload::checksum_needed`).
    fn tx_checksum(&self, port: PortId) -> bool;
    /// Bytes of the largest frame that the port cuts into segments itself (`TxOffload::gso_bytes`); 0 = it cuts none.
    /// Their checksums are always left to it.
    fn gso_max_bytes(&self, _port: PortId) -> u32 {
        0
    }
}

/// The byte rings of the applications. Positions are bytes since the start of the connection, modulo 2^32. The
/// implementation takes them modulo the ring size.
pub trait Rings {
    /// Puts received bytes at `position` of the flow's receive ring. That may be beyond what has come in order.
    fn deliver(&mut self, flow: FlowId, position: u32, bytes: &[u8]);
    /// Copies bytes at `position` of the flow's send ring into `out`.
    fn fetch(&self, flow: FlowId, position: u32, out: &mut [u8]);
    /// The same `len` bytes where they lie, for a port that copies them itself; `None`: they have to be fetched.
    fn payload(&self, _flow: FlowId, _position: u32, _len: u32) -> Option<Payload<'_>> {
        None
    }
}
