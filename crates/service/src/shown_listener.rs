//! A listening socket of the kernel that a client shows for its listener.
//!
//! The kernel goes on deciding who listens: it names the socket by its cookie for each SYN. So no port is held here, and
//! nothing that the client does to the socket later gives it another's connections.

use crate::port_proof::{self, get};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{ipproto, sockopt};
use std::net::SocketAddr;
use towpath_ring::command::{NOT_OURS, not_ours};
use towpath_runtime::ListenerProof;

/// Checks the socket, and attaches the filter that takes its SYNs. `home` is the namespace that the service serves. An
/// error is the answer to the client's command.
pub fn prove(shown: &OwnedFd, home: Option<u64>, filter: Option<BorrowedFd<'_>>) -> Result<ListenerProof, i32> {
    let kernels = NOT_OURS + not_ours::ELSEWHERE as i32;
    if sockopt::socket_protocol(shown).ok().flatten() != Some(ipproto::TCP) {
        return Err(-libc::EINVAL);
    }
    if home.is_none() || port_proof::namespace(shown) != home {
        return Err(NOT_OURS + not_ours::NAMESPACE as i32);
    }
    let proof = facts(shown).map_err(|error| -error.raw_os_error())?;
    if let Some(filter) = filter {
        // The program may have a filter of its own, or have locked it: then its listener is the kernel's alone.
        if has_filter(shown) || attach(shown, filter).is_err() {
            return Err(kernels);
        }
    }
    Ok(proof)
}

fn facts(shown: &OwnedFd) -> Result<ListenerProof, Errno> {
    if !sockopt::socket_acceptconn(shown)? {
        return Err(Errno::INVAL);
    }
    let local = SocketAddr::try_from(rustix::net::getsockname(shown)?).map_err(|_| Errno::INVAL)?;
    let dual = local.is_ipv6() && local.ip().is_unspecified() && !sockopt::ipv6_v6only(shown)?;
    let cookie = sockopt::socket_cookie(shown)?;
    Ok(ListenerProof { cookie, addr: local.ip().to_canonical(), port: local.port(), dual })
}

/// Has it a classic filter? One of the other kind may be that of a service before this one, and is replaced.
fn has_filter(shown: &OwnedFd) -> bool {
    get(shown, libc::SO_GET_FILTER, &mut []).is_ok_and(|instructions| instructions > 0)
}

fn attach(shown: &OwnedFd, filter: BorrowedFd<'_>) -> Result<(), Errno> {
    let program = filter.as_raw_fd();
    // SAFETY: the kernel reads one number, which outlives the call.
    let result = unsafe {
        libc::setsockopt(
            shown.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_BPF,
            (&raw const program).cast(),
            size_of_val(&program) as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(port_proof::last_error()) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use rustix::net::{AddressFamily, Shutdown, SocketType};
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener};

    const ELSEWHERE: i32 = NOT_OURS + not_ours::ELSEWHERE as i32;

    fn listening(address: impl std::net::ToSocketAddrs) -> (OwnedFd, u16) {
        let listener = TcpListener::bind(address).unwrap();
        let port = listener.local_addr().unwrap().port();
        (listener.into(), port)
    }

    fn try_prove(shown: &OwnedFd) -> Result<ListenerProof, i32> {
        prove(shown, port_proof::own_namespace(), None)
    }

    #[test]
    fn a_listening_socket_proves_its_address() {
        let (shown, port) = listening((Ipv4Addr::LOCALHOST, 0));
        let cookie = sockopt::socket_cookie(&shown).unwrap();
        let proof = ListenerProof { cookie, addr: Ipv4Addr::LOCALHOST.into(), port, dual: false };
        assert_eq!(try_prove(&shown), Ok(proof));
        assert_eq!(try_prove(&shown), Ok(proof), "the kernel half goes on listening");
        let (both, _) = listening((Ipv6Addr::UNSPECIFIED, 0));
        assert!(try_prove(&both).unwrap().dual);
        let six = rustix::net::socket(AddressFamily::INET6, SocketType::STREAM, None).unwrap();
        sockopt::set_ipv6_v6only(&six, true).unwrap();
        rustix::net::listen(&six, 1).unwrap();
        let proof = try_prove(&six).unwrap();
        assert_eq!((proof.addr, proof.dual), (IpAddr::from(Ipv6Addr::UNSPECIFIED), false));
        assert_ne!(proof.port, 0, "the kernel has chosen one");
    }

    #[test]
    fn a_socket_that_does_not_listen_proves_nothing() {
        let socket = |kind| rustix::net::socket(AddressFamily::INET, kind, None).unwrap();
        assert_eq!(try_prove(&socket(SocketType::DGRAM)), Err(-libc::EINVAL));
        let unix = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        assert_eq!(try_prove(&unix), Err(-libc::EINVAL));
        let bound = socket(SocketType::STREAM);
        rustix::net::bind(&bound, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        assert_eq!(try_prove(&bound), Err(-libc::EINVAL), "bound only");
        let (shut, _) = listening((Ipv4Addr::LOCALHOST, 0));
        rustix::net::shutdown(&shut, Shutdown::Both).unwrap();
        assert_eq!(try_prove(&shut), Err(-libc::EINVAL), "it has stopped");
        let (unbound, _) = listening((Ipv4Addr::LOCALHOST, 0));
        rustix::net::connect_unspec(&unbound).unwrap();
        assert_eq!(try_prove(&unbound), Err(-libc::EINVAL), "dissolved");
        let (listener, _) = listening((Ipv4Addr::LOCALHOST, 0));
        let client = socket(SocketType::STREAM);
        rustix::net::connect(&client, &SocketAddr::try_from(rustix::net::getsockname(&listener).unwrap()).unwrap())
            .unwrap();
        let accepted = rustix::net::accept(&listener).unwrap();
        assert_eq!(try_prove(&accepted), Err(-libc::EINVAL), "a connection is no listener");
    }

    #[test]
    fn a_socket_of_another_namespace_is_left_to_its_kernel() {
        let (shown, _) = listening((Ipv4Addr::LOCALHOST, 0));
        let home = port_proof::own_namespace().unwrap();
        let foreign = Err(NOT_OURS + not_ours::NAMESPACE as i32);
        assert_eq!(prove(&shown, Some(home + 1), None), foreign);
        assert_eq!(prove(&shown, None, None), foreign);
    }

    #[test]
    fn a_filter_of_the_programs_own_is_not_replaced() {
        let (shown, _) = listening((Ipv4Addr::LOCALHOST, 0));
        // `ret #-1`: takes nothing.
        let mut code = [libc::sock_filter { code: 6, jt: 0, jf: 0, k: u32::MAX }];
        let program = libc::sock_fprog { len: 1, filter: code.as_mut_ptr() };
        // SAFETY: the kernel reads the program and its one instruction, which outlive the call.
        let result = unsafe {
            libc::setsockopt(
                shown.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ATTACH_FILTER,
                (&raw const program).cast(),
                size_of_val(&program) as libc::socklen_t,
            )
        };
        assert_eq!(result, 0);
        assert!(has_filter(&shown));
        let no_program = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(prove(&shown, port_proof::own_namespace(), Some(no_program.as_fd())), Err(ELSEWHERE));
        let (plain, _) = listening((Ipv4Addr::LOCALHOST, 0));
        assert!(!has_filter(&plain));
        // Without a filter the stack would never get a SYN.
        assert_eq!(prove(&plain, port_proof::own_namespace(), Some(no_program.as_fd())), Err(ELSEWHERE));
    }
}
