//! Modules that also have direct connections. Frames are made of what has passed, as for a capture, and modules only watch: the
//! bytes are with the other program by then.
//!
//! A thread of its own runs the modules, so that no connection waits for one. It lives while there is such a module. The slow
//! path says when a connection begins and ends, and leaves the frames of that to the thread, too.

use crate::filter::end_turn;
use crate::room::{BUFFER, with_room};
use std::io;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;
use towpath_capture::direct::{Place, Sink, Watch};
use towpath_capture::record::DIRECT;
use towpath_modules::{Attached, Chain, Chains, Tenants, TowpathFrame};
use towpath_runtime::capture::LOOK_MS;

/// Most bytes of frames that wait for the modules.
const MOST_BYTES: usize = 32 << 20;
/// What each step counts beside its bytes. So no more than 16,384 wait, and a change of modules does not wait long behind them.
const STEP_BYTES: usize = 2048;
/// The room that is needed for a look: that of a step with the largest frame.
const LARGEST: usize = (1 << 16) + STEP_BYTES;

/// Every change of a watch is one step, so a thread that panicked with the lock has left it consistent.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A module that has direct connections. Each has a chain of its own: what one says of a frame hides it from no other.
pub struct OnDirect {
    chain: Chain,
    limited: Tenants,
    missed: Arc<AtomicU64>,
    about: TowpathFrame,
}

impl OnDirect {
    /// `row` is that of direct connections in its maps and counts.
    pub fn new(module: &Attached, row: usize) -> Self {
        let chain = Chain::on_direct(module, row, DIRECT.into());
        let limited = Tenants::of(std::iter::once(&module.tenant));
        let about = TowpathFrame { port: DIRECT.into(), flow_group: row as u32, ..TowpathFrame::default() };
        Self { chain, limited, missed: module.direct.clone().unwrap_or_default(), about }
    }

    /// Runs it on a copy of a frame. What it says is counted, and what it writes goes nowhere.
    fn run(&mut self, buffer: &mut [u8], frame: &[u8], selectors: u32) {
        if self.chain.is_for(selectors) {
            self.chain.run_selected(&mut with_room(buffer, frame, self.about, self.about.port), selectors);
        }
    }

    fn missed(&self, frames: u64, selectors: u32) {
        if self.chain.is_for(selectors) {
            self.missed.fetch_add(frames, Ordering::Relaxed);
        }
    }
}

/// Work for the thread. It does all in this order, so each frame meets the modules that were there when it was made.
enum Step {
    /// A frame, and the selectors that choose its connection.
    Frame(u32, Box<[u8]>),
    /// So many frames are lost.
    Lost(u32, u64),
    /// These modules have all frames from now on; without any the thread ends. Then the sender is dropped.
    Modules(Vec<OnDirect>, mpsc::Sender<()>),
}

/// What waits for the thread.
#[derive(Default)]
pub struct Queue {
    steps: Vec<Step>,
    bytes: usize,
}

impl Queue {
    fn push(&mut self, step: Step, bytes: usize) {
        self.bytes += bytes + STEP_BYTES;
        self.steps.push(step);
    }
}

impl Sink for Queue {
    fn frame(&mut self, selectors: u32, _: u64, bytes: &[u8]) {
        if self.bytes + bytes.len() > MOST_BYTES {
            return self.lost(selectors, 1, bytes);
        }
        self.push(Step::Frame(selectors, bytes.into()), bytes.len());
    }
    fn lost(&mut self, selectors: u32, frames: u64, _: &[u8]) {
        let is_full = self.bytes > MOST_BYTES / 2;
        match self.steps.last_mut() {
            // Without room nobody keeps apart whose they were: rather too many are counted than too few.
            Some(Step::Lost(whose, count)) if *whose == selectors || is_full => {
                *whose |= selectors;
                *count += frames;
            }
            _ => self.push(Step::Lost(selectors, frames), 0),
        }
    }
    fn has_room(&self) -> bool {
        self.bytes + LARGEST <= MOST_BYTES
    }
}

/// The direct connections that modules have, and the frames that wait.
pub struct DirectFrames {
    watch: Mutex<Watch<Queue>>,
    /// There is a first connection, or there are other modules.
    came: Condvar,
}

impl Default for DirectFrames {
    fn default() -> Self {
        Self { watch: Mutex::new(Watch::new(Queue::default())), came: Condvar::new() }
    }
}

