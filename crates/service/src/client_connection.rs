//! One thread per connection of a client process.
//!
//! It answers the process's requests and holds the stack's ends of its sockets in a descriptor table of its own. When
//! such an end hangs up, every descriptor of that socket is closed, in every process.

use crate::broker_handle::BrokerRequest;
use crate::known_namespaces::AskedJustNow;
use crate::passed_sockets::cookie;
use crate::policy::{Identity, peer_process};
use crate::received;
use crate::state::{Membership, Refusal, ServiceState};
use crate::{port_proof, privileged};
use ends::{Ends, HEARS_WITHIN, Socket};
use reserve::HeldPort;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use towpath_ring::Geometry;
use towpath_ring::control::{Reply, Request, features, recv_request, send_reply};
use towpath_ring::layout::VERSION;
use towpath_ring::wake;
use towpath_runtime::Files;

mod ends;
mod reserve;

/// How long a new connection may take to say Hello.
const HELLO_TIMEOUT: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };
/// How often a new connection may ask where a socket lives before Hello. It repeats a question that came too early.
const QUESTIONS_BEFORE_HELLO: u32 = 1024;
/// How long a client without a process keeps its listeners. An `exec` or a passed socket brings a process soon.
const SUCCESSOR_COMES: Duration = Duration::from_secs(10);
/// Requests handled before hang-ups are looked at again.
const REQUESTS_PER_TURN: usize = 64;
/// Events taken from the kernel at a time.
const EVENTS: usize = 64;

/// Attaches and hang-ups are looked at together if so many of them come in a row, each so soon after the last one, or after a
/// rest.
const IN_A_ROW: u32 = 16;
const SOON: Duration = Duration::from_millis(2);
/// How long the thread rests then. Nobody waits for what it does, but who asks for something meanwhile has to wait.
const REST: Duration = Duration::from_millis(1);

/// The source of an epoll event: the upper bits of its data word.
mod source {
    /// The largest number of an end, and of its serial number.
    pub const MOST: u32 = (1 << 30) - 1;
    pub const CONNECTION: u64 = 0;
    pub const STOP: u64 = 1;
    pub const SOCKET: u64 = 2;
    pub const RESERVATION: u64 = 3;
}

/// The peer of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// Number of the connection.
    pub connection: u64,
    /// User.
    pub uid: u32,
    /// Its primary group.
    pub gid: u32,
    /// Process.
    pub pid: i32,
    /// When the connection was accepted (`peer_process::ticks_now`).
    pub accepted: u64,
}

impl Peer {
    /// Its identity. `socket`: the service's end of its connection.
    fn identity(&self, socket: BorrowedFd<'_>) -> Identity {
        Identity::of_peer(socket, self.uid, self.gid, self.pid, self.accepted)
    }

    /// The network namespace of its process. The kernel says in which one the process's end of the connection was made. For
    /// the namespace that is served (`home`) it must be in there itself, too: others may have given it that end.
    fn namespace(&self, socket: BorrowedFd<'_>, home: Option<u64>) -> Option<u64> {
        let of_socket = port_proof::namespace(socket);
        if home.is_none() || of_socket != home {
            return of_socket;
        }
        let process = peer_process::process(socket, self.pid, self.accepted).ok();
        let elsewhere = privileged::shares_network(self.pid) == Some(false);
        // Whatever was read by the number of a process that has ended may be another one's.
        of_socket.filter(|_| !elsewhere && process.is_none_or(|process| peer_process::lives(&process)))
    }

    /// The process's number for the stack, never 0.
    fn process(&self) -> u32 {
        (self.connection % u64::from(u32::MAX)) as u32 + 1
    }
}

/// Serves a connection to its end. This is the body of its thread.
pub fn serve(state: &ServiceState, socket: &Arc<OwnedFd>, peer: Peer) {
    if let Some(membership) = hello(state, socket.as_fd(), peer) {
        let token = membership.token;
        let mut keep = vec![socket.as_fd(), state.broker.transfer_fd.as_fd(), state.stop_fd.as_fd()];
        keep.extend(privileged::broker().map(AsFd::as_fd));
        keep.extend(state.stack.listener_filter());
        if let Err(error) = crate::descriptor_table::separate(&keep) {
            tracing::debug!(%error, "no descriptor table of its own for this client");
        }
        match ClientConnection::new(state, membership, peer, socket.as_fd()) {
            Ok(mut connection) => connection.run(),
            Err(error) => {
                if state.client_lines.allows() {
                    tracing::warn!(pid = peer.pid, %error, "cannot serve a client");
                }
                state.broker.post(BrokerRequest::Left { token });
            }
        }
    }
    // The peer must notice although the service's table still holds the connection for a moment.
    received::finish(socket.as_fd());
}

