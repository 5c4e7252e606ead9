//! What a call has in the books while it sleeps: counters, a hold on its socket, the thread's cancellation. A signal handler may leave
//! such a call by `siglongjmp`, and then nobody comes back to strike it out. So each thread keeps a list of what its sleeping calls have
//! in the books and where on the stack, and what belongs to calls that are no more is struck out at the thread's next sleep or `close`.

use crate::cancel;
use crate::epoll;
use crate::hold;
use crate::poll;
use crate::socket::Socket;
use core::cell::Cell;
use core::sync::atomic::{AtomicU32, Ordering, compiler_fence};

/// What is to be done when the call returns, or is known to have been left.
#[derive(Clone, Copy)]
pub enum Undo {
    /// Nothing.
    Nothing,
    /// It counts among those who sleep on a socket, and perhaps in `accept`.
    Sleeper(&'static AtomicU32, Option<&'static AtomicU32>),
    /// It holds a socket (see `hold`).
    Hold(Socket),
    /// It counts among those who wait on an epoll instance.
    Instance(u32),
    /// It watches the sockets of a `poll`.
    Watch(*mut poll::Watch),
}

impl Undo {
    fn run(self) {
        match self {
            Undo::Nothing => {}
            Undo::Sleeper(sleepers, kind) => {
                kind.inspect(|kind| _ = kind.fetch_sub(1, Ordering::SeqCst));
                sleepers.fetch_sub(1, Ordering::SeqCst);
            }
            Undo::Hold(socket) => hold::ended(&socket),
            Undo::Instance(id) => epoll::instance(id).awake_at_last(),
            // SAFETY: who has entered it has boxed it, and it is struck out once.
            Undo::Watch(watch) => drop(unsafe { Box::from_raw(watch) }),
        }
    }
}

/// Deep enough for calls in handlers that have interrupted calls; what does not fit is struck out only by its own call.
const MOST: usize = 16;
/// Between a call and one that a handler makes meanwhile lies at least the kernel's signal frame. What is no further up than this is of
/// a call that is no more.
const SIGNAL_FRAME: usize = 512;

#[derive(Clone, Copy)]
struct Line {
    /// A place in the call's frame; `usize::MAX` = not known.
    at: usize,
    number: u32,
    undo: Undo,
    /// The thread is not cancelled as long as it sleeps (see `cancel`), and may be afterwards.
    cancelable: bool,
}

impl Line {
    fn run(self) {
        self.undo.run();
        if self.cancelable {
            cancel::awake();
        }
    }
}

const BLANK: Line = Line { at: usize::MAX, number: 0, undo: Undo::Nothing, cancelable: false };

struct Books {
    lines: [Cell<Line>; MOST],
    count: Cell<usize>,
    number: Cell<u32>,
}

thread_local! {
    static BOOKS: Books = const { Books { lines: [const { Cell::new(BLANK) }; MOST], count: Cell::new(0), number: Cell::new(0) } };
}

impl Books {
    /// A handler may come between any two steps: it leaves the list as it has found it.
    #[inline]
    fn push(&self, at: usize, undo: Undo, cancelable: bool) -> Option<(usize, u32)> {
        let place = self.count.get();
        let line = self.lines.get(place)?;
        let number = self.number.get().wrapping_add(1);
        self.number.set(number);
        self.count.set(place + 1);
        compiler_fence(Ordering::SeqCst);
        line.set(Line { at, number, undo, cancelable });
        Some((place, number))
    }

    /// Strikes out this line and all after it, which are of calls within its own.
    fn strike(&self, place: usize) {
        while self.count.get() > place {
            let last = self.count.get() - 1;
            let line = self.lines[last].replace(BLANK);
            compiler_fence(Ordering::SeqCst);
            self.count.set(last);
            line.run();
        }
    }

    #[cold]
    fn settle(&self, at: usize) {
        let left = |line: &Cell<Line>| line.get().at <= at.saturating_add(SIGNAL_FRAME);
        if let Some(place) = self.lines[..self.count.get().min(MOST)].iter().position(left)
            && !on_another_stack()
        {
            self.strike(place);
        }
    }
}

/// Is this a handler on a stack of its own, of whose place nothing follows?
fn on_another_stack() -> bool {
    // SAFETY: zeros are a description, which the kernel fills in.
    let mut stack: libc::stack_t = unsafe { core::mem::zeroed() };
    // SAFETY: only asked; room for the answer.
    unsafe { libc::sigaltstack(core::ptr::null(), &raw mut stack) };
    stack.ss_flags & libc::SS_ONSTACK != 0
}

/// Something that stands in the books until dropped.
pub struct Entry {
    place: Option<(usize, u32)>,
    undo: Undo,
    cancelable: bool,
}

impl Entry {
    /// From now on. `off` takes what is to be undone into effect, after what has been left before is struck out; true if the thread
    /// may be cancelled afterwards.
    #[inline]
    pub fn new(undo: Undo, off: impl FnOnce() -> bool) -> Self {
        let here = 0u8;
        let at = (&raw const here).addr();
        let made = BOOKS.try_with(|books| {
            if books.count.get() != 0 {
                books.settle(at);
            }
            let cancelable = off();
            (books.push(at, undo, cancelable), cancelable)
        });
        // As the thread ends there are no books any more.
        let (place, cancelable) = made.unwrap_or((None, false));
        Self { place, undo, cancelable }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let Some((place, number)) = self.place else {
            let Self { undo, cancelable, .. } = *self;
            return Line { undo, cancelable, ..BLANK }.run();
        };
        let _ = BOOKS.try_with(|books| {
            if books.lines[place].get().number == number {
                books.strike(place);
            }
        });
    }
}

/// Strikes out what calls of this thread have left.
#[inline(never)]
pub fn settle() {
    let here = 0u8;
    let _ = BOOKS.try_with(|books| {
        if books.count.get() != 0 {
            books.settle((&raw const here).addr());
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
        // As `siglongjmp`: nothing is dropped.
        core::mem::forget(Entry::new(Undo::Sleeper(&COUNT, None), || false));
        core::hint::black_box(deep)[0]
    }

    #[test]
    fn what_a_call_has_left_is_struck_out_and_what_lives_is_not() {
        COUNT.fetch_add(1, Ordering::SeqCst);
        let outer = Entry::new(Undo::Sleeper(&COUNT, None), || false);
        let far = [0u8; 4096];
        core::hint::black_box(&far);
        std::hint::black_box(within(&outer));
        assert_eq!(count(), 1, "those that were left are struck out");
        drop(outer);
        assert_eq!(count(), 0);
        for _ in 0..100 {
            sleep_and_leave(1);
        }
        settle();
        assert_eq!(count(), 0);
    }

    /// As a handler: a frame far below the interrupted call's.
    #[inline(never)]
    fn within(_outer: &Entry) -> u8 {
        let frame = core::hint::black_box([1u8; 4096]);
        sleep_and_leave(2);
        assert_eq!(count(), 2);
        settle();
        assert_eq!(count(), 1);
        {
            COUNT.fetch_add(1, Ordering::SeqCst);
            let _own = Entry::new(Undo::Sleeper(&COUNT, None), || false);
            assert_eq!(count(), 2);
        }
        frame[0]
    }
}
