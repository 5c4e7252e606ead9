//! Maps: values, and those with a copy for each flow group.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use towpath_modules::{LoadError, Map, MapKind, MapSpec, Module, Object};

const KINDS: [MapKind; 3] = [MapKind::PerCpuArray, MapKind::PerCpuHash, MapKind::LruPerCpuHash];

/// Keys of 4 bytes and values of 12, so that a value does not end where the next one begins.
fn spec(kind: MapKind) -> MapSpec {
    MapSpec {
        name: "own".into(),
        kind,
        key_size: 4,
        value_size: 12,
        entries: 8,
        flags: 0,
        initial: Vec::new(),
        read_only: false,
        programs: Vec::new(),
        pinned: false,
    }
}

fn value(map: &Map, key: u32, group: u32) -> Option<[u8; 12]> {
    // SAFETY: the key has as many bytes as the map's, and a value that is there has 12.
    unsafe {
        let at = map.lookup(key.to_ne_bytes().as_ptr(), group);
        (!at.is_null()).then(|| at.cast::<[u8; 12]>().read_unaligned())
    }
}

fn update(map: &Map, key: u32, value: [u8; 12], flags: u64, group: u32) -> i64 {
    // SAFETY: both have as many bytes as the map's.
    unsafe { map.update(key.to_ne_bytes().as_ptr(), value.as_ptr(), flags, group) }
}

#[test]
fn a_flow_group_sets_its_own_value_and_a_new_key_begins_with_zeros_for_the_others() {
    for kind in KINDS {
        let map = Map::new(&spec(kind), 3, |_| None);
        assert_eq!(update(&map, 5, [7; 12], 0, 1), 0, "{kind:?}");
        assert_eq!(
            [0, 1, 2].map(|group| value(&map, 5, group)),
            [Some([0; 12]), Some([7; 12]), Some([0; 12])],
            "{kind:?}"
        );
        assert_eq!(update(&map, 5, [8; 12], 2, 2), 0, "{kind:?}: it exists");
        assert_eq!(
            [0, 1, 2].map(|group| value(&map, 5, group)),
            [Some([0; 12]), Some([7; 12]), Some([8; 12])],
            "{kind:?}"
        );
        let shown = map.elements().into_iter().find(|(key, _)| *key == 5u32.to_ne_bytes()).unwrap().1;
        assert_eq!(shown, [vec![0; 12], vec![7; 12], vec![8; 12]], "{kind:?}");
        // Who sets it from outside sets it for all.
        map.set(&5u32.to_ne_bytes(), &[9; 12]).unwrap();
        assert_eq!([0, 1, 2].map(|group| value(&map, 5, group)), [Some([9; 12]); 3], "{kind:?}");
    }
}

/// An element that is used again has nothing of the key that had it before.
#[test]
fn a_removed_key_leaves_nothing_behind() {
    for kind in [MapKind::PerCpuHash, MapKind::LruPerCpuHash] {
        let map = Map::new(&spec(kind), 2, |_| None);
        for key in 0..40u32 {
            map.set(&key.to_ne_bytes(), &[0xff; 12]).unwrap();
            map.remove(&key.to_ne_bytes()).unwrap();
            assert_eq!(value(&map, key, 0), None);
            assert_eq!(update(&map, key + 100, [3; 12], 1, 1), 0);
            assert_eq!([0, 1].map(|group| value(&map, key + 100, group)), [Some([0; 12]), Some([3; 12])], "{kind:?}");
            map.remove(&(key + 100).to_ne_bytes()).unwrap();
        }
    }
}

#[test]
fn a_program_may_have_a_value_and_not_what_is_between_values() {
    for kind in KINDS {
        let map = Map::new(&spec(kind), 3, |_| None);
        map.set(&1u32.to_ne_bytes(), &[1; 12]).unwrap();
        for group in 0..3 {
            // SAFETY: the key has as many bytes as the map's.
            let at = unsafe { map.lookup(1u32.to_ne_bytes().as_ptr(), group) } as usize;
            assert!(map.has_value(at, 12, true) && map.has_value(at + 8, 4, true), "{kind:?} {group}");
            assert!(!map.has_value(at, 13, false) && !map.has_value(at + 12, 1, false), "{kind:?} {group}");
        }
    }
}

#[test]
fn maps_that_are_too_large_together_are_refused() {
    let mut object = Object::null();
    object.maps = vec![MapSpec { entries: 1 << 22, ..spec(MapKind::PerCpuHash) }; 8];
    assert!(object.fits(1).is_ok());
    assert!(matches!(object.fits(16), Err(LoadError::Memory { groups: 16, .. })));
    let why = Module::interpreted(&object, 0, 16).err().unwrap().to_string();
    assert!(
        why.starts_with("its maps would take ")
            && why.ends_with(" for 16 flow groups, more than 1073741824: give them fewer entries"),
        "{why}"
    );
}

