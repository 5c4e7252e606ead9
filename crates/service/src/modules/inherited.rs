//! Modules and pinned maps outlive a worker process that dies, with the elements of maps that an operator has set. What
//! programs have written to their maps does not.

use super::pins;
use super::shared::SharedMap;
use super::{Entry, MOST, Modules, Settings, State, add, elements};
use crate::api::{MapOf, NewModule};
use crate::successor_memory::SuccessorMemory;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use towpath_modules::{MAX_MAP_BYTES, Map, MapSpec};
use towpath_runtime::Stack;

/// Most bytes that maps without a pin take, which modules have in common: those of all modules.
const MOST_BYTES: u64 = MOST as u64 * MAX_MAP_BYTES;

/// Where the modules are written.
#[derive(Debug, Default)]
pub struct Inherited(OnceLock<SuccessorMemory>);

/// What is written.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Left {
    /// Maps that are not a module's own.
    maps: Vec<LeftMap>,
    modules: Vec<LeftModule>,
}

/// Keys and values in words.
type Words = Vec<(String, String)>;

#[derive(Debug, Serialize, Deserialize)]
struct LeftMap {
    pin: Option<String>,
    name: String,
    kind: u32,
    /// Of a key, of a value, and the most elements.
    sizes: [u32; 3],
    flags: u32,
    settings: Words,
}

#[derive(Debug, Serialize, Deserialize)]
struct LeftModule {
    added: NewModule,
    /// By their names, its maps that are not its own: their places among those.
    shared: BTreeMap<String, usize>,
    /// By map.
    settings: BTreeMap<String, Words>,
}

fn words(settings: &Settings) -> Words {
    settings.values().cloned().collect()
}

impl LeftMap {
    fn of(shared: &SharedMap) -> Self {
        let MapSpec { name, kind, key_size, value_size, entries, flags, .. } = shared.map.spec().clone();
        let (pin, settings) = (shared.pin.clone(), words(&shared.settings));
        Self { pin, name, kind: kind.number(), sizes: [key_size, value_size, entries], flags, settings }
    }

    /// The map with its elements, beside these. The memory is another process's: it may say anything.
    fn shared(&self, rows: usize, shared: &[SharedMap]) -> Result<SharedMap, String> {
        let spec = MapSpec::new(&self.name, self.kind, self.sizes, self.flags).map_err(|why| why.to_string())?;
        let bytes = spec.bytes(rows);
        match &self.pin {
            Some(pin) => pins::may_pin(shared, std::iter::once((pin.as_str(), &spec, bytes)))?,
            None if spec.own_alone().is_some() => return Err("no other module can have it".into()),
            None => {
                let others = shared.iter().filter(|one| one.pin.is_none()).map(|one| one.map.bytes());
                let all = others.fold(bytes, u64::saturating_add);
                if all > MOST_BYTES {
                    return Err(format!("maps without a pin would take {all} bytes, more than {MOST_BYTES}"));
                }
            }
        }
        let map = Arc::new(Map::new(&spec, rows, |_| None));
        let mut settings = Settings::new();
        for (key, value) in &self.settings {
            match elements::set_element(None, &map, key, value) {
                Ok((bytes, _)) => drop(settings.insert(bytes, (key.clone(), value.clone()))),
                Err(why) => tracing::error!(map = self.name, key, why, "an element is lost"),
            }
        }
        Ok(SharedMap { pin: self.pin.clone(), map, settings })
    }
}

impl LeftModule {
    fn of(entry: &Entry, maps: &[SharedMap]) -> Self {
        let place = |(name, map): (&str, &Arc<Map>)| Some((name.into(), maps.iter().position(|one| one.is(map))?));
        Self {
            added: (*entry.added).clone(),
            shared: entry.attached.module.named_maps().filter_map(place).collect(),
            settings: entry.settings.iter().map(|(map, settings)| (map.clone(), words(settings))).collect(),
        }
    }

    /// Adds it, with these maps by their places. The log tells which elements are lost.
    fn come(&self, (all, stack): (&Modules, &dyn Stack), maps: &[Option<Arc<Map>>]) -> Result<(), String> {
        let mut shared = BTreeMap::new();
        for (name, place) in &self.shared {
            let map = maps.get(*place).cloned().flatten();
            shared.insert(name.clone(), map.ok_or_else(|| format!("its map {name} is lost"))?);
        }
        add((all, stack), &self.added, Some(&shared))?;
        let name = &self.added.name;
        for (map, settings) in &self.settings {
            let of = MapOf::Module { name: name.clone(), map: map.clone() };
            for (key, value) in settings {
                if let Err(why) = elements::set(all, &of, key, value) {
                    tracing::error!(name, map, key, why, "an element is lost");
                }
            }
        }
        Ok(())
    }
}

