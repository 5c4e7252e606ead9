//! Socket options of applications, from the options line to the protocol.

use crate::host::SlowHost;
use crate::owner::owner;
use crate::slots::Phase;
use crate::slow::SlowState;
use std::sync::atomic::Ordering;
use towpath_ring::Slot;
use towpath_ring::lines::congestion;
use towpath_ring::options::{Options, option_flags};
use towpath_tcp::flow::{Owner, SocketOptions};
use towpath_tcp::slow::congestion::Algorithm;
use towpath_tcp::time::Micros;

/// The options as the protocol has them. Values out of Linux's range are clamped. An algorithm that this stack does not
/// have becomes the default.
fn checked(options: &Options) -> SocketOptions {
    let name = congestion::NAMES.get(options.congestion as usize).copied().unwrap_or_default();
    SocketOptions {
        keepalive: options.flags & option_flags::KEEPALIVE != 0,
        soft_errors: options.flags & option_flags::RECVERR != 0,
        soft_errors_v6: options.flags & option_flags::RECVERR_SIX != 0,
        reuse_port: options.flags & option_flags::REUSEPORT != 0,
        keep_idle_s: options.keep_idle_s.min(32_767),
        keep_interval_s: options.keep_interval_s.min(32_767),
        keep_count: options.keep_count.min(127),
        user_timeout_ms: options.user_timeout_ms.min(i32::MAX as u32),
        max_segment: options.max_segment.min(32_767) as u16,
        tos: options.tos as u8,
        ttl: options.ttl.min(255) as u8,
        tclass: options.tclass as u8,
        hops: options.hops.min(255) as u8,
        congestion: Algorithm::parse(name).map_or(0, Algorithm::id),
        syn_retries: options.syn_retries.min(127) as u8,
        linger2_s: options.linger2_s,
        defer_accept_s: options.defer_accept_s.min(i32::MAX as u32),
        max_pacing: options.max_pacing,
    }
}

/// The options with the congestion control that the policy has chosen, if it has chosen one.
fn imposed(options: SocketOptions, congestion: u8) -> SocketOptions {
    if congestion == 0 { options } else { SocketOptions { congestion, ..options } }
}

/// An algorithm's number in the ring contract.
fn number_of(algorithm: Algorithm) -> u32 {
    congestion::NAMES.iter().position(|name| *name == algorithm.name()).unwrap_or(0) as u32
}

impl SlowState {
    /// Takes the options that were set on the socket before a command.
    pub fn early_options(&mut self, now: Micros, index: u32, slot: Slot) {
        let Some(client) = self.host.client(index) else { return };
        let (seq, options) = client.shared.region.options(slot).read();
        let entry = client.slot(slot);
        entry.options_seq = seq;
        let options = imposed(checked(&options), entry.own.congestion);
        self.slow.set_options(now, owner(index, slot), options, &mut self.host);
    }

    /// The slot stands in the command queue and has no new command. Takes its options if they have changed.
    pub fn options(&mut self, now: Micros, index: u32, slot: Slot) {
        let Some(client) = self.host.client(index) else { return };
        let (seq, options) = client.shared.region.options(slot).read();
        let live = client.shared.region.app(slot).generation.load(Ordering::Acquire) == client.shared.generation(slot);
        let entry = client.slot(slot);
        let known = std::mem::replace(&mut entry.options_seq, seq) == seq;
        if known || !live || !matches!(entry.phase, Phase::Opening | Phase::Listening | Phase::Open | Phase::Direct) {
            return;
        }
        let options = imposed(checked(&options), entry.own.congestion);
        self.slow.set_options(now, owner(index, slot), options, &mut self.host);
        self.show_congestion(index, slot);
    }

    /// Shows which congestion control a socket has.
    pub fn show_congestion(&mut self, index: u32, slot: Slot) {
        let owner = owner(index, slot);
        self.host.show_congestion(owner, self.slow.congestion(owner));
    }
}

impl SlowHost {
    /// Shows which congestion control a socket has.
    pub fn show_congestion(&mut self, owner: Owner, algorithm: Algorithm) {
        if let Some((client, slot)) = self.find(owner) {
            client.shared.region.info(slot).congestion.store(number_of(algorithm), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_algorithm_has_a_number_on_the_ring() {
        for algorithm in Algorithm::NAMED {
            let number = number_of(algorithm);
            assert_ne!(number, 0, "{algorithm}");
            let options = Options { congestion: number, ..Options::default() };
            assert_eq!(checked(&options).congestion, algorithm.id());
        }
        for unknown in [0, 8, u32::MAX] {
            assert_eq!(checked(&Options { congestion: unknown, ..Options::default() }).congestion, 0);
        }
    }

    #[test]
    fn what_no_program_can_set_is_cut() {
        let wild =
            Options { keep_count: u32::MAX, ttl: 300, max_segment: u32::MAX, linger2_s: -1, ..Options::default() };
        let options = checked(&wild);
        assert_eq!((options.keep_count, options.ttl, options.max_segment, options.linger2_s), (127, 255, 32_767, -1));
    }
}
