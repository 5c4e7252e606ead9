//! What programs do with their memory as a whole: `mlockall`, core dumps.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use towpath_system_tests::native::{both_ways, give, pair, take};
use towpath_system_tests::{Lab, Program, Scratch, Service, bin, bin_dir, require_program, until};

const BEGIN: &str = r#"
import ctypes, os, resource, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
CURRENT, FUTURE, ONFAULT = 1, 2, 4
def locked():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmLck"))
def lock(flags): return libc.mlockall(flags) and os.strerror(ctypes.get_errno())
def pair():
    listener = socket.socket(); listener.bind(("127.0.0.1", 0)); listener.listen(5)
    c = socket.create_connection(listener.getsockname()); s = listener.accept()[0]
    for one in c, s: one.settimeout(60)
    return listener, c, s
def echo(_, c, s):
    c.sendall(b"x" * 50000); got = 0
    while got < 50000: got += len(s.recv(50000))
# Python itself has some megabytes, and a region has gigabytes.
def some(): return "some" if 1000 < locked() < 300000 else locked()
"#;

/// Runs the script on the kernel, preloaded and injected, over the stack and directly. All print the same.
fn as_the_kernel(script: &str) {
    as_the_kernel_under(&["env"], script);
}

/// [`as_the_kernel`] below another command line.
fn as_the_kernel_under(prefix: &[&str], script: &str) {
    let script = format!("{BEGIN}{script}");
    let kernel = Program::line("python3 -c").arg(&script).under(prefix).run(60).ok();
    println!("{kernel}");
    for service in [Service::embedded(), Service::direct()] {
        for hook in ["preload", "inject"] {
            let run = Program::new(&[bin("towpath")]).arg("run").arg("--require").arg("--hook").arg(hook);
            let run = run.arg("--socket").arg(&service.socket).arg("--");
            let ours = run.arg("python3").arg("-c").arg(&script).under(prefix).run(60).ok();
            assert_eq!(ours, kernel, "Towpath ({hook}) on the left, the kernel on the right");
        }
    }
}

#[test]
fn mlockall_before_the_first_socket_leaves_the_region_out() {
    let script = r#"
print(lock(CURRENT | FUTURE), some())
p = pair(); echo(*p); print(some())
print(lock(CURRENT), some())
big = bytearray(400 << 20); print(some())
print(libc.munlockall(), locked())
print(lock(FUTURE)); q = pair(); echo(*q); print(locked() < 300000)
"#;
    as_the_kernel(script);
}

#[test]
fn mlockall_after_the_first_socket_leaves_the_region_out() {
    let script = r#"
p = pair(); echo(*p)
print(lock(CURRENT), some()); echo(*p)
big = bytearray(400 << 20); print(some()); del big
print(lock(CURRENT | FUTURE), some()); echo(*p); q = pair(); echo(*q)
big = bytearray(400 << 20); print(locked() > 400 << 10); del big
print(lock(CURRENT | ONFAULT), some()); echo(*p)
print(lock(ONFAULT), lock(0), lock(8 | CURRENT))
print(libc.munlockall(), locked()); echo(*p)
"#;
    as_the_kernel(script);
}

/// A program that may not lock more than its limit, whoever runs it.
const LIMITED: [&str; 3] = ["setpriv", "--bounding-set", "-ipc_lock"];

#[test]
fn the_limit_of_locked_memory_is_that_of_the_programs_own_memory() {
    let script = r#"
p = pair(); echo(*p)
resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 20, resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]))
print(lock(CURRENT | FUTURE), locked()); echo(*p)
print(lock(CURRENT), locked())
print(lock(FUTURE), locked()); echo(*p)
"#;
    as_the_kernel_under(&LIMITED, script);
}

