//! A minimal client process for the tests of every stack.

use rustix::fd::{AsFd, OwnedFd};
use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use towpath_ring::command::{Accepted, Command, op};
use towpath_ring::lines::{app_flags, state, status, want};
use towpath_ring::options::{Options, option_flags};
use towpath_ring::wake::{about_to_sleep, doorbell, futex_wait, notify};
use towpath_ring::{AppLine, Geometry, Region, Slot, StackLine};
use towpath_runtime::{ClientId, ClientLease, ClientNamespace, ClientSetup, Lease, Stack};

/// Longer than any step may take. An event that comes this late was lost.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// Sizes for small tests.
pub fn small(flow_groups: usize) -> Geometry {
    Geometry {
        slots: 64,
        app_slots: 32,
        tx_bytes: 16384,
        rx_bytes: 16384,
        contexts: 4,
        flow_groups: flow_groups as u32,
        ..Geometry::DEFAULT
    }
}

/// A client.
pub struct App {
    pub region: Arc<Region>,
    pub id: ClientId,
    doorbells: Vec<OwnedFd>,
    writer: Mutex<Writer>,
}

/// Positions in the queues to the stack, and the slots in use. One thread writes at a time.
#[derive(Default)]
struct Writer {
    tails: [u32; 17],
    used: HashSet<u32>,
}

/// An errno.
pub type Errno = i32;

