//! Asks the kernel's verifier. It gets the same instructions, and maps of the same shape. It needs `CAP_BPF` and
//! `CAP_NET_ADMIN`.

use crate::error::LoadError;
use crate::insn::{self, Insn, LD_IMM64};
use crate::object::{MapKind, MapSpec, Object, ProgramSpec};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Commands of `bpf(2)`.
const MAP_CREATE: libc::c_int = 0;
const MAP_UPDATE: libc::c_int = 2;
const PROG_LOAD: libc::c_int = 5;
const PROG_TEST_RUN: libc::c_int = 10;
const MAP_FREEZE: libc::c_int = 22;
/// `BPF_PROG_TYPE_XDP`.
const XDP: u32 = 6;
/// `BPF_F_XDP_HAS_FRAGS` and `BPF_F_RDONLY_PROG`.
const HAS_FRAGS: u32 = 1 << 5;
const READ_ONLY: u32 = 1 << 7;
/// `BPF_F_MMAPABLE`: means nothing without a program that maps it.
const MMAPABLE: u32 = 1 << 10;
/// Bytes for the verifier's log, and lines of it that are shown.
const LOG_BYTES: usize = 16 << 20;
const LOG_LINES: usize = 12;

/// What the verifier has accepted, in the kernel.
#[derive(Debug)]
pub struct Accepted {
    /// By number.
    pub maps: Vec<OwnedFd>,
    /// By number.
    pub programs: Vec<OwnedFd>,
}

/// `bpf(2)`. Fields of the attributes that are not there are zero.
///
/// # Safety
/// Pointers in the attributes are valid for what the command does with them.
unsafe fn bpf<T>(command: libc::c_int, attributes: &mut T) -> io::Result<i32> {
    // SAFETY: the attributes are as long as is said, and as the caller promises.
    let done = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attributes), size_of::<T>()) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(done as i32) }
}

/// # Safety
/// The number is a new descriptor.
unsafe fn owned(descriptor: i32) -> OwnedFd {
    // SAFETY: as promised by the caller.
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}

#[repr(C)]
#[derive(Default)]
struct MapCreate {
    kind: u32,
    key_size: u32,
    value_size: u32,
    entries: u32,
    flags: u32,
    inner: u32,
    node: u32,
    name: [u8; 16],
}

