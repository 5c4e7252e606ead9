//! Attackers on the path and off it. The stream stays correct, or the connection ends with an error. An off-path
//! attacker cannot end it, and forged acknowledgements gain nothing.

mod common;
use common::*;
use std::net::{IpAddr, Ipv4Addr};
use towpath_rng::Rng;
use towpath_sim::errno::EAGAIN;
use towpath_sim::{Adversary, Link, LinkConfig, Node, NodeConfig, Outcome, Phase, Powers, Program, SocketId, World};
use towpath_tcp::slow::congestion::Algorithm;
use towpath_tcp::time::Micros;

const NAME: &str = "adversary";
const B: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

/// One end of the connection. It sends `out`, and compares received bytes with `expected`.
struct Party {
    node: usize,
    listener: Option<SocketId>,
    socket: Option<SocketId>,
    out: Vec<u8>,
    sent: usize,
    expected: Vec<u8>,
    got: usize,
    shut: bool,
    eof: bool,
    error: Option<i32>,
}

impl Party {
    fn step(&mut self, world: &mut World) -> bool {
        let node = &mut world.nodes[self.node];
        if self.error.is_some() || (self.shut && self.eof) {
            return false;
        }
        if let Some(listener) = self.listener
            && self.socket.is_none()
        {
            self.socket = node.accept(listener);
        }
        let Some(socket) = self.socket else { return false };
        if node.phase(socket) == Phase::Connecting {
            return false;
        }
        let mut busy = false;
        while self.sent < self.out.len() {
            match node.send(socket, &self.out[self.sent..]) {
                Ok(n) => self.sent += n,
                Err(errno) => {
                    self.fail(errno);
                    break;
                }
            }
            busy = true;
        }
        if self.sent == self.out.len() && !self.shut && self.error.is_none() {
            node.shutdown(socket);
            (self.shut, busy) = (true, true);
        }
        let mut buffer = [0; 4096];
        while !self.eof && self.error.is_none() {
            match node.recv(socket, &mut buffer) {
                Ok(n) => {
                    let end = (self.got + n).min(self.expected.len());
                    assert!(buffer[..n] == self.expected[self.got..end], "wrong bytes after {} good ones", self.got);
                    self.got += n;
                    self.eof = n == 0;
                    assert!(!self.eof || self.got == self.expected.len(), "an end of stream after {} bytes", self.got);
                }
                Err(errno) => {
                    self.fail(errno);
                    break;
                }
            }
            busy = true;
        }
        if self.eof && self.shut {
            node.close(socket, false);
        }
        busy
    }

    fn fail(&mut self, errno: i32) {
        if errno != EAGAIN {
            self.error = Some(errno);
        }
    }

    fn complete(&self) -> bool {
        self.eof && self.shut && self.got == self.expected.len()
    }

    fn describe(&self) -> String {
        let Self { sent, got, shut, eof, error, .. } = self;
        let (out, expected) = (self.out.len(), self.expected.len());
        format!("sent {sent} of {out}, got {got} of {expected}, shut {shut}, eof {eof}, error {error:?}")
    }
}

struct Parties([Party; 2]);

impl Program for Parties {
    fn step(&mut self, world: &mut World) -> bool {
        let [a, b] = &mut self.0;
        a.step(world) | b.step(world)
    }
    fn next_deadline(&self) -> Option<Micros> {
        None
    }
}

/// Two nodes with an attacker between them.
fn scene(configs: [NodeConfig; 2], wire: LinkConfig, powers: Powers, seed: u64) -> World {
    let (_, a, near) = Link::new(LinkConfig { print: std::env::var_os("TOWPATH_TRACE").is_some(), ..wire });
    let (_, far, b) = Link::new(LinkConfig { bits_per_s: 0, delay_us: 5, ..wire });
    let mtu = wire.mtu_bytes as u16;
    // The invariant checker accepts all received segments, including forged SYNs and acknowledgements.
    let [first, second] = configs.map(|config| NodeConfig { check_invariants: false, ..config });
    let (first_at, second_at) = ((first.address, first.mac), (second.address, second.mac));
    let mut left = Node::new(first, Box::new(a));
    let mut right = Node::new(second, Box::new(b));
    left.add_route(second_at.0, second_at.1, mtu);
    right.add_route(first_at.0, first_at.1, mtu);
    let adversaries = vec![Adversary::new([near, far], powers, seed)];
    World { nodes: vec![left, right], adversaries, ..World::default() }
}

fn parties(world: &mut World, sizes: [u64; 2], rng: &mut Rng) -> Result<Parties, String> {
    let listener = world.nodes[1].listen(80, 8).map_err(|errno| format!("listen: errno {errno}"))?;
    let socket = world.nodes[0].connect(B, 80).map_err(|errno| format!("connect: errno {errno}"))?;
    let [there, back] = sizes.map(|size| {
        let mut bytes = vec![0; size as usize];
        rng.fill(&mut bytes);
        bytes
    });
    let party = |node, listener, socket, out, expected| Party {
        node,
        listener,
        socket,
        out,
        sent: 0,
        expected,
        got: 0,
        shut: false,
        eof: false,
        error: None,
    };
    let a = party(0, None, Some(socket), there.clone(), back.clone());
    Ok(Parties([a, party(1, Some(listener), None, back, there)]))
}

/// The kind of attacker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// On the path, without actions that could end the connection.
    Meddler,
    /// On the path, with exact RSTs and errors.
    Killer,
    /// On the path, acknowledging data that has not arrived.
    Liar,
    /// Off the path.
    Guesser,
}

