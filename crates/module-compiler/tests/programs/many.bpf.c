// SPDX-License-Identifier: MIT OR Apache-2.0
//
// One program for each part of eBPF that modules have. A test runs them beside the kernel.

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define BYTES(n)                                                                                                         \
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;                                            \
    if (data + (n) > end)                                                                                                \
        return XDP_DROP

struct {
    __uint(type, BPF_MAP_TYPE_LRU_HASH);
    __uint(max_entries, 512);
    __type(key, __u32);
    __type(value, __u64);
} seen SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 16);
    __type(key, __u8);
    __type(value, __u64[3]);
} small SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_HASH);
    __uint(max_entries, 16);
    __type(key, __u8);
    __type(value, __u32[3]);
} own SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_LRU_PERCPU_HASH);
    __uint(max_entries, 512);
    __type(key, __u32);
    __type(value, __u64);
} own_seen SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 4);
    __type(key, __u32);
    __type(value, __u64);
} counters SEC(".maps");

struct prefix {
    __u32 bits;
    __u8 bytes[4];
};
struct {
    __uint(type, BPF_MAP_TYPE_LPM_TRIE);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __uint(max_entries, 64);
    __type(key, struct prefix);
    __type(value, __u32);
} prefixes SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_RINGBUF);
    __uint(max_entries, 4096);
} records SEC(".maps");

int tail_two(struct xdp_md *ctx);
int tail_self(struct xdp_md *ctx);
struct {
    __uint(type, BPF_MAP_TYPE_PROG_ARRAY);
    __uint(max_entries, 4);
    __uint(key_size, 4);
    __array(values, int(struct xdp_md *));
} programs SEC(".maps") = {.values = {[1] = (void *)&tail_two, [2] = (void *)&tail_self}};

static const __u8 table[16] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3};
static volatile const __u32 limit = 11;
static __u64 total;
static __u32 start = 7;

SEC("xdp")
int null(struct xdp_md *ctx)
{
    return XDP_PASS;
}

SEC("xdp")
int arithmetic(struct xdp_md *ctx)
{
    BYTES(32);
    __u64 a = *(__u64 *)data, b = *(__u64 *)(data + 8);
    __s64 c = *(__s64 *)(data + 16);
    __u32 d = *(__u32 *)(data + 24);
    __s32 e = *(__s32 *)(data + 28);
    a += b * 3 + (b >> (d & 63)) - (c >> (d & 31)) + (a << 3);
    d = d / ((__u32)b | 1) + d % ((__u32)a | 1);
    a ^= a / (b | 1) + b % (a | 1);
    e = (e >> 3) * 7 - (__s16)d + (__s8)a;
    *(__u64 *)data = bpf_htonl(d) + __builtin_bswap64(a);
    *(__u64 *)(data + 8) = a + (__u64)c * 5;
    *(__u32 *)(data + 16) = e;
    *(__u16 *)(data + 20) = __builtin_bswap16(d);
    if ((__s64)a < c)
        return XDP_TX;
    return (__s32)d > e ? XDP_PASS : XDP_DROP;
}

// By zero, which C does not have. Random programs have the rest.
SEC("xdp")
int divide(struct xdp_md *ctx)
{
    BYTES(16);
    __u64 a = *(__u64 *)data, b = *(__u8 *)(data + 8) & 1, c = a;
    __u32 w = a >> 16, x = b, y = w;
    asm volatile("%0 /= %1" : "+r"(a) : "r"(b));
    *(__u64 *)data = a;
    *(__u64 *)(data + 8) = c ^ w ^ x ^ y;
    return XDP_PASS;
}

SEC("xdp")
int atomics(struct xdp_md *ctx)
{
    BYTES(24);
    __u32 place = *(__u8 *)data & 3;
    __u64 *counter = bpf_map_lookup_elem(&counters, &place);
    if (!counter)
        return XDP_ABORTED;
    __u64 word = *(__u64 *)(data + 8);
    *(__u64 *)data = __sync_fetch_and_add(counter, word);
    *(__u64 *)(data + 8) = __sync_fetch_and_or(counter, word >> 3);
    *(__u64 *)(data + 16) = __sync_val_compare_and_swap(counter, word, 5);
    __sync_fetch_and_xor(counter, word << 1);
    __sync_fetch_and_and((__u32 *)counter, 0xff00ffff);
    *(__u32 *)(data + 4) ^= __sync_lock_test_and_set((__u32 *)counter, 9);
    return *counter & 1 ? XDP_TX : XDP_PASS;
}

