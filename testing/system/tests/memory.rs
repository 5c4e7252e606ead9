//! What programs do with their memory as a whole: `mlockall`, core dumps.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use towpath_system_tests::{Program, Service, bin};

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
