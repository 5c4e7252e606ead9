//! The values that `getsockname`, `getpeername` and `TCP_INFO` show of a slot.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::atomic::Ordering;
use towpath_ring::lines::{state, status};
use towpath_ring::{InfoLine, Region, Slot, address};

/// An address as the ring has it: IPv4 mapped into IPv6.
pub fn ring_addr(addr: IpAddr) -> Ipv6Addr {
    match addr {
        IpAddr::V4(addr) => addr.to_ipv6_mapped(),
        IpAddr::V6(addr) => addr,
    }
}

/// 0.0.0.0 or ::, as fits `addr`.
pub fn any(addr: IpAddr) -> IpAddr {
    if addr.is_ipv4() { std::net::Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}

/// Shows that a connection or listener is over, and the error that ended it; 0 = none.
pub fn show_over(region: &Region, slot: Slot, errno: i32) {
    let line = region.stack(slot);
    if errno != 0 {
        line.error.store(errno as u32, Ordering::Relaxed);
        // If the peer's end of file has been shown, it stays.
        let shown = line.status.load(Ordering::Relaxed);
        line.status.store(shown | status::RESET | status::TX_CLOSED, Ordering::Relaxed);
    }
    // Linux's number of CLOSE.
    region.info(slot).tcp_state.store(7, Ordering::Relaxed);
    line.state.store(state::CLOSED, Ordering::Release);
}

/// Shows the ends of a new connection or listener.
pub fn show_ends(info: &InfoLine, local: SocketAddr, remote: SocketAddr) {
    address::store(&info.local_addr, ring_addr(local.ip()));
    address::store(&info.remote_addr, ring_addr(remote.ip()));
    info.ports.store(u32::from(local.port()) << 16 | u32::from(remote.port()), Ordering::Relaxed);
}

/// Shows the ends of a new connection or listener, its MSS in bytes, its round-trip time in µs, and its state in
/// Linux's numbers.
pub fn show(info: &InfoLine, local: SocketAddr, remote: SocketAddr, mss: u16, srtt_us: u32, tcp_state: u32) {
    show_ends(info, local, remote);
    info.mss.store(u32::from(mss), Ordering::Relaxed);
    info.srtt_us.store(srtt_us, Ordering::Relaxed);
    info.rttvar_us.store(srtt_us / 2, Ordering::Relaxed);
    // The other words hold values of an earlier connection.
    for word in [
        &info.retransmits,
        &info.agreed,
        &info.min_rtt_us,
        &info.cwnd,
        &info.ssthresh,
        &info.send_window,
        &info.unacked,
        &info.unsent,
        &info.segments_in,
        &info.segments_out,
        &info.timeouts,
        &info.probes,
        &info.ca_state,
        &info.window_shifts,
        &info.receive_mss,
        &info.marked,
        &info.sacked,
        &info.lost,
        &info.observed,
        &info.silent_ms,
        &info.held,
    ] {
        word.store(0, Ordering::Relaxed);
    }
    for word in [
        &info.pacing_rate,
        &info.bytes_acked,
        &info.bytes_received,
        &info.delivery_rate,
        &info.busy_us,
        &info.window_limited_us,
    ] {
        word.store(0, Ordering::Relaxed);
    }
    info.tcp_state.store(tcp_state, Ordering::Release);
}
