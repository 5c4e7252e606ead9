//! What the tests of modules share: objects that clang makes of the sources, and the three ways to run a program.
#![allow(clippy::unwrap_used, dead_code)]

pub mod kernel_maps;

use std::io::IoSliceMut;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use towpath_module_compiler::compile;
use towpath_modules::code::Code;
use towpath_modules::verify::{Accepted, test_run, verify};
use towpath_modules::{Action, Frame, Instance, LoadError, Module, Object, check};
use towpath_rng::Rng;

/// As the kernel's test has them: the room before a frame, and the most bytes that a frame can have there.
pub const HEADROOM: usize = 256;
pub const MOST_BYTES: usize = 3520;

/// Frames for each program. `TOWPATH_MODULE_FRAMES` asks for more.
pub fn frames() -> u64 {
    std::env::var("TOWPATH_MODULE_FRAMES").ok().and_then(|count| count.parse().ok()).unwrap_or(3000)
}

/// The compiler for eBPF, without a file.
pub fn clang() -> Command {
    let include = format!("/usr/include/{}-linux-gnu", std::env::consts::ARCH);
    let mut clang = Command::new("clang");
    clang.args(["-O2", "-g", "-target", "bpf", "-mcpu=v3", "-idirafter", &include]);
    clang
}

/// A packet as a network has it: of few hosts and ports, and sometimes cut off.
pub fn packet(rng: &mut Rng) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0, 0, rng.below(4) as u8, 2, 0, 0, 0, 1, rng.below(4) as u8];
    if rng.chance(150_000) {
        bytes.extend([0x81, 0, 0x0f, rng.between(0xa9, 0xac) as u8]);
    }
    let length = if rng.chance(100_000) { rng.between(500, 1400) } else { rng.below(64) };
    let payload = payload_of(rng, length as usize);
    let (protocol, upper) = upper_layer(rng, payload);
    let host = |rng: &mut Rng| [10, 0, 0, rng.below(4) as u8];
    match rng.below(10) {
        0 => {
            bytes.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
            bytes.extend(payload_of(rng, 20));
        }
        1..=6 => {
            bytes.extend([8, 0, if rng.chance(100_000) { 0x46 } else { 0x45 }, rng.below(4) as u8]);
            bytes.extend((20 + upper.len() as u16).to_be_bytes());
            bytes.extend([0, 1, if rng.chance(100_000) { 0x20 } else { 0x40 }, 0, 64, protocol, 0, 0]);
            bytes.extend(host(rng).into_iter().chain(host(rng)));
            bytes.extend(upper);
        }
        _ => {
            bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            bytes.extend((upper.len() as u16).to_be_bytes());
            bytes.extend([if protocol == 1 { 58 } else { protocol }, 64]);
            for _ in 0..2 {
                bytes.extend([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0].into_iter().chain(host(rng)));
            }
            bytes.extend(upper);
        }
    }
    if rng.chance(100_000) {
        bytes.truncate(rng.between(14, bytes.len() as u64) as usize);
    }
    bytes
}

/// TCP, UDP, ICMP's echo, or IP in IP, with its protocol's number.
fn upper_layer(rng: &mut Rng, payload: Vec<u8>) -> (u8, Vec<u8>) {
    let ports =
        [rng.between(1, 9) as u16, [22u16, 80, 443, 8080][rng.below(4) as usize]].map(u16::to_be_bytes).concat();
    let length = (8 + payload.len() as u16).to_be_bytes();
    match rng.below(4) {
        0 => (17, [ports, length.to_vec(), vec![0, 0], payload].concat()),
        1 => (1, [vec![if rng.chance(500_000) { 8 } else { 0 }, 0, 0, 0, 0, 1, 0, 1], payload].concat()),
        2 => (4, [vec![0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6], payload].concat()),
        _ => {
            let flags = [0x02, 0x10, 0x18, 0x11, 0x04][rng.below(5) as usize];
            let rest = [0, 0, 0, 1, 0, 0, 0, 2, 0x50, flags, 0x40, 0, 0, 0, 0, 0];
            (6, [ports, rest.to_vec(), payload].concat())
        }
    }
}

fn payload_of(rng: &mut Rng, length: usize) -> Vec<u8> {
    (0..length).map(|_| rng.next_u64() as u8).collect()
}

/// This kernel's types, in C (`vmlinux.h`).
pub fn vmlinux_h() -> Vec<u8> {
    let mut bpftool = Command::new("bpftool");
    let types = bpftool.args(["btf", "dump", "file", "/sys/kernel/btf/vmlinux", "format", "c"]).output();
    let types = types.expect("no bpftool; get it with: scripts/setup all");
    assert!(types.status.success(), "bpftool: {}", String::from_utf8_lossy(&types.stderr));
    types.stdout
}

