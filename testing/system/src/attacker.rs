//! A hostile client: it speaks the registration and command protocol without the library, in any order, with any
//! arguments and descriptors.

use crate::Service;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::io;
use std::net::{TcpListener, UdpSocket};
use std::os::unix::net::UnixStream;
use std::time::Duration;
use towpath_ring::control::{self, Reply, Request};
use towpath_ring::layout::VERSION;
use towpath_ring::{Geometry, Region, wake};
use towpath_rng::Rng;

/// How long an answer may take on a busy machine.
const ANSWER_TIME: Duration = Duration::from_secs(20);

/// A connection to the service, which may have registered.
pub struct Attacker {
    /// The connection.
    pub socket: OwnedFd,
    /// The region with its memfd, and the doorbells: one for each flow group, then the command queue's.
    pub region: Option<(Region, OwnedFd, Vec<OwnedFd>)>,
}

/// The answer to a message.
#[derive(Debug)]
pub enum Answer {
    /// This, with so many descriptors.
    Said(Reply, usize),
    /// The service has hung up.
    Lost,
    /// There was none.
    Silence,
}

impl Attacker {
    /// A connection that has said nothing yet.
    pub fn connect(service: &Service) -> Self {
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let socket = socket.expect("socket");
        rustix::net::connect(&socket, &SocketAddrUnix::new(&service.socket).expect("path")).expect("connect");
        Self { socket, region: None }
    }

    /// A client that the service has admitted.
    pub fn registered(service: &Service) -> Self {
        Self::joined(service, 0).expect("welcome")
    }

    /// A process that asks for the region with this token; 0 = a new one.
    pub fn joined(service: &Service, join: u64) -> Result<Self, Answer> {
        let mut this = Self::connect(service);
        this.send(&Request::Hello { version: VERSION, join, features: u32::MAX }, &[]).expect("hello");
        let mut answer = this.received(ANSWER_TIME);
        if let Ok(Some((Reply::Make { geometry }, _))) = answer {
            let memory = towpath_ring::memory::new_memory(geometry).expect("memory");
            this.send(&Request::Region, &[memory.as_fd()]).expect("region");
            answer = this.received(ANSWER_TIME);
        }
        match answer {
            Ok(Some((Reply::Welcome { geometry, .. }, mut doorbells))) => {
                let memfd = doorbells.remove(0);
                let region = Region::map(memfd.as_fd(), geometry).expect("region");
                this.region = Some((region, memfd, doorbells));
                Ok(this)
            }
            Ok(Some((reply, descriptors))) => Err(Answer::Said(reply, descriptors.len())),
            Ok(None) => Err(Answer::Silence),
            Err(_) => Err(Answer::Lost),
        }
    }

    /// Its region.
    pub fn region(&self) -> &Region {
        &self.region.as_ref().expect("registered").0
    }

    /// The descriptors that the service has given it.
    pub fn given(&self) -> impl Iterator<Item = &OwnedFd> {
        self.region.iter().flat_map(|(_, memfd, doorbells)| doorbells.iter().chain([memfd]))
    }

    /// Sends a request with these descriptors, whether they belong to it or not.
    pub fn send(&self, request: &Request, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        control::send_request(self.socket.as_fd(), request, descriptors)
    }

    fn received(&self, within: Duration) -> io::Result<Option<(Reply, Vec<OwnedFd>)>> {
        use rustix::event::{PollFd, PollFlags, poll};
        let mut waiting = [PollFd::new(&self.socket, PollFlags::IN)];
        if poll(&mut waiting, Some(&within.try_into().expect("a short time")))? == 0 {
            return Ok(None);
        }
        control::recv_reply(self.socket.as_fd()).map(Some)
    }

    /// The next answer, for which it waits so long.
    pub fn answer(&self, within: Duration) -> Answer {
        match self.received(within) {
            Ok(Some((reply, descriptors))) => Answer::Said(reply, descriptors.len()),
            Ok(None) => Answer::Silence,
            Err(_) => Answer::Lost,
        }
    }

    /// Sends a request that has an answer, and returns it.
    pub fn ask(&self, request: &Request, descriptors: &[BorrowedFd<'_>]) -> Answer {
        if self.send(request, descriptors).is_err() { Answer::Lost } else { self.answer(ANSWER_TIME) }
    }

    /// Notifies the command queue's doorbell.
    pub fn ring(&self) {
        self.given().for_each(|doorbell| wake::notify(doorbell.as_fd()));
    }
}

/// Every kind of request, with arguments that are small, at an edge, or anything.
pub fn requests(random: &mut Rng) -> Vec<Request> {
    let mut word = || match random.below(4) {
        0 => random.below(4) as u32,
        1 => 1 << random.below(32),
        2 => u32::MAX - random.below(3) as u32,
        _ => random.next_u64() as u32,
    };
    vec![
        Request::Hello { version: VERSION, join: 0, features: u32::MAX },
        Request::Hello { version: VERSION, join: u64::from(word()), features: u32::MAX },
        Request::Hello { version: word(), join: 0, features: u32::MAX },
        Request::Attach { slot: word(), generation: word(), end: word() },
        Request::Reattach { slot: word(), generation: word(), end: word() },
        Request::Reserve { slot: word(), seq: word(), listens: word() % 2 == 0 },
        Request::Join { slot: word(), seq: word(), remote_addr: u128::from(word()).into(), remote_port: word() },
        Request::Context,
        Request::DropContext { context: word() },
        Request::Pair { place: word(), pair: word() },
        Request::Doorbell { place: word(), pair: word(), context: word() },
        Request::Name { slot: word(), generation: word() },
        Request::Adopt,
        Request::Stack { stack: word() },
        Request::NameAt { stack: word() },
        Request::File { replaces: word() },
        Request::Stats,
        Request::Region,
    ]
}

/// Descriptors of every kind that a program can have.
pub fn descriptors() -> Vec<OwnedFd> {
    let file = |path: &str| OwnedFd::from(std::fs::File::open(path).expect("open"));
    let (left, right) = UnixStream::pair().expect("pair");
    let (reader, writer) = std::io::pipe().expect("pipe");
    let unbound =
        rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).expect("socket");
    vec![
        left.into(),
        right.into(),
        reader.into(),
        writer.into(),
        unbound,
        TcpListener::bind("127.0.0.1:0").expect("listener").into(),
        UdpSocket::bind("127.0.0.1:0").expect("UDP").into(),
        wake::doorbell().expect("eventfd"),
        Region::create(Geometry::DEFAULT).expect("a region of its own").1,
        file("/dev/null"),
        file("/"),
        file("/proc/self/status"),
    ]
}
