//! SYNs taken from listening sockets of the kernel.
//!
//! The kernel judges a SYN by its own rules and chooses the socket that gets it. A filter on that socket takes the SYN if it
//! came over the served interface. While this service is dead, stuck or too slow, the filter leaves SYNs to the kernel.
//! [`crate::peer_filter`] has the rules about those that it leaves.

use crate::keys::{FlowKey, FlowKey6, Key};
use crate::mapping::Mapping;
use crate::object::{LoadError, Maps, OBJECT, load_filter};
use crate::peer_filter::{PeerFilter, removed};
use crate::syn::Syn;
use aya::maps::{Array, HashMap, MapData, MapError, RingBuf};
use aya::{Ebpf, EbpfLoader};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// How often the filter is told that this service lives. It waits for three seconds.
const BEAT_EVERY: Duration = Duration::from_millis(500);

/// A listening socket is flooded when so many SYN cookies are sent for it in a second: a backlog that is full alone is not.
const FLOODED: u32 = 5000;
const SECOND: Duration = Duration::from_secs(1);

/// It is not flooded any more when so many were not sent in any second for so long.
const CALM_AFTER: Duration = Duration::from_secs(10);

/// Nobody repeats a SYN as early as that (RFC 6298 §2: after a second).
const BEFORE_REPETITION: Duration = Duration::from_millis(150);

/// `CALM` of the program.
const CALM: u64 = 1;
/// Changes an element only if it is there.
const BPF_EXIST: u64 = 2;

/// For so long the kernel answers repetitions of a SYN that it has. The program has the same number.
const KERNELS_HANDSHAKE: Duration = Duration::from_secs(64);

/// The filter, and the SYNs that it has taken.
pub struct Listening {
    program: OwnedFd,
    accelerated: HashMap<MapData, u64, u64>,
    /// The sockets for which SYN cookies were sent lately, by their own cookie.
    answered: BTreeMap<u64, Cookies>,
    /// The SYN that was read last: its connection, its socket, and whether the filter has steered what follows.
    last: Option<(Key, u64, bool)>,
    served: HashMap<MapData, u32, u32>,
    /// The devices in `served`, by the places of their interfaces.
    devices: Vec<Option<u32>>,
    syns: RingBuf<MapData>,
    /// The tuples whose SYNs the kernel has answered, and until when their repetitions are the kernel's, too.
    kernels: HashMap<MapData, FlowKey, u64>,
    kernels6: HashMap<MapData, FlowKey6, u64>,
    heartbeat: Array<MapData, u64>,
    beaten: Option<Duration>,
    peers: PeerFilter,
}

/// Maps of the object that are not used where no interface is served.
const OF_AN_INTERFACE: [&str; 11] = [
    "flows",
    "flows6",
    "half_open",
    "half_open6",
    "kernels",
    "kernels6",
    "seen",
    "seen6",
    "dropped",
    "addresses",
    "splices",
];

/// The SYN cookies that were sent for a listening socket.
struct Cookies {
    /// Since when `sent` counts.
    since: Duration,
    sent: u32,
    /// When there were last [`FLOODED`] of them in a second, or the first.
    at_rate: Duration,
    /// The filter knows that it is flooded.
    limited: bool,
}

impl Cookies {
    fn new(now: Duration) -> Self {
        Self { since: now, sent: 0, at_rate: now, limited: false }
    }
    /// One more. True: there are too many in this second.
    fn count(&mut self, now: Duration) -> bool {
        if now.saturating_sub(self.since) >= SECOND {
            (self.since, self.sent) = (now, 0);
        }
        self.sent = self.sent.saturating_add(1);
        let flooded = self.sent >= FLOODED;
        if flooded {
            self.at_rate = now;
        }
        flooded
    }
}

impl Listening {
    /// Of a filter that is loaded, and its maps.
    pub(crate) fn over(filter: OwnedFd, maps: &mut Maps) -> Result<Self, LoadError> {
        Ok(Self {
            program: filter,
            accelerated: maps.take("accelerated")?,
            answered: BTreeMap::new(),
            last: None,
            served: maps.take("served")?,
            devices: Vec::new(),
            syns: maps.take("syns")?,
            kernels: maps.take("kernels")?,
            kernels6: maps.take("kernels6")?,
            heartbeat: maps.take("heartbeat")?,
            beaten: None,
            peers: PeerFilter::over(maps)?,
        })
    }

