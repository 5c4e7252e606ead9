//! Who may send next: round robin over the flows that have something to send, one queue per port, each flow in it once.

use crate::buffers::PortId;
use crate::flow::FlowId;
use crate::time::Micros;
use std::collections::VecDeque;

/// The send queues of one core. `bits::SCHEDULED` says that a flow is in one.
#[derive(Debug, Default)]
pub(super) struct Scheduler {
    queues: Vec<VecDeque<FlowId>>,
    waiting: usize,
    next: usize,
}

impl Scheduler {
    /// Nothing to send?
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// How many ports have had a flow so far.
    #[inline]
    pub fn ports(&self) -> usize {
        self.queues.len()
    }

    /// The ports in turn.
    pub fn next_port(&mut self) -> PortId {
        self.next = (self.next + 1) % self.queues.len().max(1);
        PortId(self.next as u8)
    }

    /// Puts a flow at the end of its port's queue.
    #[inline]
    pub fn push(&mut self, port: PortId, flow: FlowId) {
        self.queue(port).push_back(flow);
        self.waiting += 1;
    }

    /// Puts a flow back at the front, as its port had no room.
    pub fn push_front(&mut self, port: PortId, flow: FlowId) {
        self.queue(port).push_front(flow);
        self.waiting += 1;
    }

    /// The next flow of a port.
    #[inline]
    pub fn pop(&mut self, port: PortId) -> Option<FlowId> {
        let flow = self.queues.get_mut(usize::from(port.0))?.pop_front()?;
        self.waiting -= 1;
        Some(flow)
    }

    #[inline]
    fn queue(&mut self, port: PortId) -> &mut VecDeque<FlowId> {
        let port = usize::from(port.0);
        if port >= self.queues.len() {
            self.queues.resize_with(port + 1, || VecDeque::with_capacity(256));
        }
        &mut self.queues[port]
    }
}

/// Delayed acknowledgements: as all wait equally long, a queue is a timer. `bits::DELAYED` says that a flow is in it.
#[derive(Debug, Default)]
pub(super) struct Delayed(VecDeque<(Micros, FlowId)>);

impl Delayed {
    /// Adds a flow.
    #[inline]
    pub fn push(&mut self, deadline: Micros, flow: FlowId) {
        self.0.push_back((deadline, flow));
    }
    /// The next flow whose time has come.
    #[inline]
    pub fn pop_due(&mut self, now: Micros) -> Option<FlowId> {
        if self.0.front()?.0 > now {
            return None;
        }
        self.0.pop_front().map(|(_, flow)| flow)
    }
    /// When to look again.
    pub fn next_deadline(&self) -> Option<Micros> {
        self.0.front().map(|(deadline, _)| *deadline)
    }
}
