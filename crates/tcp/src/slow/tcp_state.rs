//! The states of RFC 9293 §3.3.2, and how Linux numbers and names them.

use crate::flow::flow_flags;

/// States of RFC 9293 §3.3.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum TcpState {
    Listen,
    SynSent,
    SynReceived,
    Established,
    FinWait1,
    FinWait2,
    Closing,
    CloseWait,
    LastAck,
    TimeWait,
    Closed,
}

impl TcpState {
    /// Its number in Linux's `tcp_states.h`.
    pub fn linux_number(self) -> u32 {
        match self {
            Self::Established => 1,
            Self::SynSent => 2,
            Self::SynReceived => 3,
            Self::FinWait1 => 4,
            Self::FinWait2 => 5,
            Self::TimeWait => 6,
            Self::Closed => 7,
            Self::CloseWait => 8,
            Self::LastAck => 9,
            Self::Listen => 10,
            Self::Closing => 11,
        }
    }

    /// Its name as `ss` prints it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Listen => "LISTEN",
            Self::SynSent => "SYN-SENT",
            Self::SynReceived => "SYN-RECV",
            Self::Established => "ESTAB",
            Self::FinWait1 => "FIN-WAIT-1",
            Self::FinWait2 => "FIN-WAIT-2",
            Self::Closing => "CLOSING",
            Self::CloseWait => "CLOSE-WAIT",
            Self::LastAck => "LAST-ACK",
            Self::TimeWait => "TIME-WAIT",
            Self::Closed => "UNCONN",
        }
    }
    /// The state of an installed flow, from [`FlowSnapshot::flags`](crate::flow::FlowSnapshot::flags).
    pub fn of_flags(flags: u64) -> Self {
        let has = |bit| flags & bit != 0;
        // RFC 9293 §3.10.4: CLOSE enters the next state at once, even if the FIN must wait for data or the window.
        match (has(flow_flags::FIN_WANTED), has(flow_flags::FIN_ACKED), has(flow_flags::FIN_RECEIVED)) {
            (false, _, false) => Self::Established,
            (false, _, true) => Self::CloseWait,
            (true, false, false) => Self::FinWait1,
            (true, true, false) => Self::FinWait2,
            (true, false, true) if has(flow_flags::PASSIVE_CLOSE) => Self::LastAck,
            (true, false, true) => Self::Closing,
            (true, true, true) if has(flow_flags::PASSIVE_CLOSE) => Self::Closed,
            (true, true, true) => Self::TimeWait,
        }
    }
}
