//! A stack for tests: joins connections and listeners of its clients ring to ring, with no protocol in between. One
//! thread looks at everything in turn.

#[path = "fake_direct.rs"]
mod direct;
#[path = "fake_halves.rs"]
mod halves;
#[path = "fake_splice.rs"]
pub mod splice;

pub use direct::DIRECT;
use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};
use towpath_ring::command::{Accepted, NOT_OURS, V6ONLY, op};
use towpath_ring::control::{self, Reply, Request};
use towpath_ring::dirty::acknowledge;
use towpath_ring::lines::{app_flags, state, status};
use towpath_ring::{Geometry, Region, Slot, address, wake};

/// One end of a connection: client number and slot.
type End = (usize, Slot);
/// The backlog of listeners that this stack refuses.
pub const FORBIDDEN: u32 = 1313;
/// Only a port that this stack chooses can connect to this one, which refuses.
pub const IN_TIME_WAIT: u16 = 3;
/// While it is set, nobody is told where another stack is. Then all learn that there is none.
pub static KEEPS_STACKS: AtomicBool = AtomicBool::new(false);
/// An address and port.
type Address = (Ipv6Addr, u16);

struct FakeConnection {
    ends: [End; 2],
    generations: [u32; 2],
    /// Bytes copied from each end to the other.
    copied: [u32; 2],
    fin: [bool; 2],
    urgent: [Option<u32>; 2],
    gone: [bool; 2],
    aborted: bool,
}

struct FakeClient {
    region: Region,
    memfd: OwnedFd,
    doorbells: Vec<OwnedFd>,
    controls: Vec<UnixStream>,
    contexts: HashMap<u32, OwnedFd>,
    /// The stack's ends of the socketpairs by number, with their slots and generations.
    pairs: HashMap<u32, (u32, u32, UnixStream)>,
    /// Slots and generations of sockets whose pairs had hung up before `Reattach` came.
    ended: Vec<(u32, u32)>,
    reserved: HashMap<u32, OwnedFd>,
    next_slot: u32,
    /// Those that have asked for another stack.
    curious: Vec<UnixStream>,
    /// Positions in the command queue, the data queues, and the event queues by (context, thread).
    commands: u32,
    data_queues: Vec<u32>,
    events: HashMap<u32, u32>,
}

/// The stack.
pub struct Fake {
    geometry: Geometry,
    /// Bits of `towpath_ring::control::features`.
    features: u32,
    clients: Vec<FakeClient>,
    /// With `V6ONLY` or 0.
    listeners: Vec<(End, Address, u32)>,
    connections: Vec<FakeConnection>,
    direct: direct::Direct,
    next_port: u16,
}

/// Serves clients that connect to `path` until the process ends, or `stop` says so.
pub fn serve(path: &Path, geometry: Geometry, features: u32, stop: impl Fn() -> bool) -> io::Result<()> {
    use rustix::net::*;
    let listener =
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    // The socket gets its name when it listens, so that no client finds it before.
    let made = path.with_extension("new");
    bind(&listener, &SocketAddrUnix::new(&made)?)?;
    listen(&listener, 64)?;
    std::fs::rename(&made, path)?;
    let (clients, listeners, connections) = (Vec::new(), Vec::new(), Vec::new());
    let direct = direct::Direct::default();
    let mut fake = Fake { geometry, features, clients, listeners, connections, direct, next_port: 40_000 };
    let mut turns = 0u32;
    let mut looked = Instant::now();
    while !stop() {
        let mut busy = fake.step();
        turns += 1;
        if !busy || turns.is_multiple_of(64) {
            while let Ok(control) = accept_with(&listener, SocketFlags::CLOEXEC) {
                fake.hello(UnixStream::from(control))?;
                busy = true;
            }
            busy |= fake.requests()?;
        }
        if features != 0 && looked.elapsed() > Duration::from_millis(100) {
            fake.look_at_kernel_halves();
            looked = Instant::now();
        }
        if !busy {
            std::thread::sleep(Duration::from_micros(50));
        }
    }
    Ok(())
}

