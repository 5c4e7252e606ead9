//! The bridge: for instances on which the program waits by system calls of its own, the kernel tells of accelerated
//! sockets.
//!
//! Each socket has a stand-in in the program's native set, under the program's own data and with its flags. So the kernel keeps
//! all rules of epoll. One hidden thread waits for the sockets and shows their events by the stand-ins. The program's calls
//! take events back as they use them up. Both do so under one lock, after a look at the socket, so that neither undoes what is
//! true. An instance stays so until it is closed.

use super::stand_in::StandIn;
use crate::fd::table;
use crate::hidden_thread;
use crate::observe::fallback;
use crate::ready::instance::{self, waits};
use crate::ready::interest::{EntryName, Interest};
use crate::ready::readiness::{self, IN, OUT};
use crate::ready::{epoll_wait, watch};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use libc::{c_int, epoll_event};
use std::collections::HashMap;
use towpath_client::descriptors;
use towpath_client::liveness::LIFE_CHECK;
use towpath_client::lock::Lock;
use towpath_client::socket::Socket;
use towpath_client::sys::{self, Sys};
use towpath_hook::{outcome, real};

const ET: u32 = libc::EPOLLET as u32;
/// The events that a program asks for, without the flags that say how it is told of them.
const EVENTS: u32 = !(libc::EPOLLET | libc::EPOLLONESHOT | libc::EPOLLEXCLUSIVE | libc::EPOLLWAKEUP) as u32;
/// The most events that one wait takes.
const AT_ONCE: usize = 64;
/// How soon the thread looks whether a level that it shows still holds. Calls that take no path of their own, and other
/// processes, use events up unseen. The time doubles with each look, up to a limit.
const FIRST_LOOK: Duration = Duration::from_millis(1);
const LAST_LOOK: Duration = Duration::from_millis(64);

/// A socket in an instance.
struct Watch {
    /// The number of the instance.
    set: u32,
    /// The descriptor by which the program names the socket; -1 = closed, but copies are open.
    fd: c_int,
    event: epoll_event,
    /// `None` in a forked child, until it makes a call on such a socket.
    stand_in: Option<StandIn>,
}

/// A socket, with all instances that it is in.
struct Watched {
    socket: Socket,
    fd: c_int,
    watches: Vec<Watch>,
    /// The events that the thread waits for; 0 = none.
    events: u32,
}

#[derive(Default)]
struct Bridge {
    /// By [`key`].
    sockets: HashMap<u64, Watched>,
    /// The epoll instance on which the thread waits, and its descriptor.
    own: Option<(u32, c_int)>,
    running: bool,
    next_look: Duration,
    /// A forked child has not taken its sockets over yet.
    inherited: bool,
}

struct Shared {
    lock: Lock,
    bridge: UnsafeCell<Option<Bridge>>,
}

// SAFETY: `with` is the only access to `bridge`, and it holds the lock.
unsafe impl Sync for Shared {}

static SHARED: Shared = Shared { lock: Lock::new(), bridge: UnsafeCell::new(None) };
/// Has there been a bridge?
static IN_USE: AtomicBool = AtomicBool::new(false);

fn with<R>(work: impl FnOnce(&mut Bridge) -> R) -> Option<R> {
    let _locked = SHARED.lock.lock()?;
    // SAFETY: the lock is held, so this is the only reference.
    let bridge = unsafe { &mut *SHARED.bridge.get() }.get_or_insert_default();
    if bridge.inherited {
        bridge.take_over();
    }
    Some(work(bridge))
}

fn is_in_use() -> bool {
    IN_USE.load(Ordering::Relaxed)
}

fn key(socket: &Socket) -> u64 {
    u64::from(socket.number()) << 32 | u64::from(socket.generation)
}

fn native(set: u32, op: c_int, fd: c_int, event: &epoll_event) -> Sys<c_int> {
    let mut event = *event;
    // SAFETY: `event` lives until the call returns.
    outcome(unsafe { real::epoll_ctl(instance::descriptor(set), op, fd, &raw mut event) })
}

