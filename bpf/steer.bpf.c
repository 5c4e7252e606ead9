// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Steering: TCP that Towpath serves goes to an AF_XDP socket; everything else stays with the kernel.
//
// `towpath_steer` is attached to each interface that is served. Its rules, in order:
//   1. A frame of another VLAN than the interface's in `settings` (0: untagged) passes to the kernel.
//   2. So do frames that are no unfragmented TCP segments: ARP, UDP, neighbour discovery, fragments, IPv6 with extension
//      headers.
//   3. A first SYN of a four-tuple that is PASSIVE in `flows`, or in none, passes to the kernel, whose listening socket
//      names the listener. It is noted in `seen`.
//   4. Every other segment of a four-tuple in `flows`, or of one that is ours in `half_open`, is ours.
//   5. An ICMP error that quotes a segment of a four-tuple in `flows` is ours: only the stack knows the connection.
//   6. With ALL_TCP in `settings`, so is every other TCP segment: the kernel has no device for the VLAN, and ignores
//      them.
//   7. The rest passes: SSH, kernel servers, first SYNs, the kernel's resets for closed ports.
//
// A frame that is ours never passes: the kernel does not know the connection and would reset it. If no socket is bound to
// its queue (`ethtool -L` has made the queue since), a copy of it goes through `strays`. While nobody reads, it is dropped.
// So a connection survives a moment without a reader.
//
// Where packet sockets receive instead of AF_XDP sockets, `towpath_steer` is on no interface, and two programs have the same
// rules. `towpath_receive` is the filter of the packet sockets: each sees all frames, and takes ours. `towpath_drop` is on
// the interface's tcx ingress hook, which a frame reaches after the packet sockets. It drops ours, so that the kernel does
// not see them. Segments of spliced connections it sends on (forward.bpf.h), and the filter does not take them.
//
// `towpath_listen` is attached to listening sockets of the kernel. It takes first SYNs of those in `accelerated` that came
// over a served interface, while the service lives and has room. The kernel has judged such a SYN by all its rules, and
// has chosen the socket. A SYN that has not come here as it is was translated (NAT) or decrypted (IPsec): only the kernel
// can carry its connection. All first SYNs that are not taken are the kernel's, unless the rules of the socket in `rules`
// refuse their peer: such a SYN is dropped. These rules hold also when the service has died.
//
// `towpath_own` (own.bpf.h) takes first SYNs of such sockets before the kernel's firewall, if that is configured.

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/in6.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "forward.bpf.h"
#include "own.bpf.h"
#include "tables.bpf.h"
#include "take.bpf.h"

// Unreachable, time exceeded, parameter problem.
static __always_inline int is_error_type(struct icmp *icmp)
{
    return icmp->type == 3 || icmp->type == 11 || icmp->type == 12;
}

// Unreachable, too big, time exceeded, parameter problem.
static __always_inline int is_error_type6(struct icmp *icmp)
{
    return icmp->type >= 1 && icmp->type <= 4;
}

// An ICMP error quotes a packet that we sent, so the quoted source is our end.
static __always_inline int is_error(struct iphdr *ip, void *end)
{
    struct icmp *icmp = (void *)(ip + 1);
    struct iphdr *quoted = (void *)(icmp + 1);
    if (ip->ihl != 5 || (void *)(quoted + 1) > end || quoted->ihl != 5 || quoted->protocol != IPPROTO_TCP)
        return 0;
    if (!is_error_type(icmp))
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
    if (!is_error_type6(icmp))
        return 0;
    struct flow6 flow = { quoted->daddr, quoted->saddr, ports[1], ports[0] };
    return bpf_map_lookup_elem(&flows6, &flow) != 0;
}

// `value`: of the flow's entry, or 0.
static __always_inline int has_segment(__u32 *value, void *half_opens, void *flow, int first_syn)
{
    if (first_syn)
        return value && *value & ACTIVE;
    if (value)
        return 1;
    __u64 *until = bpf_map_lookup_elem(half_opens, flow);
    return until && bpf_ktime_get_ns() < *until;
}

