//! `TCP_INFO` from the stack's information line.

use crate::socket::Socket;
use core::sync::atomic::Ordering::Relaxed;
use towpath_ring::lines::state;

/// RFC 9293 states in Linux's numbers.
const ESTABLISHED: u8 = 1;
const SYN_SENT: u8 = 2;
const CLOSE: u8 = 7;
const LISTEN: u8 = 10;

/// The connection's state in Linux's numbers.
pub fn tcp_state(socket: &Socket) -> u8 {
    match socket.state() {
        state::CONNECTING => SYN_SENT,
        state::LISTENING => LISTEN,
        state::ESTABLISHED => match socket.info().tcp_state.load(Relaxed) {
            number @ 1..=12 => number as u8,
            _ => ESTABLISHED,
        },
        _ => CLOSE,
    }
}

/// What `getsockopt(TCP_INFO)` shows; what the stack does not tell is zero.
pub fn tcp_info(socket: &Socket) -> libc::tcp_info {
    // SAFETY: a struct of integers; all zero is a valid value.
    let mut info: libc::tcp_info = unsafe { core::mem::zeroed() };
    let line = socket.info();
    info.tcpi_state = tcp_state(socket);
    let mss = line.mss.load(Relaxed).max(1);
    info.tcpi_snd_mss = mss;
    info.tcpi_rcv_mss = mss;
    info.tcpi_advmss = mss;
    info.tcpi_rtt = line.srtt_us.load(Relaxed);
    info.tcpi_rttvar = line.rttvar_us.load(Relaxed);
    // Linux's is in segments, ours in bytes.
    info.tcpi_snd_cwnd = line.cwnd.load(Relaxed).div_ceil(mss);
    info.tcpi_total_retrans = line.retransmits.load(Relaxed);
    info.tcpi_rcv_space = socket.session.geometry.rx_bytes;
    info
}
