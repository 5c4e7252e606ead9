//! `connect`.

use crate::commands::{CommandOutcome, local_of};
use crate::group::ClientGroup;
use crate::socket::{bind, create, ends};
use crate::sys;
use crate::tcp_info::TcpInfo;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use towpath_ring::Slot;
use towpath_ring::command::{Command, not_ours};
use towpath_ring::lines::{app_flags, state};
use towpath_runtime::Verdict;
use towpath_runtime::admission::AdmissionControl;
use towpath_runtime::info;
use towpath_runtime::slots::Phase;

impl ClientGroup {
    /// Handles a connect command.
    pub fn connect(&mut self, index: u32, slot: Slot, command: &Command) -> CommandOutcome {
        let remote = SocketAddr::new(command.remote_addr.to_canonical(), command.remote_port as u16);
        // The policy comes first: the application writes the command, and is not trusted to have any right.
        match self.permit_connect(index, remote) {
            Verdict::Allow(_) => {}
            Verdict::Refuse(errno) => return CommandOutcome::Answer(self.denied(index, slot, errno)),
            Verdict::Drop | Verdict::Kernel => {
                return CommandOutcome::Answer(self.not_ours(index, slot, not_ours::POLICY));
            }
            Verdict::Stack(stack) => return CommandOutcome::Answer(self.redirect_to_stack(index, slot, stack)),
        }
        let nowhere = remote.port() == 0 || remote.ip().is_unspecified() || remote.ip().is_multicast();
        if nowhere || needs_scope(remote.ip()) || !self.may_use_port(index, command.local_port) {
            return CommandOutcome::Answer(self.not_ours(index, slot, not_ours::ADDRESS));
        }
        let Some(client) = self.client(index) else { return CommandOutcome::Answer(-libc::ENOTCONN) };
        client.take(slot, Phase::Opening);
        let local = local_of(command, remote.ip());
        info::show(client.shared.region.info(slot), local, remote, 0, 0, 2);
        client.show(slot, state::CONNECTING, 0);
        self.run_or_wait(index, slot, command)
    }

    /// Starts to connect.
    pub fn start_connect(&mut self, index: u32, slot: Slot, command: &Command) -> Result<(), i32> {
        let remote = SocketAddr::new(command.remote_addr.to_canonical(), command.remote_port as u16);
        let local = local_of(command, remote.ip());
        let fd = self.open(index, slot, local, command.flags)?;
        self.counts.connects += 1;
        // Watch the socket before it connects. On loopback the handshake ends inside `connect`, and the connecting
        // side must see that before the accepting side does.
        self.watch_socket(index, slot, &fd).map_err(|error| error.raw_os_error().unwrap_or(libc::ENOBUFS))?;
        let under_way = match rustix::net::connect(&fd, &remote).map_err(|error| error.raw_os_error()) {
            Ok(()) | Err(libc::EINPROGRESS) => Ok(()),
            // The handshake has failed already: on loopback it ends inside `connect`.
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
        // Set before the answer, because the application derives its limits from it.
        client.shared.region.info(slot).held.store(1, std::sync::atomic::Ordering::Relaxed);
        let own = &mut client.slot(slot).own;
        (own.fd, own.local, own.remote) = (Some(fd), local, remote);
        Ok(())
    }

    /// Makes a socket with the slot's options, bound if the command asks for that.
    pub fn open(&mut self, index: u32, slot: Slot, local: SocketAddr, flags: u32) -> Result<OwnedFd, i32> {
        let Some(client) = self.client(index) else { return Err(libc::ENOTCONN) };
        let share = client.shared.take_descriptor().ok_or(libc::ENFILE)?;
        let fd = create(local.ip())?;
        let own = &mut client.slot(slot).own;
        own.share = Some(share);
        (own.local, own.flags) = (local, flags & (app_flags::NODELAY | app_flags::CORK));
        sys::set(&fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, (flags & app_flags::NODELAY != 0).into());
        self.first_options(index, slot, &fd);
        if !local.ip().is_unspecified() || local.port() != 0 {
            bind(&fd, local)?;
        }
        Ok(fd)
    }

    /// Checks whether the handshake has ended.
    pub fn serve_connecting(&mut self, index: u32, slot: Slot) {
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
        self.serve_slot(index, slot);
    }

    /// Publishes a connection that is now established.
    pub fn show_established(&mut self, index: u32, slot: Slot) {
        let Some(client) = self.client(index) else { return };
        let own = &client.slot(slot).own;
        let (local, remote) = (own.local, own.remote);
        let tcp_info = own.fd.as_ref().and_then(|fd| TcpInfo::of(fd.as_fd()));
        let (mss, srtt_us) = tcp_info.map_or((536, 0), |tcp_info| (tcp_info.mss(), tcp_info.srtt_us()));
        let info = client.shared.region.info(slot);
        info::show(info, local, remote, mss, srtt_us, 1);
        info.held.store(1, std::sync::atomic::Ordering::Relaxed);
        client.show(slot, state::ESTABLISHED, 0);
    }
}

/// IPv6 link-local addresses need an interface, which a command does not name.
fn needs_scope(addr: IpAddr) -> bool {
    matches!(addr, IpAddr::V6(addr) if addr.segments()[0] & 0xffc0 == 0xfe80)
}
