//! Socket options of a pending socket. The kernel has their values, except for those that only the stack knows.

use crate::fd::table::{self as descriptors, Descriptor, Pending};
use crate::lifecycle::pending;
use crate::observe::fallback;
use crate::options::stack;
use crate::options::table::{self, Import, Row};
use crate::options::values::{TIME_LIMITS, congestion, give, given};
use libc::{c_int, c_void, socklen_t, timeval};
use towpath_client::sys::{self, Sys};
use towpath_hook::{Answer, outcome, real};
use towpath_ring::report::Count;

const IP_IPSEC_POLICY: c_int = 16;
const IP_LOCAL_PORT_RANGE: c_int = 51;
const IPV6_IPSEC_POLICY: c_int = 34;
const IPV6_ADDR_PREFERENCES: c_int = 72;
const TCP_AO_ADD_KEY: c_int = 38;
const SO_BINDTOIFINDEX: c_int = 62;

/// Options that decide from where, on which way or with whom a connection is, and that no slot can have.
const KERNELS: [(c_int, c_int); 20] = [
    (libc::SOL_SOCKET, libc::SO_BINDTODEVICE),
    (libc::SOL_SOCKET, SO_BINDTOIFINDEX),
    (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER),
    (libc::SOL_SOCKET, libc::SO_ATTACH_BPF),
    (libc::IPPROTO_TCP, libc::TCP_MD5SIG),
    (libc::IPPROTO_TCP, libc::TCP_MD5SIG_EXT),
    (libc::IPPROTO_TCP, TCP_AO_ADD_KEY),
    (libc::IPPROTO_TCP, libc::TCP_REPAIR),
    (libc::IPPROTO_IP, IP_LOCAL_PORT_RANGE),
    (libc::IPPROTO_IP, libc::IP_UNICAST_IF),
    (libc::IPPROTO_IP, IP_IPSEC_POLICY),
    (libc::IPPROTO_IP, libc::IP_XFRM_POLICY),
    (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_IF),
    (libc::IPPROTO_IPV6, IPV6_IPSEC_POLICY),
    (libc::IPPROTO_IPV6, libc::IPV6_XFRM_POLICY),
    (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO),
    (libc::IPPROTO_IPV6, libc::IPV6_HOPOPTS),
    (libc::IPPROTO_IPV6, libc::IPV6_RTHDR),
    (libc::IPPROTO_IPV6, libc::IPV6_DSTOPTS),
    (libc::IPPROTO_IPV6, IPV6_ADDR_PREFERENCES),
];

/// Why this option, which the program has just set, leaves the socket to the kernel; `None` = it does not.
pub fn leaves(fd: c_int, level: c_int, name: c_int) -> Option<Count> {
    match (level, name) {
        // The stack sends no IP options (source routes, for instance; RFC 9293 §3.9.2.1, MUST-51, MUST-52).
        (libc::IPPROTO_IP, libc::IP_OPTIONS) => Some(Count::IpOptions),
        // An empty name and the number 0 end the binding.
        (libc::SOL_SOCKET, libc::SO_BINDTODEVICE | SO_BINDTOIFINDEX)
            if sys::getsockopt::<c_int>(fd, libc::SOL_SOCKET, SO_BINDTOIFINDEX, 0) == Ok(0) =>
        {
            None
        }
        option => KERNELS.contains(&option).then_some(Count::KernelOption),
    }
}

/// `setsockopt`.
///
/// # Safety
/// The contract of `setsockopt`: `value` is null or has `len` readable bytes.
pub unsafe fn set(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> Answer<c_int> {
    // SAFETY: the caller keeps the contract of `setsockopt`.
    let set = outcome(unsafe { real::setsockopt(fd, level, name, value, len) });
    let row = table::find(level, name);
    descriptors::update_pending(fd, |pending| {
        match row.map(|row| row.import) {
            Some(Import::IfSet | Import::IfEmulated | Import::Alias) => {}
            _ if (level, name) == (libc::IPPROTO_TCP, libc::TCP_NODELAY) => pending.no_delay = true,
            _ => pending.options = true,
        }
        pending.emulated |= row.is_some_and(Row::is_emulated);
        pending.steered |= if set.is_ok() { row.map_or(0, Row::if_set_bit) } else { 0 };
        let limit = TIME_LIMITS.iter().position(|limit| (level, name) == (libc::SOL_SOCKET, *limit));
        if let (Some(limit), Ok(_)) = (limit, set) {
            // SAFETY: the kernel has just read a `timeval` there.
            pending.no_wait[limit] = unsafe { given::<timeval>(value, len) }.is_ok_and(|time| time.tv_sec < 0);
        }
    });
    if set.is_ok()
        && let Some(why) = leaves(fd, level, name)
        && let Descriptor::Pending(pending) = descriptors::get(fd)
    {
        fallback::count(why);
        pending::leave(fd, pending);
    }
    if (level, name) != (libc::IPPROTO_TCP, libc::TCP_CONGESTION) {
        return Some(set);
    }
    // SAFETY: the caller vouches for `value`.
    Some(unsafe { congestion(value, len) }.map(|number| {
        descriptors::update_pending(fd, |pending| pending.congestion = number as u8);
        0
    }))
}

/// `getsockopt` of `TCP_CONGESTION`, if the program has set it. The kernel is not asked, because it may not have the
/// algorithm.
///
/// # Safety
/// The contract of `getsockopt`: `len` is null or valid, `out` is null or has `*len` writable bytes.
pub unsafe fn get_congestion(pending: Pending, out: *mut c_void, len: *mut socklen_t) -> Sys<c_int> {
    // SAFETY: the caller vouches for `len` and `out`.
    unsafe { give(stack::name_of(pending.congestion.into()), out, len) }
}
