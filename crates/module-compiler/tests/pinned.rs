//! Modules that have maps in common: what one writes, the other reads, compiled and interpreted.
#![allow(clippy::unwrap_used)]

mod common;

use common::{interpreted, may_verify, object_file, run};
use std::sync::Arc;
use towpath_module_compiler::compile;
use towpath_modules::code::Code;
use towpath_modules::verify::verify;
use towpath_modules::{Action, Instance, Map, MapKind, Module, Object};

#[test]
fn modules_count_in_the_maps_that_they_have_in_common_whatever_their_kind() {
    let Some(file) = object_file("crates/module-compiler/tests/programs/pinned.bpf.c") else { return };
    let object = Object::parse(&file).unwrap();
    let (pinned, own): (Vec<_>, Vec<_>) = object.maps.iter().partition(|map| map.pinned);
    assert_eq!((pinned.len(), own.len(), own[0].name.as_str()), (8, 1, ".bss"));
    let first = interpreted(&object, 0);
    let given: Vec<Option<Arc<Map>>> =
        first.maps().iter().map(|map| map.spec().pinned.then(|| Arc::clone(map))).collect();
    let mut modules = vec![Arc::clone(&first)];
    // SAFETY: nothing is compiled.
    modules.push(Arc::new(unsafe { Module::with_maps(&object, 0, 1, None, &given) }.unwrap()));
    if may_verify() {
        drop(verify(&object).unwrap());
        let code = compile(&object.programs).unwrap();
        for _ in 0..2 {
            let compiled = Some((Code::new(&code.code).unwrap(), &code.functions[..]));
            // SAFETY: the verifier has accepted the programs, and the code was made of them.
            modules.push(Arc::new(unsafe { Module::with_maps(&object, 0, 1, compiled, &given) }.unwrap()));
        }
    }
    let count = modules.len() as u64;
    for module in &modules {
        let mut instance = Instance::new(module, 0);
        for _ in 0..2 {
            assert_eq!(run(&mut instance, &[0; 60]).0, Action::Pass);
        }
        assert_eq!(instance.faults, 0);
    }
    drop(modules);
    for map in first.maps() {
        let elements = map.elements();
        let values: Vec<&[u8]> = elements.iter().map(|(_, values)| values[0].as_slice()).collect();
        let number = |number: u64| number.to_ne_bytes();
        match map.spec().kind {
            // Its own variable: each module has counted for itself.
            MapKind::Array if !map.spec().pinned => assert_eq!(values, [number(2)]),
            MapKind::Array | MapKind::PerCpuArray => assert_eq!(values[3], number(2 * count)),
            MapKind::RingBuf => assert_eq!(values, [number(1), number(2)].repeat(count as usize)),
            _ => assert_eq!(values, [number(2 * count)], "{}", map.spec().name),
        }
    }
}
