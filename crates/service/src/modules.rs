//! The modules that frames go through.

mod elements;
mod inherited;
mod pins;
mod shared;

use crate::answer_line::{error, good};
use crate::api::{
    MapLine, ModuleLine, ModuleList, ModuleRequest, NewModule, PinList, TraceLine, TraceLines, USUAL_BUDGET,
};
use crate::policy::Policy;
use crate::policy::list::PROGRAM_IS_NO_BOUNDARY;
use crate::policy::process_filter::ProcessFilter;
use crate::privileged;
use elements::{delete, dump, set};
use inherited::Inherited;
use shared::{SharedMap, pin_of};
use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use towpath_modules::attached::COUNTS;
use towpath_modules::code::Code;
use towpath_modules::words::from_hex;
use towpath_modules::{Attached, Chains, Counts, Hook, Line, Map, Module, Object, Tenant};
use towpath_runtime::{Selectors, Stack};

/// Most modules of a service.
const MOST: usize = 32;
/// Most letters of a name.
const LONGEST_NAME: usize = 64;
/// Most lines of a trace that one answer has.
const MOST_LINES: usize = 1024;

/// All modules.
#[derive(Debug)]
pub struct Modules {
    state: Mutex<State>,
    successor: Inherited,
    /// It knows who the clients are.
    policy: Policy,
}

#[derive(Clone, Debug, Default)]
struct State {
    /// In the order in which they run.
    entries: Vec<Entry>,
    /// Maps that are not a module's own.
    shared: Vec<SharedMap>,
}

/// Elements of a map that were set, by key: the key and the value in words.
type Settings = BTreeMap<Vec<u8>, (String, String)>;

#[derive(Clone, Debug)]
struct Entry {
    /// How it was added.
    added: Arc<NewModule>,
    /// Elements of its own maps that were set since, by map.
    settings: BTreeMap<String, Settings>,
    hook: Hook,
    program: String,
    attached: Attached,
    /// The programs whose connections' frames it has. `None`: it has all frames.
    app: Option<ProcessFilter>,
}

