//! Receive CPUs: CPUs reserved for the receive path of this host's kernel (asymmetric network processing, ANP).
//!
//! - [`Machine`] describes CPUs, network devices, their queues and interrupts.
//! - [`Pool`] chooses CPUs and makes a [`Plan`]: the values to write, in order. Afterwards a device's packets are
//!   received on some CPUs and applications run on the others.
//! - [`Journal`] keeps the old values and puts them back, also after a crash in the middle of a change.
//!
//! `towpath_scaling` decides how many CPUs are reserved.

mod cgroup;
mod cpulist;
mod effect;
mod error;
mod ethtool;
mod host;
mod journal;
mod knob;
mod machine;
mod netdev;
mod nic;
mod own;
mod partition;
mod plan;
mod pool;
mod reserved;
mod sense;
mod setting;
mod shape;
mod stacks;
mod steering;
mod steering_way;
mod table;
mod task;
mod tree;

pub use cpulist::CpuSet;
pub use effect::Effect;
pub use error::{FEWEST_CPUS, PlanError};
pub use host::{affinity, set_affinity, write_file};
pub use journal::{Journal, JournalError, Restored};
pub use knob::{ApplyError, Knob};
pub use machine::{Interface, Machine};
pub use netdev::{Napi, napis, set_irq_suspend};
pub use nic::{Nic, Rss, Xdp};
pub use own::own_text;
pub use partition::{Partition, PartitionKind};
pub use plan::Plan;
pub use pool::Pool;
pub use reserved::{MOST_STATE_BYTES, STATE_VERSION, began, journal_place, reserved, state_place};
pub use sense::{SHORTEST, Sample, Sensed, Sensor};
pub use setting::{Setting, Task};
pub use shape::Shape;
pub use stacks::StackThread;
pub use steering_way::SteeringWay;
pub use table::Table;
pub use tree::{Tree, Writer};
