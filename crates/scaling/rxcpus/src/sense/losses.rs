//! Losses: more came in than was taken.

use crate::tree::Tree;
use std::collections::BTreeMap;

/// Devices also count unwanted frames as dropped (spanning tree, LLDP). Drops count as losses from one in `.0` packets
/// and at least `.1` frames on.
const DROPS: (u64, u64) = (1000, 10);

/// Counters at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// By CPU: packets that found the backlog full, and softirq rounds that ended with work left.
    backlog: BTreeMap<u32, (u64, u64)>,
    /// Of the device: it had no buffer.
    missed: u64,
    /// Of the device: dropped for any reason.
    dropped: u64,
    /// Segments that found their socket's backlog full.
    socket: u64,
}

impl Losses {
    /// Reads the counters. A counter that this machine lacks is 0.
    pub fn read(tree: &Tree, interface: &str) -> Self {
        let of_device = |name: &str| {
            let number = tree.number(&format!("/sys/class/net/{interface}/statistics/{name}"));
            number.unwrap_or(0)
        };
        let softnet = tree.text("/proc/net/softnet_stat").unwrap_or_default();
        let netstat = tree.text("/proc/net/netstat").unwrap_or_default();
        Self {
            backlog: softnet.lines().enumerate().filter_map(|(row, line)| of_cpu(row, line)).collect(),
            missed: of_device("rx_missed_errors"),
            dropped: of_device("rx_dropped"),
            socket: named(&netstat, "TCPBacklogDrop").unwrap_or(0),
        }
    }

    /// The kernel's names of the losses since `before`, on the receiving CPUs. The device received `packets` meanwhile.
    pub fn since(&self, before: &Self, packets: u64, receives: impl Fn(u32) -> bool) -> Vec<&'static str> {
        let of_backlog = |value: fn(&(u64, u64)) -> u64| {
            let mut rows = self.backlog.iter().filter(|(cpu, _)| receives(**cpu));
            rows.any(|(cpu, now)| before.backlog.get(cpu).is_some_and(|then| value(now) > value(then)))
        };
        let dropped = self.dropped.saturating_sub(before.dropped);
        let found = [
            ("dropped", of_backlog(|row| row.0)),
            ("time_squeeze", of_backlog(|row| row.1)),
            ("rx_missed_errors", self.missed > before.missed),
            ("rx_dropped", dropped >= DROPS.1 && dropped >= packets / DROPS.0),
            ("TCPBacklogDrop", self.socket > before.socket),
        ];
        found.iter().filter(|(_, lost)| *lost).map(|(name, _)| *name).collect()
    }
}

/// A line of `softnet_stat`, in hexadecimal: processed, dropped, time_squeeze, and since Linux 5.10 the CPU in the
/// thirteenth field.
fn of_cpu(row: usize, line: &str) -> Option<(u32, (u64, u64))> {
    let fields: Vec<u64> = line.split_whitespace().map_while(|field| u64::from_str_radix(field, 16).ok()).collect();
    let cpu = fields.get(12).copied().unwrap_or(row as u64);
    Some((cpu.try_into().ok()?, (*fields.get(1)?, *fields.get(2)?)))
}

/// A counter of `/proc/net/netstat`: a line of names, and one of values.
fn named(netstat: &str, name: &str) -> Option<u64> {
    let (names, values) =
        netstat.lines().zip(netstat.lines().skip(1)).step_by(2).find(|(names, _)| names.starts_with("TcpExt:"))?;
    let place = names.split_whitespace().position(|word| word == name)?;
    values.split_whitespace().nth(place)?.parse().ok()
}
