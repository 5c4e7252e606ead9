//! Commands of applications: connect and listen, and what is asked of connections.

use crate::host::SlowHost;
use crate::owner::{owner, split};
use crate::port_proof::PortProof;
use crate::route_wait::Outcome;
use crate::slots::{Listener, Phase};
use crate::slow::SlowState;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;
use towpath_ring::Slot;
use towpath_ring::command::{Command, NOT_OURS, V6ONLY, give_to, not_ours, op};
use towpath_ring::lines::{app_flags, state};
use towpath_runtime::admission::AdmissionControl;
use towpath_runtime::info::{self, any};
use towpath_runtime::log_throttle::LogThrottle;
use towpath_runtime::{Proof, Verdict};
use towpath_tcp::flow::{FourTuple, Owner};
use towpath_tcp::slow::ConnectError;
use towpath_tcp::time::Micros;

/// Commands taken from one client before the next has its turn.
const BATCH: usize = 64;
/// Of listeners that the kernel keeps: clients decide how many there are.
static LEFT: LogThrottle = LogThrottle::new();

impl SlowState {
    /// Carries out the commands that have been taken before, and takes waiting ones. Returns how many it has taken.
    ///
    /// Nobody wakes a napping thread for the end of a direct connection. So all queues are looked at for such ends after a
    /// command has been taken. An end that came before the command was posted is carried out before it.
    pub fn commands(&mut self, now: Micros) -> usize {
        let due = self.after_ends.len();
        let work = self.take_commands(now);
        for _ in 0..due {
            let Some((id, index, slot)) = self.after_ends.pop_front() else { break };
            // Another client may have got the number.
            if self.host.client(index).is_some_and(|client| client.shared.id == id) {
                self.command(now, index, slot);
            }
        }
        work
    }

    /// Takes waiting commands, and returns how many. Those for direct connections are carried out at once, and others are put by.
    pub fn take_commands(&mut self, now: Micros) -> usize {
        let mut work = 0;
        for index in 0..self.host.clients.len() {
            for _ in 0..BATCH {
                let Some(client) = self.host.client(index as u32) else { break };
                let Some(slot) = client.shared.next_command(&mut client.command_head) else { break };
                work += 1;
                let Some(slot) = slot else { continue };
                if client.slot(slot).phase == Phase::Direct {
                    self.command(now, index as u32, slot);
                } else {
                    self.after_ends.push_back((client.shared.id, index as u32, slot));
                }
            }
        }
        work
    }

    /// Carries out the command of a slot.
    pub fn command(&mut self, now: Micros, index: u32, slot: Slot) {
        let Some(client) = self.host.client(index) else { return };
        let (seq, command) = client.shared.region.command(slot).read();
        if command.op == op::REFRESH && seq != client.slot(slot).command_seq {
            return self.refresh_one(now, index, slot, seq);
        }
        if matches!(command.op, op::SPLICE | op::SPLICE_TOLD) && seq != client.slot(slot).command_seq {
            return self.splice(now, index, slot, seq, &command);
        }
        if matches!(command.op, op::FILE..=op::SECURE) && seq != client.slot(slot).command_seq {
            client.slot(slot).command_seq = seq;
            return self.answer(index, slot, seq, -libc::EOPNOTSUPP);
        }
        let may = client.shared.region.layout().is_app_slot(slot) && !client.leaving;
        let entry = client.slot(slot);
        if command.op == op::LISTEN && seq != entry.command_seq && entry.phase == Phase::Listening {
            return self.listen_again(now, index, slot, seq, &command);
        }
        if seq == 0 || seq == entry.command_seq {
            match entry.phase {
                Phase::Direct => self.look_at_direct(now, index, slot),
                Phase::Listening => client.offer_again(slot),
                _ => {}
            }
            return self.options(now, index, slot);
        }
        if !may || entry.phase != Phase::Free {
            client.shared.violated_contract();
            return;
        }
        let proof = self.port_proof(index, slot, &command);
        if proof == PortProof::Missing {
            return self.await_proof(now, index, slot, seq);
        }
        let Some(client) = self.host.client(index) else { return };
        let before = std::mem::replace(&mut client.slot(slot).command_seq, seq);
        if client.holder_exited(slot) {
            return self.answer(index, slot, seq, -libc::ECANCELED);
        }
        if let PortProof::Refused(result) = proof {
            let result = self.refused_port(index, slot, result);
            let result = self.unless_only_accelerated(index, &command, result);
            return self.answer(index, slot, seq, result);
        }
        let result = match (u16::try_from(command.remote_port), u16::try_from(command.local_port), command.op) {
            (Ok(remote_port), Ok(local_port), op::CONNECT) => {
                match self.connect(now, index, slot, &command, remote_port, local_port) {
                    Outcome::Answer(result) => result,
                    Outcome::AwaitsRoute => return self.await_route(index, slot, before),
                }
            }
            (Ok(_), Ok(_), op::JOIN) => self.join_across(now, index, slot),
            (Ok(_), Ok(local_port), op::LISTEN) if local_port != 0 => {
                self.listen(now, index, slot, &command, local_port)
            }
            _ => -libc::EINVAL,
        };
        let result = self.unless_only_accelerated(index, &command, result);
        if result == 0 {
            self.show_congestion(index, slot);
        }
        self.answer(index, slot, seq, result);
    }

