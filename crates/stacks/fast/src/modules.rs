//! Modules: each flow group has its own instances, which stand before its ports.

use crate::messages::ToGroup;
use crate::module_port::Filter;
use crate::slow::SlowState;
use crate::splices::Splices;
use std::sync::mpsc;
use towpath_modules::Chains;

impl SlowState {
    /// Has all flow groups run these modules, or none. `done` is dropped when they do.
    pub fn modules(&mut self, chains: Option<&Chains>, done: &mpsc::Sender<()>) {
        self.host.splices = Splices::of(chains);
        for (group, link) in self.host.flow_groups.iter_mut().enumerate() {
            // Made here, so that a flow group allocates nothing.
            let filters =
                chains.map(|chains| (0..link.ports).map(|port| Filter::new(chains, group, port as u32)).collect());
            link.to.send(ToGroup::Modules { filters, done: done.clone() });
        }
    }
}
