//! What a host does that says nothing of it.

use super::world::*;
use crate::flow::{FlowId, FlowSetup, FlowSnapshot, FourTuple, Owner, PortId, RingBytes};
use crate::messages::ToFast;
use crate::slow::{Admission, FirstSyn, Host, Route, Snapshots, Steered};
use std::net::IpAddr;

/// A host of which only what has no default is written.
struct Plain;

impl Host for Plain {
    fn route(&mut self, _: IpAddr, _: Option<IpAddr>) -> Route {
        Route::NotOurs
    }
    fn is_local(&self, _: IpAddr) -> bool {
        false
    }
    fn flow_group_for(&self, _: &FourTuple, _: Option<usize>) -> usize {
        0
    }
    fn send(&mut self, _: usize, _: ToFast) {}
    fn steer(&mut self, _: &FourTuple, _: Steered) {}
    fn steer_listener(&mut self, _: IpAddr, _: u16, _: bool) {}
    fn new_child(&mut self, _: Owner) -> Option<Owner> {
        None
    }
    fn drop_child(&mut self, _: Owner) {}
    fn ring_bytes(&self, _: Owner) -> RingBytes {
        RingBytes::fixed(1, 1)
    }
    fn established(&mut self, _: Owner, _: &FlowSetup, _: usize) {}
    fn accept_queue_full(&mut self, _: Owner) -> bool {
        false
    }
    fn accepted(&mut self, _: Owner, _: Owner, _: &FourTuple) -> bool {
        false
    }
    fn connect_failed(&mut self, _: Owner, _: i32) {}
    fn released(&mut self, _: Owner, _: Option<FlowId>) {}
    fn random(&mut self) -> u64 {
        0
    }
}

#[test]
fn a_plain_host_has_one_user_and_class_and_no_rules_of_its_own() {
    let tuple = FourTuple { local: US, local_port: 80, remote: PEER, remote_port: 4000 };
    assert!(!Plain.kernel_has(&tuple) && !Plain.names_listeners() && !Plain.spares_children(SERVER));
    assert!(Plain.finds_listeners(PortId(1)) && Plain.listener_of(&tuple).is_none() && Plain.more_ports().is_empty());
    assert_eq!((Plain.user(SERVER), Plain.class(SERVER)), (0, 0));
    assert_eq!(Plain.send_first_syn(SERVER, &tuple, PortId(1), &[]), FirstSyn::ByPort);
    assert_eq!(Plain.admit(SERVER, &tuple), Admission::Yes(0));
}

#[test]
fn a_snapshot_is_the_same_behind_a_reference() {
    let readings = Readings([(FlowId(3), FlowSnapshot { cwnd: 77, ..FlowSnapshot::default() })].into());
    let cwnd = |flows: &dyn Snapshots| flows.snapshot(FlowId(3)).cwnd;
    assert_eq!(cwnd(&&readings), 77);
    assert_eq!(cwnd(&std::sync::Arc::new(readings)), 77);
}
