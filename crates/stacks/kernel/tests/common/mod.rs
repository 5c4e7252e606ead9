//! A kernel stack on the loopback device.
#![allow(dead_code, clippy::unwrap_used)]

use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SocketType, sockopt};
use std::net::SocketAddr;
use std::sync::Mutex;
use towpath_contract_tests::LOCAL;
use towpath_kernel::{Kernel, KernelConfig};
use towpath_runtime::{AdmissionPolicy, ClientId, Exceeded, Limit, OrphanLimits, Verdict};

/// A policy that keeps packets within this host, whatever an application writes into its region.
struct WithinTheHost;

impl AdmissionPolicy for WithinTheHost {
    fn connect(&mut self, _: ClientId, remote: SocketAddr) -> Verdict {
        if remote.ip().is_loopback() { Verdict::Allow(0) } else { Verdict::Refuse(libc::EPERM) }
    }
    fn listen(&mut self, _: ClientId, local: SocketAddr, _: bool) -> Verdict {
        if local.ip().is_loopback() { Verdict::Allow(0) } else { Verdict::Refuse(libc::EPERM) }
    }
    fn accept(&mut self, _: ClientId, _: SocketAddr, _: SocketAddr) -> Verdict {
        Verdict::Allow(0)
    }
    fn limit(&mut self, _: ClientId) -> Option<Limit> {
        None
    }
    fn exceeded(&mut self, _: ClientId, _: &Limit, _: Exceeded) {}
}

/// A kernel stack with this many workers.
pub fn kernel(cores: usize) -> Kernel {
    bounded(cores, OrphanLimits::default())
}

/// The same with bounds of what clients leave that have ended.
pub fn bounded(cores: usize, orphans: OrphanLimits) -> Kernel {
    let config = KernelConfig { cores, spin_us: 20, cpus: Vec::new(), orphans };
    Kernel::start(&config, || Box::new(WithinTheHost)).unwrap()
}

/// A port that the kernel has chosen, and that it gives to nobody else while this process runs. Nobody listens there.
pub fn port() -> u16 {
    static HELD: Mutex<Vec<OwnedFd>> = Mutex::new(Vec::new());
    let held = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&held, &SocketAddr::new(LOCAL, 0)).unwrap();
    // The kernel binds the stack's socket beside this one, as beside those that reserve the ports of applications. It
    // would also choose such a port twice: so this is set only now.
    sockopt::set_socket_reuseaddr(&held, true).unwrap();
    let port = SocketAddr::try_from(rustix::net::getsockname(&held).unwrap()).unwrap().port();
    HELD.lock().unwrap().push(held);
    port
}
