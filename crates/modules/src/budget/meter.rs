//! Times the runs of modules that have a limit. What is known of the turn belongs to the thread, as one flow group's turn ends
//! before the next one's begins.

use super::account::Over;
use super::{Overrun, Tenant};
use crate::clock::clock;
use std::cell::Cell;

/// How often the clock is asked to know what asking takes.
const ASKED: usize = 15;
/// After a longer run, and before one that comes so long after the last, the thread's own clock is asked, ns.
const LONG_NS: u64 = 10_000;

/// Two clocks, ns.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// Time that has passed.
    pub wall: fn() -> u64,
    /// Time that the thread has run.
    pub thread: fn() -> u64,
}

impl Clock {
    /// The kernel's.
    pub const KERNEL: Self =
        Self { wall: || clock(libc::CLOCK_MONOTONIC), thread: || clock(libc::CLOCK_THREAD_CPUTIME_ID) };
}

/// A turn of a flow group in which a module with a limit has run.
#[derive(Clone, Copy)]
struct Turn {
    /// Has one run yet?
    is_on: bool,
    /// When the first one began, on both clocks.
    wall_ns: u64,
    thread_ns: u64,
    /// What all of them have taken.
    taken_ns: u64,
    /// How long other programs have had the CPU, as far as somebody has asked.
    lost_ns: u64,
    /// When the last one was over.
    seen_ns: u64,
}

impl Turn {
    const NONE: Self = Self { is_on: false, wall_ns: 0, thread_ns: 0, taken_ns: 0, lost_ns: 0, seen_ns: 0 };

    fn own_ns(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.wall_ns + self.taken_ns + self.lost_ns)
    }

    /// Asks how long other programs have had the CPU since somebody has asked last.
    fn newly_lost_ns(&mut self, thread: fn() -> u64, now_ns: u64) -> u64 {
        let ran_ns = thread().saturating_sub(self.thread_ns);
        let lost_ns = now_ns.saturating_sub(self.wall_ns).saturating_sub(ran_ns).max(self.lost_ns);
        lost_ns - std::mem::replace(&mut self.lost_ns, lost_ns)
    }
}

thread_local! {
    static TURN: Cell<Turn> = const { Cell::new(Turn::NONE) };
    static WORKER: Cell<usize> = const { Cell::new(0) };
}

/// This thread is the worker of this number: tenants have an account there.
pub fn serves_as(worker: usize) {
    WORKER.set(worker);
}

/// Times runs at one place.
#[derive(Clone, Copy, Debug)]
pub struct Meter {
    clock: Clock,
    /// What it takes to ask twice, ns.
    clock_ns: u64,
    flow_group: usize,
    /// Does somebody wait for the end of a turn?
    has_turns: bool,
}

impl Meter {
    /// For this flow group. Without turns only the share of the core counts.
    pub fn new(clock: Clock, flow_group: usize, has_turns: bool) -> Self {
        let twice = |_| {
            let first = (clock.wall)();
            (clock.wall)().saturating_sub(first)
        };
        let mut asked: [u64; ASKED] = std::array::from_fn(twice);
        asked.sort_unstable();
        Self { clock, clock_ns: asked[ASKED / 2], flow_group, has_turns }
    }

    /// Asks another clock from now on.
    #[cfg(test)]
    pub(crate) fn tick_by(&mut self, clock: Clock) {
        self.clock = clock;
    }

    /// The time before a run.
    pub(crate) fn begin(&self) -> u64 {
        let mut turn = TURN.get();
        if !turn.is_on {
            let thread_ns = (self.clock.thread)();
            turn = Turn { is_on: true, wall_ns: (self.clock.wall)(), thread_ns, ..Turn::NONE };
            TURN.set(turn);
            return turn.wall_ns;
        }
        let now_ns = (self.clock.wall)();
        if now_ns.saturating_sub(turn.seen_ns) <= LONG_NS {
            return now_ns;
        }
        // What was lost before a run is not the run's.
        turn.newly_lost_ns(self.clock.thread, now_ns);
        TURN.set(turn);
        (self.clock.wall)()
    }

    /// A run of this tenant's that began then is over.
    pub(crate) fn charge(&self, tenant: &Tenant, begin_ns: u64) {
        let now_ns = (self.clock.wall)();
        let mut turn = TURN.get();
        let mut run_ns = now_ns.saturating_sub(begin_ns + self.clock_ns);
        if run_ns > LONG_NS {
            run_ns = run_ns.saturating_sub(turn.newly_lost_ns(self.clock.thread, now_ns));
        }
        turn.taken_ns += run_ns;
        turn.seen_ns = now_ns;
        TURN.set(turn);
        let (account, own_ns) = (tenant.account(self.worker()), self.has_turns.then(|| turn.own_ns(now_ns)));
        if let Some(over) = account.charge(tenant.percent, run_ns, own_ns, now_ns) {
            self.detach(tenant, account.taken_ns(), own_ns.filter(|_| over == Over::Turn));
        }
    }

    /// The turn is over, and what runs now is of the next one. Returns its own work, ns.
    pub(super) fn end_turn(&self) -> u64 {
        let turn = TURN.replace(Turn::NONE);
        if turn.is_on { turn.own_ns((self.clock.wall)()) } else { 0 }
    }

    /// The turn is over for this tenant.
    pub(super) fn end(&self, tenant: &Tenant, own_ns: u64) {
        let own_ns = self.has_turns.then_some(own_ns);
        if let Some(taken_ns) = tenant.account(self.worker()).end_turn(tenant.percent, own_ns) {
            self.detach(tenant, taken_ns, own_ns);
        }
    }

    /// The thread for direct connections is no worker; its number is that of its row.
    fn worker(&self) -> usize {
        if self.has_turns { WORKER.get() } else { self.flow_group }
    }

    #[cold]
    fn detach(&self, tenant: &Tenant, taken_ns: u64, own_ns: Option<u64>) {
        // Another worker may have been the first.
        let _ = tenant.overrun.set(Overrun { flow_group: self.flow_group, taken_ns, own_ns });
    }
}
