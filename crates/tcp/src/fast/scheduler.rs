//! Who may send next.
//!
//! A port is shared by deficit round robin (Shreedhar and Varghese 1995) between groups of flows, usually one per application: in each
//! round a group may send bytes in proportion to its weight, however many flows it has. Within a group flows take turns. Each flow is
//! in one queue, once. A group that is alone costs nothing but a look at the round; one with nothing to send is not in it.
//!
//! A group may have a rate limit, for all ports together: when its credit (see [`pace`]) is used up, it leaves the rounds until the
//! wheel brings it back. What must go nevertheless, acknowledgements above all, has a queue of its own.

use super::pace;
use super::wheel::{Timer, Wheel};
use crate::buffers::PortId;
use crate::flow::FlowId;
use crate::time::Micros;
use std::collections::VecDeque;

/// Bytes per round and unit of weight: a few frames, so that a turn is worth a flow's cache misses, and a round of many groups short.
const QUANTUM: i64 = 4 * 1514;

/// A group, on all ports.
#[derive(Clone, Copy, Debug)]
struct Group {
    weight: u16,
    /// Payload bytes per second, 0 = no limit.
    limit: u64,
    /// What it may send at `credit_at`, as `Rate::credit`.
    credit: i64,
    credit_at: Micros,
    /// Is it out of credit, and on the wheel?
    waits: bool,
    /// Has it waited since it was last without a flow that is held back?
    late: bool,
}

impl Default for Group {
    fn default() -> Self {
        Self { weight: 1, limit: 0, credit: 0, credit_at: Micros(0), waits: false, late: false }
    }
}

/// A group's flows on one port.
#[derive(Debug, Default)]
struct Queue {
    flows: VecDeque<FlowId>,
    /// Bytes that it may still send in this round; what it sent too much counts for the next.
    deficit: i64,
    in_round: bool,
}

/// The send queues of one port.
#[derive(Debug, Default)]
struct Port {
    round: VecDeque<u16>,
    queues: Vec<Queue>,
    /// Flows of groups that wait, with something that does not.
    pressing: VecDeque<FlowId>,
}

/// A flow's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Next {
    /// Whose.
    pub flow: FlowId,
    /// Bytes that its group may still send in this round; `i64::MAX` = nobody else wants to send.
    pub share: i64,
    /// Only what is not subject to rate limits.
    pub pressing: bool,
}

/// The send queues of one core. `bits::SCHEDULED` says that a flow is in a group's, `bits::PRESSING` that it is in the other.
#[derive(Debug, Default)]
pub(super) struct Scheduler {
    ports: Vec<Port>,
    groups: Vec<Group>,
    /// Flows in queues whose turn may come.
    ready: usize,
    /// Groups that wait.
    waiting: usize,
    /// Groups with a rate limit.
    limited: usize,
    next: usize,
}