/// Compiles a file of the repository; `None` = there is no clang, and the test says so.
pub fn object_file(source: &str) -> Option<Vec<u8>> {
    object_file_with(source, &[])
}

/// The same with these options.
pub fn object_file_with(source: &str, options: &[&str]) -> Option<Vec<u8>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let name = Path::new(source).file_stem().unwrap().to_str().unwrap();
    let object: PathBuf =
        std::env::temp_dir().join(format!("towpath-{name}-{}-{:?}.o", std::process::id(), std::thread::current().id()));
    let mut clang = clang();
    let Ok(done) =
        clang.args(["-Wall", "-Werror", "-c"]).args(options).arg(root.join(source)).arg("-o").arg(&object).status()
    else {
        eprintln!("SKIPPED: clang is missing: apt-get install -y clang libbpf-dev");
        return None;
    };
    assert!(done.success(), "{source} does not compile");
    let bytes = std::fs::read(&object).unwrap();
    std::fs::remove_file(&object).unwrap();
    Some(bytes)
}

/// May this process ask the kernel's verifier? The test says if not.
pub fn may_verify() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:\t")).unwrap();
    // CAP_BPF and CAP_NET_ADMIN.
    let may = u64::from_str_radix(line, 16).unwrap() & (1 << 39 | 1 << 12) == 1 << 39 | 1 << 12;
    if !may {
        eprintln!("SKIPPED beside the kernel: this needs CAP_BPF and CAP_NET_ADMIN");
    }
    may
}

/// Frames on which all did the same, in all tests of this program.
static COMPARED: AtomicU64 = AtomicU64::new(0);

/// Says how many frames were compared so far.
pub fn say_compared() {
    println!("{} frames were compared so far", COMPARED.load(Ordering::Relaxed));
}

/// A program in the kernel, compiled and interpreted. Each has maps of its own. Compiled code has two forms: for one frame, and
/// for a batch if the program wants no room around frames.
pub struct Three {
    pub accepted: Accepted,
    pub compiled: Instance,
    pub batched: Option<Instance>,
    pub interpreted: Instance,
    program: usize,
}

/// The compiled module of an object that the verifier accepts.
pub fn compiled(object: &Object, main: usize) -> Result<(Accepted, Arc<Module>), LoadError> {
    object.programs.iter().try_for_each(|program| check(program, object.maps.len()).map(drop))?;
    let accepted = verify(object)?;
    let module = module(object, main)?;
    Ok((accepted, module))
}

/// A module of an object that the verifier has accepted.
fn module(object: &Object, main: usize) -> Result<Arc<Module>, LoadError> {
    let code = compile(&object.programs)?;
    let memory = Code::new(&code.code).unwrap();
    // SAFETY: the verifier has accepted the programs, and the code was made of them.
    unsafe { Module::new(object, main, 1, Some((memory, &code.functions))) }.map(Arc::new)
}

/// Runs an instance on all frames as batches. Returns each action, and changes the frames.
pub fn run_batch(instance: &mut Instance, frames: &mut [Vec<u8>]) -> Vec<Action> {
    let mut slices: Vec<_> = frames.iter_mut().map(|frame| IoSliceMut::new(frame)).collect();
    let mut actions = Vec::new();
    while actions.len() < slices.len() {
        let (passed, result) = instance.run_batch(&mut slices[actions.len()..]);
        actions.extend(std::iter::repeat_n(Action::Pass, passed));
        if actions.len() < slices.len() {
            actions.push(Action::of(result.into()));
        }
    }
    actions
}

/// Searches all frames for those that pass, and changes the frames. Returns whether each does.
pub fn search(instance: &mut Instance, frames: &mut [Vec<u8>]) -> Vec<bool> {
    let mut slices: Vec<_> = frames.iter_mut().map(|frame| IoSliceMut::new(frame)).collect();
    let mut pass = Vec::new();
    while pass.len() < slices.len() {
        let before = instance.search(&mut slices[pass.len()..]);
        pass.extend(std::iter::repeat_n(false, before));
        if pass.len() < slices.len() {
            pass.push(true);
        }
    }
    pass
}

/// A module without a verifier.
pub fn interpreted(object: &Object, main: usize) -> Arc<Module> {
    Arc::new(Module::interpreted(object, main, 1).unwrap())
}

