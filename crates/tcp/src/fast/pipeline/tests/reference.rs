//! Run-to-completion over a recorded trace.
use super::traces::{Flows, written};
use super::{PORT, Seen, Step};
use crate::buffers::TxPorts;
use crate::counters::Counters;
use crate::fast::FastPath;
use crate::fast::pipeline::Abilities;
use crate::fast::tests::{Frames, VecRings};
use crate::flow::{FlowId, PortId};
use crate::messages::{AppUpdate, News};
use crate::time::Micros;
use std::collections::{HashMap, HashSet};
use towpath_wire::offload::TxOffload;

/// What a trace must give.
pub struct Expected {
    pub seen: Vec<Seen>,
    pub counters: Counters,
    /// The lines of the flows at the end.
    pub lines: Vec<String>,
    /// What each flow has received.
    pub streams: HashMap<FlowId, Vec<u8>>,
}

struct Port {
    seen: Vec<Seen>,
    room: usize,
    abilities: Abilities,
    buffer: Vec<u8>,
}

impl TxPorts for Port {
    fn reserve(&mut self, _: PortId) -> Option<&mut [u8]> {
        (self.room != 0).then_some(&mut self.buffer[..])
    }
    fn commit(&mut self, port: PortId, len: usize, offload: TxOffload) {
        self.room -= 1;
        self.seen.push(Seen::Frame(port, self.buffer[..len].to_vec(), offload));
    }
    fn tx_checksum(&self, _: PortId) -> bool {
        self.abilities.checksum
    }
    fn gso_max_bytes(&self, _: PortId) -> u32 {
        self.abilities.gso_max_bytes
    }
}

/// The application writes what its words say; positions that break the contract have no bytes.
pub fn write(rings: &mut VecRings, tails: &mut HashMap<FlowId, u32>, flow: FlowId, update: &AppUpdate) {
    let ring = rings.tx.get_mut(&flow).unwrap();
    let (tail, size) = (tails.entry(flow).or_default(), ring.len() as u32);
    let len = update.tx_tail.wrapping_sub(*tail);
    if len <= size {
        (0..len).for_each(|n| ring[(tail.wrapping_add(n) % size) as usize] = written(tail.wrapping_add(n)));
        *tail = update.tx_tail;
    }
}

/// Reads what has been received since the last time, before the peer may overwrite it.
fn read(flows: &Flows, fast: &FastPath, rings: &VecRings, streams: &mut HashMap<FlowId, Vec<u8>>) {
    for setup in &flows.setups {
        let (stream, tail) = (streams.entry(setup.flow).or_default(), fast.view(setup.flow).rx_tail);
        let ring = &rings.rx[&setup.flow];
        for position in stream.len() as u32..tail {
            stream.push(ring[position as usize % ring.len()]);
        }
    }
}

/// Runs a trace without the frames that are numbered in `lost`.
pub fn run(flows: &Flows, steps: &[Step], lost: &HashSet<u64>) -> Expected {
    let mut fast: FastPath = flows.fast_path();
    let mut rings = flows.rings();
    flows.install(|now, message| fast.message(now, message, &mut rings));
    let (mut tails, mut streams) = (HashMap::new(), HashMap::<FlowId, Vec<u8>>::new());
    let mut port = Port { seen: vec![], room: 0, abilities: flows.abilities, buffer: vec![0; 1 << 16] };
    let (mut now, mut number) = (flows.now, 0);
    for step in steps {
        match step {
            Step::Wait(us) => now = Micros(now.0 + us),
            Step::Batch(frames) => {
                let mut left = vec![];
                for frame in frames {
                    if !lost.contains(&number) {
                        left.push(frame.clone());
                    }
                    number += 1;
                }
                // A batch without frames is none, as in a port.
                if !left.is_empty() {
                    fast.receive(now, PORT, &Frames(left), &mut rings);
                }
                read(flows, &fast, &rings, &mut streams);
            }
            Step::Update(flow, update) => {
                write(&mut rings, &mut tails, *flow, update);
                let _ = fast.app_update(now, *flow, *update);
            }
            Step::Message(message) => {
                fast.message(now, message.clone(), &mut rings);
                // One that fills a hole shows a whole ring.
                read(flows, &fast, &rings, &mut streams);
            }
            Step::Transmit(room) => {
                port.room = room.unwrap_or(usize::MAX);
                fast.transmit(now, 10_000, &rings, &mut port);
            }
            Step::Publish => {
                while let Some(News { event, .. }) = fast.next_event() {
                    let view = fast.view(event.flow);
                    port.seen.push(Seen::Event(event.flow, event.what, view));
                }
                while let Some(message) = fast.pop_to_slow() {
                    port.seen.push(Seen::Message(format!("{message:?}")));
                }
            }
        }
    }
    let lines = flows.setups.iter().map(|setup| format!("{:?}", fast.table.get(setup.flow))).collect();
    Expected { seen: port.seen, counters: *fast.counters(), lines, streams }
}
