// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Statistics: sizes of frames and the gaps between them, as histograms by powers of two, for each flow group.
//
//   towpath module add statistics statistics.bpf.o
//   towpath module maps statistics sizes dump       place n: frames of 2^n bytes and more
//   towpath module maps statistics gaps dump        place n: 2^n ns and more since the frame before

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define PLACES 64

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, PLACES);
    __type(key, __u32);
    __type(value, __u64);
} sizes SEC(".maps"), gaps SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, __u64);
} last SEC(".maps");

static __always_inline __u32 log2(__u64 value)
{
    __u32 place = 0, shift;
    shift = (value > 0xffffffff) << 5; value >>= shift; place |= shift;
    shift = (value > 0xffff) << 4; value >>= shift; place |= shift;
    shift = (value > 0xff) << 3; value >>= shift; place |= shift;
    shift = (value > 0xf) << 2; value >>= shift; place |= shift;
    shift = (value > 0x3) << 1; value >>= shift; place |= shift;
    return place | (value > 1);
}

static __always_inline void count(void *histogram, __u64 value)
{
    __u32 place = log2(value);
    __u64 *counter = bpf_map_lookup_elem(histogram, &place);
    if (counter)
        *counter += 1;
}

SEC("xdp")
int statistics(struct xdp_md *ctx)
{
    __u64 now = bpf_ktime_get_ns();
    __u32 zero = 0;
    __u64 *before = bpf_map_lookup_elem(&last, &zero);

    count(&sizes, ctx->data_end - ctx->data);
    if (before) {
        if (*before)
            count(&gaps, now - *before);
        *before = now;
    }
    return XDP_PASS;
}

char _license[] SEC("license") = "Dual MIT/GPL";
