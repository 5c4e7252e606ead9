//! How fields are stored in messages: numbers in the machine's byte order, lists and texts after their length. A field
//! that cannot be loaded is `None`.

use crate::chunks::RecordChunk;
use crate::file_id::FileId;
use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use towpath_runtime::named_counts::NamedCounts;
use towpath_runtime::policy::Limit;
use towpath_runtime::sampler::Achieved;
use towpath_runtime::status::{
    EndedStatus, FlowGroupStatus, Halves, PortStatus, SpreadStatus, Tally, TcpStatus, WorkerStatus,
};
use towpath_runtime::{ClientId, ClientStatus, SocketStatus, Status, Verdict};

/// Most elements of a list, and most bytes of a text.
const LONGEST: usize = 1 << 20;

/// A type that can be stored in a message.
pub trait Codec: Sized {
    /// Appends the value.
    fn store(&self, to: &mut Vec<u8>);
    /// Takes a value from the front.
    fn load(from: &mut &[u8]) -> Option<Self>;
}

macro_rules! numbers {
    ($($type:ty),*) => { $(impl Codec for $type {
        fn store(&self, to: &mut Vec<u8>) {
            to.extend_from_slice(&self.to_ne_bytes());
        }
        fn load(from: &mut &[u8]) -> Option<Self> {
            Some(Self::from_ne_bytes(*from.split_off(..size_of::<Self>())?.as_array()?))
        }
    })* };
}
numbers!(u8, u16, u32, u64, u128, i32, i64);

impl Codec for bool {
    fn store(&self, to: &mut Vec<u8>) {
        u8::from(*self).store(to);
    }
    fn load(from: &mut &[u8]) -> Option<Self> {
        Some(u8::load(from)? != 0)
    }
}

impl Codec for usize {
    fn store(&self, to: &mut Vec<u8>) {
        (*self as u64).store(to);
    }
    fn load(from: &mut &[u8]) -> Option<Self> {
        u64::load(from)?.try_into().ok()
    }
}

impl<T: Codec> Codec for Vec<T> {
    fn store(&self, to: &mut Vec<u8>) {
        (self.len() as u32).store(to);
        self.iter().for_each(|one| one.store(to));
    }
    fn load(from: &mut &[u8]) -> Option<Self> {
        let length = u32::load(from)? as usize;
        // No element is shorter than a byte, so a false length allocates nothing.
        (length <= LONGEST.min(from.len())).then_some(())?;
        (0..length).map(|_| T::load(from)).collect()
    }
}

impl Codec for String {
    fn store(&self, to: &mut Vec<u8>) {
        (self.len() as u32).store(to);
        to.extend_from_slice(self.as_bytes());
    }
    fn load(from: &mut &[u8]) -> Option<Self> {
        let length = u32::load(from)? as usize;
        let bytes = from.split_off(..length)?;
        Some(String::from_utf8_lossy(bytes).into_owned())
    }
}

impl<T: Codec> Codec for Option<T> {
    fn store(&self, to: &mut Vec<u8>) {
        self.is_some().store(to);
        self.iter().for_each(|one| one.store(to));
    }
    fn load(from: &mut &[u8]) -> Option<Self> {
        Some(if bool::load(from)? { Some(T::load(from)?) } else { None })
    }
}

impl Codec for SocketAddr {
    fn store(&self, to: &mut Vec<u8>) {
        match self.ip() {
            IpAddr::V4(ip) => (4u8.store(to), u32::from(ip).store(to)),
            IpAddr::V6(ip) => (6u8.store(to), u128::from(ip).store(to)),
        };
        self.port().store(to);
    }
    fn load(from: &mut &[u8]) -> Option<Self> {
        let ip = match u8::load(from)? {
            4 => IpAddr::V4(u32::load(from)?.into()),
            6 => IpAddr::V6(u128::load(from)?.into()),
            _ => return None,
        };
        Some(SocketAddr::new(ip, u16::load(from)?))
    }
}

