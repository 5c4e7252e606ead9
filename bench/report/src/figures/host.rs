//! Figures of two programs of one host.

use super::{NOT_EXAMINED, higher, lower};
use crate::figure::{Figure, Kind, Section, Target, Unit};

const RATE: Kind = Kind {
    section: Section::Host,
    benchmark: "direct",
    way: "direct",
    metric: higher("per_s", Unit::Requests, "to_best_linux"),
};
const P50: Kind = Kind { metric: lower("p50_us", Unit::Us, ""), ..RATE };
const BULK: Kind = Kind { metric: higher("per_s", Unit::Bytes, "to_best_linux"), ..RATE };
const STACK: Kind = RATE.by("stack");

const STACK_CPU: Kind = Kind { metric: lower("cpu_ns_per_request", Unit::Ns, ""), ..STACK };

const LINES: &str =
    "cache lines that go from one CPU to the other, three each way, and the library's instructions in both programs";
const JOINING: &str = "two changes of threads, as the service joins the ends and asks the kernel who listens, and some thirty system calls";
const PROGRAMS: &str =
    "redis and its load generator themselves: both CPUs are busy, and of redis' the library has a twelfth";
const COPIES: &str = "two copies of each byte, into the ring and out of it; both CPUs do nothing else";
const LIBRARY: &str = "the programs themselves and the library, which has half to two thirds of the client's CPU and up to half of the \
    server's";
const MORE_LINES: &str = "cache lines that go from one CPU to the other, eighteen each way";

const THREADS: &str = "three threads on two CPUs, which sleep and wake each other for each request: of their time the kernel has more than half";
const PARTS: &str = "both ends and the core share two CPUs: the kernel has a third of their time, as threads wake and yield, the core's own code a \
    quarter, the library another";

pub const FIGURES: &[Figure] = &[
    RATE.figure("64 bytes back and forth, direct: requests/s", "ping-pong-64B", Target::Ratio(20.0), LINES),
    P50.figure("64 bytes back and forth, direct: p50", "ping-pong-64B", Target::AtMost(0.5), LINES),
    RATE.figure("1 KiB back and forth, direct: requests/s", "ping-pong-1KB", Target::Ratio(10.0), MORE_LINES),
    RATE.figure("redis GET, 50 connections, direct: requests/s", "redis-get-c50-P1", Target::Ratio(10.0), LIBRARY),
    RATE.figure(
        "redis GET, 50 connections, -P 16, direct: requests/s",
        "redis-get-c50-P16",
        Target::Ratio(3.5),
        PROGRAMS,
    ),
    BULK.figure("iperf3, direct", "bulk", Target::Ratio(1.7), COPIES),
    RATE.figure("nginx and wrk, 32 kept connections, direct: requests/s", "nginx-wrk-c32", Target::Ratio(2.0), LIBRARY),
    RATE.figure("memcached GET, 50 connections, direct: requests/s", "memcached-get-c50", Target::Ratio(2.0), LIBRARY),
    RATE.figure("one RPC per connection, direct: requests/s", "rpc-per-connection", Target::Ratio(1.5), JOINING),
    STACK.figure("64 bytes back and forth, over the stack: requests/s", "ping-pong-64B", Target::None, THREADS),
    STACK.figure(
        "redis GET, 50 connections, over the stack: requests/s",
        "redis-get-c50-P1",
        Target::None,
        NOT_EXAMINED,
    ),
    STACK.figure("64-byte echo, 64 connections, port in memory: requests/s", "echo-64B-c64", Target::None, PARTS),
    STACK_CPU.figure(
        "64-byte echo, 64 connections, port in memory: CPU per request, both ends",
        "echo-64B-c64",
        Target::Ratio(0.5),
        PARTS,
    ),
];
