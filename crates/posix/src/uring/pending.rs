//! Operations that have to wait. One hidden thread carries them out when their sockets become ready. It exists while
//! any operation waits.

use super::abi::{CQE_F_MORE, CQE_F_NOTIF, op};
use super::operation::{Operation, Progress, Target, Way};
use super::{post, ring};
use crate::fd::table::{self, Descriptor};
use crate::hidden_thread;
use crate::lifecycle::in_flight;
use crate::ready::interest::EntryName;
use crate::ready::{epoll_wait, instance, nested, watch};
use core::cell::UnsafeCell;
use core::time::Duration;
use libc::{c_int, epoll_event};
use std::collections::HashMap;
use towpath_client::descriptors;
use towpath_client::liveness::LIFE_CHECK;
use towpath_client::lock::Lock;
use towpath_client::socket::Socket;
use towpath_client::sys::{self, Sys};
use towpath_hook::{outcome, real};

/// The epoll key of the thread's doorbell.
const DOORBELL: u64 = u64::MAX;
const ET: u32 = libc::EPOLLET as u32;
/// The most events that one wait takes.
const EVENTS: usize = 64;
/// The waiting operations, by [`Target::key`].
#[derive(Default)]
struct Waiting {
    watched: HashMap<u64, Watched>,
    /// The epoll instance on which the thread waits, and its descriptor.
    instance: Option<(u32, c_int)>,
    /// The doorbell that wakes the thread when an operation has an earlier timeout than it knows of.
    doorbell: c_int,
    /// Does the thread exist?
    running: bool,
    /// False: no operation has a timeout.
    limited: bool,
}

/// The operations on one socket or epoll instance.
struct Watched {
    target: Target,
    /// The descriptor that the first of the operations named.
    fd: c_int,
    /// A listener with a kernel half: a descriptor of the library's own. As in the kernel, the operations keep the
    /// listener in use, also if the program closes its descriptor or the service dies.
    half: Option<c_int>,
    /// In the order of their submission.
    operations: Vec<Operation>,
    /// The events that the epoll instance watches for; 0 = it does not watch this target.
    events: u32,
}

struct Shared {
    lock: Lock,
    waiting: UnsafeCell<Option<Waiting>>,
}

// SAFETY: `with` is the only access to `waiting`, and it holds the lock.
unsafe impl Sync for Shared {}

static SHARED: Shared = Shared { lock: Lock::new(), waiting: UnsafeCell::new(None) };

fn with<R>(work: impl FnOnce(&mut Waiting) -> R) -> Option<R> {
    let _locked = SHARED.lock.lock()?;
    // SAFETY: the lock is held, so this is the only reference.
    Some(work(unsafe { &mut *SHARED.waiting.get() }.get_or_insert_default()))
}

/// Attempts an operation, and keeps it if it has to wait. `None`: no result yet, or a completion has been posted.
pub fn carry(target: Target, operation: Operation) -> Option<i32> {
    with(|waiting| waiting.carry(target, operation)).unwrap_or(Some(-libc::EAGAIN))
}

/// Begins a chain of linked operations and posts all their results. `result`: the first one has ended already, with
/// this result.
pub fn carry_chain(operation: Operation, result: Option<i32>) {
    with(|waiting| match result {
        Some(result) => waiting.settle(operation, (result, 0), -libc::ECANCELED),
        None => waiting.begin(operation),
    });
}

/// A selection of operations. `None` in a field selects by anything.
pub struct Meant {
    /// The number of the ring.
    pub ring: u32,
    pub user_data: Option<u64>,
    pub fd: Option<c_int>,
    pub opcode: Option<u8>,
    /// Selects all that match, not only the first.
    pub all: bool,
    /// Selects polls only.
    pub polls: bool,
}

impl Meant {
    fn is(&self, operation: &Operation) -> bool {
        operation.ring == self.ring
            && self.user_data.is_none_or(|user_data| user_data == operation.user_data)
            && self.fd.is_none_or(|fd| fd == operation.fd)
            && self.opcode.is_none_or(|opcode| opcode == operation.opcode)
            && (!self.polls || operation.is_poll())
    }
}

