//! What a tenant has left on one worker.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// Most time of its share that a tenant may save up: that of so many ns.
const SAVED_NS: u64 = 100_000_000;
/// What a tenant may take of each turn, however short the turn is, ns. It is a fifth of what the shortest request waits.
pub const FREE_NS: u64 = 5_000;
/// What it may take beyond its share of turns, ns: once, and again as it comes back.
pub const SPARE_NS: u64 = 500_000;
/// It comes back as one ns in so many. Less than one percent of the time others wait for it.
const SPARE_IN: u64 = 200;

/// What was too much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Over {
    /// Its share of the core, which was saved up.
    Core,
    /// Its share of this turn, and all that it could take beyond.
    Turn,
}

/// Only the worker's thread writes to it. It has cache lines of its own.
#[repr(align(64))]
#[derive(Debug)]
pub(super) struct Account {
    /// The time that is left of its share of the core. The unit is a hundredth of a ns, so that no percentage is rounded.
    left: AtomicI64,
    /// What it may take beyond its share of turns, in parts of a ns of which [`SPARE_IN`] make one.
    spare: AtomicI64,
    /// When it was given time last, ns.
    since_ns: AtomicU64,
    /// What it has taken of this turn, ns.
    taken_ns: AtomicU64,
}

fn most_left(percent: u64) -> i64 {
    (SAVED_NS * percent).cast_signed()
}

const MOST_SPARE: i64 = (SPARE_NS * SPARE_IN).cast_signed();

/// What a tenant may take of a turn with this much work of its own.
fn share_of(percent: u64, own_ns: u64) -> u64 {
    (own_ns.saturating_mul(percent) / (100 - percent.min(99))).max(FREE_NS)
}

impl Account {
    /// A full one.
    pub(super) fn new(percent: u64) -> Self {
        let (left, spare) = (most_left(percent).into(), MOST_SPARE.into());
        Self { left, spare, since_ns: AtomicU64::new(0), taken_ns: AtomicU64::new(0) }
    }

    /// What it has taken of this turn, ns.
    pub(super) fn taken_ns(&self) -> u64 {
        self.taken_ns.load(Ordering::Relaxed)
    }

    /// It has taken `run_ns`, at `now_ns`. `own_ns`: the turn's own work until now, if the turn has a limit.
    pub(super) fn charge(&self, percent: u64, run_ns: u64, own_ns: Option<u64>, now_ns: u64) -> Option<Over> {
        let passed_ns = now_ns.saturating_sub(self.since_ns.load(Ordering::Relaxed)).min(SAVED_NS);
        let run_ns = run_ns.min(SAVED_NS);
        let given = (passed_ns * percent).cast_signed();
        let left = (self.left.load(Ordering::Relaxed) + given).min(most_left(percent)) - (100 * run_ns).cast_signed();
        let spare = (self.spare.load(Ordering::Relaxed) + passed_ns.cast_signed()).min(MOST_SPARE);
        let taken_ns = self.taken_ns() + run_ns;
        self.since_ns.store(now_ns, Ordering::Relaxed);
        self.left.store(left, Ordering::Relaxed);
        self.spare.store(spare, Ordering::Relaxed);
        self.taken_ns.store(taken_ns, Ordering::Relaxed);
        if left < 0 {
            return Some(Over::Core);
        }
        // More work of the turn's own may follow. Until then what is too much comes out of what is to spare.
        let most_ns = share_of(percent, own_ns?) + spare.max(0).cast_unsigned() / SPARE_IN;
        (taken_ns > most_ns).then_some(Over::Turn)
    }

    /// The turn is over. Returns what it has taken of it if that was too much.
    pub(super) fn end_turn(&self, percent: u64, own_ns: Option<u64>) -> Option<u64> {
        let taken_ns = self.taken_ns();
        if taken_ns == 0 {
            return None;
        }
        self.taken_ns.store(0, Ordering::Relaxed);
        let beyond_ns = taken_ns.saturating_sub(share_of(percent, own_ns?));
        let spare = self.spare.load(Ordering::Relaxed) - (beyond_ns * SPARE_IN).cast_signed();
        self.spare.store(spare, Ordering::Relaxed);
        (spare < 0).then_some(taken_ns)
    }
}
