//! Objects that were compiled against types of some kernel (CO-RE) run with those of another one.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Three, compiled, frames, interpreted, may_verify, object_file, object_file_with, packet, run, vmlinux_h};
use std::process::Command;
use std::sync::Arc;
use towpath_modules::kernel_types::{Resolved, resolve, resolve_with};
use towpath_modules::{Action, Instance, LoadError, Module, Object};
use towpath_rng::Rng;

const PROGRAM: &str = "crates/module-compiler/tests/programs/kernel_types.bpf.c";
const MISSING: &str = "crates/module-compiler/tests/programs/kernel_types_missing.bpf.c";
const KERNEL: &str = "crates/module-compiler/tests/programs/types_of_a_kernel.c";

/// The types of a kernel, of a source file.
fn types() -> Option<Vec<u8>> {
    let folder = std::env::temp_dir();
    let id = format!("{}-{:?}", std::process::id(), std::thread::current().id());
    let (object, types) =
        (folder.join(format!("towpath-types-{id}.o")), folder.join(format!("towpath-types-{id}.btf")));
    std::fs::write(&object, object_file(KERNEL)?).unwrap();
    let mut copy = Command::new("llvm-objcopy");
    copy.arg(format!("--dump-section=.BTF={}", types.display())).arg(&object).arg("/dev/null");
    assert!(copy.status().expect("llvm-objcopy: apt-get install -y llvm").success());
    let bytes = std::fs::read(&types).unwrap();
    [object, types].iter().for_each(|file| std::fs::remove_file(file).unwrap());
    Some(bytes)
}

/// A packet that is a `struct moved` of the kernel's.
fn moved() -> Vec<u8> {
    let mut packet = vec![0; 80];
    let mut put = |at: usize, bytes: &[u8]| packet[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &0x0102_0304u32.to_le_bytes());
    put(8, &0x1122_3344_5566_7788u64.to_le_bytes());
    // The second of `inner`, and of that the second half.
    put(16 + 4 + 2, &0xabcdu16.to_le_bytes());
    put(28, &[0b0101_1111, 0xff]);
    put(30, &0x7777u16.to_le_bytes());
    put(32, &0x8877_6655_4433_2211u64.to_le_bytes());
    packet
}

fn results(module: &Arc<Module>) -> Vec<u64> {
    let mut instance = Instance::new(module, 0);
    assert_eq!(run(&mut instance, &moved()), (Action::Pass, moved()));
    assert_eq!(instance.faults, 0);
    let map = module.named_maps().find(|(name, _)| *name == "results").unwrap().1;
    map.elements().iter().map(|(_, values)| u64::from_le_bytes(values[0][..].try_into().unwrap())).collect()
}

#[test]
fn each_relocation_has_its_value_in_the_kernel() {
    let Some((file, kernel)) = object_file(PROGRAM).zip(types()) else { return };
    assert_eq!(Object::parse(&file), Err(LoadError::Unrelocated), "what it was compiled with is not the kernel's");
    let Resolved { file, missing } = resolve_with(file, || Ok(kernel.clone())).unwrap();
    // A way that is never taken may rely on missing fields.
    assert_eq!(missing, ["struct moved.gone", "struct nowhere.field"]);
    let object = Object::parse(&file).unwrap();
    let mut modules = vec![interpreted(&object, 0)];
    if may_verify() {
        modules.push(compiled(&object, 0).unwrap().1);
    }
    for module in modules {
        let results = results(&module);
        let expected = [
            (0, 0x7777, "a field that lies elsewhere"),
            (1, 0x1122_3344_5566_7788, "one that is larger, in a nameless union"),
            (2, 0xabcd, "a field of an element of an array"),
            (3, 0b1011, "a bit field that is wider, and lies elsewhere"),
            (4, 0x8877_6655_4433_2211, "a pointer"),
            (5, 8, "its bytes"),
            (6, 99, "one that is not there"),
            (7, 1, "one by another name of its type"),
            (8, 43, "behind the end of a struct"),
            (9, 1 + 4, "types"),
            (10, 40, "the bytes of a type"),
            (11, 7, "an element of an enum"),
            (12, 3_000_000_000, "a large one"),
            (13, 29, "the place of a field"),
            (14, 2, "which elements there are"),
            (15, 1, "the number of a type"),
            (16, 1, "its number in the object"),
            (17, 30, "in a function of its own"),
            (18, 0x0102_0304, "a smaller one than the program thinks"),
            (19, 0, "of a type that is not there"),
        ];
        for (at, value, what) in expected {
            assert_eq!(results[at], value, "{what} ({at})");
        }
    }
    // What was resolved is not changed again, and nobody is asked for types.
    let again = resolve_with(file.clone(), || Err(LoadError::NotElf)).unwrap();
    assert_eq!(again, Resolved { file, missing: Vec::new() });
}

