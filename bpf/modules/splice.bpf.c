// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Splice: makes of each segment of one connection a segment of another, and sends it out by that one's interface. Where the
// segment came in says nothing. The stack keeps `towpath_splices`, with an element for each direction.
//
//   towpath module add splice splice.bpf.o
//   towpath module maps splice towpath_splices dump     the directions, and what has gone on

#include <linux/bpf.h>
#include <linux/in.h>
#include "splice.h"

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 65536);
    __type(key, struct towpath_connection);
    __type(value, struct towpath_splice);
} towpath_splices SEC(".maps");

// A segment whose IP header is no longer than it must be, and whose ports can be read. `link`: where the IP header begins.
static __always_inline int goes_on(struct ethhdr *eth, const __u64 link, const int v6, void *end)
{
    struct tcphdr *tcp = (void *)eth + link + (v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr));
    struct towpath_connection from;
    struct gains gains;

    name(&from, (void *)eth + link, tcp, v6);
    struct towpath_splice *splice = bpf_map_lookup_elem(&towpath_splices, &from);
    if (!splice || tcp->syn || splice->tagged != (link != sizeof(*eth)))
        return XDP_PASS;
    if (translate(eth, link, v6, end, end - (void *)eth, splice, &gains))
        return XDP_DROP;
    tcp->check = corrected(tcp->check, gains.addresses + gains.segment);
    return splice->out ? bpf_redirect(splice->out, 0) : XDP_TX;
}

// A packet of this EtherType.
static __always_inline int look(struct ethhdr *eth, const __u64 link, __be16 proto, void *end)
{
    struct iphdr *ip = (void *)eth + link;
    struct ipv6hdr *ip6 = (void *)ip;

    if ((void *)ip + sizeof(*ip) + sizeof(struct tcphdr) > end)
        return XDP_PASS;
    // Not a fragment: neither an offset nor "more".
    if (proto == bpf_htons(ETH_P_IP) && *(__u8 *)ip == 0x45 && ip->protocol == IPPROTO_TCP &&
        !(ip->frag_off & bpf_htons(0x3fff)))
        return goes_on(eth, link, 0, end);
    if ((void *)ip6 + sizeof(*ip6) + sizeof(struct tcphdr) > end)
        return XDP_PASS;
    if (proto == bpf_htons(ETH_P_IPV6) && *(__u8 *)ip6 >> 4 == 6 && ip6->nexthdr == IPPROTO_TCP)
        return goes_on(eth, link, 1, end);
    return XDP_PASS;
}

SEC("xdp")
int splice(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    struct ethhdr *eth = data;
    __be16 *inner = data + sizeof(*eth) + 2; // Behind a tag.

    if ((void *)(inner + 1) > end)
        return XDP_PASS;
    if (eth->h_proto == bpf_htons(ETH_P_8021Q))
        return look(eth, sizeof(*eth) + 4, *inner, end);
    return look(eth, sizeof(*eth), eth->h_proto, end);
}

char _license[] SEC("license") = "Dual MIT/GPL";