#[test]
fn a_program_that_may_not_lock_a_region_is_served_by_the_kernel() {
    let script = r#"
resource.setrlimit(resource.RLIMIT_MEMLOCK, (4 << 20, resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]))
print(lock(FUTURE)); p = pair(); echo(*p)
"#;
    let service = Service::embedded();
    let run = |require: &[&str]| {
        let run = require.iter().fold(Program::new(&[bin("towpath")]).arg("run"), Program::arg);
        let run = run.arg("--socket").arg(&service.socket).arg("--").arg("python3").arg("-c");
        run.arg(format!("{BEGIN}{script}")).under(&LIMITED).run(60)
    };
    assert_eq!(run(&[]).ok(), "0\n");
    assert_eq!(service.segments(), 0, "the stack has carried something");
    let refused = run(&["--require"]).err;
    assert!(refused.contains("raise `ulimit -l`"), "{refused}");
}

#[test]
fn core_dumps_have_no_regions() {
    let service = Service::embedded();
    let script = r#"
p = pair(); echo(*p)
name, regions = "", []
for line in open("/proc/self/smaps"):
    if "-" in line.split()[0]: name = line
    if line.startswith("VmFlags") and "/memfd:towpath-" in name: regions.append("dd" in line.split())
print(len(regions) > 0, all(regions))
"#;
    let out = service.accelerated("python3 -c").arg(format!("{BEGIN}{script}")).run(60).ok();
    assert_eq!(out.trim(), "True True");
}

/// The mappings of a process: each one's name, size in bytes, and `VmFlags`.
fn mappings(process: &str) -> Vec<(String, u64, Vec<String>)> {
    let list = std::fs::read_to_string(format!("/proc/{process}/smaps")).expect("smaps");
    let mut found: Vec<(String, u64, Vec<String>)> = Vec::new();
    for line in list.lines() {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        let last = || found.len() - 1;
        if first == "VmFlags:" {
            let last = last();
            found[last].2 = words.map(str::to_owned).collect();
        } else if first == "Size:" {
            let last = last();
            found[last].1 = words.next().and_then(|size| size.parse::<u64>().ok()).expect("a size") << 10;
        } else if !first.ends_with(':') {
            found.push((words.skip(4).collect::<Vec<_>>().join(" "), 0, Vec::new()));
        }
    }
    found
}

/// Checks those of `mappings` that `is_ours` picks: none is locked, and none is in a core dump.
fn assert_left_out(mappings: &[(String, u64, Vec<String>)], what: &str, is_ours: impl Fn(&str, u64) -> bool) {
    let ours: Vec<_> = mappings.iter().filter(|(name, size, _)| is_ours(name, *size)).collect();
    assert!(!ours.is_empty(), "there is no mapping of {what}");
    for (name, size, flags) in ours {
        let has = |flag: &str| flags.iter().any(|other| other == flag);
        assert!(has("dd") && !has("lo"), "{what}: {name:?} of {size} bytes has {flags:?}");
    }
}

fn is_region(name: &str, _size: u64) -> bool {
    name.starts_with("/memfd:towpath-")
}

