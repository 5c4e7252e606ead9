//! Clients that violate the contract harm only themselves.
#![allow(clippy::unwrap_used)]

mod common;

use common::{kernel, port};
use towpath_contract_tests::LOCAL;
use towpath_contract_tests::hostile::{self, Target};

fn run(cores: usize, test: fn(&Target)) {
    test(&Target { stack: &kernel(cores), flow_groups: cores, address: LOCAL, port });
}

#[test]
fn fuzz_noise_over_the_whole_region() {
    run(1, hostile::fuzz_noise_over_the_whole_region);
}

#[test]
fn fuzz_noise_in_the_lines_and_queues() {
    run(1, hostile::fuzz_noise_in_the_lines_and_queues);
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
