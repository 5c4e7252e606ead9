//! CPUs of their own for the receive path of this host's kernel (asymmetric network processing).
//!
//! [`Machine`] is what there is: CPUs, network cards, their queues and interrupts. [`Plan`] is what has to be written, and in which
//! order, for a card's packets to be received on some CPUs and an application to run on the others; it is a function of the two. A
//! [`Journal`] keeps what was there before, and gives it back, whoever was in the middle of what. How many CPUs is not decided here
//! (`towpath_cores`).

mod cpulist;
mod effect;
mod ethtool;
mod host;
mod journal;
mod knob;
mod machine;
mod netdev;
mod own;
mod partition;
mod plan;
mod pool;
mod reserved;
mod sense;
mod setting;
mod shape;
mod stacks;
mod table;
mod task;
mod tree;
mod way;

pub use cpulist::CpuSet;
pub use effect::Effect;
pub use host::{affinity, set_affinity};
pub use journal::{Journal, JournalError, Restored};
pub use knob::{ApplyError, Knob};
pub use machine::{Interface, Machine};
pub use netdev::{Napi, napis, set_irq_suspend};
pub use own::own_text;
pub use partition::{Partition, PartitionKind};
pub use plan::{Plan, PlanError};
pub use pool::{FEWEST_CPUS, Pool};
pub use reserved::{MOST_STATE_BYTES, STATE_VERSION, began, journal_place, reserved, state_place};
pub use sense::{SHORTEST, Sample, Sensed, Sensor};
pub use setting::{Setting, Task};
pub use shape::Shape;
pub use stacks::StackThread;
pub use table::Table;
pub use tree::{Tree, Writer, into_file};
pub use way::Way;
