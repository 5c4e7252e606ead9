//! Listeners with a kernel half: each wait tells of connections of both halves, with one event for the descriptor.

use super::os::*;
use crate::fd::table;
use crate::ready::{hints, rewatch};
use libc::{EPOLL_CTL_ADD as ADD, EPOLL_CTL_DEL as DEL, EPOLL_CTL_MOD as MOD};
use libc::{EPOLLET, EPOLLEXCLUSIVE, EPOLLIN, EPOLLONESHOT, POLLIN, c_int};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};
use towpath_client::private::flag;
use towpath_client::socket::Socket;
use towpath_client::sys;
use towpath_hook::{outcome, real};

/// A listener whose halves have different ports.
pub struct Halves {
    pub fd: c_int,
    pub socket: Socket,
    pub port: u16,
    pub kernel_port: u16,
    /// The descriptor by which the stack for tests knows that the slot is in use.
    pair: c_int,
}

impl Halves {
    pub fn new() -> Self {
        let (fd, port) = listener(libc::SOCK_NONBLOCK);
        let pair = sys::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0).expect("a copy");
        let kernels = TcpListener::bind("127.0.0.1:0").expect("a port");
        kernels.set_nonblocking(true).expect("O_NONBLOCK");
        let kernel_port = kernels.local_addr().expect("an address").port();
        sys::put_over(kernels.as_raw_fd(), fd).expect("dup3");
        let socket = table::socket(fd).expect("a slot");
        socket.mark(flag::KERNEL_HALF, true);
        Self { fd, socket, port, kernel_port, pair }
    }

    /// A connection that waits in the slot.
    pub fn by_slot(&self) -> c_int {
        let fd = socket(0);
        connect(fd, self.port).expect("connect");
        fd
    }

    /// A connection that waits in the kernel half.
    pub fn by_kernel(&self) -> TcpStream {
        TcpStream::connect(("127.0.0.1", self.kernel_port)).expect("connect")
    }

    /// Accepts the connection that waits in the kernel half.
    pub fn accept_kernels(&self) {
        let null = core::ptr::null_mut;
        // SAFETY: null asks for no address.
        let fd = outcome(unsafe { real::accept4(self.fd, null(), core::ptr::null_mut(), libc::SOCK_CLOEXEC) });
        sys::close(fd.expect("accept"));
    }

    /// Accepts the connection that waits in the slot.
    pub fn accept_slots(&self) {
        self.accept_slots_of(self.fd);
    }

    fn accept_slots_of(&self, fd: c_int) {
        let waiting = || self.socket.readable();
        let before = waiting();
        while waiting() == before {
            close(accept(fd, 0).expect("accept")).expect("close");
        }
    }

    pub fn end(self) {
        close(self.fd).expect("close");
        self.end_closed();
    }

    /// [`Halves::end`] if the descriptor is closed already.
    pub fn end_closed(self) {
        sys::close(self.pair);
    }
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
        halves.accept_slots();
        halves.accept_kernels();
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
            let (port, kernels) = (halves.kernel_port, round % 2 == 0);
            hints::clear(&halves.socket);
            let (slot_port, begun) = (halves.port, Instant::now());
            let connecting = later(20, move || match kernels {
                true => Ok(TcpStream::connect(("127.0.0.1", port)).expect("connect")),
                false => {
                    let fd = socket(0);
                    connect(fd, slot_port).expect("connect");
                    Err(fd)
                }
            });
            assert_eq!(wait(epfd, 60_000), [(5, EPOLLIN)], "{mode:x} {round}");
            assert!(begun.elapsed() < Duration::from_secs(30));
            match connecting.join().expect("thread") {
                Ok(_) => {
                    assert!(hints::has_kernel_said(&halves.socket), "accept is told to look there");
                    halves.accept_kernels();
                }
                Err(fd) => {
                    halves.accept_slots();
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
    halves.accept_slots();
    control(epfd, MOD, halves.fd, EPOLLIN | EPOLLONESHOT, 3).expect("mod");
    assert_eq!(wait(epfd, 60_000), [(3, EPOLLIN)], "of the kernel half");
    halves.accept_kernels();
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
    halves.accept_slots_of(copy);
    assert!(both(), "the kernel half is still ready");
    close(copy).expect("close");
    assert_eq!(wait(epfd, 20), []);
    close(one).expect("close");
    drop(other);
    close(epfd).expect("close");
    sys::close(halves.pair);
}

#[test]
fn after_the_service_the_kernel_tells_with_the_programs_own_data() {
    for mode in MODES {
        let (halves, epfd) = (Halves::new(), epoll());
        control(epfd, ADD, halves.fd, mode, 9).expect("add");
        rewatch::leave_half(&halves.socket);
        table::set(halves.fd, table::Descriptor::Kernel);
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
        sys::close(halves.pair);
    }
}

#[test]
fn poll_and_select_look_at_both_halves() {
    let halves = Halves::new();
    let (ours, theirs) = pair();
    for fds in [vec![(halves.fd, POLLIN)], vec![(halves.fd, POLLIN), (ours, POLLIN)]] {
        let ready = |revents: i16| Ok([revents].into_iter().chain(fds[1..].iter().map(|_| 0)).collect::<Vec<_>>());
        assert_eq!(poll(&fds, 0), ready(0));
        let port = halves.kernel_port;
        hints::clear(&halves.socket);
        let connecting = later(20, move || TcpStream::connect(("127.0.0.1", port)).expect("connect"));
        assert_eq!(poll(&fds, 60_000), ready(POLLIN));
        assert_eq!(poll(&fds, 0), ready(POLLIN));
        assert!(hints::has_kernel_said(&halves.socket));
        halves.accept_kernels();
        drop(connecting.join().expect("thread"));
        let port = halves.port;
        let connecting = later(20, move || {
            let fd = socket(0);
            connect(fd, port).expect("connect");
            fd
        });
        assert_eq!(poll(&fds, 60_000), ready(POLLIN));
        halves.accept_slots();
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