impl Fake {
    fn hello(&mut self, control: UnixStream) -> io::Result<()> {
        let Some((Request::Hello { join, .. }, _)) = control::recv_request(control.as_fd())? else { return Ok(()) };
        let known = self.clients.iter().position(|client| client.region.token() == join);
        let at = match known {
            Some(at) => at,
            None => {
                let (region, memfd) = Region::create(self.geometry)?;
                let doorbells = (0..=self.geometry.flow_groups).map(|_| wake::doorbell()).collect::<io::Result<_>>()?;
                self.clients.push(FakeClient {
                    region,
                    memfd,
                    doorbells,
                    controls: Vec::new(),
                    contexts: HashMap::new(),
                    pairs: HashMap::new(),
                    ended: Vec::new(),
                    reserved: HashMap::new(),
                    next_slot: self.geometry.app_slots,
                    curious: Vec::new(),
                    commands: 0,
                    data_queues: vec![0; self.geometry.flow_groups as usize],
                    events: HashMap::new(),
                });
                self.clients.len() - 1
            }
        };
        let client = &mut self.clients[at];
        let mut fds = vec![client.memfd.as_fd()];
        fds.extend(client.doorbells.iter().map(OwnedFd::as_fd));
        let (geometry, token) = (self.geometry, client.region.token());
        let features = self.features;
        let welcome = Reply::Welcome { geometry, token, process: 1, offset: 0, features, namespace: 0, idle_ms: 0 };
        control::send_reply(control.as_fd(), &welcome, &fds)?;
        control.set_nonblocking(true)?;
        client.controls.push(control);
        Ok(())
    }

    /// Serves the control sockets and looks for hang-ups.
    fn requests(&mut self) -> io::Result<bool> {
        let mut busy = false;
        for at in 0..self.clients.len() {
            let client = &mut self.clients[at];
            let mut open = Vec::new();
            for control in core::mem::take(&mut client.controls) {
                let keep = loop {
                    match control::recv_request(control.as_fd()) {
                        Ok(Some((request, fds))) => {
                            if !self.direct.request(client, &control, &request)? {
                                client.request(&control, request, fds);
                            }
                        }
                        Ok(None) => break false,
                        Err(error) => break error.kind() == io::ErrorKind::WouldBlock,
                    }
                    busy = true;
                };
                if keep {
                    open.push(control);
                }
            }
            client.controls = open;
            let told = if KEEPS_STACKS.load(Relaxed) { Vec::new() } else { core::mem::take(&mut client.curious) };
            for control in told {
                control::send_reply(control.as_fd(), &Reply::Refused { errno: libc::ENOENT }, &[])?;
            }
            let mut ended = core::mem::take(&mut client.ended);
            client.pairs.retain(|_, pair| {
                let over = hung_up(&pair.2);
                ended.extend(over.then_some((pair.0, pair.1)));
                !over
            });
            for (raw, generation) in ended {
                busy = true;
                if let Some(slot) = self.clients[at].region.slot(raw) {
                    // The doorbell of this close may not have been handled yet. It says whether the close is an abort.
                    let app = self.clients[at].region.app(slot);
                    let live = app.generation.load(Acquire) == generation;
                    let flags = if live { app.flags.load(Acquire) } else { 0 };
                    self.close((at, slot), generation, flags);
                }
            }
        }
        Ok(busy)
    }

    fn step(&mut self) -> bool {
        let mut busy = false;
        for at in 0..self.clients.len() {
            while let Some(slot) = self.clients[at].pop_command() {
                // As in the service, what was shown for a command is seen and closed before the command is answered.
                self.requests().expect("clients that can be answered");
                self.command((at, slot));
                busy = true;
            }
            for queue in 0..self.geometry.flow_groups as usize {
                while let Some(slot) = self.clients[at].pop_data(queue) {
                    self.data_notified((at, slot));
                    busy = true;
                }
            }
        }
        for at in 0..self.connections.len() {
            busy |= self.pump(at);
        }
        self.connections.retain(|c| c.gone != [true; 2]);
        busy
    }

    fn command(&mut self, end: End) {
        let client = &self.clients[end.0];
        let stack = client.region.stack(end.1);
        let (seq, command) = client.region.command(end.1).read();
        if stack.command_done.load(Relaxed) == seq {
            return self.look_at_direct(end);
        }
        let local = (command.local_addr, command.local_port as u16);
        let remote = (command.remote_addr, command.remote_port as u16);
        let held = client.region.command(end.1).holder.load(Relaxed) != 0;
        let listening = self.listeners.iter().any(|(at, ..)| *at == end);
        let result = match command.op {
            op::LISTEN if listening && command.backlog == FORBIDDEN => -libc::EACCES,
            op::LISTEN if listening => 0,
            // Without a holder, nobody would free the slot if the program were killed now.
            op::LISTEN | op::CONNECT if !held => -libc::EPROTO,
            op::LISTEN if self.features == 0 && self.listeners.iter().any(|(_, taken, _)| *taken == local) => {
                -libc::EADDRINUSE
            }
            // Stands for a listener that a policy forbids.
            op::LISTEN if command.backlog == FORBIDDEN => -libc::EACCES,
            op::LISTEN => {
                if command.backlog == DIRECT {
                    self.direct.listeners.push(end);
                }
                self.listeners.push((end, local, command.flags & V6ONLY));
                self.clients[end.0].open(end.1, state::LISTENING, local, (Ipv6Addr::UNSPECIFIED, 0));
                0
            }
            // Stands for a port from which the stack holds an old connection to the peer.
            op::CONNECT if remote.1 == IN_TIME_WAIT && command.local_port != 0 => -libc::EADDRNOTAVAIL,
            op::CONNECT => self.connect(end, remote),
            op::REFRESH => 0,
            op::SPLICE | op::SPLICE_TOLD => self.splice(end, command.remote_port),
            _ => -libc::EINVAL,
        };
        let client = &self.clients[end.0];
        client.region.stack(end.1).command_result.store(result, Relaxed);
        client.region.stack(end.1).command_done.store(seq, Release);
        self.raise(end);
    }

