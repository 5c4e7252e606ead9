//! Socket options of applications, passed on by `setsockopt`.

use crate::group::ClientGroup;
use crate::sys;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use towpath_ring::Slot;
use towpath_ring::lines::congestion;
use towpath_ring::options::{Options, option_flags};
use towpath_runtime::slots::Phase;

/// Names of Linux that libc lacks.
const TCP_TX_DELAY: i32 = 37;
const IPV6_MINHOPCOUNT: i32 = 73;
/// The highest `SO_PRIORITY` that an unprivileged user may set (socket(7)).
const PRIORITY_OF_ALL: u32 = 6;

/// The options that this user may set. The service may have rights that its client lacks.
fn permitted(options: Options, uid: u32) -> Options {
    if uid == 0 {
        return options;
    }
    Options { mark: 0, priority: options.priority.min(PRIORITY_OF_ALL), ..options }
}

/// Options that are an int: level, name, value.
fn ints(o: &Options) -> [(i32, i32, u32); 28] {
    let flag = |bit| u32::from(o.flags & bit != 0);
    let (tcp, ip, six, socket) = (libc::IPPROTO_TCP, libc::IPPROTO_IP, libc::IPPROTO_IPV6, libc::SOL_SOCKET);
    [
        (socket, libc::SO_KEEPALIVE, flag(option_flags::KEEPALIVE)),
        (socket, libc::SO_REUSEPORT, flag(option_flags::REUSEPORT)),
        (ip, libc::IP_RECVERR, flag(option_flags::RECVERR)),
        (six, libc::IPV6_RECVERR, flag(option_flags::RECVERR_SIX)),
        (tcp, libc::TCP_KEEPIDLE, o.keep_idle_s),
        (tcp, libc::TCP_KEEPINTVL, o.keep_interval_s),
        (tcp, libc::TCP_KEEPCNT, o.keep_count),
        (tcp, libc::TCP_USER_TIMEOUT, o.user_timeout_ms),
        (tcp, libc::TCP_MAXSEG, o.max_segment),
        (ip, libc::IP_TOS, o.tos),
        (ip, libc::IP_TTL, o.ttl),
        (six, libc::IPV6_TCLASS, o.tclass),
        (six, libc::IPV6_UNICAST_HOPS, o.hops),
        (tcp, libc::TCP_SYNCNT, o.syn_retries),
        (tcp, libc::TCP_LINGER2, o.linger2_s as u32),
        (tcp, libc::TCP_DEFER_ACCEPT, o.defer_accept_s),
        (socket, libc::SO_DONTROUTE, flag(option_flags::DONTROUTE)),
        (tcp, libc::TCP_THIN_LINEAR_TIMEOUTS, flag(option_flags::THIN)),
        (tcp, libc::TCP_NOTSENT_LOWAT, o.not_sent_low_water),
        (tcp, libc::TCP_WINDOW_CLAMP, o.window_clamp),
        (tcp, libc::TCP_FASTOPEN, o.fast_open),
        (tcp, TCP_TX_DELAY, o.send_delay_us),
        (ip, libc::IP_MTU_DISCOVER, o.path_mtu_discovery ^ 1),
        (six, libc::IPV6_MTU_DISCOVER, o.path_mtu_discovery ^ 1),
        (ip, libc::IP_MINTTL, o.least_hops),
        (six, IPV6_MINHOPCOUNT, o.least_hops),
        // After the type of service, because setting that changes the priority.
        (socket, libc::SO_PRIORITY, o.priority),
        (socket, libc::SO_MARK, o.mark),
    ]
}

/// Sets the options that have changed. A value that the kernel refuses changes nothing; the application's library has
/// reported the error.
fn apply(fd: &OwnedFd, before: &Options, options: &Options) {
    for ((level, name, old), (_, _, new)) in ints(before).into_iter().zip(ints(options)) {
        if old != new {
            sys::set(fd, level, name, new as i32);
        }
    }
    if before.congestion != options.congestion
        && let Some(name) = congestion::NAMES.get(options.congestion as usize).filter(|name| !name.is_empty())
    {
        sys::set_bytes(fd, libc::IPPROTO_TCP, libc::TCP_CONGESTION, name.as_bytes());
    }
    for (name, forced, old, new) in [
        (libc::SO_SNDBUF, libc::SO_SNDBUFFORCE, before.send_buffer, options.send_buffer),
        (libc::SO_RCVBUF, libc::SO_RCVBUFFORCE, before.receive_buffer, options.receive_buffer),
    ] {
        if old != new && new != 0 {
            // The option reads twice the value that was set. The application's own kernel has applied its limits,
            // which this kernel may not have.
            sys::set(fd, libc::SOL_SOCKET, name, (new / 2) as i32);
            sys::set(fd, libc::SOL_SOCKET, forced, (new / 2) as i32);
        }
    }
    if before.max_pacing != options.max_pacing {
        let rate = if options.max_pacing == 0 { u64::MAX } else { options.max_pacing };
        sys::set_bytes(fd, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, &rate.to_ne_bytes());
    }
}

