//! The fast path of a node, in either layout: run-to-completion, or the stages of the pipeline in a random order.

use crate::pipelined::Pipelined;
use crate::sockets::Sockets;
use crate::{PORT, TimedPort};
use towpath_ports::{Payload, RxChecksum, RxFrame, TxOffload};
use towpath_tcp::buffers::{RxBatch, TxPorts};
use towpath_tcp::counters::Counters;
use towpath_tcp::fast::FastPath;
use towpath_tcp::flow::{FlowId, PortId};
use towpath_tcp::messages::{AppUpdate, AppView, ContractViolation, FlowEvent, News, ToFast, ToSlow};
use towpath_tcp::time::Micros;

/// A fast path.
pub(crate) enum Engine {
    Whole(Box<FastPath>),
    Pipelined(Box<Pipelined>),
}

struct Batch<'a> {
    port: &'a dyn TimedPort,
    frames: &'a [RxFrame],
}

impl RxBatch for Batch<'_> {
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

struct Out<'a>(&'a mut dyn TimedPort);

impl TxPorts for Out<'_> {
    fn reserve(&mut self, _: PortId) -> Option<&mut [u8]> {
        self.0.reserve()
    }
    fn commit(&mut self, _: PortId, len: usize, offload: TxOffload) {
        self.0.commit(len, offload);
    }
    fn commit_gathered(&mut self, _: PortId, header: usize, payload: Payload<'_>, offload: TxOffload) {
        self.0.commit_gathered(header, payload, offload);
    }
    fn tx_checksum(&self, _: PortId) -> bool {
        self.0.capabilities().tx_checksum
    }
    fn gso_max_bytes(&self, _: PortId) -> u32 {
        self.0.capabilities().gso_max_bytes
    }
}

impl Engine {
    pub fn receive(&mut self, now: Micros, port: &dyn TimedPort, frames: &[RxFrame], rings: &mut Sockets) {
        match self {
            Self::Whole(fast) => fast.receive(now, PORT, &Batch { port, frames }, rings),
            Self::Pipelined(parts) => {
                parts.receive(now, frames.iter().map(|frame| (port.bytes(frame).to_vec(), frame.checksum)), rings);
            }
        }
    }

    /// The reply goes at once if it may. In the pipeline it waits for [`Engine::transmit`].
    pub fn app_update(
        &mut self,
        now: Micros,
        (flow, update): (FlowId, AppUpdate),
        rings: &Sockets,
        port: &mut dyn TimedPort,
    ) -> Result<(), ContractViolation> {
        match self {
            Self::Whole(fast) => fast.app_update_at_once(now, flow, update, rings, &mut Out(port)),
            Self::Pipelined(parts) => parts.app_update(now, flow, update),
        }
    }

    pub fn message(&mut self, now: Micros, message: ToFast, rings: &mut Sockets) {
        match self {
            Self::Whole(fast) => fast.message(now, message, rings),
            Self::Pipelined(parts) => parts.message(now, message, rings),
        }
    }

    /// Sends; returns how many frames.
    pub fn transmit(&mut self, now: Micros, most: usize, rings: &mut Sockets, port: &mut dyn TimedPort) -> usize {
        match self {
            Self::Whole(fast) => fast.transmit(now, most, rings, &mut Out(port)),
            Self::Pipelined(parts) => parts.transmit(now, most, rings, port),
        }
    }

    pub fn messages(&mut self, rings: &mut Sockets, mut take: impl FnMut(ToSlow, &mut Sockets)) -> bool {
        let mut any = false;
        let mut one = |message, rings: &mut Sockets| {
            any = true;
            take(message, rings);
        };
        match self {
            Self::Whole(fast) => {
                while let Some(message) = fast.pop_to_slow() {
                    one(message, rings);
                }
            }
            Self::Pipelined(parts) => {
                for message in parts.messages(rings) {
                    one(message, rings);
                }
            }
        }
        any
    }

    pub fn events(&mut self, rings: &mut Sockets, out: &mut Vec<(FlowEvent, AppView)>) {
        match self {
            Self::Whole(fast) => {
                while let Some(News { event, .. }) = fast.next_event() {
                    out.push((event, fast.view(event.flow)));
                }
            }
            Self::Pipelined(parts) => out.extend(parts.events(rings)),
        }
    }

    pub fn has_work(&self) -> bool {
        match self {
            Self::Whole(fast) => fast.has_work(),
            Self::Pipelined(parts) => parts.has_work(),
        }
    }

    pub fn next_deadline(&self) -> Option<Micros> {
        match self {
            Self::Whole(fast) => fast.next_deadline(),
            Self::Pipelined(parts) => parts.next_deadline(),
        }
    }

    pub fn counters(&self) -> Counters {
        match self {
            Self::Whole(fast) => *fast.counters(),
            Self::Pipelined(parts) => parts.counters(),
        }
    }
}
