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

#[cfg(test)]
mod tests {
    use super::*;
    use flow_flags::{FIN_ACKED, FIN_RECEIVED, FIN_WANTED, PASSIVE_CLOSE};

    /// As `ss` names them, with Linux's numbers (`include/net/tcp_states.h`).
    const ALL: [(TcpState, u32, &str); 11] = [
        (TcpState::Established, 1, "ESTAB"),
        (TcpState::SynSent, 2, "SYN-SENT"),
        (TcpState::SynReceived, 3, "SYN-RECV"),
        (TcpState::FinWait1, 4, "FIN-WAIT-1"),
        (TcpState::FinWait2, 5, "FIN-WAIT-2"),
        (TcpState::TimeWait, 6, "TIME-WAIT"),
        (TcpState::Closed, 7, "UNCONN"),
        (TcpState::CloseWait, 8, "CLOSE-WAIT"),
        (TcpState::LastAck, 9, "LAST-ACK"),
        (TcpState::Listen, 10, "LISTEN"),
        (TcpState::Closing, 11, "CLOSING"),
    ];

    #[test]
    fn states_have_the_numbers_and_names_of_linux() {
        for (state, number, name) in ALL {
            assert_eq!((state.linux_number(), state.name()), (number, name));
        }
    }

    #[test]
    fn the_state_follows_from_which_end_has_closed_first_and_what_is_acknowledged() {
        for (flags, state) in [
            (0, TcpState::Established),
            (FIN_RECEIVED, TcpState::CloseWait),
            (FIN_WANTED, TcpState::FinWait1),
            (FIN_WANTED | FIN_ACKED, TcpState::FinWait2),
            (FIN_WANTED | FIN_RECEIVED, TcpState::Closing),
            (FIN_WANTED | FIN_RECEIVED | PASSIVE_CLOSE, TcpState::LastAck),
            (FIN_WANTED | FIN_ACKED | FIN_RECEIVED, TcpState::TimeWait),
            (FIN_WANTED | FIN_ACKED | FIN_RECEIVED | PASSIVE_CLOSE, TcpState::Closed),
        ] {
            assert_eq!(TcpState::of_flags(flags), state, "{flags:#x}");
        }
    }
}
