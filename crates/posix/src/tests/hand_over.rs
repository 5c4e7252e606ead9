//! A proxy that passes all on by `splice` is taken out of the data path, and goes on counting.

use super::os::*;
use crate::fd::table;
use crate::handler::Posix;
use crate::ready::rewatch;
use core::ffi::c_int;
use std::io::{PipeReader, PipeWriter, pipe};
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use towpath_client::private::flag;
use towpath_client::socket::Socket;
use towpath_hook::{Handler, real};
use towpath_ring::lines::{app_flags, status};

/// What a proxy asks for that looks at nothing.
const ALL: usize = 1 << 30;

/// A proxy's two connections, its pipe, and its peers: the client has connected to it, and it to the server.
struct Proxy {
    ends: [c_int; 2],
    peers: [c_int; 2],
    pipe: (PipeReader, PipeWriter),
    epoll: c_int,
}

impl Proxy {
    fn new() -> Self {
        let ((client, one), (other, server)) = (pair(), pair());
        for fd in [one, other] {
            nonblocking(fd);
        }
        Self { ends: [one, other], peers: [client, server], pipe: pipe().expect("a pipe"), epoll: epoll() }
    }

    fn socket(&self, side: usize) -> Socket {
        table::socket(self.ends[side]).expect("a slot")
    }

    fn splice(&self, from: c_int, to: c_int, len: usize) -> Os<usize> {
        let null = core::ptr::null_mut();
        // SAFETY: no offsets are named.
        let answer = unsafe { <Posix as Handler>::splice(from, null, to, null, len, libc::SPLICE_F_NONBLOCK) };
        answer.expect("the library's").map(|count| count as usize)
    }

    fn read(&self, side: usize, len: usize) -> Os<usize> {
        self.splice(self.ends[side], self.pipe.1.as_raw_fd(), len)
    }

    fn write(&self, side: usize, len: usize) -> Os<usize> {
        self.splice(self.pipe.0.as_raw_fd(), self.ends[side], len)
    }

    /// Bytes of one peer arrive at the other one. Returns what the last call, which has found nothing, was answered.
    fn pass(&self, side: usize, bytes: usize) {
        let mut left = bytes;
        while left > 0 {
            let piece = vec![left as u8; left.min(4096)];
            send(self.peers[side], &piece, 0).expect("send");
            let mut moved = 0;
            while moved < piece.len() {
                eventually(|| self.socket(side).readable() > 0);
                let count = self.read(side, ALL).expect("bytes");
                assert_eq!(self.write(1 - side, count), Ok(count));
                moved += count;
            }
            let mut got = Vec::new();
            while got.len() < piece.len() {
                got.extend(recv(self.peers[1 - side], 4096, 0).expect("recv"));
            }
            assert_eq!(got, piece);
            left -= piece.len();
        }
    }

    /// A proxy that is out of the data path. While another test forks, no socket is handed over.
    fn handed_over() -> Self {
        wait_for(|| Self::new().made_to_go())
    }

    /// Passes on until it is out of the data path. `None`: another process has its sockets.
    fn made_to_go(self) -> Option<Self> {
        let proxy = self;
        for (side, fd) in proxy.ends.into_iter().enumerate() {
            control(proxy.epoll, libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN, side as u64).expect("epoll_ctl");
        }
        proxy.pass(0, 60 << 10);
        assert_eq!(proxy.read(1, ALL), Err(libc::EAGAIN));
        proxy.pass(0, 4 << 10);
        eventually(|| {
            assert_eq!(proxy.read(0, ALL), Err(libc::EAGAIN));
            proxy.is_over() || proxy.is_shared()
        });
        if proxy.is_over() {
            return Some(proxy);
        }
        proxy.end();
        None
    }

    fn is_over(&self) -> bool {
        [0, 1].iter().all(|side| self.socket(*side).status() & status::TX_CLOSED != 0)
    }

    fn is_shared(&self) -> bool {
        [0, 1].iter().any(|side| self.socket(*side).has(flag::SHARED))
    }

    /// The stack says that so many bytes of this side's peer have arrived.
    fn arrived(&self, side: usize, bytes: u64) {
        let socket = self.socket(side);
        socket.session.region.counts(socket.slot).passed_on.store(bytes, Relaxed);
        rewatch::look_at(&socket);
    }

    fn in_pipe(&self) -> c_int {
        let mut bytes: c_int = 0;
        // SAFETY: FIONREAD stores an integer, and there is room for it.
        unsafe { real::ioctl(self.pipe.0.as_raw_fd(), libc::FIONREAD, (&raw mut bytes) as _) };
        bytes
    }

    fn aborts(&self, side: usize) -> u32 {
        self.socket(side).app().flags.load(Acquire) & (app_flags::ABORT | app_flags::CLOSED)
    }

    fn end(self) {
        self.ends.into_iter().chain(self.peers).chain([self.epoll]).for_each(|fd| _ = close(fd));
    }
}

