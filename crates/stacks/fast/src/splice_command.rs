//! The command by which an application splices two connections, and its answer.

use crate::host::SlowHost;
use crate::owner::owner;
use crate::slots::Phase;
use crate::slow::{Readings, SlowState};
use core::sync::atomic::Ordering;
use towpath_ring::Slot;
use towpath_ring::command::{Command, op};
use towpath_tcp::flow::Owner;
use towpath_tcp::time::Micros;

impl SlowState {
    /// An application splices a connection with that of another slot.
    pub fn splice(&mut self, now: Micros, index: u32, slot: Slot, seq: u32, command: &Command) {
        let Some(client) = self.host.client(index) else { return };
        client.slot(slot).command_seq = seq;
        let other = client.shared.region.slot(command.remote_port);
        let is_open = |slot: Slot| client.shared.app_words(slot).is_some();
        let open = other.filter(|other| is_open(slot) && is_open(*other));
        let open = open.filter(|other| [slot, *other].iter().all(|slot| client.slot(*slot).phase == Phase::Open));
        let asked = match open {
            Some(other) => {
                for slot in [slot, other] {
                    client.slot(slot).own.is_told = command.op == op::SPLICE_TOLD;
                    client.shared.region.counts(slot).passed_on.store(0, Ordering::Relaxed);
                }
                let owners = [owner(index, slot), owner(index, other)];
                self.slow.splice(now, owners, seq, &Readings(&self.table), &mut self.host)
            }
            None => Err(libc::ENOTCONN),
        };
        if let Err(errno) = asked {
            self.host.answer_splice(owner(index, slot), seq, errno);
        }
    }
}

impl SlowHost {
    /// Tells the application of a spliced connection how much has gone on, if it wants to hear that and it is more.
    pub fn tell_passed_on(&mut self, owner: Owner, bytes: u64) {
        let Some((client, slot)) = self.find(owner) else { return };
        let is_told = client.slot(slot).own.is_told;
        let shown = &client.shared.region.counts(slot).passed_on;
        if is_told && shown.load(Ordering::Relaxed) != bytes {
            shown.store(bytes, Ordering::Release);
            client.raise(slot);
        }
    }

    /// The answer to a command of a slot, for which its application waits.
    pub fn answer_splice(&mut self, owner: Owner, seq: u32, errno: i32) {
        if let Some((client, slot)) = self.find(owner) {
            client.answer_asker(slot, seq, -errno);
        }
    }
}
