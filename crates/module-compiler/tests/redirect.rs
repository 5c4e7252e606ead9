//! Frames that go over other interfaces: each way gives the action that it gives in the kernel, and the interface.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Three, may_verify, object_file, one_cpu, run};
use towpath_modules::verify::update_map;
use towpath_modules::{Action, Instance, Map, MapKind, MapSpec, Object};

/// The kernel takes interfaces that there are. The loopback interface is number 1.
const INTERFACE: u32 = 1;

#[test]
fn each_way_over_another_interface_gives_the_action_that_it_gives_in_the_kernel() {
    let Some(file) = object_file("crates/module-compiler/tests/programs/redirect.bpf.c") else { return };
    if !may_verify() {
        return;
    }
    one_cpu();
    let object = Object::parse(&file).unwrap();
    let mut three = Three::new(&object, "redirects").unwrap();
    for (number, spec) in object.maps.iter().enumerate() {
        let mut value = INTERFACE.to_ne_bytes().to_vec();
        value.resize(spec.value_size as usize, 0);
        for key in [1u32, 3] {
            update_map(&three.accepted.maps[number], &key.to_ne_bytes(), &value).unwrap();
            for instance in three.instances() {
                instance.module().maps()[number].set(&key.to_ne_bytes(), &value).unwrap();
            }
        }
    }
    for how in 0..7 {
        for key in 0..6 {
            for flags in 0..4 {
                let mut frame = vec![how, key, flags];
                frame.resize(60, 9);
                let action = three.agree("redirects", &frame);
                let expected = match (how, key) {
                    (0, _) if flags == 0 => Some(u32::from(key)),
                    (1..=3, 1 | 3) => Some(INTERFACE),
                    _ => None,
                };
                assert_eq!(action == Action::Redirect, expected.is_some(), "{frame:?}");
                let over = |instance: &mut Instance| {
                    run(instance, &frame);
                    instance.over()
                };
                if let Some(interface) = expected {
                    assert_eq!([over(&mut three.compiled), over(&mut three.interpreted)], [interface; 2]);
                }
            }
        }
    }
    // All interfaces of a map at once are too many: the kernel sends a copy over each.
    for (how, flags) in [(1, 8), (2, 8), (1, 24), (2, 16)] {
        let mut frame = vec![how, 1, flags];
        frame.resize(60, 9);
        let results = [run(&mut three.compiled, &frame).0, run(&mut three.interpreted, &frame).0];
        assert_eq!(results, [Action::Aborted; 2], "{frame:?}");
    }
    assert_eq!(three.interpreted.faults, 0);
}

#[test]
fn maps_of_interfaces_take_and_show_what_the_kernels_do() {
    let spec = |kind: MapKind, value| MapSpec::new("ports", kind.number(), [4, value, 3], 0).unwrap();
    let [one, two] = [1u32, 2].map(u32::to_ne_bytes);
    let interface = |index: u32, bytes: usize| {
        let mut value = index.to_ne_bytes().to_vec();
        value.resize(bytes, 0);
        value
    };
    for kind in [MapKind::DevMap, MapKind::DevMapHash] {
        for bytes in [4, 8] {
            let map = Map::new(&spec(kind, bytes), 2, |_| None);
            let bytes = bytes as usize;
            assert!(map.elements().is_empty());
            map.set(&two, &interface(77, bytes)).unwrap();
            assert_eq!(map.elements(), [(two.to_vec(), vec![interface(77, bytes)])]);
            assert!(!map.get(&one, &mut vec![0; bytes]), "no interface is there");
            let mut program = interface(77, 8);
            program[4] = 5;
            if bytes == 8 {
                assert_eq!(map.set(&one, &program), Err(libc::EOPNOTSUPP));
                // A descriptor that is none.
                program[4..].fill(0xff);
                map.set(&two, &program).unwrap();
                assert_eq!(map.elements(), [(two.to_vec(), vec![program])]);
            }
            match kind {
                MapKind::DevMap => {
                    assert_eq!(map.set(&3u32.to_ne_bytes(), &interface(7, bytes)), Err(libc::E2BIG));
                    map.set(&two, &interface(0, bytes)).unwrap();
                    map.remove(&one).unwrap();
                }
                _ => {
                    assert_eq!(map.set(&two, &interface(0, bytes)), Err(libc::ENODEV));
                    map.remove(&two).unwrap();
                    assert_eq!(map.remove(&one), Err(libc::ENOENT));
                }
            }
            assert!(map.elements().is_empty());
        }
        for sizes in [[8, 4, 3], [4, 2, 3], [4, 16, 3], [4, 4, 0]] {
            assert!(MapSpec::new("ports", kind.number(), sizes, 0).is_err(), "{sizes:?}");
        }
    }
}