/// Cancels operations (ECANCELED) and returns how many.
pub fn cancel(meant: &Meant) -> usize {
    with(|waiting| {
        let taken = waiting.take(meant);
        let count = taken.len();
        taken.into_iter().for_each(|operation| waiting.settle(operation, CANCELED, -libc::ECANCELED));
        count
    })
    .unwrap_or(0)
}

/// Changes a waiting poll: its events (and whether it becomes multishot), and its `user_data`. False: there is no such
/// poll.
pub fn change(meant: &Meant, events: Option<(u32, bool)>, user_data: Option<u64>) -> bool {
    let changed = with(|waiting| {
        let found = waiting.watched.iter().find_map(|(key, watched)| {
            watched.operations.iter().position(|operation| meant.is(operation)).map(|at| (*key, at))
        });
        let (key, at) = found?;
        let operation = &mut waiting.watched.get_mut(&key)?.operations[at];
        if let Some((events, several)) = events {
            operation.change_events(events, several);
        }
        operation.user_data = user_data.unwrap_or(operation.user_data);
        waiting.go_on(key);
        Some(())
    });
    changed.flatten().is_some()
}

/// A ring is closed: its operations are dropped without completions.
pub fn forget(id: u32) {
    let all = Meant { ring: id, user_data: None, fd: None, opcode: None, all: true, polls: false };
    with(|waiting| waiting.take(&all));
}

/// A listener has joined another service under this descriptor: its operations go on there.
pub fn moved(fd: c_int) {
    with(|waiting| {
        let is_lost = |watched: &Watched| match &watched.target {
            Target::Socket(socket) => watched.half.is_some() && socket.is_gone(),
            Target::Epoll(_) => false,
        };
        let lost: Vec<_> =
            waiting.watched.iter().filter(|(_, watched)| is_lost(watched)).map(|(key, _)| *key).collect();
        for key in lost {
            let Some(watched) = waiting.watched.get_mut(&key) else { continue };
            let taken: Vec<_> = watched.operations.extract_if(.., |operation| operation.fd == fd).collect();
            waiting.watch(key);
            taken.into_iter().for_each(|operation| waiting.begin(operation));
        }
    });
}

/// In a forked child: the operations are its parent's.
pub fn forked() {
    SHARED.lock.reset();
    with(|waiting| {
        if let Some((id, epfd)) = waiting.instance {
            instance::disowned(id);
            descriptors::unprotect(epfd);
            descriptors::unprotect(waiting.doorbell);
        }
        waiting.watched.values().filter_map(|watched| watched.half).for_each(descriptors::unprotect);
        *waiting = Waiting::default();
    });
}

/// A result and the flags of its completion.
type Ended = (i32, u32);
const CANCELED: Ended = (-libc::ECANCELED, 0);

/// Posts an operation's completion, or both completions of a zero-copy send.
fn tell(operation: &Operation, result: i32, flags: u32) {
    if let (Some(notice), 0..) = (operation.notice, result) {
        let to = ring::ring(operation.ring).own();
        post::post(to, operation.user_data, result, CQE_F_MORE);
        post::post(to, operation.user_data, notice, CQE_F_NOTIF);
        return;
    }
    if result < 0 || !operation.quiet || flags & CQE_F_MORE != 0 {
        post::post(ring::ring(operation.ring).own(), operation.user_data, result, flags);
    }
}

/// Posts the completion of an operation's LINK_TIMEOUT.
fn tell_limit(operation: &Operation, result: i32) {
    if let Some(limit) = &operation.limit {
        post::post(ring::ring(operation.ring).own(), limit.user_data, result, 0);
    }
}

