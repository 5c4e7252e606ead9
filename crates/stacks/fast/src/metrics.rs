//! Counters of the threads. They are copied now and then into memory that anybody may read. Each flow group has a row
//! of words, and so has the slow thread.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use towpath_ports::PortCounters;
use towpath_probes::spread::{BUCKETS, Spread};
use towpath_ring::metrics::MetricsRegion;
use towpath_runtime::sampler::Achieved;
use towpath_runtime::status::{FlowGroupStatus, PortStatus, SpreadStatus, Tally};
use towpath_tcp::counters::{Counters, Drop, Stage};

/// Declares the words of a row that are fields of a struct: their names, and how they are read and written.
macro_rules! words {
    ($struct:ident, $names:ident, $read:ident, $write:ident: $($field:ident)*) => {
        const $names: [&str; [$(stringify!($field)),*].len()] = [$(stringify!($field)),*];
        fn $read(from: &$struct) -> [u64; $names.len()] {
            [$(from.$field),*]
        }
        fn $write(to: &mut $struct, values: [u64; $names.len()]) {
            [$(to.$field),*] = values;
        }
    };
}

/// Counters of a flow group's turns, as they are published.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoopCounters {
    /// This and the next five: see `FlowGroupStatus`.
    pub turns: u64,
    pub busy_us: u64,
    pub idle_us: u64,
    pub sleeps: u64,
    pub flows: u64,
    pub full: u64,
    /// This and the next two: see `Achieved`.
    pub app_bytes: u64,
    pub samples: u64,
    pub sample_logarithms: u64,
}

words!(Counters, OTHERS, others, set_others: retransmits timeouts opened failed resets contract_violations cookies_sent cookies_accepted undone tail_probes out_of_ports relayed);
words!(LoopCounters, LOOP, of_loop, set_loop: turns busy_us idle_us sleeps flows full app_bytes samples sample_logarithms);
words!(PortCounters, PORT, of_port, set_port: rx_frames tx_frames rx_dropped tx_dropped);

const DROPS: usize = Stage::COUNT;
const OTHER: usize = DROPS + Drop::COUNT;
const TURNS: usize = OTHER + OTHERS.len();
/// Round trips, then requests: each its buckets and their sum.
const TIMES: usize = TURNS + LOOP.len();
const OF_TIMES: usize = BUCKETS + 1;
const PORTS: usize = TIMES + 2 * OF_TIMES;

/// The published words of all threads. Each row has one writing thread.
pub struct Metrics {
    region: MetricsRegion,
    memfd: OwnedFd,
    ports: Vec<usize>,
}

