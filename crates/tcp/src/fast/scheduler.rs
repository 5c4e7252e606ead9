//! The scheduler: which flow may send next.
//!
//! Classes of flows, usually one per application, share a port by deficit round robin (Shreedhar and Varghese 1995). In
//! each round a class may send bytes in proportion to its weight, however many flows it has. Within a class flows take
//! turns. Each flow is in one queue, once. A class with nothing to send is in no round, and one that is alone needs
//! none.
//!
//! A class may have a rate limit, for all ports together. When its [`credit`] is used up, it leaves the rounds until
//! the wheel brings it back. Acknowledgements, and what else bypasses the limit, have a queue of their own.

use super::credit;
use super::fifo::Fifo;
use super::wheel::{Timer, Wheel};
use crate::flow::{FlowId, PortId};
use crate::time::Micros;
use std::collections::VecDeque;

/// Bytes per round and unit of weight. A few frames make a turn worth a flow's cache misses, and keep a round of many
/// classes short.
const QUANTUM: i64 = 4 * 1514;

/// A class, on all ports.
#[derive(Clone, Copy, Debug)]
struct Class {
    weight: u16,
    /// Payload bytes per second, 0 = no limit.
    limit: u64,
    /// Its credit at `credit_at`, as `Rate::credit`.
    credit: i64,
    credit_at: Micros,
    /// Out of credit, and on the wheel.
    waits: bool,
    /// Has waited since it was last without a flow that is held back.
    late: bool,
}

impl Default for Class {
    fn default() -> Self {
        Self { weight: 1, limit: 0, credit: 0, credit_at: Micros(0), waits: false, late: false }
    }
}

/// A class's flows on one port.
#[derive(Debug, Default)]
struct Queue {
    flows: Fifo<FlowId>,
    /// Bytes that the class may still send in this round. Negative: what it has sent too much, which the next round
    /// pays for.
    deficit: i64,
    in_round: bool,
}

/// The send queues of one port.
#[derive(Debug, Default)]
struct Port {
    round: Fifo<u16>,
    queues: Vec<Queue>,
    /// Flows of classes that wait, with something that bypasses the limit.
    bypass: Fifo<FlowId>,
}

/// A flow's turn to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Next {
    /// The flow.
    pub flow: FlowId,
    /// Bytes that its class may still send in this round; `i64::MAX` = no other class wants to send.
    pub share: i64,
    /// Only what bypasses rate limits.
    pub bypass: bool,
}

/// The send queues of one fast path. `bits::SCHEDULED` says that a flow is in its class's queue, `bits::BYPASSING` that
/// it is in that of its port.
#[derive(Debug, Default)]
pub(super) struct Scheduler {
    ports: Vec<Port>,
    classes: Vec<Class>,
    /// Flows in queues whose turn may come.
    ready: usize,
    /// Classes that wait.
    waiting: usize,
    /// Classes with a rate limit.
    limited: usize,
    next: usize,
    /// The queue of a class that is alone on its port, while its flows are served.
    served: Fifo<FlowId>,
    /// Whose queue that is.
    serving: Option<(PortId, u16)>,
}

