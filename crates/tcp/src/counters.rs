//! Counters per stage, and drop reasons. Plain words of one thread; the stack publishes copies.

use towpath_probes::spread::Spread;

/// Why a received frame was dropped. Every drop is counted under exactly one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Drop {
    /// Shorter than its headers say.
    Truncated,
    /// Not IPv4, not TCP, or a fragment.
    NotTcp,
    /// IPv4 header checksum wrong.
    IpChecksum,
    /// TCP checksum wrong.
    TcpChecksum,
    /// Data offset or option length impossible.
    BadHeader,
    /// Source = destination address and port (LAND), or source broadcast or multicast.
    BadSource,
    /// Destination address is not ours.
    NotLocal,
    /// SYN+FIN, SYN+RST and the like.
    BadFlags,
    /// Timestamp older than TS.Recent (PAWS, RFC 7323 §5).
    Paws,
    /// Outside the receive window.
    OutOfWindow,
    /// All of it was there already.
    Duplicate,
    /// Acknowledges what was never sent, or too old (RFC 5961 §5).
    BadAck,
    /// No ACK flag.
    NoAck,
    /// More separate ranges than are kept.
    OutOfOrderFull,
    /// RST not exactly at RCV.NXT (RFC 5961 §3).
    BadReset,
    /// Data after the peer's FIN, or for a socket that is shut.
    AfterFin,
    /// No flow and no listener.
    NoSocket,
    /// The listener's backlog is full.
    BacklogFull,
    /// The slow path's queue is full.
    SlowPathFull,
    /// Flow table or slots are full.
    NoMemory,
    /// An ICMP error about nothing that is outstanding (RFC 5927 §4.1).
    BadIcmp,
    /// A SYN that the operator's policy forbids.
    Forbidden,
    /// Its connection is held to be spliced, and no more segments of it are kept.
    Held,
}

impl Drop {
    /// How many reasons there are.
    pub const COUNT: usize = Self::Held as usize + 1;
    /// All, in order, with the names shown to users.
    pub const NAMES: [&'static str; Self::COUNT] = [
        "truncated",
        "not_tcp",
        "ip_checksum",
        "tcp_checksum",
        "bad_header",
        "bad_source",
        "not_local",
        "bad_flags",
        "paws",
        "out_of_window",
        "duplicate",
        "bad_ack",
        "no_ack",
        "out_of_order_full",
        "bad_reset",
        "after_fin",
        "no_socket",
        "backlog_full",
        "slow_path_full",
        "no_memory",
        "bad_icmp",
        "forbidden",
        "held",
    ];
}

/// A stage of the fast path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Stage {
    /// Parse, check, look up.
    Pre,
    /// The state machine.
    Protocol,
    /// A turn to send, or a delayed acknowledgement.
    Post,
    /// Payload into rings.
    Deliver,
    /// Frames out.
    Egress,
}

impl Stage {
    /// How many stages there are.
    pub const COUNT: usize = Self::Egress as usize + 1;
    /// All, in order.
    pub const NAMES: [&'static str; Self::COUNT] = ["pre", "protocol", "post", "deliver", "egress"];
}

/// The counts of one fast path, or of the slow path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Items that each stage has handled.
    pub stages: [u64; Stage::COUNT],
    /// Dropped frames by reason.
    pub drops: [u64; Drop::COUNT],
    /// Retransmitted segments.
    pub retransmits: u64,
    /// Retransmission time-outs.
    pub timeouts: u64,
    /// Needless recoveries and time-outs, which were undone.
    pub undone: u64,
    /// Tail loss probes.
    pub tail_probes: u64,
    /// Connections opened actively and passively.
    pub opened: u64,
    /// Connections refused or failed before they were established.
    pub failed: u64,
    /// Resets received and sent.
    pub resets: u64,
    /// Contract violations of applications.
    pub contract_violations: u64,
    /// SYN cookies sent.
    pub cookies_sent: u64,
    /// Connections opened by a SYN cookie that came back.
    pub cookies_accepted: u64,
    /// Connects of unbound sockets that found no port.
    pub out_of_ports: u64,
    /// Segments of connections that came to another flow group's queue, or before their flow was installed. Each was handed on
    /// to its flow group.
    pub relayed: u64,
    /// Round trips of timed segments.
    pub round_trips: Spread,
}

impl Counters {
    /// Counts a dropped frame.
    #[inline]
    pub fn drop(&mut self, reason: Drop) {
        towpath_probes::drop(reason as usize);
        self.drops[reason as usize] += 1;
    }
    /// Counts work of a stage.
    #[inline]
    pub fn stage(&mut self, stage: Stage, items: usize) {
        self.stages[stage as usize] += items as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The probe tells a number.
    #[test]
    fn the_script_for_drops_names_all_reasons() {
        let script = include_str!("../../../tools/drops.bt");
        for (number, name) in Drop::NAMES.iter().enumerate() {
            assert!(script.contains(&format!("@why[{number}] = \"{name}: ")), "{number} {name}");
        }
        assert_eq!(script.matches("\t@why[").count(), Drop::COUNT, "a reason that there is not");
    }
}
