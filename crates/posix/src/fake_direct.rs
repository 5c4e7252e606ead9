//! Direct connections of the stack for tests: a client that connects to itself gets both ends in one pair region.

use super::{End, Fake, FakeClient};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use towpath_ring::control::{self, Reply, Request};
use towpath_ring::lines::{app_flags, pair_slot, state, status};
use towpath_ring::{PairGeometry, PairRegion, wake};

/// The backlog of listeners whose connections are direct.
pub const DIRECT: u32 = 1414;
/// The number of the pair.
const PAIR: u32 = 1;

/// A direct connection. The side of an end is its place here.
pub struct Joined {
    ends: [End; 2],
    generations: [u32; 2],
    gone: [bool; 2],
    slot: u32,
}

/// All direct connections.
#[derive(Default)]
pub struct Direct {
    pub listeners: Vec<End>,
    region: Option<(PairRegion, OwnedFd)>,
    joined: Vec<Joined>,
}

impl Direct {
    /// Answers a request that concerns pairs; `false`: it is another one.
    pub fn request(&self, client: &FakeClient, control: &UnixStream, request: &Request) -> io::Result<bool> {
        match (request, &self.region) {
            (Request::Pair { .. }, Some((region, memfd))) => {
                let reply = Reply::Pair { pair: PAIR, geometry: region.geometry() };
                control::send_reply(control.as_fd(), &reply, &[memfd.as_fd()])?;
            }
            (Request::Doorbell { context, .. }, _) => match client.contexts.get(context) {
                Some(doorbell) => {
                    control::send_reply(control.as_fd(), &Reply::Doorbell { context: *context }, &[doorbell.as_fd()])?;
                }
                None => control::send_reply(control.as_fd(), &Reply::Refused { errno: libc::ENOENT }, &[])?,
            },
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The words of a new connection in each end's line: `pair` and `pair_slot`.
    pub fn place(&mut self, client: &FakeClient) -> io::Result<[(u32, u32); 2]> {
        if self.region.is_none() {
            self.region = Some(PairRegion::create(PairGeometry::of(&client.region.geometry()), PAIR)?);
        }
        let (region, _) = self.region.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let is_free = |slot: &u32| self.joined.iter().all(|joined| joined.slot != *slot);
        let slot = (0..region.geometry().slots).find(is_free).ok_or(io::ErrorKind::OutOfMemory)?;
        for lines in [0, 1].map(|side| region.lines(slot, side)) {
            let line = &lines.line;
            for word in [&line.tx_tail, &line.rx_head, &line.flags, &line.want, &line.sleepers, &line.urgent] {
                word.store(0, Relaxed);
            }
            for word in [&line.urgent_doorbell, &line.held_tail, &line.held_ms] {
                word.store(0, Relaxed);
            }
            line.ctx_mask.store(0, Relaxed);
            line.exclusive.store(0, Relaxed);
            lines.send_withheld.store(0, Relaxed);
            lines.receive_withheld.store(0, Relaxed);
        }
        Ok([0, 1].map(|side| (PAIR, pair_slot::of(slot, side, 0))))
    }

    /// The connection in these places is there.
    pub fn join(&mut self, ends: [End; 2], generations: [u32; 2], word: u32) {
        self.joined.push(Joined { ends, generations, gone: [false; 2], slot: pair_slot::slot(word) });
    }

    fn find(&self, end: End, generation: u32) -> Option<(usize, usize)> {
        let side = |joined: &Joined| (0..2).find(|i| joined.ends[*i] == end && joined.generations[*i] == generation);
        self.joined.iter().enumerate().find_map(|(at, joined)| Some((at, side(joined)?)))
    }
}

impl Fake {
    /// The application of a direct connection has changed its line.
    pub fn look_at_direct(&mut self, end: End) {
        let app = self.clients[end.0].region.app(end.1);
        let (generation, flags) = (app.generation.load(Acquire), app.flags.load(Acquire));
        let Some((at, side)) = self.direct.find(end, generation) else { return };
        if flags & app_flags::CLOSED != 0 {
            self.close(end, generation, flags);
        } else if flags & app_flags::PEER_VIOLATED != 0 {
            self.end_direct(at, side, libc::ECONNABORTED);
            self.end_direct(at, 1 - side, libc::ECONNRESET);
        }
    }

    /// One end of a direct connection is closed; the slot's state is left to the caller.
    pub fn part(&mut self, end: End, generation: u32, abort: bool) {
        let Some((at, side)) = self.direct.find(end, generation) else { return };
        self.direct.joined[at].gone[side] = true;
        match self.direct.joined[at].gone[1 - side] {
            true => _ = self.direct.joined.swap_remove(at),
            false if abort => self.end_direct(at, 1 - side, libc::ECONNRESET),
            false => {
                let other = self.direct.joined[at].ends[1 - side];
                let status = &self.clients[other.0].region.stack(other.1).status;
                status.fetch_or(status::PEER_CLOSED | status::RX_EOF, AcqRel);
                self.wake_direct(at, 1 - side);
            }
        }
    }

    fn end_direct(&mut self, at: usize, side: usize, errno: i32) {
        let joined = &self.direct.joined[at];
        let (end, gone) = (joined.ends[side], joined.gone[side]);
        let stack = self.clients[end.0].region.stack(end.1);
        if gone || stack.state.load(Relaxed) == state::CLOSED {
            return;
        }
        stack.error.store(errno as u32, Release);
        stack.status.store(status::RESET | status::TX_CLOSED | status::PEER_CLOSED, Release);
        stack.state.store(state::CLOSED, Release);
        self.wake_direct(at, side);
    }

    fn wake_direct(&mut self, at: usize, side: usize) {
        let joined = &self.direct.joined[at];
        let (end, slot) = (joined.ends[side], joined.slot);
        if let Some((region, _)) = &self.direct.region {
            let word = &region.lines(slot, side).event_seq;
            word.fetch_add(1, AcqRel);
            wake::futex_wake(word);
        }
        self.raise(end);
    }
}
