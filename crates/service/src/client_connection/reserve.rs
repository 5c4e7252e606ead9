//! Ports and listening sockets that a client shows for its commands.

use super::{ClientConnection, data, invalid, source};
use crate::broker_handle::BrokerRequest;
use crate::received::HeldSocket;
use crate::{port_proof, privileged, shown_listener};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SocketType, sockopt};
use std::io;
use std::net::SocketAddr;
use towpath_ring::command::{NOT_OURS, not_ours};
use towpath_runtime::{JoinProof, Proof};

/// How long a listening socket that is shown again waits for the end of the listener that had it.
const LISTENER_ENDS: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// Descriptors of the service's table that the stack has for a join.
const OF_A_JOIN: u64 = 2;

/// A reservation, as the thread of the client's connection knows it: the reading end of a pipe. The stack drops the writing end
/// when it frees the slot.
///
/// The stack does not get a client's socket: a program could decide by `SO_LINGER` how long its close takes.
pub struct HeldPort {
    slot: u32,
    /// The cookie of the kernel's listening socket, of a listener that keeps one.
    listener: Option<u64>,
    /// Has its end been awaited in vain?
    stays: bool,
    /// The client's socket, if it holds the port.
    _shown: Option<HeldSocket>,
    freed: OwnedFd,
    /// How many descriptors of the service's table the stack has.
    in_stack: u64,
}

/// What is known of a socket that a client shows.
struct Known {
    proof: Proof,
    /// The client's socket, to be kept.
    shown: Option<HeldSocket>,
    /// The service's own socket, for the stack.
    own: Option<OwnedFd>,
}