impl Scheduler {
    /// Nothing to send?
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.ready == 0
    }

    /// How many ports have had a flow so far.
    #[inline]
    pub fn ports(&self) -> usize {
        self.ports.len()
    }

    /// The ports in turn.
    #[inline]
    pub fn next_port(&mut self) -> PortId {
        self.next = if self.next + 1 < self.ports.len() { self.next + 1 } else { 0 };
        PortId(self.next as u8)
    }

    /// Puts a flow at the end of its group's queue.
    #[inline]
    pub fn push(&mut self, port: PortId, group: u16, flow: FlowId) {
        self.join(port, group).flows.push_back(flow);
    }

    /// Puts a flow back at the front, as its port had no room.
    pub fn push_front(&mut self, port: PortId, group: u16, flow: FlowId) {
        self.join(port, group).flows.push_front(flow);
    }

    /// Puts a flow of a group that waits where its acknowledgement does not.
    pub fn press(&mut self, port: PortId, flow: FlowId) {
        self.port(port).pressing.push_back(flow);
        self.ready += 1;
    }

    /// The next flow of a port.
    #[inline]
    pub fn pop(&mut self, port: PortId) -> Option<Next> {
        let Self { ports, groups, ready, .. } = self;
        if *ready == 0 {
            // A group whose queue has run empty stays in the round until somebody comes after it.
            return None;
        }
        let port = ports.get_mut(usize::from(port.0))?;
        if let Some(flow) = port.pressing.pop_front() {
            *ready -= 1;
            return Some(Next { flow, share: i64::MAX, pressing: true });
        }
        loop {
            let number = *port.round.front()?;
            let alone = port.round.len() == 1;
            let (group, queue) = (&groups[usize::from(number)], &mut port.queues[usize::from(number)]);
            if group.waits || queue.flows.is_empty() {
                queue.in_round = false;
                port.round.pop_front();
                continue;
            }
            if !alone && queue.deficit <= 0 {
                queue.deficit += QUANTUM * i64::from(group.weight);
                port.round.rotate_left(1);
                continue;
            }
            let share = if alone { i64::MAX } else { queue.deficit };
            *ready -= 1;
            return queue.flows.pop_front().map(|flow| Next { flow, share, pressing: false });
        }
    }

    /// A group has sent so many bytes of its share.
    #[inline]
    pub fn charge(&mut self, port: PortId, group: u16, bytes: usize) {
        let queues = self.ports.get_mut(usize::from(port.0)).map(|port| &mut port.queues);
        if let Some(queue) = queues.and_then(|queues| queues.get_mut(usize::from(group))) {
            queue.deficit -= bytes as i64;
        }
    }

    /// Does this group wait for credit?
    #[inline]
    pub fn waits(&self, group: u16) -> bool {
        self.waiting != 0 && self.groups.get(usize::from(group)).is_some_and(|group| group.waits)
    }

    /// Has any group a rate limit?
    #[inline]
    pub fn limits(&self) -> bool {
        self.limited != 0
    }

    /// What a group's rate limit lets it send; `i64::MAX` = there is none.
    pub fn credit(&mut self, now: Micros, group: u16) -> i64 {
        let Some(group) = self.groups.get_mut(usize::from(group)).filter(|group| group.limit != 0) else {
            return i64::MAX;
        };
        group.credit = pace::grown(group.limit, group.credit, now.since(group.credit_at), group.late);
        group.credit_at = now;
        group.credit
    }

    /// A flow of a group with a rate limit has had its turn. `held`: it could send more, and only the group's credit is lacking; `more`:
    /// it goes on in another turn.
    pub fn spend(&mut self, wheel: &mut Wheel, now: Micros, number: u16, spent: i64, (held, more): (bool, bool)) {
        let Some(group) = self.groups.get_mut(usize::from(number)).filter(|group| group.limit != 0) else { return };
        group.credit -= spent;
        let queued =
            || self.ports.iter().any(|p| p.queues.get(usize::from(number)).is_some_and(|q| !q.flows.is_empty()));
        group.late = held || more || (group.late && queued());
        if !held || group.waits {
            return;
        }
        group.waits = true;
        self.waiting += 1;
        wheel.set(Timer::Group(number), now.after(pace::wait_us(group.limit, group.credit)));
        let queues = self.ports.iter().filter_map(|port| port.queues.get(usize::from(number)));
        self.ready -= queues.map(|queue| queue.flows.len()).sum::<usize>();
    }

    /// A group's time has come.
    pub fn release(&mut self, number: u16) {
        let Some(group) = self.groups.get_mut(usize::from(number)).filter(|group| group.waits) else { return };
        group.waits = false;
        let weight = group.weight;
        self.waiting -= 1;
        for port in &mut self.ports {
            if let Some(queue) = port.queues.get_mut(usize::from(number)).filter(|queue| !queue.flows.is_empty()) {
                self.ready += queue.flows.len();
                queue.enter(&mut port.round, number, weight);
            }
        }
    }

    /// A group's share of each port, against the other groups; 0 counts as 1.
    pub fn set_weight(&mut self, number: u16, weight: u16) {
        self.group(number).weight = weight.max(1);
    }

    /// A group's rate limit in payload bytes per second, 0 = none.
    pub fn set_limit(&mut self, wheel: &mut Wheel, now: Micros, number: u16, limit: u64) {
        wheel.reserve(number.into());
        let group = self.group(number);
        let had = group.limit != 0;
        if had {
            group.credit = pace::grown(group.limit, group.credit, now.since(group.credit_at), group.late);
        } else {
            group.credit = 0;
        }
        (group.limit, group.credit_at) = (limit, now);
        self.limited = self.limited + usize::from(limit != 0) - usize::from(had);
        wheel.cancel(Timer::Group(number));
        self.release(number);
    }

    fn group(&mut self, number: u16) -> &mut Group {
        let number = usize::from(number);
        if number >= self.groups.len() {
            self.groups.resize(number + 1, Group::default());
        }
        &mut self.groups[number]
    }

    fn port(&mut self, port: PortId) -> &mut Port {
        let port = usize::from(port.0);
        if port >= self.ports.len() {
            self.ports.resize_with(port + 1, Port::default);
        }
        &mut self.ports[port]
    }

    /// A group's queue on a port, for a flow that is about to be added.
    #[inline]
    fn join(&mut self, port: PortId, number: u16) -> &mut Queue {
        if usize::from(number) >= self.groups.len() {
            self.group(number);
        }
        let group = self.groups[usize::from(number)];
        self.ready += usize::from(!group.waits);
        let port = self.port(port);
        if usize::from(number) >= port.queues.len() {
            port.queues.resize_with(usize::from(number) + 1, Queue::default);
        }
        let queue = &mut port.queues[usize::from(number)];
        if !queue.in_round && !group.waits {
            queue.enter(&mut port.round, number, group.weight);
        }
        queue
    }
}

impl Queue {
    /// Joins the round at its end, with a fresh share; what was sent too much in an earlier one is forgotten.
    fn enter(&mut self, round: &mut VecDeque<u16>, number: u16, weight: u16) {
        if !self.in_round {
            (self.in_round, self.deficit) = (true, QUANTUM * i64::from(weight));
            round.push_back(number);
        }
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
