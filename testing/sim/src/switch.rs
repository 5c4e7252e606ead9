//! A switch: one end of several wires, and a table of MAC addresses. Its queues and their ECN thresholds are those of
//! its ends of the wires.

use crate::TimedPort;
use crate::earlier;
use crate::link::LinkPort;
use towpath_tcp::time::Micros;

/// A store-and-forward switch.
#[derive(Default)]
pub struct Switch {
    ports: Vec<([u8; 6], LinkPort)>,
    /// Frames to unknown addresses.
    unknown: u64,
}

impl Switch {
    /// Attaches the wire to the host with this MAC address.
    pub fn attach(&mut self, mac: [u8; 6], port: LinkPort) {
        self.ports.push((mac, port));
    }

    /// Number of frames dropped because their destination is not attached.
    pub fn unknown(&self) -> u64 {
        self.unknown
    }

    /// Forwards frames that have arrived by `now`. True = there were some.
    pub fn step(&mut self, now: Micros) -> bool {
        for (_, port) in &mut self.ports {
            port.advance(now);
        }
        let mut busy = false;
        // One frame of each port in turn, so that those of the same microsecond share the queue fairly.
        loop {
            let mut moved = false;
            for from in 0..self.ports.len() {
                let Some(frame) = self.ports[from].1.take() else { continue };
                moved = true;
                match self.ports.iter_mut().find(|(mac, _)| frame.starts_with(mac)) {
                    // A full queue drops the frame, and the port counts it.
                    Some((_, to)) => drop(to.send(frame)),
                    None => self.unknown += 1,
                }
            }
            busy |= moved;
            if !moved {
                return busy;
            }
        }
    }

    /// When the next frame arrives.
    pub fn next_deadline(&self) -> Option<Micros> {
        self.ports.iter().fold(None, |soonest, (_, port)| earlier(soonest, port.next_deadline()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::{Link, LinkConfig};

    fn to(mac: [u8; 6]) -> Vec<u8> {
        let mut frame = vec![0; 1000];
        frame[..6].copy_from_slice(&mac);
        frame[12..16].copy_from_slice(&[0x08, 0x00, 0x45, 0b10]);
        frame
    }

    #[test]
    fn senders_share_one_port_whose_queue_marks_and_then_drops() {
        let macs = [[1; 6], [2; 6], [3; 6]];
        let mut switch = Switch::default();
        let (mut hosts, mut links) = (Vec::new(), Vec::new());
        for mac in macs {
            let host = LinkConfig { bits_per_s: 0, delay_us: 10, ..LinkConfig::default() };
            let port = LinkConfig { bits_per_s: 8_000_000, queue_bytes: 8_000, mark_bytes: Some(4_000), ..host };
            let (link, near, far) = Link::between([host, port]);
            switch.attach(mac, far);
            hosts.push(near);
            links.push(link);
        }
        for _ in 0..5 {
            hosts[0].send(to(macs[2]));
            hosts[1].send(to(macs[2]));
        }
        hosts[0].send(to([9; 6]));
        assert_eq!(switch.next_deadline(), Some(Micros(10)));
        assert!(!switch.step(Micros(9)));
        assert!(switch.step(Micros(10)));
        let queue = links[2].queue(1);
        assert_eq!((queue.frames, queue.drops, queue.marks, switch.unknown()), (10, 2, 3, 1));
        // Each frame takes 1 ms on the wire, and twice 10 µs.
        hosts[2].advance(Micros(1_020));
        assert!(hosts[2].take().is_some() && hosts[2].take().is_none());
        hosts[2].advance(Micros(8_020));
        assert_eq!(std::iter::from_fn(|| hosts[2].take()).count(), 7);
    }
}
