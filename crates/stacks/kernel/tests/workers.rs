//! Groups of clients move between workers under traffic: no byte is lost or reordered, and no connection is reset.
#![allow(clippy::unwrap_used)]

mod common;

use common::{kernel, port};
use std::sync::{Arc, Mutex, PoisonError};
use towpath_contract_tests::app::{App, eventually, small};
use towpath_contract_tests::resizing::{echo, pairs, parked, shuffle};
use towpath_kernel::Kernel;
use towpath_runtime::Stack;

/// Workers, and groups of clients.
const MOST: usize = 4;

/// One stack at a time, because threads are found by their names.
static ALONE: Mutex<()> = Mutex::new(());

/// Clients for all groups.
fn clients(kernel: &Kernel) -> Vec<Arc<App>> {
    (0..2 * MOST).map(|_| App::new(kernel, small(1))).collect()
}

#[test]
fn connections_notice_nothing_while_the_number_of_threads_changes_hundreds_of_times() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let kernel = kernel(MOST);
    let clients = clients(&kernel);
    let ends = clients.chunks(2).flat_map(|two| pairs(&two[0], &two[1], port(), 3)).collect();
    echo(ends, || shuffle(&kernel, 400));
    eventually("all slots are free", || clients.iter().all(|client| client.busy_slots() == 0));
    let status = kernel.status();
    assert_eq!((status.panics, status.flow_groups.iter().map(|core| core.tally.resets).sum::<u64>()), (0, 0));
}

#[test]
fn a_parked_thread_uses_no_cpu() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let kernel = kernel(MOST);
    let clients = clients(&kernel);
    let ends = clients.chunks(2).flat_map(|two| pairs(&two[0], &two[1], port(), 3)).collect();
    parked(&kernel, "kernel-", ends);
}