    fn connect(&mut self, end: End, remote: Address) -> i32 {
        if remote.1 == 2 {
            // Stands for a port that a policy forbids.
            return -libc::EACCES;
        }
        if matches!(remote.1, 1 | IN_TIME_WAIT) {
            // Stands for a port that answers late: the connection is refused after a while.
            self.clients[end.0].open(end.1, state::CONNECTING, (remote.0, remote.1), remote);
            let stack = self.clients[end.0].region.stack(end.1);
            stack.error.store(libc::ECONNREFUSED as u32, Relaxed);
            stack.state.store(state::CLOSED, Release);
            return 0;
        }
        let found = self.listeners.iter().rev().find(|(_, (addr, port), v6only)| {
            let four = remote.0.to_ipv4_mapped().is_some();
            let any = if four { address::is_any(*addr) && *v6only == 0 } else { addr.is_unspecified() };
            *port == remote.1 && (any || *addr == remote.0)
        });
        let Some(((at, listener), ..)) = found.copied() else { return NOT_OURS };
        let Some(accepted) = self.clients[at].take_slot() else { return -libc::ENFILE };
        self.next_port = self.next_port.wrapping_add(1).max(40_000);
        let four = Ipv4Addr::LOCALHOST.to_ipv6_mapped();
        let local = (if remote.0.to_ipv4_mapped().is_some() { four } else { Ipv6Addr::LOCALHOST }, self.next_port);
        let direct = at == end.0 && self.direct.listeners.contains(&(at, listener));
        let places = if direct { self.direct.place(&self.clients[at]).expect("a pair region") } else { [(0, 0); 2] };
        let theirs = self.clients[at].open_paired(accepted, state::ESTABLISHED, (remote, local), places[1]);
        let ours = self.clients[end.0].open_paired(end.1, state::ESTABLISHED, (local, remote), places[0]);
        let record = Accepted { slot: accepted.raw(), generation: theirs, remote_addr: local.0, remote_port: local.1 };
        let region = &self.clients[at].region;
        let tail = region.stack(listener).rx_tail.load(Relaxed);
        region.rx(listener).write(tail, &record.to_bytes());
        region.stack(listener).rx_tail.store(tail.wrapping_add(Accepted::BYTES as u32), Release);
        let (ends, generations) = ([end, (at, accepted)], [ours, theirs]);
        if direct {
            self.direct.join(ends, generations, places[0].1);
        } else {
            self.connections.push(FakeConnection {
                ends,
                generations,
                copied: [0; 2],
                fin: [false; 2],
                urgent: [None; 2],
                gone: [false; 2],
                aborted: false,
            });
        }
        self.raise((at, listener));
        0
    }

    fn data_notified(&mut self, end: End) {
        let client = &self.clients[end.0];
        let app = client.region.app(end.1);
        let flags = app.flags.load(Acquire);
        let generation = app.generation.load(Acquire);
        if flags & app_flags::CLOSED != 0 && generation == client.region.stack(end.1).generation.load(Relaxed) {
            self.close(end, generation, flags);
        }
    }

    fn close(&mut self, end: End, generation: u32, flags: u32) {
        let region = &self.clients[end.0].region;
        let (app, stack) = (region.app(end.1), region.stack(end.1));
        if stack.generation.load(Relaxed) != generation || stack.state.load(Relaxed) == state::FREE {
            return;
        }
        let unread = stack.rx_tail.load(Relaxed) != app.rx_head.load(Relaxed);
        self.listeners.retain(|(listener, ..)| *listener != end);
        self.direct.listeners.retain(|listener| *listener != end);
        self.part(end, generation, flags & app_flags::ABORT != 0);
        // The slot number is not enough: the slot may have been in a connection whose other end still lives.
        let side = |c: &FakeConnection| (0..2).find(|i| c.ends[*i] == end && c.generations[*i] == generation);
        if let Some((at, side)) = self.connections.iter().enumerate().find_map(|(at, c)| Some((at, side(c)?))) {
            let connection = &mut self.connections[at];
            connection.aborted |= flags & app_flags::ABORT != 0 || unread;
            connection.gone[side] = true;
            self.pump(at);
        }
        let client = &mut self.clients[end.0];
        client.reserved.remove(&end.1.raw());
        client.region.stack(end.1).state.store(state::FREE, Release);
    }

