//! The steering programs and their tables, and how a program is put on an interface.

use crate::ingress::{Ingress, kernel_structures};
use crate::interface::Interface;
use crate::object::{LoadError, OBJECT, load_filter, map_descriptors, refused};
use crate::steer_error::{EXCHANGING, PROGRAMS, SteerError, explain, missing, occupied_by, os_error};
use aya::maps::{Array, MapData, XskMap};
use aya::programs::links::FdLink;
use aya::programs::xdp::XdpLink;
use aya::programs::{ProgramError, SocketFilter, Xdp, XdpMode};
use aya::{Ebpf, EbpfLoader};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most interfaces of one service. The program has the same number.
pub const PLACES: u32 = 16;
/// Receive queues of each that may have a socket. The program has the same number.
pub const QUEUES: u32 = 256;

/// How frames of ours leave the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SteerMode {
    /// By an XDP program in the driver ("native").
    Driver,
    /// By an XDP program in the kernel's receive path, after a socket buffer has been allocated ("generic"). It works with
    /// every driver. Super-segments come whole if the sockets take them; else they are lost. Sockets must be opened with
    /// `copy`.
    Generic,
    /// By packet sockets. A program on the ingress hook (tcx, Linux 6.6) drops what they have. Super-segments come and go
    /// whole, and the other end of a veth keeps its offloads.
    Packet,
}

impl std::fmt::Display for SteerMode {
    /// As the configuration has it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Driver => "xdp",
            Self::Generic => "xdp-generic",
            Self::Packet => "packet",
        })
    }
}

/// The programs and maps of one process that serves.
struct Loaded {
    object: Ebpf,
    ids: [u32; 2],
    /// The number of the program of packet sockets; 0: it is not loaded.
    drop_id: u32,
    /// The number of the program that takes SYNs before the kernel's firewall; 0: it is not loaded.
    own_id: u32,
    filter: OwnedFd,
    sockets: XskMap<MapData>,
    /// The interfaces at each place.
    places: Array<MapData, u32>,
    /// While it has a socket, the filter for listening sockets takes SYNs.
    tripwire: XskMap<MapData>,
}

