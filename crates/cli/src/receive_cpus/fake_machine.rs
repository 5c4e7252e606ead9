//! Folders that stand for machines, for tests.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use towpath_rxcpus::{CpuSet, Tree};

/// The CPUs of a machine, and the NUMA node of its network device.
#[derive(Clone, Debug)]
pub struct Cpus {
    /// Their number.
    pub count: u32,
    /// Threads of a core. The first threads of all cores are numbered first, as on most machines.
    pub threads: u32,
    /// NUMA nodes.
    pub nodes: u32,
    /// A list.
    pub offline: String,
    /// A list.
    pub isolated: String,
    /// The device's node as the kernel gives it. -1: none.
    pub device_node: Option<i32>,
}

impl Default for Cpus {
    fn default() -> Self {
        Self { count: 4, threads: 1, nodes: 1, offline: String::new(), isolated: String::new(), device_node: None }
    }
}

impl Cpus {
    /// Those that are online.
    pub fn online(&self) -> CpuSet {
        CpuSet((0..self.count).collect()).without(&CpuSet::of_list(&self.offline).unwrap())
    }
}

/// A machine with eth1, a device whose packets only software can steer.
pub struct Fake(PathBuf);

impl Fake {
    /// A machine with these CPUs.
    pub fn new(name: &str, cpus: &Cpus) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let fake = Self(std::env::temp_dir().join(format!("towpath-cores-{}-{name}-{number}", std::process::id())));
        if cpus.count > 0 {
            fake.put("sys/devices/system/cpu/online", &cpus.online().list());
        }
        fake.put("sys/devices/system/cpu/isolated", &cpus.isolated);
        let cores = cpus.count / cpus.threads;
        for cpu in 0..cpus.count {
            let (core, at) = (cpu % cores, format!("sys/devices/system/cpu/cpu{cpu}"));
            let siblings = (0..cpus.threads).map(|thread| core + thread * cores);
            let siblings = CpuSet(siblings.filter(|cpu| cpus.online().0.contains(cpu)).collect());
            fake.put(&format!("{at}/topology/thread_siblings_list"), &siblings.list());
            fake.put(&format!("{at}/node{}/meminfo", core * cpus.nodes / cores), "");
        }
        for queue in 0..2 {
            fake.put(&format!("sys/class/net/eth1/queues/rx-{queue}/rps_cpus"), "00000000,00000000");
            fake.put(&format!("sys/class/net/eth1/queues/rx-{queue}/rps_flow_cnt"), "0");
        }
        if let Some(node) = cpus.device_node {
            fake.put("sys/class/net/eth1/device/numa_node", &node.to_string());
        }
        fake
    }
    /// Writes a file.
    pub fn put(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }
    /// The machine as a tree.
    pub fn tree(&self) -> Tree {
        Tree::at(&self.0)
    }
    /// A path for a file that is no part of the machine.
    pub fn place(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
