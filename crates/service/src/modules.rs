//! The modules that frames go through.

mod inherited;

use crate::answer_line::{error, good};
use crate::api::{
    ElementLine, Elements, MapLine, ModuleLine, ModuleList, ModuleRequest, NewModule, TraceLine, TraceLines,
};
use crate::policy::Policy;
use crate::policy::list::PROGRAM_IS_NO_BOUNDARY;
use crate::policy::process_filter::ProcessFilter;
use crate::privileged;
use inherited::Inherited;
use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use towpath_modules::attached::COUNTS;
use towpath_modules::words::{self, from_hex, to_hex};
use towpath_modules::{Attached, Budget, Chains, Counts, Hook, Line, Map, MapKind, Module, Object};
use towpath_runtime::{Selectors, Stack};

/// Most modules of a service.
const MOST: usize = 32;
/// Most letters of a name.
const LONGEST_NAME: usize = 64;
/// Most elements and records that one answer has.
const MOST_ELEMENTS: usize = 65_536;
/// Most lines of a trace that one answer has.
const MOST_LINES: usize = 1024;

/// All modules.
#[derive(Debug)]
pub struct Modules {
    /// In the order in which they run.
    entries: Mutex<Vec<Entry>>,
    successor: Inherited,
    /// It knows who the clients are.
    policy: Policy,
}

#[derive(Clone, Debug)]
struct Entry {
    /// How it was added.
    added: Arc<NewModule>,
    /// Elements that were set since, by map and key: the key and the value in words.
    settings: BTreeMap<(String, Vec<u8>), (String, String)>,
    hook: Hook,
    program: String,
    attached: Attached,
    /// The programs whose connections' frames it has. `None`: it has all frames.
    app: Option<ProcessFilter>,
}

