//! Counters of the threads, copied now and then into memory that anybody may read: a row of words per core, and one for the
//! slow thread.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use towpath_ports::PortCounters;
use towpath_ring::metrics::MetricsRegion;
use towpath_stack::sampler::Achieved;
use towpath_stack::status::{CoreStatus, PortStatus, Tally};
use towpath_tcp::counters::{Counters, Drop, Stage};

/// Words of `Counters` beside stages and drops.
const OTHERS: [&str; 10] = [
    "retransmits",
    "timeouts",
    "opened",
    "failed",
    "resets",
    "lies",
    "cookies_sent",
    "cookies_accepted",
    "undone",
    "tail_probes",
];
/// Words of the loop.
const LOOP: [&str; 9] =
    ["turns", "busy_us", "idle_us", "sleeps", "flows", "full", "app_bytes", "samples", "sample_logarithms"];
/// Words of each port.
const PORT: [&str; 4] = ["rx_frames", "tx_frames", "rx_dropped", "tx_dropped"];

const DROPS: usize = Stage::COUNT;
const OTHER: usize = DROPS + Drop::COUNT;
const TURNS: usize = OTHER + OTHERS.len();
const PORTS: usize = TURNS + LOOP.len();

/// The published words of all threads. Each row has one writing thread.
pub struct Metrics {
    region: MetricsRegion,
    memfd: OwnedFd,
    ports: Vec<usize>,
}

impl Metrics {
    /// For cores with so many ports each, and a slow thread.
    pub fn new(ports: Vec<usize>) -> io::Result<Arc<Self>> {
        let most = ports.iter().copied().max().unwrap_or(0);
        let words = PORTS + most * PORT.len();
        let made = MetricsRegion::create(ports.len() as u32 + 1, words as u32);
        let (mut region, memfd) = made.map_err(io::Error::other)?;
        let names = names(most);
        region.set_names(&names.iter().map(String::as_str).collect::<Vec<_>>()).map_err(io::Error::other)?;
        Ok(Arc::new(Self { region, memfd, ports }))
    }
    /// A descriptor from which others can map the words, but not write them.
    pub fn memfd(&self) -> io::Result<OwnedFd> {
        self.memfd.try_clone()
    }
    fn row(&self, thread: usize) -> &[AtomicU64] {
        self.region.core(thread as u32).unwrap_or_default()
    }
    /// Copies the counters of the protocol and the loop (see [`LOOP`]).
    pub fn publish(&self, thread: usize, c: &Counters, turns: [u64; LOOP.len()]) {
        let row = self.row(thread);
        let others = [
            c.retransmits,
            c.timeouts,
            c.opened,
            c.failed,
            c.resets,
            c.lies,
            c.cookies_sent,
            c.cookies_accepted,
            c.undone,
            c.tail_probes,
        ];
        for (word, value) in row.iter().zip(c.stages.iter().chain(&c.drops).chain(&others).chain(&turns)) {
            word.store(*value, Ordering::Relaxed);
        }
    }
    /// Copies the counters of a port.
    pub fn publish_port(&self, core: usize, number: usize, c: PortCounters) {
        let values = [c.rx_frames, c.tx_frames, c.rx_dropped, c.tx_dropped];
        for (word, value) in self.row(core).iter().skip(PORTS + number * PORT.len()).zip(values) {
            word.store(value, Ordering::Relaxed);
        }
    }
    /// Reads a core's row.
    pub fn core(&self, core: usize) -> CoreStatus {
        let row = self.row(core);
        let word = |i: usize| row.get(i).map_or(0, |w| w.load(Ordering::Relaxed));
        let counters = Counters {
            stages: std::array::from_fn(word),
            drops: std::array::from_fn(|i| word(DROPS + i)),
            retransmits: word(OTHER),
            timeouts: word(OTHER + 1),
            opened: word(OTHER + 2),
            failed: word(OTHER + 3),
            resets: word(OTHER + 4),
            lies: word(OTHER + 5),
            cookies_sent: word(OTHER + 6),
            cookies_accepted: word(OTHER + 7),
            undone: word(OTHER + 8),
            tail_probes: word(OTHER + 9),
        };
        let port = |at: usize| PortStatus {
            rx_frames: word(at),
            tx_frames: word(at + 1),
            rx_dropped: word(at + 2),
            tx_dropped: word(at + 3),
        };
        let ports = self.ports.get(core).copied().unwrap_or(0);
        CoreStatus {
            tally: tally(&counters),
            turns: word(TURNS),
            busy_us: word(TURNS + 1),
            idle_us: word(TURNS + 2),
            sleeps: word(TURNS + 3),
            flows: word(TURNS + 4),
            full: word(TURNS + 5),
            achieved: Achieved { bytes: word(TURNS + 6), samples: word(TURNS + 7), logarithms: word(TURNS + 8) },
            ports: (0..ports).map(|number| port(PORTS + number * PORT.len())).collect(),
        }
    }
    /// All cores' rows.
    pub fn cores(&self) -> Vec<CoreStatus> {
        (0..self.ports.len()).map(|core| self.core(core)).collect()
    }
}

/// Counters by name.
pub fn tally(counters: &Counters) -> Tally {
    let named = |names: &[&'static str], values: &[u64]| names.iter().copied().zip(values.iter().copied()).collect();
    Tally {
        stages: named(&Stage::NAMES, &counters.stages),
        drops: named(&Drop::NAMES, &counters.drops),
        retransmits: counters.retransmits,
        timeouts: counters.timeouts,
        opened: counters.opened,
        failed: counters.failed,
        resets: counters.resets,
        lies: counters.lies,
    }
}

/// The names of a row's words, in their order.
fn names(ports: usize) -> Vec<String> {
    let stages = Stage::NAMES.iter().map(|n| format!("stage_{n}"));
    let drops = Drop::NAMES.iter().map(|n| format!("drop_{n}"));
    let plain = OTHERS.iter().chain(&LOOP).map(|n| (*n).to_owned());
    let ports = (0..ports).flat_map(|port| PORT.iter().map(move |n| format!("port{port}_{n}")));
    stages.chain(drops).chain(plain).chain(ports).collect()
}