impl Waiting {
    /// Begins an operation. As long as the operations end at once, those linked to them begin too.
    fn begin(&mut self, mut operation: Operation) {
        loop {
            let target = target(operation.fd);
            let result = match &target {
                _ if operation.opcode == op::NOP => Some((0, 0)),
                None => Some((-libc::EBADF, 0)),
                Some(target) => self.attempt_in_turn(target, &mut operation),
            };
            let ended = match (result, target) {
                (None, Some(target)) => self.keep(target, operation).map(|refused| (refused, (-libc::EOPNOTSUPP, 0))),
                (result, _) => Some((operation, result.unwrap_or((0, 0)))),
            };
            let Some((done, result)) = ended else { return };
            let Some(next) = end(done, result, -libc::ECANCELED) else { return };
            operation = next;
        }
    }

    /// Posts an operation's end, and begins the operation linked to it. `limit` is the result of its LINK_TIMEOUT.
    fn settle(&mut self, operation: Operation, ended: Ended, limit: i32) {
        if let Some(next) = end(operation, ended, limit) {
            self.begin(next);
        }
    }

    fn carry(&mut self, target: Target, mut operation: Operation) -> Option<i32> {
        match self.attempt_in_turn(&target, &mut operation) {
            Some((result, 0)) if result < 0 || operation.notice.is_none() => Some(result),
            // Only a posted completion can carry flags; a NOP in the entry's place cannot.
            Some((result, flags)) => {
                tell(&operation, result, flags);
                None
            }
            None => self.keep(target, operation).map(|_| -libc::EOPNOTSUPP),
        }
    }

    /// One attempt, unless earlier operations of the same direction wait. `None`: it has to wait.
    fn attempt_in_turn(&self, target: &Target, operation: &mut Operation) -> Option<Ended> {
        let way = operation.way();
        let before = self.watched.get(&target.key());
        let queues = way != Way::Any && before.is_some_and(|before| before.operations.iter().any(|o| o.way() == way));
        if queues { None } else { run(operation, target, None) }
    }

    /// Keeps an operation that has to wait. Gives it back if the thread cannot be started.
    fn keep(&mut self, target: Target, mut operation: Operation) -> Option<Operation> {
        if self.start().is_err() {
            return Some(operation);
        }
        if let Some(limit) = &mut operation.limit {
            limit.begin(sys::clock(libc::CLOCK_MONOTONIC));
            self.limited = true;
            towpath_ring::wake::notify(sys::borrow(&self.doorbell));
        }
        let key = target.key();
        let watched = self.watched.entry(key).or_insert_with(|| {
            let mut half = None;
            if let Target::Socket(socket) = &target {
                // Ends when the socket leaves the map.
                in_flight::begin(socket);
                if socket.kernel_half() {
                    half = descriptors::protected_copy(operation.fd).ok();
                }
            }
            Watched { target, fd: operation.fd, half, operations: Vec::new(), events: 0 }
        });
        watched.operations.push(operation);
        self.watch(key);
        None
    }

