//! Modules that are attached to a hook: the chain that each frame goes through, and what became of the frames.

use crate::module::{Instance, Module, PASS, Verdict};
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
    steps: Vec<Step>,
    hook: Hook,
    group: usize,
    room: bool,
}

/// A module of a chain.
struct Step {
    instance: Instance,
    counts: Arc<Counts>,
    /// Frames that it has let pass, and that are not in the counts yet.
    passed: u64,
}

impl Step {
    /// Adds what is not in the counts yet.
    fn settle(&mut self, group: usize) {
        let passed = std::mem::take(&mut self.passed);
        self.counts.add(group, 0, passed);
        self.counts.add(group, 1, passed);
        self.counts.add(group, 6, std::mem::take(&mut self.instance.faults));
        self.counts.add(group, 7, self.instance.take_traced());
    }
}

impl Chain {
    /// Of these modules, for this flow group and the port of this number.
    pub fn new(modules: &[Attached], hook: Hook, group: usize, port: u32) -> Self {
        let step = |one: &Attached| {
            let mut instance = Instance::new(&one.module, group as u32);
            instance.stands_at(port, group as u32);
            Step { instance, counts: Arc::clone(&one.counts), passed: 0 }
        };
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
    pub fn run(&mut self, frame: &mut Frame<'_>) -> Verdict {
        for step in &mut self.steps {
            let verdict = step.instance.run(frame);
            if verdict != Verdict::Pass {
                return other(step, self.group, self.hook, verdict as u32);
            }
            step.passed += 1;
        }
        Verdict::Pass
    }

    /// The same on the bytes of a frame in its place. No module of the chain may want room.
    #[inline]
    pub fn run_in_place(&mut self, bytes: &mut [u8]) -> Verdict {
        // One module is the usual case, and a loop would cost it more than it does itself.
        let [step] = &mut self.steps[..] else { return self.run_all_in_place(bytes) };
        let result = step.instance.run_in_place(bytes);
        if result != PASS {
            return other(step, self.group, self.hook, result);
        }
        step.passed += 1;
        Verdict::Pass
    }

    #[inline(never)]
    fn run_all_in_place(&mut self, bytes: &mut [u8]) -> Verdict {
        for step in &mut self.steps {
            let result = step.instance.run_in_place(bytes);
            if result != PASS {
                return other(step, self.group, self.hook, result);
            }
            step.passed += 1;
        }
        Verdict::Pass
    }

    /// Takes back that a frame went on: it could not be sent.
    pub fn failed(&self) {
        if let Some(step) = self.steps.last() {
            step.counts.add(self.group, 5, 1);
        }
    }

    /// Adds what is not in the counts yet. Called once for each batch of frames.
    pub fn settle(&mut self) {
        self.steps.iter_mut().for_each(|step| step.settle(self.group));
    }
}

impl Drop for Chain {
    fn drop(&mut self) {
        self.settle();
    }
}

/// A frame that does not pass. What cannot be done with it counts as aborted, too: nothing is redirected here, and what is
/// sent already goes back nowhere.
#[cold]
#[inline(never)]
fn other(step: &mut Step, group: usize, hook: Hook, result: u32) -> Verdict {
    let verdict = Verdict::of(result.into());
    let (at, done) = match verdict {
        Verdict::Drop => (2, true),
        Verdict::Tx => (3, hook == Hook::Ingress),
        Verdict::Redirect => (4, false),
        _ => (5, true),
    };
    step.settle(group);
    step.counts.add(group, 0, 1);
    step.counts.add(group, at, 1);
    if !done {
        step.counts.add(group, 5, 1);
    }
    if verdict == Verdict::Tx && done { Verdict::Tx } else { Verdict::Drop }
}
