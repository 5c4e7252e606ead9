//! The compiled BPF programs, and the maps that a service uses, by their names.

use aya::Ebpf;
use aya::maps::{Map, MapData, MapError};
use aya::programs::SocketFilter;
use std::error::Error;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// bpf/steer.bpf.c, compiled by bpf/build.sh.
pub static OBJECT: &[u8] = aya::include_bytes_aligned!("../../../bpf/steer.bpf.o");

/// The name of the filter for listening sockets.
const FILTER: &str = "towpath_listen";

/// The maps that the process that serves uses. It gets their descriptors in this order.
pub const MAPS: [&str; 18] = [
    "flows",
    "flows6",
    "half_open",
    "half_open6",
    "settings",
    "stats",
    "strays",
    "accelerated",
    "served",
    "syns",
    "kernels",
    "kernels6",
    "heartbeat",
    "rules",
    "refused_by",
    "refused_at",
    "addresses",
    "splices",
];

/// Why a program could not be loaded.
pub enum LoadError {
    /// The object lacks something.
    Missing,
    /// The kernel refuses the program.
    Refused(Box<dyn Error>),
}

/// The kernel's reason.
pub fn refused(error: impl Error + 'static) -> LoadError {
    LoadError::Refused(Box::new(error))
}

/// Loads the filter for listening sockets. Returns its number, too.
pub fn load_filter(object: &mut Ebpf) -> Result<(OwnedFd, u32), LoadError> {
    let filter = object.program_mut(FILTER).and_then(|p| <&mut SocketFilter>::try_from(p).ok());
    let filter = filter.ok_or(LoadError::Missing)?;
    filter.load().map_err(refused)?;
    let number = filter.info().map_err(refused)?.id();
    Ok((filter.fd().map_err(refused)?.as_fd().try_clone_to_owned().map_err(refused)?, number))
}

/// The descriptors of [`MAPS`].
pub fn map_descriptors(object: &Ebpf) -> Result<Vec<BorrowedFd<'_>>, LoadError> {
    let descriptor = |name: &&str| {
        let (Map::Array(map) | Map::HashMap(map) | Map::LruHashMap(map) | Map::PerCpuArray(map) | Map::RingBuf(map)) =
            object.map(name)?
        else {
            return None;
        };
        Some(map.fd().as_fd())
    };
    MAPS.iter().map(|name| descriptor(name).ok_or(LoadError::Missing)).collect()
}

/// Maps of descriptors in the order of [`MAPS`].
pub struct Maps(Vec<Option<Map>>);

impl Maps {
    /// Of these descriptors.
    pub fn of(descriptors: Vec<OwnedFd>) -> Result<Self, MapError> {
        let open = |descriptor| Map::from_map_data(MapData::from_fd(descriptor)?).map(Some);
        descriptors.into_iter().map(open).collect::<Result<_, _>>().map(Self)
    }

    /// Of an object that is loaded.
    pub fn of_object(object: &Ebpf) -> Result<Self, LoadError> {
        let copies: io::Result<_> = map_descriptors(object)?.iter().map(|map| map.try_clone_to_owned()).collect();
        Self::of(copies.map_err(refused)?).map_err(refused)
    }

    /// The map of this name, once.
    pub fn take<T: TryFrom<Map>>(&mut self, name: &str) -> Result<T, LoadError> {
        let place = MAPS.iter().position(|known| *known == name).and_then(|at| self.0.get_mut(at));
        place.and_then(Option::take).and_then(|map| T::try_from(map).ok()).ok_or(LoadError::Missing)
    }
}
