//! One keeper thread per connection of a client process. It answers the process's requests and holds the stack's ends of
//! its sockets in a descriptor table of its own; when one hangs up, every descriptor of that socket is closed.

use crate::policy::Identity;
use crate::shared::{Call, Membership, Shared};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::{AddressFamily, Shutdown, SocketType};
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use towpath_ring::control::{Reply, Request, recv_request, send_reply};
use towpath_ring::layout::VERSION;
use towpath_ring::wake;
use towpath_stack::Files;

/// How long a new connection may take to say Hello.
const HELLO_TIMEOUT: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };
/// How often a new connection may ask whose a socket is before it says Hello; who asks too early asks again.
const QUESTIONS_BEFORE_HELLO: u32 = 1024;
/// Requests handled before hang-ups are looked at again.
const REQUESTS_PER_TURN: usize = 64;
/// Events taken from the kernel at a time.
const EVENTS: usize = 64;

/// What an epoll event is about; the upper half of its data word.
mod about {
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
}

impl Peer {
    /// Its number for the stack, never 0.
    fn process(&self) -> u32 {
        (self.connection % u64::from(u32::MAX)) as u32 + 1
    }
}

/// The whole life of a connection; the body of its thread.
pub fn serve(shared: &Shared, socket: &Arc<OwnedFd>, peer: Peer) {
    if let Some(membership) = hello(shared, socket.as_fd(), peer) {
        let token = membership.token;
        let keep = [socket.as_fd(), shared.transfer_fd.as_fd(), shared.stop_fd.as_fd()];
        if let Err(error) = crate::table::separate(&keep) {
            tracing::debug!(%error, "no descriptor table of its own for this client");
        }
        match Keeper::new(shared, membership, peer, socket.as_fd()) {
            Ok(mut keeper) => keeper.run(),
            Err(error) => {
                tracing::warn!(pid = peer.pid, %error, "cannot serve a client");
                shared.call(Call::Left { token });
            }
        }
    }
    // The peer shall notice even though another table still holds the connection for a moment.
    let _ = rustix::net::shutdown(socket, Shutdown::Both);
}

/// Waits for Hello and answers it. `None` = refused.
fn hello(shared: &Shared, socket: BorrowedFd<'_>, peer: Peer) -> Option<Membership> {
    let refuse = |errno: i32, why: &str| {
        tracing::warn!(pid = peer.pid, uid = peer.uid, "client refused: {why}");
        let _ = send_reply(socket, &Reply::Refused { errno }, &[]);
        None
    };
    let mut questions = 0;
    let (version, join) = loop {
        let mut waiting = [PollFd::new(&socket, PollFlags::IN), PollFd::new(&shared.stop_fd, PollFlags::IN)];
        if !matches!(poll(&mut waiting, Some(&HELLO_TIMEOUT)), Ok(n) if n > 0) {
            return refuse(Errno::TIMEDOUT.raw_os_error(), "it did not say Hello");
        }
        match recv_request(socket) {
            Ok(Some((Request::Hello { version, join }, _))) => break (version, join),
            // Which region it wants depends on the answer.
            Ok(Some((Request::Adopt, descriptors))) if questions < QUESTIONS_BEFORE_HELLO => {
                questions += 1;
                let cookie = descriptors.first().and_then(crate::names::cookie);
                let answer = shared.registry().whose(cookie, peer.uid);
                send_reply(socket, &answer, &[]).ok()?;
            }
            Ok(None) => return None,
            Ok(Some(_)) => return refuse(Errno::PROTO.raw_os_error(), "its first message is not Hello"),
            Err(error) => return refuse(Errno::PROTO.raw_os_error(), &error.to_string()),
        }
    };
    if version != VERSION {
        let why =
            format!("its library speaks version {version}, this service version {VERSION}; install matching ones");
        return refuse(Errno::PROTO.raw_os_error(), &why);
    }
    let identity = Identity::of(peer.uid, peer.gid, peer.pid);
    let (membership, descriptors) = if join == 0 {
        match shared.new_client(identity) {
            Ok(client) => client,
            Err(error) => return refuse(crate::shared::errno_of(&error), &error.to_string()),
        }
    } else {
        match shared.join_client(identity, join) {
            Some(client) => client,
            None => return refuse(Errno::NOENT.raw_os_error(), "the region it wants to join is not there"),
        }
    };
    let (geometry, token, offset) = (shared.settings.geometry, membership.token, membership.region.offset());
    let welcome = Reply::Welcome { geometry, token, process: peer.process(), offset };
    let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    if send_reply(socket, &welcome, &borrowed).is_err() {
        shared.call(Call::Left { token: membership.token });
        return None;
    }
    tracing::debug!(pid = peer.pid, uid = peer.uid, client = membership.id.0, "client admitted");
    Some(membership)
}

