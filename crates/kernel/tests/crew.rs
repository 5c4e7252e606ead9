//! Groups of clients go from thread to thread under traffic: nothing is lost, reordered or reset.
#![allow(clippy::unwrap_used)]

mod common;

use common::app::{App, eventually, small};
use common::shuffle::{echo, pairs, parked, shuffle};
use common::{kernel, port};
use std::sync::{Arc, Mutex, PoisonError};
use towpath_kernel::Kernel;
use towpath_stack::Stack;

/// Threads, and groups of clients.
const MOST: usize = 4;

/// One stack at a time: threads are found by their names.
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
    assert_eq!((status.panics, status.cores.iter().map(|core| core.tally.resets).sum::<u64>()), (0, 0));
}

#[test]
fn a_parked_thread_uses_no_cpu() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let kernel = kernel(MOST);
    let clients = clients(&kernel);
    let ends = clients.chunks(2).flat_map(|two| pairs(&two[0], &two[1], port(), 3)).collect();
    parked(&kernel, "kernel-", ends);
}
