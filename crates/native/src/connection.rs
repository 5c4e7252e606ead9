//! A connection: two rings, and what is said about them.

use crate::address::{from_contract, to_contract};
use crate::event::{Source, sealed::Sealed};
use crate::half::{ReadHalf, Rings, WriteHalf};
use crate::span::{Received, Room};
use crate::{Readiness, Stack};
use core::net::SocketAddr;
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::io;
use std::time::Instant;
use towpath_ring::address;
use towpath_ring::command::{Command, Options, op};
use towpath_ring::lines::{app_flags, state};
use towpath_sockets::narrow::{self, Socket, used};

/// A TCP connection, or one that is being made. Dropped, it is closed in order: what has been committed is still sent.
pub struct Connection {
    /// Their words are looked up once it is established; until then nobody knows where they will be.
    rings: Rings,
    connecting: bool,
    /// The program has begun it, and has not asked for the outcome.
    awaited: bool,
}

impl Connection {
    /// Begins a connection to `remote`. [`Readiness::WRITABLE`] tells that it is made, [`Readiness::CLOSED`] that it has failed, and
    /// [`Connection::is_established`] why. ENETUNREACH: the stack does not lead there, or the policy leaves it to the kernel.
    pub fn connect(stack: &Stack, remote: SocketAddr) -> io::Result<Self> {
        let (ip, port) = to_contract(remote);
        let command = Command { op: op::CONNECT, remote_addr: ip, remote_port: port.into(), ..Command::default() };
        if narrow::is_kernels(ip) {
            return Err(errno(libc::ENETUNREACH));
        }
        let socket = begin(stack, &command, &Options::default(), None)?;
        let mut connection = Self::of(socket);
        connection.awaited = true;
        Ok(connection)
    }

    pub(crate) fn of(socket: Socket) -> Self {
        let rings = Rings::of(socket);
        Self { connecting: rings.view.state() == state::CONNECTING, awaited: false, rings }
    }

    /// Is it made? An error says why not, once.
    pub fn is_established(&mut self) -> io::Result<bool> {
        self.settle();
        if self.connecting {
            return Ok(false);
        }
        self.awaited = false;
        match self.rings.view.state() {
            state::CLOSED => Err(self.take_error().unwrap_or_else(|| errno(libc::ENOTCONN))),
            _ => Ok(true),
        }
    }

    /// Does the other end lie in a program of this host, which writes and reads the same memory?
    pub fn is_direct(&self) -> bool {
        self.rings.view.direct.is_some()
    }

    #[inline]
    fn settle(&mut self) {
        if self.connecting {
            self.settle_now();
        }
    }

    #[cold]
    fn settle_now(&mut self) {
        self.connecting = self.rings.socket.state() == state::CONNECTING;
        // Looked up after the state, before which the stack says where the words are.
        self.rings = Rings::of(self.rings.socket);
    }

    /// The two directions, for those who write into the one while they read the other.
    #[inline]
    pub fn split(&mut self) -> (ReadHalf<'_>, WriteHalf<'_>) {
        self.settle();
        (ReadHalf(&self.rings), WriteHalf(&self.rings))
    }

