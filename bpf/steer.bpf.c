// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Steering: TCP that Towpath serves goes to an AF_XDP socket; everything else stays with the kernel.
//
// The rules, in order:
//   1. What is not an unfragmented IPv4 TCP segment passes to the kernel: ARP, ICMP, UDP, IPv6, VLANs, fragments.
//   2. An exact four-tuple in `flows` is ours.
//   3. A destination (address, port) in `listeners`, or (any address, port), is ours.
//   4. The rest passes: SSH, kernel servers, the kernel's resets for closed ports.
//
// What is ours but finds no socket bound to its queue is DROPPED, not passed: the kernel knows nothing of the connection
// and would reset it. So a connection survives a moment without a reader.

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

// Addresses and ports as they are on the wire. steer.rs has the same layouts.
struct flow {
    __be32 remote, local;
    __be16 remote_port, local_port;
};

struct listener {
    __be32 local; // 0: any address
    __be16 port;
    __u16 zero;
};

enum { STEERED, PASSED, STATS };

struct {
    __uint(type, BPF_MAP_TYPE_XSKMAP);
    __uint(max_entries, 256);
    __type(key, __u32);
    __type(value, __u32);
} sockets SEC(".maps");

// As many as the stack has flows. Entries are allocated when used.
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 1 << 20);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, struct flow);
    __type(value, __u32);
} flows SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 1 << 16);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, struct listener);
    __type(value, __u32);
} listeners SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, STATS);
    __type(key, __u32);
    __type(value, __u64);
} stats SEC(".maps");

static __always_inline void count(__u32 what)
{
    __u64 *value = bpf_map_lookup_elem(&stats, &what);
    if (value)
        *value += 1;
}

static __always_inline int is_ours(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data;
    void *end = (void *)(long)ctx->data_end;

    struct ethhdr *ethernet = data;
    if ((void *)(ethernet + 1) > end || ethernet->h_proto != bpf_htons(ETH_P_IP))
        return 0;

    struct iphdr *ip = (void *)(ethernet + 1);
    if ((void *)(ip + 1) > end || ip->ihl < 5 || ip->protocol != IPPROTO_TCP)
        return 0;
    if (ip->frag_off & bpf_htons(0x3fff)) // more fragments, or an offset
        return 0;

    __be16 *ports = (void *)ip + ip->ihl * 4;
    if ((void *)(ports + 2) > end)
        return 0;

    struct flow flow = { ip->saddr, ip->daddr, ports[0], ports[1] };
    if (bpf_map_lookup_elem(&flows, &flow))
        return 1;
    struct listener listener = { ip->daddr, ports[1], 0 };
    if (bpf_map_lookup_elem(&listeners, &listener))
        return 1;
    listener.local = 0;
    return bpf_map_lookup_elem(&listeners, &listener) != 0;
}

// "frags": else the driver refuses it on interfaces with a large MTU, or shrinks a veth peer's.
SEC("xdp.frags")
int towpath_steer(struct xdp_md *ctx)
{
    if (!is_ours(ctx)) {
        count(PASSED);
        return XDP_PASS;
    }
    count(STEERED);
    return bpf_redirect_map(&sockets, ctx->rx_queue_index, XDP_DROP);
}

// The helpers used are open to any licence; the kernel asks for the word only for those that are not.
char _license[] SEC("license") = "Dual MIT/GPL";