impl Scheduler {
    /// Nothing to send.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.ready == 0
    }

    /// Flows are being served, or were when a turn ended by a panic: none of those that are left counts as queued.
    pub fn is_serving(&self) -> bool {
        self.serving.is_some()
    }

    /// The flows in the queues of classes, and those in the queues of ports.
    pub fn queued(&self) -> (impl Iterator<Item = FlowId>, impl Iterator<Item = FlowId>) {
        let queues = self.ports.iter().flat_map(|port| &port.queues).map(|queue| &queue.flows);
        let bypass = self.ports.iter().flat_map(|port| port.bypass.iter());
        (queues.chain([&self.served]).flat_map(Fifo::iter), bypass)
    }

    /// No flow is in a queue, and no class has a rate limit, behind which one might have to wait.
    #[inline(always)]
    pub fn is_quiet(&self) -> bool {
        // One comparison for both counts.
        self.ready | self.limited == 0 && !self.is_serving()
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

    /// Puts a flow at the end of its class's queue.
    #[inline(always)]
    pub fn push(&mut self, port: PortId, class: u16, flow: FlowId) {
        self.join(port, class).flows.push(flow);
    }

    /// Puts a flow back at the front, as its port had no room.
    pub fn push_front(&mut self, port: PortId, class: u16, flow: FlowId) {
        if self.serving == Some((port, class)) {
            return self.served.push_front(flow);
        }
        self.join(port, class).flows.push_front(flow);
    }

    /// Queues a flow of a class that waits, for what bypasses the limit.
    pub fn bypass(&mut self, port: PortId, flow: FlowId) {
        self.port(port).bypass.push(flow);
        self.ready += 1;
    }

    /// If one class alone has something to send on a port, and none has a rate limit, its flows are served from now on: they are
    /// taken by [`Scheduler::pop_served`], until [`Scheduler::end_serving`]. No flow of another class may be queued meanwhile.
    pub fn serve(&mut self, port: PortId) -> bool {
        let Some(of) = self.ports.get_mut(usize::from(port.0)) else { return false };
        if self.limited != 0 || !of.bypass.is_empty() {
            return false;
        }
        let Some(class) = of.round.only() else { return false };
        let Some(queue) = of.queues.get_mut(usize::from(class)).filter(|queue| !queue.flows.is_empty()) else {
            return false;
        };
        // A queue that is looked for once costs each flow nothing. Those that are queued again meanwhile come behind.
        std::mem::swap(&mut self.served, &mut queue.flows);
        self.ready -= self.served.len();
        self.serving = Some((port, class));
        true
    }

    /// The next of the flows that are served.
    #[inline(always)]
    pub fn pop_served(&mut self) -> Option<FlowId> {
        self.served.next()
    }

    /// Those that have not been served stay in front of those that have been queued meanwhile.
    #[inline(always)]
    pub fn end_serving(&mut self) {
        let Some((port, class)) = self.serving.take() else { return };
        self.served.tidy();
        if !self.served.is_empty() {
            self.put_back(port, class);
        }
    }

    #[cold]
    #[inline(never)]
    fn put_back(&mut self, port: PortId, class: u16) {
        self.ready += self.served.len();
        let queues = self.ports.get_mut(usize::from(port.0)).map(|port| &mut port.queues);
        if let Some(queue) = queues.and_then(|queues| queues.get_mut(usize::from(class))) {
            while let Some(flow) = queue.flows.pop() {
                self.served.push(flow);
            }
            std::mem::swap(&mut self.served, &mut queue.flows);
        }
    }

    /// The next flow of a port.
    #[inline]
    pub fn pop(&mut self, port: PortId) -> Option<Next> {
        let Self { ports, classes, ready, .. } = self;
        if *ready == 0 {
            // A class whose queue has run empty stays in the round until another is looked for.
            return None;
        }
        let port = ports.get_mut(usize::from(port.0))?;
        if let Some(flow) = port.bypass.pop() {
            *ready -= 1;
            return Some(Next { flow, share: i64::MAX, bypass: true });
        }
        loop {
            let number = port.round.front()?;
            let alone = port.round.len() == 1;
            let (class, queue) = (&classes[usize::from(number)], &mut port.queues[usize::from(number)]);
            if class.waits || queue.flows.is_empty() {
                queue.in_round = false;
                port.round.pop();
                continue;
            }
            if !alone && queue.deficit <= 0 {
                queue.deficit += QUANTUM * i64::from(class.weight);
                port.round.pop();
                port.round.push(number);
                continue;
            }
            let share = if alone { i64::MAX } else { queue.deficit };
            *ready -= 1;
            return queue.flows.pop().map(|flow| Next { flow, share, bypass: false });
        }
    }

    /// A class has sent `bytes` of its share.
    #[inline]
    pub fn charge(&mut self, port: PortId, class: u16, bytes: usize) {
        let queues = self.ports.get_mut(usize::from(port.0)).map(|port| &mut port.queues);
        if let Some(queue) = queues.and_then(|queues| queues.get_mut(usize::from(class))) {
            queue.deficit -= bytes as i64;
        }
    }

    /// True if some class waits for credit.
    #[inline(always)]
    pub fn any_waits(&self) -> bool {
        self.waiting != 0
    }

    /// True if this class waits for credit.
    #[inline]
    pub fn waits(&self, class: u16) -> bool {
        self.waiting != 0 && self.classes.get(usize::from(class)).is_some_and(|class| class.waits)
    }

    /// True if some class has a rate limit.
    #[inline]
    pub fn limits(&self) -> bool {
        self.limited != 0
    }

    /// The credit that a class's rate limit leaves; `i64::MAX` = it has none.
    pub fn credit(&mut self, now: Micros, class: u16) -> i64 {
        let Some(class) = self.classes.get_mut(usize::from(class)).filter(|class| class.limit != 0) else {
            return i64::MAX;
        };
        class.credit = credit::grown(class.limit, class.credit, now.since(class.credit_at), class.late);
        class.credit_at = now;
        class.credit
    }

    /// A flow of a class with a rate limit has had its turn. `held`: it could send more, and only the class's credit is
    /// lacking; `more`: it goes on in another turn.
    pub fn spend(&mut self, wheel: &mut Wheel, now: Micros, number: u16, spent: i64, (held, more): (bool, bool)) {
        let Some(class) = self.classes.get_mut(usize::from(number)).filter(|class| class.limit != 0) else { return };
        class.credit -= spent;
        let queued =
            || self.ports.iter().any(|p| p.queues.get(usize::from(number)).is_some_and(|q| !q.flows.is_empty()));
        class.late = held || more || (class.late && queued());
        if !held || class.waits {
            return;
        }
        class.waits = true;
        self.waiting += 1;
        wheel.set(Timer::Class(number), now.after(credit::wait_us(class.limit, class.credit)));
        let queues = self.ports.iter().filter_map(|port| port.queues.get(usize::from(number)));
        self.ready -= queues.map(|queue| queue.flows.len()).sum::<usize>();
    }

    /// A class has waited long enough.
    pub fn release(&mut self, number: u16) {
        let Some(class) = self.classes.get_mut(usize::from(number)).filter(|class| class.waits) else { return };
        class.waits = false;
        let weight = class.weight;
        self.waiting -= 1;
        for port in &mut self.ports {
            if let Some(queue) = port.queues.get_mut(usize::from(number)).filter(|queue| !queue.flows.is_empty()) {
                self.ready += queue.flows.len();
                queue.enter(&mut port.round, number, weight);
            }
        }
    }

    /// A class's share of each port, against the other classes; 0 counts as 1.
    pub fn set_weight(&mut self, number: u16, weight: u16) {
        self.class(number).weight = weight.max(1);
    }

    /// A class's rate limit in payload bytes per second, 0 = none.
    pub fn set_limit(&mut self, wheel: &mut Wheel, now: Micros, number: u16, limit: u64) {
        wheel.reserve(number.into());
        let class = self.class(number);
        let had = class.limit != 0;
        if had {
            class.credit = credit::grown(class.limit, class.credit, now.since(class.credit_at), class.late);
        } else {
            class.credit = 0;
        }
        (class.limit, class.credit_at) = (limit, now);
        self.limited = self.limited + usize::from(limit != 0) - usize::from(had);
        wheel.cancel(Timer::Class(number));
        self.release(number);
    }

    fn class(&mut self, number: u16) -> &mut Class {
        let number = usize::from(number);
        if number >= self.classes.len() {
            self.classes.resize(number + 1, Class::default());
        }
        &mut self.classes[number]
    }

    fn port(&mut self, port: PortId) -> &mut Port {
        let port = usize::from(port.0);
        if port >= self.ports.len() {
            self.ports.resize_with(port + 1, Port::default);
        }
        &mut self.ports[port]
    }

    /// A class's queue on a port, for a flow that is about to be added.
    #[inline(always)]
    fn join(&mut self, port: PortId, number: u16) -> &mut Queue {
        let (at, index) = (usize::from(port.0), usize::from(number));
        // The class of a queue is known.
        if self.ports.get(at).is_none_or(|port| index >= port.queues.len()) {
            return self.join_first(port, number);
        }
        self.join_queue(at, index)
    }

    /// A class joins a port for the first time.
    #[cold]
    #[inline(never)]
    fn join_first(&mut self, port: PortId, number: u16) -> &mut Queue {
        self.class(number);
        let (at, index) = (usize::from(port.0), usize::from(number));
        let queues = &mut self.port(port).queues;
        if index >= queues.len() {
            queues.resize_with(index + 1, Queue::default);
        }
        self.join_queue(at, index)
    }

    #[inline(always)]
    fn join_queue(&mut self, at: usize, index: usize) -> &mut Queue {
        let Self { ports, classes, ready, waiting, .. } = self;
        let Port { round, queues, .. } = &mut ports[at];
        let queue = &mut queues[index];
        if *waiting == 0 || !classes[index].waits {
            *ready += 1;
            if !queue.in_round {
                queue.enter(round, index as u16, classes[index].weight);
            }
        }
        queue
    }
}