impl ClientGroup {
    /// Sets all options of a new socket.
    pub fn first_options(&mut self, index: u32, slot: Slot, fd: &OwnedFd) {
        let Some(client) = self.client(index) else { return };
        let (seq, options) = client.shared.region.options(slot).read();
        let options = permitted(options, client.shared.uid);
        let entry = client.slot(slot);
        entry.options_seq = seq;
        entry.own.options = options;
        apply(fd, &Options::default(), &options);
    }

    /// Sets the options of a slot in use that have changed.
    pub fn options(&mut self, index: u32, slot: Slot) {
        let Some(client) = self.client(index) else { return };
        let (seq, options) = client.shared.region.options(slot).read();
        let options = permitted(options, client.shared.uid);
        let live = client.shared.region.app(slot).generation.load(Ordering::Acquire) == client.shared.generation(slot);
        let entry = client.slot(slot);
        let known = std::mem::replace(&mut entry.options_seq, seq) == seq;
        if known || !live || !matches!(entry.phase, Phase::Opening | Phase::Listening | Phase::Open) {
            return;
        }
        let before = std::mem::replace(&mut entry.own.options, options);
        if let Some(fd) = &entry.own.fd {
            apply(fd, &before, &options);
        }
        self.show_congestion(index, slot);
    }

    /// Publishes the congestion control of a socket.
    pub fn show_congestion(&mut self, index: u32, slot: Slot) {
        let Some(client) = self.client(index) else { return };
        let mut name = [0; 16];
        let Some(fd) = &client.slot(slot).own.fd else { return };
        let Some(len) = sys::get(fd, libc::IPPROTO_TCP, libc::TCP_CONGESTION, &mut name) else { return };
        let name = name[..len].split(|byte| *byte == 0).next().unwrap_or_default();
        let number = congestion::NAMES.iter().position(|known| known.as_bytes() == name && !name.is_empty());
        client.shared.region.info(slot).congestion.store(number.unwrap_or(0) as u32, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_is_set_is_set_on_the_kernels_socket() {
        let fd = crate::socket::create(std::net::Ipv4Addr::LOCALHOST.into()).unwrap();
        let options = Options {
            flags: option_flags::KEEPALIVE,
            keep_idle_s: 33,
            user_timeout_ms: 1234,
            send_buffer: 16384,
            receive_buffer: 32768,
            congestion: congestion::NAMES.iter().position(|name| *name == "reno").unwrap() as u32,
            max_pacing: 1_000_000,
            not_sent_low_water: 16384,
            window_clamp: 20000,
            path_mtu_discovery: 1,
            least_hops: 3,
            priority: 5,
            ..Options::default()
        };
        apply(&fd, &Options::default(), &options);
        let int = |level, name| sys::get_int(&fd, level, name);
        assert_eq!(int(libc::SOL_SOCKET, libc::SO_KEEPALIVE), Some(1));
        assert_eq!(int(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE), Some(33));
        assert_eq!(int(libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT), Some(1234));
        assert_eq!(int(libc::SOL_SOCKET, libc::SO_SNDBUF), Some(16384));
        assert_eq!(int(libc::SOL_SOCKET, libc::SO_RCVBUF), Some(32768));
        assert_eq!(int(libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT), Some(16384));
        assert_eq!(int(libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP), Some(20000));
        assert_eq!(int(libc::IPPROTO_IP, libc::IP_MTU_DISCOVER), Some(libc::IP_PMTUDISC_DONT));
        assert_eq!(int(libc::IPPROTO_IP, libc::IP_MINTTL), Some(3));
        assert_eq!(int(libc::SOL_SOCKET, libc::SO_PRIORITY), Some(5));
        let mut name = [0; 16];
        sys::get(&fd, libc::IPPROTO_TCP, libc::TCP_CONGESTION, &mut name).unwrap();
        assert_eq!(&name[..5], b"reno\0");
        apply(&fd, &options, &Options { flags: 0, ..options });
        assert_eq!(int(libc::SOL_SOCKET, libc::SO_KEEPALIVE), Some(0));
    }

    #[test]
    fn what_needs_a_right_is_only_for_root() {
        let asked = Options { mark: 7, priority: 1 << 20, least_hops: 9, ..Options::default() };
        assert_eq!(permitted(asked, 0), asked);
        assert_eq!(permitted(asked, 1000), Options { mark: 0, priority: PRIORITY_OF_ALL, ..asked });
    }
}
