//! The steering program on an interface, and the sockets of its queues. To make them needs privilege; to use
//! them does not. So one process can hold them while another uses copies, and while that one is started again.

use crate::RxChecksum;
use crate::ingress::Ingress;
use crate::interface::Interface;
use crate::link::Link;
use crate::object::MAPS;
use crate::steer_error::{SteerError, explain};
pub use crate::tables::{PLACES, QUEUES, SteerMode, Tables};
use crate::xsk_socket::{Shape, XskConfig, XskError, XskSocket, receives_super_segments};
use aya::programs::links::FdLink;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// The kernel frees the place of a closed socket a moment later. All queues of an interface together have so long.
const LONGEST_CLOSE: Duration = Duration::from_secs(2);

/// The number of no interface.
pub const NOWHERE: u32 = 0;

/// How to attach to an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttachConfig {
    /// Frames carry an IEEE 802.1Q tag.
    pub tagged: bool,
    /// How frames leave the kernel. A driver that cannot run the program gets generic mode. `None`: packet sockets for a
    /// virtual device, if the kernel can do it and frames carry no tag, else the driver.
    pub mode: Option<SteerMode>,
    /// SYNs are taken before the kernel's firewall. The tables must be loaded for that.
    pub own: bool,
}

impl Default for AttachConfig {
    fn default() -> Self {
        Self { tagged: false, mode: Some(SteerMode::Driver), own: false }
    }
}

/// Why an interface could not be prepared.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// An AF_XDP socket.
    #[error(transparent)]
    Xsk(#[from] XskError),
    /// The steering program.
    #[error(transparent)]
    Steer(#[from] SteerError),
}

/// An interface, for the process that serves it: all that it needs beside descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Description {
    /// Its number.
    pub index: u32,
    /// Its place among those of the service.
    pub place: u32,
    /// How frames leave the kernel.
    pub mode: SteerMode,
    /// The numbers of the programs of which one is attached.
    pub programs: [u32; 2],
    /// How many queues have a socket, or will have one when the interface is back.
    pub queues: u32,
    /// Each queue has a socket for super-segments.
    pub super_segments: bool,
    /// SYNs are taken before the kernel's firewall.
    pub own: bool,
    shape: Shape,
}

impl Description {
    pub(crate) fn checksum(&self) -> RxChecksum {
        self.shape.checksum()
    }

    /// Why its frames come in this way. `wanted`: by configuration; `None`: it was chosen.
    pub fn reason(&self, wanted: Option<SteerMode>) -> &'static str {
        match (wanted, self.mode) {
            (Some(wanted), mode) if wanted == mode => "configured",
            (Some(_), _) => "its driver runs no XDP program",
            (None, SteerMode::Packet) => "a virtual device",
            (None, _) if self.shape.tagged => "a VLAN, which packet sockets cannot serve",
            (None, _) if self.shape.is_virtual => "this kernel has no tcx hook for packet sockets; Linux 6.6 has",
            (None, SteerMode::Driver) => "hardware",
            (None, SteerMode::Generic) => "hardware whose driver runs no XDP program",
        }
    }

    /// As a text for the process that serves.
    pub fn encode(&self) -> String {
        let Shape { frames, frame_bytes, ring, tagged, mtu_bytes, is_virtual, interface: _ } = self.shape;
        let (generic, packet) = (self.mode == SteerMode::Generic, self.mode == SteerMode::Packet);
        let flags = [generic, tagged, is_virtual, self.super_segments, packet, self.own];
        let flags = flags.iter().zip(0..).fold(0, |flags, (flag, bit)| flags | u32::from(*flag) << bit);
        let [first, second] = self.programs;
        let words = [self.index, self.place, flags, first, second, self.queues, frames, frame_bytes, ring, mtu_bytes];
        words.map(|word| word.to_string()).join(" ")
    }

    /// From such a text. `None`: it is none.
    pub fn decode(text: &str) -> Option<Self> {
        let words: Vec<u32> = text.split(' ').map(|word| word.parse().ok()).collect::<Option<_>>()?;
        let [index, place, flags, first, second, queues, frames, frame_bytes, ring, mtu_bytes] =
            words.try_into().ok()?;
        let [generic, tagged, is_virtual, super_segments, packet, own] =
            [1, 2, 4, 8, 16, 32].map(|bit| flags & bit != 0);
        let mode = match (generic, packet) {
            (false, false) => SteerMode::Driver,
            (true, false) => SteerMode::Generic,
            (false, true) => SteerMode::Packet,
            (true, true) => return None,
        };
        let shape = Shape { frames, frame_bytes, ring, tagged, mtu_bytes, is_virtual, interface: index };
        let is_known = place < PLACES && queues <= QUEUES;
        is_known.then_some(Self { index, place, mode, programs: [first, second], queues, super_segments, own, shape })
    }
}

