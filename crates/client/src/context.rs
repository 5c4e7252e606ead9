//! Event contexts: the events of many slots, as the stack reports them. An epoll instance has one for as long as it
//! exists, a `poll` has one while it sleeps. They are few, so unused ones are kept for reuse.

use crate::descriptors;
use crate::direct::{self, Raised};
use crate::doorbell;
use crate::lock::Lock;
use crate::session::Session;
use core::cell::UnsafeCell;
use core::cmp::Reverse;
use core::sync::atomic::{AtomicU32, Ordering};
use towpath_ring::Slot;
use towpath_ring::control::Request;
use towpath_ring::dirty::{DirtySet, acknowledge};

/// The most contexts that are kept for reuse. Others go back to the service.
const KEPT: usize = 8;

/// An event context of this process.
pub struct Context {
    /// Its number.
    pub id: u32,
    /// Its session. It stays this one, whoever gets the session's number later.
    pub session: &'static Session,
    /// The eventfd that the stack notifies while the context is armed.
    pub wake: i32,
    /// The event queue of each thread of the stack.
    told: Vec<Told>,
    /// Events of direct connections that have been taken out of the bitmaps and are still to be handed out.
    raised: Vec<Raised>,
}

/// The event queue of one thread of the stack, looked up.
struct Told {
    set: DirtySet<'static>,
    /// Sequence and acknowledge words, by slot.
    words: (&'static [AtomicU32], &'static [AtomicU32]),
    /// The read position. It is not in shared memory, where other processes could overwrite it.
    head: u32,
}

impl Told {
    /// Hands each slot that is in the queue now to `each`. It is acknowledged before its words are looked at, so that a later
    /// change queues it again. Those that are queued meanwhile come next time.
    #[inline(always)]
    fn drain(&mut self, mut each: impl FnMut(u32)) {
        let mut left = self.set.queued(&mut self.head);
        if left == 0 {
            return;
        }
        let (seq, ack) = self.words;
        while left > 0 {
            let raw = self.set.take(&mut self.head);
            if let (Some(seq), Some(ack)) = (seq.get(raw as usize), ack.get(raw as usize)) {
                acknowledge(seq, ack);
            }
            each(raw);
            left -= 1;
        }
    }
}

/// An event that is still in its queue.
pub struct Next<'a> {
    told: &'a mut Told,
    slot: u32,
}

impl Next<'_> {
    /// The number of its slot, unchecked.
    #[inline(always)]
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// Takes it out of the queue. The slot's words are looked at after this. A number beyond all slots' acknowledges nothing.
    #[inline(always)]
    pub fn take(self) {
        let Told { set, words: (seq, ack), head } = self.told;
        set.pass(head);
        if let (Some(seq), Some(ack)) = (seq.get(self.slot as usize), ack.get(self.slot as usize)) {
            acknowledge(seq, ack);
        }
    }
}

/// The events of the stack that are in the queues.
pub enum Queued<'a> {
    /// None.
    Nothing,
    /// One.
    One(Next<'a>),
    /// More than one, or a queue breaks the contract.
    Several,
}

/// How long ago an event was raised. One that is newer than `now` counts as just raised.
fn age(now: u32, raised: u32) -> u32 {
    now.wrapping_sub(raised).cast_signed().max(0).cast_unsigned()
}

struct Pool {
    lock: Lock,
    kept: UnsafeCell<Vec<Context>>,
}

// SAFETY: `kept` is only accessed under the lock.
unsafe impl Sync for Pool {}

static POOL: Pool = Pool { lock: Lock::new(), kept: UnsafeCell::new(Vec::new()) };

/// In a forked child: the kept contexts are the parent's.
pub fn forked() {
    POOL.lock.reset();
    if let Some(_locked) = POOL.lock.lock() {
        // SAFETY: a forked child has one thread, and it holds the lock.
        for context in unsafe { &mut *POOL.kept.get() }.drain(..) {
            descriptors::unprotect(context.wake);
        }
    }
}

/// The session of this number has ended. Another session may get the number.
pub fn forget_session(number: u32) {
    if let Some(_locked) = POOL.lock.lock() {
        // SAFETY: the lock is held, so this is the only reference.
        unsafe { &mut *POOL.kept.get() }.extract_if(.., |context| context.session.number == number).for_each(
            |context| {
                descriptors::unprotect(context.wake);
            },
        );
    }
}

impl Context {
    /// A kept context, or a new one. `None`: the stack has none left.
    pub fn open(session: &'static Session) -> Option<Self> {
        if let Some(_locked) = POOL.lock.lock() {
            // SAFETY: the lock is held, so this is the only reference.
            let kept = unsafe { &mut *POOL.kept.get() };
            if let Some(at) = kept.iter().rposition(|context| core::ptr::eq(context.session, session)) {
                return Some(kept.swap_remove(at));
            }
        }
        let (id, wake) = session.request_context()?;
        direct::new_doorbell(session, id);
        let wake = descriptors::protect(wake).ok()?;
        forget_former(session, 1 << (id & 63));
        let told = (0..session.region.layout().threads()).map(|thread| {
            let set = session.region.events(id as usize, thread);
            // Another process may have had this number. Its queue goes on at its position.
            Told { set, words: session.region.all_event_words(id as usize, thread), head: set.position() }
        });
        Some(Self { id, session, wake, told: told.collect(), raised: Vec::new() })
    }

