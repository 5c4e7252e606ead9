//! The undo log: what a sleeping call must take back at its end, such as counters, its use of a socket, and disabled
//! cancellation.
//!
//! A signal handler may jump out of such a call with `siglongjmp`, so that its end never comes. So each thread lists
//! its sleeping calls with their places on the stack. The thread's next sleep or `close` undoes the entries of calls
//! that no longer exist.

use crate::cancel;
use crate::socket::Socket;
use core::cell::Cell;
use core::sync::atomic::{AtomicU32, Ordering, compiler_fence};

/// The action at the end of the call, or once it is known that a handler has jumped out of it.
#[derive(Clone, Copy)]
pub enum Undo {
    /// Nothing.
    Nothing,
    /// The call counts among the sleepers of a socket, and perhaps among those of `accept`.
    Sleeper(&'static AtomicU32, Option<&'static AtomicU32>),
    /// The function is to be called with the socket.
    Socket(fn(&Socket), Socket),
    /// The function is to be called with the number, which is an id or an address.
    Number(fn(usize), usize),
}

impl Undo {
    fn run(self) {
        match self {
            Undo::Nothing => {}
            Undo::Sleeper(sleepers, kind) => {
                kind.inspect(|kind| _ = kind.fetch_sub(1, Ordering::SeqCst));
                sleepers.fetch_sub(1, Ordering::SeqCst);
            }
            Undo::Socket(undo, socket) => undo(&socket),
            Undo::Number(undo, number) => undo(number),
        }
    }
}

/// Enough for calls in handlers that have interrupted calls. Further entries are undone by their own calls only.
const CAPACITY: usize = 16;
/// A call in a handler is at least the kernel's signal frame away from the interrupted call. A closer entry belongs to
/// a call that no longer exists.
const SIGNAL_FRAME: usize = 512;

#[derive(Clone, Copy)]
struct Record {
    /// An address in the call's frame; `usize::MAX` = not known.
    at: usize,
    number: u32,
    undo: Undo,
    /// Cancellation is disabled during the sleep (see `cancel`), and must be enabled at its end.
    cancelable: bool,
    /// The same call sleeps under entries of its own, at no certain distance on the stack.
    encloses: bool,
}

impl Record {
    fn run(self) {
        self.undo.run();
        if self.cancelable {
            cancel::awake();
        }
    }
}

const BLANK: Record = Record { at: usize::MAX, number: 0, undo: Undo::Nothing, cancelable: false, encloses: false };

struct Log {
    records: [Cell<Record>; CAPACITY],
    count: Cell<usize>,
    number: Cell<u32>,
}

thread_local! {
    static LOG: Log = const { Log { records: [const { Cell::new(BLANK) }; CAPACITY], count: Cell::new(0), number: Cell::new(0) } };
}

impl Log {
    /// Adds an entry. A handler may come between any two steps; it leaves the list as it has found it.
    #[inline]
    fn push(&self, record: Record) -> Option<(usize, u32)> {
        let place = self.count.get();
        let cell = self.records.get(place)?;
        let number = self.number.get().wrapping_add(1);
        self.number.set(number);
        self.count.set(place + 1);
        compiler_fence(Ordering::SeqCst);
        cell.set(Record { number, ..record });
        Some((place, number))
    }

    /// True if the last record is of a call that may sleep now. Its own sleep is as near on the stack as a call that a
    /// handler has left, so an address cannot tell them apart.
    fn is_enclosed(&self) -> bool {
        let last = self.count.get().checked_sub(1).and_then(|last| self.records.get(last));
        last.is_some_and(|record| record.get().encloses)
    }

    /// Undoes this entry and all after it, which belong to calls inside its own.
    fn undo_from(&self, place: usize) {
        while self.count.get() > place {
            let last = self.count.get() - 1;
            let record = self.records[last].replace(BLANK);
            compiler_fence(Ordering::SeqCst);
            self.count.set(last);
            record.run();
        }
    }

    #[cold]
    fn undo_left(&self, at: usize) {
        let left = |record: &Cell<Record>| record.get().at <= at.saturating_add(SIGNAL_FRAME);
        if let Some(place) = self.records[..self.count.get().min(CAPACITY)].iter().position(left)
            && !on_another_stack()
        {
            self.undo_from(place);
        }
    }
}