/// An interface as a service uses it: its description, and its descriptors opened.
pub struct Parts {
    pub(crate) description: Description,
    pub(crate) filter: OwnedFd,
    pub(crate) maps: Vec<OwnedFd>,
    pub(crate) sockets: Vec<XskSocket>,
}

impl Parts {
    /// From what [`Attachment::descriptors`] gives. `None`: there are too few.
    pub fn of(description: Description, descriptors: Vec<OwnedFd>) -> Option<Self> {
        let mut all = descriptors.into_iter();
        let filter = all.next()?;
        let maps: Vec<OwnedFd> = all.by_ref().take(MAPS.len()).collect();
        let (mut sockets, by_packets) = (Vec::new(), description.mode == SteerMode::Packet);
        while let Some(socket) = all.next() {
            let both = [socket, all.next()?];
            let packets = if description.super_segments { Some(all.next()?) } else { None };
            sockets.push(XskSocket::of(both, packets, by_packets, description.shape, sockets.len() as u32));
        }
        (maps.len() == MAPS.len()).then_some(Self { description, filter, maps, sockets })
    }

    /// The sockets alone.
    pub fn into_sockets(self) -> Vec<XskSocket> {
        self.sockets
    }

    /// The interface.
    pub fn description(&self) -> Description {
        self.description
    }
}

/// The program on an interface, and its sockets. Dropping this value detaches the program, as the end of the process does.
pub struct Attachment {
    // Field order matters: the programs are detached before the sockets go, so that no frame is dropped.
    /// The link of the program that takes SYNs before the kernel's firewall, if one is to.
    own_link: Option<FdLink>,
    link: Option<FdLink>,
    tables: Tables,
    /// Which of the XDP programs is attached.
    attached: usize,
    /// Its place in the tables.
    place: u32,
    interface: Interface,
    /// The mode that was asked for.
    wanted: Option<SteerMode>,
    /// SYNs are to be taken before the kernel's firewall.
    own: bool,
    mode: SteerMode,
    config: XskConfig,
    queues: Vec<XskSocket>,
    /// How many there were when the interface went away.
    expected: usize,
    /// The interface that has been made anew, while not all of its queues have a socket.
    following: Option<Interface>,
}

impl Attachment {
    /// Attaches the program to an interface of the thread's network namespace, in the driver if possible, else generic.
    /// All frames pass to the kernel until flows are added.
    pub fn attach(interface: &str) -> Result<Self, SteerError> {
        Self::attach_at(&Tables::load(interface, false)?, 0, interface, AttachConfig::default())
    }

    fn attach_at(tables: &Tables, place: u32, interface: &str, how: AttachConfig) -> Result<Self, SteerError> {
        let found = Interface::find(interface).map_err(|e| explain(interface, "ioctl", &e))?;
        let found = found.ok_or_else(|| SteerError::NoInterface(interface.into()))?;
        let (link, mode) = attach(tables, 0, &found, how)?;
        let own_link = attach_own(tables, &found, how.own)?;
        tables.put(place, &found)?;
        let config = XskConfig { copy: mode != SteerMode::Driver, tagged: how.tagged, ..XskConfig::default() };
        let config = XskConfig { super_segments: takes_super_segments(&found, mode), ..config };
        let (tables, queues) = (tables.clone(), Vec::new());
        let (interface, link) = (found, Some(link));
        let (expected, following) = (0, None);
        Ok(Self {
            own_link,
            link,
            tables,
            attached: 0,
            place,
            interface,
            wanted: how.mode,
            own: how.own,
            mode,
            config,
            queues,
            expected,
            following,
        })
    }

    /// Attaches the program, and opens a socket for each of this many queues.
    pub fn open(interface: &str, config: AttachConfig, queues: usize) -> Result<Self, AttachError> {
        Self::open_at(&Tables::load(interface, config.own)?, 0, interface, config, queues)
    }

