//! The flight recorder: the last rare events of each thread of a stack. `towpath events` shows them.
//!
//! A thread writes its own row of the memory, without lock, allocation or system call. Who records nothing pays one store per
//! turn, for the time. So only what is rare is recorded, never what happens for each packet, and no payload.
//!
//! The memory is made before the first worker process is forked, and shared by all of them. It has two areas. A worker process
//! takes the one that its predecessor has not had, so it can read how that one ended. The broker never reads it, because a fallen
//! worker may have written anything.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod event;
mod memory;
mod reasons;
mod row;
mod words;

pub use event::{End, Event, Kind, Message};
pub use memory::{Recorded, Which, begin, inherit, open, read, take_over};

use row::Row;
use std::cell::Cell;
use std::net::SocketAddr;

/// No flow group, no flow.
pub const NONE: u32 = u32::MAX;

/// What a thread records with.
struct Here {
    /// `None`: this thread records nothing.
    row: Cell<Option<&'static Row>>,
    /// When its turn began, µs.
    now_us: Cell<u64>,
}

thread_local! {
    static HERE: Here = const { Here { row: Cell::new(None), now_us: Cell::new(0) } };
}

/// A turn of this thread begins, at this time of the monotonic clock. What it records bears this time.
#[inline(always)]
pub fn turn(now_us: u64) {
    HERE.with(|here| here.now_us.set(now_us));
}

/// What is to be recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What has happened.
    pub kind: Kind,
    /// More of it: see [`Kind`].
    pub flag: u8,
    /// The flow group, or [`NONE`].
    pub flow_group: u32,
    /// Whom it concerns. The same kind with the same key once more is counted, and takes no place.
    pub key: u64,
    /// Two more numbers.
    pub value: (u32, u32),
    /// Both ends of the connection, the own one first.
    pub ends: Option<(SocketAddr, SocketAddr)>,
}

impl Entry {
    /// An event of this kind, about this.
    #[inline]
    pub const fn new(kind: Kind, key: u64) -> Self {
        Self { kind, flag: 0, flow_group: NONE, key, value: (0, 0), ends: None }
    }
}

/// Records an event, if this thread has a row.
#[cold]
#[inline(never)]
pub fn record(entry: &Entry) {
    HERE.with(|here| {
        if let Some(row) = here.row.get() {
            row.put(here.now_us.get(), entry);
        }
    });
}

/// A received frame is dropped, for the reason of this number.
#[cold]
#[inline(never)]
pub fn drop(reason: usize) {
    record(&Entry::new(Kind::Drop, reason as u64));
}

/// Threads of a client are woken.
#[inline(never)]
pub fn wake(client: u32, pid: i32) {
    record(&Entry { value: (pid.cast_unsigned(), 0), ..Entry::new(Kind::Wake, client.into()) });
}

/// A turn has taken so long, µs, and had so much work.
#[cold]
#[inline(never)]
pub fn long_turn(flow_group: u32, began_us: u64, took_us: u64, work: usize) {
    let most = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    let value = (most(took_us), most(work as u64));
    record(&Entry { flow_group, value, ..Entry::new(Kind::LongTurn, began_us) });
}

/// A turn has ended by a panic: of this flow group, or of the slow path. Returns what this thread has recorded before, the newest
/// last.
#[cold]
pub fn panicked(flow_group: u32) -> Vec<Event> {
    let last = HERE.with(|here| here.row.get().map(Row::events)).unwrap_or_default();
    HERE.with(|here| {
        let at = here.now_us.get();
        record(&Entry { flow_group, ..Entry::new(Kind::Panic, at) });
    });
    last
}
