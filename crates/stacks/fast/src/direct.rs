//! Direct connections. If both ends are applications of this host, they are joined ring to ring by a region of their
//! own. The slow thread opens and ends them. It sees their bytes only for a capture, or for modules that have them.

use crate::direct_end::DirectEnd;
use crate::host::{Later, LocalListener, SlowHost};
use crate::owner::{owner, split};
use crate::slots::{Phase, Queued};
use crate::slow::SlowState;
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use towpath_probes as probes;
use towpath_ring::Slot;
use towpath_ring::command::not_ours;
use towpath_ring::dirty::NAP_US;
use towpath_ring::lines::{app_flags, state, status};
use towpath_runtime::Verdict;
use towpath_runtime::admission::AdmissionControl;
use towpath_runtime::info::ring_addr;
use towpath_runtime::log_throttle::LogThrottle;
use towpath_tcp::flow::{FourTuple, Owner, SocketOptions};
use towpath_tcp::slow::Ending;
use towpath_tcp::time::Micros;

/// The MSS that is shown: that of a loopback device with 64 KiB packets on Linux.
const MSS: u16 = 65_483;
/// The round-trip time that is shown before one is known, µs.
const RTT_US: u32 = 20;
/// How long after two direct connections have begun soon after each other the slow thread naps, µs.
const NAPS_US: u64 = 10_000;
/// How many tuples are tried for one that no connection of the kernel has.
const FREE_TUPLES: usize = 8;
/// Of connections that are cut: clients decide how often.
static CUT: LogThrottle = LogThrottle::new();

impl SlowState {
    /// Tries to join a connect directly to a listener of this host. `None` = the stack has to carry it, and finds all
    /// errors. `Some` = the command's result.
    pub fn connect_direct(
        &mut self,
        now: Micros,
        index: u32,
        slot: Slot,
        remote: (IpAddr, u16),
        bound: Option<(IpAddr, u16)>,
    ) -> Option<i32> {
        let named = self.host.network.listens_in_kernel();
        if !self.host.network.is_local(remote.0) || !(self.host.pairs.enabled || named) {
            return None;
        }
        let own = self.slow.early_options(owner(index, slot));
        let (tuple, listener) = match named {
            true => match self.kernels_choice(now, (index, slot), remote, bound)? {
                Ok(choice) => choice,
                Err(result) => return Some(result),
            },
            false => {
                let tuple = self.slow.choose_direct_tuple(now, owner(index, slot), remote, bound, &mut self.host)?;
                (tuple, self.slow.listener_for(&tuple)?.0)
            }
        };
        if !self.host.pairs.enabled || !self.suits(index, &own, listener) {
            return None;
        }
        match self.host.permit_accept(split(listener).0, tuple.remote_end(), tuple.local_end()) {
            Verdict::Allow(_) => {}
            Verdict::Refuse(_) => {
                self.host.client(index)?.over(slot, libc::ECONNREFUSED);
                return Some(0);
            }
            Verdict::Drop | Verdict::Kernel | Verdict::Stack(_) => return None,
        }
        self.join(now, (index, slot), listener, &tuple)
    }

    /// The tuple of a connection within this host, and the listener that the kernel chooses for it. An error is the
    /// command's result. `None`: the stack finds the error.
    fn kernels_choice(
        &mut self,
        now: Micros,
        (index, slot): (u32, Slot),
        remote: (IpAddr, u16),
        bound: Option<(IpAddr, u16)>,
    ) -> Option<Result<(FourTuple, Owner), i32>> {
        let has_port = bound.is_some_and(|(_, port)| port != 0);
        for _ in 0..if has_port { 1 } else { FREE_TUPLES } {
            let tuple = self.slow.choose_direct_tuple(now, owner(index, slot), remote, bound, &mut self.host)?;
            match self.host.kernels_listener(&tuple) {
                LocalListener::Ours(listener) if !self.host.has_stalled(listener) => {
                    return Some(Ok((tuple, listener)));
                }
                LocalListener::Taken => {}
                LocalListener::None | LocalListener::Ours(_) => {
                    self.refuse(index, slot);
                    return Some(Err(self.not_ours(index, slot, not_ours::NO_LISTENER)));
                }
            }
        }
        self.refuse(index, slot);
        Some(Err(-libc::EADDRNOTAVAIL))
    }

    /// May both ends be direct, and has the listener room?
    pub fn suits(&mut self, index: u32, own: &SocketOptions, listener: Owner) -> bool {
        let Some(inherited) = self.slow.inherited_from(listener) else { return false };
        if !self.may_be_direct(index, own) || !self.may_be_direct(split(listener).0, &inherited) {
            return false;
        }
        self.host.find(listener).is_some_and(|(server, slot)| !server.leaving && server.has_room(slot))
    }