/// Runs an instance on a copy of a frame.
pub fn run(instance: &mut Instance, bytes: &[u8]) -> (Action, Vec<u8>) {
    // One of several parts has no room behind it.
    let mut buffer = vec![0; HEADROOM + MOST_BYTES.max(bytes.len())];
    buffer[HEADROOM..HEADROOM + bytes.len()].copy_from_slice(bytes);
    let mut frame = Frame { start: HEADROOM, length: bytes.len(), room: true, ifindex: 1, ..Frame::whole(&mut buffer) };
    let action = instance.run(&mut frame);
    // The kernel's test shows the metadata, too.
    let (from, to) = (frame.start - frame.meta, frame.start + frame.length);
    (action, buffer[from..to].to_vec())
}

impl Three {
    /// Of the program of this name.
    pub fn new(object: &Object, name: &str) -> Result<Self, LoadError> {
        let program = object.program(Some(name))?;
        let (accepted, module) = compiled(object, program)?;
        let mut batched = match module.wants_room() {
            true => None,
            false => Some(Instance::new(&self::module(object, program)?, 0)),
        };
        batched.iter_mut().for_each(|instance| instance.stands_at(1, 0));
        let compiled = Instance::new(&module, 0);
        let interpreted = Instance::new(&interpreted(object, program), 0);
        Ok(Self { accepted, compiled, batched, interpreted, program })
    }

    /// All that have maps here.
    pub fn instances(&self) -> impl Iterator<Item = &Instance> {
        [&self.compiled, &self.interpreted].into_iter().chain(&self.batched)
    }

    /// A batch of these frames gives what each of them gives alone. The program has no maps.
    #[track_caller]
    pub fn batch_agrees(&mut self, what: &str, frames: &[Vec<u8>]) {
        let Some(batched) = &mut self.batched else { return };
        let [mut after, mut searched] = [(); 2].map(|()| frames.to_vec());
        let actions = run_batch(batched, &mut after);
        let pass: Vec<_> = actions.iter().map(|action| *action == Action::Pass).collect();
        assert_eq!((search(batched, &mut searched), &searched), (pass, &after), "{what}: a search and a batch");
        for ((action, after), frame) in actions.into_iter().zip(after).zip(frames) {
            assert_eq!((action, after), run(&mut self.compiled, frame), "{what}: in a batch and alone on {frame:02x?}");
        }
    }

    /// All have the same in their maps, but in those of these names. Records of ring buffers are taken out.
    #[track_caller]
    pub fn maps_agree(&self, what: &str, but: &[&str]) {
        for (number, map) in self.accepted.maps.iter().enumerate() {
            let ours: Vec<_> = self.instances().map(|instance| &instance.module().maps()[number]).collect();
            let spec = ours[0].spec();
            if but.contains(&spec.name.as_str()) {
                continue;
            }
            let kernel = kernel_maps::elements(map, spec);
            for (map, how) in ours.into_iter().zip(["compiled", "interpreted", "compiled for batches"]) {
                assert_eq!(kernel_maps::own_elements(map), kernel, "{what}: the map {}, {how} and kernel", spec.name);
            }
        }
    }

    fn kernel(&self) -> &OwnedFd {
        &self.accepted.programs[self.program]
    }

    /// All three give the same action, which is returned, and the same bytes.
    #[track_caller]
    pub fn agree(&mut self, what: &str, bytes: &[u8]) -> Action {
        let (action, after) = test_run(self.kernel(), bytes).unwrap();
        let kernel = (Action::of(action.into()), after);
        let compiled = run(&mut self.compiled, bytes);
        let interpreted = run(&mut self.interpreted, bytes);
        assert_eq!(self.interpreted.faults, 0, "{what}: the interpreter has ended it on {bytes:02x?}");
        assert_eq!(compiled, interpreted, "{what}: compiled and interpreted on {bytes:02x?}");
        assert_eq!(compiled, kernel, "{what}: compiled and kernel on {bytes:02x?}");
        if let Some(batched) = &mut self.batched {
            let mut frame = [bytes.to_vec()];
            let action = run_batch(batched, &mut frame)[0];
            let [after] = frame;
            assert_eq!((action, after), compiled, "{what}: as a batch and alone on {bytes:02x?}");
        }
        COMPARED.fetch_add(1, Ordering::Relaxed);
        compiled.0
    }
}

/// Keeps this thread on one CPU: per-CPU maps of the kernel have one copy then, as those of one flow group.
pub fn one_cpu() {
    // SAFETY: the set is made of integers, and the call only reads it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(0, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
    }
}
