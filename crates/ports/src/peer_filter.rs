//! Rules of the filter for listening sockets: whose SYNs the kernel does not get.
//!
//! They are in a map by the cookie of the socket. They hold for each SYN that the stack does not take, also when the service
//! has died.

use crate::object::{LoadError, Maps};
use aya::maps::{HashMap, MapData, MapError};
use std::collections::{BTreeSet, HashMap as Table};
use std::io;
use std::net::{IpAddr, Ipv6Addr};

/// Most rules about one listening socket.
pub const MAX_RULES: usize = 128;

/// Values of `families`.
const V4: u32 = 1;
const V6: u32 = 2;

/// `struct rule` of the program.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Rule {
    remote: [u8; 16],
    remote_mask: [u8; 16],
    local: [u8; 16],
    local_mask: [u8; 16],
    families: u32,
    next: u32,
    refuses: u64,
}

/// `struct rules` of the program.
#[derive(Clone, Copy)]
#[repr(C)]
struct Rules {
    count: u32,
    zero: u32,
    rules: [Rule; MAX_RULES],
}

// SAFETY: there is no padding: the fields fill their struct, and every bit pattern is valid.
unsafe impl aya::Pod for Rules {}

/// The result of a rule that matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The SYN is dropped, and counted under this number, which is not 0.
    Refuse(u64),
    /// The rule at this later place is asked next.
    GoOn(u32),
}

impl Rule {
    /// A rule about peers of one block that connect to addresses of another: an address, and how many of its first bits
    /// count. `None`: all addresses. Blocks of different families match nothing.
    pub fn new(remote: Option<(IpAddr, u8)>, local: Option<(IpAddr, u8)>, outcome: Outcome) -> Self {
        let family = |block: Option<(IpAddr, u8)>| match block {
            Some((IpAddr::V4(_), _)) => V4,
            Some((IpAddr::V6(_), _)) => V6,
            None => V4 | V6,
        };
        let (next, refuses) = match outcome {
            Outcome::Refuse(number) => (0, number),
            Outcome::GoOn(next) => (next, 0),
        };
        let ((remote_addr, remote_mask), (local_addr, local_mask)) = (words(remote), words(local));
        Self {
            remote: remote_addr,
            remote_mask,
            local: local_addr,
            local_mask,
            families: family(remote) & family(local),
            next,
            refuses,
        }
    }
}

/// The IPv6 form of a block: an address and its mask, in network byte order.
fn words(block: Option<(IpAddr, u8)>) -> ([u8; 16], [u8; 16]) {
    let (addr, bits) = match block {
        Some((IpAddr::V4(addr), bits)) => (addr.to_ipv6_mapped(), 96 + u32::from(bits)),
        Some((IpAddr::V6(addr), bits)) => (addr, u32::from(bits)),
        None => (Ipv6Addr::UNSPECIFIED, 0),
    };
    let mask = u128::MAX.checked_shl(128 - bits.min(128)).unwrap_or(0);
    (addr.octets(), mask.to_be_bytes())
}

/// The rules in force.
pub struct PeerFilter {
    rules: HashMap<MapData, u64, Rules>,
    refused_by: HashMap<MapData, u64, u64>,
    refused_at: HashMap<MapData, u64, u64>,
    /// The numbers under which the rules of each socket count.
    numbers: Table<u64, BTreeSet<u64>>,
    /// The count under each number when it was read last.
    seen: Table<u64, u64>,
}

impl PeerFilter {
    pub(crate) fn over(maps: &mut Maps) -> Result<Self, LoadError> {
        Ok(Self {
            rules: maps.take("rules")?,
            refused_by: maps.take("refused_by")?,
            refused_at: maps.take("refused_at")?,
            numbers: Table::new(),
            seen: Table::new(),
        })
    }

    /// Sets the rules of the socket with this cookie; none: the kernel has all SYNs that are not taken. They take the
    /// place of the rules before them in one step.
    pub fn set(&mut self, cookie: u64, rules: &[Rule]) -> io::Result<()> {
        if rules.is_empty() {
            return self.clear(cookie);
        }
        let mut value = Rules { count: rules.len() as u32, zero: 0, rules: [Rule::default(); MAX_RULES] };
        value.rules.get_mut(..rules.len()).ok_or(io::ErrorKind::ArgumentListTooLong)?.copy_from_slice(rules);
        let numbers: BTreeSet<u64> = rules.iter().map(|rule| rule.refuses).filter(|number| *number != 0).collect();
        for number in &numbers {
            if !self.seen.contains_key(number) {
                self.refused_by.insert(number, 0, 0).map_err(io::Error::other)?;
                self.seen.insert(*number, 0);
            }
        }
        if !self.numbers.contains_key(&cookie) {
            self.refused_at.insert(cookie, 0, 0).map_err(io::Error::other)?;
        }
        self.rules.insert(cookie, value, 0).map_err(io::Error::other)?;
        self.numbers.insert(cookie, numbers);
        Ok(())
    }

    fn clear(&mut self, cookie: u64) -> io::Result<()> {
        if self.numbers.remove(&cookie).is_none() {
            return Ok(());
        }
        removed(self.rules.remove(&cookie))?;
        removed(self.refused_at.remove(&cookie))
    }

    /// How many SYNs have been refused since the last call, by the numbers of the rules.
    pub fn counted(&mut self) -> Vec<(u64, u64)> {
        let in_use: BTreeSet<u64> = self.numbers.values().flatten().copied().collect();
        let mut counted = Vec::new();
        for (number, seen) in &mut self.seen {
            let Ok(count) = self.refused_by.get(number, 0) else { continue };
            let more = count - std::mem::replace(seen, count);
            if more > 0 {
                counted.push((*number, more));
            }
        }
        // Nothing is counted any more under a number that no rule has.
        let unused: Vec<u64> = self.seen.keys().copied().filter(|number| !in_use.contains(number)).collect();
        for number in unused {
            if removed(self.refused_by.remove(&number)).is_ok() {
                self.seen.remove(&number);
            }
        }
        counted
    }

    /// How many SYNs the rules of this socket have refused, since it has rules.
    pub fn refused_at(&self, cookie: u64) -> u64 {
        if self.numbers.contains_key(&cookie) { self.refused_at.get(&cookie, 0).unwrap_or(0) } else { 0 }
    }
}

/// The result of removing an entry: one that has gone already is no error.
pub(crate) fn removed(result: Result<(), MapError>) -> io::Result<()> {
    match result {
        Ok(()) | Err(MapError::KeyNotFound) => Ok(()),
        Err(MapError::SyscallError(error)) if error.io_error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        Err(error) => Err(io::Error::other(error)),
    }
}
