// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Rules about the peers of a listening socket, for SYNs that `towpath_listen` does not take. crates/ports/src/peer_filter.rs
// has the same layouts.
#pragma once

// Both ends of a SYN, as 64-bit words in network byte order. An IPv4 address is in its IPv6 form (::ffff:0:0/96).
struct ends {
    __u64 remote[2], local[2];
    __u64 family; // V4 or V6
};

// A rule about the peers of a listener. It matches if no bit under a mask differs, and the family is one of `families`.
struct rule {
    __u64 remote[2], remote_mask[2];
    __u64 local[2], local_mask[2];
    __u32 families;
    __u32 next; // where it does not refuse: the next rule to be asked
    __u64 refuses; // whom to count; 0: it does not refuse
};

// Most rules about one listener.
#define RULES 128

// Rules are asked in their order. A SYN that passes all of them is the kernel's.
struct rules {
    __u32 count;
    __u32 zero;
    struct rule rules[RULES];
};

enum { V4 = 1, V6 = 2 };

// By the cookie of a listening socket: who is refused.
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 1 << 16);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, __u64);
    __type(value, struct rules);
} rules SEC(".maps");

// SYNs that rules have refused, by the number in `refuses`, and by the cookie of the socket. The service makes the entries.
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 1 << 14);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, __u64);
    __type(value, __u64);
} refused_by SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 1 << 16);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, __u64);
    __type(value, __u64);
} refused_at SEC(".maps");

static __always_inline void count_in(void *map, __u64 key)
{
    __u64 *value = bpf_map_lookup_elem(map, &key);
    if (value)
        __sync_fetch_and_add(value, 1);
}

// Do the listener's rules refuse this SYN?
static __noinline int is_refused(__u64 cookie, const struct ends *ends)
{
    struct rules *list = bpf_map_lookup_elem(&rules, &cookie);
    if (!list || !ends)
        return 0;
    __u32 next = 0;
    for (__u32 at = 0; at < RULES; at++) {
        if (at >= list->count)
            break;
        if (at < next)
            continue;
        struct rule *rule = &list->rules[at];
        __u64 differs = ((ends->remote[0] ^ rule->remote[0]) & rule->remote_mask[0]) |
                        ((ends->remote[1] ^ rule->remote[1]) & rule->remote_mask[1]) |
                        ((ends->local[0] ^ rule->local[0]) & rule->local_mask[0]) |
                        ((ends->local[1] ^ rule->local[1]) & rule->local_mask[1]);
        if (differs || !(ends->family & rule->families))
            continue;
        if (!rule->refuses) {
            next = rule->next;
            continue;
        }
        count_in(&refused_by, rule->refuses);
        count_in(&refused_at, cookie);
        return 1;
    }
    return 0;
}
