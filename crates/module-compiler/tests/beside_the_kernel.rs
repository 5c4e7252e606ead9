//! Programs as clang compiles them give the kernel's actions and bytes: compiled, and interpreted.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Three, frames, may_verify, object_file, one_cpu};
use towpath_modules::verify::update_map;
use towpath_modules::{LoadError, Object};
use towpath_rng::Rng;

/// A frame that is nothing, or nearly a TCP segment.
fn frame(rng: &mut Rng) -> Vec<u8> {
    let length = match rng.below(8) {
        0 => rng.between(14, 60),
        1 => rng.between(1000, 3400),
        _ => rng.between(54, 120),
    };
    let mut bytes = vec![0; length as usize];
    rng.fill(&mut bytes);
    if rng.chance(700_000) {
        let v6 = rng.chance(300_000);
        bytes[12..14].copy_from_slice(if v6 { &[0x86, 0xdd] } else { &[8, 0] });
        if rng.chance(100_000) {
            bytes[12..14].copy_from_slice(&[0x81, 0]);
        }
        for (place, value) in [(14, if v6 { 0x60 } else { 0x45 }), (20, 6), (23, 6)] {
            if let Some(byte) = bytes.get_mut(place).filter(|_| place != 20 || v6) {
                *byte = value;
            }
        }
    }
    bytes
}

#[test]
fn each_part_of_ebpf_does_what_it_does_in_the_kernel() {
    let Some(file) = object_file("crates/module-compiler/tests/programs/many.bpf.c").filter(|_| may_verify()) else {
        return;
    };
    one_cpu();
    let object = Object::parse(&file).unwrap();
    let names: Vec<String> = object.programs.iter().map(|program| program.name.clone()).collect();
    assert_eq!(names.len(), 17, "{names:?}");
    for name in &names {
        let mut three = Three::new(&object, name).unwrap_or_else(|why| panic!("{name}: {why}"));
        let mut rng = Rng::new(7);
        for _ in 0..frames() {
            let bytes = frame(&mut rng);
            three.agree(name, &bytes);
        }
    }
}

#[test]
fn the_modules_of_this_repository_do_what_they_do_in_the_kernel() {
    if !may_verify() {
        return;
    }
    one_cpu();
    for (source, program) in
        [("firewall", "firewall"), ("statistics", "statistics"), ("vlan", "vlan_pop"), ("vlan", "vlan_push")]
    {
        let Some(file) = object_file(&format!("bpf/modules/{source}.bpf.c")) else { return };
        let object = Object::parse(&file).unwrap();
        let mut three = Three::new(&object, program).unwrap_or_else(|why| panic!("{program}: {why}"));
        let set = |map: &str, key: &[u8], value: &[u8]| {
            let number = object.maps.iter().position(|known| known.name == map).unwrap();
            update_map(&three.accepted.maps[number], key, value).unwrap();
            for instance in three.instances() {
                instance.module().maps()[number].set(key, value).unwrap();
            }
        };
        let mut rng = Rng::new(8);
        let mut frames: Vec<Vec<u8>> = (0..frames()).map(|_| frame(&mut rng)).collect();
        if source == "firewall" {
            for bytes in frames.iter().step_by(3).filter(|bytes| bytes.len() >= 54).take(900) {
                let port = u16::from_be_bytes([bytes[34], bytes[35]]);
                set("blocked_ports", &port.to_ne_bytes(), &1u32.to_ne_bytes());
            }
            for bits in [9u32, 16] {
                let key: Vec<u8> = bits.to_ne_bytes().into_iter().chain([10, 9, 0, 0]).collect();
                set("blocked_nets", &key, &1u32.to_ne_bytes());
            }
            frames.iter_mut().step_by(5).filter(|bytes| bytes.len() > 30).for_each(|bytes| bytes[26] = 10);
        }
        if source == "vlan" {
            set("tag", &[0; 4], &7u32.to_ne_bytes());
        }
        for bytes in &frames {
            three.agree(program, bytes);
        }
    }
}

#[test]
fn a_refused_program_is_refused_in_the_verifiers_own_words() {
    if !may_verify() {
        return;
    }
    let cases = [
        (
            "a load past the end",
            "void *data = (void *)(long)ctx->data; return *(char *)data;",
            "invalid access to packet",
        ),
        ("an endless loop", "volatile int i = 0; for (;;) i++; return 2;", "infinite loop|too large|back-edge"),
        (
            "a large stack",
            "asm volatile(\"*(u64 *)(r10 - 520) = r1\" ::: \"memory\"); return 2;",
            "invalid write to stack",
        ),
        ("a scalar as a pointer", "return *(int *)(long)ctx->data_end;", "invalid access to packet|R"),
    ];
    for (what, body, words) in cases {
        let source = format!(
            "#include <linux/bpf.h>\n#include <bpf/bpf_helpers.h>\nSEC(\"xdp\") int bad(struct xdp_md *ctx) {{ {body} }}\n\
             char _license[] SEC(\"license\") = \"GPL\";\n"
        );
        let path = std::env::temp_dir().join(format!("towpath-bad-{}.bpf.c", std::process::id()));
        std::fs::write(&path, source).unwrap();
        // An absolute path stands for itself.
        let compiled = std::panic::catch_unwind(|| object_file(path.to_str().unwrap()));
        std::fs::remove_file(&path).unwrap();
        // A compiler may see itself that the stack is too large.
        let Ok(Some(file)) = compiled else { continue };
        let object = Object::parse(&file).unwrap();
        match towpath_modules::verify::verify(&object) {
            Err(LoadError::Verifier { program, log, .. }) => {
                assert_eq!(program, "bad");
                assert!(words.split('|').any(|word| log.contains(word)), "{what}: {log}");
            }
            other => panic!("{what}: {other:?}"),
        }
    }
}
