// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Firewall: drops TCP segments by the local and the remote end, limits the connections of each client, and counts what it drops.
//
//   towpath module add firewall firewall.bpf.o
//   towpath module maps firewall blocked_ports set 5001 1        no segment from or for port 5001
//   towpath module maps firewall blocked_nets set 10.9.0.0/16 1  nor from or for this network (blocked_nets6: of IPv6)
//   towpath module maps firewall dropped dump                    how many
//
// Limits need the module at both hooks (docs/guide/modules.md):
//
//   towpath module maps firewall counting set 0 1                2: over AF_XDP
//   towpath module maps firewall limits set 10.9.0.0/16 5        connections begun by each address of this network
//   towpath module maps firewall limits6 set 2001:db8::/32 5     and by each /64 of this one

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

// Networks: bits of the prefix, and the address.
struct net {
    __u32 bits;
    __be32 address;
};
struct net6 {
    __u32 bits;
    __be32 address[4];
};
struct {
    __uint(type, BPF_MAP_TYPE_LPM_TRIE);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __uint(max_entries, 1024);
    __type(key, struct net);
    __type(value, __u32);
} blocked_nets SEC(".maps");
struct {
    __uint(type, BPF_MAP_TYPE_LPM_TRIE);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __uint(max_entries, 1024);
    __type(key, struct net6);
    __type(value, __u32);
} blocked_nets6 SEC(".maps");

// 1: connections are counted. The modules at both hooks have this map, and those of connections and numbers. 2: so they are, and no
// segment comes with the pseudo-header's sum alone. So it is over AF_XDP.
#define WHOLE_SUMS 2
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, __u32);
} counting SEC(".maps");

// Most connections that each client of a network may have begun.
struct {
    __uint(type, BPF_MAP_TYPE_LPM_TRIE);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __uint(max_entries, 1024);
    __type(key, struct net);
    __type(value, __u32);
} limits SEC(".maps");
struct {
    __uint(type, BPF_MAP_TYPE_LPM_TRIE);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __uint(max_entries, 1024);
    __type(key, struct net6);
    __type(value, __u32);
} limits6 SEC(".maps");

// A connection: who has begun it, and with whom. An address of IPv4 stands in the first word, and the others are 0.
struct ends {
    __be32 client[4];
    __be32 server[4];
    __be16 client_port;
    __be16 server_port;
    __u32 version; // 4 or 6: of IP.
};

// The numbers of each answer to a SYN. Forged SYNs push others out of this map, and out of no other one.
struct answer {
    __u32 number; // Its own sequence number,
    __u32 acked;  // and what it acknowledges.
};
struct {
    __uint(type, BPF_MAP_TYPE_LRU_HASH);
    __uint(max_entries, 16384);
    __type(key, struct ends);
    __type(value, struct answer);
} opening SEC(".maps");

#define CLIENT_FIN 1
#define SERVER_FIN 2
#define ENDED 4
#define RESET 8    // By a reset of either end, which the server may not have followed.
#define GOES_ON 16 // It has not, and the connection's place is another one's.
#define SAID_FIN 32 // The client has sent one, which the server has not acknowledged.
struct connection {
    __u64 seen_ns; // Last segment.
    __u32 acked;   // The server's last acknowledgement.
    __u32 state;
    __u32 number;   // See below.
    __u32 answered; // The sequence number of the server's last SYN.
    __u32 sent;     // The end of the client's payload, as far as it was seen,
    __u32 fin;      // and the number after its FIN.
};
struct {
    __uint(type, BPF_MAP_TYPE_LRU_HASH);
    __uint(max_entries, 65536);
    __type(key, struct ends);
    __type(value, struct connection);
} connections SEC(".maps");

// Who is counted: an address of IPv4, or a network of IPv6, all of whose 2^64 addresses one host may have.
struct client {
    __be32 network[2];
    __u32 version;
};