/// Does the thread run on an alternate signal stack? Then addresses say nothing about who called whom.
fn on_another_stack() -> bool {
    // SAFETY: all zero is a valid value, which the kernel overwrites.
    let mut stack: libc::stack_t = unsafe { core::mem::zeroed() };
    // SAFETY: null changes nothing, and `stack` has room for the answer.
    unsafe { libc::sigaltstack(core::ptr::null(), &raw mut stack) };
    stack.ss_flags & libc::SS_ONSTACK != 0
}

/// An entry in the log. Dropping it undoes it.
pub struct Entry {
    place: Option<(usize, u32)>,
    undo: Undo,
    cancelable: bool,
}

impl Entry {
    /// Undoes what calls of this thread have left behind, then calls `off`. `off` does what `undo` takes back, and
    /// returns whether cancellation must be enabled at the end.
    #[inline]
    pub fn new(undo: Undo, off: impl FnOnce() -> bool) -> Self {
        Self::make(undo, false, off)
    }

    /// As [`Entry::new`], for a call that sleeps under further entries while this one stands.
    #[inline]
    pub fn enclosing(undo: Undo, off: impl FnOnce() -> bool) -> Self {
        Self::make(undo, true, off)
    }

    #[inline]
    fn make(undo: Undo, encloses: bool, off: impl FnOnce() -> bool) -> Self {
        let here = 0u8;
        let at = (&raw const here).addr();
        let made = LOG.try_with(|log| {
            if log.count.get() != 0 && !log.is_enclosed() {
                log.undo_left(at);
            }
            let cancelable = off();
            (log.push(Record { at, undo, cancelable, encloses, ..BLANK }), cancelable)
        });
        // A thread that is ending has no log any more.
        let (place, cancelable) = made.unwrap_or((None, false));
        Self { place, undo, cancelable }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let Some((place, number)) = self.place else {
            let Self { undo, cancelable, .. } = *self;
            return Record { undo, cancelable, ..BLANK }.run();
        };
        let _ = LOG.try_with(|log| {
            if log.records[place].get().number == number {
                log.undo_from(place);
            }
        });
    }
}

/// Undoes what calls of this thread have left behind.
#[inline(never)]
pub fn undo_left_calls() {
    let here = 0u8;
    let _ = LOG.try_with(|log| {
        if log.count.get() != 0 {
            log.undo_left((&raw const here).addr());
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    static COUNT: AtomicU32 = AtomicU32::new(0);

    fn count() -> u32 {
        COUNT.load(Ordering::SeqCst)
    }

    #[inline(never)]
    fn sleep_and_leave(depth: u32) -> u32 {
        let deep = [depth; 64];
        COUNT.fetch_add(1, Ordering::SeqCst);
        // Like `siglongjmp`, this drops nothing.
        core::mem::forget(Entry::new(Undo::Sleeper(&COUNT, None), || false));
        core::hint::black_box(deep)[0]
    }

    #[test]
    fn entries_of_calls_that_were_left_are_undone_and_those_of_living_calls_are_not() {
        COUNT.fetch_add(1, Ordering::SeqCst);
        let outer = Entry::new(Undo::Sleeper(&COUNT, None), || false);
        let far = [0u8; 4096];
        core::hint::black_box(&far);
        std::hint::black_box(within(&outer));
        assert_eq!(count(), 1, "entries of calls that were left are undone");
        drop(outer);
        assert_eq!(count(), 0);
        for _ in 0..100 {
            sleep_and_leave(1);
        }
        undo_left_calls();
        assert_eq!(count(), 0);
    }

    #[test]
    fn the_sleep_of_a_call_does_not_undo_the_call() {
        static CALLS: AtomicU32 = AtomicU32::new(0);
        let call = Entry::enclosing(Undo::Sleeper(&CALLS, None), || {
            CALLS.fetch_add(1, Ordering::SeqCst);
            false
        });
        for _ in 0..2 {
            // In the same frame, and so nearer than any handler's call.
            drop(Entry::new(Undo::Nothing, || false));
            assert_eq!(CALLS.load(Ordering::SeqCst), 1);
        }
        drop(call);
        assert_eq!(CALLS.load(Ordering::SeqCst), 0);
    }

    /// Stands for a handler: its frame is far below that of the interrupted call.
    #[inline(never)]
    fn within(_outer: &Entry) -> u8 {
        let frame = core::hint::black_box([1u8; 4096]);
        sleep_and_leave(2);
        assert_eq!(count(), 2);
        undo_left_calls();
        assert_eq!(count(), 1);
        {
            COUNT.fetch_add(1, Ordering::SeqCst);
            let _own = Entry::new(Undo::Sleeper(&COUNT, None), || false);
            assert_eq!(count(), 2);
        }
        frame[0]
    }
}
