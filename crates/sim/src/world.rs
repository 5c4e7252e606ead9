//! Everything that shares the virtual clock, and the loop that moves it.

use crate::adversary::Adversary;
use crate::earlier;
use crate::node::Node;
use crate::peer::Peer;
use crate::switch::Switch;
use towpath_tcp::time::Micros;

/// Nodes, foreign peers and the clock.
#[derive(Default)]
pub struct World {
    /// Virtual time.
    pub now: Micros,
    /// Hosts that run our stack.
    pub nodes: Vec<Node>,
    /// Hosts that run another one.
    pub peers: Vec<Peer>,
    /// Switches between them.
    pub switches: Vec<Switch>,
    /// Those who mean harm.
    pub adversaries: Vec<Adversary>,
}

/// The programs in a world.
pub trait Program {
    /// Does what it can do now. True = it did something.
    fn step(&mut self, world: &mut World) -> bool;
    /// When it wants to be called again although nothing happens on the wire.
    fn next_deadline(&self) -> Option<Micros>;
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing will ever happen again by itself.
    Idle,
    /// The time was up.
    TimeUp,
}

impl World {
    /// Runs until nothing is left to happen or the clock shows `until`.
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
            // A deadline that is not in the future, although there was nothing to do, must not stop the clock.
            self.now = next.max(self.now.after(1));
        }
    }

    fn round(&mut self) -> bool {
        let mut busy = false;
        for node in &mut self.nodes {
            busy |= node.step(self.now);
        }
        for peer in &mut self.peers {
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
        let others = earlier(switches, self.peers.iter_mut().filter_map(Peer::next_deadline).min());
        let adversaries = self.adversaries.iter().filter_map(Adversary::next_deadline).min();
        earlier(earlier(nodes, adversaries), others)
    }
}
