// SPDX-License-Identifier: MIT OR Apache-2.0
//
// What the programs of steer.bpf.c share with the service: records, tables and their numbers.

#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in6.h>
#include <bpf/bpf_helpers.h>

// Addresses and ports in network byte order. crates/ports/src/steering.rs has the same layouts.
struct flow {
    __be32 remote, local;
    __be16 remote_port, local_port;
};

struct flow6 {
    struct in6_addr remote, local;
    __be16 remote_port, local_port;
};

// A first SYN, for the service.
struct syn {
    __u64 cookie; // of the listening socket
    __u64 taken;  // when (CLOCK_MONOTONIC, ns)
    __u32 interface;
    __u32 queue; // receive queue + 1; 0: unknown
    __u8 ethernet[ETH_HLEN];
    __u8 v6;
    __u8 tcp_bytes;
    __u8 ip[40]; // without options
    __u8 tcp[60];
    __u32 steered; // the segments that follow it are ours already, as after a cookie
};

struct stray {
    __u32 bytes, place;
};

// Is a variable within these bounds? Each is compared by itself, in the register that a helper gets afterwards. Left alone the
// compiler makes one comparison of both, with a difference, from which the verifier of Linux 6.12 learns nothing about the variable.
#define IS_WITHIN(variable, least, most) \
    ({ \
        int within = 0; \
        asm volatile("" : "+r"(variable)); \
        if ((variable) >= (least)) { \
            asm volatile("" : "+r"(variable)); \
            within = (variable) <= (most); \
        } \
        within; \
    })

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

enum { STEERED, PASSED, TAKEN, STALE, FULL, STRAY, LOST, LIMITED, STATS };
// In a setting beside the VLAN's number.
#define ALL_TCP (1u << 31)
// Values of `flows`: who sent the first SYN. SPLICED is in a value beside it.
enum { ACTIVE = 1, PASSIVE = 2, SPLICED = 4 };
// Of a segment, beside whether it is ours: see `goes_on`.
enum { GOES_ON4 = 4, GOES_ON6 = 6 };
// Results of `towpath_listen`.
enum { OURS = 0, KERNELS = -1 };
// Results of `towpath_drop` and `towpath_own`: TCX_NEXT and TCX_DROP, which older headers lack.
enum { NEXT = -1, DROP = 2 };

// Interfaces that are served at a time at most, and receive queues of each that may have a socket. Sockets and the tripwire
// are in the order of the interfaces' places.
#define PLACES 16
#define QUEUES 256

// Most bytes of a frame that goes through `strays`. The stack serves no MTU for which a frame is longer.
#define MOST_STRAY 4096

#define SECOND 1000000000ULL
// A service that has not written its heartbeat for so long is stuck.
#define STUCK (3 * SECOND)
// Of a listening socket that is flooded so many SYNs are taken at once, and one in each interval after that. The queue of SYNs, which all
// listening sockets share, has room for twice as many.
#define MOST_AT_ONCE 3000
#define INTERVAL (SECOND / 10000)
// A SYN that was dropped then is a peer's if it comes again after so many milliseconds (RFC 6298: a second), and before so many.
#define LEAST_REPEATED 400
#define MOST_REPEATED 70000
// Places for them.
#define DROPPED (1u << 20)
// A value of `accelerated`: the socket is not flooded. Otherwise it is when the interval of the next SYN begins.
#define CALM 1
// For so long a cookie may be answered. crates/towpathd/src/interface.rs has the same.
#define COOKIE_LIFE (120 * SECOND)
// The kernel repeats a SYN-ACK for as long (net.ipv4.tcp_synack_retries).
#define KERNELS_HANDSHAKE (64 * SECOND)

struct {
    __uint(type, BPF_MAP_TYPE_XSKMAP);
    __uint(max_entries, PLACES * QUEUES);
    __type(key, __u32);
    __type(value, __u32);
} sockets SEC(".maps");

