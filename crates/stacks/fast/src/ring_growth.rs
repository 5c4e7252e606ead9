//! Rings grow with their connection (see `towpath_ring::ring_size`). Of the receive ring this is decided here. It is doubled if
//! the application has read it once around within two round trips: then it may be what bounds the peer. The window would be at
//! least half full of what is read in a round trip, which is Linux's measure, too.
//!
//! An idle application takes the memory of its receive ring away, and brings it back ([`IDLE`], [`GIVING`]). The flow fills only the
//! next bytes meanwhile, and none at all while their memory goes. The stack believes that memory is there again: a client could take
//! it away at any time.

use crate::clients::AppWords;
use crate::rings::{Endpoint, Endpoints};
use std::sync::atomic::{Ordering, fence};
use towpath_ring::ring_size::{
    self, GIVING, IDLE, IDLE_BYTES, RECEIVE, RECEIVE_GRANTED, RECEIVE_WANTED, SEND, SEND_WANTED,
};
use towpath_tcp::fast::FastPath;
use towpath_tcp::flow::FlowId;
use towpath_tcp::time::Micros;

/// Is there anything to do about sizes? This is asked for every line of the application.
#[inline(always)]
pub fn is_news(endpoint: &Endpoint, words: &AppWords) -> bool {
    let read = (words.rx_head ^ endpoint.rx_head) & endpoint.rx_bytes;
    let written = (words.tx_tail ^ endpoint.tx_tail) & endpoint.tx_bytes;
    let sizes = (words.want ^ endpoint.sizes) & ring_size::SIZES;
    read | written | sizes | endpoint.growing != 0
}

/// The size of a flow's send ring, before the other words of the line are looked at. The application doubles the ring, when it is
/// asked to and not before. That is when the ring has been written once around, and the congestion window is more than half of it.
#[cold]
#[inline(never)]
pub fn take_send_size(rings: &mut Endpoints, fast: &mut FastPath, flow: FlowId, words: &AppWords) {
    let Some(mut endpoint) = rings.endpoint(flow).copied() else { return };
    let Some(client) = rings.client(endpoint.client) else { return };
    let (region, slot) = (&client.shared.region, endpoint.slot);
    let halvings = SEND.of(words.want);
    // Nobody may make it smaller: what is queued would not be there.
    if halvings == endpoint.send_wanted && halvings < endpoint.send {
        endpoint.send = halvings;
        endpoint.tx_bytes = region.geometry().tx_space() >> halvings;
        fast.resize_send_ring(flow, endpoint.tx_bytes);
    }
    let turned = (words.tx_tail ^ endpoint.tx_tail) & endpoint.tx_bytes != 0;
    let may_grow = endpoint.send != 0 && endpoint.send_wanted == endpoint.send;
    if turned
        && may_grow
        && 2 * u64::from(fast.measures(flow).cwnd) > endpoint.tx_bytes.into()
        && is_of_use(region.options(slot).send_buffer.load(Ordering::Relaxed), endpoint.tx_bytes)
        && client.shared.take_growth(endpoint.tx_bytes)
    {
        endpoint.grown += endpoint.tx_bytes;
        endpoint.send_wanted -= 1;
        SEND_WANTED.set(&region.stack(slot).flow_group, endpoint.send_wanted);
    }
    endpoint.sizes = words.want & ring_size::SIZES;
    rings.set_endpoint(flow, endpoint);
}

/// The size of its receive ring, after the flow knows how far the application has read.
#[cold]
#[inline(never)]
pub fn take_receive_size(rings: &mut Endpoints, fast: &mut FastPath, now: Micros, flow: FlowId, words: &AppWords) {
    let Some(mut endpoint) = rings.endpoint(flow).copied() else { return };
    let Some(client) = rings.client(endpoint.client) else { return };
    let (region, slot, bytes) = (&client.shared.region, endpoint.slot, endpoint.rx_bytes);
    let sizes = &region.stack(slot).flow_group;
    let idle = words.want & IDLE != 0;
    if idle != endpoint.idle && (!idle || fast.trim_receive_ring(now, flow, IDLE_BYTES)) {
        endpoint.idle = idle;
        if idle {
            sizes.fetch_or(IDLE, Ordering::AcqRel);
        } else {
            // What was touched before the word was stored is there.
            fence(Ordering::Acquire);
            fast.restore_receive_ring(now, flow);
            sizes.fetch_and(!IDLE, Ordering::AcqRel);
        }
    }
    let (giving, gave) = (GIVING.of(words.want), endpoint.giving);
    // The next bytes of a ring without memory are charged to the service, so the rings of a client have a share of that.
    let mut may_empty = || {
        let counted = endpoint.emptied || client.shared.take_growth(IDLE_BYTES);
        if counted && !endpoint.emptied {
            (endpoint.emptied, endpoint.grown) = (true, endpoint.grown + IDLE_BYTES);
        }
        counted
    };
    if giving != gave && (giving & 1 == 0 || endpoint.idle && may_empty() && fast.trim_receive_ring_again(now, flow, 0))
    {
        endpoint.giving = giving;
        // While the two numbers differ, the application takes no memory away. So this goes first.
        GIVING.set(sizes, giving);
        if giving & 1 == 0 && gave & 1 != 0 && endpoint.idle {
            fast.trim_receive_ring_again(now, flow, IDLE_BYTES);
        }
    }
    if (words.rx_head ^ endpoint.rx_head) & bytes != 0 {
        let took_us = (now.0 as u32).wrapping_sub(endpoint.turned_at);
        (endpoint.turned_at, endpoint.refused) = (now.0 as u32, false);
        let may_grow = endpoint.receive != 0 && endpoint.receive_wanted == endpoint.receive;
        if may_grow
            && took_us <= fast.measures(flow).srtt_us.saturating_mul(2)
            && is_of_use(region.options(slot).receive_buffer.load(Ordering::Relaxed), bytes)
            && client.shared.take_growth(bytes)
        {
            endpoint.grown += bytes;
            endpoint.receive_wanted -= 1;
            RECEIVE_WANTED.set(sizes, endpoint.receive_wanted);
        }
    }
    let is_wanted = endpoint.receive_wanted < endpoint.receive;
    let granted =
        is_wanted && !endpoint.idle && RECEIVE_GRANTED.of(words.want) <= endpoint.receive_wanted && !endpoint.refused;
    // Its memory must be there, so that nobody but the application is charged for it.
    let refused = &mut endpoint.refused;
    let fits = |bytes, begin, end| {
        ring_size::may_double(bytes, begin, end) && {
            *refused = !region.has_memory(slot, bytes..2 * bytes);
            !*refused
        }
    };
    let doubled = granted && fast.double_receive_ring(now, flow, fits);
    if doubled {
        endpoint.rx_bytes *= 2;
        endpoint.receive -= 1;
        RECEIVE.set(sizes, endpoint.receive);
    }
    endpoint.growing = (granted && !doubled && !endpoint.refused || idle != endpoint.idle).into();
    rings.set_endpoint(flow, endpoint);
}

/// Does a program with this `SO_SNDBUF` or `SO_RCVBUF` make use of more than `bytes`? 0 = it has set none. Half of the value is for
/// data, as on Linux.
fn is_of_use(buffer: u32, bytes: u32) -> bool {
    buffer == 0 || buffer / 2 > bytes
}
