//! A module: programs and maps that are ready to run, and its instances, one for each flow group.

pub use crate::action::{Action, PASS};
use crate::check;
use crate::code::Code;
use crate::error::LoadError;
use crate::helpers;
use crate::insn;
use crate::interpreter::{Fault, Interpreter};
use crate::map::Map;
use crate::object::{MapSpec, Object, ProgramSpec};
use crate::run::{Frame, MapRef, Run};
use crate::trace::Trace;
use crate::writes;
use std::io::IoSliceMut;
use std::sync::Arc;

/// Loops of a program, beside itself.
const LOOPS: usize = 2;

/// A module that was loaded.
#[derive(Debug)]
pub struct Module {
    programs: Vec<ProgramSpec>,
    /// The program that frames are given to.
    main: usize,
    maps: Vec<Arc<Map>>,
    /// Their names in its programs. One that was given may have another name.
    map_names: Vec<String>,
    refs: Vec<MapRef>,
    /// Compiled code, and its functions. Without, programs are interpreted.
    code: Option<Code>,
    functions: Vec<u64>,
    /// How many of them are the programs' own, and functions of these. Behind them may be two loops for each program, that run
    /// it on a batch of frames: over those that pass, and over all others.
    own_functions: usize,
    room: bool,
    meta: bool,
    reads_only: bool,
    /// What its programs print, if they do.
    trace: Option<Box<Trace>>,
}

// SAFETY: the pointers are to maps that the module keeps, which are shared.
unsafe impl Send for Module {}
// SAFETY: see above.
unsafe impl Sync for Module {}

impl Module {
    /// A module of this object for this many flow groups, whose program `main` is given the frames. With `compiled`, the
    /// code of these same programs and the offsets of its functions, it runs that.
    ///
    /// # Safety
    /// With `compiled`, the kernel's verifier has accepted each program of the object with these maps. The code is what a
    /// compiler has made of the programs by the rules of [`crate::abi`].
    pub unsafe fn new(
        object: &Object,
        main: usize,
        groups: usize,
        compiled: Option<(Code, &[u32])>,
    ) -> Result<Self, LoadError> {
        // SAFETY: as promised by the caller.
        unsafe { Self::with_maps(object, main, groups, compiled, &[]) }
    }

    /// The same with these maps, by number, in the place of new ones. They are for as many flow groups.
    ///
    /// # Safety
    /// That of [`Self::new`]. Whether a map that is given is as the object defines it, for which the judgement is, is looked at
    /// here.
    pub unsafe fn with_maps(
        object: &Object,
        main: usize,
        groups: usize,
        compiled: Option<(Code, &[u32])>,
        given: &[Option<Arc<Map>>],
    ) -> Result<Self, LoadError> {
        let needs: Result<Vec<_>, _> =
            object.programs.iter().map(|program| check::check(program, object.maps.len())).collect();
        let needs = needs?;
        object.fits(groups)?;
        let place = |name: &str| object.programs.iter().position(|program| program.name == name);
        let map = |(number, spec): (usize, &MapSpec)| match given.get(number).cloned().flatten() {
            None => Ok(Arc::new(Map::new(spec, groups, place))),
            Some(map) => {
                let alone = spec.own_alone().or_else(|| map.spec().own_alone());
                let why = alone.map(str::to_owned).or_else(|| spec.differs(map.spec()));
                why.map_or(Ok(map), |why| Err(LoadError::Given { map: spec.name.clone(), why }))
            }
        };
        let maps: Vec<_> = object.maps.iter().enumerate().map(map).collect::<Result<_, _>>()?;
        let reference = |map: &Arc<Map>| MapRef { map: Arc::as_ptr(map), values: map.first_value() };
        let all: usize = object.programs.iter().map(|program| program.functions.len()).sum();
        let functions = match &compiled {
            None => Vec::new(),
            Some((code, offsets)) => {
                let places: Option<Vec<u64>> = offsets.iter().map(|offset| code.at(*offset)).collect();
                let fits = |count| count == all || count == all + LOOPS * object.programs.len();
                places.filter(|places| fits(places.len())).ok_or(LoadError::Broken("its code is another's"))?
            }
        };
        Ok(Self {
            programs: object.programs.clone(),
            main: main.min(object.programs.len().saturating_sub(1)),
            refs: maps.iter().map(reference).collect(),
            maps,
            map_names: object.maps.iter().map(|spec| spec.name.clone()).collect(),
            code: compiled.map(|(code, _)| code),
            functions,
            own_functions: all,
            trace: object.programs.iter().any(prints).then(Box::default),
            room: needs.iter().any(|needs| needs.room),
            meta: needs.iter().any(|needs| needs.meta),
            reads_only: !object.programs.iter().any(writes::may_write_frames),
        })
    }

