//! How things stand in the messages between the host and the card: numbers in the machine's byte order, lists and texts with their
//! length before them. What cannot be read is `None`.

use crate::named::Named;
use crate::pieces::Piece;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use towpath_stack::guard::Limit;
use towpath_stack::sampler::Achieved;
use towpath_stack::status::{CoreStatus, PortStatus, Tally, TcpStatus, ThreadStatus};
use towpath_stack::{ClientId, ClientStatus, Connection, Status, Verdict};

/// Most elements of a list, and bytes of a text.
const LONGEST: usize = 1 << 20;

/// Something that stands in a message.
pub trait Part: Sized {
    /// Appends it.
    fn put(&self, to: &mut Vec<u8>);
    /// Takes it from the front.
    fn get(from: &mut &[u8]) -> Option<Self>;
}

macro_rules! numbers {
    ($($type:ty),*) => { $(impl Part for $type {
        fn put(&self, to: &mut Vec<u8>) {
            to.extend_from_slice(&self.to_ne_bytes());
        }
        fn get(from: &mut &[u8]) -> Option<Self> {
            Some(Self::from_ne_bytes(*from.split_off(..size_of::<Self>())?.as_array()?))
        }
    })* };
}
numbers!(u8, u16, u32, u64, u128, i32, i64);

impl Part for bool {
    fn put(&self, to: &mut Vec<u8>) {
        u8::from(*self).put(to);
    }
    fn get(from: &mut &[u8]) -> Option<Self> {
        Some(u8::get(from)? != 0)
    }
}

impl Part for usize {
    fn put(&self, to: &mut Vec<u8>) {
        (*self as u64).put(to);
    }
    fn get(from: &mut &[u8]) -> Option<Self> {
        u64::get(from)?.try_into().ok()
    }
}

impl<T: Part> Part for Vec<T> {
    fn put(&self, to: &mut Vec<u8>) {
        (self.len() as u32).put(to);
        self.iter().for_each(|one| one.put(to));
    }
    fn get(from: &mut &[u8]) -> Option<Self> {
        let length = u32::get(from)? as usize;
        // Nothing is shorter than a byte, so a length that is a lie allocates nothing.
        (length <= LONGEST.min(from.len())).then_some(())?;
        (0..length).map(|_| T::get(from)).collect()
    }
}

impl Part for String {
    fn put(&self, to: &mut Vec<u8>) {
        (self.len() as u32).put(to);
        to.extend_from_slice(self.as_bytes());
    }
    fn get(from: &mut &[u8]) -> Option<Self> {
        let length = u32::get(from)? as usize;
        let bytes = from.split_off(..length)?;
        Some(String::from_utf8_lossy(bytes).into_owned())
    }
}

impl<T: Part> Part for Option<T> {
    fn put(&self, to: &mut Vec<u8>) {
        self.is_some().put(to);
        self.iter().for_each(|one| one.put(to));
    }
    fn get(from: &mut &[u8]) -> Option<Self> {
        Some(if bool::get(from)? { Some(T::get(from)?) } else { None })
    }
}

impl Part for SocketAddr {
    fn put(&self, to: &mut Vec<u8>) {
        match self.ip() {
            IpAddr::V4(ip) => (4u8.put(to), u32::from(ip).put(to)),
            IpAddr::V6(ip) => (6u8.put(to), u128::from(ip).put(to)),
        };
        self.port().put(to);
    }
    fn get(from: &mut &[u8]) -> Option<Self> {
        let ip = match u8::get(from)? {
            4 => IpAddr::V4(u32::get(from)?.into()),
            6 => IpAddr::V6(u128::get(from)?.into()),
            _ => return None,
        };
        Some(SocketAddr::new(ip, u16::get(from)?))
    }
}

impl Part for ClientId {
    fn put(&self, to: &mut Vec<u8>) {
        self.0.put(to);
    }
    fn get(from: &mut &[u8]) -> Option<Self> {
        u32::get(from).map(ClientId)
    }
}

