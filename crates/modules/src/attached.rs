//! Modules that are attached to a hook: the chain that each frame goes through, and what became of the frames.

use crate::module::{Instance, Module, Verdict};
use crate::run::Frame;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where modules stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// Frames that were received, before the stack has them.
    Ingress,
    /// Frames that the stack sends.
    Egress,
}

/// Names of the counts, in their order.
pub const COUNTS: [&str; 8] = ["runs", "pass", "drop", "tx", "redirect", "aborted", "faults", "traced"];

/// What became of a module's frames, by flow group. Each row has one writer at a time.
#[derive(Debug)]
pub struct Counts(Box<[Row]>);

/// A row has its cache lines for itself.
#[repr(align(64))]
#[derive(Debug, Default)]
struct Row([AtomicU64; COUNTS.len()]);

impl Counts {
    /// Zeros, for this many flow groups.
    pub fn new(groups: usize) -> Arc<Self> {
        Arc::new(Self((0..groups).map(|_| Row::default()).collect()))
    }
    /// The sums, in the order of [`COUNTS`].
    pub fn sums(&self) -> [u64; COUNTS.len()] {
        std::array::from_fn(|at| self.0.iter().map(|row| row.0[at].load(Ordering::Relaxed)).sum())
    }
    fn add(&self, group: usize, at: usize, by: u64) {
        if let Some(row) = self.0.get(group) {
            row.0[at].store(row.0[at].load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
        }
    }
}

/// A module on a hook.
#[derive(Clone, Debug)]
pub struct Attached {
    /// The module.
    pub module: Arc<Module>,
    /// What became of its frames.
    pub counts: Arc<Counts>,
}

/// All modules of both hooks, in the order in which they run.
#[derive(Clone, Debug, Default)]
pub struct Chains {
    /// Frames that were received.
    pub ingress: Vec<Attached>,
    /// Frames that are sent.
    pub egress: Vec<Attached>,
}

impl Chains {
    /// Is there no module?
    pub fn is_empty(&self) -> bool {
        self.ingress.is_empty() && self.egress.is_empty()
    }
}

/// A chain on one port of one flow group.
pub struct Chain {
    steps: Vec<(Instance, Arc<Counts>)>,
    hook: Hook,
    group: usize,
    room: bool,
}

impl Chain {
    /// Of these modules, for this flow group.
    pub fn new(modules: &[Attached], hook: Hook, group: usize) -> Self {
        let step = |one: &Attached| (Instance::new(&one.module, group as u32), Arc::clone(&one.counts));
        let room = modules.iter().any(|one| one.module.wants_room());
        Self { steps: modules.iter().map(step).collect(), hook, group, room }
    }
    /// Is there no module?
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }
    /// Does a module want room around frames?
    pub fn wants_room(&self) -> bool {
        self.room
    }

    /// Runs the modules on a frame, up to the first that does not let it pass: `Pass`, `Tx` or `Drop`.
    #[inline]
    pub fn run(&mut self, frame: &mut Frame<'_>) -> Verdict {
        for (instance, counts) in &mut self.steps {
            let verdict = instance.run(frame);
            counts.add(self.group, 0, 1);
            if verdict == Verdict::Pass {
                counts.add(self.group, 1, 1);
                continue;
            }
            return other(instance, counts, self.group, self.hook, verdict);
        }
        Verdict::Pass
    }

    /// Takes back that a frame went on: it could not be sent.
    pub fn failed(&self) {
        if let Some((_, counts)) = self.steps.last() {
            counts.add(self.group, 5, 1);
        }
    }

    /// Adds what the instances have counted themselves.
    pub fn settle(&mut self) {
        for (instance, counts) in &mut self.steps {
            counts.add(self.group, 6, std::mem::take(&mut instance.faults));
            counts.add(self.group, 7, instance.take_traced());
        }
    }
}

/// A frame that does not pass. What cannot be done with it counts as aborted, too: nothing is redirected here, and what is
/// sent already goes back nowhere.
#[cold]
fn other(instance: &mut Instance, counts: &Counts, group: usize, hook: Hook, verdict: Verdict) -> Verdict {
    let (at, done) = match verdict {
        Verdict::Drop => (2, true),
        Verdict::Tx => (3, hook == Hook::Ingress),
        Verdict::Redirect => (4, false),
        _ => (5, true),
    };
    counts.add(group, at, 1);
    if !done {
        counts.add(group, 5, 1);
    }
    counts.add(group, 6, std::mem::take(&mut instance.faults));
    if verdict == Verdict::Tx && done { Verdict::Tx } else { Verdict::Drop }
}
