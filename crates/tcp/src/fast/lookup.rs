//! From addresses to flow: hash tables with open addressing. Their keys are secret, so that no peer can aim at one
//! bucket.

use crate::flow::{FlowId, FourTuple};
use std::net::{IpAddr, Ipv4Addr};

/// Addresses and ports, as a table compares and mixes them.
trait Key: Copy + Default + PartialEq {
    /// A hash that depends on all bits and cannot be predicted without `keys`.
    fn hash(&self, keys: &[u64; 4]) -> u64;
}

/// An IPv4 connection. With the flow number, a bucket is 16 bytes, four to a cache line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, packed(4))]
struct V4 {
    /// The peer's address, then the local one.
    addresses: u64,
    ports: u32,
}

impl V4 {
    /// The addresses as they lie in a frame, which saves turning their bytes around.
    #[inline]
    fn of(local: Ipv4Addr, remote: Ipv4Addr, ports: u32) -> Self {
        let ([a, b, c, d], [e, f, g, h]) = (remote.octets(), local.octets());
        Self { addresses: u64::from_ne_bytes([a, b, c, d, e, f, g, h]), ports }
    }
}

impl V4 {
    /// The addresses (the peer's, then ours) and ports, as they lie in a received frame.
    #[inline(always)]
    fn lying((addresses, ports): ([u8; 8], [u8; 4])) -> Self {
        Self { addresses: u64::from_ne_bytes(addresses), ports: u32::from_ne_bytes(ports) }
    }
}

impl Key for V4 {
    #[inline]
    fn hash(&self, keys: &[u64; 4]) -> u64 {
        mix(self.addresses ^ keys[0], u64::from(self.ports) ^ keys[1])
    }
}

/// An IPv6 connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct V6 {
    local: [u64; 2],
    remote: [u64; 2],
    ports: u32,
}

impl V6 {
    fn of(tuple: &FourTuple) -> Self {
        let halves = |address| {
            let bits = match address {
                IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
                IpAddr::V6(address) => address.to_bits(),
            };
            [(bits >> 64) as u64, bits as u64]
        };
        let ports = ports(tuple.local_port, tuple.remote_port);
        Self { local: halves(tuple.local), remote: halves(tuple.remote), ports }
    }
}

impl Key for V6 {
    #[inline]
    fn hash(&self, keys: &[u64; 4]) -> u64 {
        let local = mix(self.local[0] ^ keys[0], self.local[1] ^ keys[1]);
        let remote = mix(self.remote[0] ^ keys[2], self.remote[1] ^ keys[3]);
        mix(local ^ u64::from(self.ports), remote ^ keys[0])
    }
}

/// `flow` is the number plus one; 0 = empty.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket<K> {
    key: K,
    flow: u32,
}

/// The flows of one fast path.
#[derive(Debug)]
pub(super) struct Lookup {
    v4: Table<V4>,
    v6: Table<V6>,
}

impl Lookup {
    /// Empty tables keyed with `seed`.
    pub fn new(seed: u64) -> Self {
        let key = |n: u64| mix(seed ^ n.wrapping_mul(0xa076_1d64_78bd_642f), 0x9e37_79b9_7f4a_7c15 ^ n << 56);
        let keys = [key(1), key(2), key(3), key(4)];
        Self { v4: Table::new(keys, 1024), v6: Table::new(keys, 16) }
    }

    /// How many flows there are.
    pub fn len(&self) -> usize {
        self.v4.len + self.v6.len
    }

    /// The flow with these addresses.
    #[inline]
    pub fn find(&self, tuple: &FourTuple) -> Option<FlowId> {
        let ports = ports(tuple.local_port, tuple.remote_port);
        match (tuple.local, tuple.remote) {
            (IpAddr::V4(local), IpAddr::V4(remote)) => self.v4.find(&V4::of(local, remote, ports)),
            _ => self.find_v6(*tuple),
        }
    }

    /// The flow with these IPv4 addresses (the peer's, then ours) and ports, as they lie in a received frame.
    #[inline(always)]
    pub fn find_v4(&self, ends: ([u8; 8], [u8; 4])) -> Option<FlowId> {
        self.v4.find(&V4::lying(ends))
    }

    /// [`Lookup::find`], of a hash that was made apart.
    #[inline]
    pub fn find_hashed(&self, hashed: &Hashed) -> Option<FlowId> {
        match &hashed.key {
            Family::V4(key) => self.v4.find_from(hashed.hash as usize, key),
            Family::V6(key) => self.v6.find_from(hashed.hash as usize, key),
        }
    }

    /// Makes hashes for these tables, on any thread.
    pub fn hasher(&self) -> Hasher {
        Hasher { keys: self.v4.keys }
    }

    #[inline(never)]
    fn find_v6(&self, tuple: FourTuple) -> Option<FlowId> {
        self.v6.find(&V6::of(&tuple))
    }