    /// A connection must go through the stack if its rate is limited, it has its own segment size, or it waits for data
    /// (`TCP_DEFER_ACCEPT`).
    fn may_be_direct(&mut self, index: u32, options: &SocketOptions) -> bool {
        let limited = self.host.client(index).is_none_or(|client| client.limit.is_some_and(|limit| limit.rate != 0));
        !limited && options.max_pacing == 0 && options.defer_accept_s == 0 && options.max_segment == 0
    }

    /// Joins a connect to a listener. `None`: there is no room.
    pub fn join(&mut self, now: Micros, (index, slot): (u32, Slot), listener: Owner, tuple: &FourTuple) -> Option<i32> {
        let server_index = split(listener).0;
        if !self.host.within_limits(server_index) {
            return None;
        }
        let (server, listener_slot) = self.host.find(listener)?;
        let child = server.take_child()?;
        let ends = self.host.pair_up([(index, slot), (server_index, child)]);
        let owners = [owner(index, slot), owner(server_index, child)];
        let Some(ends) = ends.filter(|_| self.slow.add_direct(owners, listener, *tuple)) else {
            if let Some([first, second]) = ends {
                self.host.pairs.part(&first, now);
                self.host.pairs.part(&second, now);
            }
            self.host.client(server_index)?.free(child);
            return None;
        };
        self.host.withhold(&ends, [(index, slot), (server_index, listener_slot)]);
        // The child is shown first, because bytes may come as soon as the other end is shown.
        self.host.show_direct(server_index, child, ends[1], &tuple.reversed());
        self.host.show_direct(index, slot, ends[0], tuple);
        let server = self.host.client(server_index)?;
        let queued = server.queue(listener_slot, child, ring_addr(tuple.local), tuple.local_port);
        show_joined(listener, owners, tuple, queued == Queued::Yes);
        if queued != Queued::Yes {
            server.shared.violated_contract();
            self.host.later.push(Later::EndListener { client: server_index, slot: listener_slot });
            let generation = self.host.client(server_index)?.shared.generation(child);
            self.close(now, server_index, child, generation, true);
        }
        self.host.watch_direct(&ends[0], owners, tuple);
        self.show_congestion(server_index, child);
        self.host.spend_token(index);
        self.host.spend_token(server_index);
        if now < self.joined_at.after(NAP_US) {
            self.naps_until = now.after(NAPS_US);
        }
        self.joined_at = now;
        Some(0)
    }

    /// The application of one end is done with it, or gone. The other end sees the end of the stream, or a reset if
    /// something was left unread (RFC 2525 §2.17).
    pub fn part(&mut self, now: Micros, index: u32, slot: Slot, abort: bool) {
        let Some(client) = self.host.client(index) else { return };
        let Some(end) = client.slot(slot).own.direct else { return };
        let region = std::sync::Arc::clone(&client.shared);
        let own = region.region.app(slot);
        let (rx_head, flags) = (own.rx_head.load(Ordering::Acquire), own.flags.load(Ordering::Acquire));
        let (noted, seen) = (client.slot(slot).own.ending, client.line(slot).status.load(Ordering::Relaxed));
        client.free(slot);
        let tuple = self.slow.tuple_of(owner(index, slot));
        self.slow.remove_direct(owner(index, slot));
        let mut was_reset = abort;
        let told = self.host.pairs.line(&end).map_or(0, |line| line.flags.load(Ordering::Acquire));
        if let Some((peer_index, peer_slot)) = self.host.pairs.other(&end) {
            let peer_end = end.opposite();
            let sent = self.host.pairs.line(&peer_end).map_or(0, |line| line.tx_tail.load(Ordering::Acquire));
            // If the application has closed its end itself, its own choice counts.
            let reset = if flags & app_flags::CLOSED != 0 {
                abort || flags & app_flags::ABORT != 0
            } else {
                // The application may have read held bytes before `tx_tail` showed them, so the difference may be
                // negative.
                abort || sent.wrapping_sub(rx_head).cast_signed() > 0
            };
            was_reset = reset;
            if let Some(peer) = self.host.client(peer_index) {
                let line = peer.line(peer_slot);
                // The connection has been cut.
                let reset = reset || line.state.load(Ordering::Relaxed) == state::CLOSED;
                if reset {
                    line.error.store(libc::ECONNRESET as u32, Ordering::Release);
                }
                let bits = if reset { status::RESET | status::TX_CLOSED } else { status::RX_EOF };
                line.status.store(status::PEER_CLOSED | bits, Ordering::Release);
                if reset {
                    line.state.store(state::CLOSED, Ordering::Release);
                }
                if told & app_flags::CLOSED == 0 {
                    peer.raise(peer_slot);
                    self.host.pairs.wake(&peer_end);
                }
            }
        }
        let why = noted.unwrap_or(match () {
            () if seen & status::RESET != 0 => Ending::PeerReset,
            () if was_reset => Ending::Aborted,
            () if seen & status::RX_EOF != 0 => Ending::PeerClosed,
            () => Ending::Closed,
        });
        if let Some(tuple) = tuple {
            let (none, socket) = ((probes::NONE, probes::NONE), owner(index, slot).0);
            probes::end(none, socket, why.in_short(), tuple.local_end(), tuple.remote_end());
            self.host.remember(index, &tuple, true, why);
        }
        self.host.watch_end(&end, was_reset);
        self.host.pairs.part(&end, now);
    }

