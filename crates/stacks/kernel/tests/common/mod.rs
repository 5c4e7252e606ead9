//! A kernel stack on the loopback device.
#![allow(dead_code, clippy::unwrap_used)]

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU16, Ordering};
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

/// A port that no other test of this run uses, and that Linux assigns to no program by itself.
pub fn port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let of_process = (std::process::id() % 90) as u16 * 100;
    let next = || 20_000 + of_process + NEXT.fetch_add(1, Ordering::Relaxed);
    // Another test program may run at the same time with the same ports.
    let is_unused = |port: &u16| std::net::TcpListener::bind((std::net::Ipv4Addr::UNSPECIFIED, *port)).is_ok();
    std::iter::repeat_with(next).find(is_unused).unwrap()
}
