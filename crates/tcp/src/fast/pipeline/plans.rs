//! Egress, first part: the stages' own function, with a port that hands frames on, and rings that only note what is asked of
//! them.

use super::items::{Abilities, Fetch, Made, Output, Planned, What};
use super::order::{Numbered, put};
use crate::buffers::{Rings, TxPorts};
use crate::flow::{FlowId, PortId};
use rtrb::{Consumer, Producer};
use std::cell::Cell;
use towpath_wire::offload::{Payload, TxOffload};

/// What the flow group makes, in one order.
#[derive(Debug)]
pub(super) struct Plans<F> {
    lanes: Vec<Producer<Numbered<Planned<F>>>>,
    /// For what needs no replica.
    direct: Producer<Numbered<Made<F>>>,
    free: Consumer<F>,
    /// The frame that is being planned.
    reserved: Option<F>,
    next: u64,
    at: usize,
    abilities: Abilities,
}

impl<F> Plans<F> {
    pub fn new(
        lanes: Vec<Producer<Numbered<Planned<F>>>>,
        direct: Producer<Numbered<Made<F>>>,
        free: Consumer<F>,
        abilities: Abilities,
    ) -> Self {
        Self { lanes, direct, free, reserved: None, next: 0, at: 0, abilities }
    }

    /// How many outputs have been made.
    pub fn made(&self) -> u64 {
        self.next
    }

    /// The frame that was being planned goes behind the free ones: it may be what has ended the thread.
    pub fn put_behind(&mut self, after: u64) {
        if self.has_room()
            && let Some(frame) = self.reserved.take()
        {
            put(&mut self.direct, Numbered { number: self.next, what: Made { after, what: What::Abandoned(frame) } });
            self.next += 1;
        }
    }

    #[cfg(test)]
    pub fn take_free(&mut self) -> Option<F> {
        self.reserved.take().or_else(|| self.free.pop().ok())
    }

    /// Is there room for another output that is no frame?
    pub fn has_room(&self) -> bool {
        !self.direct.is_full()
    }

    /// Adds an output that is no frame. `after`: as in [`Made`].
    pub fn add(&mut self, after: u64, output: Output<F>) {
        put(&mut self.direct, Numbered { number: self.next, what: Made { after, what: What::Output(output) } });
        self.next += 1;
    }
}

/// The rings, as far as egress knows them while it plans.
pub(super) struct Asked<'a>(pub &'a Cell<Option<Fetch>>);

impl Rings for Asked<'_> {
    fn deliver(&mut self, _: FlowId, _: u32, _: &[u8]) {
        debug_assert!(false, "nothing is received while sending");
    }
    #[inline]
    fn fetch(&self, flow: FlowId, position: u32, out: &mut [u8]) {
        self.0.set(Some(Fetch { flow, position, len: out.len() }));
    }
}

/// The ports, as far as egress knows them while it plans.
pub(super) struct Planning<'a, F> {
    pub plans: &'a mut Plans<F>,
    /// What has been asked of the rings for the frame in hand: its last bytes.
    pub asked: &'a Cell<Option<Fetch>>,
    /// As in [`Made`].
    pub after: u64,
}

impl<F: AsMut<[u8]>> TxPorts for Planning<'_, F> {
    #[inline]
    fn reserve(&mut self, _: PortId) -> Option<&mut [u8]> {
        let Plans { reserved, free, .. } = &mut *self.plans;
        if reserved.is_none() {
            *reserved = free.pop().ok();
        }
        reserved.as_mut().map(AsMut::as_mut)
    }
    #[inline]
    fn commit(&mut self, port: PortId, len: usize, offload: TxOffload) {
        let fetch = self.asked.take();
        let plans = &mut *self.plans;
        let Some(frame) = plans.reserved.take() else { return };
        let left = plans.abilities.checksum || offload.gso_bytes != 0;
        let sum = offload.checksum_needed && !left;
        plans.at = if plans.at + 1 >= plans.lanes.len() { 0 } else { plans.at + 1 };
        let what = Planned { after: self.after, frame, port, len, fetch, offload, sum };
        put(&mut plans.lanes[plans.at], Numbered { number: plans.next, what });
        plans.next += 1;
    }
    /// The payload does not lie here: the rings have told of none.
    fn commit_gathered(&mut self, port: PortId, header: usize, _: Payload<'_>, offload: TxOffload) {
        self.commit(port, header, offload);
    }
    /// A replica does it, if the port does not.
    #[inline]
    fn tx_checksum(&self, _: PortId) -> bool {
        true
    }
    #[inline]
    fn gso_max_bytes(&self, _: PortId) -> u32 {
        self.plans.abilities.gso_max_bytes
    }
}