    /// Moves bytes, ends and resets between the two ends of a connection.
    fn pump(&mut self, at: usize) -> bool {
        let mut busy = false;
        for side in 0..2 {
            let connection = &self.connections[at];
            let (from, to) = (connection.ends[side], connection.ends[1 - side]);
            let (source, sink) = (&self.clients[from.0].region, &self.clients[to.0].region);
            let (from_gone, to_gone) = (connection.gone[side], connection.gone[1 - side]);
            if to_gone || connection.fin[side] {
                if to_gone && !from_gone && !connection.fin[side] {
                    let unsent = source.app(from.1).tx_tail.load(Acquire) != connection.copied[side];
                    if unsent || connection.aborted {
                        let stack = source.stack(from.1);
                        stack.error.store(libc::ECONNRESET as u32, Relaxed);
                        stack.status.store(status::RESET | status::TX_CLOSED, Release);
                        stack.state.store(state::CLOSED, Release);
                        self.connections[at].fin = [true; 2];
                        self.raise(from);
                        busy = true;
                    }
                }
                continue;
            }
            let (app, stack) = (source.app(from.1), sink.stack(to.1));
            // Until the acceptor has taken the slot, its line belongs to an earlier connection.
            let head = match sink.app(to.1).generation.load(Acquire) == connection.generations[1 - side] {
                true => sink.app(to.1).rx_head.load(Acquire),
                false => 0,
            };
            let live = app.generation.load(Acquire) == connection.generations[side];
            let flags = if live { app.flags.load(Acquire) } else { 0 };
            let copied = connection.copied[side];
            let urgent = (flags & app_flags::URGENT != 0).then(|| app.urgent.load(Acquire));
            if let Some(after) = urgent.filter(|after| connection.urgent[side] != Some(*after)) {
                stack.urgent.store(after.wrapping_sub(1), Release);
                stack.status.store(stack.status.load(Relaxed) | status::URGENT, Release);
                self.connections[at].urgent[side] = urgent;
                self.raise(to);
                return true;
            }
            let queued = if live { app.tx_tail.load(Acquire).wrapping_sub(copied) } else { 0 };
            let room = self.geometry.rx_bytes - copied.wrapping_sub(head).min(self.geometry.rx_bytes);
            let count = queued.min(room).min(self.geometry.tx_bytes);
            if count > 0 {
                let mut bytes = vec![0; count as usize];
                source.tx(from.1).read(copied, &mut bytes);
                sink.rx(to.1).write(copied, &bytes);
                let end = copied.wrapping_add(count);
                stack.rx_tail.store(end, Release);
                source.stack(from.1).tx_head.store(end, Release);
                self.connections[at].copied[side] = end;
                self.raise(to);
                let (source, free) = (&self.clients[from.0].region, self.geometry.tx_bytes - (queued - count));
                if wake::asks_for_room(&source.app(from.1).want) && free >= self.geometry.tx_bytes.div_ceil(3) {
                    self.raise(from);
                }
                busy = true;
            }
            let ended = flags & app_flags::SHUT_WR != 0 || from_gone;
            if ended && queued == count {
                let stack = self.clients[to.0].region.stack(to.1);
                let aborted = self.connections[at].aborted;
                let bits = if aborted { status::RESET | status::TX_CLOSED } else { status::RX_EOF };
                if self.connections[at].aborted {
                    stack.error.store(libc::ECONNRESET as u32, Relaxed);
                }
                stack.status.store(stack.status.load(Relaxed) | bits, Release);
                if self.connections[at].aborted {
                    stack.state.store(state::CLOSED, Release);
                }
                self.connections[at].fin[side] = true;
                self.raise(to);
                busy = true;
            }
        }
        busy
    }

