// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Statistics: sizes of frames and the gaps between them, as histograms by powers of two, for each flow group.
//
//   towpath module add statistics statistics.bpf.o
//   towpath module maps statistics sizes dump       place n: frames of 2^n bytes and more
//   towpath module maps statistics gaps dump        place n: 2^n ns and more since the frame before
//
// For one program: `--app 'program redis-server'`. How long peers take to acknowledge is in rtt.bpf.c.

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "histogram.h"

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