    /// Gives the context back. No slot may be subscribed to it any more.
    pub fn close(self) {
        let session = self.session;
        self.disarm();
        if session.is_dead() {
            descriptors::unprotect(self.wake);
            return;
        }
        if let Some(_locked) = POOL.lock.lock() {
            // SAFETY: the lock is held, so this is the only reference.
            let kept = unsafe { &mut *POOL.kept.get() };
            if kept.len() < KEPT {
                kept.push(self);
                return;
            }
        }
        descriptors::unprotect(self.wake);
        let _ = session.send(&Request::DropContext { context: self.id }, &[]);
        session.out_of_contexts.store(false, Ordering::Relaxed);
    }

    /// Its bit in `AppLine::ctx_mask`.
    pub fn bit(&self) -> u64 {
        1 << (self.id & 63)
    }

    /// Empties the queues and hands each slot to `each`.
    #[inline(always)]
    pub fn drain(&mut self, mut each: impl FnMut(Slot)) {
        self.drain_stack(self.session, &mut each);
        if direct::is_used(self.session) {
            let mut next = self.first_direct();
            while let Some(event) = next {
                self.session.region.slot(event.slot()).into_iter().for_each(&mut each);
                next = self.next_direct();
            }
        }
    }

    /// [`Context::drain`] for events of the stack. `session` is the context's.
    #[inline(always)]
    pub fn drain_stack(&mut self, session: &'static Session, mut each: impl FnMut(Slot)) {
        for told in &mut self.told {
            told.drain(|raw| {
                if let Some(slot) = session.region.slot(raw) {
                    each(slot);
                }
            });
        }
    }

    /// What is in the queues of the stack.
    #[inline(always)]
    pub fn queued(&mut self) -> Queued<'_> {
        let mut one: Option<&mut Told> = None;
        for told in &mut self.told {
            match told.set.behind(told.head) {
                0 => {}
                1 if one.is_none() => one = Some(told),
                _ => return Queued::Several,
            }
        }
        match one {
            Some(told) => {
                let slot = told.set.next(told.head);
                Queued::One(Next { told, slot })
            }
            None => Queued::Nothing,
        }
    }

    /// Is anything in the queues of the stack?
    #[inline(always)]
    pub fn is_anything_queued(&self) -> bool {
        self.told.iter().any(|told| told.set.behind(told.head) != 0)
    }

    /// The only event of a direct connection, which [`Context::take_direct`] takes.
    #[inline(always)]
    pub fn only_direct(&self) -> direct::OnlyEvent {
        direct::only(self.session, self.id)
    }

    /// Takes that event. False: it is now among those that [`Context::first_direct`] takes.
    #[inline(always)]
    pub fn take_direct(&mut self, next: &direct::Next) -> bool {
        next.take(&mut self.raised)
    }

    /// Takes the events that the peers of direct connections have posted. Returns the first; [`Context::next_direct`] has the
    /// others, all of which must be taken.
    #[inline(always)]
    pub fn first_direct(&mut self) -> Option<Raised> {
        let newest = direct::drain(self.session, self.id, &mut self.raised)?;
        // Most often there is one, which needs no order.
        if self.raised.is_empty() { Some(newest) } else { self.in_order(newest) }
    }

    /// The next event, in the order of arrival.
    #[inline(always)]
    pub fn next_direct(&mut self) -> Option<Raised> {
        self.raised.pop()
    }

    #[cold]
    #[inline(never)]
    fn in_order(&mut self, newest: Raised) -> Option<Raised> {
        self.raised.push(newest);
        // Each time is loaded once: a hostile peer may change it.
        let now = direct::stamp();
        self.raised.iter_mut().for_each(|event| event.age = age(now, event.by.raised().load(Ordering::Relaxed)));
        // They are taken from the end.
        self.raised.sort_unstable_by_key(|event| (event.age, Reverse(event.slot())));
        self.next_direct()
    }

    /// From now on events notify the eventfd. The caller must look for events once more before it sleeps.
    pub fn arm(&self) {
        arm(self.session, self.id);
    }

    /// The caller is awake: events need not notify the eventfd.
    pub fn disarm(&self) {
        disarm(self.session, self.id);
    }
}

/// Another process may have had this number, and may have been killed while it watched listeners. Their events are
/// raised again, because it missed them.
fn forget_former(session: &Session, bit: u64) {
    let claimed = session.header().slots_claimed.load(Ordering::Relaxed).min(session.geometry.app_slots);
    for slot in (0..claimed).filter_map(|raw| session.region.slot(raw)) {
        let app = session.region.app(slot);
        if app.ctx_mask.load(Ordering::Relaxed) & bit != 0 {
            app.exclusive.fetch_and(!bit, Ordering::SeqCst);
            app.ctx_mask.fetch_and(!bit, Ordering::SeqCst);
            doorbell::notify_commands(session, slot);
        }
    }
}

/// `Context::is_empty` by number, for threads that do not hold the context's lock.
#[inline]
pub fn is_empty(session: &Session, id: u32) -> bool {
    (0..session.region.layout().threads()).all(|thread| {
        let set = session.region.events(id as usize, thread);
        set.is_empty(set.position())
    }) && direct::is_empty(session, id)
}

/// `Context::arm` by number.
pub fn arm(session: &Session, id: u32) {
    (0..session.region.layout().threads()).for_each(|thread| session.region.events(id as usize, thread).arm());
    direct::arm(session, id);
}

/// `Context::disarm` by number.
pub fn disarm(session: &Session, id: u32) {
    (0..session.region.layout().threads()).for_each(|thread| session.region.events(id as usize, thread).disarm());
    direct::disarm(session, id);
}
