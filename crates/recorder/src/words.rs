//! An event as words of shared memory, behind a sequence number.

use crate::event::{Event, Kind};
use crate::{Entry, NONE};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// The place of one event. A thread writes it, and others may read it meanwhile.
#[repr(C)]
pub struct Place {
    /// The event's number from 1 on; 0: it is being written, or there is none.
    number: AtomicU64,
    at_us: AtomicU64,
    since_us: AtomicU64,
    /// Kind, flag and flow group of 8, 8 and 16 bits, then how often.
    what: AtomicU64,
    key: AtomicU64,
    value: AtomicU64,
    /// Addresses in network order, IPv4 mapped into IPv6.
    local: [AtomicU64; 2],
    remote: [AtomicU64; 2],
    /// Both ports, and bit 32 if there are ends.
    ports: AtomicU64,
    _unused: AtomicU64,
}

const HAS_ENDS: u64 = 1 << 32;
const NO_GROUP: u64 = 0xffff;

/// What an event has in common with the next that is counted with it.
fn sort(entry: &Entry) -> u64 {
    let group = u64::from(entry.flow_group).min(NO_GROUP);
    entry.kind as u64 | u64::from(entry.flag) << 8 | group << 16
}

fn halves(address: IpAddr) -> [u64; 2] {
    let bits = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    };
    [(bits >> 64) as u64, bits as u64]
}

fn address([high, low]: [u64; 2]) -> IpAddr {
    let address = Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low));
    // What was an IPv4 address is one again.
    address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4)
}

impl Place {
    /// The number of the event that stands here.
    fn number(&self) -> u64 {
        self.number.load(Ordering::Relaxed)
    }

    /// Is the event here of this sort and about this key?
    pub fn is_like(&self, entry: &Entry) -> bool {
        let what = self.what.load(Ordering::Relaxed);
        self.number() != 0 && what & 0xffff_ffff == sort(entry) && self.key.load(Ordering::Relaxed) == entry.key
    }

    /// Writes an event here. `again`: it is the same as the one that stands here, once more. The thread that owns the row calls
    /// this, and no other.
    pub fn write(&self, now_us: u64, entry: &Entry, number: u64, again: bool) {
        let (times, since) = if again {
            ((self.what.load(Ordering::Relaxed) >> 32).saturating_add(1), self.since_us.load(Ordering::Relaxed))
        } else {
            (1, now_us)
        };
        let times = times.min(u32::MAX.into());
        self.number.store(0, Ordering::Relaxed);
        // A reader that sees a word of the new event sees the 0, too.
        fence(Ordering::Release);
        for (word, value) in [
            (&self.at_us, now_us),
            (&self.since_us, since),
            (&self.what, sort(entry) | times << 32),
            (&self.key, entry.key),
            (&self.value, u64::from(entry.value.0) << 32 | u64::from(entry.value.1)),
        ] {
            word.store(value, Ordering::Relaxed);
        }
        match entry.ends {
            Some((local, remote)) => {
                for (words, end) in [(&self.local, local), (&self.remote, remote)] {
                    for (word, half) in words.iter().zip(halves(end.ip())) {
                        word.store(half, Ordering::Relaxed);
                    }
                }
                let ports = u64::from(local.port()) << 16 | u64::from(remote.port());
                self.ports.store(ports | HAS_ENDS, Ordering::Relaxed);
            }
            None => self.ports.store(0, Ordering::Relaxed),
        }
        self.number.store(number, Ordering::Release);
    }

    /// The event that stands here, if it is whole and of a known kind.
    pub fn read(&self) -> Option<Event> {
        let number = self.number.load(Ordering::Acquire);
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let [at_us, since_us, what, key, value, ports] =
            [&self.at_us, &self.since_us, &self.what, &self.key, &self.value, &self.ports].map(load);
        let [local, remote] = [&self.local, &self.remote].map(|words| address([load(&words[0]), load(&words[1])]));
        fence(Ordering::Acquire);
        if number == 0 || self.number() != number {
            return None;
        }
        let ends = (SocketAddr::new(local, (ports >> 16) as u16), SocketAddr::new(remote, ports as u16));
        let group = what >> 16 & 0xffff;
        Some(Event {
            at_us,
            since_us,
            times: (what >> 32) as u32,
            entry: Entry {
                kind: Kind::of(what as u8)?,
                flag: (what >> 8) as u8,
                flow_group: if group == NO_GROUP { NONE } else { group as u32 },
                key,
                value: ((value >> 32) as u32, value as u32),
                ends: (ports & HAS_ENDS != 0).then_some(ends),
            },
        })
    }

    /// Nothing stands here.
    pub fn clear(&self) {
        self.number.store(0, Ordering::Release);
    }
}