#[test]
fn a_value_is_read_and_changed_in_part_by_whoever_has_its_key() {
    let map = Map::new(&spec(MapKind::Hash), 1, |_| None);
    let (key, mut value) = (5u32.to_ne_bytes(), [0; 12]);
    assert!(!map.get(&key, &mut value) && !map.put(&key, 0, &[1]), "there is none");
    map.set(&key, &[7; 12]).unwrap();
    assert!(map.put(&key, 10, &[1, 2]) && map.put(&key, 12, &[]));
    assert!(map.get(&key, &mut value));
    assert_eq!(value, [7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 1, 2]);
    assert!(!map.put(&key, 11, &[1, 2]) && !map.put(&key, usize::MAX, &[1]), "beyond its end");
    assert!(!map.put(&key[..3], 0, &[1]) && !map.get(&key, &mut [0; 11]), "of another length");
}

/// A module of an object with this map alone, which is given.
fn sharing(spec: &MapSpec, given: &Arc<Map>) -> Result<Module, LoadError> {
    let object = Object { maps: vec![spec.clone()], ..Object::null() };
    // SAFETY: nothing is compiled.
    unsafe { Module::with_maps(&object, 0, 2, None, &[Some(Arc::clone(given))]) }
}

#[test]
fn modules_have_a_map_in_common_under_the_names_that_each_gives_it() {
    for kind in KINDS {
        let map = Arc::new(Map::new(&spec(kind), 2, |_| None));
        let modules = ["one", "two"].map(|name| sharing(&MapSpec { name: name.into(), ..spec(kind) }, &map).unwrap());
        modules[0].maps()[0].set(&5u32.to_ne_bytes(), &[7; 12]).unwrap();
        assert_eq!([0, 1].map(|group| value(&modules[1].maps()[0], 5, group)), [Some([7; 12]); 2], "{kind:?}");
        let names = modules.each_ref().map(|module| module.named_maps().next().unwrap().0);
        assert_eq!(names, ["one", "two"]);
        drop(modules);
        assert_eq!((value(&map, 5, 1), Arc::strong_count(&map)), (Some([7; 12]), 1), "{kind:?}");
    }
}

#[test]
fn a_map_that_is_not_as_the_object_defines_it_is_refused_with_each_difference() {
    let map = Arc::new(Map::new(&spec(MapKind::Hash), 2, |_| None));
    let why = |spec: MapSpec| sharing(&spec, &map).unwrap_err().to_string();
    let own = || spec(MapKind::Hash);
    for (other, difference) in [
        (MapSpec { kind: MapKind::LruHash, ..own() }, "it is a hash, and not a lru_hash"),
        (MapSpec { key_size: 8, ..own() }, "its key size is 4, and not 8"),
        (MapSpec { value_size: 8, ..own() }, "its value size is 12, and not 8"),
        (MapSpec { entries: 9, flags: 1, ..own() }, "its max_entries is 8, and not 9; its flags is 0, and not 1"),
    ] {
        assert_eq!(why(other), format!("map own cannot be the pinned one: {difference}"));
    }
    assert!(sharing(&MapSpec { pinned: true, ..own() }, &map).is_ok(), "who asks for it says nothing of its shape");
}

#[test]
fn constants_variables_programs_and_the_stacks_own_maps_are_their_modules_alone() {
    let own = || MapSpec { entries: 1, ..spec(MapKind::Array) };
    for (spec, why) in [
        (MapSpec { read_only: true, initial: vec![1; 12], ..own() }, "it is constants of the program"),
        (MapSpec { initial: vec![0; 12], ..own() }, "it is variables of the program"),
        (MapSpec { kind: MapKind::ProgArray, value_size: 4, ..own() }, "a prog_array names programs of its own module"),
        (MapSpec { name: "towpath_splices".into(), ..own() }, "the stack writes to it"),
    ] {
        let said = spec.own_alone().unwrap();
        assert!(said.starts_with(why), "{said}");
        // Neither as what is given, nor in the place of what is.
        let map = Arc::new(Map::new(&spec, 2, |_| None));
        assert!(sharing(&MapSpec { name: "own".into(), ..own() }, &map).is_err());
        let map = Arc::new(Map::new(&MapSpec { name: "own".into(), initial: Vec::new(), ..spec.clone() }, 2, |_| None));
        assert!(sharing(&spec, &map).is_err());
    }
    assert_eq!(own().own_alone(), None);
}
