//! What there is: CPUs, network cards, their queues and interrupts.

use crate::cpulist::CpuSet;
use crate::tree::Tree;
use serde::Serialize;
use towpath_cores::Cpu;

/// A network card, or what the kernel treats as one.
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
    /// Its interrupts that can be moved, in the order of their numbers.
    pub irqs: Vec<u32>,
    /// Can packets be steered in software (RPS)?
    pub rps: bool,
    /// Does the default route go through it?
    pub default_route: bool,
}

/// This machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// The CPUs that are online.
    pub cpus: Vec<Cpu>,
    /// Its network cards, without the loopback device.
    pub interfaces: Vec<Interface>,
    /// Changes with every boot.
    pub boot_id: String,
}

impl Machine {
    /// Of this tree.
    pub fn read(tree: &Tree) -> Self {
        let online =
            tree.text("/sys/devices/system/cpu/online").and_then(|text| CpuSet::of_list(&text)).unwrap_or_default();
        let default = default_routes(tree);
        let names = tree.names("/sys/class/net").into_iter();
        Self {
            cpus: online.0.iter().map(|number| cpu(tree, *number)).collect(),
            interfaces: names.filter(|name| name != "lo").map(|name| interface(tree, name, &default)).collect(),
            boot_id: tree.text("/proc/sys/kernel/random/boot_id").unwrap_or_default(),
        }
    }
    /// The CPUs' numbers.
    pub fn online(&self) -> CpuSet {
        CpuSet(self.cpus.iter().map(|cpu| cpu.number).collect())
    }
    /// The card of this name.
    pub fn interface(&self, name: &str) -> Option<&Interface> {
        self.interfaces.iter().find(|interface| interface.name == name)
    }
}

fn cpu(tree: &Tree, number: u32) -> Cpu {
    let at = format!("/sys/devices/system/cpu/cpu{number}");
    let first_of =
        |file: &str| tree.text(&format!("{at}/{file}")).and_then(|text| CpuSet::of_list(&text)?.0.first().copied());
    let node = tree.names(&at).iter().find_map(|name| name.strip_prefix("node")?.parse().ok());
    // The largest of its caches is the last; in some virtual machines there is none to see, and then each node has one.
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
    let irqs =
        tree.names(&format!("{at}/device/msi_irqs")).iter().filter_map(|irq| irq.parse().ok()).collect::<Vec<u32>>();
    let mut irqs: Vec<u32> =
        irqs.into_iter().filter(|irq| tree.has(&format!("/proc/irq/{irq}/smp_affinity_list"))).collect();
    irqs.sort_unstable();
    Interface {
        driver: tree.link(&format!("{at}/device/driver")),
        // -1: none.
        node: tree.number::<i64>(&format!("{at}/device/numa_node")).and_then(|node| node.try_into().ok()),
        receive_queues: queues.iter().filter(|queue| queue.starts_with("rx-")).count() as u32,
        irqs,
        rps: tree.has(&format!("{at}/queues/rx-0/rps_cpus")),
        default_route: default.contains(&name),
        name,
    }
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