impl App {
    pub fn new(stack: &dyn Stack, geometry: Geometry) -> Arc<Self> {
        Self::named(stack, geometry, "test")
    }
    pub fn named(stack: &dyn Stack, geometry: Geometry, name: &str) -> Arc<Self> {
        Self::of_user(stack, geometry, name, 1000)
    }
    pub fn of_user(stack: &dyn Stack, geometry: Geometry, name: &str, uid: u32) -> Arc<Self> {
        Self::with(stack, geometry, (name, uid), None, ClientNamespace::default())
    }
    /// A client of this network namespace.
    pub fn of_namespace(stack: &dyn Stack, geometry: Geometry, namespace: ClientNamespace) -> Arc<Self> {
        Self::with(stack, geometry, ("elsewhere", 1000), None, namespace)
    }
    /// A client that counts to its user by this lease.
    pub fn leased(stack: &dyn Stack, geometry: Geometry, lease: Lease) -> Arc<Self> {
        Self::with(stack, geometry, ("leased", 1000), Some(lease), ClientNamespace::default())
    }
    fn with(
        stack: &dyn Stack,
        geometry: Geometry,
        (name, uid): (&str, u32),
        lease: Option<Lease>,
        namespace: ClientNamespace,
    ) -> Arc<Self> {
        let (region, _memfd) = Region::create(geometry).unwrap();
        let region = Arc::new(region);
        let doorbells: Vec<OwnedFd> = (0..=geometry.flow_groups).map(|_| doorbell().unwrap()).collect();
        let copies = doorbells.iter().map(|d| d.try_clone().unwrap()).collect();
        let setup = ClientSetup {
            region: Arc::clone(&region),
            doorbells: copies,
            uid,
            pid: 4711,
            name: name.into(),
            remote_waker: None,
            namespace,
            lease,
        };
        let id = stack.add_client(setup).unwrap();
        Arc::new(Self { region, id, doorbells, writer: Mutex::default() })
    }
    /// The setup by which another stack serves this client from now on.
    pub fn setup(&self) -> ClientSetup {
        ClientSetup {
            region: Arc::clone(&self.region),
            doorbells: self.doorbells.iter().map(|d| d.try_clone().unwrap()).collect(),
            uid: 1000,
            pid: 4711,
            name: "moved".into(),
            remote_waker: None,
            namespace: Default::default(),
            lease: None,
        }
    }
    fn push(&self, slot: Slot, queue: usize) {
        let flow_groups = self.region.geometry().flow_groups as usize;
        let queue = queue.min(flow_groups);
        let (app, stack) = (self.region.app(slot), self.region.stack(slot));
        let set = if queue == flow_groups { self.region.commands() } else { self.region.data_queue(queue) };
        let (seq, ack) =
            if queue == flow_groups { (&app.ctl_seq, &stack.ctl_ack) } else { (&app.data_seq, &stack.data_ack) };
        let mut writer = self.writer.lock().unwrap();
        set.push(&mut writer.tails[queue], slot, seq, ack);
        if set.must_notify() {
            notify(self.doorbells[queue].as_fd());
        }
    }
    /// Queues a slot whether its last entry is acknowledged or not.
    pub fn push_anything(&self, slot: Slot, queue: usize) {
        let flow_groups = self.region.geometry().flow_groups as usize;
        let set = if queue >= flow_groups { self.region.commands() } else { self.region.data_queue(queue) };
        let mut writer = self.writer.lock().unwrap();
        set.push(&mut writer.tails[queue.min(flow_groups)], slot, &AtomicU32::new(0), &AtomicU32::new(0));
    }
    /// The slot that the next command takes.
    pub fn next_slot(&self) -> Slot {
        let free = |s: &Slot| self.region.stack(*s).state.load(Acquire) == state::FREE;
        let unused = |s: &Slot| !self.writer.lock().unwrap().used.contains(&s.raw());
        self.region.layout().app_slots().find(|s| free(s) && unused(s)).expect("a free slot")
    }
    fn take_slot(&self) -> Slot {
        let slot = self.next_slot();
        self.writer.lock().unwrap().used.insert(slot.raw());
        slot
    }
    fn command(self: &Arc<Self>, op: u32, addr: IpAddr, port: u16, backlog: u32) -> Result<Sock, Errno> {
        let (any, addr, port) = (Ipv6Addr::UNSPECIFIED, mapped(addr), u32::from(port));
        let flags = app_flags::NODELAY;
        let command = if op == op::CONNECT {
            Command { op, remote_addr: addr, remote_port: port, local_addr: any, local_port: 0, backlog, flags }
        } else {
            Command { op, remote_addr: any, remote_port: 0, local_addr: addr, local_port: port, backlog, flags }
        };
        self.post(&command)
    }
    /// Posts a command for the first free slot.
    pub fn post(self: &Arc<Self>, command: &Command) -> Result<Sock, Errno> {
        let slot = self.take_slot();
        let sock = Sock::new(self, slot, 0);
        let seq = self.region.command(slot).post(command);
        self.push(slot, self.region.geometry().flow_groups as usize);
        sock.wait("a command's answer", || sock.stack().command_done.load(Acquire) == seq);
        match sock.stack().command_result.load(Relaxed) {
            0 => Ok(sock.adopt(self.region.stack(slot).generation.load(Relaxed))),
            error => {
                self.writer.lock().unwrap().used.remove(&slot.raw());
                Err(error)
            }
        }
    }
    pub fn listen(self: &Arc<Self>, addr: IpAddr, port: u16, backlog: u32) -> Result<Sock, Errno> {
        self.command(op::LISTEN, addr, port, backlog)
    }
    /// Listens with SO_REUSEPORT.
    pub fn listen_shared(self: &Arc<Self>, addr: IpAddr, port: u16, backlog: u32) -> Result<Sock, Errno> {
        // The options belong to the slot that the next command takes.
        self.region.options(self.next_slot()).post(&Options { flags: option_flags::REUSEPORT, ..Options::default() });
        self.listen(addr, port, backlog)
    }
    /// Starts to connect.
    pub fn begin(self: &Arc<Self>, addr: IpAddr, port: u16) -> Result<Sock, Errno> {
        self.command(op::CONNECT, addr, port, 0)
    }
    /// Connects. An error is the errno of `connect`.
    pub fn connect(self: &Arc<Self>, addr: IpAddr, port: u16) -> Result<Sock, Errno> {
        let sock = self.begin(addr, port)?;
        sock.wait("a connection", || sock.stack().state.load(Acquire) != state::CONNECTING);
        match sock.error() {
            0 => Ok(sock),
            error => {
                sock.close();
                Err(error)
            }
        }
    }
    /// Notifies every doorbell.
    pub fn ring_all(&self) {
        for doorbell in &self.doorbells {
            notify(doorbell.as_fd());
        }
    }
    /// A connected pair: this client's end, and the end that `listener` accepts.
    pub fn pair(self: &Arc<Self>, listener: &mut Sock, port: u16) -> (Sock, Sock) {
        let sock = self.connect(IpAddr::V4(Ipv4Addr::LOCALHOST), port).unwrap();
        (sock, listener.accept())
    }
    /// Number of slots that the stack has in use.
    pub fn busy_slots(&self) -> usize {
        let all = (0..self.region.geometry().slots).filter_map(|s| self.region.slot(s));
        all.filter(|s| self.region.stack(*s).state.load(Acquire) != state::FREE).count()
    }
}

/// One socket.
pub struct Sock {
    pub app: Arc<App>,
    pub slot: Slot,
    pub generation: u32,
    tx_tail: u32,
    rx_head: u32,
    told: u32,
    flags: u32,
}

