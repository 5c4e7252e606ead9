// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Counts in a map of each kind that modules can have in common. Each asks to be pinned under its name.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define MAP(name, kind, ...)                                    \
    struct {                                                    \
        __uint(type, BPF_MAP_TYPE_##kind);                      \
        __uint(max_entries, 4);                                 \
        __type(value, __u64);                                   \
        __uint(pinning, LIBBPF_PIN_BY_NAME);                    \
        __VA_ARGS__                                             \
    } name SEC(".maps")

struct prefix {
    __u32 bits;
    __u32 of;
};

MAP(array, ARRAY, __type(key, __u32););
MAP(percpu_array, PERCPU_ARRAY, __type(key, __u32););
MAP(hash, HASH, __type(key, __u32););
MAP(percpu_hash, PERCPU_HASH, __type(key, __u32););
MAP(lru_hash, LRU_HASH, __type(key, __u32););
MAP(lru_percpu_hash, LRU_PERCPU_HASH, __type(key, __u32););
MAP(lpm_trie, LPM_TRIE, __type(key, struct prefix); __uint(map_flags, BPF_F_NO_PREALLOC););
struct {
    __uint(type, BPF_MAP_TYPE_RINGBUF);
    __uint(max_entries, 4096);
    __uint(pinning, LIBBPF_PIN_BY_NAME);
} ringbuf SEC(".maps");

static __u64 runs;

static void count(void *map, void *key)
{
    __u64 one = 1, *counted = bpf_map_lookup_elem(map, key);

    if (counted)
        __sync_fetch_and_add(counted, 1);
    else
        bpf_map_update_elem(map, key, &one, BPF_ANY);
}

SEC("xdp") int pinned(struct xdp_md *ctx)
{
    struct prefix prefix = {32, 7};
    __u32 key = 3;

    runs++;
    count(&array, &key);
    count(&percpu_array, &key);
    count(&hash, &key);
    count(&percpu_hash, &key);
    count(&lru_hash, &key);
    count(&lru_percpu_hash, &key);
    count(&lpm_trie, &prefix);
    bpf_ringbuf_output(&ringbuf, &runs, sizeof(runs), 0);
    return XDP_PASS;
}

char _license[] SEC("license") = "GPL";
