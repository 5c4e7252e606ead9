//! CPUs of their own for the receive path of this host's kernel (asymmetric network processing).
//!
//! [`Machine`] is what there is: CPUs, network cards, their queues and interrupts. [`Plan`] is what has to be written, and in which
//! order, for a card's packets to be received on some CPUs and an application to run on the others; it is a function of the two. A
//! [`Journal`] keeps what was there before, and gives it back, whoever was in the middle of what. How many CPUs is not decided here
//! (`towpath_cores`).

mod cpulist;
mod journal;
mod knob;
mod machine;
mod plan;
mod sense;
mod tree;

pub use cpulist::CpuSet;
pub use journal::{Journal, JournalError, Restored};
pub use knob::{ApplyError, Knob};
pub use machine::{Interface, Machine};
pub use plan::{FEWEST_CPUS, Plan, PlanError, Pool};
pub use sense::{SHORTEST, Sample, outcome_of};
pub use tree::{Tree, Writer, into_file};