// The connections of a client, by numbers from 0 on, as far as it has a limit. A number is free if its connection is not there, or not any more: so nothing
// that is pushed out of a map counts for ever.
#define MOST 16384
#define IDLE_NS (600ull * 1000000000)
struct number {
    struct client client;
    __u32 number;
};
struct holder {
    struct ends ends;
    __u32 before; // Once its connection has ended: 1 + the number that became free before it. 0: none.
};
struct {
    __uint(type, BPF_MAP_TYPE_LRU_HASH);
    __uint(max_entries, 65536);
    __type(key, struct number);
    __type(value, struct holder);
} numbers SEC(".maps");

// Where to look for a free number. It may be wrong: whether a number is free its connection says.
struct hint {
    __u32 next;  // What is tried next of all numbers.
    __u32 freed; // 1 + the number that became free last. 0: none.
    __u64 none_ns; // When none was found last.
};
struct {
    __uint(type, BPF_MAP_TYPE_LRU_HASH);
    __uint(max_entries, 65536);
    __type(key, struct client);
    __type(value, struct hint);
} hints SEC(".maps");

// So many numbers are looked at once in this time, for a client that may have none left, and the next ones the next time. So it
// cannot have us look for each of its segments.
#define TRIED 128
#define REST_NS 5000000

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

static __always_inline int blocked_net(const __be32 *address, const int v6)
{
    struct net6 net6 = {.bits = 128};
    struct net net = {.bits = 32, .address = *address};
    if (!v6)
        return bpf_map_lookup_elem(&blocked_nets, &net) != NULL;
    __builtin_memcpy(net6.address, address, sizeof(net6.address));
    return bpf_map_lookup_elem(&blocked_nets6, &net6) != NULL;
}

static __always_inline int blocked_port(__be16 port)
{
    __u16 key = bpf_ntohs(port);
    return bpf_map_lookup_elem(&blocked_ports, &key) != NULL;
}

// More than MOST: there is no limit.
static __always_inline __u32 most_of(const struct ends *ends, const int v6)
{
    struct net6 net6 = {.bits = 128};
    struct net net = {.bits = 32, .address = ends->client[0]};
    __u32 *most;
    if (v6) {
        __builtin_memcpy(net6.address, ends->client, sizeof(net6.address));
        most = bpf_map_lookup_elem(&limits6, &net6);
    } else {
        most = bpf_map_lookup_elem(&limits, &net);
    }
    return most ? *most : MOST + 1;
}

static __always_inline int counts(struct connection *one, __u64 now)
{
    return one && !(one->state & ENDED) && now - one->seen_ns < IDLE_NS;
}

static __always_inline void name_client(struct client *client, const struct ends *ends, const int v6)
{
    client->network[0] = ends->client[0];
    client->network[1] = v6 ? ends->client[1] : 0;
    client->version = ends->version;
}

// Gives a connection this number, if it is free.
static __always_inline int take(struct number *number, struct ends *ends, __u64 now)
{
    struct holder *other = bpf_map_lookup_elem(&numbers, number);
    if (other) {
        // The map's element may change meanwhile.
        struct ends copy = other->ends;
        struct connection *one = bpf_map_lookup_elem(&connections, &copy);
        if (counts(one, now) && one->number == number->number)
            return 0;
    }
    // A map of this kind always has room. With another way on, the verifier would follow each of them.
    struct holder holder = {.ends = *ends};
    bpf_map_update_elem(&numbers, number, &holder, BPF_ANY);
    return 1;
}

// Finds a free number of its client's for a connection. 0: all are taken, as far as was looked.
static __always_inline int take_number(struct number *number, struct ends *ends, const int v6, __u32 most, __u64 now)
{
    name_client(&number->client, ends, v6);
    struct hint *hint = bpf_map_lookup_elem(&hints, &number->client), none = {};
    if (!hint) {
        bpf_map_update_elem(&hints, &number->client, &none, BPF_ANY);
        hint = bpf_map_lookup_elem(&hints, &number->client);
        if (!hint)
            return 0;
    }
    if (hint->freed) {
        number->number = hint->freed - 1;
        struct holder *last = bpf_map_lookup_elem(&numbers, number);
        hint->freed = last ? last->before : 0;
        if (number->number < most && take(number, ends, now))
            return 1;
        // It counts again, so the others may do so, too.
        hint->freed = 0;
    }
    if (!most || now - hint->none_ns < REST_NS)
        return 0;
    for (int i = 0; i < TRIED; i++) {
        number->number = hint->next % most;
        hint->next = number->number + 1;
        if (take(number, ends, now))
            return 1;
    }
    hint->none_ns = now;
    return 0;
}

