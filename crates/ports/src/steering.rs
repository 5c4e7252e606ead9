//! What a service does with the XDP program that steers frames of an interface to it. All other frames stay with the
//! kernel. [`crate::attachment`] attaches the program, which may be another process.

pub use crate::attachment::SteerMode;
use crate::attachment::{Attachment, Description, PLACES, Parts};
use crate::forward::{Forwarding, Splice, connection, gone};
use crate::keys::{FlowKey, FlowKey6, Key};
use crate::listening::{Listening, monotonic};
use crate::object::{LoadError, Maps};
use crate::peer_filter::removed;
pub use crate::steer_error::SteerError;
use crate::steer_error::explain;
use crate::strays::Strays;
use crate::xsk::XskPort;
use crate::xsk_socket::XskSocket;
use aya::maps::{Array, HashMap, MapData, MapError, PerCpuArray};
use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::time::Duration;

/// Indices of the map `stats`.
const STEERED: u32 = 0;
const PASSED: u32 = 1;
const TAKEN: u32 = 2;
const STALE: u32 = 3;
const FULL: u32 = 4;
const STRAY: u32 = 5;
const LOST: u32 = 6;
const LIMITED: u32 = 7;
/// Values of the maps `flows` and `flows6`.
const ACTIVE: u32 = 1;
const PASSIVE: u32 = 2;
/// In a value of the map `settings`, beside the VLAN's number.
const ALL_TCP: u32 = 1 << 31;

/// Which segments of a connection are ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segments {
    /// All of them. Our side has sent the first SYN.
    All,
    /// All but first SYNs, which the kernel shows to its listening sockets.
    ButFirstSyns,
}

/// Counted since the program was attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SteerStats {
    /// Frames steered to us, whether or not a socket was bound to their queue, and those that the kernel has sent on.
    pub steered: u64,
    /// Frames passed to the kernel.
    pub passed: u64,
    /// SYNs taken from listening sockets.
    pub taken: u64,
    /// SYNs left to listening sockets, because this service did not run.
    pub passed_stale: u64,
    /// SYNs left to listening sockets, because too many were waiting.
    pub passed_full: u64,
    /// SYNs to listening sockets that are flooded, which were dropped before this service had any work with them.
    pub limited: u64,
    /// Steered frames of queues without a socket, for [`Steering::strays`].
    pub stray: u64,
    /// Steered frames that were dropped, because nobody reads those.
    pub lost: u64,
}

/// The steering program, for the process that serves. It may be on several interfaces, which have the same tables.
pub struct Steering {
    /// `None`: another process has it.
    attachment: Option<Attachment>,
    interface: String,
    index: u32,
    mode: SteerMode,
    program_ids: [u32; 2],
    flows: HashMap<MapData, FlowKey, u32>,
    flows6: HashMap<MapData, FlowKey6, u32>,
    forwarding: Forwarding,
    half_open: HashMap<MapData, FlowKey, u64>,
    half_open6: HashMap<MapData, FlowKey6, u64>,
    listening: Listening,
    strays: Strays,
    /// The host's addresses, as the program that takes SYNs before the kernel's firewall knows them.
    addresses: HashMap<MapData, [u8; 16], u32>,
    known: HashSet<IpAddr>,
    /// The last change has failed: not all of `known` is there.
    unsure: bool,
    settings: Array<MapData, u32>,
    /// By the interfaces' places; 0: untagged frames.
    vlans: [u16; PLACES as usize],
    stats: PerCpuArray<MapData, u64>,
}

impl Steering {
    /// Attaches the program to an interface of the thread's network namespace, in the driver if possible, else generic.
    /// All frames pass to the kernel until flows are added. Dropping this value detaches it, as the end of the process
    /// does.
    pub fn attach(interface: &str) -> Result<Self, SteerError> {
        let attachment = Attachment::attach(interface)?;
        let (steering, _) = Self::over(interface, attachment.parts()?)?;
        Ok(steering.with(attachment))
    }