    fn connect(
        &mut self,
        now: Micros,
        index: u32,
        slot: Slot,
        command: &Command,
        remote_port: u16,
        local_port: u16,
    ) -> Outcome {
        // Rules, addresses and ports are those of one namespace.
        if !self.host.is_of_our_namespace(index) {
            return Outcome::Answer(self.not_ours(index, slot, not_ours::NAMESPACE));
        }
        let (local, remote) = (command.local_addr.to_canonical(), command.remote_addr.to_canonical());
        // An IPv6 socket that is bound to no address reaches IPv4, too (RFC 3493 §3.7).
        let local = if local.is_unspecified() { any(remote) } else { local };
        // The policy is asked before anything is done, for every carrier. The application's words do not count as
        // permission.
        let verdict = match self.admitted_before(index, slot) {
            Some(verdict) => verdict,
            None => self.host.permit_connect(index, SocketAddr::new(remote, remote_port)),
        };
        let congestion = match verdict {
            Verdict::Allow(congestion) => congestion,
            Verdict::Refuse(errno) => return Outcome::Answer(self.denied(index, slot, errno)),
            Verdict::Drop | Verdict::Kernel => return Outcome::Answer(self.not_ours(index, slot, not_ours::POLICY)),
            Verdict::Stack(stack) => return Outcome::Answer(self.elsewhere(index, slot, stack)),
        };
        if !local.is_unspecified() && !self.host.network.is_local(local) {
            return Outcome::Answer(self.not_ours(index, slot, not_ours::ELSEWHERE));
        }
        if let Some(elsewhere) = self.joined_elsewhere(index, slot, command, SocketAddr::new(remote, remote_port)) {
            return Outcome::Answer(elsewhere);
        }
        if self.route_is_coming(now, (index, slot), (remote, local), congestion) {
            return Outcome::AwaitsRoute;
        }
        let Some(client) = self.host.client(index) else { return Outcome::Answer(-libc::ENOTCONN) };
        client.take(slot, Phase::Opening);
        client.slot(slot).own.congestion = congestion;
        let ends = (SocketAddr::new(local, local_port), SocketAddr::new(remote, remote_port));
        towpath_probes::connect(owner(index, slot).0, ends.0, ends.1);
        // The state is shown before the attempt, because the attempt may fail at once and show that.
        let tuple = FourTuple { local, local_port, remote, remote_port };
        SlowHost::show_addresses(client, slot, &tuple, 2);
        client.show(slot, state::CONNECTING, 0);
        let bound = (!local.is_unspecified() || local_port != 0).then_some((local, local_port));
        let nodelay = command.flags & app_flags::NODELAY != 0;
        self.early_options(now, index, slot);
        if let Some(result) = self.connect_direct(now, index, slot, (remote, remote_port), bound) {
            return Outcome::Answer(result);
        }
        let owner = owner(index, slot);
        let result = match self.slow.connect(now, owner, remote, remote_port, bound, nodelay, &mut self.host) {
            Ok(()) => {
                self.host.spend_token(index);
                self.name_opening(owner);
                self.show_ends(owner);
                0
            }
            Err(error) => {
                self.refuse(index, slot);
                match error {
                    ConnectError::Refused => self.not_ours(index, slot, not_ours::FIREWALL),
                    ConnectError::NotOurs => self.not_ours(index, slot, self.why_not_ours(remote, remote_port)),
                    ConnectError::Errno(errno) => -errno,
                }
            }
        };
        Outcome::Answer(result)
    }

