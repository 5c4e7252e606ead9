//! Shared by the benchmarks of real flows (`towpath-bench`) and of simulated ones (`towpath-fabric`). It has
//! statistics, the shape of their results, how a row is printed, and the report of a run of all benchmarks.
#![forbid(unsafe_code)]

pub mod counts;
mod fairness;
mod figure;
pub mod figures;
pub mod html;
mod incast;
mod interval;
pub mod markdown;
mod outcome;
pub mod recorded;
mod run;
mod statistics;
mod words;

pub use fairness::{ShareSummary, Shares};
pub use figure::{Figure, Metric, Section, Target, Unit};
pub use incast::{Completion, wire_us};
pub use run::{CPUS, LOAD, Run, Step};
pub use statistics::{Spread, jain, median, quantile};

use serde::Serialize;

/// The number of the schema of what `--json` prints, as the other commands have it (docs/reference/json.md).
pub const SCHEMA: u32 = 1;
/// The key of that number.
pub const SCHEMA_KEY: &str = "schema";

/// A row with its schema.
#[derive(Serialize)]
struct Document<'a, T> {
    schema: u32,
    #[serde(flatten)]
    row: &'a T,
}

/// Prints a row as one line of JSON if `wanted`. True if it did.
pub fn print_json(wanted: bool, row: &impl Serialize) -> bool {
    if wanted && let Ok(text) = serde_json::to_string(&Document { schema: SCHEMA, row }) {
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
