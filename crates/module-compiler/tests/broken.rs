//! Objects that are damaged are refused, or run without harm. Nothing panics.
#![allow(clippy::unwrap_used)]

mod common;

use common::{interpreted, object_file, run};
use towpath_modules::{Instance, LoadError, Object};
use towpath_rng::Rng;

/// Whatever it is, it is refused, or it can be run.
fn use_it(file: &[u8], compiles: bool) {
    let Ok(object) = Object::parse(file) else { return };
    if object.maps.iter().map(|map| u64::from(map.entries) * u64::from(map.value_size)).sum::<u64>() > 1 << 24 {
        return;
    }
    for (number, program) in object.programs.iter().enumerate() {
        if object.programs.iter().any(|other| towpath_modules::check(other, object.maps.len()).is_err()) {
            continue;
        }
        let mut instance = Instance::new(&interpreted(&object, number), 0);
        let frame: Vec<u8> = (0..80).collect();
        let _ = run(&mut instance, &frame);
        // The compiler gets what no verifier has seen, but nobody runs it.
        if compiles {
            let _ = towpath_module_compiler::compile(std::slice::from_ref(program));
        }
    }
}

#[test]
fn damaged_objects_never_panic() {
    let sources = ["crates/module-compiler/tests/programs/many.bpf.c", "bpf/modules/firewall.bpf.c"];
    let mut rng = Rng::new(3);
    for source in sources {
        let Some(file) = object_file(source) else { return };
        assert!(Object::parse(&file).is_ok());
        for round in 0..200 {
            let mut broken = file.clone();
            match round % 3 {
                0 => broken.truncate(rng.below(file.len() as u64) as usize),
                1 => {
                    for _ in 0..rng.between(1, 6) {
                        let place = rng.below(file.len() as u64) as usize;
                        broken[place] = rng.next_u64() as u8;
                    }
                }
                // The numbers of headers and tables.
                _ => {
                    let place = rng.below(file.len() as u64 / 4) as usize * 4;
                    let value = [0, 1, 0x7fff_ffff, u32::MAX, 0x10000][rng.below(5) as usize];
                    broken[place..place + 4].copy_from_slice(&value.to_le_bytes());
                }
            }
            use_it(&broken, round % 8 == 0);
        }
    }
}

#[test]
fn any_bytes_are_an_object_or_refused() {
    bolero::check!().with_iterations(20_000).for_each(|bytes: &[u8]| {
        let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x01\0\xf7\0".to_vec();
        file.extend(bytes);
        use_it(&file, false);
    });
}

#[test]
fn an_object_says_why_it_is_no_module() {
    assert_eq!(Object::parse(b"text"), Err(LoadError::NotElf));
    let own = std::fs::read("/proc/self/exe").unwrap();
    assert!(matches!(Object::parse(&own), Err(LoadError::Machine(_))));
}
