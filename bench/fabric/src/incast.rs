//! One host asks many connections for a block at the same moment and waits for all of them.

use crate::Rack;
use crate::rack::{Hosts, Losses, PORT};
use clap::Args;
use serde::Serialize;
use towpath_bench_report::{Completion, print_json, quantile, wire_us};
use towpath_rng::Rng;
use towpath_sim::{Phase, Program, SocketId, World};
use towpath_tcp::time::Micros;

/// Arguments.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    rack: Rack,
    /// Connections asked at once, spread over the senders.
    #[arg(long, value_delimiter = ',', default_values_t = [8, 16, 32, 64, 128])]
    fan_in: Vec<u32>,
    /// Bytes that each answers, in KiB.
    #[arg(long, default_value_t = 64)]
    kib: usize,
    /// Requests: enough that one in a hundred is not the worst.
    #[arg(long, default_value_t = 300)]
    rounds: usize,
    /// Each answer begins up to this many µs after its request, as the seed says; 0 = at once, and then the seed hardly
    /// matters.
    #[arg(long, default_value_t = 0)]
    think_us: u64,
}

#[derive(Serialize)]
struct Row {
    experiment: &'static str,
    cc: &'static str,
    fan_in: u32,
    gbit: f64,
    kib: usize,
    rounds: usize,
    /// All payload at the rate of the wire, µs.
    wire_us: f64,
    #[serde(flatten)]
    completion: Completion,
    max_us: f64,
    #[serde(flatten)]
    losses: Losses,
}

/// Runs every fan-in.
pub fn run(options: &Options) -> Result<(), String> {
    let Rack { gbit, senders, cc, json, .. } = options.rack;
    if !json {
        println!(
            "{} KiB from each of many connections of {senders} hosts at once, {gbit} Gbit/s, {cc}, {} rounds",
            options.kib, options.rounds
        );
        println!(
            "{:>6} {:>9} {:>9} {:>9} {:>9} {:>8} {:>8} {:>9} {:>8} {:>9}",
            "fan-in", "wire µs", "p50 µs", "p99 µs", "most µs", "drops", "marks", "queue KiB", "retrans", "time-outs"
        );
    }
    for &fan_in in &options.fan_in {
        let row = one(options, fan_in)?;
        if print_json(json, &row) {
            continue;
        }
        println!(
            "{:>6} {:>9.0} {:>9.0} {:>9.0} {:>9.0} {:>8} {:>8} {:>9} {:>8} {:>9}",
            row.fan_in,
            row.wire_us,
            row.completion.p50_us,
            row.completion.p99_us,
            row.max_us,
            row.losses.drops,
            row.losses.marks,
            row.losses.longest_queue_kib,
            row.losses.retransmits,
            row.losses.timeouts
        );
    }
    Ok(())
}

fn one(options: &Options, fan_in: u32) -> Result<Row, String> {
    let rack = &options.rack;
    let mut hosts = Hosts::new(rack, fan_in, (256 << 10, 4096), (4096, 256 << 10))?;
    let mut load = Requests::new(&hosts, options, fan_in);
    for n in 0..fan_in as usize {
        let node = n % usize::from(rack.senders);
        let id =
            hosts.world.nodes[node].connect(load.address, PORT).map_err(|errno| format!("connect: errno {errno}"))?;
        load.servers.push(Server { node, id, left: 0, from: Micros(0), nodelay: false });
    }
    while load.took_us.len() < options.rounds {
        let until = hosts.world.now.after(100_000);
        hosts.world.run(until, &mut load);
        if until.0 > 600_000_000 {
            return Err(format!("only {} of {} requests in ten simulated minutes", load.took_us.len(), options.rounds));
        }
    }
    Ok(Row {
        experiment: "incast",
        cc: rack.cc.name(),
        fan_in,
        gbit: rack.gbit,
        kib: options.kib,
        rounds: options.rounds,
        wire_us: wire_us(fan_in, options.kib as u64, rack.gbit * 1e9),
        completion: Completion::of(&load.took_us),
        max_us: quantile(&load.took_us, 1.0),
        losses: hosts.losses(),
    })
}

