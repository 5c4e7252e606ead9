//! The machine: CPUs, network devices, their queues and interrupts.

use crate::cpulist::CpuSet;
use crate::netdev::Napi;
use crate::table::Table;
use crate::tree::Tree;
use serde::Serialize;
use std::collections::BTreeMap;
use towpath_scaling::Cpu;

/// A network device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its driver, if it has one.
    pub driver: Option<String>,
    /// Its NUMA node, if it has one.
    pub node: Option<u32>,
    /// Its receive queues.
    pub receive_queues: u32,
    /// Its send queues.
    pub transmit_queues: u32,
    /// Its interrupts that can be moved, in the order of their numbers.
    pub irqs: Vec<u32>,
    /// The queue of each interrupt, as far as it is known.
    pub queue_of: BTreeMap<u32, u32>,
    /// Its indirection table, if it shows one.
    pub table: Option<Table>,
    /// Its NAPI instances, if the kernel lists them.
    pub napis: Vec<Napi>,
    /// True if its NAPI instances can have threads.
    pub threads: bool,
    /// True if its packets can be steered in software (RPS).
    pub rps: bool,
    /// True if the default route goes through it.
    pub default_route: bool,
}

/// This machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// The CPUs that are online.
    pub cpus: Vec<Cpu>,
    /// Its network devices, without the loopback device.
    pub interfaces: Vec<Interface>,
    /// True if its kernel preempts itself. Otherwise a NAPI thread under load would keep a CPU for itself.
    pub preempts: bool,
    /// It changes with every boot.
    pub boot_id: String,
}

impl Machine {
    /// Reads the machine from this tree.
    pub fn read(tree: &Tree) -> Self {
        let online =
            tree.text("/sys/devices/system/cpu/online").and_then(|text| CpuSet::of_list(&text)).unwrap_or_default();
        let default = default_routes(tree);
        let names = tree.names("/sys/class/net").into_iter();
        Self {
            cpus: online.0.iter().map(|number| cpu(tree, *number)).collect(),
            interfaces: names.filter(|name| name != "lo").map(|name| interface(tree, name, &default)).collect(),
            preempts: tree.text("/proc/version").is_some_and(|version| version.contains("PREEMPT")),
            boot_id: tree.text("/proc/sys/kernel/random/boot_id").unwrap_or_default(),
        }
    }
    /// The CPUs' numbers.
    pub fn online(&self) -> CpuSet {
        CpuSet(self.cpus.iter().map(|cpu| cpu.number).collect())
    }
    /// The network device of this name.
    pub fn interface(&self, name: &str) -> Option<&Interface> {
        self.interfaces.iter().find(|interface| interface.name == name)
    }
}

impl Interface {
    /// Reads the device of this name, without its routes.
    pub fn read(tree: &Tree, name: &str) -> Option<Self> {
        tree.has(&format!("/sys/class/net/{name}")).then(|| interface(tree, name.to_owned(), &[]))
    }
}

fn cpu(tree: &Tree, number: u32) -> Cpu {
    let at = format!("/sys/devices/system/cpu/cpu{number}");
    let first_of =
        |file: &str| tree.text(&format!("{at}/{file}")).and_then(|text| CpuSet::of_list(&text)?.0.first().copied());
    let node = tree.names(&at).iter().find_map(|name| name.strip_prefix("node")?.parse().ok());
    // The cache of the highest level is the last. Some virtual machines show none, and then each node counts as one.
    let caches = tree.names(&format!("{at}/cache"));
    let level = |name: &&String| tree.number::<u32>(&format!("{at}/cache/{name}/level")).unwrap_or(0);
    let last = caches.iter().filter(|name| name.starts_with("index")).max_by_key(level);
    let node = node.unwrap_or(0);
    Cpu {
        number,
        node,
        cache: last.and_then(|name| first_of(&format!("cache/{name}/shared_cpu_list"))).unwrap_or(node),
        core: first_of("topology/thread_siblings_list").unwrap_or(number),
    }
}

