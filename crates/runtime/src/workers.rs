//! The threads of a stack, and the flow groups that they serve. A thread does all work that there is, spins for a while
//! without work, then sleeps.
//!
//! One thread owns a group at a time. A group goes from one thread to another as a message, between two of its turns.
//! Its ports, its connections and its doorbells go with it, so nothing is lost or reordered.

use crate::adaptive_spin::AdaptiveSpin;
use crate::give_way::give_way;
use crate::mailbox::Doorbell;
use crate::placement::Placement;
use crate::recorded::say_what_was_before;
use crate::stack::WorkerCount;
use crate::status::WorkerStatus;
use crate::thread::{epoll_with, now_us, pin, wait, watch};
use rustix::event::epoll;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use towpath_modules::budget::serves_as;
use towpath_recorder as recorder;

/// A turn that takes longer is recorded, µs. It takes some tens with all that it may take at once.
const LONG_TURN_US: u64 = 10_000;

/// The result of a group's last look before its thread sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// There is something to do.
    No,
    /// There is nothing to do for so many µs; `None` = until something wakes it.
    For(Option<u64>),
}

/// A part of a stack that a thread serves. Only the thread that has it calls it.
pub trait Group: Send + 'static {
    /// Does all work that there is now; returns how much it was.
    fn turn(&mut self, now_us: u64) -> usize;
    /// A turn is over at `now_us` and has taken `took_us`.
    fn turned(&mut self, now_us: u64, took_us: u64, worked: bool);
    /// A turn ended by a panic.
    fn panicked(&mut self);
    /// The thread wants to sleep: announces it to all who may wake it, and looks once more. [`Group::disarm`] follows.
    fn arm(&mut self, now_us: u64) -> Idle;
    /// The thread is awake, or has not slept after all.
    fn disarm(&mut self, slept: bool);
    /// Sleeps until something in the set happens, or for `timeout_us`.
    fn wait(&mut self, timeout_us: Option<u64>);
    /// Everything that may wake it. It is watched while the thread has other groups, too.
    fn set(&self) -> &OwnedFd;
}

/// How threads are started.
#[derive(Clone, Debug)]
pub struct WorkersConfig {
    /// Thread `i` is called `NAME-i`.
    pub name: &'static str,
    /// How long a thread usually spins without work before it sleeps, µs; see [`AdaptiveSpin`].
    pub spin_us: u64,
    /// Thread `i` is pinned to CPU `cpus[i]`; missing entries are not pinned.
    pub cpus: Vec<usize>,
}

/// A command to a thread. A `Sender` is dropped when the command is done.
enum WorkerCommand<G> {
    Take(usize, Box<G>, Sender<()>),
    Give { group: usize, to: usize, done: Sender<()> },
    Answer(Sender<()>),
    Stop,
}

/// A thread's mailbox for commands, and its counters, which only the thread writes. It has cache lines of its own.
#[repr(align(128))]
struct WorkerShared<G> {
    commands: Sender<WorkerCommand<G>>,
    /// There are commands.
    has_commands: AtomicBool,
    doorbell: Arc<Doorbell>,
    turns: AtomicU64,
    busy_us: AtomicU64,
    idle_us: AtomicU64,
    sleeps: AtomicU64,
}

impl<G> WorkerShared<G> {
    fn send(&self, command: WorkerCommand<G>) {
        // The receiver lives until its thread is told to stop.
        let _ = self.commands.send(command);
        self.has_commands.store(true, Ordering::Release);
        self.doorbell.notify_always();
    }
}

/// Running threads and the groups that they serve.
pub struct Workers<G: Group> {
    shared: Arc<[WorkerShared<G>]>,
    placement: Mutex<Placement>,
    threads: Vec<JoinHandle<()>>,
}

