//! Hosts around one switch.

use crate::Rack;
use serde::Serialize;
use std::net::{IpAddr, Ipv4Addr};
use towpath_sim::{Link, LinkConfig, Node, NodeConfig, SocketId, Switch, World};
use towpath_tcp::slow::SlowConfig;

/// The listening port.
pub const PORT: u16 = 9000;

/// A world of `senders` nodes (0 and up) and one receiver, the last node. One switch joins them.
pub struct Hosts {
    /// The world.
    pub world: World,
    /// The receiver's number.
    pub receiver: usize,
    /// The receiver's listener.
    pub listener: SocketId,
    /// The wire between switch and receiver.
    wire: Link,
}

impl Hosts {
    /// Builds it. Each host can hold `flows` connections; the pairs are the sizes of send and receive rings.
    pub fn new(rack: &Rack, flows: u32, sender_rings: (u32, u32), receiver_rings: (u32, u32)) -> Result<Self, String> {
        if rack.senders == 0 || rack.senders > 200 || rack.gbit <= 0.0 {
            return Err("between 1 and 200 senders on a wire that has a rate, please".into());
        }
        let count = rack.senders + 1;
        let mut switch = Switch::default();
        let mut world = World::default();
        let mut wire = None;
        for n in 1..=count {
            let (link, near, far) = Link::between(ends(rack));
            let mut config = node(rack, n, flows);
            config.rings = if n == count { receiver_rings } else { sender_rings };
            switch.attach(config.mac, far);
            let mut host = Node::new(config, Box::new(near));
            for other in (1..=count).filter(|&other| other != n) {
                host.add_route(address(other), mac(other), 1500);
            }
            world.nodes.push(host);
            wire = Some(link);
        }
        world.switches.push(switch);
        let receiver = usize::from(rack.senders);
        let listener =
            world.nodes[receiver].listen(PORT, flows).map_err(|errno| format!("cannot listen: errno {errno}"))?;
        let wire = wire.ok_or("no wire")?;
        Ok(Self { world, receiver, listener, wire })
    }

    /// The receiver's address.
    pub fn address(&self) -> IpAddr {
        address(self.receiver as u8 + 1)
    }

    /// The counters so far.
    pub fn losses(&self) -> Losses {
        let queue = self.wire.queue(1);
        let hosts = self.world.nodes.iter().map(|node| node.counters()[0]);
        let (retransmits, timeouts) =
            hosts.fold((0, 0), |(segments, timeouts), c| (segments + c.retransmits, timeouts + c.timeouts));
        let longest_queue_kib = queue.longest_bytes >> 10;
        Losses { drops: queue.drops, marks: queue.marks, longest_queue_kib, retransmits, timeouts }
    }
}

/// Losses and repairs of a run: the queue of the switch port to the receiver, and the segments of all hosts.
#[derive(Clone, Copy, Serialize)]
pub struct Losses {
    /// Frames that the queue dropped.
    pub drops: u64,
    /// Frames that it marked.
    pub marks: u64,
    /// The longest that the queue has been.
    pub longest_queue_kib: u64,
    /// Segments sent again.
    pub retransmits: u64,
    /// Retransmission time-outs.
    pub timeouts: u64,
}

impl Losses {
    /// The counts since `before`. The longest queue is that of the whole run.
    pub fn since(self, before: Self) -> Self {
        Self {
            drops: self.drops - before.drops,
            marks: self.marks - before.marks,
            longest_queue_kib: self.longest_queue_kib,
            retransmits: self.retransmits - before.retransmits,
            timeouts: self.timeouts - before.timeouts,
        }
    }
}

fn address(n: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, n).into()
}

fn mac(n: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, n]
}

/// The two ends of a wire. The host's queue is its memory and has no limit; the switch's has one.
fn ends(rack: &Rack) -> [LinkConfig; 2] {
    let host = LinkConfig {
        bits_per_s: (rack.gbit * 1e9) as u64,
        delay_us: rack.delay_us,
        queue_bytes: u64::MAX,
        checksum_offload: true,
        hashed: false,
        ..LinkConfig::default()
    };
    let mark_bytes = (rack.mark_kib > 0).then_some(rack.mark_kib << 10);
    [host, LinkConfig { queue_bytes: rack.queue_kib << 10, mark_bytes, ..host }]
}

fn node(rack: &Rack, n: u8, flows: u32) -> NodeConfig {
    let mut config = NodeConfig::numbered(n, rack.seed.wrapping_mul(1000).wrapping_add(n.into()));
    config.max_flows = flows + 16;
    config.slow =
        SlowConfig { max_flows: flows + 16, congestion: rack.cc, ecn: if rack.ecn { 1 } else { 2 }, ..config.slow };
    config
}
