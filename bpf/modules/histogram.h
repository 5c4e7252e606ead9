// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Histograms by powers of two.
#pragma once

#define PLACES 64

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