/// Time between a whole answer and the next request, µs.
const PAUSE_US: u64 = 1000;

/// A connection's answering end.
struct Server {
    node: usize,
    id: SocketId,
    /// Bytes still to be written of the answer.
    left: usize,
    /// The answer begins then.
    from: Micros,
    nodelay: bool,
}

/// The asking host and those that answer.
struct Requests {
    servers: Vec<Server>,
    asking: Vec<SocketId>,
    receiver: usize,
    listener: SocketId,
    address: std::net::IpAddr,
    answer_bytes: usize,
    rounds: usize,
    /// When the request under way was sent.
    since: Option<Micros>,
    next: Micros,
    now: Micros,
    think_us: u64,
    rng: Rng,
    got: usize,
    took_us: Vec<f64>,
    buffer: Vec<u8>,
}

impl Requests {
    fn new(hosts: &Hosts, options: &Options, fan_in: u32) -> Self {
        Self {
            servers: Vec::with_capacity(fan_in as usize),
            asking: Vec::new(),
            receiver: hosts.receiver,
            listener: hosts.listener,
            address: hosts.address(),
            answer_bytes: options.kib << 10,
            rounds: options.rounds,
            since: None,
            next: Micros(PAUSE_US),
            now: Micros(0),
            think_us: options.think_us,
            rng: Rng::new(options.rack.seed),
            got: 0,
            took_us: Vec::new(),
            buffer: vec![7; 64 << 10],
        }
    }

    fn answer(&mut self, world: &mut World) -> bool {
        let mut busy = false;
        for server in &mut self.servers {
            let node = &mut world.nodes[server.node];
            if node.phase(server.id) != Phase::Open {
                continue;
            }
            // The answer's last, short segment must not wait for a delayed acknowledgement. Servers set this option
            // too.
            if !server.nodelay {
                node.set_nodelay(server.id);
                server.nodelay = true;
            }
            if let Ok(n @ 1..) = node.recv(server.id, &mut self.buffer) {
                server.left += n * self.answer_bytes;
                server.from = world.now.after(self.rng.below(self.think_us + 1));
                busy = true;
            }
            while server.left > 0 && server.from <= world.now {
                let Ok(n) = node.send(server.id, &self.buffer[..server.left.min(64 << 10)]) else { break };
                server.left -= n;
                busy = true;
            }
        }
        busy
    }

    fn ask(&mut self, world: &mut World) -> bool {
        let node = &mut world.nodes[self.receiver];
        while let Some(id) = node.accept(self.listener) {
            self.asking.push(id);
        }
        let ready = self.asking.len() == self.servers.len() && self.took_us.len() < self.rounds;
        if !ready || self.since.is_some() || world.now < self.next {
            return false;
        }
        self.since = Some(world.now);
        self.asking.iter().all(|&id| node.send(id, &[1]).is_ok())
    }

    fn read(&mut self, world: &mut World) -> bool {
        let Some(since) = self.since else { return false };
        let mut busy = false;
        for &id in &self.asking {
            while let Ok(n @ 1..) = world.nodes[self.receiver].recv(id, &mut self.buffer) {
                self.got += n;
                busy = true;
            }
        }
        if self.got == self.answer_bytes * self.asking.len() {
            self.took_us.push((world.now.0 - since.0) as f64);
            self.since = None;
            self.got = 0;
            self.next = world.now.after(PAUSE_US);
        }
        busy
    }
}

impl Program for Requests {
    fn step(&mut self, world: &mut World) -> bool {
        self.now = world.now;
        self.ask(world) | self.answer(world) | self.read(world)
    }

    fn next_deadline(&self) -> Option<Micros> {
        let request = (self.since.is_none() && self.took_us.len() < self.rounds).then_some(self.next);
        let thinks = |server: &&Server| server.left > 0 && server.from > self.now;
        self.servers.iter().filter(thinks).map(|server| server.from).chain(request).min()
    }
}
