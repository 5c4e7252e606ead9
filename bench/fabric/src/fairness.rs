//! Bulk flows from a few hosts into one port. Each flow's throughput is taken over windows of 100 ms.

use crate::Rack;
use crate::rack::{Hosts, Losses, PORT};
use clap::Args;
use serde::Serialize;
use std::time::Instant;
use towpath_bench_report::{ShareSummary, Shares, print_json};
use towpath_rng::Rng;
use towpath_sim::{Phase, Program, SocketId, World};
use towpath_tcp::time::Micros;

/// Arguments.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    rack: Rack,
    /// Numbers of flows.
    #[arg(long, value_delimiter = ',', default_values_t = [50, 100, 200, 500, 1000, 2000])]
    flows: Vec<u32>,
    /// Simulated time that is measured, in ms.
    #[arg(long, default_value_t = 500)]
    ms: u64,
    /// Simulated time before that, in ms.
    #[arg(long, default_value_t = 200)]
    warm_up_ms: u64,
    /// Length of a window in ms.
    #[arg(long, default_value_t = 100)]
    window_ms: u64,
}

#[derive(Serialize)]
struct Row {
    experiment: &'static str,
    cc: &'static str,
    flows: u32,
    gbit: f64,
    ms: u64,
    window_ms: u64,
    #[serde(flatten)]
    shares: ShareSummary,
    #[serde(flatten)]
    losses: Losses,
    /// Quantiles of `median`'s distribution at 0, 5, ... 100 %, for drawing.
    curve: Vec<f64>,
}

/// Runs every number of flows.
pub fn run(options: &Options) -> Result<(), String> {
    let Rack { gbit, senders, cc, json, .. } = options.rack;
    if !json {
        println!(
            "{senders} hosts into one port of {gbit} Gbit/s, {cc}, {} ms in windows of {} ms",
            options.ms, options.window_ms
        );
        println!(
            "{:>6} {:>6} {:>7} {:>7} {:>7} {:>6} {:>6} {:>9} {:>9} {:>9} {:>8} {:>9}",
            "flows",
            "used",
            "jain",
            "least",
            "median",
            "p1",
            "p99",
            "drops",
            "marks",
            "queue KiB",
            "retrans",
            "time-outs"
        );
    }
    for &flows in &options.flows {
        let start = Instant::now();
        let row = one(options, flows)?;
        eprintln!("{flows} flows: {:.1} s", start.elapsed().as_secs_f64());
        if print_json(json, &row) {
            continue;
        }
        println!(
            "{:>6} {:>5.1}% {:>7.4} {:>7.4} {:>7.3} {:>6.3} {:>6.3} {:>9} {:>9} {:>9} {:>8} {:>9}",
            row.flows,
            100.0 * row.shares.utilization,
            row.shares.jain,
            row.shares.jain_least,
            row.shares.median,
            row.shares.p1,
            row.shares.p99,
            row.losses.drops,
            row.losses.marks,
            row.losses.longest_queue_kib,
            row.losses.retransmits,
            row.losses.timeouts
        );
    }
    Ok(())
}

fn one(options: &Options, flows: u32) -> Result<Row, String> {
    let rack = &options.rack;
    // A ring bounds what a flow can have in flight; 64 KiB is several fair shares from 50 flows up.
    let ring = if flows >= 50 { 64 << 10 } else { 512 << 10 };
    let mut hosts = Hosts::new(rack, flows, (ring, 4096), (4096, ring))?;
    let mut load = Bulk::start(&mut hosts, rack, flows)?;
    while load.since.is_none() && hosts.world.now < CONNECT_LIMIT {
        let until = hosts.world.now.after(1000);
        hosts.world.run(until, &mut load);
    }
    let until = hosts.world.now.after(options.warm_up_ms * 1000);
    hosts.world.run(until, &mut load);
    if load.receiving.len() < flows as usize {
        return Err(format!("only {} of {flows} connections were made", load.receiving.len()));
    }
    let before = hosts.losses();
    let mut shares = Shares::default();
    for _ in 0..(options.ms / options.window_ms).max(1) {
        load.received.fill(0);
        let until = hosts.world.now.after(options.window_ms * 1000);
        hosts.world.run(until, &mut load);
        let got: Vec<f64> = load.received.iter().map(|&bytes| bytes as f64).collect();
        shares.add_window(&got, flows);
    }
    Ok(Row {
        experiment: "fairness",
        cc: rack.cc.name(),
        flows,
        gbit: rack.gbit,
        ms: options.ms,
        window_ms: options.window_ms,
        shares: shares.summary(options.window_ms as f64 / 1000.0, rack.gbit * 1e9),
        losses: hosts.losses().since(before),
        curve: shares.curve(),
    })
}

