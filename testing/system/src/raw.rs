//! A client that speaks the registration protocol itself, without the library.

use crate::{Service, until};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::sync::atomic::Ordering;
use towpath_ring::command::Command;
use towpath_ring::control::{self, Reply, Request};
use towpath_ring::{Region, wake};

/// A client that the service has admitted.
pub struct RawClient {
    /// The connection to the service. The client ends with it.
    pub socket: OwnedFd,
    /// The region's memfd.
    pub memfd: OwnedFd,
    /// The region.
    pub region: Region,
    /// One doorbell for each flow group, then the command queue's.
    pub doorbells: Vec<OwnedFd>,
    /// Position in the command queue.
    tail: u32,
}

impl RawClient {
    /// Registers with the service.
    pub fn new(service: &Service) -> Self {
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let socket = socket.expect("socket");
        rustix::net::connect(&socket, &SocketAddrUnix::new(&service.socket).expect("path")).expect("connect");
        Self::on(socket)
    }

    /// Registers on a connection to a service.
    pub fn on(socket: OwnedFd) -> Self {
        let hello = Request::Hello { version: towpath_ring::layout::VERSION, join: 0, features: u32::MAX };
        control::send_request(socket.as_fd(), &hello, &[]).expect("hello");
        let mut answer = control::recv_reply(socket.as_fd()).expect("an answer");
        if let Reply::Make { geometry } = answer.0 {
            let memory = towpath_ring::memory::new_memory(geometry).expect("memory");
            control::send_request(socket.as_fd(), &Request::Region, &[memory.as_fd()]).expect("region");
            answer = control::recv_reply(socket.as_fd()).expect("welcome");
        }
        let (Reply::Welcome { geometry, .. }, mut doorbells) = answer else { panic!("refused") };
        let memfd = doorbells.remove(0);
        let region = Region::map(memfd.as_fd(), geometry).expect("region");
        Self { socket, memfd, region, doorbells, tail: 0 }
    }

    /// Shows a bound socket for the command `seq` of a slot.
    pub fn show(&self, slot: u32, seq: u32, listens: bool, bound: impl AsFd) {
        let reserve = Request::Reserve { slot, seq, listens };
        control::send_request(self.socket.as_fd(), &reserve, &[bound.as_fd()]).expect("reserve");
    }

    /// The number of the next command of a slot.
    pub fn next_seq(&self, raw: u32) -> u32 {
        let slot = self.region.slot(raw).expect("slot");
        self.region.command(slot).seq.load(Ordering::Relaxed) + 1
    }

    /// The stack's answer to a command for slot `raw`.
    pub fn command(&mut self, raw: u32, command: &Command) -> i32 {
        let Self { region, doorbells, tail, .. } = self;
        let slot = region.slot(raw).expect("slot");
        let seq = region.command(slot).post(command);
        let (app, stack) = (region.app(slot), region.stack(slot));
        region.commands().push(tail, slot, &app.ctl_seq, &stack.ctl_ack);
        wake::notify(doorbells.last().expect("doorbell").as_fd());
        until("the answer", 20, || stack.command_done.load(Ordering::Acquire) == seq);
        stack.command_result.load(Ordering::Relaxed)
    }
}
