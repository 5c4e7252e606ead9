//! Counters of a core, copied now and then to where other threads can read them.

use crate::status::CoreStatus;
use std::sync::atomic::{AtomicU64, Ordering};
use towpath_ports::PortCounters;
use towpath_tcp::counters::{Counters, Drop, Stage};

/// Words of `Counters` beside stages and drops.
const OTHERS: usize = 6;
/// Words of the loop: turns, busy, idle, sleeps, flows.
const LOOP: usize = 5;

/// One core's published words. Written by the core only.
#[derive(Default)]
pub struct CoreMetrics {
    stages: [AtomicU64; Stage::COUNT],
    drops: [AtomicU64; Drop::COUNT],
    others: [AtomicU64; OTHERS],
    turns: [AtomicU64; LOOP],
    ports: Vec<[AtomicU64; 4]>,
}

fn store(to: &[AtomicU64], from: &[u64]) {
    for (to, from) in to.iter().zip(from) {
        to.store(*from, Ordering::Relaxed);
    }
}

fn load<const N: usize>(from: &[AtomicU64; N]) -> [u64; N] {
    std::array::from_fn(|i| from[i].load(Ordering::Relaxed))
}

impl CoreMetrics {
    /// For a core with so many ports.
    pub fn new(ports: usize) -> Self {
        Self { ports: (0..ports).map(|_| Default::default()).collect(), ..Self::default() }
    }
    /// Copies the counters of the protocol and the loop (turns, busy µs, idle µs, sleeps, flows).
    pub fn publish(&self, c: &Counters, turns: [u64; LOOP]) {
        store(&self.stages, &c.stages);
        store(&self.drops, &c.drops);
        store(&self.others, &[c.retransmits, c.timeouts, c.opened, c.failed, c.resets, c.lies]);
        store(&self.turns, &turns);
    }
    /// Copies the counters of a port.
    pub fn publish_port(&self, number: usize, c: PortCounters) {
        if let Some(words) = self.ports.get(number) {
            store(words, &[c.rx_frames, c.tx_frames, c.rx_dropped, c.tx_dropped]);
        }
    }
    /// Reads all.
    pub fn read(&self) -> CoreStatus {
        let [retransmits, timeouts, opened, failed, resets, lies] = load(&self.others);
        let [turns, busy_us, idle_us, sleeps, flows] = load(&self.turns);
        let (stages, drops) = (load(&self.stages), load(&self.drops));
        let ports = self.ports.iter().map(load).map(|[rx_frames, tx_frames, rx_dropped, tx_dropped]| PortCounters {
            rx_frames,
            tx_frames,
            rx_dropped,
            tx_dropped,
        });
        CoreStatus {
            counters: Counters { stages, drops, retransmits, timeouts, opened, failed, resets, lies },
            turns,
            busy_us,
            idle_us,
            sleeps,
            flows,
            ports: ports.collect(),
        }
    }
}
