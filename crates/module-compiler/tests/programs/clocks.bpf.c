// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Writes both clocks into the frame.

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

SEC("xdp")
int clocks(struct xdp_md *ctx)
{
    __u64 *times = (void *)(long)ctx->data;
    if ((void *)(times + 2) > (void *)(long)ctx->data_end)
        return XDP_DROP;
    times[0] = bpf_ktime_get_ns();
    times[1] = bpf_ktime_get_boot_ns();
    return XDP_PASS;
}

char _license[] SEC("license") = "Dual MIT/GPL";