    /// See [`ReadHalf::received`].
    #[inline]
    pub fn received(&mut self) -> io::Result<Received<'_>> {
        self.settle();
        self.rings.received()
    }

    /// See [`ReadHalf::consume`].
    #[inline]
    pub fn consume(&mut self, count: usize) {
        self.rings.consume(count);
    }

    /// Copies received bytes out and consumes them; 0 = the end of the stream. For those who want it as `recv` has it.
    pub fn receive(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let count = self.received()?.copy_to(to);
        self.consume(count);
        Ok(count)
    }

    /// See [`WriteHalf::reserve`].
    #[inline]
    pub fn reserve(&mut self, most: usize) -> io::Result<Room<'_>> {
        self.settle();
        Ok(Room::new(self.rings.room(most)?, &self.rings))
    }

    /// Copies bytes into the ring and sends them; returns how many there was room for.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        let mut room = self.reserve(bytes.len())?;
        room.put(bytes);
        Ok(room.commit())
    }

    pub(crate) fn rings(&mut self) -> &Rings {
        self.settle();
        &self.rings
    }

    /// Ends this side's stream: the peer sees its end after all that was sent. What it sends is still received.
    pub fn shutdown(&mut self) -> io::Result<()> {
        self.settle();
        if !matches!(self.rings.view.state(), state::ESTABLISHED) {
            return Err(errno(libc::ENOTCONN));
        }
        self.rings.socket.mark_app(app_flags::SHUT_WR, true);
        Ok(())
    }

    /// Gives the connection up: the peer gets a reset, and what was not sent is forgotten.
    pub fn reset(self) {
        self.rings.socket.private().linger_s.store(0, Ordering::Relaxed);
    }

    /// Segments are sent at once, however small (`TCP_NODELAY`). Off as for sockets.
    pub fn set_nodelay(&mut self, on: bool) {
        self.rings.socket.mark_app(app_flags::NODELAY, on);
    }

    /// Bytes of the send and of the receive ring.
    pub fn capacities(&self) -> (usize, usize) {
        let (send, receive) = self.rings.view.ring_bytes();
        (send as usize, receive as usize)
    }

    /// Why the connection has failed, if it has, once.
    pub fn take_error(&mut self) -> Option<io::Error> {
        self.rings.take_error()
    }

    /// The address of this end.
    pub fn local_addr(&self) -> SocketAddr {
        from_contract(narrow::local(&self.rings.socket))
    }

    /// The peer's address.
    pub fn peer_addr(&self) -> SocketAddr {
        let info = self.rings.socket.info();
        from_contract((address::load(&info.remote_addr), info.ports.load(Ordering::Relaxed) as u16))
    }

    /// Sleeps until one of `wanted` holds, or the connection is over, or the time is up (false). For programs that have one connection
    /// per thread; others have [`Stack::wait`]. `Interrupted`: a signal handler ran.
    pub fn wait(&mut self, wanted: Readiness, timeout: Option<Duration>) -> io::Result<bool> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let socket = self.rings.socket;
        let ready = || {
            let view = socket.view();
            let now = Readiness::of(&view, view.state() != state::CONNECTING);
            now.is_closed() || now.bits() & wanted.bits() != 0
        };
        if wanted.is_writable() && !self.connecting {
            socket.want_room();
        }
        match narrow::until_signal(&socket, deadline, ready) {
            Ok(()) => Ok(true),
            Err(libc::EAGAIN) => Ok(false),
            Err(number) => Err(errno(number)),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        close(&self.rings.socket);
    }
}

impl Sealed for Connection {
    fn socket(&self) -> &Socket {
        &self.rings.socket
    }
    fn is_awaited(&self) -> bool {
        self.awaited
    }
}

impl Source for Connection {}

/// An error as Linux numbers it.
pub(crate) fn errno(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

/// Lets a slot go.
pub(crate) fn close(socket: &Socket) {
    narrow::abandon(socket);
    // Of a dead service nobody takes it back, but its events are over all the same.
    if socket.session.is_dead() {
        let _ = socket.private().used.compare_exchange(used::LIVE, used::NO, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// Has the stack begin something in a fresh slot.
pub(crate) fn begin(
    stack: &Stack,
    command: &Command,
    options: &Options,
    reservation: Option<i32>,
) -> io::Result<Socket> {
    let session = stack.session();
    if session.is_dead() {
        return Err(errno(libc::ENETDOWN));
    }
    let slot = session.claim_slot().ok_or_else(|| errno(libc::ENOBUFS))?;
    Socket::reset(session, slot, 0);
    let line = session.region.options(slot);
    if *options != Options::default() || line.seq.load(Ordering::Relaxed) != 0 {
        line.post(options);
    }
    let decided = narrow::decide(session, slot, command, reservation).inspect(narrow::let_stand);
    decided.map_err(|why| match why {
        narrow::Not::Failed(number) => errno(number),
        narrow::Not::Kernels(_) if session.is_dead() => errno(libc::ENETDOWN),
        narrow::Not::Kernels(_) | narrow::Not::Stack(_) => errno(libc::ENETUNREACH),
    })
}
