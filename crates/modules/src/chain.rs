//! The modules that each frame goes through, on one port of one flow group.

use crate::attached::{Attached, Counts, Hook};
use crate::budget::{Account, Budget, Now, Sampling, Standing};
use crate::clock::{self, random};
use crate::module::{Action, Instance, PASS};
use crate::run::Frame;
use std::sync::Arc;

/// How often the clock is asked to know what asking takes.
const ASKED: usize = 15;
/// All selectors: each module runs.
pub const EVERY: u32 = u32::MAX;

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
        Self::with_clock(modules, hook, group, port, now)
    }

    fn with_clock(modules: &[Attached], hook: Hook, group: usize, port: u32, clock: fn() -> Now) -> Self {
        let begin = clock();
        let step = |one: &Attached| {
            let mut instance = Instance::new(&one.module, group as u32);
            instance.stands_at(port, group as u32);
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
        }
    }
    /// Is there no module?
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }
    /// Does a module want room around frames?
    pub fn wants_room(&self) -> bool {
        self.room
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

    /// Runs the modules on a frame, up to the first that does not let it pass: `Pass`, `Tx` or `Drop`.
    pub fn run(&mut self, frame: &mut Frame<'_>) -> Action {
        if self.sampling.is_due() {
            return self.run_timed(EVERY, &mut |instance| instance.run(frame) as u32);
        }
        for step in &mut self.steps {
            let action = step.instance.run(frame);
            if action != Action::Pass {
                return other(step, self.group, self.hook, action as u32);
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
        let result = step.instance.run_in_place(bytes);
        if result != PASS {
            return other(step, self.group, self.hook, result);
        }
        step.passed += 1;
        Action::Pass
    }

    #[inline(never)]
    fn run_all_in_place(&mut self, bytes: &mut [u8]) -> Action {
        for step in &mut self.steps {
            let result = step.instance.run_in_place(bytes);
            if result != PASS {
                return other(step, self.group, self.hook, result);
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
                return other(step, self.group, self.hook, result);
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
                action = other(step, group, hook, result);
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

impl Drop for Chain {
    fn drop(&mut self) {
        self.settle();
    }
}

fn now() -> Now {
    Now { thread_ns: clock::clock(libc::CLOCK_THREAD_CPUTIME_ID), wall_ns: clock::clock(libc::CLOCK_MONOTONIC) }
}

/// Counts a frame that did not pass. Redirected and already sent frames count as aborted.
#[cold]
#[inline(never)]
fn other(step: &mut Step, group: usize, hook: Hook, result: u32) -> Action {
    let action = Action::of(result.into());
    let (at, done) = match action {
        Action::Drop => (2, true),
        Action::Tx => (3, hook == Hook::Ingress),
        Action::Redirect => (4, false),
        _ => (5, true),
    };
    step.settle(group);
    step.counts.add(group, 0, 1);
    step.counts.add(group, at, 1);
    if !done {
        step.counts.add(group, 5, 1);
    }
    if action == Action::Tx && done { Action::Tx } else { Action::Drop }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::module::Module;
    use crate::object::Object;
    use std::cell::Cell;

    thread_local! { static TIME: Cell<Now> = const { Cell::new(Now { thread_ns: 0, wall_ns: 0 }) } }

    /// A clock that goes on by 250 µs whenever somebody asks, so that each timed run takes that. Beside it, one that stands
    /// still measures what it takes to ask.
    fn slow() -> Now {
        let now = TIME.get();
        TIME.set(Now { thread_ns: now.thread_ns + 250_000, wall_ns: now.wall_ns + 250_000 });
        now
    }

    fn still() -> Now {
        TIME.get()
    }

    fn attached(name: &str, percent: u8) -> Attached {
        let module = Arc::new(Module::interpreted(&Object::null(), 0, 1).unwrap());
        let budget = Arc::new(Budget::new(name, percent));
        Attached { module, counts: Counts::new(1), budget, selector: None, direct: None }
    }

    #[test]
    fn a_module_over_its_budget_leaves_the_chain_and_is_told_once() {
        let modules = [attached("greedy", 10), attached("patient", 100)];
        let mut chain = Chain::with_clock(&modules, Hook::Ingress, 0, 0, still);
        chain.clock = slow;
        let mut told = Vec::new();
        for _ in 0..100_000 {
            assert_eq!(chain.run_in_place(&mut [0; 64]), Action::Pass);
            told.extend(chain.settle().map(|budget| budget.module().to_owned()));
        }
        assert_eq!(told, ["greedy"]);
        let runs = |of: &Attached| of.counts.sums()[0];
        // In each millisecond it takes 250 µs and is given 100. It has saved 10 ms, so it lasts for some 70 runs.
        assert!(runs(&modules[0]) <= 200, "{}", runs(&modules[0]));
        assert_eq!(runs(&modules[1]), 100_000);
        let overrun = modules[0].budget.overrun().unwrap();
        assert_eq!((overrun.flow_group, overrun.run_ns), (0, 250_000));
        assert_eq!(modules[1].budget.overrun(), None);
    }

    #[test]
    fn what_one_flow_group_has_found_holds_on_all_of_them() {
        let modules = [attached("greedy", 1)];
        let mut chains: Vec<_> =
            (0..2).map(|group| Chain::with_clock(&modules, Hook::Egress, group, 0, still)).collect();
        chains[0].clock = slow;
        (0..1000).for_each(|_| assert_eq!(chains[0].run_in_place(&mut [0; 64]), Action::Pass));
        assert!(chains[0].is_empty() && chains[0].settle().is_some());
        // Its time costs nothing here, but the next timed run finds that it is to go.
        (0..1000).for_each(|_| assert_eq!(chains[1].run_in_place(&mut [0; 64]), Action::Pass));
        assert!(chains[1].is_empty() && chains[1].settle().is_none());
    }

    #[test]
    fn asking_the_clock_is_charged_to_nobody() {
        let modules = [attached("cheap", 1)];
        let mut chain = Chain::with_clock(&modules, Hook::Ingress, 0, 0, slow);
        (0..10_000).for_each(|_| assert_eq!(chain.run_in_place(&mut [0; 64]), Action::Pass));
        assert_eq!(modules[0].budget.overrun(), None);
    }

    #[test]
    fn a_module_has_the_frames_of_connections_that_its_selector_chooses() {
        // The selectors stand in the frame.
        let whose: Arc<Whose> = Arc::new(|frame| u32::from_ne_bytes([frame[0], frame[1], frame[2], frame[3]]));
        let frame = |bits: u32| [bits.to_ne_bytes(), [0; 4]].concat();
        let of = |name, bit| Attached { selector: Some(bit), ..attached(name, 100) };
        let modules = [of("first", 1), attached("all", 100), of("second", 1 << 31)];
        for hook in [Hook::Ingress, Hook::Egress] {
            let mut chain = Chain::new(&modules, hook, 0, 0);
            assert!(chain.selects() && chain.is_for(0));
            assert_eq!(chain.selectors_of(&frame(1)), 0, "nobody is asked yet");
            chain.ask(Arc::clone(&whose));
            for bits in [0, 1, 1, 1 << 31, 1 | 1 << 31, 2] {
                assert_eq!(chain.run_selected_in_place(&mut frame(bits)), Action::Pass);
                assert_eq!(chain.run_selected(&mut Frame::whole(&mut [0; 64]), bits), Action::Pass);
            }
        }
        assert_eq!(modules.each_ref().map(|one| one.counts.sums()[0]), [12, 24, 8]);
        let alone = Chain::new(&modules[2..], Hook::Ingress, 0, 0);
        assert!(alone.is_for(1 << 31) && !alone.is_for(1) && alone.is_for(EVERY));
        // What was not sent is counted where the frame was last.
        let chain = Chain::new(&modules, Hook::Egress, 0, 0);
        [1, 0, 1 << 31, EVERY].into_iter().for_each(|bits| chain.failed(bits));
        assert_eq!(modules.each_ref().map(|one| one.counts.sums()[5]), [0, 2, 2]);
        assert!(!Chain::new(&modules[1..2], Hook::Ingress, 0, 0).selects());
    }

    #[test]
    fn frames_of_others_take_no_time_of_a_module_and_do_not_save_it() {
        let modules = [Attached { selector: Some(1), ..attached("greedy", 10) }, attached("patient", 100)];
        let mut chain = Chain::with_clock(&modules, Hook::Ingress, 0, 0, still);
        chain.clock = slow;
        chain.ask(Arc::new(|frame| frame[0].into()));
        (0..100_000).for_each(|_| assert_eq!(chain.run_selected_in_place(&mut [2; 64]), Action::Pass));
        assert_eq!((modules[0].counts.sums()[0], modules[0].budget.overrun()), (0, None));
        (0..100_000).for_each(|at| assert_eq!(chain.run_selected_in_place(&mut [(at % 2) as u8; 64]), Action::Pass));
        assert!(modules[0].budget.overrun().is_some());
        assert!(modules[0].counts.sums()[0] < 1000, "{}", modules[0].counts.sums()[0]);
    }
}