/// Waits for Hello and answers it. `None` if the client was refused.
fn hello(state: &ServiceState, socket: BorrowedFd<'_>, peer: Peer) -> Option<Membership> {
    let refuse = |errno: i32, why: &str| {
        if state.client_lines.allows() {
            tracing::warn!(pid = peer.pid, uid = peer.uid, "client refused: {why}");
        }
        let _ = send_reply(socket, &Reply::Refused { errno }, &[]);
        None
    };
    let mut questions = 0;
    let (version, join, known) = loop {
        let mut waiting = [PollFd::new(&socket, PollFlags::IN), PollFd::new(&state.stop_fd, PollFlags::IN)];
        if !matches!(poll(&mut waiting, Some(&HELLO_TIMEOUT)), Ok(n) if n > 0) {
            return refuse(Errno::TIMEDOUT.raw_os_error(), "it did not say Hello");
        }
        match recv_request(socket) {
            Ok(Some((Request::Hello { version, join, features }, _))) => break (version, join, features),
            // The answer decides which region the process joins.
            Ok(Some((Request::Adopt, descriptors))) if questions < QUESTIONS_BEFORE_HELLO => {
                questions += 1;
                descriptors.iter().for_each(received::end_linger);
                let cookie = descriptors.first().and_then(cookie);
                let answer = state.registry().locate(cookie, peer.uid);
                send_reply(socket, &answer, &[]).ok()?;
            }
            Ok(None) => return None,
            Ok(Some((_, descriptors))) => {
                descriptors.iter().for_each(received::end_linger);
                return refuse(Errno::PROTO.raw_os_error(), "its first message is not Hello");
            }
            Err(error) => return refuse(Errno::PROTO.raw_os_error(), &error.to_string()),
        }
    };
    let features = state.features();
    if let Some(why) = features::mismatch((version, known), (VERSION, features)) {
        let why = format!("{why}; install one version of both, and start the service and the program again");
        return refuse(Errno::PROTO.raw_os_error(), &why);
    }
    let identity = peer.identity(socket);
    let namespace = peer.namespace(socket, state.stack.namespace());
    let (membership, descriptors) = if join == 0 {
        let geometry = state.geometry_for(known);
        match state.new_client(identity, namespace, geometry, || brought(state, socket, geometry)) {
            Ok(client) => client,
            // A client that dies while it is asked is not worth a warning.
            Err(Refusal { errno, why }) if errno == GONE => {
                tracing::debug!(pid = peer.pid, "client has gone: {why}");
                return None;
            }
            Err(Refusal { errno, why }) => return refuse(errno, &why),
        }
    } else {
        match state.join_client(identity, namespace, join) {
            Some(client) => client,
            None => return refuse(Errno::NOENT.raw_os_error(), "the region it wants to join is not there"),
        }
    };
    let region = &membership.region;
    let (geometry, token, offset) = (region.geometry(), membership.token, region.offset());
    let (process, namespace) = (peer.process(), state.stack.namespace().unwrap_or(0));
    let idle_ms = state.settings.idle_ms;
    let welcome = Reply::Welcome { geometry, token, process, offset, features, namespace, idle_ms };
    let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    if send_reply(socket, &welcome, &borrowed).is_err() {
        state.broker.post(BrokerRequest::Left { token: membership.token });
        return None;
    }
    tracing::debug!(pid = peer.pid, uid = peer.uid, client = membership.id.0, "client admitted");
    Some(membership)
}

/// The errno of a refusal that nobody is there to hear.
const GONE: i32 = Errno::PIPE.raw_os_error();

/// Asks a client for the memory of its region, and waits for it. What it sends is not checked yet.
fn brought(state: &ServiceState, socket: BorrowedFd<'_>, geometry: Geometry) -> Result<OwnedFd, Refusal> {
    let refused = |errno: Errno, why: &str| Refusal { errno: errno.raw_os_error(), why: why.to_owned() };
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Refusal { errno: GONE, why: error.to_string() },
        _ => refused(Errno::PROTO, &error.to_string()),
    };
    send_reply(socket, &Reply::Make { geometry }, &[]).map_err(failed)?;
    let mut waiting = [PollFd::new(&socket, PollFlags::IN), PollFd::new(&state.stop_fd, PollFlags::IN)];
    if !matches!(poll(&mut waiting, Some(&HELLO_TIMEOUT)), Ok(n) if n > 0) {
        return Err(refused(Errno::TIMEDOUT, "it did not send the memory of its region"));
    }
    match recv_request(socket) {
        Ok(Some((Request::Region, mut descriptors))) => {
            descriptors.iter().for_each(received::end_linger);
            descriptors.pop().ok_or_else(|| refused(Errno::PROTO, "its memory is missing"))
        }
        Ok(Some((_, descriptors))) => {
            descriptors.iter().for_each(received::end_linger);
            Err(refused(Errno::PROTO, "it sent something else than the memory of its region"))
        }
        Ok(None) => Err(Refusal { errno: GONE, why: "without the memory of its region".to_owned() }),
        Err(error) => Err(failed(error)),
    }
}

