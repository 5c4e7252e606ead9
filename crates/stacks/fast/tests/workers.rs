//! Flow groups go from thread to thread under traffic: nothing is lost, reordered or reset.
#![allow(clippy::unwrap_used)]

mod common;

use common::engine;
use std::sync::{Mutex, PoisonError};
use towpath_contract_tests::app::{App, eventually, small};
use towpath_contract_tests::resizing::{echo, pairs, parked, shuffle};
use towpath_fast::FastStack;
use towpath_runtime::{Stack, WorkerCount};

/// Threads, and flow groups.
const MOST: usize = 4;

/// One engine at a time: threads are found by their names.
static ALONE: Mutex<()> = Mutex::new(());

/// Frames dropped, by all reasons, and resets. Whatever comes twice or in another order than it was sent shows up here.
fn losses(engine: &FastStack) -> Vec<(String, u64)> {
    let flow_groups = engine.status().flow_groups;
    let resets = flow_groups.iter().map(|c| ("resets".to_owned(), c.tally.resets));
    let drops = flow_groups.iter().flat_map(|c| c.tally.drops.iter().map(|(name, n)| (name.to_owned(), n)));
    drops.chain(resets).filter(|(_, n)| *n > 0).collect()
}

/// Segments sent again, and probes for lost tails. Where a machine is so busy that a thread does not run for 200 ms there are some;
/// then nothing is known of the rest.
fn sent_again(engine: &FastStack) -> u64 {
    engine.status().flow_groups.iter().map(|c| c.tally.retransmits + c.tally.timeouts).sum()
}

#[test]
fn connections_notice_nothing_while_the_number_of_threads_changes_hundreds_of_times() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let engine = engine(MOST);
    let (server, client) = (App::new(&engine, small(MOST)), App::new(&engine, small(MOST)));
    echo(pairs(&server, &client, 7, 12), || shuffle(&engine, 400));
    if sent_again(&engine) == 0 {
        assert_eq!(losses(&engine), []);
    }
    eventually("all slots are free", || client.busy_slots() + server.busy_slots() == 0);
    eventually("no flow group has a flow", || engine.status().flow_groups.iter().all(|c| c.flows == 0));
    assert_eq!(engine.status().panics, 0);
}

#[test]
fn a_parked_thread_uses_no_cpu() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let engine = engine(MOST);
    let (server, client) = (App::new(&engine, small(MOST)), App::new(&engine, small(MOST)));
    let pairs = pairs(&server, &client, 7, 12);
    parked(&engine, "fast-", pairs);
}

#[test]
fn a_number_of_threads_that_there_is_not_is_refused() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let engine = engine(2);
    for running in [0, 3] {
        assert!(engine.set_workers(running).is_err());
    }
    assert_eq!(engine.workers(), WorkerCount { running: 2, most: 2 });
}
