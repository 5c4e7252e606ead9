//! Do interrupts go where they were sent? A kernel takes the value at once and moves the interrupt when it comes the next time; some never move.

use crate::cpulist::CpuSet;
use crate::knob::{Knob, irq_of};
use crate::tree::Tree;
use std::collections::BTreeMap;

/// So often an interrupt has come before it is said to stay: the first may be the one with which it moves.
const COMES: u64 = 8;

/// Interrupts that were sent somewhere, and how often each had come then.
#[derive(Clone, Debug, Default)]
pub struct Effect {
    sent: BTreeMap<u32, (CpuSet, u64)>,
}

impl Effect {
    /// These were set.
    pub fn sent(&mut self, tree: &Tree, knobs: &[Knob]) {
        for knob in knobs {
            let (Some(irq), Some(cpus)) = (irq_of(&knob.path), CpuSet::of_list(&knob.value)) else { continue };
            self.sent.insert(irq, (cpus, count(tree, irq)));
        }
        self.sent.retain(|irq, _| knobs.iter().any(|knob| irq_of(&knob.path) == Some(*irq)));
    }

    /// Those that have come since and still come elsewhere.
    pub fn refused(&self, tree: &Tree) -> Vec<u32> {
        let elsewhere = |(irq, (cpus, before)): (&u32, &(CpuSet, u64))| {
            let said = |file: &str| CpuSet::of_list(&tree.text(&format!("/proc/irq/{irq}/{file}"))?);
            // Who has sent it elsewhere since is somebody else, the driver for one; that is no refusal.
            let sent = said("smp_affinity_list")? == *cpus;
            let found = said("effective_affinity_list")?;
            let came = count(tree, *irq).saturating_sub(*before) >= COMES;
            (came && sent && !found.is_empty() && !found.without(cpus).is_empty()).then_some(*irq)
        };
        self.sent.iter().filter_map(elsewhere).collect()
    }
}

/// How often an interrupt has come.
fn count(tree: &Tree, irq: u32) -> u64 {
    let text = tree.text(&format!("/sys/kernel/irq/{irq}/per_cpu_count")).unwrap_or_default();
    text.split(',').filter_map(|count| count.trim().parse::<u64>().ok()).sum()
}
