//! The steering program on an interface, and the sockets of its queues. To make them needs privilege; to use
//! them does not. So one process can hold them while another uses copies, and while that one is started again.

use crate::RxChecksum;
use crate::interface::Interface;
use crate::link::Link;
use crate::object::{LoadError, MAPS, OBJECT, load_filter, map_descriptors, refused};
use crate::steer_error::{PROGRAMS, SteerError, explain, os_error};
use crate::xsk_socket::{Shape, XskConfig, XskError, XskSocket, receives_super_segments};
use aya::Ebpf;
use aya::maps::{Array, MapData, XskMap};
use aya::programs::links::FdLink;
use aya::programs::xdp::XdpLink;
use aya::programs::{ProgramError, Xdp, XdpMode};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The kernel frees the place of a closed socket a moment later. All queues of an interface together have so long.
const LONGEST_CLOSE: Duration = Duration::from_secs(2);

/// Most interfaces of one service. The program has the same number.
pub const PLACES: u32 = 16;
/// Receive queues of each that may have a socket. The program has the same number.
pub const QUEUES: u32 = 256;

/// Where the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SteerMode {
    /// In the driver ("native").
    Driver,
    /// In the kernel's receive path, after a socket buffer has been allocated ("generic"). It works with every driver.
    /// Super-segments come whole if the sockets take them; else they are lost. Sockets must be opened with `copy`.
    Generic,
}

/// How to attach to an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttachConfig {
    /// Frames carry an IEEE 802.1Q tag.
    pub tagged: bool,
    /// Where the program is to run. A driver that cannot gets generic mode.
    pub mode: SteerMode,
}

impl Default for AttachConfig {
    fn default() -> Self {
        Self { tagged: false, mode: SteerMode::Driver }
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
    /// The program runs in generic mode.
    pub generic: bool,
    /// The numbers of both programs, one of which is attached.
    pub programs: [u32; 2],
    /// How many queues have a socket, or will have one when the interface is back.
    pub queues: u32,
    /// Each queue has a socket for super-segments.
    pub super_segments: bool,
    shape: Shape,
}

impl Description {
    pub(crate) fn checksum(&self) -> RxChecksum {
        self.shape.checksum()
    }

