//! The order of CPUs: first those near the network device, whole cores, of one last-level cache. The order never
//! changes.

use std::collections::BTreeSet;

/// A CPU, as the kernel numbers it, and what it shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cpu {
    /// Its number.
    pub number: u32,
    /// Its NUMA node.
    pub node: u32,
    /// Its last-level cache, by any number that all CPUs with that cache share.
    pub cache: u32,
    /// Its core: hardware threads of one core have the same number.
    pub core: u32,
}

/// The order in which CPUs are reserved. They are given back in reverse order, so a pool that grows again gets the CPUs
/// that it had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuOrder(Vec<u32>);

impl CpuOrder {
    /// The order of these CPUs for a network device at this NUMA node, if it has one. `housekeeping` is never reserved.
    pub fn new(cpus: &[Cpu], node: Option<u32>, housekeeping: &BTreeSet<u32>) -> Self {
        let mut known = BTreeSet::new();
        let mut usable: Vec<Cpu> = cpus.iter().copied().filter(|cpu| known.insert(cpu.number)).collect();
        usable.sort_unstable();
        // The hardware threads of a core go together. A core that shares one with housekeeping is not whole.
        let shared: BTreeSet<(u32, u32)> =
            usable.iter().filter(|cpu| housekeeping.contains(&cpu.number)).map(|cpu| (cpu.node, cpu.core)).collect();
        usable.retain(|cpu| !housekeeping.contains(&cpu.number));
        // Near caches come first. Among them the one with most whole cores does, so that a pool fits into one cache.
        let whole = |cache: u32| {
            usable.iter().filter(|cpu| cpu.cache == cache && !shared.contains(&(cpu.node, cpu.core))).count()
        };
        let near = |cpu: &Cpu| node.is_none_or(|node| node == cpu.node);
        let key = |cpu: &Cpu| {
            let halved = shared.contains(&(cpu.node, cpu.core));
            (!near(cpu), cpu.node, std::cmp::Reverse(whole(cpu.cache)), cpu.cache, halved, cpu.core, cpu.number)
        };
        let mut order = usable.clone();
        order.sort_by_key(key);
        Self(order.iter().map(|cpu| cpu.number).collect())
    }

    /// Most that can be reserved.
    pub fn most(&self) -> u32 {
        self.0.len() as u32
    }
    /// The first `cores` CPUs, or all.
    pub fn take(&self, cores: u32) -> &[u32] {
        &self.0[..self.0.len().min(cores as usize)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two nodes, two caches each, two cores in each cache, two threads of each core; numbered as most machines do:
    /// first threads first.
    fn machine() -> Vec<Cpu> {
        let cpu = |number: u32| {
            let core = number % 8;
            Cpu { number, node: core / 4, cache: core / 2, core }
        };
        (0..16).map(cpu).collect()
    }

    #[test]
    fn near_the_device_whole_cores_of_one_cache() {
        let order = CpuOrder::new(&machine(), Some(1), &BTreeSet::from([0, 8]));
        assert_eq!(order.take(8), [4, 12, 5, 13, 6, 14, 7, 15], "node 1, cache by cache, core by core");
        assert_eq!(order.take(9)[8], 2, "then the other node, where the whole cores of a cache are");
        assert_eq!(order.most(), 14, "housekeeping keeps its own");
    }

    #[test]
    fn a_core_that_housekeeping_has_a_thread_of_comes_last_in_its_cache() {
        let order = CpuOrder::new(&machine(), Some(0), &BTreeSet::from([2]));
        assert_eq!(order.take(7), [0, 8, 1, 9, 3, 11, 10]);
    }

    #[test]
    fn growing_again_gives_the_same_cpus_and_never_more_than_there_are() {
        let order = CpuOrder::new(&machine(), None, &BTreeSet::from([0]));
        assert!(order.take(5).starts_with(order.take(3)));
        assert_eq!(order.take(99).len(), 15);
        assert!(!order.take(99).contains(&0));
        let twice: Vec<Cpu> = machine().into_iter().chain(machine()).collect();
        assert_eq!(CpuOrder::new(&twice, None, &BTreeSet::from([0])), order, "a CPU that is named twice is one");
    }
}