impl<G: Group> Workers<G> {
    /// Starts a thread for each group.
    pub fn start(config: &WorkersConfig, groups: Vec<Box<G>>) -> io::Result<Self> {
        let (mut shared, mut commands) = (Vec::new(), Vec::new());
        for _ in &groups {
            let (sender, receiver) = mpsc::channel();
            shared.push(WorkerShared {
                commands: sender,
                has_commands: AtomicBool::new(false),
                doorbell: Doorbell::new()?,
                turns: AtomicU64::new(0),
                busy_us: AtomicU64::new(0),
                idle_us: AtomicU64::new(0),
                sleeps: AtomicU64::new(0),
            });
            commands.push(receiver);
        }
        let placement = Mutex::new(Placement::new(groups.len()));
        let mut workers = Self { shared: shared.into(), placement, threads: Vec::new() };
        for ((number, group), commands) in groups.into_iter().enumerate().zip(commands) {
            let name = format!("{}-{number}", config.name);
            let recorded = name.clone();
            let mut worker = Worker {
                number,
                set: epoll_with(&workers.shared[number].doorbell)?,
                shared: Arc::clone(&workers.shared),
                commands,
                groups: Vec::new(),
                spin: AdaptiveSpin::new(config.spin_us),
                cpu: config.cpus.get(number).copied(),
            };
            worker.take(number, group);
            workers.threads.push(std::thread::Builder::new().name(name).spawn(move || {
                recorder::begin(&recorded);
                worker.run();
            })?);
        }
        Ok(workers)
    }

    /// See [`crate::Stack::workers`].
    pub fn count(&self) -> WorkerCount {
        let placement = self.placement();
        WorkerCount { running: placement.running(), most: placement.most() }
    }

