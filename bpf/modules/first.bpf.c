// SPDX-License-Identifier: MIT OR Apache-2.0
//
// First: the filter of a capture that keeps the first frames of each connection, both ways together, and nothing else.
//
//   clang -O2 -g -target bpf -mcpu=v3 -DFRAMES=20 ... -c first.bpf.c -o first.bpf.o     10 without -DFRAMES
//   towpath capture -w first.pcapng --module first.bpf.o

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#ifndef FRAMES
#define FRAMES 10
#endif

// A connection, by the end whose frame was seen first. An address of IPv4 stands in the first word, and the others are 0.
struct ends {
    __be32 from[4];
    __be32 to[4];
    __be16 from_port;
    __be16 to_port;
};

// How many frames of each were kept. If there are more connections, those that have been silent for longest begin anew.
struct {
    __uint(type, BPF_MAP_TYPE_LRU_HASH);
    __uint(max_entries, 65536);
    __type(key, struct ends);
    __type(value, __u32);
} kept SEC(".maps");

// A segment whose addresses stand at these places.
static __always_inline int look(const __be32 *from, const __be32 *to, const int words, const struct tcphdr *tcp, void *end)
{
    if ((void *)(tcp + 1) > end)
        return XDP_DROP;
    struct ends one = {.from_port = tcp->source, .to_port = tcp->dest};
    struct ends other = {.from_port = tcp->dest, .to_port = tcp->source};
    for (int i = 0; i < words; i++) {
        one.from[i] = other.to[i] = from[i];
        one.to[i] = other.from[i] = to[i];
    }
    __u32 first = 1, *count = bpf_map_lookup_elem(&kept, &one);
    if (!count)
        count = bpf_map_lookup_elem(&kept, &other);
    // The first SYN of a connection may have the ends of one before it.
    if (count && tcp->syn && !tcp->ack)
        *count = 0;
    if (!count)
        return bpf_map_update_elem(&kept, &one, &first, BPF_ANY) ? XDP_DROP : XDP_PASS;
    if (*count >= FRAMES)
        return XDP_DROP;
    // Flow groups share the map, so a few frames more may pass.
    __sync_fetch_and_add(count, 1);
    return XDP_PASS;
}

SEC("xdp")
int first(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    struct ethhdr *eth = data;
    struct iphdr *ip = (void *)(eth + 1);
    struct ipv6hdr *ip6 = (void *)(eth + 1);

    if ((void *)(ip + 1) > end)
        return XDP_DROP;
    if (eth->h_proto == bpf_htons(ETH_P_IP) && ip->ihl >= 5 && ip->protocol == IPPROTO_TCP)
        return look(&ip->saddr, &ip->daddr, 1, (void *)ip + ip->ihl * 4, end);
    if ((void *)(ip6 + 1) > end)
        return XDP_DROP;
    if (eth->h_proto == bpf_htons(ETH_P_IPV6) && ip6->nexthdr == IPPROTO_TCP)
        return look(ip6->saddr.s6_addr32, ip6->daddr.s6_addr32, 4, (void *)(ip6 + 1), end);
    return XDP_DROP;
}

char _license[] SEC("license") = "Dual MIT/GPL";
