//! Captures. Flow groups tap their ports; the slow thread says whose connections are, and when a direct one begins and
//! ends. Modules are told of direct ones in the same places (`direct_modules.rs`).

use crate::api::TakenSyn;
use crate::direct_end::DirectEnd;
use crate::direct_frames::lock;
use crate::host::SlowHost;
use crate::messages::ToGroup;
use crate::owner::split;
use crate::slow::SlowState;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use towpath_capture::direct::{Place, Sink, Watch};
use towpath_capture::{Memory, Name, Tap, Wish};
use towpath_ring::wake::{doorbell, drain};
use towpath_runtime::Capture;
use towpath_runtime::capture::Next;
use towpath_runtime::requests::{Caller, Request, Taps};
use towpath_tcp::flow::{FourTuple, Owner, PortId};

/// A running capture of this stack.
pub struct FastCapture {
    memory: Memory,
    watch: Arc<Mutex<Watch<Tap>>>,
    /// Notified when there is a first direct connection.
    call: Arc<OwnedFd>,
    slow: Caller,
    /// There is one capture at a time.
    running: Arc<AtomicBool>,
}

impl FastCapture {
    /// Begins one. `ports[group]` is the number of that group's ports.
    pub fn begin(
        wish: &Wish,
        ports: &[usize],
        slow: &Caller,
        running: &Arc<AtomicBool>,
    ) -> std::io::Result<Box<dyn Capture>> {
        let (memory, writers) = Memory::new(1 + ports.iter().sum::<usize>(), wish.bytes)?;
        let call = Arc::new(doorbell()?);
        if running.swap(true, Ordering::AcqRel) {
            return Err(std::io::Error::new(
                std::io::ErrorKind::ResourceBusy,
                "a capture of this service runs already",
            ));
        }
        let mut writers = writers.into_iter();
        let mut taps = |count: usize| writers.by_ref().take(count).map(|writer| Tap::new(writer, wish)).collect();
        let ports = ports.iter().map(|count| taps(*count)).collect();
        // There is a writer for it: one more than there are ports.
        let other = writers.next().ok_or(std::io::ErrorKind::InvalidInput)?;
        let watch = Arc::new(Mutex::new(Watch::new(Tap::new(other, wish).calls(Arc::clone(&call)))));
        let taps = Taps { ports, other: Arc::clone(&watch) };
        let capture = Self { memory, watch, call, slow: slow.clone(), running: Arc::clone(running) };
        slow.answer::<()>(|done| Request::Capture(Some(taps), done));
        Ok(Box::new(capture))
    }
}

impl Capture for FastCapture {
    fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }
    fn look(&mut self) -> Next {
        // A connection that comes from now on notifies again.
        drain(self.call.as_fd());
        let mut watch = lock(&self.watch);
        match watch.look() {
            true => Next::Now,
            false if watch.is_empty() => Next::Called,
            false => Next::Soon,
        }
    }
    fn call(&self) -> Option<BorrowedFd<'_>> {
        Some(self.call.as_fd())
    }
}

impl Drop for FastCapture {
    fn drop(&mut self) {
        lock(&self.watch).finish();
        self.slow.answer::<()>(|done| Request::Capture(None, done));
        self.running.store(false, Ordering::Release);
    }
}

impl SlowState {
    /// Begins (`Some`) or ends a capture; `done` is dropped when all flow groups know it.
    pub fn capture(&mut self, taps: Option<Taps>, done: &mpsc::Sender<()>) {
        let (ports, watch) = match taps {
            Some(Taps { ports, other }) => (ports.into_iter().map(Some).collect(), Some(other)),
            None => (self.host.flow_groups.iter().map(|_| None).collect(), None),
        };
        let before = self.host.forwards_by();
        self.host.watch = watch;
        if self.host.forwards_by() != before {
            self.slow.change_splices(&mut self.host);
        }
        self.name_all();
        for (group, taps) in self.host.flow_groups.iter_mut().zip::<Vec<Option<Vec<Tap>>>>(ports) {
            group.to.send(ToGroup::Capture { taps, done: done.clone() });
        }
    }

