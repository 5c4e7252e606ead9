//! Rings grow with their connection (see `towpath_ring::ring_size`). Of the receive ring this is decided here: it is doubled if
//! the application has read it once around within two round trips, so that it may be what bounds the peer. Then the window would
//! be at least half full of what is read in a round trip, which is Linux's measure, too.

use crate::clients::AppWords;
use crate::rings::{Endpoint, Endpoints};
use std::sync::atomic::Ordering;
use towpath_ring::ring_size::{self, RECEIVE, RECEIVE_GRANTED, RECEIVE_WANTED, SEND, SEND_WANTED};
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

/// The size of a flow's send ring, before the other words of the line are looked at. The application doubles the ring. It is
/// asked to when the ring has been written once around, and the congestion window is more than half of it.
#[cold]
#[inline(never)]
pub fn take_send_size(rings: &mut Endpoints, fast: &mut FastPath, flow: FlowId, words: &AppWords) {
    let Some(mut endpoint) = rings.endpoint(flow).copied() else { return };
    let Some(client) = rings.client(endpoint.client) else { return };
    let (region, sizes) = (&client.shared.region, &client.shared.region.stack(endpoint.slot).flow_group);
    let halvings = SEND.of(words.want);
    if halvings != SEND.of(endpoint.sizes) {
        endpoint.tx_bytes = (region.geometry().tx_space() >> halvings).max(1);
        fast.resize_send_ring(flow, endpoint.tx_bytes);
    }
    let turned = (words.tx_tail ^ endpoint.tx_tail) & endpoint.tx_bytes != 0;
    let wanted = SEND_WANTED.of(sizes.load(Ordering::Relaxed));
    let is_asked = wanted != 0 && wanted == halvings;
    if turned && is_asked && 2 * u64::from(fast.measures(flow).cwnd) > endpoint.tx_bytes.into() {
        SEND_WANTED.double(sizes);
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
    let (region, sizes) = (&client.shared.region, &client.shared.region.stack(endpoint.slot).flow_group);
    let is_wanted = || RECEIVE_WANTED.of(sizes.load(Ordering::Relaxed)) < RECEIVE.of(sizes.load(Ordering::Relaxed));
    let halvings = RECEIVE.of(sizes.load(Ordering::Relaxed));
    if (words.rx_head ^ endpoint.rx_head) & endpoint.rx_bytes != 0 {
        let took_us = (now.0 as u32).wrapping_sub(endpoint.turned_at);
        endpoint.turned_at = now.0 as u32;
        let is_bound = took_us <= fast.measures(flow).srtt_us.saturating_mul(2);
        if is_bound && halvings != 0 && !is_wanted() {
            RECEIVE_WANTED.double(sizes);
        }
    }
    let granted = is_wanted() && RECEIVE_GRANTED.of(words.want) < halvings;
    endpoint.growing = granted.into();
    // Its memory must be there, so that nobody but the application is charged for it. If it is not, that is looked at again
    // when the ring has been read once around.
    let (slot, mut has_memory) = (endpoint.slot, true);
    let fits = |bytes, begin, end| {
        ring_size::may_double(bytes, begin, end) && {
            has_memory = region.has_memory(slot, bytes..2 * bytes);
            has_memory
        }
    };
    if granted && fast.double_receive_ring(flow, fits) {
        RECEIVE.double(sizes);
        endpoint.rx_bytes *= 2;
        endpoint.growing = 0;
    }
    if !has_memory {
        endpoint.growing = 0;
    }
    rings.set_endpoint(flow, endpoint);
}
