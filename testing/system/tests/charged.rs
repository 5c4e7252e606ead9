//! To whom the kernel charges the memory of regions, and what a client may do to that memory under the service's feet.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use rustix::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use rustix::fs::{FallocateFlags, fallocate};
use std::sync::atomic::Ordering;
use std::time::Duration;
use towpath_ring::command::{Command, op};
use towpath_ring::control::{self, Reply, Request};
use towpath_ring::lines::pair_slot;
use towpath_ring::wake;
use towpath_system_tests::program::Running;
use towpath_system_tests::wire::Wire;
use towpath_system_tests::{Program, RawClient, Service, require_root, until};

/// Makes control groups for memory visible in a mount namespace of its own: those of version 1 if the kernel has them, else
/// version 2. `$M` is their place.
const WITH_GROUPS: &str = "mount -t tmpfs none /sys/fs/cgroup && mkdir /sys/fs/cgroup/m && M=/sys/fs/cgroup/m
    mount -t cgroup -o memory none $M 2>/dev/null || mount -t cgroup2 none $M
    [ -e $M/cgroup.subtree_control ] && echo +memory > $M/cgroup.subtree_control; ";

fn with_groups(script: &str, words: &[&str]) -> Program {
    let script = format!("{WITH_GROUPS}{script}");
    let program = Program::new(&["unshare", "-m", "sh", "-c", &script, "sh"]);
    words.iter().fold(program, |program, word| program.arg(word))
}

/// A control group of the test's own.
struct Group(String);

impl Group {
    fn new(name: &str) -> Self {
        let name = format!("towpath-{}-{name}", std::process::id());
        with_groups("mkdir $M/$1", &[&name]).run(20).ok();
        Self(name)
    }
    /// Moves a process there. What it touches from now on is charged to the group.
    fn take(&self, pid: i32) {
        with_groups("echo $2 > $M/$1/cgroup.procs", &[&self.0, &pid.to_string()]).run(20).ok();
    }
    /// Shared memory that is charged to it, bytes.
    fn shared(&self) -> u64 {
        let stat = with_groups("cat $M/$1/memory.stat", &[&self.0]).run(20).ok();
        let line = stat.lines().find_map(|line| line.strip_prefix("shmem "));
        line.expect("the shared memory of a control group").trim().parse().expect("a number")
    }
    /// Starts a program whose processes are in the group from the first on.
    fn start(&self, program: Program, log: std::path::PathBuf) -> Running {
        let enter = format!("{WITH_GROUPS}echo $$ > $M/$1/cgroup.procs && shift && exec \"$@\"");
        program.under(&["unshare", "-m", "sh", "-c", &enter, "sh", &self.0]).start(log)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A process that has just ended keeps its group for a moment.
        let script = "for pid in $(cat $M/$1/cgroup.procs); do echo $pid > $M/cgroup.procs; done
            for n in $(seq 100); do rmdir $M/$1 && exit; sleep 0.1; done";
        with_groups(script, &[&self.0]).run(30);
    }
}

const CONNECTIONS: u64 = 24;
/// A receive ring of the default geometry.
const RING: u64 = 131_072;

/// Receives all around the ring of each connection, in pieces that it answers, so that no more than one piece is unread.
const RECEIVER: &str = "import socket, sys, time
l = socket.create_server(('127.0.0.1', int(sys.argv[3]))); kept = []
print('listening', flush=True)
for n in range(int(sys.argv[1])):
    c, _ = l.accept(); kept.append(c)
    got = 0
    while got < int(sys.argv[2]):
        piece = len(c.recv(65536)); got += piece
        if got % 4096 == 0: c.sendall(b'x')
print('received', flush=True); time.sleep(600)";