    /// The filter alone, where no interface is served: no SYN is taken.
    pub fn alone() -> io::Result<Self> {
        let mut loader = EbpfLoader::new();
        loader.btf(None);
        for name in OF_AN_INTERFACE {
            loader.map_max_entries(name, 1);
        }
        for queue in ["syns", "strays"] {
            loader.map_max_entries(queue, rustix::param::page_size() as u32);
        }
        let mut object = loader.load(OBJECT).map_err(io::Error::other)?;
        let load = |object: &mut Ebpf| {
            let (filter, _) = load_filter(object)?;
            Self::over(filter, &mut Maps::of_object(object)?)
        };
        load(&mut object).map_err(|error| match error {
            LoadError::Refused(error) => io::Error::other(error.to_string()),
            LoadError::Missing => io::Error::other("the object lacks the filter or one of its maps"),
        })
    }

    /// Takes SYNs that come over the device with this index, and over no other of the interface at this place.
    pub(crate) fn serve(&mut self, place: u32, device: Option<u32>) -> Result<(), MapError> {
        let place = place as usize;
        if self.devices.len() <= place {
            self.devices.resize(place + 1, None);
        }
        if self.devices[place] == device {
            return Ok(());
        }
        if let Some(old) = self.devices[place].take().filter(|old| !self.devices.contains(&Some(*old))) {
            self.served.remove(&old)?;
        }
        if let Some(new) = device {
            self.served.insert(new, 1, 0)?;
        }
        self.devices[place] = device;
        Ok(())
    }

    /// The filter, to be attached to listening sockets (`SO_ATTACH_BPF`). It stays there until the socket is closed, or its
    /// owner removes it. It leaves all SYNs to the kernel but those of the sockets that [`Listening::take`] names.
    pub fn filter(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }

    /// Takes the SYNs of the listening socket with this cookie (`on`), or no longer.
    pub fn take(&mut self, cookie: u64, on: bool) -> io::Result<()> {
        self.answered.remove(&cookie);
        if on {
            return self.accelerated.insert(cookie, CALM, 0).map_err(io::Error::other);
        }
        removed(self.accelerated.remove(&cookie))
    }

    /// The socket with this cookie is flooded: from this time on (`CLOCK_MONOTONIC`) the filter takes 3,000 of its SYNs at once
    /// and 10,000 in each second after that, and drops the others. That costs those who are connected least. SYNs that peers repeat go before
    /// new ones. Segments that follow a SYN are steered to us as it is taken.
    pub fn limit(&mut self, cookie: u64, from: Duration) -> io::Result<()> {
        self.accelerated.insert(cookie, from.as_nanos() as u64, BPF_EXIST).map_err(io::Error::other)
    }

    /// The SYN that was read last is answered with a SYN cookie. Is its socket flooded now? True: what follows is steered already.
    pub(crate) fn answers_with_cookie(&mut self, key: &Key) -> bool {
        let Some((_, cookie, steered)) = self.last.as_ref().filter(|(last, ..)| last == key) else { return false };
        let (cookie, steered, now) = (*cookie, *steered, monotonic());
        let mut cookies = self.answered.remove(&cookie).unwrap_or_else(|| Cookies::new(now));
        if cookies.count(now) && !cookies.limited {
            // If not, it listens no more, or the next answer tries again.
            cookies.limited = self.limit(cookie, now).is_ok();
        }
        self.answered.insert(cookie, cookies);
        steered
    }

    /// The rules about peers whose SYNs are not taken.
    pub fn peers(&mut self) -> &mut PeerFilter {
        &mut self.peers
    }

    /// The next SYN, and the place of its interface. SYNs without a usable header are skipped. So are those that have waited
    /// for so long that the kernel has answered their repetition: it may have the connection by now. Those of a device that is
    /// not served any more are skipped, too.
    pub fn next_syn(&mut self) -> Option<(u32, Syn)> {
        loop {
            let record = self.syns.next()?;
            let syn = Syn::read(&record);
            drop(record);
            let Some(syn) = syn.filter(|syn| !self.is_the_kernels(syn)) else { continue };
            self.last = Some((syn.key(), syn.cookie, syn.steered));
            if let Some(place) = (0..).zip(&self.devices).find(|(_, device)| **device == Some(syn.interface)) {
                return Some((place.0, syn));
            }
        }
    }