impl Queue {
    /// Joins the round at its end, with a fresh share. A debt of an earlier round is forgotten.
    fn enter(&mut self, round: &mut Fifo<u16>, number: u16, weight: u16) {
        if !self.in_round {
            (self.in_round, self.deficit) = (true, QUANTUM * i64::from(weight));
            round.push(number);
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
    /// A flow's time has come.
    #[inline(always)]
    pub fn is_due(&self, now: Micros) -> bool {
        self.0.front().is_some_and(|(deadline, _)| *deadline <= now)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_joins_a_round_once_with_a_share_by_its_weight() {
        let (mut queue, mut round) = (Queue::default(), Fifo::default());
        queue.enter(&mut round, 3, 4);
        assert_eq!((queue.deficit, round.only()), (4 * QUANTUM, Some(3)));
        queue.deficit -= 1;
        queue.enter(&mut round, 3, 4);
        assert_eq!((queue.deficit, round.len()), (4 * QUANTUM - 1, 1), "it has its share of this round");
    }

    #[test]
    fn flows_that_are_served_keep_their_places_whatever_is_queued_meanwhile() {
        const PORT: PortId = PortId(0);
        let mut scheduler = Scheduler::default();
        assert!(!scheduler.serve(PORT), "there is no such port yet");
        (0..4).for_each(|flow| scheduler.push(PORT, 7, FlowId(flow)));
        assert!(scheduler.serve(PORT));
        assert_eq!(scheduler.pop_served(), Some(FlowId(0)));
        scheduler.push(PORT, 7, FlowId(0));
        assert_eq!(scheduler.pop_served(), Some(FlowId(1)));
        // The port has no room for it.
        scheduler.push_front(PORT, 7, FlowId(1));
        scheduler.end_serving();
        // In between all is as if nobody had begun.
        assert_eq!(scheduler.pop(PORT), Some(Next { flow: FlowId(1), share: i64::MAX, bypass: false }));
        assert!(scheduler.serve(PORT));
        let rest: Vec<_> = std::iter::from_fn(|| scheduler.pop_served()).collect();
        scheduler.end_serving();
        assert_eq!((rest, scheduler.is_empty()), (vec![FlowId(2), FlowId(3), FlowId(0)], true));
        assert!(!scheduler.serve(PORT) && scheduler.pop(PORT).is_none(), "there is nothing left");
        scheduler.push(PORT, 7, FlowId(5));
        scheduler.push(PORT, 8, FlowId(6));
        assert!(!scheduler.serve(PORT), "two classes share the port");
        scheduler.bypass(PortId(1), FlowId(9));
        assert!(!scheduler.serve(PortId(1)));
    }

    #[test]
    fn a_class_without_credit_waits_and_no_other_does() {
        let (mut scheduler, mut wheel) = (Scheduler::default(), Wheel::default());
        for class in [1, 2] {
            scheduler.set_limit(&mut wheel, Micros(0), class, 1000);
        }
        scheduler.spend(&mut wheel, Micros(0), 1, 5000, (true, true));
        assert_eq!([0, 1, 2, 9].map(|class| scheduler.waits(class)), [false, true, false, false]);
        scheduler.release(1);
        assert!(!scheduler.waits(1));
    }

    #[test]
    fn a_class_is_late_until_none_of_its_flows_is_queued() {
        let (mut scheduler, mut wheel) = (Scheduler::default(), Wheel::default());
        scheduler.set_limit(&mut wheel, Micros(0), 1, 1000);
        let mut late_after = |scheduler: &mut Scheduler, held| {
            scheduler.release(1);
            scheduler.spend(&mut wheel, Micros(0), 1, 5000, (held, held));
            scheduler.classes[1].late
        };
        assert!(!late_after(&mut scheduler, false), "it has never waited");
        assert!(late_after(&mut scheduler, true));
        scheduler.push(PortId(0), 1, FlowId(5));
        assert!(late_after(&mut scheduler, false), "another flow is queued");
        scheduler.pop(PortId(0));
        assert!(!late_after(&mut scheduler, false));
    }
}
