//! Figures that are counted.

use super::{NOT_EXAMINED, lower};
use crate::figure::{Figure, Kind, Section, Target, Unit};

const COUNT: Kind = Kind {
    section: Section::Instructions,
    benchmark: "instructions",
    way: "towpath",
    metric: lower("instructions", Unit::Number, ""),
};

const STAGES: &str =
    "no part has most: receive and deliver 24 %, protocol and post 26 %, the application's words 17 %, egress 31 %";

const LIBRARY: &str =
    "`epoll_wait` has 41 %, `read` 22 %, `write` 21 %, the doorbell 11 %; saved registers and a lock are in each";

const NATIVE: &str = "`wait` has 35 %; the others each look the connection up";

const TOGETHER: &str = "stages 49 %, library 32 %, engine and port 19 %";

const ENGINE: &str = "to publish events has three fifths, the application's queue three tenths, and the port the rest";

const NO_STACK: &str =
    "no stack works for a direct connection, so the programs do, and ring the doorbell of a client that sleeps";

const COOKIE: &str =
    "hashes have a third, of the cookie and of tables; headers a seventh, memory for two frames an eighth";

const MODULE: &str = "the calls from the port to the module and back, and what a run has to know";

const FILTER: &str = "the filter's own instructions, which reads the headers up to TCP's ports";

pub const FIGURES: &[Figure] = &[
    COUNT.figure("stages, one flow per turn", "stages_1", Target::AtMost(850.0), STAGES),
    COUNT.figure("stages, 64 flows per turn", "stages_64", Target::AtMost(650.0), STAGES),
    COUNT.figure("engine and port in memory, 64 flows per turn", "engine_and_port", Target::AtMost(250.0), ENGINE),
    COUNT.figure(
        "stages, engine and library together, 64 flows per turn",
        "together_64",
        Target::AtMost(1300.0),
        TOGETHER,
    ),
    COUNT.figure("library over the stack", "library", Target::AtMost(350.0), LIBRARY),
    COUNT.figure("native API over the stack", "native", Target::None, NATIVE),
    COUNT.figure("library on a direct connection", "library_direct", Target::AtMost(600.0), NO_STACK),
    COUNT.figure("native API on a direct connection", "native_direct", Target::None, NO_STACK),
    COUNT.figure("one send of a busy sender, library over the stack", "send", Target::None, NOT_EXAMINED),
    COUNT.figure("a SYN of a flood, answered with a cookie", "flood_syn", Target::None, COOKIE),
    COUNT.figure(
        "a received frame, what a module adds that passes all",
        "module_ingress",
        Target::AtMost(20.0),
        MODULE,
    ),
    COUNT.figure("a sent frame, what a module adds that passes all", "module_egress", Target::AtMost(20.0), MODULE),
    COUNT.figure(
        "a received frame, what a capture adds whose filter matches nothing",
        "capture_ingress",
        Target::AtMost(40.0),
        FILTER,
    ),
    COUNT.figure(
        "a sent frame, what a capture adds whose filter matches nothing",
        "capture_egress",
        Target::AtMost(40.0),
        FILTER,
    ),
];
