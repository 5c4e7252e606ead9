//! What the slots of a turn have in common: where there are many, their first send and receive are made in one system call.

use crate::batch::{LEAST, MOST, Operation};
use crate::client::KernelClient;
use crate::core::Core;
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

impl Core {
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
        let (clients, Some(batch)) = (&self.clients, &mut self.batch) else { return };
        let client = |index: u32| clients.get(index as usize).and_then(Option::as_ref);
        let mut whose = Vec::new();
        let mut operations = Vec::new();
        for (index, slot) in noticed {
            let Some(client) = client(*index) else { continue };
            let [send, receive] = operations_of(client, *slot);
            for (sends, operation) in [(true, send), (false, receive)] {
                let Some(operation) = operation.filter(|_| operations.len() < MOST) else { continue };
                whose.push((*index, *slot, sends, operation.len()));
                operations.push(operation);
            }
        }
        if operations.len() < LEAST {
            return;
        }
        let (results, good) = batch.run(&operations);
        drop(operations);
        self.counts.batches += 1;
        if !good {
            self.batch = None;
        }
        for ((index, slot, sends, len), result) in whose.into_iter().zip(results) {
            let Some(own) = self.own(index, slot) else { continue };
            if sends {
                own.ahead.sent = Some(result);
            } else {
                own.ahead.received = Some((len, result));
            }
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
    let queued = own.tx_tail.wrapping_sub(own.sent);
    let urgent = own.flags & towpath_ring::lines::app_flags::URGENT != 0;
    let send = own.writable && queued != 0 && !urgent && own.ahead.sent.is_none();
    let room = region.geometry().rx_bytes - own.got.wrapping_sub(own.rx_head);
    let fresh = !own.marked && own.status & status::RX_EOF == 0 && own.ahead.received.is_none();
    let receive = own.readable && room != 0 && fresh;
    [
        send.then(|| Operation::send(fd.as_fd(), region.tx(slot), own.sent, queued)),
        receive.then(|| Operation::receive(fd.as_fd(), region.rx(slot), own.got, room)),
    ]
}
