//! Programs that nobody here wrote load as they are, and give the kernel's actions and bytes on the same packets. The programs
//! are those of Debian's libxdp1, and those of the kernel's samples and selftests.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Three, clang, frames, kernel_maps, may_verify, one_cpu, packet, say_compared, vmlinux_h};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use towpath_modules::kernel_types::resolve;
use towpath_modules::verify::update_map;
use towpath_modules::{MapKind, MapSpec, Object};
use towpath_rng::Rng;

/// Objects that must load. Those that test the verifier (`verifier_`) also have programs that it refuses.
const LOADS: [&str; 35] = [
    "xdp-dispatcher",
    "xdpfilt_alw_all",
    "xdpfilt_alw_eth",
    "xdpfilt_alw_ip",
    "xdpfilt_alw_tcp",
    "xdpfilt_alw_udp",
    "xdpfilt_dny_all",
    "xdpfilt_dny_eth",
    "xdpfilt_dny_ip",
    "xdpfilt_dny_tcp",
    "xdpfilt_dny_udp",
    "test_parse_tcp_hdr_opt",
    "test_xdp",
    "test_xdp_adjust_tail_grow",
    "test_xdp_adjust_tail_shrink",
    "test_xdp_context_test_run",
    "test_xdp_link",
    "test_xdp_loop",
    "test_xdp_noinline",
    "test_xdp_update_frags",
    "test_xdp_vlan",
    "xdp2skb_meta_kern",
    "xdp_dummy",
    "xdp_tx",
    "xdping_kern",
    "xdpwall",
    "xdp_redirect_map",
    "xdp_redirect_multi_kern",
    "test_xdp_do_redirect",
    "test_xdp_with_devmap_helpers",
    "verifier_helper_packet_access",
    "verifier_loops1",
    "verifier_meta_access",
    "verifier_xdp",
    "verifier_xdp_direct_packet_access",
];
/// Objects that are refused, and a part of the reason.
const REFUSED: [(&str, &str); 24] = [
    ("xdpdump_xdp", "perf_event_array"),
    ("xsk_def_xdp_prog", "xskmap"),
    ("xsk_def_xdp_prog_5.3", "xskmap"),
    ("freplace_progmap", "cpumap"),
    ("test_check_mtu", "check_mtu"),
    ("test_map_in_map", "perf_event_array"),
    ("test_map_in_map_invalid", "array_of_maps"),
    ("test_migrate_reuseport", "reuseport_sockarray"),
    ("test_parse_tcp_hdr_opt_dynptr", "bpf_dynptr_from_xdp"),
    ("test_tcp_check_syncookie_kern", "skc_lookup_tcp"),
    ("test_xdp_dynptr", "bpf_dynptr_from_xdp"),
    ("test_xdp_with_cpumap_frags_helpers", "cpumap"),
    ("test_xdp_with_cpumap_helpers", "cpumap"),
    ("test_xdp_devmap_helpers", "invalid bpf_context access"),
    ("test_xdp_with_devmap_frags_helpers", "xdp/devmap"),
    ("test_bpf_nf", "bpf_xdp_ct_lookup"),
    ("xdp_flowtable", "bpf_xdp_flow_lookup"),
    ("xdp_metadata", "xskmap"),
    ("xdp_synproxy_kern", "bpf_xdp_ct_lookup"),
    ("verifier_map_in_map", "array_of_maps"),
    ("verifier_sockmap_mutate", "sockmap"),
    ("vrf_socket_lookup", "skc_lookup_tcp"),
    ("xsk_xdp_progs", "xskmap"),
    ("verifier_jeq_infer_not_null", "xskmap"),
];

/// Programs that send copies of a frame over all interfaces of a map (`BPF_F_BROADCAST`). They load, and each such frame is dropped.
const BROADCAST: [&str; 2] = ["xdp_redirect_map_multi_prog", "xdp_redirect_map_all_prog"];

#[test]
fn programs_of_others_do_what_they_do_in_the_kernel() {
    if !may_verify() {
        return;
    }
    one_cpu();
    let (objects, unmade) = objects();
    let (mut agreed, mut refused) = (BTreeMap::new(), BTreeMap::new());
    for (name, file) in &objects {
        match run(name, file) {
            Ok(programs) => drop(agreed.insert(name.as_str(), programs)),
            Err(why) => drop(refused.insert(name.as_str(), why)),
        }
    }
    agreed.iter().for_each(|(name, programs)| println!("{name}: {}", programs.join(" ")));
    refused.iter().for_each(|(name, why)| println!("{name} is refused: {why}"));
    say_compared();
    let is_there = |name: &&str| !unmade.contains(*name);
    for name in LOADS.into_iter().filter(is_there) {
        assert!(agreed.contains_key(name), "{name}: {:?}", refused.get(name));
    }
    for (name, words) in REFUSED.into_iter().filter(|(name, _)| is_there(name)) {
        assert!(refused.get(name).is_some_and(|why| why.contains(words)), "{name}: {:?}", refused.get(name));
    }
}

