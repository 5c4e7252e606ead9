//! The host says how many workers the server's stack has.
#![allow(clippy::unwrap_used)]

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::sync::Arc;
use towpath_kernel::KernelConfig;
use towpath_remote::client::Remote;
use towpath_remote::link::stream::Stream;
use towpath_remote::server::{ServerConfig, serve};
use towpath_ring::Geometry;
use towpath_runtime::policy::AllowAll;
use towpath_runtime::{OrphanLimits, Stack, WorkerCount};

#[test]
fn a_remote_stack_has_as_many_workers_as_the_host_says() {
    let (a, b) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    let config = ServerConfig {
        kernel: KernelConfig { cores: 3, spin_us: 0, cpus: Vec::new(), orphans: OrphanLimits::default() },
        may_run: false,
    };
    let far = std::thread::spawn(move || drop(serve(Arc::new(Stream::new(b).unwrap()), &config)));
    let geometry = Geometry { slots: 16, app_slots: 8, ..Geometry::DEFAULT };
    let near = Remote::start(Arc::new(Stream::new(a).unwrap()), geometry, Box::new(AllowAll)).unwrap();
    assert_eq!(near.workers(), WorkerCount { running: 3, most: 3 });
    let groups = || near.status().workers.iter().map(|thread| thread.flow_groups.len()).collect::<Vec<_>>();
    for (running, expected) in [(1, [3, 0, 0]), (2, [2, 1, 0]), (3, [1, 1, 1])] {
        near.set_workers(running).unwrap();
        assert_eq!((near.workers().running, groups()), (running, expected.to_vec()));
    }
    for wrong in [0, 4, usize::MAX] {
        assert_eq!(near.set_workers(wrong).unwrap_err().raw_os_error(), Some(libc::EINVAL), "{wrong}");
    }
    assert_eq!(near.workers().running, 3, "as before");
    drop(near);
    far.join().unwrap();
}