const SENDER: &str = "import socket, sys
kept = []
for n in range(int(sys.argv[1])):
    c = socket.create_connection(('127.0.0.1', int(sys.argv[3]))); kept.append(c)
    for piece in range(int(sys.argv[2]) // 4096):
        c.sendall(b'y' * 4096); c.recv(1)
print('sent', flush=True)";

fn received_bytes_are_charged_to_the_receiver(service: Service, port: u16) {
    require_root();
    let (ours, receivers) = (Group::new(&format!("service-{port}")), Group::new(&format!("receiver-{port}")));
    ours.take(service.running.worker());
    let all = CONNECTIONS * RING;
    let python = |script: &str| {
        let program = service.accelerated("python3 -c").arg(script);
        program.arg(CONNECTIONS.to_string()).arg(RING.to_string()).arg(port.to_string())
    };
    let mut receiver = receivers.start(python(RECEIVER), service.scratch.path("receiver.log"));
    receiver.wait_for("listening", 30);
    let before = (ours.shared(), receivers.shared());
    assert_eq!(python(SENDER).run(120).ok().trim(), "sent");
    receiver.wait_for("received", 60);
    let grown = (ours.shared().saturating_sub(before.0), receivers.shared().saturating_sub(before.1));
    println!("{all} bytes of rings: the service is charged {} and the receiver {}", grown.0, grown.1);
    assert!(grown.1 >= all, "the receiver is charged {} for {all} bytes of rings", grown.1);
    assert!(grown.0 < all / 4, "the service is charged {} for {all} bytes of rings of its clients", grown.0);
    receiver.stop();
}

#[test]
fn received_bytes_are_charged_to_the_program_that_receives_them() {
    received_bytes_are_charged_to_the_receiver(Service::embedded(), 7431);
}

#[test]
fn received_bytes_are_charged_to_the_program_that_receives_them_also_from_the_kernel_stack() {
    received_bytes_are_charged_to_the_receiver(Service::kernel(), 7432);
}

/// What the pages of all regions of the process SERVICE take, bytes.
const USED: &str = "
import os
def used():
    of = lambda f: f'/proc/{SERVICE}/fd/{f}'
    return sum(os.stat(of(f)).st_blocks * 512 for f in os.listdir(of('')) if 'towpath-region' in link(of(f)))
def link(path):
    try: return os.readlink(path)
    except OSError: return ''
";

#[test]
fn the_rings_of_closed_sockets_go_back_to_the_kernel() {
    const SCRIPT: &str = "
l = socket.create_server(('127.0.0.1', 0), backlog=100); pairs = []
for n in range(64):
    c = socket.create_connection(l.getsockname()); s, _ = l.accept(); pairs.append((c, s))
    for piece in range(32):
        c.sendall(b'x' * 4096); got = 0
        while got < 4096: got += len(s.recv(4096))
print(used() >= 64 * 2 * 131072)
for c, s in pairs: c.close(); s.close()
# The rings of 32 senders and of 32 receivers, and 8 KiB of all others.
left = 2 * 32 * 131072 + 2 * 64 * 2 * 8192 + (1 << 20); end = time.monotonic() + 60
while used() > left and time.monotonic() < end: time.sleep(0.01)
print(used() <= left)
# What was given back is whole again when it is used again.
for n in range(40):
    c = socket.create_connection(l.getsockname()); s, _ = l.accept(); pairs[n] = (c, s)
    sent = os.urandom(4096) * 10; got = b''
    for piece in range(10):
        c.sendall(sent[:4096]); got += s.recv(4096, socket.MSG_WAITALL)
    assert got == sent
print('again')";
    for service in [Service::embedded(), Service::kernel()] {
        let script = format!("import socket, time\nSERVICE = {}{USED}{SCRIPT}", service.running.worker());
        assert_eq!(service.accelerated("python3 -c").arg(script).run(120).ok(), "True\nTrue\nagain\n");
    }
}

/// Takes as many bytes as it is told to and gives as many back, twice for each way to wait. Between the two it waits that way, and
/// prints what it was woken for. After each step it prints what all regions of the service take: nothing is given back outside a wait.
const IDLER: &str = "
import select, socket, sys, zlib
BYTES, SERVICE = int(sys.argv[1]), sys.argv[2]; piece = bytes(range(251)) * 1045
def say(*words): print(*words, used(), '.', flush=True)
l = socket.create_server(('10.77.1.1', 7000)); print('listening', flush=True)
def exchange(c):
    got = total = 0
    while got < BYTES:
        taken = c.recv(min(1 << 20, BYTES - got)); assert taken
        total = zlib.crc32(taken, total); got += len(taken)
    for at in range(0, BYTES, len(piece)): c.sendall(piece[:BYTES - at])
    return total
def wait(c, how):
    if how == 'recv': return c.recv(1, socket.MSG_PEEK)
    if how == 'poll': p = select.poll(); p.register(c, select.POLLIN); return p.poll() == [(c.fileno(), select.POLLIN)]
    e = select.epoll(); e.register(c, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)
    assert e.poll() == [(c.fileno(), select.EPOLLOUT)]
    return all(bits & select.EPOLLIN for _, bits in e.poll())
for how in sys.argv[3:]:
    c, _ = l.accept(); say('begun', how)
    first = exchange(c); say('idle', how)
    woken = wait(c, how); same = exchange(c) == first; say('again', how, bool(woken), same)
    c.recv(1); c.close()";

/// The other side, on Linux. The second exchange begins when there is a file for it.
const OTHER: &str = "import os, socket, sys, time, zlib
BYTES = int(sys.argv[1]); piece = bytes(range(251)) * 1045
for how in sys.argv[3:]:
    c = socket.create_connection(('10.77.1.1', 7000))
    for turn in range(2):
        sent = got = total = 0
        for at in range(0, BYTES, len(piece)):
            c.sendall(piece[:BYTES - at]); sent = zlib.crc32(piece[:BYTES - at], sent)
        while got < BYTES: taken = c.recv(1 << 20); assert taken; total = zlib.crc32(taken, total); got += len(taken)
        assert total == sent
        print('sent', how, turn, sent, flush=True)
        while turn == 0 and not os.path.exists(sys.argv[2] + how): time.sleep(0.02)
    c.close()";

/// What the pages of all regions of a service's clients take, bytes.
fn regions(service: &Service) -> u64 {
    let descriptors = std::fs::read_dir(format!("/proc/{}/fd", service.running.worker())).expect("descriptors");
    let is_region = |path: &std::path::PathBuf| {
        std::fs::read_link(path).is_ok_and(|name| name.to_string_lossy().contains("towpath-region"))
    };
    let bytes = |path: std::path::PathBuf| {
        let file = std::fs::metadata(path).ok()?;
        Some(std::os::unix::fs::MetadataExt::blocks(&file) * 512)
    };
    descriptors.flatten().map(|entry| entry.path()).filter(is_region).filter_map(bytes).sum()
}

#[test]
fn an_idle_connection_gives_back_what_its_rings_have_grown_by_and_works_as_before() {
    require_root();
    const BYTES: u64 = 4 << 20;
    const MUCH: u64 = 256 << 10;
    const WAYS: [&str; 3] = ["recv", "poll", "epoll"];
    let (wire, ours) = (Wire::new(), Group::new("service-idle"));
    let _relay = wire.relay("--delay 15ms");
    let config = wire.scratch.path("towpathd.toml");
    std::fs::write(&config, "interface = \"eth1\"\nidle_memory = \"1s\"\n").unwrap();
    let service = Service::start(|program| wire.under(0, program.arg("--config").arg(config)));
    ours.take(service.running.worker());
    let ways = |program: Program| WAYS.iter().fold(program, |program, way| program.arg(way));
    let program = service.accelerated("python3 -c").arg(format!("{USED}{IDLER}")).arg(BYTES.to_string());
    let program = ways(program.arg(service.running.worker().to_string()));
    let mut idler = wire.under(0, program).start(wire.scratch.path("idler.log"));
    idler.wait_for("listening", 30);
    let go = wire.scratch.path("go-").to_string_lossy().into_owned();
    let program = Program::new(&["python3", "-c", OTHER]).arg(BYTES.to_string()).arg(&go);
    let mut other = wire.under(1, ways(program)).start(wire.scratch.path("other.log"));
    // What the program has said: the memory of all regions then.
    let mut said = |words: &str| -> u64 {
        let is_it = |line: &&str| line.starts_with(words) && line.ends_with(" .");
        until(words, 120, || idler.output().lines().any(|line| is_it(&line)) || !idler.alive());
        let output = idler.output();
        let line = output.lines().find(is_it).unwrap_or_else(|| panic!("no {words:?}:\n{output}"));
        line.split(' ').rev().nth(1).and_then(|bytes| bytes.parse().ok()).expect("a number of bytes")
    };
    for way in WAYS {
        let begun = said(&format!("begun {way}"));
        let busy = said(&format!("idle {way}"));
        other.wait_for(&format!("sent {way} 0"), 120);
        until("the memory has gone back", 120, || regions(&service) < begun + MUCH / 4);
        let (idle, charged) = (regions(&service), ours.shared());
        std::fs::write(format!("{go}{way}"), "").unwrap();
        let again = said(&format!("again {way} True True"));
        let ours = ours.shared().saturating_sub(charged);
        println!(
            "{way}: {begun} bytes at first, {busy} busy, {idle} idle, {again} busy again, {ours} of them the service's"
        );
        assert!(busy > begun + MUCH && again > idle + MUCH, "the rings are used");
        assert!(ours < MUCH / 4, "the service is charged {ours}");
        other.wait_for(&format!("sent {way} 1"), 60);
    }
    other.wait_end(30);
    idler.wait_end(30);
}

/// A userfaultfd on an address range: who touches a missing page there waits until this is closed.
struct Missing(#[allow(dead_code, reason = "it is closed")] OwnedFd);

impl Missing {
    fn on(address: usize, bytes: usize) -> Self {
        const API: libc::c_ulong = 0xc018_aa3f;
        const REGISTER: libc::c_ulong = 0xc020_aa00;
        let (mut api, mut range) = ([0xaau64, 0, 0], [address as u64, bytes as u64, 1, 0]);
        // SAFETY: the descriptor is new. Both structures have the length that the requests name, and outlive the calls.
        unsafe {
            let fd = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC);
            assert!(fd >= 0, "userfaultfd: {}", std::io::Error::last_os_error());
            let fd = OwnedFd::from_raw_fd(fd as i32);
            assert_eq!(libc::ioctl(fd.as_raw_fd(), API, &raw mut api), 0);
            assert_eq!(libc::ioctl(fd.as_raw_fd(), REGISTER, &raw mut range), 0);
            Self(fd)
        }
    }
}

fn echo(service: &Service) {
    let script = "import socket
l = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(l.getsockname()); s, _ = l.accept()
c.sendall(b'x' * 3000); got = 0
while got < 3000: got += len(s.recv(65536))
print(got)";
    assert_eq!(service.accelerated("python3 -c").arg(script).run(60).ok().trim(), "3000");
}

fn ring_all(client: &RawClient) {
    client.doorbells.iter().for_each(|doorbell| wake::notify(doorbell.as_fd()));
}

/// Takes all pages of the region away.
fn punch(client: &RawClient) {
    let bytes = client.region.layout().total_bytes() as u64;
    fallocate(&client.memfd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, bytes).expect("punch");
}

#[test]
fn a_client_that_holds_back_the_pages_of_its_region_holds_up_nobody() {
    require_root();
    for service in [Service::embedded(), Service::kernel()] {
        let client = RawClient::new(&service);
        punch(&client);
        let _missing = Missing::on(client.region.addresses().start, client.region.layout().total_bytes());
        // The service touches the pages of its queues now.
        ring_all(&client);
        echo(&service);
        // The programs of the echo have ended, and the service may not have seen it yet.
        until("it alone", 20, || service.status()["clients"].as_array().expect("clients").len() == 1);
        drop(client);
        forgotten(&service);
        echo(&service);
    }
}

/// A thread that is in a `write` to a file for as long as this lives. Whoever changes the file waits meanwhile.
struct Locked {
    missing: Option<Missing>,
    writer: Option<std::thread::JoinHandle<isize>>,
}

impl Locked {
    fn new(file: &OwnedFd) -> Self {
        let file = file.try_clone().expect("a copy");
        // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing. It stays for good.
        let page = unsafe {
            let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            libc::mmap(std::ptr::null_mut(), 8192, prot, flags, -1, 0)
        };
        assert_ne!(page, libc::MAP_FAILED);
        let (missing, at) = (Missing::on(page.addr(), 8192), page.expose_provenance());
        let writer = std::thread::spawn(move || {
            // SAFETY: the mapping stays for good. Its pages do not come before the userfaultfd is closed.
            unsafe { libc::pwrite(file.as_raw_fd(), std::ptr::with_exposed_provenance(at), 8192, 1 << 20) }
        });
        until("the writer has the lock", 20, || is_in_a_call(libc::SYS_pwrite64));
        Self { missing: Some(missing), writer: Some(writer) }
    }
    /// Lets go, and checks that the file was locked until now.
    fn end(mut self) {
        let writer = self.writer.take().expect("the writer");
        assert!(!writer.is_finished(), "the writer did not wait");
        drop(self.missing.take());
        assert_eq!(writer.join().expect("the writer"), 8192);
    }
}

fn forgotten(service: &Service) {
    until("the client is forgotten", 20, || service.status()["clients"].as_array().is_some_and(Vec::is_empty));
}

#[test]
fn a_client_that_keeps_the_lock_of_its_memory_holds_up_nobody_and_is_forgotten() {
    require_root();
    let _one = ONE.lock();
    for service in [Service::embedded(), Service::kernel()] {
        let client = RawClient::new(&service);
        let locked = Locked::new(&client.memfd);
        ring_all(&client);
        echo(&service);
        drop(client);
        forgotten(&service);
        echo(&service);
        locked.end();
    }
}

#[test]
fn a_client_that_keeps_the_lock_of_a_pairs_memory_holds_up_nobody_and_is_forgotten() {
    require_root();
    let _one = ONE.lock();
    let service = Service::direct();
    let mut client = RawClient::new(&service);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("listener");
    let (here, port) = (std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped(), listener.local_addr().expect("name").port());
    client.show(0, client.next_seq(0), true, &listener);
    let listen =
        Command { op: op::LISTEN, local_addr: here, local_port: port.into(), backlog: 8, ..Command::default() };
    assert_eq!(client.command(0, &listen), 0);
    let connect = Command { op: op::CONNECT, remote_addr: here, remote_port: port.into(), ..Command::default() };
    assert_eq!(client.command(1, &connect), 0);
    let line = client.region.stack(client.region.slot(1).expect("slot"));
    let (pair, word) = (line.pair.load(Ordering::Acquire), line.pair_slot.load(Ordering::Acquire));
    assert_ne!(pair, 0, "the client is not joined to itself");
    let ask = Request::Pair { place: pair_slot::place(word), pair };
    control::send_request(client.socket.as_fd(), &ask, &[]).expect("request");
    let (Reply::Pair { .. }, memory) = control::recv_reply(client.socket.as_fd()).expect("reply") else {
        panic!("no pair")
    };
    let locked = Locked::new(&memory[0]);
    drop((client, memory));
    // The pair's rings are to be given back now.
    forgotten(&service);
    echo(&service);
    locked.end();
}

/// One test at a time looks at what this process's threads do.
static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// Is a thread of this process in this system call, asleep?
fn is_in_a_call(number: i64) -> bool {
    let tasks = std::fs::read_dir("/proc/self/task").expect("tasks");
    tasks.flatten().any(|task| {
        let call = std::fs::read_to_string(task.path().join("syscall")).unwrap_or_default();
        std::thread::sleep(Duration::from_millis(1));
        call.split(' ').next() == Some(&number.to_string())
    })
}
