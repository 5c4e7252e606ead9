//! A program at one end of a connection: sends random bytes, hashes what it gets, closes.

use crate::node::EAGAIN;
use crate::rng::Rng;
use crate::sockets::{Phase, SocketId};
use crate::trace::StreamHash;
use crate::world::{Program, World};
use smoltcp::iface::SocketHandle;
use smoltcp::socket::tcp;
use towpath_tcp::time::Micros;

/// A socket somewhere in the world.
#[derive(Clone, Copy, Debug)]
pub enum Endpoint {
    /// Not yet: the next connection of this listener of a node.
    Accept(usize, SocketId),
    /// A socket of a node.
    Node(usize, SocketId),
    /// A socket of a foreign peer.
    Peer(usize, SocketHandle),
}

/// What a talker does.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Seed of its bytes and habits.
    pub seed: u64,
    /// Bytes that it sends.
    pub bytes: u64,
    /// Largest single write and read.
    pub chunk: usize,
    /// Reads after which it sleeps, in millionths.
    pub pause_ppm: u32,
    /// It sleeps for up to this many µs.
    pub pause_us: u64,
}

/// The program.
#[derive(Clone, Debug)]
pub struct Talker {
    /// Its socket.
    pub endpoint: Endpoint,
    plan: Plan,
    rng: Rng,
    left: u64,
    unsent: Vec<u8>,
    asleep_until: Option<Micros>,
    shut: bool,
    eof: bool,
    /// It has closed its socket.
    pub closed: bool,
    /// Hash of what it has sent.
    pub sent: StreamHash,
    /// Hash of what it has received.
    pub got: StreamHash,
    /// The first errno other than `EAGAIN`.
    pub error: Option<i32>,
}

impl Talker {
    /// A talker with this plan.
    pub fn new(endpoint: Endpoint, plan: Plan) -> Self {
        Self {
            endpoint,
            plan,
            rng: Rng::new(plan.seed),
            left: plan.bytes,
            unsent: Vec::new(),
            asleep_until: None,
            shut: false,
            eof: false,
            closed: false,
            sent: StreamHash::default(),
            got: StreamHash::default(),
            error: None,
        }
    }

    /// Received everything, sent everything, closed, without an error.
    pub fn finished(&self) -> bool {
        self.closed && self.eof && self.left == 0 && self.unsent.is_empty() && self.error.is_none()
    }

    /// One line about where it is.
    pub fn describe(&self) -> String {
        let Self { endpoint, plan, shut, eof, closed, error, .. } = self;
        let (sent, got) = (self.sent.len, self.got.len);
        format!(
            "{endpoint:?} {plan:?}: sent {sent}, got {got}, shut {shut}, eof {eof}, closed {closed}, error {error:?}"
        )
    }

    fn step(&mut self, world: &mut World) -> bool {
        if self.closed || self.error.is_some() || !self.open(world) {
            return false;
        }
        let mut busy = self.write(world);
        busy |= self.read(world);
        busy | self.finish(world)
    }

    /// Is the connection there?
    fn open(&mut self, world: &mut World) -> bool {
        match self.endpoint {
            Endpoint::Accept(node, listener) => {
                if let Some(id) = world.nodes[node].accept(listener) {
                    self.endpoint = Endpoint::Node(node, id);
                }
                matches!(self.endpoint, Endpoint::Node(..))
            }
            Endpoint::Node(node, id) => match world.nodes[node].phase(id) {
                Phase::Failed(errno) => {
                    self.error = Some(errno);
                    false
                }
                phase => phase != Phase::Connecting,
            },
            Endpoint::Peer(peer, handle) => !matches!(
                world.peers[peer].socket(handle).state(),
                tcp::State::Listen | tcp::State::SynSent | tcp::State::SynReceived
            ),
        }
    }

    fn write(&mut self, world: &mut World) -> bool {
        let mut busy = false;
        while !self.shut {
            if self.unsent.is_empty() {
                let n = self.left.min(self.rng.between(1, self.plan.chunk as u64));
                self.left -= n;
                self.unsent.resize(n as usize, 0);
                self.rng.fill(&mut self.unsent);
            }
            if self.unsent.is_empty() {
                break;
            }
            let result = match self.endpoint {
                Endpoint::Node(node, id) => world.nodes[node].send(id, &self.unsent),
                Endpoint::Peer(peer, handle) => world.peers[peer].send(handle, &self.unsent),
                Endpoint::Accept(..) => Err(EAGAIN),
            };
            let Some(n) = self.note(result) else { break };
            self.sent.update(&self.unsent[..n]);
            self.unsent.drain(..n);
            busy = true;
        }
        busy
    }

    fn read(&mut self, world: &mut World) -> bool {
        let mut busy = false;
        let mut buffer = vec![0; self.plan.chunk];
        while !self.eof {
            if self.asleep_until.is_some_and(|until| until > world.now) {
                break;
            }
            self.asleep_until = None;
            let result = match self.endpoint {
                Endpoint::Node(node, id) => world.nodes[node].recv(id, &mut buffer),
                Endpoint::Peer(peer, handle) => world.peers[peer].recv(handle, &mut buffer),
                Endpoint::Accept(..) => Err(EAGAIN),
            };
            let Some(n) = self.note(result) else { break };
            busy = true;
            self.eof = n == 0;
            self.got.update(&buffer[..n]);
            if self.rng.chance(self.plan.pause_ppm) {
                self.asleep_until = Some(world.now.after(self.rng.between(1, self.plan.pause_us)));
            }
        }
        busy
    }

    fn note(&mut self, result: Result<usize, i32>) -> Option<usize> {
        if let Err(errno) = result
            && errno != EAGAIN
        {
            self.error.get_or_insert(errno);
        }
        result.ok()
    }

    /// FIN after the last byte; close after the peer's FIN.
    fn finish(&mut self, world: &mut World) -> bool {
        let all_out = self.left == 0 && self.unsent.is_empty();
        if !all_out || self.error.is_some() || (self.shut && !self.eof) {
            return false;
        }
        self.closed = self.eof;
        match self.endpoint {
            Endpoint::Node(node, id) if self.eof => world.nodes[node].close(id, false),
            Endpoint::Node(node, id) => world.nodes[node].shutdown(id),
            Endpoint::Peer(peer, handle) if !self.shut => world.peers[peer].socket(handle).close(),
            _ => {}
        }
        self.shut = true;
        true
    }
}

/// Several talkers.
#[derive(Clone, Debug, Default)]
pub struct Talkers(pub Vec<Talker>);

impl Program for Talkers {
    fn step(&mut self, world: &mut World) -> bool {
        let mut busy = false;
        for talker in &mut self.0 {
            busy |= talker.step(world);
        }
        busy
    }

    fn next_deadline(&self) -> Option<Micros> {
        self.0.iter().filter(|t| !t.closed && t.error.is_none()).filter_map(|t| t.asleep_until).min()
    }
}
