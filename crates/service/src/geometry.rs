//! The sizes of every client's region.

use crate::config::{Config, StackKind};
use crate::units::Bytes;
use towpath_ring::Geometry;

/// Descriptors of a client connection beside those of its client's sockets.
const OTHER_DESCRIPTORS: u64 = 64;
/// Event contexts (epoll descriptors and polling threads) of one client: the most that a region allows.
const CONTEXTS: u32 = 64;
/// Default socket slots of a client in scarce memory.
const SCARCE_SLOTS: u32 = 1024;
/// How far rings grow by default where an interface is served, bytes: a window for 10 Gbit/s and 0.8 ms.
const GROWN_RING: u32 = 1 << 20;
/// Default rings in scarce memory, bytes.
const SCARCE_RING: u64 = 64 << 10;

/// The sizes for a configuration. `descriptors` is the limit on open files: a client has at most as many sockets as its
/// connection can have descriptors. `flow_groups` is the number of the stack's flow groups.
pub fn geometry(config: &Config, descriptors: u64, flow_groups: usize) -> Geometry {
    let fit = descriptors.saturating_sub(OTHER_DESCRIPTORS).clamp(16, 65_536) as u32;
    let most = 1 << fit.ilog2();
    let is_scarce = has_scarce_memory(config);
    let default = Config::default();
    let asked = match config.sockets_per_client {
        slots if is_scarce && slots == default.sockets_per_client => SCARCE_SLOTS,
        slots => slots,
    };
    let slots = asked.min(most);
    if slots < asked {
        tracing::warn!(
            "the limit of {descriptors} open files allows {slots} sockets per client, not {asked}; raise it with \
             `ulimit -Hn` or LimitNOFILE="
        );
    }
    let ring = |size: Bytes, default: Bytes| {
        let small = is_scarce && size == default;
        (if small { SCARCE_RING } else { size.get() }) as u32
    };
    let most = |size: Option<Bytes>, first: u32| match size {
        _ if config.stack != StackKind::Fast => 0,
        Some(size) => size.get() as u32,
        // A region takes the largest size for each slot in addresses, and a call on such a ring a few instructions more.
        // Only what comes over a wire needs large windows.
        None if config.interface.is_empty() => first,
        None => first.max(GROWN_RING),
    };
    let tx_bytes = ring(config.send_buffer, default.send_buffer);
    let rx_bytes = ring(config.receive_buffer, default.receive_buffer);
    Geometry {
        slots,
        app_slots: slots / 2,
        tx_bytes,
        rx_bytes,
        tx_most: most(config.send_buffer_max, tx_bytes),
        rx_most: most(config.receive_buffer_max, rx_bytes),
        contexts: CONTEXTS,
        // With a kernel stack all sockets of a client belong to one flow group.
        flow_groups: if config.stack == StackKind::Fast { flow_groups as u32 } else { 1 },
    }
}

/// Is memory for regions scarce? A guest's page tables for shared memory lie in that memory, used or not. Memory that
/// an RDMA adapter may write to is locked.
fn has_scarce_memory(config: &Config) -> bool {
    let is_rdma = || config.remote.as_deref().is_some_and(|address| address.starts_with("rdma:"));
    config.stack.is_guest() || config.stack == StackKind::Remote && is_rdma()
}