    /// Makes the epoll instance and the thread, if they do not exist.
    fn start(&mut self) -> Sys<()> {
        let (id, epfd) = match self.instance {
            Some(instance) => instance,
            None => {
                // SAFETY: `epoll_create1` takes a number and no memory.
                let made = outcome(unsafe { real::epoll_create1(libc::EPOLL_CLOEXEC) })?;
                let protected = descriptors::protected_copy(made);
                sys::close(made);
                let epfd = protected?;
                let doorbell = towpath_ring::wake::doorbell().map_err(|_| libc::EMFILE)?;
                self.doorbell = descriptors::protect(doorbell)?;
                let mut event = epoll_event { events: libc::EPOLLIN as u32 | ET, u64: DOORBELL };
                // SAFETY: `event` lives until the call returns.
                outcome(unsafe { real::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, self.doorbell, &raw mut event) })?;
                let id = instance::claimed(epfd).ok_or(libc::EMFILE)?;
                instance::instance(id).with(|interest| interest.native += 1);
                self.instance = Some((id, epfd));
                (id, epfd)
            }
        };
        if !self.running {
            self.running = hidden_thread::start(move || serve(id, epfd));
        }
        if self.running { Ok(()) } else { Err(libc::EAGAIN) }
    }

    /// Has the epoll instance watch for the events that the operations wait for. A target without operations is
    /// removed.
    fn watch(&mut self, key: u64) {
        let (Some((id, _)), Some(watched)) = (self.instance, self.watched.get_mut(&key)) else { return };
        let events = watched.operations.iter().fold(0, |all, operation| all | operation.events());
        let fd = watched.half.unwrap_or(watched.fd);
        if watched.operations.is_empty() {
            let _ = control(id, libc::EPOLL_CTL_DEL, fd, &watched.target, None);
            if let Some(Watched { target: Target::Socket(socket), half, .. }) = self.watched.remove(&key) {
                half.into_iter().for_each(descriptors::unprotect);
                in_flight::end(&socket);
            }
            return;
        }
        let op = if watched.events == 0 { libc::EPOLL_CTL_ADD } else { libc::EPOLL_CTL_MOD };
        watched.events = events | ET;
        let event = epoll_event { events: watched.events, u64: key };
        let _ = control(id, op, fd, &watched.target, Some(&event));
    }

    /// An event has come: attempts the target's operations, each direction in order.
    fn go_on(&mut self, key: u64) {
        let Some(watched) = self.watched.get_mut(&key) else { return };
        let (mut at, mut ended) = (0, Vec::new());
        let (mut waits_in, mut waits_out) = (false, false);
        while let Some(operation) = watched.operations.get_mut(at) {
            let behind = match operation.way() {
                Way::In => &mut waits_in,
                Way::Out => &mut waits_out,
                Way::Any => &mut false,
            };
            let result = if *behind { None } else { run(operation, &watched.target, watched.half) };
            match result {
                Some(result) => ended.push((watched.operations.remove(at), result)),
                None => {
                    *behind = true;
                    at += 1;
                }
            }
        }
        if !ended.is_empty() {
            self.watch(key);
        }
        for (operation, result) in ended {
            self.settle(operation, result, -libc::ECANCELED);
        }
    }

    /// How long the thread may sleep: until the next timeout, and at most until it looks for lost targets.
    fn time(&mut self) -> Duration {
        let mut nearest = None;
        if self.limited {
            let operations = self.watched.values().flat_map(|watched| &watched.operations);
            nearest = operations.filter_map(|operation| operation.limit.as_ref()?.due).min();
            self.limited = nearest.is_some();
        }
        let now = sys::clock(libc::CLOCK_MONOTONIC);
        nearest.map_or(LIFE_CHECK, |nearest| nearest.saturating_sub(now).min(LIFE_CHECK))
    }

    /// Cancels the operations whose timeout has passed.
    fn expire(&mut self) {
        if !self.limited {
            return;
        }
        let now = sys::clock(libc::CLOCK_MONOTONIC);
        let over =
            |operation: &Operation| operation.limit.as_ref().and_then(|limit| limit.due).is_some_and(|due| due <= now);
        for operation in self.take_if(true, over) {
            self.settle(operation, CANCELED, -libc::ETIME);
        }
    }

    /// Takes out the selected operations.
    fn take(&mut self, meant: &Meant) -> Vec<Operation> {
        self.take_if(meant.all, |operation| meant.is(operation))
    }

    fn take_if(&mut self, all: bool, is_meant: impl Fn(&Operation) -> bool) -> Vec<Operation> {
        let (mut taken, mut changed) = (Vec::new(), Vec::new());
        for (key, watched) in &mut self.watched {
            let before = watched.operations.len();
            while let Some(at) = watched.operations.iter().position(&is_meant) {
                taken.push(watched.operations.remove(at));
                if !all {
                    break;
                }
            }
            if watched.operations.len() != before {
                changed.push(*key);
            }
            if !all && !taken.is_empty() {
                break;
            }
        }
        changed.into_iter().for_each(|key| self.watch(key));
        taken
    }

    /// Cancels the operations of which no event will tell: their socket was taken away, or the descriptor of their
    /// epoll instance was closed.
    fn look_at_lost(&mut self) {
        let is_lost = |watched: &Watched| match &watched.target {
            Target::Socket(socket) => socket.is_gone(),
            Target::Epoll(id) => watched.operations.iter().any(|it| table::get(it.fd) != Descriptor::Epoll(*id)),
        };
        let lost: Vec<_> = self.watched.iter().filter(|(_, watched)| is_lost(watched)).map(|(key, _)| *key).collect();
        for key in lost {
            self.go_on(key);
            // The kernel half of a listener goes on alone.
            let is_over = |watched: &&mut Watched| watched.half.is_none();
            let Some(watched) = self.watched.get_mut(&key).filter(is_over) else { continue };
            let rest: Vec<_> = watched.operations.drain(..).collect();
            self.watch(key);
            for operation in rest {
                self.settle(operation, CANCELED, -libc::ECANCELED);
            }
        }
    }
}