// The index of the interface at each place; 0: none.
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, PLACES);
    __type(key, __u32);
    __type(value, __u32);
} places SEC(".maps");

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
    __uint(max_entries, 1 << 20);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, struct flow6);
    __type(value, __u32);
} flows6 SEC(".maps");

// The four-tuples whose SYNs we have answered with a cookie, until this time (CLOCK_MONOTONIC, ns).
struct {
    __uint(type, BPF_MAP_TYPE_LRU_HASH);
    __uint(max_entries, 1 << 16);
    __type(key, struct flow);
    __type(value, __u64);
} half_open SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_LRU_HASH);
    __uint(max_entries, 1 << 16);
    __type(key, struct flow6);
    __type(value, __u64);
} half_open6 SEC(".maps");

// The four-tuples whose SYNs the kernel has answered, likewise. They are apart, so that a flood of them ends none of
// ours.
struct {
    __uint(type, BPF_MAP_TYPE_LRU_HASH);
    __uint(max_entries, 1 << 14);
    __type(key, struct flow);
    __type(value, __u64);
} kernels SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_LRU_HASH);
    __uint(max_entries, 1 << 14);
    __type(key, struct flow6);
    __type(value, __u64);
} kernels6 SEC(".maps");

// The first SYNs that have passed here last, with their sequence numbers.
struct {
    __uint(type, BPF_MAP_TYPE_LRU_HASH);
    __uint(max_entries, 1 << 14);
    __type(key, struct flow);
    __type(value, __u32);
} seen SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_LRU_HASH);
    __uint(max_entries, 1 << 14);
    __type(key, struct flow6);
    __type(value, __u32);
} seen6 SEC(".maps");

// Cookies of the listening sockets whose SYNs are taken. One that is flooded has a time (CLOCK_MONOTONIC, ns) instead of CALM.
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 1 << 16);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, __u64);
    __type(value, __u64);
} accelerated SEC(".maps");

// SYNs that were dropped because their socket is flooded: when, in milliseconds, above a hash of the SYN.
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, DROPPED);
    __type(key, __u32);
    __type(value, __u64);
} dropped SEC(".maps");

// Indices of the interfaces from which SYNs are taken.
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 16);
    __type(key, __u32);
    __type(value, __u32);
} served SEC(".maps");

// The host's own addresses, in the form of `struct ends`. Only `towpath_own` asks for them.
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 1 << 16);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, struct in6_addr);
    __type(value, __u32);
} addresses SEC(".maps");

// The number of the filter `towpath_listen`. The process that serves cannot change it.
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, __u32);
} filter SEC(".maps");

// SYNs that wait for the service.
struct {
    __uint(type, BPF_MAP_TYPE_RINGBUF);
    __uint(max_entries, 1 << 20);
} syns SEC(".maps");

// Frames of ours from queues without a socket: `struct stray`, and their bytes. The rest of a record is nothing.
struct {
    __uint(type, BPF_MAP_TYPE_RINGBUF);
    __uint(max_entries, 1 << 20);
} strays SEC(".maps");

// One of the service's AF_XDP sockets for each interface, while somebody serves. The broker clears the entries when the
// process that serves dies; the kernel clears them when both have died. This program outlives them: clients' sockets hold
// it.
struct {
    __uint(type, BPF_MAP_TYPE_XSKMAP);
    __uint(max_entries, PLACES);
    __type(key, __u32);
    __type(value, __u32);
} tripwire SEC(".maps");

// When the service last looked at `syns` (CLOCK_MONOTONIC, ns).
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, __u64);
} heartbeat SEC(".maps");

// Of each place: the VLAN of its frames (0: they have no tag), and ALL_TCP.
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, PLACES);
    __type(key, __u32);
    __type(value, __u32);
} settings SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, STATS);
    __type(key, __u32);
    __type(value, __u64);
} stats SEC(".maps");
