//! Accounts without modules.
#![allow(clippy::unwrap_used)]

use super::account::{Account, FREE_NS, Over, SPARE_NS};
use super::*;

const MS: u64 = 1_000_000;

/// Charges runs of this length, one after the other with this much time between them. Returns how many until it is over.
fn runs(percent: u64, run_ns: u64, between_ns: u64, most: u64) -> Option<u64> {
    let account = Account::new(percent);
    (1..=most).find(|run| account.charge(percent, run_ns, None, run * (run_ns + between_ns)).is_some())
}

#[test]
fn a_tenant_that_takes_less_than_its_share_stays() {
    assert_eq!(runs(50, 100, 1_000, 1_000_000), None, "a twelfth");
    assert_eq!(runs(50, 480, 520, 1_000_000), None, "just below");
    assert_eq!(runs(1, 1, 99, 1_000_000), None, "no percentage is rounded away");
    assert_eq!(runs(1, MS, 120 * MS, 10_000), None, "long runs, and few of them");
}

#[test]
fn a_tenant_that_takes_more_goes_within_a_tenth_of_a_second_of_its_own_time() {
    for (percent, run_ns) in [(50, MS), (50, 250_000), (20, 5_000), (1, 1_000), (99, MS)] {
        let taken = runs(percent, run_ns, 0, 10_000_000).expect("it is over its budget") * run_ns;
        // It takes what was saved and what is given meanwhile.
        let most = 100 * MS * percent / (100 - percent) + 2 * run_ns;
        assert!(taken <= most, "{percent} %, {run_ns} ns: {taken} ns");
    }
    assert!(runs(50, 600, 400, 10_000_000).is_some(), "just above");
}

/// Takes turns of 100 µs of their own. Returns how many there are until it is over.
fn turns(percent: u64, taken_ns: impl Fn(u64) -> u64, most: u64) -> Option<u64> {
    let (account, own_ns, mut now_ns) = (Account::new(percent), 100_000, 0);
    (0..most).find(|turn| {
        let taken_ns = taken_ns(*turn);
        // All of it comes before the turn's own work.
        now_ns += taken_ns;
        let at_once = account.charge(percent, taken_ns, Some(0), now_ns);
        assert_ne!(at_once, Some(Over::Core));
        now_ns += own_ns;
        at_once.is_some() || account.end_turn(percent, Some(own_ns)).is_some()
    })
}

#[test]
fn of_a_turn_a_tenant_takes_its_share_and_beyond_that_what_is_to_spare() {
    assert_eq!(turns(20, |_| 25_000, 100_000), None, "a quarter of the rest");
    // The tenant takes 600 ns too much in each turn, and 628 ns come back in it. Its share of the core would last for longer.
    assert_eq!(turns(20, |_| 25_600, 10_000), None);
    assert!(turns(20, |_| 26_500, 10_000).is_some());
    // All that is to spare at once, and no more before it has come back.
    let spare = |every| move |turn| if turn % every == 0 { 25_000 + SPARE_NS - FREE_NS } else { 0 };
    assert_eq!(turns(20, |turn| if turn == 0 { SPARE_NS } else { 0 }, 10), None);
    assert_eq!(turns(20, |turn| if turn == 0 { SPARE_NS + 2 * FREE_NS } else { 0 }, 10), Some(0), "in the turn");
    assert!(turns(20, spare(500), 100_000).is_some());
    assert_eq!(turns(20, |turn| if turn % 1100 == 0 { SPARE_NS } else { 0 }, 100_000), None);
}

#[test]
fn a_short_turn_has_room_for_a_run_all_the_same() {
    let account = Account::new(1);
    for turn in 0..1_000u64 {
        let now_ns = turn * MS;
        assert_eq!(account.charge(1, FREE_NS, Some(0), now_ns), None);
        assert_eq!(account.end_turn(1, Some(0)), None);
    }
}

#[test]
fn tenants_with_limits_are_each_told_of_once() {
    let [one, two, free] =
        [("one", 10), ("two", 20), ("free", 100)].map(|(name, of)| Arc::new(Tenant::new(name, of, 2)));
    let tenants = Tenants::of([&one, &two, &one, &free].into_iter());
    assert_eq!(tenants.0.len(), 2);
    assert!(Tenants::of([&free].into_iter()).is_empty() && tenants.news().is_none());
    two.overrun.set(Overrun { flow_group: 0, taken_ns: 1, own_ns: None }).unwrap();
    let again = Tenants::of([&two].into_iter());
    assert_eq!((tenants.news().unwrap().name(), again.news().is_none(), tenants.news().is_none()), ("two", true, true));
}
