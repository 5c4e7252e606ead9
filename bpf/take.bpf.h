// SPDX-License-Identifier: MIT OR Apache-2.0
//
// How a first SYN is taken for the service, once the kernel has named the socket that listens for it.
#pragma once

#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "peers.bpf.h"
#include "tables.bpf.h"

static __always_inline void count(__u32 what)
{
    __u64 *value = bpf_map_lookup_elem(&stats, &what);
    if (value)
        *value += 1;
}

// A SYN that begins a connection. One with FIN or RST is nobody's.
static __always_inline int is_first_syn(struct tcphdr *tcp)
{
    return tcp->syn && !tcp->ack && !tcp->rst && !tcp->fin;
}

static __always_inline int service_exists(void)
{
#pragma clang loop unroll(disable)
    for (__u32 place = 0; place < PLACES; place++) {
        __u32 at = place;
        if (bpf_map_lookup_elem(&tripwire, &at))
            return 1;
    }
    return 0;
}

static __always_inline int service_runs(void)
{
    __u32 zero = 0;
    __u64 *beat = bpf_map_lookup_elem(&heartbeat, &zero);
    return service_exists() && beat && bpf_ktime_get_ns() - *beat < STUCK;
}

// A SYN that is not taken: the kernel has it, or nobody.
static __always_inline int not_taken(__u64 cookie, const struct ends *ends)
{
    return is_refused(cookie, ends) ? OURS : KERNELS;
}

// The kernel answers this SYN, so its repetitions are the kernel's, too.
static __always_inline int leave_to_kernel(__u64 cookie, const struct ends *ends, void *half_opens, void *kernels,
                                           void *flow)
{
    if (is_refused(cookie, ends))
        return OURS;
    __u64 until = bpf_ktime_get_ns() + KERNELS_HANDSHAKE;
    bpf_map_update_elem(kernels, flow, &until, BPF_ANY);
    bpf_map_delete_elem(half_opens, flow);
    return KERNELS;
}

// The service cannot have this SYN. If it has the connection, the SYN is dropped: two SYN-ACKs would not agree. The peer
// repeats it. `early`: the firewall has not judged. So nothing is noted: `towpath_listen` does that if the SYN reaches it.
// Otherwise its repetitions, which the service could have, would be left to a firewall that drops them.
static __always_inline int cannot_take(__u64 cookie, const struct ends *ends, void *flows, void *half_opens,
                                       void *kernels, void *flow, __u32 why, int early)
{
    int has = service_exists() && bpf_map_lookup_elem(flows, flow);
    if (has || !early)
        count(why);
    if (has)
        return OURS;
    if (early)
        return not_taken(cookie, ends);
    return leave_to_kernel(cookie, ends, half_opens, kernels, flow);
}

// Takes one more SYN of a socket that is flooded, if it has had fewer than `most` and one for each interval since. Who would add it
// to the shared queue drops it otherwise, before the service has any work with it. CPUs that come here together may take one each.
static __always_inline int has_room_for_one(__u64 *due, __u64 now, __u64 most)
{
    __u64 at = *due > now ? *due : now;
    if (at > now + most * INTERVAL)
        return 0;
    *due = at + INTERVAL;
    return 1;
}

// Was this SYN dropped before, and is it now repeated as a peer would do it? A sender who forges the
// same ones again has a share of that room by his rate.
static __always_inline int is_repeated(const void *flow, __u32 words, __u32 seq, __u64 now)
{
    const __u32 *word = flow;
    __u64 hash = seq;
#pragma clang loop unroll(full)
    for (__u32 i = 0; i < words; i++) {
        hash = (hash ^ word[i]) * 0x9e3779b97f4a7c15ULL;
        hash ^= hash >> 32;
    }
    __u32 at = (hash >> 32) % DROPPED, tag = hash, ms = now / 1000000;
    __u64 *place = bpf_map_lookup_elem(&dropped, &at);
    if (!place)
        return 0;
    __u32 age = ms - (__u32)(*place >> 32);
    if ((__u32)*place == tag && age < MOST_REPEATED) {
        if (age < LEAST_REPEATED)
            return 0;
        // Once: who sends it again and again has no more room than who sends new ones.
        *place = (__u64)ms << 32 | tag;
        return 1;
    }
    *place = (__u64)ms << 32 | tag;
    return 0;
}

