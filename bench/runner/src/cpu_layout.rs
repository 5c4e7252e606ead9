//! The CPUs of the server and of the client.

use std::collections::BTreeSet;
use std::io;
use towpath_rxcpus::{CpuSet, FEWEST_CPUS, Machine, Tree};
use towpath_scaling::CpuOrder;

/// The CPUs of both sides.
#[derive(Debug, PartialEq, Eq)]
pub struct CpuLayout {
    /// The machine's.
    pub all: CpuSet,
    /// The client's. `None`: all, because there are too few to divide.
    client: Option<CpuSet>,
    /// The server's, and those of its receive work.
    pub server: CpuSet,
    /// Most of these that may be reserved.
    pub most: u32,
}

impl CpuLayout {
    /// Of this machine. No more than `most` are reserved.
    pub fn read(most: Option<u32>) -> io::Result<Self> {
        let machine = Machine::read(&Tree::default());
        let cpus = machine.online();
        if cpus.0.len() < 2 {
            return Err(io::Error::other("on one CPU there is nothing to choose"));
        }
        let first = cpus.0.iter().copied().take(1).collect();
        let order = CpuOrder::new(&machine.cpus, None, &first);
        Ok(Self::new(&cpus, order.take(order.most()), most))
    }

    /// `order` is the order in which CPUs are reserved. The client stands for other machines, so it gets the CPUs that
    /// would be reserved last. It gets as many as the server: a request is as much work to send as to answer.
    fn new(all: &CpuSet, order: &[u32], most: Option<u32>) -> Self {
        let count = all.0.len();
        let few = count < FEWEST_CPUS;
        let client: BTreeSet<u32> = if few {
            BTreeSet::new()
        } else {
            let never = all.0.iter().copied().filter(|cpu| !order.contains(cpu));
            never.chain(order.iter().rev().copied()).take(count / 2).collect()
        };
        let server = all.without(&CpuSet(client.clone()));
        let reservable = order.iter().filter(|cpu| server.0.contains(cpu)).count();
        let limit = reservable.min(server.0.len() - 1);
        let most = most.map_or(server.0.len() / 2, |most| most as usize).min(limit) as u32;
        Self { all: all.clone(), client: (!few).then_some(CpuSet(client)), server, most }
    }

    /// CPUs of the machine.
    pub fn cpus(&self) -> usize {
        self.all.0.len()
    }
    /// The client's CPUs.
    pub fn client(&self) -> &CpuSet {
        self.client.as_ref().unwrap_or(&self.all)
    }
    /// Threads of a client with this many connections. It has one if it has no CPU of its own.
    pub fn client_threads(&self, connections: usize) -> usize {
        self.client.as_ref().map_or(1, |client| client.0.len()).min(connections).max(1)
    }
    /// For people.
    pub fn sentence(&self) -> String {
        match &self.client {
            Some(client) => format!("client on CPUs {client}, server and its receive work on {}", self.server),
            None => format!("{} CPUs: client, server and receive work share all of them", self.cpus()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn set(list: &str) -> CpuSet {
        CpuSet::of_list(list).unwrap()
    }

    #[test]
    fn the_client_has_the_cpus_that_are_reserved_last() {
        let order: Vec<u32> = (1..16).collect();
        let layout = CpuLayout::new(&set("0-15"), &order, None);
        assert_eq!((layout.client(), &layout.server, layout.most), (&set("0,9-15"), &set("1-8"), 4));
        assert_eq!(layout.client_threads(64), 8);
        assert_eq!(CpuLayout::new(&set("0-15"), &order, Some(99)).most, 7, "one is left for the server");
    }

    #[test]
    fn two_cpus_are_everybodys() {
        let layout = CpuLayout::new(&set("0-1"), &[1], None);
        assert_eq!((layout.client(), &layout.server, layout.most), (&set("0-1"), &set("0-1"), 1));
        assert_eq!(layout.client_threads(64), 1);
    }
}
