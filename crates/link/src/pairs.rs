//! A link over RDMA verbs: a lane is a queue pair; a write is an RDMA WRITE out of a ring of registered memory, and one with an immediate a
//! WRITE_WITH_IMM. Only writes of the same queue pair come in order, so nothing here depends on more. A completion with an error ends
//! the link.

use crate::link::{Arrival, Broken, Key, Link};
use crate::verbs::{Access, Completion, Local, Opcode, Registered, Remote, Status, Verbs};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use towpath_ring::span::Span;

/// Bytes of the ring that a queue pair is sent from.
const STAGE: u64 = 512 << 10;
/// Most bytes of one write.
const LONGEST: usize = 64 << 10;
/// Receives posted on each queue pair: so many immediates can be underway.
pub(crate) const RECEIVES: u64 = 512;
/// Most work requests of a queue pair that have not ended.
pub(crate) const DEPTH: usize = 256;
/// How long a write may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Marks an immediate that is about the directory and not for who uses the link.
const DIRECTORY: u32 = 1 << 30;
/// Entries of the directory.
const ENTRIES: u32 = 1024;
/// Bytes of one: key, remote key, address.
const ENTRY: usize = 16;

/// Where the other side's directory is: to be exchanged by other means before a link is used, as queue pairs' numbers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Introduction {
    /// Its remote key.
    pub rkey: u32,
    /// Where it begins.
    pub address: u64,
}

/// What has been sent on a queue pair.
struct Stage {
    memory: Span,
    lkey: u32,
    /// Bytes ever put into the ring, and those that are free again.
    tail: u64,
    head: u64,
    /// Bytes of the writes that have not ended, oldest first.
    underway: VecDeque<u64>,
}

/// A link.
pub struct Pairs {
    verbs: Arc<dyn Verbs>,
    /// By queue pair, and that something of it has ended.
    stages: Vec<(Mutex<Stage>, Condvar)>,
    broken: Mutex<Option<Status>>,
    is_broken: AtomicBool,
    /// What this side has registered.
    ours: Mutex<HashMap<Key, Registered>>,
    /// What the other side has.
    theirs: Mutex<HashMap<Key, (u32, u64)>>,
    /// It has grown.
    more: Condvar,
    /// The other side's directory, and how many entries it has had.
    introduced: Mutex<(Option<Introduction>, u32)>,
    /// This side's.
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
            let stage = Stage { memory, lkey, tail: 0, head: 0, underway: VecDeque::new() };
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
    /// What the other side must know.
    pub fn introduction(&self) -> Introduction {
        Introduction { rkey: self.registered.rkey, address: self.registered.address }
    }
    /// What this side must know. Before anything is registered.
    pub fn meet(&self, other: Introduction) {
        lock(&self.introduced).0 = Some(other);
    }

    /// Tells the other side of memory.
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

    /// Posts one write; waits for room.
    fn post(&self, pair: u32, bytes: &[u8], to: Remote, immediate: Option<u32>) -> Result<(), Broken> {
        let (stage, ended) = self.stages.get(pair as usize).ok_or(Broken::Rules("there is no such lane"))?;
        let (mut stage, until) = (lock(stage), Instant::now() + PATIENCE);
        let length = bytes.len() as u64;
        // What does not fit before the ring's end begins at its beginning.
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

    /// Where the other side has that memory. It may have been registered only now.
    fn find(&self, key: Key) -> Result<(u32, u64), Broken> {
        let theirs = lock(&self.theirs);
        let waiting = self.more.wait_timeout_while(theirs, PATIENCE, |theirs| {
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

    /// Whoever waits for something need not any more.
    fn give_up(&self, why: Status) {
        lock(&self.broken).get_or_insert(why);
        self.is_broken.store(true, Ordering::Release);
        // Who was about to wait has the lock, or has seen it.
        drop(lock(&self.theirs));
        self.more.notify_all();
        for (stage, ended) in &self.stages {
            drop(lock(stage));
            ended.notify_all();
        }
    }

    /// Something has ended.
    fn complete(&self, one: Completion, read: &mut u32) -> Result<Option<Arrival>, Broken> {
        if one.status != Status::Success {
            self.give_up(one.status);
            return Err(Broken::Completion(one.status.name()));
        }
        match one.opcode {
            Opcode::Write => {
                if let Some((stage, ended)) = self.stages.get(one.pair as usize) {
                    let mut stage = lock(stage);
                    // Those of a queue pair end in order.
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
        // The other side knows by other means that it is not to write there.
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
    /// Work requests go when they are posted.
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

/// The lock. What it guards is whole after a panic: every change is one step, or the link is broken.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