static __always_inline int is_ours_by(__u32 *value, void *half_opens, void *seen, void *flow, struct tcphdr *tcp,
                                      void *end)
{
    int first_syn = (void *)(tcp + 1) <= end && is_first_syn(tcp);
    int ours = has_segment(value, half_opens, flow, first_syn);
    if (first_syn && !ours) {
        __u32 seq = tcp->seq;
        bpf_map_update_elem(seen, flow, &seq, BPF_ANY);
    }
    return ours;
}

static __always_inline int is_ours4(struct iphdr *ip, void *end, int all)
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
    __u32 *value = bpf_map_lookup_elem(&flows, &flow);
    struct tcphdr *tcp = (void *)ports;
    if ((void *)(tcp + 1) <= end && goes_on4(value, ip, tcp))
        return GOES_ON4;
    return all || is_ours_by(value, &half_open, &seen, &flow, tcp, end);
}

static __always_inline int is_ours6(struct ipv6hdr *ip, void *end, int all)
{
    __be16 *ports = (void *)(ip + 1);
    if ((void *)(ports + 2) > end)
        return 0;
    if (ip->nexthdr == IPPROTO_ICMPV6)
        return is_error6(ip, end);
    if (ip->nexthdr != IPPROTO_TCP)
        return 0;

    struct flow6 flow = { ip->saddr, ip->daddr, ports[0], ports[1] };
    __u32 *value = bpf_map_lookup_elem(&flows6, &flow);
    struct tcphdr *tcp = (void *)ports;
    if ((void *)(tcp + 1) <= end && goes_on(value, ip->hop_limit, tcp))
        return GOES_ON6;
    return all || is_ours_by(value, &half_open6, &seen6, &flow, tcp, end);
}

// The place of an interface; PLACES: it has none. The kernel checks a global function once, and knows nothing of its result.
// Inlined, it would have the rest of a program checked once for each place.
__attribute__((noinline)) __u32 place_of(__u32 interface)
{
    __u32 place;
#pragma clang loop unroll(disable)
    for (place = 0; place < PLACES; place++) {
        __u32 at = place, *index = bpf_map_lookup_elem(&places, &at);
        if (index && *index == interface)
            break;
    }
    return place;
}

// `place`: of the interface. GOES_ON4, GOES_ON6: it is of a spliced connection, and packet sockets do not take it.
static __always_inline int is_ours(void *data, void *end, __u32 place)
{
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
    // An interface has no place for a moment while it is attached to. The kernel must not see our flows then, whatever
    // their tag.
    __u32 *wanted = bpf_map_lookup_elem(&settings, &place);
    if (wanted && (*wanted & ~ALL_TCP) != tag)
        return 0;
    int all = wanted && (*wanted & ALL_TCP) != 0;

    if (type == bpf_htons(ETH_P_IP))
        return is_ours4(packet, end, all);
    if (type == bpf_htons(ETH_P_IPV6))
        return is_ours6(packet, end, all);
    return 0;
}

// Copies a frame of `bytes` bytes to `strays`, in a record with room for `room`, a constant.
static __always_inline int keep(struct xdp_md *ctx, __u32 place, __u32 bytes, const __u32 room)
{
    struct stray *record = bpf_ringbuf_reserve(&strays, sizeof *record + room, 0);
    if (!record)
        return 0;
    record->bytes = bytes;
    record->place = place;
    if (bpf_xdp_load_bytes(ctx, 0, record + 1, bytes)) {
        bpf_ringbuf_discard(record, 0);
        return 0;
    }
    bpf_ringbuf_submit(record, 0);
    return 1;
}

static __always_inline int keep_stray(struct xdp_md *ctx, __u32 place)
{
    __u32 bytes = bpf_xdp_get_buff_len(ctx);
    // Acknowledgements are short, and most other frames have the usual MTU.
    if (bytes < ETH_HLEN)
        return 0;
    if (bytes <= 124)
        return keep(ctx, place, bytes, 124);
    if (bytes <= 1532)
        return keep(ctx, place, bytes, 1532);
    if (bytes <= MOST_STRAY)
        return keep(ctx, place, bytes, MOST_STRAY);
    return 0;
}

