//! A command that names a local port needs the service's proof that the kernel has given its client that port. Proof and
//! command come on different ways, so a command may wait for its proof.

use crate::slots::Phase;
use crate::slow::SlowState;
use crate::waiting::WaitingCommand;
use towpath_ring::Slot;
use towpath_ring::command::{Command, V6ONLY, not_ours_because, op};
use towpath_runtime::Proof;
use towpath_tcp::time::Micros;

/// May a command use the port that it names?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortProof {
    /// Yes, or it names none.
    Proven,
    /// Nothing is known yet.
    Missing,
    /// No. This is the command's answer.
    Refused(i32),
}

impl SlowState {
    /// What is known of the port that a command names.
    pub fn port_proof(&mut self, index: u32, slot: Slot, command: &Command) -> PortProof {
        let names_port = match command.op {
            op::LISTEN | op::JOIN => true,
            op::CONNECT => command.local_port != 0,
            _ => false,
        };
        if !self.needs_proof || !names_port {
            return PortProof::Proven;
        }
        let Some(client) = self.host.client(index) else { return PortProof::Missing };
        let Some((reservation, _)) = &client.slot(slot).reservation else { return PortProof::Missing };
        let (addr, port) = (command.local_addr.to_canonical(), u16::try_from(command.local_port).unwrap_or(0));
        let dual = addr.is_ipv6() && addr.is_unspecified() && command.flags & V6ONLY == 0;
        let allowed = match (command.op, reservation.proof) {
            (op::LISTEN, Proof::Listener(listener)) => listener.allows_listen(addr, port, dual),
            (op::CONNECT, Proof::Granted(grant)) => {
                grant.allows_connect(addr, port, command.remote_addr.to_canonical())
            }
            (op::JOIN, Proof::Joined(join)) => {
                (join.listener.ip(), u32::from(join.listener.port()))
                    == (command.remote_addr.to_canonical(), command.remote_port)
            }
            (_, Proof::Refused(result)) => return PortProof::Refused(result),
            _ => false,
        };
        if allowed { PortProof::Proven } else { PortProof::Refused(-libc::EACCES) }
    }

    /// Looks at the command of this slot again when its proof arrives.
    pub fn await_proof(&mut self, now: Micros, index: u32, slot: Slot, seq: u32) {
        let Some(client) = self.host.client(index) else { return };
        if !self.waiting.add(now, WaitingCommand { client: client.shared.id, slot, seq }) {
            client.shared.violated_contract();
        }
    }

    /// A reservation has arrived: carries out the command that waits for it.
    pub fn proof_arrived(&mut self, now: Micros, index: u32, slot: Slot) {
        let client = self.host.client(index).map(|client| client.shared.id);
        if client.is_some_and(|client| self.waiting.remove(client, slot)) {
            self.command(now, index, slot);
        }
    }

    /// Refuses commands whose proof has not come in time.
    pub fn expire_waiting(&mut self, now: Micros) {
        while let Some(WaitingCommand { client, slot, seq }) = self.waiting.take_expired(now) {
            let Some(client) = self.index_of(client).and_then(|index| self.host.client(index)) else { continue };
            let entry = client.slot(slot);
            if entry.phase == Phase::Free && entry.command_seq != seq {
                entry.command_seq = seq;
                client.answer(slot, seq, -libc::EACCES);
            }
        }
    }

    /// The answer to a command whose port is refused.
    pub fn refused_port(&mut self, index: u32, slot: Slot, result: i32) -> i32 {
        match not_ours_because(result) {
            Some(why) => self.not_ours(index, slot, why),
            None => self.denied(index, slot, -result),
        }
    }
}
