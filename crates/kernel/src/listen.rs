//! `listen`, and connections of peers.

use crate::client::OfSlot;
use crate::commands::Decided;
use crate::connect::ends;
use crate::group::ClientGroup;
use crate::{shield, sys};
use rustix::net::SocketFlags;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use towpath_ring::Slot;
use towpath_ring::command::{Command, V6ONLY, not_ours};
use towpath_ring::lines::{app_flags, state};
use towpath_stack::Verdict;
use towpath_stack::guard::Gatekeeper;
use towpath_stack::info::{self, any, ring_addr};
use towpath_stack::slots::{Listener, Phase, Queued};

/// Connections accepted for one listener before the others have their turn.
const BATCH: usize = 64;

impl ClientGroup {
    /// Begins to listen.
    pub fn listen(&mut self, index: u32, slot: Slot, command: &Command) -> Decided {
        let local = SocketAddr::new(command.local_addr.to_canonical(), command.local_port as u16);
        let dual = local.is_ipv6() && command.flags & V6ONLY == 0;
        match self.permit_listen(index, local, dual) {
            Verdict::Allow(_) => {}
            Verdict::Refuse(errno) => return Decided::Now(self.denied(index, slot, errno)),
            Verdict::Drop | Verdict::Kernel => return Decided::Now(self.not_ours(index, slot, not_ours::POLICY)),
            Verdict::Stack(stack) => return Decided::Now(self.elsewhere(index, slot, stack)),
        }
        if !self.may_have(index, command.local_port) {
            return Decided::Now(self.not_ours(index, slot, not_ours::ADDRESS));
        }
        // socket(7): those who share a port are one user's. To the kernel all of them are ours.
        if self.other_users_listener(index, local) {
            return Decided::Now(self.denied(index, slot, libc::EADDRINUSE));
        }
        let Some(client) = self.client(index) else { return Decided::Now(-libc::ENOTCONN) };
        client.take(slot, Phase::Listening);
        client.slot(slot).listener = Some(Box::new(Listener::new(command.backlog.max(1))));
        info::show(client.shared.region.info(slot), local, SocketAddr::new(any(local.ip()), 0), 0, 0, 10);
        client.show(slot, state::LISTENING, 0);
        self.try_to_go(index, slot, command)
    }

    /// Listens; `shielded`: hears nobody yet, and its address may be still to come.
    pub fn begin_to_listen(&mut self, index: u32, slot: Slot, command: &Command, shielded: bool) -> Result<(), i32> {
        let local = SocketAddr::new(command.local_addr.to_canonical(), command.local_port as u16);
        let fd = self.listening_socket(index, slot, local, (command, shielded))?;
        if let Some(own) = self.own(index, slot) {
            (own.fd, own.local) = (Some(fd), local);
        }
        Ok(())
    }

    fn listening_socket(
        &mut self,
        index: u32,
        slot: Slot,
        local: SocketAddr,
        (command, shielded): (&Command, bool),
    ) -> Result<OwnedFd, i32> {
        let any_at = SocketAddr::new(any(local.ip()), 0);
        // Bound only after it is known which families it takes.
        let fd = self.open(index, slot, any_at, command.flags)?;
        if local.is_ipv6() {
            sys::set(&fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, (command.flags & V6ONLY != 0).into());
        }
        let shared = sys::get_int(&fd, libc::SOL_SOCKET, libc::SO_REUSEPORT);
        if shielded {
            shield::begin(&fd);
        }
        crate::connect::bind(&fd, local)?;
        let backlog = i32::try_from(command.backlog.max(1)).unwrap_or(i32::MAX);
        rustix::net::listen(&fd, backlog).map_err(|error| error.raw_os_error())?;
        if shielded {
            sys::set(&fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, shared.unwrap_or(0));
        }
        self.attend(index, slot, &fd).map_err(|error| error.raw_os_error().unwrap_or(libc::ENOBUFS))?;
        Ok(fd)
    }

    /// May an application bind this address? Its own kernel does not know who has the port here. Of those that share a port, and may, its
    /// kernel knows.
    pub fn may_be_bound(&mut self, index: u32, command: &Command) -> i32 {
        let local = SocketAddr::new(command.local_addr.to_canonical(), command.local_port as u16);
        let only_six = local.is_ipv6() && command.flags & V6ONLY != 0;
        let probe = || {
            let fd = crate::connect::socket(local.ip())?;
            sys::set(&fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1);
            if local.is_ipv6() {
                sys::set(&fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, only_six.into());
            }
            crate::connect::bind(&fd, local)
        };
        let taken = probe() == Err(libc::EADDRINUSE);
        // What the policy leaves to another does not meet what is here, and what is not the user's has another error.
        let ours = taken
            && self.may_have(index, command.local_port)
            && matches!(self.permit_listen(index, local, local.is_ipv6() && !only_six), Verdict::Allow(_));
        if ours { -libc::EADDRINUSE } else { 0 }
    }

