//! Commands of applications.

use crate::client::PendingCommand;
use crate::group::{ClientGroup, LOOSE_US};
use crate::socket;
use crate::sys;
use crate::tcp_info::TcpInfo;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::Relaxed;
use towpath_ring::Slot;
use towpath_ring::command::{Command, NOT_OURS, give_to, not_ours, op};
use towpath_ring::lines::state;
use towpath_runtime::slots::Phase;

/// The outcome of a command.
pub enum CommandOutcome {
    /// The command has this answer.
    Answer(i32),
    /// The answer follows when the reservation of its port has arrived.
    Waits,
}

impl ClientGroup {
    /// Handles an entry of the command queue.
    pub fn command(&mut self, now: u64, index: u32, slot: Slot) {
        let Some(client) = self.client(index) else { return };
        let (seq, command) = client.shared.region.command(slot).read();
        if command.op == op::REFRESH && seq != client.slot(slot).command_seq {
            return self.refresh(index, slot, seq);
        }
        if matches!(command.op, op::FILE..=op::SECURE) && seq != client.slot(slot).command_seq {
            return self.sideband_command(index, slot, seq, &command);
        }
        if matches!(command.op, op::SPLICE | op::SPLICE_TOLD) && seq != client.slot(slot).command_seq {
            client.slot(slot).command_seq = seq;
            return client.answer_asker(slot, seq, -libc::EOPNOTSUPP);
        }
        let may = client.shared.region.layout().is_app_slot(slot) && !client.leaving;
        let entry = client.slot(slot);
        if command.op == op::LISTEN && seq != entry.command_seq && entry.phase == Phase::Listening {
            return self.listen_again(index, slot, seq, &command);
        }
        if seq == 0 || seq == entry.command_seq {
            if entry.phase == Phase::Listening {
                client.offer_again(slot);
            }
            self.options(index, slot);
            return self.serve_slot(index, slot);
        }
        if !may || entry.phase != Phase::Free {
            client.shared.violated_contract();
            return;
        }
        entry.command_seq = seq;
        if client.holder_exited(slot) {
            return client.answer(slot, seq, -libc::ECANCELED);
        }
        self.counts.commands += 1;
        let outcome = match (u16::try_from(command.remote_port), u16::try_from(command.local_port), command.op) {
            (Ok(_), Ok(_), op::CONNECT) => self.connect(index, slot, &command),
            (Ok(_), Ok(port), op::LISTEN) if port != 0 => self.listen(index, slot, &command),
            (Ok(_), Ok(1..), op::BIND) => CommandOutcome::Answer(self.check_bind(index, &command)),
            (_, _, op::HAS) => CommandOutcome::Answer(has_address(command.local_addr.to_canonical())),
            _ => CommandOutcome::Answer(-libc::EINVAL),
        };
        match outcome {
            CommandOutcome::Answer(result) => self.answer(index, slot, seq, result),
            CommandOutcome::Waits => {
                let until_us = now + LOOSE_US;
                if let Some(client) = self.client(index) {
                    client.own.pending_commands.push(PendingCommand { slot, seq, command, until_us });
                }
            }
        }
    }

