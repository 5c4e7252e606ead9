//! The compiled BPF programs.

use std::error::Error;

/// bpf/steer.bpf.c, compiled by bpf/build.sh.
pub static OBJECT: &[u8] = aya::include_bytes_aligned!("../../../bpf/steer.bpf.o");

/// Why a program could not be loaded.
pub enum LoadError {
    /// The object lacks something.
    Missing,
    /// The kernel refuses the program.
    Refused(Box<dyn Error>),
}