    /// Uses the program that is attached to an interface, the first one. Returns the sockets of its queues, too.
    pub fn over(interface: &str, parts: Parts) -> Result<(Self, Vec<XskSocket>), SteerError> {
        let Parts { description, filter, maps, sockets } = parts;
        let add = |mut steering: Self| {
            steering.add(description);
            (steering, sockets)
        };
        let mut maps = Maps::of(maps).map_err(|error| explain(interface, "opening the maps", &error))?;
        let missing = |error| match error {
            LoadError::Refused(error) => explain(interface, "opening the maps", &*error),
            LoadError::Missing => explain(interface, "opening the maps", &io::Error::other("a map is missing")),
        };
        let open = || {
            let strays = maps.take("strays")?;
            Ok(Self {
                attachment: None,
                interface: interface.into(),
                index: description.index,
                mode: description.mode,
                program_ids: description.programs,
                flows: maps.take("flows")?,
                flows6: maps.take("flows6")?,
                forwarding: Forwarding::over(&mut maps)?,
                half_open: maps.take("half_open")?,
                half_open6: maps.take("half_open6")?,
                settings: maps.take("settings")?,
                stats: maps.take("stats")?,
                listening: Listening::over(filter, &mut maps)?,
                strays: Strays::new(strays),
                addresses: maps.take("addresses")?,
                known: HashSet::new(),
                unsure: false,
                vlans: [0; PLACES as usize],
            })
        };
        open().map_err(missing).map(add)
    }

    /// One more interface with the same tables, or one that was made anew.
    pub fn add(&mut self, interface: Description) {
        self.strays.expect(interface.place, interface.checksum());
    }

    /// Keeps the program attached as long as this value is there.
    #[must_use]
    pub fn with(mut self, attachment: Attachment) -> Self {
        self.attachment = Some(attachment);
        self
    }

    /// What keeps the program attached, if it is this process.
    pub fn attachment(&mut self) -> Option<&mut Attachment> {
        self.attachment.as_mut()
    }

    /// Where the program runs on the first interface.
    pub fn mode(&self) -> SteerMode {
        self.mode
    }

    /// The first interface's name.
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// Delivers steered frames of a queue to a port. The binding ends with the port; [`Steering::strays`] has the frames
    /// then. When the port that was bound last has gone, no SYNs are taken from listening sockets. Only the process that
    /// has attached the program can do so.
    pub fn bind(&mut self, queue: u32, port: &XskPort) -> Result<(), SteerError> {
        let not_here = || explain(&self.interface, "binding a socket", &io::Error::other("it is attached elsewhere"));
        self.attachment.as_mut().ok_or_else(not_here)?.bind(queue, port.as_fd())
    }

    /// Frames of queues to which no port is bound.
    pub fn strays(&mut self) -> &mut Strays {
        &mut self.strays
    }

    /// The ids of both programs, one of which is attached, and the first interface's index.
    pub fn ids(&self) -> ([u32; 2], u32) {
        (self.program_ids, self.index)
    }

    /// The filter for listening sockets.
    pub fn listening(&mut self) -> &mut Listening {
        &mut self.listening
    }

    /// Steers only frames with this IEEE 802.1Q tag of the interface at this place, or only untagged ones. All others pass
    /// to the kernel.
    pub fn set_vlan(&mut self, place: u32, vlan: Option<u16>) -> Result<(), SteerError> {
        let number = vlan.unwrap_or(0);
        let result = self.settings.set(place, u32::from(number), 0);
        if let Some(vlan) = self.vlans.get_mut(place as usize) {
            *vlan = number;
        }
        result.map_err(|e| explain(&self.interface, "choosing a VLAN", &e))
    }

    /// Takes first SYNs from listening sockets if they came over the device with this index. It is the interface at this place,
    /// or the kernel's device for the VLAN. `None`: the kernel has none, so all TCP of the VLAN is steered to us.
    pub fn serve(&mut self, place: u32, device: Option<u32>) -> Result<(), SteerError> {
        let all = if device.is_none() { ALL_TCP } else { 0 };
        let vlan = self.vlans.get(place as usize).copied().unwrap_or(0);
        let set = self.settings.set(place, u32::from(vlan) | all, 0);
        let result = set.and_then(|()| self.listening.serve(place, device));
        result.map_err(|e| explain(&self.interface, "choosing the device of listeners", &e))
    }

    /// The host has these addresses. SYNs to others pass the kernel's firewall in any case.
    pub fn set_addresses(&mut self, addresses: &HashSet<IpAddr>) -> Result<(), SteerError> {
        let words = |address: &IpAddr| match address {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        };
        let Self { addresses: table, known, unsure, .. } = self;
        if !*unsure && known == addresses {
            return Ok(());
        }
        let mut change = || {
            for gone in known.difference(addresses) {
                removed(table.remove(&words(gone)))?;
            }
            let mut new = addresses.iter().filter(|address| *unsure || !known.contains(address));
            new.try_for_each(|new| table.insert(words(new), 1, 0).map_err(io::Error::other))
        };
        let result = change();
        match &result {
            Ok(()) => known.clone_from(addresses),
            // Any of both may be there now.
            Err(_) => known.extend(addresses),
        }
        *unsure = result.is_err();
        result.map_err(|e| explain(&self.interface, "telling the host's addresses", &e))
    }