    /// Leaves the repetitions of the first SYN between these ends to the kernel, for as long as the kernel repeats its
    /// answer.
    pub fn leave(&mut self, local: SocketAddr, remote: SocketAddr) -> Result<(), MapError> {
        let until = (monotonic() + KERNELS_HANDSHAKE).as_nanos() as u64;
        match Key::of(local, remote) {
            Key::V4(key) => self.kernels.insert(key, until, 0),
            Key::V6(key) => self.kernels6.insert(key, until, 0),
        }
    }

    fn is_the_kernels(&self, syn: &Syn) -> bool {
        if monotonic().saturating_sub(syn.taken) < BEFORE_REPETITION {
            return false;
        }
        let until = match syn.key() {
            Key::V4(key) => self.kernels.get(&key, 0),
            Key::V6(key) => self.kernels6.get(&key, 0),
        };
        until.is_ok_and(|until| (monotonic().as_nanos() as u64) < until)
    }

    /// The descriptor that becomes readable when a SYN waits.
    pub fn readable(&self) -> BorrowedFd<'_> {
        self.syns.as_fd()
    }

    /// Tells without a system call whether a SYN waits.
    pub fn waiting(&self) -> io::Result<WaitingSyns> {
        let (queue, page) = (self.syns.as_fd(), rustix::param::page_size());
        let word = |page_number: usize| Mapping::read_only(queue, page, (page_number * page) as libc::off_t);
        Ok(WaitingSyns { consumed: word(0)?, produced: word(1)? })
    }

    /// Tells the filter that this service lives. Call it at least once a second.
    pub fn beat(&mut self) {
        let now = monotonic();
        if self.beaten.is_some_and(|at| now - at < BEAT_EVERY) {
            return;
        }
        let Self { answered, accelerated, .. } = self;
        answered.retain(|cookie, cookies| {
            let over = now.saturating_sub(cookies.at_rate) > CALM_AFTER;
            // If it cannot be said, the socket listens no more.
            (over && cookies.limited).then(|| accelerated.insert(cookie, CALM, BPF_EXIST));
            !over
        });
        // It cannot fail. If it did, the kernel would have the SYNs, which is right.
        if self.heartbeat.set(0, now.as_nanos() as u64, 0).is_ok() {
            self.beaten = Some(now);
        }
    }
}

/// The positions of the queue of SYNs, which any thread may read: how far it was read, and how far it was written. Each
/// is the first word of a page.
pub struct WaitingSyns {
    consumed: Mapping,
    produced: Mapping,
}

// SAFETY: the mapped words are read only as atomics.
unsafe impl Sync for WaitingSyns {}

impl WaitingSyns {
    /// Does a SYN wait?
    #[inline]
    pub fn any(&self) -> bool {
        position(&self.consumed) != position(&self.produced)
    }
}

/// The position at the beginning of a page of the queue.
#[inline]
fn position(page: &Mapping) -> usize {
    // SAFETY: the page begins with an aligned word and is mapped as long as it is borrowed. All who write the word do it at once.
    let word = unsafe { page.start().cast::<AtomicUsize>().as_ref() };
    word.load(Ordering::Acquire)
}

/// The clock of the program (`bpf_ktime_get_ns`).
pub fn monotonic() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_flooded_by_a_rate_of_cookies_and_not_by_the_first() {
        let (mut cookies, begun) = (Cookies::new(SECOND), SECOND);
        // Half of the rate for a minute.
        for n in 0..60 * FLOODED / 2 {
            assert!(!cookies.count(begun + SECOND * n / (FLOODED / 2)));
        }
        let later = begun + 100 * SECOND;
        let flooded = (0..FLOODED).filter(|n| cookies.count(later + SECOND * *n / (2 * FLOODED))).count();
        assert_eq!((flooded, cookies.at_rate > later), (1, true), "the last of them");
        assert!(cookies.count(later + SECOND / 2) && !cookies.count(later + 2 * SECOND));
    }
}
