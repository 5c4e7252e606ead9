/* One of each relocation. A packet is a struct of the kernel's, and the results are what was read of it. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

#define KERNEL __attribute__((preserve_access_index))

enum colour { RED = 1, GREEN = 2, BLUE = 3, GREY = 4 };

struct inner {
    __u16 wanted;
} KERNEL;

typedef struct {
    __u32 word;
} pair_t;

struct moved {
    __u16 plain;
    __u32 wide;
    __u32 gone;
    struct inner inner[2];
    __u8 bits : 2;
    unsigned long *pointer;
    __u8 end[0];
} KERNEL;

/* The same under another name: the part behind the underscores says nothing. */
struct moved___old {
    signed char low;
    __u64 first;
} KERNEL;

struct nowhere {
    __u32 field;
} KERNEL;

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 32);
    __type(key, __u32);
    __type(value, __u64);
} results SEC(".maps");

static __always_inline void result(__u32 at, __u64 value)
{
    __u64 *place = bpf_map_lookup_elem(&results, &at);
    if (place)
        *place = value;
}

static __noinline int in_a_function(struct moved *moved)
{
    return moved ? bpf_core_field_offset(moved->plain) : 0;
}

SEC("xdp/places")
int places(struct xdp_md *ctx)
{
    struct moved *moved = (void *)(long)ctx->data;
    struct moved___old *old = (void *)moved;
    if ((void *)(long)ctx->data + 64 > (void *)(long)ctx->data_end)
        return XDP_DROP;
    result(0, moved->plain);
    result(1, moved->wide);
    result(2, moved->inner[1].wanted);
    result(3, BPF_CORE_READ_BITFIELD(moved, bits));
    result(4, (__u64)moved->pointer);
    result(5, bpf_core_field_size(moved->wide));
    result(6, bpf_core_field_exists(moved->gone) ? moved->gone : 99);
    result(7, bpf_core_field_exists(old->low));
    result(8, (long)&moved->end[3] - (long)moved);
    result(9, bpf_core_type_exists(struct moved) + 2 * bpf_core_type_exists(struct nowhere)
                  + 4 * bpf_core_type_exists(pair_t));
    result(10, bpf_core_type_size(struct moved));
    result(11, bpf_core_enum_value(enum colour, RED));
    result(12, bpf_core_enum_value(enum colour, BLUE));
    result(13, bpf_core_field_offset(old->low));
    result(14, bpf_core_enum_value_exists(enum colour, GREY) + 2 * bpf_core_enum_value_exists(enum colour, GREEN));
    result(15, bpf_core_type_id_kernel(struct moved) != 0);
    result(16, bpf_core_type_id_local(struct moved) != 0);
    result(17, in_a_function(moved));
    result(18, old->first);
    if (bpf_core_type_exists(struct nowhere))
        result(19, ((struct nowhere *)moved)->field);
    return XDP_PASS;
}