impl Modules {
    /// None. Who the clients are, this policy knows.
    pub fn new(policy: Policy) -> Self {
        Self { state: Mutex::default(), successor: Inherited::default(), policy }
    }
    /// Each change is one step, so a thread that panicked with the lock has left it consistent.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The answer to a request, as JSON without a line feed.
pub fn serve(modules: &Modules, stack: &dyn Stack, request: &ModuleRequest) -> String {
    match request {
        ModuleRequest::Add(new) => {
            add((modules, stack), new, None).map_or_else(error, |line| good(&ModuleList { modules: vec![line] }))
        }
        ModuleRequest::List { name } => list(modules, name.as_deref()).map_or_else(error, |list| good(&list)),
        ModuleRequest::Remove { name } => {
            remove((modules, stack), name).map_or_else(error, |line| good(&ModuleList { modules: vec![line] }))
        }
        ModuleRequest::Dump { of } => dump(modules, of).map_or_else(error, |elements| good(&elements)),
        ModuleRequest::Trace { name } => trace(modules, name).map_or_else(error, |lines| good(&lines)),
        ModuleRequest::Set { of, key, value } => {
            set(modules, of, key, value).map_or_else(error, |elements| good(&elements))
        }
        ModuleRequest::Delete { of, key } => delete(modules, of, key).map_or_else(error, |elements| good(&elements)),
        ModuleRequest::Pin { name, map, pin } => {
            let pinned = pins::pin(modules, (name, map), pin.as_deref());
            pinned.map_or_else(error, |line| good(&PinList { pins: vec![line] }))
        }
        ModuleRequest::Pins => good(&pins::list(modules)),
        ModuleRequest::Unpin { pin } => {
            pins::unpin(modules, pin).map_or_else(error, |line| good(&PinList { pins: vec![line] }))
        }
    }
}

/// Adds a module. With `left` it is one of the last worker process, which had these maps in common with others, by name.
fn add(
    (all, stack): (&Modules, &dyn Stack),
    new: &NewModule,
    left: Option<&BTreeMap<String, Arc<Map>>>,
) -> Result<ModuleLine, String> {
    let NewModule { name, object, program, hook, priority, tenant, budget, app, maps: _, direct } = new;
    let rows = stack.module_rows();
    let rows = rows.ok_or("this stack has no frames of its own for modules: only the fast stack has")?;
    let hook = match hook.as_str() {
        "ingress" => Hook::Ingress,
        "egress" => Hook::Egress,
        other => return Err(format!("there is no hook {other:?}: modules stand at ingress or egress")),
    };
    if !is_name(name) {
        return Err(format!("{name:?} is no name of a module: up to {LONGEST_NAME} letters, digits, -, _ and ."));
    }
    if let Some(payer) = tenant.as_ref().filter(|payer| !is_name(payer)) {
        return Err(format!("{payer:?} is no name of a tenant: up to {LONGEST_NAME} letters, digits, -, _ and ."));
    }
    if let Some(budget) = budget.filter(|budget| !(1..=100).contains(budget)) {
        return Err(format!("a budget of {budget} % is none: it is the share of a core's time, from 1 to 100"));
    }
    let app = app.as_deref().map(ProcessFilter::from_str).transpose()?;
    let names_program = app.as_ref().is_some_and(|app| app.program.is_some());
    // Looked at again below: a module is judged without the lock, as that takes its time.
    let is_possible = |entries: &[Entry]| {
        is_free(entries, name).and_then(|()| paid_by(entries, (name, tenant.as_deref(), *budget), rows))
    };
    is_possible(&all.lock().entries)?;
    let judged = Judged::new(object, program.as_deref())?;
    let program = judged.program().to_owned();
    let mut state = all.lock();
    let payer = is_possible(&state.entries)?;
    let given = match left {
        Some(left) => judged.object.maps.iter().map(|map| left.get(&map.name).cloned()).collect(),
        None => pins::given(&state, &judged.object, (new, rows))?,
    };
    let module = judged.module(rows, &given)?;
    let mut changed = state.clone();
    if left.is_none() {
        pins::pin_by_name(&mut changed.shared, &module);
    }
    let selector = app.as_ref().map(|_| free_bit(&state.entries));
    let direct = direct.then(Arc::default);
    let attached = Attached { module: Arc::new(module), counts: Counts::new(rows), tenant: payer, selector, direct };
    // The next worker process adds them in the order in which they run, so each says all.
    let added = Arc::new(NewModule { budget: Some(attached.tenant.percent()), ..new.clone() });
    let entry = Entry { added, settings: BTreeMap::new(), hook, program, attached, app };
    let line = line(&entry, &changed.shared);
    changed.entries.push(entry);
    // The sort is stable: of two with one priority the older one runs first.
    changed.entries.sort_by_key(|module| (module.hook == Hook::Egress, module.added.priority));
    change((all, stack), &mut state, changed)?;
    tracing::info!(name, hook = line.hook, priority, compiled = line.compiled, app = line.app, "module added");
    if names_program {
        tracing::info!("modules: {PROGRAM_IS_NO_BOUNDARY}");
    }
    Ok(line)
}

fn is_name(name: &str) -> bool {
    let letters = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    letters && (1..=LONGEST_NAME).contains(&name.len())
}

/// A bit that no module's selector has. There are as many as modules.
fn free_bit(modules: &[Entry]) -> u32 {
    let taken = modules.iter().filter_map(|module| module.attached.selector).fold(0, |all, bit| all | bit);
    1 << u32::trailing_ones(taken).min(31)
}

/// An object after the kernel's verifier has judged it.
pub(crate) struct Judged {
    object: Object,
    main: usize,
    /// Its code and the offsets of its functions. `None`: it is to be interpreted.
    compiled: Option<(Code, Vec<u32>)>,
}

impl Judged {
    /// Has this object, in hexadecimal digits, judged.
    pub(crate) fn new(object: &str, program: Option<&str>) -> Result<Self, String> {
        let file = from_hex(object).ok_or("the object is not in hexadecimal digits")?;
        let object = Object::parse(&file).map_err(|why| why.to_string())?;
        let main = object.program(program).map_err(|why| why.to_string())?;
        let compiled = privileged::prepare_module(&file, &object)?;
        Ok(Self { object, main, compiled })
    }

    fn program(&self) -> &str {
        &self.object.programs[self.main].name
    }

