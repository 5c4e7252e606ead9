/* Sends frames over other interfaces: by number, and by both kinds of maps. The first byte of a packet says how. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct {
    __uint(type, BPF_MAP_TYPE_DEVMAP);
    __uint(max_entries, 4);
    __type(key, __u32);
    __type(value, __u32);
} places SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_DEVMAP_HASH);
    __uint(max_entries, 4);
    __type(key, __u32);
    __type(value, struct bpf_devmap_val);
} keys SEC(".maps");

SEC("xdp") int redirects(struct xdp_md *ctx)
{
    __u8 *data = (void *)(long)ctx->data;
    if (data + 14 > (__u8 *)(long)ctx->data_end)
        return XDP_DROP;
    __u32 key = data[1];
    __u64 flags = data[2];
    __u32 *there;

    data[3] = 7;
    switch (data[0]) {
    case 0:
        return bpf_redirect(key, flags);
    case 1:
        return bpf_redirect_map(&places, key, flags);
    case 2:
        return bpf_redirect_map(&keys, key, flags);
    case 3:
        // The last call counts.
        bpf_redirect_map(&places, 1, 0);
        return bpf_redirect_map(&keys, key, flags);
    case 4:
        there = bpf_map_lookup_elem(&places, &key);
        return there ? XDP_TX : XDP_DROP;
    case 5:
        there = bpf_map_lookup_elem(&keys, &key);
        return there && *there ? XDP_TX : XDP_DROP;
    default:
        return XDP_PASS;
    }
}