    fn raise(&mut self, (at, slot): End) {
        let client = &mut self.clients[at];
        let (app, stack) = (client.region.app(slot), client.region.stack(slot));
        stack.event_seq.store(stack.event_seq.load(Relaxed).wrapping_add(1), Release);
        if wake::must_wake(&app.sleepers) {
            wake::futex_wake(&stack.event_seq);
        }
        let mask = app.ctx_mask.load(Relaxed);
        for context in (0..self.geometry.contexts).filter(|c| mask & 1 << c != 0) {
            let set = client.region.events(context as usize, 0);
            let (seq, ack) = client.region.event_words(context as usize, 0, slot);
            set.push(client.events.entry(context).or_default(), slot, seq, ack);
            if let (true, Some(doorbell)) = (set.must_notify(), client.contexts.get(&context)) {
                wake::notify(doorbell.as_fd());
            }
        }
    }
}

impl FakeClient {
    fn request(&mut self, control: &UnixStream, request: Request, mut fds: Vec<OwnedFd>) {
        match (request, fds.pop()) {
            (Request::Attach { slot, generation, end }, Some(fd)) => {
                self.pairs.insert(end, (slot, generation, UnixStream::from(fd)));
            }
            (Request::Reattach { slot, generation, end }, _) => match self.pairs.get_mut(&end) {
                Some(pair) => (pair.0, pair.1) = (slot, generation),
                None => self.ended.push((slot, generation)),
            },
            // A socket that listens is its program's alone, or nobody would see its end.
            (Request::Reserve { slot, .. }, Some(fd)) if !halves::listens(&fd) => {
                self.reserved.insert(slot, fd);
            }
            (Request::Context, _) => {
                let free = (0..self.region.geometry().contexts).find(|c| !self.contexts.contains_key(c));
                let reply = match (free, wake::doorbell()) {
                    (Some(context), Ok(doorbell)) => {
                        let sent =
                            control::send_reply(control.as_fd(), &Reply::Context { context }, &[doorbell.as_fd()]);
                        self.contexts.insert(context, doorbell);
                        sent
                    }
                    _ => control::send_reply(control.as_fd(), &Reply::Refused { errno: libc::ENFILE }, &[]),
                };
                reply.expect("a client that listens");
            }
            (Request::DropContext { context }, _) => {
                self.contexts.remove(&context);
            }
            (Request::Stack { .. }, _) => self.curious.push(control.try_clone().expect("a copy")),
            _ => {}
        }
    }

    fn pop_command(&mut self) -> Option<Slot> {
        let slot = self.region.slot(self.region.commands().pop(&mut self.commands)?)?;
        acknowledge(&self.region.app(slot).ctl_seq, &self.region.stack(slot).ctl_ack);
        Some(slot)
    }

    fn pop_data(&mut self, queue: usize) -> Option<Slot> {
        let slot = self.region.slot(self.region.data_queue(queue).pop(&mut self.data_queues[queue])?)?;
        acknowledge(&self.region.app(slot).data_seq, &self.region.stack(slot).data_ack);
        Some(slot)
    }

    fn take_slot(&mut self) -> Option<Slot> {
        let g = self.region.geometry();
        for _ in g.app_slots..g.slots {
            let raw = self.next_slot;
            self.next_slot = if raw + 1 == g.slots { g.app_slots } else { raw + 1 };
            let slot = self.region.slot(raw)?;
            if self.region.stack(slot).state.load(Relaxed) == state::FREE {
                return Some(slot);
            }
        }
        None
    }

    fn open(&self, slot: Slot, state: u32, local: Address, remote: Address) -> u32 {
        self.open_paired(slot, state, (local, remote), (0, 0))
    }

    fn open_paired(&self, slot: Slot, state: u32, (local, remote): (Address, Address), pair: (u32, u32)) -> u32 {
        let (stack, info) = (self.region.stack(slot), self.region.info(slot));
        let generation = stack.generation.load(Relaxed).wrapping_add(1);
        for word in [&stack.tx_head, &stack.rx_tail, &stack.status, &stack.error, &stack.flow_group] {
            word.store(0, Relaxed);
        }
        address::store(&info.local_addr, local.0);
        address::store(&info.remote_addr, remote.0);
        info.ports.store(u32::from(local.1) << 16 | u32::from(remote.1), Relaxed);
        info.mss.store(1460, Relaxed);
        stack.pair.store(pair.0, Relaxed);
        stack.pair_slot.store(pair.1, Relaxed);
        stack.generation.store(generation, Release);
        stack.state.store(state, Release);
        generation
    }
}

fn hung_up(pair: &UnixStream) -> bool {
    let mut fds = [libc::pollfd { fd: pair.as_raw_fd(), events: libc::POLLRDHUP, revents: 0 }];
    // SAFETY: one valid entry.
    unsafe { libc::poll(fds.as_mut_ptr(), 1, 0) > 0 }
}
