//! The standby as the service sees it: a stack whose requests go to the side that serves.

use super::{Standby, StandbyClient, StandbySide};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, PoisonError};
use towpath_forward::host::clients::HostClient;
use towpath_forward::lock::lock;
use towpath_kernel::Kernel;
use towpath_ring::Geometry;
use towpath_ring::wake::doorbell;
use towpath_runtime::capture::Wish;
use towpath_runtime::reservation::Reservation;
use towpath_runtime::{
    Capture, ClientId, ClientMemory, ClientSetup, Executed, Movement, PairHandle, SocketStatus, Stack, Status,
    WorkerCount,
};

impl Stack for Standby {
    fn name(&self) -> &'static str {
        match *self.side() {
            StandbySide::Host => "kernel",
            StandbySide::Guest => self.guest.name(),
        }
    }
    fn shares_ports(&self) -> bool {
        true
    }
    fn geometry(&self) -> Option<Geometry> {
        self.guest.geometry()
    }
    fn client_memory(&self, _: Geometry) -> io::Result<ClientMemory> {
        self.guest.shared.allocate_client(doorbell)
    }
    fn add_client(&self, setup: ClientSetup) -> io::Result<ClientId> {
        let side = self.side();
        self.prune(&mut lock(&self.clients));
        let index = self.guest.shared.memory.place(setup.region.offset());
        let index = index.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
        self.guest.shared.serve_only(index, setup.uid)?;
        let doorbells = setup.doorbells.iter().map(OwnedFd::try_clone).collect::<io::Result<Vec<_>>>()?;
        for doorbell in &doorbells {
            self.forwarder.watch(doorbell.as_fd())?;
        }
        if *side == StandbySide::Guest {
            let id = self.guest.add_client(setup)?;
            let client =
                self.guest.shared.table.get(index).ok_or_else(|| io::Error::from_raw_os_error(libc::ENETDOWN))?;
            lock(&self.clients).insert(id, StandbyClient { index, client, doorbells, host_id: None });
            return Ok(id);
        }
        let id = self.guest.next_client();
        let client = Arc::new(HostClient::new(id, setup.region, (setup.uid, setup.pid, setup.name), setup.lease));
        self.guest.shared.table.assign(index, Arc::clone(&client));
        let mut known = StandbyClient { index, client, doorbells, host_id: None };
        let host_id = self.host.add_client(self.setup(&known)?)?;
        known.host_id = Some(host_id);
        lock(&self.ids).insert(host_id, id);
        lock(&self.clients).insert(id, known);
        Ok(id)
    }
    fn add_context(&self, client: ClientId, context: u32, doorbell: OwnedFd) {
        let side = self.side();
        if *side == StandbySide::Guest {
            return self.guest.add_context(client, context, doorbell);
        }
        if let (Some((_, served)), Ok(kept)) = (self.guest.shared.table.find(client), doorbell.try_clone()) {
            served.set_context(context, Some(kept));
        }
        if let Some(host_id) = self.host_id(client) {
            self.host.add_context(host_id, context, doorbell);
        }
    }
    fn drop_context(&self, client: ClientId, context: u32) {
        self.serve(
            client,
            |host, host_id| host.drop_context(host_id, context),
            |guest| guest.drop_context(client, context),
        );
        if let Some((_, served)) = self.guest.shared.table.find(client) {
            served.set_context(context, None);
        }
    }
    fn reserve(&self, client: ClientId, slot: u32, seq: u32, reservation: Reservation) {
        match *self.side() {
            StandbySide::Host => {
                if let Some(host_id) = self.host_id(client) {
                    self.host.reserve(host_id, slot, seq, reservation);
                }
            }
            StandbySide::Guest => self.guest.reserve(client, slot, seq, reservation),
        }
    }
    fn hangup(&self, client: ClientId, slot: u32, generation: u32) {
        let host_id = |host: &Kernel, host_id| host.hangup(host_id, slot, generation);
        self.serve(client, host_id, |guest| guest.hangup(client, slot, generation));
    }
    fn departed(&self, client: ClientId, process: u32) {
        self.serve(client, |host, host_id| host.departed(host_id, process), |guest| guest.departed(client, process));
    }
    fn remove_client(&self, client: ClientId) {
        if let (StandbySide::Host, Some((_, served))) = (*self.side(), self.guest.shared.table.find(client)) {
            served.vacate();
        }
        self.serve(client, Kernel::remove_client, |guest| guest.remove_client(client));
    }
    fn pair(&self, _: ClientId, _: u32, _: u32) -> Option<PairHandle> {
        None
    }
    /// Of clients on this host. A capture does not move with them.
    fn capture(&self, wish: &Wish) -> io::Result<Box<dyn Capture>> {
        match *self.side() {
            StandbySide::Host => self.host.capture(wish),
            StandbySide::Guest => self.guest.capture(wish),
        }
    }
    fn connections(&self) -> Vec<SocketStatus> {
        if *self.side() == StandbySide::Guest {
            return self.guest.connections();
        }
        let mut all = self.host.connections();
        let ids = lock(&self.ids);
        all.iter_mut().for_each(|one| one.client = one.client.and_then(|host_id| ids.get(&host_id).copied()));
        all
    }
    fn status(&self) -> Status {
        if *self.side() == StandbySide::Guest {
            return self.guest.status();
        }
        let mut status = self.host.status();
        let ids = lock(&self.ids);
        status.clients.retain_mut(|client| match ids.get(&client.id) {
            Some(name) => {
                client.id = *name;
                true
            }
            None => false,
        });
        status.slow = self.guest.shared.restart_counters();
        status
    }
    fn workers(&self) -> WorkerCount {
        match *self.side() {
            StandbySide::Host => self.host.workers(),
            StandbySide::Guest => self.guest.workers(),
        }
    }
    fn set_workers(&self, running: usize) -> io::Result<()> {
        match *self.side() {
            StandbySide::Host => self.host.set_workers(running),
            StandbySide::Guest => self.guest.set_workers(running),
        }
    }
    /// Kernels know their routes themselves.
    fn network_changed(&self) {}
    fn policy_changed(&self) {
        match *self.side() {
            StandbySide::Host => self.host.policy_changed(),
            StandbySide::Guest => self.guest.policy_changed(),
        }
    }
    fn execute(&self, words: &[String]) -> io::Result<Executed> {
        match *self.side() {
            StandbySide::Host => self.host.execute(words),
            StandbySide::Guest => self.guest.execute(words),
        }
    }
    fn move_to(&self, side_name: &str) -> io::Result<Movement> {
        let to = match side_name {
            "host" => StandbySide::Host,
            name if name == self.guest.name() => StandbySide::Guest,
            _ => {
                let why = format!("its sides are host and {}", self.guest.name());
                return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
            }
        };
        let movement = {
            let mut side = self.side.write().unwrap_or_else(PoisonError::into_inner);
            if *side == to {
                return Ok(Movement::default());
            }
            let movement = self.move_clients(*side, to)?;
            *side = to;
            movement
        };
        self.policy_changed();
        tracing::info!(to = side_name, ?movement, "moved");
        Ok(movement)
    }
    fn stop(self: Box<Self>) {
        drop(self);
    }
}
