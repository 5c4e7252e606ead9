//! What a card consists of. Whenever that changes the kernel forgets what was set: after `ethtool -L` interrupts, XPS and RPS, after a link
//! was down the CPUs of NAPI threads.

use crate::machine::Interface;
use crate::tree::Tree;

/// The parts of a card, comparable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The kernel's number of the device: another device may have its name now.
    pub index: Option<u32>,
    /// How often its link has come or gone.
    carrier: Option<u64>,
    irqs: Vec<u32>,
    napis: Vec<(u32, Option<u32>)>,
    /// The folders of its queues, which are made anew with the queues.
    queues: Vec<(String, Option<u64>)>,
}

impl Shape {
    /// Of this card.
    pub fn of(tree: &Tree, card: &Interface) -> Self {
        let at = format!("/sys/class/net/{}", card.name);
        let folder = |name: String| {
            let inode = tree.inode(&format!("{at}/queues/{name}"));
            (name, inode)
        };
        Self {
            index: tree.number(&format!("{at}/ifindex")),
            carrier: tree.number(&format!("{at}/carrier_changes")),
            irqs: card.irqs.clone(),
            napis: card.napis.iter().map(|napi| (napi.id, napi.thread)).collect(),
            queues: tree.names(&format!("{at}/queues")).into_iter().map(folder).collect(),
        }
    }
}
