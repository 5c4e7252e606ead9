// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Firewall: drops TCP segments by the local and the remote end, limits the connections of each IPv4 address, and counts what it drops.
//
//   towpath module add firewall firewall.bpf.o
//   towpath module maps firewall blocked_ports set 5001 1        no segment from or for port 5001
//   towpath module maps firewall blocked_nets set 10.9.0.0/16 1  nor from or for this network
//   towpath module maps firewall dropped dump                    how many
//
// Limits need the module at both hooks (docs/guide/modules.md):
//
//   towpath module maps firewall counting set 0 1
//   towpath module maps firewall limits set 10.9.0.0/16 5        connections begun by each address of this network

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

// By port in host byte order.
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 1024);
    __type(key, __u16);
    __type(value, __u32);
} blocked_ports SEC(".maps");

// IPv4 networks: bits of the prefix, and the address.
struct net {
    __u32 bits;
    __u32 address;
};
struct {
    __uint(type, BPF_MAP_TYPE_LPM_TRIE);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __uint(max_entries, 1024);
    __type(key, struct net);
    __type(value, __u32);
} blocked_nets SEC(".maps");

// 1: connections are counted. The modules at both hooks have this map, and those of connections.
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, __u32);
} counting SEC(".maps");

// Most connections that each address of a network may have begun.
struct {
    __uint(type, BPF_MAP_TYPE_LPM_TRIE);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __uint(max_entries, 1024);
    __type(key, struct net);
    __type(value, __u32);
} limits SEC(".maps");

// A connection: who has begun it, and with whom.
struct ends {
    __be32 client;
    __be32 server;
    __be16 client_port;
    __be16 server_port;
};

// The sequence number of each SYN that was answered. Forged SYNs push others out of this map, and out of no other one.
struct {
    __uint(type, BPF_MAP_TYPE_LRU_HASH);
    __uint(max_entries, 16384);
    __type(key, struct ends);
    __type(value, __u32);
} opening SEC(".maps");

#define CLIENT_FIN 1
#define SERVER_FIN 2
#define ENDED 4
#define CLIENT_RST 8
struct connection {
    __u64 seen_ns; // Last segment.
    __u32 acked;   // The server's last acknowledgement.
    __u32 state;
};
struct {
    __uint(type, BPF_MAP_TYPE_LRU_HASH);
    __uint(max_entries, 65536);
    __type(key, struct ends);
    __type(value, struct connection);
} connections SEC(".maps");

// The connections of an address, by numbers from 0 on, as far as it has a limit. A number is free if its connection is not there, or not any more: so nothing
// that is pushed out of a map counts for ever.
#define MOST 256
#define IDLE_NS (600ull * 1000000000)
struct number {
    __be32 client;
    __u32 number;
};
struct {
    __uint(type, BPF_MAP_TYPE_LRU_HASH);
    __uint(max_entries, 65536);
    __type(key, struct number);
    __type(value, struct ends);
} numbers SEC(".maps");

// Dropped for their port, for their network, and for a limit.
struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 3);
    __type(key, __u32);
    __type(value, __u64);
} dropped SEC(".maps");

static __always_inline int drop(__u32 why)
{
    __u64 *count = bpf_map_lookup_elem(&dropped, &why);
    if (count)
        *count += 1;
    return XDP_DROP;
}

static __always_inline int blocked_net(__u32 address)
{
    struct net net = {.bits = 32, .address = address};
    return bpf_map_lookup_elem(&blocked_nets, &net) != NULL;
}

static __always_inline int blocked_port(__be16 port)
{
    __u16 key = bpf_ntohs(port);
    return bpf_map_lookup_elem(&blocked_ports, &key) != NULL;
}

// More than MOST: there is no limit.
static __always_inline __u32 most_of(__be32 client)
{
    struct net net = {.bits = 32, .address = client};
    __u32 *most = bpf_map_lookup_elem(&limits, &net);
    return most ? *most : MOST + 1;
}

static __always_inline int counts(struct connection *one, __u64 now)
{
    return one && !(one->state & ENDED) && now - one->seen_ns < IDLE_NS;
}

// Gives a connection a number of its address's. 0: all are taken.
static __always_inline int take_number(struct ends *ends, __u32 most, __u64 now)
{
    struct number number = {.client = ends->client};
    for (__u32 at = 0; at < MOST; at++) {
        if (at >= most)
            return 0;
        number.number = at;
        struct ends *other = bpf_map_lookup_elem(&numbers, &number);
        if (other) {
            // The map's element may change meanwhile.
            struct ends copy = *other;
            if (counts(bpf_map_lookup_elem(&connections, &copy), now))
                continue;
        }
        return !bpf_map_update_elem(&numbers, &number, ends, BPF_ANY);
    }
    return 0;
}

