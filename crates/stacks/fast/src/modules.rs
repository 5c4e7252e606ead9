//! Modules: each flow group has its own instances, which stand before its ports.

use crate::filter::Filter;
use crate::host::SlowHost;
use crate::messages::ToGroup;
use crate::owner::split;
use crate::selection::Selection;
use crate::slow::SlowState;
use crate::splices::Splices;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use towpath_modules::Chains;
use towpath_runtime::{ClientId, Selectors};
use towpath_tcp::flow::{FlowId, FourTuple, Owner};
use towpath_tcp::slow::{ConnectionInfo, TcpState};

impl SlowState {
    /// Has all flow groups run these modules, or none. `done` is dropped when they do.
    pub fn modules(&mut self, modules: Option<&(Chains, Selectors)>, done: &mpsc::Sender<()>) {
        let chains = modules.map(|(chains, _)| chains);
        let before = self.host.forwards_by();
        self.host.splices = Splices::of(chains);
        if self.host.forwards_by() != before {
            self.slow.change_splices(&mut self.host);
        }
        self.select(modules);
        self.direct_modules(chains, done);
        let table = self.host.selection.as_ref().map(|selection| Arc::clone(selection.table()));
        for (group, link) in self.host.flow_groups.iter_mut().enumerate() {
            // Made here, so that a flow group allocates nothing.
            let filter = |chains, port| Filter::new(chains, group, port as u32).select(table.as_ref());
            let filters = chains.map(|chains| (0..link.ports).map(|port| filter(chains, port)).collect());
            link.to.send(ToGroup::Modules { filters, done: done.clone() });
        }
    }

    /// Enters all connections and listeners that there are, for modules with selectors, and those that ask whose a frame is. The
    /// table is there while there is such a module.
    fn select(&mut self, modules: Option<&(Chains, Selectors)>) {
        let Some((_, selectors)) = modules.filter(|(chains, _)| chains.select() || chains.read_meta()) else {
            self.host.selection = None;
            return;
        };
        let connections = self.table.max_flows();
        // Modules that run meanwhile read the same table. Each keeps its bit, and what is there already stays there.
        match &mut self.host.selection {
            Some(selection) => selection.selectors = Arc::clone(selectors),
            None => self.host.selection = Some(Selection::new(connections, Arc::clone(selectors))),
        }
        let mut known: HashMap<ClientId, u32> = HashMap::new();
        for ConnectionInfo { state, owner, tuple, flow, .. } in self.slow.connections() {
            let is_direct = state == TcpState::Established && flow.is_none();
            let Some(owner) = owner.filter(|_| !is_direct) else { continue };
            let Some(client) = self.host.client_of(owner) else { continue };
            let bits = *known.entry(client).or_insert_with(|| selectors(client));
            match &mut self.host.selection {
                Some(selection) if state == TcpState::Listen => selection.listener(owner, tuple.local_end(), bits),
                Some(selection) => selection.connection(owner, &tuple, bits, flow),
                None => {}
            }
        }
    }
}

impl SlowHost {
    /// The client of an owner.
    fn client_of(&self, owner: Owner) -> Option<ClientId> {
        let client = self.clients.get(split(owner).0 as usize)?.as_ref()?;
        Some(client.shared.id)
    }

    /// The selectors that choose the client of an owner, if there are selectors.
    pub fn selectors_of(&self, owner: Owner) -> Option<u32> {
        let selection = self.selection.as_ref()?;
        Some((selection.selectors)(self.client_of(owner)?))
    }

    /// A connection begins, or is established and has a number: which modules have its frames?
    pub fn select_connection(&mut self, owner: Owner, tuple: &FourTuple, flow: Option<FlowId>) {
        if let Some(bits) = self.selectors_of(owner)
            && let Some(selection) = &mut self.selection
        {
            selection.connection(owner, tuple, bits, flow);
        }
    }

