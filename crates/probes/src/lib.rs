//! All probes of the service. A probe is a place in the program that a tracer can attach to while it runs:
//! `bpftrace -l 'usdt:/path/towpathd:towpath:*'` lists them. `docs/guide/tracing.md` describes them for users, and a test compares
//! that page with the built program.
//!
//! While nobody traces, a probe is one `nop`. What it tells is what the code around it has at hand. Each function here is one probe,
//! inlined into its callers, and its arguments are the probe's, in their order. Those of rare events leave them in the flight
//! recorder, too.
//!
//! A *socket* is the number of a client, in the high 32 bits, and of a slot. A *flow* is the number of a connection that the fast path
//! carries. Numbers are used again when their connection has ended. Sequence numbers are those of the wire.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod sdt;
pub mod spread;

use sdt::{immediate, sdt};
use std::net::{IpAddr, SocketAddr};
use towpath_recorder::{self as recorder, Entry, Kind};

pub use towpath_recorder::End;

/// A flow, or a flow group, where there is none: both ends of a direct connection are applications.
pub const NONE: i64 = -1;

/// A part of a flow group's turn, whose end [`stage`] marks. Most come once in each turn; some come twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Stage {
    /// Messages of the slow path.
    Messages,
    /// Received frames taken from a port.
    Take,
    /// Their headers parsed and checked, and their flows found.
    Pre,
    /// The state machine, and what follows for the flow's turn to send. One flow after the other.
    Protocol,
    /// Their payload copied to applications, and the frames given back.
    Deliver,
    /// Applications told.
    Publish,
    /// What applications have written and read.
    Data,
    /// Timers, and segments built.
    Egress,
    /// Built frames handed to the kernel or the device.
    Flush,
    /// Messages to the slow path, and its turn if this thread takes it.
    Slow,
}

impl Stage {
    /// All, in the order of their numbers.
    pub const NAMES: [&'static str; 10] =
        ["messages", "take", "pre", "protocol", "deliver", "publish", "data", "egress", "flush", "slow"];
}

/// How a segment came to be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Again {
    /// Acknowledgements tell of a loss: fast retransmit.
    Fast,
    /// A time-out.
    Timeout,
    /// A tail probe, a window probe, or smaller packets on the path.
    Other,
}

/// Both ends of a connection, as a probe points to them: bpftrace shows six arguments at most. Scripts name the same fields.
#[repr(C)]
struct Ends {
    /// The addresses, in network order. Of IPv4 the first four bytes.
    local: [u8; 16],
    remote: [u8; 16],
    /// The ports, in this host's order.
    local_port: u16,
    remote_port: u16,
    /// `AF_INET` or `AF_INET6`.
    family: u16,
}

impl Ends {
    fn new(local: SocketAddr, remote: SocketAddr) -> Self {
        Self {
            local: bytes(local.ip()),
            remote: bytes(remote.ip()),
            local_port: local.port(),
            remote_port: remote.port(),
            family: if remote.is_ipv4() { 2 } else { 10 },
        }
    }
}

