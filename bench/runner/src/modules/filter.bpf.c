// SPDX-License-Identifier: MIT OR Apache-2.0
// The filter of a capture: reads the headers of a frame, up to TCP's ports, and keeps those for port 1.
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

SEC("xdp") int filter(struct xdp_md *ctx)
{
	void *end = (void *)(long)ctx->data_end;
	struct ethhdr *ethernet = (void *)(long)ctx->data;
	struct iphdr *ip = (void *)(ethernet + 1);

	if ((void *)(ip + 1) > end || ethernet->h_proto != bpf_htons(ETH_P_IP))
		return XDP_DROP;
	if (ip->version != 4 || ip->ihl < 5 || ip->protocol != IPPROTO_TCP)
		return XDP_DROP;
	struct tcphdr *tcp = (void *)ip + ip->ihl * 4;

	if ((void *)(tcp + 1) > end)
		return XDP_DROP;
	return tcp->dest == bpf_htons(1) ? XDP_PASS : XDP_DROP;
}

char _license[] SEC("license") = "Dual MIT/GPL";
