//! A client as the service hands it to a stack: its number, its region, its doorbells.

use crate::ClientNamespace;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use towpath_ring::{Geometry, Region, Slot};

/// A new client.
pub struct ClientSetup {
    /// Its region, of [`ClientMemory`].
    pub region: Arc<Region>,
    /// Its doorbell eventfds: one for each flow group, then the command queue's. They are never read.
    pub doorbells: Vec<OwnedFd>,
    /// Its user.
    pub uid: u32,
    /// Its process.
    pub pid: i32,
    /// Its program's name.
    pub name: String,
    /// Wakes sleeping threads of the client where this thread of the stack cannot do so itself.
    pub remote_waker: Option<Arc<dyn RemoteWaker>>,
    /// Its network namespace.
    pub namespace: ClientNamespace,
    /// What the service counts for it. Dropped when the stack has forgotten the client.
    pub lease: Option<Lease>,
}

impl ClientSetup {
    /// A client without a program, with these doorbells: for tests, and for what is driven by hand. Its user and process are 0.
    pub fn of_nobody(region: Region, doorbells: Vec<OwnedFd>) -> Self {
        Self {
            region: Arc::new(region),
            doorbells,
            uid: 0,
            pid: 0,
            name: String::new(),
            remote_waker: None,
            namespace: ClientNamespace::default(),
            lease: None,
        }
    }
}

/// See [`ClientSetup::lease`].
pub type Lease = Box<dyn ClientLease>;

/// A client's part in its user's shares of the service.
pub trait ClientLease: Send + Sync {
    /// Takes one more descriptor of the service's table. False: the user has his share.
    fn take_descriptor(&self) -> bool;
    /// One that was taken is closed.
    fn give_descriptor_back(&self);
}

/// Wakes the applications of a client on behalf of another kernel, which cannot reach their futexes and doorbells.
pub trait RemoteWaker: Send + Sync {
    /// Wakes the threads that sleep in calls on this slot: the first, or all.
    fn wake(&self, slot: Slot, first: bool);
    /// Wakes the threads that wait for this event context.
    fn notify(&self, context: u32);
}

/// The memory and the doorbells of a client that is about to be.
pub struct ClientMemory {
    /// Its region.
    pub region: Region,
    /// The memfd that the region is in.
    pub memfd: OwnedFd,
    /// The doorbells by which the client notifies: one for each flow group, then the command queue's.
    pub doorbells: Vec<OwnedFd>,
}

impl ClientMemory {
    /// A memfd for this client alone and fresh doorbells.
    pub fn new(geometry: Geometry) -> io::Result<Self> {
        let (region, memfd) = Region::create(geometry)?;
        Ok(Self { region, memfd, doorbells: doorbells(geometry)? })
    }

    /// The memfd that the client has made, if it is good, and fresh doorbells. See [`Stack::takes_client_memory`].
    ///
    /// [`Stack::takes_client_memory`]: crate::Stack::takes_client_memory
    pub fn brought(memfd: OwnedFd, geometry: Geometry) -> io::Result<Self> {
        let region = Region::create_on(memfd.as_fd(), geometry)?;
        Ok(Self { region, memfd, doorbells: doorbells(geometry)? })
    }
}

fn doorbells(geometry: Geometry) -> io::Result<Vec<OwnedFd>> {
    (0..=geometry.flow_groups).map(|_| towpath_ring::wake::doorbell()).collect()
}

/// A client, by number; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct ClientId(pub u32);
