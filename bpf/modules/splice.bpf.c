// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Splice: makes of each segment of one connection a segment of another, and sends it back over the port that it came from.
// The stack says which: it keeps `towpath_splices`, with an element for each direction.
//
//   towpath module add splice splice.bpf.o
//   towpath module maps splice towpath_splices dump     the directions, and what has gone on

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "towpath.h"

#define OPTION_END 0
#define OPTION_NOP 1
#define OPTION_SACK 5
#define OPTION_TIMESTAMPS 8
#define MOST_OPTION_BYTES 40
// An acknowledgement may be older by so much than one that has overtaken it.
#define OVERTAKEN (1 << 18)

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 65536);
    __type(key, struct towpath_connection);
    __type(value, struct towpath_splice);
} towpath_splices SEC(".maps");

// What a sum of 16-bit words gains where one number takes another's place. It has not been folded.
static __always_inline __u64 change(__u32 from, __u32 to)
{
    return (__u64)(__u32)~from + to;
}

// A checksum, once the sum below it has gained this.
static __always_inline __sum16 corrected(__sum16 check, __u64 gained)
{
    gained += (__u16)~check;
    for (int i = 0; i < 4; i++)
        gained = (gained & 0xffff) + (gained >> 16);
    return ~gained;
}

// Adds to a number of the header, and returns what the sum gains. A word that begins at an odd place has its bytes swapped.
static __always_inline __u64 add(void *at, __u32 by, __u32 odd)
{
    __be32 *number = at, before = *number;
    *number = bpf_htonl(bpf_ntohl(before) + by);
    return change(before, *number) << (odd * 8);
}

// Translates the options, and adds to the sum. Fails if they are malformed.
static __always_inline int options(struct tcphdr *tcp, void *end, struct towpath_splice *splice, __u64 *sum)
{
    // Counted from the header's end, the place is never a constant: the verifier would follow each one by itself.
    __u32 bytes = tcp->doff * 4, left = bytes - sizeof(*tcp), edges = 0;

    for (int i = 0; i < MOST_OPTION_BYTES && left; i++) {
        // The compiler would leave the mask out, by which the verifier knows a bound.
        asm volatile("" : "+r"(left));
        left &= 63;
        __u8 *option = (void *)tcp + (bytes - left & 63);
        __u32 step = 1;
        if (edges) { // So many of a SACK option are to come.
            if ((void *)(option + 4) > end)
                return -1;
            *sum += add(option, splice->ack, left & 1);
            edges--;
            step = 4;
        } else {
            if ((void *)(option + 1) > end)
                return -1;
            if (*option == OPTION_END)
                return 0;
            if (*option != OPTION_NOP) {
                if ((void *)(option + 2) > end || option[1] < 2 || option[1] > left)
                    return -1;
                step = option[1];
            }
            if (*option == OPTION_SACK) {
                if (step % 8 != 2)
                    return -1;
                edges = step / 4;
                step = 2;
            } else if (*option == OPTION_TIMESTAMPS) {
                if (step != 10 || (void *)(option + 10) > end)
                    return -1;
                *sum += add(option + 2, splice->tsval, left & 1);
                if (tcp->ack && *(__be32 *)(option + 6))
                    *sum += add(option + 6, splice->tsecr, left & 1);
            }
        }
        left -= step;
    }
    return 0;
}

SEC("xdp")
int splice(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    struct ethhdr *eth = data;
    struct iphdr *ip = (void *)(eth + 1);
    struct tcphdr *tcp = (void *)(ip + 1);
    __u32 headers, length, seq, acked, window;
    __u64 sum, sum_of_options = 0;

    if ((void *)(tcp + 1) > end || eth->h_proto != bpf_htons(ETH_P_IP) || *(__u8 *)ip != 0x45)
        return XDP_PASS;
    // Not a fragment: neither an offset nor "more".
    if (ip->protocol != IPPROTO_TCP || ip->frag_off & bpf_htons(0x3fff))
        return XDP_PASS;
    struct towpath_connection from = {ip->saddr, ip->daddr, tcp->source, tcp->dest};
    struct towpath_splice *splice = bpf_map_lookup_elem(&towpath_splices, &from);
    if (!splice || tcp->syn)
        return XDP_PASS;
    headers = sizeof(*ip) + tcp->doff * 4;
    length = bpf_ntohs(ip->tot_len);
    // As a router: a segment that goes round in circles comes to an end.
    if (tcp->doff < 5 || length < headers || sizeof(*eth) + length > end - data || ip->ttl <= 1)
        return XDP_DROP;

    // Segments of the other connection are received from `saddr`, so they are sent to it.
    sum = change(ip->saddr, splice->to.daddr) + change(ip->daddr, splice->to.saddr);
    if (options(tcp, end, splice, &sum_of_options))
        return XDP_DROP;
    __builtin_memcpy(__builtin_assume_aligned(eth, 2), splice->dmac, 2 * ETH_ALEN);
    ip->check = corrected(ip->check, sum + change(bpf_htons(1 << 8), 0));
    ip->ttl--;
    ip->saddr = splice->to.daddr;
    ip->daddr = splice->to.saddr;
    sum += change(tcp->source, splice->to.dport) + change(tcp->dest, splice->to.sport) + sum_of_options;
    tcp->source = splice->to.dport;
    tcp->dest = splice->to.sport;
    seq = bpf_ntohl(tcp->seq);
    sum += add(&tcp->seq, splice->seq, 0);
    if (tcp->ack) {
        acked = bpf_ntohl(tcp->ack_seq);
        // One that is a little older was overtaken by the one before it.
        if (splice->acked - acked > OVERTAKEN)
            splice->acked = acked;
        sum += add(&tcp->ack_seq, splice->ack, 0);
    }
    window = bpf_ntohs(tcp->window) << splice->left >> splice->right;
    window = bpf_htons(window > 0xffff ? 0xffff : window);
    sum += change(tcp->window, window);
    tcp->window = window;
    tcp->check = corrected(tcp->check, sum);

    // The segments of one connection come one after the other, so the counts need no atomic addition.
    splice->segments++;
    splice->bytes += length - headers;
    if (tcp->fin) {
        splice->fin = seq + length - headers + 1;
        splice->ended |= 1;
    }
    if (tcp->rst) {
        splice->rst = seq;
        splice->ended |= 2;
    }
    return XDP_TX;
}

char _license[] SEC("license") = "Dual MIT/GPL";