#[test]
fn headers_of_packets_are_read_as_with_the_headers_of_linux() {
    const HEADERS: &str = "crates/module-compiler/tests/programs/headers.bpf.c";
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernel-types");
    std::fs::create_dir_all(&folder).unwrap();
    let Some(plain) = object_file(HEADERS).filter(|_| may_verify()) else { return };
    std::fs::write(folder.join("vmlinux.h"), vmlinux_h()).unwrap();
    let include = format!("-I{}", folder.display());
    let file = object_file_with(HEADERS, &["-DKERNEL_TYPES", "-Wno-missing-declarations", &include]).unwrap();
    assert_eq!(Object::parse(&file), Err(LoadError::Unrelocated));
    let resolved = resolve(file).unwrap();
    assert_eq!(resolved.missing, [""; 0]);
    let (file, mut rng) = (resolved.file, Rng::new(11));
    let both = [plain, file].map(|file| Object::parse(&file).unwrap());
    let [mut plain, mut resolved] = both.map(|object| Three::new(&object, "headers").unwrap());
    for _ in 0..frames() {
        let bytes = packet(&mut rng);
        assert_eq!(plain.agree("plain", &bytes), resolved.agree("of the kernel", &bytes), "{bytes:02x?}");
    }
    let seen = |three: &Three| {
        let mut seen: Vec<_> = three.compiled.module().maps()[0].elements().into_iter().map(|(key, _)| key).collect();
        seen.sort();
        seen
    };
    assert!(seen(&plain).len() > 100);
    assert_eq!(seen(&plain), seen(&resolved));
}

#[test]
fn a_program_that_relies_on_what_is_not_there_is_refused() {
    let Some((file, kernel)) = object_file(MISSING).zip(types()) else { return };
    let Resolved { file, missing } = resolve_with(file, || Ok(kernel)).unwrap();
    assert_eq!(missing, ["struct moved.gone"]);
    let object = Object::parse(&file).unwrap();
    if may_verify() {
        let refused = compiled(&object, 0).unwrap_err();
        assert!(matches!(refused, LoadError::Verifier { .. }), "{refused}");
    }
    let mut instance = Instance::new(&interpreted(&object, 0), 0);
    assert_eq!(run(&mut instance, &moved()).0, Action::Aborted);
    assert_eq!(instance.faults, 1);
}

#[test]
fn without_types_of_a_kernel_it_says_so() {
    let Some(file) = object_file(PROGRAM) else { return };
    let none = || Err(LoadError::KernelTypes { path: "/sys/kernel/btf/vmlinux", why: "No such file".into() });
    let words = resolve_with(file.clone(), none).unwrap_err().to_string();
    assert!(words.contains("CONFIG_DEBUG_INFO_BTF") && words.contains("No such file"), "{words}");
    for types in [&b""[..], b"types", &[0x9f, 0xeb, 1, 0, 24, 0, 0, 0]] {
        let refused = resolve_with(file.clone(), || Ok(types.to_vec())).unwrap_err();
        assert!(matches!(refused, LoadError::KernelTypes { .. }), "{refused}");
    }
}

#[test]
fn damaged_relocations_never_panic() {
    let Some((file, kernel)) = object_file(PROGRAM).zip(types()) else { return };
    let mut rng = Rng::new(5);
    let (mut refused, rounds) = (0, 3000);
    for _ in 0..rounds {
        let mut broken = [file.clone(), kernel.clone()];
        let one = &mut broken[usize::from(rng.chance(300_000))];
        for _ in 0..rng.between(1, 3) {
            let place = rng.below(one.len() as u64 / 4) as usize * 4;
            let value = [0, 1, 64, 0x7fff_ffff, u32::MAX, rng.next_u64() as u32][rng.below(6) as usize];
            one[place..place + 4].copy_from_slice(&value.to_le_bytes());
        }
        let [file, kernel] = broken;
        match resolve_with(file, || Ok(kernel)) {
            Ok(resolved) => drop(Object::parse(&resolved.file)),
            Err(_) => refused += 1,
        }
    }
    assert!(refused > rounds / 20 && refused < rounds, "{refused} of {rounds} were refused");
}
