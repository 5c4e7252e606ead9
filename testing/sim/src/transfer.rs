//! A program at one end of a connection: it sends random bytes, hashes received ones, and closes.

use crate::errno::EAGAIN;
use crate::sockets::{Phase, SocketId};
use crate::trace::StreamHash;
use crate::world::{Program, World};
use smoltcp::iface::SocketHandle;
use smoltcp::socket::tcp;
use towpath_rng::Rng;
use towpath_tcp::time::Micros;

/// A socket of a node or of a smoltcp host.
#[derive(Clone, Copy, Debug)]
pub enum Endpoint {
    /// The next connection of this listener of a node.
    Accept(usize, SocketId),
    /// A socket of a node.
    Node(usize, SocketId),
    /// A socket of a smoltcp host.
    Smoltcp(usize, SocketHandle),
}

/// The plan of one end of a transfer.
#[derive(Clone, Copy, Debug)]
pub struct TransferPlan {
    /// Seed of its bytes and pauses.
    pub seed: u64,
    /// Bytes that it sends.
    pub bytes: u64,
    /// Largest single write and read.
    pub chunk: usize,
    /// Share of reads after which it pauses, in millionths.
    pub pause_ppm: u32,
    /// Longest pause in µs.
    pub pause_us: u64,
}

/// The program at one end of a transfer.
#[derive(Clone, Debug)]
pub struct TransferEnd {
    /// Its socket.
    pub endpoint: Endpoint,
    plan: TransferPlan,
    rng: Rng,
    left: u64,
    unsent: Vec<u8>,
    asleep_until: Option<Micros>,
    shut: bool,
    eof: bool,
    /// Has it closed its socket?
    pub closed: bool,
    /// Hash of sent bytes.
    pub sent: StreamHash,
    /// Hash of received bytes.
    pub got: StreamHash,
    /// The first errno other than `EAGAIN`.
    pub error: Option<i32>,
}

impl TransferEnd {
    /// One end with this plan.
    pub fn new(endpoint: Endpoint, plan: TransferPlan) -> Self {
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

    /// Has it received everything, sent everything and closed, without an error?
    pub fn finished(&self) -> bool {
        self.closed && self.eof && self.left == 0 && self.unsent.is_empty() && self.error.is_none()
    }

    /// Its progress, in one line.
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

    /// Is the connection established?
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
            Endpoint::Smoltcp(peer, handle) => !matches!(
                world.smoltcp_hosts[peer].socket(handle).state(),
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
                Endpoint::Smoltcp(peer, handle) => world.smoltcp_hosts[peer].send(handle, &self.unsent),
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
                Endpoint::Smoltcp(peer, handle) => world.smoltcp_hosts[peer].recv(handle, &mut buffer),
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

    /// Sends FIN after the last byte, and closes after the peer's FIN.
    fn finish(&mut self, world: &mut World) -> bool {
        let all_out = self.left == 0 && self.unsent.is_empty();
        if !all_out || self.error.is_some() || (self.shut && !self.eof) {
            return false;
        }
        self.closed = self.eof;
        match self.endpoint {
            Endpoint::Node(node, id) if self.eof => world.nodes[node].close(id, false),
            Endpoint::Node(node, id) => world.nodes[node].shutdown(id),
            Endpoint::Smoltcp(peer, handle) if !self.shut => world.smoltcp_hosts[peer].socket(handle).close(),
            _ => {}
        }
        self.shut = true;
        true
    }
}

/// Several ends of transfers.
#[derive(Clone, Debug, Default)]
pub struct Transfers(pub Vec<TransferEnd>);

impl Program for Transfers {
    fn step(&mut self, world: &mut World) -> bool {
        let mut busy = false;
        for end in &mut self.0 {
            busy |= end.step(world);
        }
        busy
    }

    fn next_deadline(&self) -> Option<Micros> {
        self.0.iter().filter(|t| !t.closed && t.error.is_none()).filter_map(|t| t.asleep_until).min()
    }
}
