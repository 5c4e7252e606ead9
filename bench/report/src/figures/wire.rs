//! Figures over a veth and over a relay.

use super::{NOT_EXAMINED, higher, lower};
use crate::figure::{Figure, Kind, Metric, Section, Target, Unit};

const RATE: Metric = higher("requests_per_s", Unit::Requests, "ratio");
const CPU: Metric = lower("server_cpu_ns_per_request", Unit::Ns, "");

const fn kind(benchmark: &'static str, metric: Metric) -> Kind {
    Kind { section: Section::Wire, benchmark, way: "towpath", metric }
}

const ECHO: Kind = kind("echo", RATE);
const ECHO_P50: Kind = kind("echo", lower("p50_us", Unit::Us, ""));
const ECHO_CPU: Kind = kind("echo", CPU);
const REDIS: Kind = kind("redis", RATE);
const CONNECTIONS: Kind = kind("connections", RATE);
const CONNECT_P50: Kind = kind("connections", lower("p50_us", Unit::Us, ""));
const BULK: Kind = kind("bulk", higher("requests_per_s", Unit::Bytes, "ratio"));
const BULK_CPU: Kind = kind("bulk", CPU);
const SPLICE: Kind = kind("splice", higher("requests_per_s", Unit::Bytes, "ratio"));
const SPLICE_CPU: Kind = kind("splice", CPU);
const CAPTURE: Kind = kind("capture", higher("kept", Unit::Share, ""));
const LATENCY_P50: Kind = kind("latency", lower("p50_us", Unit::Us, ""));
const LATENCY_P99: Kind = kind("latency", lower("p99_us", Unit::Us, ""));
const LATENCY_P999: Kind = kind("latency", lower("p999_us", Unit::Us, ""));
const WORK: Kind = kind("work", RATE);
const TO_FEW: Kind = kind("many", higher("to_few", Unit::Share, ""));
const MANY: Kind = kind("many", higher("many_per_s", Unit::Requests, ""));
const OPEN: Kind = kind("many", higher("connections", Unit::Number, ""));
const FLOOD: Kind = kind("flood", higher("bytes_per_s", Unit::Bytes, "ratio"));
const FLOOD_RATE: Kind = kind("flood", higher("syns_per_s", Unit::Requests, ""));
const MEMORY: Kind = kind("memory", lower("bytes", Unit::Memory, ""));
const OWN_MEMORY: Kind = kind("memory", lower("own_bytes", Unit::Memory, ""));
const LOSS: Kind = kind("loss", higher("goodput_mbit", Unit::Mbit, "ratio"));
const FAIRNESS: Kind = kind("fairness", higher("jain", Unit::Number, ""));
const INCAST: Kind = kind("incast", lower("p99_us", Unit::Us, ""));

const SHARED: &str = "core and server share one CPU, and each switch between them costs";
const TRANSMIT: &str = "core and server share one CPU, and each switch between them costs; of a core's own time three fifths are the kernel's \
    transmit path for AF_XDP in copy mode";
const WAKES: &str = "the client's halted CPU, which begins 35 µs after the interrupt that wakes it, on both stacks; core and server change \
    places twice, which takes 10 µs";
const BENCHMARK: &str = "the client's CPU: redis-benchmark and its kernel keep it busy 96 % of the time or more, and the server's is idle \
    for a sixth or more";
const CLIENTS_CONNECTIONS: &str = "the client's CPU, busy 96 % of the time, two thirds of it with connect, close and socket; the server's is \
    busy 94 %, a tenth of that with bpf calls";
const TAIL: &str = "waits of milliseconds on both stacks, for what is not known: Linux's own rounds lie up to 90-fold apart at p99, and up to \
    12-fold at p99.9";
const OWN_WORK: &str = "the requests' own work, two thirds to three quarters of the CPU that core and server share; the core takes a fifth \
    of it at most";
const SENDER: &str =
    "the client's CPU, busy 93 % of the time or more, while the server's is idle for an eighth or more";
const ACTIVATION: &str =
    "each request finds its connection idle, of which the slow path has to hear: that takes a tenth of the core's CPU";
const SPINS: &str = "the core spins in the time that one connection leaves it, and spinning counts as busy";
const CLIENT: &str = "the client's CPU: a kernel that is busy with so many requests";
const SHORT: &str =
    "core and server take turns on one CPU: the next SYN waits until the server has closed the last connection";
const IPERF: &str = "the client's CPU, busy 99 % of the time, while the server's is idle for an eighth";
const RECEIVED: &str = "each byte is copied three times on the server's CPU: out of the packet socket, into the ring, out of it; Linux copies it \
    once";
const SENT: &str = "interrupts to the client's CPU, one for each super-segment, take a quarter of the time; each byte is copied twice where \
    Linux copies it once";