    /// Adds a flow; one with the same addresses is replaced and returned.
    pub fn insert(&mut self, tuple: &FourTuple, flow: FlowId) -> Option<FlowId> {
        match key(tuple) {
            Family::V4(key) => self.v4.insert(key, flow),
            Family::V6(key) => self.v6.insert(key, flow),
        }
    }

    /// Removes a flow, if these are its addresses.
    pub fn remove(&mut self, tuple: &FourTuple, flow: FlowId) {
        match key(tuple) {
            Family::V4(key) => self.v4.remove(&key, flow),
            Family::V6(key) => self.v6.remove(&key, flow),
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Family {
    V4(V4),
    V6(V6),
}

/// The addresses of a segment with their hash. Both depend on the segment alone, whatever the tables hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hashed {
    key: Family,
    hash: u64,
}

impl Default for Hashed {
    fn default() -> Self {
        Self { key: Family::V4(V4::default()), hash: 0 }
    }
}

/// The keys of a [`Lookup`].
#[derive(Clone, Debug)]
pub(super) struct Hasher {
    keys: [u64; 4],
}

impl Hasher {
    #[inline]
    pub fn hash(&self, tuple: &FourTuple) -> Hashed {
        let key = key(tuple);
        let hash = match &key {
            Family::V4(key) => key.hash(&self.keys),
            Family::V6(key) => key.hash(&self.keys),
        };
        Hashed { key, hash }
    }
    /// The same of IPv4 addresses (the peer's, then ours) and ports, as they lie in a received frame.
    #[inline]
    pub fn hash_v4(&self, ends: ([u8; 8], [u8; 4])) -> Hashed {
        let key = V4::lying(ends);
        Hashed { hash: key.hash(&self.keys), key: Family::V4(key) }
    }
}

fn key(tuple: &FourTuple) -> Family {
    match (tuple.local, tuple.remote) {
        (IpAddr::V4(local), IpAddr::V4(remote)) => {
            let ports = ports(tuple.local_port, tuple.remote_port);
            Family::V4(V4::of(local, remote, ports))
        }
        _ => Family::V6(V6::of(tuple)),
    }
}

/// Both ports as they lie in a received frame.
#[inline]
fn ports(local: u16, remote: u16) -> u32 {
    let ([a, b], [c, d]) = (remote.to_be_bytes(), local.to_be_bytes());
    u32::from_ne_bytes([a, b, c, d])
}

/// A hash table, at most half full, with linear probing. Deletion moves later entries back, so that there are no
/// tombstones.
#[derive(Debug)]
struct Table<K> {
    buckets: Vec<Bucket<K>>,
    mask: usize,
    len: usize,
    keys: [u64; 4],
}

impl<K: Key> Table<K> {
    /// `buckets`: a power of two.
    fn new(keys: [u64; 4], buckets: usize) -> Self {
        Self { buckets: vec![Bucket::default(); buckets], mask: buckets - 1, len: 0, keys }
    }

    #[inline(always)]
    fn find(&self, key: &K) -> Option<FlowId> {
        self.find_from(self.home(key), key)
    }

    /// [`Table::find`], with the key's [home](Table::home). Nearly always the first bucket decides.
    #[inline(always)]
    fn find_from(&self, home: usize, key: &K) -> Option<FlowId> {
        let home = home & self.mask;
        let bucket = self.buckets.get(home)?;
        if bucket.key == *key && bucket.flow != 0 {
            return Some(FlowId(bucket.flow - 1));
        }
        if bucket.flow == 0 { None } else { self.find_behind(*key, home) }
    }

    /// [`Table::find`] in the buckets behind this one.
    #[inline(never)]
    fn find_behind(&self, key: K, mut i: usize) -> Option<FlowId> {
        loop {
            i = (i + 1) & self.mask;
            let bucket = self.buckets.get(i)?;
            if bucket.flow == 0 {
                return None;
            }
            if bucket.key == key {
                return Some(FlowId(bucket.flow - 1));
            }
        }
    }

    fn insert(&mut self, key: K, flow: FlowId) -> Option<FlowId> {
        if (self.len + 1) * 2 > self.buckets.len() {
            self.grow();
        }
        let (old, added) = self.put(Bucket { key, flow: flow.0 + 1 });
        self.len += usize::from(added);
        old
    }

    fn remove(&mut self, key: &K, flow: FlowId) {
        let mut hole = self.home(key) & self.mask;
        while self.buckets[hole].key != *key || self.buckets[hole].flow == 0 {
            if self.buckets[hole].flow == 0 {
                return;
            }
            hole = (hole + 1) & self.mask;
        }
        if self.buckets[hole].flow != flow.0 + 1 {
            return;
        }
        self.len -= 1;
        // Move every later entry of the run back that may stand at the hole.
        let mut next = hole;
        loop {
            next = (next + 1) & self.mask;
            let bucket = self.buckets[next];
            if bucket.flow == 0 {
                break;
            }
            let from_home = next.wrapping_sub(self.home(&bucket.key)) & self.mask;
            let from_hole = next.wrapping_sub(hole) & self.mask;
            if from_home >= from_hole {
                self.buckets[hole] = bucket;
                hole = next;
            }
        }
        self.buckets[hole] = Bucket::default();
    }

    fn put(&mut self, new: Bucket<K>) -> (Option<FlowId>, bool) {
        let mut i = self.home(&new.key) & self.mask;
        loop {
            let bucket = &mut self.buckets[i];
            if bucket.flow == 0 {
                *bucket = new;
                return (None, true);
            }
            if bucket.key == new.key {
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
    fn home(&self, key: &K) -> usize {
        key.hash(&self.keys) as usize
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
    use std::net::{Ipv4Addr, Ipv6Addr};
    use towpath_rng::Rng;

    /// Odd numbers are IPv6, so that each number is in one table only.
    fn tuple(n: u32) -> FourTuple {
        let (local_port, remote_port) = (80, (n % 100) as u16);
        if n & 1 == 0 {
            let remote = Ipv4Addr::from_bits(0x0a00_0000 + n / 100).into();
            FourTuple { local: Ipv4Addr::new(10, 0, 0, 1).into(), local_port, remote, remote_port }
        } else {
            let remote = Ipv6Addr::from_bits(0xfd00 << 112 | u128::from(n / 100) << (n % 64)).into();
            FourTuple { local: Ipv6Addr::LOCALHOST.into(), local_port, remote, remote_port }
        }
    }

    const KEYS: [u64; 4] = [0x5bd1_e995_9e37_79b9, 0xc2b2_ae3d_27d4_eb4f, 0x1656_67b1_9e37_79f9, 0x27d4_eb2f_1656_67c5];

    /// A hash that left a bit out would put the connections of a peer that varies it into one place.
    #[test]
    fn every_bit_of_a_connection_changes_its_hash() {
        let v4 = V4 { addresses: 0x0a00_0001_0a01_0203, ports: 0x0050_9c40 };
        let hashes = (0..97).map(|bit: u32| {
            let V4 { addresses, ports } = v4;
            let changed = match bit {
                0..64 => V4 { addresses: addresses ^ 1 << bit, ports },
                64..96 => V4 { addresses, ports: ports ^ 1 << (bit - 64) },
                _ => v4,
            };
            changed.hash(&KEYS)
        });
        assert_eq!(hashes.collect::<std::collections::HashSet<_>>().len(), 97);
        let v6 = V6 { local: [0xfd00 << 48, 1], remote: [0xfd01 << 48, 0x0203], ports: 0x0050_9c40 };
        let hashes = (0..289).map(|bit: u32| {
            let mut changed = v6;
            match bit {
                0..128 => changed.local[(bit / 64) as usize] ^= 1 << (bit % 64),
                128..256 => changed.remote[(bit / 64 - 2) as usize] ^= 1 << (bit % 64),
                256..288 => changed.ports ^= 1 << (bit % 32),
                _ => {}
            }
            changed.hash(&KEYS)
        });
        assert_eq!(hashes.collect::<std::collections::HashSet<_>>().len(), 289);
    }

    #[test]
    fn connections_that_differ_in_one_number_are_two() {
        let (mut lookup, mut all) = (Lookup::new(7), vec![tuple(2), tuple(3)]);
        for of in [tuple(2), tuple(3)] {
            let other = if of.local.is_ipv4() { Ipv4Addr::BROADCAST.into() } else { Ipv6Addr::UNSPECIFIED.into() };
            all.push(FourTuple { local_port: 81, ..of });
            all.push(FourTuple { remote_port: 81, ..of });
            all.push(FourTuple { local: other, ..of });
            all.push(FourTuple { remote: other, ..of });
        }
        for (n, tuple) in (0..).zip(&all) {
            assert_eq!(lookup.insert(tuple, FlowId(n)), None, "{tuple:?}");
        }
        for (n, tuple) in (0..).zip(&all) {
            assert_eq!(lookup.find(tuple), Some(FlowId(n)), "{tuple:?}");
        }
    }

    #[test]
    fn connections_have_places_of_their_own() {
        let lookup = Lookup::new(7);
        let places = |of: &dyn Fn(&FourTuple) -> usize, odd: u32| {
            let places = (0..2000).map(|n| of(&tuple(2 * n + odd)) & 0xffff);
            places.collect::<std::collections::HashSet<_>>().len()
        };
        let v4 = |tuple: &FourTuple| match (tuple.local, tuple.remote) {
            (IpAddr::V4(local), IpAddr::V4(remote)) => {
                lookup.v4.home(&V4::of(local, remote, ports(tuple.local_port, tuple.remote_port)))
            }
            _ => 0,
        };
        assert!(places(&v4, 0) > 1900 && places(&|tuple| lookup.v6.home(&V6::of(tuple)), 1) > 1900);
    }

    #[test]
    fn agrees_with_a_map_under_churn() {
        let (mut lookup, mut map) = (Lookup::new(7), HashMap::new());
        let mut rng = Rng::new(1);
        for step in 0..200_000u32 {
            let n = rng.below(3000) as u32;
            if rng.below(2) == 0 {
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