    /// Shows the local end that the slow path has chosen: `getsockname` tells it during the handshake, too.
    fn show_ends(&mut self, owner: Owner) {
        if let Some(tuple) = self.slow.tuple_of(owner)
            && let Some((client, slot)) = self.host.find(owner)
        {
            let local = SocketAddr::new(tuple.local, tuple.local_port);
            info::show_ends(client.shared.region.info(slot), local, SocketAddr::new(tuple.remote, tuple.remote_port));
        }
    }

    fn listen(&mut self, now: Micros, index: u32, slot: Slot, command: &Command, port: u16) -> i32 {
        let local = command.local_addr.to_canonical();
        let v6only = command.flags & V6ONLY != 0;
        match self.host.permit_listen(index, SocketAddr::new(local, port), local.is_ipv6() && !v6only) {
            Verdict::Allow(_) => {}
            Verdict::Refuse(errno) => return self.denied(index, slot, errno),
            Verdict::Drop | Verdict::Kernel => return self.not_ours(index, slot, not_ours::POLICY),
            Verdict::Stack(stack) => return self.elsewhere(index, slot, stack),
        }
        if !local.is_unspecified() && !self.host.network.is_local(local) {
            return self.not_ours(index, slot, not_ours::ELSEWHERE);
        }
        // socket(7): sockets that share a port belong to one user. The kernel checks that for its own sockets.
        let kernels = self.host.network.listens_in_kernel();
        let uid = self.host.client(index).map(|client| client.shared.uid);
        let others: Vec<Owner> = self.slow.listeners_at(local, port).collect();
        if !kernels
            && others.iter().any(|other| self.host.client(split(*other).0).map(|client| client.shared.uid) != uid)
        {
            return self.denied(index, slot, libc::EADDRINUSE);
        }
        if let Err(refusal) = self.take_from_kernel(index, slot) {
            return refusal;
        }
        let Some(client) = self.host.client(index) else { return -libc::ENOTCONN };
        client.take(slot, Phase::Listening);
        let backlog = command.backlog;
        client.slot(slot).listener = Some(Box::new(Listener::new(backlog)));
        let tuple = FourTuple { local, local_port: port, remote: any(local), remote_port: 0 };
        SlowHost::show_addresses(client, slot, &tuple, 10);
        client.show(slot, state::LISTENING, 0);
        self.early_options(now, index, slot);
        let owner = owner(index, slot);
        match self.slow.listen(now, owner, local, port, v6only, backlog, &mut self.host) {
            Ok(()) => {
                self.host.show_judged(owner);
                self.host.tell_name(owner, &tuple);
                self.host.select_listener(owner, tuple.local_end());
                0
            }
            Err(errno) => {
                self.host.leave_to_kernel(owner);
                self.refuse(index, slot);
                -errno
            }
        }
    }

    /// Takes the SYNs of a new listener from the kernel, if the client has shown a listening socket. An error is the answer
    /// to the command.
    fn take_from_kernel(&mut self, index: u32, slot: Slot) -> Result<(), i32> {
        let shown = self.host.client(index).and_then(|client| client.slot(slot).reservation.as_ref());
        let Some(Proof::Listener(proof)) = shown.map(|(reservation, _)| reservation.proof) else { return Ok(()) };
        let owner = owner(index, slot);
        // The rules come first, so that the kernel accepts nobody whom they refuse.
        self.host.judge_peers(owner, &proof).map_err(|errno| self.denied(index, slot, errno))?;
        self.host.take_from_kernel(owner, proof).map_err(|error| {
            if LEFT.allows() {
                tracing::warn!(%error, "a listener is left to the kernel");
            }
            self.not_ours(index, slot, not_ours::UNSAID)
        })
    }

