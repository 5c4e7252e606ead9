//! Ports that a client reserves for its commands.

use super::{ClientConnection, HELD, data, invalid, source};
use crate::broker_handle::BrokerRequest;
use crate::port_proof;
use crate::received::HeldSocket;
use rustix::event::epoll;
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SocketType, sockopt};
use std::io;
use towpath_ring::command::{NOT_OURS, not_ours};
use towpath_runtime::Proof;

/// The kernel socket that holds a port, and the reading end of a pipe. The stack drops the pipe's writing end when it
/// frees the slot.
///
/// The stack does not get a client's socket itself: a program could decide by `SO_LINGER` how long its close takes.
pub struct HeldPort {
    slot: u32,
    _socket: HeldSocket,
    _freed: OwnedFd,
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
        if !self.state.take_descriptors(self.peer.uid, HELD) {
            tracing::debug!(client = self.client.id.0, "a port is not reserved: the user has its share of descriptors");
            return self.refuse_port(slot, seq, NOT_OURS + not_ours::POLICY as i32);
        }
        let (socket, proof) = if self.state.stack.needs_proof() {
            match port_proof::prove(&shown, listens, self.state.namespace) {
                Ok((own, grant)) => (own, Proof::Granted(grant)),
                Err(answer) => {
                    self.state.registry().budget.give_back(self.peer.uid, HELD);
                    return self.refuse_port(slot, seq, answer);
                }
            }
        } else {
            if self.state.stack.shares_ports() {
                sockopt::set_socket_reuseaddr(&shown, true)?;
            }
            (shown, Proof::NotAsked)
        };
        let number = self.hold_port(slot, seq, socket, proof);
        if !matches!(number, Ok(Some(_))) {
            self.state.registry().budget.give_back(self.peer.uid, HELD);
        }
        if let Some(number) = number? {
            self.unattached.insert(slot, number);
        }
        Ok(())
    }

    /// Tells the stack that the client does not have the port of its command.
    fn refuse_port(&self, slot: u32, seq: u32, answer: i32) -> io::Result<()> {
        let (_, held) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        self.hand_over(slot, seq, &held, Proof::Refused(answer));
        Ok(())
    }

    /// Gives the stack the end of a pipe that stands for this socket. Returns the reservation's number.
    fn hold_port(&mut self, slot: u32, seq: u32, socket: OwnedFd, proof: Proof) -> io::Result<Option<u32>> {
        let (freed, held) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let number = self.next_reservation;
        self.next_reservation = number.wrapping_add(1);
        epoll::add(&self.epoll, &freed, data(source::RESERVATION, number), epoll::EventFlags::empty())?;
        if !self.hand_over(slot, seq, &held, proof) {
            return Ok(None);
        }
        self.reservations.insert(number, HeldPort { slot, _socket: HeldSocket::new(socket), _freed: freed });
        Ok(Some(number))
    }

    fn hand_over(&self, slot: u32, seq: u32, held: &OwnedFd, proof: Proof) -> bool {
        let id = self.client.id;
        let reserve = |done| BrokerRequest::Reserve { id, slot, seq, proof, done };
        self.state.broker.transfer(held, reserve).is_some()
    }

    /// The stack has freed the slot of this reservation. The port is released before the end of the socket's pair, so a
    /// process that waits for its listener's close finds the port free.
    pub(super) fn freed(&mut self, number: u32) {
        let Some(HeldPort { slot, .. }) = self.reservations.remove(&number) else { return };
        self.state.registry().budget.give_back(self.peer.uid, HELD);
        if self.unattached.get(&slot) == Some(&number) {
            self.unattached.remove(&slot);
        }
        if self.sockets.get(&slot).is_some_and(|end| end.reservation == Some(number)) {
            self.sockets.remove(&slot);
        }
    }
}