// A segment of whoever has begun the connection. 0: it is dropped.
static __always_inline int from_client(struct ends *ends, struct tcphdr *tcp, int has_payload, __u64 now)
{
    struct connection *one = bpf_map_lookup_elem(&connections, ends);
    if (one) {
        // It ends when the server has said so, too, or by a reset that the server must believe. Whoever goes on all the same needs
        // a number again.
        if (one->state & ENDED) {
            __u32 most = most_of(ends->client);
            if (!has_payload || most > MOST)
                return 1;
            if (!take_number(ends, most, now))
                return 0;
            one->state = 0;
        }
        one->seen_ns = now;
        if (tcp->fin)
            one->state |= CLIENT_FIN | (one->state & SERVER_FIN ? ENDED : 0);
        if (tcp->rst && bpf_ntohl(tcp->seq) == one->acked)
            one->state |= ENDED | CLIENT_RST;
        return 1;
    }
    // Who acknowledges what was sent to it is there: a forger would have to guess the number.
    __u32 *sent = bpf_map_lookup_elem(&opening, ends);
    if (!sent || !tcp->ack || tcp->rst || bpf_ntohl(tcp->ack_seq) != *sent + 1)
        return 1;
    __u32 most = most_of(ends->client);
    if (most > MOST)
        return 1;
    if (!take_number(ends, most, now))
        return 0;
    struct connection begun = {.seen_ns = now, .acked = bpf_ntohl(tcp->seq)};
    bpf_map_update_elem(&connections, ends, &begun, BPF_ANY);
    bpf_map_delete_elem(&opening, ends);
    return 1;
}

// A segment of the other end. It is believed, as the stack has made it, or its peer's.
static __always_inline void from_server(struct connection *one, struct tcphdr *tcp, __u64 now)
{
    one->seen_ns = now;
    // The server has not believed the client's reset: data before it may have made it old. So the connection goes on, and counts.
    if (one->state & CLIENT_RST && !tcp->rst)
        one->state &= ~(ENDED | CLIENT_RST);
    if (tcp->ack)
        one->acked = bpf_ntohl(tcp->ack_seq);
    if (tcp->fin)
        one->state |= SERVER_FIN | (one->state & CLIENT_FIN ? ENDED : 0);
    if (tcp->rst)
        one->state |= ENDED;
}

// Is the segment within the limit of whoever has begun its connection?
static __always_inline int within_limit(struct iphdr *ip, struct tcphdr *tcp)
{
    __u32 zero = 0, *is_on = bpf_map_lookup_elem(&counting, &zero);
    if (!is_on || !*is_on)
        return 1;
    __u64 now = bpf_ktime_get_ns();
    struct ends sent = {ip->saddr, ip->daddr, tcp->source, tcp->dest};
    struct ends answered = {ip->daddr, ip->saddr, tcp->dest, tcp->source};
    if (tcp->syn) {
        __u32 number = bpf_ntohl(tcp->seq);
        if (tcp->ack)
            bpf_map_update_elem(&opening, &answered, &number, BPF_ANY);
        return 1;
    }
    struct connection *one = bpf_map_lookup_elem(&connections, &answered);
    if (one) {
        from_server(one, tcp, now);
        return 1;
    }
    __u32 headers = ip->ihl * 4 + tcp->doff * 4, length = bpf_ntohs(ip->tot_len);
    // A super-segment may say 0.
    return from_client(&sent, tcp, length > headers || !length, now);
}

SEC("xdp")
int firewall(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    struct ethhdr *eth = data;
    struct iphdr *ipv4 = NULL;
    struct tcphdr *tcp;

    if ((void *)(eth + 1) > end)
        return XDP_PASS;
    if (eth->h_proto == bpf_htons(ETH_P_IP)) {
        struct iphdr *ip = (void *)(eth + 1);
        if ((void *)(ip + 1) > end || ip->protocol != IPPROTO_TCP || ip->ihl < 5)
            return XDP_PASS;
        if (blocked_net(ip->saddr) || blocked_net(ip->daddr))
            return drop(1);
        ipv4 = ip;
        tcp = (void *)ip + ip->ihl * 4;
    } else if (eth->h_proto == bpf_htons(ETH_P_IPV6)) {
        struct ipv6hdr *ip = (void *)(eth + 1);
        if ((void *)(ip + 1) > end || ip->nexthdr != IPPROTO_TCP)
            return XDP_PASS;
        tcp = (void *)(ip + 1);
    } else {
        return XDP_PASS;
    }
    if ((void *)(tcp + 1) > end)
        return XDP_PASS;
    if (blocked_port(tcp->source) || blocked_port(tcp->dest))
        return drop(0);
    if (ipv4 && !within_limit(ipv4, tcp))
        return drop(2);
    return XDP_PASS;
}

char _license[] SEC("license") = "Dual MIT/GPL";