// Is this SYN one too many for a socket that is flooded? Of those that are repeated more are taken.
static __always_inline int is_too_many(__u64 *due, __u64 now, const void *flow, __u32 words, __u32 seq)
{
    return !has_room_for_one(due, now, MOST_AT_ONCE) &&
           !(is_repeated(flow, words, seq, now) && has_room_for_one(due, now, 2 * MOST_AT_ONCE));
}

// `at`: where the TCP header begins, from the network header on. `early`: see `cannot_take`.
static __always_inline int take(struct __sk_buff *skb, __u32 at, __u64 cookie, const struct ends *ends, void *flows,
                                void *half_opens, void *kernels, void *seen, void *flow, struct tcphdr *tcp, int v6,
                                int early)
{
    __u32 *seq = bpf_map_lookup_elem(seen, flow);
    if (!seq || *seq != tcp->seq)
        return not_taken(cookie, ends);
    __u64 *until = bpf_map_lookup_elem(kernels, flow);
    if (until && bpf_ktime_get_ns() < *until)
        return not_taken(cookie, ends);
    __u64 *due = bpf_map_lookup_elem(&accelerated, &cookie);
    if (!due)
        return early ? not_taken(cookie, ends) : leave_to_kernel(cookie, ends, half_opens, kernels, flow);
    if (!service_runs())
        return cannot_take(cookie, ends, flows, half_opens, kernels, flow, STALE, early);
    __u64 now = bpf_ktime_get_ns();
    int flooded = *due != CALM;
    __u32 words = (v6 ? sizeof(struct flow6) : sizeof(struct flow)) / sizeof(__u32);
    if (flooded && is_too_many(due, now, flow, words, tcp->seq)) {
        count(LIMITED);
        return OURS;
    }
    struct syn *syn = bpf_ringbuf_reserve(&syns, sizeof *syn, 0);
    if (!syn)
        return cannot_take(cookie, ends, flows, half_opens, kernels, flow, FULL, early);
    __u32 tcp_bytes = tcp->doff * 4, ip_bytes = v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);
    if (!IS_WITHIN(tcp_bytes, sizeof *tcp, sizeof syn->tcp) ||
        bpf_skb_load_bytes_relative(skb, at, syn->tcp, tcp_bytes, BPF_HDR_START_NET) ||
        bpf_skb_load_bytes_relative(skb, 0, syn->ethernet, ETH_HLEN, BPF_HDR_START_MAC) ||
        bpf_skb_load_bytes_relative(skb, 0, syn->ip, ip_bytes, BPF_HDR_START_NET)) {
        bpf_ringbuf_discard(syn, 0);
        return not_taken(cookie, ends);
    }
    // The service would do so for each cookie, with a system call.
    __u64 end = now + COOKIE_LIFE;
    syn->steered = flooded && bpf_map_update_elem(half_opens, flow, &end, BPF_ANY) == 0;
    syn->cookie = cookie;
    syn->taken = now;
    syn->interface = skb->ifindex;
    syn->queue = skb->queue_mapping;
    syn->v6 = v6;
    syn->tcp_bytes = tcp_bytes;
    bpf_ringbuf_submit(syn, 0);
    count(TAKEN);
    return OURS;
}

// The IPv6 form of an IPv4 address, its second word.
static __always_inline __u64 mapped(__be32 address)
{
    __be32 words[2] = { bpf_htonl(0xffff), address };
    __u64 word;
    __builtin_memcpy(&word, words, sizeof word);
    return word;
}
