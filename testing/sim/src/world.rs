//! All that shares the virtual clock, and the loop that advances it.

use crate::adversary::Adversary;
use crate::earlier;
use crate::node::Node;
use crate::smoltcp_host::SmoltcpHost;
use crate::switch::Switch;
use towpath_tcp::time::Micros;

/// Nodes, smoltcp hosts and the clock.
#[derive(Default)]
pub struct World {
    /// Virtual time.
    pub now: Micros,
    /// Hosts that run our stack.
    pub nodes: Vec<Node>,
    /// Hosts that run smoltcp.
    pub smoltcp_hosts: Vec<SmoltcpHost>,
    /// Switches between them.
    pub switches: Vec<Switch>,
    /// Attackers on the path.
    pub adversaries: Vec<Adversary>,
}

/// The programs in a world.
pub trait Program {
    /// Does the work that is possible now. True = something was done.
    fn step(&mut self, world: &mut World) -> bool;
    /// When it must be called again although nothing happens on the wire.
    fn next_deadline(&self) -> Option<Micros>;
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// No event is pending.
    Idle,
    /// The time limit was reached.
    TimeUp,
}

impl World {
    /// Runs until no event is pending or the clock reaches `until`.
    pub fn run(&mut self, until: Micros, program: &mut dyn Program) -> Outcome {
        let mut rounds = 0;
        loop {
            if self.round() | program.step(self) {
                rounds += 1;
                assert!(rounds < 100_000, "something is busy for ever at {:?}", self.now);
                continue;
            }
            rounds = 0;
            let Some(next) = earlier(self.next_deadline(), program.next_deadline()) else { return Outcome::Idle };
            if next > until {
                self.now = until;
                return Outcome::TimeUp;
            }
            // The clock must advance even if a deadline is not in the future although there was nothing to do.
            self.now = next.max(self.now.after(1));
        }
    }

    fn round(&mut self) -> bool {
        let mut busy = false;
        for node in &mut self.nodes {
            busy |= node.step(self.now);
        }
        for peer in &mut self.smoltcp_hosts {
            busy |= peer.step(self.now);
        }
        for switch in &mut self.switches {
            busy |= switch.step(self.now);
        }
        for adversary in &mut self.adversaries {
            busy |= adversary.step(self.now);
        }
        busy
    }

    fn next_deadline(&mut self) -> Option<Micros> {
        let nodes = self.nodes.iter().filter_map(Node::next_deadline).min();
        let switches = self.switches.iter().filter_map(Switch::next_deadline).min();
        let others = earlier(switches, self.smoltcp_hosts.iter_mut().filter_map(SmoltcpHost::next_deadline).min());
        let adversaries = self.adversaries.iter().filter_map(Adversary::next_deadline).min();
        earlier(earlier(nodes, adversaries), others)
    }
}
