//! A queue whose frames come by a packet socket. They leave by the queue's AF_XDP socket, whose frames go in batches.

use crate::gather::piece;
use crate::packet_receiver::PacketReceiver;
use crate::xsk::XskPort;
use crate::xsk_socket::XskSocket;
use crate::{Capabilities, Outgoing, Payload, Port, PortCounters, RxFrame, TxOffload};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// The port of a queue, by whichever of its sockets receives.
pub fn of_queue(made: XskSocket) -> io::Result<Box<dyn Port>> {
    let receiving = made.receiving_packets()?;
    let sender = XskPort::over(made)?;
    Ok(match receiving {
        Some(socket) => Box::new(PacketPort { sender, receiver: PacketReceiver::new(socket)? }),
        None => Box::new(sender),
    })
}

/// See the module.
struct PacketPort {
    sender: XskPort,
    receiver: PacketReceiver,
}

impl Port for PacketPort {
    fn capabilities(&self) -> Capabilities {
        self.sender.capabilities()
    }
    fn interface(&self) -> u32 {
        self.sender.interface()
    }
    fn receive(&mut self, frames: &mut Vec<RxFrame>, max: usize) {
        self.receiver.receive(frames, max);
    }
    fn bytes(&self, frame: &RxFrame) -> &[u8] {
        self.receiver.bytes(frame)
    }
    fn bytes_mut(&mut self, frame: &RxFrame) -> Option<&mut [u8]> {
        self.receiver.bytes_mut(frame)
    }
    fn release(&mut self, frames: &[RxFrame]) {
        self.receiver.release(frames);
    }
    fn reserve(&mut self) -> Option<&mut [u8]> {
        self.sender.reserve()
    }
    fn reserve_super(&mut self) -> Option<&mut [u8]> {
        self.sender.reserve_super()
    }
    fn commit(&mut self, len: usize, offload: TxOffload) {
        self.sender.commit(len, offload);
    }
    fn commit_gathered(&mut self, header: usize, payload: Payload<'_>, offload: TxOffload) {
        self.sender.commit_gathered(header, payload, offload);
    }
    fn return_super(&mut self, frame: &RxFrame, headers: usize, offload: TxOffload) -> bool {
        // The memory for receiving is another socket's.
        let Self { sender, receiver } = self;
        let Some((head, payload)) = receiver.bytes_mut(frame).and_then(|bytes| bytes.split_at_mut_checked(headers))
        else {
            return false;
        };
        let Some(place) = sender.reserve_super().and_then(|buffer| buffer.get_mut(..headers)) else { return false };
        place.copy_from_slice(head);
        sender.commit_gathered(headers, [piece(payload), &[], &[]], offload);
        true
    }
    fn outgoing(&mut self) -> Option<&mut dyn Outgoing> {
        self.sender.outgoing()
    }
    fn flush(&mut self) {
        self.sender.flush();
    }
    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.receiver.as_fd())
    }
    fn pending(&mut self) -> bool {
        self.receiver.pending()
    }
    fn counters(&self) -> PortCounters {
        let (rx_frames, rx_dropped) = self.receiver.counters();
        PortCounters { rx_frames, rx_dropped, ..self.sender.counters() }
    }
}