/// A call on the socket `fd`. If the program has waited past the library on this instance, the kernel tells of its
/// sockets from now on.
pub fn build(set: u32, fd: c_int) {
    let instance = instance::instance(set);
    let is_past =
        |interest: &Interest| instance.waits() == waits::UNSEEN && interest.is_noticed(instance.descriptor(), fd);
    if instance.with(|interest| is_past(interest)) != Some(true) {
        return;
    }
    let built = with(|bridge| {
        bridge.own().ok()?;
        // Another thread may have come first.
        let given_up = instance.with(|interest| is_past(interest).then(|| instance.give_up(interest)));
        let given_up = given_up.flatten()?;
        IN_USE.store(true, Ordering::Relaxed);
        for (fd, socket, event) in given_up {
            let _ = bridge.add(set, fd, &socket, event);
        }
        Some(())
    });
    if built.flatten().is_some() {
        fallback::waits_itself();
    }
}

/// `epoll_ctl` on a socket in a slot, for such an instance.
#[cold]
pub fn control(set: u32, op: c_int, fd: c_int, socket: &Socket, event: Option<&epoll_event>) -> Sys<c_int> {
    let changed = with(|bridge| match (op, event) {
        (libc::EPOLL_CTL_DEL, _) => bridge.remove(set, fd, socket),
        (_, None) => Err(libc::EFAULT),
        (libc::EPOLL_CTL_ADD, Some(event)) => {
            bridge.add(set, fd, socket, *event)?;
            if socket.kernel_half() {
                native(set, op, fd, event).inspect_err(|_| _ = bridge.remove(set, fd, socket))?;
            }
            Ok(())
        }
        (libc::EPOLL_CTL_MOD, Some(event)) => bridge.modify(set, fd, socket, event),
        _ => Err(libc::EINVAL),
    });
    changed.unwrap_or(Err(libc::EAGAIN)).map(|()| 0)
}

/// A call on this descriptor ends, which may have used events up.
#[inline]
pub fn called(fd: c_int) {
    if is_in_use()
        && let Some(socket) = table::socket(fd)
    {
        with(|bridge| bridge.lower(&socket));
    }
}

/// The descriptor of a socket is being closed. `copies`: it has others.
pub fn closed(fd: c_int, socket: &Socket, copies: bool) {
    if !is_in_use() {
        return;
    }
    with(|bridge| {
        if copies {
            let watched = bridge.sockets.get_mut(&key(socket));
            let watches = watched.into_iter().flat_map(|watched| &mut watched.watches);
            watches.filter(|watch| watch.fd == fd).for_each(|watch| watch.fd = -1);
            table::restore(fd);
        } else {
            bridge.forget(key(socket), |_| true);
        }
    });
}

/// The last descriptor of an instance is being closed.
pub fn set_closed(set: u32) {
    if instance::instance(set).waits() == waits::OWN {
        with(|bridge| {
            for key in bridge.sockets.keys().copied().collect::<Vec<_>>() {
                bridge.forget(key, |watch| watch.set == set);
            }
        });
    }
}

/// Takes out a socket that is about to become the kernel's. Returns its instances, descriptors and events.
/// `keep_half`: the kernel goes on watching the kernel half.
pub fn take(socket: &Socket, keep_half: bool) -> Vec<(u32, c_int, epoll_event)> {
    if !is_in_use() {
        return Vec::new();
    }
    let taken = with(|bridge| bridge.forget(key(socket), |_| true)).unwrap_or_default();
    let taken = taken.into_iter().filter(|watch| watch.fd >= 0);
    taken
        .map(|Watch { set, fd, event, .. }| {
            if socket.kernel_half() && !keep_half {
                let _ = native(set, libc::EPOLL_CTL_DEL, fd, &event);
            }
            (set, fd, event)
        })
        .collect()
}

/// In a forked child: the stand-ins and the thread are the parent's.
pub fn forked() {
    SHARED.lock.reset();
    let Some(_locked) = SHARED.lock.lock() else { return };
    // SAFETY: a forked child has one thread, and it holds the lock.
    let Some(bridge) = (unsafe { &mut *SHARED.bridge.get() }) else { return };
    bridge.running = false;
    if let Some((id, epfd)) = bridge.own.take() {
        instance::disowned(id);
        descriptors::unprotect(epfd);
    }
    for watched in bridge.sockets.values_mut() {
        watched.events = 0;
        watched.watches.iter_mut().for_each(|watch| watch.stand_in = None);
    }
    bridge.inherited = !bridge.sockets.is_empty();
}