// A connection has ended: the next one of its client's finds its number at once.
static __always_inline void ended(struct ends *ends, const int v6, struct connection *one)
{
    if (one->state & ENDED)
        return;
    one->state |= ENDED;
    struct number number = {.number = one->number};
    name_client(&number.client, ends, v6);
    struct holder *holder = bpf_map_lookup_elem(&numbers, &number);
    struct hint *hint = bpf_map_lookup_elem(&hints, &number.client);
    if (!holder || !hint)
        return;
    // Who has been idle may have lost its number to another one. With a branch for each word, the verifier would follow each of them.
    const __u32 *a = (const void *)&holder->ends, *b = (const void *)ends;
    __u32 differ = 0;
    for (unsigned int i = 0; i < sizeof(*ends) / sizeof(*a); i++)
        differ |= a[i] ^ b[i];
    if (differ)
        return;
    holder->before = hint->freed;
    hint->freed = number.number + 1;
}

// Bytes of the option of timestamps.
#define STAMPS 12

// A sum of 16-bit words, folded.
static __always_inline __u32 folded(__u64 sum)
{
    for (int i = 0; i < 4; i++)
        sum = (sum & 0xffff) + (sum >> 16);
    return sum;
}

// Must the server take this reset if its number is right? It does not look at one with a fault, or with FIN, and says nothing. One
// with payload, or with options but timestamps, nobody sends. `whole`: its checksum is not the pseudo-header's part alone.
static __always_inline int is_sound(struct iphdr *ip, const __be32 *from, const __be32 *to, const int v6, struct tcphdr *tcp,
                                    void *end, __u32 bytes, int whole)
{
    __u64 sum = bpf_htons(IPPROTO_TCP) + bpf_htons(bytes);
    __u16 check = tcp->check;

    if (tcp->fin || bytes != tcp->doff * 4)
        return 0;
    if (!v6 && (ip->ihl != 5 || ip->frag_off & bpf_htons(0x3fff) || folded(bpf_csum_diff(0, 0, (void *)ip, sizeof(*ip), 0)) != 0xffff))
        return 0;
    for (int i = 0; i < (v6 ? 4 : 1); i++)
        sum += (__u64)from[i] + to[i];
    if (!whole && check == folded(sum))
        return 1;
    if (bytes == sizeof(*tcp))
        sum += (__u32)bpf_csum_diff(0, 0, (void *)tcp, sizeof(*tcp), 0);
    else if (bytes == sizeof(*tcp) + STAMPS && (void *)(tcp + 1) + STAMPS <= end)
        sum += (__u32)bpf_csum_diff(0, 0, (void *)tcp, sizeof(*tcp) + STAMPS, 0);
    else
        return 0;
    return folded(sum) == 0xffff;
}

// No window reaches farther (RFC 7323 §2.3).
#define FARTHEST (1u << 30)

