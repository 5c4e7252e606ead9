// SPDX-License-Identifier: MIT OR Apache-2.0
// Lets all frames pass: what remains is the way to a module and back.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

SEC("xdp") int null(struct xdp_md *ctx)
{
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual MIT/GPL";
