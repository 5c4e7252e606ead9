//! Chains without a port.
#![allow(clippy::unwrap_used)]

mod tenants;

use super::*;
use crate::insn::Insn;
use crate::module::Module;
use crate::object::{Object, ProgramSpec};
use std::cell::Cell;

thread_local! { static TIME: Cell<u64> = const { Cell::new(0) } }

/// Clocks that stand still, so that asking them takes no time.
const STILL: Clock = Clock { wall: || TIME.get(), thread: || TIME.get() };
/// Clocks that go on by 250 µs whenever somebody asks, so that each run takes that.
const SLOW: Clock = Clock {
    wall: || {
        TIME.set(TIME.get() + 250_000);
        TIME.get()
    },
    thread: || TIME.get(),
};

fn attached(name: &str, percent: u8) -> Attached {
    let module = Arc::new(Module::interpreted(&Object::null(), 0, 1).unwrap());
    let tenant = Arc::new(Tenant::new(name, percent, 1));
    Attached { module, counts: Counts::new(1), tenant, selector: None, direct: None }
}

/// A chain that takes it that asking the clock takes no time, whatever it takes.
fn chain(modules: &[Attached], clock: Clock) -> Chain {
    let mut chain = Chain::with_meter(modules, Hook::Ingress, 0, 0, Meter::new(STILL, 0, true));
    chain.meter.tick_by(clock);
    chain
}

fn runs(of: &Attached) -> u64 {
    of.counts.sums()[0]
}

#[test]
fn a_module_over_its_budget_leaves_the_chain() {
    let modules = [attached("greedy", 10), attached("patient", 100)];
    let mut chain = chain(&modules, SLOW);
    for _ in 0..100_000 {
        assert_eq!(chain.run_in_place(&mut [0; 64]), Action::Pass);
        chain.settle();
    }
    // It has 500 µs to spare.
    assert!(runs(&modules[0]) <= 5, "{}", runs(&modules[0]));
    assert_eq!(runs(&modules[1]), 100_000);
    let overrun = modules[0].tenant.overrun().unwrap();
    assert!(overrun.flow_group == 0 && overrun.taken_ns > 500_000 && overrun.own_ns.is_some(), "{overrun:?}");
    assert_eq!(modules[1].tenant.overrun(), None);
}

/// Its verdict is the frame's byte at this place. If it redirects, it does so over the port that the fourth byte says.
fn by_byte(place: i16) -> Attached {
    let insn = |code, dst, src, off, imm| Insn { code, dst, src, off, imm };
    let insns = vec![
        insn(0x61, 2, 1, 0, 0),
        insn(0x71, 6, 2, place, 0),
        insn(0x71, 1, 2, 3, 0),
        insn(0xb7, 2, 0, 0, 0),
        insn(0x85, 0, 0, 0, 23),
        insn(0xbf, 0, 6, 0, 0),
        insn(0x95, 0, 0, 0, 0),
    ];
    let program = ProgramSpec { name: "byte".into(), frags: false, insns, functions: vec![0] };
    let object = Object { programs: vec![program], maps: Vec::new(), license: "GPL".into() };
    Attached { module: Arc::new(Module::interpreted(&object, 0, 1).unwrap()), ..attached("byte", 99) }
}

#[test]
fn a_batch_is_its_frames_one_by_one() {
    let frames: Vec<Vec<u8>> = (0..3000u32)
        .map(|at| vec![[2, 4, 1, 3][(at * at / 7 % 4) as usize], [2, 0][(at % 3 / 2) as usize], 2, at as u8])
        .collect();
    for count in 0..=3 {
        let chains = [(); 2].map(|()| (0..count).map(by_byte).collect::<Vec<_>>());
        let [mut batched, mut alone] = chains.each_ref().map(|modules| chain(modules, STILL));
        let (mut left, mut expected) = (Vec::new(), Vec::new());
        for (batch, frames) in frames.chunks(64).enumerate() {
            let mut copies = frames.to_vec();
            let mut slices: Vec<_> = copies.iter_mut().map(|frame| IoSliceMut::new(frame)).collect();
            batched.run_batch(64 * batch, &mut slices, &mut left);
            for (at, frame) in frames.iter().enumerate() {
                let action = alone.run_in_place(&mut frame.clone());
                let over = if action == Action::Redirect { frame[3].into() } else { 0 };
                assert!(action != Action::Redirect || alone.over() == over);
                expected.extend(Some(Left { place: 64 * batch + at, action, over }).filter(|_| action != Action::Pass));
            }
        }
        assert_eq!(left, expected, "{count} modules");
        drop((batched, alone));
        let [batched, alone] = chains.map(|modules| modules.iter().map(|one| one.counts.sums()).collect::<Vec<_>>());
        assert_eq!(batched, alone);
    }
}

