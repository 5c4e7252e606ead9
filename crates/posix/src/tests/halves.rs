//! Listeners with a kernel half: each wait tells of connections of both halves, with one event for the descriptor.

use super::halves_fork::no_fork;
use super::os::*;
use crate::fd::table;
use crate::lifecycle::kernel_half;
use crate::ready::hints;
use libc::{EPOLL_CTL_ADD as ADD, EPOLL_CTL_DEL as DEL, EPOLL_CTL_MOD as MOD};
use libc::{EPOLLET, EPOLLEXCLUSIVE, EPOLLIN, EPOLLONESHOT, POLLIN, c_int};
use std::net::TcpStream;
use std::time::{Duration, Instant};
use towpath_client::socket::Socket;
use towpath_hook::real;

/// A listener with a kernel half.
pub struct Halves {
    pub fd: c_int,
    pub socket: Socket,
    pub port: u16,
}

impl Halves {
    pub fn new() -> Self {
        Self::with(libc::SOCK_NONBLOCK)
    }

    /// With these flags of `socket`.
    pub fn with(flags: c_int) -> Self {
        Self::of(listener(flags).0)
    }

    fn of(fd: c_int) -> Self {
        let socket = table::socket(fd).expect("a slot");
        assert!(socket.kernel_half());
        Self { fd, socket, port: port_of(fd) }
    }

    /// A connection that waits in the slot.
    pub fn by_slot(&self) -> c_int {
        let fd = socket(0);
        connect(fd, self.port).expect("connect");
        fd
    }

    /// A connection that waits in the kernel half.
    pub fn by_kernel(&self) -> TcpStream {
        TcpStream::connect(("127.0.0.1", self.port)).expect("connect")
    }

    /// Accepts a connection. True: the kernel half has accepted it.
    pub fn accept(&self) -> bool {
        accept_one(self.fd)
    }

    pub fn end(self) {
        close(self.fd).expect("close");
    }
}

fn accept_one(fd: c_int) -> bool {
    let new = accept(fd, 0).expect("accept");
    let kernels = table::get(new) == table::Descriptor::Kernel;
    close(new).expect("close");
    kernels
}

const MODES: [c_int; 5] =
    [EPOLLIN, EPOLLIN | EPOLLET, EPOLLIN | EPOLLONESHOT, EPOLLIN | EPOLLEXCLUSIVE, EPOLLIN | EPOLLEXCLUSIVE | EPOLLET];

#[test]
fn both_halves_are_one_event_in_every_mode() {
    for mode in MODES {
        let (halves, epfd) = (Halves::new(), epoll());
        control(epfd, ADD, halves.fd, mode, 77).expect("add");
        assert_eq!(control(epfd, ADD, halves.fd, mode, 77), Err(libc::EEXIST));
        assert_eq!(wait(epfd, 0), [], "{mode:x}");
        let ends = (halves.by_slot(), halves.by_kernel());
        let first = wait(epfd, 60_000);
        assert_eq!(first, [(77, EPOLLIN)], "{mode:x}");
        // Both are ready. By edge the half that the first wait has not asked may be told of once more.
        let more: Vec<_> = (0..40).flat_map(|_| wait(epfd, 0)).collect();
        match mode {
            _ if mode & EPOLLONESHOT != 0 => assert_eq!(more, [], "it was served"),
            _ if mode & EPOLLET != 0 => assert!(more.len() <= 1, "{mode:x}: {more:?}"),
            _ => assert!(more.len() == 40 && more.iter().all(|event| *event == (77, EPOLLIN)), "{mode:x}: {more:?}"),
        }
        assert_ne!(halves.accept(), halves.accept());
        if mode & EPOLLONESHOT == 0 {
            assert_eq!(wait(epfd, 0), [], "{mode:x}");
        }
        close(ends.0).expect("close");
        close(epfd).expect("close");
        halves.end();
    }
}

#[test]
fn each_half_alone_wakes_a_sleeping_wait_in_every_mode() {
    for mode in MODES {
        let (halves, epfd) = (Halves::new(), epoll());
        control(epfd, ADD, halves.fd, mode, 5).expect("add");
        for round in 0..4 {
            if mode & EPOLLONESHOT != 0 {
                control(epfd, MOD, halves.fd, mode, 5).expect("mod");
            }
            hints::clear(&halves.socket);
            let (port, kernels, begun) = (halves.port, round % 2 == 0, Instant::now());
            let connecting = later(20, move || match kernels {
                true => Ok(TcpStream::connect(("127.0.0.1", port)).expect("connect")),
                false => {
                    let fd = socket(0);
                    connect(fd, port).expect("connect");
                    Err(fd)
                }
            });
            assert_eq!(wait(epfd, 60_000), [(5, EPOLLIN)], "{mode:x} {round}");
            assert!(begun.elapsed() < Duration::from_secs(30));
            match connecting.join().expect("thread") {
                Ok(_) => {
                    assert!(hints::has_kernel_said(&halves.socket), "accept is told to look there");
                    assert!(halves.accept());
                }
                Err(fd) => {
                    assert!(!halves.accept());
                    close(fd).expect("close");
                }
            }
            assert_eq!(wait(epfd, 0), [], "{mode:x} {round}");
        }
        close(epfd).expect("close");
        halves.end();
    }
}