SEC("xdp")
int hashes(struct xdp_md *ctx)
{
    BYTES(24);
    __u8 key = *(__u8 *)data & 31;
    __u64 value[3] = {*(__u64 *)data, 2, *(__u64 *)(data + 8)};
    __u64 *there = bpf_map_lookup_elem(&small, &key);
    __u32 many = *(__u32 *)(data + 4) & 127;
    __u64 *used = bpf_map_lookup_elem(&seen, &many), one = 1;
    if (used)
        *used += 1;
    else
        bpf_map_update_elem(&seen, &many, &one, BPF_NOEXIST);
    if (there) {
        there[1] += there[0];
        *(__u64 *)(data + 8) = there[1] ^ (used ? *used : 0);
    }
    switch (*(__u8 *)(data + 1) & 7) {
    case 0:
        *(__u64 *)(data + 16) = bpf_map_delete_elem(&small, &key);
        return XDP_DROP;
    case 1:
    case 2:
        *(__u64 *)(data + 16) = bpf_map_update_elem(&small, &key, value, BPF_NOEXIST);
        return XDP_PASS;
    case 3:
        *(__u64 *)(data + 16) = bpf_map_update_elem(&small, &key, value, BPF_EXIST);
        return XDP_PASS;
    default:
        *(__u64 *)(data + 16) = bpf_map_update_elem(&small, &key, value, BPF_ANY);
        return XDP_PASS;
    }
}

SEC("xdp")
int own_hashes(struct xdp_md *ctx)
{
    BYTES(24);
    __u8 key = *(__u8 *)data & 31;
    __u32 value[3] = {*(__u32 *)data, 2, *(__u32 *)(data + 8)}, *there = bpf_map_lookup_elem(&own, &key);
    __u32 many = *(__u32 *)(data + 4) & 127;
    __u64 *used = bpf_map_lookup_elem(&own_seen, &many), one = 1;
    if (used)
        *used += 1;
    else
        bpf_map_update_elem(&own_seen, &many, &one, BPF_NOEXIST);
    if (there) {
        there[1] += there[0];
        *(__u32 *)(data + 8) = there[1] ^ there[2] ^ (used ? *used : 0);
    }
    if (*(__u8 *)(data + 1) & 3)
        *(__u64 *)(data + 16) = bpf_map_update_elem(&own, &key, value, *(__u8 *)(data + 2) % 3);
    else
        *(__u64 *)(data + 16) = bpf_map_delete_elem(&own, &key);
    return there ? XDP_PASS : XDP_DROP;
}

SEC("xdp")
int longest(struct xdp_md *ctx)
{
    BYTES(24);
    struct prefix prefix = {.bits = *(__u8 *)data % 36};
    __builtin_memcpy(prefix.bytes, data + 8, 4);
    prefix.bytes[0] &= 3;
    prefix.bytes[1] &= 0x81;
    __u32 value = *(__u32 *)(data + 4), *there = bpf_map_lookup_elem(&prefixes, &prefix);
    *(__u32 *)(data + 16) = there ? *there : 0;
    switch (*(__u8 *)(data + 1) & 3) {
    case 0:
        *(__u32 *)(data + 20) = bpf_map_delete_elem(&prefixes, &prefix);
        break;
    case 1:
        *(__u32 *)(data + 20) = bpf_map_update_elem(&prefixes, &prefix, &value, *(__u8 *)(data + 2) % 3);
        break;
    }
    return XDP_PASS;
}

SEC("xdp")
int ring(struct xdp_md *ctx)
{
    BYTES(24);
    __u64 *record = bpf_ringbuf_reserve(&records, 24, 0);
    if (!record)
        return XDP_DROP;
    record[0] = *(__u64 *)data;
    record[2] = 1;
    if (*(__u8 *)data & 1)
        bpf_ringbuf_discard(record, 0);
    else
        bpf_ringbuf_submit(record, 0);
    __u64 words[3] = {*(__u64 *)data};
    return bpf_ringbuf_output(&records, words, 17, 0) ? XDP_TX : XDP_PASS;
}

static __attribute__((noinline)) __u64 mix(__u64 a, __u64 b)
{
    volatile __u64 kept[4] = {a, b, a ^ b, a + b};
    return kept[a & 3] * 31 + kept[b & 3];
}
static __attribute__((noinline)) int at(struct xdp_md *ctx, __u32 place)
{
    BYTES(20);
    return *(__u8 *)(data + (place & 15));
}