    /// Says whose all connections are, and looks at the direct ones from now on.
    fn name_all(&mut self) {
        let Some(watch) = self.host.watch.clone() else { return };
        for info in self.slow.connections() {
            if let Some(owner) = info.owner {
                self.host.tell_name(owner, &info.tuple);
            }
        }
        for (end, tuple) in self.direct_ends() {
            self.host.with_place(&end, 0, |place| lock(&watch).is_open(place, ends(&tuple)));
        }
    }

    /// All ends of direct connections.
    pub fn direct_ends(&mut self) -> Vec<(DirectEnd, FourTuple)> {
        let Self { slow, host, .. } = self;
        let all = slow.connections().into_iter();
        let direct = all.filter_map(|info| {
            let (client, slot) = host.find(info.owner?)?;
            Some((client.slot(slot).own.direct?, info.tuple))
        });
        direct.collect()
    }

    /// Says whose the connection is that this owner opens. Its name is there before its first frame is shown.
    pub fn name_opening(&self, owner: Owner) {
        if self.host.watch.is_some()
            && let Some(tuple) = self.slow.tuple_of(owner)
        {
            self.host.tell_name(owner, &tuple);
        }
    }
}

impl SlowHost {
    /// Says whose an end of a connection is, if somebody captures.
    pub fn tell_name(&self, owner: Owner, tuple: &FourTuple) {
        let Some(watch) = &self.watch else { return };
        let client = self.clients.get(split(owner).0 as usize).and_then(Option::as_ref);
        if let Some(client) = client {
            let [local, remote] = ends(tuple);
            let (pid, uid, program) = (client.shared.pid, client.shared.uid, client.shared.name.clone());
            lock(watch).name(&Name { local, remote, pid, uid, program });
        }
    }

    /// Shows a SYN that the kernel has handed over.
    pub fn watch_syn(&self, syn: &TakenSyn) {
        if let Some(watch) = &self.watch {
            lock(watch).received(syn.port.0.into(), &syn.frame);
        }
    }

    /// Shows a SYN that the kernel has sent at this time.
    pub fn watch_sent_syn(&self, owner: Owner, tuple: &FourTuple, port: PortId, time: u64, frame: &[u8]) {
        if let Some(watch) = &self.watch {
            self.tell_name(owner, tuple);
            lock(watch).sent(port.0.into(), time, frame);
        }
    }

    /// A direct connection begins.
    pub fn watch_direct(&self, end: &DirectEnd, owners: [Owner; 2], tuple: &FourTuple) {
        self.opens_for_modules(end, tuple);
        let Some(watch) = &self.watch else { return };
        self.tell_name(owners[0], tuple);
        self.tell_name(owners[1], &tuple.reversed());
        self.with_place(end, 0, |place| lock(watch).opens(place, ends(tuple)));
    }

    /// One end of a direct connection is done with it.
    pub fn watch_end(&self, end: &DirectEnd, reset: bool) {
        let is_last = self.pairs.other(end).is_none();
        self.ends_for_modules(end, reset, is_last);
        if let Some(watch) = &self.watch {
            ends_in(&mut lock(watch), end, reset, is_last);
        }
    }

    /// Calls this with the place of a direct connection that these selectors choose.
    pub fn with_place(&self, end: &DirectEnd, selectors: u32, call: impl FnOnce(&Place<'_>)) {
        if let Some(pair) = self.pairs.pair(end) {
            let (memory, geometry) = (pair.memfd.as_fd(), pair.region.geometry());
            call(&Place { pair: end.number, memory, geometry, slot: end.slot, side: end.side, selectors });
        }
    }
}

/// One end of a direct connection is done with it. `is_last`: so is the other.
pub fn ends_in<S: Sink>(watch: &mut Watch<S>, end: &DirectEnd, reset: bool, is_last: bool) {
    watch.ends(end.number, end.slot, end.side, reset);
    if is_last {
        watch.forget(end.number, end.slot);
    }
}

/// The two ends of a connection: the local one first.
pub fn ends(tuple: &FourTuple) -> [SocketAddr; 2] {
    let end = |(ip, port): (IpAddr, u16)| SocketAddr::new(ip, port);
    [end((tuple.local, tuple.local_port)), end((tuple.remote, tuple.remote_port))]
}
