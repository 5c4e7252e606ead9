//! The slow path says which direct connections modules have, and when these begin and end.

use crate::capture::{ends, ends_in};
use crate::direct_end::DirectEnd;
use crate::direct_frames::{Chosen, OnDirect};
use crate::host::SlowHost;
use crate::slow::SlowState;
use std::collections::HashMap;
use std::sync::{Arc, mpsc};
use towpath_modules::{Attached, Chains};
use towpath_tcp::flow::FourTuple;

impl SlowState {
    /// Has these modules have the frames of direct connections, those that are open among them. `done` is dropped when the
    /// thread runs no others.
    pub fn direct_modules(&mut self, chains: Option<&Chains>, done: &mpsc::Sender<()>) {
        let all: Vec<&Attached> = chains.into_iter().flat_map(Chains::direct).collect();
        let chosen = Chosen::of(&all);
        if chosen.is_none() && self.host.direct_modules.is_none() {
            return;
        }
        self.host.direct_modules = chosen;
        let frames = Arc::clone(&self.host.direct_frames);
        let row = self.flow_groups;
        let mut watch = frames.change(all.into_iter().map(|one| OnDirect::new(one, row)).collect(), done);
        // All connections of a pair are between the same two clients.
        let mut known: HashMap<u32, u32> = HashMap::new();
        for (end, tuple) in self.direct_ends() {
            let selectors = *known.entry(end.number).or_insert_with(|| self.host.selectors_of_direct(&end));
            match chosen {
                Some(chosen) if chosen.is(selectors) => {
                    self.host.with_place(&end, selectors, |place| watch.is_open(place, ends(&tuple)));
                }
                _ => watch.leave(end.number, end.slot),
            }
        }
    }
}

impl SlowHost {
    /// The selectors that choose a client at either end, whether it has closed its own or not.
    fn selectors_of_direct(&self, end: &DirectEnd) -> u32 {
        let (Some(selection), Some(pair)) = (&self.selection, self.pairs.pair(end)) else { return 0 };
        pair.clients.iter().fold(0, |all, client| all | (selection.selectors)(*client))
    }

    /// A direct connection begins.
    pub fn opens_for_modules(&self, end: &DirectEnd, tuple: &FourTuple) {
        let Some(chosen) = self.direct_modules else { return };
        let selectors = self.selectors_of_direct(end);
        if chosen.is(selectors) {
            self.with_place(end, selectors, |place| self.direct_frames.opens(place, ends(tuple)));
        }
    }

    /// One end of a direct connection is done with it. `is_last`: so is the other.
    pub fn ends_for_modules(&self, end: &DirectEnd, reset: bool, is_last: bool) {
        if self.direct_modules.is_some() {
            ends_in(&mut self.direct_frames.watch(), end, reset, is_last);
        }
    }
}
