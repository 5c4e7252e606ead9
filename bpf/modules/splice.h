// SPDX-License-Identifier: MIT OR Apache-2.0
//
// How a segment of one connection becomes a segment of another. The module `splice` does it in the stack, and the kernel's
// part of Towpath (forward.bpf.h) without it.
#pragma once

#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "towpath.h"

#define OPTION_END 0
#define OPTION_NOP 1
#define OPTION_SACK 5
#define OPTION_TIMESTAMPS 8
#define MOST_OPTION_BYTES 40
// An acknowledgement that is older by no more than this was overtaken.
#define OVERTAKEN (1 << 18)

// What sums gain by a translation. They have not been folded.
struct gains {
    __u64 addresses; // The sum of the pseudo-header,
    __u64 segment;   // that of the segment itself,
    __u64 hops;      // and that of the rest of the IP header.
};

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

// Puts so many words of an address in the place of another one, and returns what the sum gains.
static __always_inline __u64 readdress(__be32 *at, const __be32 *address, const int words)
{
    __u64 gained = 0;
    for (int i = 0; i < words; i++) {
        gained += change(at[i], address[i]);
        at[i] = address[i];
    }
    return gained;
}

// Names the connection of a segment, as the stack's tables have it.
static __always_inline void name(struct towpath_connection *from, const void *packet, const struct tcphdr *tcp, const int v6)
{
    const struct ipv6hdr *ip6 = packet;
    const struct iphdr *ip = packet;

    __builtin_memset(from, 0, sizeof(*from));
    for (int i = 0; i < (v6 ? 4 : 1); i++) {
        from->saddr[i] = v6 ? ip6->saddr.s6_addr32[i] : ip->saddr;
        from->daddr[i] = v6 ? ip6->daddr.s6_addr32[i] : ip->daddr;
    }
    from->sport = tcp->source;
    from->dport = tcp->dest;
    from->version = v6 ? 6 : 4;
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

// The ends: segments of the other connection are received from `saddr`, so they are sent to it. Ethernet, IP and ports.
static __always_inline void readdressed(struct ethhdr *eth, struct iphdr *ip, struct ipv6hdr *ip6, const int v6, struct tcphdr *tcp,
                                        const struct towpath_splice *splice, struct gains *gains)
{
    __builtin_memcpy(__builtin_assume_aligned(eth, 2), splice->dmac, 2 * ETH_ALEN);
    gains->addresses = readdress(v6 ? ip6->saddr.s6_addr32 : &ip->saddr, splice->to.daddr, v6 ? 4 : 1);
    gains->addresses += readdress(v6 ? ip6->daddr.s6_addr32 : &ip->daddr, splice->to.saddr, v6 ? 4 : 1);
    gains->segment += change(tcp->source, splice->to.dport) + change(tcp->dest, splice->to.sport);
    tcp->source = splice->to.dport;
    tcp->dest = splice->to.sport;
}

// The numbers: the sequence number, the acknowledgement, and the window by the other connection's scale.
static __always_inline void renumbered(struct tcphdr *tcp, const struct towpath_splice *splice, struct gains *gains)
{
    __u32 window = bpf_ntohs(tcp->window) << splice->left >> splice->right;

    window = bpf_htons(window > 0xffff ? 0xffff : window);
    gains->segment += add(&tcp->seq, splice->seq, 0) + change(tcp->window, window);
    if (tcp->ack)
        gains->segment += add(&tcp->ack_seq, splice->ack, 0);
    tcp->window = window;
}

// Translates a segment without IP options or extension headers but for its checksum, and counts it. `link`: where its IP header
// begins. `bytes`: of the frame. Fails if the segment is malformed, or has been sent on too often.
static __always_inline int translate(struct ethhdr *eth, const __u64 link, const int v6, void *end, __u32 bytes,
                                     struct towpath_splice *splice, struct gains *gains)
{
    struct iphdr *ip = (void *)eth + link;
    struct ipv6hdr *ip6 = (void *)ip;
    const __u32 ip_bytes = v6 ? sizeof(*ip6) : sizeof(*ip);
    struct tcphdr *tcp = (void *)ip + ip_bytes;
    __u32 headers = ip_bytes + tcp->doff * 4, seq = bpf_ntohl(tcp->seq), acked, behind;
    __u32 length = v6 ? ip_bytes + bpf_ntohs(ip6->payload_len) : bpf_ntohs(ip->tot_len);

    // As a router: a segment that goes round in circles comes to an end.
    if (tcp->doff < 5 || length < headers || link + length > bytes || (v6 ? ip6->hop_limit : ip->ttl) <= 1)
        return -1;
    gains->segment = 0;
    if (options(tcp, end, splice, &gains->segment))
        return -1;

    readdressed(eth, ip, ip6, v6, tcp, splice, gains);
    if (v6) {
        gains->hops = change(bpf_htons(1), 0);
        ip6->hop_limit--;
    } else {
        gains->hops = change(bpf_htons(1 << 8), 0);
        ip->check = corrected(ip->check, gains->addresses + gains->hops);
        ip->ttl--;
    }
    if (tcp->ack) {
        acked = bpf_ntohl(tcp->ack_seq);
        behind = splice->acked - acked;
        if (behind > OVERTAKEN) {
            // One that is far older was overtaken, too, or the one before it was forged. Who knows what was sent can tell.
            if (behind < 1U << 31 && splice->acked - splice->newest < 1U << 31)
                splice->newest = splice->acked;
            splice->acked = acked;
        }
    }
    renumbered(tcp, splice, gains);

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
    return 0;
}