    /// The same for a listener, and for frames that come to it.
    pub fn select_listener(&mut self, owner: Owner, local: SocketAddr) {
        if let Some(bits) = self.selectors_of(owner)
            && let Some(selection) = &mut self.selection
        {
            selection.listener(owner, local, bits);
        }
    }

    /// A connection or a listener is over.
    pub fn forget_selected(&mut self, owner: Owner) {
        if let Some(selection) = &mut self.selection {
            selection.leave(owner);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::api::Network;
    use crate::by_hand::ByHand;
    use crate::client::{OfClient, SlowClient};
    use crate::group_tests::setup;
    use crate::host::LOOPBACK;
    use crate::owner::owner;
    use crate::selection::tests::tuple;
    use crate::send_back_tests::segment;
    use std::net::IpAddr;
    use towpath_ports::memory::Loopback;
    use towpath_runtime::policy::AllowAll;
    use towpath_tcp::flow::FlowSetup;
    use towpath_tcp::slow::{Host, Route, Steered};

    struct NoNetwork;

    impl Network for NoNetwork {
        fn route(&mut self, _: IpAddr, _: Option<IpAddr>) -> Route {
            Route::NotOurs
        }
        fn is_local(&self, _: IpAddr) -> bool {
            false
        }
        fn steer(&mut self, _: &FourTuple, _: Steered) {}
        fn shares_ports_with_kernel(&self) -> bool {
            false
        }
        fn changed(&mut self) -> bool {
            false
        }
    }

    /// A host with one client in place 0, which has the number 1.
    fn host() -> SlowHost {
        let by_hand = ByHand::new(4, 4096, Box::new(Loopback::new())).unwrap();
        let client = SlowClient::new(Arc::clone(&by_hand.client), 1, OfClient::new(0));
        let mut host = SlowHost::new(Vec::new(), Box::new(NoNetwork), Box::new(AllowAll)).unwrap();
        host.clients.push(Some(client));
        host
    }

    fn found(host: &SlowHost) -> Option<u32> {
        host.selection.as_ref().map(|selection| selection.table().received(&segment(false, None, 10).0))
    }

    #[test]
    fn connections_and_listeners_are_entered_and_go_when_they_are_released_or_dropped() {
        let mut host = host();
        let slot = host.client(0).unwrap().shared.region.slot(0).unwrap();
        let own = owner(0, slot);
        let setup = FlowSetup { tuple: tuple(false), ..setup(own) };
        host.established(own, &setup, 0);
        assert_eq!(found(&host), None, "no module has a selector");
        host.selection = Some(Selection::new(4, Arc::new(|client| if client == ClientId(1) { 6 } else { 0 })));
        for (dropped, opens) in [(false, false), (true, false), (false, true)] {
            let taken = host.client(0).unwrap().take_child().unwrap();
            let own = owner(0, taken);
            if opens {
                host.send_first_syn(own, &setup.tuple, LOOPBACK, &[]);
                assert_eq!(found(&host), Some(6), "its SYN-ACK is its own");
                let table = host.selection.as_ref().unwrap().table();
                assert_eq!(table.flow_received(&segment(false, None, 10).0), None, "it has no number yet");
            }
            host.established(own, &setup, 0);
            // Its listener had no room at first.
            host.established(own, &setup, 0);
            assert_eq!(found(&host), Some(6));
            let table = host.selection.as_ref().unwrap().table();
            assert_eq!(table.flow_received(&segment(false, None, 10).0), Some(setup.flow.0));
            if dropped {
                host.drop_child(own);
            } else {
                host.released(own, Some(setup.flow));
            }
            assert_eq!(found(&host), Some(0));
        }
        // What comes to a listener is its own until it ends.
        host.select_listener(own, setup.tuple.local_end());
        assert_eq!(found(&host), Some(6));
        host.released(own, None);
        assert_eq!(found(&host), Some(0));
        // A client that has gone has no modules.
        host.clients.clear();
        host.established(own, &setup, 0);
        host.released(own, None);
        assert_eq!(found(&host), Some(0));
    }
}
