//! A kernel stack of the test's own, on the loopback device, and a minimal application side.
#![allow(dead_code, clippy::unwrap_used)]

#[path = "../../../engine/tests/common/app.rs"]
pub mod app;
#[path = "../../../engine/tests/common/noise.rs"]
pub mod noise;
#[path = "../../../engine/tests/common/shuffle.rs"]
pub mod shuffle;
#[path = "../../../engine/tests/common/storm.rs"]
pub mod storm;

pub use noise::Noise;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU16, Ordering};
use towpath_kernel::{Kernel, KernelConfig};
use towpath_stack::{ClientId, Exceeded, Guard, Limit, Verdict};

/// The applications' address. All of 127.0.0.0/8 is this host's, and nobody else uses this one.
pub const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Whatever an application writes into its region, nobody outside this host hears of it.
struct WithinTheHost;

impl Guard for WithinTheHost {
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

/// A kernel stack with so many threads.
pub fn kernel(cores: usize) -> Kernel {
    let config = KernelConfig { cores, spin_us: 20, cpus: Vec::new() };
    Kernel::start(&config, || Box::new(WithinTheHost)).unwrap()
}

/// A port that no other test of this run uses, of those that no program gets unasked.
pub fn port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let of_process = (std::process::id() % 90) as u16 * 100;
    20_000 + of_process + NEXT.fetch_add(1, Ordering::Relaxed)
}
