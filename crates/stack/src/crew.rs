//! The threads of a stack, and the flow groups that they serve: run to completion over whatever is there, spin for a while without
//! work, then sleep.
//!
//! A group is owned by one thread at a time and goes from one to another as a message, between two of its turns: its ports, its
//! connections and what applications ring go with it, so nothing is lost, and nothing is reordered.

use crate::mailbox::Bell;
use crate::patience::Patience;
use crate::placement::Placement;
use crate::stack::Cores;
use crate::status::ThreadStatus;
use crate::thread::{epoll_with, now_us, pin, wait, watch};
use rustix::event::epoll;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// What a group finds when it looks once more before its thread sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// There is something to do.
    None,
    /// Nothing, for so many µs; `None` = until something wakes it.
    For(Option<u64>),
}

/// A part of a stack that a thread serves. Only the thread that has it calls it.
pub trait Group: Send + 'static {
    /// Does everything that is there now; how much it was.
    fn turn(&mut self, now_us: u64) -> usize;
    /// A turn is over at `now_us` and has taken `took_us`.
    fn turned(&mut self, now_us: u64, took_us: u64, worked: bool);
    /// A turn ended by a panic.
    fn panicked(&mut self);
    /// The thread wants to sleep: announces it to all who may wake it, and looks once more. [`Group::disarm`] follows.
    fn arm(&mut self, now_us: u64) -> Rest;
    /// The thread is awake, or has not slept after all.
    fn disarm(&mut self, slept: bool);
    /// Sleeps until something in the set happens, or for `timeout_us`.
    fn wait(&mut self, timeout_us: Option<u64>);
    /// Everything that may wake it. It is watched while the thread has other groups, too.
    fn set(&self) -> &OwnedFd;
}

/// How threads are started.
#[derive(Clone, Debug)]
pub struct CrewConfig {
    /// Thread `i` is called `NAME-i`.
    pub name: &'static str,
    /// How long a thread usually spins without work before it sleeps, µs; see [`Patience`].
    pub spin_us: u64,
    /// Thread `i` is pinned to CPU `cpus[i]`; missing entries are not pinned.
    pub cpus: Vec<usize>,
}

/// What a thread is told. A `Sender` is dropped when it is done.
enum Order<G> {
    Take(usize, Box<G>, Sender<()>),
    Give { group: usize, to: usize, done: Sender<()> },
    Stop,
}

/// How a thread is told, and what it tells: written by it alone, a line of its own.
#[repr(align(128))]
struct Post<G> {
    orders: Sender<Order<G>>,
    /// There are orders.
    called: AtomicBool,
    bell: Arc<Bell>,
    turns: AtomicU64,
    busy_us: AtomicU64,
    idle_us: AtomicU64,
    sleeps: AtomicU64,
}

impl<G> Post<G> {
    fn order(&self, order: Order<G>) {
        // The receiver lives until its thread is told to stop.
        let _ = self.orders.send(order);
        self.called.store(true, Ordering::Release);
        self.bell.strike();
    }
}

/// Running threads and the groups that they serve.
pub struct Crew<G: Group> {
    posts: Arc<[Post<G>]>,
    placement: Mutex<Placement>,
    threads: Vec<JoinHandle<()>>,
}

impl<G: Group> Crew<G> {
    /// Starts a thread for each group.
    pub fn start(config: &CrewConfig, groups: Vec<Box<G>>) -> io::Result<Self> {
        let (mut posts, mut orders) = (Vec::new(), Vec::new());
        for _ in &groups {
            let (sender, receiver) = mpsc::channel();
            posts.push(Post {
                orders: sender,
                called: AtomicBool::new(false),
                bell: Bell::new()?,
                turns: AtomicU64::new(0),
                busy_us: AtomicU64::new(0),
                idle_us: AtomicU64::new(0),
                sleeps: AtomicU64::new(0),
            });
            orders.push(receiver);
        }
        let placement = Mutex::new(Placement::new(groups.len()));
        let mut crew = Self { posts: posts.into(), placement, threads: Vec::new() };
        for ((number, group), orders) in groups.into_iter().enumerate().zip(orders) {
            let name = format!("{}-{number}", config.name);
            let mut worker = Worker {
                number,
                set: epoll_with(&crew.posts[number].bell)?,
                posts: Arc::clone(&crew.posts),
                orders,
                groups: Vec::new(),
                patience: Patience::new(config.spin_us),
                cpu: config.cpus.get(number).copied(),
            };
            worker.take(number, group);
            crew.threads.push(std::thread::Builder::new().name(name).spawn(move || worker.run())?);
        }
        Ok(crew)
    }

    /// See [`crate::Stack::cores`].
    pub fn cores(&self) -> Cores {
        let placement = self.placement();
        Cores { running: placement.running(), most: placement.most() }
    }

