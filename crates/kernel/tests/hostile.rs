//! Clients that break the contract harm nobody but themselves.
#![allow(clippy::unwrap_used)]

mod common;

use common::storm::{self, Field};
use common::{LOCAL, kernel, port};

fn field(cores: usize, test: fn(&Field)) {
    test(&Field { stack: &kernel(cores), cores, address: LOCAL, port });
}

#[test]
fn fuzz_noise_over_the_whole_region() {
    field(1, storm::fuzz_noise_over_the_whole_region);
}

#[test]
fn fuzz_noise_in_the_lines_and_queues() {
    field(1, storm::fuzz_noise_in_the_lines_and_queues);
}

#[test]
fn fuzz_plausible_lies() {
    field(1, storm::fuzz_plausible_lies);
}

#[test]
fn a_lie_costs_the_connection_only() {
    field(1, storm::a_lie_costs_the_connection_only);
}

#[test]
fn a_stopped_client_stops_nobody_else() {
    field(1, storm::a_stopped_client_stops_nobody_else);
}
