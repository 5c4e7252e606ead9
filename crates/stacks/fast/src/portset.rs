//! A flow group's ports, as the protocol sees them.

use crate::beside::Beside;
use crate::filter::Filter;
use crate::tapped_port::PortTap;
use std::os::fd::BorrowedFd;
use towpath_capture::Tap;
use towpath_ports::{Leaving, Port, RxFrame};
use towpath_tcp::buffers::{RxBatch, TxPorts};
use towpath_tcp::flow::PortId;
use towpath_wire::offload::{Payload, RxChecksum, TxOffload};

/// Room for frames of a port that go over another interface: for all that it holds in a turn.
const MOST_LEAVING: usize = 256;

/// The ports of one flow group in the order of their numbers.
pub struct PortSet {
    ports: Vec<Box<dyn Port>>,
    tx_checksum: Vec<bool>,
    gso_max_bytes: Vec<u32>,
    /// What stands beside each of them. It is empty while nothing stands beside or before any.
    beside: Vec<Beside>,
    /// Received frames that go over another interface. Its memory is there before the first one.
    leaving: Vec<Leaving>,
}

impl PortSet {
    /// Takes the ports.
    pub fn new(ports: Vec<Box<dyn Port>>) -> Self {
        let (tx_checksum, gso_max_bytes, leaving) = (Vec::new(), Vec::new(), Vec::with_capacity(MOST_LEAVING));
        let mut set = Self { ports, tx_checksum, gso_max_bytes, beside: Vec::new(), leaving };
        set.ask_again();
        set
    }
    /// Asks the ports for their offloads.
    fn ask_again(&mut self) {
        let Self { ports, tx_checksum, gso_max_bytes, .. } = self;
        tx_checksum.clear();
        tx_checksum.extend(ports.iter().map(|port| port.capabilities().tx_checksum));
        gso_max_bytes.clear();
        gso_max_bytes.extend(ports.iter().map(|port| port.capabilities().gso_max_bytes));
    }
    /// Changes what stands beside and before the ports.
    fn change(&mut self, mut change: impl FnMut(u16, &mut Box<dyn Port>, &mut Beside)) {
        let Self { ports, beside, .. } = self;
        beside.resize_with(ports.len(), Beside::default);
        for ((place, port), beside) in (0..).zip(ports).zip(&mut *beside) {
            change(place, port, beside);
        }
        if beside.iter().all(Beside::is_empty) {
            beside.clear();
        }
        self.ask_again();
    }
    /// Lets their frames go through these modules, or (`None`) through none.
    pub fn filter(&mut self, filters: Option<Vec<Filter>>) {
        let mut filters = filters.unwrap_or_default();
        // The last port's ends the turns of tenants, as it is flushed last.
        if let Some((_, others)) = filters.split_last_mut() {
            others.iter_mut().for_each(Filter::leave_turns);
        }
        let mut filters = filters.into_iter();
        self.change(|_, port, beside| beside.filter(port, filters.next()));
    }
    /// Leaves their frames in these taps, or (`None`) no longer.
    pub fn tap(&mut self, taps: Option<Vec<Tap>>) {
        let mut taps = taps.into_iter().flatten();
        self.change(|place, port, beside| beside.tap(port, taps.next().map(|tap| PortTap::new(tap, place))));
    }
    /// Puts a port in the place of another one, which is dropped.
    pub fn replace(&mut self, number: PortId, port: Box<dyn Port>) {
        let place = usize::from(number.0);
        let Some(old) = self.ports.get_mut(place) else { return };
        match self.beside.get_mut(place) {
            Some(beside) => beside.replace(old, port),
            None => *old = port,
        }
        self.ask_again();
    }
    /// Takes a received frame through the modules of a port again, and sends it back or over another interface if they say so.
    pub fn translate(&mut self, number: PortId, frame: &mut [u8]) {
        let place = usize::from(number.0);
        let Self { ports, beside, .. } = self;
        let (Some(port), Some(own)) = (ports.get_mut(place), beside.get_mut(place)) else { return };
        if let Some(over) = own.translate(&mut **port, frame) {
            // Whoever kept the frame has checked it.
            let to = port_of(ports, over);
            let sent = to.is_some_and(|to| beside[to].send_past(&mut *ports[to], frame, RxChecksum::Valid, 0));
            if !sent {
                beside[place].failed(&mut *ports[place]);
            }
        }
        self.redirect();
    }
    /// Sends what the ports have received and modules have sent over other interfaces. Called after each batch of frames.
    #[inline]
    pub fn redirect(&mut self) {
        if !self.beside.is_empty() {
            self.redirect_frames();
        }
    }
    #[inline(never)]
    fn redirect_frames(&mut self) {
        let Self { ports, beside, leaving, .. } = self;
        for place in 0..ports.len() {
            beside[place].leaving(&mut *ports[place], leaving);
            for Leaving { frame, over } in leaving.drain(..) {
                let to = port_of(ports, over);
                let both = to.and_then(|to| Some((to, ports.get_disjoint_mut([place, to]).ok()?)));
                let sent = both.is_some_and(|(to, [from, port])| {
                    let bytes = from.bytes_mut(&frame);
                    bytes.is_some_and(|bytes| beside[to].send_past(&mut **port, bytes, frame.checksum, frame.gso_bytes))
                });
                ports[place].release(&[frame]);
                if !sent {
                    beside[place].failed(&mut *ports[place]);
                }
            }
        }
    }
    /// The descriptor that a port wakes by.
    pub fn wait_fd(&self, number: PortId) -> Option<BorrowedFd<'_>> {
        self.ports.get(usize::from(number.0))?.wait_fd()
    }
    /// All ports. What they receive and send goes by the set, which knows who looks at it.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Box<dyn Port>> {
        self.ports.iter_mut()
    }
    /// How many ports.
    #[allow(clippy::len_without_is_empty)] // A flow group has one at least.
    pub fn len(&self) -> usize {
        self.ports.len()
    }
    /// Appends up to `max` frames that a port has received and that pass. Returns the port, which has their bytes.
    pub fn receive(&mut self, place: usize, frames: &mut Vec<RxFrame>, max: usize) -> Option<&mut dyn Port> {
        let port = &mut **self.ports.get_mut(place)?;
        match self.beside.get_mut(place) {
            Some(beside) => beside.receive(port, frames, max),
            None => port.receive(frames, max),
        }
        Some(port)
    }
    /// Sends the committed frames.
    pub fn flush(&mut self) {
        for (port, beside) in self.ports.iter_mut().zip(&mut self.beside) {
            beside.settle(&mut **port);
            beside.end_turn();
        }
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

/// The first port of the interface of this number. Memory has no interface, so nothing comes to it from elsewhere.
fn port_of(ports: &[Box<dyn Port>], interface: u32) -> Option<usize> {
    ports.iter().position(|port| port.interface() == interface).filter(|_| interface != 0)
}

impl TxPorts for PortSet {
    fn reserve(&mut self, port: PortId) -> Option<&mut [u8]> {
        self.ports.get_mut(usize::from(port.0))?.reserve()
    }
    fn reserve_super(&mut self, port: PortId) -> Option<&mut [u8]> {
        self.ports.get_mut(usize::from(port.0))?.reserve_super()
    }
    fn commit(&mut self, port: PortId, len: usize, offload: TxOffload) {
        debug_assert!(offload.gso_bytes == 0, "super-segments go by another way");
        if let Some(port) = self.ports.get_mut(usize::from(port.0)) {
            port.commit(len, offload);
        }
    }
    // What is rare stays out of the way of single segments.
    #[inline(never)]
    fn commit_gathered(&mut self, port: PortId, header: usize, payload: Payload<'_>, offload: TxOffload) {
        let place = usize::from(port.0);
        let Some(port) = self.ports.get_mut(place) else { return };
        match self.beside.get_mut(place) {
            Some(beside) => beside.commit_gathered(&mut **port, header, payload, offload),
            None => port.commit_gathered(header, payload, offload),
        }
    }
    fn tx_checksum(&self, port: PortId) -> bool {
        self.tx_checksum.get(usize::from(port.0)).copied().unwrap_or(false)
    }
    fn gso_max_bytes(&self, port: PortId) -> u32 {
        self.gso_max_bytes.get(usize::from(port.0)).copied().unwrap_or(0)
    }
}

/// Frames received from one port.
pub struct Frames<'a> {
    /// The bytes of each.
    pub bytes: &'a [&'a [u8]],
    /// The frames.
    pub frames: &'a [RxFrame],
}

