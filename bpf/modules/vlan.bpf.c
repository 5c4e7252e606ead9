// SPDX-License-Identifier: MIT OR Apache-2.0
//
// VLAN: takes the tag off frames that are received (vlan_pop), and puts one on frames that are sent (vlan_push).
//
// Modules between the two see no tag. It is for interfaces that are served with `vlan`: others have no frames with one.
//
//   towpath module add pop vlan.bpf.o --program vlan_pop --priority 1
//   towpath module add pop-out vlan.bpf.o --program vlan_pop --hook egress --priority 1
//   towpath module add push vlan.bpf.o --program vlan_push --hook egress --priority 9
//   towpath module maps push tag set 0 7          the tag; 0: none

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

struct vlan {
    __be16 tag;
    __be16 proto;
};

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, __u32);
} tag SEC(".maps");

// Moves the two addresses, so that they stand before what is new there.
static __always_inline void addresses(void *from, void *to)
{
    struct ethhdr header;
    __builtin_memcpy(&header, from, 12);
    __builtin_memcpy(to, &header, 12);
}

SEC("xdp")
int vlan_pop(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    struct ethhdr *eth = data;

    if (data + sizeof(*eth) + sizeof(struct vlan) > end || eth->h_proto != bpf_htons(ETH_P_8021Q))
        return XDP_PASS;
    addresses(data, data + sizeof(struct vlan));
    return bpf_xdp_adjust_head(ctx, sizeof(struct vlan)) ? XDP_ABORTED : XDP_PASS;
}

SEC("xdp")
int vlan_push(struct xdp_md *ctx)
{
    __u32 zero = 0;
    __u32 *wanted = bpf_map_lookup_elem(&tag, &zero);
    void *data, *end;

    if (!wanted || !*wanted)
        return XDP_PASS;
    if (bpf_xdp_adjust_head(ctx, -(int)sizeof(struct vlan)))
        return XDP_ABORTED;
    data = (void *)(long)ctx->data;
    end = (void *)(long)ctx->data_end;
    if (data + sizeof(struct ethhdr) + sizeof(struct vlan) > end)
        return XDP_ABORTED;
    addresses(data + sizeof(struct vlan), data);
    *(__be16 *)(data + 12) = bpf_htons(ETH_P_8021Q);
    *(__be16 *)(data + 14) = bpf_htons(*wanted & 0xfff);
    return XDP_PASS;
}

char _license[] SEC("license") = "Dual MIT/GPL";
