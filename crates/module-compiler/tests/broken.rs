//! Objects that are damaged are refused, or run without harm. Nothing panics.
#![allow(clippy::unwrap_used)]

mod common;

use common::{interpreted, object_file, run};
use towpath_modules::{Instance, LoadError, Object};

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

/// How an object is damaged: bytes of any value, or numbers of headers and tables, and perhaps its end is missing.
#[derive(Clone, Debug, bolero::TypeGenerator)]
struct Damage {
    bytes: Vec<(u32, u8)>,
    numbers: Vec<(u32, u8)>,
    end: Option<u32>,
    compiles: bool,
}

#[test]
fn fuzz_damaged_objects() {
    let sources = ["crates/module-compiler/tests/programs/many.bpf.c", "bpf/modules/firewall.bpf.c"];
    let Some(files) = sources.into_iter().map(object_file).collect::<Option<Vec<_>>>() else { return };
    assert!(files.iter().all(|file| Object::parse(file).is_ok()));
    bolero::check!().with_type::<(Damage, bool)>().with_iterations(200).for_each(|(damage, second)| {
        let mut broken = files[usize::from(*second)].clone();
        let length = broken.len() as u32;
        for (place, value) in damage.bytes.iter().take(6) {
            broken[(place % length) as usize] = *value;
        }
        for (place, value) in damage.numbers.iter().take(2) {
            let value = [0, 1, 0x7fff_ffff, u32::MAX, 0x10000][usize::from(*value) % 5];
            broken[(place % (length / 4)) as usize * 4..][..4].copy_from_slice(&value.to_le_bytes());
        }
        if let Some(end) = damage.end.filter(|end| end % 4 == 0) {
            broken.truncate((end % length) as usize);
        }
        use_it(&broken, damage.compiles && damage.numbers.len() % 4 == 0);
    });
}

#[test]
fn fuzz_any_bytes_as_an_object() {
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
