//! A link over RDMA verbs. A lane is a queue pair. A write is an RDMA WRITE from a ring of registered memory; one with
//! an immediate is a WRITE_WITH_IMM. Only writes of one queue pair are ordered, and nothing here relies on more. A
//! completion with an error ends the link.

use crate::link::verbs::{Access, Completion, Local, Opcode, Registered, Remote, Status, Verbs};
use crate::link::{Arrival, Broken, Key, Link};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use towpath_ring::span::Span;

/// Bytes of the ring that a queue pair sends from.
const STAGE: u64 = 512 << 10;
/// Most bytes of one write.
const LONGEST: usize = 64 << 10;
/// Receives posted on each queue pair, which is the most immediates in flight.
pub(crate) const RECEIVES: u64 = 512;
/// Most work requests of a queue pair in flight.
pub(crate) const DEPTH: usize = 256;
/// How long a write may take.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);
/// Marks an immediate that concerns the directory, not the user of the link.
const DIRECTORY: u32 = 1 << 30;
/// Entries of the directory.
const ENTRIES: u32 = 1024;
/// Bytes of a directory entry: key, remote key, address.
const ENTRY: usize = 16;

/// Where the peer's directory lies. Exchanged by other means before the link is used, like the numbers of queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Introduction {
    /// Its remote key.
    pub rkey: u32,
    /// Its address.
    pub address: u64,
}

/// The sending state of a queue pair.
struct Staging {
    memory: Span,
    lkey: u32,
    /// Bytes ever put into the ring, and bytes ever freed.
    tail: u64,
    head: u64,
    /// Lengths of the writes in flight, oldest first.
    underway: VecDeque<u64>,
}

/// A link.
pub struct Pairs {
    verbs: Arc<dyn Verbs>,
    /// Sending state by queue pair, and a condition that is signalled when a write has ended.
    stages: Vec<(Mutex<Staging>, Condvar)>,
    broken: Mutex<Option<Status>>,
    is_broken: AtomicBool,
    /// Memory that this side has registered.
    ours: Mutex<HashMap<Key, Registered>>,
    /// Memory that the peer has registered.
    theirs: Mutex<HashMap<Key, (u32, u64)>>,
    /// Signalled when the peer's directory has grown.
    more: Condvar,
    /// The peer's directory, and the number of entries read.
    introduced: Mutex<(Option<Introduction>, u32)>,
    /// This side's directory.
    directory: Span,
    registered: Registered,
    completions: Mutex<(Vec<Completion>, u32)>,
}

impl Pairs {
    /// Over connected queue pairs.
    pub fn new(verbs: Arc<dyn Verbs>) -> io::Result<Self> {
        let mut stages = Vec::new();
        for pair in 0..verbs.pairs() {
            let memory = Span::fresh(STAGE as usize)?;
            let lkey = verbs.reg_mr(&memory, Access::Local)?.lkey;
            let stage = Staging { memory, lkey, tail: 0, head: 0, underway: VecDeque::new() };
            stages.push((Mutex::new(stage), Condvar::new()));
            for id in 0..RECEIVES {
                verbs.post_receive(pair, id)?;
            }
        }
        let directory = Span::fresh(ENTRIES as usize * ENTRY)?;
        let registered = verbs.reg_mr(&directory, Access::RemoteWrite)?;
        Ok(Self {
            verbs,
            stages,
            broken: Mutex::default(),
            is_broken: AtomicBool::new(false),
            ours: Mutex::default(),
            theirs: Mutex::default(),
            more: Condvar::new(),
            introduced: Mutex::default(),
            directory,
            registered,
            completions: Mutex::default(),
        })
    }
    /// The introduction that the peer needs.
    pub fn introduction(&self) -> Introduction {
        Introduction { rkey: self.registered.rkey, address: self.registered.address }
    }
    /// Takes the peer's introduction. Must come before any registration.
    pub fn meet(&self, other: Introduction) {
        lock(&self.introduced).0 = Some(other);
    }

