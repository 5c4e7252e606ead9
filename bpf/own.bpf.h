// SPDX-License-Identifier: MIT OR Apache-2.0
//
// `towpath_own` takes first SYNs before the kernel's firewall (`firewall = "own"`). It is on the interface's tcx ingress
// hook, which a frame reaches after XDP and before all of netfilter: the hook "ingress" of nftables comes next.
//
// The kernel names the listener here, too: it is asked which socket the SYN would reach. That one must have the filter
// `towpath_listen`, as there. Whatever the answer cannot be relied on for passes on, and the filter takes it after the
// firewall. Such are:
//   1. Frames that are not for this host, or that only the kernel can read: to another MAC address, of a VLAN, fragments,
//      IPv4 options, IPv6 extension headers, SYNs with data.
//   2. SYNs to addresses that are not in `addresses`, which only a router or a route of the kernel's can bring to a socket.
//   3. SYNs that the kernel drops before its firewall: with a wrong checksum, or from an address that no peer can have.
//   4. SYNs of a four-tuple that has a socket of the kernel's already.
//   5. Those to a group of sockets that has a program to choose among them. The kernel runs it only with the packet.
//   6. Those to a socket with a limit on hops, which the kernel checks when it delivers.
//   7. Those that came encrypted (IPsec): only the kernel can answer them so.
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "peers.bpf.h"
#include "tables.bpf.h"
#include "take.bpf.h"

// The kernel's structures, as far as they are read. Who loads the program finds where this kernel has the fields.
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
typedef struct {
    __s64 counter;
} atomic64_t;

struct bpf_prog_aux {
    __u32 id;
};

struct bpf_prog {
    struct bpf_prog_aux *aux;
};

struct sk_filter {
    struct bpf_prog *prog;
};

struct sock_reuseport {
    struct bpf_prog *prog;
};

struct sock_common {
    atomic64_t skc_cookie;
};

struct sock {
    struct sock_common __sk_common;
    struct sk_filter *sk_filter;
    struct sock_reuseport *sk_reuseport_cb;
};

struct ipv6_pinfo {
    __u8 min_hopcount;
};

struct inet_sock {
    struct sock sk;
    struct ipv6_pinfo *pinet6;
    __u8 min_ttl;
};

struct inet_connection_sock {
    struct inet_sock icsk_inet;
};

struct tcp_sock {
    struct inet_connection_sock inet_conn;
};
#pragma clang attribute pop

// What the TCP checksum covers beside the segment.
struct pseudo {
    __be32 source, destination;
    __be32 protocol_and_length;
};

struct pseudo6 {
    struct in6_addr source, destination;
    __be32 length, protocol;
};

// A segment without data, and zeros after it.
union segment {
    struct tcphdr header;
    __be32 words[15];
};

static __always_inline __u16 folded(__u64 sum)
{
    __u32 half = (__u32)sum;
    half = (half & 0xffff) + (half >> 16);
    return (half & 0xffff) + (half >> 16);
}

// A sender on this host, or on the host of this machine, leaves the sum to its device: then the field has the sum of the
// pseudo header alone.
static __always_inline int has_right_sum(union segment *segment, __u32 pseudo)
{
    return segment->header.check == folded(pseudo) ||
           folded(bpf_csum_diff(0, 0, segment->words, sizeof segment->words, pseudo)) == 0xffff;
}

// Loads from the network header on. Where the frame begins is not sure: after generic XDP some kernels take the Ethernet
// header for none of it (Linux 6.18).
static __always_inline int load_packet(struct __sk_buff *skb, __u32 at, void *to, __u32 bytes)
{
    return bpf_skb_load_bytes_relative(skb, at, to, bytes, BPF_HDR_START_NET);
}

// Loads a first SYN without data from there on, which has so many bytes.
static __always_inline int load_syn(struct __sk_buff *skb, __u32 at, __u32 bytes, union segment *segment)
{
    if (!IS_WITHIN(bytes, sizeof segment->header, sizeof *segment) || load_packet(skb, at, segment, bytes))
        return 0;
    return segment->header.doff * 4 == bytes && is_first_syn(&segment->header);
}

// Is our filter on the socket? Only who has the socket can have attached it.
static __always_inline int has_filter(struct sock *socket)
{
    __u32 zero = 0, *ours = bpf_map_lookup_elem(&filter, &zero);
    struct sk_filter *its = socket->sk_filter;
    return ours && *ours && its && its->prog->aux->id == *ours;
}

// The cookie of the socket that listens for this SYN, if the answer can be relied on; 0: it cannot, or there is none.
static __always_inline __u64 listener_of(struct __sk_buff *skb, struct bpf_sock_tuple *tuple, __u32 bytes)
{
    struct bpf_sock *found = bpf_skc_lookup_tcp(skb, tuple, bytes, BPF_F_CURRENT_NETNS, 0);
    if (!found)
        return 0;
    __u64 cookie = 0;
    struct tcp_sock *tcp = found->state == BPF_TCP_LISTEN ? bpf_skc_to_tcp_sock(found) : 0;
    if (tcp) {
        // A read through a null pointer is 0 here. Some kernels have it asked for all the same.
        struct inet_sock *inet = &tcp->inet_conn.icsk_inet;
        struct sock_reuseport *group = inet->sk.sk_reuseport_cb;
        int chooses = group && group->prog;
        if (has_filter(&inet->sk) && !chooses && !inet->min_ttl && !inet->pinet6->min_hopcount)
            cookie = inet->sk.__sk_common.skc_cookie.counter;
    }
    bpf_sk_release(found);
    return cookie;
}