/// Runs all programs of an object that the kernel's verifier accepts, each alone, as some of the verifier's own tests are
/// there to be refused. Returns their names, or why there are none.
fn run(name: &str, file: &[u8]) -> Result<Vec<String>, String> {
    let object = resolve(file.to_vec()).and_then(|resolved| Object::parse(&resolved.file));
    let object = object.map_err(|why| why.to_string())?;
    let (mut agreed, mut refused) = (Vec::new(), None);
    for program in &object.programs {
        let alone = Object { programs: vec![program.clone()], ..object.clone() };
        let what = format!("{name} {}", program.name);
        match Three::new(&alone, &program.name) {
            Ok(three) => {
                if !BROADCAST.contains(&&*program.name) {
                    agree(&what, &alone, three);
                }
                agreed.push(program.name.clone());
            }
            Err(why) if name.starts_with("verifier_") => refused = Some(why),
            Err(why) => return Err(why.to_string()),
        }
    }
    if agreed.is_empty() { Err(refused.map_or_else(String::new, |why| why.to_string())) } else { Ok(agreed) }
}

fn agree(what: &str, object: &Object, mut three: Three) {
    let mut rng = Rng::new(9);
    let packets: Vec<_> = (0..frames() / 3).map(|_| packet(&mut rng)).collect();
    for (number, spec) in object.maps.iter().enumerate() {
        for (key, value) in elements(spec, &packets, &mut rng) {
            let refused = update_map(&three.accepted.maps[number], &key, &for_all_cpus(spec, &value)).err();
            for instance in three.instances() {
                let ours = instance.module().maps()[number].set(&key, &value);
                assert_eq!(ours.is_err(), refused.is_some(), "{what}: {} {key:02x?}: {refused:?}", spec.name);
            }
        }
    }
    let mut actions = BTreeMap::new();
    for bytes in &packets {
        *actions.entry(format!("{:?}", three.agree(what, bytes))).or_insert(0) += 1;
    }
    three.maps_agree(what, &[]);
    println!("{what}: {actions:?}");
    if what.starts_with("xdpfilt") || what.starts_with("test_xdp _") {
        assert!(actions.len() > 1, "{what}: nothing in its maps is found: {actions:?}");
    }
}

/// The address, port, family and protocol that a load balancer knows a service by, as the kernel's tests have them.
fn service(packet: &[u8]) -> Vec<u8> {
    let at = |places: std::ops::Range<usize>| places.map(|place| packet.get(place).copied().unwrap_or(0));
    let v4 = at(12..14).eq([8, 0]);
    let (address, port, family, protocol) = if v4 { (30..34, 36..38, 2, 23) } else { (38..54, 56..58, 10, 20) };
    let mut key: Vec<u8> = at(address).collect();
    key.resize(16, 0);
    key.extend(at(port).chain([family, 0]).chain(at(protocol..protocol + 1)));
    key.resize(24, 0);
    key
}

/// What a program may find in a map: addresses and ports of the packets, with small values, as flags are.
fn elements(spec: &MapSpec, packets: &[Vec<u8>], rng: &mut Rng) -> Vec<(Vec<u8>, Vec<u8>)> {
    let variables = spec.name.starts_with('.');
    let count = match spec.kind {
        MapKind::RingBuf | MapKind::ProgArray | MapKind::LpmTrie => 0,
        MapKind::DevMap | MapKind::DevMapHash => return interfaces(spec),
        _ if variables => 0,
        _ => (spec.entries / 2).min(200),
    };
    let mut element = || {
        let packet = &packets[rng.below(packets.len() as u64) as usize];
        let places: &[usize] = match spec.key_size {
            4 => &[26, 30],
            6 => &[0, 6],
            16 => &[22, 38],
            _ => &[0],
        };
        let place = places[rng.below(places.len() as u64) as usize];
        let key = match spec.kind {
            // An index: often a port, as it stands in the packet.
            MapKind::Array | MapKind::PerCpuArray => {
                let port = packet.get(34..36).map_or(0, |port| u16::from_ne_bytes([port[0], port[1]]));
                (u32::from(port) % spec.entries).to_ne_bytes().to_vec()
            }
            _ if spec.key_size == 24 => service(packet),
            _ => (place..place + spec.key_size as usize).map(|at| packet.get(at).copied().unwrap_or(0)).collect(),
        };
        let mut value: Vec<u8> =
            (0..spec.value_size).map(|_| if rng.chance(500_000) { rng.below(16) as u8 } else { 0 }).collect();
        // Where a tunnel leads: two addresses, and their family.
        if let Some(family) = value.get_mut(32..34).filter(|_| spec.key_size == 24) {
            family.copy_from_slice(&[if rng.chance(500_000) { 2 } else { 10 }, 0]);
        }
        (key, value)
    };
    (0..count).map(|_| element()).collect()
}

