//! Checks whether interrupts go where they were sent. The kernel takes the value at once, and moves the interrupt when
//! it comes next. Some never move.

use crate::cpulist::CpuSet;
use crate::knob::{Knob, irq_of};
use crate::tree::Tree;
use std::collections::BTreeMap;

/// An interrupt that has come this often and still comes elsewhere does not move. It moves with the first or second at
/// best.
const COMES: u64 = 8;

/// Interrupts that were sent somewhere, with their counts at that time.
#[derive(Clone, Debug, Default)]
pub struct Effect {
    sent: BTreeMap<u32, (CpuSet, u64)>,
}

impl Effect {
    /// Notes the interrupts among these knobs, which were just set.
    pub fn sent(&mut self, tree: &Tree, knobs: &[Knob]) {
        for knob in knobs {
            let (Some(irq), Some(cpus)) = (irq_of(&knob.path), CpuSet::of_list(&knob.value)) else { continue };
            self.sent.insert(irq, (cpus, count(tree, irq)));
        }
        self.sent.retain(|irq, _| knobs.iter().any(|knob| irq_of(&knob.path) == Some(*irq)));
    }

    /// The interrupts that have come since and still come elsewhere.
    pub fn refused(&self, tree: &Tree) -> Vec<u32> {
        let elsewhere = |(irq, (cpus, before)): (&u32, &(CpuSet, u64))| {
            let said = |file: &str| CpuSet::of_list(&tree.text(&format!("/proc/irq/{irq}/{file}"))?);
            // If another program, or the driver, has sent it elsewhere since, it has not refused.
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