// A segment of whoever has begun the connection. 0: it is dropped. `is_sound`: the server must take it, if it is a reset.
static __always_inline int from_client(struct ends *ends, const int v6, const struct tcphdr *tcp, __u32 payload, int is_sound,
                                       __u64 now)
{
    struct connection *one = bpf_map_lookup_elem(&connections, ends);
    struct number number = {};
    if (one) {
        int said_all = one->state & CLIENT_FIN;
        // It ends when the server has acknowledged its FIN and has sent one, or by a reset that the server must believe. Whoever goes
        // on all the same needs a number again. So does who acknowledges the server's SYN, and nothing more: that begins a connection.
        if (one->state & ENDED) {
            int begins = tcp->ack && bpf_ntohl(tcp->ack_seq) == one->answered + 1;
            if (tcp->rst || !(payload || begins || one->state & GOES_ON))
                return 1;
            __u32 most = most_of(ends, v6);
            if (most > MOST)
                return 1;
            if (!take_number(&number, ends, v6, most, now))
                return 0;
            one->number = number.number;
            // Of what has come to its end the server's answer says so again.
            one->state &= SERVER_FIN | SAID_FIN;
        }
        one->seen_ns = now;
        __u32 number = bpf_ntohl(tcp->seq), behind = number + payload;
        // The server takes nothing from farther away. With two such numbers `sent` would come round to stand behind all others.
        if (payload && !said_all && behind - one->acked <= FARTHEST && (__s32)(behind - one->sent) > 0)
            one->sent = behind;
        if (tcp->fin && behind + 1 - one->acked <= FARTHEST) {
            one->fin = behind + 1;
            one->state |= SAID_FIN;
        }
        // What it has sent behind the last acknowledgement, or a FIN, may have made the reset old, and the server then drops it.
        // A FIN at which an acknowledgement has gone past was never taken.
        int said_fin = (one->state & (SAID_FIN | CLIENT_FIN)) == SAID_FIN && (__s32)(one->acked - one->fin) <= 0;
        int may_be_old = (__s32)(one->sent - number) > 0 || said_fin;
        if (tcp->rst && is_sound && number == one->acked && !may_be_old) {
            one->state |= RESET;
            ended(ends, v6, one);
        }
        return 1;
    }
    // Who acknowledges what was sent to it is there: a forger would have to guess the number.
    struct answer *sent = bpf_map_lookup_elem(&opening, ends), answer = {};
    if (sent)
        answer = *sent;
    if (!sent || !tcp->ack || tcp->rst || bpf_ntohl(tcp->ack_seq) != answer.number + 1)
        return 1;
    __u32 most = most_of(ends, v6);
    if (most > MOST)
        return 1;
    if (!take_number(&number, ends, v6, most, now))
        return 0;
    // Its own number may be none that the server takes.
    struct connection begun = {.seen_ns = now, .acked = answer.acked, .number = number.number, .answered = answer.number,
                               .sent = answer.acked + payload};
    if (tcp->fin) {
        begun.fin = bpf_ntohl(tcp->seq) + payload + 1;
        begun.state = SAID_FIN;
    }
    bpf_map_update_elem(&connections, ends, &begun, BPF_ANY);
    bpf_map_delete_elem(&opening, ends);
    return 1;
}

// A segment of the other end. It is believed, as the stack has made it, or its peer's.
static __always_inline void from_server(struct ends *ends, const int v6, struct connection *one, struct tcphdr *tcp, __u64 now)
{
    one->seen_ns = now;
    // The server has not believed the client's reset: data before it may have made it old. Or it has reset what came before the
    // handshake was complete. So the connection goes on, and counts. If another one has its place, its client needs one for all it sends.
    if (one->state & RESET && !tcp->rst) {
        struct number number = {.number = one->number};
        name_client(&number.client, ends, v6);
        if (take(&number, ends, now))
            one->state &= ~(ENDED | RESET | GOES_ON);
        else
            one->state |= GOES_ON;
    }
    if (tcp->ack)
        one->acked = bpf_ntohl(tcp->ack_seq);
    // It has taken the client's FIN, and not payload in its place.
    if (tcp->ack && one->state & SAID_FIN && one->acked == one->fin && (__s32)(one->fin - one->sent) > 0)
        one->state |= CLIENT_FIN;
    if (tcp->fin)
        one->state |= SERVER_FIN;
    if (tcp->rst && !(one->state & ENDED))
        one->state |= RESET;
    if (tcp->rst || (one->state & (CLIENT_FIN | SERVER_FIN)) == (CLIENT_FIN | SERVER_FIN))
        ended(ends, v6, one);
}