    /// See [`crate::Stack::set_workers`].
    pub fn set_workers(&self, running: usize) -> io::Result<()> {
        let mut placement = self.placement();
        if !(1..=placement.most()).contains(&running) {
            let text = format!("{running} threads: 1 to {} can run", placement.most());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let (done, all_done) = mpsc::channel();
        for one in placement.resize(running) {
            self.shared[one.from].send(WorkerCommand::Give { group: one.group, to: one.to, done: done.clone() });
        }
        drop(done);
        // Nothing is sent. The wait ends when the last sender is dropped.
        let _ = all_done.recv();
        Ok(())
    }

    /// Returns when each thread has been between two turns. It never does if one hangs.
    pub fn wait_for_all(&self) {
        let (done, all_done) = mpsc::channel();
        self.shared.iter().for_each(|own| own.send(WorkerCommand::Answer(done.clone())));
        drop(done);
        let _ = all_done.recv();
    }

    /// The work of the threads, and the groups that they serve.
    pub fn status(&self) -> Vec<WorkerStatus> {
        let placement = self.placement();
        let status = |(number, own): (usize, &WorkerShared<G>)| WorkerStatus {
            flow_groups: placement.groups_of(number),
            turns: own.turns.load(Ordering::Relaxed),
            busy_us: own.busy_us.load(Ordering::Relaxed),
            idle_us: own.idle_us.load(Ordering::Relaxed),
            sleeps: own.sleeps.load(Ordering::Relaxed),
        };
        self.shared.iter().enumerate().map(status).collect()
    }

    /// Ends the threads, and with them the groups.
    pub fn stop(&mut self) {
        for own in self.shared.iter() {
            own.send(WorkerCommand::Stop);
        }
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of a stack ended by a panic");
            }
        }
    }

    fn placement(&self) -> MutexGuard<'_, Placement> {
        self.placement.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<G: Group> Drop for Workers<G> {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The state of one thread.
struct Worker<G> {
    number: usize,
    shared: Arc<[WorkerShared<G>]>,
    commands: Receiver<WorkerCommand<G>>,
    /// With their numbers.
    groups: Vec<(usize, Box<G>)>,
    /// Watches the thread's doorbell and the sets of its groups.
    set: OwnedFd,
    spin: AdaptiveSpin,
    cpu: Option<usize>,
}

impl<G: Group> Worker<G> {
    fn run(mut self) {
        if let Some(cpu) = self.cpu
            && let Err(error) = pin(cpu)
        {
            tracing::warn!(worker = self.number, cpu, %error, "cannot pin a worker");
        }
        serves_as(self.number);
        let mut last = now_us();
        let (mut worked, mut spinning) = (last, false);
        loop {
            if self.shared[self.number].has_commands.load(Ordering::Acquire) {
                if !self.run_commands() {
                    return;
                }
                // A new group may have had a turn on another thread meanwhile. Its time must not go back.
                last = now_us();
            }
            if self.groups.is_empty() {
                // Parked.
                wait(&self.set, None);
                last = now_us();
                continue;
            }
            let (work, now) = self.turn(last);
            last = now;
            if work > 0 {
                worked = now;
                if give_way() {
                    last = now_us();
                    add(&self.shared[self.number].idle_us, last - now);
                }
            }
            let spin_us = self.spin.spin_us();
            if work > 0 {
                self.spin.came(spinning);
            }
            spinning = spin_us > 0 && now - worked < spin_us;
            // After work the thread looks once more. Work that came after a group's turn may have used a doorbell that
            // the turn has drained.
            if work == 0 && !spinning {
                last = self.sleep(now, worked, spin_us > 0);
            }
        }
    }

    /// Gives each group a turn, from `began` on. Returns how much work it was, and when it was over.
    fn turn(&mut self, began: u64) -> (usize, u64) {
        let own = &self.shared[self.number];
        let (mut work, mut last) = (0, began);
        for (number, group) in &mut self.groups {
            recorder::turn(last);
            let done = catch_unwind(AssertUnwindSafe(|| group.turn(last))).unwrap_or_else(|_| {
                tracing::error!(flow_group = *number, "a flow group panicked; it goes on");
                say_what_was_before(*number as u32);
                group.panicked();
                1
            });
            let now = now_us();
            let took = now - last;
            if took > LONG_TURN_US {
                recorder::long_turn(*number as u32, last, took, done);
            }
            group.turned(now, took, done > 0);
            if done > 0 {
                add(&own.turns, 1);
                add(&own.busy_us, took);
            } else {
                add(&own.idle_us, took);
            }
            (work, last) = (work + done, now);
        }
        (work, last)
    }

    /// Sleeps until there is something to do, unless there is already. Returns the time then. `worked`: the time of the
    /// last work.
    fn sleep(&mut self, now: u64, worked: u64, spun: bool) -> u64 {
        let own = &self.shared[self.number];
        let (mut idle, mut timeout) = (true, None);
        for (_, group) in &mut self.groups {
            match group.arm(now) {
                Idle::No => idle = false,
                Idle::For(until) => timeout = [timeout, until].into_iter().flatten().min(),
            }
        }
        // The sender of a command notifies even while the thread is awake, so that none is missed here.
        if idle {
            match &mut self.groups[..] {
                [(_, group)] => group.wait(timeout),
                _ => wait(&self.set, timeout),
            }
            add(&own.sleeps, 1);
        }
        let awake = if idle { now_us() } else { now };
        if idle {
            self.spin.slept(spun, awake - worked);
        }
        for (_, group) in &mut self.groups {
            group.disarm(idle);
        }
        add(&own.idle_us, awake - now);
        awake
    }

    /// Carries out its commands; false = the thread is to end.
    fn run_commands(&mut self) -> bool {
        self.shared[self.number].has_commands.swap(false, Ordering::AcqRel);
        while let Ok(command) = self.commands.try_recv() {
            match command {
                WorkerCommand::Take(number, group, _done) => self.take(number, group),
                WorkerCommand::Give { group, to, done } => self.give(group, to, done),
                WorkerCommand::Answer(done) => drop(done),
                WorkerCommand::Stop => return false,
            }
        }
        true
    }

    fn take(&mut self, number: usize, group: Box<G>) {
        let doorbell = self.shared[self.number].doorbell.fd();
        // It is added to both sets, because the thread may sleep on either.
        if let Err(error) =
            watch(&self.set, group.set().as_fd(), true).and_then(|()| watch(group.set(), doorbell, true))
        {
            tracing::error!(flow_group = number, %error, "a flow group cannot wake its thread");
        }
        self.groups.push((number, group));
    }

    fn give(&mut self, number: usize, to: usize, done: Sender<()>) {
        let Some(place) = self.groups.iter().position(|(group, _)| *group == number) else { return };
        let (_, group) = self.groups.remove(place);
        let _ = epoll::delete(&self.set, group.set().as_fd());
        let _ = epoll::delete(group.set(), self.shared[self.number].doorbell.fd());
        self.shared[to].send(WorkerCommand::Take(number, group, done));
    }
}

/// Adds to a word that only this thread writes.
fn add(word: &AtomicU64, more: u64) {
    word.store(word.load(Ordering::Relaxed) + more, Ordering::Relaxed);
}
