//! A plan: the values to write, in order.

use crate::cpulist::{CpuSet, serialize_list};
use crate::knob::Knob;
use crate::steering_way::SteeringWay;
use serde::Serialize;

/// Everything that has to be written, in this order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// The network device.
    pub interface: String,
    /// How packets are brought to the reserved CPUs.
    pub way: SteeringWay,
    /// Why this way was chosen.
    pub why: String,
    /// The CPUs that receive.
    #[serde(serialize_with = "serialize_list")]
    pub reserved: CpuSet,
    /// The CPUs that applications keep.
    #[serde(serialize_with = "serialize_list")]
    pub applications: CpuSet,
    /// The values to write.
    pub knobs: Vec<Knob>,
}

impl Plan {
    /// Shell commands that do the same.
    pub fn commands(&self) -> Vec<String> {
        self.knobs.iter().map(Knob::command).collect()
    }
}
