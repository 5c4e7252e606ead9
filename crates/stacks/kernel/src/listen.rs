//! `listen`, and connections of peers.

use crate::client::KernelSocket;
use crate::commands::CommandOutcome;
use crate::group::ClientGroup;
use crate::socket::{bind, create, ends};
use crate::{drop_filter, sys};
use rustix::net::SocketFlags;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use towpath_ring::Slot;
use towpath_ring::command::{Command, V6ONLY, not_ours};
use towpath_ring::lines::{app_flags, state};
use towpath_runtime::Verdict;
use towpath_runtime::admission::AdmissionControl;
use towpath_runtime::info::{self, any, ring_addr};
use towpath_runtime::slots::{Listener, Phase, Queued};

/// Connections accepted for one listener before other slots are served.
const BATCH: usize = 64;

impl ClientGroup {
    /// Handles a listen command.
    pub fn listen(&mut self, index: u32, slot: Slot, command: &Command) -> CommandOutcome {
        let local = SocketAddr::new(command.local_addr.to_canonical(), command.local_port as u16);
        let dual = local.is_ipv6() && command.flags & V6ONLY == 0;
        match self.permit_listen(index, local, dual) {
            Verdict::Allow(_) => {}
            Verdict::Refuse(errno) => return CommandOutcome::Answer(self.denied(index, slot, errno)),
            Verdict::Drop | Verdict::Kernel => {
                return CommandOutcome::Answer(self.not_ours(index, slot, not_ours::POLICY));
            }
            Verdict::Stack(stack) => return CommandOutcome::Answer(self.redirect_to_stack(index, slot, stack)),
        }
        if !self.may_use_port(index, command.local_port) {
            return CommandOutcome::Answer(self.not_ours(index, slot, not_ours::ADDRESS));
        }
        // socket(7): only sockets of one user may share a port. The kernel cannot check that, because all these
        // sockets are ours.
        if self.other_users_listener(index, local) {
            return CommandOutcome::Answer(self.denied(index, slot, libc::EADDRINUSE));
        }
        let Some(client) = self.client(index) else { return CommandOutcome::Answer(-libc::ENOTCONN) };
        client.take(slot, Phase::Listening);
        client.slot(slot).listener = Some(Box::new(Listener::new(command.backlog)));
        info::show(client.shared.region.info(slot), local, SocketAddr::new(any(local.ip()), 0), 0, 0, 10);
        client.show(slot, state::LISTENING, 0);
        self.run_or_wait(index, slot, command)
    }

    /// `listen` on a listener changes its backlog. All else is as it was.
    pub fn listen_again(&mut self, index: u32, slot: Slot, seq: u32, command: &Command) {
        let Some(client) = self.client(index) else { return };
        let live = client.shared.app_words(slot).is_some();
        let entry = client.slot(slot);
        entry.command_seq = seq;
        let fd = entry.own.fd.as_ref().filter(|_| live);
        let changed = fd.map_or(Err(libc::EINVAL), |fd| set_backlog(fd, command.backlog));
        if changed.is_ok()
            && let Some(listener) = &mut entry.listener
        {
            listener.backlog = command.backlog;
        }
        client.answer(slot, seq, changed.map_or_else(|errno| -errno, |()| 0));
    }

    /// Starts to listen. A `filtered` listener drops every packet, and its address need not exist yet.
    pub fn start_listening(&mut self, index: u32, slot: Slot, command: &Command, filtered: bool) -> Result<(), i32> {
        let local = SocketAddr::new(command.local_addr.to_canonical(), command.local_port as u16);
        let fd = self.listening_socket(index, slot, local, (command, filtered))?;
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
        (command, filtered): (&Command, bool),
    ) -> Result<OwnedFd, i32> {
        let any_at = SocketAddr::new(any(local.ip()), 0);
        // Bound only after its families are known.
        let fd = self.open(index, slot, any_at, command.flags)?;
        if local.is_ipv6() {
            sys::set(&fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, (command.flags & V6ONLY != 0).into());
        }
        let shared = sys::get_int(&fd, libc::SOL_SOCKET, libc::SO_REUSEPORT);
        if filtered {
            drop_filter::begin(&fd);
        }
        bind(&fd, local)?;
        set_backlog(&fd, command.backlog)?;
        if filtered {
            sys::set(&fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, shared.unwrap_or(0));
        }
        self.watch_socket(index, slot, &fd).map_err(|error| error.raw_os_error().unwrap_or(libc::ENOBUFS))?;
        Ok(fd)
    }

