//! Elements of maps, as an operator sees and sets them.

use super::shared::{SharedMap, place};
use super::{Modules, Settings, State, unknown};
use crate::api::{ElementLine, Elements, MapOf};
use std::sync::Arc;
use towpath_modules::words::{self, to_hex};
use towpath_modules::{Map, MapKind, Module};

/// Most elements and records that one answer has.
const MOST_ELEMENTS: usize = 65_536;

/// A map that was asked for.
pub struct Found {
    /// The name by which it was asked for: the module's for the map, or the pin's.
    name: String,
    pub map: Arc<Map>,
    /// The module's place, and the module. `None`: it was asked for by its pin.
    pub module: Option<(usize, Arc<Module>)>,
}

impl Found {
    /// What was set of it.
    fn settings<'a>(&self, state: &'a mut State) -> Option<&'a mut Settings> {
        if let Some(shared) = state.shared.iter_mut().find(|shared| shared.is(&self.map)) {
            return Some(&mut shared.settings);
        }
        let (place, _) = self.module.as_ref()?;
        Some(state.entries.get_mut(*place)?.settings.entry(self.name.clone()).or_default())
    }

    fn elements(&self, elements: Vec<ElementLine>) -> Elements {
        Elements { map: self.name.clone(), kind: self.map.spec().kind.name().into(), elements }
    }
}

pub fn find(state: &State, of: &MapOf) -> Result<Found, String> {
    let (name, map) = match of {
        MapOf::Module { name, map } => (name, map),
        MapOf::Pin { pin } => {
            let SharedMap { map, .. } = &state.shared[place(&state.shared, pin)?];
            return Ok(Found { name: pin.clone(), map: Arc::clone(map), module: None });
        }
    };
    let modules = &state.entries;
    let at = modules.iter().position(|module| module.added.name == *name);
    let at = at.ok_or_else(|| unknown(modules, name))?;
    let module = Arc::clone(&modules[at].attached.module);
    let found = module.named_maps().find(|(known, _)| known == map).map(|(_, map)| Arc::clone(map));
    match found {
        Some(found) => Ok(Found { name: map.clone(), map: found, module: Some((at, module)) }),
        None => {
            let names: Vec<_> = module.named_maps().map(|(name, _)| name).collect();
            let names = if names.is_empty() { "none".into() } else { names.join(", ") };
            Err(format!("module {name} has no map {map:?}; it has {names}"))
        }
    }
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

pub fn dump(all: &Modules, of: &MapOf) -> Result<Elements, String> {
    let found = find(&all.lock(), of)?;
    let map = &found.map;
    if map.spec().kind != MapKind::RingBuf && map.spec().entries as usize > MOST_ELEMENTS {
        return Err(format!("a map of more than {MOST_ELEMENTS} elements is not shown as a whole"));
    }
    let all = map.elements();
    Ok(found.elements(all.iter().take(MOST_ELEMENTS).map(|(key, values)| element(map, key, values)).collect()))
}

pub fn set(all: &Modules, of: &MapOf, key: &str, value: &str) -> Result<Elements, String> {
    let mut state = all.lock();
    let found = find(&state, of)?;
    let module = found.module.as_ref().map(|(_, module)| &**module);
    let (bytes, line) = set_element(module, &found.map, key, value)?;
    if let Some(settings) = found.settings(&mut state) {
        settings.insert(bytes, (key.into(), value.into()));
    }
    all.successor.write(&state)?;
    Ok(found.elements(vec![line]))
}

/// Sets an element of a map, of this module if it is one's own. Returns its key.
pub fn set_element(
    module: Option<&Module>,
    map: &Map,
    key: &str,
    value: &str,
) -> Result<(Vec<u8>, ElementLine), String> {
    let key = words::key(key, map.spec())?;
    if map.spec().kind == MapKind::ProgArray {
        let program = module.and_then(|module| module.programs().position(|program| program == value));
        let program = program.ok_or_else(|| format!("there is no program {value:?} in this module"))?;
        let place = key.as_slice().try_into().map_or(u32::MAX, u32::from_ne_bytes);
        if !map.set_program(place, Some(program)) {
            return Err(format!("place {place} is beyond the end"));
        }
        let line = element(map, &key, &[(program as u32 + 1).to_ne_bytes().to_vec()]);
        return Ok((key, line));
    }
    let value = words::value(value, map.spec())?;
    match map.set(&key, &value) {
        Ok(()) => {
            let line = element(map, &key, &[value]);
            Ok((key, line))
        }
        Err(libc::E2BIG | libc::ENOSPC) => Err(format!("the map has room for {} elements", map.spec().entries)),
        Err(libc::ENODEV) => Err("0 is no interface: the value is an index, as in /sys/class/net/NAME/ifindex".into()),
        Err(libc::EOPNOTSUPP) => Err("an element with a program of its own (bpf_prog) is refused: none runs".into()),
        Err(libc::EPERM) => Err("these are constants of the program, which nobody changes".into()),
        Err(errno) => Err(std::io::Error::from_raw_os_error(errno).to_string()),
    }
}

pub fn delete(all: &Modules, of: &MapOf, key: &str) -> Result<Elements, String> {
    let mut state = all.lock();
    let found = find(&state, of)?;
    let map = &found.map;
    let key = words::key(key, map.spec())?;
    match map.remove(&key) {
        Ok(()) => {
            if let Some(settings) = found.settings(&mut state) {
                settings.remove(&key);
            }
            all.successor.write(&state)?;
            Ok(found.elements(Vec::new()))
        }
        Err(libc::ENOENT) => Err("the map has no such element".into()),
        Err(libc::EINVAL) => Err(format!("nothing is deleted from a {}", map.spec().kind.name())),
        Err(errno) => Err(std::io::Error::from_raw_os_error(errno).to_string()),
    }
}
