//! Programs that open, send, stop reading, shut down, close and abort at random, over a bad wire, with short backlogs.
//! In the end no node has a flow, a half-open connection, a steered tuple or a pending timer left.

mod common;
use common::*;
use std::net::{IpAddr, Ipv4Addr};
use towpath_rng::Rng;
use towpath_sim::{Outcome, Phase, Program, SocketId, World};
use towpath_tcp::time::Micros;

const NAME: &str = "chaos";
const B: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

struct Chaos {
    rng: Rng,
    listeners: Vec<SocketId>,
    /// Node and socket of connections opened or accepted, and not yet closed.
    open: Vec<(usize, SocketId)>,
    next: Micros,
    /// Number of actions left.
    acts: u32,
}

impl Chaos {
    fn act(&mut self, world: &mut World) {
        if self.rng.chance(200_000) && self.acts > 50 {
            let port = self.rng.between(80, 82) as u16;
            if let Ok(id) = world.nodes[0].connect(B, port) {
                self.open.push((0, id));
            }
        }
        for &listener in &self.listeners {
            if self.rng.chance(100_000)
                && let Some(id) = world.nodes[1].accept(listener)
            {
                self.open.push((1, id));
            }
        }
        if self.open.is_empty() {
            return;
        }
        let at = self.rng.below(self.open.len() as u64) as usize;
        let (node, id) = self.open[at];
        let node = &mut world.nodes[node];
        let mut buffer = [0; 5000];
        // The programs ignore failures.
        match self.rng.below(12) {
            0..=4 => drop(node.send(id, &vec![7; self.rng.below(5000) as usize])),
            5..=9 => drop(node.recv(id, &mut buffer)),
            10 => {
                if node.phase(id) == Phase::Open {
                    node.shutdown(id);
                }
            }
            _ => {
                self.open.swap_remove(at);
                node.close(id, self.rng.chance(300_000));
            }
        }
    }

    /// Ends the programs: closes all sockets, as a kernel does.
    fn end(&mut self, world: &mut World) {
        for &listener in &self.listeners {
            while let Some(id) = world.nodes[1].accept(listener) {
                self.open.push((1, id));
            }
            world.nodes[1].close(listener, false);
        }
        for (node, id) in self.open.drain(..) {
            world.nodes[node].close(id, false);
        }
    }
}

impl Program for Chaos {
    fn step(&mut self, world: &mut World) -> bool {
        if self.acts == 0 || world.now < self.next {
            return false;
        }
        self.acts -= 1;
        self.next = world.now.after(self.rng.between(1, 20_000));
        self.act(world);
        if self.acts == 0 {
            self.end(world);
        }
        true
    }

    fn next_deadline(&self) -> Option<Micros> {
        (self.acts > 0).then_some(self.next)
    }
}

fn chaos(seed: u64) -> Result<(), String> {
    let mut rng = Rng::new(seed);
    let path = random_path(&mut rng, 50_000);
    let mut configs = [random_config(1, &mut rng), random_config(2, &mut rng)];
    // The second node's flow table is sometimes too small.
    configs[1].max_flows = if rng.chance(300_000) { 4 } else { 64 };
    configs[1].slow.max_flows = configs[1].max_flows;
    let (mut world, _) = two_nodes(configs, path, rng.next_u64());
    let mut listeners = Vec::new();
    for port in [80, 81] {
        let backlog = rng.between(1, 3) as u32;
        listeners.push(world.nodes[1].listen(port, backlog).map_err(|errno| format!("listen: errno {errno}"))?);
    }
    let acts = rng.between(100, 1500) as u32;
    let mut program = Chaos { rng, listeners, open: Vec::new(), next: Micros(0), acts };
    let outcome = world.run(LONG, &mut program);
    let left = |i: usize| {
        let node = &world.nodes[i];
        (node.flows(), node.connections(), node.steered(), node.unreleased())
    };
    if outcome != Outcome::Idle || left(0) != (0, 0, 0, 0) || left(1) != (0, 0, 0, 0) {
        let nodes: String = world.nodes.iter().map(|n| format!("{}\n", n.describe())).collect();
        return Err(format!(
            "{outcome:?} at {} µs, left {:?} and {:?}\n{path:?}\n{nodes}",
            world.now.0,
            left(0),
            left(1)
        ));
    }
    Ok(())
}

#[test]
fn five_hundred_seeds_of_chaos_leave_nothing_behind() {
    for_seeds(NAME, 500, chaos);
}

/// Repeats one seed (`TOWPATH_SEED`, 0 if unset), with every frame printed if `TOWPATH_TRACE` is set.
#[test]
fn one_seed() {
    let seed = seed_from_environment().unwrap_or(0);
    if let Err(what) = caught(|| chaos(seed)) {
        panic!("seed {seed}: {what}\n{}", replay(NAME, seed));
    }
}