#[test]
fn oneshot_is_served_by_either_half_and_armed_again_for_both() {
    let (halves, epfd) = (Halves::new(), epoll());
    control(epfd, ADD, halves.fd, EPOLLIN | EPOLLONESHOT, 1).expect("add");
    let one = halves.by_kernel();
    assert_eq!(wait(epfd, 60_000), [(1, EPOLLIN)]);
    let other = halves.by_slot();
    assert_eq!(wait(epfd, 30), [], "the slot's half is disarmed");
    assert_eq!(poll(&[(epfd, POLLIN)], 0), Ok(vec![0]));
    control(epfd, MOD, halves.fd, EPOLLIN | EPOLLONESHOT, 2).expect("mod");
    assert_eq!(wait(epfd, 60_000), [(2, EPOLLIN)]);
    assert_eq!(wait(epfd, 30), [], "the kernel's half is disarmed");
    assert_eq!(poll(&[(epfd, POLLIN)], 0), Ok(vec![0]), "nor does the epoll descriptor count as readable");
    halves.accept();
    control(epfd, MOD, halves.fd, EPOLLIN | EPOLLONESHOT, 3).expect("mod");
    assert_eq!(wait(epfd, 60_000), [(3, EPOLLIN)], "of the other half");
    halves.accept();
    drop(one);
    close(other).expect("close");
    close(epfd).expect("close");
    halves.end();
}

#[test]
fn what_epoll_ctl_says_of_both_halves() {
    let (halves, epfd) = (Halves::new(), epoll());
    control(epfd, ADD, halves.fd, EPOLLIN | EPOLLEXCLUSIVE, 1).expect("add");
    assert_eq!(control(epfd, MOD, halves.fd, EPOLLIN, 1), Err(libc::EINVAL), "as on Linux");
    control(epfd, DEL, halves.fd, 0, 0).expect("del");
    assert_eq!(control(epfd, DEL, halves.fd, 0, 0), Err(libc::ENOENT));
    let (one, other) = (halves.by_slot(), halves.by_kernel());
    assert_eq!(wait(epfd, 20), []);
    control(epfd, ADD, halves.fd, 0, 2).expect("add");
    assert_eq!(wait(epfd, 20), [], "no events are asked for");
    control(epfd, MOD, halves.fd, EPOLLIN, 3).expect("mod");
    assert_eq!(wait(epfd, 60_000), [(3, EPOLLIN)]);
    close(one).expect("close");
    drop(other);
    close(epfd).expect("close");
    halves.end();
}

#[test]
fn a_ready_slot_does_not_starve_the_kernel_half_nor_the_reverse() {
    let (halves, epfd) = (Halves::new(), epoll());
    let (ours, theirs) = pair();
    control(epfd, ADD, ours, libc::EPOLLOUT, 1).expect("add");
    control(epfd, ADD, halves.fd, EPOLLIN, 2).expect("add");
    let waiting = halves.by_kernel();
    let seen = (0..40).filter(|_| wait(epfd, 0).contains(&(2, EPOLLIN))).count();
    assert!(seen >= 2, "in 40 calls the kernel was asked {seen} times");
    let seen = (0..40).filter(|_| wait(epfd, 0).contains(&(1, libc::EPOLLOUT))).count();
    assert!(seen >= 20, "{seen}");
    drop(waiting);
    close_both(ours, theirs);
    close(epfd).expect("close");
    halves.end();
}

#[test]
fn copies_and_closed_descriptors_are_watched_as_on_linux() {
    let (halves, epfd) = (Halves::new(), epoll());
    control(epfd, ADD, halves.fd, EPOLLIN, 1).expect("add");
    // SAFETY: integers only.
    let copy = unsafe { <crate::handler::Posix as towpath_hook::Handler>::dup(halves.fd) }.expect("ours").expect("dup");
    control(epfd, ADD, copy, EPOLLIN, 2).expect("another descriptor of the same socket");
    let (one, other) = (halves.by_slot(), halves.by_kernel());
    let both = || (0..40).any(|_| wait(epfd, 20) == [(1, EPOLLIN), (2, EPOLLIN)]);
    assert!(both());
    close(halves.fd).expect("close");
    assert!(both(), "copies of it are open");
    accept_one(copy);
    assert!(both(), "the other half is still ready");
    close(copy).expect("close");
    assert_eq!(wait(epfd, 20), []);
    close(one).expect("close");
    drop(other);
    close(epfd).expect("close");
}