    /// Checks whether an application may bind this address: its own kernel does not know which ports are in use here.
    /// Sharing by SO_REUSEPORT is its own kernel's to decide.
    pub fn check_bind(&mut self, index: u32, command: &Command) -> i32 {
        let local = SocketAddr::new(command.local_addr.to_canonical(), command.local_port as u16);
        let only_six = local.is_ipv6() && command.flags & V6ONLY != 0;
        let probe = || {
            let fd = create(local.ip())?;
            sys::set(&fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1);
            if local.is_ipv6() {
                sys::set(&fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, only_six.into());
            }
            bind(&fd, local)
        };
        let taken = probe() == Err(libc::EADDRINUSE);
        // An address that the policy leaves to another stack does not collide with ours. A port that the user may not
        // have fails elsewhere.
        let ours = taken
            && self.may_use_port(index, command.local_port)
            && matches!(self.permit_listen(index, local, local.is_ipv6() && !only_six), Verdict::Allow(_));
        if ours { -libc::EADDRINUSE } else { 0 }
    }

    /// True if another user's client listens at that port.
    fn other_users_listener(&mut self, index: u32, local: SocketAddr) -> bool {
        let uid = self.client(index).map(|client| client.shared.uid);
        self.clients.iter().flatten().filter(|client| Some(client.shared.uid) != uid).any(|client| {
            let mut listeners = client.slots.iter().filter(|(_, entry)| entry.phase == Phase::Listening);
            listeners.any(|(_, entry)| entry.own.local.port() == local.port())
        })
    }

    /// Accepts connections while there is room.
    pub fn serve_listener(&mut self, index: u32, slot: Slot) {
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
                return self.retry_listener(index, slot);
            }
            if !self.accept(index, slot) {
                return;
            }
        }
        self.schedule_next_turn(index, slot);
    }

    /// Accepts one connection. False if there is none, or it must wait.
    fn accept(&mut self, index: u32, slot: Slot) -> bool {
        let Some(client) = self.client(index) else { return false };
        let Some(child) = client.take_child() else {
            self.retry_listener(index, slot);
            return false;
        };
        // Without a descriptor the connection waits in the kernel, as on Linux.
        let Some(share) = client.shared.take_descriptor() else {
            client.free(child);
            self.retry_listener(index, slot);
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
                    // No descriptor or no memory: retry later.
                    _ => self.retry_listener(index, slot),
                }
                return false;
            }
        };
        let (flags, options) = (entry.own.flags, entry.own.options);
        match ends(&fd) {
            Some((local, remote)) if self.permits_peer(index, local, remote) => {
                let own = KernelSocket {
                    fd: Some(fd),
                    share: Some(share),
                    local: SocketAddr::new(local.ip().to_canonical(), local.port()),
                    remote: SocketAddr::new(remote.ip().to_canonical(), remote.port()),
                    flags,
                    options,
                    ..KernelSocket::default()
                };
                self.queue_accepted(index, slot, child, own);
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

    /// True if the policy lets this peer reach the client's listener.
    fn permits_peer(&mut self, index: u32, local: SocketAddr, remote: SocketAddr) -> bool {
        let canonical = |addr: SocketAddr| SocketAddr::new(addr.ip().to_canonical(), addr.port());
        let allowed = matches!(self.permit_accept(index, canonical(local), canonical(remote)), Verdict::Allow(_));
        allowed && self.within_limits(index)
    }

    /// Puts a connection into its listener's queue, with the bytes that have arrived.
    fn queue_accepted(&mut self, index: u32, slot: Slot, child: Slot, own: KernelSocket) {
        let remote = own.remote;
        let Some(fd) = &own.fd else { return };
        let watched = self.watch_socket(index, child, fd);
        self.spend_token(index);
        let Some(client) = self.client(index) else { return };
        if watched.is_err() {
            return client.free(child);
        }
        client.slot(child).own = own;
        client.slot(child).phase = Phase::Open;
        self.show_established(index, child);
        self.counts.accepts += 1;
        self.counts.opened += 1;
        // Most peers speak first, and their bytes are often here already.
        if let Some(own) = self.own(index, child) {
            own.readable = true;
        }
        self.serve_slot(index, child);
        let Some(client) = self.client(index) else { return };
        let region = &client.shared.region;
        let congestion = region.info(slot).congestion.load(Ordering::Relaxed);
        region.info(child).congestion.store(congestion, Ordering::Relaxed);
        if client.queue(slot, child, ring_addr(remote.ip()), remote.port()) != Queued::Yes {
            self.end_listener(index, slot);
        }
    }

    /// Closes a listener whose words violate the contract. Its application sees an error.
    fn end_listener(&mut self, index: u32, slot: Slot) {
        let Some(client) = self.client(index) else { return };
        client.shared.violated_contract();
        let waiting = client.take_queue(slot);
        client.over(slot, libc::ECONNRESET);
        for (child, generation) in waiting {
            self.close(index, child, generation, true);
        }
    }
}

/// The kernel's `listen`, which also changes the backlog of a listener.
fn set_backlog(fd: &OwnedFd, backlog: u32) -> Result<(), i32> {
    rustix::net::listen(fd, i32::try_from(backlog).unwrap_or(i32::MAX)).map_err(|error| error.raw_os_error())
}