    /// Adds, changes or (`None`) removes one connection. Doing so twice is no error.
    pub fn steer_flow(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
        ours: Option<Segments>,
    ) -> Result<(), SteerError> {
        let result = match Key::of(local, remote) {
            Key::V4(key) => change(&mut self.flows, &key, ours),
            Key::V6(key) => change(&mut self.flows6, &key, ours),
        };
        result.map_err(|e| explain(&self.interface, "steering a connection", &e))
    }

    /// Steers all segments but first SYNs of a connection that may come to be within this time. When there are too many,
    /// the oldest are forgotten.
    pub fn steer_half_open(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
        within: Duration,
    ) -> Result<(), SteerError> {
        let until = (monotonic() + within).as_nanos() as u64;
        let result = match Key::of(local, remote) {
            Key::V4(key) => self.half_open.insert(key, until, 0),
            Key::V6(key) => self.half_open6.insert(key, until, 0),
        };
        result.map_err(|e| explain(&self.interface, "steering a half-open connection", &e))
    }

    /// [`Steering::steer_half_open`] for a connection whose first SYN is answered with a cookie. The program does that itself for the
    /// SYNs that it takes from now on, and takes no more of them than are worth an answer ([`Listening::limit`]).
    pub fn steer_answer_to_cookie(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
        within: Duration,
    ) -> Result<(), SteerError> {
        if self.listening.answers_with_cookie(&Key::of(local, remote)) {
            return Ok(());
        }
        self.steer_half_open(local, remote, within)
    }

    /// Has the kernel send on what comes from the peer of a steered connection. It does so where packet sockets receive. Segments that
    /// begin or end a connection are ours all the same.
    pub fn forward(&mut self, local: SocketAddr, remote: SocketAddr, splice: &Splice) -> Result<(), SteerError> {
        let Some(connection) = connection(local, remote) else { return Ok(()) };
        let Self { forwarding, flows, flows6, .. } = self;
        let result = match Key::of(local, remote) {
            Key::V4(key) => forwarding.begin(flows, (&key, &connection), splice),
            Key::V6(key) => forwarding.begin(flows6, (&key, &connection), splice),
        };
        result.map_err(|e| explain(&self.interface, "splicing a connection", &e))
    }

    /// From now on all is ours again. Returns the element as it was at last.
    pub fn end_forwarding(&mut self, local: SocketAddr, remote: SocketAddr) -> Result<Option<Splice>, SteerError> {
        let Some(connection) = connection(local, remote) else { return Ok(None) };
        let Self { forwarding, flows, flows6, .. } = self;
        let result = match Key::of(local, remote) {
            Key::V4(key) => forwarding.end(flows, (&key, &connection)),
            Key::V6(key) => forwarding.end(flows6, (&key, &connection)),
        };
        result.map_err(|e| explain(&self.interface, "ending a splice", &e))
    }

    /// The element of such a connection, with what the kernel has counted.
    pub fn forwarded(&self, local: SocketAddr, remote: SocketAddr) -> Option<Splice> {
        self.forwarding.get(&connection(local, remote)?)
    }

    /// The program's counters.
    pub fn stats(&self) -> Result<SteerStats, SteerError> {
        let sum = |index| self.stats.get(&index, 0).map(|cpus| cpus.iter().sum());
        let read = || {
            Ok(SteerStats {
                steered: sum(STEERED)?,
                passed: sum(PASSED)?,
                taken: sum(TAKEN)?,
                passed_stale: sum(STALE)?,
                passed_full: sum(FULL)?,
                limited: sum(LIMITED)?,
                stray: sum(STRAY)?,
                lost: sum(LOST)?,
            })
        };
        read().map_err(|e: MapError| explain(&self.interface, "reading the counters", &e))
    }
}

impl std::fmt::Debug for Steering {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Steering").field("interface", &self.interface).field("mode", &self.mode).finish_non_exhaustive()
    }
}

fn change<K: aya::Pod>(map: &mut HashMap<MapData, K, u32>, key: &K, ours: Option<Segments>) -> Result<(), MapError> {
    match ours {
        Some(Segments::All) => map.insert(key, ACTIVE, 0),
        Some(Segments::ButFirstSyns) => map.insert(key, PASSIVE, 0),
        None => gone(map.remove(key)),
    }
}