/// A name of a counter or a state. There are few, and they live for ever, so each is kept once; a card that makes up more than this is
/// told no more names.
impl Part for &'static str {
    fn put(&self, to: &mut Vec<u8>) {
        (self.len() as u32).put(to);
        to.extend_from_slice(self.as_bytes());
    }
    fn get(from: &mut &[u8]) -> Option<Self> {
        static NAMES: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());
        let name = String::get(from)?;
        let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = names.iter().find(|known| **known == name) {
            return Some(known);
        }
        let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || "-_ ".contains(c));
        if names.len() >= 256 || name.len() > 32 || !plain {
            return Some("?");
        }
        let name: &'static str = name.leak();
        names.push(name);
        Some(name)
    }
}

impl Part for (&'static str, u64) {
    fn put(&self, to: &mut Vec<u8>) {
        self.0.put(to);
        self.1.put(to);
    }
    fn get(from: &mut &[u8]) -> Option<Self> {
        Some((Part::get(from)?, Part::get(from)?))
    }
}

impl Part for (u32, SocketAddr) {
    fn put(&self, to: &mut Vec<u8>) {
        self.0.put(to);
        self.1.put(to);
    }
    fn get(from: &mut &[u8]) -> Option<Self> {
        Some((Part::get(from)?, Part::get(from)?))
    }
}

impl Part for Verdict {
    fn put(&self, to: &mut Vec<u8>) {
        let (kind, value) = match *self {
            Self::Allow(congestion) => (0u8, i32::from(congestion)),
            Self::Refuse(errno) => (1, errno),
            Self::Drop => (2, 0),
            Self::Kernel => (3, 0),
            Self::Stack(number) => (4, i32::from(number)),
        };
        kind.put(to);
        value.put(to);
    }
    fn get(from: &mut &[u8]) -> Option<Self> {
        let (kind, value) = (u8::get(from)?, i32::get(from)?);
        Some(match kind {
            0 => Self::Allow(u8::try_from(value).ok()?),
            1 => Self::Refuse(value),
            2 => Self::Drop,
            3 => Self::Kernel,
            4 => Self::Stack(u8::try_from(value).ok()?),
            _ => return None,
        })
    }
}

macro_rules! structs {
    ($($type:ident { $($field:ident),* $(,)? })*) => { $(impl Part for $type {
        fn put(&self, to: &mut Vec<u8>) {
            $(self.$field.put(to);)*
        }
        fn get(from: &mut &[u8]) -> Option<Self> {
            Some(Self { $($field: Part::get(from)?),* })
        }
    })* };
}
structs! {
    Named { path, inode, size, modified_s, modified_ns }
    Piece { place, slot, closing, fin, last, bytes }
    Limit { id, number, weight, rate, connections, new_per_s }
    Connection { local, remote, state, client, slot, uid, pid, program, tcp, tx_queue, rx_queue, core, direct }
    TcpStatus {
        srtt_us, rttvar_us, mss, cwnd, ssthresh, snd_wnd, unacked, bytes_received, bytes_acked, segs_in, segs_out, retrans, backoff,
        probes, timestamps, wscale, sack, ecn, recovery,
    }
    Tally { stages, drops, retransmits, timeouts, opened, failed, resets, lies }
    PortStatus { rx_frames, tx_frames, rx_dropped, tx_dropped }
    CoreStatus { tally, turns, busy_us, idle_us, sleeps, full, achieved, flows, ports }
    Achieved { bytes, samples, logarithms }
    ThreadStatus { groups, turns, busy_us, idle_us, sleeps }
    ClientStatus { id, uid, pid, name, slots, lies, leaving }
}

impl Part for Status {
    fn put(&self, to: &mut Vec<u8>) {
        self.cores.put(to);
        self.threads.put(to);
        self.slow.put(to);
        self.panics.put(to);
        self.not_ours.iter().for_each(|count| count.put(to));
        self.clients.put(to);
    }
    fn get(from: &mut &[u8]) -> Option<Self> {
        let (cores, threads) = (Part::get(from)?, Part::get(from)?);
        let (slow, panics) = (Part::get(from)?, Part::get(from)?);
        let mut status = Self { cores, threads, slow, panics, ..Self::default() };
        for count in &mut status.not_ours {
            *count = Part::get(from)?;
        }
        status.clients = Part::get(from)?;
        Some(status)
    }
}
