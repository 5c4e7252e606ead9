//! What a tenant takes of turns in which others wait. Modules count their work in a map, and the clock is that count: so all is
//! exact, and nothing waits.

use super::*;
use crate::budget::{SPARE_NS, Tenants, serves_as};
use crate::map::Map;
use crate::object::{MapKind, MapSpec};
use towpath_rng::Rng;

thread_local! {
    static WORK: Arc<Map> = Arc::new(Map::new(&spec(), 1, |_| None));
    /// Time for which another program has the CPU.
    static LOST: Cell<u64> = const { Cell::new(0) };
}

/// Its time is the work of modules, and what a test says has passed beside.
const COUNTED: Clock = Clock { wall: || worked() + TIME.get() + LOST.get(), thread: || worked() + TIME.get() };

fn spec() -> MapSpec {
    MapSpec::new("work", MapKind::Array.number(), [4, 8, 1], 0).unwrap()
}

/// What all modules of this thread have done, ns.
fn worked() -> u64 {
    let mut all = [0; 8];
    WORK.with(|work| assert!(work.get(&[0; 4], &mut all)));
    u64::from_ne_bytes(all)
}

fn pass(ns: u64) {
    TIME.set(TIME.get() + ns);
}

/// A module that does so much work for a frame as the frame's number at this place says, ns.
fn works(tenant: &Arc<Tenant>, place: i16) -> Attached {
    let insn = |code, dst, src, off, imm| Insn { code, dst, src, off, imm };
    let insns = vec![
        insn(0x61, 2, 1, 0, 0),
        insn(0x61, 3, 2, place, 0),
        insn(0x18, 1, 2, 0, 0),
        insn(0, 0, 0, 0, 0),
        insn(0xdb, 1, 3, 0, 0),
        insn(0xb7, 0, 0, 0, 2),
        insn(0x95, 0, 0, 0, 0),
    ];
    let program = ProgramSpec { name: "works".into(), frags: false, insns, functions: vec![0] };
    let object = Object { programs: vec![program], maps: vec![spec()], license: "GPL".into() };
    let map = WORK.with(Arc::clone);
    // SAFETY: nothing is compiled.
    let module = unsafe { Module::with_maps(&object, 0, 1, None, &[Some(map)]) }.unwrap();
    Attached { module: Arc::new(module), tenant: Arc::clone(tenant), ..attached("", 100) }
}

fn tenant(name: &str, percent: u8) -> Arc<Tenant> {
    Arc::new(Tenant::new(name, percent, 3))
}

/// Frames that have these numbers.
fn frames(of: &[[u32; 2]]) -> Vec<Vec<u8>> {
    of.iter().map(|two| two.map(u32::to_ne_bytes).concat()).collect()
}

/// A flow group with modules at both hooks.
struct Group {
    hooks: [Chain; 2],
    limited: Tenants,
}

impl Group {
    fn new(modules: &[Attached]) -> Self {
        let limited = Tenants::of(modules.iter().map(|one| &one.tenant));
        Self { hooks: [modules, modules].map(|modules| chain(modules, COUNTED)), limited }
    }

    /// A turn: it receives these frames in one batch, works on them, and sends as many one by one. Returns how much longer it
    /// took for the modules.
    fn turn(&mut self, all: &[[u32; 2]], own_ns: u64) -> u64 {
        let begin_ns = worked();
        let mut received = frames(all);
        let mut slices: Vec<_> = received.iter_mut().map(|frame| IoSliceMut::new(frame)).collect();
        let mut left = Vec::new();
        self.hooks[0].run_batch(0, &mut slices, &mut left);
        assert!(left.is_empty(), "no frame is lost");
        pass(own_ns);
        for mut frame in frames(all) {
            assert_eq!(self.hooks[1].run_in_place(&mut frame), Action::Pass);
        }
        self.limited.end_turn(self.hooks[1].meter());
        worked() - begin_ns
    }
}

/// How an adversary chooses what it takes of a turn: from the turn's number, its own work, and a random number.
type Greed = fn(u64, u64, u64) -> u64;

