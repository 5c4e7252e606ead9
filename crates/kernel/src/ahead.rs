//! What the slots of a turn have in common: where there are many, their first send and receive are made in one system call.

use crate::batch::{LEAST, MOST, Operation, emptied};
use crate::client::KernelClient;
use crate::group::ClientGroup;
use std::os::fd::AsFd;
use towpath_ring::Slot;
use towpath_ring::lines::status;
use towpath_stack::slots::Phase;

/// What was done for a slot before it is looked at: bytes asked for, and the call's result.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ahead {
    /// Of the send.
    pub sent: Option<Result<usize, i32>>,
    /// Of the receive.
    pub received: Option<(u32, Result<usize, i32>)>,
}

/// Lists of one turn, kept for the next.
#[derive(Default)]
pub struct Lists {
    operations: Vec<Operation<'static>>,
    /// Of each operation its slot, whether it sends, and the bytes asked for.
    whose: Vec<(u32, Slot, bool, u32)>,
}

impl ClientGroup {
    /// A slot is to be looked at in this turn.
    pub fn notice(&mut self, index: u32, slot: Slot) {
        let Some(client) = self.client(index) else { return };
        if !std::mem::replace(&mut client.slot(slot).own.noticed, true) {
            self.noticed.push((index, slot));
        }
    }

    /// Looks at all of them.
    pub fn look_at_all(&mut self) {
        let mut noticed = std::mem::take(&mut self.noticed);
        self.go_ahead(&noticed);
        for (index, slot) in noticed.drain(..) {
            if let Some(own) = self.own(index, slot) {
                own.noticed = false;
                self.look(index, slot);
            }
        }
        self.noticed = noticed;
    }

    /// Makes the first send and receive of each connection, if they are many.
    fn go_ahead(&mut self, noticed: &[(u32, Slot)]) {
        if noticed.len() < LEAST || self.batch.is_none() {
            return;
        }
        for (index, slot) in noticed {
            if let Ok(Some(words)) = self.believe(*index, *slot) {
                // What it has switched holds for what it has sent since.
                self.flags(*index, *slot, &words);
            }
        }
        let (clients, lists, Some(batch)) = (&self.clients, &mut self.lists, &mut self.batch) else { return };
        let client = |index: u32| clients.get(index as usize).and_then(Option::as_ref);
        let mut operations: Vec<Operation<'_>> = std::mem::take(&mut lists.operations);
        let mut whose = std::mem::take(&mut lists.whose);
        for (index, slot) in noticed {
            let Some(client) = client(*index) else { continue };
            for operation in operations_of(client, *slot).into_iter().flatten() {
                if operations.len() < MOST {
                    whose.push((*index, *slot, operation.sends(), operation.len()));
                    operations.push(operation);
                }
            }
        }
        let enough = operations.len() >= LEAST;
        let good = !enough || batch.run(&operations);
        lists.operations = emptied(operations);
        self.counts.batches += u64::from(enough);
        for (number, (index, slot, sends, len)) in whose.drain(..).enumerate() {
            let Some(result) = self.batch.as_ref().filter(|_| enough).map(|batch| batch.result(number)) else { break };
            let Some(own) = self.own(index, slot) else { continue };
            if sends {
                own.ahead.sent = Some(result);
            } else {
                own.ahead.received = Some((len, result));
            }
        }
        self.lists.whose = whose;
        if !good {
            self.batch = None;
        }
    }
}

/// The next send and receive of a connection. What is about urgent bytes is not made ahead.
fn operations_of(client: &KernelClient, slot: Slot) -> [Option<Operation<'_>>; 2] {
    let Some(entry) = client.slots.get(slot.index()).filter(|entry| entry.phase == Phase::Open) else {
        return [None, None];
    };
    let (own, region) = (&entry.own, &client.shared.region);
    let Some(fd) = &own.fd else { return [None, None] };
    let queued = own.asides.stop(own.sent, own.tx_tail).wrapping_sub(own.sent);
    let urgent = own.flags & towpath_ring::lines::app_flags::URGENT != 0;
    let free = client.limit.is_none_or(|limit| limit.rate == 0);
    let send = free && own.writable && queued != 0 && !urgent && own.ahead.sent.is_none();
    let room = own.receive_room(region.geometry());
    let fresh = !own.marked && own.status & status::RX_EOF == 0 && own.ahead.received.is_none();
    let receive = own.readable && room != 0 && fresh;
    [
        send.then(|| Operation::send(fd.as_fd(), region.tx(slot), own.sent, queued)),
        receive.then(|| Operation::receive(fd.as_fd(), region.rx(slot), own.got, room)),
    ]
}