    /// The module, which has the maps that are given, by number, and new ones else.
    pub(crate) fn module(self, rows: usize, given: &[Option<Arc<Map>>]) -> Result<Module, String> {
        let (code, functions) = self.compiled.unzip();
        let compiled = code.zip(functions.as_deref());
        // SAFETY: the broker, or this process without one, has had the kernel's verifier accept all programs of this same file,
        // and has compiled them.
        unsafe { Module::with_maps(&self.object, self.main, rows, compiled, given) }.map_err(|why| why.to_string())
    }
}

fn is_free(modules: &[Entry], name: &str) -> Result<(), String> {
    if modules.len() >= MOST {
        return Err(format!("there are {MOST} modules, and no more are possible: `towpath module rm` removes one"));
    }
    match modules.iter().any(|module| module.added.name == name) {
        true => Err(format!("there is a module {name:?} already: `towpath module rm {name}` removes it")),
        false => Ok(()),
    }
}

/// Who pays for a module of this name, tenant and budget, on so many threads. Without a tenant it has an account of its own, which no
/// other module can join: it would be detached for what that one takes.
fn paid_by(
    modules: &[Entry],
    (module, name, budget): (&str, Option<&str>, Option<u8>),
    threads: usize,
) -> Result<Arc<Tenant>, String> {
    let opened = |name: &str| Ok(Arc::new(Tenant::new(name, budget.unwrap_or(USUAL_BUDGET), threads)));
    let find = |name: &str| modules.iter().find(|one| one.attached.tenant.name() == name);
    let Some(name) = name else {
        return match find(module) {
            Some(_) => Err(format!(
                "there is a tenant {module}: add --tenant {module} if it is to pay for this module, or give the module another name"
            )),
            None => opened(module),
        };
    };
    let Some(entry) = find(name) else { return opened(name) };
    if entry.added.tenant.is_none() {
        return Err(format!(
            "module {name} was added without --tenant, and pays for itself alone: name another --tenant"
        ));
    }
    let tenant = &entry.attached.tenant;
    if tenant.overrun().is_some() {
        return Err(format!("the modules of tenant {name} are detached, as they took too much: remove them first"));
    }
    match budget.filter(|budget| *budget != tenant.percent()) {
        Some(budget) => Err(format!(
            "the modules of tenant {name} have a budget of {} % together, and not {budget} %: leave --budget out, or name another --tenant",
            tenant.percent()
        )),
        None => Ok(Arc::clone(tenant)),
    }
}

/// Has the stack run these modules, but for detached ones. The caller holds the lock, so the last change is in force.
/// What the stack refuses changes nothing.
fn attach((all, stack): (&Modules, &dyn Stack), modules: &[Entry]) -> Result<(), String> {
    let runs = |module: &Entry, hook| module.hook == hook && module.attached.tenant.overrun().is_none();
    let of = |hook| modules.iter().filter(move |one| runs(one, hook)).map(|module| module.attached.clone());
    let chains = Chains { ingress: of(Hook::Ingress).collect(), egress: of(Hook::Egress).collect() };
    let selector = |module: &Entry| Some((module.attached.selector?, module.app.clone()?));
    let (selectors, policy): (Vec<_>, _) = (modules.iter().filter_map(selector).collect(), all.policy.clone());
    let selectors: Selectors = Arc::new(move |client| policy.selected_by(client, &selectors));
    stack.modules(&chains, &selectors).map_err(|why| why.to_string())
}

/// [`attach`], and leaves the modules to the next process that serves.
fn change((all, stack): (&Modules, &dyn Stack), state: &mut State, changed: State) -> Result<(), String> {
    attach((all, stack), &changed.entries)?;
    *state = changed;
    all.successor.write(state)
}

fn unknown(modules: &[Entry], name: &str) -> String {
    let names: Vec<_> = modules.iter().map(|module| module.added.name.as_str()).collect();
    let names = if names.is_empty() { "none".into() } else { names.join(", ") };
    format!("there is no module {name:?}; the service has {names}")
}

fn remove((all, stack): (&Modules, &dyn Stack), name: &str) -> Result<ModuleLine, String> {
    let mut state = all.lock();
    let place = state.entries.iter().position(|module| module.added.name == name);
    let place = place.ok_or_else(|| unknown(&state.entries, name))?;
    let mut changed = state.clone();
    let removed = line(&changed.entries.remove(place), &changed.shared);
    pins::forget_unused(&mut changed);
    change((all, stack), &mut state, changed)?;
    tracing::info!(name, "module removed");
    Ok(removed)
}

fn list(all: &Modules, name: Option<&str>) -> Result<ModuleList, String> {
    let state = all.lock();
    let chosen = state.entries.iter().filter(|one| name.is_none_or(|name| one.added.name == name));
    let chosen: Vec<_> = chosen.map(|one| line(one, &state.shared)).collect();
    match name.filter(|_| chosen.is_empty()) {
        Some(name) => Err(unknown(&state.entries, name)),
        None => Ok(ModuleList { modules: chosen }),
    }
}

fn line(entry: &Entry, shared: &[SharedMap]) -> ModuleLine {
    let Entry { added, hook, program, attached, app, .. } = entry;
    let map = |(name, map): (&str, &Arc<Map>)| {
        let spec = map.spec();
        MapLine {
            name: name.into(),
            kind: spec.kind.name().into(),
            key_size: spec.key_size,
            value_size: spec.value_size,
            max_entries: spec.entries,
            pin: pin_of(shared, map),
        }
    };
    let missed = attached.direct.as_ref().map(|missed| ("missed", missed.load(Ordering::Relaxed)));
    ModuleLine {
        name: added.name.clone(),
        hook: if *hook == Hook::Ingress { "ingress" } else { "egress" }.into(),
        priority: added.priority,
        program: program.clone(),
        tenant: attached.tenant.name().into(),
        budget: attached.tenant.percent(),
        detached: attached.tenant.overrun().is_some(),
        app: app.as_ref().map(|app| app.to_string().trim_start().to_owned()),
        compiled: attached.module.is_compiled(),
        copies: attached.module.wants_room(),
        direct: attached.direct.is_some(),
        counts: COUNTS.into_iter().zip(attached.counts.sums()).chain(missed).collect(),
        maps: attached.module.named_maps().map(map).collect(),
    }
}

fn trace(all: &Modules, name: &str) -> Result<TraceLines, String> {
    let module = {
        let modules = &all.lock().entries;
        let entry = modules.iter().find(|module| module.added.name == name).ok_or_else(|| unknown(modules, name))?;
        Arc::clone(&entry.attached.module)
    };
    let trace = module.trace().ok_or_else(|| format!("module {name} prints nothing: it does not call bpf_printk"))?;
    let (lines, lost) = trace.take(MOST_LINES);
    let line = |Line { time_ns, flow_group, text }| TraceLine { time_ns, flow_group, text };
    Ok(TraceLines { lines: lines.into_iter().map(line).collect(), lost })
}
