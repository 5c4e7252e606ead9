//! `connect`.

use crate::commands::{Decided, local_of};
use crate::group::ClientGroup;
use crate::sys;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use towpath_ring::Slot;
use towpath_ring::command::{Command, not_ours};
use towpath_ring::lines::{app_flags, state};
use towpath_stack::guard::Gatekeeper;
use towpath_stack::info;
use towpath_stack::slots::Phase;
use towpath_stack::{Verdict, info::any};

/// A TCP socket of the family of an address.
pub fn socket(addr: IpAddr) -> Result<OwnedFd, i32> {
    let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = rustix::net::socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))
        .map_err(|error| error.raw_os_error())?;
    // Urgent bytes stand in the ring at their place.
    sys::set(&fd, libc::SOL_SOCKET, libc::SO_OOBINLINE, 1);
    Ok(fd)
}

/// Binds beside the socket that reserves the port.
pub fn bind(fd: &OwnedFd, local: SocketAddr) -> Result<(), i32> {
    sys::set(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1);
    rustix::net::bind(fd, &local).map_err(|error| error.raw_os_error())
}

/// Both ends of a socket, as far as it has them.
pub fn ends(fd: &OwnedFd) -> Option<(SocketAddr, SocketAddr)> {
    let local = SocketAddr::try_from(rustix::net::getsockname(fd).ok()?).ok()?;
    let remote = rustix::net::getpeername(fd).ok().flatten().and_then(|remote| SocketAddr::try_from(remote).ok());
    Some((local, remote.unwrap_or(SocketAddr::new(any(local.ip()), 0))))
}

impl ClientGroup {
    /// Begins to connect.
    pub fn connect(&mut self, index: u32, slot: Slot, command: &Command) -> Decided {
        let remote = SocketAddr::new(command.remote_addr.to_canonical(), command.remote_port as u16);
        // Before anything is done: what the application has written is not believed to be its right.
        match self.permit_connect(index, remote) {
            Verdict::Allow(_) => {}
            Verdict::Refuse(errno) => return Decided::Now(self.denied(index, slot, errno)),
            Verdict::Drop | Verdict::Kernel => return Decided::Now(self.not_ours(index, slot, not_ours::POLICY)),
            Verdict::Stack(stack) => return Decided::Now(self.elsewhere(index, slot, stack)),
        }
        let nowhere = remote.port() == 0 || remote.ip().is_unspecified() || remote.ip().is_multicast();
        if nowhere || needs_scope(remote.ip()) || !self.may_have(index, command.local_port) {
            return Decided::Now(self.not_ours(index, slot, not_ours::ADDRESS));
        }
        let Some(client) = self.client(index) else { return Decided::Now(-libc::ENOTCONN) };
        client.take(slot, Phase::Opening);
        let local = local_of(command, remote.ip());
        info::show(client.shared.region.info(slot), local, remote, 0, 0, 2);
        client.show(slot, state::CONNECTING, 0);
        self.try_to_go(index, slot, command)
    }

    /// Connects.
    pub fn begin(&mut self, index: u32, slot: Slot, command: &Command) -> Result<(), i32> {
        let remote = SocketAddr::new(command.remote_addr.to_canonical(), command.remote_port as u16);
        let local = local_of(command, remote.ip());
        let fd = self.open(index, slot, local, command.flags)?;
        self.counts.connects += 1;
        // Before it connects: within a host the handshake is over at once, and who connects knows of it before who accepts.
        self.attend(index, slot, &fd).map_err(|error| error.raw_os_error().unwrap_or(libc::ENOBUFS))?;
        let under_way = match rustix::net::connect(&fd, &remote).map_err(|error| error.raw_os_error()) {
            Ok(()) | Err(libc::EINPROGRESS) => Ok(()),
            // The handshake has begun and failed already: within a host it is that fast.
            Err(errno @ (libc::ECONNREFUSED | libc::ECONNRESET | libc::ETIMEDOUT)) => Err(errno),
            Err(errno) => return Err(errno),
        };
        self.spend_token(index);
        if let Err(errno) = under_way {
            self.counts.failed += 1;
            if let Some(client) = self.client(index) {
                client.over(slot, errno);
            }
            return Ok(());
        }
        let (local, remote) = ends(&fd).map_or((local, remote), |(own, _)| (own, remote));
        let Some(client) = self.client(index) else { return Ok(()) };
        info::show_ends(client.shared.region.info(slot), local, remote);
        // Known before the answer: the application sets its limits by it.
        client.shared.region.info(slot).held.store(1, std::sync::atomic::Ordering::Relaxed);
        let own = &mut client.slot(slot).own;
        (own.fd, own.local, own.remote) = (Some(fd), local, remote);
        Ok(())
    }

    /// A socket with the slot's options, bound if that is asked for.
    pub fn open(&mut self, index: u32, slot: Slot, local: SocketAddr, flags: u32) -> Result<OwnedFd, i32> {
        let fd = socket(local.ip())?;
        let Some(own) = self.own(index, slot) else { return Err(libc::ENOTCONN) };
        (own.local, own.flags) = (local, flags & (app_flags::NODELAY | app_flags::CORK));
        sys::set(&fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, (flags & app_flags::NODELAY != 0).into());
        self.first_options(index, slot, &fd);
        if !local.ip().is_unspecified() || local.port() != 0 {
            bind(&fd, local)?;
        }
        Ok(fd)
    }

    /// Has the handshake ended?
    pub fn look_at_opening(&mut self, index: u32, slot: Slot) {
        let Some(client) = self.client(index) else { return };
        if client.shared.app_words(slot).is_some_and(|words| words.flags & app_flags::CLOSED != 0) {
            let generation = client.shared.generation(slot);
            return self.close(index, slot, generation, false);
        }
        let entry = client.slot(slot);
        let (true, Some(fd)) = (entry.own.writable, &entry.own.fd) else { return };
        match sys::take_error(fd) {
            0 => {}
            errno => {
                client.over(slot, errno);
                self.counts.failed += 1;
                return;
            }
        }
        let Some((local, remote)) = ends(fd).filter(|(_, remote)| remote.port() != 0) else {
            // Not connected, and no error: the event was an earlier socket's.
            entry.own.writable = false;
            return;
        };
        (entry.own.local, entry.own.remote) = (local, remote);
        entry.phase = Phase::Open;
        self.counts.opened += 1;
        self.show_established(index, slot);
        if let Some(client) = self.client(index) {
            client.raise(slot);
        }
        self.look(index, slot);
    }

    /// Shows a connection that is established now.
    pub fn show_established(&mut self, index: u32, slot: Slot) {
        let Some(client) = self.client(index) else { return };
        let own = &client.slot(slot).own;
        let (local, remote) = (own.local, own.remote);
        let figures = own.fd.as_ref().and_then(|fd| crate::figures::Figures::of(fd.as_fd()));
        let (mss, srtt_us) = figures.map_or((536, 0), |figures| (figures.mss(), figures.srtt_us()));
        let info = client.shared.region.info(slot);
        info::show(info, local, remote, mss, srtt_us, 1);
        info.held.store(1, std::sync::atomic::Ordering::Relaxed);
        client.show(slot, state::ESTABLISHED, 0);
    }
}

/// Link-local addresses of IPv6 need an interface, which a command does not name.
fn needs_scope(addr: IpAddr) -> bool {
    matches!(addr, IpAddr::V6(addr) if addr.segments()[0] & 0xffc0 == 0xfe80)
}