SEC("xdp")
int functions(struct xdp_md *ctx)
{
    BYTES(24);
    __u64 sum = 0;
    for (int i = 0; i < 8; i++)
        sum = mix(sum, at(ctx, i) + *(__u32 *)(data + 8));
    *(__u64 *)data = sum;
    total += sum & 0xff;
    start++;
    *(__u64 *)(data + 8) = total ^ start;
    *(__u32 *)(data + 16) = table[sum & 15] + limit;
    return *(__u8 *)data > 100 ? XDP_PASS : XDP_TX;
}

SEC("xdp")
int tail_two(struct xdp_md *ctx)
{
    BYTES(20);
    *(__u32 *)(data + 16) = 0x22222222;
    return XDP_TX;
}
SEC("xdp")
int tail_self(struct xdp_md *ctx)
{
    BYTES(20);
    *(__u8 *)(data + 19) += 1;
    bpf_tail_call(ctx, &programs, 2);
    return XDP_PASS;
}
SEC("xdp")
int tails(struct xdp_md *ctx)
{
    BYTES(20);
    bpf_tail_call(ctx, &programs, *(__u8 *)data & 3);
    *(__u32 *)(data + 16) = 0x11111111;
    return XDP_DROP;
}

SEC("xdp")
int head(struct xdp_md *ctx)
{
    BYTES(20);
    int by = (__s8)*(__u8 *)data, error = bpf_xdp_adjust_head(ctx, by);
    data = (void *)(long)ctx->data;
    end = (void *)(long)ctx->data_end;
    if (data + 16 > end)
        return XDP_DROP;
    *(__u64 *)data = error;
    *(__u64 *)(data + 8) = end - data;
    return XDP_PASS;
}
SEC("xdp")
int tail(struct xdp_md *ctx)
{
    BYTES(20);
    int by = *(__s16 *)data, error = bpf_xdp_adjust_tail(ctx, by);
    data = (void *)(long)ctx->data;
    end = (void *)(long)ctx->data_end;
    if (data + 16 > end)
        return XDP_DROP;
    *(__u64 *)data = error;
    return XDP_PASS;
}
SEC("xdp")
int meta(struct xdp_md *ctx)
{
    BYTES(20);
    __u8 wish = *(__u8 *)data;
    int error = bpf_xdp_adjust_meta(ctx, -(wish & 63)), moved = 0;
    if (wish & 64)
        moved = bpf_xdp_adjust_head(ctx, 2);
    data = (void *)(long)ctx->data;
    end = (void *)(long)ctx->data_end;
    void *words = (void *)(long)ctx->data_meta;
    if (data + 16 > end)
        return XDP_DROP;
    *(__u64 *)data = error;
    *(__u64 *)(data + 8) = moved + ((data - words) << 8);
    if (words + 4 <= data)
        *(__u32 *)words = 0xfeed;
    return XDP_PASS;
}

SEC("xdp")
int sums(struct xdp_md *ctx)
{
    BYTES(40);
    __u32 from[4], to[4];
    __builtin_memcpy(from, data, 16);
    __builtin_memcpy(to, data + 16, 16);
    __u32 seed = *(__u32 *)(data + 32);
    __s64 both = bpf_csum_diff(from, 16, to, 16, seed), one = bpf_csum_diff(NULL, 0, to, 12, seed);
    __s64 other = bpf_csum_diff(from, 8, NULL, 0, seed), wrong = bpf_csum_diff(from, 7, to, 16, seed);
    *(__u64 *)data = both;
    *(__u64 *)(data + 8) = one;
    *(__u64 *)(data + 16) = other;
    *(__u64 *)(data + 24) = wrong;
    return XDP_PASS;
}

SEC("xdp.frags")
int bytes(struct xdp_md *ctx)
{
    __u8 buffer[16] = {};
    __u64 length = bpf_xdp_get_buff_len(ctx);
    __u64 failed = bpf_xdp_load_bytes(ctx, length / 2, buffer, 16);
    buffer[0] ^= length ^ failed ^ ctx->rx_queue_index;
    buffer[1] = 0xab;
    bpf_xdp_store_bytes(ctx, 3, buffer, sizeof(buffer));
    return failed ? XDP_DROP : XDP_PASS;
}

char _license[] SEC("license") = "Dual MIT/GPL";