/// Locks this process's memory.
fn lock_all(flags: i32) {
    // SAFETY: numbers only. What is locked stays what it is.
    assert_eq!(unsafe { libc::mlockall(flags) }, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn mlockall_of_a_native_program_leaves_the_regions_out() {
    both_ways("mlockall_of_a_native_program_leaves_the_regions_out", || {
        let (_stack, mut ours, mut theirs) = pair();
        for flags in [libc::MCL_CURRENT, libc::MCL_CURRENT | libc::MCL_FUTURE] {
            lock_all(flags);
            let all = mappings("self");
            assert!(all.iter().any(|(_, _, flags)| flags.iter().any(|flag| flag == "lo")), "nothing is locked");
            assert_left_out(&all, "rings", is_region);
            give(&mut ours, b"bytes").unwrap();
            assert_eq!(take(&mut theirs, 5).unwrap(), b"bytes");
        }
        // SAFETY: the structure is there for the call.
        let failed = unsafe { libc::mlockall(8) };
        assert_eq!((failed, std::io::Error::last_os_error().raw_os_error()), (-1, Some(libc::EINVAL)));
    });
}

#[test]
fn mlockall_before_a_native_program_opens_its_stack_leaves_the_regions_out() {
    both_ways("mlockall_before_a_native_program_opens_its_stack_leaves_the_regions_out", || {
        lock_all(libc::MCL_CURRENT | libc::MCL_FUTURE);
        let (_stack, mut ours, mut theirs) = pair();
        assert_left_out(&mappings("self"), "rings", is_region);
        give(&mut ours, b"bytes").unwrap();
        assert_eq!(take(&mut theirs, 5).unwrap(), b"bytes");
    });
}

/// A program of the C library, linked with the shared object and with the archive.
#[test]
fn mlockall_of_a_native_c_program_leaves_the_regions_out() {
    const SOURCE: &str = r#"
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include "towpath.h"
int main(void) {
    struct towpath *stack;
    int opened = towpath_open(NULL, &stack), locked = mlockall(MCL_CURRENT | MCL_FUTURE);
    printf("%d %d\n", opened, locked);
    char line[4096];
    int ours = 0, rings = 0, wrong = 0;
    FILE *smaps = fopen("/proc/self/smaps", "r");
    while (fgets(line, sizeof line, smaps)) {
        if (strstr(line, "-") && strstr(line, " 00:0"))
            ours = strstr(line, "/memfd:towpath-") != NULL;
        if (ours && strncmp(line, "VmFlags", 7) == 0) {
            rings++;
            wrong += strstr(line, " lo") != NULL || strstr(line, " dd") == NULL;
        }
    }
    printf("%d %d\n", rings > 0, wrong);
    towpath_close(stack);
    return 0;
}
"#;
    require_program("gcc", "gcc");
    let (service, scratch) = (Service::embedded(), Scratch::new("locked"));
    let include = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/native/include");
    let source = scratch.path("locked.c");
    std::fs::write(&source, SOURCE).expect("source");
    for archive in [false, true] {
        let program = scratch.path(if archive { "archive" } else { "library" });
        let gcc = Program::line("gcc -std=c11 -Wall -Wextra -Werror -D_GNU_SOURCE -I").arg(&include).arg("-o");
        let gcc = gcc.arg(&program).arg(&source);
        let gcc = if archive {
            gcc.arg(bin("libtowpath_native.a")).arg("-lm")
        } else {
            let path = format!("-Wl,-rpath,{}", bin_dir().display());
            gcc.arg("-L").arg(bin_dir()).arg("-ltowpath_native").arg(path)
        };
        gcc.run(60).ok();
        let out = Program::new(&[&program]).env("TOWPATH_SOCKET", &service.socket).run(60).ok();
        assert_eq!(out, "0 0\n1 0\n", "archive: {archive}");
    }
}

#[test]
fn core_dumps_of_the_service_have_neither_regions_nor_packets() {
    let lab = Lab::new();
    let service = Service::on_interface(&lab);
    let client = service.accelerated("sleep 60").start(service.scratch.path("client.log"));
    let is_frames = |name: &str, size: u64| size == FRAMES && name.starts_with("/memfd:towpath-frames");
    // The memory for the code of modules is mapped before all other.
    let is_code = |name: &str, _| name.starts_with("/memfd:towpath-code");
    let is_clients = |name: &str, size: u64| is_region(name, size) && !is_frames(name, size) && !is_code(name, size);
    until("a region", 20, || {
        mappings(&service.running.worker().to_string()).iter().any(|(name, size, _)| is_clients(name, *size))
    });
    let worker = mappings(&service.running.worker().to_string());
    assert_left_out(&worker, "regions", is_clients);
    assert_left_out(&worker, "AF_XDP rings", |name, _| name.starts_with("socket:"));
    assert_left_out(&worker, "frames", is_frames);
    assert_left_out(&worker, "code", is_code);
    drop(client);
}

/// The frame memory of a queue, bytes.
const FRAMES: u64 = 4096 * 2048;
