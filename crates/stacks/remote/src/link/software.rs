//! Verbs without an adapter, for tests: two sides in one process, and between them a fabric as unkind as the rules
//! allow. Writes are delayed, and queue pairs overtake each other. A write is half in memory, in any order, before it
//! is whole. One write can fail. A seed reproduces all of it, except for thread scheduling.

use crate::link::pairs::Pairs;
use crate::link::verbs::{Access, Completion, Local, Opcode, Registered, Remote, Status, Verbs};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use towpath_ring::span::Span;

/// Bytes of a packet.
const PACKET: usize = 4096;
/// How long a write waits for a receive of the peer.
const READY: Duration = Duration::from_secs(1);
/// Memory `n` has addresses from `n` times this.
const ADDRESSES: u64 = 1 << 40;

/// The faults of the fabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fabric {
    /// Seed of its random choices.
    pub seed: u64,
    /// Queue pairs.
    pub pairs: u32,
    /// Longest time of a write, µs.
    pub latency_us: u64,
    /// The step of this number fails, counted over all writes (each has one or two); 0 for none.
    pub fails: u64,
}

/// State of one side.
pub struct Software {
    fabric: Arc<Shared>,
    side: usize,
}

struct Shared {
    state: Mutex<State>,
    /// Signalled when there is work for the fabric.
    work: Condvar,
    /// Signalled when something has ended on a side.
    ended: [Condvar; 2],
}

struct State {
    random: u64,
    latency_us: u64,
    /// Steps until one fails; `None` if none does.
    fails: Option<u64>,
    sides: [Side; 2],
    /// Number of sides that were dropped.
    dropped: u32,
}

#[derive(Default)]
struct Side {
    memories: HashMap<u32, (Span, Access)>,
    last_key: u32,
    pairs: Vec<Pair>,
    completions: VecDeque<Completion>,
}

#[derive(Default)]
struct Pair {
    requests: VecDeque<Request>,
    receives: VecDeque<u64>,
    failed: bool,
}

struct Request {
    id: u64,
    local: Local,
    remote: Remote,
    immediate: Option<u32>,
    due: Instant,
    /// Half of it is in memory.
    begun: bool,
    /// Since when the peer has had no receive for it.
    unready: Option<Instant>,
}

/// Both sides of a fabric.
pub fn fabric(fabric: &Fabric) -> io::Result<(Arc<Software>, Arc<Software>)> {
    let side = || Side { pairs: (0..fabric.pairs).map(|_| Pair::default()).collect(), ..Side::default() };
    let state = State {
        random: fabric.seed,
        latency_us: fabric.latency_us,
        fails: (fabric.fails > 0).then_some(fabric.fails),
        sides: [side(), side()],
        dropped: 0,
    };
    let shared = Arc::new(Shared { state: Mutex::new(state), work: Condvar::new(), ended: Default::default() });
    let running = Arc::clone(&shared);
    std::thread::Builder::new().name("fabric".into()).spawn(move || running.run())?;
    let of = |side| Arc::new(Software { fabric: Arc::clone(&shared), side });
    Ok((of(0), of(1)))
}

/// Both ends of a link over a fabric.
pub fn link(of: &Fabric) -> io::Result<(Arc<Pairs>, Arc<Pairs>)> {
    let (a, b) = fabric(of)?;
    let (a, b) = (Pairs::new(a)?, Pairs::new(b)?);
    a.meet(b.introduction());
    b.meet(a.introduction());
    Ok((Arc::new(a), Arc::new(b)))
}

impl State {
    /// A random number below `below`, which is not 0 (splitmix64).
    fn random(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % below
    }

    /// When an operation that begins now is done.
    fn due(&mut self) -> Instant {
        let most = self.latency_us;
        Instant::now() + Duration::from_micros(self.random(most + 1))
    }

    /// The queue pair whose next write is due first: side, number, time.
    fn next(&self) -> Option<(usize, usize, Instant)> {
        let all = self.sides.iter().enumerate().flat_map(|(side, of)| {
            of.pairs.iter().enumerate().filter_map(move |(pair, of)| Some((side, pair, of.requests.front()?.due)))
        });
        all.min_by_key(|(_, _, due)| *due)
    }

    /// Carries a write out; `None` if it is not finished.
    fn advance(&mut self, side: usize, pair: usize) -> Option<Status> {
        let due = self.due();
        let fails = match &mut self.fails {
            Some(left) => {
                *left = left.saturating_sub(1);
                *left == 0
            }
            None => false,
        };
        if fails {
            self.fails = None;
            return Some(Status::RetryExceeded);
        }
        let salt = self.random(2);
        let (own, other) = match &mut self.sides {
            [a, b] if side == 0 => (a, b),
            [a, b] => (b, a),
        };
        let request = own.pairs[pair].requests.front_mut()?;
        let Some((from, _)) = own.memories.get(&request.local.lkey) else { return Some(Status::LocalProtection) };
        let mut bytes = vec![0; request.local.length as usize];
        if !from.read(request.local.offset, &mut bytes) {
            return Some(Status::LocalProtection);
        }
        let at = request.remote.address.wrapping_sub(u64::from(request.remote.rkey) * ADDRESSES);
        if !bytes.is_empty() {
            let Some((to, Access::RemoteWrite)) = other.memories.get(&request.remote.rkey) else {
                return Some(Status::RemoteAccess);
            };
            if at.checked_add(bytes.len() as u64).is_none_or(|end| end > to.bytes()) {
                return Some(Status::RemoteAccess);
            }
            // Every other packet, then the rest.
            let first = !request.begun;
            for (number, packet) in bytes.chunks(PACKET).enumerate() {
                if (number as u64 % 2 == salt) == first || !first {
                    to.write(at + (number * PACKET) as u64, packet);
                }
            }
            if first {
                (request.begun, request.due) = (true, due);
                return None;
            }
        }
        if let Some(immediate) = request.immediate {
            let Some(id) = other.pairs[pair].receives.pop_front() else {
                let since = *request.unready.get_or_insert_with(Instant::now);
                request.due = Instant::now() + Duration::from_micros(100);
                return (since.elapsed() >= READY).then_some(Status::ReceiverNotReady);
            };
            let opcode = Opcode::Received(immediate);
            other.completions.push_back(Completion { id, pair: pair as u32, status: Status::Success, opcode });
        }
        Some(Status::Success)
    }