const BOTH_ENDS: &str = "the two ends, which share a CPU";
const CAPTURED: &str = "the program that captures: it has no CPU of its own, and takes what it needs from both ends";
const LIMITS: &str = "descriptors and memory of this machine";
const LINES: &str = "the slow path's entry, 800 B, of which congestion control and statistics have 400; the slot's lines in the region, 512 B; the \
    flow's seven lines, 448 B; the rest are tables by number, tuple and timer";
const PATH: &str = "the path: 50 Mbit/s, 10 ms each way, a queue of 256 KiB";
const FLOODED: &str = "the copies of each received byte, and the kernel's path of each SYN to the listening socket";
const LOSERS: &str =
    "whose segments the full queue drops: with ECN in the place of drops the index is 1.000 on the same path";
const WIRE: &str = "the wire: 200 Mbit/s, on which the bytes alone take nine tenths of the time with 64 senders, and four fifths with fewer";
const TIMEOUT: &str = "a retransmission time-out, whose length the p99 has: CUBIC without ECN overflows the queue";

pub const FIGURES: &[Figure] = &[
    ECHO.figure("64-byte echo, 1 connection: requests/s", "c1-d1", Target::Ratio(1.5), WAKES),
    ECHO_P50.figure("64-byte echo, 1 connection: p50", "c1-d1", Target::Ratio(0.7), WAKES),
    ECHO_CPU.figure("64-byte echo, 1 connection: server's CPU per request", "c1-d1", Target::None, SPINS),
    ECHO.figure("64-byte echo, 16 connections: requests/s", "c16-d1", Target::None, TRANSMIT),
    ECHO_CPU.figure("64-byte echo, 16 connections: server's CPU per request", "c16-d1", Target::Ratio(0.6), TRANSMIT),
    ECHO.figure("64-byte echo, 64 connections: requests/s", "c64-d1", Target::None, CLIENT),
    ECHO_CPU.figure("64-byte echo, 64 connections: server's CPU per request", "c64-d1", Target::Ratio(0.6), TRANSMIT),
    ECHO.figure("64-byte echo, 1,000 connections: requests/s", "c1000-d1", Target::None, CLIENT),
    ECHO_CPU.figure(
        "64-byte echo, 1,000 connections: server's CPU per request",
        "c1000-d1",
        Target::Ratio(0.6),
        TRANSMIT,
    ),
    ECHO.figure("64-byte echo, 1 connection, 32 pipelined: requests/s", "c1-d32", Target::None, WAKES),
    ECHO.figure("64-byte echo, 16 connections, 32 pipelined: requests/s", "c16-d32", Target::Ratio(1.3), SHARED),
    REDIS.figure("redis GET, 50 connections: requests/s", "get-c50-P1", Target::None, SHARED),
    REDIS.figure("redis SET, 50 connections: requests/s", "set-c50-P1", Target::None, SHARED),
    REDIS.figure("redis GET, 50 connections, -P 16: requests/s", "get-c50-P16", Target::Ratio(1.3), BENCHMARK),
    REDIS.figure("redis SET, 50 connections, -P 16: requests/s", "set-c50-P16", Target::Ratio(1.3), BENCHMARK),
    CONNECTIONS.figure("one request per connection, 32 at a time", "rpc-32", Target::Ratio(1.3), CLIENTS_CONNECTIONS),
    CONNECTIONS.figure("one request per connection, one after the other", "rpc-1", Target::Ratio(1.0), SHORT),
    CONNECT_P50.figure("time to connect: p50", "connect", Target::Ratio(1.0), SHORT),
    BULK.figure("iperf3, received", "receive", Target::Ratio(1.0), IPERF),
    BULK_CPU.figure("iperf3, received: server's CPU per byte", "receive", Target::Ratio(1.0), RECEIVED),
    BULK.figure("iperf3, sent", "send", Target::Ratio(1.0), SENT),
    BULK_CPU.figure("iperf3, sent: server's CPU per byte", "send", Target::Ratio(1.0), SENT),
    SPLICE.figure("a proxy that hands its connections over: bytes/s", "bulk", Target::Ratio(5.0), BOTH_ENDS),
    SPLICE_CPU.figure(
        "a proxy that hands its connections over: its side's CPU per byte",
        "bulk",
        Target::None,
        BOTH_ENDS,
    ),
    CAPTURE.figure(
        "64-byte echo, 64 connections, rate while a capture's filter matches nothing, to that without",
        "nothing",
        Target::None,
        CAPTURED,
    ),
    CAPTURE.figure("the same while all frames are captured", "all", Target::AtLeast(0.9), CAPTURED),
    LATENCY_P50.figure("open loop at 15 % of the saturated rate: p50", "load-15", Target::None, NOT_EXAMINED),
    LATENCY_P99.figure("open loop at 15 %: p99", "load-15", Target::None, TAIL),
    LATENCY_P999.figure("open loop at 15 %: p99.9", "load-15", Target::None, TAIL),
    LATENCY_P50.figure("open loop at 50 %: p50", "load-50", Target::None, NOT_EXAMINED),
    LATENCY_P99.figure("open loop at 50 %: p99", "load-50", Target::None, TAIL),
    LATENCY_P999.figure("open loop at 50 %: p99.9", "load-50", Target::None, TAIL),
    LATENCY_P50.figure("open loop at 80 %: p50", "load-80", Target::None, NOT_EXAMINED),
    LATENCY_P99.figure("open loop at 80 %: p99", "load-80", Target::None, TAIL),
    LATENCY_P999.figure("open loop at 80 %: p99.9", "load-80", Target::None, TAIL),
    WORK.figure("one-way requests of 32 B, 250 cycles of work", "32B-250", Target::None, OWN_WORK),
    WORK.figure("one-way requests of 32 B, 1,000 cycles of work", "32B-1000", Target::None, OWN_WORK),
    WORK.figure("one-way requests of 128 B, 250 cycles of work", "128B-250", Target::None, OWN_WORK),
    WORK.figure("one-way requests of 128 B, 1,000 cycles of work", "128B-1000", Target::None, OWN_WORK),
    WORK.figure("one-way requests of 512 B, 250 cycles of work", "512B-250", Target::None, SENDER),
    WORK.figure("one-way requests of 512 B, 1,000 cycles of work", "512B-1000", Target::None, OWN_WORK),
    WORK.figure("one-way requests of 2 KiB, 250 cycles of work", "2048B-250", Target::None, SENDER),
    WORK.figure("one-way requests of 2 KiB, 1,000 cycles of work", "2048B-1000", Target::None, SENDER),
    TO_FEW.figure(
        "rate with 100,000 connections, to that with 1,000",
        "many-connections",
        Target::AtLeast(0.95),
        ACTIVATION,
    ),
    MANY.figure("64-byte echo, 100,000 connections in turn: requests/s", "many-connections", Target::None, ACTIVATION),
    OPEN.figure("connections that were open for it", "many-connections", Target::AtLeast(100_000.0), LIMITS),
    FLOOD.figure("an established transfer under a flood of SYNs", "transfer-under-syns", Target::Ratio(1.0), FLOODED),
    FLOOD_RATE.figure(
        "SYNs that were sent meanwhile",
        "transfer-under-syns",
        Target::None,
        "what was asked for, 50,000 /s",
    ),
    MEMORY.figure(
        "service memory of an idle connection, with its region",
        "idle-connection",
        Target::AtMost(512.0),
        LINES,
    ),
    OWN_MEMORY.figure(
        "service memory of an idle connection, without its region",
        "idle-connection",
        Target::None,
        LINES,
    ),
    LOSS.figure("one bulk sender, clean path", "clean", Target::None, PATH),
    LOSS.figure("one bulk sender, 0.01 % lost", "loss-0.01%", Target::None, PATH),
    LOSS.figure("one bulk sender, 0.1 % lost", "loss-0.1%", Target::None, PATH),
    LOSS.figure("one bulk sender, 1 % lost", "loss-1%", Target::None, PATH),
    LOSS.figure("one bulk sender, 2 % lost", "loss-2%", Target::None, PATH),
    LOSS.figure("one bulk sender, 5 % lost", "loss-5%", Target::None, PATH),
    LOSS.figure("one bulk sender, 3 % reordered", "reorder-3%", Target::None, PATH),
    LOSS.figure("one bulk sender, bursts of 8 lost", "burst-0.1%x8", Target::None, PATH),
    FAIRNESS.figure("Jain's index of 50 flows, CUBIC", "50-cubic", Target::None, LOSERS),
    FAIRNESS.figure("Jain's index of 100 flows, CUBIC", "100-cubic", Target::None, LOSERS),
    FAIRNESS.figure("Jain's index of 200 flows, CUBIC", "200-cubic", Target::None, LOSERS),
    FAIRNESS.figure(
        "Jain's index of 500 flows, CUBIC",
        "500-cubic",
        Target::None,
        "the fair share is a fraction of a segment per round trip, where CUBIC of both kinds starves flows",
    ),
    INCAST.figure("incast of 8 x 64 KiB, CUBIC: p99", "8-cubic", Target::None, WIRE),
    INCAST.figure("incast of 16 x 64 KiB, CUBIC: p99", "16-cubic", Target::None, WIRE),
    INCAST.figure("incast of 32 x 64 KiB, CUBIC: p99", "32-cubic", Target::None, TIMEOUT),
    INCAST.figure("incast of 64 x 64 KiB, CUBIC: p99", "64-cubic", Target::None, TIMEOUT),
    INCAST.figure("incast of 64 x 64 KiB, CUBIC with ECN: p99", "64-cubic-ecn", Target::None, WIRE),
];