impl Codec for ClientId {
    fn store(&self, to: &mut Vec<u8>) {
        self.0.store(to);
    }
    fn load(from: &mut &[u8]) -> Option<Self> {
        u32::load(from).map(ClientId)
    }
}

/// A name of a counter or a state. There are few and each is leaked once. A guest that invents more gets no further
/// names.
impl Codec for &'static str {
    fn store(&self, to: &mut Vec<u8>) {
        (self.len() as u32).store(to);
        to.extend_from_slice(self.as_bytes());
    }
    fn load(from: &mut &[u8]) -> Option<Self> {
        static NAMES: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());
        let name = String::load(from)?;
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

/// A name, too.
impl Codec for Cow<'static, str> {
    fn store(&self, to: &mut Vec<u8>) {
        (self.len() as u32).store(to);
        to.extend_from_slice(self.as_bytes());
    }
    fn load(from: &mut &[u8]) -> Option<Self> {
        <&'static str>::load(from).map(Self::Borrowed)
    }
}

impl Codec for (&'static str, u64) {
    fn store(&self, to: &mut Vec<u8>) {
        self.0.store(to);
        self.1.store(to);
    }
    fn load(from: &mut &[u8]) -> Option<Self> {
        Some((Codec::load(from)?, Codec::load(from)?))
    }
}

impl Codec for NamedCounts {
    fn store(&self, to: &mut Vec<u8>) {
        (self.iter().count() as u32).store(to);
        for (name, count) in self.iter() {
            (name.len() as u32).store(to);
            to.extend_from_slice(name.as_bytes());
            count.store(to);
        }
    }
    fn load(from: &mut &[u8]) -> Option<Self> {
        Vec::<(&'static str, u64)>::load(from).map(|counts| counts.into_iter().collect())
    }
}

impl Codec for (u32, SocketAddr) {
    fn store(&self, to: &mut Vec<u8>) {
        self.0.store(to);
        self.1.store(to);
    }
    fn load(from: &mut &[u8]) -> Option<Self> {
        Some((Codec::load(from)?, Codec::load(from)?))
    }
}

impl Codec for Verdict {
    fn store(&self, to: &mut Vec<u8>) {
        let (kind, value) = match *self {
            Self::Allow(congestion) => (0u8, i32::from(congestion)),
            Self::Refuse(errno) => (1, errno),
            Self::Drop => (2, 0),
            Self::Kernel => (3, 0),
            Self::Stack(number) => (4, i32::from(number)),
        };
        kind.store(to);
        value.store(to);
    }
    fn load(from: &mut &[u8]) -> Option<Self> {
        let (kind, value) = (u8::load(from)?, i32::load(from)?);
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
    ($($type:ident { $($field:ident),* $(,)? })*) => { $(impl Codec for $type {
        fn store(&self, to: &mut Vec<u8>) {
            $(self.$field.store(to);)*
        }
        fn load(from: &mut &[u8]) -> Option<Self> {
            Some(Self { $($field: Codec::load(from)?),* })
        }
    })* };
}
structs! {
    FileId { path, inode, size, modified_s, modified_ns }
    RecordChunk { index, slot, closing, fin, last, bytes }
    Limit { id, number, weight, rate, connections, new_per_s }
    Achieved { bytes, samples, logarithms }
}

towpath_runtime::each_status_struct!(structs);

impl Codec for Status {
    fn store(&self, to: &mut Vec<u8>) {
        self.flow_groups.store(to);
        self.workers.store(to);
        self.slow.store(to);
        self.panics.store(to);
        self.not_ours.iter().for_each(|count| count.store(to));
        self.clients.store(to);
    }
    fn load(from: &mut &[u8]) -> Option<Self> {
        let (flow_groups, workers) = (Codec::load(from)?, Codec::load(from)?);
        let (slow, panics) = (Codec::load(from)?, Codec::load(from)?);
        let mut status = Self { flow_groups, workers, slow, panics, ..Self::default() };
        for count in &mut status.not_ours {
            *count = Codec::load(from)?;
        }
        status.clients = Codec::load(from)?;
        Some(status)
    }
}
