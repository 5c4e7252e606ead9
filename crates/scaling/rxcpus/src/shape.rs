//! The parts of a network device. When they change, the kernel forgets settings: interrupts, XPS and RPS after `ethtool
//! -L`, and the CPUs of NAPI threads after the link was down.

use crate::machine::Interface;
use crate::tree::Tree;

/// The parts of a device, for comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The kernel's number of the device. Another device may have its name later.
    pub index: Option<u32>,
    /// How often its link has come or gone.
    carrier: Option<u64>,
    irqs: Vec<u32>,
    napis: Vec<(u32, Option<u32>)>,
    /// The folders of its queues with their inodes. New queues have new ones.
    queues: Vec<(String, Option<u64>)>,
}

impl Shape {
    /// The parts of this device now.
    pub fn of(tree: &Tree, device: &Interface) -> Self {
        let at = format!("/sys/class/net/{}", device.name);
        let folder = |name: String| {
            let inode = tree.inode(&format!("{at}/queues/{name}"));
            (name, inode)
        };
        Self {
            index: tree.number(&format!("{at}/ifindex")),
            carrier: tree.number(&format!("{at}/carrier_changes")),
            irqs: device.irqs.clone(),
            napis: device.napis.iter().map(|napi| (napi.id, napi.thread)).collect(),
            queues: tree.names(&format!("{at}/queues")).into_iter().map(folder).collect(),
        }
    }
}