impl Metrics {
    /// Makes rows for flow groups with these numbers of ports, and for a slow thread.
    pub fn new(ports: Vec<usize>) -> io::Result<Arc<Self>> {
        let most = ports.iter().copied().max().unwrap_or(0);
        let words = PORTS + most * PORT.len();
        let (mut region, memfd) = MetricsRegion::create(ports.len() as u32 + 1, words as u32)?;
        let names = names(most);
        region.set_names(&names.iter().map(String::as_str).collect::<Vec<_>>()).map_err(io::Error::other)?;
        Ok(Arc::new(Self { region, memfd, ports }))
    }
    /// A descriptor by which others can map the words, but not write them.
    pub fn memfd(&self) -> io::Result<OwnedFd> {
        self.memfd.try_clone()
    }
    fn row(&self, thread: usize) -> &[AtomicU64] {
        self.region.row(thread as u32).unwrap_or_default()
    }
    /// Publishes the counters of the protocol and of the turns.
    pub fn publish(&self, thread: usize, c: &Counters, turns: &LoopCounters) {
        let (others, turns) = (others(c), of_loop(turns));
        for (word, value) in self.row(thread).iter().zip(c.stages.iter().chain(&c.drops).chain(&others).chain(&turns)) {
            word.store(*value, Ordering::Relaxed);
        }
        self.publish_times(thread, TIMES, &c.round_trips);
    }
    /// Publishes how long applications take to answer. How long round trips take is with the counters of the protocol.
    pub fn publish_requests(&self, flow_group: usize, requests: &Spread) {
        self.publish_times(flow_group, TIMES + OF_TIMES, requests);
    }
    fn publish_times(&self, thread: usize, first: usize, times: &Spread) {
        let values = times.counts.iter().chain([&times.sum_us]);
        for (word, value) in self.row(thread).iter().skip(first).zip(values) {
            word.store(*value, Ordering::Relaxed);
        }
    }
    /// Publishes the counters of a port.
    pub fn publish_port(&self, flow_group: usize, number: usize, c: PortCounters) {
        for (word, value) in self.row(flow_group).iter().skip(PORTS + number * PORT.len()).zip(of_port(&c)) {
            word.store(value, Ordering::Relaxed);
        }
    }
    /// Reads a flow group's row.
    pub fn flow_group(&self, number: usize) -> FlowGroupStatus {
        let row = self.row(number);
        let word = |i: usize| row.get(i).map_or(0, |w| w.load(Ordering::Relaxed));
        let mut counters = Counters {
            stages: std::array::from_fn(word),
            drops: std::array::from_fn(|i| word(DROPS + i)),
            ..Counters::default()
        };
        set_others(&mut counters, std::array::from_fn(|i| word(OTHER + i)));
        let mut turns = LoopCounters::default();
        set_loop(&mut turns, std::array::from_fn(|i| word(TURNS + i)));
        let port = |at: usize| {
            let mut c = PortCounters::default();
            set_port(&mut c, std::array::from_fn(|i| word(at + i)));
            let PortCounters { rx_frames, tx_frames, rx_dropped, tx_dropped, .. } = c;
            PortStatus { rx_frames, tx_frames, rx_dropped, tx_dropped }
        };
        let times = |first: usize| SpreadStatus {
            counts: (0..BUCKETS).map(|bucket| word(first + bucket)).collect(),
            sum_us: word(first + BUCKETS),
        };
        let ports = self.ports.get(number).copied().unwrap_or(0);
        let LoopCounters { app_bytes, samples, sample_logarithms, .. } = turns;
        FlowGroupStatus {
            flows: turns.flows,
            busy_us: turns.busy_us,
            idle_us: turns.idle_us,
            turns: turns.turns,
            sleeps: turns.sleeps,
            full: turns.full,
            achieved: Achieved { bytes: app_bytes, samples, logarithms: sample_logarithms },
            round_trips: times(TIMES),
            requests: times(TIMES + OF_TIMES),
            tally: tally(&counters),
            ports: (0..ports).map(|port_number| port(PORTS + port_number * PORT.len())).collect(),
        }
    }
    /// All flow groups' rows.
    pub fn flow_groups(&self) -> Vec<FlowGroupStatus> {
        (0..self.ports.len()).map(|flow_group| self.flow_group(flow_group)).collect()
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
        contract_violations: counters.contract_violations,
        syn_cookies_sent: counters.cookies_sent,
        syn_cookies_accepted: counters.cookies_accepted,
        out_of_ports: counters.out_of_ports,
        relayed_segments: counters.relayed,
    }
}

/// The names of a row's words, in their order.
fn names(ports: usize) -> Vec<String> {
    let stages = Stage::NAMES.iter().map(|n| format!("stage_{n}"));
    let drops = Drop::NAMES.iter().map(|n| format!("drop_{n}"));
    let plain = OTHERS.iter().chain(&LOOP).map(|n| (*n).to_owned());
    let ports = (0..ports).flat_map(|port| PORT.iter().map(move |n| format!("port{port}_{n}")));
    let times = ["round_trip", "request"].into_iter().flat_map(|name| {
        let buckets = (0..BUCKETS).map(move |bucket| format!("{name}_us_from_{}", 1_u64 << bucket));
        buckets.chain([format!("{name}_us_sum")])
    });
    stages.chain(drops).chain(plain).chain(times).chain(ports).collect()
}