impl RxBatch for Frames<'_> {
    #[inline]
    fn len(&self) -> usize {
        self.frames.len()
    }
    #[inline]
    fn bytes(&self, i: usize) -> &[u8] {
        self.bytes[i]
    }
    #[inline]
    fn checksum(&self, i: usize) -> RxChecksum {
        self.frames[i].checksum
    }
}

/// The same memory, for bytes that live elsewhere.
pub fn emptied<'a>(mut bytes: Vec<&[u8]>) -> Vec<&'a [u8]> {
    bytes.clear();
    // The library makes the new vector in the old one's memory.
    bytes.into_iter().map(|_| &[][..]).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::fd::AsFd;
    use towpath_capture::record::Kind;
    use towpath_capture::{Memory, Reader, Wish};
    use towpath_ports::memory::{Loopback, pair};

    /// Sends a frame of this byte on the port.
    fn send(set: &mut PortSet, port: u8, byte: u8) {
        set.reserve(PortId(port)).unwrap()[..60].fill(byte);
        set.commit(PortId(port), 60, TxOffload::default());
        set.flush();
    }

    /// Receives all frames of a port of the set, and gives their buffers back.
    fn came(set: &mut PortSet, port: usize) -> Vec<u8> {
        let mut frames = Vec::new();
        let port = set.receive(port, &mut frames, 10).unwrap();
        let bytes = frames.iter().map(|frame| port.bytes(frame)[0]).collect();
        port.release(&frames);
        bytes
    }

    /// Receives all frames of a port, and gives their buffers back.
    fn received(port: &mut dyn Port) -> Vec<u8> {
        let mut frames = Vec::new();
        port.receive(&mut frames, 10);
        let bytes = frames.iter().map(|frame| port.bytes(frame)[0]).collect();
        port.release(&frames);
        bytes
    }

    /// Ring, direction and first byte of each captured frame.
    fn captured(reader: &mut Reader) -> Vec<(u16, bool, u8)> {
        let all = crate::module_port_tests::captured(reader).into_iter();
        all.map(|(header, bytes)| (header.place, header.kind == Kind::Frame { outgoing: true }, bytes[0])).collect()
    }

    #[test]
    fn memory_for_the_bytes_of_frames_is_used_again() {
        let mut bytes = vec![&b"frame"[..]; 50];
        bytes.reserve(64);
        let (place, room) = (bytes.as_ptr(), bytes.capacity());
        let again = emptied(bytes);
        assert_eq!((again.as_ptr(), again.capacity(), again.len()), (place, room, 0));
    }

    #[test]
    fn a_port_takes_anothers_place_also_while_somebody_captures() {
        let ((first, mut old_end), (second, mut end)) = (pair(1500), pair(1500));
        let mut set = PortSet::new(vec![Box::new(Loopback::new()), Box::new(first)]);
        let (memory, writers) = Memory::new(2, 0).unwrap();
        let mut reader = Reader::new(memory.as_fd()).unwrap();
        let wish = Wish { filter: None, snap: 60, bytes: 0 };
        set.tap(Some(writers.into_iter().map(|writer| Tap::new(writer, &wish)).collect()));
        send(&mut set, 1, 1);
        assert_eq!(received(&mut old_end), [1]);
        set.replace(PortId(1), Box::new(second));
        send(&mut set, 1, 2);
        assert_eq!((received(&mut old_end), received(&mut end)), (vec![], vec![2]));
        assert_eq!(captured(&mut reader), [(1, true, 1), (1, true, 2)]);
        set.tap(None);
        let (third, mut last_end) = pair(1500);
        set.replace(PortId(1), Box::new(third));
        send(&mut set, 1, 3);
        assert_eq!((received(&mut end), received(&mut last_end)), (vec![], vec![3]));
        set.replace(PortId(9), Box::new(Loopback::new()));
    }

    #[test]
    fn ports_are_tapped_between_two_turns_and_are_themselves_again() {
        let (near, mut far) = pair(1500);
        let mut set = PortSet::new(vec![Box::new(Loopback::new()), Box::new(near)]);
        let (memory, writers) = Memory::new(2, 0).unwrap();
        let mut reader = Reader::new(memory.as_fd()).unwrap();
        let wish = Wish { filter: None, snap: 60, bytes: 0 };
        // A buffer that was reserved before the capture is still that buffer.
        set.reserve(PortId(1)).unwrap()[0] = 9;
        set.tap(Some(writers.into_iter().map(|writer| Tap::new(writer, &wish)).collect()));
        assert_eq!(set.reserve(PortId(1)).unwrap()[0], 9);
        send(&mut set, 0, 1);
        send(&mut set, 1, 2);
        assert_eq!(received(&mut far), [2]);
        far.reserve().unwrap()[..60].fill(3);
        far.commit(60, TxOffload::default());
        far.flush();
        let both = [0, 1].map(|port| came(&mut set, port));
        assert_eq!(both, [vec![1], vec![3]]);
        // The loopback's frames are captured once.
        assert_eq!(captured(&mut reader), [(0, false, 1), (1, true, 2), (1, false, 3)]);

        set.tap(None);
        assert!(set.iter_mut().all(|port| port.inner().is_none()), "nothing stands before the ports");
        send(&mut set, 1, 4);
        assert_eq!(received(&mut far), [4]);
        assert!(captured(&mut reader).is_empty());
        let counters: Vec<u64> = set.iter_mut().map(|port| port.counters().tx_frames).collect();
        assert_eq!(counters, [1, 2], "the same ports as before");
    }
}