impl DirectFrames {
    /// The connections.
    pub fn watch(&self) -> MutexGuard<'_, Watch<Queue>> {
        lock(&self.watch)
    }

    /// A connection begins.
    pub fn opens(&self, place: &Place<'_>, ends: [SocketAddr; 2]) {
        let mut watch = lock(&self.watch);
        if watch.is_empty() {
            self.came.notify_one();
        }
        watch.opens(place, ends);
    }

    /// These modules have the frames that are made from now on. `done` is dropped when no others run.
    pub fn change(&self, modules: Vec<OnDirect>, done: &mpsc::Sender<()>) -> MutexGuard<'_, Watch<Queue>> {
        let mut watch = lock(&self.watch);
        if modules.is_empty() {
            watch.leave_all();
        }
        watch.sink().push(Step::Modules(modules, done.clone()), 0);
        self.came.notify_one();
        watch
    }

    /// Looks what has passed, and takes the steps that wait. Before, it rests, so that whoever opens many connections shares the
    /// lock with one look each millisecond. True: so much passes that it should not rest.
    fn next(&self, steps: &mut Vec<Step>, much: bool) -> bool {
        let mut watch = lock(&self.watch);
        if !much {
            watch = if watch.is_empty() && watch.sink().steps.is_empty() {
                self.came.wait(watch).unwrap_or_else(PoisonError::into_inner)
            } else {
                let rest = Duration::from_millis(LOOK_MS);
                self.came.wait_timeout(watch, rest).unwrap_or_else(PoisonError::into_inner).0
            };
        }
        let much = watch.look();
        let queue = watch.sink();
        std::mem::swap(steps, &mut queue.steps);
        queue.bytes = 0;
        much
    }

    fn run(&self) {
        let (mut modules, mut steps, mut buffer) = (Vec::new(), Vec::new(), vec![0; BUFFER]);
        let mut much = false;
        loop {
            much = self.next(&mut steps, much);
            let round = AssertUnwindSafe(|| round(&mut modules, &mut steps, &mut buffer));
            match catch_unwind(round) {
                Ok(true) => {}
                Ok(false) => return,
                Err(_) => tracing::error!("the thread of modules on direct connections panicked; it goes on"),
            }
        }
    }
}

/// Does what has waited. False: there are no modules any more.
fn round(modules: &mut Vec<OnDirect>, steps: &mut Vec<Step>, buffer: &mut [u8]) -> bool {
    for step in steps.drain(..) {
        match step {
            Step::Frame(selectors, frame) => modules.iter_mut().for_each(|one| one.run(buffer, &frame, selectors)),
            Step::Lost(selectors, frames) => modules.iter().for_each(|one| one.missed(frames, selectors)),
            Step::Modules(others, done) => {
                *modules = others;
                drop(done);
                if modules.is_empty() {
                    return false;
                }
            }
        }
    }
    for one in modules {
        one.chain.settle();
        end_turn(&one.limited, &one.chain);
    }
    true
}

/// The thread.
pub struct DirectThread {
    frames: Arc<DirectFrames>,
    running: Mutex<Option<JoinHandle<()>>>,
}

impl DirectThread {
    /// It does not run yet.
    pub fn new(frames: Arc<DirectFrames>) -> Self {
        Self { frames, running: Mutex::new(None) }
    }

    /// Has the slow path take over these modules by `tell`. The thread begins before the first one that has direct connections
    /// comes, and ends when the last one has gone.
    pub fn change(&self, chains: &Chains, tell: impl FnOnce()) -> io::Result<()> {
        let mut running = lock(&self.running);
        let needed = chains.direct().next().is_some();
        if needed && running.is_none() {
            let frames = Arc::clone(&self.frames);
            *running = Some(std::thread::Builder::new().name("direct".into()).spawn(move || frames.run())?);
        }
        tell();
        if !needed {
            wait_for(running.take());
        }
        Ok(())
    }

    /// Ends it. The slow path does not run any more.
    pub fn end(&self) {
        let mut running = lock(&self.running);
        if running.is_some() {
            drop(self.frames.change(Vec::new(), &mpsc::channel().0));
            wait_for(running.take());
        }
    }
}

fn wait_for(thread: Option<JoinHandle<()>>) {
    if thread.is_some_and(|thread| thread.join().is_err()) {
        tracing::error!("the thread that runs modules on direct connections ended by a panic");
    }
}

/// Which direct connections have modules.
#[derive(Clone, Copy, Debug)]
pub struct Chosen {
    /// A module has all of them.
    all: bool,
    /// The bits of the selectors of the others.
    selectors: u32,
}

