/* It reads what the kernel has not, without asking. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct moved {
    __u32 gone;
} __attribute__((preserve_access_index));

SEC("xdp") int reads(struct xdp_md *ctx)
{
    struct moved *moved = (void *)(long)ctx->data;
    if ((void *)(long)ctx->data + 64 > (void *)(long)ctx->data_end)
        return XDP_DROP;
    return moved->gone ? XDP_PASS : XDP_DROP;
}