    /// [`Attachment::open`] for one of several interfaces that have the same tables, each at a place of its own.
    pub fn open_at(
        tables: &Tables,
        place: u32,
        interface: &str,
        config: AttachConfig,
        queues: usize,
    ) -> Result<Self, AttachError> {
        let mut attachment = Self::attach_at(tables, place, interface, config)?;
        for queue in 0..queues {
            attachment.add(XskSocket::open(interface, queue as u32, attachment.config)?)?;
        }
        attachment.receive_packets(&attachment.interface.clone())?;
        Ok(attachment)
    }

    /// On no interface yet: [`Attachment::follow`] attaches to one. It has a place, and will have so many sockets at most. `name`:
    /// in errors.
    pub fn waiting(tables: &Tables, place: u32, name: &str, how: AttachConfig, queues: usize) -> Self {
        let interface = Interface { name: name.into(), index: NOWHERE, mtu_bytes: 0, is_virtual: false };
        Self {
            own_link: None,
            link: None,
            tables: tables.clone(),
            attached: 0,
            place,
            interface,
            wanted: how.mode,
            own: how.own,
            mode: how.mode.unwrap_or(SteerMode::Driver),
            config: XskConfig { tagged: how.tagged, ..XskConfig::default() },
            queues: Vec::new(),
            expected: queues,
            following: None,
        }
    }

    /// Has the packet sockets receive, if they are to.
    fn receive_packets(&mut self, interface: &Interface) -> Result<(), AttachError> {
        if self.mode != SteerMode::Packet {
            return Ok(());
        }
        let filter = self.tables.packet_filter(&interface.name)?;
        let (mut group, several) = (None, self.queues.len() > 1);
        for queue in &mut self.queues {
            let error = |error| XskError::Packets { interface: interface.name.clone(), error };
            let group = several.then_some(&mut group);
            queue.receive_packets(interface.index, filter.as_fd(), group).map_err(error)?;
        }
        Ok(())
    }

    fn add(&mut self, socket: XskSocket) -> Result<(), SteerError> {
        self.tables.bind(self.place, &self.interface.name, socket.queue(), socket.as_fd())?;
        self.queues.push(socket);
        Ok(())
    }

    /// Delivers steered frames of a queue to this socket.
    pub(crate) fn bind(&mut self, queue: u32, socket: BorrowedFd<'_>) -> Result<(), SteerError> {
        self.tables.bind(self.place, &self.interface.name, queue, socket)
    }

    /// The description for the process that serves.
    pub fn description(&self) -> Description {
        let Interface { mtu_bytes, is_virtual, index: interface, .. } = self.interface;
        let tagged = self.config.tagged;
        let none = Shape { frames: 0, frame_bytes: 0, ring: 0, tagged, mtu_bytes, is_virtual, interface };
        Description {
            index: self.interface.index,
            place: self.place,
            mode: self.mode,
            programs: self.programs(),
            queues: self.queues() as u32,
            super_segments: !self.queues.is_empty() && self.queues.iter().all(XskSocket::sends_super_segments),
            own: self.own,
            shape: self.queues.first().map_or(none, XskSocket::shape),
        }
    }

    /// For the process that serves: the filter, the maps, and socket and memory of each queue.
    pub fn descriptors(&self) -> Result<Vec<OwnedFd>, SteerError> {
        let mut all = self.tables.copies(&self.interface.name)?;
        let each = if self.description().super_segments { 3 } else { 2 };
        for descriptor in self.queues.iter().flat_map(|queue| queue.descriptors().take(each)) {
            let copy = descriptor.try_clone_to_owned();
            all.push(copy.map_err(|error| explain(&self.interface.name, "copying descriptors", &error))?);
        }
        Ok(all)
    }

    /// The same for this process.
    pub fn parts(&self) -> Result<Parts, SteerError> {
        Parts::of(self.description(), self.descriptors()?).ok_or_else(|| {
            explain(&self.interface.name, "copying descriptors", &std::io::Error::other("there are too few"))
        })
    }

    /// The name that the interface has now. `None`: it has gone.
    pub fn name(&self) -> Option<String> {
        Link::of(self.interface.index).ok().flatten().map(|link| link.name)
    }

    /// The number of the interface, which may have another name by now.
    pub fn index(&self) -> u32 {
        self.interface.index
    }

