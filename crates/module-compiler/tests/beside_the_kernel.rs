//! Programs as clang compiles them give the kernel's actions and bytes: compiled, and interpreted.
#![allow(clippy::unwrap_used)]

mod common;

use common::{MOST_BYTES, Three, frames, kernel_maps, may_verify, object_file, one_cpu, run, say_compared};
use towpath_modules::map::Element;
use towpath_modules::verify::{test_run, update_map};
use towpath_modules::{LoadError, Object};
use towpath_rng::Rng;

/// Maps of the module `statistics` that depend on the time. The first one counts.
const BY_TIME: [&str; 2] = ["gaps", "last"];

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
        for number in 0..frames() {
            let bytes = frame(&mut rng);
            three.agree(name, &bytes);
            // Also in between, so that a ring buffer has room again.
            if number % 100 == 99 {
                three.maps_agree(name, &[]);
            }
        }
        three.maps_agree(name, &[]);
    }
    say_compared();
}

#[test]
fn the_modules_of_this_repository_do_what_they_do_in_the_kernel() {
    if !may_verify() {
        return;
    }
    one_cpu();
    for (source, program) in [
        ("firewall", "firewall"),
        ("first", "first"),
        ("statistics", "statistics"),
        ("vlan", "vlan_pop"),
        ("vlan", "vlan_push"),
    ] {
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
        three.maps_agree(program, &BY_TIME);
        // What depends on the time is counted in another place perhaps, but as often.
        for (number, spec) in object.maps.iter().enumerate().filter(|(_, spec)| BY_TIME[..1].contains(&&*spec.name)) {
            let counted = |elements: Vec<Element>| -> u64 {
                elements.iter().map(|(_, values)| u64::from_ne_bytes(values[0][..8].try_into().unwrap())).sum()
            };
            assert_eq!(counted(kernel_maps::elements(&three.accepted.maps[number], spec)), frames.len() as u64 - 1);
            for instance in three.instances() {
                let map = &instance.module().maps()[number];
                assert_eq!(counted(kernel_maps::own_elements(map)), frames.len() as u64 - 1, "{}", spec.name);
            }
        }
    }
    say_compared();
}

/// A segment of one of a few connections, with numbers near this one, which goes round.
fn near(rng: &mut Rng, round: u64) -> Vec<u8> {
    let v6 = rng.chance(300_000);
    let mut bytes = vec![2; 12];
    let ends = [10, 10, 10, 9].repeat(if v6 { 8 } else { 2 });
    let payload = [0, 0, 1, 100, 1400][rng.below(5) as usize];
    let length = 20 + payload as u16;
    if v6 {
        bytes.extend([&[0x86, 0xdd, 0x60, 0, 0, 0], &length.to_be_bytes()[..], &[6, 64]].concat());
    } else {
        bytes.extend([&[8, 0, 0x45, 0], &(20 + length).to_be_bytes()[..], &[0, 0, 0, 0, 64, 6, 0, 0]].concat());
    }
    bytes.extend(ends);
    bytes.extend([0, rng.below(4) as u8, 0, rng.below(2) as u8]);
    for most in [8, 30] {
        bytes.extend((u32::MAX - 5000).wrapping_add(100 * (round + rng.below(most)) as u32).to_be_bytes());
    }
    bytes.extend([5 << 4, [16, 24, 2, 0][rng.below(4) as usize], 1, 0, 0, 0, 0, 0]);
    bytes.resize(bytes.len() + payload, 7);
    bytes
}

