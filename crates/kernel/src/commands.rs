//! Commands of applications.

use crate::client::Waiting;
use crate::connect;
use crate::group::ClientGroup;
use crate::sleep::LOOSE_US;
use std::net::{IpAddr, SocketAddr};
use towpath_ring::Slot;
use towpath_ring::command::{Command, NOT_OURS, give_to, not_ours, op};
use towpath_ring::lines::state;
use towpath_stack::slots::Phase;

/// What became of a command.
pub enum Decided {
    /// This is the answer.
    Now(i32),
    /// There will be an answer when the reservation of its port has come.
    Later,
}

impl ClientGroup {
    /// A slot stands in the command queue.
    pub fn command(&mut self, now: u64, index: u32, slot: Slot) {
        let Some(client) = self.client(index) else { return };
        let (seq, command) = client.shared.region.command(slot).read();
        if command.op == op::REFRESH && seq != client.slot(slot).command_seq {
            return self.refresh(index, slot, seq);
        }
        if matches!(command.op, op::FILE..=op::SECURE) && seq != client.slot(slot).command_seq {
            return self.aside(index, slot, seq, &command);
        }
        let may = client.shared.region.layout().is_app_slot(slot) && !client.leaving;
        let entry = client.slot(slot);
        if seq == 0 || seq == entry.command_seq {
            if entry.phase == Phase::Listening {
                client.offer_again(slot);
            }
            self.options(index, slot);
            return self.look(index, slot);
        }
        if !may || entry.phase != Phase::Free {
            client.shared.lied();
            return;
        }
        entry.command_seq = seq;
        if client.is_bereaved(slot) {
            return client.answer(slot, seq, -libc::ECANCELED);
        }
        self.counts.commands += 1;
        let decided = match (u16::try_from(command.remote_port), u16::try_from(command.local_port), command.op) {
            (Ok(_), Ok(_), op::CONNECT) => self.connect(index, slot, &command),
            (Ok(_), Ok(port), op::LISTEN) if port != 0 => self.listen(index, slot, &command),
            (Ok(_), Ok(1..), op::BIND) => Decided::Now(self.may_be_bound(index, &command)),
            (_, _, op::HAS) => Decided::Now(has(command.local_addr.to_canonical())),
            _ => Decided::Now(-libc::EINVAL),
        };
        match decided {
            Decided::Now(result) => self.answer(index, slot, seq, result),
            Decided::Later => {
                let until_us = now + LOOSE_US;
                if let Some(client) = self.client(index) {
                    client.own.waiting.push(Waiting { slot, seq, command, until_us });
                }
            }
        }
    }

    fn answer(&mut self, index: u32, slot: Slot, seq: u32, result: i32) {
        if result == 0 {
            self.show_congestion(index, slot);
        }
        if let Some(client) = self.client(index) {
            client.answer(slot, seq, result);
        }
    }

    /// The reservation of a slot has come: the command that waits for it goes on.
    pub fn go_on(&mut self, index: u32, slot: Slot) {
        let Some(client) = self.client(index) else { return };
        let Some(at) = client.own.waiting.iter().position(|waiting| waiting.slot == slot) else { return };
        if client.slot(slot).socket.is_none() {
            return;
        }
        let Waiting { seq, command, .. } = client.own.waiting.swap_remove(at);
        let result = match self.go(index, slot, &command) {
            Ok(()) => 0,
            Err(errno) => self.refuse(index, slot, errno),
        };
        self.answer(index, slot, seq, result);
    }

    fn go(&mut self, index: u32, slot: Slot, command: &Command) -> Result<(), i32> {
        match command.op {
            op::LISTEN => self.begin_to_listen(index, slot, command, false),
            _ => self.begin(index, slot, command),
        }
    }

    /// Does it, or waits until the socket that reserves the port is known, which stands in the way until then.
    pub fn try_to_go(&mut self, index: u32, slot: Slot, command: &Command) -> Decided {
        match self.go(index, slot, command) {
            Ok(()) => Decided::Now(0),
            Err(libc::EADDRINUSE) if command.local_port != 0 && !self.is_reserved(index, slot) => Decided::Later,
            Err(errno) => Decided::Now(self.refuse(index, slot, errno)),
        }
    }

    fn is_reserved(&mut self, index: u32, slot: Slot) -> bool {
        self.client(index).is_some_and(|client| client.slot(slot).socket.is_some())
    }

    /// Commands whose reservation has not come in time.
    pub fn give_up_waiting(&mut self, now: u64) {
        for index in 0..self.clients.len() as u32 {
            let Some(client) = self.client(index) else { continue };
            while let Some(at) = client.own.waiting.iter().position(|waiting| waiting.until_us <= now) {
                let Waiting { slot, seq, .. } = client.own.waiting.swap_remove(at);
                client.refuse(slot);
                client.line(slot).state.store(state::FREE, std::sync::atomic::Ordering::Release);
                client.answer(slot, seq, -libc::EADDRINUSE);
            }
        }
    }

    /// A command is refused after its slot was taken into use.
    pub fn refuse(&mut self, index: u32, slot: Slot, errno: i32) -> i32 {
        if let Some(client) = self.client(index) {
            client.slot(slot).own.fd = None;
            client.refuse(slot);
            client.line(slot).state.store(state::FREE, std::sync::atomic::Ordering::Release);
        }
        self.counts.failed += 1;
        -errno
    }

    /// The policy forbids it.
    pub fn denied(&mut self, index: u32, slot: Slot, errno: i32) -> i32 {
        self.forget_socket(index, slot);
        -errno
    }

    /// The answer to what the application's own kernel socket is to do.
    pub fn not_ours(&mut self, index: u32, slot: Slot, why: u32) -> i32 {
        self.forget_socket(index, slot);
        self.not_ours[why as usize % not_ours::REASONS] += 1;
        NOT_OURS + why as i32
    }

    /// The answer to what the service's other stack of this number is to do.
    pub fn elsewhere(&mut self, index: u32, slot: Slot, stack: u8) -> i32 {
        self.not_ours(index, slot, not_ours::STACK);
        give_to(stack)
    }

    fn forget_socket(&mut self, index: u32, slot: Slot) {
        if let Some(client) = self.client(index) {
            client.slot(slot).socket = None;
        }
    }

    /// May a client of this user have a port of its own choice?
    pub fn may_have(&mut self, index: u32, port: u32) -> bool {
        let root = self.client(index).is_some_and(|client| client.shared.uid == 0);
        root || port == 0 || port >= first_free_port()
    }
}

/// Is this an address here? As `bind` sees it.
fn has(addr: IpAddr) -> i32 {
    let bound = connect::socket(addr).and_then(|fd| connect::bind(&fd, SocketAddr::new(addr, 0)));
    bound.map_or_else(|errno| -errno, |()| 0)
}

/// `net.ipv4.ip_unprivileged_port_start`.
fn first_free_port() -> u32 {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(1024)
}

/// The local address of a command, of the family of `remote`'s.
pub fn local_of(command: &Command, remote: std::net::IpAddr) -> SocketAddr {
    let local = command.local_addr.to_canonical();
    // A socket of IPv6 that is bound to no address reaches IPv4 as well (RFC 3493 §3.7).
    let local = if local.is_unspecified() { towpath_stack::info::any(remote) } else { local };
    SocketAddr::new(local, command.local_port as u16)
}
