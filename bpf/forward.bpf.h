// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Segments of spliced connections that the kernel sends on by itself. The stack enters each direction in `splices`, and marks
// it SPLICED in `flows`. Segments that begin or end a connection are the stack's: it must know of them.
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "modules/splice.h"
#include "tables.bpf.h"

// As many as the module has at most.
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 1 << 16);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, struct towpath_connection);
    __type(value, struct towpath_splice);
} splices SEC(".maps");

// Room for the headers of a segment. It is a map's, as the words of options need not be aligned, and on the stack must be.
struct headers {
    __u8 bytes[144];
};

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct headers);
} scratch SEC(".maps");

// `value`: of the flow's entry. `hops`: that the segment may go. The filter of the packet sockets and the program behind it must
// say the same.
static __always_inline int goes_on(__u32 *value, __u32 hops, const struct tcphdr *tcp)
{
    return value && *value & SPLICED && hops > 1 && !tcp->syn && !tcp->fin && !tcp->rst;
}

// The same for a segment over IPv4.
static __always_inline int goes_on4(__u32 *value, const struct iphdr *ip, const struct tcphdr *tcp)
{
    return ip->ihl == 5 && goes_on(value, ip->ttl, tcp);
}

// Translates a frame of which `goes_on` is true, and sends it out. The frame may share its bytes with packet sockets: only a
// helper's write gives it its own. A program that writes by itself would do so to each frame.
static __always_inline int send_on(struct __sk_buff *skb, const int v6)
{
    const __u32 ip_bytes = v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);
    // The longest headers: without IP options, with all that TCP may have.
    const __u32 most = ETH_HLEN + ip_bytes + sizeof(struct tcphdr) + MOST_OPTION_BYTES;
    const __u32 check_at = ETH_HLEN + ip_bytes + offsetof(struct tcphdr, check);
    __u32 zero = 0, room = skb->len < most ? skb->len : most, length;
    struct headers *headers = bpf_map_lookup_elem(&scratch, &zero);
    if (!headers)
        return DROP;
    struct ethhdr *eth = (void *)(headers->bytes + 2); // so that the IP header is aligned
    struct tcphdr *tcp = (void *)(eth + 1) + ip_bytes;
    struct gains gains;

    if (!IS_WITHIN(room, ETH_HLEN + ip_bytes + sizeof(*tcp), most) || bpf_skb_load_bytes(skb, 0, eth, room))
        return DROP;
    struct towpath_connection from;
    name(&from, eth + 1, tcp, v6);
    struct towpath_splice *splice = bpf_map_lookup_elem(&splices, &from);
    length = ETH_HLEN + ip_bytes + tcp->doff * 4;
    if (!splice || length > room || translate(eth, ETH_HLEN, v6, headers + 1, skb->len, splice, &gains))
        return DROP;
    if (!IS_WITHIN(length, ETH_HLEN, most) || bpf_skb_store_bytes(skb, 0, eth, length, 0))
        return DROP;
    gains.addresses = (__u32)gains.addresses + (gains.addresses >> 32);
    gains.addresses = (__u32)gains.addresses + (gains.addresses >> 32);
    gains.segment = (__u32)gains.segment + (gains.segment >> 32);
    gains.segment = (__u32)gains.segment + (gains.segment >> 32);
    bpf_l4_csum_replace(skb, check_at, 0, gains.segment, 0);
    bpf_l4_csum_replace(skb, check_at, 0, gains.addresses, BPF_F_PSEUDO_HDR);
    if (v6) {
        // The header has no sum of its own, for which the helper has just allowed in the sum of a device over the whole frame.
        gains.hops += gains.addresses;
        bpf_csum_update(skb, (__u32)gains.hops + (gains.hops >> 32));
    }
    return bpf_redirect(splice->out, 0);
}

// One after the other: the verifier judges each by itself.
static __noinline int send_on4(struct __sk_buff *skb)
{
    return send_on(skb, 0);
}

static __noinline int send_on6(struct __sk_buff *skb)
{
    return send_on(skb, 1);
}