    /// Ends all queue pairs of a side.
    fn fail(&mut self, side: usize, pair: usize) {
        let Side { pairs, completions, .. } = &mut self.sides[side];
        let Some(failed) = pairs.get_mut(pair) else { return };
        failed.failed = true;
        let flushed = |id, opcode| Completion { id, pair: pair as u32, status: Status::Flushed, opcode };
        completions.extend(failed.requests.drain(..).map(|request| flushed(request.id, Opcode::Write)));
        completions.extend(failed.receives.drain(..).map(|id| flushed(id, Opcode::Received(0))));
    }
}

impl Shared {
    fn run(&self) {
        let mut state = lock(&self.state);
        while state.dropped < 2 {
            let now = Instant::now();
            match state.next() {
                Some((side, pair, due)) if due <= now => {
                    if let Some(status) = state.advance(side, pair) {
                        self.complete(&mut state, (side, pair), status);
                    }
                }
                next => {
                    let wait = next.map_or(Duration::from_secs(1), |(_, _, due)| due - now);
                    state = self.work.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
    }

    fn complete(&self, state: &mut State, (side, pair): (usize, usize), status: Status) {
        let of = &mut state.sides[side];
        if let Some(request) = of.pairs[pair].requests.pop_front() {
            let (id, opcode) = (request.id, Opcode::Write);
            of.completions.push_back(Completion { id, pair: pair as u32, status, opcode });
        }
        if status != Status::Success {
            state.fail(side, pair);
        }
        self.ended.iter().for_each(Condvar::notify_all);
    }
}

impl Software {
    fn post(&self, pair: u32, request: (u64, Local, Remote, Option<u32>)) -> io::Result<()> {
        let mut state = lock(&self.fabric.state);
        let due = state.due();
        let (id, local, remote, immediate) = request;
        let Side { pairs, completions, .. } = &mut state.sides[self.side];
        let of = pairs.get_mut(pair as usize).ok_or(io::ErrorKind::InvalidInput)?;
        if of.failed {
            completions.push_back(Completion { id, pair, status: Status::Flushed, opcode: Opcode::Write });
            self.fabric.ended[self.side].notify_all();
            return Ok(());
        }
        // Times of one queue pair must not decrease, whatever is drawn.
        let due = of.requests.back().map_or(due, |last| last.due.max(due));
        of.requests.push_back(Request { id, local, remote, immediate, due, begun: false, unready: None });
        self.fabric.work.notify_all();
        Ok(())
    }
}

impl Verbs for Software {
    fn pairs(&self) -> u32 {
        lock(&self.fabric.state).sides[self.side].pairs.len() as u32
    }
    fn reg_mr(&self, memory: &Span, access: Access) -> io::Result<Registered> {
        let side = &mut lock(&self.fabric.state).sides[self.side];
        side.last_key += 1;
        let key = side.last_key;
        side.memories.insert(key, (memory.clone(), access));
        Ok(Registered { lkey: key, rkey: key, address: u64::from(key) * ADDRESSES })
    }
    fn dereg_mr(&self, memory: &Registered) {
        lock(&self.fabric.state).sides[self.side].memories.remove(&memory.lkey);
    }
    fn post_write(&self, pair: u32, id: u64, local: Local, remote: Remote) -> io::Result<()> {
        self.post(pair, (id, local, remote, None))
    }
    fn post_write_imm(&self, pair: u32, id: u64, local: Local, remote: Remote, immediate: u32) -> io::Result<()> {
        self.post(pair, (id, local, remote, Some(immediate)))
    }
    fn post_receive(&self, pair: u32, id: u64) -> io::Result<()> {
        let side = &mut lock(&self.fabric.state).sides[self.side];
        let of = side.pairs.get_mut(pair as usize).ok_or(io::ErrorKind::InvalidInput)?;
        if !of.failed {
            of.receives.push_back(id);
        }
        Ok(())
    }
    fn poll_cq(&self, completions: &mut Vec<Completion>) -> io::Result<()> {
        completions.extend(lock(&self.fabric.state).sides[self.side].completions.drain(..));
        Ok(())
    }
    fn await_cq(&self, timeout: Duration) {
        let state = lock(&self.fabric.state);
        let empty = |state: &mut State| state.sides[self.side].completions.is_empty();
        drop(self.fabric.ended[self.side].wait_timeout_while(state, timeout, empty));
    }
    fn disconnect(&self) {
        let mut state = lock(&self.fabric.state);
        for side in 0..2 {
            for pair in 0..state.sides[side].pairs.len() {
                state.fail(side, pair);
            }
        }
        self.fabric.ended.iter().for_each(Condvar::notify_all);
    }
}

impl Drop for Software {
    fn drop(&mut self) {
        lock(&self.fabric.state).dropped += 1;
        self.fabric.work.notify_all();
    }
}

/// Locks a mutex. A panic under it may lose a write, and fails the test by itself.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