fn bytes(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => (u128::from(address.to_bits()) << 96).to_be_bytes(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// The stack opens a connection for an application that has called `connect`. Of `local` is known what the application has bound.
#[cold]
#[inline(never)]
pub fn connect(socket: u64, local: SocketAddr, remote: SocketAddr) {
    let ends = Ends::new(local, remote);
    sdt!(readonly, "connect", "8@{} 8@{}", in(reg) socket, in(reg) &ends);
    recorder::record(&Entry { ends: Some((local, remote)), ..Entry::new(Kind::Connect, socket) });
}

/// The handshake is over, or the two ends of a direct connection have been joined; then each end has one. `accepted`: the peer has
/// opened it.
#[cold]
#[inline(never)]
pub fn established(flow_group: i64, flow: i64, socket: u64, accepted: bool, local: SocketAddr, remote: SocketAddr) {
    let ends = Ends::new(local, remote);
    sdt!(readonly, "established", "-8@{} -8@{} 8@{} 8@{} 8@{}",
        in(reg) flow_group, in(reg) flow, in(reg) socket, in(reg) u64::from(accepted), in(reg) &ends);
    recorder::record(&Entry {
        flag: accepted.into(),
        flow_group: flow_group as u32,
        value: (flow as u32, 0),
        ends: Some((local, remote)),
        ..Entry::new(Kind::Established, socket)
    });
}

/// An event of a flow, for the recorder.
fn of_flow(kind: Kind, flow_group: usize, flow: u32, value: (u32, u32)) -> Entry {
    Entry { flow_group: flow_group as u32, value, ..Entry::new(kind, flow.into()) }
}

/// A connection stands in a listener's queue, where the application takes it without the stack.
#[cold]
#[inline(never)]
pub fn accept(listener: u64, socket: u64, local: SocketAddr, remote: SocketAddr) {
    let ends = Ends::new(local, remote);
    sdt!(readonly, "accept", "8@{} 8@{} 8@{}", in(reg) listener, in(reg) socket, in(reg) &ends);
}

/// The application is done with a connection or a listener, or gone. `abort`: without an orderly end.
#[inline(always)]
pub fn close(socket: u64, abort: bool) {
    sdt!(nomem, "close", "8@{} 8@{}", in(reg) socket, in(reg) u64::from(abort));
    recorder::record(&Entry { flag: abort.into(), ..Entry::new(Kind::Close, socket) });
}

/// A connection is over, and why. `errno`: of those that the stack has ended, and of those that were never established.
#[cold]
#[inline(never)]
pub fn end(
    (flow_group, flow): (i64, i64),
    socket: u64,
    (why, errno): (End, i32),
    local: SocketAddr,
    remote: SocketAddr,
) {
    let ends = Ends::new(local, remote);
    sdt!(readonly, "end", "-8@{} -8@{} 8@{} 8@{} 8@{} 8@{}",
        in(reg) flow_group, in(reg) flow, in(reg) socket, in(reg) why as u64, in(reg) i64::from(errno), in(reg) &ends);
    recorder::record(&Entry {
        flag: why as u8,
        flow_group: flow_group as u32,
        value: (flow as u32, errno.cast_unsigned()),
        ends: Some((local, remote)),
        ..Entry::new(Kind::End, socket)
    });
}

/// Bytes of a flow are sent again.
#[cold]
#[inline(never)]
pub fn retransmit(
    (flow_group, flow): (usize, u32),
    again: Again,
    seq: u32,
    len: u32,
    local: SocketAddr,
    remote: SocketAddr,
) {
    let ends = Ends::new(local, remote);
    sdt!(readonly, "retransmit", "8@{} 8@{} 8@{} 8@{} 8@{} 8@{}",
        in(reg) flow_group, in(reg) u64::from(flow), in(reg) again as u64, in(reg) u64::from(seq), in(reg) u64::from(len),
        in(reg) &ends);
    let entry = of_flow(Kind::Retransmit, flow_group, flow, (seq, len));
    recorder::record(&Entry { flag: again as u8, ends: Some((local, remote)), ..entry });
}

/// A retransmission timer has run out: all from `seq` on counts as lost.
#[inline(always)]
pub fn rto(flow_group: usize, flow: u32, seq: u32, outstanding: u32) {
    sdt!(nomem, "rto", "8@{} 8@{} 8@{} 8@{}",
        in(reg) flow_group, in(reg) u64::from(flow), in(reg) u64::from(seq), in(reg) u64::from(outstanding));
    recorder::record(&of_flow(Kind::Timeout, flow_group, flow, (seq, outstanding)));
}

/// A tail loss probe (RFC 8985 §7): nothing has come back for the last segments. `again`: it repeats what was sent.
#[inline(always)]
pub fn tlp(flow_group: usize, flow: u32, seq: u32, len: u32, again: bool) {
    sdt!(nomem, "tlp", "8@{} 8@{} 8@{} 8@{} 8@{}",
        in(reg) flow_group, in(reg) u64::from(flow), in(reg) u64::from(seq), in(reg) u64::from(len),
        in(reg) u64::from(again));
    recorder::record(&Entry { flag: again.into(), ..of_flow(Kind::TailProbe, flow_group, flow, (seq, len)) });
}

/// A received frame is dropped, or what is left of it. `reason`: its place in `Drop::NAMES` of the crate `tcp`.
#[inline(always)]
pub fn drop(reason: usize) {
    sdt!(nomem, "drop", "8@{}", in(reg) reason);
    recorder::drop(reason);
}

/// Threads of a client are woken that sleep in `epoll_wait` or the like.
#[inline(always)]
pub fn wake(client: u32, pid: i32) {
    sdt!(nomem, "wake", "8@{} -8@{}", in(reg) u64::from(client), in(reg) i64::from(pid));
    recorder::wake(client, pid);
}

/// A flow group's turn begins.
#[inline(always)]
pub fn turn_begin(flow_group: usize) {
    sdt!(nomem, "turn_begin", "8@{}", in(reg) flow_group);
}

/// Part of a flow group's turn is over, with so many items. It began at the probe before this one, on the same thread.
#[inline(always)]
pub fn stage<const STAGE: u32>(items: usize) {
    sdt!(nomem, "stage", concat!(immediate!(), "{} 8@{}"), const STAGE, in(reg) items);
}

/// A flow group's turn is over: frames received and sent.
#[inline(always)]
pub fn turn_end(flow_group: usize, received: usize, sent: usize) {
    sdt!(nomem, "turn_end", "8@{} 8@{} 8@{}", in(reg) flow_group, in(reg) received, in(reg) sent);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_and_the_guide_number_the_stages_alike() {
        let (script, guide) =
            (include_str!("../../../tools/stages.bt"), include_str!("../../../docs/guide/tracing.md"));
        for (number, name) in Stage::NAMES.iter().enumerate() {
            assert!(script.contains(&format!("@stage[{number}] = \"{name}\";")), "{number} {name}");
            assert!(guide.contains(&format!("\n| {number} | `{name}` | ")), "{number} {name}");
        }
        assert_eq!(script.matches("@stage[").count(), Stage::NAMES.len() + 4, "a name that no stage has");
        assert_eq!(Stage::NAMES[Stage::Slow as usize], "slow");
    }

    #[test]
    fn addresses_of_ipv4_are_the_first_four_bytes() {
        let ends = Ends::new("10.1.2.3:4".parse().unwrap(), "255.0.0.9:65535".parse().unwrap());
        assert_eq!((&ends.local[..5], &ends.remote[..5]), (&[10, 1, 2, 3, 0][..], &[255, 0, 0, 9, 0][..]));
        assert_eq!((ends.local_port, ends.remote_port, ends.family), (4, 65535, 2));
        let ends = Ends::new("[::1]:4".parse().unwrap(), "[fd77::2]:5".parse().unwrap());
        assert_eq!((ends.local[15], ends.remote[0], ends.remote[15], ends.family), (1, 0xfd, 2, 10));
    }
}