#[repr(C)]
#[derive(Default)]
struct MapUpdate {
    map: u32,
    unused: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
#[derive(Default)]
struct ProgLoad {
    kind: u32,
    count: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    version: u32,
    flags: u32,
    name: [u8; 16],
}

#[repr(C)]
#[derive(Default)]
struct TestRun {
    program: u32,
    result: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    context_size_in: u32,
    context_size_out: u32,
    context_in: u64,
    context_out: u64,
    flags: u32,
    cpu: u32,
    batch: u32,
    unused: u32,
}

/// What the kernel lets a name have.
fn short(name: &str) -> [u8; 16] {
    let mut short = [0; 16];
    let letters = name.bytes().filter(|byte| byte.is_ascii_alphanumeric() || *byte == b'_' || *byte == b'.');
    short[..15].iter_mut().zip(letters).for_each(|(place, byte)| *place = byte);
    short
}

/// May this process ask? It has the smallest program judged.
pub fn may_ask() -> bool {
    let pass = Insn { code: insn::ALU64 | insn::MOV, imm: 2, ..Insn::default() };
    let exit = Insn { code: insn::JMP | insn::EXIT, ..Insn::default() };
    let program = ProgramSpec { name: "may_ask".into(), frags: false, insns: vec![pass, exit], functions: vec![0] };
    load(&program, &[], &CString::default()).is_ok()
}

/// Makes the object's maps in the kernel, and has it judge each program.
pub fn verify(object: &Object) -> Result<Accepted, LoadError> {
    let maps: Vec<_> = object.maps.iter().map(make_map).collect::<Result<_, _>>()?;
    let license = CString::new(object.license.replace('\0', "")).unwrap_or_default();
    let load = |program| load(program, &maps, &license);
    let programs: Vec<_> = object.programs.iter().map(load).collect::<Result<_, _>>()?;
    for (spec, map) in object.maps.iter().zip(&maps) {
        for (place, name) in &spec.programs {
            let listed = object.programs.iter().zip(&programs).find(|(program, _)| program.name == *name);
            if let Some((_, program)) = listed {
                update_map(map, &place.to_ne_bytes(), &program.as_raw_fd().to_ne_bytes()).map_err(refused(spec))?;
            }
        }
    }
    Ok(Accepted { maps, programs })
}

fn refused(spec: &MapSpec) -> impl Fn(io::Error) -> LoadError {
    let map = spec.name.clone();
    move |why| LoadError::KernelMap { map: map.clone(), why: why.to_string() }
}

fn make_map(spec: &MapSpec) -> Result<OwnedFd, LoadError> {
    let read_only = if spec.read_only { READ_ONLY } else { 0 };
    let mut create = MapCreate {
        kind: spec.kind.number(),
        key_size: if spec.kind == MapKind::RingBuf { 0 } else { spec.key_size },
        value_size: spec.value_size,
        entries: spec.entries,
        flags: (spec.flags & !MMAPABLE) | read_only,
        name: short(&spec.name),
        ..MapCreate::default()
    };
    // SAFETY: the attributes have no pointer, and the result is a new descriptor.
    let map = unsafe { bpf(MAP_CREATE, &mut create).map(|map| owned(map)) }.map_err(refused(spec))?;
    if !spec.initial.is_empty() {
        update_map(&map, &[0; 4], &spec.initial).map_err(refused(spec))?;
    }
    if spec.read_only {
        // So the verifier knows what stands there.
        let mut freeze = MapUpdate { map: map.as_raw_fd() as u32, ..MapUpdate::default() };
        // SAFETY: the attributes have no pointer.
        unsafe { bpf(MAP_FREEZE, &mut freeze.map) }.map_err(refused(spec))?;
    }
    Ok(map)
}

/// Sets an element of a map of the kernel.
pub fn update_map(map: &OwnedFd, key: &[u8], value: &[u8]) -> io::Result<()> {
    let (key, value) = (key.as_ptr() as u64, value.as_ptr() as u64);
    let mut update = MapUpdate { map: map.as_raw_fd() as u32, key, value, ..MapUpdate::default() };
    // SAFETY: the kernel reads as many bytes as the map's keys and values have. That is what the callers have.
    unsafe { bpf(MAP_UPDATE, &mut update) }.map(drop)
}

/// The instructions with descriptors where maps are named.
fn named(program: &ProgramSpec, maps: &[OwnedFd]) -> Vec<[u8; 8]> {
    let mut insns = program.insns.clone();
    let mut at = 0;
    while let Some(insn) = insns.get_mut(at) {
        let names = insn.code == LD_IMM64 && matches!(insn.src, insn::MAP | insn::MAP_VALUE);
        if let Some(map) = maps.get(insn.imm as usize).filter(|_| names) {
            insn.imm = map.as_raw_fd();
        }
        at += if insn.code == LD_IMM64 { 2 } else { 1 };
    }
    insns.into_iter().map(Insn::bytes).collect()
}

fn load(program: &ProgramSpec, maps: &[OwnedFd], license: &CString) -> Result<OwnedFd, LoadError> {
    let insns = named(program, maps);
    let mut log = Vec::new();
    let attempt = |log: &mut Vec<u8>| {
        let mut load = ProgLoad {
            kind: XDP,
            count: insns.len() as u32,
            insns: insns.as_ptr() as u64,
            license: license.as_ptr() as u64,
            log_level: u32::from(!log.is_empty()),
            log_size: log.len() as u32,
            log: if log.is_empty() { 0 } else { log.as_mut_ptr() as u64 },
            flags: if program.frags { HAS_FRAGS } else { 0 },
            name: short(&program.name),
            ..ProgLoad::default()
        };
        // SAFETY: instructions and log are as long as is said, and the licence ends with NUL. The result is a new
        // descriptor.
        unsafe { bpf(PROG_LOAD, &mut load).map(|program| owned(program)) }
    };
    let first = match attempt(&mut log) {
        Ok(loaded) => return Ok(loaded),
        Err(first) => first,
    };
    log.resize(LOG_BYTES, 0);
    match attempt(&mut log) {
        Ok(loaded) => Ok(loaded),
        Err(_) => {
            let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
            Err(unloaded(program, &first, &last_lines(&String::from_utf8_lossy(&log[..end]))))
        }
    }
}

fn unloaded(program: &ProgramSpec, why: &io::Error, log: &str) -> LoadError {
    LoadError::Verifier { program: program.name.clone(), why: why.to_string(), log: log.into() }
}

/// The end of a log, where the reason stands, without the statistics behind it.
fn last_lines(log: &str) -> String {
    let lines: Vec<_> = log.trim_end().lines().filter(|line| !line.starts_with("processed ")).collect();
    lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
}

/// Runs a program in the kernel on a frame (`BPF_PROG_TEST_RUN`), and returns its result and the frame after it.
pub fn test_run(program: &OwnedFd, frame: &[u8]) -> io::Result<(u32, Vec<u8>)> {
    let (run, out) = test_runs(program, frame, 1)?;
    Ok((run.result, out))
}

/// Runs a program in the kernel this many times on a frame: the mean nanoseconds of a run, which the kernel rounds down.
pub fn time_of_runs(program: &OwnedFd, frame: &[u8], repeat: u32) -> io::Result<f64> {
    test_runs(program, frame, repeat).map(|(run, _)| run.duration.into())
}

fn test_runs(program: &OwnedFd, frame: &[u8], repeat: u32) -> io::Result<(TestRun, Vec<u8>)> {
    let mut out = vec![0; frame.len() + 4096];
    let mut run = TestRun {
        program: program.as_raw_fd() as u32,
        data_size_in: frame.len() as u32,
        data_in: frame.as_ptr() as u64,
        data_size_out: out.len() as u32,
        data_out: out.as_mut_ptr() as u64,
        repeat,
        ..TestRun::default()
    };
    // SAFETY: both frames are as long as is said.
    unsafe { bpf(PROG_TEST_RUN, &mut run) }?;
    out.truncate(run.data_size_out as usize);
    Ok((run, out))
}
