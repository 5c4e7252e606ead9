// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Steering: TCP that Towpath serves goes to an AF_XDP socket; everything else stays with the kernel.
//
// The rules, in order:
//   1. A frame of another VLAN than the one in `settings` (0: untagged) passes to the kernel.
//   2. So do frames that are no unfragmented TCP segments: ARP, UDP, neighbour discovery, fragments, IPv6 with extension headers.
//   3. An exact four-tuple in `flows` is ours.
//   4. A destination (address, port) in `listeners`, or (any address, port), is ours.
//   5. An ICMP error that quotes a segment of a four-tuple in `flows` is ours: only the stack knows the connection.
//   6. The rest passes: SSH, kernel servers, the kernel's resets for closed ports.
//
// A frame that is ours is DROPPED if no socket is bound to its queue. The kernel does not know the connection and would
// reset it. So a connection survives a moment without a reader.

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/in6.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

// Addresses and ports in network byte order. crates/ports/src/steering.rs has the same layouts.
struct flow {
    __be32 remote, local;
    __be16 remote_port, local_port;
};

struct listener {
    __be32 local; // 0: any address
    __be16 port;
    __u16 zero;
};

struct flow6 {
    struct in6_addr remote, local;
    __be16 remote_port, local_port;
};

struct listener6 {
    struct in6_addr local; // ::: any address
    __be16 port;
    __u16 zero;
};

// IEEE 802.1Q.
struct vlan {
    __be16 control, ethertype;
};

// ICMP and ICMPv6 errors (RFC 792, RFC 4443 section 3): type and checksum, a word that depends on the type, the quoted
// packet.
struct icmp {
    __u8 type, code;
    __be16 checksum;
    __be32 rest;
};

enum { STEERED, PASSED, STATS };
enum { VLAN, SETTINGS };

struct {
    __uint(type, BPF_MAP_TYPE_XSKMAP);
    __uint(max_entries, 256);
    __type(key, __u32);
    __type(value, __u32);
} sockets SEC(".maps");

// As many entries as the stack has flows. They are allocated when used.
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
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 1 << 20);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, struct flow6);
    __type(value, __u32);
} flows6 SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 1 << 16);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, struct listener6);
    __type(value, __u32);
} listeners6 SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, SETTINGS);
    __type(key, __u32);
    __type(value, __u32);
} settings SEC(".maps");

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

// An ICMP error quotes a packet that we sent, so the quoted source is our end.
static __always_inline int is_error(struct iphdr *ip, void *end)
{
    struct icmp *icmp = (void *)(ip + 1);
    struct iphdr *quoted = (void *)(icmp + 1);
    if (ip->ihl != 5 || (void *)(quoted + 1) > end || quoted->ihl != 5 || quoted->protocol != IPPROTO_TCP)
        return 0;
    if (icmp->type != 3 && icmp->type != 11 && icmp->type != 12) // unreachable, time exceeded, parameter problem
        return 0;
    __be16 *ports = (void *)(quoted + 1);
    if ((void *)(ports + 2) > end)
        return 0;
    struct flow flow = { quoted->daddr, quoted->saddr, ports[1], ports[0] };
    return bpf_map_lookup_elem(&flows, &flow) != 0;
}

static __always_inline int is_error6(struct ipv6hdr *ip, void *end)
{
    struct icmp *icmp = (void *)(ip + 1);
    struct ipv6hdr *quoted = (void *)(icmp + 1);
    __be16 *ports = (void *)(quoted + 1);
    if ((void *)(ports + 2) > end || quoted->nexthdr != IPPROTO_TCP)
        return 0;
    if (icmp->type < 1 || icmp->type > 4) // unreachable, too big, time exceeded, parameter problem
        return 0;
    struct flow6 flow = { quoted->daddr, quoted->saddr, ports[1], ports[0] };
    return bpf_map_lookup_elem(&flows6, &flow) != 0;
}

static __always_inline int is_ours4(struct iphdr *ip, void *end)
{
    if ((void *)(ip + 1) > end || ip->ihl < 5)
        return 0;
    if (ip->frag_off & bpf_htons(0x3fff)) // more fragments, or an offset
        return 0;
    if (ip->protocol == IPPROTO_ICMP)
        return is_error(ip, end);
    if (ip->protocol != IPPROTO_TCP)
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

static __always_inline int is_ours6(struct ipv6hdr *ip, void *end)
{
    __be16 *ports = (void *)(ip + 1);
    if ((void *)(ports + 2) > end)
        return 0;
    if (ip->nexthdr == IPPROTO_ICMPV6)
        return is_error6(ip, end);
    if (ip->nexthdr != IPPROTO_TCP)
        return 0;

    struct flow6 flow = { ip->saddr, ip->daddr, ports[0], ports[1] };
    if (bpf_map_lookup_elem(&flows6, &flow))
        return 1;
    struct listener6 listener = { ip->daddr, ports[1], 0 };
    if (bpf_map_lookup_elem(&listeners6, &listener))
        return 1;
    __builtin_memset(&listener.local, 0, sizeof listener.local);
    return bpf_map_lookup_elem(&listeners6, &listener) != 0;
}

static __always_inline int is_ours(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data;
    void *end = (void *)(long)ctx->data_end;

    struct ethhdr *ethernet = data;
    void *packet = ethernet + 1;
    if (packet > end)
        return 0;
    __be16 type = ethernet->h_proto;
    __u32 tag = 0;
    if (type == bpf_htons(ETH_P_8021Q)) {
        struct vlan *vlan = packet;
        packet = vlan + 1;
        if (packet > end)
            return 0;
        tag = bpf_ntohs(vlan->control) & 0xfff;
        type = vlan->ethertype;
    }
    __u32 index = VLAN;
    __u32 *wanted = bpf_map_lookup_elem(&settings, &index);
    if (!wanted || *wanted != tag)
        return 0;

    if (type == bpf_htons(ETH_P_IP))
        return is_ours4(packet, end);
    if (type == bpf_htons(ETH_P_IPV6))
        return is_ours6(packet, end);
    return 0;
}

// Without "frags" drivers refuse the program on interfaces with a large MTU, and veth lowers its peer's.
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

// The helpers used here may be called under any licence. Others require one that names the GPL.
char _license[] SEC("license") = "Dual MIT/GPL";
