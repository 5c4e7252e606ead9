/* Reads headers up to TCP's and UDP's. With KERNEL_TYPES their types are those of a kernel (CO-RE), else those of <linux/...>. */
#ifdef KERNEL_TYPES
#include "vmlinux.h"
#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86dd
#define ETH_P_8021Q 0x8100
#else
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
struct vlan_hdr {
    __be16 h_vlan_TCI;
    __be16 h_vlan_encapsulated_proto;
};
#endif
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 1024);
    __type(key, __u64);
    __type(value, __u64);
} seen SEC(".maps");

SEC("xdp") int headers(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    struct ethhdr *eth = data;
    void *next = eth + 1;
    __u64 key = ctx->ingress_ifindex + ctx->rx_queue_index, one = 1;
    __u8 protocol;

    if (next > end)
        return XDP_DROP;
    __u16 proto = eth->h_proto;
    key += eth->h_dest[5] + eth->h_source[5];
    if (proto == bpf_htons(ETH_P_8021Q)) {
        struct vlan_hdr *tag = next;
        next = tag + 1;
        if (next > end)
            return XDP_DROP;
        proto = tag->h_vlan_encapsulated_proto;
        key += tag->h_vlan_TCI;
    }
    if (proto == bpf_htons(ETH_P_IP)) {
        struct iphdr *ip = next;
        next = ip + 1;
        if (next > end || ip->ihl != 5 || ip->version != 4)
            return XDP_DROP;
        key = key * 31 + ip->saddr + ip->daddr + ip->frag_off + ip->tos;
        protocol = ip->protocol;
        ip->ttl--;
    } else if (proto == bpf_htons(ETH_P_IPV6)) {
        struct ipv6hdr *ip = next;
        next = ip + 1;
        if (next > end)
            return XDP_DROP;
        key = key * 31 + ip->saddr.in6_u.u6_addr32[3] + ip->daddr.in6_u.u6_addr8[15] + ip->payload_len;
        protocol = ip->nexthdr;
    } else {
        return XDP_PASS;
    }
    if (protocol == IPPROTO_TCP) {
        struct tcphdr *tcp = next;
        if ((void *)(tcp + 1) > end)
            return XDP_ABORTED;
        if (tcp->syn && !tcp->ack)
            return XDP_TX;
        key = key * 31 + tcp->source + tcp->dest + tcp->doff + tcp->seq + tcp->fin + 2 * tcp->rst;
        tcp->window = bpf_htons(1000);
    } else if (protocol == IPPROTO_UDP) {
        struct udphdr *udp = next;
        if ((void *)(udp + 1) > end)
            return XDP_ABORTED;
        key = key * 31 + udp->source + udp->dest + udp->len;
    }
    bpf_map_update_elem(&seen, &key, &one, BPF_ANY);
    return XDP_PASS;
}

char _license[] SEC("license") = "GPL";
