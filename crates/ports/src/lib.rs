//! Packet I/O behind one trait: an in-memory loopback, and AF_XDP with steering. This crate knows frames, not TCP.

mod assembly;
pub mod attachment;
pub mod first_syn;
pub mod forward;
pub mod gather;
mod in_place;
mod ingress;
mod interface;
mod keys;
pub mod link;
mod link_holder;
pub mod listening;
mod mapping;
pub mod memory;
mod object;
mod outgoing;
pub mod packet_port;
mod packet_receiver;
mod packet_socket;
pub mod peer_filter;
mod steer_error;
pub mod steering;
pub mod strays;
mod super_sender;
pub mod syn;
mod tables;
pub mod xsk;
pub mod xsk_socket;

pub use mapping::Buffer as PacketBuffer;
pub use outgoing::Outgoing;
use std::io::IoSliceMut;
use std::os::fd::BorrowedFd;
pub use towpath_wire::offload::{Payload, RxChecksum, TxOffload};

/// One received frame; its bytes are at [`Port::bytes`] until [`Port::release`].
#[derive(Clone, Copy, Debug, Default)]
pub struct RxFrame {
    /// The port's identifier of the buffer.
    pub handle: u64,
    /// Length of the frame in bytes, Ethernet header included.
    pub len: u32,
    /// Checksum state.
    pub checksum: RxChecksum,
    /// Payload of each segment of a super-segment. 0: it is none, or the port does not know.
    pub gso_bytes: u16,
}

/// A received frame that goes over another port, as what stands before its own has said.
#[derive(Clone, Copy, Debug)]
pub struct Leaving {
    /// The frame. Its checksum is `Unknown` if it has a whole one.
    pub frame: RxFrame,
    /// The number of its interface, which a module has said: it may be any.
    pub over: u32,
}

/// Limits and offloads of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Largest IP packet in bytes that is one packet on the wire.
    pub mtu_bytes: u32,
    /// Computes checksums on sending (`TxOffload::checksum_needed` allowed). On the loopback the sum may be left out.
    pub tx_checksum: bool,
    /// Cuts super-segments (`gso_bytes` allowed) in frames of up to this many bytes, and computes their checksums; 0 = not
    /// supported.
    pub gso_max_bytes: u32,
}

/// Counters of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Frames received.
    pub rx_frames: u64,
    /// Frames sent.
    pub tx_frames: u64,
    /// Frames the kernel or the port dropped on receive (ring full, too long).
    pub rx_dropped: u64,
    /// Frames that could not be sent.
    pub tx_dropped: u64,
}

/// One queue of a device, owned by one flow group.
pub trait Port: Send {
    /// Its limits and offloads.
    fn capabilities(&self) -> Capabilities;
    /// The number of its interface in the kernel; 0 = it has none.
    fn interface(&self) -> u32 {
        0
    }
    /// Appends up to `max` received frames to `frames`.
    fn receive(&mut self, frames: &mut Vec<RxFrame>, max: usize);
    /// The bytes of a received, not yet released frame.
    fn bytes(&self, frame: &RxFrame) -> &[u8];
    /// Appends the bytes of each of these frames.
    fn bytes_of<'a>(&'a self, frames: &[RxFrame], into: &mut Vec<&'a [u8]>) {
        into.extend(frames.iter().map(|frame| self.bytes(frame)));
    }
    /// The bytes of a received, not yet released frame, to be changed in their place; `None` = it is no such frame. They stay there until [`Port::release`], and
    /// no two frames share any.
    fn bytes_mut(&mut self, frame: &RxFrame) -> Option<&mut [u8]>;
    /// Keeps of the received frames from the place `from` on those for which `keep` says so. It may change their bytes.
    /// A frame that the port has not received, or has back already, is not kept.
    fn retain_in_place(
        &mut self,
        frames: &mut Vec<RxFrame>,
        from: usize,
        keep: &mut dyn FnMut(&RxFrame, &mut [u8]) -> bool,
    ) {
        let mut kept = from;
        for at in from..frames.len() {
            let frame = &frames[at];
            if self.bytes_mut(frame).is_some_and(|bytes| keep(frame, bytes)) {
                if kept < at {
                    frames[kept] = frames[at];
                }
                kept += 1;
            }
        }
        frames.truncate(kept);
    }
    /// Gives `run` the bytes of the received frames from the place `from` on, many at a time, with the place of the first. It may
    /// change them. A frame that the port has not received, or has back already, is taken out.
    fn batches_in_place(
        &mut self,
        frames: &mut Vec<RxFrame>,
        from: usize,
        run: &mut dyn FnMut(usize, &mut [IoSliceMut<'_>]),
    ) {
        in_place::batches(self, frames, from, run);
    }
    /// Returns the buffers of received frames.
    fn release(&mut self, frames: &[RxFrame]);
    /// A buffer for one outgoing frame, at least `mtu_bytes + 14` long; `None` = no room now.
    fn reserve(&mut self) -> Option<&mut [u8]>;
    /// A buffer for one super-segment, `gso_max_bytes` long.
    fn reserve_super(&mut self) -> Option<&mut [u8]> {
        self.reserve()
    }
    /// Sends the first `len` bytes of the buffer reserved last.
    fn commit(&mut self, len: usize, offload: TxOffload);
    /// Sends a super-segment: the first `header` bytes of the buffer reserved last, and this payload behind them.
    fn commit_gathered(&mut self, header: usize, payload: Payload<'_>, offload: TxOffload) {
        gather::commit_whole(self, header, &payload, offload);
    }
    /// Sends a received super-segment from where it lies, with so many bytes of headers and this frame's length. False: the
    /// port cannot, and has sent nothing.
    fn return_super(&mut self, _frame: &RxFrame, _headers: usize, _offload: TxOffload) -> bool {
        false
    }
    /// Its frames that are committed and wait for the flush. `None`: it shows none, and may send each at once.
    fn outgoing(&mut self) -> Option<&mut dyn Outgoing> {
        None
    }
    /// Hands committed frames to the device, with at most one system call, and none while the device is awake.
    fn flush(&mut self);
    /// Becomes readable when frames arrive while the worker sleeps; `None` = the port cannot wake a worker.
    fn wait_fd(&self) -> Option<BorrowedFd<'_>>;
    /// Are there frames to receive? Checked once more before sleeping.
    fn pending(&mut self) -> bool;
    /// Counters so far.
    fn counters(&self) -> PortCounters;
    /// The port that this one stands before, which is taken out of it; `None` = it stands for itself.
    fn inner(&mut self) -> Option<Box<dyn Port>> {
        None
    }
    /// Takes a frame that was received before through what stands before the port, and sends it back if that says so. Returns over
    /// which other interface it goes, if it does and is not among [`Port::leaving`].
    fn translate(&mut self, _frame: &mut [u8]) -> Option<u32> {
        None
    }
    /// Appends the received frames that go over other interfaces. The port has their buffers back when they are released.
    fn leaving(&mut self, _frames: &mut Vec<Leaving>) {}
    /// Sends a frame that another port has received, past what stands before this one. False: it cannot.
    fn send_past(&mut self, _frame: &mut [u8], _checksum: RxChecksum, _gso_bytes: u16) -> bool {
        false
    }
    /// A frame that was to leave could not be sent.
    fn failed(&mut self) {}
    /// Stands before this port from now on. An error gives it back: this port stands for itself.
    fn set_inner(&mut self, inner: Box<dyn Port>) -> Result<(), Box<dyn Port>> {
        Err(inner)
    }
}