struct ClientConnection<'a> {
    state: &'a ServiceState,
    client: Membership,
    peer: Peer,
    connection: Option<BorrowedFd<'a>>,
    epoll: OwnedFd,
    ends: Ends,
    /// Since the last wait, has a request come that the process may be waiting for, or more than a turn takes?
    is_awaited: bool,
    /// Have the ends that have hung up been sought since the last wait?
    has_swept: bool,
    reservations: HashMap<u32, HeldPort>,
    next_reservation: u32,
    /// Reservations whose socket has not been attached yet, by slot.
    unattached: HashMap<u32, u32>,
    /// Event contexts of this process, by bit.
    contexts: u64,
    /// The client has not been reported as left.
    serving: bool,
    /// When the process has ended.
    ended: Option<Instant>,
}

impl<'a> ClientConnection<'a> {
    fn new(state: &'a ServiceState, client: Membership, peer: Peer, connection: BorrowedFd<'a>) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let add = |fd: BorrowedFd<'_>, source| epoll::add(&epoll, fd, data(source, 0, 0), epoll::EventFlags::IN);
        add(connection, source::CONNECTION)?;
        add(state.stop_fd.as_fd(), source::STOP)?;
        Ok(Self {
            state,
            client,
            peer,
            connection: Some(connection),
            epoll,
            ends: Ends::default(),
            is_awaited: false,
            has_swept: false,
            reservations: HashMap::new(),
            next_reservation: 0,
            unattached: HashMap::new(),
            contexts: 0,
            serving: true,
            ended: None,
        })
    }

    /// Serves until the connection, all sockets and all reservations are gone, or the service ends.
    fn run(&mut self) {
        let mut events = Vec::with_capacity(EVENTS);
        let (mut last, mut in_a_row): (Option<Instant>, u32) = (None, 0);
        while self.serving || !self.reservations.is_empty() {
            events.clear();
            let times = [self.only_listens().then_some(SUCCESSOR_COMES), self.ends.next_look()];
            let time = times.into_iter().flatten().min().and_then(|time| time.try_into().ok());
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), time.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    tracing::warn!(%error, "a client connection cannot wait");
                    break;
                }
            }
            (self.is_awaited, self.has_swept) = (false, false);
            for event in &events {
                let word = event.data.u64();
                let (from, serial, id) = (word >> 62, (word >> 32) as u32 & source::MOST, word as u32);
                match from {
                    source::STOP => return,
                    source::CONNECTION => self.requests(),
                    source::SOCKET => self.hung_up(serial, id),
                    _ => self.freed(id),
                }
            }
            self.report_unheard(Instant::now());
            let over = self.connection.is_none() && self.ends.is_empty() && !self.has_listeners();
            if self.serving && (over || self.is_deserted()) {
                self.leave();
            }
            let now = Instant::now();
            let is_soon = last.replace(now).is_some_and(|last| now - last < SOON);
            in_a_row = if is_soon && !self.is_awaited { in_a_row.saturating_add(1) } else { 0 };
            if in_a_row >= IN_A_ROW && self.serving {
                std::thread::sleep(REST);
                // On a busy machine a rest may take longer than what is soon.
                last = Some(Instant::now());
            }
        }
        if self.serving {
            self.leave();
        }
        self.give_back();
    }

    /// Has its process ended, and left nothing but listeners?
    fn only_listens(&self) -> bool {
        self.serving && self.connection.is_none() && self.ends.is_empty() && self.has_listeners()
    }

    /// Has nobody come for its listeners? Connections that the stack made for them would wait for ever.
    fn is_deserted(&self) -> bool {
        self.only_listens()
            && self.ended.is_some_and(|at| at.elapsed() >= SUCCESSOR_COMES)
            && self.state.registry().is_deserted(self.client.token)
    }

    fn leave(&mut self) {
        self.serving = false;
        // Other processes may keep the client. All are due by then.
        self.report_unheard(Instant::now() + 2 * HEARS_WITHIN);
        if self.ended.is_some() {
            self.state.registry().stops_serving(self.client.token);
        }
        self.state.broker.post(BrokerRequest::Left { token: self.client.token });
    }

    fn requests(&mut self) {
        for _ in 0..REQUESTS_PER_TURN {
            let Some(connection) = self.connection else { return };
            match recv_request(connection) {
                Ok(Some((request, descriptors))) => {
                    descriptors.iter().for_each(received::end_linger);
                    if let Err(error) = self.request(request, descriptors) {
                        self.log_loss(&error);
                        return self.disconnect(connection);
                    }
                }
                Ok(None) => return self.disconnect(connection),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    self.log_loss(&error);
                    return self.disconnect(connection);
                }
            }
        }
        // More of them wait.
        self.is_awaited = true;
    }

    /// Logs the end of a connection. A client that dies in the middle of a message is not worth a warning.
    fn log_loss(&self, error: &io::Error) {
        let client = self.client.id.0;
        if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) {
            tracing::debug!(client, "client has gone: {error}");
        } else if self.state.client_lines.allows() {
            tracing::warn!(client, "client loses its connection: {error}");
        }
    }

    /// The process has ended or sent a wrong message. Its sockets may live on in other processes.
    fn disconnect(&mut self, connection: BorrowedFd<'_>) {
        let _ = epoll::delete(&self.epoll, connection);
        received::finish(connection);
        self.connection = None;
        self.ended = Some(Instant::now());
        self.state.registry().process_ended(self.client.token);
        if self.contexts != 0 {
            let (token, contexts) = (self.client.token, self.contexts);
            self.state.broker.post(BrokerRequest::DropContexts { token, contexts });
            self.contexts = 0;
        }
        let (id, process) = (self.client.id, self.peer.process());
        self.state.broker.post(BrokerRequest::ProcessExited { id, process });
    }

    fn request(&mut self, request: Request, mut descriptors: Vec<OwnedFd>) -> io::Result<()> {
        let descriptor = descriptors.pop();
        self.is_awaited |= !matches!(request, Request::Attach { .. } | Request::Reattach { .. });
        match (request, descriptor) {
            (Request::Attach { slot, generation, end }, Some(descriptor)) => {
                self.attach(end, Socket { slot, generation }, descriptor)
            }
            (Request::Reattach { slot, generation, end }, _) => self.reattach(end, Socket { slot, generation }),
            (Request::Reserve { slot, seq, listens }, Some(shown)) => self.reserve(slot, seq, listens, shown),
            (Request::Join { slot, seq, remote_addr, remote_port }, Some(shown)) => {
                let port = u16::try_from(remote_port).map_err(|_| invalid("no port"))?;
                self.join(slot, seq, (remote_addr.to_canonical(), port).into(), shown)
            }
            (Request::Context, _) => self.open_context(),
            (Request::DropContext { context }, _) => self.drop_context(context),
            (Request::Pair { place, pair }, _) => {
                let (connection, id) = (self.peer.connection, self.client.id);
                self.state.broker.post(BrokerRequest::Pair { connection, id, pair: (place, pair) });
                Ok(())
            }
            (Request::Doorbell { place, pair, context }, _) => {
                let (connection, id) = (self.peer.connection, self.client.id);
                self.state.broker.post(BrokerRequest::Doorbell { connection, id, pair: (place, pair), context });
                Ok(())
            }
            (Request::File { replaces }, Some(file)) => self.file(replaces, file),
            (Request::Name { slot, generation }, Some(end)) => self.name(slot, generation, &end),
            (Request::Stack { stack }, _) => self.other_stack(stack),
            (Request::StackOf { namespace }, _) => self.stack_of(namespace),
            (Request::NameAt { stack }, Some(end)) => self.name_at(stack, &end),
            (Request::Adopt, Some(end)) => {
                let Some(connection) = self.connection else { return Ok(()) };
                let answer = self.state.registry().locate(cookie(&end), self.peer.uid);
                send_reply(connection, &answer, &[])
            }
            (Request::Stats, _) => self.measure(),
            _ => Err(invalid("out of place")),
        }
    }

    fn name(&mut self, slot: u32, generation: u32, end: &OwnedFd) -> io::Result<()> {
        self.client.region.slot(slot).ok_or_else(|| invalid("no such slot"))?;
        let cookie = cookie(end).ok_or_else(|| invalid("no end of a pair, and no TCP socket"))?;
        self.state.registry().passed_sockets.name(cookie, self.client.token, slot, generation);
        Ok(())
    }

    /// Sends the registration socket of another stack. Any client may have it: that stack admits its own users.
    fn other_stack(&self, stack: u32) -> io::Result<()> {
        let Some(connection) = self.connection else { return Ok(()) };
        match self.state.settings.stacks.open(stack as usize) {
            Ok(socket) => send_reply(connection, &Reply::Stack { stack }, &[socket.as_fd()]),
            Err(why) => {
                tracing::debug!(client = self.client.id.0, "a stack that was asked for cannot be reached: {why}");
                send_reply(connection, &Reply::Refused { errno: Errno::NETUNREACH.raw_os_error() }, &[])
            }
        }
    }

    /// [`Self::other_stack`] for the one that serves a network namespace. It asks the kernel where the client is.
    fn stack_of(&self, namespace: u64) -> io::Result<()> {
        let Some(connection) = self.connection else { return Ok(()) };
        let errno = match self.state.settings.namespaces.stack_of(namespace) {
            Ok(Some(stack)) => return self.other_stack(stack as u32),
            Ok(None) => Errno::NOENT,
            // It shall ask again.
            Err(AskedJustNow) => Errno::NETUNREACH,
        };
        send_reply(connection, &Reply::Refused { errno: errno.raw_os_error() }, &[])
    }

    fn name_at(&mut self, stack: u32, end: &OwnedFd) -> io::Result<()> {
        if stack as usize >= self.state.settings.stacks.all().len() {
            return Err(invalid("no such stack"));
        }
        let cookie = cookie(end).ok_or_else(|| invalid("no end of a pair, and no TCP socket"))?;
        self.state.registry().passed_sockets.name_elsewhere(cookie, self.peer.uid, stack);
        Ok(())
    }

    fn open_context(&mut self) -> io::Result<()> {
        let Some(connection) = self.connection else { return Ok(()) };
        let (wait, notify) = wake::doorbell_pipe()?;
        let token = self.client.token;
        match self.state.broker.transfer(vec![notify], |done| BrokerRequest::Context { token, done }) {
            Some(context) => {
                self.contexts |= 1 << context;
                send_reply(connection, &Reply::Context { context }, &[wait.as_fd()])
            }
            None => send_reply(connection, &Reply::Refused { errno: Errno::NFILE.raw_os_error() }, &[]),
        }
    }

    /// Gives the stack a file and answers with its number. The file is checked in this thread, where only its owner
    /// waits.
    fn file(&mut self, replaces: u32, file: OwnedFd) -> io::Result<()> {
        let Some(connection) = self.connection else { return Ok(()) };
        let refused = |errno: Errno| Reply::Refused { errno: errno.raw_os_error() };
        let answer = match self.state.stack.files() {
            Files::None => refused(Errno::OPNOTSUPP),
            files if !files.take(&file) => refused(Errno::ACCESS),
            _ => {
                let (id, process) = (self.client.id, self.peer.process());
                let number =
                    self.state.broker.transfer(vec![file], |done| BrokerRequest::File { id, process, replaces, done });
                number.map_or(refused(Errno::ACCESS), |file| Reply::File { file })
            }
        };
        send_reply(connection, &answer, &[])
    }

    /// Sends the memory in which the process measures its connections.
    fn measure(&mut self) -> io::Result<()> {
        let Some(connection) = self.connection else { return Ok(()) };
        let pid = self.peer.pid;
        match self.state.settings.auto.measure(self.client.id, &self.peer.identity(connection)) {
            Ok(memfd) => send_reply(connection, &Reply::Stats, &[memfd.as_fd()]),
            Err(why) => {
                if self.state.client_lines.allows() {
                    tracing::info!(pid, "auto: not measured: {why}");
                }
                send_reply(connection, &Reply::Refused { errno: Errno::OPNOTSUPP.raw_os_error() }, &[])
            }
        }
    }

    fn drop_context(&mut self, context: u32) -> io::Result<()> {
        let bit = 1u64.checked_shl(context).filter(|bit| self.contexts & bit != 0);
        let bit = bit.ok_or_else(|| invalid("no such context"))?;
        self.contexts &= !bit;
        self.state.broker.post(BrokerRequest::DropContexts { token: self.client.token, contexts: bit });
        Ok(())
    }
}

fn data(source: u64, serial: u32, id: u32) -> epoll::EventData {
    epoll::EventData::new_u64(source << 62 | u64::from(serial) << 32 | u64::from(id))
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
