// SPDX-License-Identifier: MIT OR Apache-2.0
//
// What a module is told of a frame: this stands before its first byte, from `data_meta` on.
//
//   struct towpath_frame *about = (void *)(long)ctx->data_meta;
//   if ((void *)(about + 1) > (void *)(long)ctx->data)
//       return XDP_PASS;
#pragma once

#include <linux/types.h>

struct towpath_frame {
    __u32 bytes;     // Bytes of this structure. Later versions may have more.
    __u16 gso_bytes; // Of a super-segment that is sent: payload of each segment that it becomes. 0: one segment.
    __u8 egress;     // 1: the frame is sent. 0: it was received.
    __u8 unused;
    __u32 port;       // 0: memory, for connections within the host. From 1 on: interfaces, as the configuration has them.
    __u32 flow_group; // Its number.
};