    /// Tells the peer about registered memory.
    fn announce(&self, key: Key, memory: &Registered) -> Result<(), Broken> {
        let mut introduced = lock(&self.introduced);
        let (Some(other), count) = *introduced else { return Err(Broken::Rules("nobody is introduced")) };
        let mut entry = [0; ENTRY];
        entry[..4].copy_from_slice(&key.to_le_bytes());
        entry[4..8].copy_from_slice(&memory.rkey.to_le_bytes());
        entry[8..].copy_from_slice(&memory.address.to_le_bytes());
        let at = count % ENTRIES * ENTRY as u32;
        let to = Remote { rkey: other.rkey, address: other.address.wrapping_add(at.into()) };
        self.post(0, &entry, to, Some(DIRECTORY))?;
        introduced.1 = count.wrapping_add(1);
        Ok(())
    }

    /// Reads the next entry of the directory.
    fn announced(&self, read: &mut u32) -> Result<(), Broken> {
        let mut entry = [0; ENTRY];
        self.directory.read((*read % ENTRIES * ENTRY as u32).into(), &mut entry);
        *read = read.wrapping_add(1);
        let word = |at: usize| u32::from_le_bytes([entry[at], entry[at + 1], entry[at + 2], entry[at + 3]]);
        let (key, rkey, address) = (word(0), word(4), u64::from(word(12)) << 32 | u64::from(word(8)));
        let mut theirs = lock(&self.theirs);
        if theirs.len() >= ENTRIES as usize && !theirs.contains_key(&key) {
            return Err(Broken::Rules("it registers too much"));
        }
        theirs.insert(key, (rkey, address));
        self.more.notify_all();
        Ok(())
    }

    /// Posts one write. Waits for room.
    fn post(&self, pair: u32, bytes: &[u8], to: Remote, immediate: Option<u32>) -> Result<(), Broken> {
        let (stage, ended) = self.stages.get(pair as usize).ok_or(Broken::Rules("there is no such lane"))?;
        let (mut stage, until) = (lock(stage), Instant::now() + SEND_TIMEOUT);
        let length = bytes.len() as u64;
        // A write that does not fit before the ring's end starts at its beginning.
        let over = stage.tail % STAGE + length > STAGE;
        let skipped = if over { STAGE - stage.tail % STAGE } else { 0 };
        while stage.tail + skipped + length - stage.head > STAGE || stage.underway.len() >= DEPTH {
            self.check()?;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Broken::Stuck);
            }
            stage = ended.wait_timeout(stage, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        self.check()?;
        stage.tail += skipped;
        let offset = stage.tail % STAGE;
        stage.memory.write(offset, bytes);
        stage.tail += length;
        stage.underway.push_back(skipped + length);
        let local = Local { lkey: stage.lkey, offset, length: bytes.len() as u32 };
        match immediate {
            Some(word) => self.verbs.post_write_imm(pair, 0, local, to, word)?,
            None => self.verbs.post_write(pair, 0, local, to)?,
        }
        Ok(())
    }

    fn check(&self) -> Result<(), Broken> {
        if !self.is_broken.load(Ordering::Acquire) {
            return Ok(());
        }
        Err(Broken::Completion(lock(&self.broken).unwrap_or(Status::Flushed).name()))
    }

    /// The peer's memory of a key. It may have been registered just now.
    fn find(&self, key: Key) -> Result<(u32, u64), Broken> {
        let theirs = lock(&self.theirs);
        let waiting = self.more.wait_timeout_while(theirs, SEND_TIMEOUT, |theirs| {
            !theirs.contains_key(&key) && !self.is_broken.load(Ordering::Acquire)
        });
        let (theirs, _) = waiting.unwrap_or_else(PoisonError::into_inner);
        self.check()?;
        theirs.get(&key).copied().ok_or(Broken::Rules("the other side has no such memory"))
    }

