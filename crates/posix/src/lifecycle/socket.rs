//! `socket`.

use crate::fd::table::{self, Descriptor, Pending};
use crate::lifecycle::registration;
use crate::observe::fallback;
use crate::ready::service_death;
use libc::c_int;
use towpath_hook::{Answer, outcome, real};

/// `socket`: a TCP socket over IPv4 or IPv6 becomes a pending one. So does an MPTCP socket, which Go's servers ask for
/// by default. With a peer that does not speak MPTCP it falls back to TCP (RFC 8684 §3.7).
pub fn socket(domain: c_int, kind: c_int, protocol: c_int) -> Answer<c_int> {
    let stream = kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) == libc::SOCK_STREAM;
    let six = domain == libc::AF_INET6;
    if !(six || domain == libc::AF_INET) || !stream || ![0, libc::IPPROTO_TCP, libc::IPPROTO_MPTCP].contains(&protocol)
    {
        fallback::not_tcp(domain, kind);
        return None;
    }
    if registration::start().is_none() {
        let (required, why) = (registration::required(), fallback::why_no_session());
        // One that may still join a service is counted when it listens or connects.
        if required || !service_death::is_awaited() {
            fallback::count(why);
            return required.then_some(Err(libc::ENETDOWN));
        }
    }
    // SAFETY: `socket` takes numbers and no memory.
    let fd = outcome(unsafe { real::socket(domain, kind, libc::IPPROTO_TCP) });
    if let Ok(fd) = fd {
        table::set(fd, Descriptor::Pending(Pending { six, ..Pending::default() }));
    }
    Some(fd)
}
