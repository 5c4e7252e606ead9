//! A stack that records its calls, and a service around it.
#![allow(dead_code, missing_docs)]

pub mod client;

pub use client::{Client, Scratch, connect};

use rustix::fd::OwnedFd;
use std::collections::HashMap;
use std::io;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use towpath_ring::Geometry;
use towpath_runtime::{
    ClientId, ClientSetup, ClientStatus, Lease, PairHandle, Proof, Reservation, SocketStatus, Stack, Status,
};
use towpath_service::admission::Admission;
use towpath_service::live::LiveSettings;
use towpath_service::server::{Ended, Server, Sockets};
use towpath_service::state::{ServiceState, Settings};

/// A call of the stack.
#[derive(Debug)]
pub enum StackCall {
    Client { id: ClientId, uid: u32, pid: i32, doorbells: usize },
    Context { id: ClientId, context: u32, wake: OwnedFd },
    DropContext { id: ClientId, context: u32 },
    Reserve { id: ClientId, slot: u32, proof: Proof, held: Option<OwnedFd> },
    Hangup { id: ClientId, slot: u32, generation: u32 },
    Departed { id: ClientId, process: u32 },
    Removed { id: ClientId },
}

/// Records its calls and keeps the descriptors that it is given.
#[derive(Clone, Default)]
pub struct RecordingStack {
    pub calls: Arc<Mutex<Vec<StackCall>>>,
    /// Users of the sockets and clients that it reports.
    pub listed: Arc<Mutex<Vec<u32>>>,
    next: Arc<AtomicU32>,
    /// The leases of clients that it has not forgotten.
    pub leases: Arc<Mutex<HashMap<ClientId, Lease>>>,
    /// Clients that have ended are not forgotten.
    pub drains: Arc<AtomicBool>,
    /// Listeners stay the kernel's.
    pub listens_in_kernel: Arc<AtomicBool>,
    /// Clients make the memory of their regions.
    pub takes_client_memory: Arc<AtomicBool>,
}

impl RecordingStack {
    fn record(&self, call: StackCall) {
        self.calls.lock().unwrap().push(call);
    }
    pub fn count(&self, which: impl Fn(&StackCall) -> bool) -> usize {
        self.calls.lock().unwrap().iter().filter(|calls| which(calls)).count()
    }
    /// What it was told of ports and listeners, by slot.
    pub fn proofs(&self) -> Vec<(u32, Proof)> {
        let calls = self.calls.lock().unwrap();
        let proof = |call: &StackCall| match call {
            StackCall::Reserve { slot, proof, .. } => Some((*slot, *proof)),
            _ => None,
        };
        calls.iter().filter_map(proof).collect()
    }
    /// Frees a slot: its reservations are dropped.
    pub fn free(&self, freed: u32) {
        for call in self.calls.lock().unwrap().iter_mut() {
            if let StackCall::Reserve { slot, held, .. } = call
                && *slot == freed
            {
                *held = None;
            }
        }
    }
    pub fn removed(&self) -> usize {
        self.count(|calls| matches!(calls, StackCall::Removed { .. }))
    }
    pub fn hangups(&self) -> Vec<(u32, u32)> {
        let calls = self.calls.lock().unwrap();
        calls
            .iter()
            .filter_map(|t| {
                if let StackCall::Hangup { slot, generation, .. } = t { Some((*slot, *generation)) } else { None }
            })
            .collect()
    }
}

