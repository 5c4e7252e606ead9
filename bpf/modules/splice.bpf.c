// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Splice: makes of each segment of one connection a segment of another, and sends it back over the port that it came from.
// The stack says which: it keeps `towpath_splices`, with an element for each direction.
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

SEC("xdp")
int splice(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    struct ethhdr *eth = data;
    struct iphdr *ip = (void *)(eth + 1);
    struct tcphdr *tcp = (void *)(ip + 1);
    struct gains gains;

    if ((void *)(tcp + 1) > end || eth->h_proto != bpf_htons(ETH_P_IP) || *(__u8 *)ip != 0x45)
        return XDP_PASS;
    // Not a fragment: neither an offset nor "more".
    if (ip->protocol != IPPROTO_TCP || ip->frag_off & bpf_htons(0x3fff))
        return XDP_PASS;
    struct towpath_connection from = {ip->saddr, ip->daddr, tcp->source, tcp->dest};
    struct towpath_splice *splice = bpf_map_lookup_elem(&towpath_splices, &from);
    if (!splice || tcp->syn)
        return XDP_PASS;
    if (translate(eth, end, end - data, splice, &gains))
        return XDP_DROP;
    tcp->check = corrected(tcp->check, gains.addresses + gains.segment);
    return XDP_TX;
}

char _license[] SEC("license") = "Dual MIT/GPL";