fn powers(kind: Kind, rng: &mut Rng) -> Powers {
    let mut up_to = |ppm: u64| rng.below(ppm + 1) as u32;
    let base = Powers { budget: 3_000, delay_us: 1, ..Powers::default() };
    if kind == Kind::Guesser {
        return Powers { guess_ppm: 900_000, ..base };
    }
    Powers {
        drop_ppm: up_to(30_000),
        delay_ppm: up_to(100_000),
        delay_us: 1 + u64::from(up_to(20_000)),
        replay_ppm: up_to(200_000),
        forge_ppm: up_to(500_000),
        kills: kind == Kind::Killer,
        divide: up_to(8),
        ahead: up_to(1) * 100_000,
        optimistic_ppm: if kind == Kind::Liar { 10_000 + up_to(300_000) } else { 0 },
        ..base
    }
}

fn attack(seed: u64, kind: Kind) -> Result<String, String> {
    let mut rng = Rng::new(seed);
    let wire = random_path(&mut rng, 0).link;
    let wire = LinkConfig { checksum_offload: false, ..wire };
    let configs = [random_config(1, &mut rng), random_config(2, &mut rng)];
    let powers = powers(kind, &mut rng);
    let mut world = scene(configs, wire, powers, rng.next_u64());
    let sizes = [0, 0].map(|_: u64| rng.below(120_000));
    let mut parties = parties(&mut world, sizes, &mut rng)?;
    let outcome = world.run(LONG, &mut parties);
    let [a, b] = &parties.0;
    let told = || {
        let nodes: String = world.nodes.iter().map(|n| format!("{}\n", n.describe())).collect();
        format!(
            "{kind:?} {powers:?}\n{wire:?}\n{outcome:?} at {}\n{}\n{}\n{nodes}",
            world.now.0,
            a.describe(),
            b.describe()
        )
    };
    let complete = a.complete() && b.complete();
    let closed = (a.shut && a.eof) || (b.shut && b.eof);
    match kind {
        Kind::Meddler | Kind::Guesser if !complete => return Err(told()),
        // A closed socket gets no error. Every byte and every end of stream has been checked.
        Kind::Killer if !complete && !closed && a.error.is_none() && b.error.is_none() => return Err(told()),
        _ => {}
    }
    if complete && outcome != Outcome::Idle {
        return Err(told());
    }
    Ok(format!("{kind:?}: {sizes:?} bytes, complete {complete}, {} frames made", world.adversaries[0].made()))
}

#[test]
fn somebody_on_the_path_who_forges_outside_the_window_changes_and_ends_nothing() {
    for_seeds(NAME, 1000, |seed| attack(seed, Kind::Meddler).map(|_| ()));
}

#[test]
fn exact_resets_end_a_connection_with_an_error_and_never_change_its_stream() {
    for_seeds(NAME, 300, |seed| attack(seed, Kind::Killer).map(|_| ()));
}

#[test]
fn acknowledgements_of_what_never_arrived_never_make_a_wrong_or_short_stream() {
    for_seeds(NAME, 200, |seed| attack(seed, Kind::Liar).map(|_| ()));
}

#[test]
fn who_guesses_ends_no_connection() {
    for_seeds(NAME, 500, |seed| attack(seed, Kind::Guesser).map(|_| ()));
}

/// Time in µs to send a megabyte to a receiver with these powers, over 1 Gbit/s with 40 ms of round trip: mostly slow
/// start.
fn transfer_us(congestion: Algorithm, powers: Powers) -> u64 {
    let configs = [1, 2].map(|n| {
        let mut config = NodeConfig::numbered(n, u64::from(n));
        config.rings = (1 << 20, 1 << 20);
        config.slow.congestion = congestion;
        config
    });
    let wire = LinkConfig { delay_us: 20_000, queue_bytes: 4 << 20, ..LinkConfig::default() };
    let mut world = scene(configs, wire, powers, 5);
    let mut parties = parties(&mut world, [0, 1_000_000], &mut Rng::new(6)).expect("opens");
    while !parties.0[0].eof {
        let until = world.now.after(500);
        world.run(until, &mut parties);
        assert!(until < LONG, "{congestion:?} {powers:?}: {}", parties.0[0].describe());
    }
    world.now.0
}

#[test]
fn divided_and_premature_acknowledgements_bring_no_more_goodput_than_honest_ones() {
    for congestion in [Algorithm::Reno, Algorithm::Cubic] {
        let budget = 1_000_000;
        let honest = transfer_us(congestion, Powers::default());
        assert!(honest > 150_000, "several round trips: {honest}");
        for cheat in [
            Powers { divide: 10, budget, ..Powers::default() },
            Powers { divide: 100, budget, ..Powers::default() },
            Powers { ahead: 1, budget, ..Powers::default() },
            Powers { ahead: 100_000, budget, ..Powers::default() },
        ] {
            let took = transfer_us(congestion, cheat);
            assert!(took * 100 >= honest * 97, "{congestion:?}: {took} µs, honest {honest}: {cheat:?}");
        }
    }
}

/// Repeats one seed (`TOWPATH_SEED`, 0 if unset), with every frame printed if `TOWPATH_TRACE` is set.
#[test]
fn one_seed() {
    let seed = seed_from_environment().unwrap_or(0);
    for kind in [Kind::Meddler, Kind::Killer, Kind::Liar, Kind::Guesser] {
        match caught(|| attack(seed, kind)) {
            Ok(done) => println!("seed {seed}: {done}"),
            Err(what) => panic!("seed {seed}: {what}\n{}", replay(NAME, seed)),
        }
    }
}
