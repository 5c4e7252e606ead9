//! Clients that break the contract harm nobody but themselves.
#![allow(clippy::unwrap_used)]

mod common;

use common::{LOCAL, port, stack};
use towpath_contract_tests::hostile::{self, Target};

fn run(flow_groups: usize, test: fn(&Target)) {
    test(&Target { stack: &stack(flow_groups), flow_groups, address: LOCAL, port });
}

#[test]
fn fuzz_noise_over_the_whole_region() {
    run(2, hostile::fuzz_noise_over_the_whole_region);
}

#[test]
fn fuzz_noise_in_the_lines_and_queues() {
    run(2, hostile::fuzz_noise_in_the_lines_and_queues);
}

#[test]
fn fuzz_plausible_violations() {
    run(1, hostile::fuzz_plausible_violations);
}

#[test]
fn a_violation_costs_the_connection_only() {
    run(1, hostile::a_violation_costs_the_connection_only);
}

#[test]
fn a_stopped_client_stops_nobody_else() {
    run(1, hostile::a_stopped_client_stops_nobody_else);
}
