//! A program ends, and what it has queued goes out so slowly that it would take a day. Its memory does not wait for that.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use towpath_system_tests::{Service, until};

/// Waits for a connection and reads nothing of it.
const DEAF: &str = "import signal, socket, sys
l = socket.create_server(('127.0.0.1', int(sys.argv[1]))); print('listening', flush=True)
c = l.accept(); signal.pause()";

/// Queues 100 kB at a byte per second, and touches 64 MiB of its region.
const WASTER: &str = "import os, socket, sys
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, 47, 1)
s.connect(('127.0.0.1', int(sys.argv[1]))); s.sendall(bytes(100_000))
regions = [line for line in open('/proc/self/maps') if 'towpath-region' in line]
assert len(regions) == 1, regions
end = int(regions[0].split()[0].split('-')[1], 16)
memory = os.open('/proc/self/mem', os.O_RDWR)
for page in range(end - (64 << 20), end, 4096): os.pwrite(memory, b'x', page)
os._exit(0)";

/// The mappings of a process whose file has this name: KiB that each has in memory.
fn mapped(pid: i32, name: &str) -> Vec<u64> {
    let smaps = std::fs::read_to_string(format!("/proc/{pid}/smaps")).expect("the process runs");
    let (mut found, mut is_it) = (Vec::new(), false);
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        match (words.next(), words.next()) {
            (Some("Rss:"), Some(kib)) if is_it => found.push(kib.parse().expect("a number")),
            (Some(first), _) if !first.ends_with(':') => is_it = line.contains(name),
            _ => {}
        }
    }
    found
}

fn what_the_dead_leave_is_little(service: &Service, port: u16, by_kernel: bool) {
    let pid = service.running.worker();
    let deaf = service.accelerated("/usr/bin/python3 -u -c").arg(DEAF).arg(port.to_string());
    let mut deaf = deaf.start(service.scratch.path("deaf.log"));
    deaf.wait_for("listening", 20);
    assert_eq!(mapped(pid, "towpath-region").len(), 1);
    for _ in 0..3 {
        service.accelerated("/usr/bin/python3 -c").arg(WASTER).arg(port.to_string()).run(60).ok();
    }
    until("no region of the dead is mapped", 20, || mapped(pid, "towpath-region").len() == 1);
    let left = mapped(pid, "towpath-orphans");
    // A kernel's sockets have taken it, and the kernel bounds what is left in them.
    // One program's may be mapped in parts.
    assert!(left.len() >= 3 || by_kernel, "the stack still has it: {left:?}");
    assert!(left.iter().sum::<u64>() < 3 * 256, "KiB of three programs: {left:?}");
    deaf.stop();
    until("nothing of them is left", 20, || mapped(pid, "towpath-orphans").is_empty());
}

#[test]
fn a_dead_program_leaves_no_more_memory_than_it_has_queued() {
    what_the_dead_leave_is_little(&Service::embedded(), 7651, false);
}

#[test]
fn a_dead_program_leaves_no_more_memory_than_it_has_queued_with_the_kernel_stack() {
    what_the_dead_leave_is_little(&Service::kernel(), 7652, true);
}