/// An interface at each second place: the loopback one, which each host has.
fn interfaces(spec: &MapSpec) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut value = 1u32.to_ne_bytes().to_vec();
    value.resize(spec.value_size as usize, 0);
    (0..spec.entries.min(64)).step_by(2).map(|key| (key.to_ne_bytes().to_vec(), value.clone())).collect()
}

/// The kernel takes one value for each CPU that there could be.
fn for_all_cpus(spec: &MapSpec, value: &[u8]) -> Vec<u8> {
    if !spec.kind.is_per_cpu() {
        return value.to_vec();
    }
    let mut one = value.to_vec();
    one.resize(value.len().next_multiple_of(8), 0);
    one.repeat(kernel_maps::possible_cpus())
}

/// All objects by name, and those that cannot be made with this kernel's types.
fn objects() -> (BTreeMap<String, Vec<u8>>, BTreeSet<String>) {
    let (mut objects, mut unmade) = (BTreeMap::new(), BTreeSet::new());
    let package = format!("/usr/lib/{}-linux-gnu/bpf", std::env::consts::ARCH);
    for path in files(Path::new(&package), "o", "no objects of libxdp1; get them with: scripts/setup all") {
        objects.insert(stem(&path), std::fs::read(&path).unwrap());
    }
    let folder = kernel_sources();
    // Samples include headers by the place that they have in the kernel's source.
    let includes = folder.join("include/uapi");
    std::fs::create_dir_all(&includes).unwrap();
    let _ = std::os::unix::fs::symlink("/usr/include/linux", includes.join("linux"));
    // Others include the types of a kernel, which are this one's here.
    std::fs::write(folder.join("include/vmlinux.h"), vmlinux_h()).unwrap();
    let selftests = folder.join("tools/testing/selftests/bpf");
    for part in [selftests.join("progs"), folder.join("samples/bpf")] {
        for path in files(&part, "c", "the kernel's source has no such programs") {
            let source = std::fs::read_to_string(&path).unwrap();
            if !source.contains("SEC(\"xdp") {
                continue;
            }
            let object = folder.join("program.o");
            let mut clang = clang();
            clang.arg("-w").arg("-I").arg(folder.join("include")).arg("-I").arg(&selftests);
            match clang.arg("-c").arg(&path).arg("-o").arg(&object).output() {
                Ok(done) if done.status.success() => drop(objects.insert(stem(&path), std::fs::read(&object).unwrap())),
                Ok(done) => {
                    let why = String::from_utf8_lossy(&done.stderr).into_owned();
                    println!("{}: {}", stem(&path), why.lines().find(|line| line.contains("error:")).unwrap_or(""));
                    // It names what another kernel has.
                    if source.contains("vmlinux.h") {
                        unmade.insert(stem(&path));
                    }
                }
                Err(why) => panic!("clang: {why}; get it with: scripts/setup all"),
            }
        }
    }
    (objects, unmade)
}

fn stem(path: &Path) -> String {
    path.file_stem().unwrap().to_str().unwrap().to_owned()
}

fn files(folder: &Path, extension: &str, otherwise: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|why| panic!("{}: {why}: {otherwise}", folder.display()));
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|found| found == extension));
    files.sort();
    files
}

/// Unpacks the kernel's samples and selftests, of the package that has its source.
fn kernel_sources() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernel-programs");
    let sources = std::fs::read_dir("/usr/src").unwrap().map(|entry| entry.unwrap().path());
    let is_it = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.starts_with("linux-source-") && name.ends_with(".tar.xz")
    };
    let archive =
        sources.filter(is_it).max().expect("no /usr/src/linux-source-*.tar.xz; get it with: scripts/setup all");
    let complete = folder.join("complete");
    if !complete.exists() {
        std::fs::create_dir_all(&folder).unwrap();
        let wanted = ["*/samples/bpf/*", "*/tools/testing/selftests/bpf/*.h", "*/tools/testing/selftests/bpf/progs/*"];
        let mut tar = Command::new("tar");
        tar.arg("-xJf").arg(archive).arg("-C").arg(&folder).args(["--strip-components=1", "--wildcards"]).args(wanted);
        assert!(tar.status().unwrap().success());
        std::fs::write(&complete, "").unwrap();
    }
    folder
}