    /// As a text for the process that serves.
    pub fn encode(&self) -> String {
        let Shape { frames, frame_bytes, ring, tagged, mtu_bytes, is_virtual } = self.shape;
        let flags = [self.generic, tagged, is_virtual, self.super_segments];
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
        let [generic, tagged, is_virtual, super_segments] = [1, 2, 4, 8].map(|bit| flags & bit != 0);
        let shape = Shape { frames, frame_bytes, ring, tagged, mtu_bytes, is_virtual };
        let is_known = place < PLACES && queues <= QUEUES;
        is_known.then_some(Self { index, place, generic, programs: [first, second], queues, super_segments, shape })
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
        let mut sockets = Vec::new();
        while let Some(socket) = all.next() {
            let both = [socket, all.next()?];
            let packets = if description.super_segments { Some(all.next()?) } else { None };
            sockets.push(XskSocket::of(both, packets, description.shape, sockets.len() as u32));
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

/// The programs and maps of one process that serves.
struct Loaded {
    object: Ebpf,
    ids: [u32; 2],
    filter: OwnedFd,
    sockets: XskMap<MapData>,
    /// The interfaces at each place.
    places: Array<MapData, u32>,
    /// While it has a socket, the filter for listening sockets takes SYNs.
    tripwire: XskMap<MapData>,
}

impl Loaded {
    fn load(interface: &str) -> Result<Self, SteerError> {
        let mut object = Ebpf::load(OBJECT).map_err(|e| explain(interface, "loading maps", &e))?;
        let mut ids = [0; 2];
        for (which, id) in ids.iter_mut().enumerate() {
            let xdp = program(&mut object, interface, which)?;
            xdp.load().map_err(|e| explain(interface, "loading the program", &e))?;
            *id = xdp.info().map_err(|e| explain(interface, "asking for the program", &e))?.id();
        }
        let filter = load_filter(&mut object).map_err(|error| match error {
            LoadError::Refused(error) => explain(interface, "loading the filter of listeners", &*error),
            LoadError::Missing => missing(interface),
        })?;
        let sockets = map(&mut object, "sockets").ok_or_else(|| missing(interface))?;
        let places = map(&mut object, "places").ok_or_else(|| missing(interface))?;
        let tripwire = map(&mut object, "tripwire").ok_or_else(|| missing(interface))?;
        Ok(Self { object, ids, filter, sockets, places, tripwire })
    }

    /// Copies of the filter and of the maps that the process that serves uses.
    fn copies(&self) -> Result<Vec<OwnedFd>, LoadError> {
        let maps = map_descriptors(&self.object)?;
        let all = [self.filter.as_fd()].into_iter().chain(maps);
        all.map(|one| one.try_clone_to_owned()).collect::<io::Result<_>>().map_err(refused)
    }
}

fn map<T: TryFrom<aya::maps::Map>>(object: &mut Ebpf, name: &str) -> Option<T> {
    object.take_map(name).and_then(|map| map.try_into().ok())
}

/// The tables of one service, which its interfaces share: each of them steers all of its connections.
#[derive(Clone)]
pub struct Tables(Arc<Mutex<Loaded>>);

impl Tables {
    /// Empty ones. `interface` is named in errors.
    pub fn load(interface: &str) -> Result<Self, SteerError> {
        Loaded::load(interface).map(|loaded| Self(Arc::new(Mutex::new(loaded))))
    }

    fn get(&self) -> MutexGuard<'_, Loaded> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The interface at this place has this index from now on.
    fn put(&self, place: u32, interface: &Interface) -> Result<(), SteerError> {
        let set = self.get().places.set(place, interface.index, 0);
        set.map_err(|e| explain(&interface.name, "giving it a place", &e))
    }

    fn bind(&self, place: u32, interface: &str, queue: u32, socket: BorrowedFd<'_>) -> Result<(), SteerError> {
        let (mut loaded, socket) = (self.get(), socket.as_raw_fd());
        if queue >= QUEUES {
            let too_many = io::Error::other(format!("it has more than {QUEUES}"));
            return Err(explain(interface, "binding a socket to a queue", &too_many));
        }
        let result = loaded.sockets.set(place * QUEUES + queue, socket, 0);
        result
            .and_then(|()| loaded.tripwire.set(place, socket, 0))
            .map_err(|e| explain(interface, "binding a socket to a queue", &e))
    }

    fn unbind(&self, place: u32, queues: impl Iterator<Item = u32>) {
        let mut loaded = self.get();
        let _ = loaded.tripwire.unset(place);
        for queue in queues {
            let _ = loaded.sockets.unset(place * QUEUES + queue);
        }
    }

    /// Attaches one of the programs.
    fn attach(
        &self,
        which: usize,
        interface: &Interface,
        wanted: SteerMode,
    ) -> Result<(FdLink, SteerMode), SteerError> {
        attach(program(&mut self.get().object, &interface.name, which)?, interface, wanted)
    }
}

/// The program on an interface, and its sockets. Dropping this value detaches the program, as the end of the process does.
pub struct Attachment {
    // Field order matters: the program is detached before the sockets go, so that no frame is dropped.
    link: Option<FdLink>,
    tables: Tables,
    /// Which of the programs is attached.
    attached: usize,
    /// Its place in the tables.
    place: u32,
    interface: Interface,
    /// The mode that was asked for.
    wanted: SteerMode,
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
        Self::attach_at(&Tables::load(interface)?, 0, interface, SteerMode::Driver)
    }

    fn attach_at(tables: &Tables, place: u32, interface: &str, wanted: SteerMode) -> Result<Self, SteerError> {
        let found = Interface::find(interface).map_err(|e| explain(interface, "ioctl", &e))?;
        let found = found.ok_or_else(|| SteerError::NoInterface(interface.into()))?;
        let (link, mode) = tables.attach(0, &found, wanted)?;
        tables.put(place, &found)?;
        let config = XskConfig { copy: mode == SteerMode::Generic, ..XskConfig::default() };
        let config = XskConfig { super_segments: takes_super_segments(&found, mode), ..config };
        let (tables, queues) = (tables.clone(), Vec::new());
        let (interface, link) = (found, Some(link));
        let (expected, following) = (0, None);
        Ok(Self { link, tables, attached: 0, place, interface, wanted, mode, config, queues, expected, following })
    }

    /// Attaches the program, and opens a socket for each of this many queues.
    pub fn open(interface: &str, config: AttachConfig, queues: usize) -> Result<Self, AttachError> {
        Self::open_at(&Tables::load(interface)?, 0, interface, config, queues)
    }

    /// [`Attachment::open`] for one of several interfaces that have the same tables, each at a place of its own.
    pub fn open_at(
        tables: &Tables,
        place: u32,
        interface: &str,
        config: AttachConfig,
        queues: usize,
    ) -> Result<Self, AttachError> {
        let mut attachment = Self::attach_at(tables, place, interface, config.mode)?;
        attachment.config.tagged = config.tagged;
        for queue in 0..queues {
            attachment.add(XskSocket::open(interface, queue as u32, attachment.config)?)?;
        }
        Ok(attachment)
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
        let Interface { mtu_bytes, is_virtual, .. } = self.interface;
        let none = Shape { frames: 0, frame_bytes: 0, ring: 0, tagged: self.config.tagged, mtu_bytes, is_virtual };
        Description {
            index: self.interface.index,
            place: self.place,
            generic: self.mode == SteerMode::Generic,
            programs: self.tables.get().ids,
            queues: self.queues() as u32,
            super_segments: !self.queues.is_empty() && self.queues.iter().all(XskSocket::sends_super_segments),
            shape: self.queues.first().map_or(none, XskSocket::shape),
        }
    }

    /// For the process that serves: the filter, the maps, and socket and memory of each queue.
    pub fn descriptors(&self) -> Result<Vec<OwnedFd>, SteerError> {
        let mut all = self.tables.get().copies().map_err(|_| missing(&self.interface.name))?;
        let each = if self.description().super_segments { 3 } else { 2 };
        for descriptor in self.queues.iter().flat_map(|queue| queue.descriptors().take(each)) {
            let copy = descriptor.try_clone_to_owned();
            all.push(copy.map_err(|error| explain(&self.interface.name, "copying descriptors", &error))?);
        }
        Ok(all)
    }

    /// The same for this process.
    pub fn parts(&self) -> Result<Parts, SteerError> {
        Parts::of(self.description(), self.descriptors()?).ok_or_else(|| missing(&self.interface.name))
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

    /// Is the interface there, with the program on it and the sockets bound?
    pub fn is_in_place(&self) -> bool {
        let program = Link::of(self.interface.index).ok().flatten().and_then(|link| link.program);
        let has_program = program.is_some_and(|id| self.tables.get().ids.contains(&id));
        has_program && self.following.is_none() && self.queues.iter().all(XskSocket::is_bound)
    }

    /// Has it the sockets of the interface that it was attached to, which has all that it needs but for the program?
    pub fn has_sockets(&self) -> bool {
        self.following.is_none() && !self.queues.is_empty() && self.queues.iter().all(XskSocket::is_bound)
    }

    /// Somebody has taken the program off the interface, which is still there: puts it back. The sockets stay bound, as the
    /// process that serves has them, too. So its queues could have no others.
    pub fn attach_again(&mut self) -> Result<(), SteerError> {
        // The old link is without an interface.
        self.link = None;
        let (link, _) = self.tables.attach(self.attached, &self.interface, self.mode)?;
        self.link = Some(link);
        Ok(())
    }

    /// The interface was made anew: attaches to the one of this name. The tables stay, and so do connections.
    /// Their process has to use the new sockets.
    ///
    /// It never waits. [`XskError::QueueBusy`] may be over soon, as the kernel frees the place of a closed socket a moment
    /// later: another call goes on where this one has stopped.
    pub fn follow(&mut self, name: &str, queues: usize) -> Result<(), AttachError> {
        let found = Interface::find(name).map_err(|e| explain(name, "ioctl", &e))?;
        let found = found.ok_or_else(|| SteerError::NoInterface(name.into()))?;
        let begun = self.following.take().is_some_and(|begun| begun.index == found.index) && self.link.is_some();
        if !begun {
            self.expected = queues;
            (self.link, self.queues) = (None, Vec::new());
            let (link, mode) = self.tables.attach(self.attached, &found, self.wanted)?;
            // Not before: an interface that cannot be attached to may have another place.
            self.tables.put(self.place, &found)?;
            (self.link, self.mode) = (Some(link), mode);
            self.config.copy = mode == SteerMode::Generic;
            self.config.super_segments = takes_super_segments(&found, mode);
        }
        match self.open_rest(name, queues) {
            Ok(()) => (self.interface, self.expected) = (found, 0),
            Err(error @ AttachError::Xsk(XskError::QueueBusy(..))) => {
                self.following = Some(found);
                return Err(error);
            }
            Err(error) => {
                self.link = None;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Opens a socket for each queue that has none.
    fn open_rest(&mut self, name: &str, queues: usize) -> Result<(), AttachError> {
        for queue in self.queues.len()..queues {
            self.add(XskSocket::open(name, queue as u32, self.config)?)?;
        }
        Ok(())
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
        self.put(0)?;
        drop(before);
        Ok(())
    }

    /// Prepares for another process that serves while the interface is not there: with these tables and without sockets.
    /// [`Attachment::follow`] makes them when it is back.
    pub fn wait_for_it(&mut self, tables: &Tables) {
        self.tables = tables.clone();
        self.expected = self.queues();
        (self.link, self.queues, self.following) = (None, Vec::new(), None);
    }

    /// Has the driver run the program on queues that have been made since it was attached. Not all do so by themselves:
    /// veth does not (Linux 6.18). No frame is left out.
    pub fn renew(&mut self) -> Result<(), SteerError> {
        self.put(1 - self.attached)
    }

    /// Puts one of the programs in the place of the one that is attached.
    fn put(&mut self, which: usize) -> Result<(), SteerError> {
        let (name, doing) = (&self.interface.name, "putting the program in another one's place");
        let Some(link) = self.link.take() else { return Ok(()) };
        let link = XdpLink::try_from(link).map_err(|e| explain(name, doing, &e))?;
        let mut loaded = self.tables.get();
        let xdp = program(&mut loaded.object, name, which)?;
        let id = xdp.attach_to_link(link).map_err(|e| explain(name, doing, &e))?;
        let link = xdp.take_link(id).map_err(|e| explain(name, doing, &e))?;
        self.link = FdLink::try_from(link).ok();
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

fn missing(interface: &str) -> SteerError {
    explain(interface, "loading", &io::Error::other("the object lacks a program or a map"))
}

fn program<'a>(object: &'a mut Ebpf, interface: &str, which: usize) -> Result<&'a mut Xdp, SteerError> {
    let found = PROGRAMS.get(which).and_then(|name| object.program_mut(name)).and_then(|p| p.try_into().ok());
    found.ok_or_else(|| missing(interface))
}

/// Why an attempt to attach failed.
enum TryError {
    /// Only attaching by netlink works. That would outlive this process, so it has been undone.
    NotALink,
    Refused(ProgramError),
}

fn try_attach(xdp: &mut Xdp, interface: &Interface, mode: XdpMode) -> Result<FdLink, TryError> {
    let id = xdp.attach_to_if_index(interface.index, mode).map_err(TryError::Refused)?;
    let link = xdp.take_link(id).map_err(TryError::Refused)?;
    FdLink::try_from(link).map_err(|_| TryError::NotALink)
}

/// Do super-segments come from this interface? Their checksums are known only where frames may have partial ones.
fn takes_super_segments(interface: &Interface, mode: SteerMode) -> bool {
    mode == SteerMode::Generic && interface.is_virtual && receives_super_segments()
}

/// Attaches in the driver if that is wanted and possible, else generic. Never replaces another program, or runs beside one.
fn attach(xdp: &mut Xdp, interface: &Interface, wanted: SteerMode) -> Result<(FdLink, SteerMode), SteerError> {
    let name = &interface.name;
    let final_error = |error| match error {
        TryError::NotALink => SteerError::OldKernel(name.clone()),
        TryError::Refused(error) => explain(name, "attaching in the driver or generic", &error),
    };
    if wanted == SteerMode::Driver {
        match try_attach(xdp, interface, XdpMode::Driver) {
            Ok(link) => return Ok((link, SteerMode::Driver)),
            Err(TryError::Refused(error))
                if !matches!(os_error(&error), Some(libc::EBUSY | libc::EEXIST | libc::EPERM)) => {}
            Err(error) => return Err(final_error(error)),
        }
    }
    let link = try_attach(xdp, interface, XdpMode::Skb).map_err(final_error)?;
    Ok((link, SteerMode::Generic))
}
