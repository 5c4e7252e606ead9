// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Firewall: drops TCP segments by the local and the remote end, and counts what it drops.
//
//   towpath module add firewall firewall.bpf.o
//   towpath module maps firewall blocked_ports set 5001 1        no segment from or for port 5001
//   towpath module maps firewall blocked_nets set 10.9.0.0/16 1  nor from or for this network
//   towpath module maps firewall dropped dump                    how many

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

// Dropped for their port, and for their network.
struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 2);
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

SEC("xdp")
int firewall(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    struct ethhdr *eth = data;
    struct tcphdr *tcp;

    if ((void *)(eth + 1) > end)
        return XDP_PASS;
    if (eth->h_proto == bpf_htons(ETH_P_IP)) {
        struct iphdr *ip = (void *)(eth + 1);
        if ((void *)(ip + 1) > end || ip->protocol != IPPROTO_TCP || ip->ihl < 5)
            return XDP_PASS;
        if (blocked_net(ip->saddr) || blocked_net(ip->daddr))
            return drop(1);
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
    return XDP_PASS;
}

char _license[] SEC("license") = "Dual MIT/GPL";