    /// `listen` on a listener changes its backlog. All else is as it was.
    fn listen_again(&mut self, now: Micros, index: u32, slot: Slot, seq: u32, command: &Command) {
        let (local, port) = (command.local_addr.to_canonical(), command.local_port as u16);
        let Some(client) = self.host.client(index) else { return };
        let live = client.shared.app_words(slot).is_some();
        client.slot(slot).command_seq = seq;
        let changed = match live {
            true => self.slow.listen(now, owner(index, slot), local, port, false, command.backlog, &mut self.host),
            false => Err(libc::EINVAL),
        };
        if changed.is_ok()
            && let Some(client) = self.host.client(index)
            && let Some(listener) = &mut client.slot(slot).listener
        {
            listener.backlog = command.backlog;
        }
        self.answer(index, slot, seq, changed.map_or_else(|errno| -errno, |()| 0));
    }

    /// Copies the stats of a connection to its information line.
    fn refresh_one(&mut self, now: Micros, index: u32, slot: Slot, seq: u32) {
        // The options may have changed by the same entry of the queue.
        self.options(now, index, slot);
        let Some(client) = self.host.client(index) else { return };
        let live = client.shared.app_words(slot).is_some();
        let entry = client.slot(slot);
        entry.command_seq = seq;
        let flow = entry.own.flow.filter(|_| live && entry.phase == Phase::Open);
        if let Some(flow) = flow {
            let snapshot = self.table.snapshot(flow);
            let unanswered = self.slow.unanswered(owner(index, slot));
            let sent = self.slow.send_stats(now, owner(index, slot), &snapshot);
            self.host.show_figures(owner(index, slot), &snapshot, unanswered, sent);
            self.show_congestion(index, slot);
        }
        self.answer(index, slot, seq, if flow.is_some() { 0 } else { -libc::ENOTCONN });
    }

    /// The application of a direct connection has changed its line. Only its end matters here.
    fn look_at_direct(&mut self, now: Micros, index: u32, slot: Slot) {
        let Some(client) = self.host.client(index) else { return };
        let Some(words) = client.shared.app_words(slot) else { return };
        if words.flags & app_flags::CLOSED != 0 {
            let generation = client.shared.generation(slot);
            self.close(now, index, slot, generation, words.flags & app_flags::ABORT != 0);
        } else if words.flags & app_flags::PEER_VIOLATED != 0 {
            self.cut(index, slot);
        }
    }

    /// Shows the answer to a command.
    fn answer(&mut self, index: u32, slot: Slot, seq: u32, result: i32) {
        if let Some(client) = self.host.client(index) {
            client.answer(slot, seq, result);
        }
    }

    /// Frees the slot of a command that has failed.
    pub fn refuse(&mut self, index: u32, slot: Slot) {
        if let Some(client) = self.host.client(index) {
            client.refuse(slot);
            client.line(slot).state.store(state::FREE, Ordering::Release);
        }
    }

    /// The answer to a command that the policy forbids.
    pub fn denied(&mut self, index: u32, slot: Slot, errno: i32) -> i32 {
        self.forget_reservation(index, slot);
        -errno
    }

    /// The answer to a command that the kernel is to carry out.
    pub fn not_ours(&mut self, index: u32, slot: Slot, why: u32) -> i32 {
        self.forget_reservation(index, slot);
        self.not_ours[why as usize % not_ours::REASONS] += 1;
        NOT_OURS + why as i32
    }

    /// The answer to a command that the service's other stack of this number is to carry out.
    fn elsewhere(&mut self, index: u32, slot: Slot, stack: u8) -> i32 {
        self.not_ours(index, slot, not_ours::STACK);
        give_to(stack)
    }

    /// Gives back the reservation that came with a command.
    fn forget_reservation(&mut self, index: u32, slot: Slot) {
        if let Some(client) = self.host.client(index) {
            client.slot(slot).reservation = None;
        }
    }

    fn why_not_ours(&self, remote: IpAddr, port: u16) -> u32 {
        match remote {
            _ if port == 0 || remote.is_multicast() || remote.is_unspecified() => not_ours::ADDRESS,
            _ if self.host.network.is_local(remote) => not_ours::NO_LISTENER,
            _ => not_ours::ELSEWHERE,
        }
    }
}
