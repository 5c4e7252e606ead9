//! A client that speaks the registration protocol.
#![allow(dead_code, missing_docs, clippy::unwrap_used)]

use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use towpath_ring::control::{Reply, Request, recv_reply, send_request};
use towpath_ring::layout::VERSION;
use towpath_ring::lines::state;
use towpath_ring::{Geometry, Region};

pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("towpath-service-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }
    pub fn socket(&self) -> PathBuf {
        self.0.join("towpath.sock")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn connect(path: &Path) -> io::Result<OwnedFd> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// A registered client.
#[derive(Debug)]
pub struct Client {
    pub socket: OwnedFd,
    pub token: u64,
    pub process: u32,
    pub geometry: Geometry,
    pub descriptors: Vec<OwnedFd>,
}

impl Client {
    /// `Err` = refused with this errno.
    pub fn hello(socket: OwnedFd, join: u64) -> Result<Self, i32> {
        send_request(socket.as_fd(), &Request::Hello { version: VERSION, join, features: u32::MAX }, &[]).unwrap();
        Self::welcomed(socket)
    }
    pub fn welcomed(socket: OwnedFd) -> Result<Self, i32> {
        match recv_reply(socket.as_fd()).unwrap() {
            (Reply::Make { geometry }, _) => Self::bring(socket, &towpath_ring::memory::new_memory(geometry).unwrap()),
            (Reply::Welcome { geometry, token, process, .. }, descriptors) => {
                Ok(Self { socket, token, process, geometry, descriptors })
            }
            (Reply::Refused { errno }, _) => Err(errno),
            other => panic!("{other:?}"),
        }
    }
    /// Sends this as the memory of its region.
    pub fn bring(socket: OwnedFd, memory: &OwnedFd) -> Result<Self, i32> {
        send_request(socket.as_fd(), &Request::Region, &[memory.as_fd()]).unwrap();
        Self::welcomed(socket)
    }
    pub fn region(&self) -> Region {
        Region::map_at(self.descriptors[0].as_fd(), 0, self.geometry).unwrap()
    }
    pub fn send(&self, request: &Request, fds: &[&OwnedFd]) -> io::Result<()> {
        let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
        send_request(self.socket.as_fd(), request, &fds)
    }
    /// Attaches a socketpair to a slot, in which the stack has shown a connection; gives the application's end.
    pub fn attach(&self, slot: u32, generation: u32) -> OwnedFd {
        let region = self.region();
        let line = region.stack(region.slot(slot).unwrap());
        line.generation.store(generation, Ordering::Relaxed);
        line.state.store(state::ESTABLISHED, Ordering::Relaxed);
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        self.send(&Request::Attach { slot, generation, end: slot + 1 }, &[&theirs]).unwrap();
        ours
    }
    /// Asks for a context; `Err` = refused.
    pub fn context(&self) -> Result<(u32, OwnedFd), i32> {
        self.send(&Request::Context, &[]).unwrap();
        match recv_reply(self.socket.as_fd()).unwrap() {
            (Reply::Context { context }, mut fds) => Ok((context, fds.pop().unwrap())),
            (Reply::Refused { errno }, _) => Err(errno),
            other => panic!("{other:?}"),
        }
    }
    /// Has the service closed the connection?
    pub fn lost(&self) -> bool {
        is_lost(&self.socket)
    }
}

pub fn is_lost(socket: &OwnedFd) -> bool {
    use rustix::event::{PollFd, PollFlags, poll};
    let mut waiting = [PollFd::new(socket, PollFlags::empty())];
    poll(&mut waiting, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap();
    waiting[0].revents().contains(PollFlags::HUP)
}

/// Waits until `condition` holds; at most 90 s.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(90);
    while !condition() {
        assert!(Instant::now() < end, "not within 90 s: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Holds for a moment: what must not happen has time to happen.
pub fn a_moment() {
    std::thread::sleep(Duration::from_millis(50));
}
