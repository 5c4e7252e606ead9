// SPDX-License-Identifier: MIT OR Apache-2.0
// Counts the frames of each source address in a hash map.
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, __u64);
} frames SEC(".maps");

SEC("xdp") int hash(struct xdp_md *ctx)
{
	void *end = (void *)(long)ctx->data_end;
	struct ethhdr *ethernet = (void *)(long)ctx->data;
	struct iphdr *ip = (void *)(ethernet + 1);

	if ((void *)(ip + 1) > end || ethernet->h_proto != bpf_htons(ETH_P_IP))
		return XDP_PASS;
	__u32 source = ip->saddr;
	__u64 one = 1, *count = bpf_map_lookup_elem(&frames, &source);

	if (count)
		__sync_fetch_and_add(count, 1);
	else
		bpf_map_update_elem(&frames, &source, &one, BPF_ANY);
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual MIT/GPL";