#[test]
fn what_one_flow_group_has_found_holds_on_all_of_them() {
    let modules = [attached("greedy", 1)];
    let mut chains = [chain(&modules, SLOW), chain(&modules, STILL)];
    (0..1000).for_each(|_| assert_eq!(chains[0].run_in_place(&mut [0; 64]), Action::Pass));
    chains[0].settle();
    let before = runs(&modules[0]);
    (0..1000).for_each(|_| assert_eq!(chains[1].run_in_place(&mut [0; 64]), Action::Pass));
    assert!(chains.iter().all(Chain::is_empty));
    assert_eq!(runs(&modules[0]), before);
}

#[test]
fn asking_the_clock_is_charged_to_nobody() {
    let modules = [attached("cheap", 1)];
    let mut chain = Chain::with_meter(&modules, Hook::Ingress, 0, 0, Meter::new(SLOW, 0, true));
    (0..10_000).for_each(|_| assert_eq!(chain.run_in_place(&mut [0; 64]), Action::Pass));
    assert_eq!(modules[0].tenant.overrun(), None);
}

#[test]
fn a_module_has_the_frames_of_connections_that_its_selector_chooses() {
    // The selectors stand in the frame.
    let whose: Arc<Whose> = Arc::new(|frame| u32::from_ne_bytes([frame[0], frame[1], frame[2], frame[3]]));
    let frame = |bits: u32| [bits.to_ne_bytes(), [0; 4]].concat();
    let of = |name, bit| Attached { selector: Some(bit), ..attached(name, 100) };
    let modules = [of("first", 1), attached("all", 100), of("second", 1 << 31)];
    for hook in [Hook::Ingress, Hook::Egress] {
        let mut chain = Chain::new(&modules, hook, 0, 0);
        assert!(chain.selects() && chain.is_for(0));
        assert_eq!(chain.selectors_of(&frame(1)), 0, "nobody is asked yet");
        chain.ask(Arc::clone(&whose));
        for bits in [0, 1, 1, 1 << 31, 1 | 1 << 31, 2] {
            assert_eq!(chain.run_selected_in_place(&mut frame(bits)), Action::Pass);
            assert_eq!(chain.run_selected(&mut Frame::whole(&mut [0; 64]), bits), Action::Pass);
        }
    }
    assert_eq!(modules.each_ref().map(|one| one.counts.sums()[0]), [12, 24, 8]);
    let alone = Chain::new(&modules[2..], Hook::Ingress, 0, 0);
    assert!(alone.is_for(1 << 31) && !alone.is_for(1) && alone.is_for(EVERY));
    // What was not sent is counted where the frame was last.
    let chain = Chain::new(&modules, Hook::Egress, 0, 0);
    [1, 0, 1 << 31, EVERY].into_iter().for_each(|bits| chain.failed(bits));
    assert_eq!(modules.each_ref().map(|one| one.counts.sums()[5]), [0, 2, 2]);
    assert!(!Chain::new(&modules[1..2], Hook::Ingress, 0, 0).selects());
}

#[test]
fn frames_of_others_take_no_time_of_a_module() {
    let modules = [Attached { selector: Some(1), ..attached("greedy", 10) }, attached("patient", 100)];
    let mut chain = chain(&modules, SLOW);
    chain.ask(Arc::new(|frame| frame[0].into()));
    (0..1000).for_each(|_| assert_eq!(chain.run_selected_in_place(&mut [2; 64]), Action::Pass));
    assert_eq!((runs(&modules[0]), modules[0].tenant.overrun()), (0, None));
    (0..1000).for_each(|at| assert_eq!(chain.run_selected_in_place(&mut [(at % 2) as u8; 64]), Action::Pass));
    assert!(modules[0].tenant.overrun().is_some());
    assert!(runs(&modules[0]) < 10, "{}", runs(&modules[0]));
}
