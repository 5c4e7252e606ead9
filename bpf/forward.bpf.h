// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Segments of spliced connections that the kernel sends on by itself. The stack enters each direction in `splices`, and marks
// it SPLICED in `flows`. Segments that begin or end a connection are the stack's: it must know of them.
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "modules/splice.h"
#include "tables.bpf.h"

// The longest headers of a segment that is sent on: without IP options, with all that TCP may have.
#define MOST_SEGMENT (ETH_HLEN + sizeof(struct iphdr) + sizeof(struct tcphdr) + MOST_OPTION_BYTES)

// As many as the module has at most. A key is what a received segment names, as in `flows`.
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 1 << 16);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, struct flow);
    __type(value, struct towpath_splice);
} splices SEC(".maps");

// Room for the headers of a segment. It is a map's, as the words of options need not be aligned, and on the stack must be.
struct headers {
    __u8 bytes[128];
};

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct headers);
} scratch SEC(".maps");

// `value`: of the flow's entry. The filter of the packet sockets and the program behind it must say the same.
static __always_inline int goes_on(__u32 *value, const struct iphdr *ip, const struct tcphdr *tcp)
{
    return value && *value & SPLICED && ip->ihl == 5 && ip->ttl > 1 && !tcp->syn && !tcp->fin && !tcp->rst;
}

// Translates a frame of which `goes_on` is true, and sends it out by the interface that it came from. The frame may share its
// bytes with packet sockets: only a helper's write gives it its own. A program that writes by itself would do so to each frame.
static __noinline int send_on(struct __sk_buff *skb)
{
    __u32 zero = 0, room = skb->len < MOST_SEGMENT ? skb->len : MOST_SEGMENT, length;
    struct headers *headers = bpf_map_lookup_elem(&scratch, &zero);
    if (!headers)
        return DROP;
    struct ethhdr *eth = (void *)(headers->bytes + 2); // so that the IP header is aligned
    struct iphdr *ip = (void *)(eth + 1);
    struct tcphdr *tcp = (void *)(ip + 1);
    struct gains gains;
    const __u32 check_at = ETH_HLEN + sizeof(*ip) + offsetof(struct tcphdr, check);

    asm volatile("" : "+r"(room));
    if (room < ETH_HLEN + sizeof(*ip) + sizeof(*tcp) || room > MOST_SEGMENT || bpf_skb_load_bytes(skb, 0, eth, room))
        return DROP;
    struct flow flow = { ip->saddr, ip->daddr, tcp->source, tcp->dest };
    struct towpath_splice *splice = bpf_map_lookup_elem(&splices, &flow);
    length = ETH_HLEN + sizeof(*ip) + tcp->doff * 4;
    if (!splice || length > room || translate(eth, headers + 1, skb->len, splice, &gains))
        return DROP;
    asm volatile("" : "+r"(length));
    if (length > MOST_SEGMENT || length < ETH_HLEN || bpf_skb_store_bytes(skb, 0, eth, length, 0))
        return DROP;
    gains.addresses = (__u32)gains.addresses + (gains.addresses >> 32);
    gains.segment = (__u32)gains.segment + (gains.segment >> 32);
    gains.segment = (__u32)gains.segment + (gains.segment >> 32);
    bpf_l4_csum_replace(skb, check_at, 0, gains.segment, 0);
    bpf_l4_csum_replace(skb, check_at, 0, (__u32)gains.addresses + (gains.addresses >> 32), BPF_F_PSEUDO_HDR);
    return bpf_redirect(skb->ifindex, 0);
}
