#!/usr/bin/python3
"""Checks between two kernels, each with an RDMA device, the properties on which the transport of rings over verbs relies.

Usage: immediate.py listen ADDRESS | immediate.py connect ADDRESS

The connecting side writes into a ring in the listening side's memory (RDMA WRITE). Then it writes the position up to which it has
written, with an immediate (RDMA WRITE WITH IMMEDIATE). The listening side sleeps until the immediate comes, and must find every byte
and the position in place. It writes back how far it has read, which the connecting side sees in its own memory. At last a write to
memory that is not registered must end with an error. Prints `whole BYTES` and exits 0.
"""
import json
import socket
import struct
import sys
import time

import pyverbs.enums as e
from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ, CompChannel
from pyverbs.device import Context, get_device_list
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

PORT = 7643
RING = 65_536
# Behind the ring: the position up to which the peer has written, and the one up to which this side has read.
TAIL, HEAD, SPARE, BYTES = RING, RING + 8, RING + 16, RING + 24
ROUNDS = 60
SECONDS = 90


def pattern(position, length):
    return bytes((position + at) % 251 for at in range(length))


class End:
    """One end of a connected pair of queues, and its memory."""

    def __init__(self, line):
        self.context = Context(name=get_device_list()[0].name.decode())
        self.domain = PD(self.context)
        self.memory = MR(self.domain, BYTES, e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE)
        self.memory.write(bytes(BYTES), BYTES)
        self.sends = CQ(self.context, 64)
        self.events = CompChannel(self.context)
        self.receives = CQ(self.context, 64, channel=self.events)
        self.receives.req_notify()
        caps = QPCap(max_send_wr=32, max_recv_wr=32)
        attributes = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.sends, rcq=self.receives, cap=caps)
        self.queues = QP(self.domain, attributes)
        index, gid = self.address()
        ours = {"qp": self.queues.qp_num, "gid": gid, "key": self.memory.rkey, "at": self.memory.buf}
        line.write(json.dumps(ours) + "\n")
        line.flush()
        self.theirs, self.line = json.loads(line.readline()), line
        self.connect(index)
        for _ in range(16):
            self.expect()

    def address(self):
        for index in range(16):
            gid = str(self.context.query_gid(1, index))
            if "ffff" in gid:
                return index, gid
        sys.exit("the device has no IPv4 address")

    def connect(self, index):
        attributes = QPAttr(port_num=1)
        attributes.qp_access_flags = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE
        self.queues.to_init(attributes)
        route = GlobalRoute(dgid=GID(self.theirs["gid"]), sgid_index=index)
        attributes.ah_attr = AHAttr(port_num=1, is_global=1, gr=route, dlid=0)
        attributes.path_mtu, attributes.dest_qp_num = e.IBV_MTU_1024, self.theirs["qp"]
        attributes.rq_psn, attributes.max_dest_rd_atomic, attributes.min_rnr_timer = 0, 1, 12
        self.queues.to_rtr(attributes)
        # 4.096 us * 2^18, seven times, because emulated processors are slow.
        attributes.timeout, attributes.retry_cnt, attributes.rnr_retry = 18, 7, 7
        attributes.sq_psn, attributes.max_rd_atomic = 0, 1
        self.queues.to_rts(attributes)

    def expect(self):
        """Posts a receive for one immediate, which needs no buffer because it brings no bytes."""
        self.queues.post_recv(RecvWR(num_sge=1, sg=[SGE(self.memory.buf + SPARE, 8, self.memory.lkey)]))

    def write(self, at, length, immediate=None, key=None):
        """Writes a part of this side's memory to the same place in the peer's."""
        opcode = e.IBV_WR_RDMA_WRITE if immediate is None else e.IBV_WR_RDMA_WRITE_WITH_IMM
        part = SGE(self.memory.buf + at, length, self.memory.lkey)
        request = SendWR(opcode=opcode, num_sge=1, sg=[part], imm_data=socket.htonl(immediate or 0), send_flags=e.IBV_SEND_SIGNALED)
        request.set_wr_rdma(key or self.theirs["key"], self.theirs["at"] + at)
        self.queues.post_send(request)

    def completions(self, queue, count):
        """Waits for so many completions."""
        ends, got = time.monotonic() + SECONDS, []
        while len(got) < count:
            got += queue.poll(count - len(got))[1]
            if time.monotonic() > ends:
                sys.exit(f"{len(got)} of {count} completions")
        return got

    def immediate(self):
        """Sleeps until a completion comes."""
        number, got = self.receives.poll(1)
        if not number:
            self.events.get_cq_event(self.receives)
            self.receives.ack_events(1)
            self.receives.req_notify()
            got = self.completions(self.receives, 1)
        assert got[0].status == e.IBV_WC_SUCCESS and got[0].opcode == e.IBV_WC_RECV_RDMA_WITH_IMM, got[0]
        self.expect()
        return socket.ntohl(got[0].imm_data)

    def word(self, at):
        return struct.unpack("<Q", self.memory.read(8, at))[0]

    def set_word(self, at, value):
        self.memory.write(struct.pack("<Q", value), 8, at)


def fill(end):
    """The application's side: fills the peer's ring."""
    position = 0
    for number in range(ROUNDS):
        length = min([1, 64, 1448, 9000, 40_000][number % 5], RING - position % RING)
        ends = time.monotonic() + SECONDS
        while position + length - end.word(HEAD) > RING:
            assert time.monotonic() < ends, "nobody reads"
        at = position % RING
        end.memory.write(pattern(position, length), length, at)
        position += length
        end.set_word(TAIL, position)
        # The first write is not waited for: the second must not overtake it.
        end.write(at, length)
        end.write(TAIL, 8, position & 0xffff_ffff)
        for completion in end.completions(end.sends, 2):
            assert completion.status == e.IBV_WC_SUCCESS, completion
    assert end.line.readline() == "all\n"
    end.write(TAIL, 8, 0, key=end.theirs["key"] ^ 0x55_0000)
    status = end.completions(end.sends, 1)[0].status
    assert status == e.IBV_WC_REM_ACCESS_ERR, f"a write to nobody's memory ends with {status}"
    return position


def drain(end):
    """The stack's side: reads the ring."""
    position = 0
    for _ in range(ROUNDS):
        immediate = end.immediate()
        tail = end.word(TAIL)
        assert tail >= immediate, (immediate, tail)
        length = immediate - position
        assert end.memory.read(length, position % RING) == pattern(position, length), f"at {position}"
        position = immediate
        end.set_word(HEAD, position)
        end.write(HEAD, 8)
        assert end.completions(end.sends, 1)[0].status == e.IBV_WC_SUCCESS
    end.line.write("all\n")
    end.line.flush()
    # Keeps the connection until the peer has its error.
    end.line.readline()
    return position


def main():
    what, address = sys.argv[1:]
    if what == "listen":
        listener = socket.create_server((address, PORT))
        peer, _ = listener.accept()
    else:
        peer = socket.create_connection((address, PORT), 30)
    line = peer.makefile("rw")
    print("whole", {"listen": drain, "connect": fill}[what](End(line)), flush=True)


main()
