// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Statistics: how long peers take to acknowledge what is sent to them (RTT), as a histogram by powers of two, for each flow group.
//
//   towpath module add rtt rtt.bpf.o --program rtt_received
//   towpath module maps rtt waiting pin
//   towpath module add rtt-sent rtt.bpf.o --program rtt_sent --hook egress --map waiting=waiting
//   towpath module maps rtt rtts dump       place n: 2^n ns and more

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "histogram.h"

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, PLACES);
    __type(key, __u32);
    __type(value, __u64);
} rtts SEC(".maps");

// A connection as the peer's segments name it. An address of IPv4 stands in the first word, and the others are 0.
struct connection {
    __be32 saddr[4];
    __be32 daddr[4];
    __be16 sport;
    __be16 dport;
};

// One segment of each connection is timed at a time.
struct timed {
    __u64 sent_ns; // 0: none.
    __u32 end;     // The sequence number that acknowledges it.
    __u32 next;    // The sequence number after all that was sent.
};

// Both programs have it.
struct {
    __uint(type, BPF_MAP_TYPE_LRU_HASH);
    __uint(max_entries, 65536);
    __type(key, struct connection);
    __type(value, struct timed);
} waiting SEC(".maps");

// The TCP header of a frame, and its connection as the frame names it. NULL: it has none.
static __always_inline struct tcphdr *parse(struct xdp_md *ctx, struct connection *from)
{
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    struct ethhdr *eth = data;
    struct tcphdr *tcp;

    if ((void *)(eth + 1) > end)
        return NULL;
    if (eth->h_proto == bpf_htons(ETH_P_IP)) {
        struct iphdr *ip = (void *)(eth + 1);
        if ((void *)(ip + 1) > end || ip->protocol != IPPROTO_TCP || ip->ihl < 5)
            return NULL;
        from->saddr[0] = ip->saddr;
        from->daddr[0] = ip->daddr;
        tcp = (void *)ip + ip->ihl * 4;
    } else if (eth->h_proto == bpf_htons(ETH_P_IPV6)) {
        struct ipv6hdr *ip = (void *)(eth + 1);
        if ((void *)(ip + 1) > end || ip->nexthdr != IPPROTO_TCP)
            return NULL;
        __builtin_memcpy(from->saddr, &ip->saddr, sizeof(from->saddr));
        __builtin_memcpy(from->daddr, &ip->daddr, sizeof(from->daddr));
        tcp = (void *)(ip + 1);
    } else {
        return NULL;
    }
    if ((void *)(tcp + 1) > end)
        return NULL;
    from->sport = tcp->source;
    from->dport = tcp->dest;
    return tcp;
}

SEC("xdp")
int rtt_sent(struct xdp_md *ctx)
{
    struct connection from = {}, to = {};
    struct tcphdr *tcp = parse(ctx, &from);
    if (!tcp || tcp->doff < 5)
        return XDP_PASS;
    // A super-segment is one: its last segment is acknowledged last.
    __u32 bytes = (void *)(long)ctx->data_end - ((void *)tcp + tcp->doff * 4);
    if (bytes == 0 || bytes > 0xffff)
        return XDP_PASS;
    __builtin_memcpy(to.saddr, from.daddr, sizeof(to.saddr));
    __builtin_memcpy(to.daddr, from.saddr, sizeof(to.daddr));
    to.sport = from.dport;
    to.dport = from.sport;
    __u32 seq = bpf_ntohl(tcp->seq), end = seq + bytes;
    struct timed *timed = bpf_map_lookup_elem(&waiting, &to);
    if (!timed) {
        struct timed first = {.sent_ns = bpf_ktime_get_ns(), .end = end, .next = end};
        bpf_map_update_elem(&waiting, &to, &first, BPF_ANY);
        return XDP_PASS;
    }
    if ((__s32)(seq - timed->next) < 0) {
        // Sent again: nobody can tell which of the two is acknowledged.
        timed->sent_ns = 0;
        return XDP_PASS;
    }
    timed->next = end;
    if (!timed->sent_ns) {
        timed->end = end;
        timed->sent_ns = bpf_ktime_get_ns();
    }
    return XDP_PASS;
}

SEC("xdp")
int rtt_received(struct xdp_md *ctx)
{
    struct connection from = {};
    struct tcphdr *tcp = parse(ctx, &from);
    if (!tcp || !tcp->ack)
        return XDP_PASS;
    struct timed *timed = bpf_map_lookup_elem(&waiting, &from);
    if (!timed || !timed->sent_ns)
        return XDP_PASS;
    // What was never sent cannot be acknowledged: such a segment is forged, or of an older connection.
    __u32 acked = bpf_ntohl(tcp->ack_seq);
    if ((__s32)(acked - timed->end) < 0 || (__s32)(acked - timed->next) > 0)
        return XDP_PASS;
    count(&rtts, bpf_ktime_get_ns() - timed->sent_ns);
    timed->sent_ns = 0;
    return XDP_PASS;
}

char _license[] SEC("license") = "Dual MIT/GPL";