/// The kernel socket that reserves a port, and the reading end of a pipe whose writing end the stack drops when
/// the slot is freed.
///
/// The stack does not get the socket itself: closing a socket that another program has prepared can take as long as
/// that program likes (`SO_LINGER`). Here it delays nobody else.
struct Reservation {
    slot: u32,
    _socket: OwnedFd,
    _freed: OwnedFd,
}

/// The stack's end of a socket's pair.
struct End {
    generation: u32,
    /// The reservation that the socket has brought with it.
    reservation: Option<u32>,
    end: OwnedFd,
}

struct Keeper<'a> {
    shared: &'a Shared,
    client: Membership,
    peer: Peer,
    connection: Option<BorrowedFd<'a>>,
    epoll: OwnedFd,
    /// Ends of sockets by slot.
    sockets: HashMap<u32, End>,
    reservations: HashMap<u32, Reservation>,
    next_reservation: u32,
    /// Reservations, by slot, whose socket has not been attached.
    unattached: HashMap<u32, u32>,
    /// Event contexts of this process, by bit.
    contexts: u64,
    /// The client is still served (has not been reported as left).
    serving: bool,
}

impl<'a> Keeper<'a> {
    fn new(shared: &'a Shared, client: Membership, peer: Peer, connection: BorrowedFd<'a>) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let add = |fd: BorrowedFd<'_>, what| epoll::add(&epoll, fd, data(what, 0), epoll::EventFlags::IN);
        add(connection, about::CONNECTION)?;
        add(shared.stop_fd.as_fd(), about::STOP)?;
        Ok(Self {
            shared,
            client,
            peer,
            connection: Some(connection),
            epoll,
            sockets: HashMap::new(),
            reservations: HashMap::new(),
            next_reservation: 0,
            unattached: HashMap::new(),
            contexts: 0,
            serving: true,
        })
    }

    /// Until the connection, all sockets and all reservations are gone, or the service ends.
    fn run(&mut self) {
        let mut events = Vec::with_capacity(EVENTS);
        while self.serving || !self.reservations.is_empty() {
            events.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    tracing::warn!(%error, "a keeper cannot wait");
                    break;
                }
            }
            for event in &events {
                let (what, id) = (event.data.u64() >> 32, event.data.u64() as u32);
                match what {
                    about::STOP => return,
                    about::CONNECTION => self.requests(),
                    about::SOCKET => self.hung_up(id),
                    _ => self.freed(id),
                }
            }
            if self.serving && self.connection.is_none() && self.sockets.is_empty() {
                self.leave();
            }
        }
        if self.serving {
            self.leave();
        }
    }

    fn leave(&mut self) {
        self.serving = false;
        self.shared.call(Call::Left { token: self.client.token });
    }

    /// All descriptors of this socket are closed, in every process.
    ///
    /// The event may be about an end that another has replaced since it came: the slot was freed, claimed and attached anew
    /// by a request that was handled before this event of the same turn. So the end is asked.
    fn hung_up(&mut self, slot: u32) {
        if !self.sockets.get(&slot).is_some_and(|socket| is_hung_up(&socket.end)) {
            return;
        }
        if let Some(End { generation, .. }) = self.sockets.remove(&slot) {
            self.shared.registry().names.forget(self.client.token, slot, generation);
            self.shared.call(Call::Hangup { id: self.client.id, slot, generation });
        }
    }

    /// The stack has freed the slot of this reservation: the port can be had again. Only then goes the end of the
    /// socket's pair, so a process that closes a listener and waits for that finds the port free.
    fn freed(&mut self, number: u32) {
        let Some(Reservation { slot, .. }) = self.reservations.remove(&number) else { return };
        if self.unattached.get(&slot) == Some(&number) {
            self.unattached.remove(&slot);
        }
        if self.sockets.get(&slot).is_some_and(|end| end.reservation == Some(number)) {
            self.sockets.remove(&slot);
        }
    }

    fn requests(&mut self) {
        for _ in 0..REQUESTS_PER_TURN {
            let Some(connection) = self.connection else { return };
            match recv_request(connection) {
                Ok(Some((request, descriptors))) => {
                    if let Err(error) = self.request(request, descriptors) {
                        self.note(&error);
                        return self.disconnect(connection);
                    }
                }
                Ok(None) => return self.disconnect(connection),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    self.note(&error);
                    return self.disconnect(connection);
                }
            }
        }
    }

    /// That a client dies in the middle of something is its own affair; a wrong message is not.
    fn note(&self, error: &io::Error) {
        let client = self.client.id.0;
        if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) {
            tracing::debug!(client, "client has gone: {error}");
        } else {
            tracing::warn!(client, "client loses its connection: {error}");
        }
    }

    /// The process is gone or has misbehaved. Its sockets may live on in other processes.
    fn disconnect(&mut self, connection: BorrowedFd<'_>) {
        let _ = epoll::delete(&self.epoll, connection);
        let _ = rustix::net::shutdown(connection, Shutdown::Both);
        self.connection = None;
        if self.contexts != 0 {
            self.shared.call(Call::DropContexts { token: self.client.token, contexts: self.contexts });
            self.contexts = 0;
        }
        self.shared.call(Call::Departed { id: self.client.id, process: self.peer.process() });
    }

    fn request(&mut self, request: Request, mut descriptors: Vec<OwnedFd>) -> io::Result<()> {
        let descriptor = descriptors.pop();
        match (request, descriptor) {
            (Request::Attach { slot, generation }, Some(end)) => self.attach(slot, generation, end),
            (Request::Reserve { slot, seq }, Some(socket)) => self.reserve(slot, seq, socket),
            (Request::Context, _) => self.open_context(),
            (Request::DropContext { context }, _) => self.drop_context(context),
            (Request::Pair { place, pair }, _) => {
                let (connection, id) = (self.peer.connection, self.client.id);
                self.shared.call(Call::Pair { connection, id, pair: (place, pair) });
                Ok(())
            }
            (Request::Bell { place, pair, context }, _) => {
                let (connection, id) = (self.peer.connection, self.client.id);
                self.shared.call(Call::Bell { connection, id, pair: (place, pair), context });
                Ok(())
            }
            (Request::File { replaces }, Some(file)) => self.file(replaces, &file),
            (Request::Name { slot, generation }, Some(end)) => self.name(slot, generation, &end),
            (Request::Stack { stack }, _) => self.other_stack(stack),
            (Request::NameAt { stack }, Some(end)) => self.name_at(stack, &end),
            (Request::Adopt, Some(end)) => {
                let Some(connection) = self.connection else { return Ok(()) };
                let answer = self.shared.registry().whose(crate::names::cookie(&end), self.peer.uid);
                send_reply(connection, &answer, &[])
            }
            (Request::Figures, _) => self.figures(),
            _ => Err(invalid("out of place")),
        }
    }

    fn attach(&mut self, slot: u32, generation: u32, end: OwnedFd) -> io::Result<()> {
        self.client.region.slot(slot).ok_or_else(|| invalid("no such slot"))?;
        if sockopt::socket_domain(&end).ok() != Some(AddressFamily::UNIX) {
            return Err(invalid("not an AF_UNIX socket"));
        }
        // An older end of this slot goes: its connection is over, or the stack would not have given the slot again.
        self.sockets.remove(&slot);
        // Only hang-ups, which are always reported: half-closing is told in the ring.
        epoll::add(&self.epoll, &end, data(about::SOCKET, slot), epoll::EventFlags::empty())?;
        let reservation = self.unattached.remove(&slot);
        self.sockets.insert(slot, End { generation, reservation, end });
        Ok(())
    }

    fn name(&mut self, slot: u32, generation: u32, end: &OwnedFd) -> io::Result<()> {
        self.client.region.slot(slot).ok_or_else(|| invalid("no such slot"))?;
        let cookie = crate::names::cookie(end).ok_or_else(|| invalid("not an AF_UNIX socket"))?;
        self.shared.registry().names.name(cookie, self.client.token, slot, generation);
        Ok(())
    }

    /// Where another stack is. What is told may be told to any client: that stack asks itself whom it admits.
    fn other_stack(&self, stack: u32) -> io::Result<()> {
        let Some(connection) = self.connection else { return Ok(()) };
        match self.shared.settings.stacks.open(stack as usize) {
            Ok(socket) => send_reply(connection, &Reply::Stack { stack }, &[socket.as_fd()]),
            Err(why) => {
                tracing::debug!(client = self.client.id.0, "a stack is asked for that cannot be had: {why}");
                send_reply(connection, &Reply::Refused { errno: Errno::NETUNREACH.raw_os_error() }, &[])
            }
        }
    }

    fn name_at(&mut self, stack: u32, end: &OwnedFd) -> io::Result<()> {
        if stack as usize >= self.shared.settings.stacks.all().len() {
            return Err(invalid("no such stack"));
        }
        let cookie = crate::names::cookie(end).ok_or_else(|| invalid("not an AF_UNIX socket"))?;
        self.shared.registry().names.name_at(cookie, self.peer.uid, stack);
        Ok(())
    }

    fn reserve(&mut self, slot: u32, seq: u32, socket: OwnedFd) -> io::Result<()> {
        let region = self.client.region.layout();
        region.slot(slot).filter(|slot| region.is_app_slot(*slot)).ok_or_else(|| invalid("no such slot"))?;
        let internet = matches!(sockopt::socket_domain(&socket), Ok(AddressFamily::INET | AddressFamily::INET6));
        if !internet || sockopt::socket_type(&socket)? != SocketType::STREAM {
            return Err(invalid("not a TCP socket"));
        }
        if self.reservations.len() >= self.client.region.geometry().app_slots as usize {
            return Err(invalid("more reservations than slots"));
        }
        if self.shared.stack.shares_ports() {
            sockopt::set_socket_reuseaddr(&socket, true)?;
        }
        let (freed, held) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let number = self.next_reservation;
        self.next_reservation = number.wrapping_add(1);
        epoll::add(&self.epoll, &freed, data(about::RESERVATION, number), epoll::EventFlags::empty())?;
        let id = self.client.id;
        if self.shared.call_with(&held, |done| Call::Reserve { id, slot, seq, done }).is_some() {
            self.reservations.insert(number, Reservation { slot, _socket: socket, _freed: freed });
            self.unattached.insert(slot, number);
        }
        Ok(())
    }

    fn open_context(&mut self) -> io::Result<()> {
        let Some(connection) = self.connection else { return Ok(()) };
        let (wait, ring) = wake::bell()?;
        let token = self.client.token;
        match self.shared.call_with(&ring, |done| Call::Context { token, done }) {
            Some(context) => {
                self.contexts |= 1 << context;
                send_reply(connection, &Reply::Context { context }, &[wait.as_fd()])
            }
            None => send_reply(connection, &Reply::Refused { errno: Errno::NFILE.raw_os_error() }, &[]),
        }
    }

    /// The number of a file. Whether it is one that will do is asked here, where it keeps nobody waiting but its owner.
    fn file(&mut self, replaces: u32, file: &OwnedFd) -> io::Result<()> {
        let Some(connection) = self.connection else { return Ok(()) };
        let refused = |errno: Errno| Reply::Refused { errno: errno.raw_os_error() };
        let answer = match self.shared.stack.files() {
            Files::None => refused(Errno::OPNOTSUPP),
            files if !files.take(file) => refused(Errno::ACCESS),
            _ => {
                let (id, process) = (self.client.id, self.peer.process());
                let number = self.shared.call_with(file, |done| Call::File { id, process, replaces, done });
                number.map_or(refused(Errno::ACCESS), |file| Reply::File { file })
            }
        };
        send_reply(connection, &answer, &[])
    }

    /// The process wants to be measured.
    fn figures(&mut self) -> io::Result<()> {
        let Some(connection) = self.connection else { return Ok(()) };
        let Peer { uid, gid, pid, .. } = self.peer;
        match self.shared.settings.auto.measure(self.client.id, &Identity::of(uid, gid, pid)) {
            Ok(memfd) => send_reply(connection, &Reply::Figures, &[memfd.as_fd()]),
            Err(why) => {
                tracing::info!(pid, "auto: not measured: {why}");
                send_reply(connection, &Reply::Refused { errno: Errno::OPNOTSUPP.raw_os_error() }, &[])
            }
        }
    }

    fn drop_context(&mut self, context: u32) -> io::Result<()> {
        let bit = 1u64.checked_shl(context).filter(|bit| self.contexts & bit != 0);
        let bit = bit.ok_or_else(|| invalid("no such context"))?;
        self.contexts &= !bit;
        self.shared.call(Call::DropContexts { token: self.client.token, contexts: bit });
        Ok(())
    }
}

fn is_hung_up(end: &OwnedFd) -> bool {
    let mut waiting = [PollFd::new(end, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut waiting, Some(&now)).is_ok() && waiting[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

fn data(what: u64, id: u32) -> epoll::EventData {
    epoll::EventData::new_u64(what << 32 | u64::from(id))
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