/// What it does, and whether it keeps within what a tenant may take.
const GREEDS: [(&str, Greed, bool); 7] = [
    ("its share of each turn", |_, own_ns, _| own_ns / 4, true),
    ("its share of some", |turn, own_ns, _| if turn % 3 == 0 { own_ns / 4 } else { 0 }, true),
    ("all that is to spare at once", |turn, _, _| if turn % 2000 == 0 { SPARE_NS - 10_000 } else { 0 }, true),
    ("both", |turn, own_ns, _| own_ns / 4 + if turn % 2000 == 0 { SPARE_NS - 100_000 } else { 0 }, true),
    ("anything", |_, own_ns, random| random % own_ns, false),
    ("its share, and a little more", |_, own_ns, _| own_ns * 31 / 100, false),
    ("its share, and a half more", |_, own_ns, _| own_ns * 3 / 8, false),
];

/// Others wait for the whole turn. With a budget of 20 % the p99 of turns grows to 1.3 of their own work at most, and all turns
/// together by no more.
#[test]
fn an_adversary_that_takes_all_it_may_makes_others_wait_by_less_than_a_third_longer() {
    for (way, greed, stays) in GREEDS {
        let (adversary, victim) = (tenant("adversary", 20), tenant("victim", 5));
        let mut group = Group::new(&[works(&adversary, 0), works(&victim, 4)]);
        let (mut rng, mut ratios, mut all) = (Rng::new(7), Vec::new(), [0, 0]);
        for turn in 0..12_000u64 {
            let own_ns = 20_000 + rng.below(200_000);
            let count = 1 + rng.below(10);
            // The victim's own module takes one percent.
            let each = |taken: u64| (taken / (2 * count)) as u32;
            let of_frame = [each(greed(turn, own_ns, rng.next_u64())), each(own_ns / 100)];
            let taken_ns = group.turn(&vec![of_frame; count as usize], own_ns);
            let extra_ns = taken_ns - u64::from(of_frame[1]) * 2 * count;
            ratios.push(1000 * (own_ns + extra_ns) / own_ns);
            all = [all[0] + own_ns, all[1] + extra_ns];
            // A part of a batch comes on top when a tenant goes.
            let most_ns = SPARE_NS + own_ns / 4 + 8 * u64::from(of_frame[0]);
            assert!(extra_ns <= most_ns, "{way}: {extra_ns} ns of a turn with {own_ns} ns of its own");
        }
        ratios.sort_unstable();
        let p99 = ratios[ratios.len() * 99 / 100];
        assert!(p99 <= 1300, "{way}: p99 is {p99} thousandths");
        assert!(10 * all[1] <= 3 * all[0], "{way}: {all:?}");
        assert_eq!((adversary.overrun().is_none(), victim.overrun()), (stays, None), "{way}");
    }
}

/// What the same does to others where nothing holds it.
#[test]
fn without_a_budget_others_wait_for_all_of_it() {
    let adversary = tenant("adversary", 100);
    let mut group = Group::new(&[works(&adversary, 0)]);
    let taken_ns: u64 = (0..1000).map(|_| group.turn(&[[5_000, 0]; 16], 50_000)).sum();
    assert_eq!(taken_ns, 1000 * 32 * 5_000, "3.2 times the turn's own work");
}

#[test]
fn all_modules_of_a_tenant_have_one_account_and_go_together() {
    // Each takes an eighth of the turn's own work at the two hooks together.
    let stay = |modules: &[Attached]| {
        let mut group = Group::new(modules);
        for _ in 0..1000 {
            group.turn(&[[400, 0]; 16], 102_400);
        }
        group.hooks.iter().map(|chain| chain.steps.len()).sum::<usize>()
    };
    let one = tenant("one", 20);
    assert_eq!(stay(&[works(&one, 0), works(&one, 0)]), 4, "a quarter");
    let four: Vec<_> = (0..4).map(|_| works(&one, 0)).collect();
    assert_eq!((stay(&four), one.overrun().is_some()), (0, true), "four modules have no more");
    let each: Vec<_> = ["a", "b", "c", "d"].iter().map(|name| works(&tenant(name, 20), 0)).collect();
    assert_eq!(stay(&each), 8, "four tenants do, and none pays for another");
}