static __always_inline int steer(struct xdp_md *ctx)
{
    __u32 place = place_of(ctx->ingress_ifindex), queue = ctx->rx_queue_index;
    if (!is_ours((void *)(long)ctx->data, (void *)(long)ctx->data_end, place)) {
        count(PASSED);
        return XDP_PASS;
    }
    count(STEERED);
    int verdict = XDP_DROP;
    if (place < PLACES && queue < QUEUES)
        verdict = bpf_redirect_map(&sockets, place * QUEUES + queue, XDP_DROP);
    if (verdict == XDP_DROP)
        count(place < PLACES && keep_stray(ctx, place) ? STRAY : LOST);
    return verdict;
}

// Without "frags" drivers refuse the program on interfaces with a large MTU, and veth lowers its peer's.
SEC("xdp.frags")
int towpath_steer(struct xdp_md *ctx)
{
    return steer(ctx);
}

// The same, to be put in the other's place: some drivers run a program on new queues only when it changes.
SEC("xdp.frags")
int towpath_steer2(struct xdp_md *ctx)
{
    return steer(ctx);
}

// The longest headers that `is_ours` reads: an ICMPv6 error with the ports of the quoted segment.
#define MOST_HEADERS (ETH_HLEN + sizeof(struct ipv6hdr) + sizeof(struct icmp) + sizeof(struct ipv6hdr) + 4)

SEC("classifier")
int towpath_drop(struct __sk_buff *skb)
{
    // The tag is not in the frame, and packet sockets serve no VLAN.
    if (skb->vlan_present)
        return NEXT;
    __u32 wanted = skb->len < MOST_HEADERS ? skb->len : MOST_HEADERS;
    if (skb->data_end - skb->data < wanted)
        bpf_skb_pull_data(skb, wanted);
    int ours = is_ours((void *)(long)skb->data, (void *)(long)skb->data_end, place_of(skb->ifindex));
    if (!ours) {
        count(PASSED);
        return NEXT;
    }
    count(STEERED);
    return ours == GOES_ON4 ? send_on4(skb) : ours == GOES_ON6 ? send_on6(skb) : DROP;
}

static __always_inline int load(struct __sk_buff *skb, __u32 at, void *to, __u32 bytes)
{
    return bpf_skb_load_bytes(skb, at, to, bytes) == 0;
}

// The same rules for a frame whose bytes must be asked for.
static __always_inline int receives4(struct __sk_buff *skb)
{
    struct iphdr ip;
    struct tcphdr tcp;
    __be16 ports[2];
    __u32 at = ETH_HLEN + sizeof ip;
    if (!load(skb, ETH_HLEN, &ip, sizeof ip) || ip.ihl < 5 || ip.frag_off & bpf_htons(0x3fff))
        return 0;
    if (ip.protocol == IPPROTO_ICMP) {
        struct icmp icmp;
        struct iphdr quoted;
        if (ip.ihl != 5 || !load(skb, at, &icmp, sizeof icmp) || !load(skb, at + sizeof icmp, &quoted, sizeof quoted))
            return 0;
        if (!is_error_type(&icmp) || quoted.ihl != 5 || quoted.protocol != IPPROTO_TCP)
            return 0;
        if (!load(skb, at + sizeof icmp + sizeof quoted, ports, sizeof ports))
            return 0;
        struct flow flow = { quoted.daddr, quoted.saddr, ports[1], ports[0] };
        return bpf_map_lookup_elem(&flows, &flow) != 0;
    }
    if (ip.protocol != IPPROTO_TCP || !load(skb, ETH_HLEN + ip.ihl * 4, &tcp, sizeof tcp))
        return 0;
    struct flow flow = { ip.saddr, ip.daddr, tcp.source, tcp.dest };
    __u32 *value = bpf_map_lookup_elem(&flows, &flow);
    return !goes_on4(value, &ip, &tcp) && has_segment(value, &half_open, &flow, is_first_syn(&tcp));
}