    /// How many queues have a socket, or will have one when the interface is back.
    pub fn queues(&self) -> usize {
        self.queues.len().max(self.expected)
    }

    fn programs(&self) -> [u32; 2] {
        let (xdp, drop) = self.tables.ids();
        if self.mode == SteerMode::Packet { [drop; 2] } else { xdp }
    }

    /// Is the interface there, with the program on it and the sockets bound?
    pub fn is_in_place(&self) -> bool {
        let link = Link::of(self.interface.index).ok().flatten();
        let has_programs = link.is_some_and(|link| self.has_program(&link) && self.has_own(&link));
        has_programs && self.following.is_none() && self.queues.iter().all(XskSocket::is_bound)
    }

    /// Is the program there that steers, or keeps steered frames from the kernel?
    fn has_program(&self, link: &Link) -> bool {
        let ours = self.programs();
        match self.mode {
            SteerMode::Packet => Ingress::Drop.stands(&link.name, ours[0]),
            _ => link.program.is_some_and(|id| ours.contains(&id)),
        }
    }

    /// Is what takes SYNs before the kernel's firewall there, if it is to be?
    fn has_own(&self, link: &Link) -> bool {
        !self.own || self.tables.has_own(&link.name)
    }

    /// True if only the program is missing: the sockets are still bound.
    pub fn has_sockets(&self) -> bool {
        self.following.is_none() && !self.queues.is_empty() && self.queues.iter().all(XskSocket::is_bound)
    }

    /// Somebody has taken a program off the interface, which is still there: puts it back. The sockets stay bound, as the
    /// process that serves has them, too. So its queues could have no others.
    pub fn attach_again(&mut self) -> Result<(), SteerError> {
        let link = Link::of(self.interface.index).ok().flatten().unwrap_or_default();
        // A program on the ingress hook is attached by the name, which may have changed.
        if !link.name.is_empty() {
            self.interface.name.clone_from(&link.name);
        }
        // One that is there stays: without it the kernel would reset connections. An old link is without an interface.
        if !self.has_program(&link) {
            self.link = None;
            self.link = Some(self.tables.attach(self.attached, &self.interface, self.mode)?.0);
        }
        if !self.has_own(&link) {
            self.own_link = None;
            self.own_link = attach_own(&self.tables, &self.interface, self.own)?;
        }
        Ok(())
    }