// The server answers a SYN: `ends` may begin another connection.
static __always_inline void answer(struct ends *ends, struct tcphdr *tcp)
{
    struct answer answer = {.number = bpf_ntohl(tcp->seq), .acked = bpf_ntohl(tcp->ack_seq)};
    bpf_map_update_elem(&opening, ends, &answer, BPF_ANY);
    struct connection *one = bpf_map_lookup_elem(&connections, ends);
    if (!one || one->answered == answer.number)
        return;
    // Its place it has until it ends: the answer may be to a SYN before the segment that has begun the connection.
    one->answered = answer.number;
    one->acked = one->sent = answer.acked;
    one->state &= ~(CLIENT_FIN | SERVER_FIN | SAID_FIN);
}

// Is the segment of so many bytes within the limit of whoever has begun its connection?
static __always_inline int within_limit(struct iphdr *ip, const __be32 *from, const __be32 *to, const int v6, struct tcphdr *tcp,
                                        void *end, __u32 bytes)
{
    __u32 zero = 0, *is_on = bpf_map_lookup_elem(&counting, &zero);
    if (!is_on || !*is_on)
        return 1;
    __u64 now = bpf_ktime_get_ns();
    struct ends sent = {.client_port = tcp->source, .server_port = tcp->dest, .version = v6 ? 6 : 4};
    struct ends answered = {.client_port = tcp->dest, .server_port = tcp->source, .version = v6 ? 6 : 4};
    for (int i = 0; i < (v6 ? 4 : 1); i++) {
        sent.client[i] = answered.server[i] = from[i];
        sent.server[i] = answered.client[i] = to[i];
    }
    if (tcp->syn) {
        if (tcp->ack)
            answer(&answered, tcp);
        return 1;
    }
    struct connection *one = bpf_map_lookup_elem(&connections, &answered);
    if (one) {
        from_server(&answered, v6, one, tcp, now);
        return 1;
    }
    __u32 headers = tcp->doff * 4, length = bytes ? bytes : end - (void *)tcp;
    int sound = tcp->rst && is_sound(ip, from, to, v6, tcp, end, bytes, *is_on == WHOLE_SUMS);
    return from_client(&sent, v6, tcp, length > headers ? length - headers : 0, sound, now);
}

// What becomes of a packet whose addresses stand at these places. Its segment has so many bytes, of which a super-segment may say 0.
// `ip`: its header of IPv4.
static __always_inline int judge(struct iphdr *ip, const __be32 *from, const __be32 *to, const int v6, struct tcphdr *tcp, void *end,
                                 __u32 bytes)
{
    if (blocked_net(from, v6) || blocked_net(to, v6))
        return drop(1);
    if ((void *)(tcp + 1) > end)
        return XDP_PASS;
    if (blocked_port(tcp->source) || blocked_port(tcp->dest))
        return drop(0);
    return within_limit(ip, from, to, v6, tcp, end, bytes) ? XDP_PASS : drop(2);
}

SEC("xdp")
int firewall(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    struct ethhdr *eth = data;

    if ((void *)(eth + 1) > end)
        return XDP_PASS;
    if (eth->h_proto == bpf_htons(ETH_P_IP)) {
        struct iphdr *ip = (void *)(eth + 1);
        if ((void *)(ip + 1) > end || ip->protocol != IPPROTO_TCP || ip->ihl < 5)
            return XDP_PASS;
        __u32 length = bpf_ntohs(ip->tot_len), header = ip->ihl * 4;
        return judge(ip, &ip->saddr, &ip->daddr, 0, (void *)ip + header, end, length > header ? length - header : 0);
    }
    if (eth->h_proto == bpf_htons(ETH_P_IPV6)) {
        struct ipv6hdr *ip = (void *)(eth + 1);
        if ((void *)(ip + 1) > end || ip->nexthdr != IPPROTO_TCP)
            return XDP_PASS;
        return judge(NULL, ip->saddr.s6_addr32, ip->daddr.s6_addr32, 1, (void *)(ip + 1), end, bpf_ntohs(ip->payload_len));
    }
    return XDP_PASS;
}

char _license[] SEC("license") = "Dual MIT/GPL";