impl Bridge {
    /// The epoll instance on which the thread waits, made if there is none.
    fn own(&mut self) -> Sys<u32> {
        if let Some((id, _)) = self.own {
            return Ok(id);
        }
        // SAFETY: `epoll_create1` takes a number and no memory.
        let made = outcome(unsafe { real::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        let protected = descriptors::protected_copy(made);
        sys::close(made);
        let epfd = protected?;
        let Some(id) = instance::claimed(epfd) else {
            descriptors::unprotect(epfd);
            return Err(libc::EMFILE);
        };
        instance::instance(id).asked_by_library();
        self.own = Some((id, epfd));
        Ok(id)
    }

    /// Starts the thread, unless it runs.
    fn start(&mut self) {
        if let (Some((id, epfd)), false) = (self.own, self.running) {
            self.next_look = FIRST_LOOK;
            self.running = hidden_thread::start(move || serve(id, epfd));
        }
    }

    fn add(&mut self, set: u32, fd: c_int, socket: &Socket, event: epoll_event) -> Sys<()> {
        self.own()?;
        let key = key(socket);
        if self.find(set, fd, key).is_some() {
            return Err(libc::EEXIST);
        }
        let stand_in = StandIn::new()?;
        native(set, libc::EPOLL_CTL_ADD, stand_in.descriptor(), &event)?;
        table::divert(fd);
        let new = || Watched { socket: *socket, fd, watches: Vec::new(), events: 0 };
        let watched = self.sockets.entry(key).or_insert_with(new);
        watched.watches.push(Watch { set, fd, event, stand_in: Some(stand_in) });
        self.watch(key);
        self.show(key, false);
        self.start();
        Ok(())
    }

    fn find(&mut self, set: u32, fd: c_int, key: u64) -> Option<&mut Watch> {
        self.sockets.get_mut(&key)?.watches.iter_mut().find(|watch| watch.set == set && watch.fd == fd)
    }

    fn modify(&mut self, set: u32, fd: c_int, socket: &Socket, event: &epoll_event) -> Sys<()> {
        let key = key(socket);
        self.find(set, fd, key).ok_or(libc::ENOENT)?.event = *event;
        self.watch(key);
        self.show(key, false);
        let stand_in = self.find(set, fd, key).and_then(|watch| watch.stand_in.as_ref());
        native(set, libc::EPOLL_CTL_MOD, stand_in.ok_or(libc::ENOENT)?.descriptor(), event)?;
        if socket.kernel_half() {
            native(set, libc::EPOLL_CTL_MOD, fd, event)?;
        }
        Ok(())
    }

    fn remove(&mut self, set: u32, fd: c_int, socket: &Socket) -> Sys<()> {
        let removed = self.forget(key(socket), |watch| watch.set == set && watch.fd == fd);
        let watch = removed.first().ok_or(libc::ENOENT)?;
        if socket.kernel_half() {
            let _ = native(set, libc::EPOLL_CTL_DEL, fd, &watch.event);
        }
        Ok(())
    }

    /// Ends the watches of a socket that are meant.
    fn forget(&mut self, key: u64, is_meant: impl Fn(&Watch) -> bool) -> Vec<Watch> {
        let Some(watched) = self.sockets.get_mut(&key) else { return Vec::new() };
        let mut forgotten: Vec<_> = watched.watches.extract_if(.., |watch| is_meant(watch)).collect();
        for watch in &mut forgotten {
            if !watched.watches.iter().any(|other| other.fd == watch.fd) {
                table::restore(watch.fd);
            }
            if let Some(stand_in) = watch.stand_in.take() {
                // A forked child may have the stand-in too, so its end would not take it out of the native set.
                let _ = native(watch.set, libc::EPOLL_CTL_DEL, stand_in.descriptor(), &watch.event);
            }
        }
        self.watch(key);
        forgotten
    }

    /// Has the thread wait for the events that a socket is watched for. A socket without watches is removed.
    fn watch(&mut self, key: u64) {
        let (Some((id, _)), Some(watched)) = (self.own, self.sockets.get_mut(&key)) else { return };
        let Watched { socket, fd, watches, events } = watched;
        let wanted = watches.iter().fold(ET, |all, watch| all | watch.event.events & EVENTS);
        let op = match (watches.is_empty(), *events) {
            (true, _) => libc::EPOLL_CTL_DEL,
            (false, 0) => libc::EPOLL_CTL_ADD,
            (false, before) if before == wanted => return,
            (false, _) => libc::EPOLL_CTL_MOD,
        };
        let event = epoll_event { events: wanted, u64: key };
        let _ = watch::control(id, op, EntryName::Library, *fd, socket, Some(&event));
        *events = wanted;
        if watches.is_empty() {
            self.sockets.remove(&key);
        }
    }

    /// Shows the events that a socket has. `again`: something has happened, which is a new edge.
    fn show(&mut self, key: u64, again: bool) {
        let Some(watched) = self.sockets.get_mut(&key) else { return };
        for watch in &mut watched.watches {
            let Some(stand_in) = &mut watch.stand_in else { continue };
            let events = readiness::events_for(&watched.socket, watch.event.events);
            let by_edge = watch.event.events & ET != 0;
            if !stand_in.show(events, again && by_edge)
                && let Ok(mut new) = StandIn::new()
            {
                new.show(events, false);
                let _ = native(watch.set, libc::EPOLL_CTL_DEL, stand_in.descriptor(), &watch.event);
                let _ = native(watch.set, libc::EPOLL_CTL_ADD, new.descriptor(), &watch.event);
                *stand_in = new;
            }
        }
    }

    /// Shows no more events than a socket has.
    fn lower(&mut self, socket: &Socket) {
        let Some(watched) = self.sockets.get_mut(&key(socket)) else { return };
        for watch in &mut watched.watches {
            if let Some(stand_in) = &mut watch.stand_in {
                stand_in.lower(readiness::events_for(socket, watch.event.events));
            }
        }
    }

    /// Is a level shown that may have been used up unseen?
    fn shows_a_level(&self) -> bool {
        let by_level = |watch: &&Watch| watch.event.events & ET == 0;
        let watches = self.sockets.values().flat_map(|watched| &watched.watches).filter(by_level);
        watches.filter_map(|watch| watch.stand_in.as_ref()).any(|stand_in| stand_in.shown() & (IN | OUT) != 0)
    }

    /// How long the thread may sleep.
    fn time(&self) -> Duration {
        if self.shows_a_level() { self.next_look } else { LIFE_CHECK }
    }

    fn look_at_all(&mut self) {
        for key in self.sockets.keys().copied().collect::<Vec<_>>() {
            self.show(key, false);
        }
        self.next_look = (self.next_look * 2).min(LAST_LOOK);
    }

    /// In a forked child: makes stand-ins and a thread of its own.
    #[cold]
    fn take_over(&mut self) {
        self.inherited = false;
        for watched in core::mem::take(&mut self.sockets).into_values() {
            for watch in watched.watches {
                let _ = self.add(watch.set, watch.fd, &watched.socket, watch.event);
            }
        }
    }
}

/// The hidden thread's loop. It ends when no socket is watched any more.
fn serve(id: u32, epfd: c_int) {
    let mut events = [epoll_event { events: 0, u64: 0 }; AT_ONCE];
    loop {
        let time = with(|bridge| bridge.time()).unwrap_or(LIFE_CHECK);
        let found = epoll_wait::wait_internal(id, epfd, &mut events, time).unwrap_or(0);
        let goes_on = with(|bridge| {
            for event in &events[..found.min(AT_ONCE)] {
                bridge.show(event.u64, true);
                bridge.next_look = FIRST_LOOK;
            }
            if found == 0 {
                bridge.look_at_all();
            }
            bridge.running = !bridge.sockets.is_empty();
            bridge.running
        });
        if goes_on != Some(true) {
            return;
        }
    }
}