    /// An application says that the other side of its direct connection has broken the contract. The connection ends
    /// at once, for it with an abort, for the other side with a reset. Each end is kept until its application closes it.
    pub fn cut(&mut self, index: u32, slot: Slot) {
        let Some(client) = self.host.client(index) else { return };
        let Some(end) = client.slot(slot).own.direct else { return };
        if client.line(slot).state.load(Ordering::Relaxed) == state::CLOSED {
            return;
        }
        let (id, other) = (client.shared.id, self.host.pairs.other(&end));
        let peer = other.and_then(|(index, _)| self.host.client(index)).map(|client| client.shared.id);
        // It is the word of one client against another, so it counts against neither.
        if CUT.allows() {
            tracing::warn!(client = ?id, ?peer, "a client says that the other end of a direct connection broke the contract");
        }
        self.end_both(index, slot, [Ending::Accuser, Ending::PeerReset]);
    }

    /// Ends a direct connection at once, for this client with an abort, for the other side with a reset. Each side has a
    /// reason of its own, this client's first. False: it has ended, or there is none.
    pub fn end_both(&mut self, index: u32, slot: Slot, why: [Ending; 2]) -> bool {
        let Some(client) = self.host.client(index) else { return false };
        let Some(end) = client.slot(slot).own.direct else { return false };
        if client.line(slot).state.load(Ordering::Relaxed) == state::CLOSED {
            return false;
        }
        let other = self.host.pairs.other(&end);
        let ends = [(Some((index, slot)), end, libc::ECONNABORTED), (other, end.opposite(), libc::ECONNRESET)];
        // The errors of both first: who sees his may close at once, and the other must not take that for the end of the
        // stream.
        for ((at, _, errno), why) in ends.into_iter().zip(why) {
            let Some((index, slot)) = at else { continue };
            let Some(client) = self.host.client(index) else { continue };
            client.slot(slot).own.ending = Some(why);
            client.line(slot).error.store(errno as u32, Ordering::Release);
        }
        for (at, end, _) in ends {
            let Some((index, slot)) = at else { continue };
            let Some(client) = self.host.client(index) else { continue };
            let line = client.line(slot);
            line.status.store(status::RESET | status::TX_CLOSED | status::PEER_CLOSED, Ordering::Release);
            line.state.store(state::CLOSED, Ordering::Release);
            client.raise(slot);
            self.host.pairs.wake(&end);
        }
        true
    }
}

impl SlowHost {
    /// Each end of a new connection begins with the buffer limits of the options in these two slots.
    fn withhold(&mut self, ends: &[DirectEnd; 2], from: [(u32, Slot); 2]) {
        for (end, (index, slot)) in ends.iter().zip(from) {
            let Some(client) = self.client(index) else { continue };
            let region = std::sync::Arc::clone(&client.shared);
            self.pairs.withhold(end, region.region.options(slot));
        }
    }

    /// Shows an application its end of a direct connection.
    fn show_direct(&mut self, index: u32, slot: Slot, end: DirectEnd, tuple: &FourTuple) {
        let Some(client) = self.client(index) else { return };
        let entry = client.slot(slot);
        (entry.phase, entry.own.direct) = (Phase::Direct, Some(end));
        SlowHost::show_info(client, slot, tuple, MSS, RTT_US, 1);
        client.show_paired(slot, state::ESTABLISHED, 0, (end.number, end.word()));
    }
}

/// Tells tracers of a new direct connection; `tuple` is that of the first end, which has connected.
fn show_joined(listener: Owner, [from, to]: [Owner; 2], tuple: &FourTuple, accepted: bool) {
    let (local, remote) = (tuple.local_end(), tuple.remote_end());
    probes::established(probes::NONE, probes::NONE, from.0, false, local, remote);
    probes::established(probes::NONE, probes::NONE, to.0, true, remote, local);
    if accepted {
        probes::accept(listener.0, to.0, remote, local);
    }
}