    /// Does another user's client listen at that port already?
    fn other_users_listener(&mut self, index: u32, local: SocketAddr) -> bool {
        let uid = self.client(index).map(|client| client.shared.uid);
        self.clients.iter().flatten().filter(|client| Some(client.shared.uid) != uid).any(|client| {
            let mut listeners = client.slots.iter().filter(|(_, entry)| entry.phase == Phase::Listening);
            listeners.any(|(_, entry)| entry.own.local.port() == local.port())
        })
    }

    /// Accepts what there is room for.
    pub fn look_at_listener(&mut self, index: u32, slot: Slot) {
        let Some(client) = self.client(index) else { return };
        if client.shared.app_words(slot).is_some_and(|words| words.flags & app_flags::CLOSED != 0) {
            return self.close_listener(index, slot);
        }
        for _ in 0..BATCH {
            let Some(client) = self.client(index) else { return };
            if !client.sync_listener(slot) {
                return self.end_listener(index, slot);
            }
            if !client.slot(slot).own.readable || client.slot(slot).own.fd.is_none() {
                return;
            }
            if !client.has_room(slot) {
                return self.crowded(index, slot);
            }
            if !self.accept(index, slot) {
                return;
            }
        }
        self.once_more(index, slot);
    }

    /// Accepts one connection; false = there is none, or it must wait.
    fn accept(&mut self, index: u32, slot: Slot) -> bool {
        let Some(client) = self.client(index) else { return false };
        let Some(child) = client.take_child() else {
            self.crowded(index, slot);
            return false;
        };
        let entry = client.slots.entry(slot.index());
        let Some(listener) = &entry.own.fd else { return false };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let accepted = rustix::net::accept_with(listener, flags).map_err(|error| error.raw_os_error());
        let fd = match accepted {
            Ok(fd) => fd,
            Err(errno) => {
                entry.own.readable = errno != libc::EAGAIN;
                client.free(child);
                match errno {
                    libc::EAGAIN => {}
                    libc::ECONNABORTED | libc::EINTR => return true,
                    // No descriptor, no memory: later.
                    _ => self.crowded(index, slot),
                }
                return false;
            }
        };
        let (flags, options) = (entry.own.flags, entry.own.options);
        match ends(&fd) {
            Some((local, remote)) if self.may_come(index, local, remote) => {
                let own = OfSlot {
                    fd: Some(fd),
                    local: SocketAddr::new(local.ip().to_canonical(), local.port()),
                    remote: SocketAddr::new(remote.ip().to_canonical(), remote.port()),
                    flags,
                    options,
                    ..OfSlot::default()
                };
                self.hand_over(index, slot, child, own);
            }
            _ => {
                sys::abort_on_close(&fd);
                drop(fd);
                if let Some(client) = self.client(index) {
                    client.free(child);
                }
            }
        }
        true
    }

    /// May this peer speak to a client's listener?
    fn may_come(&mut self, index: u32, local: SocketAddr, remote: SocketAddr) -> bool {
        let canonical = |addr: SocketAddr| SocketAddr::new(addr.ip().to_canonical(), addr.port());
        let allowed = matches!(self.permit_accept(index, canonical(local), canonical(remote)), Verdict::Allow(_));
        allowed && self.within_limits(index)
    }

    /// Puts a connection into its listener's queue, with what it has sent already.
    fn hand_over(&mut self, index: u32, slot: Slot, child: Slot, own: OfSlot) {
        let remote = own.remote;
        let Some(fd) = &own.fd else { return };
        let attended = self.attend(index, child, fd);
        self.spend_token(index);
        let Some(client) = self.client(index) else { return };
        if attended.is_err() {
            return client.free(child);
        }
        client.slot(child).own = own;
        client.slot(child).phase = Phase::Open;
        self.show_established(index, child);
        self.counts.accepts += 1;
        self.counts.opened += 1;
        // Most peers speak first, and what they say is often here already.
        if let Some(own) = self.own(index, child) {
            own.readable = true;
        }
        self.look(index, child);
        let Some(client) = self.client(index) else { return };
        let region = &client.shared.region;
        let congestion = region.info(slot).congestion.load(Ordering::Relaxed);
        region.info(child).congestion.store(congestion, Ordering::Relaxed);
        if client.queue(slot, child, ring_addr(remote.ip()), remote.port()) != Queued::Yes {
            self.end_listener(index, slot);
        }
    }

    /// A listener whose words cannot be believed is closed; its application sees an error.
    fn end_listener(&mut self, index: u32, slot: Slot) {
        let Some(client) = self.client(index) else { return };
        client.shared.lied();
        let waiting = client.take_queue(slot);
        client.over(slot, libc::ECONNRESET);
        for (child, generation) in waiting {
            self.close(index, child, generation, true);
        }
    }
}