    /// The same without compiled code: each access of its programs is checked.
    pub fn interpreted(object: &Object, main: usize, groups: usize) -> Result<Self, LoadError> {
        // SAFETY: nothing is compiled.
        unsafe { Self::new(object, main, groups, None) }
    }

    /// What its programs have printed. `None` = they never do.
    pub fn trace(&self) -> Option<&Trace> {
        self.trace.as_deref()
    }
    /// Its maps.
    pub fn maps(&self) -> &[Arc<Map>] {
        &self.maps
    }
    /// The same with their names in its programs.
    pub fn named_maps(&self) -> impl Iterator<Item = (&str, &Arc<Map>)> {
        self.map_names.iter().map(String::as_str).zip(&self.maps)
    }
    /// Its programs' names.
    pub fn programs(&self) -> impl Iterator<Item = &str> {
        self.programs.iter().map(|program| program.name.as_str())
    }
    /// Does it run compiled code?
    pub fn is_compiled(&self) -> bool {
        self.code.is_some()
    }
    /// Does it want room around frames: to move their ends, or for metadata?
    pub fn wants_room(&self) -> bool {
        self.room
    }
    /// Does it look at what is known of a frame ([`crate::TowpathFrame`])?
    pub fn reads_meta(&self) -> bool {
        self.meta
    }
    /// Can it be run on frames that are not its own: in their places, many at a time, without changing any?
    pub fn only_looks(&self) -> bool {
        self.reads_only && !self.room && self.functions.len() > self.own_functions
    }
}

fn prints(program: &ProgramSpec) -> bool {
    let call = insn::JMP | insn::CALL;
    let prints =
        |insn: &insn::Insn| (insn.code, insn.src) == (call, insn::HELPER) && helpers::PRINTERS.contains(&insn.imm);
    program.insns.iter().any(prints)
}

/// A module on one flow group.
pub struct Instance {
    module: Arc<Module>,
    run: Box<Run>,
    /// The compiled program. None: it is interpreted.
    entry: Option<Entry>,
    /// The same in a loop over frames that pass, and in one over those that do not.
    batch: Option<Batch>,
    search: Option<Batch>,
    interpreter: Option<Interpreter>,
    /// Runs that the interpreter has ended.
    pub faults: u64,
}

// SAFETY: the pointers of the run are to the module, which the instance keeps.
unsafe impl Send for Instance {}

/// A compiled program. It takes six arguments as all compiled functions do, and reads only these two. The verifier lets a
/// program read no register but the context's before it has written it.
type Entry = unsafe extern "C" fn(*mut Run, *mut Run) -> u64;

/// A loop over frames, with a program in it: the run, the first frame, and the end of the frames. There must be one. It returns
/// where it has stopped, or nothing if it went on after all frames.
type Batch = unsafe extern "C" fn(*mut Run, *mut IoSliceMut<'_>, *mut IoSliceMut<'_>) -> *mut IoSliceMut<'static>;

impl Instance {
    /// For this flow group.
    pub fn new(module: &Arc<Module>, group: u32) -> Self {
        let mut run = Box::new(Run::new(group, helpers::HELPERS.map(|(.., helper)| helper)));
        (run.maps, run.map_count) = (module.refs.as_ptr(), module.refs.len());
        (run.functions, run.programs) = (module.functions.as_ptr(), module.programs.len());
        run.trace = module.trace().map_or(std::ptr::null(), std::ptr::from_ref);
        let entry = module.functions.get(module.main).map(|entry| {
            // SAFETY: the function of this number is the program's, as whoever has made the module promises.
            unsafe { std::mem::transmute::<usize, Entry>(*entry as usize) }
        });
        let first = module.own_functions + LOOPS * module.main;
        let looped = |at| {
            module.functions.get(at).filter(|_| !module.room).map(|looped| {
                // SAFETY: as above.
                unsafe { std::mem::transmute::<usize, Batch>(*looped as usize) }
            })
        };
        let (batch, search) = (looped(first), looped(first + 1));
        let interpreter = entry.is_none().then(Interpreter::default);
        Self { module: Arc::clone(module), run, entry, batch, search, interpreter, faults: 0 }
    }

    /// Frames of [`Instance::run_in_place`] come from or go to this interface and queue.
    pub fn stands_at(&mut self, ifindex: u32, queue: u32) {
        (self.run.ifindex, self.run.queue) = (ifindex, queue);
    }