#[test]
fn after_the_service_the_kernel_tells_with_the_programs_own_data() {
    let _no_fork = no_fork();
    for mode in MODES {
        let (halves, epfd) = (Halves::new(), epoll());
        control(epfd, ADD, halves.fd, mode, 9).expect("add");
        kernel_half::give_back(halves.fd, &halves.socket);
        assert_eq!(table::get(halves.fd), table::Descriptor::Kernel);
        let waiting = halves.by_kernel();
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: room for one event.
        let found = unsafe { real::epoll_wait(epfd, &raw mut event, 1, 60_000) };
        let (data, events) = (event.u64, event.events);
        assert_eq!((found, data, events as c_int), (1, 9, EPOLLIN), "{mode:x}");
        if mode & (EPOLLET | EPOLLONESHOT) == 0 {
            assert_eq!(wait(epfd, 0), [(9, EPOLLIN)]);
        }
        drop(waiting);
        close(halves.fd).expect("close");
        close(epfd).expect("close");
    }
}

#[test]
fn poll_and_select_look_at_both_halves() {
    let halves = Halves::new();
    let (ours, theirs) = pair();
    for fds in [vec![(halves.fd, POLLIN)], vec![(halves.fd, POLLIN), (ours, POLLIN)]] {
        let ready = |revents: i16| Ok([revents].into_iter().chain(fds[1..].iter().map(|_| 0)).collect::<Vec<_>>());
        assert_eq!(poll(&fds, 0), ready(0));
        let port = halves.port;
        hints::clear(&halves.socket);
        let connecting = later(20, move || TcpStream::connect(("127.0.0.1", port)).expect("connect"));
        assert_eq!(poll(&fds, 60_000), ready(POLLIN));
        assert_eq!(poll(&fds, 0), ready(POLLIN));
        assert!(hints::has_kernel_said(&halves.socket));
        assert!(halves.accept());
        drop(connecting.join().expect("thread"));
        let port = halves.port;
        let connecting = later(20, move || {
            let fd = socket(0);
            connect(fd, port).expect("connect");
            fd
        });
        assert_eq!(poll(&fds, 60_000), ready(POLLIN));
        assert!(!halves.accept());
        close(connecting.join().expect("thread")).expect("close");
        assert_eq!(poll(&fds, 20), ready(0));
    }
    close_both(ours, theirs);
    halves.end();
}

#[test]
fn a_ready_slot_does_not_hide_the_kernel_half_from_poll() {
    let halves = Halves::new();
    let (ours, theirs) = pair();
    let waiting = halves.by_kernel();
    let fds = [(ours, libc::POLLOUT), (halves.fd, POLLIN)];
    let seen = (0..64).filter(|_| poll(&fds, 1000) == Ok(vec![libc::POLLOUT, POLLIN])).count();
    assert!(seen >= 4, "{seen} of 64");
    drop(waiting);
    close_both(ours, theirs);
    halves.end();
}

/// `accept` in a thread of its own.
fn accepting(fd: c_int) -> std::thread::JoinHandle<bool> {
    std::thread::spawn(move || accept_one(fd))
}

#[test]
fn a_thread_asleep_in_accept_wakes_for_either_half() {
    let halves = Halves::with(0);
    for by_kernel in [true, false, true] {
        let accepting = accepting(halves.fd);
        std::thread::sleep(Duration::from_millis(30));
        let end = if by_kernel { Ok(halves.by_kernel()) } else { Err(halves.by_slot()) };
        assert_eq!(accepting.join().expect("thread"), by_kernel);
        end.map_or_else(|fd| _ = close(fd).expect("close"), drop);
    }
    halves.end();
}

#[test]
fn of_several_threads_in_accept_none_is_missed() {
    let halves = Halves::with(0);
    let threads: Vec<_> = (0..8).map(|_| accepting(halves.fd)).collect();
    std::thread::sleep(Duration::from_millis(30));
    let ends: Vec<_> = (0..4).map(|_| (halves.by_kernel(), halves.by_slot())).collect();
    let kernels = threads.into_iter().map(|thread| thread.join().expect("thread"));
    assert_eq!(kernels.filter(|by_kernel| *by_kernel).count(), 4);
    ends.into_iter().for_each(|(_, fd)| _ = close(fd).expect("close"));
    halves.end();
}

