//! The modules that each frame goes through, on one port of one flow group.

use crate::attached::{Attached, Counts, Hook};
use crate::budget::{Account, Budget, Now, Sampling, Standing};
use crate::clock::{self, random};
use crate::module::{Action, Instance, PASS};
use crate::run::Frame;
use std::io::IoSliceMut;
use std::ops::Range;
use std::sync::Arc;

/// How often the clock is asked to know what asking takes.
const ASKED: usize = 15;
/// All selectors: each module runs.
pub const EVERY: u32 = u32::MAX;

/// A frame of a batch that does not pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// Its place there.
    pub place: usize,
    /// What becomes of it: `Tx`, `Redirect` or `Drop`.
    pub action: Action,
    /// For `Redirect`: over which interface it goes. A module may have said any number.
    pub over: u32,
}

/// Says which selectors choose whoever has a frame.
pub type Whose = dyn Fn(&[u8]) -> u32 + Send + Sync;

/// A chain on one port of one flow group.
pub struct Chain {
    steps: Vec<Step>,
    hook: Hook,
    group: usize,
    room: bool,
    sampling: Sampling,
    clock: fn() -> Now,
    /// What it takes to ask the clock twice, ns.
    clock_ns: u64,
    /// Modules that this chain was the first to detach, and that nobody was told of.
    detached: Vec<Arc<Budget>>,
    /// For modules with selectors. `None`: no selector chooses anybody.
    whose: Option<Arc<Whose>>,
    /// See [`Chain::over`].
    over: u32,
}

/// A module of a chain.
struct Step {
    instance: Instance,
    counts: Arc<Counts>,
    /// Frames that it has let pass, and that are not in the counts yet.
    passed: u64,
    budget: Arc<Budget>,
    account: Account,
    /// See [`Attached::selector`].
    selector: Option<u32>,
}

impl Step {
    /// Does it have the frames of connections that these selectors choose?
    fn is_for(&self, selectors: u32) -> bool {
        self.selector.is_none_or(|bit| bit & selectors != 0)
    }

    /// Adds what is not in the counts yet.
    #[inline]
    fn settle(&mut self, group: usize) {
        self.counts.passed(group, std::mem::take(&mut self.passed));
        if self.instance.has_notes() {
            self.counts.add(group, 6, std::mem::take(&mut self.instance.faults));
            self.counts.add(group, 7, self.instance.take_traced());
        }
    }
}

impl Chain {
    /// Of these modules, for this flow group and the interface of this number.
    pub fn new(modules: &[Attached], hook: Hook, group: usize, interface: u32) -> Self {
        Self::with_clock(modules, hook, group, interface, now)
    }

