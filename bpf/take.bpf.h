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
    if (!bpf_map_lookup_elem(&accelerated, &cookie))
        return early ? not_taken(cookie, ends) : leave_to_kernel(cookie, ends, half_opens, kernels, flow);
    if (!service_runs())
        return cannot_take(cookie, ends, flows, half_opens, kernels, flow, STALE, early);
    struct syn *syn = bpf_ringbuf_reserve(&syns, sizeof *syn, 0);
    if (!syn)
        return cannot_take(cookie, ends, flows, half_opens, kernels, flow, FULL, early);
    __u32 tcp_bytes = tcp->doff * 4, ip_bytes = v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);
    if (tcp_bytes < sizeof *tcp || tcp_bytes > sizeof syn->tcp ||
        bpf_skb_load_bytes_relative(skb, at, syn->tcp, tcp_bytes, BPF_HDR_START_NET) ||
        bpf_skb_load_bytes_relative(skb, 0, syn->ethernet, ETH_HLEN, BPF_HDR_START_MAC) ||
        bpf_skb_load_bytes_relative(skb, 0, syn->ip, ip_bytes, BPF_HDR_START_NET)) {
        bpf_ringbuf_discard(syn, 0);
        return not_taken(cookie, ends);
    }
    syn->cookie = cookie;
    syn->interface = skb->ifindex;
    syn->queue = skb->queue_mapping;
    syn->v6 = v6;
    syn->tcp_bytes = tcp_bytes;
    syn->zero = 0;
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