    /// The application asks for the kernel's `TCP_INFO` of a connection.
    pub fn refresh(&mut self, index: u32, slot: Slot, seq: u32) {
        // The same entry may stand for changed options.
        self.options(index, slot);
        let Some(client) = self.client(index) else { return };
        let live = client.shared.app_words(slot).is_some();
        let entry = client.slot(slot);
        entry.command_seq = seq;
        let open = live && entry.phase == Phase::Open;
        let tcp_info = entry.own.fd.as_ref().filter(|_| open).and_then(|fd| TcpInfo::of(fd.as_fd()));
        let held = entry.own.fd.as_ref().and_then(|fd| sys::ioctl_int(fd, libc::TIOCOUTQ)).unwrap_or(0);
        if let Some(tcp_info) = &tcp_info {
            let info = client.shared.region.info(slot);
            tcp_info.show(info);
            tcp_info.show_counts(client.shared.region.counts(slot), client.shared.generation(slot));
            info.held.store(held as u32 + 1, Relaxed);
        }
        self.show_congestion(index, slot);
        if let Some(client) = self.client(index) {
            client.answer_asker(slot, seq, if tcp_info.is_some() { 0 } else { -libc::ENOTCONN });
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

    /// The reservation for a slot has arrived: runs the command that waits for it.
    pub fn resume_command(&mut self, index: u32, slot: Slot) {
        let Some(client) = self.client(index) else { return };
        let Some(at) = client.own.pending_commands.iter().position(|waiting| waiting.slot == slot) else { return };
        if client.slot(slot).reservation.is_none() {
            return;
        }
        let PendingCommand { seq, command, .. } = client.own.pending_commands.swap_remove(at);
        let result = match self.run_command(index, slot, &command) {
            Ok(()) => 0,
            Err(errno) => self.refuse(index, slot, errno),
        };
        self.answer(index, slot, seq, result);
    }

    fn run_command(&mut self, index: u32, slot: Slot, command: &Command) -> Result<(), i32> {
        match command.op {
            op::LISTEN => self.start_listening(index, slot, command, false),
            _ => self.start_connect(index, slot, command),
        }
    }

    /// Runs a command. If its port is in use, by a reservation socket that has not arrived here, the command waits for
    /// that.
    pub fn run_or_wait(&mut self, index: u32, slot: Slot, command: &Command) -> CommandOutcome {
        match self.run_command(index, slot, command) {
            Ok(()) => CommandOutcome::Answer(0),
            Err(libc::EADDRINUSE) if command.local_port != 0 && !self.is_reserved(index, slot) => CommandOutcome::Waits,
            Err(errno) => CommandOutcome::Answer(self.refuse(index, slot, errno)),
        }
    }

    fn is_reserved(&mut self, index: u32, slot: Slot) -> bool {
        self.client(index).is_some_and(|client| client.slot(slot).reservation.is_some())
    }

    /// Fails commands whose reservation has not arrived in time.
    pub fn give_up_waiting(&mut self, now: u64) {
        for index in 0..self.clients.len() as u32 {
            let Some(client) = self.client(index) else { continue };
            while let Some(at) = client.own.pending_commands.iter().position(|waiting| waiting.until_us <= now) {
                let PendingCommand { slot, seq, .. } = client.own.pending_commands.swap_remove(at);
                client.refuse(slot);
                client.line(slot).state.store(state::FREE, std::sync::atomic::Ordering::Release);
                client.answer(slot, seq, -libc::EADDRINUSE);
            }
        }
    }

    /// Refuses a command after its slot was taken into use.
    pub fn refuse(&mut self, index: u32, slot: Slot, errno: i32) -> i32 {
        if let Some(client) = self.client(index) {
            let own = &mut client.slot(slot).own;
            (own.fd, own.share) = (None, None);
            client.refuse(slot);
            client.line(slot).state.store(state::FREE, std::sync::atomic::Ordering::Release);
        }
        self.counts.failed += 1;
        -errno
    }

    /// Refuses a command because of the policy.
    pub fn denied(&mut self, index: u32, slot: Slot, errno: i32) -> i32 {
        self.forget_reservation(index, slot);
        -errno
    }

    /// Leaves a command to the application's own kernel socket.
    pub fn not_ours(&mut self, index: u32, slot: Slot, why: u32) -> i32 {
        self.forget_reservation(index, slot);
        self.not_ours[why as usize % not_ours::REASONS] += 1;
        NOT_OURS + why as i32
    }

    /// Sends the application to another stack of the service.
    pub fn redirect_to_stack(&mut self, index: u32, slot: Slot, stack: u8) -> i32 {
        self.not_ours(index, slot, not_ours::STACK);
        give_to(stack)
    }

    fn forget_reservation(&mut self, index: u32, slot: Slot) {
        if let Some(client) = self.client(index) {
            client.slot(slot).reservation = None;
        }
    }

    /// True if a client of this user may use that local port.
    pub fn may_use_port(&mut self, index: u32, port: u32) -> bool {
        let root = self.client(index).is_some_and(|client| client.shared.uid == 0);
        root || port == 0 || port >= first_free_port()
    }
}

/// 0 if this kernel has the address, as `bind` sees it.
fn has_address(addr: IpAddr) -> i32 {
    let bound = socket::create(addr).and_then(|fd| socket::bind(&fd, SocketAddr::new(addr, 0)));
    bound.map_or_else(|errno| -errno, |()| 0)
}

/// `net.ipv4.ip_unprivileged_port_start`.
fn first_free_port() -> u32 {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(1024)
}

/// The local address of a command, in the family of `remote`.
pub fn local_of(command: &Command, remote: std::net::IpAddr) -> SocketAddr {
    let local = command.local_addr.to_canonical();
    // An IPv6 socket that is bound to no address reaches IPv4 as well (RFC 3493 §3.7).
    let local = if local.is_unspecified() { towpath_runtime::info::any(remote) } else { local };
    SocketAddr::new(local, command.local_port as u16)
}
