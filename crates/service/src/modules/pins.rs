//! Pinned maps: they outlive their modules, and several modules have them at a time. As in the kernel, a map whose pin is
//! removed stays until the last module that has it goes.

use super::elements::find;
use super::shared::{SharedMap, pin_of, place};
use super::{LONGEST_NAME, Modules, Settings, State, is_name};
use crate::api::{MapOf, NewModule, PinLine, PinList};
use std::sync::Arc;
use towpath_modules::{MAX_MAP_BYTES, Map, MapSpec, Module, Object};

/// Most pins of a service.
const MOST_PINS: usize = 64;
/// Most bytes that all pinned maps take.
const MOST_BYTES: u64 = MAX_MAP_BYTES;

/// May these maps be pinned under these names, beside those that are?
pub fn may_pin<'a>(shared: &[SharedMap], new: impl Iterator<Item = (&'a str, &'a MapSpec, u64)>) -> Result<(), String> {
    let pinned = shared.iter().filter(|shared| shared.pin.is_some());
    let (mut count, mut bytes) = pinned.fold((0, 0), |(count, bytes), one| (count + 1, bytes + one.map.bytes()));
    for (pin, spec, more) in new {
        if !is_name(pin) {
            return Err(format!("{pin:?} is no name of a pin: up to {LONGEST_NAME} letters, digits, -, _ and ."));
        }
        if let Some(why) = spec.own_alone() {
            return Err(format!("map {} cannot be pinned: {why}", spec.name));
        }
        if place(shared, pin).is_ok() {
            return Err(format!("there is a pin {pin:?} already: `towpath module unpin {pin}` removes it"));
        }
        (count, bytes) = (count + 1, more.saturating_add(bytes));
        if count > MOST_PINS {
            return Err(format!(
                "there are {MOST_PINS} pins, and no more are possible: `towpath module unpin` removes one"
            ));
        }
        if bytes > MOST_BYTES {
            let name = &spec.name;
            return Err(format!(
                "with map {name} the pinned maps would take {bytes} bytes, more than {MOST_BYTES}: \
                 `towpath module unpin` removes one"
            ));
        }
    }
    Ok(())
}

/// The maps, by number, that a new module of this object has in the place of new ones. Fails as well if a map that is to be
/// pinned under its own name cannot be.
pub fn given(
    state: &State,
    object: &Object,
    (new, rows): (&NewModule, usize),
) -> Result<Vec<Option<Arc<Map>>>, String> {
    for map in new.maps.keys() {
        if !object.maps.iter().any(|spec| spec.name == *map) {
            let names: Vec<_> = object.maps.iter().map(|spec| spec.name.as_str()).collect();
            let names = if names.is_empty() { "none".into() } else { names.join(", ") };
            return Err(format!("this object has no map {map:?}; it has {names}"));
        }
    }
    let of_pin = |spec: &MapSpec| {
        let pin = match new.maps.get(&spec.name) {
            Some(pin) => pin,
            None if spec.pinned && place(&state.shared, &spec.name).is_ok() => &spec.name,
            None => return Ok(None),
        };
        let map = &state.shared[place(&state.shared, pin)?].map;
        let name = &spec.name;
        match (spec.own_alone(), spec.differs(map.spec())) {
            (Some(why), _) => Err(format!("map {name} cannot be a pinned one: {why}")),
            (None, Some(why)) => Err(format!(
                "map {name} cannot be that of the pin {pin}: {why}. Define it as that one is, choose another pin by `--map`, or \
                 remove this one by `towpath module unpin {pin}`"
            )),
            (None, None) => Ok(Some(Arc::clone(map))),
        }
    };
    let given: Vec<_> = object.maps.iter().map(of_pin).collect::<Result<_, String>>()?;
    let pinned = object.maps.iter().zip(&given).filter(|(spec, given)| spec.pinned && given.is_none());
    may_pin(&state.shared, pinned.map(|(spec, _)| (spec.name.as_str(), spec, spec.bytes(rows))))?;
    Ok(given)
}

/// Pins the maps of a new module that ask for it, and were not given. That they may be, [`given`] has said.
pub fn pin_by_name(shared: &mut Vec<SharedMap>, module: &Module) {
    for map in module.maps().iter().filter(|map| map.spec().pinned) {
        if !shared.iter().any(|shared| shared.is(map)) {
            let (pin, map) = (Some(map.spec().name.clone()), Arc::clone(map));
            shared.push(SharedMap { pin, map, settings: Settings::new() });
        }
    }
}

/// Lets go of maps that have no pin, and that no module has.
pub fn forget_unused(state: &mut State) {
    let State { entries, shared } = state;
    let used = |one: &SharedMap| entries.iter().any(|entry| entry.attached.module.maps().iter().any(|map| one.is(map)));
    shared.retain(|one| one.pin.is_some() || used(one));
}