impl Loaded {
    /// `own`: for a firewall of its own. Nothing else of the object asks for the kernel's structures.
    fn load(interface: &str, own: bool) -> Result<Self, SteerError> {
        let structures = own.then(|| kernel_structures(interface)).transpose()?;
        let loaded = EbpfLoader::new().btf(structures.as_ref()).load(OBJECT);
        let mut object = loaded.map_err(|e| explain(interface, "loading maps", &e))?;
        let mut ids = [0; 2];
        for (which, id) in ids.iter_mut().enumerate() {
            let xdp = program(&mut object, interface, which)?;
            xdp.load().map_err(|e| explain(interface, "loading the program", &e))?;
            *id = xdp.info().map_err(|e| explain(interface, "asking for the program", &e))?.id();
        }
        let (filter, number) = load_filter(&mut object).map_err(|error| match error {
            LoadError::Refused(error) => explain(interface, "loading the filter of listeners", &*error),
            LoadError::Missing => missing(interface),
        })?;
        // It stays in the object, whose programs are loaded with its descriptor.
        let numbers = object.map_mut("filter").and_then(|map| Array::<_, u32>::try_from(map).ok());
        let mut numbers = numbers.ok_or_else(|| missing(interface))?;
        numbers.set(0, number, 0).map_err(|e| explain(interface, "telling the number of the filter", &e))?;
        let sockets = map(&mut object, "sockets").ok_or_else(|| missing(interface))?;
        let places = map(&mut object, "places").ok_or_else(|| missing(interface))?;
        let tripwire = map(&mut object, "tripwire").ok_or_else(|| missing(interface))?;
        Ok(Self { object, ids, drop_id: 0, own_id: 0, filter, sockets, places, tripwire })
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
    /// Empty ones. `interface` is named in errors. `own`: with what takes SYNs before the kernel's firewall.
    pub fn load(interface: &str, own: bool) -> Result<Self, SteerError> {
        Loaded::load(interface, own).map(|loaded| Self(Arc::new(Mutex::new(loaded))))
    }

    fn get(&self) -> MutexGuard<'_, Loaded> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The interface at this place has this index from now on.
    pub(crate) fn put(&self, place: u32, interface: &Interface) -> Result<(), SteerError> {
        let set = self.get().places.set(place, interface.index, 0);
        set.map_err(|e| explain(&interface.name, "giving it a place", &e))
    }

    pub(crate) fn bind(
        &self,
        place: u32,
        interface: &str,
        queue: u32,
        socket: BorrowedFd<'_>,
    ) -> Result<(), SteerError> {
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

    pub(crate) fn unbind(&self, place: u32, queues: impl Iterator<Item = u32>) {
        let mut loaded = self.get();
        let _ = loaded.tripwire.unset(place);
        for queue in queues {
            let _ = loaded.sockets.unset(place * QUEUES + queue);
        }
    }

    /// Puts a program on an interface that has none of ours. `which`: of the XDP programs.
    pub(crate) fn attach(
        &self,
        which: usize,
        interface: &Interface,
        wanted: SteerMode,
    ) -> Result<(FdLink, SteerMode), SteerError> {
        let mut loaded = self.get();
        if wanted == SteerMode::Packet {
            if let Some(id) = Ingress::Drop.attached(&interface.name) {
                return Err(occupied_by(&interface.name, Some(id)));
            }
            let (link, id) = Ingress::Drop.attach(&mut loaded.object, &interface.name)?;
            loaded.drop_id = id;
            return Ok((link, SteerMode::Packet));
        }
        attach(program(&mut loaded.object, &interface.name, which)?, interface, wanted)
    }

    /// Puts the program that takes SYNs before the kernel's firewall on an interface.
    pub(crate) fn attach_own(&self, interface: &str) -> Result<FdLink, SteerError> {
        let mut loaded = self.get();
        let (link, id) = Ingress::Own.attach(&mut loaded.object, interface)?;
        loaded.own_id = id;
        Ok(link)
    }

    /// Puts these tables' program of the ingress hook in the place of other tables'.
    pub(crate) fn exchange_ingress(
        &self,
        which: Ingress,
        interface: &str,
        link: FdLink,
    ) -> Result<Option<FdLink>, SteerError> {
        let mut loaded = self.get();
        let (link, id) = which.exchange(&mut loaded.object, interface, link)?;
        match which {
            Ingress::Drop => loaded.drop_id = id,
            Ingress::Own => loaded.own_id = id,
        }
        Ok(link)
    }

    /// The filter of packet sockets, which takes our frames.
    pub(crate) fn packet_filter(&self, interface: &str) -> Result<OwnedFd, SteerError> {
        let mut loaded = self.get();
        let found = loaded.object.program_mut("towpath_receive");
        let filter = found.and_then(|found| <&mut SocketFilter>::try_from(found).ok());
        let filter = filter.ok_or_else(|| missing(interface))?;
        let doing = "loading the filter of packet sockets";
        if filter.fd().is_err() {
            filter.load().map_err(|error| explain(interface, doing, &error))?;
        }
        let copy = filter.fd().map_err(|error| explain(interface, doing, &error))?.as_fd().try_clone_to_owned();
        copy.map_err(|error| explain(interface, doing, &error))
    }

    /// The numbers of both XDP programs, and that of the program of packet sockets; 0: it is not loaded.
    pub(crate) fn ids(&self) -> ([u32; 2], u32) {
        let loaded = self.get();
        (loaded.ids, loaded.drop_id)
    }

    /// Is the program that takes SYNs before the kernel's firewall on this interface?
    pub(crate) fn has_own(&self, interface: &str) -> bool {
        let own = self.get().own_id;
        Ingress::Own.stands(interface, own)
    }

    /// Copies of the filter of listening sockets, and of the maps that the process that serves uses.
    pub(crate) fn copies(&self, interface: &str) -> Result<Vec<OwnedFd>, SteerError> {
        self.get().copies().map_err(|_| missing(interface))
    }

    /// Puts one of the XDP programs in the place of the one that is attached.
    pub(crate) fn exchange(&self, which: usize, interface: &str, link: FdLink) -> Result<Option<FdLink>, SteerError> {
        let explain = |error: &(dyn std::error::Error + 'static)| explain(interface, EXCHANGING, error);
        let link = XdpLink::try_from(link).map_err(|e| explain(&e))?;
        let mut loaded = self.get();
        let xdp = program(&mut loaded.object, interface, which)?;
        let id = xdp.attach_to_link(link).map_err(|e| explain(&e))?;
        let link = xdp.take_link(id).map_err(|e| explain(&e))?;
        Ok(FdLink::try_from(link).ok())
    }
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