static __always_inline int receives6(struct __sk_buff *skb)
{
    struct ipv6hdr ip;
    struct tcphdr tcp;
    __be16 ports[2];
    __u32 at = ETH_HLEN + sizeof ip;
    if (!load(skb, ETH_HLEN, &ip, sizeof ip))
        return 0;
    if (ip.nexthdr == IPPROTO_ICMPV6) {
        struct icmp icmp;
        struct ipv6hdr quoted;
        if (!load(skb, at, &icmp, sizeof icmp) || !load(skb, at + sizeof icmp, &quoted, sizeof quoted))
            return 0;
        if (!is_error_type6(&icmp) || quoted.nexthdr != IPPROTO_TCP)
            return 0;
        if (!load(skb, at + sizeof icmp + sizeof quoted, ports, sizeof ports))
            return 0;
        struct flow6 flow = { quoted.daddr, quoted.saddr, ports[1], ports[0] };
        return bpf_map_lookup_elem(&flows6, &flow) != 0;
    }
    if (ip.nexthdr != IPPROTO_TCP || !load(skb, at, &tcp, sizeof tcp))
        return 0;
    struct flow6 flow = { ip.saddr, ip.daddr, tcp.source, tcp.dest };
    __u32 *value = bpf_map_lookup_elem(&flows6, &flow);
    return !goes_on(value, ip.hop_limit, &tcp) && has_segment(value, &half_open6, &flow, is_first_syn(&tcp));
}

SEC("socket")
int towpath_receive(struct __sk_buff *skb)
{
    struct ethhdr ethernet;
    if (skb->vlan_present || !load(skb, 0, &ethernet, sizeof ethernet))
        return 0;
    int ours = ethernet.h_proto == bpf_htons(ETH_P_IP)     ? receives4(skb)
               : ethernet.h_proto == bpf_htons(ETH_P_IPV6) ? receives6(skb)
                                                           : 0;
    return ours ? skb->len : 0;
}

// The packet begins with its TCP header. The sockets of accepted connections inherit the program, but all is theirs.
SEC("socket")
int towpath_listen(struct __sk_buff *skb)
{
    struct bpf_sock *socket = skb->sk;
    if (!socket || socket->state != BPF_TCP_LISTEN)
        return KERNELS;
    struct tcphdr tcp;
    if (bpf_skb_load_bytes(skb, 0, &tcp, sizeof tcp) || !is_first_syn(&tcp))
        return KERNELS;
    __u32 interface = skb->ifindex;
    int is_served = bpf_map_lookup_elem(&served, &interface) != 0;
    __u64 cookie = bpf_get_socket_cookie(skb);
    struct ends ends = {};
    if (skb->protocol == bpf_htons(ETH_P_IP)) {
        struct iphdr ip;
        if (bpf_skb_load_bytes_relative(skb, 0, &ip, sizeof ip, BPF_HDR_START_NET))
            return OURS;
        ends.remote[1] = mapped(ip.saddr);
        ends.local[1] = mapped(ip.daddr);
        ends.family = V4;
        if (!is_served)
            return not_taken(cookie, &ends);
        struct flow flow = { ip.saddr, ip.daddr, tcp.source, tcp.dest };
        return take(skb, ip.ihl * 4, cookie, &ends, &flows, &half_open, &kernels, &seen, &flow, &tcp, 0, 0);
    }
    struct ipv6hdr ip;
    if (skb->protocol != bpf_htons(ETH_P_IPV6) ||
        bpf_skb_load_bytes_relative(skb, 0, &ip, sizeof ip, BPF_HDR_START_NET))
        return OURS;
    __builtin_memcpy(ends.remote, &ip.saddr, sizeof ends.remote);
    __builtin_memcpy(ends.local, &ip.daddr, sizeof ends.local);
    ends.family = V6;
    // The segments that follow would pass `towpath_steer`, which reads no extension headers.
    if (!is_served || ip.nexthdr != IPPROTO_TCP)
        return not_taken(cookie, &ends);
    struct flow6 flow = { ip.saddr, ip.daddr, tcp.source, tcp.dest };
    return take(skb, sizeof ip, cookie, &ends, &flows6, &half_open6, &kernels6, &seen6, &flow, &tcp, 1, 0);
}

// The helpers used here may be called under any licence. Others require one that names the GPL.
char _license[] SEC("license") = "Dual MIT/GPL";
