//! A class of sockets: what was measured of it, and where its next connection goes.

use super::decide::{self, Phase, Rules, State, Summary};
use std::sync::atomic::Ordering::Relaxed;
use towpath_ring::figures::{Board, Figures, Key, Way};

/// Which class: sockets of one user's programs of one name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name {
    /// The program's name.
    pub program: String,
    /// Its user.
    pub uid: u32,
    /// Which of its sockets.
    pub key: Key,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Class {
    /// What is decided; `None` = nothing is to be: these connections go where the other side listens.
    pub state: Option<State>,
    /// Connections, or of listeners runs of the program, that have been put on each way since the trial began.
    placed: [u64; 2],
    /// Of programs that have ended.
    retired: [Figures; 2],
    /// When the trial, or a listener's newest run, began.
    base: [Figures; 2],
    /// For the order in which a trial takes its ways.
    seed: u64,
}

/// How often calls and connections are measured: on trial, and later, when it is to cost next to nothing.
const ON_TRIAL: (u32, u32) = (32, 1);
/// See [`ON_TRIAL`].
const LATER: (u32, u32) = (128, 8);

impl Class {
    /// One of which nothing is known.
    pub fn new(state: Option<State>, seed: u64) -> Self {
        Self { state, placed: [0; 2], retired: Default::default(), base: Default::default(), seed }
    }

    /// What was measured, with the programs that live.
    pub fn totals(&self, key: Key, boards: &[&Board]) -> [Figures; 2] {
        boards
            .iter()
            .filter_map(|board| board.find(key))
            .fold(self.retired.clone(), |sum, class| [0, 1].map(|way: usize| sum[way].plus(&class.ways[way].read())))
    }

    /// Of each way since the trial or the newest run began.
    pub fn seen(&self, totals: &[Figures; 2], rules: &Rules) -> [Summary; 2] {
        [0, 1].map(|way: usize| Summary::of(&totals[way].since(&self.base[way]), rules))
    }

    /// A program ends: what stands on its board is kept.
    pub fn retire(&mut self, key: Key, board: &Board) {
        if let Some(class) = board.find(key) {
            self.retired = [0, 1].map(|way: usize| self.retired[way].plus(&class.ways[way].read()));
        }
    }

    /// Looks at the figures and decides what can be decided. `None` boards = nobody measures.
    pub fn step(&mut self, key: Key, boards: &[&Board], rules: &Rules, now_us: u64) {
        let Some(state) = self.state else { return };
        // A server is not started for a trial.
        if key.accepts && matches!(state.phase, Phase::Settled(_)) {
            return self.advise(key, boards, state);
        }
        let totals = self.totals(key, boards);
        let seen = self.seen(&totals, rules);
        let measured = totals.iter().any(|way| way.calls > 0) || !boards.is_empty();
        // Its trial takes as many runs as it takes.
        let rules = Rules { patience_us: if key.accepts { u64::MAX } else { rules.patience_us }, ..*rules };
        let next = decide::step(&rules, state, key.accepts, measured.then_some(&seen), now_us);
        if next.settled() != state.settled() {
            (self.placed, self.base) = ([0; 2], totals);
        }
        self.state = Some(next);
        self.advise(key, boards, next);
    }

    /// A run of a listener begins: the one before is judged.
    pub fn run(&mut self, key: Key, boards: &[&Board], rules: &Rules, now_us: u64) {
        let Some(state) = self.state else { return };
        if let Some(way) = state.settled() {
            let totals = self.totals(key, boards);
            let seen = self.seen(&totals, rules)[way as usize];
            self.state = Some(decide::rerun(rules, state, seen, now_us));
            self.base = totals;
        }
    }

    /// The way of the next connection or run.
    pub fn place(&mut self, key: Key) -> Option<Way> {
        let state = self.state?;
        let way = state.settled().unwrap_or_else(|| match self.placed {
            [stack, kernel] if stack < kernel => Way::Stack,
            [stack, kernel] if stack > kernel => Way::Kernel,
            // A program with one listener is first tried where its user has put it.
            _ if key.accepts => Way::Stack,
            // Of each two one goes each way; which is first is drawn, so that no order of the program's own is followed.
            [pairs, _] => Way::BOTH[drawn(self.seed, u64::from(state.trials) << 32 | pairs) as usize],
        });
        self.placed[way as usize] += 1;
        Some(way)
    }

    fn advise(&self, key: Key, boards: &[&Board], state: State) {
        let (interval, one_of) = if state.settled().is_some() { LATER } else { ON_TRIAL };
        for class in boards.iter().filter_map(|board| board.find(key)) {
            class.interval.store(interval, Relaxed);
            class.one_of.store(one_of, Relaxed);
        }
    }
}

/// One bit for a number, the same for the same seed (SplitMix64).
fn drawn(seed: u64, number: u64) -> u64 {
    let mut z = seed.wrapping_add(number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)) & 1
}