fn interface(tree: &Tree, name: String, default: &[String]) -> Interface {
    let at = format!("/sys/class/net/{name}");
    let queues = tree.names(&format!("{at}/queues"));
    let count = |kind: &str| queues.iter().filter(|queue| queue.starts_with(kind)).count() as u32;
    let (irqs, napis) = (irqs_of(tree, &at), tree.napis(&name));
    Interface {
        driver: tree.link(&format!("{at}/device/driver")),
        // -1: none.
        node: tree.number::<i64>(&format!("{at}/device/numa_node")).and_then(|node| node.try_into().ok()),
        receive_queues: count("rx-"),
        transmit_queues: count("tx-"),
        queue_of: irqs.iter().filter_map(|irq| Some((*irq, queue_of(tree, *irq, &napis)?))).collect(),
        irqs,
        table: tree.table(&name),
        threads: !napis.is_empty()
            && (napis.iter().all(|napi| napi.threaded.is_some()) || tree.has(&format!("{at}/threaded"))),
        napis,
        rps: tree.has(&format!("{at}/queues/rx-0/rps_cpus")),
        default_route: default.contains(&name),
        name,
    }
}

/// The interrupts of an interface that can be moved.
fn irqs_of(tree: &Tree, at: &str) -> Vec<u32> {
    // A virtio device is a child of the PCI device that has the interrupts. Without PCI only their names tell the
    // device.
    let listed = |folder: &str| tree.names(&format!("{at}/{folder}/msi_irqs"));
    let found = [listed("device"), listed("device/..")].into_iter().find(|names| !names.is_empty());
    let device = tree.link(&format!("{at}/device")).map(|device| format!("{device}-"));
    let named = || {
        let is_its = |irq: &String| {
            let names = tree.names(&format!("/proc/irq/{irq}"));
            device.as_ref().is_some_and(|device| names.iter().any(|name| name.starts_with(device)))
        };
        tree.names("/proc/irq").into_iter().filter(is_its).collect()
    };
    let numbers = found.unwrap_or_else(named).into_iter().filter_map(|irq| irq.parse::<u32>().ok());
    let mut irqs: Vec<u32> = numbers.filter(|irq| tree.has(&format!("/proc/irq/{irq}/smp_affinity_list"))).collect();
    irqs.sort_unstable();
    irqs
}

/// The queue of an interrupt. The NAPI instance tells it, or else the end of the handler's name, as in
/// `virtio0-input.3`, `eth1-TxRx-3` and `mlx5_comp3@pci:0000:01:00.0`.
fn queue_of(tree: &Tree, irq: u32, napis: &[Napi]) -> Option<u32> {
    let known = napis.iter().find(|napi| napi.irq == Some(irq)).and_then(|napi| napi.queue);
    let number = |name: &String| {
        let name = name.split('@').next().unwrap_or_default();
        name[name.trim_end_matches(|end: char| end.is_ascii_digit()).len()..].parse().ok()
    };
    known.or_else(|| {
        let folder = format!("/proc/irq/{irq}");
        tree.names(&folder).iter().filter(|name| !tree.is_file(&format!("{folder}/{name}"))).find_map(number)
    })
}

/// Interfaces that a default route goes through (`/proc/net/route`, `/proc/net/ipv6_route`).
fn default_routes(tree: &Tree) -> Vec<String> {
    let zero =
        |field: Option<&&str>| field.is_some_and(|field| !field.is_empty() && field.bytes().all(|byte| byte == b'0'));
    let v4 = tree.text("/proc/net/route").unwrap_or_default();
    let v6 = tree.text("/proc/net/ipv6_route").unwrap_or_default();
    let fields = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let mut found = Vec::new();
    for line in v4.lines().skip(1).map(fields) {
        let line: Vec<&str> = line.iter().map(String::as_str).collect();
        if zero(line.get(1)) && zero(line.get(7)) {
            found.extend(line.first().map(ToString::to_string));
        }
    }
    for line in v6.lines().map(fields) {
        let line: Vec<&str> = line.iter().map(String::as_str).collect();
        if zero(line.first()) && zero(line.get(1)) && line.last() != Some(&"lo") {
            found.extend(line.last().map(ToString::to_string));
        }
    }
    found
}