impl Modules {
    /// None. Who the clients are, this policy knows.
    pub fn new(policy: Policy) -> Self {
        Self { entries: Mutex::default(), successor: Inherited::default(), policy }
    }
    /// Each change is one step, so a thread that panicked with the lock has left it consistent.
    fn lock(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The answer to a request, as JSON without a line feed.
pub fn serve(modules: &Modules, stack: &dyn Stack, request: &ModuleRequest) -> String {
    match request {
        ModuleRequest::Add(new) => {
            add((modules, stack), new).map_or_else(error, |line| good(&ModuleList { modules: vec![line] }))
        }
        ModuleRequest::List { name } => list(modules, name.as_deref()).map_or_else(error, |list| good(&list)),
        ModuleRequest::Remove { name } => {
            remove((modules, stack), name).map_or_else(error, |line| good(&ModuleList { modules: vec![line] }))
        }
        ModuleRequest::Dump { name, map } => {
            let found = find(&modules.lock(), name, map).map(|(_, _, map)| map);
            found.and_then(|map| dump(&map)).map_or_else(error, |elements| good(&elements))
        }
        ModuleRequest::Trace { name } => trace(modules, name).map_or_else(error, |lines| good(&lines)),
        ModuleRequest::Set { name, map, key, value } => {
            set(modules, (name, map), key, value).map_or_else(error, |elements| good(&elements))
        }
        ModuleRequest::Delete { name, map, key } => {
            delete(modules, (name, map), key).map_or_else(error, |elements| good(&elements))
        }
    }
}

fn add((all, stack): (&Modules, &dyn Stack), new: &NewModule) -> Result<ModuleLine, String> {
    let NewModule { name, object, program, hook, priority, budget, app } = new;
    let rows = stack.module_rows();
    let rows = rows.ok_or("this stack has no frames of its own for modules: only the fast stack has")?;
    let hook = match hook.as_str() {
        "ingress" => Hook::Ingress,
        "egress" => Hook::Egress,
        other => return Err(format!("there is no hook {other:?}: modules stand at ingress or egress")),
    };
    let letters = |name: &str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    if name.is_empty() || name.len() > LONGEST_NAME || !letters(name) {
        return Err(format!("{name:?} is no name of a module: up to {LONGEST_NAME} letters, digits, -, _ and ."));
    }
    if !(1..=100).contains(budget) {
        return Err(format!("a budget of {budget} % is none: it is the share of a core's time, from 1 to 100"));
    }
    let app = app.as_deref().map(ProcessFilter::from_str).transpose()?;
    let names_program = app.as_ref().is_some_and(|app| app.program.is_some());
    // Looked at again below: a module is judged without the lock, as that takes its time.
    is_free(&all.lock(), name)?;
    let (module, program) = judged(object, program.as_deref(), rows)?;
    let budget = Arc::new(Budget::new(name, *budget));
    let mut modules = all.lock();
    is_free(&modules, name)?;
    let selector = app.as_ref().map(|_| free_bit(&modules));
    let attached = Attached { module: Arc::new(module), counts: Counts::new(rows), budget, selector };
    let entry = Entry { added: Arc::new(new.clone()), settings: BTreeMap::new(), hook, program, attached, app };
    let line = line(&entry);
    let mut changed = modules.clone();
    changed.push(entry);
    // The sort is stable: of two with one priority the older one runs first.
    changed.sort_by_key(|module| (module.hook == Hook::Egress, module.added.priority));
    change((all, stack), &mut modules, changed)?;
    tracing::info!(name, hook = line.hook, priority, compiled = line.compiled, app = line.app, "module added");
    if names_program {
        tracing::info!("modules: {PROGRAM_IS_NO_BOUNDARY}");
    }
    Ok(line)
}

/// A bit that no module's selector has. There are as many as modules.
fn free_bit(modules: &[Entry]) -> u32 {
    let taken = modules.iter().filter_map(|module| module.attached.selector).fold(0, |all, bit| all | bit);
    1 << u32::trailing_ones(taken).min(31)
}

/// The module of an object in hexadecimal digits, after the kernel's verifier has judged it, and its program's name.
pub(crate) fn judged(object: &str, program: Option<&str>, rows: usize) -> Result<(Module, String), String> {
    let file = from_hex(object).ok_or("the object is not in hexadecimal digits")?;
    let object = Object::parse(&file).map_err(|why| why.to_string())?;
    let main = object.program(program).map_err(|why| why.to_string())?;
    let compiled = privileged::prepare_module(&file, &object)?;
    let (code, functions) = compiled.unzip();
    let compiled = code.zip(functions.as_deref());
    // SAFETY: the broker, or this process without one, has had the kernel's verifier accept all programs of this same file, and
    // has compiled them.
    let module = unsafe { Module::new(&object, main, rows, compiled) }.map_err(|why| why.to_string())?;
    Ok((module, object.programs[main].name.clone()))
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

/// Has the stack run these modules, but for detached ones. The caller holds the lock, so the last change is in force.
/// What the stack refuses changes nothing.
fn attach((all, stack): (&Modules, &dyn Stack), modules: &[Entry]) -> Result<(), String> {
    let runs = |module: &Entry, hook| module.hook == hook && module.attached.budget.overrun().is_none();
    let of = |hook| modules.iter().filter(move |one| runs(one, hook)).map(|module| module.attached.clone());
    let chains = Chains { ingress: of(Hook::Ingress).collect(), egress: of(Hook::Egress).collect() };
    let selector = |module: &Entry| Some((module.attached.selector?, module.app.clone()?));
    let (selectors, policy): (Vec<_>, _) = (modules.iter().filter_map(selector).collect(), all.policy.clone());
    let selectors: Selectors = Arc::new(move |client| policy.selected_by(client, &selectors));
    stack.modules(&chains, &selectors).map_err(|why| why.to_string())
}

/// [`attach`], and leaves the modules to the next process that serves.
fn change((all, stack): (&Modules, &dyn Stack), modules: &mut Vec<Entry>, changed: Vec<Entry>) -> Result<(), String> {
    attach((all, stack), &changed)?;
    *modules = changed;
    all.successor.write(modules)
}

fn unknown(modules: &[Entry], name: &str) -> String {
    let names: Vec<_> = modules.iter().map(|module| module.added.name.as_str()).collect();
    let names = if names.is_empty() { "none".into() } else { names.join(", ") };
    format!("there is no module {name:?}; the service has {names}")
}

fn remove((all, stack): (&Modules, &dyn Stack), name: &str) -> Result<ModuleLine, String> {
    let mut modules = all.lock();
    let place = modules.iter().position(|module| module.added.name == name);
    let place = place.ok_or_else(|| unknown(&modules, name))?;
    let mut changed = modules.clone();
    let removed = changed.remove(place);
    change((all, stack), &mut modules, changed)?;
    tracing::info!(name, "module removed");
    Ok(line(&removed))
}

fn list(all: &Modules, name: Option<&str>) -> Result<ModuleList, String> {
    let modules = all.lock();
    let chosen: Vec<_> =
        modules.iter().filter(|one| name.is_none_or(|name| one.added.name == name)).map(line).collect();
    match name.filter(|_| chosen.is_empty()) {
        Some(name) => Err(unknown(&modules, name)),
        None => Ok(ModuleList { modules: chosen }),
    }
}

fn line(entry: &Entry) -> ModuleLine {
    let Entry { added, hook, program, attached, app, .. } = entry;
    let map = |map: &Arc<Map>| {
        let spec = map.spec();
        MapLine {
            name: spec.name.clone(),
            kind: spec.kind.name().into(),
            key_size: spec.key_size,
            value_size: spec.value_size,
            max_entries: spec.entries,
        }
    };
    ModuleLine {
        name: added.name.clone(),
        hook: if *hook == Hook::Ingress { "ingress" } else { "egress" }.into(),
        priority: added.priority,
        program: program.clone(),
        budget: added.budget,
        detached: attached.budget.overrun().is_some(),
        app: app.as_ref().map(|app| app.to_string().trim_start().to_owned()),
        compiled: attached.module.is_compiled(),
        copies: attached.module.wants_room(),
        counts: COUNTS.into_iter().zip(attached.counts.sums()).collect(),
        maps: attached.module.maps().iter().map(map).collect(),
    }
}

fn trace(all: &Modules, name: &str) -> Result<TraceLines, String> {
    let module = {
        let modules = all.lock();
        let entry = modules.iter().find(|module| module.added.name == name).ok_or_else(|| unknown(&modules, name))?;
        Arc::clone(&entry.attached.module)
    };
    let trace = module.trace().ok_or_else(|| format!("module {name} prints nothing: it does not call bpf_printk"))?;
    let (lines, lost) = trace.take(MOST_LINES);
    let line = |Line { time_ns, flow_group, text }| TraceLine { time_ns, flow_group, text };
    Ok(TraceLines { lines: lines.into_iter().map(line).collect(), lost })
}

/// A map of a module, and the module's place.
fn find(modules: &[Entry], name: &str, map: &str) -> Result<(usize, Arc<Module>, Arc<Map>), String> {
    let place = modules.iter().position(|module| module.added.name == name);
    let place = place.ok_or_else(|| unknown(modules, name))?;
    let module = Arc::clone(&modules[place].attached.module);
    match module.maps().iter().find(|known| known.spec().name == map).cloned() {
        Some(map) => Ok((place, module, map)),
        None => {
            let names: Vec<_> = module.maps().iter().map(|map| map.spec().name.as_str()).collect();
            let names = if names.is_empty() { "none".into() } else { names.join(", ") };
            Err(format!("module {name} has no map {map:?}; it has {names}"))
        }
    }
}

fn elements(map: &Map, elements: Vec<ElementLine>) -> Elements {
    Elements { map: map.spec().name.clone(), kind: map.spec().kind.name().into(), elements }
}

fn element(map: &Map, key: &[u8], values: &[Vec<u8>]) -> ElementLine {
    let number = |value: &Vec<u8>| {
        let mut bytes = [0; 8];
        bytes.get_mut(..value.len())?.copy_from_slice(value);
        Some(u64::from_le_bytes(bytes))
    };
    let numbers: Option<Vec<u64>> = values.iter().map(number).collect();
    let are_numbers = matches!(map.spec().value_size, 1 | 2 | 4 | 8) && map.spec().kind != MapKind::RingBuf;
    let values = values.iter().map(|value| to_hex(value)).collect();
    ElementLine { key: to_hex(key), values, numbers: numbers.filter(|_| are_numbers).unwrap_or_default() }
}

fn dump(map: &Map) -> Result<Elements, String> {
    if map.spec().kind != MapKind::RingBuf && map.spec().entries as usize > MOST_ELEMENTS {
        return Err(format!("a map of more than {MOST_ELEMENTS} elements is not shown as a whole"));
    }
    let all = map.elements();
    Ok(elements(map, all.iter().take(MOST_ELEMENTS).map(|(key, values)| element(map, key, values)).collect()))
}

fn set(all: &Modules, (name, map): (&str, &str), key: &str, value: &str) -> Result<Elements, String> {
    let mut modules = all.lock();
    let (place, module, map) = find(&modules, name, map)?;
    let bytes = words::key(key, map.spec())?;
    let line = set_element(&module, &map, &bytes, value)?;
    let known = (map.spec().name.clone(), bytes);
    modules[place].settings.insert(known, (key.into(), value.into()));
    all.successor.write(&modules)?;
    Ok(elements(&map, vec![line]))
}

fn set_element(module: &Module, map: &Map, key: &[u8], value: &str) -> Result<ElementLine, String> {
    if map.spec().kind == MapKind::ProgArray {
        let program = module.programs().position(|program| program == value);
        let program = program.ok_or_else(|| format!("there is no program {value:?} in this module"))?;
        let place = key.try_into().map_or(u32::MAX, u32::from_ne_bytes);
        return match map.set_program(place, Some(program)) {
            true => Ok(element(map, key, &[(program as u32 + 1).to_ne_bytes().to_vec()])),
            false => Err(format!("place {place} is beyond the end")),
        };
    }
    let value = words::value(value, map.spec())?;
    match map.set(key, &value) {
        Ok(()) => Ok(element(map, key, &[value])),
        Err(libc::E2BIG | libc::ENOSPC) => Err(format!("the map has room for {} elements", map.spec().entries)),
        Err(libc::EPERM) => Err("these are constants of the program, which nobody changes".into()),
        Err(errno) => Err(std::io::Error::from_raw_os_error(errno).to_string()),
    }
}

fn delete(all: &Modules, (name, map): (&str, &str), key: &str) -> Result<Elements, String> {
    let mut modules = all.lock();
    let (place, _, map) = find(&modules, name, map)?;
    let key = words::key(key, map.spec())?;
    match map.remove(&key) {
        Ok(()) => {
            modules[place].settings.remove(&(map.spec().name.clone(), key));
            all.successor.write(&modules)?;
            Ok(elements(&map, Vec::new()))
        }
        Err(libc::ENOENT) => Err("the map has no such element".into()),
        Err(libc::EINVAL) => Err(format!("nothing is deleted from a {}", map.spec().kind.name())),
        Err(errno) => Err(std::io::Error::from_raw_os_error(errno).to_string()),
    }
}
