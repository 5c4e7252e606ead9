//! Shared by the benchmarks of real flows (`towpath-bench`) and of simulated ones (`towpath-fabric`): statistics, the
//! shape of their results, and how a row is printed.
#![forbid(unsafe_code)]

mod fairness;
mod incast;
mod statistics;

pub use fairness::{ShareSummary, Shares};
pub use incast::{Completion, wire_us};
pub use statistics::{jain, median, quantile};

use serde::Serialize;

/// Prints a row as one line of JSON if `wanted`. True if it did.
pub fn print_json(wanted: bool, row: &impl Serialize) -> bool {
    if wanted && let Ok(text) = serde_json::to_string(row) {
        println!("{text}");
    }
    wanted
}

/// The same for all rows.
pub fn print_json_rows(wanted: bool, rows: &[impl Serialize]) -> bool {
    rows.iter().for_each(|row| {
        print_json(wanted, row);
    });
    wanted
}
