//! Flow groups move from thread to thread under traffic, and nothing is lost, reordered or reset.
#![allow(clippy::unwrap_used)]

mod common;

use common::stack;
use std::sync::{Mutex, PoisonError};
use towpath_contract_tests::app::{App, eventually, small};
use towpath_contract_tests::resizing::{echo, pairs, parked, shuffle};
use towpath_fast::FastStack;
use towpath_runtime::{Stack, WorkerCount};

/// Threads, and flow groups.
const MOST: usize = 4;

/// One stack at a time, because threads are found by their names.
static ALONE: Mutex<()> = Mutex::new(());

/// Frames dropped, by all reasons, and resets. Frames that come twice or out of order show up here.
fn losses(stack: &FastStack) -> Vec<(String, u64)> {
    let flow_groups = stack.status().flow_groups;
    let resets = flow_groups.iter().map(|c| ("resets".to_owned(), c.tally.resets));
    let drops = flow_groups.iter().flat_map(|c| c.tally.drops.iter().map(|(name, n)| (name.to_owned(), n)));
    drops.chain(resets).filter(|(_, n)| *n > 0).collect()
}

/// Segments sent again, and tail probes. There are some if a busy machine does not run a thread for 200 ms. The test
/// proves nothing then.
fn sent_again(stack: &FastStack) -> u64 {
    stack.status().flow_groups.iter().map(|c| c.tally.retransmits + c.tally.timeouts).sum()
}

#[test]
fn connections_notice_nothing_while_the_number_of_threads_changes_hundreds_of_times() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let stack = stack(MOST);
    let (server, client) = (App::new(&stack, small(MOST)), App::new(&stack, small(MOST)));
    echo(pairs(&server, &client, 7, 12), || shuffle(&stack, 400));
    if sent_again(&stack) == 0 {
        assert_eq!(losses(&stack), []);
    }
    eventually("all slots are free", || client.busy_slots() + server.busy_slots() == 0);
    eventually("no flow group has a flow", || stack.status().flow_groups.iter().all(|c| c.flows == 0));
    assert_eq!(stack.status().panics, 0);
}

#[test]
fn a_parked_thread_uses_no_cpu() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let stack = stack(MOST);
    let (server, client) = (App::new(&stack, small(MOST)), App::new(&stack, small(MOST)));
    let pairs = pairs(&server, &client, 7, 12);
    parked(&stack, "fast-", pairs);
}

#[test]
fn a_number_of_threads_that_there_is_not_is_refused() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let stack = stack(2);
    for running in [0, 3] {
        assert!(stack.set_workers(running).is_err());
    }
    assert_eq!(stack.workers(), WorkerCount { running: 2, most: 2 });
}
