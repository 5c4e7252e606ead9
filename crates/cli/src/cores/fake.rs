//! Folders that stand for machines, for tests.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use towpath_anp::{CpuSet, Tree};

/// What CPUs a machine has, and where its card is.
#[derive(Clone, Debug)]
pub struct Cpus {
    /// Their number.
    pub count: u32,
    /// Threads of a core: first all first ones are numbered, as most machines do.
    pub threads: u32,
    /// NUMA nodes.
    pub nodes: u32,
    /// A list.
    pub offline: String,
    /// A list.
    pub isolated: String,
    /// What the kernel says of it; -1: at none.
    pub card_node: Option<i32>,
}

impl Default for Cpus {
    fn default() -> Self {
        Self { count: 4, threads: 1, nodes: 1, offline: String::new(), isolated: String::new(), card_node: None }
    }
}

impl Cpus {
    /// Those that are online.
    pub fn online(&self) -> CpuSet {
        CpuSet((0..self.count).collect()).without(&CpuSet::of_list(&self.offline).unwrap())
    }
}

/// A machine with eth1, a card that only software can steer.
pub struct Fake(PathBuf);

impl Fake {
    /// With these CPUs.
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
        if let Some(node) = cpus.card_node {
            fake.put("sys/class/net/eth1/device/numa_node", &node.to_string());
        }
        fake
    }
    /// Gives a file this text.
    pub fn put(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }
    /// As a tree.
    pub fn tree(&self) -> Tree {
        Tree::at(&self.0)
    }
    /// A place in it for what is no part of the machine.
    pub fn place(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