    fn put(&self, lane: u32, key: Key, offset: u64, bytes: &[u8], immediate: Option<u32>) -> Result<(), Broken> {
        let (rkey, address) = self.find(key)?;
        let mut parts = bytes.chunks(LONGEST).peekable();
        let mut address = address.wrapping_add(offset);
        loop {
            let part = parts.next().unwrap_or_default();
            let last = parts.peek().is_none();
            self.post(lane, part, Remote { rkey, address }, immediate.filter(|_| last))?;
            address = address.wrapping_add(part.len() as u64);
            if last {
                return Ok(());
            }
        }
    }

    /// Wakes every waiting thread.
    fn give_up(&self, why: Status) {
        lock(&self.broken).get_or_insert(why);
        self.is_broken.store(true, Ordering::Release);
        // A thread that was about to wait holds the lock, or has seen the change.
        drop(lock(&self.theirs));
        self.more.notify_all();
        for (stage, ended) in &self.stages {
            drop(lock(stage));
            ended.notify_all();
        }
    }

    /// Handles a completion.
    fn complete(&self, one: Completion, read: &mut u32) -> Result<Option<Arrival>, Broken> {
        if one.status != Status::Success {
            self.give_up(one.status);
            return Err(Broken::Completion(one.status.name()));
        }
        match one.opcode {
            Opcode::Write => {
                if let Some((stage, ended)) = self.stages.get(one.pair as usize) {
                    let mut stage = lock(stage);
                    // Completions of one queue pair come in order.
                    stage.head += stage.underway.pop_front().unwrap_or(0);
                    ended.notify_all();
                }
                Ok(None)
            }
            Opcode::Received(immediate) => {
                self.verbs.post_receive(one.pair, one.id)?;
                if immediate != DIRECTORY {
                    return Ok(Some(Arrival { lane: one.pair, immediate }));
                }
                self.announced(read)?;
                Ok(None)
            }
        }
    }
}

impl Link for Pairs {
    fn lanes(&self) -> u32 {
        self.verbs.pairs()
    }
    fn register(&self, key: Key, memory: Span) -> io::Result<()> {
        let registered = self.verbs.reg_mr(&memory, Access::RemoteWrite)?;
        if let Some(before) = lock(&self.ours).insert(key, registered) {
            self.verbs.dereg_mr(&before);
        }
        self.announce(key, &registered).map_err(io::Error::other)
    }
    fn deregister(&self, key: Key) {
        // The peer knows by other means that it must not write there any more.
        if let Some(registered) = lock(&self.ours).remove(&key) {
            self.verbs.dereg_mr(&registered);
        }
    }
    fn write(&self, lane: u32, key: Key, offset: u64, bytes: &[u8]) -> Result<(), Broken> {
        self.put(lane, key, offset, bytes, None)
    }
    fn write_with_immediate(
        &self,
        lane: u32,
        key: Key,
        offset: u64,
        bytes: &[u8],
        immediate: u32,
    ) -> Result<(), Broken> {
        self.put(lane, key, offset, bytes, Some(immediate))
    }
    /// Work requests are sent when they are posted.
    fn flush(&self) -> Result<(), Broken> {
        self.check()
    }
    fn wait(&self, arrivals: &mut Vec<Arrival>, timeout: Duration) -> Result<(), Broken> {
        self.check()?;
        let mut completions = lock(&self.completions);
        let (all, read) = &mut *completions;
        self.verbs.poll_cq(all)?;
        if all.is_empty() {
            self.verbs.await_cq(timeout);
            self.verbs.poll_cq(all)?;
        }
        for one in all.drain(..) {
            arrivals.extend(self.complete(one, read)?);
        }
        Ok(())
    }
    fn close(&self) {
        self.give_up(Status::Flushed);
        self.verbs.disconnect();
    }
}

/// Locks a mutex. A panic under it leaves the value whole: every change is one step, or the link has ended.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