/// What `rtt.bpf.c` notes has the time in it. It is the same but for that, and each acknowledgement that is counted is counted in all.
#[test]
fn round_trips_are_timed_as_in_the_kernel() {
    let Some(file) = object_file("bpf/modules/rtt.bpf.c").filter(|_| may_verify()) else { return };
    one_cpu();
    let object = Object::parse(&file).unwrap();
    let number = |name: &str| object.maps.iter().position(|map| map.name == name).unwrap();
    let (waiting, rtts) = (number("waiting"), number("rtts"));
    // `struct timed`: is one sent, its end, and what is next.
    let timed = |elements: Vec<Element>| -> Vec<(Vec<u8>, bool, Vec<u8>)> {
        let of = |value: &[u8]| (value[..8] != [0; 8], value[8..].to_vec());
        let all = elements.into_iter().map(|(key, values)| (key, of(&values[0])));
        all.map(|(key, (is_sent, numbers))| (key, is_sent, numbers)).collect()
    };
    let counted = |elements: Vec<Element>| -> u64 {
        elements.iter().map(|(_, values)| u64::from_ne_bytes(values[0][..8].try_into().unwrap())).sum()
    };
    let mut rng = Rng::new(12);
    let mut sent = Three::new(&object, "rtt_sent").unwrap();
    let mut received = Three::new(&object, "rtt_received").unwrap();
    let mut least = [0, 0];
    for round in 0..frames() / 10 {
        for _ in 0..5 {
            sent.agree("rtt_sent", &if rng.chance(100_000) { frame(&mut rng) } else { near(&mut rng, round) });
        }
        let kernel = kernel_maps::elements(&sent.accepted.maps[waiting], &object.maps[waiting]);
        for instance in sent.instances() {
            let ours = kernel_maps::own_elements(&instance.module().maps()[waiting]);
            assert_eq!(timed(ours), timed(kernel.clone()), "round {round}");
        }
        // What was sent waits for what comes.
        for (key, values) in &kernel {
            update_map(&received.accepted.maps[waiting], key, &values[0]).unwrap();
            received.instances().for_each(|one| one.module().maps()[waiting].set(key, &values[0]).unwrap());
        }
        for _ in 0..5 {
            received.agree("rtt_received", &if rng.chance(100_000) { frame(&mut rng) } else { near(&mut rng, round) });
        }
        received.maps_agree("rtt_received", &["rtts"]);
        let all = counted(kernel_maps::elements(&received.accepted.maps[rtts], &object.maps[rtts]));
        for instance in received.instances() {
            assert_eq!(counted(kernel_maps::own_elements(&instance.module().maps()[rtts])), all, "round {round}");
        }
        least = [all, kernel.len() as u64];
    }
    assert!(least[0] > 20 && least[1] > 8, "{least:?}");
    say_compared();
}

/// The kernel takes them in pages, of which programs see the first; modules have all in one piece.
#[test]
fn programs_for_frames_of_several_parts_do_what_they_do_in_the_kernel() {
    let file = object_file("crates/module-compiler/tests/programs/frags.bpf.c");
    let Some(file) = file.filter(|_| may_verify()) else { return };
    one_cpu();
    let object = Object::parse(&file).unwrap();
    for name in ["anywhere", "shorter"] {
        let mut three = Three::new(&object, name).unwrap_or_else(|why| panic!("{name}: {why}"));
        let (mut rng, mut actions, mut longest) = (Rng::new(11), [0; 5], 0);
        for _ in 0..frames() / 3 {
            let length = if rng.chance(200_000) { rng.between(60, 3600) } else { rng.between(3500, 65_535) };
            let mut bytes = vec![0; length as usize];
            rng.fill(&mut bytes);
            // A place within the frame mostly, often near the end of a part.
            let border = (MOST_BYTES as u64 + 4096 * rng.below(16)).saturating_sub(rng.below(80));
            let place = if rng.chance(500_000) { border } else { rng.below(length + 40) } as u32;
            bytes[..4].copy_from_slice(&place.to_le_bytes());
            actions[three.agree(name, &bytes) as usize] += 1;
            longest = longest.max(bytes.len());
        }
        three.maps_agree(name, &[]);
        assert!(longest > 60_000 && actions[2] > 100 && actions[3] > 100, "{name}: {longest} {actions:?}");
    }
}

/// No two runs have the same time, so each is compared with the clock itself.
#[test]
fn clocks_tell_the_time_that_they_tell_in_the_kernel() {
    let file = object_file("crates/module-compiler/tests/programs/clocks.bpf.c");
    let Some(file) = file.filter(|_| may_verify()) else { return };
    let object = Object::parse(&file).unwrap();
    let mut three = Three::new(&object, "clocks").unwrap();
    let now = || [libc::CLOCK_MONOTONIC, libc::CLOCK_BOOTTIME].map(clock);
    for how in ["the kernel", "compiled", "interpreted"] {
        let before = now();
        let after = match how {
            "the kernel" => test_run(&three.accepted.programs[0], &[0; 60]).unwrap().1,
            "compiled" => run(&mut three.compiled, &[0; 60]).1,
            _ => run(&mut three.interpreted, &[0; 60]).1,
        };
        for (place, (before, now)) in before.into_iter().zip(now()).enumerate() {
            let time = u64::from_ne_bytes(after[8 * place..][..8].try_into().unwrap());
            // The kernel's programs have a fast clock, which may be a little off while the other one is adjusted.
            assert!((before - 1_000_000..=now + 1_000_000).contains(&time), "{how}: {before} {time} {now}");
        }
    }
    assert_eq!(three.interpreted.faults, 0);
}

fn clock(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writes.
    assert_eq!(unsafe { libc::clock_gettime(clock, &raw mut time) }, 0);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
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
        // An absolute path stands for itself. The stack's size is hidden from the compiler, so that it makes an object of each.
        let compiled = object_file(path.to_str().unwrap());
        std::fs::remove_file(&path).unwrap();
        let Some(file) = compiled else { return };
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
