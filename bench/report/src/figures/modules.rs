//! Figures of modules that are timed. What they count stands with the instructions.

use super::lower;
use crate::figure::{Figure, Kind, Section, Target, Unit};

const RUN: Kind =
    Kind { section: Section::Modules, benchmark: "modules", way: "towpath", metric: lower("ns", Unit::Ns, "") };

const TURN: &str = "what is done once for each turn, and for each frame the table of where the frames lie";
const OWN: &str = "the program's own instructions: 28 of the 39 that are counted";
const TABLE: &str = "the hash map: look-up and update have four fifths of the instructions";

pub const FIGURES: &[Figure] = &[
    RUN.figure("a module that passes all, a frame", "null", Target::None, TURN),
    RUN.figure("a module that reads the headers up to TCP's ports, a frame", "parse", Target::AtMost(8.0), OWN),
    RUN.figure(
        "a module that counts the frames of each address in a hash map, a frame",
        "hash",
        Target::AtMost(30.0),
        TABLE,
    ),
];
