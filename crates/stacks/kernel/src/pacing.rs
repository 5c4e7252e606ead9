//! Connections that wait until the rate of their client's limit lets them send.

use crate::group::ClientGroup;
use towpath_ring::Slot;
use towpath_runtime::thread::now_us;

/// How soon a connection that may not send now is retried, µs.
const PAUSE_US: u64 = 1000;
impl ClientGroup {
    /// Bytes that a client may send now; `None` if it has no rate.
    pub fn allowed(&mut self, index: u32) -> Option<u32> {
        let client = self.client(index)?;
        let (bucket, limit) = client.own.bucket.as_ref().zip(client.limit)?;
        Some(bucket.allowed(limit.rate, now_us() * 1000))
    }

    /// Accounts bytes that a client has sent.
    pub fn has_sent(&mut self, index: u32, bytes: u32) {
        let Some(client) = self.client(index) else { return };
        if let Some((bucket, limit)) = client.own.bucket.as_ref().zip(client.limit) {
            bucket.spend(bytes, limit.rate, now_us() * 1000);
        }
    }

    /// Schedules a connection that has more to send than its client may.
    pub fn wait_for_rate(&mut self, index: u32, slot: Slot) {
        if self.own(index, slot).is_some_and(|own| !std::mem::replace(&mut own.paced, true)) {
            self.rates.waiting.push((index, slot));
        }
        self.rates.at.get_or_insert_with(|| now_us() + PAUSE_US);
    }

    /// Serves the connections whose time has come. Returns how many.
    pub fn rates_due(&mut self, now: u64) -> usize {
        if self.rates.at.is_none_or(|at| at > now) {
            return 0;
        }
        self.rates.at = None;
        let mut waiting = std::mem::take(&mut self.rates.waiting);
        // The first one takes all that is allowed, so each must become the first in turn.
        if !waiting.is_empty() {
            waiting.rotate_left(1);
        }
        let all = waiting.len();
        for (index, slot) in waiting {
            let Some(own) = self.own(index, slot) else { continue };
            own.paced = false;
            if self.allowed(index) == Some(0) {
                self.wait_for_rate(index, slot);
            } else {
                self.serve_slot(index, slot);
            }
        }
        all
    }
}