    /// The interface was made anew: attaches to the one of this name. The tables stay, and so do connections.
    /// Their process has to use the new sockets.
    ///
    /// It never waits. [`XskError::QueueBusy`] may be over soon, as the kernel frees the place of a closed socket a moment
    /// later. Another call goes on where this one has stopped.
    pub fn follow(&mut self, name: &str, queues: usize) -> Result<(), AttachError> {
        let found = Interface::find(name).map_err(|e| explain(name, "ioctl", &e))?;
        let found = found.ok_or_else(|| SteerError::NoInterface(name.into()))?;
        let begun = self.following.take().is_some_and(|begun| begun.index == found.index) && self.link.is_some();
        if !begun {
            self.expected = queues;
            (self.own_link, self.link, self.queues) = (None, None, Vec::new());
            let how = AttachConfig { tagged: self.config.tagged, mode: self.wanted, own: self.own };
            let (link, mode) = attach(&self.tables, self.attached, &found, how)?;
            let own_link = attach_own(&self.tables, &found, self.own)?;
            // Not before: an interface that cannot be attached to may have another place.
            self.tables.put(self.place, &found)?;
            (self.own_link, self.link, self.mode) = (own_link, Some(link), mode);
            self.config.copy = mode != SteerMode::Driver;
            self.config.super_segments = takes_super_segments(&found, mode);
        }
        match self.open_rest(&found, queues) {
            Ok(()) => (self.interface, self.expected) = (found, 0),
            Err(error @ AttachError::Xsk(XskError::QueueBusy(..))) => {
                self.following = Some(found);
                return Err(error);
            }
            Err(error) => {
                (self.own_link, self.link) = (None, None);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Opens a socket for each queue that has none.
    fn open_rest(&mut self, found: &Interface, queues: usize) -> Result<(), AttachError> {
        for queue in self.queues.len()..queues {
            self.add(XskSocket::open(&found.name, queue as u32, self.config)?)?;
        }
        self.receive_packets(found)
    }

    /// The process that served has ended. Segments of its connections are dropped from now on, and all SYNs are the
    /// kernel's.
    pub fn leave(&mut self) {
        self.tables.unbind(self.place, self.queues.iter().map(XskSocket::queue));
    }

    /// Prepares for another process that serves, without a moment in which no program is attached. It finds these tables,
    /// which are empty: what was left in the others is nobody's. Sockets stay where that is safe.
    pub fn begin_again(&mut self, tables: &Tables, queues: usize) -> Result<(), AttachError> {
        // A socket is opened by the name, which may have changed.
        let name = self.name().unwrap_or_else(|| self.interface.name.clone());
        self.interface.name.clone_from(&name);
        let before = std::mem::replace(&mut self.tables, tables.clone());
        self.tables.put(self.place, &self.interface)?;
        let mut sockets: Vec<Option<XskSocket>> = self.queues.drain(..).map(Some).collect();
        sockets.resize_with(queues, || None);
        let until = Instant::now() + LONGEST_CLOSE;
        for (queue, socket) in sockets.into_iter().enumerate() {
            let socket = match socket.filter(XskSocket::is_at_rest) {
                Some(socket) => socket,
                None => open_when_free(&name, queue as u32, self.config, until)?,
            };
            self.add(socket)?;
        }
        self.receive_packets(&self.interface.clone())?;
        self.put(0)?;
        if let Some(link) = self.own_link.take() {
            self.own_link = self.tables.exchange_ingress(Ingress::Own, &self.interface.name, link)?;
        }
        drop(before);
        Ok(())
    }

    /// Prepares for another process that serves while the interface is not there: with these tables and without sockets.
    /// [`Attachment::follow`] makes them when it is back.
    pub fn wait_for_it(&mut self, tables: &Tables) {
        self.tables = tables.clone();
        self.expected = self.queues();
        (self.own_link, self.link, self.queues, self.following) = (None, None, Vec::new(), None);
    }

    /// Has the driver run the program on queues that have been made since it was attached. Not all do so by themselves:
    /// veth does not (Linux 6.18). No frame is left out.
    pub fn renew(&mut self) -> Result<(), SteerError> {
        if self.mode == SteerMode::Packet {
            return Ok(());
        }
        self.put(1 - self.attached)
    }

    /// Puts one of the programs in the place of the one that is attached.
    fn put(&mut self, which: usize) -> Result<(), SteerError> {
        let Some(link) = self.link.take() else { return Ok(()) };
        if self.mode == SteerMode::Packet {
            self.link = self.tables.exchange_ingress(Ingress::Drop, &self.interface.name, link)?;
            return Ok(());
        }
        self.link = self.tables.exchange(which, &self.interface.name, link)?;
        self.attached = which;
        Ok(())
    }
}

/// Opens a socket on a queue whose last one was closed just now. Waits until then at most.
fn open_when_free(interface: &str, queue: u32, config: XskConfig, until: Instant) -> Result<XskSocket, XskError> {
    loop {
        match XskSocket::open(interface, queue, config) {
            Err(XskError::QueueBusy(..)) if Instant::now() < until => std::thread::sleep(Duration::from_millis(2)),
            result => return result,
        }
    }
}

/// Attaches as it was asked for, or as it suits the interface.
fn attach(
    tables: &Tables,
    which: usize,
    interface: &Interface,
    how: AttachConfig,
) -> Result<(FdLink, SteerMode), SteerError> {
    if how.mode.is_none() && interface.is_virtual && !how.tagged {
        match tables.attach(which, interface, SteerMode::Packet) {
            Err(SteerError::NoIngressHook(_)) => {}
            result => return result,
        }
    }
    tables.attach(which, interface, how.mode.unwrap_or(SteerMode::Driver))
}

/// Attaches what takes SYNs before the kernel's firewall, if they are to be taken there.
fn attach_own(tables: &Tables, interface: &Interface, own: bool) -> Result<Option<FdLink>, SteerError> {
    own.then(|| tables.attach_own(&interface.name)).transpose()
}

/// Do super-segments come from this interface? Their checksums are known only where frames may have partial ones.
fn takes_super_segments(interface: &Interface, mode: SteerMode) -> bool {
    mode == SteerMode::Generic && interface.is_virtual && receives_super_segments()
}
