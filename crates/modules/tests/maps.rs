//! Maps as the service uses them, beside the programs.
#![allow(clippy::unwrap_used)]

use towpath_modules::{Map, MapKind, MapSpec};

#[test]
fn a_value_is_read_and_changed_in_part_by_whoever_has_its_key() {
    let spec = MapSpec {
        name: "own".into(),
        kind: MapKind::Hash,
        key_size: 4,
        value_size: 12,
        entries: 8,
        flags: 0,
        initial: Vec::new(),
        read_only: false,
        programs: Vec::new(),
    };
    let map = Map::new(&spec, 1, |_| None);
    let (key, mut value) = (5u32.to_ne_bytes(), [0; 12]);
    assert!(!map.get(&key, &mut value) && !map.put(&key, 0, &[1]), "there is none");
    map.set(&key, &[7; 12]).unwrap();
    assert!(map.put(&key, 10, &[1, 2]) && map.put(&key, 12, &[]));
    assert!(map.get(&key, &mut value));
    assert_eq!(value, [7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 1, 2]);
    assert!(!map.put(&key, 11, &[1, 2]) && !map.put(&key, usize::MAX, &[1]), "beyond its end");
    assert!(!map.put(&key[..3], 0, &[1]) && !map.get(&key, &mut [0; 11]), "of another length");
}
