//! The modules that each frame goes through, on one port of one flow group.

use crate::attached::{Attached, Counts, Hook};
use crate::budget::{Clock, Meter, Tenant};
use crate::module::{Action, Instance, PASS};
use crate::run::Frame;
use std::io::IoSliceMut;
use std::ops::Range;
use std::sync::Arc;

/// Frames of a batch between two looks at the clock, if a module has a limit. Even a module that knows this takes no more at once
/// than so many of its longest runs.
const PART: usize = 8;
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
    /// Has a module a limit? Then each of its runs is timed.
    limited: bool,
    meter: Meter,
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
    tenant: Arc<Tenant>,
    /// See [`Attached::selector`].
    selector: Option<u32>,
}

impl Step {
    /// Does it have the frames of connections that these selectors choose?
    fn is_for(&self, selectors: u32) -> bool {
        self.selector.is_none_or(|bit| bit & selectors != 0)
    }

    /// Runs it, and charges its tenant if that has a limit. `None`: it is detached.
    #[inline]
    fn run_timed<T>(&mut self, meter: &Meter, run: impl FnOnce(&mut Instance) -> T) -> Option<T> {
        if !self.tenant.has_limit() {
            return Some(run(&mut self.instance));
        }
        if self.tenant.overrun().is_some() {
            return None;
        }
        let begin_ns = meter.begin();
        let result = run(&mut self.instance);
        meter.charge(&self.tenant, begin_ns);
        Some(result)
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
        Self::with_meter(modules, hook, group, interface, Meter::new(Clock::KERNEL, group, true))
    }

    /// For the frames that are made of direct connections, with this row of its maps and counts. Nobody waits for its turns.
    pub fn on_direct(module: &Attached, row: usize, interface: u32) -> Self {
        let meter = Meter::new(Clock::KERNEL, row, false);
        Self::with_meter(std::slice::from_ref(module), Hook::Ingress, row, interface, meter)
    }

    fn with_meter(modules: &[Attached], hook: Hook, group: usize, interface: u32, meter: Meter) -> Self {
        let step = |one: &Attached| {
            let mut instance = Instance::new(&one.module, group as u32);
            instance.stands_at(interface, group as u32);
            let (counts, tenant) = (Arc::clone(&one.counts), Arc::clone(&one.tenant));
            Step { instance, counts, passed: 0, tenant, selector: one.selector }
        };
        Self {
            steps: modules.iter().map(step).collect(),
            hook,
            group,
            room: modules.iter().any(|one| one.module.wants_room()),
            limited: modules.iter().any(|one| one.tenant.has_limit()),
            meter,
            whose: None,
            over: 0,
        }
    }

    /// What times its runs.
    pub fn meter(&self) -> &Meter {
        &self.meter
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
        if self.limited {
            return self.run_limited(EVERY, &mut |instance| instance.run(frame) as u32);
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
        if self.limited {
            return self.run_limited_in_place(bytes);
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
    /// frame has the place `first`.
    #[inline]
    pub fn run_batch(&mut self, first: usize, frames: &mut [IoSliceMut<'_>], left: &mut Vec<Left>) {
        let (Self { steps, limited, group, hook, .. }, count) = (&mut *self, frames.len());
        // One module without a limit that lets all frames pass is the usual case.
        if let [step] = &mut steps[..]
            && !*limited
        {
            let (passed, result) = step.instance.run_batch(frames);
            step.passed += passed as u64;
            if passed < count {
                left.push(left_by(step, *group, *hook, first + passed, result));
                self.run_some(first, passed + 1..count, frames, left);
            }
            return;
        }
        self.run_parts(first, frames, left);
    }

    /// [`Chain::run_batch`] of several modules, or one that has a limit.
    #[inline(never)]
    fn run_parts(&mut self, first: usize, frames: &mut [IoSliceMut<'_>], left: &mut Vec<Left>) {
        let mut from = 0;
        while self.limited && from < frames.len() {
            let end = frames.len().min(from + PART);
            let Self { steps, meter, group, hook, .. } = self;
            run_steps_timed(steps, (*group, *hook, meter), &mut frames[from..end], first + from, left);
            self.leave_detached();
            from = end;
        }
        self.run_some(first, from..frames.len(), frames, left);
    }

    /// [`Chain::run_batch`] on some frames of the batch, of modules without limits.
    #[inline(never)]
    fn run_some(&mut self, first: usize, of: Range<usize>, frames: &mut [IoSliceMut<'_>], left: &mut Vec<Left>) {
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

    /// [`Chain::run_in_place`] where a module has a limit.
    #[cold]
    #[inline(never)]
    fn run_limited_in_place(&mut self, bytes: &mut [u8]) -> Action {
        self.run_limited(EVERY, &mut |instance| instance.run_in_place(bytes))
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
        if self.limited {
            return self.run_limited(selectors, run);
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

    /// Runs the modules on a frame where one has a limit.
    #[cold]
    #[inline(never)]
    fn run_limited(&mut self, selectors: u32, run: &mut dyn FnMut(&mut Instance) -> u32) -> Action {
        let Self { steps, group, hook, meter, .. } = self;
        let mut action = Action::Pass;
        for step in steps.iter_mut().filter(|step| step.is_for(selectors)) {
            let Some(result) = step.run_timed(meter, &mut *run) else { continue };
            if result != PASS {
                action = other(step, *group, *hook, result, &mut self.over);
                break;
            }
            step.passed += 1;
        }
        self.leave_detached();
        action
    }

    /// Modules of tenants that have taken too much leave the chain. Other chains may have found that they have.
    fn leave_detached(&mut self) {
        let is_detached = |step: &Step| step.tenant.overrun().is_some();
        if self.steps.iter().any(is_detached) {
            self.steps.iter_mut().for_each(|step| step.settle(self.group));
            self.steps.retain(|step| !is_detached(step));
            self.limited = self.steps.iter().any(|step| step.tenant.has_limit());
        }
    }

    /// Takes back that a frame went on, of a connection that these selectors choose: it could not be sent.
    pub fn failed(&self, selectors: u32) {
        if let Some(step) = self.steps.iter().rfind(|step| step.is_for(selectors)) {
            step.counts.add(self.group, 5, 1);
        }
    }

    /// Adds what is not in the counts yet. Called once for each batch of frames.
    #[inline]
    pub fn settle(&mut self) {
        self.steps.iter_mut().for_each(|step| step.settle(self.group));
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

/// [`run_steps`] where a module has a limit. One that is detached meanwhile lets all that follows pass.
fn run_steps_timed(
    steps: &mut [Step],
    (group, hook, meter): (usize, Hook, &Meter),
    frames: &mut [IoSliceMut<'_>],
    from: usize,
    left: &mut Vec<Left>,
) {
    let Some((step, behind)) = steps.split_first_mut() else { return };
    let mut at = 0;
    while at < frames.len() {
        let ran = step.run_timed(meter, |instance| instance.run_batch(&mut frames[at..]));
        let ended = ran.map_or(frames.len(), |(passed, _)| at + passed);
        step.passed += ran.map_or(0, |(passed, _)| passed as u64);
        if !behind.is_empty() {
            run_steps_timed(behind, (group, hook, meter), &mut frames[at..ended], from + at, left);
        }
        if let Some((_, result)) = ran.filter(|_| ended < frames.len()) {
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