/// Posts the end of an operation and of its LINK_TIMEOUT, and returns the operation to begin next. After a failure the
/// rest of the chain is cancelled, with completions.
fn end(mut operation: Operation, (result, flags): Ended, limit: i32) -> Option<Operation> {
    tell(&operation, result, flags);
    tell_limit(&operation, limit);
    let mut next = operation.next.take();
    if operation.hard || !operation.has_failed(result) {
        return next.map(|next| *next);
    }
    while let Some(mut canceled) = next {
        tell(&canceled, -libc::ECANCELED, 0);
        tell_limit(&canceled, -libc::ECANCELED);
        next = canceled.next.take();
    }
    None
}

/// Makes attempts for as long as they give results, and posts all but the last, which it returns.
fn run(operation: &mut Operation, target: &Target, half: Option<c_int>) -> Option<Ended> {
    let can_say_more = || post::passes_flags();
    loop {
        let (result, flags) = match operation.attempt(target, half) {
            Progress::Waits => return None,
            Progress::Done(result) => return Some((result, 0)),
            // This kernel cannot post CQE_F_MORE: the operation ends, and the program submits it again.
            Progress::More(result) if !can_say_more() => return Some((result, 0)),
            Progress::Filled(result, flags, false) => return Some((result, flags)),
            Progress::More(result) => (result, 0),
            Progress::Filled(result, flags, true) => (result, flags),
        };
        tell(operation, result, flags | CQE_F_MORE);
        if operation.is_poll() {
            return None;
        }
    }
}

fn control(id: u32, op: c_int, fd: c_int, target: &Target, event: Option<&epoll_event>) -> Sys<c_int> {
    match target {
        Target::Socket(socket) => watch::control(id, op, EntryName::Library, fd, socket, event),
        Target::Epoll(inner) => nested::control(id, op, fd, *inner, event),
    }
}

/// The hidden thread's loop.
fn serve(id: u32, epfd: c_int) {
    let mut events = [epoll_event { events: 0, u64: 0 }; EVENTS];
    loop {
        let time = with(Waiting::time).unwrap_or(LIFE_CHECK);
        let found = epoll_wait::wait_internal(id, epfd, &mut events, time).unwrap_or(0);
        let goes_on = with(|waiting| {
            for event in &events[..found.min(EVENTS)] {
                waiting.go_on(event.u64);
            }
            waiting.expire();
            if found == 0 {
                waiting.look_at_lost();
                waiting.running = !waiting.watched.is_empty();
            }
            waiting.running
        });
        if goes_on != Some(true) {
            return;
        }
    }
}

/// The socket or epoll instance behind a descriptor; `None` = neither.
pub fn target(fd: c_int) -> Option<Target> {
    match table::get(fd) {
        Descriptor::Slot { slot, generation } => Socket::at(slot, generation).map(Target::Socket),
        Descriptor::Epoll(id) => Some(Target::Epoll(id)),
        _ => None,
    }
}