/// How often a share of the flows is looked at, µs.
const TICK_US: u64 = 10;
/// How often each flow is looked at, µs.
const ROUND_US: u64 = 100;
/// Starting times are spread over this, µs.
const SPREAD_US: u64 = 50_000;

/// All must be connected by then.
const CONNECT_LIMIT: Micros = Micros(20_000_000);

/// Programs that send and read as fast as they can.
///
/// Each socket is looked at every 100 µs, in turn. The rings are deep enough for that.
struct Bulk {
    /// The senders: the delay in µs before each connects, and later before it sends; its node; its socket once it has
    /// one.
    sending: Vec<(u64, usize, Option<SocketId>)>,
    /// When all were connected. Nobody sends before that.
    since: Option<Micros>,
    receiving: Vec<SocketId>,
    /// Bytes read in this window, by `receiving`.
    received: Vec<u64>,
    receiver: usize,
    listener: SocketId,
    address: std::net::IpAddr,
    next: Micros,
    turn: usize,
    buffer: Vec<u8>,
}

impl Bulk {
    fn start(hosts: &mut Hosts, rack: &Rack, flows: u32) -> Result<Self, String> {
        let mut rng = Rng::new(rack.seed);
        let senders = usize::from(rack.senders);
        let sending = (0..flows as usize).map(|n| (rng.below(SPREAD_US), n % senders, None)).collect();
        Ok(Self {
            sending,
            since: None,
            receiving: Vec::new(),
            received: Vec::new(),
            receiver: hosts.receiver,
            listener: hosts.listener,
            address: hosts.address(),
            next: Micros(0),
            turn: 0,
            buffer: vec![7; 64 << 10],
        })
    }

    fn write(&mut self, world: &mut World, index: usize) {
        let (after_us, node, id) = self.sending[index];
        let Some(id) = id else {
            if world.now.0 >= after_us {
                self.sending[index].2 = world.nodes[node].connect(self.address, PORT).ok();
            }
            return;
        };
        if self.since.is_none_or(|since| world.now < since.after(after_us)) {
            return;
        }
        if world.nodes[node].phase(id) == Phase::Open {
            while world.nodes[node].send(id, &self.buffer).is_ok() {}
        }
    }

    fn read(&mut self, world: &mut World, index: usize) {
        let Some(&id) = self.receiving.get(index) else { return };
        while let Ok(n @ 1..) = world.nodes[self.receiver].recv(id, &mut self.buffer) {
            self.received[index] += n as u64;
        }
    }
}

impl Program for Bulk {
    fn step(&mut self, world: &mut World) -> bool {
        if world.now < self.next {
            return false;
        }
        self.next = world.now.after(TICK_US);
        while let Some(id) = world.nodes[self.receiver].accept(self.listener) {
            self.receiving.push(id);
            self.received.push(0);
        }
        if self.since.is_none() && self.receiving.len() == self.sending.len() {
            self.since = Some(world.now);
        }
        let flows = self.sending.len();
        let share = (flows as u64 * TICK_US).div_ceil(ROUND_US).max(1) as usize;
        for _ in 0..share.min(flows) {
            self.turn = (self.turn + 1) % flows;
            self.write(world, self.turn);
            self.read(world, self.turn);
        }
        true
    }

    fn next_deadline(&self) -> Option<Micros> {
        Some(self.next)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{Arguments, Experiment};
    use clap::Parser;

    fn measured(flags: &str, flows: u32) -> Row {
        let line =
            format!("towpath-fabric fairness --gbit 2 --warm-up-ms 80 --ms 100 --queue-kib 1024 --mark-kib 64 {flags}");
        let Experiment::Fairness(options) = Arguments::try_parse_from(line.split_whitespace()).unwrap().experiment
        else {
            panic!()
        };
        one(&options, flows).unwrap()
    }

    #[test]
    fn flows_behind_a_marking_port_share_it_evenly_without_loss() {
        let row = measured("--cc dctcp", 64);
        assert!(row.shares.jain >= 0.98, "{} of Jain's index", row.shares.jain);
        assert!(row.shares.utilization > 0.9, "{} used", row.shares.utilization);
        assert!(
            (0.95..=1.05).contains(&row.shares.median) && row.shares.p1 >= 0.6,
            "median {}, p1 {}",
            row.shares.median,
            row.shares.p1
        );
        assert!(row.losses.marks > 0);
        assert_eq!((row.losses.drops, row.losses.retransmits, row.losses.timeouts), (0, 0, 0));
        assert!(row.curve.is_sorted());
    }

    #[test]
    fn a_simulated_rack_gives_the_same_figures_each_time() {
        let text = |flags| serde_json::to_string(&measured(flags, 10)).unwrap();
        assert_eq!(text("--cc cubic"), text("--cc cubic"));
        assert_ne!(text("--cc cubic"), text("--cc cubic --seed 2"));
    }
}