impl Sock {
    fn new(app: &Arc<App>, slot: Slot, generation: u32) -> Self {
        let sock = Self { app: Arc::clone(app), slot, generation, tx_tail: 0, rx_head: 0, told: 0, flags: 0 };
        let line = sock.line();
        line.tx_tail.store(0, Relaxed);
        line.rx_head.store(0, Relaxed);
        line.flags.store(0, Relaxed);
        line.ctx_mask.store(0, Relaxed);
        line.want.store(0, Relaxed);
        sock
    }
    fn adopt(mut self, generation: u32) -> Self {
        self.generation = generation;
        self.line().generation.store(generation, Release);
        self
    }
    /// `listen` on a listener.
    pub fn listen_again(&self, backlog: u32) -> Result<(), Errno> {
        let (_, command) = self.app.region.command(self.slot).read();
        let seq = self.app.region.command(self.slot).post(&Command { backlog, ..command });
        self.app.push(self.slot, self.app.region.geometry().flow_groups as usize);
        self.wait("a command's answer", || self.stack().command_done.load(Acquire) == seq);
        match self.stack().command_result.load(Relaxed) {
            0 => Ok(()),
            error => Err(error),
        }
    }
    pub fn line(&self) -> &AppLine {
        self.app.region.app(self.slot)
    }
    pub fn stack(&self) -> &StackLine {
        self.app.region.stack(self.slot)
    }
    pub fn error(&self) -> Errno {
        self.stack().error.load(Acquire) as i32
    }
    /// Notifies the flow group of this socket.
    pub fn queue_data(&self) {
        self.app.push(self.slot, self.stack().flow_group.load(Relaxed) as usize);
    }
    /// Sleeps on the slot's futex until `done`. A missing event fails the test.
    pub fn wait(&self, what: &str, mut done: impl FnMut() -> bool) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let seq = self.stack().event_seq.load(Acquire);
            if done() {
                return;
            }
            self.line().sleepers.fetch_add(1, SeqCst);
            about_to_sleep::<AtomicU32>();
            if !done() {
                let _ = futex_wait(&self.stack().event_seq, seq, Some(TIMEOUT));
            }
            self.line().sleepers.fetch_sub(1, SeqCst);
            if Instant::now() >= deadline {
                let line = self.stack();
                panic!(
                    "waited too long for {what} on slot {} (there now: {}): state {} status {} error {} tx {}..{} rx {}..{}",
                    self.slot.raw(),
                    done(),
                    line.state.load(Relaxed),
                    line.status.load(Relaxed),
                    self.error(),
                    line.tx_head.load(Relaxed),
                    self.tx_tail,
                    self.rx_head,
                    line.rx_tail.load(Relaxed)
                );
            }
        }
    }
    /// Reads without waiting. `None` means nothing yet, 0 the end of the stream.
    pub fn try_read(&mut self, out: &mut [u8]) -> Option<Result<usize, Errno>> {
        let bits = self.stack().status.load(Acquire);
        let unread = self.stack().rx_tail.load(Acquire).wrapping_sub(self.rx_head);
        let ring = self.app.region.rx(self.slot);
        if unread == 0 {
            return match bits {
                b if b & status::RESET != 0 => Some(Err(self.error())),
                b if b & status::RX_EOF != 0 => Some(Ok(0)),
                _ => None,
            };
        }
        assert!(unread <= ring.capacity(), "the stack has put {unread} bytes into a ring of {}", ring.capacity());
        let n = (unread as usize).min(out.len());
        ring.read(self.rx_head, &mut out[..n]);
        self.rx_head = self.rx_head.wrapping_add(n as u32);
        self.line().rx_head.store(self.rx_head, Release);
        let was_near_full = unread as usize * 4 >= ring.capacity() as usize * 3;
        if was_near_full || self.rx_head.wrapping_sub(self.told) >= ring.capacity() / 4 {
            self.told = self.rx_head;
            self.queue_data();
        }
        Some(Ok(n))
    }
    /// Reads at least a byte; 0 means the end of the stream.
    pub fn read(&mut self, out: &mut [u8]) -> Result<usize, Errno> {
        loop {
            if let Some(result) = self.try_read(out) {
                return result;
            }
            let head = self.rx_head;
            self.wait("data", || {
                self.stack().rx_tail.load(Acquire) != head
                    || self.stack().status.load(Acquire) & (status::RX_EOF | status::RESET) != 0
            });
        }
    }
    /// Reads until `out` is full.
    pub fn read_exact(&mut self, out: &mut [u8]) -> Result<(), Errno> {
        let mut at = 0;
        while at < out.len() {
            match self.read(&mut out[at..])? {
                0 => return Err(0),
                n => at += n,
            }
        }
        Ok(())
    }
    fn room(&self) -> usize {
        let ring = self.app.region.tx(self.slot).capacity();
        let queued = self.tx_tail.wrapping_sub(self.stack().tx_head.load(Acquire));
        assert!(queued <= ring, "the stack has acknowledged what was never sent");
        (ring - queued) as usize
    }
    /// Writes without waiting. Returns how much fitted.
    pub fn try_write(&mut self, bytes: &[u8]) -> usize {
        let n = self.room().min(bytes.len());
        if n > 0 {
            self.app.region.tx(self.slot).write(self.tx_tail, &bytes[..n]);
            self.tx_tail = self.tx_tail.wrapping_add(n as u32);
            self.line().tx_tail.store(self.tx_tail, Release);
            self.queue_data();
        }
        n
    }
    /// Writes everything, waiting for room.
    pub fn write_all(&mut self, mut bytes: &[u8]) -> Result<(), Errno> {
        while !bytes.is_empty() {
            if self.stack().status.load(Acquire) & (status::RESET | status::TX_CLOSED) != 0 {
                return Err(self.error());
            }
            bytes = &bytes[self.try_write(bytes)..];
            if !bytes.is_empty() {
                self.line().want.store(want::WRITABLE, SeqCst);
                let third = self.app.region.tx(self.slot).capacity() as usize / 3;
                self.wait("room", || self.room() >= third || self.stack().status.load(Acquire) & status::RESET != 0);
                self.line().want.store(0, Relaxed);
            }
        }
        Ok(())
    }
    fn set(&mut self, bits: u32) {
        self.flags |= bits;
        self.line().flags.store(self.flags, Release);
        self.queue_data();
    }
    /// Ends the sending direction.
    pub fn shutdown(&mut self) {
        self.set(app_flags::SHUT_WR);
    }
    /// Accepts the next connection.
    pub fn accept(&mut self) -> Sock {
        loop {
            if let Some(sock) = self.try_accept() {
                return sock;
            }
            let head = self.rx_head;
            self.wait("a connection to accept", || self.stack().rx_tail.load(Acquire) != head);
        }
    }
    /// Accepts the next connection if there is one.
    pub fn try_accept(&mut self) -> Option<Sock> {
        if self.stack().rx_tail.load(Acquire) == self.rx_head {
            return None;
        }
        let mut record = [0; Accepted::BYTES];
        self.app.region.rx(self.slot).read(self.rx_head, &mut record);
        self.rx_head = self.rx_head.wrapping_add(Accepted::BYTES as u32);
        self.line().rx_head.store(self.rx_head, Release);
        let record = Accepted::from_bytes(&record);
        let slot = self.app.region.slot(record.slot).expect("a slot");
        Some(Sock::new(&self.app, slot, 0).adopt(record.generation))
    }
    /// Closes. The stack sends what is queued, and frees the slot.
    pub fn close(mut self) {
        self.set(app_flags::CLOSED);
        self.app.writer.lock().unwrap().used.remove(&self.slot.raw());
    }
    /// Closes a direct connection while the stack naps: it is queued, and the stack is not notified.
    pub fn close_unheard(self) {
        self.line().flags.store(self.flags | app_flags::CLOSED, Release);
        let (region, slot) = (&self.app.region, self.slot);
        let mut writer = self.app.writer.lock().unwrap();
        let tail = &mut writer.tails[region.geometry().flow_groups as usize];
        region.commands().push(tail, slot, &region.app(slot).ctl_seq, &region.stack(slot).ctl_ack);
        writer.used.remove(&slot.raw());
    }
    /// Closes with a reset.
    pub fn abort(mut self) {
        self.set(app_flags::CLOSED | app_flags::ABORT);
        self.app.writer.lock().unwrap().used.remove(&self.slot.raw());
    }
}

/// Waits until `done`, checking now and then.
pub fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !done() {
        assert!(Instant::now() < deadline, "waited too long until {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn mapped(addr: IpAddr) -> Ipv6Addr {
    match addr {
        IpAddr::V4(addr) => addr.to_ipv6_mapped(),
        IpAddr::V6(addr) => addr,
    }
}

/// A share of so many descriptors.
#[derive(Clone)]
pub struct Few(Arc<AtomicU32>);

impl Few {
    /// A lease, and what is left of it.
    pub fn lease(count: u32) -> (Lease, Self) {
        let few = Self(Arc::new(AtomicU32::new(count)));
        (Box::new(few.clone()), few)
    }
    /// Descriptors that can still be taken.
    pub fn left(&self) -> u32 {
        self.0.load(SeqCst)
    }
}

impl ClientLease for Few {
    fn take_descriptor(&self) -> bool {
        self.0.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok()
    }
    fn give_descriptor_back(&self) {
        self.0.fetch_add(1, SeqCst);
    }
}