    /// The interface over which the program has last asked a frame to go.
    #[inline]
    pub fn over(&self) -> u32 {
        self.run.over
    }

    /// Its module.
    pub fn module(&self) -> &Arc<Module> {
        &self.module
    }

    /// Were there faults or lines since these were taken?
    #[inline]
    pub fn has_notes(&self) -> bool {
        (self.faults | self.run.traced) != 0
    }

    /// Lines that it wanted to print since the last call.
    pub fn take_traced(&mut self) -> u64 {
        std::mem::take(&mut self.run.traced)
    }

    /// Runs the module on a frame. `Aborted` leaves the frame as it is then.
    #[inline]
    pub fn run(&mut self, frame: &mut Frame<'_>) -> Action {
        let lies_within = frame.start.checked_add(frame.length).is_some_and(|end| end <= frame.buffer.len());
        if !lies_within || frame.meta > frame.start {
            return Action::Aborted;
        }
        self.run.begin(frame);
        let result = self.call();
        self.run.end(frame);
        Action::of(result.into())
    }

    /// Runs the module on the bytes of a frame without room around it: what the program returns.
    #[inline]
    pub fn run_in_place(&mut self, bytes: &mut [u8]) -> u32 {
        self.run.begin_in_place(bytes);
        self.call()
    }

    /// Runs the module on frames without room around them, up to the first that it does not let pass. Returns how many it let pass
    /// before, and what the program returned for that one.
    #[inline]
    pub fn run_batch(&mut self, frames: &mut [IoSliceMut<'_>]) -> (usize, u32) {
        match self.batch {
            Some(batch) => self.run_loop(batch, frames).map_or((frames.len(), PASS), |at| (at, self.run.result)),
            None => self.run_one_by_one(frames),
        }
    }

    /// The same up to the first that it does let pass. Returns how many it did not before.
    #[inline]
    pub fn search(&mut self, frames: &mut [IoSliceMut<'_>]) -> usize {
        match self.search {
            Some(search) => self.run_loop(search, frames).unwrap_or(frames.len()),
            None => frames.iter_mut().position(|frame| self.run_in_place(frame) == PASS).unwrap_or(frames.len()),
        }
    }

    /// Runs a loop on frames. Returns the place of the one after which it has stopped.
    #[inline]
    fn run_loop(&mut self, batch: Batch, frames: &mut [IoSliceMut<'_>]) -> Option<usize> {
        if frames.is_empty() {
            return None;
        }
        let (run, slices): (*mut Run, _) = (&raw mut *self.run, frames.as_mut_ptr_range());
        // SAFETY: the module keeps the code. The kernel's verifier has accepted the program, as whoever has made the module
        // promises. There is a frame, and each slice is borrowed.
        let stopped = unsafe { batch(run, slices.start, slices.end) };
        (!stopped.is_null()).then(|| (stopped.addr() - slices.start.addr()) / size_of::<IoSliceMut<'_>>())
    }

    #[cold]
    #[inline(never)]
    fn run_one_by_one(&mut self, frames: &mut [IoSliceMut<'_>]) -> (usize, u32) {
        let mut results = frames.iter_mut().map(|frame| self.run_in_place(frame)).enumerate();
        results.find(|(_, result)| *result != PASS).unwrap_or((frames.len(), PASS))
    }

    #[inline]
    fn call(&mut self) -> u32 {
        let Some(entry) = self.entry else { return self.interpreted() };
        let run: *mut Run = &raw mut *self.run;
        // SAFETY: the module keeps the code. The kernel's verifier has accepted the program, as whoever has made the module
        // promises. The frame lies within its buffer.
        unsafe { entry(run, run) as u32 }
    }

    #[cold]
    fn interpreted(&mut self) -> u32 {
        let interpreter = self.interpreter.get_or_insert_default();
        let result = interpreter.run(&mut self.run, &self.module.programs, self.module.main);
        self.faults += u64::from(result.is_err());
        result.unwrap_or(0) as u32
    }

    /// Runs it by the interpreter, and says why if that ends it.
    pub fn interpret(&mut self, frame: &mut Frame<'_>) -> Result<u64, Fault> {
        self.run.begin(frame);
        let interpreter = self.interpreter.get_or_insert_default();
        let result = interpreter.run(&mut self.run, &self.module.programs, self.module.main);
        self.run.end(frame);
        result
    }
}

/// Names and numbers of the helpers that modules have.
pub fn helper_names() -> Vec<String> {
    helpers::HELPERS.iter().map(|(number, ..)| crate::names::helper(*number)).collect()
}
