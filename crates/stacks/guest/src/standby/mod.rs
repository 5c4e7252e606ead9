//! A guest that stands by: this host's kernel serves, and all clients can move into the guest and back, with their
//! connections.
//!
//! Their regions lie in the guest's memory from the beginning. State that only a kernel has travels as a connection
//! record, by `TCP_REPAIR`. The connections' address moves too: either the host has it or the guest.

mod address;
mod host;
mod migration;
mod stack;

use self::host::{DoorbellForwarder, HostWaker, TranslatingGuard};
use crate::config::{GuestConfig, GuestError};
use crate::guest::Guest;
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use towpath_forward::host::clients::HostClient;
use towpath_forward::lock::lock;
use towpath_kernel::{Kernel, KernelConfig};
use towpath_runtime::{AdmissionPolicy, ClientId, ClientNamespace, ClientSetup};

/// Configuration of a standby.
pub struct StandbyConfig {
    /// The guest. Its address is the one that moves.
    pub guest: GuestConfig,
    /// The kernel stack of this host.
    pub kernel: KernelConfig,
    /// The device that has the address while this host serves.
    pub device: String,
}

/// The side that serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StandbySide {
    Host,
    Guest,
}

/// A client with its numbers and doorbells.
struct StandbyClient {
    index: u32,
    client: Arc<HostClient>,
    doorbells: Vec<OwnedFd>,
    /// Its number in this host's stack, while it is there.
    host_id: Option<ClientId>,
}

/// The kernel stacks of both sides.
pub struct Standby {
    host: Kernel,
    guest: Guest,
    side: RwLock<StandbySide>,
    clients: Mutex<HashMap<ClientId, StandbyClient>>,
    /// Clients by their numbers in this host's stack.
    ids: Arc<Mutex<HashMap<ClientId, ClientId>>>,
    forwarder: DoorbellForwarder,
    /// `10.0.0.2/24`.
    address: String,
    gateway: Option<String>,
    device: String,
}

impl Standby {
    /// Starts both sides. This host serves.
    pub fn start(config: StandbyConfig, guard: impl Fn() -> Box<dyn AdmissionPolicy>) -> Result<Self, GuestError> {
        let StandbyConfig { mut guest, kernel, device } = config;
        let none = || GuestError::Broken("a guest that stands by needs an address to move (--guest-address)".into());
        // The guest gets the address when it is to serve.
        let address = guest.machine.address.take().ok_or_else(none)?;
        let gateway = guest.machine.gateway.take();
        // As many workers as this host's kernel stack has.
        guest.machine.cores = 1;
        let guest = Guest::start(guest, guard(), || {})?;
        guest.shared.serves.store(false, Ordering::Release);
        let ids = Arc::<Mutex<HashMap<_, _>>>::default();
        // The guard cannot tell the client numbers of several groups apart.
        let kernel = KernelConfig { cores: 1, ..kernel };
        let host = Kernel::start(&kernel, || Box::new(TranslatingGuard { guard: guard(), ids: Arc::clone(&ids) }))?;
        let forwarder = DoorbellForwarder::start(Arc::clone(&guest.shared))?;
        let (side, clients) = (RwLock::new(StandbySide::Host), Mutex::default());
        let standby = Self { host, guest, side, clients, ids, forwarder, address, gateway, device };
        standby.give_address(StandbySide::Host)?;
        Ok(standby)
    }

    fn side(&self) -> RwLockReadGuard<'_, StandbySide> {
        self.side.read().unwrap_or_else(PoisonError::into_inner)
    }
    /// A client's number in this host's stack.
    fn host_id(&self, client: ClientId) -> Option<ClientId> {
        lock(&self.clients).get(&client)?.host_id
    }
    /// Has the serving side do something for a client.
    fn serve(&self, client: ClientId, host: impl FnOnce(&Kernel, ClientId), guest: impl FnOnce(&Guest)) {
        match *self.side() {
            StandbySide::Guest => guest(&self.guest),
            StandbySide::Host => {
                if let Some(host_id) = self.host_id(client) {
                    host(&self.host, host_id);
                }
            }
        }
    }

    /// The client as this host's stack is to serve it.
    fn setup(&self, known: &StandbyClient) -> io::Result<ClientSetup> {
        let client = &known.client;
        let doorbells = known.doorbells.iter().map(OwnedFd::try_clone).collect::<io::Result<_>>()?;
        let waker =
            HostWaker { client: Arc::clone(client), shared: Arc::clone(&self.guest.shared), index: known.index };
        Ok(ClientSetup {
            region: Arc::clone(&client.region),
            doorbells,
            uid: client.uid,
            pid: client.pid,
            name: client.name.clone(),
            remote_waker: Some(Arc::new(waker)),
            namespace: ClientNamespace::default(),
            lease: None,
        })
    }
}

impl Drop for Standby {
    fn drop(&mut self) {
        if *self.side() == StandbySide::Host
            && let Err(error) = self.take_address(StandbySide::Host)
        {
            tracing::warn!(%error, "the address stays");
        }
    }
}
