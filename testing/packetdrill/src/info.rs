//! Assertions such as `%{ assert tcpi_snd_cwnd == 10, tcpi_snd_cwnd }%`, with the field names of Linux's `struct
//! tcp_info`.

use crate::constants;
use towpath_tcp::flow::{FlowSnapshot, flow_flags};
use towpath_tcp::slow::TcpState;

/// The connection that assertions are about.
#[derive(Clone, Copy, Debug)]
pub struct Info {
    /// Its state.
    pub state: TcpState,
    /// The flow's snapshot, if it is installed.
    pub flow: FlowSnapshot,
}

/// The reason why an assertion fails.
pub enum Refusal {
    /// It is not in the supported subset of Python.
    Unsupported(String),
    /// It is false.
    False(String),
}

impl Info {
    /// A field.
    fn field(&self, name: &str) -> Option<i64> {
        let f = &self.flow;
        let mss = u32::from(f.mss).max(1);
        let in_recovery = f.flags & flow_flags::RECOVERY != 0;
        Some(match name {
            "tcpi_state" => self.state.linux_number().into(),
            "tcpi_snd_cwnd" => i64::from(f.cwnd / mss),
            "tcpi_snd_ssthresh" => match f.ssthresh / mss {
                threshold if threshold > 1 << 15 => 0x7fff_ffff,
                threshold => i64::from(threshold),
            },
            "tcpi_snd_mss" => i64::from(f.mss),
            "tcpi_unacked" => i64::from(f.snd_max.bytes_since(f.snd_una).div_ceil(mss)),
            "tcpi_rtt" => i64::from(f.srtt_us),
            "tcpi_rttvar" => i64::from(f.rttvar_us),
            "tcpi_total_retrans" => f.retransmits as i64,
            "tcpi_bytes_acked" => f.bytes_acked as i64,
            "tcpi_bytes_received" => f.bytes_in as i64,
            "tcpi_segs_in" => f.segments_in.into(),
            "tcpi_segs_out" => f.segments_out.into(),
            "tcpi_notsent_bytes" => i64::from(f.snd_queued.distance(f.snd_max).max(0)),
            "tcpi_sacked" => i64::from(f.sacked.div_ceil(mss)),
            "tcpi_lost" => i64::from(f.lost.div_ceil(mss)),
            "tcpi_retrans" => i64::from(f.resent.div_ceil(mss)),
            "tcpi_bytes_retrans" => f.bytes_resent as i64,
            "tcpi_data_segs_in" => f.data_segments_in.into(),
            "tcpi_data_segs_out" => f.data_segments_out.into(),
            "tcpi_dsack_dups" => f.duplicates.into(),
            "tcpi_rcv_ooopack" => f.out_of_order.into(),
            "tcpi_rcv_wnd" => f.rcv_wnd.into(),
            "tcpi_reord_seen" => f.reorderings.into(),
            "tcpi_rcv_mss" => i64::from(f.rcv_mss),
            "tcpi_snd_wscale" => i64::from(f.snd_wscale),
            "tcpi_rcv_wscale" => i64::from(f.rcv_wscale),
            "tcpi_ca_state" if in_recovery => 3,
            "tcpi_ca_state" => 0,
            _ => return None,
        })
    }

    /// Checks a block of assertions.
    pub fn check(&self, code: &str) -> Result<(), Refusal> {
        code.split(['\n', ';']).map(str::trim).filter(|line| !line.is_empty()).try_for_each(|line| self.assert(line))
    }

    fn assert(&self, line: &str) -> Result<(), Refusal> {
        let unsupported = || Refusal::Unsupported(format!("%{{ {line} }}%"));
        let condition = line.strip_prefix("assert").and_then(|rest| rest.split(',').next()).ok_or_else(unsupported)?;
        for term in condition.split(" and ") {
            let words: Vec<&str> = term.trim().trim_matches(['(', ')']).split_whitespace().collect();
            let &[left, operator, right] = words.as_slice() else { return Err(unsupported()) };
            let value = |word: &str| word.parse().ok().or_else(|| constants::number(word)).or_else(|| self.field(word));
            let (Some(a), Some(b)) = (value(left), value(right)) else { return Err(unsupported()) };
            let holds = match operator {
                "==" => a == b,
                "!=" => a != b,
                "<" => a < b,
                "<=" => a <= b,
                ">" => a > b,
                ">=" => a >= b,
                _ => return Err(unsupported()),
            };
            if !holds {
                let shown = if left == "tcpi_state" { constants::state_name(a).into() } else { a.to_string() };
                return Err(Refusal::False(format!("'{}' is false: {left} is {shown}", term.trim())));
            }
        }
        Ok(())
    }
}