    /// See [`crate::Stack::set_cores`].
    pub fn set_cores(&self, running: usize) -> io::Result<()> {
        let mut placement = self.placement();
        if !(1..=placement.most()).contains(&running) {
            let text = format!("{running} threads: 1 to {} can run", placement.most());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let (done, all_done) = mpsc::channel();
        for one in placement.resize(running) {
            self.posts[one.from].order(Order::Give { group: one.group, to: one.to, done: done.clone() });
        }
        drop(done);
        // Nothing is sent: the last who has the other end drops it.
        let _ = all_done.recv();
        Ok(())
    }

    /// What the threads have done, and what they serve.
    pub fn threads(&self) -> Vec<ThreadStatus> {
        let placement = self.placement();
        let status = |(number, post): (usize, &Post<G>)| ThreadStatus {
            groups: placement.groups_of(number),
            turns: post.turns.load(Ordering::Relaxed),
            busy_us: post.busy_us.load(Ordering::Relaxed),
            idle_us: post.idle_us.load(Ordering::Relaxed),
            sleeps: post.sleeps.load(Ordering::Relaxed),
        };
        self.posts.iter().enumerate().map(status).collect()
    }

    /// Ends the threads, and with them the groups.
    pub fn stop(&mut self) {
        for post in self.posts.iter() {
            post.order(Order::Stop);
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

impl<G: Group> Drop for Crew<G> {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The state of one thread.
struct Worker<G> {
    number: usize,
    posts: Arc<[Post<G>]>,
    orders: Receiver<Order<G>>,
    /// With their numbers.
    groups: Vec<(usize, Box<G>)>,
    /// Watches the thread's bell and the sets of its groups.
    set: OwnedFd,
    patience: Patience,
    cpu: Option<usize>,
}

impl<G: Group> Worker<G> {
    fn run(mut self) {
        if let Some(cpu) = self.cpu
            && let Err(error) = pin(cpu)
        {
            tracing::warn!(core = self.number, cpu, %error, "cannot pin a core's thread");
        }
        let mut last = now_us();
        let (mut worked, mut spinning) = (last, false);
        loop {
            if self.posts[self.number].called.load(Ordering::Acquire) {
                if !self.obey() {
                    return;
                }
                // A group that has come has had a turn meanwhile: its time must not go back.
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
            }
            let spin_us = self.patience.spin_us();
            if work > 0 {
                self.patience.came(spinning);
            }
            spinning = spin_us > 0 && now - worked < spin_us;
            // After work it looks once more: what came behind a group's turn may have rung a bell that the turn has silenced.
            if work == 0 && !spinning {
                last = self.sleep(now, worked, spin_us > 0);
            }
        }
    }

    /// A turn of each group, from `began` on; how much work it was, and when it was over.
    fn turn(&mut self, began: u64) -> (usize, u64) {
        let post = &self.posts[self.number];
        let (mut work, mut last) = (0, began);
        for (number, group) in &mut self.groups {
            let done = catch_unwind(AssertUnwindSafe(|| group.turn(last))).unwrap_or_else(|_| {
                tracing::error!(core = *number, "a core panicked; it goes on");
                group.panicked();
                1
            });
            let now = now_us();
            let took = now - last;
            group.turned(now, took, done > 0);
            if done > 0 {
                add(&post.turns, 1);
                add(&post.busy_us, took);
            } else {
                add(&post.idle_us, took);
            }
            (work, last) = (work + done, now);
        }
        (work, last)
    }

    /// Sleeps until there is something to do, if there is nothing already; what time it is then. `worked`: when there was last.
    fn sleep(&mut self, now: u64, worked: u64, spun: bool) -> u64 {
        let post = &self.posts[self.number];
        let (mut idle, mut timeout) = (true, None);
        for (_, group) in &mut self.groups {
            match group.arm(now) {
                Rest::None => idle = false,
                Rest::For(until) => timeout = [timeout, until].into_iter().flatten().min(),
            }
        }
        // Who gives an order rings the bell even while the thread is awake, so that none is missed here.
        if idle {
            match &mut self.groups[..] {
                [(_, group)] => group.wait(timeout),
                _ => wait(&self.set, timeout),
            }
            add(&post.sleeps, 1);
        }
        let awake = if idle { now_us() } else { now };
        if idle {
            self.patience.slept(spun, awake - worked);
        }
        for (_, group) in &mut self.groups {
            group.disarm(idle);
        }
        add(&post.idle_us, awake - now);
        awake
    }

    /// Does as it is told; false = the thread is to end.
    fn obey(&mut self) -> bool {
        self.posts[self.number].called.swap(false, Ordering::AcqRel);
        while let Ok(order) = self.orders.try_recv() {
            match order {
                Order::Take(number, group, _done) => self.take(number, group),
                Order::Give { group, to, done } => self.give(group, to, done),
                Order::Stop => return false,
            }
        }
        true
    }

    fn take(&mut self, number: usize, group: Box<G>) {
        let bell = self.posts[self.number].bell.fd();
        // In both, because either is what the thread sleeps on.
        if let Err(error) = watch(&self.set, group.set().as_fd(), true).and_then(|()| watch(group.set(), bell, true)) {
            tracing::error!(core = number, %error, "a core cannot wake its thread");
        }
        self.groups.push((number, group));
    }

    fn give(&mut self, number: usize, to: usize, done: Sender<()>) {
        let Some(place) = self.groups.iter().position(|(group, _)| *group == number) else { return };
        let (_, group) = self.groups.remove(place);
        let _ = epoll::delete(&self.set, group.set().as_fd());
        let _ = epoll::delete(group.set(), self.posts[self.number].bell.fd());
        self.posts[to].order(Order::Take(number, group, done));
    }
}

/// To a word that only this thread writes.
fn add(word: &AtomicU64, more: u64) {
    word.store(word.load(Ordering::Relaxed) + more, Ordering::Relaxed);
}