#[test]
fn a_worker_that_serves_several_flow_groups_gives_a_tenant_one_share() {
    // 5 µs of each turn are free, and are five elevenths of the worker's time.
    let takes = |groups: usize| {
        let one = tenant("one", 30);
        let mut groups: Vec<_> = (0..groups).map(|_| Group::new(&[works(&one, 0)])).collect();
        for turn in 0..30_000usize {
            let at = turn % groups.len();
            groups[at].turn(&[[2_500, 0]], 6_000);
        }
        one.overrun()
    };
    assert!([1, 4].iter().all(|groups| takes(*groups).is_some_and(|over| over.own_ns.is_none())));
    // Two workers have an account each. The time of both is this thread's.
    let one = tenant("one", 30);
    let mut groups = [0, 1].map(|_| Group::new(&[works(&one, 0)]));
    for turn in 0..30_000usize {
        serves_as(turn % 2);
        groups[turn % 2].turn(&[[2_500, 0]], 6_000);
    }
    serves_as(0);
    assert_eq!(one.overrun(), None, "a quarter of the time of each");
}

#[test]
fn one_that_burns_without_end_goes_within_a_part_of_its_first_batch_and_no_frame_is_lost() {
    let (burns, other) = (tenant("burns", 20), tenant("other", 100));
    let modules = [works(&burns, 0), works(&other, 4)];
    let mut group = Group::new(&modules);
    let taken_ns = group.turn(&[[300_000, 0]; 64], 50_000);
    // The part had begun when it was over.
    assert_eq!(taken_ns, 8 * 300_000, "eight frames are the most that it had");
    assert_eq!(burns.overrun().map(|over| over.taken_ns), Some(taken_ns));
    drop(group);
    assert_eq!([runs(&modules[0]), runs(&modules[1])], [8, 128]);
}

#[test]
fn time_in_which_another_program_has_the_cpu_is_charged_to_nobody() {
    let one = tenant("one", 10);
    let mut chain = chain(&[works(&one, 0)], COUNTED);
    let limited = Tenants::of(std::iter::once(&one));
    for _ in 0..1_000 {
        let mut frame = frames(&[[500, 0]]).remove(0);
        let action = chain.run_limited(EVERY, &mut |instance| {
            LOST.set(LOST.get() + 5_000_000);
            instance.run_in_place(&mut frame)
        });
        assert_eq!(action, Action::Pass);
        pass(50_000);
        limited.end_turn(chain.meter());
    }
    assert_eq!(one.overrun(), None);
}

/// The time that is lost between two runs is neither's.
#[test]
fn a_run_after_time_in_which_another_program_had_the_cpu_is_charged_in_full() {
    let one = tenant("one", 10);
    let mut chain = chain(&[works(&one, 0)], COUNTED);
    let limited = Tenants::of(std::iter::once(&one));
    let run = |chain: &mut Chain, ns: u32| {
        let mut frame = frames(&[[ns, 0]]).remove(0);
        assert_eq!(chain.run_in_place(&mut frame), Action::Pass);
    };
    let mut turns = 0;
    while one.overrun().is_none() && turns < 1_000 {
        run(&mut chain, 100);
        LOST.set(LOST.get() + 5_000_000);
        pass(50_000);
        run(&mut chain, 60_000);
        limited.end_turn(chain.meter());
        turns += 1;
    }
    let over = one.overrun().unwrap();
    assert_eq!((over.taken_ns, over.own_ns), (60_100, Some(50_000)));
    // 5.6 of 60 µs are its share. 25 of those that are to spare come back until the next turn, so 29 are gone of 500.
    assert!((15..20).contains(&turns), "{turns}");
}

#[test]
fn on_the_thread_for_direct_connections_nobody_waits_so_the_share_of_the_core_counts_alone() {
    let one = tenant("one", 20);
    let modules = [works(&one, 0)];
    let mut chain = Chain::with_meter(&modules, Hook::Ingress, 2, 0, Meter::new(STILL, 2, false));
    chain.meter.tick_by(COUNTED);
    let limited = Tenants::of(std::iter::once(&one));
    let mut look = |rest_ns| {
        for mut frame in frames(&[[10_000, 0]; 200]) {
            assert_eq!(chain.run_in_place(&mut frame), Action::Pass);
        }
        limited.end_turn(chain.meter());
        pass(rest_ns);
    };
    (0..100).for_each(|_| look(10_000_000));
    assert_eq!(one.overrun(), None, "a sixth, and 2 ms at once");
    (0..100).for_each(|_| look(5_000_000));
    assert!(one.overrun().is_some_and(|over| over.own_ns.is_none()));
}