fn line(state: &State, pin: &str, map: &Arc<Map>) -> PinLine {
    let spec = map.spec();
    let has = |entry: &&super::Entry| entry.attached.module.maps().iter().any(|one| Arc::ptr_eq(one, map));
    PinLine {
        name: pin.into(),
        kind: spec.kind.name().into(),
        key_size: spec.key_size,
        value_size: spec.value_size,
        max_entries: spec.entries,
        bytes: map.bytes(),
        modules: state.entries.iter().filter(has).map(|entry| entry.added.name.clone()).collect(),
    }
}

pub fn list(all: &Modules) -> PinList {
    let state = all.lock();
    let pins = state.shared.iter().filter_map(|shared| Some(line(&state, shared.pin.as_deref()?, &shared.map)));
    let mut pins: Vec<_> = pins.collect();
    pins.sort_by(|one, other| one.name.cmp(&other.name));
    PinList { pins }
}

pub fn pin(all: &Modules, (name, map): (&str, &str), pin: Option<&str>) -> Result<PinLine, String> {
    let mut state = all.lock();
    let found = find(&state, &MapOf::Module { name: name.into(), map: map.into() })?;
    let (pin, found_map) = (pin.unwrap_or(map), &found.map);
    if let Some(pin) = pin_of(&state.shared, found_map) {
        return Err(format!("map {map} is pinned already, as {pin}: `towpath module unpin {pin}` removes that pin"));
    }
    may_pin(&state.shared, std::iter::once((pin, found_map.spec(), found_map.bytes())))?;
    if let Some(shared) = state.shared.iter_mut().find(|shared| shared.is(found_map)) {
        shared.pin = Some(pin.into());
    } else {
        let own = found.module.and_then(|(place, _)| state.entries.get_mut(place)?.settings.remove(map));
        let shared = SharedMap { pin: Some(pin.into()), map: Arc::clone(found_map), settings: own.unwrap_or_default() };
        state.shared.push(shared);
    }
    all.successor.write(&state)?;
    tracing::info!(module = name, map, pin, "map pinned");
    Ok(line(&state, pin, found_map))
}

pub fn unpin(all: &Modules, pin: &str) -> Result<PinLine, String> {
    let mut state = all.lock();
    let place = place(&state.shared, pin)?;
    let line = line(&state, pin, &state.shared[place].map);
    state.shared[place].pin = None;
    forget_unused(&mut state);
    all.successor.write(&state)?;
    tracing::info!(pin, "pin removed");
    Ok(line)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn spec(entries: u32) -> MapSpec {
        MapSpec::new("seen", 1, [4, 44, entries], 0).unwrap()
    }

    fn pinned(pin: &str, entries: u32) -> SharedMap {
        let map = Arc::new(Map::new(&spec(entries), 1, |_| None));
        SharedMap { pin: Some(pin.into()), map, settings: Settings::new() }
    }

    fn may(shared: &[SharedMap], pin: &str, spec: &MapSpec) -> Result<(), String> {
        may_pin(shared, std::iter::once((pin, spec, spec.bytes(1))))
    }

    #[test]
    fn pins_are_so_many_and_have_names_of_their_own() {
        let mut shared: Vec<_> = (1..MOST_PINS).map(|number| pinned(&format!("pin-{number}"), 1)).collect();
        assert_eq!(may(&shared, "last_1.x", &spec(1)), Ok(()));
        assert!(may(&shared, "pin-7", &spec(1)).unwrap_err().starts_with("there is a pin \"pin-7\" already: `towpath"));
        for name in ["", "a/b", "..\n", &"x".repeat(65)] {
            assert!(may(&shared, name, &spec(1)).unwrap_err().contains("is no name of a pin"), "{name:?}");
        }
        shared.push(pinned("last", 1));
        assert!(may(&shared, "more", &spec(1)).unwrap_err().starts_with("there are 64 pins, and no more are possible"));
        // The map of a pin that was removed is its modules'.
        shared[3].pin = None;
        assert_eq!(may(&shared, "more", &spec(1)), Ok(()));
        let both = ["more", "most"].map(|name| (name, spec(1), 64));
        let both = both.iter().map(|(name, spec, bytes)| (*name, spec, *bytes));
        assert!(may_pin(&shared, both).is_err(), "one too many");
    }

    #[test]
    fn pinned_maps_take_so_much_memory_together() {
        let shared = [pinned("one", 1 << 12)];
        let rest = (MOST_BYTES / 64) as u32 - (1 << 12);
        assert_eq!(may(&shared, "two", &spec(rest)), Ok(()));
        assert_eq!(
            may(&shared, "two", &spec(rest + 1)).unwrap_err(),
            "with map seen the pinned maps would take 1073741888 bytes, more than 1073741824: `towpath module unpin` removes one"
        );
        let programs = MapSpec::new("jumps", 3, [4, 4, 1], 0).unwrap();
        assert!(may(&shared, "two", &programs).unwrap_err().starts_with("map jumps cannot be pinned: a prog_array"));
    }
}