impl ClientConnection<'_> {
    /// Reserves the port of a socket that the client shows, for its command `seq` in this slot.
    pub(super) fn reserve(&mut self, slot: u32, seq: u32, listens: bool, shown: OwnedFd) -> io::Result<()> {
        let region = self.client.region.layout();
        region.slot(slot).filter(|slot| region.is_app_slot(*slot)).ok_or_else(|| invalid("no such slot"))?;
        let internet = matches!(sockopt::socket_domain(&shown), Ok(AddressFamily::INET | AddressFamily::INET6));
        if !internet || sockopt::socket_type(&shown)? != SocketType::STREAM {
            return Err(invalid("not a TCP socket"));
        }
        if self.reservations.len() >= self.client.region.geometry().app_slots as usize {
            return Err(invalid("more reservations than slots"));
        }
        let stack = &self.state.stack;
        let listener = listens && stack.listens_in_kernel();
        let in_stack = if stack.needs_proof() && !listener { 2 } else { 1 };
        if !self.state.take_descriptors(self.peer.uid, in_stack) {
            tracing::debug!(client = self.client.id.0, "a port is not reserved: the user has its share of descriptors");
            self.refuse_port(slot, seq, NOT_OURS + not_ours::POLICY as i32);
            return Ok(());
        }
        let known = if listener { self.listening(shown) } else { self.bound(listens, shown)? };
        let number = match known {
            Ok(known) => self.hold_port(slot, seq, known, in_stack),
            Err(answer) => {
                self.refuse_port(slot, seq, answer);
                None
            }
        };
        match number {
            Some(number) if !listener => _ = self.unattached.insert(slot, number),
            Some(_) => {}
            None => self.state.registry().budget.give_back(self.peer.uid, in_stack),
        }
        Ok(())
    }

    /// Looks whether a client of another namespace may be joined to a listener of this one, for its command `seq` in this
    /// slot. `shown` is the socket that it would connect.
    pub(super) fn join(&mut self, slot: u32, seq: u32, listener: SocketAddr, shown: OwnedFd) -> io::Result<()> {
        let region = self.client.region.layout();
        region.slot(slot).filter(|slot| region.is_app_slot(*slot)).ok_or_else(|| invalid("no such slot"))?;
        if self.reservations.len() >= self.client.region.geometry().app_slots as usize {
            return Err(invalid("more reservations than slots"));
        }
        if !self.state.take_descriptors(self.peer.uid, OF_A_JOIN) {
            self.refuse_port(slot, seq, NOT_OURS + not_ours::POLICY as i32);
            return Ok(());
        }
        let known = self.joined(listener, &shown);
        // The client acts as soon as the stack answers. It must have the only copy then.
        drop(shown);
        let number = match known {
            Ok(known) => self.hold_port(slot, seq, known, OF_A_JOIN),
            Err(why) => {
                self.refuse_port(slot, seq, NOT_OURS + why as i32);
                None
            }
        };
        match number {
            Some(number) => _ = self.unattached.insert(slot, number),
            None => self.state.registry().budget.give_back(self.peer.uid, OF_A_JOIN),
        }
        Ok(())
    }

    /// The proof for a join. An error is one of [`not_ours`].
    fn joined(&self, listener: SocketAddr, shown: &OwnedFd) -> Result<Known, u32> {
        let from = port_proof::joinable(shown).ok_or(not_ours::ELSEWHERE)?;
        let settings = &self.state.settings;
        let home = self.state.stack.namespace();
        let (place, name) = settings.namespaces.of_cookie(from).ok_or(not_ours::NAMESPACE)?;
        if home.is_none_or(|home| home == from) {
            return Err(not_ours::NAMESPACE);
        }
        if !settings.policy.may_join(self.client.id, name, listener) {
            return Err(not_ours::POLICY);
        }
        // The kernel of that namespace is asked for the way, and where the process is.
        let (own, local, interface) = privileged::join(place, self.peer.pid, listener.ip()).map_err(|error| {
            tracing::debug!(client = self.client.id.0, name, %listener, %error, "not joined");
            not_ours::ELSEWHERE
        })?;
        let proof = Proof::Joined(JoinProof { from, local, listener, interface });
        Ok(Known { proof, shown: None, own: Some(own) })
    }

    /// A bound socket, for the local end of a connection or for a listener that the kernel does not have.
    fn bound(&self, listens: bool, shown: OwnedFd) -> io::Result<Result<Known, i32>> {
        let stack = &self.state.stack;
        if !stack.needs_proof() {
            if stack.shares_ports() {
                sockopt::set_socket_reuseaddr(&shown, true)?;
            }
            return Ok(Ok(Known { proof: Proof::NotAsked, shown: Some(HeldSocket::new(shown)), own: None }));
        }
        if listens {
            // No proof lasts for a listener that the kernel does not have.
            return Ok(Err(NOT_OURS + not_ours::ELSEWHERE as i32));
        }
        // The client acts as soon as the stack answers. It must have the only copy then, so ours is closed here.
        let home = stack.namespace();
        if home.is_some() && port_proof::namespace(&shown) != home {
            return Ok(Err(NOT_OURS + not_ours::NAMESPACE as i32));
        }
        let proven = privileged::prove(&shown, home);
        Ok(proven.map(|(own, grant)| Known { proof: Proof::Granted(grant), shown: None, own: Some(own) }))
    }

    /// The kernel's listening socket of a listener. Its copy here is closed before the stack answers.
    fn listening(&mut self, shown: OwnedFd) -> Result<Known, i32> {
        let stack = &self.state.stack;
        let proof = shown_listener::prove(&shown, stack.namespace(), stack.listener_filter())?;
        drop(shown);
        self.await_end_of(proof.cookie);
        if !self.state.registry().add_listener(proof.cookie) {
            // Two listeners of one socket: the kernel serves the second, as far as the first leaves it anything.
            return Err(NOT_OURS + not_ours::ELSEWHERE as i32);
        }
        Ok(Known { proof: Proof::Listener(proof), shown: None, own: None })
    }

    /// A program that has just ended a listener may listen on its socket again. The stack may still be ending it. Each
    /// listener is waited for once in vain: a client that shows one socket many times must not keep its thread.
    fn await_end_of(&mut self, cookie: u64) {
        let ending = self.reservations.iter_mut().find(|(_, held)| held.listener == Some(cookie) && !held.stays);
        let Some((number, held)) = ending.map(|(number, held)| (*number, held)) else { return };
        let ended = poll(&mut [PollFd::new(&held.freed, PollFlags::empty())], Some(&LISTENER_ENDS));
        held.stays = !matches!(ended, Ok(n) if n > 0);
        if !held.stays {
            self.freed(number);
        }
    }

    /// Tells the stack that the client does not have the port of its command. Without a descriptor for that the stack
    /// refuses the command when the proof has not come in time.
    fn refuse_port(&self, slot: u32, seq: u32, answer: i32) {
        if let Ok((_, held)) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC) {
            self.hand_over(slot, seq, vec![held], Proof::Refused(answer));
        }
    }

    /// Gives the stack the writing end of a pipe, and the service's own socket. Returns the reservation's number.
    fn hold_port(&mut self, slot: u32, seq: u32, known: Known, in_stack: u64) -> Option<u32> {
        let Known { proof, shown, own } = known;
        let listener = if let Proof::Listener(proof) = proof { Some(proof.cookie) } else { None };
        let number = self.next_reservation;
        self.next_reservation = number.wrapping_add(1);
        let handed = || {
            let (freed, held) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).ok()?;
            epoll::add(&self.epoll, &freed, data(source::RESERVATION, 0, number), epoll::EventFlags::empty()).ok()?;
            let descriptors = std::iter::once(held).chain(own).collect();
            self.hand_over(slot, seq, descriptors, proof).then_some(freed)
        };
        let Some(freed) = handed() else {
            self.end_listener(listener);
            return None;
        };
        self.reservations.insert(number, HeldPort { slot, listener, stays: false, _shown: shown, freed, in_stack });
        Some(number)
    }

    fn hand_over(&self, slot: u32, seq: u32, descriptors: Vec<OwnedFd>, proof: Proof) -> bool {
        let id = self.client.id;
        let reserve = |done| BrokerRequest::Reserve { id, slot, seq, proof, done };
        self.state.broker.transfer(descriptors, reserve).is_some()
    }

    /// Has it listeners that the kernel has, too? They live as long as some process has their sockets.
    pub(super) fn has_listeners(&self) -> bool {
        self.reservations.values().any(|held| held.listener.is_some())
    }

    fn end_listener(&self, cookie: Option<u64>) {
        if let Some(cookie) = cookie {
            self.state.registry().remove_listener(cookie, self.client.token);
        }
    }

    /// Gives back all that reservations stand for. The service ends.
    pub(super) fn give_back(&mut self) {
        for (_, held) in std::mem::take(&mut self.reservations) {
            self.end_listener(held.listener);
            self.state.registry().budget.give_back(self.peer.uid, held.in_stack);
        }
    }

    /// The stack has freed the slot of this reservation. The port is released before the end of the socket's pair, so a
    /// process that waits for its listener's close finds the port free.
    pub(super) fn freed(&mut self, number: u32) {
        let Some(HeldPort { slot, listener, in_stack, .. }) = self.reservations.remove(&number) else { return };
        self.end_listener(listener);
        self.state.registry().budget.give_back(self.peer.uid, in_stack);
        if self.unattached.get(&slot) == Some(&number) {
            self.unattached.remove(&slot);
        }
        self.ends.drop_reserved(&self.epoll, number);
    }
}
