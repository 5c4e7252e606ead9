//! Figures of how CPUs are used.

use super::{higher, lower};
use crate::figure::{Figure, Kind, Section, Target, Unit};

const ONE_CORE: Kind = Kind {
    section: Section::Cores,
    benchmark: "throughput",
    way: "towpath 1",
    metric: higher("requests_per_s", Unit::Requests, "ratio"),
};
const OF_16: Kind = Kind { benchmark: "throughput of 16 CPUs", ..ONE_CORE };
const TWO_CORES: Kind = OF_16.by("towpath 2");
const FOUR_CORES: Kind = OF_16.by("towpath 4");
const CHOSEN: Kind = Kind {
    section: Section::Cores,
    benchmark: "anp",
    way: "chosen",
    metric: higher("requests_per_s", Unit::Requests, "to_symmetric"),
};
const CHOSEN_P99: Kind = Kind { metric: lower("p99_us", Unit::Us, "p99_to_symmetric"), ..CHOSEN };

const SHARED: &str = "core and program share the only CPU";
const TRANSMIT: &str =
    "one core: three fifths of its time are the kernel's transmit path for AF_XDP in copy mode, 1.4 µs a frame";
const CLIENT: &str = "the client's 8 CPUs, which are all busy";
const FEW: &str = "two CPUs: a reserved one is taken from a program";
const OFFERED: &str = "the load: in an open loop throughput is what is offered, and only latency can change";

pub const FIGURES: &[Figure] = &[
    ONE_CORE.figure("server's side 1 CPU, 64 connections, 1 core: requests/s", "64B-1cpu-c64", Target::None, SHARED),
    OF_16.figure("1 of 16 CPUs, 64 connections, 1 core: requests/s", "64B-1cpu-c64", Target::None, SHARED),
    OF_16.figure("2 of 16 CPUs, 128 connections, 1 core: requests/s", "64B-2cpu-c128", Target::None, TRANSMIT),
    OF_16.figure("4 of 16 CPUs, 256 connections, 1 core: requests/s", "64B-4cpu-c256", Target::None, TRANSMIT),
    TWO_CORES.figure("4 of 16 CPUs, 256 connections, 2 cores: requests/s", "64B-4cpu-c256", Target::None, TRANSMIT),
    TWO_CORES.figure("8 of 16 CPUs, 512 connections, 2 cores: requests/s", "64B-8cpu-c512", Target::None, CLIENT),
    FOUR_CORES.figure("8 of 16 CPUs, 512 connections, 4 cores: requests/s", "64B-8cpu-c512", Target::None, CLIENT),
    CHOSEN.figure("receive CPUs, event loops, 64 connections: requests/s", "loops closed", Target::None, FEW),
    CHOSEN_P99.figure("receive CPUs, event loops, open loop: p99", "loops open", Target::None, OFFERED),
    CHOSEN.figure("receive CPUs, poller and workers, 64 connections: requests/s", "poller closed", Target::None, FEW),
    CHOSEN_P99.figure("receive CPUs, poller and workers, open loop: p99", "poller open", Target::None, OFFERED),
];