impl Inherited {
    /// Writes these for the next worker process. Without a broker there is none.
    pub fn write(&self, state: &State) -> Result<(), String> {
        let Some(memory) = self.0.get() else { return Ok(()) };
        let modules = state.entries.iter().map(|entry| LeftModule::of(entry, &state.shared)).collect();
        let left = Left { maps: state.shared.iter().map(LeftMap::of).collect(), modules };
        let written = serde_json::to_vec(&left).map_err(std::io::Error::from).and_then(|text| memory.write(&text));
        written.map_err(|why| format!("it is done, but would be lost if the worker process died: {why}"))
    }
}

impl Modules {
    /// Begins with the modules and pins of the last worker process, and writes all later changes. The log tells what does not
    /// come back.
    pub fn inherit(&self, stack: &dyn Stack, memory: SuccessorMemory) {
        let left = memory.read().and_then(|text| match text.is_empty() {
            true => Ok(Left::default()),
            false => serde_json::from_slice::<Left>(&text).map_err(std::io::Error::from),
        });
        let left = left.unwrap_or_else(|error| {
            tracing::error!(%error, "the modules are lost: nobody knows which there were; add them again");
            Left::default()
        });
        self.take_over(stack, &left);
        let _ = self.successor.0.set(memory);
    }

    fn take_over(&self, stack: &dyn Stack, left: &Left) {
        let Some(rows) = stack.module_rows() else { return };
        let mut maps = Vec::new();
        for map in &left.maps {
            let mut state = self.lock();
            let come = map.shared(rows, &state.shared).inspect_err(|why| {
                tracing::error!(map = map.name, pin = map.pin, why, "a pinned map is lost");
            });
            maps.push(come.as_ref().ok().map(|shared| Arc::clone(&shared.map)));
            state.shared.extend(come);
        }
        for module in &left.modules {
            if let Err(why) = module.come((self, stack), &maps) {
                tracing::error!(
                    name = module.added.name,
                    why,
                    "a module is not as it was before the worker process died"
                );
            }
        }
        pins::forget_unused(&mut self.lock());
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn left(pin: Option<&str>, kind: u32, sizes: [u32; 3]) -> LeftMap {
        let settings = vec![("7".into(), "10.0.0.1".into())];
        LeftMap { pin: pin.map(str::to_owned), name: "seen".into(), kind, sizes, flags: 1, settings }
    }

    #[test]
    fn a_map_comes_back_with_its_elements_and_is_left_as_it_came() {
        for pin in [Some("total"), None] {
            let shared = left(pin, 1, [4, 4, 8]).shared(1, &[]).unwrap();
            assert_eq!(shared.pin.as_deref(), pin);
            assert_eq!(shared.map.elements(), [(vec![7, 0, 0, 0], vec![vec![10, 0, 0, 1]])]);
            let again = LeftMap::of(&shared);
            assert_eq!(format!("{again:?}"), format!("{:?}", left(pin, 1, [4, 4, 8])));
            // An element that does not fit is lost alone.
            let other = left(pin, 1, [2, 2, 8]).shared(1, &[]).unwrap();
            assert!(other.map.elements().is_empty() && other.settings.is_empty());
        }
    }

    /// The process that has written it may have been taken over.
    #[test]
    fn what_cannot_be_a_shared_map_is_refused_whoever_has_left_it() {
        let total = left(Some("total"), 1, [4, 4, 8]).shared(1, &[]).unwrap();
        let shared = [total];
        for (pin, kind, sizes, why) in [
            (Some("total"), 1, [4, 4, 8], "there is a pin \"total\" already"),
            (Some("a/b"), 1, [4, 4, 8], "no name of a pin"),
            (None, 1, [0, 4, 8], "its keys have no bytes"),
            (None, 1, [4, 0, 8], "its values have no bytes"),
            (None, 1, [4, 4, 0], "no max_entries"),
            (None, 1, [4, u32::MAX, u32::MAX], "it would take"),
            (None, 27, [0, 0, 5000], "power of two"),
            (None, 4, [4, 4, 8], "no maps of type 4"),
            (None, 99, [4, 4, 8], "no maps of type 99"),
            (None, 3, [4, 4, 8], "no other module can have it"),
            (Some("jumps"), 3, [4, 4, 8], "cannot be pinned: a prog_array"),
            (Some("large"), 2, [4, (1 << 29) - 20, 2], "the pinned maps would take"),
        ] {
            let said = left(pin, kind, sizes).shared(1, &shared).unwrap_err();
            assert!(said.contains(why), "{pin:?} {kind} {sizes:?}: {said}");
        }
        // Those that modules have in common are as many as modules can have, however many flow groups there are.
        let said = left(None, 6, [4, 1 << 20, 1000]).shared(64, &shared).unwrap_err();
        assert!(said.starts_with("maps without a pin would take "), "{said}");
    }
}