#[test]
fn accept_gives_up_at_its_time_limit_and_when_the_listener_ends() {
    let halves = Halves::with(0);
    let limit = libc::timeval { tv_sec: 0, tv_usec: 50_000 };
    set_option(halves.fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, limit).expect("option");
    let begun = Instant::now();
    assert_eq!(accept(halves.fd, 0), Err(libc::EAGAIN));
    assert!(begun.elapsed() >= Duration::from_millis(49));
    let none = libc::timeval { tv_sec: 0, tv_usec: 0 };
    set_option(halves.fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, none).expect("option");
    let fd = halves.fd;
    let accepting = std::thread::spawn(move || accept(fd, 0));
    std::thread::sleep(Duration::from_millis(30));
    shutdown(halves.fd, libc::SHUT_RD).expect("shutdown");
    assert_eq!(accepting.join().expect("thread"), Err(libc::EINVAL));
    halves.end();
}

#[test]
fn a_listener_that_is_shut_down_hangs_up_and_may_listen_again() {
    let (halves, epfd) = (Halves::new(), epoll());
    control(epfd, ADD, halves.fd, EPOLLIN | libc::EPOLLRDHUP, 4).expect("add");
    shutdown(halves.fd, libc::SHUT_RD).expect("shutdown");
    assert_eq!(wait(epfd, 0), [(4, libc::EPOLLHUP)], "as on Linux");
    listen(halves.fd).expect("listen");
    assert_eq!(wait(epfd, 0), []);
    // The port that the kernel had chosen has gone with the listening.
    let halves = Halves::of(halves.fd);
    let (one, other) = (halves.by_slot(), halves.by_kernel());
    assert_eq!(wait(epfd, 60_000), [(4, EPOLLIN)]);
    close(one).expect("close");
    drop(other);
    close(epfd).expect("close");
    halves.end();
}

#[test]
fn a_listener_that_is_watched_before_it_listens() {
    for mode in MODES {
        let (fd, epfd) = (unconnected(), epoll());
        control(epfd, ADD, fd, mode, 6).expect("add");
        assert_eq!(wait(epfd, 0), [(6, libc::EPOLLHUP)], "an unconnected socket of the kernel");
        listen(fd).expect("listen");
        assert_eq!(wait(epfd, 0), [], "{mode:x}");
        let halves = Halves::of(fd);
        let (one, other) = (halves.by_slot(), halves.by_kernel());
        assert_eq!(wait(epfd, 60_000), [(6, EPOLLIN)], "{mode:x}");
        close(one).expect("close");
        drop(other);
        close(epfd).expect("close");
        halves.end();
    }
}

#[test]
fn an_epoll_descriptor_of_epoll_descriptors_sees_both_halves() {
    let (halves, inner, outer) = (Halves::new(), epoll(), epoll());
    control(inner, ADD, halves.fd, EPOLLIN, 1).expect("add");
    control(outer, ADD, inner, EPOLLIN | EPOLLET, 2).expect("add");
    assert_eq!(wait(outer, 20), []);
    for by_kernel in [true, false, true] {
        let end = if by_kernel { Ok(halves.by_kernel()) } else { Err(halves.by_slot()) };
        assert_eq!(wait(outer, 60_000), [(2, EPOLLIN)]);
        assert_eq!(wait(inner, 60_000), [(1, EPOLLIN)]);
        assert_eq!(halves.accept(), by_kernel);
        assert_eq!((wait(outer, 20), wait(inner, 0)), (vec![], vec![]));
        end.map_or_else(|fd| _ = close(fd).expect("close"), drop);
    }
    close_both(inner, outer);
    halves.end();
}

#[test]
fn a_copy_of_an_epoll_descriptor_goes_on_when_the_first_is_closed() {
    let (halves, epfd) = (Halves::new(), epoll());
    control(epfd, ADD, halves.fd, EPOLLIN | EPOLLONESHOT, 1).expect("add");
    // SAFETY: integers only.
    let copy = unsafe { <crate::handler::Posix as towpath_hook::Handler>::dup(epfd) }.expect("ours").expect("dup");
    close(epfd).expect("close");
    let reader = std::io::pipe().expect("a descriptor of the same number");
    let waiting = halves.by_kernel();
    assert_eq!(wait(copy, 60_000), [(1, EPOLLIN)]);
    control(copy, MOD, halves.fd, EPOLLIN | EPOLLONESHOT, 2).expect("mod");
    assert_eq!(wait(copy, 60_000), [(2, EPOLLIN)]);
    drop((waiting, reader));
    close(copy).expect("close");
    halves.end();
}
