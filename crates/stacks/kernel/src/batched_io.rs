//! The slots of a turn. If there are many, their first sends and receives are made in one system call.

use crate::batch::{LEAST, MOST, Operation, emptied};
use crate::client::KernelClient;
use crate::group::ClientGroup;
use std::os::fd::AsFd;
use towpath_ring::Slot;
use towpath_ring::lines::status;
use towpath_runtime::slots::Phase;

impl ClientGroup {
    /// Schedules a slot for this turn.
    pub fn schedule(&mut self, index: u32, slot: Slot) {
        let Some(client) = self.client(index) else { return };
        if !std::mem::replace(&mut client.slot(slot).own.scheduled, true) {
            self.scheduled.push((index, slot));
        }
    }

    /// Serves all scheduled slots.
    pub fn serve_scheduled(&mut self) {
        let mut scheduled = std::mem::take(&mut self.scheduled);
        self.batch_first_calls(&scheduled);
        for (index, slot) in scheduled.drain(..) {
            if let Some(own) = self.own(index, slot) {
                own.scheduled = false;
                self.serve_slot(index, slot);
            }
        }
        self.scheduled = scheduled;
    }

    /// Makes the first send and receive of each connection in one call, if there are enough.
    fn batch_first_calls(&mut self, scheduled: &[(u32, Slot)]) {
        if scheduled.len() < LEAST || self.batch.is_none() {
            return;
        }
        for (index, slot) in scheduled {
            if let Ok(Some(words)) = self.validate_positions(*index, *slot) {
                // The flags hold for the bytes that were written after them.
                self.flags(*index, *slot, &words);
            }
        }
        let (clients, batch_lists, Some(batch)) = (&self.clients, &mut self.batch_lists, &mut self.batch) else {
            return;
        };
        let client = |index: u32| clients.get(index as usize).and_then(Option::as_ref);
        let mut operations: Vec<Operation<'_>> = std::mem::take(&mut batch_lists.operations);
        let mut owners = std::mem::take(&mut batch_lists.owners);
        for (index, slot) in scheduled {
            let Some(client) = client(*index) else { continue };
            for operation in first_operations(client, *slot).into_iter().flatten() {
                if operations.len() < MOST {
                    owners.push((*index, *slot, operation.sends(), operation.len()));
                    operations.push(operation);
                }
            }
        }
        let enough = operations.len() >= LEAST;
        let good = !enough || batch.run(&operations);
        batch_lists.operations = emptied(operations);
        self.counts.batches += u64::from(enough);
        for (number, (index, slot, sends, len)) in owners.drain(..).enumerate() {
            let Some(result) = self.batch.as_ref().filter(|_| enough).map(|batch| batch.result(number)) else { break };
            let Some(own) = self.own(index, slot) else { continue };
            if sends {
                own.batched.sent = Some(result);
            } else {
                own.batched.received = Some((len, result));
            }
        }
        self.batch_lists.owners = owners;
        if !good {
            self.batch = None;
        }
    }
}

/// The next send and receive of a connection. Calls that concern the application's marks are not batched.
fn first_operations(client: &KernelClient, slot: Slot) -> [Option<Operation<'_>>; 2] {
    let Some(entry) = client.slots.get(slot.index()).filter(|entry| entry.phase == Phase::Open) else {
        return [None, None];
    };
    let (own, region) = (&entry.own, &client.shared.region);
    let Some(fd) = &own.fd else { return [None, None] };
    let queued = own.sideband.next_stop(own.sent, own.tx_tail).wrapping_sub(own.sent);
    let free = client.limit.is_none_or(|limit| limit.rate == 0);
    let send = free && own.writable && queued != 0 && !own.marked && own.batched.sent.is_none();
    let room = own.receive_room(region.geometry());
    let fresh = !own.urgent_announced && own.status & status::RX_EOF == 0 && own.batched.received.is_none();
    let receive = own.readable && room != 0 && fresh;
    [
        send.then(|| Operation::send(fd.as_fd(), region.tx(slot), own.sent, queued)),
        receive.then(|| Operation::receive(fd.as_fd(), region.rx(slot), own.got, room)),
    ]
}