// Can a peer on the network have this address?
static __always_inline int is_peer4(__be32 address)
{
    __u32 first = bpf_ntohl(address) >> 24;
    return first != 0 && first != 127 && first < 224;
}

// Those of ::/64 are the loopback's, nobody's, and IPv4's. Link-local ones mean nothing without their interface.
static __always_inline int is_peer6(const struct in6_addr *address)
{
    __u32 first = bpf_ntohl(address->s6_addr32[0]);
    return (first || address->s6_addr32[1]) && first >> 24 != 0xff && first >> 22 != 0xfe80 >> 6;
}

// Is the SYN from a peer on the network to an address of this host?
static __always_inline int is_to_us(const struct ends *ends)
{
    return bpf_map_lookup_elem(&addresses, ends->local) && !bpf_map_lookup_elem(&addresses, ends->remote);
}

static __always_inline int takes4(struct __sk_buff *skb)
{
    struct iphdr ip;
    union segment segment = {};
    if (load_packet(skb, 0, &ip, sizeof ip) || ip.version != 4 || ip.ihl != 5 ||
        ip.frag_off & bpf_htons(0x3fff) || ip.protocol != IPPROTO_TCP || !is_peer4(ip.saddr) ||
        !is_peer4(ip.daddr))
        return KERNELS;
    __u32 at = sizeof ip, bytes = bpf_ntohs(ip.tot_len) - sizeof ip;
    if (!load_syn(skb, at, bytes, &segment) || folded(bpf_csum_diff(0, 0, (void *)&ip, sizeof ip, 0)) != 0xffff)
        return KERNELS;
    struct pseudo pseudo = { ip.saddr, ip.daddr, bpf_htonl(IPPROTO_TCP << 16 | bytes) };
    if (!has_right_sum(&segment, bpf_csum_diff(0, 0, (void *)&pseudo, sizeof pseudo, 0)))
        return KERNELS;
    struct ends ends = { .remote = { 0, mapped(ip.saddr) }, .local = { 0, mapped(ip.daddr) }, .family = V4 };
    if (!is_to_us(&ends))
        return KERNELS;
    struct bpf_sock_tuple tuple = {};
    tuple.ipv4.saddr = ip.saddr;
    tuple.ipv4.daddr = ip.daddr;
    tuple.ipv4.sport = segment.header.source;
    tuple.ipv4.dport = segment.header.dest;
    __u64 cookie = listener_of(skb, &tuple, sizeof tuple.ipv4);
    if (!bpf_map_lookup_elem(&accelerated, &cookie))
        return KERNELS;
    struct flow flow = { ip.saddr, ip.daddr, segment.header.source, segment.header.dest };
    return take(skb, at, cookie, &ends, &flows, &half_open, &kernels, &seen, &flow, &segment.header, 0, 1);
}

static __always_inline int takes6(struct __sk_buff *skb)
{
    struct ipv6hdr ip;
    union segment segment = {};
    if (load_packet(skb, 0, &ip, sizeof ip) || ip.version != 6 || ip.nexthdr != IPPROTO_TCP ||
        !is_peer6(&ip.saddr) || !is_peer6(&ip.daddr))
        return KERNELS;
    __u32 at = sizeof ip, bytes = bpf_ntohs(ip.payload_len);
    if (!load_syn(skb, at, bytes, &segment))
        return KERNELS;
    struct pseudo6 pseudo = { ip.saddr, ip.daddr, bpf_htonl(bytes), bpf_htonl(IPPROTO_TCP) };
    if (!has_right_sum(&segment, bpf_csum_diff(0, 0, (void *)&pseudo, sizeof pseudo, 0)))
        return KERNELS;
    struct ends ends = { .family = V6 };
    __builtin_memcpy(ends.remote, &ip.saddr, sizeof ends.remote);
    __builtin_memcpy(ends.local, &ip.daddr, sizeof ends.local);
    if (!is_to_us(&ends))
        return KERNELS;
    struct bpf_sock_tuple tuple = {};
    __builtin_memcpy(tuple.ipv6.saddr, &ip.saddr, sizeof ip.saddr);
    __builtin_memcpy(tuple.ipv6.daddr, &ip.daddr, sizeof ip.daddr);
    tuple.ipv6.sport = segment.header.source;
    tuple.ipv6.dport = segment.header.dest;
    __u64 cookie = listener_of(skb, &tuple, sizeof tuple.ipv6);
    if (!bpf_map_lookup_elem(&accelerated, &cookie))
        return KERNELS;
    struct flow6 flow = { ip.saddr, ip.daddr, segment.header.source, segment.header.dest };
    return take(skb, at, cookie, &ends, &flows6, &half_open6, &kernels6, &seen6, &flow, &segment.header, 1, 1);
}

SEC("classifier")
int towpath_own(struct __sk_buff *skb)
{
    __u32 interface = skb->ifindex;
    struct bpf_xfrm_state decrypted;
    if (skb->vlan_present || skb->pkt_type != PACKET_HOST || !bpf_map_lookup_elem(&served, &interface) ||
        bpf_skb_get_xfrm_state(skb, 0, &decrypted, sizeof decrypted, 0) == 0)
        return NEXT;
    // Some drivers leave the headers in fragments.
    __u32 wanted = ETH_HLEN + sizeof(struct ipv6hdr) + sizeof(union segment);
    if (bpf_skb_pull_data(skb, skb->len < wanted ? skb->len : wanted))
        return NEXT;
    int taken = skb->protocol == bpf_htons(ETH_P_IP)     ? takes4(skb)
                : skb->protocol == bpf_htons(ETH_P_IPV6) ? takes6(skb)
                                                         : KERNELS;
    return taken == OURS ? DROP : NEXT;
}
