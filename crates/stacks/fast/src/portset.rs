//! A flow group's ports, as the protocol sees them.

use std::os::fd::BorrowedFd;
use towpath_ports::{Port, RxFrame};
use towpath_tcp::buffers::{RxBatch, TxPorts};
use towpath_tcp::flow::PortId;
use towpath_wire::offload::{RxChecksum, TxOffload};

/// The ports of one flow group in the order of their numbers.
pub struct PortSet {
    ports: Vec<Box<dyn Port>>,
    tx_checksum: Vec<bool>,
}

impl PortSet {
    /// Takes the ports.
    pub fn new(ports: Vec<Box<dyn Port>>) -> Self {
        Self { tx_checksum: ports.iter().map(|p| p.capabilities().tx_checksum).collect(), ports }
    }
    /// All ports.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Box<dyn Port>> {
        self.ports.iter_mut()
    }
    /// Sends the committed frames.
    pub fn flush(&mut self) {
        for port in &mut self.ports {
            port.flush();
        }
    }
    /// Has a port received anything?
    pub fn pending(&mut self) -> bool {
        self.ports.iter_mut().any(|p| p.pending())
    }
    /// The descriptors to watch while asleep.
    pub fn wait_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.ports.iter().filter_map(|p| p.wait_fd())
    }
}

impl TxPorts for PortSet {
    fn reserve(&mut self, port: PortId) -> Option<&mut [u8]> {
        self.ports.get_mut(usize::from(port.0))?.reserve()
    }
    fn commit(&mut self, port: PortId, len: usize, offload: TxOffload) {
        if let Some(port) = self.ports.get_mut(usize::from(port.0)) {
            port.commit(len, offload);
        }
    }
    fn tx_checksum(&self, port: PortId) -> bool {
        self.tx_checksum.get(usize::from(port.0)).copied().unwrap_or(false)
    }
}

/// Frames received from one port.
pub struct Frames<'a> {
    /// The port that holds the bytes.
    pub port: &'a dyn Port,
    /// The frames.
    pub frames: &'a [RxFrame],
}

impl RxBatch for Frames<'_> {
    fn len(&self) -> usize {
        self.frames.len()
    }
    fn bytes(&self, i: usize) -> &[u8] {
        self.port.bytes(&self.frames[i])
    }
    fn checksum(&self, i: usize) -> RxChecksum {
        self.frames[i].checksum
    }
}
