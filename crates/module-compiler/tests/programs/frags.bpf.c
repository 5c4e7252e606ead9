// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Programs for frames of several parts, which in the kernel have only their first 3.5 KB in one piece. A test runs them beside it.

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define BYTES(n)                                                                                                         \
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;                                            \
    if (data + (n) > end)                                                                                                \
        return XDP_DROP

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 256);
    __type(key, __u32);
    __type(value, __u64[2]);
} sizes SEC(".maps");

// Reads and writes at places all over the frame, also across the borders of its parts, and counts by its length.
SEC("xdp.frags")
int anywhere(struct xdp_md *ctx)
{
    BYTES(16);
    __u32 place = *(__u32 *)data & 0x1ffff, bytes = bpf_xdp_get_buff_len(ctx), kib = bytes >> 10;
    __u8 buffer[64] = {};
    __u64 one[2] = {1, bytes}, *seen = bpf_map_lookup_elem(&sizes, &kib);
    if (seen) {
        seen[0] += 1;
        seen[1] += bytes;
    } else {
        bpf_map_update_elem(&sizes, &kib, one, BPF_ANY);
    }
    long failed = bpf_xdp_load_bytes(ctx, place, buffer, sizeof(buffer));
    for (int i = 0; i < 32; i++)
        buffer[i] ^= buffer[63 - i] + i;
    long stored = bpf_xdp_store_bytes(ctx, place + 7, buffer, sizeof(buffer));
    data = (void *)(long)ctx->data;
    end = (void *)(long)ctx->data_end;
    if (data + 16 > end)
        return XDP_DROP;
    *(__u64 *)(data + 8) = failed << 16 ^ stored;
    return failed ? XDP_TX : XDP_PASS;
}

// Takes bytes from the end, over parts that then are empty, and from the start, and sums some of what is left.
SEC("xdp.frags")
int shorter(struct xdp_md *ctx)
{
    BYTES(32);
    int by = *(__u32 *)data & 0x1ffff, from_start = *(__u8 *)(data + 5) & 15;
    long tail = bpf_xdp_adjust_tail(ctx, -by), head = bpf_xdp_adjust_head(ctx, from_start);
    __u32 bytes = bpf_xdp_get_buff_len(ctx), sum = 0;
    for (__u32 i = 0; i < 8; i++) {
        __u32 word = 0;
        bpf_xdp_load_bytes(ctx, bytes / 8 * i, &word, sizeof(word));
        sum = sum * 31 + word;
    }
    data = (void *)(long)ctx->data;
    end = (void *)(long)ctx->data_end;
    if (data + 14 > end)
        return XDP_DROP;
    *(__u32 *)data = sum;
    *(__u32 *)(data + 4) = bytes;
    *(__u16 *)(data + 8) = tail ^ head << 4;
    return tail ? XDP_TX : XDP_PASS;
}

char _license[] SEC("license") = "Dual MIT/GPL";
