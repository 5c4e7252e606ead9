//! Ports that a client reserves for its commands.

use super::{ClientConnection, data, invalid, source};
use crate::broker_handle::BrokerRequest;
use crate::privileged;
use crate::received::HeldSocket;
use rustix::event::epoll;
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SocketType, sockopt};
use std::io;
use towpath_ring::command::{NOT_OURS, not_ours};
use towpath_runtime::Proof;

/// A reservation, as the thread of the client's connection knows it: the reading end of a pipe, whose writing end the
/// stack drops when it frees the slot.
///
/// The stack does not get a client's socket: a program could decide by `SO_LINGER` how long its close takes.
pub struct HeldPort {
    slot: u32,
    /// The client's socket, if it holds the port.
    _shown: Option<HeldSocket>,
    _freed: OwnedFd,
    /// How many descriptors of the service's table the stack has.
    in_stack: u64,
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
        let needs_proof = self.state.stack.needs_proof();
        let in_stack = 1 + u64::from(needs_proof);
        if !self.state.take_descriptors(self.peer.uid, in_stack) {
            tracing::debug!(client = self.client.id.0, "a port is not reserved: the user has its share of descriptors");
            self.refuse_port(slot, seq, NOT_OURS + not_ours::POLICY as i32);
            return Ok(());
        }
        let number = if needs_proof {
            let proven = privileged::prove(&shown, listens, self.state.namespace);
            // The client acts as soon as the stack answers. It must have the only copy then.
            drop(shown);
            match proven {
                Ok((own, grant)) => self.hold_port(slot, seq, None, Some(own), Proof::Granted(grant), in_stack),
                Err(answer) => {
                    self.refuse_port(slot, seq, answer);
                    None
                }
            }
        } else {
            if self.state.stack.shares_ports() {
                sockopt::set_socket_reuseaddr(&shown, true)?;
            }
            self.hold_port(slot, seq, Some(HeldSocket::new(shown)), None, Proof::NotAsked, in_stack)
        };
        match number {
            Some(number) => _ = self.unattached.insert(slot, number),
            None => self.state.registry().budget.give_back(self.peer.uid, in_stack),
        }
        Ok(())
    }

    /// Tells the stack that the client does not have the port of its command. Without a descriptor for that the stack
    /// refuses the command when the proof has not come in time.
    fn refuse_port(&self, slot: u32, seq: u32, answer: i32) {
        if let Ok((_, held)) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC) {
            self.hand_over(slot, seq, vec![held], Proof::Refused(answer));
        }
    }

    /// Gives the stack the writing end of a pipe, and the service's `own` socket. Returns the reservation's number.
    fn hold_port(
        &mut self,
        slot: u32,
        seq: u32,
        shown: Option<HeldSocket>,
        own: Option<OwnedFd>,
        proof: Proof,
        in_stack: u64,
    ) -> Option<u32> {
        let (freed, held) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).ok()?;
        let number = self.next_reservation;
        self.next_reservation = number.wrapping_add(1);
        epoll::add(&self.epoll, &freed, data(source::RESERVATION, number), epoll::EventFlags::empty()).ok()?;
        let descriptors = std::iter::once(held).chain(own).collect();
        if !self.hand_over(slot, seq, descriptors, proof) {
            return None;
        }
        self.reservations.insert(number, HeldPort { slot, _shown: shown, _freed: freed, in_stack });
        Some(number)
    }

    fn hand_over(&self, slot: u32, seq: u32, descriptors: Vec<OwnedFd>, proof: Proof) -> bool {
        let id = self.client.id;
        let reserve = |done| BrokerRequest::Reserve { id, slot, seq, proof, done };
        self.state.broker.transfer(descriptors, reserve).is_some()
    }

    /// How many descriptors of the service's table stand for reservations of this client.
    pub(super) fn held_by_stack(&self) -> u64 {
        self.reservations.values().map(|held| held.in_stack).sum()
    }

    /// The stack has freed the slot of this reservation. The port is released before the end of the socket's pair, so a
    /// process that waits for its listener's close finds the port free.
    pub(super) fn freed(&mut self, number: u32) {
        let Some(HeldPort { slot, in_stack, .. }) = self.reservations.remove(&number) else { return };
        self.state.registry().budget.give_back(self.peer.uid, in_stack);
        if self.unattached.get(&slot) == Some(&number) {
            self.unattached.remove(&slot);
        }
        if self.sockets.get(&slot).is_some_and(|end| end.reservation == Some(number)) {
            self.sockets.remove(&slot);
        }
    }
}
