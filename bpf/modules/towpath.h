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
    __u16 gso_bytes; // Of a super-segment: payload of each segment that it becomes, or in which it came. 0: one segment, or not known.
    __u8 egress;     // 1: the frame is sent. 0: it was received.
    __u8 unused;
    __u32 port; // 0: memory, for connections within the host. From 1 on: interfaces, as the configuration has them. See below.
    __u32 flow_group; // Its number. Frames of direct connections have a number of their own, the next after the last one.
    __u32 flow; // Number of the connection that the frame belongs to, once it is established. TOWPATH_NO_FLOW: none, or not known.
};

#define TOWPATH_NO_FLOW 0xffffffff

// The port of frames that are made of direct connections, for modules that were added with `--direct`, and for captures.
#define TOWPATH_DIRECT 0xffff

// Two connections that a program has spliced. The stack keeps an element for each direction in a hash that is called
// `towpath_splices`. The module makes of each segment of the one a segment of the other. If it is the first at ingress, the
// kernel may do so in its place (docs/guide/splicing.md). All numbers are in the host's
// order, but for addresses and ports.

// A connection as a received segment names it. An address of IPv4 stands in the first word, and the others are 0.
struct towpath_connection {
    __be32 saddr[4];
    __be32 daddr[4];
    __be16 sport;
    __be16 dport;
    __u32 version; // 4 or 6: of IP.
};

struct towpath_splice {
    struct towpath_connection to; // The connection that the segment goes on, over the same version of IP and in the same VLAN.
    __u8 dmac[6];                 // Ethernet addresses of the next hop, and of the port.
    __u8 smac[6];
    __u32 seq;   // What is added to the sequence number,
    __u32 ack;   // to the acknowledgement and to the edges of SACK blocks,
    __u32 tsval; // to the timestamp's value
    __u32 tsecr; // and to its echo.
    __u8 left;   // By how much the window's field is shifted to the left,
    __u8 right;  // then to the right. One of them is 0.
    __u8 ended;  // The module sets bit 0 when a FIN has gone on, and bit 1 when a RST has.
    __u8 tagged; // 1: segments have the tag of a VLAN, and keep it.
    __u32 acked;    // The module keeps the last acknowledgement here, as it came, unless others have overtaken it,
    __u32 fin;      // the sequence number after the last FIN
    __u32 rst;      // and that of the last RST.
    __u32 out;      // The index of the interface by which it goes. 0: back over a port that has none.
    __u32 newest;   // The newest acknowledgement that a far older one has taken the place of.
    __u32 unused;
    __u64 segments; // It counts what it has sent on: frames,
    __u64 bytes;    // and their payload.
    // The same for what the kernel has sent on without the module. The stack keeps it.
    __u64 kernel_segments;
    __u64 kernel_bytes;
};