impl Stack for RecordingStack {
    fn name(&self) -> &'static str {
        "recording"
    }
    fn needs_proof(&self) -> bool {
        self.listens_in_kernel.load(Ordering::Relaxed)
    }
    fn namespace(&self) -> Option<u64> {
        self.needs_proof().then(towpath_service::port_proof::own_namespace)?
    }
    fn listens_in_kernel(&self) -> bool {
        self.listens_in_kernel.load(Ordering::Relaxed)
    }
    fn takes_client_memory(&self) -> bool {
        self.takes_client_memory.load(Ordering::Relaxed)
    }
    fn add_client(&self, setup: ClientSetup) -> io::Result<ClientId> {
        let id = ClientId(self.next.fetch_add(1, Ordering::Relaxed));
        self.leases.lock().unwrap().insert(id, setup.lease.unwrap());
        self.record(StackCall::Client { id, uid: setup.uid, pid: setup.pid, doorbells: setup.doorbells.len() });
        Ok(id)
    }
    fn add_context(&self, id: ClientId, context: u32, wake: OwnedFd) {
        self.record(StackCall::Context { id, context, wake });
    }
    fn drop_context(&self, id: ClientId, context: u32) {
        self.record(StackCall::DropContext { id, context });
    }
    fn reserve(&self, id: ClientId, slot: u32, _seq: u32, reservation: Reservation) {
        let Reservation { proof, held, .. } = reservation;
        self.record(StackCall::Reserve { id, slot, proof, held: Some(held) });
    }
    fn hangup(&self, id: ClientId, slot: u32, generation: u32) {
        self.record(StackCall::Hangup { id, slot, generation });
    }
    fn departed(&self, id: ClientId, process: u32) {
        self.record(StackCall::Departed { id, process });
    }
    fn policy_changed(&self) {}
    fn pair(&self, _: ClientId, _: u32, _: u32) -> Option<PairHandle> {
        None
    }
    fn remove_client(&self, id: ClientId) {
        if !self.drains.load(Ordering::Relaxed) {
            self.leases.lock().unwrap().remove(&id);
        }
        self.record(StackCall::Removed { id });
    }
    fn connections(&self) -> Vec<SocketStatus> {
        let any = (Ipv4Addr::UNSPECIFIED, 0).into();
        let connection = |uid: &u32| SocketStatus {
            local: any,
            peer: any,
            state: "ESTAB".into(),
            client: None,
            slot: 0,
            uid: *uid,
            pid: 1,
            program: "program".into(),
            tcp: None,
            send_q: 0,
            recv_q: 0,
            flow_group: None,
            direct: false,
            halves: None,
        };
        self.listed.lock().unwrap().iter().map(connection).collect()
    }
    fn status(&self) -> Status {
        let client = |uid: &u32| ClientStatus {
            id: ClientId(0),
            uid: *uid,
            pid: 1,
            name: "program".into(),
            slots: 0,
            contract_violations: 0,
            leaving: false,
            busy_us: 0,
        };
        let clients = self.listed.lock().unwrap().iter().map(client).collect();
        Status { clients, ..Status::default() }
    }
    fn network_changed(&self) {}
    fn stop(self: Box<Self>) {}
}

pub const GEOMETRY: Geometry = Geometry {
    slots: 64,
    app_slots: 32,
    tx_bytes: 4096,
    rx_bytes: 4096,
    contexts: 4,
    flow_groups: 2,
    ..Geometry::DEFAULT
};

/// A service in this process.
pub struct Service {
    pub stack: RecordingStack,
    pub state: Arc<ServiceState>,
    pub scratch: Scratch,
    thread: Option<std::thread::JoinHandle<Ended>>,
}

impl Service {
    pub fn start(name: &str) -> Self {
        Self::with(name, |_| {})
    }
    pub fn with(name: &str, change: impl FnOnce(&mut Settings)) -> Self {
        let scratch = Scratch::new(name);
        let mut settings = Settings {
            sandbox: std::sync::Arc::new(towpath_service::sandbox::Sandbox::new(
                &towpath_service::config::Config::default(),
            )),
            socket: scratch.socket(),
            geometry: GEOMETRY,
            idle_ms: 0,
            policy: towpath_service::policy::Policy::new(Vec::new(), Default::default()).unwrap(),
            namespaces: Arc::default(),
            stacks: Default::default(),
            auto: towpath_service::auto::Auto::new(towpath_service::auto::Reach::Network, false),
            live: LiveSettings::new(Admission::new(rustix::process::geteuid().as_raw(), &[]).unwrap(), 300, None),
            source: Default::default(),
            cores: towpath_service::config::CoresSetting::Fixed(1),
            descriptors: 1 << 20,
            interfaces: Vec::new(),
            ports: vec![None],
        };
        change(&mut settings);
        let stack = RecordingStack::default();
        let sockets = Sockets::listen(&scratch.socket(), false).unwrap();
        let mut server = Server::new(settings, Box::new(stack.clone()), sockets).unwrap();
        let state = server.state().clone();
        let thread = std::thread::spawn(move || {
            let ended = server.run(None).unwrap();
            server.stop();
            ended
        });
        Self { stack, state, scratch, thread: Some(thread) }
    }
    pub fn connect(&self) -> OwnedFd {
        connect(&self.scratch.socket()).unwrap()
    }
    pub fn client(&self) -> Client {
        Client::hello(self.connect(), 0).unwrap()
    }
    /// Has its main thread ended?
    pub fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(std::thread::JoinHandle::is_finished)
    }
    pub fn wait_end(mut self) -> Ended {
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.state.request_stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
