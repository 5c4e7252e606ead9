//! A connection: two rings, and its state.

use crate::address::{from_contract, to_contract};
use crate::error::errno;
use crate::event::{Source, sealed::Sealed};
use crate::half::{ReadHalf, WriteHalf};
use crate::rings::Rings;
use crate::span::{Received, Room};
use crate::{Readiness, Stack};
use core::net::SocketAddr;
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::io;
use std::time::Instant;
use towpath_client::command::{self, Refusal};
use towpath_client::private::used;
use towpath_client::socket::Socket;
use towpath_client::{splice, wait};
use towpath_ring::address;
use towpath_ring::command::{Command, op};
use towpath_ring::lines::{app_flags, state};
use towpath_ring::options::Options;

/// A TCP connection, made or being made. Dropping it closes it in order: everything committed is still sent.
pub struct Connection {
    /// Their words are looked up when it is established: only then is it known where they are.
    rings: Rings,
    connecting: bool,
    /// The program has begun it and has not asked for the outcome.
    awaited: bool,
}

impl Connection {
    /// Begins a connection to `remote`. [`Readiness::WRITABLE`] reports that it is made. [`Readiness::CLOSED`]
    /// reports that it has failed, and [`Connection::is_established`] says why. ENETUNREACH: the stack has no route
    /// there, or the policy leaves it to the kernel.
    pub fn connect(stack: &Stack, remote: SocketAddr) -> io::Result<Self> {
        let (ip, port) = to_contract(remote);
        let command = Command { op: op::CONNECT, remote_addr: ip, remote_port: port.into(), ..Command::default() };
        if towpath_client::address::is_kernels(ip) {
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

    /// Is it established? The error of a failure is returned once.
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

    /// Is the other end in a program of this host that writes and reads the same memory?
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
        // Looked up after the state: the stack says where the words are before it says ESTABLISHED.
        self.rings = Rings::of(self.rings.socket);
    }

    /// The two directions, for writing into one while reading from the other.
    #[inline]
    pub fn split(&mut self) -> (ReadHalf<'_>, WriteHalf<'_>) {
        self.settle();
        (ReadHalf(&self.rings), WriteHalf(&self.rings))
    }

    /// See [`ReadHalf::received`].
    #[inline]
    pub fn received(&mut self) -> io::Result<Received<'_>> {
        self.settle();
        self.rings.received().map(Received::new)
    }

    /// See [`ReadHalf::consume`].
    #[inline]
    pub fn consume(&mut self, count: usize) {
        self.rings.consume(count);
    }

    /// Copies received bytes out and consumes them, as `recv` does; 0 = the end of the stream.
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

    /// Copies bytes into the ring and sends them. Returns how many there was room for.
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

    /// Ends this side's stream: the peer sees the end after everything sent. Its own bytes are still received.
    pub fn shutdown(&mut self) -> io::Result<()> {
        self.settle();
        if !matches!(self.rings.view.state(), state::ESTABLISHED) {
            return Err(errno(libc::ENOTCONN));
        }
        self.rings.socket.mark_app(app_flags::SHUT_WR, true);
        Ok(())
    }

    /// Splices it with another connection of this process: the stack passes on what comes on either to the other. The program
    /// is done with both then, and may drop them. `WouldBlock`: received bytes are to be passed on, or a peer has not
    /// acknowledged all; the peers are held back for a moment, so call again. EOPNOTSUPP: the stack does not splice these.
    pub fn splice(&self, other: &Self) -> io::Result<()> {
        splice::splice(&self.rings.socket, &other.rings.socket, false).map_err(errno)
    }

    /// Resets the connection. Unsent bytes are discarded.
    pub fn reset(self) {
        self.rings.socket.private().linger_s.store(0, Ordering::Relaxed);
    }

    /// Segments are sent at once, however small (`TCP_NODELAY`). Off by default, as for sockets.
    pub fn set_nodelay(&mut self, on: bool) {
        self.rings.socket.mark_app(app_flags::NODELAY, on);
    }

    /// Bytes of the send ring and of the receive ring.
    pub fn capacities(&self) -> (usize, usize) {
        let (send, receive) = self.rings.view.ring_bytes();
        (send as usize, receive as usize)
    }

    /// The error of a connection that has failed, once.
    pub fn take_error(&mut self) -> Option<io::Error> {
        self.rings.take_error()
    }

    /// The address of this end.
    pub fn local_addr(&self) -> SocketAddr {
        from_contract(towpath_client::address::local(&self.rings.socket))
    }

    /// The peer's address.
    pub fn peer_addr(&self) -> SocketAddr {
        let info = self.rings.socket.info();
        from_contract((address::load(&info.remote_addr), info.ports.load(Ordering::Relaxed) as u16))
    }

    /// Sleeps until one of `wanted` holds or the connection is over; false = the time is up. For programs with one
    /// connection per thread; others have [`Stack::wait`]. `Interrupted`: a signal handler ran.
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
        match wait::until_signal(&socket, deadline, ready) {
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

/// Lets a slot go.
pub(crate) fn close(socket: &Socket) {
    towpath_client::close::abandon(socket);
    // A dead service does not take it back, but its events must stop all the same.
    if socket.session.is_dead() {
        let _ = socket.private().used.compare_exchange(used::LIVE, used::NO, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// Posts a command that begins something in a fresh slot.
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
    let decided = command::open_socket(session, slot, command, reservation).inspect(command::release_holder);
    decided.map_err(|why| match why {
        Refusal::Failed(number) => errno(number),
        Refusal::Kernel(_) if session.is_dead() => errno(libc::ENETDOWN),
        Refusal::Kernel(_) | Refusal::OtherStack(_) | Refusal::Join(_) => errno(libc::ENETUNREACH),
    })
}