impl Chosen {
    /// Those of these modules. `None`: there are none.
    pub fn of(modules: &[&Attached]) -> Option<Self> {
        let all = modules.iter().any(|one| one.selector.is_none());
        let selectors = modules.iter().filter_map(|one| one.selector).fold(0, |all, bit| all | bit);
        (!modules.is_empty()).then_some(Self { all, selectors })
    }
    /// Has one of them a connection that these selectors choose?
    pub fn is(self, selectors: u32) -> bool {
        self.all || self.selectors & selectors != 0
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::module_port_tests::{by_byte, counts};
    use towpath_modules::Counts;

    /// It is the first flow group's on row 0, and has direct connections on row 1.
    fn module(selector: Option<u32>) -> Attached {
        Attached { counts: Counts::new(2), selector, direct: Some(Arc::default()), ..by_byte() }
    }

    fn missed(of: &Attached) -> u64 {
        of.direct.as_ref().unwrap().load(Ordering::Relaxed)
    }

    fn on_direct(modules: &[Attached]) -> Vec<OnDirect> {
        modules.iter().map(|one| OnDirect::new(one, 1)).collect()
    }

    #[test]
    fn each_module_has_each_frame_as_it_was_made_and_what_one_says_hides_it_from_no_other() {
        // Each writes to a frame. The first byte would be the last one's verdict if they had one copy.
        let modules = [module(None), module(Some(1)), module(Some(2)), module(None)];
        let (mut steps, mut running) = (Vec::new(), on_direct(&modules));
        let mut queue = Queue::default();
        for (selectors, verdict) in [(0, 2), (1, 1), (3, 3), (1, 4), (1, 0)] {
            queue.frame(selectors, 0, &[9, verdict, 9, 9]);
        }
        queue.lost(2, 5, &[]);
        queue.lost(2, 6, &[]);
        std::mem::swap(&mut steps, &mut queue.steps);
        assert!(round(&mut running, &mut steps, &mut vec![0; BUFFER]));
        // Runs, and how many passed, were dropped, sent back, redirected and aborted.
        assert_eq!(counts(&modules[0]), [5, 1, 1, 1, 1, 1]);
        assert_eq!(counts(&modules[1]), [4, 0, 1, 1, 1, 1]);
        assert_eq!(counts(&modules[2]), [1, 0, 0, 1, 0, 0]);
        assert_eq!(counts(&modules[3]), counts(&modules[0]));
        assert_eq!(modules.each_ref().map(missed), [11, 0, 11, 11]);
    }

    #[test]
    fn frames_for_which_there_is_no_room_are_missed_and_never_take_more_than_their_bound() {
        let mut queue = Queue::default();
        let frame = vec![2; 1 << 20];
        for _ in 0..100 {
            for selectors in [1, 2] {
                queue.frame(selectors, 0, &frame);
            }
        }
        let (mut kept, mut lost, mut whose) = (0, 0, 0);
        for step in &queue.steps {
            match step {
                Step::Frame(..) => kept += 1,
                Step::Lost(selectors, frames) => (lost, whose) = (lost + frames, whose | selectors),
                Step::Modules(..) => panic!("nobody came"),
            }
        }
        assert_eq!((kept, lost, whose), (31, 169, 3));
        assert!(queue.steps.len() == 32 && queue.bytes <= MOST_BYTES);
        assert!(queue.has_room() && Queue::default().has_room(), "for smaller frames there is some left");
        queue.frame(1, 0, &vec![2; MOST_BYTES - queue.bytes - STEP_BYTES]);
        assert!(!queue.has_room());
        // Small ones do not wait without end, either.
        let mut queue = Queue::default();
        (0..100_000).for_each(|_| queue.frame(1, 0, &[2; 54]));
        assert!((15_000..=MOST_BYTES / STEP_BYTES).contains(&queue.steps.len()), "{}", queue.steps.len());
    }

    #[test]
    fn the_thread_lives_while_there_is_such_a_module_and_changes_them_in_the_order_of_frames() {
        let thread = DirectThread::new(Arc::default());
        let change = |modules: &[Attached]| {
            let chains = Chains { ingress: modules.to_vec(), egress: Vec::new() };
            let (done, is_done) = mpsc::channel::<()>();
            let tell = || drop(thread.frames.change(on_direct(modules), &done));
            let was_running = lock(&thread.running).is_some();
            if was_running || !modules.is_empty() {
                thread.change(&chains, tell).unwrap();
                drop(done);
                assert!(is_done.recv().is_err(), "nobody sends anything");
            }
        };
        let [first, second] = [module(None), module(None)];
        for _ in 0..2 {
            change(std::slice::from_ref(&first));
            thread.frames.watch().sink().frame(0, 0, &[0, 2]);
            change(std::slice::from_ref(&second));
            thread.frames.watch().sink().frame(0, 0, &[0, 2]);
            change(&[]);
            assert!(lock(&thread.running).is_none());
        }
        assert_eq!([counts(&first)[1], counts(&second)[1]], [2, 2]);
        change(&[first]);
        thread.end();
        assert!(lock(&thread.running).is_none());
        thread.end();
    }

    #[test]
    fn a_connection_is_looked_at_only_if_a_module_has_it() {
        let [all, one, two] = [module(None), module(Some(1)), module(Some(2))];
        assert!(Chosen::of(&[]).is_none());
        let some = Chosen::of(&[&one, &two]).unwrap();
        assert!(some.is(1) && some.is(6) && !some.is(4) && !some.is(0));
        assert!(Chosen::of(&[&one, &all]).unwrap().is(0));
    }
}
