//! The service ends and comes again. Each test is a process of its own, because its service is.

use super::os::*;
use crate::fake::{self, DIRECT};
use crate::fd::table::{self, Descriptor};
use libc::{EPOLL_CTL_ADD, EPOLLIN, EPOLLRDHUP, c_int};
use std::io::Write;
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use towpath_client::session;
use towpath_ring::control::features::LISTENS_IN_KERNEL;
use towpath_ring::control::{Reply, Request};
use towpath_ring::{Geometry, PairGeometry, pair};

/// Tells a process which of these tests it runs.
const ALONE: &str = "TOWPATH_TEST_ALONE";

/// Runs `work`, which is the test of this name, in a process of its own.
#[track_caller]
pub fn alone(name: &str, work: impl FnOnce()) {
    if std::env::var(ALONE).is_ok_and(|which| which == name) {
        work();
        return;
    }
    let test = format!("tests::{name}");
    let run = std::process::Command::new(std::env::current_exe().expect("own path"))
        .args(["--exact", &test, "--nocapture"])
        .env(ALONE, name)
        .output()
        .expect("another process");
    let [out, err] = [run.stdout, run.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(run.status.success() && out.contains("1 passed"), "{out}\n{err}");
}

/// A service that can be ended and started again.
struct Restarted {
    path: PathBuf,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Restarted {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("towpath-rejoin-test-{}", std::process::id()));
        // SAFETY: no other thread of the test process reads the environment yet.
        unsafe { std::env::set_var("TOWPATH_SOCKET", &path) };
        let mut service = Self { path, stop: Arc::default(), thread: None };
        service.begin();
        start_with_own();
        service
    }

    fn begin(&mut self) {
        self.begin_with(GEOMETRY);
    }

    fn begin_with(&mut self, geometry: Geometry) {
        self.stop = Arc::default();
        let (path, stop) = (self.path.clone(), Arc::clone(&self.stop));
        let serve = move || {
            fake::serve(&path, geometry, LISTENS_IN_KERNEL, || stop.load(Ordering::Relaxed)).expect("the stack");
        };
        self.thread = Some(std::thread::spawn(serve));
        eventually(|| self.path.exists());
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().expect("it runs").join().expect("a thread");
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Drop for Restarted {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn end(fds: &[c_int]) {
    fds.iter().for_each(|fd| _ = close(*fd).expect("close"));
}

fn is_accelerated(fd: c_int) -> bool {
    table::socket(fd).is_some_and(|socket| !socket.is_gone())
}

/// A client of the stack, and its connection as the listener accepts it by this epoll descriptor.
fn connection(epfd: c_int, listening: c_int, port: u16) -> (c_int, c_int) {
    let ours = socket(0);
    connect(ours, port).expect("connect");
    assert!(is_accelerated(ours), "the stack carries it");
    assert_eq!(wait(epfd, 60_000), [(1, EPOLLIN)]);
    let theirs = accept(listening, libc::SOCK_NONBLOCK).expect("accept");
    assert!(is_accelerated(theirs));
    (ours, theirs)
}

fn talk(ours: c_int, theirs: c_int) {
    send(ours, b"ring", 0).expect("send");
    eventually(|| recv(theirs, 9, 0) == Ok(b"ring".to_vec()));
}

#[test]
fn a_listener_and_new_connections_are_accelerated_again() {
    alone("rejoin::a_listener_and_new_connections_are_accelerated_again", || {
        let mut service = Restarted::new();
        let (listening, port) = listener(libc::SOCK_NONBLOCK);
        let epfd = epoll();
        control(epfd, EPOLL_CTL_ADD, listening, EPOLLIN, 1).expect("add");
        let (ours, theirs) = connection(epfd, listening, port);
        talk(ours, theirs);
        control(epfd, EPOLL_CTL_ADD, theirs, EPOLLIN | EPOLLRDHUP, 2).expect("add");
        service.end();
        let ended = EPOLLIN | EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR;
        assert_eq!(wait(epfd, 60_000), [(2, ended)], "the end is told");
        assert_eq!((recv(theirs, 9, 0), recv(theirs, 9, 0)), (Err(libc::ECONNRESET), Ok(vec![])), "once");
        let mut plain = TcpStream::connect(("127.0.0.1", port)).expect("the kernel half listens");
        eventually(|| wait(epfd, 1000).contains(&(1, EPOLLIN)));
        let alone = accept(listening, 0).expect("accept");
        assert!(!is_accelerated(alone));
        plain.write_all(b"kernel").expect("write");
        assert_eq!(recv(alone, 9, 0), Ok(b"kernel".to_vec()));
        let fresh = socket(0);
        connect(fresh, port).expect("connect");
        assert!(!is_accelerated(fresh), "the kernel carries it");
        let theirs_alone = accept(listening, 0).expect("accept");
        // Another service may have other sizes.
        service.begin_with(Geometry { slots: 512, app_slots: 256, ..GEOMETRY });
        eventually(|| {
            let _ = wait(epfd, 10);
            is_accelerated(listening)
        });
        close(theirs).expect("close");
        close(ours).expect("close");
        let (ours, theirs) = connection(epfd, listening, port);
        talk(ours, theirs);
        control(epfd, EPOLL_CTL_ADD, theirs, EPOLLIN, 3).expect("add");
        send(ours, b"x", 0).expect("send");
        assert_eq!(wait(epfd, 60_000), [(3, EPOLLIN)]);
        // The kernel half is watched as before.
        let plain = TcpStream::connect(("127.0.0.1", port)).expect("the kernel half listens");
        eventually(|| wait(epfd, 1000).contains(&(1, EPOLLIN)));
        let last = accept(listening, 0).expect("accept");
        assert!(!is_accelerated(last));
        drop(plain);
        end(&[listening, epfd, ours, theirs, alone, fresh, theirs_alone, last]);
    });
}

#[test]
fn calls_that_sleep_meanwhile_find_the_service() {
    alone("rejoin::calls_that_sleep_meanwhile_find_the_service", || {
        let mut service = Restarted::new();
        let (blocking, first) = listener(0);
        let (watched, second) = listener(libc::SOCK_NONBLOCK);
        let epfd = epoll();
        control(epfd, EPOLL_CTL_ADD, watched, EPOLLIN, 1).expect("add");
        let asleep = later(0, move || accept(blocking, 0).expect("accept"));
        let waiting = later(0, move || wait(epfd, 60_000));
        std::thread::sleep(Duration::from_millis(100));
        service.end();
        eventually(|| [blocking, watched].iter().all(|fd| matches!(table::get(*fd), Descriptor::Pending(_))));
        service.begin();
        eventually(|| is_accelerated(blocking) && is_accelerated(watched));
        let [one, two] = [first, second].map(|port| {
            let ours = socket(0);
            connect(ours, port).expect("connect");
            assert!(is_accelerated(ours));
            ours
        });
        let theirs = asleep.join().expect("a thread");
        assert!(is_accelerated(theirs));
        assert_eq!(waiting.join().expect("a thread"), [(1, EPOLLIN)]);
        let accepted = accept(watched, 0).expect("accept");
        assert!(is_accelerated(accepted));
        end(&[blocking, watched, epfd, one, two, theirs, accepted]);
    });
}

/// Options, the blocking mode and copies of the descriptor are the program's, with and without the service.
#[test]
fn a_listener_is_the_same_socket_throughout() {
    alone("rejoin::a_listener_is_the_same_socket_throughout", || {
        let mut service = Restarted::new();
        let (listening, port) = listener(0);
        let set = |name, value: c_int| {
            // SAFETY: `value` is a local of that size.
            unsafe {
                let value = (&raw const value).cast();
                <crate::Posix as towpath_hook::Handler>::setsockopt(listening, libc::IPPROTO_TCP, name, value, 4)
            }
        };
        assert_eq!(set(libc::TCP_NODELAY, 1), Some(Ok(0)));
        let copy = duplicate(listening);
        service.end();
        eventually(|| {
            let _ = accept_at_once(listening);
            matches!(table::get(listening), Descriptor::Pending(_))
        });
        assert_eq!(table::get(copy), table::get(listening));
        assert_eq!(flags(listening) & libc::O_NONBLOCK, 0, "it blocks");
        // A listener of the time without a service.
        let later = socket(libc::SOCK_NONBLOCK);
        listen(later).expect("listen");
        service.begin();
        eventually(|| {
            let _ = accept_at_once(later);
            is_accelerated(listening) && is_accelerated(later)
        });
        assert_eq!(table::get(copy), table::get(listening));
        let ours = socket(0);
        connect(ours, port).expect("connect");
        let theirs = accept(copy, 0).expect("accept");
        assert!(is_accelerated(theirs));
        assert!(table::socket(theirs).expect("a slot").has_app(towpath_ring::lines::app_flags::NODELAY));
        let here = socket(0);
        connect(here, port_of(later)).expect("connect");
        assert!(is_accelerated(here));
        end(&[listening, copy, later, ours, theirs, here]);
        assert!(TcpStream::connect(("127.0.0.1", port)).is_err(), "the last descriptor is closed");
    });
}

/// Another process that has the listener too makes the kernel socket non-blocking when it lets it join a service.
#[test]
fn a_lost_listener_keeps_the_mode_that_the_program_has_chosen() {
    alone("rejoin::a_lost_listener_keeps_the_mode_that_the_program_has_chosen", || {
        let mut service = Restarted::new();
        let (listening, port) = listener(0);
        service.end();
        eventually(|| {
            let _ = accept_at_once(listening);
            matches!(table::get(listening), Descriptor::Pending(_))
        });
        let by_another = |flags| towpath_client::sys::fcntl(listening, libc::F_SETFL, flags).expect("fcntl");
        by_another(libc::O_NONBLOCK);
        let asleep = later(0, move || accept(listening, 0).expect("it blocks"));
        std::thread::sleep(Duration::from_millis(100));
        let plain = TcpStream::connect(("127.0.0.1", port)).expect("the kernel half listens");
        let accepted = asleep.join().expect("a thread");
        // The kernel's part is left out, so its mode stays the other process's.
        let by_itself = |flags: c_int| {
            // SAFETY: integers only.
            let own = unsafe { <crate::Posix as towpath_hook::Handler>::fcntl(listening, libc::F_SETFL, flags.into()) };
            assert_eq!(own, None, "the kernel does it, too");
        };
        by_itself(libc::O_NONBLOCK);
        assert_eq!(accept(listening, 0), Err(libc::EAGAIN));
        by_itself(0);
        drop(plain);
        service.begin();
        eventually(|| {
            let _ = accept_at_once(listening);
            is_accelerated(listening)
        });
        assert_eq!(flags(listening) & libc::O_NONBLOCK, 0, "it blocks");
        end(&[listening, accepted]);
    });
}

#[test]
fn twenty_services_leave_no_memory_and_no_descriptors() {
    alone("rejoin::twenty_services_leave_no_memory_and_no_descriptors", || {
        let mut service = Restarted::new();
        let (listening, port) = listener(libc::SOCK_NONBLOCK);
        let epfd = epoll();
        control(epfd, EPOLL_CTL_ADD, listening, EPOLLIN, 1).expect("add");
        let turn = || {
            towpath_client::rejoin::hurry();
            let _ = wait(epfd, 10);
        };
        let mut held = Vec::new();
        for round in 0..20 {
            let (ours, theirs) = connection(epfd, listening, port);
            talk(ours, theirs);
            service.end();
            eventually(|| {
                let _ = wait(epfd, 10);
                !is_accelerated(listening)
            });
            end(&[ours, theirs]);
            service.begin();
            eventually(|| {
                turn();
                is_accelerated(listening)
            });
            if [1, 19].contains(&round) {
                // The sessions before are given up once no thread can be in a call of them.
                eventually(|| {
                    turn();
                    session::all().count() == 1
                });
                held.push(holdings());
            }
        }
        let [before, after] = held.try_into().expect("two of them");
        assert!(after.0 <= before.0 + 2 && after.1 <= before.1 && after.2 <= before.2 + 4096, "{before:?} {after:?}");
        end(&[listening, epfd]);
    });
}

/// Each service has its own pair region for the program. Addresses count too (RLIMIT_AS).
#[test]
fn direct_connections_at_four_services_take_the_addresses_of_two() {
    alone("rejoin::direct_connections_at_four_services_take_the_addresses_of_two", || {
        let mut service = Restarted::new();
        let (listening, _port) = listener(libc::SOCK_NONBLOCK);
        let epfd = epoll();
        control(epfd, EPOLL_CTL_ADD, listening, EPOLLIN, 1).expect("add");
        let turn = || {
            towpath_client::rejoin::hurry();
            let _ = wait(epfd, 10);
        };
        let mut before = 0;
        for round in 0..4 {
            let (ours, theirs) = pair_for(DIRECT);
            assert!(table::socket(ours).expect("accelerated").direct().is_some(), "not direct");
            talk(ours, theirs);
            talk(theirs, ours);
            service.end();
            eventually(|| {
                turn();
                !is_accelerated(listening)
            });
            end(&[ours, theirs]);
            service.begin();
            // The sessions before are given up once no thread can be in a call of them.
            eventually(|| {
                turn();
                is_accelerated(listening) && session::all().count() == 1
            });
            if round == 1 {
                before = pairs_mapped();
            }
        }
        let after = pairs_mapped();
        assert!(before > 0 && after <= before, "{before} {after}");
        end(&[listening, epfd]);
    });
}

/// Mappings of this process that have the size of a pair region.
fn pairs_mapped() -> usize {
    let [_, _, bytes] = pair::parts(PairGeometry::of(&GEOMETRY));
    let maps = std::fs::read_to_string("/proc/self/maps").expect("the list");
    let span = |line: &str| {
        let (begin, end) = line.split(' ').next()?.split_once('-')?;
        Some(usize::from_str_radix(end, 16).ok()? - usize::from_str_radix(begin, 16).ok()?)
    };
    maps.lines().filter(|line| span(line) == Some(bytes)).count()
}

/// A service that starts another stack for a look answers late. What is asked meanwhile gets its own answer.
#[test]
fn an_answer_that_comes_too_late_is_nobodys() {
    alone("rejoin::an_answer_that_comes_too_late_is_nobodys", || {
        fake::KEEPS_STACKS.store(true, Ordering::Relaxed);
        let _service = Restarted::new();
        let session = session::get().expect("a session");
        let ask = |limit| session.ask_within(&Request::Stack { stack: 7 }, &[], limit).map(|(reply, _)| reply);
        let short = Some(Duration::from_millis(20));
        assert_eq!([ask(short), ask(short), ask(short)], [None; 3]);
        fake::KEEPS_STACKS.store(false, Ordering::Relaxed);
        let (context, _doorbell) = session.request_context().expect("a context");
        assert_eq!(ask(None), Some(Reply::Refused { errno: libc::ENOENT }));
        assert_ne!(session.request_context().expect("another").0, context);
    });
}

/// Descriptors, maps of regions, and resident KiB of this process.
fn holdings() -> (usize, usize, usize) {
    let open = std::fs::read_dir("/proc/self/fd").expect("the list").count();
    let maps = std::fs::read_to_string("/proc/self/maps").expect("the list");
    let status = std::fs::read_to_string("/proc/self/status").expect("the status");
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line");
    let resident = resident.trim().trim_end_matches(" kB").parse().expect("a number");
    (open, maps.lines().filter(|line| line.contains("memfd:towpath")).count(), resident)
}

fn duplicate(fd: c_int) -> c_int {
    // SAFETY: integers only.
    unsafe { <crate::Posix as towpath_hook::Handler>::dup(fd) }.expect("ours").expect("dup")
}

fn flags(fd: c_int) -> c_int {
    // SAFETY: integers only.
    unsafe { <crate::Posix as towpath_hook::Handler>::fcntl(fd, libc::F_GETFL, 0) }
        .unwrap_or_else(|| towpath_client::sys::fcntl(fd, libc::F_GETFL, 0))
        .expect("fcntl")
}

/// `poll` and then `accept`, if there is a connection.
fn accept_at_once(fd: c_int) -> Option<c_int> {
    let ready = poll(&[(fd, libc::POLLIN)], 10) == Ok(vec![libc::POLLIN]);
    ready.then(|| accept(fd, 0).ok()).flatten()
}