    fn with_clock(modules: &[Attached], hook: Hook, group: usize, interface: u32, clock: fn() -> Now) -> Self {
        let begin = clock();
        let step = |one: &Attached| {
            let mut instance = Instance::new(&one.module, group as u32);
            instance.stands_at(interface, group as u32);
            let account = Account::new(&one.budget, begin);
            let (counts, budget) = (Arc::clone(&one.counts), Arc::clone(&one.budget));
            Step { instance, counts, passed: 0, budget, account, selector: one.selector }
        };
        let is_limited = modules.iter().any(|one| one.budget.is_limit());
        let twice = |_| {
            let first = clock();
            clock().thread_ns.saturating_sub(first.thread_ns)
        };
        let mut asked: [u64; ASKED] = std::array::from_fn(twice);
        asked.sort_unstable();
        Self {
            steps: modules.iter().map(step).collect(),
            hook,
            group,
            room: modules.iter().any(|one| one.module.wants_room()),
            sampling: if is_limited { Sampling::new(random()) } else { Sampling::none() },
            clock,
            clock_ns: asked[ASKED / 2],
            detached: Vec::new(),
            whose: None,
            over: 0,
        }
    }
    /// Its frames come from or go to another interface from now on.
    pub fn stands_at(&mut self, interface: u32) {
        self.steps.iter_mut().for_each(|step| step.instance.stands_at(interface, self.group as u32));
    }
    /// Is there no module?
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }
    /// Is there one module?
    #[inline]
    pub fn is_single(&self) -> bool {
        self.steps.len() == 1
    }
    /// Does a module want room around frames?
    pub fn wants_room(&self) -> bool {
        self.room
    }

    /// Does a module look at what is known of a frame?
    pub fn reads_meta(&self) -> bool {
        self.steps.iter().any(|step| step.instance.module().reads_meta())
    }

    /// Has a module a selector? Then frames are given to [`Chain::run_selected`] or [`Chain::run_selected_in_place`]. The other
    /// calls run each module, and ask nothing.
    pub fn selects(&self) -> bool {
        self.steps.iter().any(|step| step.selector.is_some())
    }
    /// Asks this whose frames are.
    pub fn ask(&mut self, whose: Arc<Whose>) {
        self.whose = Some(whose);
    }
    /// The selectors that choose whoever has a frame.
    pub fn selectors_of(&self, frame: &[u8]) -> u32 {
        match &self.whose {
            _ if !self.selects() => EVERY,
            Some(whose) => whose(frame),
            None => 0,
        }
    }
    /// Does a module run on frames of connections that these selectors choose?
    pub fn is_for(&self, selectors: u32) -> bool {
        self.steps.iter().any(|step| step.is_for(selectors))
    }

    /// Over which interface a frame goes for which the last run has said `Redirect`. A module may have said any number.
    #[inline]
    pub fn over(&self) -> u32 {
        self.over
    }

    /// Runs the modules on a frame, up to the first that does not let it pass: `Pass`, `Tx`, `Redirect` or `Drop`.
    pub fn run(&mut self, frame: &mut Frame<'_>) -> Action {
        if self.sampling.is_due() {
            return self.run_timed(EVERY, &mut |instance| instance.run(frame) as u32);
        }
        for step in &mut self.steps {
            let action = step.instance.run(frame);
            if action != Action::Pass {
                return other(step, self.group, self.hook, action as u32, &mut self.over);
            }
            step.passed += 1;
        }
        Action::Pass
    }

    /// The same on the bytes of a frame in its place. No module of the chain may want room.
    #[inline]
    pub fn run_in_place(&mut self, bytes: &mut [u8]) -> Action {
        if self.sampling.is_due() {
            return self.run_timed_in_place(bytes);
        }
        // One module is the usual case, and a loop would cost it more than it does itself.
        let [step] = &mut self.steps[..] else { return self.run_all_in_place(bytes) };
        // It is counted before, so that nothing of it need be kept meanwhile.
        step.passed += 1;
        match step.instance.run_in_place(bytes) {
            PASS => Action::Pass,
            result => self.counted_other(result),
        }
    }

    /// Takes back that the only module has let a frame pass.
    #[cold]
    #[inline(never)]
    fn counted_other(&mut self, result: u32) -> Action {
        let [step] = &mut self.steps[..] else { return Action::Drop };
        step.passed -= 1;
        other(step, self.group, self.hook, result, &mut self.over)
    }

    /// The same on many frames, one module after the other. Adds those that do not pass, in order, by their places. The first
    /// frame has the place `first`. A timed run is one of a single frame.
    #[inline]
    pub fn run_batch(&mut self, first: usize, frames: &mut [IoSliceMut<'_>], left: &mut Vec<Left>) {
        let (Self { steps, sampling, group, hook, .. }, count) = (&mut *self, frames.len());
        // One module that lets all frames pass is the usual case.
        if let [step] = &mut steps[..]
            && sampling.skips(count)
        {
            let (passed, result) = step.instance.run_batch(frames);
            step.passed += passed as u64;
            if passed < count {
                left.push(left_by(step, *group, *hook, first + passed, result));
                self.run_untimed(first, passed + 1..count, frames, left);
            }
            return;
        }
        self.run_timed_and_others(first, frames, left);
    }

    /// [`Chain::run_batch`] where a run may be timed.
    #[inline(never)]
    fn run_timed_and_others(&mut self, first: usize, frames: &mut [IoSliceMut<'_>], left: &mut Vec<Left>) {
        let mut from = 0;
        while from < frames.len() {
            let end = from + self.sampling.skip(frames.len() - from);
            self.run_untimed(first, from..end, frames, left);
            if let Some(frame) = frames.get_mut(end) {
                match self.run_in_place(frame) {
                    Action::Pass => {}
                    action => left.push(Left { place: first + end, action, over: self.over }),
                }
            }
            from = end + 1;
        }
    }

    /// [`Chain::run_batch`] on frames of the batch that are not timed.
    #[inline(never)]
    fn run_untimed(&mut self, first: usize, of: Range<usize>, frames: &mut [IoSliceMut<'_>], left: &mut Vec<Left>) {
        let from = first + of.start;
        run_steps(&mut self.steps, self.group, self.hook, &mut frames[of], from, left);
    }

    #[inline(never)]
    fn run_all_in_place(&mut self, bytes: &mut [u8]) -> Action {
        for step in &mut self.steps {
            let result = step.instance.run_in_place(bytes);
            if result != PASS {
                return other(step, self.group, self.hook, result, &mut self.over);
            }
            step.passed += 1;
        }
        Action::Pass
    }

    /// [`Chain::run_in_place`], timed.
    #[cold]
    #[inline(never)]
    fn run_timed_in_place(&mut self, bytes: &mut [u8]) -> Action {
        self.run_timed(EVERY, &mut |instance| instance.run_in_place(bytes))
    }

    /// [`Chain::run`] of the modules that have frames of connections which these selectors choose.
    pub fn run_selected(&mut self, frame: &mut Frame<'_>, selectors: u32) -> Action {
        self.run_those(selectors, &mut |instance| instance.run(frame) as u32)
    }

    /// [`Chain::run_in_place`] of the modules that have this frame.
    pub fn run_selected_in_place(&mut self, bytes: &mut [u8]) -> Action {
        self.run_those(self.selectors_of(bytes), &mut |instance| instance.run_in_place(bytes))
    }

    fn run_those(&mut self, selectors: u32, run: &mut dyn FnMut(&mut Instance) -> u32) -> Action {
        // A frame that no module has is no run, so none is timed for it.
        if self.is_for(selectors) && self.sampling.is_due() {
            return self.run_timed(selectors, run);
        }
        for step in self.steps.iter_mut().filter(|step| step.is_for(selectors)) {
            let result = run(&mut step.instance);
            if result != PASS {
                return other(step, self.group, self.hook, result, &mut self.over);
            }
            step.passed += 1;
        }
        Action::Pass
    }

    /// Runs the modules on a frame and charges each for its time. One that has taken too much leaves the chain.
    #[cold]
    #[inline(never)]
    fn run_timed(&mut self, selectors: u32, run: &mut dyn FnMut(&mut Instance) -> u32) -> Action {
        let (group, hook, runs) = (self.group, self.hook, self.sampling.gap());
        let (mut action, mut all) = (Action::Pass, false);
        for step in &mut self.steps {
            if !step.is_for(selectors) {
                // A frame of another costs it nothing. Whether it is suspected still, time decides.
                let standing = step.account.charge(&step.budget, group, 0, 1, (self.clock)());
                all |= standing != Standing::Good;
                continue;
            }
            let begin = (self.clock)();
            let result = run(&mut step.instance);
            let end = (self.clock)();
            let run_ns = end.thread_ns.saturating_sub(begin.thread_ns + self.clock_ns);
            let standing = step.account.charge(&step.budget, group, run_ns, runs, end);
            all |= standing != Standing::Good;
            if standing == Standing::Detached {
                self.detached.push(Arc::clone(&step.budget));
            }
            if result != PASS {
                action = other(step, group, hook, result, &mut self.over);
                break;
            }
            step.passed += 1;
        }
        self.sampling.choose(all);
        self.steps.retain_mut(|step| {
            let stays = step.budget.overrun().is_none();
            if !stays {
                step.settle(group);
            }
            stays
        });
        action
    }

    /// Takes back that a frame went on, of a connection that these selectors choose: it could not be sent.
    pub fn failed(&self, selectors: u32) {
        if let Some(step) = self.steps.iter().rfind(|step| step.is_for(selectors)) {
            step.counts.add(self.group, 5, 1);
        }
    }

    /// Adds what is not in the counts yet. Called once for each batch of frames. Returns a module that was detached since.
    #[inline]
    pub fn settle(&mut self) -> Option<Arc<Budget>> {
        self.steps.iter_mut().for_each(|step| step.settle(self.group));
        self.detached.pop()
    }
}

/// Runs these modules on frames of a batch, the first of which has the place `from`. Those behind have what the first one lets
/// pass.
fn run_steps(
    steps: &mut [Step],
    group: usize,
    hook: Hook,
    frames: &mut [IoSliceMut<'_>],
    from: usize,
    left: &mut Vec<Left>,
) {
    let Some((step, behind)) = steps.split_first_mut() else { return };
    let mut at = 0;
    while at < frames.len() {
        let (passed, result) = step.instance.run_batch(&mut frames[at..]);
        let ended = at + passed;
        step.passed += passed as u64;
        if !behind.is_empty() {
            run_steps(behind, group, hook, &mut frames[at..ended], from + at, left);
        }
        if ended < frames.len() {
            left.push(left_by(step, group, hook, from + ended, result));
        }
        at = ended + 1;
    }
}

impl Drop for Chain {
    fn drop(&mut self) {
        self.settle();
    }
}

fn now() -> Now {
    Now { thread_ns: clock::clock(libc::CLOCK_THREAD_CPUTIME_ID), wall_ns: clock::clock(libc::CLOCK_MONOTONIC) }
}

/// A frame of a batch that this step did not let pass.
#[cold]
#[inline(never)]
fn left_by(step: &mut Step, group: usize, hook: Hook, place: usize, result: u32) -> Left {
    let mut over = 0;
    let action = other(step, group, hook, result, &mut over);
    Left { place, action, over }
}

/// Counts a frame that did not pass, and says over which interface it goes, if it does. Frames that are sent already go nowhere else, and
/// count as aborted.
#[cold]
#[inline(never)]
fn other(step: &mut Step, group: usize, hook: Hook, result: u32, over: &mut u32) -> Action {
    let action = Action::of(result.into());
    let (at, done) = match action {
        Action::Drop => (2, true),
        Action::Tx => (3, hook == Hook::Ingress),
        Action::Redirect => (4, hook == Hook::Ingress),
        _ => (5, true),
    };
    step.settle(group);
    step.counts.add(group, 0, 1);
    step.counts.add(group, at, 1);
    if !done {
        step.counts.add(group, 5, 1);
    }
    let goes = done && matches!(action, Action::Tx | Action::Redirect);
    *over = if goes && action == Action::Redirect { step.instance.over() } else { 0 };
    if goes { action } else { Action::Drop }
}

#[cfg(test)]
mod tests;