#[test]
fn a_proxy_is_told_what_has_passed_and_none_of_it_is_in_its_pipe() {
    let proxy = Proxy::handed_over();
    assert_eq!(send(proxy.ends[0], b"late", 0), Err(libc::EPIPE));
    assert_eq!(wait(proxy.epoll, 0), [], "nothing has passed");
    proxy.arrived(0, 5000);
    assert_eq!(wait(proxy.epoll, 1000), [(0, libc::EPOLLIN)]);
    assert_eq!(wait(proxy.epoll, 0), [], "who does not ask is not called again and again");
    assert_eq!(proxy.read(0, 3000), Ok(3000));
    assert_eq!(wait(proxy.epoll, 1000), [(0, libc::EPOLLIN)], "some are left");
    assert_eq!((proxy.read(0, ALL), proxy.read(0, ALL)), (Ok(2000), Err(libc::EAGAIN)));
    assert_eq!(proxy.in_pipe(), 0);
    assert_eq!(proxy.write(0, 5000), Err(libc::EPIPE), "they went elsewhere");
    assert_eq!((proxy.write(1, 4000), proxy.write(1, 5000)), (Ok(4000), Ok(1000)));
    assert_eq!(proxy.write(1, 5000), Err(libc::EAGAIN));
    proxy.arrived(1, 7);
    assert_eq!(wait(proxy.epoll, 1000), [(1, libc::EPOLLIN)]);
    assert_eq!((proxy.read(1, ALL), proxy.write(0, 7)), (Ok(7), Ok(7)));
    // Received otherwise there is nothing.
    proxy.arrived(1, 20);
    assert_eq!(recv(proxy.ends[1], 10, 0), Err(libc::EAGAIN));
    proxy.end();
}

#[test]
fn bytes_in_the_pipe_are_not_mixed_with_those_that_have_passed() {
    let proxy = Proxy::handed_over();
    rustix::io::write(&proxy.pipe.1, b"own").expect("write");
    proxy.arrived(0, 100);
    assert_eq!(proxy.read(0, ALL), Err(libc::EAGAIN));
    assert_eq!(proxy.in_pipe(), 3);
    let mut own = [0; 3];
    rustix::io::read(&proxy.pipe.0, &mut own).expect("read");
    assert_eq!((proxy.read(0, ALL), &own), (Ok(100), b"own"));
    proxy.end();
}

#[test]
fn who_closes_or_ends_one_stream_resets_both_peers() {
    let proxy = Proxy::handed_over();
    assert_eq!(
        (proxy.aborts(0), proxy.aborts(1)),
        (app_flags::ABORT, app_flags::ABORT),
        "also if the process is killed"
    );
    let socket = proxy.socket(1);
    assert_eq!(shutdown(proxy.ends[1], libc::SHUT_WR), Ok(0));
    let flags = app_flags::ABORT | app_flags::CLOSED;
    assert!(socket.is_gone() || socket.app().flags.load(Acquire) & flags == flags);
    proxy.end();
}

#[test]
fn a_proxy_that_looks_at_parts_or_whose_socket_blocks_stays() {
    let proxy = Proxy::new();
    proxy.pass(0, 64 << 10);
    assert_eq!(proxy.read(1, 1000), Err(libc::EAGAIN));
    for _ in 0..10 {
        assert_eq!((proxy.read(1, ALL), proxy.read(0, ALL)), (Err(libc::EAGAIN), Err(libc::EAGAIN)));
    }
    assert!(proxy.ends.iter().all(|fd| send(*fd, b"x", 0) == Ok(1)));
    proxy.end();
    // A copy of a descriptor: another process may have it.
    let proxy = Proxy::new();
    // SAFETY: integers only.
    let copy = unsafe { ask(<Posix as Handler>::dup(proxy.ends[0]), || real::dup(proxy.ends[0])) }.expect("dup");
    proxy.pass(0, 64 << 10);
    for _ in 0..10 {
        assert_eq!((proxy.read(1, ALL), proxy.read(0, ALL)), (Err(libc::EAGAIN), Err(libc::EAGAIN)));
    }
    assert!(proxy.ends.iter().all(|fd| send(*fd, b"x", 0) == Ok(1)));
    close(copy).expect("close");
    proxy.end();
}

#[test]
fn a_socket_that_was_not_spliced_from_is_called_readable_once() {
    let proxy = Proxy::new();
    control(proxy.epoll, libc::EPOLL_CTL_ADD, proxy.ends[1], libc::EPOLLIN, 1).expect("epoll_ctl");
    proxy.pass(0, 64 << 10);
    assert_eq!(proxy.read(0, ALL), Err(libc::EAGAIN));
    assert_eq!(wait(proxy.epoll, 10_000), [(1, libc::EPOLLIN)]);
    assert_eq!(recv(proxy.ends[1], 10, 0), Err(libc::EAGAIN));
    assert_eq!(wait(proxy.epoll, 0), []);
    // The call that follows is not there to be read from, but says how.
    eventually(|| {
        assert_eq!(proxy.read(1, ALL), Err(libc::EAGAIN));
        proxy.is_over() || proxy.is_shared()
    });
    proxy.end();
}
