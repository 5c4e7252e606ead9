//! From addresses to flow: an open-addressing hash table of one core, keyed so that nobody can aim at one bucket.

use crate::flow::{FlowId, FourTuple};

/// A bucket: 16 bytes, four to a cache line. `flow` is the number plus one; 0 = empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Bucket {
    local: u32,
    remote: u32,
    ports: u32,
    flow: u32,
}

impl Bucket {
    #[inline]
    fn key(tuple: &FourTuple) -> Self {
        Self {
            local: tuple.local.to_bits(),
            remote: tuple.remote.to_bits(),
            ports: u32::from(tuple.local_port) << 16 | u32::from(tuple.remote_port),
            flow: 0,
        }
    }
    #[inline]
    fn same(&self, key: &Self) -> bool {
        self.local == key.local && self.remote == key.remote && self.ports == key.ports
    }
}

/// The hash table. At most half full; linear probing; deletion shifts back, so that there are no tombstones.
#[derive(Debug)]
pub(super) struct Lookup {
    buckets: Vec<Bucket>,
    mask: usize,
    len: usize,
    keys: [u64; 2],
}

impl Lookup {
    /// An empty table keyed with `seed`.
    pub fn new(seed: u64) -> Self {
        let buckets = vec![Bucket::default(); 1024];
        let mask = buckets.len() - 1;
        Self { buckets, mask, len: 0, keys: [mix(seed, 0x9e37_79b9_7f4a_7c15), mix(!seed, 0xd1b5_4a32_d192_ed03)] }
    }

    /// How many flows are in it.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The flow with these addresses.
    #[inline]
    pub fn find(&self, tuple: &FourTuple) -> Option<FlowId> {
        let key = Bucket::key(tuple);
        let mut i = self.home(&key);
        loop {
            let bucket = &self.buckets[i & self.mask];
            if bucket.flow == 0 {
                return None;
            }
            if bucket.same(&key) {
                return Some(FlowId(bucket.flow - 1));
            }
            i += 1;
        }
    }

    /// Adds a flow; one with the same addresses is replaced and returned.
    pub fn insert(&mut self, tuple: &FourTuple, flow: FlowId) -> Option<FlowId> {
        if (self.len + 1) * 2 > self.buckets.len() {
            self.grow();
        }
        let (old, added) = self.put(Bucket { flow: flow.0 + 1, ..Bucket::key(tuple) });
        self.len += usize::from(added);
        old
    }

    /// Takes a flow out, if it is this one that has the addresses.
    pub fn remove(&mut self, tuple: &FourTuple, flow: FlowId) {
        let key = Bucket::key(tuple);
        let mut hole = self.home(&key) & self.mask;
        while !self.buckets[hole].same(&key) || self.buckets[hole].flow == 0 {
            if self.buckets[hole].flow == 0 {
                return;
            }
            hole = (hole + 1) & self.mask;
        }
        if self.buckets[hole].flow != flow.0 + 1 {
            return;
        }
        self.len -= 1;
        // Move back every later entry of the run that may stand at the hole.
        let mut next = hole;
        loop {
            next = (next + 1) & self.mask;
            let bucket = self.buckets[next];
            if bucket.flow == 0 {
                break;
            }
            let from_home = next.wrapping_sub(self.home(&bucket)) & self.mask;
            let from_hole = next.wrapping_sub(hole) & self.mask;
            if from_home >= from_hole {
                self.buckets[hole] = bucket;
                hole = next;
            }
        }
        self.buckets[hole] = Bucket::default();
    }

    fn put(&mut self, new: Bucket) -> (Option<FlowId>, bool) {
        let mut i = self.home(&new) & self.mask;
        loop {
            let bucket = &mut self.buckets[i];
            if bucket.flow == 0 {
                *bucket = new;
                return (None, true);
            }
            if bucket.same(&new) {
                let old = FlowId(bucket.flow - 1);
                *bucket = new;
                return (Some(old), false);
            }
            i = (i + 1) & self.mask;
        }
    }

    fn grow(&mut self) {
        let doubled = vec![Bucket::default(); self.buckets.len() * 2];
        self.mask = doubled.len() - 1;
        let old = std::mem::replace(&mut self.buckets, doubled);
        for bucket in old.into_iter().filter(|b| b.flow != 0) {
            self.put(bucket);
        }
    }

    #[inline]
    fn home(&self, key: &Bucket) -> usize {
        let addresses = u64::from(key.remote) | u64::from(key.local) << 32;
        mix(addresses ^ self.keys[0], u64::from(key.ports) ^ self.keys[1]) as usize
    }
}

/// Both halves of the product, folded: one multiplication mixes all bits of both.
#[inline]
fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn tuple(n: u32) -> FourTuple {
        FourTuple {
            local: std::net::Ipv4Addr::new(10, 0, 0, 1),
            local_port: 80,
            remote: std::net::Ipv4Addr::from_bits(0x0a00_0000 + n / 100),
            remote_port: (n % 100) as u16,
        }
    }

    #[test]
    fn agrees_with_a_map_under_churn() {
        let (mut lookup, mut map) = (Lookup::new(7), HashMap::new());
        let mut random = 1u64;
        for step in 0..200_000u32 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let n = (random >> 40) as u32 % 3000;
            if random >> 33 & 1 == 0 {
                assert_eq!(lookup.insert(&tuple(n), FlowId(step)), map.insert(n, FlowId(step)));
            } else if let Some(flow) = map.remove(&n) {
                lookup.remove(&tuple(n), FlowId(flow.0 + 1));
                assert_eq!(lookup.find(&tuple(n)), Some(flow), "another flow's number removes nothing");
                lookup.remove(&tuple(n), flow);
            } else {
                lookup.remove(&tuple(n), FlowId(0));
            }
            assert_eq!(lookup.find(&tuple(n)), map.get(&n).copied());
            assert_eq!(lookup.len(), map.len());
        }
        for n in 0..3000 {
            assert_eq!(lookup.find(&tuple(n)), map.get(&n).copied());
        }
    }
}
